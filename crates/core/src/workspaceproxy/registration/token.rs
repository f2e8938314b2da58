//! The token of a registration: where it is, whether coderd knows it, and what to do if not.

use super::{
    decide::{Flow, Pass, Stop},
    seen::{Listed, Marks, Proof, Secret, Token, Wanted},
    step::{Act, Look, Settings, Step},
};
use crate::{
    place::{Place, SecretPlace},
    workload::Run,
};

/// What became of the search for a token in one place.
enum Found<'a> {
    /// It is there, and coderd knows it.
    Good(&'a Token),
    /// It is not there.
    Lost,
    /// It is there, and coderd does not know it.
    Dead,
}

/// What pods run with: the wanted Secret holds a token that coderd knows, and says so.
pub(super) fn in_place(
    pass: &Pass<'_>,
    wanted: &Wanted,
    target: &Place,
    listed: &Listed,
    settings: Settings,
) -> Flow<Option<Run>> {
    let marks = Marks {
        id: listed.id.clone(),
        name: listed.name.clone(),
        deployment_id: target.deployment_id.clone(),
    };
    let reason = match search(pass, &wanted.secret, &listed.id)? {
        Found::Good(token) => return settled(pass, wanted, token, marks),
        Found::Lost => "TokenLost",
        Found::Dead => "TokenRefused",
    };
    let version = pass.writable(&wanted.secret)?;
    // A Secret that was renamed is copied: the token stays what it is.
    for place in pass.seen.secrets.keys().filter(|place| **place != wanted.secret) {
        if let Found::Good(_) = search(pass, place, &listed.id)? {
            let (from, to) = (place.clone(), wanted.secret.clone());
            return Err(Stop::step(Step::Copy { from, to, version, marks }));
        }
    }
    pass.may_make()?;
    match &pass.record.pending {
        Some(pending) if pending.id.as_ref() == Some(&listed.id) => {
            let (pending, secret) = (Box::new(pending.clone()), wanted.secret.clone());
            Err(Stop::step(Step::Coderd(Act::Make { pending, settings, secret, version })))
        }
        _ => Err(pass.announce(target, listed.name.clone(), Some(listed.id.clone()), reason)),
    }
}

pub(super) fn settled(pass: &Pass<'_>, wanted: &Wanted, token: &Token, marks: Marks) -> Flow<Option<Run>> {
    let secret = wanted.secret.clone();
    if let Some(Secret::Ours { marks: have, .. }) = pass.seen.secrets.get(&secret)
        && have.as_ref() != Some(&marks)
    {
        let version = pass.writable(&secret)?;
        return Err(Stop::step(Step::Annotate { secret, version, marks }));
    }
    let checksum = token.checksum.clone();
    Ok(pass.seen.url.clone().map(|url| Run { secret, checksum, url }))
}

/// Whether a Secret holds a token of a registration that coderd knows.
fn search<'a>(pass: &Pass<'a>, place: &SecretPlace, id: &str) -> Flow<Found<'a>> {
    let token = match pass.seen.secrets.get(place) {
        Some(Secret::Ours { holds: Some(token), .. }) => token,
        Some(Secret::Unknown(trouble)) => return Err(Stop::unsure(trouble)),
        Some(Secret::Ours { holds: None, .. } | Secret::Blocked(_) | Secret::Absent) | None => {
            return Ok(Found::Lost);
        }
    };
    if token.id.as_deref() != Some(id) {
        return Ok(Found::Lost);
    }
    match pass.seen.proofs.get(place) {
        None => Err(Stop::look(Look::Proof(place.clone()))),
        // A server that cannot be asked: that it lists the registration must do.
        Some(Proof::Good | Proof::Unsupported) => Ok(Found::Good(token)),
        Some(Proof::Refused) => Ok(Found::Dead),
        Some(Proof::Unknown(trouble)) => Err(Stop::unsure(trouble)),
    }
}
