//! The object is going: every key of ours goes first. What cannot be deleted in time is named and left behind.

use jiff::Timestamp;

use super::{
    evidence::{Flow, Pass, Stop},
    finding::Finding,
    record::Key,
    retire::{self, Fate},
    seen::Going,
    step::{Decision, Look, Next},
};
use crate::outcome::Note;

/// How soon to look again.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);

pub(super) fn decide(pass: &Pass<'_>, deadline: Going) -> Decision {
    let finding = Finding::working("Deleting", "the keys of the pool are being deleted");
    let (next, notes) = match forgotten(pass) {
        Err(Stop::Next(next)) => (*next, Vec::new()),
        Err(Stop::Wait(_)) if !deadline.overdue => (Next::Rest, Vec::new()),
        Err(Stop::Wait(_)) | Ok(()) => empty(pass, deadline),
    };
    Decision { next, again: Some(AGAIN), notes, ..Decision::rest(None, finding) }
}

/// A status that was lost, or a part of it, is found again first: by the annotations of the Secret, or by what it holds.
fn forgotten(pass: &Pass<'_>) -> Flow<()> {
    let known = pass.record.current.as_ref().is_some_and(|key| key.id.is_some());
    if known || !pass.seen.is_held {
        return Ok(());
    }
    if let Some(record) = pass.marks().into_iter().find_map(|marks| pass.unrecorded(marks)) {
        return Err(Stop::record(record));
    }
    pass.secrets_are_known()?;
    match pass.live()? {
        Some(live) if !pass.record.knows(&live.key.id) => {
            let mut record = pass.record.clone();
            record.promote(pass.as_recorded(&live.key)?, live.place, pass.now);
            Err(Stop::record(record))
        }
        _ => Ok(()),
    }
}

/// Empties the list: pending, stale, and the current key last.
fn empty(pass: &Pass<'_>, deadline: Going) -> (Next, Vec<Note>) {
    let mut notes = Vec::new();
    let mut waits = false;
    for (key, since) in all(pass) {
        match fate(pass, &key, since) {
            Fate::Look(at) => return (Next::Look(Look::Keys(*at)), Vec::new()),
            Fate::Delete(step) => return (Next::Do(step), Vec::new()),
            Fate::Gone => {}
            Fate::Left => notes.push(retire::left(&key)),
            Fate::Unreachable { for_good } if for_good || deadline.overdue => {
                notes.push(retire::abandoned(&key));
            }
            Fate::Wait if deadline.overdue => notes.push(retire::abandoned(&key)),
            Fate::Unreachable { .. } | Fate::Wait => waits = true,
        }
    }
    if waits {
        return (Next::Rest, Vec::new());
    }
    notes.extend(retire::strangers(pass));
    notes.extend(retire::perhaps(pass));
    (Next::Release, notes)
}

fn all(pass: &Pass<'_>) -> Vec<(Key, Timestamp)> {
    let mut record = pass.record.clone();
    record.drop_pending();
    let stale = record.stale.into_iter().map(|stale| (stale.key, stale.since));
    let current = record.current.map(|key| (key, Timestamp::MAX));
    stale.chain(current).collect()
}

fn fate(pass: &Pass<'_>, key: &Key, since: Timestamp) -> Fate {
    match retire::look_for(pass, key, since) {
        Ok(Some(listed)) => Fate::Delete(Box::new(retire::delete(key.at(), listed))),
        Ok(None) => Fate::Gone,
        Err(fate) => fate,
    }
}
