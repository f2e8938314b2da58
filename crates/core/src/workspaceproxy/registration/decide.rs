//! The order of the rules: the registration is found or made, renamed, and given a token; and while nothing else is to be
//! done, what is no longer wanted goes.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    observed::{
        Decision, DesiredRegistration, Effect, Health, ListedProxy, Listing, ObservedRegistration,
        RegistrationEffect, RegistrationMarks, RegistrationQuery, Secret, TokenProof,
    },
    record::{RegistrationRecord, RegistrationRef},
    register, retire,
};
use crate::{
    credential::{self, CredentialVerdict},
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef, Version},
    workload::Run,
};

/// Why a rule does not get to its end.
pub(super) type Stop = credential::Stop<RegistrationQuery, RegistrationRecord, Effect>;

pub(super) type Flow<T> = Result<T, Stop>;

/// What one decision rests on.
pub(super) struct RegistrationFacts<'a> {
    pub(super) observed: &'a ObservedRegistration,
    pub(super) record: &'a RegistrationRecord,
    pub(super) now: Timestamp,
}

fn ready() -> CredentialVerdict {
    let message = "the proxy is registered in coderd, and its token is in its Secret";
    CredentialVerdict::ready(Reason::Registered, message)
}

/// Decides what is next.
pub fn decide(observed: &ObservedRegistration, now: Timestamp) -> Decision {
    let facts = RegistrationFacts { observed, record: &observed.record, now };
    if let Some(deadline) = observed.deletion {
        return retire::delete_all(&facts, deadline);
    }
    let Some(desired) = &observed.desired else { return retire::supplied(&facts) };
    if facts.is_at_rest(desired) {
        return Decision::rest(facts.last_run(), ready());
    }
    match registered(&facts, desired) {
        Ok(run) => {
            let retiring = retire::retire(&facts, run.as_ref());
            retire::decision(run, ready(), retiring)
        }
        Err(Stop::Wait(verdict)) => {
            Decision::rest(facts.last_run(), verdict.unless_recorded(facts.is_wanted_on_record(desired)))
        }
        Err(Stop::NextStep(next)) => {
            let mut decision = Decision::rest(facts.last_run(), progress(&facts));
            decision.next = *next;
            decision
        }
    }
}

/// The registration and what pods run with, when both are as wanted and on record.
fn registered(facts: &RegistrationFacts<'_>, desired: &DesiredRegistration) -> Flow<Option<Run>> {
    let target = facts.target()?;
    facts.may_begin()?;
    facts.moves_on(target)?;
    let listing = match facts.listed(target) {
        Err(Stop::Wait(verdict)) if verdict.reason == Reason::CredentialsSecretUnavailable => {
            return unlisted(facts, desired, target, verdict);
        }
        listing => listing?,
    };
    let listed = match &facts.record.current {
        Some(current) => listing.iter().find(|listed| Some(&listed.id) == current.id.as_ref()),
        None => None,
    };
    let Some(listed) = listed else {
        return Err(facts.find_or_register(desired, target, listing));
    };
    if !facts.observed.has_finalizer {
        return Err(Stop::act(Effect::AddFinalizer));
    }
    let settings = register::settings(desired, Some(listed));
    if settings != register::profile(listed) {
        register::is_free(facts, desired, listing, Some(&listed.id))?;
        return Err(Stop::act(Effect::Coderd(RegistrationEffect::Update {
            target: target.clone(),
            id: listed.id.clone(),
            settings,
        })));
    }
    let run = register::token_in_place(facts, desired, target, listed, settings)?;
    let settled = RegistrationRecord {
        current: Some(register::reference(listed, target)),
        secret: Some(desired.secret.clone()),
        pending: None,
        stale: facts.record.stale.clone(),
    };
    if settled != *facts.record {
        return Err(Stop::record(settled));
    }
    Ok(run)
}

/// Without credentials nothing can be listed or changed. A token of ours that coderd knows says enough: the proxy is
/// registered, and goes on.
fn unlisted(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    target: &CoderdTarget,
    verdict: CredentialVerdict,
) -> Flow<Option<Run>> {
    let Some(Secret::Ours { holds: Some(token), .. }) = facts.observed.secrets.get(&desired.secret) else {
        return Err(Stop::Wait(verdict));
    };
    let current = facts.record.current.as_ref();
    let is_its = |id: &&String| current.is_none_or(|current| current.id.as_ref() == Some(*id));
    let Some(id) = token.id.as_ref().filter(is_its) else {
        return Err(Stop::Wait(verdict));
    };
    match facts.observed.proofs.get(&desired.secret) {
        None => return Err(Stop::ask(RegistrationQuery::TokenProof(desired.secret.clone()))),
        Some(TokenProof::Good) => {}
        Some(_) => return Err(Stop::Wait(verdict)),
    }
    if !facts.observed.has_finalizer {
        return Err(Stop::act(Effect::AddFinalizer));
    }
    let name = current.map_or_else(|| desired.name.clone(), |current| current.name.clone());
    let marks =
        RegistrationMarks { id: id.clone(), name: name.clone(), deployment_id: target.deployment_id.clone() };
    let run = register::settled(facts, desired, token, marks)?;
    let current = Some(RegistrationRef::new(Some(id.clone()), name, target.clone()));
    let record = RegistrationRecord { current, secret: Some(desired.secret.clone()), ..facts.record.clone() };
    if record != *facts.record {
        return Err(Stop::record(record));
    }
    Ok(run)
}

/// What to say while a step is under way.
fn progress(facts: &RegistrationFacts<'_>) -> CredentialVerdict {
    match &facts.record.current {
        Some(current) => CredentialVerdict::working(
            Reason::Updating,
            format!("the registration {} is brought up to date", current.name),
        ),
        None => CredentialVerdict::working(Reason::Registering, "the proxy is being registered"),
    }
}

/// The health of the proxy. None: coderd was not asked.
pub fn health(observed: &ObservedRegistration) -> Option<Health> {
    let (current, target) = (observed.record.current.as_ref()?, observed.target.as_ref().ok()?);
    let Listing::Known(listing) = observed.listings.get(target)? else { return None };
    let listed = listing.iter().find(|listed| Some(&listed.id) == current.id.as_ref())?;
    let status = if listed.health.is_empty() { "unknown" } else { &listed.health };
    Some(Health {
        status: status.to_owned(),
        version: Some(listed.version.clone()).filter(|version| !version.is_empty()),
    })
}

impl<'a> RegistrationFacts<'a> {
    /// Nothing is asked of coderd for a proxy that was never begun and may not begin.
    fn may_begin(&self) -> Flow<()> {
        let begun = !self.record.is_empty() || self.known_ids().next().is_some();
        if begun { Ok(()) } else { self.may_make() }
    }

    pub(super) fn may_make(&self) -> Flow<()> {
        let closed = |blocker: &Blocker| CredentialVerdict::working(blocker.reason, blocker.message.clone());
        self.observed.may_make.as_ref().map_err(|blocker| Stop::Wait(closed(blocker))).copied()
    }

    pub(super) fn target(&self) -> Flow<&'a CoderdTarget> {
        self.observed.target.as_ref().map_err(|blocker| match blocker.reason {
            reason @ (Reason::UrlNotAllowed | Reason::DeploymentChanged) => {
                Stop::Wait(CredentialVerdict::stalled(reason, blocker.message.clone()))
            }
            _ => Stop::unsure(blocker),
        })
    }

    /// Whether the recorded registration is what the spec asks for, as far as that can be told without asking.
    fn is_wanted_on_record(&self, desired: &DesiredRegistration) -> bool {
        let is_there = |recorded: &CoderdTarget| match &self.observed.target {
            Ok(target) => recorded.is_same(target),
            Err(_) => recorded.control_plane == desired.control_plane,
        };
        self.record.pending.is_none()
            && self.record.secret.as_ref() == Some(&desired.secret)
            && self.record.current.as_ref().is_some_and(|current| {
                is_there(&current.target) && current.name.eq_ignore_ascii_case(&desired.name)
            })
    }

    /// What belongs to another coderd than the wanted one is to go, once its successor runs.
    fn moves_on(&self, target: &CoderdTarget) -> Flow<()> {
        let mut record = self.record.clone();
        let elsewhere = |recorded: &CoderdTarget| !recorded.is_same(target);
        if record.current.as_ref().is_some_and(|current| elsewhere(&current.target)) {
            record.give_up(self.now);
        } else if record.pending.as_ref().is_some_and(|pending| elsewhere(&pending.credential.target)) {
            record.drop_pending();
        }
        if record == *self.record { Ok(()) } else { Err(Stop::record(record)) }
    }

    /// The registrations of a coderd.
    pub(super) fn listed(&self, target: &CoderdTarget) -> Flow<&'a [ListedProxy]> {
        match self.observed.listings.get(target) {
            None => Err(Stop::ask(RegistrationQuery::Registrations(target.clone()))),
            Some(Listing::Known(listing)) => Ok(listing),
            Some(Listing::Unknown(blocker)) => Err(Stop::unsure(blocker)),
            Some(Listing::Gone) => {
                let message = "another deployment answers than the one that is recorded".to_owned();
                Err(Stop::unsure(&Blocker::new(Reason::ControlPlaneUnavailable, message)))
            }
        }
    }

    /// The Secret that a write expects. Stops if it cannot be written.
    pub(super) fn writable(&self, place: &SecretDataRef) -> Flow<Version> {
        let secret = self.observed.secrets.get(place);
        Secret::writable(secret, place, "generatedTokenSecretName").map_err(Stop::Wait)
    }

    /// What pods run with while nothing is proven: as they do; or, where there are none, with what the Secret holds if it
    /// is the token of the registration on record.
    pub(super) fn last_run(&self) -> Option<Run> {
        if let Some(workload) = &self.observed.workload {
            let mut run = workload.run.clone();
            // Pods of the Go operator have no checksum: they get that of the token that they would start with.
            if let Some(Secret::Ours { holds: Some(token), .. }) = self.observed.secrets.get(&run.secret)
                && run.checksum.is_empty()
            {
                run.checksum.clone_from(&token.checksum);
            }
            return Some(run);
        }
        let (current, place) = (self.record.current.as_ref()?, self.record.secret.as_ref()?);
        match self.observed.secrets.get(place) {
            Some(Secret::Ours { holds: Some(token), marks: Some(marks), .. })
                if Some(&marks.id) == current.id.as_ref() && self.record.pending.is_none() =>
            {
                let (secret, url) = (place.clone(), self.observed.url.clone()?);
                Some(Run { secret, checksum: token.checksum.clone(), url })
            }
            _ => None,
        }
    }

    /// Whether everything is as it was left, by what is recorded alone. Nothing is asked then.
    fn is_at_rest(&self, desired: &DesiredRegistration) -> bool {
        let (observed, record) = (self.observed, self.record);
        let (Some(current), Some(workload), Ok(target)) =
            (&record.current, &observed.workload, &observed.target)
        else {
            return false;
        };
        let Some(Secret::Ours { holds: Some(token), marks: Some(marks), .. }) =
            observed.secrets.get(&desired.secret)
        else {
            return false;
        };
        let is_wanted = current.target == *target
            && current.name.eq_ignore_ascii_case(&desired.name)
            && record.secret.as_ref() == Some(&desired.secret)
            && Some(&marks.id) == current.id.as_ref();
        let pods_have_it = workload.run.secret == desired.secret
            && Some(&workload.run.url) == observed.url.as_ref()
            && workload.run.checksum == token.checksum;
        let nothing_else = record.pending.is_none()
            && record.stale.is_empty()
            && self.leftovers(&desired.secret).next().is_none();
        !observed.verify_due && observed.has_finalizer && is_wanted && pods_have_it && nothing_else
    }
}
