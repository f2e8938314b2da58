//! One page: its headings, links and code blocks.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::Block;

/// A heading and the anchor by which links name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// 1 for the title of the page.
    pub level: u8,
    /// Without markup.
    pub text: String,
    /// Unique on the page, as mdBook and GitHub derive it from the text.
    pub anchor: String,
}

/// A link or image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// As it is written.
    pub target: String,
    /// Counted from 1.
    pub line: usize,
}

/// A page of Markdown.
#[derive(Clone, Debug)]
pub struct Page {
    /// Relative to the root of the work tree.
    pub path: PathBuf,
    /// In the order of the page.
    pub headings: Vec<Heading>,
    /// In the order of the page.
    pub links: Vec<Link>,
    /// Fenced code blocks, in the order of the page.
    pub blocks: Vec<Block>,
}

impl Page {
    /// Reads a page. Any text is a page.
    pub fn parse(path: &Path, text: &str) -> Self {
        let mut page =
            Self { path: path.to_owned(), headings: Vec::new(), links: Vec::new(), blocks: Vec::new() };
        let mut used = BTreeMap::new();
        let (mut heading, mut block) = (None::<(u8, String)>, None::<Block>);
        let line_of = |offset: usize| 1 + text.get(..offset).map_or(0, |before| before.matches('\n').count());
        let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { level, .. }) => heading = Some((level as u8, String::new())),
                Event::End(TagEnd::Heading(_)) => {
                    if let Some((level, text)) = heading.take() {
                        let anchor = unique(&mut used, &anchor(&text));
                        page.headings.push(Heading { level, text, anchor });
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    block = Some(Block::new(&info, line_of(range.start)));
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link { target: dest_url.into_string(), line: line_of(range.start) });
                }
                Event::Text(piece) | Event::Code(piece) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&piece);
                    } else if let Some((_, text)) = &mut heading {
                        text.push_str(&piece);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// The file that a relative link names, relative to the root of the work tree. `None` for other links, and for those
    /// that leave the work tree.
    pub fn resolve(&self, target: &str) -> Option<PathBuf> {
        let path = target.split('#').next().unwrap_or_default();
        if path.is_empty() {
            return Some(self.path.clone());
        }
        if path.starts_with('/') || is_external(path) {
            return None;
        }
        let mut resolved = self.path.parent().map(Path::to_path_buf).unwrap_or_default();
        for part in Path::new(path).components() {
            match part {
                Component::Normal(name) => resolved.push(name),
                Component::CurDir => {}
                Component::ParentDir if resolved.pop() => {}
                _ => return None,
            }
        }
        Some(resolved)
    }

    /// Whether the page belongs to the book.
    pub fn is_in_book(&self) -> bool {
        self.path.starts_with(crate::FOLDER)
    }
}

/// Whether a link names a scheme, such as https.
pub(crate) fn is_external(target: &str) -> bool {
    let scheme = target.split(':').next().unwrap_or_default();
    scheme.len() < target.len() && !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphabetic())
}

/// Letters, digits, `-` and `_` in lower case; blanks become `-`.
fn anchor(text: &str) -> String {
    let kept = text.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

fn unique(used: &mut BTreeMap<String, usize>, anchor: &str) -> String {
    let count = used.entry(anchor.to_owned()).or_default();
    *count += 1;
    if *count == 1 { anchor.to_owned() } else { format!("{anchor}-{}", *count - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::parse(Path::new("docs/how-to/pools.md"), text)
    }

    #[test]
    fn headings_have_the_anchors_that_readers_link_to() {
        let page =
            page("# Pools\n## What can `rbac.extraRules` grant?\n## Events\n### `KeyLost`\n## Events\n");
        let anchors: Vec<_> = page.headings.iter().map(|heading| heading.anchor.as_str()).collect();
        assert_eq!(anchors, ["pools", "what-can-rbacextrarules-grant", "events", "keylost", "events-1"]);
        assert_eq!(page.headings[1].text, "What can rbac.extraRules grant?");
    }

    #[test]
    fn links_and_images_are_found_but_not_in_code() {
        let page = page("[a](../x.md#y)\n\n`[no](no.md)`\n\n![b](b.svg)\n\n```sh run\n[no](no.md)\n```\n");
        let links: Vec<_> = page.links.iter().map(|link| (link.target.as_str(), link.line)).collect();
        assert_eq!(links, [("../x.md#y", 1), ("b.svg", 5)]);
        assert_eq!((page.blocks[0].text.as_str(), page.blocks[0].line), ("[no](no.md)\n", 7));
    }

    #[test]
    fn links_resolve_from_the_folder_of_the_page() {
        let page = page("");
        let resolved = |target: &str| page.resolve(target).map(|path| path.display().to_string());
        assert_eq!(resolved("../security.md#who").as_deref(), Some("docs/security.md"));
        assert_eq!(resolved("proxies.md").as_deref(), Some("docs/how-to/proxies.md"));
        assert_eq!(resolved("#here").as_deref(), Some("docs/how-to/pools.md"));
        assert_eq!(resolved("../../../outside.md"), None);
        assert_eq!(resolved("https://coder.com"), None);
        assert_eq!(resolved("mailto:a@example.com"), None);
    }
}
