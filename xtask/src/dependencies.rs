//! The policy for dependencies in `deny.toml`, checked against what cargo says of them.
//!
//! It covers every package of the lock file, with all features and for all targets: where it comes from, under which
//! license it is, and whether it is banned. `cargo xtask deny` asks cargo-deny itself, which also reads license texts and
//! knows advisories, but takes minutes to build.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use coder_k8s_testbed::Sources;
use serde::Deserialize;

use crate::run::{cargo, must, root, say};

/// The release of cargo-deny that the policy in `deny.toml` is written for.
const DENY: &str = "0.20.2";
/// A package that is surely from cargo's own registry, the only place that packages come from besides the work tree.
const FROM_REGISTRY: &str = "serde";

/// What `cargo metadata` says, as far as it is of interest.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// An SPDX expression. `None` if the package only has a file.
    license: Option<String>,
    /// `None` for packages of the work tree.
    source: Option<String>,
}

/// The part of `deny.toml` that is checked here.
#[derive(Debug, PartialEq, Eq)]
struct Policy {
    licenses: Vec<String>,
    banned: Vec<String>,
}

/// Checks sources, licenses and bans.
pub(crate) fn check() -> Result<()> {
    let policy = Policy::parse(&fs::read_to_string(root().join("deny.toml"))?)?;
    let output = cargo(&["metadata", "--format-version=1", "--all-features", "--locked"]).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let Metadata { mut packages } = serde_json::from_slice(&output.stdout)?;
    let built = built()?;
    packages.retain(|package| built.contains(&(package.name.clone(), package.version.clone())));
    if packages.is_empty() {
        bail!("cargo tree and cargo metadata name no package in common");
    }
    let known = packages.iter().find(|package| package.name == FROM_REGISTRY);
    let registry = known.and_then(|package| package.source.clone());
    let registry = registry.filter(|source| source.starts_with("registry+"));
    let registry = registry.with_context(|| format!("{FROM_REGISTRY} does not come from a registry"))?;
    let problems: Vec<_> = packages.iter().filter_map(|package| policy.problem(package, &registry)).collect();
    for problem in &problems {
        say(problem);
    }
    if !problems.is_empty() {
        bail!("{} of {} packages are against deny.toml", problems.len(), packages.len());
    }
    say(&format!("{} packages follow deny.toml", packages.len()));
    Ok(())
}

/// Names and versions of the packages that some build uses. `cargo metadata` also lists those that are only named as
/// optional by a feature that nobody turns on.
fn built() -> Result<BTreeSet<(String, String)>> {
    let flags = ["--workspace", "--all-features", "--target=all", "--locked", "--prefix=none"];
    let output = cargo(&[&["tree"], &flags[..], &["--format={p}"]].concat()).output()?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let packages = lines.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    });
    Ok(packages.collect())
}

/// Has cargo-deny check everything, advisories too. Needs the network.
pub(crate) fn deny() -> Result<()> {
    let mut command = Command::new(installed_deny()?);
    command.args(["--workspace", "--all-features", "check", "--hide-inclusion-graph"]).current_dir(root());
    must(command)
}

fn installed_deny() -> Result<PathBuf> {
    let home = Sources::from_env()?.cache.join(format!("cargo-deny-{DENY}"));
    let program = home.join("bin/cargo-deny");
    if !program.exists() {
        say(&format!("building cargo-deny {DENY} (once, then cached)"));
        let mut install = cargo(&["install", "cargo-deny", "--locked", "--version", DENY, "--root"]);
        install.arg(&home);
        install.env_remove("CARGO_TARGET_DIR");
        must(install)?;
    }
    Ok(program)
}

impl Policy {
    /// Reads the two lists. They are written as plain TOML, one string after the other, so that no parser is needed.
    fn parse(text: &str) -> Result<Self> {
        let list = |start: &str| {
            let (_, after) = text.split_once(start).with_context(|| format!("deny.toml has no {start}"))?;
            let (list, _) = after.split_once(']').with_context(|| format!("{start} does not end"))?;
            let lines = list.lines().map(|line| line.split('#').next().unwrap_or_default());
            let strings = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned);
            anyhow::Ok(strings.collect::<Vec<_>>())
        };
        let policy = Self { licenses: list("\nallow = [")?, banned: list("\ndeny = [")? };
        if policy.licenses.is_empty() || policy.banned.is_empty() {
            bail!("deny.toml allows no license or bans no crate: it is not written as this check reads it");
        }
        Ok(policy)
    }

    /// What is wrong with a package.
    fn problem(&self, package: &Package, registry: &str) -> Option<String> {
        let Package { name, version, license, source } = package;
        // What is ours is not asked for its license.
        let source = source.as_ref()?;
        let what = if source != registry {
            format!("comes from {source}")
        } else if self.banned.contains(name) {
            "is banned".to_owned()
        } else {
            match license {
                Some(license) if self.allows(license) => return None,
                Some(license) => format!("is under {license}"),
                None => "does not name its license".to_owned(),
            }
        };
        Some(format!("{name} {version} {what}"))
    }

    /// Whether an SPDX expression can be met with the allowed licenses alone.
    fn allows(&self, expression: &str) -> bool {
        // The old way to write OR.
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<_> = spaced.split_whitespace().collect();
        let mut rest = words.as_slice();
        let allowed = self.any(&mut rest);
        allowed == Some(true) && rest.is_empty()
    }

    fn any(&self, words: &mut &[&str]) -> Option<bool> {
        let mut allowed = self.all(words)?;
        while take(words, "OR") {
            allowed |= self.all(words)?;
        }
        Some(allowed)
    }

    fn all(&self, words: &mut &[&str]) -> Option<bool> {
        let mut allowed = self.one(words)?;
        while take(words, "AND") {
            allowed &= self.one(words)?;
        }
        Some(allowed)
    }

    fn one(&self, words: &mut &[&str]) -> Option<bool> {
        if take(words, "(") {
            let allowed = self.any(words)?;
            return take(words, ")").then_some(allowed);
        }
        let (license, rest) = words.split_first()?;
        *words = rest;
        // An exception makes another license of it.
        if take(words, "WITH") {
            let (exception, rest) = words.split_first()?;
            *words = rest;
            return Some(self.licenses.contains(&format!("{license} WITH {exception}")));
        }
        Some(self.licenses.iter().any(|allowed| allowed == license))
    }
}

fn take(words: &mut &[&str], word: &str) -> bool {
    let found = words.first() == Some(&word);
    if found {
        *words = words.get(1..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = "registry+https://registry.example/index";

    fn policy() -> Policy {
        let text = "[licenses]\nallow = [\"MIT\", \"ISC\"] # those\n[bans]\ndeny = [\n  # not \"this\"\n  { crate = \"ring\" },\n]\n";
        Policy::parse(text).unwrap()
    }

    #[test]
    fn both_lists_are_read() {
        assert_eq!(
            policy(),
            Policy { licenses: vec!["MIT".into(), "ISC".into()], banned: vec!["ring".into()] }
        );
        assert!(Policy::parse("[licenses]\nallow = []\n[bans]\ndeny = []\n").is_err());
    }

    #[test]
    fn an_expression_is_met_with_allowed_licenses_alone() {
        for (expression, allowed) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("ISC AND (GPL-3.0 OR BSL-1.0)", false),
            ("MIT WITH some-exception", false),
            ("MIT WITH some-exception OR ISC", true),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT ISC", false),
            ("", false),
        ] {
            assert_eq!(policy().allows(expression), allowed, "{expression}");
        }
    }

    #[test]
    fn a_package_is_told_why() {
        let package = |name: &str, license: Option<&str>, source: Option<&str>| {
            let (license, source) = (license.map(str::to_owned), source.map(str::to_owned));
            let package = Package { name: name.to_owned(), version: "1.0.0".to_owned(), license, source };
            policy().problem(&package, REGISTRY)
        };
        assert_eq!(package("ours", None, None), None);
        assert_eq!(package("fine", Some("MIT"), Some(REGISTRY)), None);
        let git = "git+https://example.com/x";
        assert_eq!(package("x", Some("MIT"), Some(git)), Some(format!("x 1.0.0 comes from {git}")));
        assert_eq!(package("ring", Some("ISC"), Some(REGISTRY)).unwrap(), "ring 1.0.0 is banned");
        assert_eq!(package("x", Some("GPL-3.0"), Some(REGISTRY)).unwrap(), "x 1.0.0 is under GPL-3.0");
        assert_eq!(package("x", None, Some(REGISTRY)).unwrap(), "x 1.0.0 does not name its license");
    }
}
