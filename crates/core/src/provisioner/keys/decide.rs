//! The order of the rules.

use jiff::Timestamp;

use super::{
    deletion,
    effect::{Decision, NextStep},
    evidence::{Flow, KeyFacts, Live, Stop},
    observed::{ObservedKeys, Secret},
    record::KeyRecord,
    replace, retire, settle, tags,
    target::CoderdTarget,
    verdict::{self, CredentialProgress, CredentialVerdict},
};

/// Decides what is next.
pub fn decide(observed: &ObservedKeys, now: Timestamp) -> Decision {
    let facts = KeyFacts::new(observed, now);
    if let Some(deadline) = observed.deletion {
        return deletion::decide(&facts, deadline);
    }
    if facts.is_at_rest() {
        return Decision::rest(facts.last_run(), verdict::ready());
    }
    match proven(&facts) {
        Err(stop) => finish(&facts, None, Err(stop)),
        Ok(None) => finish(&facts, None, replace::replace(&facts, None)),
        Ok(Some(live)) => {
            let outcome = match facts.fits(&live.key) {
                Ok(true) => settle::settle(&facts, &live),
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
    if facts.record.current.as_ref().and_then(|key| key.id.as_ref()) != Some(&live.key.id) {
        let mut record = facts.record.clone();
        record.promote(facts.as_recorded(&live.key)?, live.place.clone(), facts.now);
        return Err(Stop::record(record));
    }
    if facts.record.secret.as_ref() != Some(&live.place) {
        return Err(Stop::record(KeyRecord { secret: Some(live.place), ..facts.record.clone() }));
    }
    Ok(Some(live))
}

/// Makes a decision of what a rule came to. While nothing else is to be done, keys that nothing uses go.
fn finish(facts: &KeyFacts<'_>, live: Option<&Live>, outcome: Flow<()>) -> Decision {
    let run = live.map_or_else(|| facts.last_run(), |live| facts.run(live));
    let mut decision = Decision::rest(run, verdict::ready());
    match outcome {
        Ok(()) => {}
        Err(Stop::Wait(verdict)) => decision.verdict = facts.judged(verdict),
        Err(Stop::NextStep(next)) => {
            decision.verdict = replace::progress(facts, live, &next);
            decision.events = replace::passed_over(facts, &next);
            decision.next = *next;
            return decision;
        }
    }
    let retired = retire::retire(facts, live);
    decision.next = retired.next.unwrap_or(NextStep::Done);
    decision.again = retired.again;
    decision.events = retired.events;
    decision
}

impl KeyFacts<'_> {
    /// What cannot be told leaves a pool as ready as it was; but not if its own record says that another key is wanted.
    fn judged(&self, verdict: CredentialVerdict) -> CredentialVerdict {
        match verdict.stage {
            CredentialProgress::Unsure if !self.is_wanted_on_record() => {
                CredentialVerdict { stage: CredentialProgress::Working, ..verdict }
            }
            _ => verdict,
        }
    }

    /// Whether the recorded key is what the spec asks for, as far as that can be told without asking.
    fn is_wanted_on_record(&self) -> bool {
        let (desired, target) = (&self.observed.desired, &self.observed.target);
        let same_place = |place: &CoderdTarget| match target {
            Ok(target) => place.is_same(target),
            Err(_) => place.control_plane == desired.control_plane,
        };
        self.record.pending.is_none()
            && self.record.secret.as_ref() == Some(&desired.secret)
            && self.record.current.as_ref().is_some_and(|key| {
                key.organization.name == desired.organization
                    && key.tags_hash.as_deref() == Some(&*tags::hash(&desired.tags))
                    && desired.name.covers(&key.name)
                    && same_place(&key.place)
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
            && key.organization.id.is_some()
            && key.place == *target
            && key.organization.name == desired.organization
            && key.tags_hash.as_deref() == Some(&*tags::hash(&desired.tags))
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
