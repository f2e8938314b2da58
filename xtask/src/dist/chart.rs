//! The chart as an archive, laid out as `helm package` does: everything under a folder with the name of the chart.
//!
//! Helm itself writes the time of the packing into it. Here the time is that of the commit. `.helmignore` is followed as far
//! as charts use it, and a pattern beyond that is an error and not a file too many.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    archive::{self, Entry},
    source::{Source, VERSION},
};

/// A packed chart.
pub(crate) struct Chart {
    /// As Helm names it: name and version of the chart.
    pub(crate) file: String,
    pub(crate) bytes: Vec<u8>,
}

const DESCRIPTION: &str = "Chart.yaml";
const IGNORED: &str = ".helmignore";

/// Packs the chart in a folder.
pub(crate) fn pack(folder: &Path, source: &Source) -> Result<Chart> {
    let description = folder.join(DESCRIPTION);
    let text =
        fs::read_to_string(&description).with_context(|| format!("cannot read {}", description.display()))?;
    let described: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{DESCRIPTION} is not YAML"))?;
    let field = |name: &str| {
        described.get(name).and_then(Value::as_str).with_context(|| format!("{DESCRIPTION} has no {name}"))
    };
    let (name, version) = (field("name")?, field("version")?);
    let installs = field("appVersion")?;
    if installs.trim_start_matches('v') != VERSION {
        bail!("{DESCRIPTION} has the appVersion {installs}, and this release is {VERSION}");
    }
    let ignored = Ignored::parse(&fs::read_to_string(folder.join(IGNORED)).unwrap_or_default())?;
    let mut paths = Vec::new();
    walk(folder, "", &ignored, &mut paths)?;
    // Helm reads the description first.
    paths.sort_by_key(|path| (path != DESCRIPTION, path.clone()));
    let entries: Result<Vec<_>> = paths
        .iter()
        .map(|path| Ok(Entry::file(format!("{name}/{path}"), fs::read(folder.join(path))?)))
        .collect();
    let bytes = archive::gzip(&archive::tar(&entries?, source.epoch)?)?;
    Ok(Chart { file: format!("{name}-{version}.tgz"), bytes })
}

/// Adds the paths of all files that are not ignored, relative to the chart.
fn walk(folder: &Path, prefix: &str, ignored: &Ignored, paths: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name().to_string_lossy().into_owned(), entry.file_type()?);
        let path = format!("{prefix}{name}");
        if ignored.matches(&name, kind.is_dir()) {
            continue;
        }
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), ignored, paths)?;
        } else if kind.is_file() {
            paths.push(path);
        } else {
            bail!("{path} of the chart is neither a file nor a folder");
        }
    }
    Ok(())
}

/// The patterns of `.helmignore`: each the name of a file or folder at any depth, with one `*` at most, and for folders alone
/// with a `/` at its end.
struct Ignored(Vec<String>);

impl Ignored {
    fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let patterns: Vec<_> = lines.map(str::to_owned).collect();
        for pattern in &patterns {
            let name = pattern.strip_suffix('/').unwrap_or(pattern);
            if name.contains(['/', '!', '?', '[']) || name.matches('*').count() > 1 {
                bail!(
                    "{IGNORED} has the pattern {pattern}, which is not followed here; use names with one * at most"
                );
            }
        }
        Ok(Self(patterns))
    }

    fn matches(&self, name: &str, is_folder: bool) -> bool {
        self.0.iter().any(|pattern| {
            let bare = pattern.strip_suffix('/');
            let pattern = match (bare, is_folder) {
                (Some(_), false) => return false,
                (Some(bare), true) => bare,
                (None, _) => pattern.as_str(),
            };
            match pattern.split_once('*') {
                None => name == pattern,
                Some((start, end)) => {
                    name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::archive::{Listed, gunzip, listed};

    fn chart(app_version: &str, ignored: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let description =
            format!("apiVersion: v2\nname: coder-k8s\nversion: 1.2.3\nappVersion: {app_version}\n");
        for (path, content) in [
            ("values.yaml", "a: b\n"),
            (DESCRIPTION, description.as_str()),
            ("templates/deployment.yaml", "kind: Deployment\n"),
            ("templates/deployment.yaml.swp", "junk"),
            (".idea/workspace", "junk"),
            (IGNORED, ignored),
        ] {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        folder
    }

    const USUAL: &str = "# editors\n*.swp\n.idea/\n";

    #[test]
    fn it_is_laid_out_as_helm_does_and_leaves_out_what_is_ignored() {
        let folder = chart(VERSION, USUAL);
        let packed = pack(folder.path(), &Source::example()).unwrap();
        assert_eq!(packed.file, "coder-k8s-1.2.3.tgz");
        let all = listed(&gunzip(&packed.bytes));
        let paths: Vec<_> = all.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "coder-k8s/Chart.yaml",
                "coder-k8s/.helmignore",
                "coder-k8s/templates/deployment.yaml",
                "coder-k8s/values.yaml"
            ]
        );
        let plain = |entry: &Listed| (entry.mode, entry.owner, entry.time) == (0o644, (0, 0), 1_700_000_000);
        assert!(all.iter().all(plain), "{all:?}");
        assert_eq!(all[3].content, b"a: b\n");
        assert_eq!(packed.bytes, pack(folder.path(), &Source::example()).unwrap().bytes);
    }

    #[test]
    fn a_chart_of_another_release_is_refused() {
        let refusal =
            |folder: tempfile::TempDir| pack(folder.path(), &Source::example()).err().unwrap().to_string();
        assert!(refusal(chart("9.9.9", USUAL)).contains("has the appVersion 9.9.9"));
        assert!(refusal(chart(VERSION, "docs/**/*.md\n")).contains("is not followed here"));
        assert!(pack(chart(&format!("v{VERSION}"), USUAL).path(), &Source::example()).is_ok());
    }
}
