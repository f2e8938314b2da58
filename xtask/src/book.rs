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
use coder_k8s_book::{Command as Commands, Manifest, Page, pages, problems};
use coder_k8s_testbed::Sources;

use crate::run::{cargo, must, root, say};

/// The release of mdBook that `book.toml` is written for.
const MDBOOK: &str = "0.5.4";
/// Where `book.toml` puts the site.
const SITE: &str = "target/book";

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
    let mut command = Command::new(program);
    command.arg("build").current_dir(root());
    must(command)?;
    let site = root().join(SITE);
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
    use super::loaded;

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
