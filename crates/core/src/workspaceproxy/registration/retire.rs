//! What is no longer wanted goes once nothing runs with it any more: registrations, and the Secrets of their tokens. Also
//! what is decided when a person supplies the token, or the object is deleted: then every registration of ours goes.
//!
//! How a registration is looked for, deleted and abandoned is the same for every kind of credential: see
//! [`crate::credential::retirement`].

use std::time::Duration;

use coder_k8s_api::Reason;
use jiff::{SignedDuration, Timestamp};

use super::{
    decide::RegistrationFacts,
    observed::{
        Decision, Effect, ListedProxy, Listing, NextStep, RegistrationEffect, RegistrationMarks,
        RegistrationQuery, Secret,
    },
    record::{RegistrationDetails, RegistrationRecord, RegistrationRef, RetiredRegistration},
};
use crate::{
    credential::{self, CredentialVerdict, Retirement, Retiring},
    intervals::REQUEUE_STALE_REGISTRATIONS,
    object::Deletion,
    outcome::EventNote,
    target::{SecretDataRef, Version},
    workload::Run,
};

impl Retirement for RegistrationFacts<'_> {
    type Details = RegistrationDetails;
    type Listed = ListedProxy;
    type Query = RegistrationQuery;
    type Effect = RegistrationEffect;
    type Marks = RegistrationMarks;

    const REQUEUE: Duration = REQUEUE_STALE_REGISTRATIONS;
    const ABANDON_AFTER: SignedDuration = SignedDuration::ZERO;

    fn record(&self) -> &RegistrationRecord {
        self.record
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn late_effect_window(&self) -> SignedDuration {
        self.observed.late_effect_window
    }

    fn listing(&self, registration: &RegistrationRef) -> Option<&Listing> {
        self.observed.listings.get(&registration.target)
    }

    fn query(registration: &RegistrationRef) -> RegistrationQuery {
        RegistrationQuery::Registrations(registration.target.clone())
    }

    fn delete(registration: &RegistrationRef, listed: &ListedProxy) -> RegistrationEffect {
        RegistrationEffect::Deregister {
            target: registration.target.clone(),
            id: listed.id.clone(),
            name: listed.name.clone(),
        }
    }

    /// [`retire`] waits for the pods of all registrations together.
    fn is_in_use(&self, _: &RetiredRegistration, _: Option<&ListedProxy>) -> bool {
        false
    }

    fn abandoned(registration: &RegistrationRef) -> EventNote {
        let RegistrationRef { id, name, target, details: _ } = registration;
        let which = id.as_ref().map_or_else(String::new, |id| format!(" ({id})"));
        let server = if target.url.is_empty() { "another coderd" } else { &target.url };
        let message = format!(
            "the workspace proxy {name}{which} could not be deleted from {server}; delete it there: its token still works"
        );
        EventNote { warning: true, reason: Reason::ProxyAbandoned, message }
    }

    /// The name is unique, so that the one who has it now made it: there is nothing that people do not know.
    fn left_alone(_: &RegistrationRef) -> Option<EventNote> {
        None
    }
}

/// What can go now, while pods run with `run`.
pub(super) fn retire<'a>(
    facts: &RegistrationFacts<'a>,
    run: Option<&Run>,
) -> Retiring<RegistrationFacts<'a>> {
    let leftover = run.and_then(|run| facts.leftovers(&run.secret).next());
    if facts.record.stale.is_empty() && leftover.is_none() {
        return Retiring::next(NextStep::Done);
    }
    let workload = facts.observed.workload.as_ref();
    if !workload.is_some_and(|workload| workload.settled && Some(&workload.run) == run) {
        return Retiring::wait();
    }
    let retiring = credential::retire(facts, true);
    match leftover {
        // The Secret tells of its registration until the record does no longer need to.
        Some((secret, version)) if retiring.next == NextStep::Done => {
            let next = NextStep::Act(Box::new(Effect::RemoveSecret { secret, version }));
            Retiring { next, ..retiring }
        }
        _ => retiring,
    }
}

pub(super) fn decision(
    run: Option<Run>,
    verdict: CredentialVerdict,
    retiring: Retiring<RegistrationFacts<'_>>,
) -> Decision {
    let Retiring { next, again, events } = retiring;
    Decision { next, again, events, ..Decision::rest(run, verdict) }
}

/// A person supplies the token. Nothing is registered, and what was registered before is to go.
pub(super) fn supplied(facts: &RegistrationFacts<'_>) -> Decision {
    let given = match &facts.observed.given {
        Ok(given) => given,
        Err(blocker) => {
            let unsure = CredentialVerdict { in_place: Some(false), ..CredentialVerdict::unsure(blocker) };
            return Decision::rest(facts.last_run(), unsure);
        }
    };
    let url = facts.observed.url.clone();
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
    if record != *facts.record {
        return decision(run, verdict, Retiring::next(NextStep::Record(Box::new(record))));
    }
    let mut retiring = retire(facts, run.as_ref());
    if retiring.next == NextStep::Done && facts.observed.has_finalizer && facts.record.is_empty() {
        retiring.next = NextStep::RemoveFinalizer;
    }
    decision(run, verdict, retiring)
}

/// The object is being deleted: every registration of ours goes first.
pub(super) fn delete_all(facts: &RegistrationFacts<'_>, deletion: Deletion) -> Decision {
    let message = "the registration of the proxy is being deleted";
    let verdict = CredentialVerdict::working(Reason::Deleting, message);
    let mut clean_up = credential::clean_up(facts, deletion);
    if let Some(record) = find_lost(facts) {
        (clean_up.next, clean_up.events) = (NextStep::Record(Box::new(record)), Vec::new());
    }
    decision(None, verdict, clean_up)
}

/// A status that was lost is found again first, by the annotations of the Secret or by the token in it.
fn find_lost(facts: &RegistrationFacts<'_>) -> Option<RegistrationRecord> {
    let observed = facts.observed;
    if facts.record.current.is_some() || !observed.has_finalizer {
        return None;
    }
    let Some(desired) = &observed.desired else {
        let supplied = observed.given.as_ref().ok().and_then(|given| given.token.id.as_ref());
        return facts.unrecorded(|marks| Some(&marks.id) == supplied);
    };
    let target = observed.target.as_ref().ok()?;
    facts.unrecorded(|marks| marks.is_of(target)).or_else(|| {
        let id = facts.known_ids().find(|id| !facts.record.knows(id))?.clone();
        let current = RegistrationRef::new(Some(id), desired.name.clone(), target.clone());
        Some(RegistrationRecord { current: Some(current), ..facts.record.clone() })
    })
}

impl<'a> RegistrationFacts<'a> {
    /// Secrets with tokens of ours that are not where the token is wanted.
    pub(super) fn leftovers<'b>(
        &self,
        desired: &'b SecretDataRef,
    ) -> impl Iterator<Item = (SecretDataRef, Version)> + use<'a, 'b> {
        let others = self.observed.secrets.iter().filter(move |(place, _)| place.name != desired.name);
        others.filter_map(|(place, secret)| match secret {
            Secret::Ours { version, marks: Some(_), .. } => {
                Some((place.clone(), Version::Is(version.clone())))
            }
            _ => None,
        })
    }
}
