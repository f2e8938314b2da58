//! The alerts by themselves.

use std::fs;

use crate::{alerts, folder, promtool, test_files};

#[test]
fn promtool_finds_nothing_wrong_with_the_alerts() {
    let (passed, said) =
        promtool(["check", "rules", "--lint=all", "--lint-fatal"], &[folder().join("alerts.yaml")], "");
    println!("{said}");
    assert!(passed, "{said}");
    assert!(said.contains(&format!("{} rules found", alerts().len())), "{said}");
}

#[test]
fn every_alert_fires_and_resolves_as_its_tests_say() {
    let (passed, said) = promtool(["test", "rules"], &test_files(), "");
    println!("{said}");
    assert!(passed, "{said}");
    assert_eq!(said.matches("SUCCESS").count(), test_files().len(), "{said}");
}

/// The tests above can fail.
#[test]
fn an_alert_that_fires_too_late_fails_its_test() {
    let dir = std::env::temp_dir().join(format!("coder-k8s-late-alerts-{}", std::process::id()));
    fs::create_dir_all(dir.join("tests")).unwrap();
    let late = fs::read_to_string(folder().join("alerts.yaml")).unwrap().replace("for: 15m", "for: 16m");
    fs::write(dir.join("alerts.yaml"), late).unwrap();
    let files: Vec<_> = test_files()
        .iter()
        .map(|file| {
            let copy = dir.join("tests").join(file.file_name().unwrap());
            fs::copy(file, &copy).unwrap();
            copy
        })
        .collect();
    let (passed, said) = promtool(["test", "rules"], &files, "");
    fs::remove_dir_all(&dir).unwrap();
    assert!(!passed, "{said}");
}
