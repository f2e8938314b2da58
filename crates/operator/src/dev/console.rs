//! What `dev` prints besides its live view: lines with the time, a bar while programs are built, and the operator's log.
//!
//! While the view has the screen, lines go to the view, and the log is kept for standard error.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use coder_k8s_testbed::{Pace, Progress, Stage};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    styled::{Line, Style},
    terminal,
};
use crate::print::print;

/// How many lines the view can show at most.
const NOTES: usize = 20;
/// Most bytes of the log that are kept while the view has the screen.
const MAX_HELD: usize = 256 * 1024;
/// Columns of the bar.
const BAR: usize = 24;

/// Where `dev` prints. Clones print to the same place.
#[derive(Clone)]
pub(super) struct Console(Arc<Inner>);

struct Inner {
    start: Instant,
    interactive: bool,
    colours: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the last line of the screen is the bar, which the next line replaces.
    bar: bool,
    /// Whether the view has the screen.
    live: bool,
    pace: Pace,
    notes: VecDeque<(Duration, String)>,
    held: Vec<u8>,
}

impl Console {
    /// Prints plain lines without escape sequences if asked to, or if standard output is no terminal.
    pub(super) fn new(plain: bool) -> Self {
        let interactive = !plain && terminal::is_interactive();
        let colours = interactive && terminal::has_colours();
        Self(Arc::new(Inner { start: Instant::now(), interactive, colours, state: Mutex::default() }))
    }

    /// Whether to show the bar and the view.
    pub(super) fn is_interactive(&self) -> bool {
        self.0.interactive
    }

    pub(super) fn has_colours(&self) -> bool {
        self.0.colours
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// Prints a line with the time before it.
    pub(super) fn line(&self, text: &str) {
        let mut state = self.0.state.lock();
        let at = self.elapsed();
        if state.live {
            state.notes.push_back((at, text.to_owned()));
            if state.notes.len() > NOTES {
                state.notes.pop_front();
            }
            return;
        }
        let time = format!("{:>6.1}s  ", at.as_secs_f32());
        let line = Line::new(Style::Dim, &time).and(Style::Plain, text);
        self.show(&mut state, &line);
    }

    /// Prints a line about the cluster, unless there is a view that shows the same.
    pub(super) fn change(&self, text: &str) {
        if !self.0.interactive {
            self.line(text);
        }
    }

    /// Prints lines without the time.
    pub(super) fn lines(&self, lines: &[Line]) {
        let mut state = self.0.state.lock();
        for line in lines {
            self.show(&mut state, line);
        }
    }

    /// A closed pipe is ignored.
    fn show(&self, state: &mut State, line: &Line) {
        let clear = if std::mem::take(&mut state.bar) { "\r\x1b[K" } else { "" };
        let text = if self.0.colours { line.coloured() } else { line.text() };
        let _ = print(&format!("{clear}{text}\n"));
    }

    /// Shows how far a build is: as a bar, or in a line now and then.
    pub(super) fn progress(&self, progress: &Progress) {
        if !self.0.interactive {
            if self.0.state.lock().pace.is_due(progress) {
                self.line(&progress.to_string());
            }
            return;
        }
        let columns = terminal::size().columns;
        let line = bar(progress).cut(columns.saturating_sub(1));
        let text = if self.0.colours { line.coloured() } else { line.text() };
        terminal::write(&format!("\r\x1b[K{text}"));
        self.0.state.lock().bar = true;
    }

    /// Removes the bar, if it is there.
    pub(super) fn end_progress(&self) {
        if std::mem::take(&mut self.0.state.lock().bar) {
            terminal::write("\r\x1b[K");
        }
    }

    /// Takes a line of the log.
    pub(super) fn log(&self, line: &[u8]) {
        let mut state = self.0.state.lock();
        if !state.live {
            let _ = io::stderr().write_all(line);
        } else if state.held.len() < MAX_HELD {
            state.held.extend_from_slice(line);
        }
    }

    /// How many lines of the log are kept.
    pub(super) fn held_lines(&self) -> usize {
        self.0.state.lock().held.split(|byte| *byte == b'\n').count() - 1
    }

    /// The lines since the view began, oldest first, with their times.
    pub(super) fn notes(&self) -> Vec<(Duration, String)> {
        self.0.state.lock().notes.iter().cloned().collect()
    }

    /// Gives the screen to the view, or takes it back and prints the log that was kept.
    pub(super) fn set_live(&self, live: bool) {
        let mut state = self.0.state.lock();
        state.live = live;
        if !live {
            let _ = io::stderr().write_all(&std::mem::take(&mut state.held));
        }
    }
}

/// `building the cluster's binaries  ━━━━━━────────  812/2104 packages  3m12s  k8s.io/api/core/v1`
fn bar(progress: &Progress) -> Line {
    let Progress { subject, stage, done, total, detail, elapsed } = progress;
    let seconds = elapsed.as_secs();
    let time = format!("{}m{:02}s", seconds / 60, seconds % 60);
    let (full, text) = match stage {
        Stage::Waiting => (0, "another process builds them".to_owned()),
        Stage::Downloading => (0, format!("downloading, {done} modules")),
        Stage::Compiling => (BAR * (*done).min(*total) / (*total).max(1), format!("{done}/{total} packages")),
        Stage::Linking => (BAR, "linking".to_owned()),
    };
    Line::new(Style::Bold, &format!("building {subject} "))
        .and(Style::Good, &"━".repeat(full))
        .and(Style::Dim, &"─".repeat(BAR - full))
        .and(Style::Plain, &format!(" {text} {time} "))
        .and(Style::Dim, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_what_is_built_how_much_of_it_and_for_how_long() {
        let mut progress = Progress {
            subject: "the cluster's binaries",
            stage: Stage::Compiling,
            done: 1052,
            total: 2104,
            detail: "k8s.io/api/core/v1".into(),
            elapsed: Duration::from_secs(192),
        };
        let half = format!("{}{}", "━".repeat(12), "─".repeat(12));
        let text =
            format!("building the cluster's binaries {half} 1052/2104 packages 3m12s k8s.io/api/core/v1");
        assert_eq!(bar(&progress).text(), text);
        // Packages in Go's cache are never reported, and a main package may be reported twice.
        (progress.done, progress.total) = (9, 8);
        assert!(bar(&progress).text().contains(&"━".repeat(BAR)));
        (progress.stage, progress.total) = (Stage::Downloading, 0);
        assert!(bar(&progress).text().contains("downloading, 9 modules"));
    }
}
