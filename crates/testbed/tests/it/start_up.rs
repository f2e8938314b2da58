//! A start that fails says why.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use coder_k8s_testbed::{Binaries, Cluster, Sources};

use crate::alone;

fn script(dir: &Path, name: &str, text: &str) {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The real etcd beside a kube-apiserver of the given text.
fn with_api_server(dir: &Path, text: &str) -> Binaries {
    std::os::unix::fs::symlink(Binaries::locate().unwrap().etcd, dir.join("etcd")).unwrap();
    script(dir, "kube-apiserver", text);
    script(dir, "kube-controller-manager", "#!/bin/sh\n");
    Binaries::locate_in(&Sources { assets: Some(dir.into()), cache: dir.into() }).unwrap()
}

#[tokio::test]
async fn a_component_that_ends_is_reported_with_its_last_lines() {
    let _alone = alone().await;
    let dir = tempfile::tempdir().unwrap();
    let binaries = with_api_server(dir.path(), "#!/bin/sh\necho 'unknown flag: --frobnicate' >&2\nexit 1\n");
    let error = Cluster::builder().binaries(binaries).start().await.unwrap_err().to_string();
    assert!(error.contains("kube-apiserver ended (exit status: 1)"), "{error}");
    assert!(error.contains("unknown flag: --frobnicate"), "{error}");
}

#[tokio::test]
async fn a_component_that_never_gets_ready_is_reported_with_its_last_lines() {
    let _alone = alone().await;
    let dir = tempfile::tempdir().unwrap();
    let binaries = with_api_server(dir.path(), "#!/bin/sh\necho thinking\nexec sleep 600\n");
    let builder = Cluster::builder().binaries(binaries).ready_within(Duration::from_secs(5));
    let error = builder.start().await.unwrap_err().to_string();
    assert!(error.contains("kube-apiserver is not ready after 5s"), "{error}");
    assert!(error.contains("thinking"), "{error}");
}

#[tokio::test]
async fn a_port_that_was_taken_is_tried_again() {
    let _alone = alone().await;
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let text =
        format!("#!/bin/sh\necho >>{}\necho 'bind: address already in use'\nexit 1\n", count.display());
    let binaries = with_api_server(dir.path(), &text);
    let error = Cluster::builder().binaries(binaries).start().await.unwrap_err().to_string();
    assert!(error.contains("address already in use"), "{error}");
    assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 3);
}
