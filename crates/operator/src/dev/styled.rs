//! Lines of text with a style for each part, as plain text or with the escape sequences of a terminal.
//!
//! Text comes from objects, which anybody may have written: control characters never reach the terminal. A character
//! counts as one column.

use std::fmt::Write;

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    /// As it should be.
    Good,
    /// On its way.
    Waiting,
    /// Wrong.
    Bad,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Waiting => "\x1b[33m",
            Self::Bad => "\x1b[31m",
        }
    }
}

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    parts: Vec<(Style, String)>,
    /// Whether the line is to be copied whole. It is never cut: the terminal wraps it, and still copies it as one line.
    whole: bool,
}

impl Line {
    pub(super) fn new(style: Style, text: &str) -> Self {
        Self::default().and(style, text)
    }

    /// A line that somebody copies.
    pub(super) fn whole(text: &str) -> Self {
        Self { whole: true, ..Self::new(Style::Bold, text) }
    }

    /// Adds a part.
    #[must_use]
    pub(super) fn and(mut self, style: Style, text: &str) -> Self {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        self.parts.push((style, text.chars().map(clean).collect()));
        self
    }

    /// Adds all parts of another line.
    pub(super) fn append(&mut self, other: Self) {
        self.parts.extend(other.parts);
    }

    pub(super) fn text(&self) -> String {
        self.parts.iter().map(|(_, text)| text.as_str()).collect()
    }

    pub(super) fn width(&self) -> usize {
        self.parts.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// How many rows it takes on a terminal of this width.
    pub(super) fn rows(&self, columns: usize) -> usize {
        if self.whole { self.width().div_ceil(columns.max(1)).max(1) } else { 1 }
    }

    /// The line in at most so many columns, unless it is to be copied.
    #[must_use]
    pub(super) fn cut(mut self, columns: usize) -> Self {
        if self.whole || self.width() <= columns {
            return self;
        }
        let mut room = columns.saturating_sub(1);
        for (_, text) in &mut self.parts {
            *text = text.chars().take(room).collect();
            room -= text.chars().count();
        }
        self.parts.push((Style::Dim, "…".chars().take(columns).collect()));
        self
    }

    /// The line with escape sequences for its styles.
    pub(super) fn coloured(&self) -> String {
        let mut line = String::new();
        for (style, text) in self.parts.iter().filter(|(_, text)| !text.is_empty()) {
            let end = if *style == Style::Plain { "" } else { "\x1b[0m" };
            // invariant: writing to a String does not fail.
            let _ = write!(line, "{}{text}{end}", style.code());
        }
        line
    }
}

/// Joins items to lines of at most so many columns. An item that is longer has a line of its own.
pub(super) fn wrap(items: &[String], separator: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line)
                if line.chars().count() + separator.chars().count() + item.chars().count() <= columns =>
            {
                line.push_str(separator);
                line.push_str(item);
            }
            _ => lines.push(item.clone()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_the_terminal_unless_it_is_to_be_copied() {
        let line = Line::new(Style::Good, "abc").and(Style::Dim, "defgh");
        assert_eq!(line.clone().cut(8).text(), "abcdefgh");
        assert_eq!(line.clone().cut(6).text(), "abcde…");
        assert_eq!(line.clone().cut(2).text(), "a…");
        assert_eq!(line.clone().cut(0).text(), "");
        let command = Line::whole("kubectl get");
        assert_eq!((command.clone().cut(4).text().as_str(), command.rows(4)), ("kubectl get", 3));
    }

    #[test]
    fn no_escape_sequence_of_an_object_reaches_the_terminal() {
        let line = Line::new(Style::Plain, "a\x1b[2Jb\nc");
        assert_eq!(line.coloured(), "a [2Jb c");
    }

    #[test]
    fn items_wrap_between_each_other() {
        let items = ["aaa", "bb", "c", "dddddddd"].map(str::to_owned);
        assert_eq!(wrap(&items, ", ", 7), ["aaa, bb", "c", "dddddddd"]);
        assert!(wrap(&[], ", ", 7).is_empty());
    }
}
