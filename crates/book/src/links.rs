//! What is wrong with links, anchors, marks and the table of contents.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

use crate::{FOLDER, Page, SUMMARY, page::is_external};

/// Something wrong on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Relative to the root of the work tree.
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, for the person who wrote the page.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

/// Everything that is wrong with these pages. `root` tells whether a file that is no page exists.
pub fn problems(root: &Path, pages: &[Page]) -> Vec<Problem> {
    let anchors: BTreeMap<&Path, BTreeSet<&str>> = pages
        .iter()
        .map(|page| {
            (page.path.as_path(), page.headings.iter().map(|heading| heading.anchor.as_str()).collect())
        })
        .collect();
    let mut problems = unlisted(pages);
    for page in pages {
        let tell = |line: usize, text: String| Problem { path: page.path.clone(), line, text };
        for link in &page.links {
            if let Some(text) = wrong(root, page, &link.target, &anchors) {
                problems.push(tell(link.line, text));
            }
        }
        for block in page.blocks.iter().filter(|_| page.is_in_book()) {
            let marks = [block.command().and_then(Result::err), block.manifest().and_then(Result::err)];
            problems.extend(marks.into_iter().flatten().map(|text| tell(block.line, text)));
        }
    }
    problems
}

fn wrong(
    root: &Path,
    page: &Page,
    target: &str,
    anchors: &BTreeMap<&Path, BTreeSet<&str>>,
) -> Option<String> {
    if is_external(target) {
        return None;
    }
    let Some(path) = page.resolve(target) else {
        return Some(format!("{target} leads out of the work tree"));
    };
    if page.is_in_book() && !path.starts_with(FOLDER) {
        return Some(format!(
            "{target} leads out of the book, where it is dead: name the file without a link"
        ));
    }
    let anchor = target.split_once('#').map(|(_, anchor)| anchor);
    match (anchors.get(path.as_path()), anchor) {
        (Some(known), Some(anchor)) if !known.contains(anchor) => {
            Some(format!("{target}: {} has no heading with this anchor", path.display()))
        }
        (Some(_), _) => None,
        (None, None) if root.join(&path).exists() => None,
        (None, _) => Some(format!("{target}: {} does not exist", path.display())),
    }
}

/// Pages of the book that its table of contents does not list, or lists twice.
fn unlisted(pages: &[Page]) -> Vec<Problem> {
    let summary = pages.iter().find(|page| page.path == Path::new(SUMMARY));
    let mut listed = BTreeMap::<PathBuf, usize>::new();
    for link in
        summary.iter().flat_map(|page| page.links.iter().filter_map(|link| page.resolve(&link.target)))
    {
        *listed.entry(link).or_default() += 1;
    }
    let in_book = pages.iter().filter(|page| page.is_in_book() && page.path != Path::new(SUMMARY));
    let tell = |page: &Page, text: String| Problem { path: page.path.clone(), line: 1, text };
    in_book
        .filter_map(|page| match listed.get(&page.path) {
            Some(1) => None,
            Some(_) => Some(tell(page, format!("{SUMMARY} lists the page more than once"))),
            None => Some(tell(page, format!("{SUMMARY} does not list the page"))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let pages = crate::pages(root.path()).unwrap();
        problems(root.path(), &pages).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_book_whose_links_resolve_has_no_problem() {
        let files = [
            ("docs/SUMMARY.md", "[One](one.md)\n- [Two](two/two.md)\n"),
            ("docs/one.md", "# One\n[two](two/two.md#what-now) [web](https://coder.com)\n![x](x.svg)\n"),
            ("docs/two/two.md", "# Two\n## What now?\n[up](../one.md) [here](#two)\n```sh run\ntrue\n```\n"),
            ("docs/x.svg", "<svg/>"),
            ("README.md", "[one](docs/one.md#one) [code](src)\n"),
            ("src/a.rs", ""),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn everything_that_is_wrong_is_told_with_its_place() {
        let files = [
            ("docs/SUMMARY.md", "[One](one.md) [None](none.md)\n[Two](two.md)\n[Again](two.md)\n"),
            (
                "docs/one.md",
                "# One\n\n[a](two.md#nothing)\n[b](../README.md)\n[c](/etc)\n\n```sh\ntrue\n```\n",
            ),
            ("docs/two.md", "```yaml kind=X\n```\n"),
            ("docs/three.md", "# Three\n"),
            ("README.md", "[gone](docs/gone.md)\n"),
        ];
        let expected = [
            "docs/two.md:1: docs/SUMMARY.md lists the page more than once",
            "docs/three.md:1: docs/SUMMARY.md does not list the page",
            "docs/SUMMARY.md:1: none.md: docs/none.md does not exist",
            "docs/one.md:3: two.md#nothing: docs/two.md has no heading with this anchor",
            "docs/one.md:4: ../README.md leads out of the book, where it is dead: name the file without a link",
            "docs/one.md:5: /etc leads out of the work tree",
            "docs/one.md:7: mark commands `sh run` or `sh not-run=\"reason\"`",
            "docs/two.md:1: `kind` is no mark of YAML",
            "README.md:1: docs/gone.md: docs/gone.md does not exist",
        ];
        assert_eq!(found(&files), expected);
    }
}
