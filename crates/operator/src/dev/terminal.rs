//! The terminal that `dev` draws on: its size, and the full-screen mode.
//!
//! The mode is two escape sequences and nothing else: no raw mode, no key handling, so that Ctrl-C stays what it is. It ends with the
//! guard, and on a panic. Only SIGKILL leaves it on, for which `reset` is the remedy.

use std::{
    io::{self, IsTerminal, Write},
    panic,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and the screen as it was.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Whether the full-screen mode is on.
static FULL_SCREEN: AtomicBool = AtomicBool::new(false);

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Whether standard output is a terminal that can be redrawn.
pub(super) fn is_interactive() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && !dumb
}

/// Whether to use colours: on a terminal, unless `NO_COLOR` is set.
pub(super) fn has_colours() -> bool {
    is_interactive() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The present size, or 80 by 24 where nobody knows it.
pub(super) fn size() -> Size {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(found) if found.ws_col > 0 && found.ws_row > 0 => {
            Size { columns: found.ws_col.into(), rows: found.ws_row.into() }
        }
        _ => Size { columns: 80, rows: 24 },
    }
}

/// Writes to the terminal at once. Errors are ignored: a terminal that is gone ends the process by SIGHUP.
pub(super) fn write(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The full-screen mode, until it is dropped.
pub(super) struct FullScreen;

impl FullScreen {
    pub(super) fn enter() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                leave();
                before(panic);
            }));
        });
        let screen = Self;
        screen.ensure();
        screen
    }

    /// Enters the mode again if a panic of a task, which the process survives, has left it.
    #[expect(clippy::unused_self, reason = "only who has entered the mode enters it again")]
    pub(super) fn ensure(&self) {
        if !FULL_SCREEN.swap(true, Ordering::SeqCst) {
            switch(ENTER);
        }
    }

    /// Shows the usual screen until [`Self::ensure`].
    #[expect(clippy::unused_self, reason = "only who has entered the mode leaves it")]
    pub(super) fn suspend(&self) {
        leave();
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        leave();
    }
}

/// Writes an escape sequence, except to the terminal of somebody who runs the tests.
fn switch(sequence: &str) {
    if !cfg!(test) {
        write(sequence);
    }
}

fn leave() {
    if FULL_SCREEN.swap(false, Ordering::SeqCst) {
        switch(LEAVE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_leaves_the_full_screen_mode_and_the_next_frame_enters_it_again() {
        let screen = FullScreen::enter();
        assert!(FULL_SCREEN.load(Ordering::SeqCst));
        let panicked = std::thread::spawn(|| panic!("as a task may")).join();
        assert!(panicked.is_err() && !FULL_SCREEN.load(Ordering::SeqCst));
        screen.ensure();
        assert!(FULL_SCREEN.load(Ordering::SeqCst));
        drop(screen);
        assert!(!FULL_SCREEN.load(Ordering::SeqCst));
    }
}
