//! The pages of the book as data.
//!
//! Reads Markdown and finds what can be checked: links, headings with their anchors, and code blocks with their marks.
//! `cargo xtask check` resolves the links, a test validates the manifests on an API server, and another runs the
//! commands. This crate decides nothing about whether they are right; it only says where they are.
//!
//! A code block says in its info string what is to be done with it:
//!
//! | Info string | Meaning |
//! |---|---|
//! | `sh run` | Run by a test. |
//! | `sh not-run="needs a cloud"` | Not run, and why. |
//! | `yaml` | Whole manifests, each with `apiVersion` and `kind`. |
//! | `yaml file=coder.yaml` | The same. Commands that are run find it in this file. |
//! | `yaml of=CoderControlPlane` | A part of a manifest of that kind. |
//! | `yaml not-checked="values of Helm"` | Not a manifest, and why. |

mod block;
mod links;
mod page;

pub use block::{Block, Command, Manifest, Mark};
pub use links::{Problem, problems};
pub use page::{Heading, Link, Page};

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The folder of the book, relative to the root of the work tree.
pub const FOLDER: &str = "docs";
/// The table of contents, which mdBook reads.
pub const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages outside of the book whose links are checked as well.
pub const BESIDE: [&str; 4] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];

/// Why the pages could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct Error {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// All pages: those of the book in the order of its table of contents, then those of the book that it does not list,
/// then those beside the book. The table of contents itself is the first.
pub fn pages(root: &Path) -> Result<Vec<Page>, Error> {
    let summary = read(root, Path::new(SUMMARY))?;
    let listed: Vec<PathBuf> =
        summary.links.iter().filter_map(|link| summary.resolve(&link.target)).collect();
    let mut found = Vec::new();
    collect(root, Path::new(FOLDER), &mut found)?;
    found.retain(|path| path != Path::new(SUMMARY));
    let place = |path: &PathBuf| listed.iter().position(|other| other == path).unwrap_or(listed.len());
    found.sort_by_key(|path| (place(path), path.clone()));
    let beside = BESIDE.iter().map(PathBuf::from).filter(|path| root.join(path).exists());
    let mut pages = vec![summary];
    for path in found.into_iter().chain(beside) {
        pages.push(read(root, &path)?);
    }
    Ok(pages)
}

fn read(root: &Path, path: &Path) -> Result<Page, Error> {
    let text =
        fs::read_to_string(root.join(path)).map_err(|source| Error { path: path.to_owned(), source })?;
    Ok(Page::parse(path, &text))
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = |source| Error { path: folder.to_owned(), source };
    for entry in fs::read_dir(root.join(folder)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            collect(root, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}
