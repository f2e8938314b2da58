//! The order of the rules.

use jiff::Timestamp;

use super::{
    evidence::{Flow, Live, Pass, Stop},
    finding::{self, Finding, Stage},
    going,
    place::Place,
    record::Record,
    replace, retire,
    seen::{Secret, Seen},
    settle,
    step::{Decision, Next},
    tags,
};

/// Decides what is next.
pub fn decide(seen: &Seen, now: Timestamp) -> Decision {
    let pass = Pass::new(seen, now);
    if let Some(deadline) = seen.going {
        return going::decide(&pass, deadline);
    }
    if pass.is_at_rest() {
        return Decision::rest(pass.last_run(), finding::ready());
    }
    match proven(&pass) {
        Err(stop) => conclude(&pass, None, Err(stop)),
        Ok(None) => conclude(&pass, None, replace::replace(&pass, None)),
        Ok(Some(live)) => {
            let outcome = match pass.fits(&live.key) {
                Ok(true) => settle::settle(&pass, &live),
                Ok(false) => replace::replace(&pass, Some(&live)),
                Err(stop) => Err(stop),
            };
            conclude(&pass, Some(&live), outcome)
        }
    }
}

/// The key of ours that a Secret holds. The status learns of it, and of where it is, before anything else is done,
/// whatever the spec asks for by now: what pods may already run with must not be forgotten.
fn proven(pass: &Pass<'_>) -> Flow<Option<Live>> {
    pass.secrets_are_known()?;
    let Some(live) = pass.live()? else { return Ok(None) };
    if pass.record.current.as_ref().and_then(|key| key.id.as_ref()) != Some(&live.key.id) {
        let mut record = pass.record.clone();
        record.promote(pass.as_recorded(&live.key)?, live.place.clone(), pass.now);
        return Err(Stop::record(record));
    }
    if pass.record.secret.as_ref() != Some(&live.place) {
        return Err(Stop::record(Record { secret: Some(live.place), ..pass.record.clone() }));
    }
    Ok(Some(live))
}

/// Makes a decision of what a rule came to. While nothing else is to be done, keys that nothing uses go.
fn conclude(pass: &Pass<'_>, live: Option<&Live>, outcome: Flow<()>) -> Decision {
    let run = live.map_or_else(|| pass.last_run(), |live| pass.run(live));
    let mut decision = Decision::rest(run, finding::ready());
    match outcome {
        Ok(()) => {}
        Err(Stop::Wait(finding)) => decision.finding = pass.judged(finding),
        Err(Stop::Next(next)) => {
            decision.finding = replace::progress(pass, live, &next);
            decision.notes = replace::passed_over(pass, &next);
            decision.next = *next;
            return decision;
        }
    }
    let retired = retire::retire(pass, live);
    decision.next = retired.next.unwrap_or(Next::Rest);
    decision.again = retired.again;
    decision.notes = retired.notes;
    decision
}

impl Pass<'_> {
    /// What cannot be told leaves a pool as ready as it was; but not if its own record says that another key is wanted.
    fn judged(&self, finding: Finding) -> Finding {
        match finding.stage {
            Stage::Unsure if !self.is_wanted_on_record() => Finding { stage: Stage::Working, ..finding },
            _ => finding,
        }
    }

    /// Whether the recorded key is what the spec asks for, as far as that can be told without asking.
    fn is_wanted_on_record(&self) -> bool {
        let (wanted, target) = (&self.seen.wanted, &self.seen.target);
        let same_place = |place: &Place| match target {
            Ok(target) => place.is_same(target),
            Err(_) => place.control_plane == wanted.control_plane,
        };
        self.record.pending.is_none()
            && self.record.secret.as_ref() == Some(&wanted.secret)
            && self.record.current.as_ref().is_some_and(|key| {
                key.organization.name == wanted.organization
                    && key.tags_hash.as_deref() == Some(&*tags::hash(&wanted.tags))
                    && wanted.name.covers(&key.name)
                    && same_place(&key.place)
            })
    }

    /// Whether everything is as it was left, by what is recorded alone. Nothing is asked then.
    fn is_at_rest(&self) -> bool {
        let (seen, record) = (self.seen, self.record);
        let (Some(key), Some(workload), Ok(target)) = (&record.current, &seen.workload, &seen.target) else {
            return false;
        };
        let wanted = &seen.wanted;
        let Some(Secret::Ours { holds: Some(checksums), marks: Some(marks), .. }) =
            seen.secrets.get(&wanted.secret)
        else {
            return false;
        };
        let key_is_wanted = key.id.is_some()
            && key.organization.id.is_some()
            && key.place == *target
            && key.organization.name == wanted.organization
            && key.tags_hash.as_deref() == Some(&*tags::hash(&wanted.tags))
            && wanted.name.covers(&key.name);
        let secret_is_wanted = record.secret.as_ref() == Some(&wanted.secret) && marks.id == key.id;
        let pods_have_it = workload.run.secret == wanted.secret
            && workload.run.url == target.url
            && checksums.contains(&workload.run.checksum);
        let nothing_else = record.pending.is_none() && record.stale.is_empty() && self.leftovers().is_empty();
        !seen.verify_due && seen.is_held && key_is_wanted && secret_is_wanted && pods_have_it && nothing_else
    }
}
