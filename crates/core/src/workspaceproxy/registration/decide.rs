//! The order of the rules.

use jiff::Timestamp;

use super::{
    called, direct,
    finding::{self, Finding, Stage},
    going,
    record::{Record, Registration, was_announced},
    retire,
    seen::{Listed, Listing, Marks, Proof, Secret, Seen, Wanted},
    step::{Act, Decision, Health, Look, Step},
    token,
};
use crate::{
    credential,
    outcome::Trouble,
    place::{Place, SecretPlace, Version},
    workload::Run,
};

/// Nobody has allowed that a credential is sent to the address.
pub const URL_NOT_ALLOWED: &str = "URLNotAllowed";
/// Another deployment answers at the address than the one that the credential belongs to.
pub const DEPLOYMENT_CHANGED: &str = "DeploymentChanged";

/// The Secret with the credentials is not there, or empty.
pub const CREDENTIALS_MISSING: &str = "CredentialsSecretUnavailable";

/// Why a rule does not get to its end.
pub(super) type Stop = credential::Stop<Look, Record, Step>;

pub(super) type Flow<T> = Result<T, Stop>;

/// One decision.
pub(super) struct Pass<'a> {
    pub(super) seen: &'a Seen,
    pub(super) record: &'a Record,
    pub(super) now: Timestamp,
}

/// Decides what is next.
pub fn decide(seen: &Seen, now: Timestamp) -> Decision {
    let pass = Pass { seen, record: &seen.record, now };
    if let Some(deadline) = seen.going {
        return going::decide(&pass, deadline);
    }
    let Some(wanted) = &seen.wanted else { return direct::decide(&pass) };
    if pass.is_at_rest(wanted) {
        return Decision::rest(pass.last_run(), finding::ready());
    }
    match registered(&pass, wanted) {
        Ok(run) => {
            let mut decision = Decision::rest(run.clone(), finding::ready());
            retire::add(&pass, run.as_ref(), &mut decision);
            decision
        }
        Err(Stop::Wait(finding)) => Decision::rest(pass.last_run(), pass.judged(wanted, finding)),
        Err(Stop::Next(next)) => {
            let mut decision = Decision::rest(pass.last_run(), progress(&pass));
            decision.next = *next;
            decision
        }
    }
}

/// The registration and what pods run with, when both are as wanted and on record.
fn registered(pass: &Pass<'_>, wanted: &Wanted) -> Flow<Option<Run>> {
    let target = pass.target()?;
    pass.may_begin()?;
    pass.moves_on(target)?;
    let listing = match pass.listing(target) {
        Err(Stop::Wait(finding)) if finding.reason == CREDENTIALS_MISSING => {
            return unlisted(pass, wanted, target, finding);
        }
        listing => listing?,
    };
    let listed = match &pass.record.current {
        Some(current) => listing.iter().find(|listed| listed.id == current.id),
        None => None,
    };
    let Some(listed) = listed else {
        return Err(pass.find_or_register(wanted, target, listing));
    };
    if !pass.seen.is_held {
        return Err(Stop::step(Step::Hold));
    }
    let settings = called::settings(wanted, Some(listed));
    if settings != called::called(listed) {
        called::is_free(pass, wanted, listing, Some(&listed.id))?;
        return Err(Stop::step(Step::Coderd(Act::Update {
            place: target.clone(),
            id: listed.id.clone(),
            settings,
        })));
    }
    let run = token::in_place(pass, wanted, target, listed, settings)?;
    let settled = Record {
        current: Some(Registration {
            id: listed.id.clone(),
            name: listed.name.clone(),
            place: target.clone(),
        }),
        secret: Some(wanted.secret.clone()),
        pending: None,
        stale: pass.record.stale.clone(),
    };
    if settled != *pass.record {
        return Err(Stop::record(settled));
    }
    Ok(run)
}

/// Without credentials nothing can be listed or changed. A token of ours that coderd knows says enough: the proxy is
/// registered, and goes on.
fn unlisted(pass: &Pass<'_>, wanted: &Wanted, target: &Place, finding: Finding) -> Flow<Option<Run>> {
    let Some(Secret::Ours { holds: Some(token), .. }) = pass.seen.secrets.get(&wanted.secret) else {
        return Err(Stop::Wait(finding));
    };
    let current = pass.record.current.as_ref();
    let Some(id) = token.id.as_ref().filter(|id| current.is_none_or(|current| current.id == **id)) else {
        return Err(Stop::Wait(finding));
    };
    match pass.seen.proofs.get(&wanted.secret) {
        None => return Err(Stop::look(Look::Proof(wanted.secret.clone()))),
        Some(Proof::Good) => {}
        Some(_) => return Err(Stop::Wait(finding)),
    }
    if !pass.seen.is_held {
        return Err(Stop::step(Step::Hold));
    }
    let name = current.map_or_else(|| wanted.name.clone(), |current| current.name.clone());
    let marks = Marks { id: id.clone(), name: name.clone(), deployment_id: target.deployment_id.clone() };
    let run = token::settled(pass, wanted, token, marks)?;
    let current = Some(Registration { id: id.clone(), name, place: target.clone() });
    let record = Record { current, secret: Some(wanted.secret.clone()), ..pass.record.clone() };
    if record != *pass.record {
        return Err(Stop::record(record));
    }
    Ok(run)
}

/// What to say while a step is under way.
fn progress(pass: &Pass<'_>) -> Finding {
    match &pass.record.current {
        Some(current) => {
            Finding::working("Updating", format!("the registration {} is brought up to date", current.name))
        }
        None => Finding::working("Registering", "the proxy is being registered"),
    }
}

/// What coderd sees of the proxy. None: it was not asked.
pub fn health(seen: &Seen) -> Option<Health> {
    let (current, target) = (seen.record.current.as_ref()?, seen.target.as_ref().ok()?);
    let Listing::Known(listing) = seen.listings.get(target)? else { return None };
    let listed = listing.iter().find(|listed| listed.id == current.id)?;
    let status = if listed.health.is_empty() { "unknown" } else { &listed.health };
    Some(Health {
        status: status.to_owned(),
        version: Some(listed.version.clone()).filter(|version| !version.is_empty()),
    })
}

impl<'a> Pass<'a> {
    /// Nothing is asked of coderd for a proxy that was never begun and may not begin.
    fn may_begin(&self) -> Flow<()> {
        let begun = !self.record.is_empty() || self.known_ids().next().is_some();
        if begun { Ok(()) } else { self.may_make() }
    }

    pub(super) fn may_make(&self) -> Flow<()> {
        let closed = |trouble: &Trouble| {
            let Trouble { reason, message } = trouble;
            Stop::Wait(Finding::working(reason, message.clone()))
        };
        self.seen.may_make.as_ref().map_err(closed).copied()
    }

    pub(super) fn target(&self) -> Flow<&'a Place> {
        self.seen.target.as_ref().map_err(|trouble| match trouble.reason {
            reason @ (URL_NOT_ALLOWED | DEPLOYMENT_CHANGED) => {
                Stop::Wait(Finding::stalled(reason, trouble.message.clone()))
            }
            _ => Stop::unsure(trouble),
        })
    }

    /// What cannot be told leaves a proxy as ready as it was; but not if its own record says that something else is
    /// wanted.
    fn judged(&self, wanted: &Wanted, finding: Finding) -> Finding {
        let on_record = self.record.pending.is_none()
            && self.record.secret.as_ref() == Some(&wanted.secret)
            && self.record.current.as_ref().is_some_and(|current| {
                let here = match &self.seen.target {
                    Ok(target) => current.place.is_same(target),
                    Err(_) => current.place.control_plane == wanted.control_plane,
                };
                here && current.name.eq_ignore_ascii_case(&wanted.name)
            });
        match finding.stage {
            Stage::Unsure if !on_record => Finding { stage: Stage::Working, ..finding },
            _ => finding,
        }
    }

    /// What belongs to another coderd than the wanted one is to go, once its successor runs.
    fn moves_on(&self, target: &Place) -> Flow<()> {
        let mut record = self.record.clone();
        let elsewhere = |place: &Place| !place.is_same(target);
        if record.current.as_ref().is_some_and(|current| elsewhere(&current.place)) {
            record.give_up(self.now);
        } else if record.pending.as_ref().is_some_and(|pending| elsewhere(&pending.place)) {
            record.drop_pending();
        }
        if record == *self.record { Ok(()) } else { Err(Stop::record(record)) }
    }

    /// The registrations of a coderd.
    pub(super) fn listing(&self, place: &Place) -> Flow<&'a [Listed]> {
        match self.seen.listings.get(place) {
            None => Err(Stop::look(Look::Registrations(place.clone()))),
            Some(Listing::Known(listing)) => Ok(listing),
            Some(Listing::Unknown(trouble)) => Err(Stop::unsure(trouble)),
            Some(Listing::Gone) => {
                let message = "another deployment answers than the one that is recorded".to_owned();
                Err(Stop::unsure(&Trouble { reason: "ControlPlaneUnavailable", message }))
            }
        }
    }

    /// UUIDs of registrations whose tokens, or marks, our Secrets hold.
    fn known_ids(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        let deployment = self.seen.target.as_ref().ok().and_then(|target| target.deployment_id.as_ref());
        self.seen.secrets.values().flat_map(move |secret| {
            let Secret::Ours { holds: token, marks, .. } = secret else { return Vec::new() };
            let token = token.as_ref().and_then(|token| token.id.as_ref());
            let here = |marks: &&Marks| {
                marks.deployment_id.is_none()
                    || deployment.is_none()
                    || marks.deployment_id.as_ref() == deployment
            };
            let marked = marks.as_ref().filter(here).map(|marks| &marks.id);
            marked.into_iter().chain(token).collect()
        })
    }

    /// There is no registration on record, or it is gone: one of ours is found again, or another one is made.
    fn find_or_register(&self, wanted: &Wanted, target: &Place, listing: &[Listed]) -> Stop {
        let registration = |listed: &Listed| Registration {
            id: listed.id.clone(),
            name: listed.name.clone(),
            place: target.clone(),
        };
        let known = self.known_ids().find_map(|id| listing.iter().find(|listed| listed.id == *id));
        if let Some(known) = known {
            let mut record = Record { current: Some(registration(known)), ..self.record.clone() };
            // Perhaps it is what was announced.
            record.pending.take_if(|pending| pending.name.eq_ignore_ascii_case(&known.name));
            record.drop_pending();
            return Stop::record(record);
        }
        if self.record.current.is_some() {
            // Somebody has deleted it.
            return Stop::record(Record { current: None, pending: None, ..self.record.clone() });
        }
        let pending = self.record.pending.as_ref().filter(|pending| pending.id.is_none());
        if let Some(pending) = pending {
            let made = listing.iter().find(|listed| was_announced(listed, &pending.name, pending.since));
            if let Some(made) = made.filter(|_| pending.place.is_same(target)) {
                // Its token is lost with the answer.
                let current = Some(registration(made));
                return Stop::record(Record { current, pending: None, ..self.record.clone() });
            }
        }
        match self.register(wanted, target, listing) {
            Ok(stop) | Err(stop) => stop,
        }
    }

    fn register(&self, wanted: &Wanted, target: &Place, listing: &[Listed]) -> Flow<Stop> {
        self.may_make()?;
        let version = self.writable(&wanted.secret)?;
        if let Err(conflict) = called::is_free(self, wanted, listing, None) {
            let mut record = self.record.clone();
            // What was announced was not made: the name is another's.
            record.pending = None;
            return if record == *self.record { Err(conflict) } else { Ok(Stop::record(record)) };
        }
        if !self.seen.is_held {
            return Ok(Stop::step(Step::Hold));
        }
        let is_wanted = |pending: &&super::Pending| {
            pending.id.is_none() && pending.name == wanted.name && pending.place == *target
        };
        if let Some(pending) = self.record.pending.as_ref().filter(is_wanted) {
            return Ok(Stop::step(Step::Coderd(Act::Make {
                pending: Box::new(pending.clone()),
                settings: called::settings(wanted, None),
                secret: wanted.secret.clone(),
                version,
            })));
        }
        Ok(self.announce(target, wanted.name.clone(), None, "FirstRegistration"))
    }

    /// Puts on record what is about to be made.
    pub(super) fn announce(
        &self,
        place: &Place,
        name: String,
        id: Option<String>,
        reason: &'static str,
    ) -> Stop {
        let mut record = self.record.clone();
        record.drop_pending();
        let (place, reason) = (place.clone(), reason.to_owned());
        record.pending = Some(super::Pending { name, id, place, reason, since: self.now });
        Stop::record(record)
    }

    /// The Secret that a write expects. Stops if it cannot be written.
    pub(super) fn writable(&self, place: &SecretPlace) -> Flow<Version> {
        let secret = self.seen.secrets.get(place);
        Secret::writable(secret, place, "generatedTokenSecretName").map_err(Stop::Wait)
    }

    /// What pods run with while nothing is proven: as they do; or, where there are none, with what the Secret holds if it
    /// is the token of the registration on record.
    pub(super) fn last_run(&self) -> Option<Run> {
        if let Some(workload) = &self.seen.workload {
            let mut run = workload.run.clone();
            // Pods of the existing operator bear no checksum: they get that of the token that they would start with.
            if let Some(Secret::Ours { holds: Some(token), .. }) = self.seen.secrets.get(&run.secret)
                && run.checksum.is_empty()
            {
                run.checksum.clone_from(&token.checksum);
            }
            return Some(run);
        }
        let (current, place) = (self.record.current.as_ref()?, self.record.secret.as_ref()?);
        match self.seen.secrets.get(place) {
            Some(Secret::Ours { holds: Some(token), marks: Some(marks), .. })
                if marks.id == current.id && self.record.pending.is_none() =>
            {
                let (secret, url) = (place.clone(), self.seen.url.clone()?);
                Some(Run { secret, checksum: token.checksum.clone(), url })
            }
            _ => None,
        }
    }

    /// Whether everything is as it was left, by what is recorded alone. Nothing is asked then.
    fn is_at_rest(&self, wanted: &Wanted) -> bool {
        let (seen, record) = (self.seen, self.record);
        let (Some(current), Some(workload), Ok(target)) = (&record.current, &seen.workload, &seen.target)
        else {
            return false;
        };
        let Some(Secret::Ours { holds: Some(token), marks: Some(marks), .. }) =
            seen.secrets.get(&wanted.secret)
        else {
            return false;
        };
        let is_wanted = current.place == *target
            && current.name.eq_ignore_ascii_case(&wanted.name)
            && record.secret.as_ref() == Some(&wanted.secret)
            && marks.id == current.id;
        let pods_have_it = workload.run.secret == wanted.secret
            && Some(&workload.run.url) == seen.url.as_ref()
            && workload.run.checksum == token.checksum;
        let nothing_else = record.pending.is_none()
            && record.stale.is_empty()
            && retire::leftovers(self, &wanted.secret).next().is_none();
        !seen.verify_due && seen.is_held && is_wanted && pods_have_it && nothing_else
    }
}
