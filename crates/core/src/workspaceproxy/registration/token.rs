//! The token of a registration: where it is, whether coderd knows it, and what to do if not.

use super::{
    decide::{Flow, RegistrationFacts, Stop},
    effect::{Effect, ProxyProfile, RegistrationEffect, RegistrationQuery},
    observed::{DesiredRegistration, ListedProxy, RegistrationMarks, Secret, TokenFacts, TokenProof},
};
use crate::{
    target::{CoderdTarget, SecretDataRef},
    workload::Run,
};
use coder_k8s_api::Reason;

/// What became of the search for a token in one place.
enum StoredToken<'a> {
    /// It is there, and coderd knows it.
    Good(&'a TokenFacts),
    /// It is not there.
    Lost,
    /// It is there, and coderd does not know it.
    Dead,
}

/// What pods run with: the wanted Secret holds a token that coderd knows, and says so.
pub(super) fn in_place(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    target: &CoderdTarget,
    listed: &ListedProxy,
    settings: ProxyProfile,
) -> Flow<Option<Run>> {
    let marks = RegistrationMarks {
        id: listed.id.clone(),
        name: listed.name.clone(),
        deployment_id: target.deployment_id.clone(),
    };
    let reason = match search(facts, &desired.secret, &listed.id)? {
        StoredToken::Good(token) => return settled(facts, desired, token, marks),
        StoredToken::Lost => Reason::TokenLost,
        StoredToken::Dead => Reason::TokenRefused,
    };
    let version = facts.writable(&desired.secret)?;
    // A Secret that was renamed is copied: the token stays what it is.
    for place in facts.observed.secrets.keys().filter(|place| **place != desired.secret) {
        if let StoredToken::Good(_) = search(facts, place, &listed.id)? {
            let (from, to) = (place.clone(), desired.secret.clone());
            return Err(Stop::act(Effect::CopySecret { from, to, version, marks }));
        }
    }
    facts.may_make()?;
    match &facts.record.pending {
        Some(pending) if pending.id.as_ref() == Some(&listed.id) => {
            let (pending, secret) = (Box::new(pending.clone()), desired.secret.clone());
            Err(Stop::act(Effect::Coderd(RegistrationEffect::Make { pending, settings, secret, version })))
        }
        _ => Err(facts.announce(target, listed.name.clone(), Some(listed.id.clone()), reason)),
    }
}

pub(super) fn settled(
    facts: &RegistrationFacts<'_>,
    desired: &DesiredRegistration,
    token: &TokenFacts,
    marks: RegistrationMarks,
) -> Flow<Option<Run>> {
    let secret = desired.secret.clone();
    if let Some(Secret::Ours { marks: have, .. }) = facts.observed.secrets.get(&secret)
        && have.as_ref() != Some(&marks)
    {
        let version = facts.writable(&secret)?;
        return Err(Stop::act(Effect::AnnotateSecret { secret, version, marks }));
    }
    let checksum = token.checksum.clone();
    Ok(facts.observed.url.clone().map(|url| Run { secret, checksum, url }))
}

/// Whether a Secret holds a token of a registration that coderd knows.
fn search<'a>(facts: &RegistrationFacts<'a>, place: &SecretDataRef, id: &str) -> Flow<StoredToken<'a>> {
    let token = match facts.observed.secrets.get(place) {
        Some(Secret::Ours { holds: Some(token), .. }) => token,
        Some(Secret::Unknown(blocker)) => return Err(Stop::unsure(blocker)),
        Some(Secret::Ours { holds: None, .. } | Secret::Blocked(_) | Secret::Absent) | None => {
            return Ok(StoredToken::Lost);
        }
    };
    if token.id.as_deref() != Some(id) {
        return Ok(StoredToken::Lost);
    }
    match facts.observed.proofs.get(place) {
        None => Err(Stop::ask(RegistrationQuery::TokenProof(place.clone()))),
        // A server that cannot be asked: that it lists the registration must do.
        Some(TokenProof::Good | TokenProof::Unsupported) => Ok(StoredToken::Good(token)),
        Some(TokenProof::Refused) => Ok(StoredToken::Dead),
        Some(TokenProof::Unknown(blocker)) => Err(Stop::unsure(blocker)),
    }
}
