//! The Secret holds the key that the spec asks for: the status says so, the Secret is the wanted one, and its
//! annotations tell what is in it.

use super::{
    effect::Effect,
    evidence::{Flow, KeyFacts, Live, Stop},
    observed::Secret,
    record::KeyRecord,
    tags,
    target::Organization,
};

pub(super) fn settle(facts: &KeyFacts<'_>, live: &Live) -> Flow<()> {
    if !facts.observed.has_finalizer {
        return Err(Stop::act(Effect::AddFinalizer));
    }
    let record = settled(facts, live)?;
    if record != *facts.record {
        return Err(Stop::record(record));
    }
    let (desired, marks) = (&facts.observed.desired.secret, facts.marks_of(&live.key)?);
    if live.place != *desired {
        let (from, to, version) = (live.place.clone(), desired.clone(), facts.writable()?);
        return Err(Stop::act(Effect::CopySecret { from, to, version, marks }));
    }
    let Some(Secret::Ours { marks: have, .. }) = facts.observed.secrets.get(desired) else { return Ok(()) };
    if have.as_ref() != Some(&marks) {
        return Err(Stop::act(Effect::AnnotateSecret {
            secret: desired.clone(),
            version: facts.writable()?,
            marks,
        }));
    }
    Ok(())
}

/// The record of a key that is as wanted: named and placed as the spec does now, which may have other words for the
/// same. A key that was announced and is not needed any more is to go.
fn settled(facts: &KeyFacts<'_>, live: &Live) -> Flow<KeyRecord> {
    let mut record = facts.record.clone();
    let mut key = facts.as_recorded(&live.key)?;
    key.organization = Organization {
        id: Some(live.key.organization.clone()),
        name: facts.observed.desired.organization.clone(),
    };
    key.tags_hash = Some(tags::hash(&facts.observed.desired.tags));
    record.current = Some(key);
    record.secret = Some(live.place.clone());
    record.drop_pending();
    Ok(record)
}
