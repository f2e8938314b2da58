//! A credential of an object in coderd: the key of a pool, the registration of a proxy.
//!
//! Each has a protocol of its own, which decides in the words of this module: what to look at, what to put on record,
//! what to do next, and what pods are to run with in the meantime.

mod status;
mod verdict;

use std::time::Duration;

pub use self::{
    status::{CredentialStanding, set_control_plane_ready, set_deleting, usable},
    verdict::{CredentialConditions, CredentialProgress, CredentialVerdict},
};
use crate::{
    outcome::{Blocker, EventNote},
    target::{Obstacle, SecretDataRef, Version},
    workload::Run,
};

/// What was decided. `L` is what can be looked at, `R` what is recorded, `S` what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<Q, R, E> {
    /// What is next.
    pub next: NextStep<Q, R, E>,
    /// What pods are to run with. None: there is no credential for them yet, or the object is going.
    pub run: Option<Run>,
    /// What to say.
    pub verdict: CredentialVerdict,
    /// When to look again, if nothing else happens.
    pub again: Option<Duration>,
    /// What to tell people, before anything else is done.
    pub events: Vec<EventNote>,
}

impl<Q, R, E> Decision<Q, R, E> {
    /// Nothing is to be done.
    pub(crate) fn rest(run: Option<Run>, verdict: CredentialVerdict) -> Self {
        Self { next: NextStep::Done, run, verdict, again: None, events: Vec::new() }
    }
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NextStep<Q, R, E> {
    /// Look, and decide again.
    Ask(Q),
    /// Write the status. The pass ends.
    Record(Box<R>),
    /// Do this. The pass ends.
    Act(Box<E>),
    /// Nothing is left outside, or what is left was named: the object may go.
    RemoveFinalizer,
    /// Nothing.
    Done,
}

impl<Q, R, E> NextStep<Q, R, E> {
    /// Whether another pass has something to do at once.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Act(_) | Self::RemoveFinalizer)
    }
}

/// An effect. `A` is what can be done in coderd, `M` what annotations say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<C, M> {
    /// Put the finalizer on the object.
    AddFinalizer,
    /// Change something in coderd.
    Coderd(C),
    /// Copy what a Secret holds, with its annotations, from one place to another.
    CopySecret {
        /// From here.
        from: SecretDataRef,
        /// To here.
        to: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: M,
    },
    /// Write the annotations of a Secret anew, and leave its data.
    AnnotateSecret {
        /// Which.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: M,
    },
    /// Take a place that nothing reads any more: its data key, and with the last of ours the Secret.
    RemoveSecret {
        /// Which.
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

/// A Secret, read live. `H` is what can be told of what it holds, `M` what its annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret<H, M> {
    /// It does not exist.
    Absent,
    /// It is ours: it has our owner reference, or was handed over.
    Ours {
        /// Its resourceVersion.
        version: String,
        /// What it holds, if that is not empty.
        holds: Option<H>,
        /// What its annotations say.
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

/// What coderd lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing<T> {
    /// All of it that the credentials may see.
    Known(Vec<T>),
    /// No definite answer.
    Unknown(Blocker),
    /// Nothing is left to ask with: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
}
