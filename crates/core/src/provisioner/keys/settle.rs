//! The Secret holds the key that the spec asks for: the status says so, the Secret is the wanted one, and its
//! annotations tell what is in it.

use super::{
    evidence::{Flow, Live, Pass, Stop},
    place::Organization,
    record::Record,
    seen::Secret,
    step::Step,
    tags,
};

pub(super) fn settle(pass: &Pass<'_>, live: &Live) -> Flow<()> {
    if !pass.seen.is_held {
        return Err(Stop::step(Step::Hold));
    }
    let record = settled(pass, live)?;
    if record != *pass.record {
        return Err(Stop::record(record));
    }
    let (wanted, marks) = (&pass.seen.wanted.secret, pass.marks_of(&live.key)?);
    if live.place != *wanted {
        let (from, to, version) = (live.place.clone(), wanted.clone(), pass.writable()?);
        return Err(Stop::step(Step::Copy { from, to, version, marks }));
    }
    let Some(Secret::Ours { marks: have, .. }) = pass.seen.secrets.get(wanted) else { return Ok(()) };
    if have.as_ref() != Some(&marks) {
        return Err(Stop::step(Step::Annotate { secret: wanted.clone(), version: pass.writable()?, marks }));
    }
    Ok(())
}

/// The record of a key that is as wanted: named and placed as the spec does now, which may have other words for the
/// same. A key that was announced and is not needed any more is to go.
fn settled(pass: &Pass<'_>, live: &Live) -> Flow<Record> {
    let mut record = pass.record.clone();
    let mut key = pass.as_recorded(&live.key)?;
    key.organization =
        Organization { id: Some(live.key.organization.clone()), name: pass.seen.wanted.organization.clone() };
    key.tags_hash = Some(tags::hash(&pass.seen.wanted.tags));
    record.current = Some(key);
    record.secret = Some(live.place.clone());
    record.drop_pending();
    Ok(record)
}
