//! The software bill of materials, as SPDX 2.3 in JSON: <https://spdx.github.io/spdx-spec/v2.3/>.
//!
//! It lists what is in the released program and its image: exactly the crates that are linked, by the features and the target
//! of the release, the standard library, the C library, and the CA bundle. What only runs during a build is not in the
//! program and not on the list: build scripts, procedural macros, and what only tests need.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::{
    image,
    source::{Source, VERSION, output},
};
use crate::run::{cargo, root};

const DOCUMENT: &str = "SPDXRef-DOCUMENT";
const PROGRAM: &str = "SPDXRef-program";
const IMAGE: &str = "SPDXRef-image";
/// What SPDX says where nobody looked.
const UNKNOWN: &str = "NOASSERTION";

/// A crate that is part of the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Crate {
    name: String,
    version: String,
}

/// The crates of a program, and which of them uses which.
#[derive(Debug)]
pub(crate) struct Graph {
    /// The license by crate, as its author wrote it. Empty if the author wrote none.
    licenses: BTreeMap<Crate, String>,
    uses: Vec<(Crate, Crate)>,
    root: Crate,
}

impl Graph {
    /// Asks cargo for the crates of the release on a target.
    pub(crate) fn of_release(target: &str) -> Result<Self> {
        let mut command = cargo(&["tree", "--locked", "--package", "coder-k8s", "--no-default-features"]);
        command.args(["--target", target, "--edges", "normal,no-proc-macro", "--prefix", "depth"]);
        let output = command.args(["--format", "|{p}|{l}|"]).output().context("cannot run cargo tree")?;
        if !output.status.success() {
            bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Self::parse(&String::from_utf8_lossy(&output.stdout))
    }

    /// Reads lines such as `2|serde v1.0.0|MIT|`. What one uses follows it, one deeper. Whatever is repeated is marked at its
    /// end, and what it uses is not repeated.
    fn parse(tree: &str) -> Result<Self> {
        let (mut licenses, mut uses, mut path) = (BTreeMap::new(), Vec::new(), Vec::<Crate>::new());
        for line in tree.lines().filter(|line| !line.is_empty()) {
            let strange = || format!("cargo tree wrote a line that is not understood: {line}");
            let mut fields = line.split('|');
            let depth: usize = fields.next().and_then(|depth| depth.parse().ok()).with_context(strange)?;
            let mut words = fields.next().with_context(strange)?.split(' ');
            let name = words.next().with_context(strange)?.to_owned();
            let version =
                words.next().and_then(|word| word.strip_prefix('v')).with_context(strange)?.to_owned();
            let license = fields.next().with_context(strange)?.to_owned();
            let used = Crate { name, version };
            path.truncate(depth);
            if let Some(user) = path.last() {
                uses.push((user.clone(), used.clone()));
            }
            licenses.insert(used.clone(), license);
            path.push(used);
        }
        uses.sort();
        uses.dedup();
        let root = path.into_iter().next().context("cargo tree names no crate")?;
        Ok(Self { licenses, uses, root })
    }
}

/// The checksums of crates from the registry, from the text of `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<Crate, String> {
    let packages = lock.split("[[package]]\n").skip(1).filter_map(|package| {
        let field = |name: &str| {
            let mut lines = package.lines();
            let value =
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'));
            value.map(str::to_owned)
        };
        Some((Crate { name: field("name")?, version: field("version")? }, field("checksum")?))
    });
    packages.collect()
}

/// What the toolchain adds to a program: name, version and license.
pub(crate) type Linked = (&'static str, String, &'static str);

/// The toolchain of this machine, as far as it becomes part of the program.
pub(crate) fn toolchain() -> Result<Vec<Linked>> {
    let rustc = output(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()), &["--version"])?;
    let rustc = rustc.split(' ').nth(1).context("rustc does not tell its version")?.to_owned();
    let libc = output("getconf", &["GNU_LIBC_VERSION"])?;
    let libc = libc.split(' ').nth(1).context("getconf does not tell the version of glibc")?.to_owned();
    Ok(vec![("rust-std", rustc, "MIT OR Apache-2.0"), ("glibc", libc, "LGPL-2.1-or-later")])
}

/// What is described, by digests without their algorithm.
pub(crate) struct Described<'a> {
    pub(crate) program: String,
    /// Of the manifest.
    pub(crate) image: &'a str,
    pub(crate) ca_bundle: String,
}

/// The document.
pub(crate) fn document(
    graph: &Graph,
    toolchain: &[Linked],
    described: &Described<'_>,
    source: &Source,
) -> Result<Value> {
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    Ok(compose(graph, &checksums(&lock), toolchain, described, source))
}

fn compose(
    graph: &Graph,
    checksums: &BTreeMap<Crate, String>,
    toolchain: &[Linked],
    described: &Described<'_>,
    source: &Source,
) -> Value {
    let repository = env!("CARGO_PKG_REPOSITORY");
    let id = |of: &Crate| {
        if *of == graph.root { PROGRAM.to_owned() } else { format!("SPDXRef-crate-{}", spdx_id(of)) }
    };
    let at_commit = format!("git+{repository}@{}", source.commit);
    let mut packages = vec![
        package(IMAGE, "coder-k8s-image", VERSION, "Apache-2.0")
            .purpose("CONTAINER")
            .checksum(described.image)
            .purl(&format!(
                "pkg:oci/coder-k8s@sha256%3A{}?repository_url={}",
                described.image,
                image::name()
            )),
        package(PROGRAM, "coder-k8s", VERSION, "Apache-2.0")
            .purpose("APPLICATION")
            .checksum(&described.program)
            .download(&at_commit),
        package("SPDXRef-ca-bundle", "ca-certificates", "", UNKNOWN)
            .purpose("FILE")
            .checksum(&described.ca_bundle),
    ];
    let mut relationships = vec![
        relationship(DOCUMENT, "DESCRIBES", IMAGE),
        relationship(DOCUMENT, "DESCRIBES", PROGRAM),
        relationship(IMAGE, "CONTAINS", PROGRAM),
        relationship(IMAGE, "CONTAINS", "SPDXRef-ca-bundle"),
    ];
    for (name, version, license) in toolchain {
        let id = format!("SPDXRef-toolchain-{name}");
        relationships.push(relationship(PROGRAM, "STATIC_LINK", &id));
        packages.push(
            package(&id, name, version, license)
                .purpose("LIBRARY")
                .purl(&format!("pkg:generic/{name}@{version}")),
        );
    }
    for (of, license) in graph.licenses.iter().filter(|(of, _)| **of != graph.root) {
        let entry = package(&id(of), &of.name, &of.version, &expression(license)).purpose("LIBRARY");
        packages.push(match checksums.get(of) {
            Some(checksum) => entry.checksum(checksum).purl(&format!(
                "pkg:cargo/{}@{}",
                of.name,
                of.version.replace('+', "%2B")
            )),
            // A crate of this repository.
            None => entry.download(&at_commit),
        });
    }
    relationships
        .extend(graph.uses.iter().map(|(user, used)| relationship(&id(user), "DEPENDS_ON", &id(used))));
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": format!("coder-k8s-{VERSION}"),
        "documentNamespace": format!("{repository}/spdx/coder-k8s-{VERSION}-{}", described.image),
        "creationInfo": {
            "created": source.created(),
            "creators": [format!("Tool: cargo-xtask-dist-{VERSION}")],
            "comment": "What is linked into the program, and what its image holds besides. Procedural macros and build \
                        scripts are not part of either.",
        },
        "packages": packages.into_iter().map(|package| package.0).collect::<Vec<_>>(),
        "relationships": relationships,
    })
}

/// An entry of the list.
struct Package(Map<String, Value>);

fn package(id: &str, name: &str, version: &str, license: &str) -> Package {
    let fields = [
        ("SPDXID", id),
        ("name", name),
        ("versionInfo", version),
        ("downloadLocation", UNKNOWN),
        ("licenseConcluded", UNKNOWN),
        ("licenseDeclared", license),
        ("copyrightText", UNKNOWN),
        ("supplier", UNKNOWN),
    ];
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let fields = fields.map(|(field, value)| (field.to_owned(), json!(value)));
    Package(fields.collect()).with("filesAnalyzed", json!(false))
}

impl Package {
    fn with(mut self, field: &str, value: Value) -> Self {
        self.0.insert(field.to_owned(), value);
        self
    }

    fn purpose(self, purpose: &str) -> Self {
        self.with("primaryPackagePurpose", json!(purpose))
    }

    fn checksum(self, sha256: &str) -> Self {
        self.with("checksums", json!([{"algorithm": "SHA256", "checksumValue": sha256}]))
    }

    fn purl(self, purl: &str) -> Self {
        let reference = json!({"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl});
        self.with("externalRefs", json!([reference]))
    }

    fn download(self, location: &str) -> Self {
        self.with("downloadLocation", json!(location))
    }
}

fn relationship(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

/// Letters, digits, `.` and `-` are all that an identifier may have.
fn spdx_id(of: &Crate) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    format!("{}-{}", of.name, of.version).chars().map(allowed).collect()
}

/// A license as SPDX writes it. Old crates write `/` for OR.
fn expression(license: &str) -> String {
    if license.is_empty() { UNKNOWN.to_owned() } else { license.replace('/', " OR ") }
}

#[cfg(test)]
mod tests;
