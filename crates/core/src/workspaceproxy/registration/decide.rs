//! The order of the rules: the registration is found again or made, under a name that nobody else has, renamed, and given a
//! token, which is regenerated in place when it is lost or dead. While nothing else is to be done, what is no longer wanted
//! goes once nothing runs with it: registrations, and the Secrets of their tokens.
//!
//! Also what is decided when a person supplies the token, or the object is deleted: then every registration of ours goes. How
//! one is looked for, deleted and abandoned is the same for every kind of credential: see [`crate::credential::retirement`].

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    Decision, DesiredRegistration, Effect, Health, ListedProxy, Listing, NextStep, ObservedRegistration,
    ProxyProfile, Query, RegistrationEffect, RegistrationIntent, RegistrationMarks, RegistrationRecord,
    RegistrationRef, Registrations, Secret, TokenFacts, TokenProof,
};
use crate::{
    credential::{self, CredentialKind as _, CredentialVerdict, Facts, Listed as _, NameConflict},
    object::Deletion,
    target::{CoderdTarget, SecretDataRef},
    workload::PodCredential,
};

/// The icon of a proxy for which nobody chose one. Without any, coderd would refuse every later change.
const ICON: &str = "/emojis/1f5fa.png";

type Stop = credential::Stop<Registrations>;
type Flow<T> = credential::Flow<Registrations, T>;
type RegistrationFacts<'a> = Facts<'a, Registrations>;

fn ready() -> CredentialVerdict {
    let message = "the proxy is registered in coderd, and its token is in its Secret";
    CredentialVerdict::ready(Reason::Registered, message)
}

/// Decides what is next.
pub fn decide(observed: &ObservedRegistration, now: Timestamp) -> Decision {
    let facts = RegistrationFacts::new(observed, now);
    if let Some(deadline) = observed.deletion {
        return delete_all(&facts, deadline);
    }
    let Some(desired) = &observed.desired else { return supplied(&facts) };
    if facts.is_at_rest() {
        return Decision::rest(facts.last_pod_credential(), ready());
    }
    match facts.registered(desired) {
        Ok(pod_credential) => retire(&facts, Decision::rest(pod_credential, ready())),
        Err(Stop::Wait(verdict)) => {
            let is_intact = facts.holds_what_pods_have(&desired.secret);
            let verdict = verdict.weighed_against_record(facts.is_wanted_on_record(), is_intact);
            // Without a registration on record, which a part of the status may lack, it is as was said.
            let is_dead = facts.record.current.is_some() && facts.is_dead(&desired.secret, facts.record);
            let verdict = facts.weighed_against_loss(&desired.secret, is_dead, verdict);
            Decision::rest(facts.last_pod_credential(), verdict)
        }
        Err(Stop::NextStep(next)) => {
            let record = match &*next {
                NextStep::WriteStatus(record) => record,
                _ => facts.record,
            };
            let is_dead = facts.is_dead(&desired.secret, record);
            let verdict = facts.weighed_against_loss(&desired.secret, is_dead, progress(&facts));
            Decision::rest(facts.last_pod_credential(), verdict).then(*next)
        }
    }
}

/// What to say while a step is under way.
fn progress(facts: &RegistrationFacts<'_>) -> CredentialVerdict {
    // Until its first token is stored, it is still being registered.
    match facts.record.current.as_ref().filter(|_| facts.record.secret.is_some()) {
        Some(current) => CredentialVerdict::working(
            Reason::Updating,
            format!("updating workspace proxy {} in coderd", current.name),
        ),
        None => CredentialVerdict::working(Reason::Registering, "registering the proxy in coderd"),
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
    /// What pods run with, when the registration and its token are as wanted and on record.
    fn registered(&self, desired: &DesiredRegistration) -> Flow<Option<PodCredential>> {
        let target = self.target()?;
        self.may_begin()?;
        self.moves_on(target)?;
        let listing = match self.listing(target) {
            Err(Stop::Wait(verdict)) if verdict.reason == Reason::CredentialsSecretUnavailable => {
                return self.unlisted(desired, verdict);
            }
            listing => listing?,
        };
        let id = self.record.current_id();
        let Some(listed) = listing.iter().find(|listed| Some(&listed.id) == id) else {
            return self.find_or_register(desired, listing);
        };
        self.ensure_finalizer()?;
        let settings = settings(desired, Some(listed));
        if settings != profile(listed) {
            self.is_free(desired, listing, Some(&listed.id))?;
            let (target, id) = (target.clone(), listed.id.clone());
            return Err(Stop::act(Effect::Own(RegistrationEffect::Update { target, id, settings })));
        }
        let current = reference(listed, target);
        let pod_credential = self.token_in_place(desired, &current, settings)?;
        self.ensure_recorded(RegistrationRecord {
            current: Some(current),
            secret: Some(desired.secret.clone()),
            pending: None,
            stale: self.record.stale.clone(),
        })?;
        Ok(pod_credential)
    }

    /// Without credentials nothing can be listed or changed. A token of ours that coderd knows says enough: the proxy is
    /// registered, and goes on.
    fn unlisted(
        &self,
        desired: &DesiredRegistration,
        verdict: CredentialVerdict,
    ) -> Flow<Option<PodCredential>> {
        let current = self.record.current.as_ref();
        let is_its = |id: &&String| current.is_none_or(|current| current.id.as_ref() == Some(*id));
        let held = self.held(&desired.secret).map(|(token, _)| token);
        let Some((token, id)) = held.and_then(|token| Some((token, token.id.as_ref().filter(is_its)?)))
        else {
            return Err(Stop::Wait(verdict));
        };
        match self.observed.proofs.get(&desired.secret) {
            None => return Err(Stop::ask(Query::Proof(desired.secret.clone()))),
            Some(TokenProof::Is(())) => {}
            Some(_) => return Err(Stop::Wait(verdict)),
        }
        self.ensure_finalizer()?;
        let name = current.map_or_else(|| desired.name.clone(), |current| current.name.clone());
        let registration = RegistrationRef::new(Some(id.clone()), name, self.target()?.clone());
        self.ensure_annotated(&desired.secret, Registrations::marks(&registration))?;
        let (current, secret) = (Some(registration), Some(desired.secret.clone()));
        self.ensure_recorded(RegistrationRecord { current, secret, ..self.record.clone() })?;
        Ok(self.run(&desired.secret, token))
    }

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
        self.ensure_recorded(record)
    }

    /// What pods run with while nothing is proven: as they do; or, where there are none, with what the Secret holds if it
    /// is the token of the registration on record.
    fn last_pod_credential(&self) -> Option<PodCredential> {
        if let Some(workload) = &self.observed.workload {
            let mut pod_credential = workload.pod_credential.clone();
            // Pods of the Go operator have no checksum: they get that of the token that they would start with.
            if let Some((token, _)) = self.held(&pod_credential.secret)
                && pod_credential.checksum.is_empty()
            {
                pod_credential.checksum.clone_from(&token.checksum);
            }
            return Some(pod_credential);
        }
        self.stored_pod_credential(self.observed.own.url.as_ref()?).filter(|_| self.record.pending.is_none())
    }

    /// Whether a Secret holds a token that coderd refuses, or that is not for the registration on this record.
    fn is_dead(&self, secret: &SecretDataRef, record: &RegistrationRecord) -> bool {
        let Some((token, _)) = self.held(secret) else { return false };
        let is_its = |current: &RegistrationRef| current.id.is_none() || current.id == token.id;
        !record.current.as_ref().is_some_and(is_its)
            || self.observed.proofs.get(secret) == Some(&TokenProof::Refused)
    }

    /// UUIDs of registrations whose tokens, or marks, our Secrets hold.
    fn known_ids(&self) -> impl Iterator<Item = &'a String> + use<'a> {
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
        listing: &[ListedProxy],
    ) -> Flow<Option<PodCredential>> {
        let target = self.target()?;
        let known = self.known_ids().find_map(|id| listing.iter().find(|listed| listed.id == *id));
        // A target that the spec returns to may still have the registration that was given up.
        let given_up = self.record.stale.iter().map(|stale| (&stale.credential, stale.since));
        let announced = self.record.pending.iter().map(|pending| (&pending.credential, pending.since));
        let is_it = |listed: &ListedProxy, credential: &RegistrationRef, since| match &credential.id {
            Some(id) => listed.id == *id,
            None => listed.was_announced(credential, since),
        };
        let ours = known.or_else(|| {
            // Of one that was announced and made, the token is lost with the answer.
            let announced = announced.filter(|_| self.record.current.is_none());
            let candidates = given_up.chain(announced);
            candidates.filter(|(credential, _)| credential.target.is_same(target)).find_map(
                |(credential, since)| listing.iter().find(|listed| is_it(listed, credential, since)),
            )
        });
        if let Some(ours) = ours {
            let mut record = self.record.clone();
            record.adopt(reference(ours, target));
            record.drop_pending();
            return Err(Stop::record(record));
        }
        if self.record.current.is_some() {
            // Somebody has deleted it.
            let record = RegistrationRecord { current: None, pending: None, ..self.record.clone() };
            return Err(Stop::record(record));
        }
        if let Some(record) = self.unrecorded(|marks| marks.is_of(target)) {
            return Err(Stop::record(record));
        }
        self.register(desired, listing)
    }

    /// The record with a registration that so far only annotations know, and that is not one of those that are found
    /// in another way.
    fn unrecorded(&self, is_found: impl Fn(&RegistrationMarks) -> bool) -> Option<RegistrationRecord> {
        let marks = self.observed.secrets.values().find_map(|secret| match secret {
            Secret::Ours { marks, .. } => {
                marks.as_ref().filter(|marks| !self.record.knows(&marks.id) && !is_found(marks))
            }
            Secret::Absent | Secret::Blocked(_) | Secret::Unknown(_) => None,
        })?;
        Some(self.remember(marks, self.observed.target.as_ref().ok()))
    }

    fn register(
        &self,
        desired: &DesiredRegistration,
        listing: &[ListedProxy],
    ) -> Flow<Option<PodCredential>> {
        self.may_make()?;
        let version = self.writable(&desired.secret)?;
        if let Err(conflict) = self.is_free(desired, listing, None) {
            let mut record = self.record.clone();
            // What was announced under this name was not made: the name is another's.
            record.pending.take_if(|pending| pending.credential.name.eq_ignore_ascii_case(&desired.name));
            record.drop_pending();
            return Err(if record == *self.record { conflict } else { Stop::record(record) });
        }
        self.ensure_finalizer()?;
        let wanted = RegistrationRef::new(None, desired.name.clone(), self.target()?.clone());
        let is_wanted = |pending: &&RegistrationIntent| pending.credential == wanted;
        if let Some(pending) = self.record.pending.as_ref().filter(is_wanted) {
            return Err(Stop::act(Effect::Make {
                pending: Box::new(pending.clone()),
                settings: settings(desired, None),
                secret: desired.secret.clone(),
                version,
            }));
        }
        Err(self.announce(wanted, Reason::FirstRegistration))
    }

    /// Whether nobody else has the wanted name.
    fn is_free(
        &self,
        desired: &DesiredRegistration,
        listing: &[ListedProxy],
        own: Option<&String>,
    ) -> Flow<()> {
        let conflict = |message| Err(Stop::Wait(CredentialVerdict::stalled(Reason::ProxyConflict, message)));
        if let Some(older) = self.observed.name_conflict.as_ref().and_then(NameConflict::neighbour) {
            return conflict(format!(
                "{older} asks for the name {} too, and was there first; choose another one with proxyName",
                desired.name
            ));
        }
        let has_it = |listed: &ListedProxy| listed.name.eq_ignore_ascii_case(&desired.name);
        if !listing.iter().any(|listed| has_it(listed) && Some(&listed.id) != own) {
            return Ok(());
        }
        conflict(format!(
            "coderd has a workspace proxy {} that this object did not register; delete it there, or choose another name with \
             proxyName",
            desired.name
        ))
    }

    /// What pods run with: the wanted Secret holds a token that coderd knows, and says so.
    fn token_in_place(
        &self,
        desired: &DesiredRegistration,
        current: &RegistrationRef,
        settings: ProxyProfile,
    ) -> Flow<Option<PodCredential>> {
        let marks = Registrations::marks(current);
        let reason = match self.stored_token(&desired.secret, current)? {
            Ok(token) => {
                self.ensure_annotated(&desired.secret, marks)?;
                return Ok(self.run(&desired.secret, token));
            }
            Err(reason) => reason,
        };
        let version = self.writable(&desired.secret)?;
        // A Secret that was renamed is copied: the token stays what it is.
        for place in self.observed.secrets.keys().filter(|place| **place != desired.secret) {
            if self.stored_token(place, current)?.is_ok() {
                let (from, to) = (place.clone(), desired.secret.clone());
                return Err(Stop::act(Effect::CopySecret { from, to, version, marks }));
            }
        }
        self.may_make()?;
        match &self.record.pending {
            Some(pending) if pending.credential.id == current.id => {
                let (pending, secret) = (Box::new(pending.clone()), desired.secret.clone());
                Err(Stop::act(Effect::Make { pending, settings, secret, version }))
            }
            _ => Err(self.announce(current.clone(), reason)),
        }
    }

    fn run(&self, secret: &SecretDataRef, token: &TokenFacts) -> Option<PodCredential> {
        let (url, checksum) = (self.observed.own.url.clone()?, token.checksum.clone());
        Some(PodCredential { secret: secret.clone(), checksum, url })
    }

    /// The token of a registration that a Secret holds, or why another one is to be made.
    fn stored_token(
        &self,
        place: &SecretDataRef,
        registration: &RegistrationRef,
    ) -> Flow<Result<&'a TokenFacts, Reason>> {
        if let Some(Secret::Unknown(blocker)) = self.observed.secrets.get(place) {
            return Err(Stop::unsure(blocker));
        }
        let held = self.held(place).map(|(token, _)| token);
        let Some(token) = held.filter(|token| token.id == registration.id) else {
            return Ok(Err(Reason::TokenLost));
        };
        match self.observed.proofs.get(place) {
            None => Err(Stop::ask(Query::Proof(place.clone()))),
            // A server that cannot be asked: that it lists the registration must do.
            Some(TokenProof::Is(()) | TokenProof::Unsupported) => Ok(Ok(token)),
            Some(TokenProof::Refused) => Ok(Err(Reason::TokenRefused)),
            Some(TokenProof::Unknown(blocker)) => Err(Stop::unsure(blocker)),
        }
    }
}

/// A listed registration as the record keeps it.
fn reference(listed: &ListedProxy, target: &CoderdTarget) -> RegistrationRef {
    RegistrationRef::new(Some(listed.id.clone()), listed.name.clone(), target.clone())
}

/// How a registration is called now.
fn profile(listed: &ListedProxy) -> ProxyProfile {
    ProxyProfile {
        name: listed.name.clone(),
        display_name: listed.display_name.clone(),
        icon: listed.icon.clone(),
    }
}

/// How the registration is to be called. What nobody chose stays as it is.
fn settings(desired: &DesiredRegistration, listed: Option<&ListedProxy>) -> ProxyProfile {
    let kept = |text: fn(&ListedProxy) -> &String| listed.map(text).filter(|text| !text.is_empty()).cloned();
    let display_name = desired.display_name.clone().or_else(|| kept(|listed| &listed.display_name));
    let icon = desired.icon.clone().or_else(|| kept(|listed| &listed.icon));
    ProxyProfile {
        // coderd compares names without case, so that another case is no reason to rename.
        name: listed
            .map(|listed| listed.name.clone())
            .filter(|name| name.eq_ignore_ascii_case(&desired.name))
            .unwrap_or_else(|| desired.name.clone()),
        display_name: display_name.unwrap_or_else(|| desired.name.clone()),
        icon: icon.unwrap_or_else(|| ICON.to_owned()),
    }
}

/// What can go now. `rest` is the decision while nothing can, with what pods are to run with.
fn retire(facts: &RegistrationFacts<'_>, rest: Decision) -> Decision {
    let leftover =
        rest.pod_credential.as_ref().and_then(|pod_credential| facts.leftover(&pod_credential.secret));
    if facts.record.stale.is_empty() && leftover.is_none() {
        return rest;
    }
    let workload = facts.observed.workload.as_ref();
    if !workload.is_some_and(|workload| {
        workload.is_rolled_out && Some(&workload.pod_credential) == rest.pod_credential.as_ref()
    }) {
        return rest.wait();
    }
    let decision = credential::retire(facts, true, rest);
    match leftover {
        // The annotations of the Secret identify the registration until the status records it.
        Some(removal) if decision.next == NextStep::Done => decision.then(NextStep::Act(Box::new(removal))),
        _ => decision,
    }
}

/// A person supplies the token. Nothing is registered, and what was registered before is to go.
fn supplied(facts: &RegistrationFacts<'_>) -> Decision {
    let given = match &facts.observed.own.given {
        Ok(given) => given,
        Err(blocker) => {
            let unsure = CredentialVerdict { in_place: Some(false), ..CredentialVerdict::unsure(blocker) };
            return Decision::rest(facts.last_pod_credential(), unsure);
        }
    };
    let pod_credential = facts.run(&given.place, &given.token);
    let message = "the Secret holds the token that somebody supplied";
    let verdict = CredentialVerdict::ready(Reason::TokenGiven, message);
    let is_its = |id: &String| given.token.id.as_ref() == Some(id);
    // Only until the status records the Secret with the supplied token: after that, these annotations are of the Secret that
    // is about to be removed.
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
    let decision = Decision::rest(pod_credential, verdict);
    if record != *facts.record {
        return decision.then(NextStep::WriteStatus(Box::new(record)));
    }
    let decision = retire(facts, decision);
    if decision.next == NextStep::Done && facts.observed.has_finalizer && facts.record.is_empty() {
        return decision.then(NextStep::RemoveFinalizer);
    }
    decision
}

/// The object is being deleted: every registration of ours goes first.
fn delete_all(facts: &RegistrationFacts<'_>, deletion: Deletion) -> Decision {
    let message = "deleting the registration of the proxy in coderd";
    let verdict = CredentialVerdict::working(Reason::Deleting, message);
    let decision = credential::clean_up(facts, deletion, verdict);
    match find_lost(facts) {
        Some(record) => {
            Decision { events: Vec::new(), ..decision.then(NextStep::WriteStatus(Box::new(record))) }
        }
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
