//! The image, as an OCI image layout: <https://github.com/opencontainers/image-spec>.
//!
//! It is from scratch: the program, a CA bundle and `/etc/passwd`, and nothing else; no shell, no loader, no package manager.
//! It is written here and not by a container engine, so that its digest depends on these three files, the commit and its
//! time alone. The layer with the program comes last: the one before it stays the same from release to release.

use std::{collections::BTreeMap, fs, io, path::Path};

use anyhow::{Context, Result};
use coder_k8s::manifests::Install;
use serde_json::{Value, json};

use super::{
    archive::{self, Entry, sha256},
    source::{Source, VERSION},
};

/// The user and group that the program runs as: a number, so that `runAsNonRoot` of Kubernetes can check it.
pub(crate) const USER: u32 = 65532;
/// The program, which is the entrypoint.
pub(crate) const ENTRYPOINT: &str = "/coder-k8s";
/// Where programs look for root certificates.
pub(crate) const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Who the user is.
pub(crate) const PASSWD: &str = "/etc/passwd";
/// The defaults of `--metrics-addr` and `--health-addr`.
const PORTS: [u16; 2] = [8080, 8081];

/// What goes into an image.
pub(crate) struct Contents<'a> {
    pub(crate) program: &'a [u8],
    /// PEM.
    pub(crate) ca_bundle: &'a [u8],
    /// `amd64` or `arm64`.
    pub(crate) architecture: &'a str,
}

/// A finished image.
pub(crate) struct Image {
    /// `sha256:...` of its manifest, by which it is pulled.
    pub(crate) digest: String,
    /// How much is pulled: the sum of its compressed layers and its configuration.
    pub(crate) size: usize,
    /// The files of the layout, by their paths.
    files: BTreeMap<String, Vec<u8>>,
}

/// The name by which the manifests pull the image, without a tag.
pub(crate) fn name() -> String {
    let image = Install::default().image;
    image.rsplit_once(':').map_or(image.clone(), |(name, _)| name.to_owned())
}

/// The tag of this release.
pub(crate) fn tag() -> String {
    format!("v{VERSION}")
}

/// Labels of the image and annotations of its manifest, by the keys of the specification.
pub(crate) fn labels(source: &Source) -> BTreeMap<&'static str, String> {
    let repository = env!("CARGO_PKG_REPOSITORY");
    BTreeMap::from([
        ("org.opencontainers.image.created", source.created()),
        ("org.opencontainers.image.description", "The operator that runs Coder on Kubernetes".to_owned()),
        ("org.opencontainers.image.documentation", format!("{repository}/tree/main/docs")),
        ("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE").to_owned()),
        ("org.opencontainers.image.revision", source.commit.clone()),
        ("org.opencontainers.image.source", repository.to_owned()),
        ("org.opencontainers.image.title", "coder-k8s".to_owned()),
        ("org.opencontainers.image.url", repository.to_owned()),
        ("org.opencontainers.image.version", VERSION.to_owned()),
    ])
}

/// `/etc/passwd`: who the number of [`USER`] is. There is no root, and nobody can log in.
pub(crate) fn passwd() -> String {
    format!("coder-k8s:x:{USER}:{USER}:coder-k8s:/:/sbin/nologin\n")
}

/// Packs an image.
pub(crate) fn pack(contents: &Contents<'_>, source: &Source) -> Result<Image> {
    let inside = |path: &'static str| path.trim_start_matches('/');
    let base = [
        Entry::folder("etc"),
        Entry::file(inside(PASSWD), passwd()),
        Entry::folder("etc/ssl"),
        Entry::folder("etc/ssl/certs"),
        Entry::file(inside(CA_BUNDLE), contents.ca_bundle),
    ];
    let program = [Entry::program(inside(ENTRYPOINT), contents.program)];

    let mut blobs = Blobs::default();
    let (mut layers, mut diff_ids, mut history) = (Vec::new(), Vec::new(), Vec::new());
    for (entries, what) in [(&base[..], "CA bundle and user"), (&program[..], "the operator")] {
        let tar = archive::tar(entries, source.epoch)?;
        diff_ids.push(format!("sha256:{}", sha256(&tar)));
        layers.push(blobs.add("application/vnd.oci.image.layer.v1.tar+gzip", archive::gzip(&tar)?));
        history.push(json!({"created": source.created(), "created_by": "cargo xtask dist", "comment": what}));
    }
    let labels = labels(source);
    let ports: BTreeMap<_, _> = PORTS.iter().map(|port| (format!("{port}/tcp"), json!({}))).collect();
    let config = serde_json::to_vec(&json!({
        "architecture": contents.architecture,
        "os": "linux",
        "created": source.created(),
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": [ENTRYPOINT],
            "WorkingDir": "/",
            "ExposedPorts": ports,
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history,
    }))?;
    let config = blobs.add("application/vnd.oci.image.config.v1+json", config);
    let size = blobs.size();
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers,
        "annotations": labels,
    }))?;
    let digest = format!("sha256:{}", sha256(&manifest));
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": MANIFEST,
            "digest": digest,
            "size": manifest.len(),
            "platform": {"architecture": contents.architecture, "os": "linux"},
            "annotations": {
                // The tag, for tools that pick an image of a layout by it.
                "org.opencontainers.image.ref.name": tag(),
                // The whole name, which containerd gives the image when it imports the archive.
                "io.containerd.image.name": format!("{}:{}", name(), tag()),
            },
        }],
    });
    blobs.add(MANIFEST, manifest);
    let mut files = blobs.files;
    files.insert("index.json".to_owned(), serde_json::to_vec(&index)?);
    files.insert("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    Ok(Image { digest, size, files })
}

impl Image {
    /// Writes the layout as a folder.
    pub(crate) fn write_folder(&self, folder: &Path) -> Result<()> {
        for (path, content) in &self.files {
            let file = folder.join(path);
            fs::create_dir_all(file.parent().unwrap_or(folder))?;
            fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// The layout as one archive.
    pub(crate) fn archive(&self, source: &Source) -> io::Result<Vec<u8>> {
        let folders = ["blobs", "blobs/sha256"].map(Entry::folder);
        let files = self.files.iter().map(|(path, content)| Entry::file(path, content.clone()));
        archive::tar(&folders.into_iter().chain(files).collect::<Vec<_>>(), source.epoch)
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// What the layout holds by its digest.
#[derive(Default)]
struct Blobs {
    files: BTreeMap<String, Vec<u8>>,
}

impl Blobs {
    /// Adds a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let (hash, size) = (sha256(&content), content.len());
        self.files.insert(format!("blobs/sha256/{hash}"), content);
        json!({"mediaType": media_type, "digest": format!("sha256:{hash}"), "size": size})
    }

    fn size(&self) -> usize {
        self.files.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests;
