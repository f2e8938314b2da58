//! The order of the rules: the registration is found or made, renamed, and given a token; and while nothing else is to be
//! done, what is no longer wanted goes.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    Decision, DesiredRegistration, Effect, Health, Listing, ObservedRegistration, Query, RegistrationEffect,
    RegistrationRecord, RegistrationRef, Registrations, TokenProof, register, retire,
};
use crate::{
    credential::{self, CredentialKind as _, CredentialVerdict, Facts},
    target::CoderdTarget,
    workload::Run,
};

/// Why a rule does not get to its end.
pub(super) type Stop = credential::Stop<Registrations>;

pub(super) type Flow<T> = credential::Flow<Registrations, T>;

/// What a decision about registrations rests on.
pub(super) type RegistrationFacts<'a> = Facts<'a, Registrations>;

fn ready() -> CredentialVerdict {
    let message = "the proxy is registered in coderd, and its token is in its Secret";
    CredentialVerdict::ready(Reason::Registered, message)
}

/// Decides what is next.
pub fn decide(observed: &ObservedRegistration, now: Timestamp) -> Decision {
    let facts = RegistrationFacts::new(observed, now);
    if let Some(deadline) = observed.deletion {
        return retire::delete_all(&facts, deadline);
    }
    let Some(desired) = &observed.desired else { return retire::supplied(&facts) };
    if facts.is_at_rest() {
        return Decision::rest(facts.last_run(), ready());
    }
    match registered(&facts, desired) {
        Ok(run) => retire::retire(&facts, Decision::rest(run, ready())),
        Err(Stop::Wait(verdict)) => {
            Decision::rest(facts.last_run(), verdict.unless_recorded(facts.is_wanted_on_record()))
        }
        Err(Stop::NextStep(next)) => Decision::rest(facts.last_run(), progress(&facts)).then(*next),
    }
}

/// The registration and what pods run with, when both are as wanted and on record.
fn registered(facts: &RegistrationFacts<'_>, desired: &DesiredRegistration) -> Flow<Option<Run>> {
    let target = facts.target()?;
    facts.may_begin()?;
    facts.moves_on(target)?;
    let listing = match facts.listing(target) {
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
    facts.needs_finalizer()?;
    let settings = register::settings(desired, Some(listed));
    if settings != register::profile(listed) {
        register::is_free(facts, desired, listing, Some(&listed.id))?;
        return Err(Stop::act(Effect::Own(RegistrationEffect::Update {
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
    facts.is_recorded(settled)?;
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
    let current = facts.record.current.as_ref();
    let is_its = |id: &&String| current.is_none_or(|current| current.id.as_ref() == Some(*id));
    let held = facts.held(&desired.secret).map(|(token, _)| token);
    let Some((token, id)) = held.and_then(|token| Some((token, token.id.as_ref().filter(is_its)?))) else {
        return Err(Stop::Wait(verdict));
    };
    match facts.observed.proofs.get(&desired.secret) {
        None => return Err(Stop::ask(Query::Proof(desired.secret.clone()))),
        Some(TokenProof::Is(())) => {}
        Some(_) => return Err(Stop::Wait(verdict)),
    }
    facts.needs_finalizer()?;
    let name = current.map_or_else(|| desired.name.clone(), |current| current.name.clone());
    let registration = RegistrationRef::new(Some(id.clone()), name, target.clone());
    let run = register::settled(facts, desired, token, Registrations::marks(&registration))?;
    let (current, secret) = (Some(registration), Some(desired.secret.clone()));
    facts.is_recorded(RegistrationRecord { current, secret, ..facts.record.clone() })?;
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

impl RegistrationFacts<'_> {
    /// Nothing is asked of coderd for a proxy that was never begun and may not begin.
    fn may_begin(&self) -> Flow<()> {
        let begun = !self.record.is_empty() || self.known_ids().next().is_some();
        if begun { Ok(()) } else { self.may_make() }
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
        self.is_recorded(record)
    }

    /// What pods run with while nothing is proven: as they do; or, where there are none, with what the Secret holds if it
    /// is the token of the registration on record.
    pub(super) fn last_run(&self) -> Option<Run> {
        if let Some(workload) = &self.observed.workload {
            let mut run = workload.run.clone();
            // Pods of the Go operator have no checksum: they get that of the token that they would start with.
            if let Some((token, _)) = self.held(&run.secret)
                && run.checksum.is_empty()
            {
                run.checksum.clone_from(&token.checksum);
            }
            return Some(run);
        }
        self.stored_run(self.observed.own.url.as_ref()?).filter(|_| self.record.pending.is_none())
    }
}
