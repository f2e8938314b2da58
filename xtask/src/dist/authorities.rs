//! The CA bundle of the image, from the machine that packs it.
//!
//! A machine may trust authorities of its own, such as that of a company's proxy. They must not get into a release. Where
//! the distribution keeps its own apart, as Debian does, only these are taken; else the whole bundle is, and the line that
//! says so is for somebody to read.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

/// What Debian's package installs: a list, and the folder that it is relative to. Additions of a machine are elsewhere.
const LIST: &str = "etc/ca-certificates.conf";
const FOLDER: &str = "usr/share/ca-certificates";
/// Bundles of other distributions: Fedora, SUSE, Alpine and Arch.
const BUNDLES: [&str; 3] =
    ["etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/ca-bundle.pem", "etc/ssl/certs/ca-certificates.crt"];
const MARK: &str = "-----BEGIN CERTIFICATE-----";

/// A CA bundle, and where it is from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Authorities {
    /// PEM.
    pub(crate) bundle: Vec<u8>,
    pub(crate) count: usize,
    /// For people.
    pub(crate) origin: String,
}

impl Authorities {
    /// The bundle in a file, or that of this machine.
    pub(crate) fn get(file: Option<&Path>) -> Result<Self> {
        match file {
            Some(file) => Self::of_file(file),
            None => Self::of_machine(Path::new("/")),
        }
    }

    fn of_machine(root: &Path) -> Result<Self> {
        if let Ok(list) = fs::read_to_string(root.join(LIST)) {
            return Self::of_list(&list, root);
        }
        let found = BUNDLES.iter().map(|path| root.join(path)).find(|path| path.is_file());
        let Some(file) = found else {
            bail!(
                "the image needs a CA bundle, and this machine has none: apt-get install ca-certificates (or dnf, apk, \
                 zypper), or name one with --ca-bundle"
            );
        };
        let mut authorities = Self::of_file(&file)?;
        authorities.origin.push_str(", with whatever this machine adds to it");
        Ok(authorities)
    }

    fn of_list(list: &str, root: &Path) -> Result<Self> {
        let mut names: Vec<_> = list
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with(['#', '!']))
            .collect();
        names.sort_unstable();
        let mut bundle = String::new();
        for name in names {
            let file = root.join(FOLDER).join(name);
            let pem = fs::read_to_string(&file).with_context(|| {
                format!("{} is on the list in /{LIST} and cannot be read", file.display())
            })?;
            bundle.push_str(pem.trim());
            bundle.push('\n');
        }
        let origin = format!("/{FOLDER}, those of the package alone");
        Self::new(bundle.into_bytes(), origin)
    }

    fn of_file(file: &Path) -> Result<Self> {
        let bundle = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::new(bundle, file.display().to_string())
    }

    fn new(bundle: Vec<u8>, origin: String) -> Result<Self> {
        let count = String::from_utf8_lossy(&bundle).matches(MARK).count();
        if count == 0 {
            bail!(
                "there is no certificate in {origin}: apt-get install ca-certificates, or name a bundle with --ca-bundle"
            );
        }
        Ok(Self { bundle, count, origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        root
    }

    #[test]
    fn what_a_machine_adds_to_its_distributions_authorities_is_left_out() {
        let one = |name: &str| format!("{MARK}\n{name}\n-----END CERTIFICATE-----\n");
        let debian = machine(&[
            (LIST, "# a comment\nmozilla/B.crt\n!mozilla/Distrusted.crt\nmozilla/A.crt\n"),
            ("usr/share/ca-certificates/mozilla/A.crt", &one("a")),
            ("usr/share/ca-certificates/mozilla/B.crt", &one("b")),
            ("usr/share/ca-certificates/mozilla/Distrusted.crt", &one("distrusted")),
            ("usr/local/share/ca-certificates/proxy.crt", &one("proxy")),
            ("etc/ssl/certs/ca-certificates.crt", &format!("{}{}{}", one("a"), one("b"), one("proxy"))),
        ]);
        let found = Authorities::of_machine(debian.path()).unwrap();
        assert_eq!(
            String::from_utf8(found.bundle).unwrap(),
            one("a") + &one("b"),
            "by name, whatever the list says"
        );
        assert_eq!((found.count, found.origin.contains("alone")), (2, true));
    }

    #[test]
    fn another_distributions_bundle_is_taken_whole_and_that_is_said() {
        let fedora = machine(&[("etc/pki/tls/certs/ca-bundle.crt", MARK)]);
        let found = Authorities::of_machine(fedora.path()).unwrap();
        assert_eq!((found.count, found.bundle.as_slice()), (1, MARK.as_bytes()));
        assert!(found.origin.contains("whatever this machine adds"));
    }

    #[test]
    fn without_a_bundle_the_error_says_how_to_get_one() {
        let bare = machine(&[]);
        let refusal = Authorities::of_machine(bare.path()).unwrap_err().to_string();
        assert!(refusal.contains("apt-get install ca-certificates"), "{refusal}");
        let empty = machine(&[("bundle.pem", "no certificate")]);
        let refusal = Authorities::get(Some(&empty.path().join("bundle.pem"))).unwrap_err().to_string();
        assert!(refusal.starts_with("there is no certificate in "), "{refusal}");
    }
}
