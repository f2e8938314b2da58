//! What follows from what was observed of a credential, whatever the kind: what may be asked and written, and whether all is
//! as it was left.
//!
//! A rule that cannot go on stops with [`Stop`]: with the one thing to do first, or with what it waits for.

use coder_k8s_api::Reason;
use jiff::Timestamp;

use super::{
    CredentialKind, CredentialRef, CredentialVerdict, Details as _, Effect, Intent, Listing, NextStep,
    Observed, Query, Record, Retired, Secret,
};
use crate::{
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef, Version},
    workload::PodCredential,
};

/// Why a rule does not get to its end.
#[derive(Debug)]
pub(crate) enum Stop<K: CredentialKind> {
    /// This comes first.
    NextStep(Box<NextStep<K>>),
    /// Something is in the way.
    Wait(CredentialVerdict),
}

pub(crate) type Flow<K, T> = Result<T, Stop<K>>;

impl<K: CredentialKind> Stop<K> {
    pub(crate) fn ask(query: Query<K>) -> Self {
        Self::NextStep(Box::new(NextStep::Ask(query)))
    }

    pub(crate) fn act(effect: Effect<K>) -> Self {
        Self::NextStep(Box::new(NextStep::Act(Box::new(effect))))
    }

    pub(crate) fn record(record: Record<K::Details>) -> Self {
        Self::NextStep(Box::new(NextStep::WriteStatus(Box::new(record))))
    }

    /// coderd cannot be asked: until a person moves the object or its credentials, or else for now.
    pub(crate) fn blocked(blocker: &Blocker) -> Self {
        match blocker.reason {
            reason @ (Reason::UrlNotAllowed | Reason::DeploymentChanged) => {
                Self::Wait(CredentialVerdict::stalled(reason, blocker.message.clone()))
            }
            _ => Self::unsure(blocker),
        }
    }

    pub(crate) fn unsure(blocker: &Blocker) -> Self {
        Self::Wait(CredentialVerdict::unsure(blocker))
    }
}

/// What one decision rests on.
#[derive(Debug)]
pub(crate) struct Facts<'a, K: CredentialKind> {
    pub(crate) observed: &'a Observed<K>,
    pub(crate) record: &'a Record<K::Details>,
    pub(crate) now: Timestamp,
}

impl<'a, K: CredentialKind> Facts<'a, K> {
    pub(crate) fn new(observed: &'a Observed<K>, now: Timestamp) -> Self {
        Self { observed, record: &observed.record, now }
    }

    pub(crate) fn target(&self) -> Flow<K, &'a CoderdTarget> {
        self.observed.target.as_ref().map_err(Stop::blocked)
    }

    pub(crate) fn may_make(&self) -> Flow<K, ()> {
        let closed = |blocker: &Blocker| CredentialVerdict::working(blocker.reason, blocker.message.clone());
        self.observed.may_make.as_ref().map_err(|blocker| Stop::Wait(closed(blocker))).copied()
    }

    /// Adds the finalizer before anything is announced or made in coderd: without it the object could be deleted first.
    pub(crate) fn ensure_finalizer(&self) -> Flow<K, ()> {
        if self.observed.has_finalizer { Ok(()) } else { Err(Stop::act(Effect::AddFinalizer)) }
    }

    /// Makes the status say this: returns Ok if it does, and else stops with the write as the next step.
    pub(crate) fn ensure_recorded(&self, record: Record<K::Details>) -> Flow<K, ()> {
        if record == *self.record { Ok(()) } else { Err(Stop::record(record)) }
    }

    /// Puts on record what is about to be made. What was announced before is to go.
    pub(crate) fn announce(&self, credential: CredentialRef<K::Details>, reason: Reason) -> Stop<K> {
        let mut record = self.record.clone();
        record.drop_pending();
        record.pending = Some(Intent { credential, reason: reason.to_string(), since: self.now });
        Stop::record(record)
    }

    pub(crate) fn listing(&self, scope: &K::Scope) -> Flow<K, &'a [K::Listed]> {
        match self.observed.listings.get(scope) {
            None => Err(Stop::ask(Query::Listing(scope.clone()))),
            Some(Listing::Known(listing)) => Ok(listing),
            Some(Listing::Unknown(blocker)) => Err(Stop::blocked(blocker)),
            Some(Listing::Gone) => Err(Stop::unsure(&K::gone(scope))),
        }
    }

    /// The Secret that a write expects. Stops if it cannot be written.
    pub(crate) fn writable(&self, place: &SecretDataRef) -> Flow<K, Version> {
        match self.observed.secrets.get(place) {
            Some(Secret::Ours { version, .. }) => Ok(Version::Is(version.clone())),
            Some(Secret::Blocked(obstacle)) => {
                Err(Stop::Wait(CredentialVerdict::blocked(place, obstacle, K::SECRET_FIELD)))
            }
            Some(Secret::Unknown(blocker)) => Err(Stop::unsure(blocker)),
            Some(Secret::Absent) | None => Ok(Version::Absent),
        }
    }

    /// Stops if the annotations of a Secret of ours do not identify its content.
    pub(crate) fn ensure_annotated(&self, secret: &SecretDataRef, marks: K::Marks) -> Flow<K, ()> {
        match self.observed.secrets.get(secret) {
            Some(Secret::Ours { marks: have, .. }) if have.as_ref() != Some(&marks) => {
                let (secret, version) = (secret.clone(), self.writable(secret)?);
                Err(Stop::act(Effect::AnnotateSecret { secret, version, marks }))
            }
            _ => Ok(()),
        }
    }

    /// What a Secret of ours holds, and what its annotations say.
    pub(crate) fn held(&self, place: &SecretDataRef) -> Option<(&'a K::Held, Option<&'a K::Marks>)> {
        match self.observed.secrets.get(place)? {
            Secret::Ours { holds, marks, .. } => Some((holds.as_ref()?, marks.as_ref())),
            Secret::Absent | Secret::Blocked(_) | Secret::Unknown(_) => None,
        }
    }

    /// The removal of a Secret of ours that is not where the credential is wanted.
    pub(crate) fn leftover(&self, wanted: &SecretDataRef) -> Option<Effect<K>> {
        self.observed.secrets.iter().find_map(|(place, secret)| match secret {
            Secret::Ours { version, marks, .. } if K::is_leftover(place, wanted, marks.as_ref()) => {
                let (secret, version) = (place.clone(), Version::Is(version.clone()));
                Some(Effect::RemoveSecret { secret, version })
            }
            _ => None,
        })
    }

    /// The record with a credential to delete that so far only annotations know. `known` are coderds that it may be in.
    pub(crate) fn remember<'b>(
        &self,
        marks: &K::Marks,
        known: impl IntoIterator<Item = &'b CoderdTarget>,
    ) -> Record<K::Details> {
        let mut credential = K::marked(marks);
        let deployment_id = credential.target.deployment_id.clone();
        if let Some(target) = known.into_iter().find(|known| known.deployment_id == deployment_id) {
            credential.target = target.clone();
        }
        let mut record = self.record.clone();
        record.add_stale(Retired { credential, since: self.now, unused_since: None });
        record
    }

    /// What pods may start with before anything is proven: what the recorded Secret holds, if it bears the mark of the current
    /// credential.
    pub(crate) fn stored_pod_credential(&self, url: &str) -> Option<PodCredential> {
        let (current, place) = (self.record.current.as_ref()?, self.record.secret.as_ref()?);
        let (held, marks) = self.held(place)?;
        let marked = K::marked(marks?).id.filter(|id| Some(id) == current.id.as_ref());
        let checksum = K::checksums(held).first().filter(|_| marked.is_some())?;
        Some(PodCredential { secret: place.clone(), checksum: checksum.clone(), url: url.to_owned() })
    }

    /// Whether the recorded credential is what the spec asks for, as far as that can be told without asking.
    pub(crate) fn is_wanted_on_record(&self) -> bool {
        let (observed, record) = (self.observed, self.record);
        let Some((control_plane, secret)) = K::wanted(&observed.desired) else { return false };
        let is_there = |recorded: &CoderdTarget| match &observed.target {
            Ok(target) => recorded.is_same(target),
            Err(_) => recorded.control_plane == control_plane,
        };
        let is_wanted = |current: &CredentialRef<K::Details>| {
            is_there(&current.target) && K::is_wanted(&observed.desired, current)
        };
        record.pending.is_none()
            && self.holds_what_pods_have(secret)
            && record.secret.as_ref() == Some(secret)
            && record.current.as_ref().is_some_and(is_wanted)
    }

    /// Whether the Secret holds what the pods run with: only proven material gets there. A Secret that was edited or lost
    /// meanwhile is not what was verified. True if there are no pods to compare with, or the Secret cannot be read.
    pub(crate) fn holds_what_pods_have(&self, secret: &SecretDataRef) -> bool {
        let Some(workload) =
            self.observed.workload.as_ref().filter(|pods| pods.pod_credential.secret == *secret)
        else {
            return true;
        };
        match self.observed.secrets.get(secret) {
            Some(Secret::Ours { holds: Some(held), .. }) => {
                K::checksums(held).contains(&workload.pod_credential.checksum)
            }
            Some(Secret::Ours { holds: None, .. } | Secret::Absent) => false,
            Some(Secret::Blocked(_) | Secret::Unknown(_)) | None => true,
        }
    }

    /// The verdict, which says that the Secret does not hold the credential any more if that is so: somebody deleted or emptied
    /// it after it was stored there, or coderd no longer accepts what it holds (`is_dead`). What is under way may take long.
    pub(crate) fn weighed_against_loss(
        &self,
        secret: &SecretDataRef,
        is_dead: bool,
        verdict: CredentialVerdict,
    ) -> CredentialVerdict {
        let is_lost = is_dead
            || matches!(
                self.observed.secrets.get(secret),
                Some(Secret::Ours { holds: None, .. } | Secret::Absent)
            );
        if is_lost && self.record.secret.as_ref() == Some(secret) && verdict.in_place.is_none() {
            return CredentialVerdict { in_place: Some(false), ..verdict };
        }
        verdict
    }

    /// Whether everything is as it was left, by what is recorded alone. Nothing is asked then.
    pub(crate) fn is_at_rest(&self) -> bool {
        let (observed, record) = (self.observed, self.record);
        let Some((_, secret)) = K::wanted(&observed.desired) else { return false };
        let (Some(current), Some(workload), Ok(target), Some((held, Some(marks)))) =
            (&record.current, &observed.workload, &observed.target, self.held(secret))
        else {
            return false;
        };
        let secret_is_wanted = current.id.is_some() && K::marked(marks).id == current.id;
        let pods_have_it = workload.pod_credential.secret == *secret
            && Some(&workload.pod_credential.url) == K::url(observed)
            && K::checksums(held).contains(&workload.pod_credential.checksum);
        !observed.verify_due
            && observed.has_finalizer
            && self.is_wanted_on_record()
            && current.target == *target
            && current.details.is_complete()
            && secret_is_wanted
            && pods_have_it
            && record.stale.is_empty()
            && self.leftover(secret).is_none()
    }
}
