//! What is no longer wanted goes once nothing runs with it any more: registrations, and the Secrets of their tokens. Also
//! what is decided when a person supplies the token, or the object is deleted: then every registration of ours goes.
//!
//! How a registration is looked for, deleted and abandoned is the same for every kind of credential: see
//! [`crate::credential::retirement`].

use coder_k8s_api::Reason;

use super::{Decision, NextStep, RegistrationRecord, RegistrationRef, decide::RegistrationFacts};
use crate::{
    credential::{self, CredentialVerdict},
    object::Deletion,
    workload::Run,
};

/// What can go now. `rest` is the decision while nothing can, with what pods are to run with.
pub(super) fn retire(facts: &RegistrationFacts<'_>, rest: Decision) -> Decision {
    let leftover = rest.run.as_ref().and_then(|run| facts.leftover(&run.secret));
    if facts.record.stale.is_empty() && leftover.is_none() {
        return rest;
    }
    let workload = facts.observed.workload.as_ref();
    if !workload.is_some_and(|workload| workload.settled && Some(&workload.run) == rest.run.as_ref()) {
        return rest.wait();
    }
    let decision = credential::retire(facts, true, rest);
    match leftover {
        // The Secret tells of its registration until the record does no longer need to.
        Some(removal) if decision.next == NextStep::Done => decision.then(NextStep::Act(Box::new(removal))),
        _ => decision,
    }
}

/// A person supplies the token. Nothing is registered, and what was registered before is to go.
pub(super) fn supplied(facts: &RegistrationFacts<'_>) -> Decision {
    let given = match &facts.observed.own.given {
        Ok(given) => given,
        Err(blocker) => {
            let unsure = CredentialVerdict { in_place: Some(false), ..CredentialVerdict::unsure(blocker) };
            return Decision::rest(facts.last_run(), unsure);
        }
    };
    let url = facts.observed.own.url.clone();
    let run = url.map(|url| Run { secret: given.place.clone(), checksum: given.token.checksum.clone(), url });
    let message = "the Secret holds the token that somebody supplied";
    let verdict = CredentialVerdict::ready(Reason::TokenGiven, message);
    let is_its = |id: &String| given.token.id.as_ref() == Some(id);
    // Only until the record says where the supplied token is: after that, the annotations are those of a Secret that goes.
    let is_recorded = facts.record.secret.as_ref() == Some(&given.place);
    let found = facts.unrecorded(|marks| is_recorded || is_its(&marks.id));
    let record = found.unwrap_or_else(|| {
        let mut record = facts.record.clone();
        // The registration that the token is for goes on under the care of whoever supplies it.
        record.current.take_if(|current| current.id.as_ref().is_some_and(is_its));
        record.give_up(facts.now);
        record.stale.retain(|stale| !stale.credential.id.as_ref().is_some_and(is_its));
        record.secret = Some(given.place.clone());
        record
    });
    let decision = Decision::rest(run, verdict);
    if record != *facts.record {
        return decision.then(NextStep::Record(Box::new(record)));
    }
    let decision = retire(facts, decision);
    if decision.next == NextStep::Done && facts.observed.has_finalizer && facts.record.is_empty() {
        return decision.then(NextStep::RemoveFinalizer);
    }
    decision
}

/// The object is being deleted: every registration of ours goes first.
pub(super) fn delete_all(facts: &RegistrationFacts<'_>, deletion: Deletion) -> Decision {
    let message = "the registration of the proxy is being deleted";
    let verdict = CredentialVerdict::working(Reason::Deleting, message);
    let decision = credential::clean_up(facts, deletion, verdict);
    match find_lost(facts) {
        Some(record) => Decision { events: Vec::new(), ..decision.then(NextStep::Record(Box::new(record))) },
        None => decision,
    }
}

/// A status that was lost is found again first, by the annotations of the Secret or by the token in it.
fn find_lost(facts: &RegistrationFacts<'_>) -> Option<RegistrationRecord> {
    let observed = facts.observed;
    if facts.record.current.is_some() || !observed.has_finalizer {
        return None;
    }
    let Some(desired) = &observed.desired else {
        let supplied = observed.own.given.as_ref().ok().and_then(|given| given.token.id.as_ref());
        return facts.unrecorded(|marks| Some(&marks.id) == supplied);
    };
    let target = observed.target.as_ref().ok()?;
    facts.unrecorded(|marks| marks.is_of(target)).or_else(|| {
        let id = facts.known_ids().find(|id| !facts.record.knows(id))?.clone();
        let current = RegistrationRef::new(Some(id), desired.name.clone(), target.clone());
        Some(RegistrationRecord { current: Some(current), ..facts.record.clone() })
    })
}
