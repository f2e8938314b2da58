use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::*;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn described() -> Described<'static> {
    Described { program: "a".repeat(64), image: "b", ca_bundle: "c".repeat(64) }
}

fn of_work_tree() -> (Graph, Value) {
    let graph = Graph::of_release(TARGET).unwrap();
    let document = document(&graph, &toolchain().unwrap(), &described(), &Source::example()).unwrap();
    (graph, document)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    let text = value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"));
    assert!(!text.is_empty(), "{field} is empty in {value}");
    text
}

/// What the schema of SPDX 2.3 requires of every document, and that references lead somewhere.
fn validate(document: &Value) {
    assert_eq!(document["spdxVersion"], "SPDX-2.3");
    assert_eq!(document["dataLicense"], "CC0-1.0");
    assert_eq!(document["SPDXID"], DOCUMENT);
    text(document, "name");
    let namespace = text(document, "documentNamespace");
    assert!(namespace.starts_with("https://") && !namespace.contains('#'), "{namespace}");
    let creation = &document["creationInfo"];
    text(creation, "created").parse::<jiff::Timestamp>().unwrap();
    let creators = creation["creators"].as_array().unwrap();
    assert!(!creators.is_empty() && creators.iter().all(|by| by.as_str().unwrap().starts_with("Tool: ")));

    let mut ids = BTreeSet::from([DOCUMENT]);
    for package in document["packages"].as_array().unwrap() {
        let id = text(package, "SPDXID");
        let rest = id.strip_prefix("SPDXRef-").unwrap();
        assert!(rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-'), "{id}");
        assert!(ids.insert(id), "{id} is there twice");
        for field in ["name", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText"] {
            text(package, field);
        }
        assert!(!text(package, "licenseDeclared").contains('/'), "{package}");
        assert_eq!(package["filesAnalyzed"], false, "else a verification code would be required");
        for checksum in package["checksums"].as_array().into_iter().flatten() {
            assert_eq!(checksum["algorithm"], "SHA256");
            text(checksum, "checksumValue");
        }
        for reference in package["externalRefs"].as_array().into_iter().flatten() {
            assert_eq!(
                (text(reference, "referenceCategory"), text(reference, "referenceType")),
                ("PACKAGE-MANAGER", "purl")
            );
            assert!(text(reference, "referenceLocator").starts_with("pkg:"));
        }
    }
    let relationships = document["relationships"].as_array().unwrap();
    for relationship in relationships {
        text(relationship, "relationshipType");
        for end in ["spdxElementId", "relatedSpdxElement"] {
            assert!(ids.contains(text(relationship, end)), "{relationship} leads nowhere");
        }
    }
    assert!(
        relationships.iter().any(|r| r["relationshipType"] == "DESCRIBES" && r["spdxElementId"] == DOCUMENT)
    );
    let related: BTreeSet<_> = relationships.iter().map(|r| text(r, "relatedSpdxElement")).collect();
    for id in ids.iter().filter(|id| **id != DOCUMENT) {
        assert!(related.contains(id), "nothing leads to {id}");
    }
}

#[test]
fn a_small_tree_becomes_packages_and_relationships() {
    let tree = "0|coder-k8s v0.1.0 (/here)|Apache-2.0|\n1|a_b v1.0.0+x|MIT/Apache-2.0|\n2|c v2.0.0||\n1|own v0.1.0 (/here)|Apache-2.0|\n2|a_b v1.0.0+x|MIT/Apache-2.0| (*)\n";
    let graph = Graph::parse(tree).unwrap();
    let lock = "version = 4\n\n[[package]]\nname = \"a_b\"\nversion = \"1.0.0+x\"\nsource = \"s\"\nchecksum = \"123\"\ndependencies = [\n \"c\",\n]\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
    let document = compose(&graph, &checksums(lock), &[], &described(), &Source::example());
    validate(&document);
    let packages = document["packages"].as_array().unwrap();
    let found = |id: &str| packages.iter().find(|package| package["SPDXID"] == id).unwrap();
    let one = found("SPDXRef-crate-a-b-1.0.0-x");
    assert_eq!(one["licenseDeclared"], "MIT OR Apache-2.0");
    assert_eq!(one["checksums"][0]["checksumValue"], "123");
    assert_eq!(one["externalRefs"][0]["referenceLocator"], "pkg:cargo/a_b@1.0.0%2Bx");
    assert_eq!(found("SPDXRef-crate-c-2.0.0")["licenseDeclared"], UNKNOWN);
    assert!(text(found("SPDXRef-crate-own-0.1.0"), "downloadLocation").starts_with("git+https://"));
    let uses: Vec<_> = document["relationships"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|relationship| relationship["relationshipType"] == "DEPENDS_ON")
        .map(|relationship| (text(relationship, "spdxElementId"), text(relationship, "relatedSpdxElement")))
        .collect();
    let (one, other, own) = ("SPDXRef-crate-a-b-1.0.0-x", "SPDXRef-crate-c-2.0.0", "SPDXRef-crate-own-0.1.0");
    assert_eq!(uses, [(one, other), (PROGRAM, one), (PROGRAM, own), (own, one)]);
}

#[test]
fn a_line_that_is_not_understood_is_an_error() {
    assert!(Graph::parse("0|coder-k8s|Apache-2.0|\n").is_err());
    assert!(Graph::parse("").is_err());
}

#[test]
fn the_document_of_this_work_tree_is_valid_and_every_foreign_crate_has_a_checksum() {
    let (graph, document) = of_work_tree();
    validate(&document);
    let names = document["packages"].as_array().unwrap().iter().map(|package| text(package, "name"));
    let names: BTreeSet<_> = names.collect();
    for linked in ["coder-k8s-engine", "kube", "rustls", "aws-lc-sys", "glibc", "rust-std", "ca-certificates"]
    {
        assert!(names.contains(linked), "{linked} is missing");
    }
    for absent in
        ["coder-k8s-testbed", "coder-k8s-scenes", "rcgen", "tempfile", "cc", "syn", "serde_derive", "xtask"]
    {
        assert!(!names.contains(absent), "{absent} is not in the program");
    }
    for package in document["packages"].as_array().unwrap() {
        let (id, name) = (text(package, "SPDXID"), text(package, "name"));
        if id.starts_with("SPDXRef-crate-") {
            let is_ours = name.starts_with("coder-k8s");
            assert_eq!(package.get("checksums").is_some(), !is_ours, "{name}");
            assert_ne!(package["licenseDeclared"], UNKNOWN, "{name}");
        }
    }
    assert!(graph.licenses.len() > 100, "{}", graph.licenses.len());
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Listed>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    name: String,
    version: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dep>,
}

#[derive(Deserialize)]
struct Dep {
    pkg: String,
    dep_kinds: Vec<DepKind>,
}

#[derive(Deserialize)]
struct DepKind {
    kind: Option<String>,
}

/// What `cargo metadata` says can be reached from the operator by ordinary dependencies. It knows one set of features for the
/// whole workspace, so that it lists more than the release has, and never less.
fn reachable() -> BTreeSet<Crate> {
    let mut command = cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", TARGET]);
    let Metadata { packages, resolve } = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let packages: BTreeMap<_, _> =
        packages.into_iter().map(|package| (package.id.clone(), package)).collect();
    let nodes: BTreeMap<_, _> = resolve.nodes.into_iter().map(|node| (node.id, node.deps)).collect();
    let is_macro = |id: &str| {
        packages[id].targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    };
    let own = packages.values().find(|package| package.name == "coder-k8s").unwrap();
    let (mut seen, mut next) = (BTreeSet::new(), vec![own.id.clone()]);
    while let Some(id) = next.pop() {
        if seen.insert(id.clone()) {
            let normal = nodes[&id].iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            next.extend(normal.map(|dep| dep.pkg.clone()).filter(|id| !is_macro(id)));
        }
    }
    let seen = seen.iter().map(|id| &packages[id]);
    seen.map(|package| Crate { name: package.name.clone(), version: package.version.clone() }).collect()
}

#[test]
fn it_is_complete_and_has_nothing_that_the_program_cannot_have() {
    let (graph, _) = of_work_tree();
    let listed: BTreeSet<_> = graph.licenses.keys().cloned().collect();
    let reachable = reachable();
    let beyond: Vec<_> = listed.difference(&reachable).collect();
    assert!(beyond.is_empty(), "these are not ordinary dependencies: {beyond:?}");
    // What the manifest of the operator asks for, but the one that only `dev` needs.
    let manifest = fs::read_to_string(root().join("crates/operator/Cargo.toml")).unwrap();
    let (_, after) = manifest.split_once("\n[dependencies]\n").unwrap();
    let (section, _) = after.split_once("\n[").unwrap();
    let direct = section
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.contains("optional = true"));
    let mut asked = 0;
    for name in direct.map(|line| line.split(['.', ' ', '=']).next().unwrap()) {
        asked += 1;
        let uses = |(user, used): &(Crate, Crate)| *user == graph.root && used.name == name;
        assert!(graph.uses.iter().any(uses), "{name} is missing");
    }
    assert!(asked > 15, "the manifest is not read as it is written");
}
