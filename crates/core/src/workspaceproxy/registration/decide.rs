//! The order of the rules.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    deletion, direct,
    effect::{Decision, Effect, Health, RegistrationEffect, RegistrationQuery},
    naming,
    observed::{
        DesiredRegistration, ListedProxy, Listing, ObservedRegistration, RegistrationMarks, Secret,
        TokenProof,
    },
    record::{RegistrationRecord, RegistrationRef, RetiredRegistration, was_announced},
    retire, token,
    verdict::{self, CredentialProgress, CredentialVerdict},
};
use crate::{
    credential,
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef, Version},
    workload::Run,
};

/// Why a rule does not get to its end.
pub(super) type Stop = credential::Stop<RegistrationQuery, RegistrationRecord, Effect>;

pub(super) type Flow<T> = Result<T, Stop>;

/// One decision.
pub(super) struct RegistrationFacts<'a> {
    pub(super) observed: &'a ObservedRegistration,
    pub(super) record: &'a RegistrationRecord,
    pub(super) now: Timestamp,
}

/// Decides what is next.
pub fn decide(observed: &ObservedRegistration, now: Timestamp) -> Decision {
    let facts = RegistrationFacts { observed, record: &observed.record, now };
    if let Some(deadline) = observed.deletion {
        return deletion::decide(&facts, deadline);
    }
    let Some(desired) = &observed.desired else { return direct::decide(&facts) };
    if facts.is_at_rest(desired) {
        return Decision::rest(facts.last_run(), verdict::ready());
    }
    match registered(&facts, desired) {
        Ok(run) => {
            let mut decision = Decision::rest(run.clone(), verdict::ready());
            retire::add(&facts, run.as_ref(), &mut decision);
            decision
        }
        Err(Stop::Wait(verdict)) => Decision::rest(facts.last_run(), facts.judged(desired, verdict)),
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
    let listing = match facts.listing(target) {
        Err(Stop::Wait(verdict)) if verdict.reason == Reason::CredentialsSecretUnavailable => {
            return unlisted(facts, desired, target, verdict);
        }
        listing => listing?,
    };
    let listed = match &facts.record.current {
        Some(current) => listing.iter().find(|listed| listed.id == current.id),
        None => None,
    };
    let Some(listed) = listed else {
        return Err(facts.find_or_register(desired, target, listing));
    };
    if !facts.observed.has_finalizer {
        return Err(Stop::act(Effect::AddFinalizer));
    }
    let settings = naming::settings(desired, Some(listed));
    if settings != naming::called(listed) {
        naming::is_free(facts, desired, listing, Some(&listed.id))?;
        return Err(Stop::act(Effect::Coderd(RegistrationEffect::Update {
            place: target.clone(),
            id: listed.id.clone(),
            settings,
        })));
    }
    let run = token::in_place(facts, desired, target, listed, settings)?;
    let settled = RegistrationRecord {
        current: Some(RegistrationRef {
            id: listed.id.clone(),
            name: listed.name.clone(),
            place: target.clone(),
        }),
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
    let Some(id) = token.id.as_ref().filter(|id| current.is_none_or(|current| current.id == **id)) else {
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
    let run = token::settled(facts, desired, token, marks)?;
    let current = Some(RegistrationRef { id: id.clone(), name, place: target.clone() });
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

/// What coderd sees of the proxy. None: it was not asked.
pub fn health(observed: &ObservedRegistration) -> Option<Health> {
    let (current, target) = (observed.record.current.as_ref()?, observed.target.as_ref().ok()?);
    let Listing::Known(listing) = observed.listings.get(target)? else { return None };
    let listed = listing.iter().find(|listed| listed.id == current.id)?;
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
        let closed = |blocker: &Blocker| {
            let Blocker { reason, message, retry: _ } = blocker;
            Stop::Wait(CredentialVerdict::working(*reason, message.clone()))
        };
        self.observed.may_make.as_ref().map_err(closed).copied()
    }

    pub(super) fn target(&self) -> Flow<&'a CoderdTarget> {
        self.observed.target.as_ref().map_err(|blocker| match blocker.reason {
            reason @ (Reason::UrlNotAllowed | Reason::DeploymentChanged) => {
                Stop::Wait(CredentialVerdict::stalled(reason, blocker.message.clone()))
            }
            _ => Stop::unsure(blocker),
        })
    }

    /// What cannot be told leaves a proxy as ready as it was; but not if its own record says that something else is
    /// wanted.
    fn judged(&self, desired: &DesiredRegistration, verdict: CredentialVerdict) -> CredentialVerdict {
        let on_record = self.record.pending.is_none()
            && self.record.secret.as_ref() == Some(&desired.secret)
            && self.record.current.as_ref().is_some_and(|current| {
                let here = match &self.observed.target {
                    Ok(target) => current.place.is_same(target),
                    Err(_) => current.place.control_plane == desired.control_plane,
                };
                here && current.name.eq_ignore_ascii_case(&desired.name)
            });
        match verdict.stage {
            CredentialProgress::Unsure if !on_record => {
                CredentialVerdict { stage: CredentialProgress::Working, ..verdict }
            }
            _ => verdict,
        }
    }

    /// What belongs to another coderd than the wanted one is to go, once its successor runs.
    fn moves_on(&self, target: &CoderdTarget) -> Flow<()> {
        let mut record = self.record.clone();
        let elsewhere = |place: &CoderdTarget| !place.is_same(target);
        if record.current.as_ref().is_some_and(|current| elsewhere(&current.place)) {
            record.give_up(self.now);
        } else if record.pending.as_ref().is_some_and(|pending| elsewhere(&pending.place)) {
            record.drop_pending();
        }
        if record == *self.record { Ok(()) } else { Err(Stop::record(record)) }
    }

    /// The registrations of a coderd.
    pub(super) fn listing(&self, place: &CoderdTarget) -> Flow<&'a [ListedProxy]> {
        match self.observed.listings.get(place) {
            None => Err(Stop::ask(RegistrationQuery::Registrations(place.clone()))),
            Some(Listing::Known(listing)) => Ok(listing),
            Some(Listing::Unknown(blocker)) => Err(Stop::unsure(blocker)),
            Some(Listing::Gone) => {
                let message = "another deployment answers than the one that is recorded".to_owned();
                Err(Stop::unsure(&Blocker::new(Reason::ControlPlaneUnavailable, message)))
            }
        }
    }

    /// UUIDs of registrations whose tokens, or marks, our Secrets hold.
    pub(super) fn known_ids(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        let deployment = self.observed.target.as_ref().ok().and_then(|target| target.deployment_id.as_ref());
        self.observed.secrets.values().flat_map(move |secret| {
            let Secret::Ours { holds: token, marks, .. } = secret else { return Vec::new() };
            let token = token.as_ref().and_then(|token| token.id.as_ref());
            let here = |marks: &&RegistrationMarks| {
                marks.deployment_id.is_none()
                    || deployment.is_none()
                    || marks.deployment_id.as_ref() == deployment
            };
            let marked = marks.as_ref().filter(here).map(|marks| &marks.id);
            marked.into_iter().chain(token).collect()
        })
    }

    /// There is no registration on record, or it is gone: one of ours is found again, or another one is made.
    fn find_or_register(
        &self,
        desired: &DesiredRegistration,
        target: &CoderdTarget,
        listing: &[ListedProxy],
    ) -> Stop {
        let registration = |listed: &ListedProxy| RegistrationRef {
            id: listed.id.clone(),
            name: listed.name.clone(),
            place: target.clone(),
        };
        let known = self.known_ids().find_map(|id| listing.iter().find(|listed| listed.id == *id));
        // A target that the spec returns to may still have the registration that was given up.
        let mut given_up = self.record.stale.iter().filter(|stale| stale.place.is_same(target));
        if let Some(known) = known.or_else(|| given_up.find_map(|stale| stale.find(listing))) {
            let mut record = RegistrationRecord { current: Some(registration(known)), ..self.record.clone() };
            record.stale.retain(|stale| stale.id.as_ref() != Some(&known.id));
            // Perhaps it is what was announced.
            record.pending.take_if(|pending| pending.name.eq_ignore_ascii_case(&known.name));
            record.drop_pending();
            return Stop::record(record);
        }
        if self.record.current.is_some() {
            // Somebody has deleted it.
            return Stop::record(RegistrationRecord { current: None, pending: None, ..self.record.clone() });
        }
        let pending = self.record.pending.as_ref().filter(|pending| pending.id.is_none());
        if let Some(pending) = pending {
            let made = listing.iter().find(|listed| was_announced(listed, &pending.name, pending.since));
            if let Some(made) = made.filter(|_| pending.place.is_same(target)) {
                // Its token is lost with the answer.
                let current = Some(registration(made));
                return Stop::record(RegistrationRecord { current, pending: None, ..self.record.clone() });
            }
        }
        if let Some(record) = self.unrecorded(|marks| marks.is_of(target)) {
            return Stop::record(record);
        }
        match self.register(desired, target, listing) {
            Ok(stop) | Err(stop) => stop,
        }
    }

    /// The record with a registration that so far only annotations know, and that is not one of `known`.
    pub(super) fn unrecorded(
        &self,
        is_wanted: impl Fn(&RegistrationMarks) -> bool,
    ) -> Option<RegistrationRecord> {
        let current = self.record.current.as_ref().map(|current| &current.id);
        let retired = |id: &String| self.record.stale.iter().any(|stale| stale.id.as_ref() == Some(id));
        let marks = self.observed.secrets.values().find_map(|secret| match secret {
            Secret::Ours { marks, .. } => marks
                .as_ref()
                .filter(|marks| Some(&marks.id) != current && !retired(&marks.id) && !is_wanted(marks)),
            _ => None,
        })?;
        let target = self.observed.target.as_ref().ok();
        let place = target.filter(|target| target.deployment_id == marks.deployment_id).cloned();
        let elsewhere =
            || CoderdTarget { deployment_id: marks.deployment_id.clone(), ..CoderdTarget::default() };
        let (id, name) = (Some(marks.id.clone()), marks.name.clone());
        let place = place.unwrap_or_else(elsewhere);
        let mut record = self.record.clone();
        record.stale.push(RetiredRegistration { id, name, place, since: self.now });
        Some(record)
    }

    fn register(
        &self,
        desired: &DesiredRegistration,
        target: &CoderdTarget,
        listing: &[ListedProxy],
    ) -> Flow<Stop> {
        self.may_make()?;
        let version = self.writable(&desired.secret)?;
        if let Err(conflict) = naming::is_free(self, desired, listing, None) {
            let mut record = self.record.clone();
            // What was announced under this name was not made: the name is another's.
            record.pending.take_if(|pending| pending.name.eq_ignore_ascii_case(&desired.name));
            record.drop_pending();
            return if record == *self.record { Err(conflict) } else { Ok(Stop::record(record)) };
        }
        if !self.observed.has_finalizer {
            return Ok(Stop::act(Effect::AddFinalizer));
        }
        let is_wanted = |pending: &&super::RegistrationIntent| {
            pending.id.is_none() && pending.name == desired.name && pending.place == *target
        };
        if let Some(pending) = self.record.pending.as_ref().filter(is_wanted) {
            return Ok(Stop::act(Effect::Coderd(RegistrationEffect::Make {
                pending: Box::new(pending.clone()),
                settings: naming::settings(desired, None),
                secret: desired.secret.clone(),
                version,
            })));
        }
        Ok(self.announce(target, desired.name.clone(), None, Reason::FirstRegistration))
    }

    /// Puts on record what is about to be made.
    pub(super) fn announce(
        &self,
        place: &CoderdTarget,
        name: String,
        id: Option<String>,
        reason: Reason,
    ) -> Stop {
        let mut record = self.record.clone();
        record.drop_pending();
        let (place, reason) = (place.clone(), reason.to_owned());
        record.pending =
            Some(super::RegistrationIntent { name, id, place, reason: reason.to_string(), since: self.now });
        Stop::record(record)
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
            // Pods of the existing operator bear no checksum: they get that of the token that they would start with.
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
                if marks.id == current.id && self.record.pending.is_none() =>
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
        let is_wanted = current.place == *target
            && current.name.eq_ignore_ascii_case(&desired.name)
            && record.secret.as_ref() == Some(&desired.secret)
            && marks.id == current.id;
        let pods_have_it = workload.run.secret == desired.secret
            && Some(&workload.run.url) == observed.url.as_ref()
            && workload.run.checksum == token.checksum;
        let nothing_else = record.pending.is_none()
            && record.stale.is_empty()
            && retire::leftovers(self, &desired.secret).next().is_none();
        !observed.verify_due && observed.has_finalizer && is_wanted && pods_have_it && nothing_else
    }
}
