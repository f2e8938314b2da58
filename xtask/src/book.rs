//! The book: what must hold of its pages, and the site that mdBook makes of them.
//!
//! The quick part runs with every check: links, anchors, the table of contents, the marks of code blocks. Manifests are
//! validated by a test of the crate `api`, commands are run by a test of the operator.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use coder_k8s_book::{Command as Commands, FOLDER, Manifest, Page, pages, problems};
use coder_k8s_testbed::Sources;

use crate::run::{cargo, must, root, say};

/// The release of mdBook that `book.toml` is written for.
const MDBOOK: &str = "0.5.4";
/// Where the site is built.
const SITE: &str = "target/book";
/// Where the pages are prepared for mdBook.
const SOURCE: &str = "target/book-source";

/// Checks the pages, and says how many of what there are.
pub(crate) fn check() -> Result<()> {
    let pages = pages(&root())?;
    let problems = problems(&root(), &pages);
    for problem in &problems {
        say(&problem.to_string());
    }
    if !problems.is_empty() {
        bail!("{} problems in {} pages", problems.len(), pages.len());
    }
    say(&counts(&pages));
    Ok(())
}

/// Checks the pages, builds the site, and says where it is.
pub(crate) fn build() -> Result<()> {
    say("book: checking pages");
    check()?;
    let program = installed()?;
    say("book: building the site");
    let began = Instant::now();
    let (source, site) = (root().join(SOURCE), root().join(SITE));
    prepare(&source)?;
    let mut command = Command::new(program);
    command.arg("build").arg(&source).arg("--dest-dir").arg(&site);
    must(command)?;
    say("book: looking for what it would load from the network");
    let files = offline(&site)?;
    say(&format!(
        "book: built in {:.1} s, {files} files are self-contained; open {}",
        began.elapsed().as_secs_f32(),
        site.join("index.html").display()
    ));
    Ok(())
}

fn installed() -> Result<PathBuf> {
    let home = Sources::from_env()?.cache.join(format!("mdbook-{MDBOOK}"));
    let program = home.join("bin/mdbook");
    if !program.exists() {
        say(&format!("book: building mdBook {MDBOOK} (once, then cached)"));
        let mut install = cargo(&["install", "mdbook", "--locked", "--version", MDBOOK]);
        // Without its server and its watcher, which nobody needs to build a site.
        install.args(["--no-default-features", "--features", "search", "--root"]).arg(&home);
        install.env_remove("CARGO_TARGET_DIR");
        must(install)?;
    }
    Ok(program)
}

/// Copies the book without the marks of its code blocks, which mdBook would make CSS classes of.
fn prepare(source: &Path) -> Result<()> {
    if source.exists() {
        fs::remove_dir_all(source)?;
    }
    fs::create_dir_all(source)?;
    fs::copy(root().join("book.toml"), source.join("book.toml"))?;
    copy(&root().join(FOLDER), &source.join(FOLDER))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            fs::write(&target, without_marks(&fs::read_to_string(&path)?))?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

fn without_marks(text: &str) -> String {
    let is_fence = |line: &str| line.trim_start().starts_with("```");
    let lines = text.lines().map(|line| match line.split_once(' ') {
        Some((fence, _)) if is_fence(fence) => fence,
        _ => line,
    });
    lines.fold(String::new(), |text, line| text + line + "\n")
}

fn counts(pages: &[Page]) -> String {
    let of_book: Vec<_> = pages.iter().filter(|page| page.is_in_book()).collect();
    let blocks = || of_book.iter().flat_map(|page| &page.blocks);
    let commands = |run: bool| {
        let wanted = |command: &Commands| matches!(command, Commands::Run) == run;
        blocks().filter_map(|block| block.command()?.ok()).filter(wanted).count()
    };
    let manifests = |wanted: fn(&Manifest) -> bool| {
        blocks().filter_map(|block| block.manifest()?.ok()).filter(wanted).count()
    };
    let links: usize = pages.iter().map(|page| page.links.len()).sum();
    format!(
        "{} pages, {links} links; YAML: {} whole, {} parts, {} not checked; commands: {} run, {} not run",
        // The table of contents is no page.
        of_book.len() - 1,
        manifests(|manifest| matches!(manifest, Manifest::Whole { .. })),
        manifests(|manifest| matches!(manifest, Manifest::Part(_))),
        manifests(|manifest| matches!(manifest, Manifest::NotChecked(_))),
        commands(true),
        commands(false),
    )
}

/// Fails if a page or style sheet of the site loads something from another host. Returns how many were looked at.
fn offline(folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("there is no site in {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            count += offline(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "html" || extension == "css") {
            if let Some(found) = loaded(&fs::read_to_string(&path)?) {
                bail!("{} loads from the network: {found}", path.display());
            }
            count += 1;
        }
    }
    Ok(count)
}

/// The first thing that a browser would load from another host. Links that people follow are no such thing.
fn loaded(text: &str) -> Option<&str> {
    let hosts = ["http://", "https://", "//"];
    for (at, start) in ["src=\"", "url(\"", "url('", "url(", "@import \"", "@import '"]
        .iter()
        .flat_map(|start| text.match_indices(start))
    {
        let rest = text.get(at + start.len()..)?;
        if hosts.iter().any(|host| rest.starts_with(host)) {
            return rest.split(['"', '\'', ')']).next();
        }
    }
    let sheets = text.match_indices("<link ").filter_map(|(at, _)| text.get(at..)?.split('>').next());
    let mut sheets = sheets.filter(|tag| !tag.contains("rel=\"canonical\""));
    sheets.find(|tag| hosts.iter().any(|host| tag.contains(&format!("href=\"{host}"))))
}

#[cfg(test)]
mod tests {
    use super::{loaded, without_marks};

    #[test]
    fn marks_of_code_blocks_are_not_shown() {
        let page = "a b\n```sh not-run=\"a page\"\nls -l\n```\n```yaml file=a.yaml\na: b c\n```\n";
        assert_eq!(without_marks(page), "a b\n```sh\nls -l\n```\n```yaml\na: b c\n```\n");
    }

    #[test]
    fn what_a_browser_loads_is_told_from_what_people_follow() {
        for fine in [
            "<a href=\"https://coder.com\">",
            "<script src=\"book.js\"></script>",
            "<link rel=\"stylesheet\" href=\"css/general.css\">",
            "url('fonts/open-sans.woff2')",
            "<code>// src</code>",
        ] {
            assert_eq!(loaded(fine), None, "{fine}");
        }
        for bad in [
            "<script src=\"https://cdn.example/x.js\">",
            "<img src=\"//cdn.example/x.png\">",
            "@font-face { src: url('https://fonts.example/f.woff2') }",
            "@import \"https://fonts.example/css\"",
            "<link rel=\"stylesheet\" href=\"https://fonts.example/css\">",
        ] {
            assert!(loaded(bad).is_some(), "{bad}");
        }
    }
}
