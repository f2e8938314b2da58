//! The key in use is not what the spec asks for, or there is none: another one is announced, made, and stored.

use std::collections::BTreeSet;

use super::{
    evidence::{Flow, Live, Pass, Stop},
    finding::Finding,
    ours,
    place::{At, Organization, Place},
    record::{Key, Pending, Record, Stale},
    retire,
    seen::{Listed, Listing, Marks, Trouble},
    step::{Act, Next, Step},
    tags,
};
use crate::outcome::Note;

pub(super) fn replace(pass: &Pass<'_>, live: Option<&Live>) -> Flow<()> {
    let seen = pass.seen;
    if let Err(closed) = &seen.may_make {
        return Err(Stop::Wait(Finding::working(closed.reason, closed.message.clone())));
    }
    let at = pass.target_at()?;
    let version = pass.writable()?;
    let listing = pass.listing(&at)?;
    is_complete(live, &at, listing)?;
    remember_marked(pass, &at, listing)?;
    if let Some(pending) = pass.record.pending.as_ref().filter(|pending| is_wanted(pass, pending, &at)) {
        let listed = listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&pending.name));
        match listed {
            None if !seen.is_held => return Err(Stop::step(Step::Hold)),
            None => {
                return Err(Stop::step(Step::Coderd(Act::Make {
                    key: Box::new(pending.clone()),
                    tags: seen.wanted.tags.clone(),
                    secret: seen.wanted.secret.clone(),
                    version,
                    marks: marks_of(pending),
                })));
            }
            // Made in an earlier attempt, whose material is lost.
            Some(listed) if ours::is_pending(listed, pending) => {
                let (name, id) = (listed.key.name.clone(), listed.key.id.clone());
                return Err(Stop::step(Step::Coderd(Act::Delete { at, name, id })));
            }
            // Somebody else took the name, or pods already use it: another name.
            Some(_) => {}
        }
    }
    announce(pass, live, &at, listing)
}

/// What to say while a step is under way.
pub(super) fn progress(pass: &Pass<'_>, live: Option<&Live>, next: &Next) -> Finding {
    let making =
        pass.record.pending.is_some() || matches!(next, Next::Record(record) if record.pending.is_some());
    if !making && live.is_some() && matches!(next, Next::Do(_) | Next::Record(_)) {
        return Finding::working("Recording", "the key is proven; its records are brought up to date");
    }
    match &pass.record.current {
        Some(key) => Finding::working("Rotating", format!("key {} is being replaced", key.name)),
        None => Finding::working("Creating", "the key is being made"),
    }
}

/// Keys that could be taken for ours and are not, when a key is announced beside them: one that has a name of ours, and
/// one whose material is in the Secret and about to be overwritten.
pub(super) fn passed_over(pass: &Pass<'_>, next: &Next) -> Vec<Note> {
    let announced = match next {
        Next::Record(record) => {
            record.pending.as_ref().filter(|key| Some(*key) != pass.record.pending.as_ref())
        }
        _ => None,
    };
    let Some(at) = announced.map(Pending::at) else { return Vec::new() };
    let Some(Listing::Known(listing)) = pass.seen.listings.get(&at) else { return Vec::new() };
    let named = listing.iter().filter(|listed| pass.seen.wanted.name.covers(&listed.key.name));
    let named = named.filter(|listed| !is_one_of_ours(pass, listed)).map(|listed| &listed.key);
    let named = named.map(|key| retire::stranger(key, &at.place));
    let mut notes: Vec<_> = named.chain(retire::strangers(pass)).chain(retire::perhaps(pass)).collect();
    notes.dedup();
    notes
}

/// coderd lists what a credential may see. A list without a key that was proven a moment ago is not the whole of it.
fn is_complete(live: Option<&Live>, at: &At, listing: &[Listed]) -> Flow<()> {
    let here = live.filter(|live| at.organization.id.as_ref() == Some(&live.key.organization));
    match here {
        Some(live) if !listing.iter().any(|listed| listed.key.id == live.key.id) => {
            let message = "coderd does not list all keys to these credentials".to_owned();
            Err(Stop::unsure(&Trouble { reason: "ListIncomplete", message }))
        }
        _ => Ok(()),
    }
}

/// A key that only the annotations of the Secret know is put on the record before they are overwritten.
fn remember_marked(pass: &Pass<'_>, at: &At, listing: &[Listed]) -> Flow<()> {
    for marks in pass.marks() {
        let here = marks.deployment_id == at.place.deployment_id && marks.organization == at.organization.id;
        let is_gone = here && !listing.iter().any(|listed| Some(&listed.key.id) == marks.id.as_ref());
        if let Some(record) = pass.unrecorded(marks).filter(|_| !is_gone) {
            return Err(Stop::record(record));
        }
    }
    Ok(())
}

/// The record with what it lost of the current key, if annotations speak of that one.
fn completed(record: &Record, marks: &Marks) -> Option<Record> {
    let mut record = record.clone();
    let key = record.current.as_mut().filter(|key| key.id.is_none())?;
    let agrees = |lost: &Option<String>, marked: &Option<String>| lost.is_none() || lost == marked;
    let is_it = key.name.eq_ignore_ascii_case(&marks.name)
        && agrees(&key.organization.id, &marks.organization)
        && agrees(&key.place.deployment_id, &marks.deployment_id);
    if !is_it {
        return None;
    }
    key.id.clone_from(&marks.id);
    key.organization.id.clone_from(&marks.organization);
    key.tags_hash.clone_from(&marks.tags_hash);
    key.place.deployment_id.clone_from(&marks.deployment_id);
    Some(record)
}

/// Announces a key under a free name. What was announced before and is not wanted any more is to go.
fn announce(pass: &Pass<'_>, live: Option<&Live>, at: &At, listing: &[Listed]) -> Flow<()> {
    let name = match free_name(pass, at, listing) {
        Ok(name) => name,
        Err(finding) if pass.record.pending.is_none() => return Err(Stop::Wait(finding)),
        Err(_) => {
            let mut record = pass.record.clone();
            record.drop_pending();
            return Err(Stop::record(record));
        }
    };
    if !pass.seen.is_held {
        return Err(Stop::step(Step::Hold));
    }
    let mut record = pass.record.clone();
    record.drop_pending();
    record.pending = Some(Pending {
        name,
        id: None,
        organization: at.organization.clone(),
        tags_hash: tags::hash(&pass.seen.wanted.tags),
        place: at.place.clone(),
        reason: reason(pass, live).to_owned(),
        since: pass.now,
    });
    Err(Stop::record(record))
}

/// Whether an announced key is still the one to make.
fn is_wanted(pass: &Pass<'_>, pending: &Pending, at: &At) -> bool {
    pending.at().is_same(at)
        && pending.tags_hash == tags::hash(&pass.seen.wanted.tags)
        && pass.seen.wanted.name.covers(&pending.name)
}

/// A name that nobody has: the base, unless somebody with a better claim asks for it, or the base with a hash. A base
/// that the user chose is not evaded when somebody else has it.
fn free_name(pass: &Pass<'_>, at: &At, listing: &[Listed]) -> Result<String, Finding> {
    let base = &pass.seen.wanted.name;
    let older = pass.seen.claimants.iter().find(|other| other.is_before(&pass.seen.object));
    if let Some(older) = older.filter(|_| base.chosen) {
        let message = format!(
            "{} asks for the key {} too, and was there first; choose another name with spec.key.name",
            older.called, base.name
        );
        return Err(Finding::stalled("KeyConflict", message));
    }
    let has_base = listing.iter().find(|listed| listed.key.name.eq_ignore_ascii_case(&base.name));
    if base.chosen && has_base.is_some_and(|listed| !is_one_of_ours(pass, listed)) {
        let message = format!(
            "coderd has a key {} that this pool did not make; delete it, or choose another name with spec.key.name",
            base.name
        );
        return Err(Finding::stalled("KeyConflict", message));
    }
    let mut taken: BTreeSet<_> = listing.iter().map(|listed| listed.key.name.to_lowercase()).collect();
    taken.extend(pass.record.names_at(at));
    if older.is_some() {
        taken.insert(base.name.clone());
    }
    base.candidates().find(|name| !taken.contains(name)).ok_or_else(|| {
        Finding::stalled(
            "KeyConflict",
            format!("every name that starts with {} is taken in coderd", base.name),
        )
    })
}

fn is_one_of_ours(pass: &Pass<'_>, listed: &Listed) -> bool {
    let half_made = pass.record.stale.iter().filter(|stale| stale.key.id.is_none());
    ours::is_known(&listed.key.id, pass.record, &pass.marks())
        || pass.record.pending.iter().any(|pending| ours::is_pending(listed, pending))
        || half_made.clone().any(|stale| ours::is_leftover(listed, &stale.key, stale.since))
}

/// Why a key is made.
fn reason(pass: &Pass<'_>, live: Option<&Live>) -> &'static str {
    let wanted = &pass.seen.wanted;
    let Some(current) = &pass.record.current else { return "FirstKey" };
    let moved = pass.seen.target.as_ref().is_ok_and(|target| !current.place.is_same(target));
    match live {
        _ if moved => "ControlPlaneChanged",
        Some(live) if !wanted.name.covers(&live.key.name) => "KeyNameChanged",
        Some(live) if !tags::mean_the_same(&wanted.tags, &live.key.tags) => "TagsChanged",
        Some(_) => "OrganizationChanged",
        None if pass.is_refused() => "KeyRefused",
        None => "SecretLost",
    }
}

/// The annotations for a key that was announced; the UUID is not known before it is made.
fn marks_of(pending: &Pending) -> Marks {
    Marks {
        id: None,
        name: pending.name.clone(),
        organization: pending.organization.id.clone(),
        tags_hash: Some(pending.tags_hash.clone()),
        deployment_id: pending.place.deployment_id.clone(),
    }
}

impl Pass<'_> {
    /// The record with a key on it that so far only annotations know.
    pub(super) fn unrecorded(&self, marks: &Marks) -> Option<Record> {
        let id = marks.id.as_ref().filter(|id| !self.record.knows(id))?;
        if let Some(record) = completed(self.record, marks) {
            return Some(record);
        }
        let known = [self.seen.target.as_ref().ok(), self.record.current.as_ref().map(|key| &key.place)];
        let place = known.into_iter().flatten().find(|place| place.deployment_id == marks.deployment_id);
        let elsewhere = || Place { deployment_id: marks.deployment_id.clone(), ..Place::default() };
        let name = marks.organization.clone().unwrap_or_default();
        let key = Key {
            id: Some(id.clone()),
            name: marks.name.clone(),
            organization: Organization { id: marks.organization.clone(), name },
            tags_hash: marks.tags_hash.clone(),
            place: place.cloned().unwrap_or_else(elsewhere),
        };
        let mut record = self.record.clone();
        record.retire(Stale { key, since: self.now, unused_since: None });
        Some(record)
    }
}

impl Record {
    /// Takes what was announced off a record, as something to be got rid of. One that was stored is known by its UUID;
    /// another one may have been made under the same name since, whose UUID nobody learned.
    pub(super) fn drop_pending(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        if let Some(id) = pending.id.clone().filter(|id| !self.knows(id)) {
            self.retire(pending.clone().into_stale(Some(id)));
        }
        self.retire(pending.into_stale(None));
    }

    /// Puts a key on the list of those that are to go, once.
    fn retire(&mut self, stale: Stale) {
        let is_it = |other: &Stale| match (&other.key.id, &stale.key.id) {
            (Some(one), Some(two)) => one == two,
            (None, None) => other.key.name == stale.key.name && other.key.at().is_same(&stale.key.at()),
            _ => false,
        };
        self.stale.retain(|other| !is_it(other));
        self.stale.push(stale);
    }
}
