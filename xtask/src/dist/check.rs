//! Trying out the artefacts: other people's tools accept the image, nothing is in it that should not be, and the operator runs
//! from it.
//!
//! The last part is a test program of the operator (`crates/operator/tests/image`, feature `image`), because it needs a
//! cluster.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    LAYOUT,
    image::{self, Image},
    source::{Source, VERSION, output},
};
use crate::{
    run::{cargo, must, say, target},
    testbed,
};

/// Programs that read images, each the name of its Debian package.
const TOOLS: [&str; 2] = ["skopeo", "umoci"];

/// Everything that the image may hold.
const CONTENT: [&str; 6] =
    ["coder-k8s", "etc", "etc/passwd", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt"];

/// Fails with the reason if anything is wrong with the artefacts in a folder.
pub(crate) fn check(folder: &Path, image: &Image, source: &Source) -> Result<()> {
    get_tools()?;
    let (layout, tag) = (folder.join(LAYOUT), image::tag());
    inspect(&format!("oci:{}:{tag}", layout.display()), image, source)?;
    for archive in archives(folder)? {
        inspect(&format!("oci-archive:{}:{tag}", archive.display()), image, source)?;
    }
    let root = unpack(&layout, &tag)?;
    let found = content(&root)?;
    if found != BTreeSet::from(CONTENT.map(str::to_owned)) {
        bail!("the image holds something else than it should: {found:?}");
    }
    say(&format!("dist: umoci unpacked it: {} files and folders, as it should be", found.len()));
    let program = root.join("coder-k8s");
    let version = output(&program, &["version"])?;
    if version != format!("coder-k8s {VERSION} (commit {})", source.commit) {
        bail!("the program calls itself {version:?}");
    }
    say(&format!("dist: its program is {version}"));

    testbed::get()?;
    let mut command = cargo(&["test", "--package", "coder-k8s", "--features", "image", "--test", "image"]);
    command.args(["--", "--nocapture"]);
    command.env("CODER_K8S_IMAGE_ROOT", &root).env("CODER_K8S_DIST", folder);
    must(command).context("the operator does not work from the image")?;
    say("dist: the operator runs from the image");
    Ok(())
}

fn get_tools() -> Result<()> {
    let missing =
        || TOOLS.into_iter().filter(|tool| output(tool, &["--version"]).is_err()).collect::<Vec<_>>();
    let line = |tools: &[&str]| format!("apt-get install {}", tools.join(" "));
    let wanted = missing();
    if !wanted.is_empty() && Path::new("/usr/bin/apt-get").is_file() {
        say(&format!("dist: installing what reads images ({})", line(&wanted)));
        let mut update = Command::new("apt-get");
        update.args(["update", "--quiet"]);
        let mut install = Command::new("apt-get");
        install.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(&wanted);
        // What is missing afterwards is told with the way to get it.
        let _ = must(update).and_then(|()| must(install));
    }
    match missing() {
        missing if missing.is_empty() => Ok(()),
        missing => bail!("the check needs {}: {}", missing.join(" and "), line(&missing)),
    }
}

fn archives(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    Ok(files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "tar"))
        .collect())
}

/// Has skopeo read an image, and compares what it says with what was packed.
fn inspect(place: &str, image: &Image, source: &Source) -> Result<()> {
    let told: Value = serde_json::from_str(&output("skopeo", &["inspect", place])?)?;
    let config: Value = serde_json::from_str(&output("skopeo", &["inspect", "--config", place])?)?;
    let labels = serde_json::to_value(image::labels(source))?;
    let told = |path: &str| told.pointer(path).cloned().unwrap_or_default();
    let config = |path: &str| config.pointer(path).cloned().unwrap_or_default();
    let layers = told("/Layers").as_array().map_or(0, Vec::len);
    for (what, found, expected) in [
        ("digest", told("/Digest"), Value::from(image.digest.as_str())),
        ("labels", told("/Labels"), labels),
        ("operating system", told("/Os"), Value::from("linux")),
        ("layers", layers.into(), Value::from(2)),
        ("user", config("/config/User"), Value::from(format!("{0}:{0}", image::USER))),
        ("entrypoint", config("/config/Entrypoint"), Value::from(vec![image::ENTRYPOINT])),
    ] {
        if found != expected {
            bail!("skopeo reads the {what} of {place} as {found}, and it should be {expected}");
        }
    }
    say(&format!("dist: skopeo accepts {place}"));
    Ok(())
}

/// Has umoci unpack the image, and returns its root folder.
fn unpack(layout: &Path, tag: &str) -> Result<PathBuf> {
    let bundle = target()?.join("dist-check");
    if bundle.exists() {
        fs::remove_dir_all(&bundle)?;
    }
    let is_root = output("id", &["-u"])? == "0";
    let mut command = Command::new("umoci");
    command.arg("unpack").args((!is_root).then_some("--rootless"));
    command.arg("--image").arg(format!("{}:{tag}", layout.display())).arg(&bundle);
    must(command)?;
    Ok(bundle.join("rootfs"))
}

/// The paths of everything under a folder.
fn content(root: &Path) -> Result<BTreeSet<String>> {
    let (mut found, mut next) = (BTreeSet::new(), vec![root.to_path_buf()]);
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            found.insert(entry.path().strip_prefix(root)?.to_string_lossy().into_owned());
            if entry.file_type()?.is_dir() {
                next.push(entry.path());
            }
        }
    }
    Ok(found)
}
