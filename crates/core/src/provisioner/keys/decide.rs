//! The order of the rules: what is proven is recorded, what fits is settled, what does not is replaced; and while nothing
//! else is to be done, keys that nothing uses go.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    evidence::{Flow, KeyFacts, Live, Stop},
    observed::{Decision, Effect, ObservedKeys, Secret},
    record::{KeyDetails, KeyRecord, Organization},
    replace, retire, tags,
};
use crate::{
    credential::{CredentialVerdict, Retiring},
    target::CoderdTarget,
};

fn ready() -> CredentialVerdict {
    CredentialVerdict::ready(Reason::ProvisionerKeyReady, "the key is known to coderd and in its Secret")
}

/// Decides what is next.
pub fn decide(observed: &ObservedKeys, now: Timestamp) -> Decision {
    let facts = KeyFacts::new(observed, now);
    if let Some(deadline) = observed.deletion {
        return retire::delete_all(&facts, deadline);
    }
    if facts.is_at_rest() {
        return Decision::rest(facts.last_run(), ready());
    }
    match proven(&facts) {
        Err(stop) => finish(&facts, None, Err(stop)),
        Ok(None) => finish(&facts, None, replace::replace(&facts, None)),
        Ok(Some(live)) => {
            let outcome = match facts.fits(&live.key) {
                Ok(true) => settle(&facts, &live),
                Ok(false) => replace::replace(&facts, Some(&live)),
                Err(stop) => Err(stop),
            };
            finish(&facts, Some(&live), outcome)
        }
    }
}

/// The key of ours that a Secret holds. The status learns of it, and of where it is, before anything else is done,
/// whatever the spec asks for by now: what pods may already run with must not be forgotten.
fn proven(facts: &KeyFacts<'_>) -> Flow<Option<Live>> {
    facts.secrets_are_known()?;
    let Some(live) = facts.live()? else { return Ok(None) };
    if facts.record.current_id() != Some(&live.key.id) {
        let mut record = facts.record.clone();
        record.promote(facts.as_recorded(&live.key)?, live.secret.clone(), facts.now);
        return Err(Stop::record(record));
    }
    if facts.record.secret.as_ref() != Some(&live.secret) {
        return Err(Stop::record(KeyRecord { secret: Some(live.secret), ..facts.record.clone() }));
    }
    Ok(Some(live))
}

/// Makes a decision of what a rule came to. While nothing else is to be done, keys that nothing uses go.
fn finish(facts: &KeyFacts<'_>, live: Option<&Live>, outcome: Flow<()>) -> Decision {
    let run = live.map_or_else(|| facts.last_run(), |live| facts.run(live));
    let mut decision = Decision::rest(run, ready());
    match outcome {
        Ok(()) => {}
        Err(Stop::Wait(verdict)) => decision.verdict = verdict.unless_recorded(facts.is_wanted_on_record()),
        Err(Stop::NextStep(next)) => {
            decision.verdict = replace::progress(facts, live, &next);
            decision.events = replace::passed_over(facts, &next);
            decision.next = *next;
            return decision;
        }
    }
    let Retiring { next, again, events } = retire::retire(facts, live);
    Decision { next, again, events, ..decision }
}

/// The Secret holds the key that the spec asks for: the status says so, the Secret is the wanted one, and its annotations
/// tell what is in it.
fn settle(facts: &KeyFacts<'_>, live: &Live) -> Flow<()> {
    if !facts.observed.has_finalizer {
        return Err(Stop::act(Effect::AddFinalizer));
    }
    let record = settled(facts, live)?;
    if record != *facts.record {
        return Err(Stop::record(record));
    }
    let (desired, marks) = (&facts.observed.desired.secret, facts.marks_of(&live.key)?);
    if live.secret != *desired {
        let (from, to, version) = (live.secret.clone(), desired.clone(), facts.writable()?);
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
    key.details = KeyDetails {
        organization: Organization {
            id: Some(live.key.organization.clone()),
            name: facts.observed.desired.organization.clone(),
        },
        tags_hash: Some(tags::hash(&facts.observed.desired.tags)),
    };
    record.current = Some(key);
    record.secret = Some(live.secret.clone());
    record.drop_pending();
    Ok(record)
}

impl KeyFacts<'_> {
    /// Whether the recorded key is what the spec asks for, as far as that can be told without asking.
    fn is_wanted_on_record(&self) -> bool {
        let (desired, target) = (&self.observed.desired, &self.observed.target);
        let is_there = |recorded: &CoderdTarget| match target {
            Ok(target) => recorded.is_same(target),
            Err(_) => recorded.control_plane == desired.control_plane,
        };
        self.record.pending.is_none()
            && self.record.secret.as_ref() == Some(&desired.secret)
            && self.record.current.as_ref().is_some_and(|key| {
                key.details.organization.name == desired.organization
                    && key.details.tags_hash.as_deref() == Some(&*tags::hash(&desired.tags))
                    && desired.name.covers(&key.name)
                    && is_there(&key.target)
            })
    }

    /// Whether everything is as it was left, by what is recorded alone. Nothing is asked then.
    fn is_at_rest(&self) -> bool {
        let (observed, record) = (self.observed, self.record);
        let (Some(key), Some(workload), Ok(target)) = (&record.current, &observed.workload, &observed.target)
        else {
            return false;
        };
        let desired = &observed.desired;
        let Some(Secret::Ours { holds: Some(checksums), marks: Some(marks), .. }) =
            observed.secrets.get(&desired.secret)
        else {
            return false;
        };
        let key_is_wanted = key.id.is_some()
            && key.details.organization.id.is_some()
            && key.target == *target
            && key.details.organization.name == desired.organization
            && key.details.tags_hash.as_deref() == Some(&*tags::hash(&desired.tags))
            && desired.name.covers(&key.name);
        let secret_is_wanted = record.secret.as_ref() == Some(&desired.secret) && marks.id == key.id;
        let pods_have_it = workload.run.secret == desired.secret
            && workload.run.url == target.url
            && checksums.contains(&workload.run.checksum);
        let nothing_else = record.pending.is_none() && record.stale.is_empty() && self.leftovers().is_empty();
        !observed.verify_due
            && observed.has_finalizer
            && key_is_wanted
            && secret_is_wanted
            && pods_have_it
            && nothing_else
    }
}
