//! How the proxy gets its registration and the registration its token: found again or made, under a name that nobody else
//! has, and regenerated in place when the token is lost or dead.

use coder_k8s_api::Reason;

use super::{
    DesiredRegistration, Effect, ListedProxy, ProxyProfile, Query, RegistrationIntent, RegistrationMarks,
    RegistrationRecord, RegistrationRef, Registrations, Secret, TokenFacts, TokenProof,
    decide::{Flow, RegistrationFacts, Stop},
};
use crate::{
    credential::{CredentialKind as _, CredentialVerdict, Listed as _},
    target::{CoderdTarget, SecretDataRef},
    workload::Run,
};

/// The icon of a proxy for which nobody chose one. Without any, coderd would refuse every later change.
const ICON: &str = "/emojis/1f5fa.png";

impl<'a> RegistrationFacts<'a> {
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
    pub(super) fn find_or_register(
        &self,
        desired: &DesiredRegistration,
        target: &CoderdTarget,
        listing: &[ListedProxy],
    ) -> Stop {
        let known = self.known_ids().find_map(|id| listing.iter().find(|listed| listed.id == *id));
        // A target that the spec returns to may still have the registration that was given up.
        let given_up = self.record.stale.iter().map(|stale| (&stale.credential, stale.since));
        let given_up = given_up.filter(|(credential, _)| credential.target.is_same(target));
        let announced = self.record.pending.iter().map(|pending| (&pending.credential, pending.since));
        let announced = announced.filter(|(credential, _)| credential.target.is_same(target));
        let is_it = |listed: &ListedProxy, credential: &RegistrationRef, since| match &credential.id {
            Some(id) => listed.id == *id,
            None => listed.was_announced(credential, since),
        };
        let ours = known.or_else(|| {
            // Of one that was announced and made, the token is lost with the answer.
            let mut candidates = given_up.chain(announced.filter(|_| self.record.current.is_none()));
            candidates.find_map(|(credential, since)| {
                listing.iter().find(|listed| is_it(listed, credential, since))
            })
        });
        if let Some(ours) = ours {
            let mut record = self.record.clone();
            record.adopt(reference(ours, target));
            record.drop_pending();
            return Stop::record(record);
        }
        if self.record.current.is_some() {
            // Somebody has deleted it.
            return Stop::record(RegistrationRecord { current: None, pending: None, ..self.record.clone() });
        }
        if let Some(record) = self.unrecorded(|marks| marks.is_of(target)) {
            return Stop::record(record);
        }
        match self.register(desired, target, listing) {
            Ok(stop) | Err(stop) => stop,
        }
    }

    /// The record with a registration that so far only annotations know, and that is not one of those that are found
    /// in another way.
    pub(super) fn unrecorded(
        &self,
        is_found: impl Fn(&RegistrationMarks) -> bool,
    ) -> Option<RegistrationRecord> {
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
        target: &CoderdTarget,
        listing: &[ListedProxy],
    ) -> Flow<Stop> {
        self.may_make()?;
        let version = self.writable(&desired.secret)?;
        if let Err(conflict) = is_free(self, desired, listing, None) {
            let mut record = self.record.clone();
            // What was announced under this name was not made: the name is another's.
            record.pending.take_if(|pending| pending.credential.name.eq_ignore_ascii_case(&desired.name));
            record.drop_pending();
            return if record == *self.record { Err(conflict) } else { Ok(Stop::record(record)) };
        }
        self.needs_finalizer()?;
        let wanted = RegistrationRef::new(None, desired.name.clone(), target.clone());
        let is_wanted = |pending: &&RegistrationIntent| pending.credential == wanted;
        if let Some(pending) = self.record.pending.as_ref().filter(is_wanted) {
            return Ok(Stop::act(Effect::Make {
                pending: Box::new(pending.clone()),
                settings: settings(desired, None),
                secret: desired.secret.clone(),
                version,
            }));
        }
        Ok(self.announce(wanted, Reason::FirstRegistration))
    }
}

/// A listed registration as the record keeps it.
pub(super) fn reference(listed: &ListedProxy, target: &CoderdTarget) -> RegistrationRef {
    RegistrationRef::new(Some(listed.id.clone()), listed.name.clone(), target.clone())
}

/// Whether nobody else has the wanted name.
pub(super) fn is_free(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    listing: &[ListedProxy],
    own: Option<&String>,
) -> Flow<()> {
    let conflict = |message| Err(Stop::Wait(CredentialVerdict::stalled(Reason::ProxyConflict, message)));
    if let Some(name_conflict) = &facts.observed.own.name_conflict {
        return conflict(format!(
            "{name_conflict} asks for the name {} too, and was there first; choose another one with proxyName",
            desired.name
        ));
    }
    let other = listing
        .iter()
        .find(|listed| listed.name.eq_ignore_ascii_case(&desired.name) && Some(&listed.id) != own);
    if other.is_none() {
        return Ok(());
    }
    conflict(format!(
        "coderd has a workspace proxy {} that this object did not register; delete it there, or choose another name with \
         proxyName",
        desired.name
    ))
}

/// How a registration is called now.
pub(super) fn profile(listed: &ListedProxy) -> ProxyProfile {
    ProxyProfile {
        name: listed.name.clone(),
        display_name: listed.display_name.clone(),
        icon: listed.icon.clone(),
    }
}

/// How the registration is to be called. What nobody chose stays as it is.
pub(super) fn settings(desired: &DesiredRegistration, listed: Option<&ListedProxy>) -> ProxyProfile {
    let kept = |text: fn(&ListedProxy) -> &String| listed.map(text).filter(|text| !text.is_empty()).cloned();
    let display_name = desired.display_name.clone().or_else(|| kept(|listed| &listed.display_name));
    let icon = desired.icon.clone().or_else(|| kept(|listed| &listed.icon));
    ProxyProfile {
        // coderd takes names of another case for the same, and so does nobody rename for it.
        name: listed
            .map(|listed| listed.name.clone())
            .filter(|name| name.eq_ignore_ascii_case(&desired.name))
            .unwrap_or_else(|| desired.name.clone()),
        display_name: display_name.unwrap_or_else(|| desired.name.clone()),
        icon: icon.unwrap_or_else(|| ICON.to_owned()),
    }
}

/// What a Secret holds of the token of a registration.
enum StoredToken<'a> {
    /// A token that coderd knows.
    Good(&'a TokenFacts),
    /// No token of this registration.
    Lost,
    /// A token that coderd does not know.
    Dead,
}

/// What pods run with: the wanted Secret holds a token that coderd knows, and says so.
pub(super) fn token_in_place(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    target: &CoderdTarget,
    listed: &ListedProxy,
    settings: ProxyProfile,
) -> Flow<Option<Run>> {
    let marks = Registrations::marks(&reference(listed, target));
    let reason = match stored_token(facts, &desired.secret, &listed.id)? {
        StoredToken::Good(token) => return settled(facts, desired, token, marks),
        StoredToken::Lost => Reason::TokenLost,
        StoredToken::Dead => Reason::TokenRefused,
    };
    let version = facts.writable(&desired.secret)?;
    // A Secret that was renamed is copied: the token stays what it is.
    for place in facts.observed.secrets.keys().filter(|place| **place != desired.secret) {
        if let StoredToken::Good(_) = stored_token(facts, place, &listed.id)? {
            let (from, to) = (place.clone(), desired.secret.clone());
            return Err(Stop::act(Effect::CopySecret { from, to, version, marks }));
        }
    }
    facts.may_make()?;
    match &facts.record.pending {
        Some(pending) if pending.credential.id.as_ref() == Some(&listed.id) => {
            let (pending, secret) = (Box::new(pending.clone()), desired.secret.clone());
            Err(Stop::act(Effect::Make { pending, settings, secret, version }))
        }
        _ => Err(facts.announce(reference(listed, target), reason)),
    }
}

/// The annotations of the wanted Secret identify its token, and pods run with it.
pub(super) fn settled(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    token: &TokenFacts,
    marks: RegistrationMarks,
) -> Flow<Option<Run>> {
    facts.is_annotated(&desired.secret, marks)?;
    let (secret, checksum) = (desired.secret.clone(), token.checksum.clone());
    Ok(facts.observed.own.url.clone().map(|url| Run { secret, checksum, url }))
}

/// Whether a Secret holds a token of a registration that coderd knows.
fn stored_token<'a>(facts: &RegistrationFacts<'a>, place: &SecretDataRef, id: &str) -> Flow<StoredToken<'a>> {
    if let Some(Secret::Unknown(blocker)) = facts.observed.secrets.get(place) {
        return Err(Stop::unsure(blocker));
    }
    let held = facts.held(place).map(|(token, _)| token);
    let Some(token) = held.filter(|token| token.id.as_deref() == Some(id)) else {
        return Ok(StoredToken::Lost);
    };
    match facts.observed.proofs.get(place) {
        None => Err(Stop::ask(Query::Proof(place.clone()))),
        // A server that cannot be asked: that it lists the registration must do.
        Some(TokenProof::Is(()) | TokenProof::Unsupported) => Ok(StoredToken::Good(token)),
        Some(TokenProof::Refused) => Ok(StoredToken::Dead),
        Some(TokenProof::Unknown(blocker)) => Err(Stop::unsure(blocker)),
    }
}
