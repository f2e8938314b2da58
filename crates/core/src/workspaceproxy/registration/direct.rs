//! A person supplies the token. Nothing is registered, and what was registered before is to go.

use super::{
    decide::RegistrationFacts,
    effect::{Decision, NextStep},
    retire,
    verdict::{self, CredentialVerdict},
};
use crate::workload::Run;

pub(super) fn decide(facts: &RegistrationFacts<'_>) -> Decision {
    let given = match &facts.observed.given {
        Ok(given) => given,
        Err(blocker) => {
            let unsure = CredentialVerdict { in_place: Some(false), ..CredentialVerdict::unsure(blocker) };
            return Decision::rest(facts.last_run(), unsure);
        }
    };
    let url = facts.observed.url.clone();
    let run = url.map(|url| Run { secret: given.place.clone(), checksum: given.token.checksum.clone(), url });
    let mut decision = Decision::rest(run.clone(), verdict::given());
    let mut record = facts.record.clone();
    // The registration that the token is for goes on under the care of whoever supplies it.
    let is_its = |id: &String| given.token.id.as_ref() == Some(id);
    // Only until the record says where the supplied token is: after that, the annotations are those of a Secret that goes.
    let is_recorded = record.secret.as_ref() == Some(&given.place);
    if let Some(found) = facts.unrecorded(|marks| is_recorded || is_its(&marks.id)) {
        decision.next = NextStep::Record(Box::new(found));
        return decision;
    }
    record.current.take_if(|current| is_its(&current.id));
    record.give_up(facts.now);
    record.stale.retain(|stale| !stale.id.as_ref().is_some_and(is_its));
    record.secret = Some(given.place.clone());
    if record != *facts.record {
        decision.next = NextStep::Record(Box::new(record));
        return decision;
    }
    retire::add(facts, run.as_ref(), &mut decision);
    if decision.next == NextStep::Done && facts.observed.has_finalizer && facts.record.is_empty() {
        decision.next = NextStep::RemoveFinalizer;
    }
    decision
}
