//! The live view: what is in the cluster, redrawn in place. [`frame`] computes the lines for a size of the terminal and
//! is pure; [`run`] draws them whenever something changes, the terminal is resized, or a second has passed.
//!
//! A terminal that is too low loses, in this order: events beyond three, children, what the commands do, facts, the
//! commands. A narrow one loses the kinds, and the ends of lines that nobody copies.

use std::{fmt::Write, sync::Arc, time::Duration};

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use rustix::process::{Signal, getpid, kill_process};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::MissedTickBehavior,
};

use super::{
    Guide, SharedGuide,
    console::Console,
    styled::{Line, Style, wrap},
    terminal::{self, FullScreen, Size},
    world::{Id, Object, Observed, World},
};
use crate::intervals::{DEV_REDRAW_PAUSE, DEV_REDRAW_PERIOD};

/// The least number of events that is shown while there is room for anything else.
const FEW_EVENTS: usize = 3;
/// The least width at which an object is shown with its kind.
const WIDE: usize = 64;
/// Columns before facts, children and messages.
const INDENT: &str = "    ";
const SEPARATOR: &str = " · ";

/// Draws until it is dropped, and then restores the screen.
pub(super) async fn run(console: &Console, world: &Arc<World>, guide: &SharedGuide) -> Result<()> {
    let mut resized = signal(SignalKind::window_change())?;
    // Ctrl-Z. The shell gets its screen back, and `fg` brings the view back.
    let mut suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let mut changes = world.changes();
    let mut ticks = tokio::time::interval(DEV_REDRAW_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let live = Live::begin(console);
    loop {
        live.screen.ensure();
        let present = guide.lock().clone();
        live.draw(&world.seen(), &present);
        tokio::select! {
            _ = ticks.tick() => {}
            _ = resized.recv() => {}
            _ = changes.changed() => {
                // Changes come in bursts.
                tokio::time::sleep(DEV_REDRAW_PAUSE).await;
                changes.mark_unchanged();
            }
            _ = suspended.recv() => {
                live.screen.suspend();
                let _ = kill_process(getpid(), Signal::STOP);
            }
        }
    }
}

/// The view while it has the screen.
struct Live<'a> {
    console: &'a Console,
    screen: FullScreen,
}

impl<'a> Live<'a> {
    fn begin(console: &'a Console) -> Self {
        console.set_live(true);
        Self { console, screen: FullScreen::enter() }
    }

    fn draw(&self, seen: &Observed, guide: &Guide) {
        let console = self.console;
        let notes = console.notes();
        let now = Timestamp::now();
        let moment =
            Moment { now, elapsed: console.elapsed(), notes: &notes, held_lines: console.held_lines() };
        let size = terminal::size();
        terminal::write(&painted(&frame(seen, guide, &moment, size), size, console.has_colours()));
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.screen.suspend();
        self.console.set_live(false);
    }
}

/// The lines as one text that replaces what is on the screen, without a line break at its end, which would scroll.
fn painted(lines: &[Line], size: Size, colours: bool) -> String {
    let mut text = "\x1b[H".to_owned();
    for (at, line) in lines.iter().enumerate() {
        let shown = if colours { line.coloured() } else { line.text() };
        // At the last column the cursor waits to wrap, and erasing would erase the last character.
        let full = line.width() > 0 && line.width().is_multiple_of(size.columns.max(1));
        let erase = if full { "" } else { "\x1b[K" };
        let end = if at + 1 < lines.len() { "\r\n" } else { "" };
        // invariant: writing to a String does not fail.
        let _ = write!(text, "{shown}{erase}{end}");
    }
    text + "\x1b[J"
}

/// What the view shows besides the cluster.
pub(super) struct Moment<'a> {
    pub(super) now: Timestamp,
    pub(super) elapsed: Duration,
    /// Lines of `dev` itself, with their times since the start.
    pub(super) notes: &'a [(Duration, String)],
    /// Lines of the log that wait for the end.
    pub(super) held_lines: usize,
}

/// The lines for a terminal of this size: never more rows than it has.
fn frame(seen: &Observed, guide: &Guide, moment: &Moment<'_>, size: Size) -> Vec<Line> {
    let Size { columns, rows } = size;
    let events = events(seen, moment, columns);
    let few = events.len().min(FEW_EVENTS);
    let commands = commands(guide, "TRY NEXT, in another terminal");
    let explains = |line: &&Line| line.text().starts_with('#');
    let bare: Vec<Line> = commands.iter().filter(|line| !explains(line)).cloned().collect();
    // From everything to almost nothing: children, what the commands do, facts, commands.
    for (children, facts, commands) in [
        (true, true, commands.as_slice()),
        (false, true, commands.as_slice()),
        (false, true, bare.as_slice()),
        (false, false, bare.as_slice()),
        (false, true, &[][..]),
        (false, false, &[][..]),
    ] {
        let mut lines = vec![header(seen, guide, moment)];
        lines.extend(guide.pinned.iter().map(|line| Line::new(Style::Bold, line)));
        lines.push(Line::default());
        lines.extend(objects(seen, columns, children, facts));
        let blank = (!commands.is_empty()).then(Line::default);
        let below: Vec<Line> = blank.into_iter().chain(commands.iter().cloned()).collect();
        let last = Line::new(Style::Dim, "Ctrl-C stops the cluster and leaves nothing behind.");
        let taken: usize = lines.iter().chain(&below).map(|line| line.rows(columns)).sum();
        // Blank line and heading of the events, blank line and last line.
        let Some(room) = rows.checked_sub(taken + 4).filter(|room| *room >= few) else { continue };
        if !events.is_empty() {
            lines.extend([Line::default(), Line::new(Style::Bold, "LAST EVENTS")]);
            lines.extend(events.iter().skip(events.len().saturating_sub(room)).cloned());
        }
        lines.extend(below);
        lines.extend([Line::default(), last]);
        return lines.into_iter().map(|line| line.cut(columns)).collect();
    }
    let mut lines = vec![header(seen, guide, moment)];
    lines.extend(objects(seen, columns, false, false));
    lines.into_iter().take(rows).map(|line| line.cut(columns)).collect()
}

fn header(seen: &Observed, guide: &Guide, moment: &Moment<'_>) -> Line {
    let (ready, all) = (seen.ready(), seen.objects.len());
    let (style, state) = match (all, ready == all) {
        (0, _) => (Style::Waiting, "no objects".to_owned()),
        (_, true) => (Style::Good, "everything is Ready".to_owned()),
        (_, false) => (Style::Waiting, format!("{ready} of {all} are Ready")),
    };
    let seconds = moment.elapsed.as_secs();
    let mut line = Line::new(Style::Bold, "coder-k8s dev")
        .and(Style::Dim, &format!("  {}:{:02}  ", seconds / 60, seconds % 60))
        .and(style, &state);
    if moment.held_lines > 0 {
        let s = if moment.held_lines == 1 { "" } else { "s" };
        line = line
            .and(Style::Bad, &format!("  {} line{s} of the operator's log at the end", moment.held_lines));
    }
    line.and(Style::Dim, &format!("  {}", guide.title))
}

/// Each object with its reason and message, and below it what is known of it and what the operator made.
fn objects(seen: &Observed, columns: usize, children: bool, facts: bool) -> Vec<Line> {
    let kinds = seen.objects.keys().map(|id| id.kind.chars().count() + 2).max().unwrap_or_default();
    let kinds = if columns < WIDE { 0 } else { kinds };
    let names = seen.objects.keys().map(|id| full_name(id).chars().count()).max().unwrap_or_default();
    let room = columns.saturating_sub(INDENT.len());
    let mut lines = Vec::new();
    for (id, object) in &seen.objects {
        lines.push(headline(id, object, kinds, names));
        if let (Some(missing), true) = (&object.missing, facts) {
            lines.push(Line::new(Style::Waiting, &format!("{INDENT}{missing}")));
        }
        if facts {
            let wrapped = wrap(&object.facts, SEPARATOR, room);
            lines.extend(wrapped.iter().map(|line| Line::new(Style::Plain, &format!("{INDENT}{line}"))));
        }
        if children {
            let wrapped = wrap(&children_of(seen, id), SEPARATOR, room);
            lines.extend(wrapped.iter().map(|line| Line::new(Style::Dim, &format!("{INDENT}{line}"))));
        }
    }
    lines
}

fn headline(id: &Id, object: &Object, kinds: usize, names: usize) -> Line {
    let (status, reason, message) = object.ready.clone().unwrap_or_default();
    let (style, mark) = match (&object.missing, status.as_str()) {
        (None, _) => (Style::Good, "●"),
        (Some(_), "False") => (Style::Bad, "○"),
        (Some(_), _) => (Style::Waiting, "○"),
    };
    let name = full_name(id);
    let kind = if kinds == 0 { String::new() } else { format!("{:kinds$}", id.kind) };
    let line = Line::new(style, mark)
        .and(Style::Plain, &format!(" {kind}"))
        .and(Style::Bold, &format!("{name:names$}  "))
        .and(style, &format!("Ready={} {reason}", if status.is_empty() { "?" } else { &status }));
    // What is missing has a line of its own.
    if object.missing.is_none() && !message.is_empty() {
        return line.and(Style::Dim, &format!(": {message}"));
    }
    line
}

fn full_name(id: &Id) -> String {
    format!("{}/{}", id.namespace, id.name)
}

/// The children of an object, such as `Deployment coder 1/1`.
pub(super) fn children_of(seen: &Observed, owner: &Id) -> Vec<String> {
    let own = seen.children.iter().filter(|(_, child)| child.owner.as_ref() == Some(owner));
    own.map(|(id, child)| format!("{} {} {}", id.kind, id.name, child.state).trim_end().to_owned()).collect()
}

/// Events and notes by time, oldest first.
fn events(seen: &Observed, moment: &Moment<'_>, columns: usize) -> Vec<Line> {
    let mut all: Vec<(Duration, Line)> = Vec::new();
    for event in &seen.events {
        let ago = Duration::try_from(moment.now.duration_since(event.at)).unwrap_or_default();
        let about = format!("{} {}: ", event.about.kind.trim_start_matches("Coder"), event.about.name);
        let style = if event.warning { Style::Waiting } else { Style::Plain };
        all.push((ago, Line::new(Style::Dim, &about).and(style, &event.text)));
    }
    for (at, note) in moment.notes {
        all.push((moment.elapsed.saturating_sub(*at), Line::new(Style::Bold, note)));
    }
    all.sort_by_key(|(ago, _)| std::cmp::Reverse(*ago));
    all.into_iter()
        .map(|(ago, line)| {
            let seconds = ago.as_secs();
            let ago =
                if seconds < 100 { format!("{seconds:>3}s ") } else { format!("{:>3}m ", seconds / 60) };
            let mut whole = Line::new(Style::Dim, &ago);
            whole.append(line);
            whole.cut(columns)
        })
        .collect()
}

/// The commands to try, each with a line that says what it does.
pub(super) fn commands(guide: &Guide, heading: &str) -> Vec<Line> {
    let mut lines = vec![Line::new(Style::Bold, heading)];
    lines.push(Line::whole(&guide.environment));
    for (what, command) in &guide.commands {
        lines.push(Line::new(Style::Dim, &format!("# {what}")));
        lines.push(Line::whole(command));
    }
    lines
}

/// What exists, as a table.
pub(super) fn table(seen: &Observed) -> Vec<Line> {
    if seen.objects.is_empty() {
        return vec![Line::new(Style::Dim, "there are no objects")];
    }
    let rows: Vec<[String; 4]> = seen
        .objects
        .iter()
        .map(|(id, object)| {
            let (status, reason, _) = object.ready.clone().unwrap_or_default();
            [id.kind.clone(), full_name(id), status, reason]
        })
        .collect();
    let heads = ["KIND", "NAME", "READY", "STATUS"].map(str::to_owned);
    let mut widths = [0; 4];
    for row in rows.iter().chain([&heads]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let [kinds, names, readies, _] = widths;
    let text = |[kind, name, ready, status]: &[String; 4]| {
        format!("{kind:kinds$}  {name:names$}  {ready:readies$}  {status}")
    };
    let mut lines = vec![Line::new(Style::Bold, &text(&heads))];
    for (row, (id, object)) in rows.iter().zip(&seen.objects) {
        let style = if object.missing.is_none() { Style::Plain } else { Style::Waiting };
        lines.push(Line::new(style, &text(row)));
        let missing = object.missing.iter().map(|missing| Line::new(Style::Waiting, &format!("  {missing}")));
        lines.extend(missing);
        let described = [object.facts.clone(), children_of(seen, id)];
        let described = described.iter().flat_map(|items| wrap(items, ", ", 78));
        lines.extend(described.map(|line| Line::new(Style::Dim, &format!("  {line}"))));
    }
    lines
}

#[cfg(test)]
mod tests;
