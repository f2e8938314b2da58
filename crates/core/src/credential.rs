//! The protocol of credentials in coderd: the key of a pool, the registration of a proxy.
//!
//! What is remembered ([`Record`]), how it is found again and deleted ([`retirement`]), the shape of a decision and what
//! status says of it are the same for both, and are here. Each kind decides by itself when its credential is replaced,
//! because there they have nothing in common: a key is shown once and cannot be changed, so that another one is made under
//! another name before the old one goes; a registration is renamed and gets another token in place.

mod record;
pub(crate) mod retirement;
mod status;
mod verdict;

use std::time::Duration;

pub(crate) use self::{
    record::recorded_time,
    retirement::{Retirement, Retiring, clean_up, retire},
};
pub use self::{
    record::{CredentialRef, Details, Intent, Record, Retired},
    retirement::Listed,
    status::{CredentialStanding, set_control_plane_ready, set_deleting, usable},
    verdict::{CredentialConditions, CredentialProgress, CredentialVerdict},
};
use crate::{
    outcome::{Blocker, EventNote},
    target::{Obstacle, SecretDataRef, Version},
    workload::Run,
};

/// What was decided. `Q` is what can be asked, `R` what is recorded, `E` what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<Q, R, E> {
    /// The one thing to do next.
    pub next: NextStep<Q, R, E>,
    /// What pods run with. None: there is no credential for them yet, or the object is being deleted.
    pub run: Option<Run>,
    /// What the conditions report.
    pub verdict: CredentialVerdict,
    /// When to reconcile again, if nothing else happens.
    pub again: Option<Duration>,
    /// Events, which are published before anything else is done.
    pub events: Vec<EventNote>,
}

impl<Q, R, E> Decision<Q, R, E> {
    /// Nothing is to be done.
    pub(crate) fn rest(run: Option<Run>, verdict: CredentialVerdict) -> Self {
        Self { next: NextStep::Done, run, verdict, again: None, events: Vec::new() }
    }
}

/// The next step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NextStep<Q, R, E> {
    /// Answer this and decide again.
    Ask(Q),
    /// Write the status. The reconcile ends.
    Record(Box<R>),
    /// Perform this, read the Secrets again and decide again.
    Act(Box<E>),
    /// Nothing is left in coderd, or events named what is left: the object may go.
    RemoveFinalizer,
    /// Nothing is to be done.
    Done,
}

impl<Q, R, E> NextStep<Q, R, E> {
    /// Whether another reconcile has something to do at once.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Act(_) | Self::RemoveFinalizer)
    }
}

/// An effect. `C` is what can be done in coderd, `M` what annotations of a Secret say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<C, M> {
    /// Add the finalizer to the object.
    AddFinalizer,
    /// Change something in coderd.
    Coderd(C),
    /// Copy the value of a Secret to another one.
    CopySecret {
        /// The Secret that is read.
        from: SecretDataRef,
        /// The Secret that is written.
        to: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: M,
    },
    /// Write the annotations of a Secret, and leave its data.
    AnnotateSecret {
        /// The Secret that is written.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: M,
    },
    /// Remove a data key that nothing reads any more, and with the last of ours the Secret.
    RemoveSecret {
        /// The data key.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
    },
}

/// Why a rule does not get to its end.
#[derive(Debug)]
pub(crate) enum Stop<Q, R, E> {
    /// This comes first.
    NextStep(Box<NextStep<Q, R, E>>),
    /// Something is in the way.
    Wait(CredentialVerdict),
}

impl<Q, R, E> Stop<Q, R, E> {
    pub(crate) fn ask(query: Q) -> Self {
        Self::NextStep(Box::new(NextStep::Ask(query)))
    }

    pub(crate) fn act(effect: E) -> Self {
        Self::NextStep(Box::new(NextStep::Act(Box::new(effect))))
    }

    pub(crate) fn record(record: R) -> Self {
        Self::NextStep(Box::new(NextStep::Record(Box::new(record))))
    }

    pub(crate) fn unsure(blocker: &Blocker) -> Self {
        Self::Wait(CredentialVerdict::unsure(blocker))
    }
}

/// A Secret, read live. `H` is what may be known of its content, `M` what its annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret<H, M> {
    /// It does not exist.
    Absent,
    /// It is ours: it has our owner reference, or was handed over.
    Ours {
        /// resourceVersion, which a write expects.
        version: String,
        /// What the data key holds. None: nothing, or an empty value.
        holds: Option<H>,
        /// The annotations that identify its content. None: it has none of ours.
        marks: Option<M>,
    },
    /// It cannot be written.
    Blocked(Obstacle),
    /// It could not be read.
    Unknown(Blocker),
}

impl<H, M> Secret<H, M> {
    /// The version that a write expects, or why it cannot be written. `field` of the spec chooses another Secret.
    pub(crate) fn writable(
        this: Option<&Self>,
        place: &SecretDataRef,
        field: &str,
    ) -> Result<Version, CredentialVerdict> {
        match this {
            Some(Self::Ours { version, .. }) => Ok(Version::Is(version.clone())),
            Some(Self::Blocked(obstacle)) => Err(CredentialVerdict::blocked(place, obstacle, field)),
            Some(Self::Unknown(blocker)) => Err(CredentialVerdict::unsure(blocker)),
            Some(Self::Absent) | None => Ok(Version::Absent),
        }
    }
}

/// The credentials of one kind that coderd lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing<T> {
    /// Everything that the operator's credentials may see.
    Known(Vec<T>),
    /// coderd gave no definite answer.
    Unknown(Blocker),
    /// Nothing is left to ask with: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
}
