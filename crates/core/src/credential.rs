//! A credential of an object in coderd: the key of a pool, the registration of a proxy.
//!
//! Each has a protocol of its own, which decides in the words of this module: what to look at, what to put on record,
//! what to do next, and what pods are to run with in the meantime.

mod status;

use std::time::Duration;

pub use self::status::{Standing, say_control_plane, say_going, usable};
use crate::{
    finding::Finding,
    outcome::{Note, Trouble},
    place::{Obstacle, SecretPlace, Version},
    workload::Run,
};

/// What was decided. `L` is what can be looked at, `R` what is recorded, `S` what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<L, R, S> {
    /// What is next.
    pub next: Next<L, R, S>,
    /// What pods are to run with. None: there is no credential for them yet, or the object is going.
    pub run: Option<Run>,
    /// What to say.
    pub finding: Finding,
    /// When to look again, if nothing else happens.
    pub again: Option<Duration>,
    /// What to tell people, before anything else is done.
    pub notes: Vec<Note>,
}

impl<L, R, S> Decision<L, R, S> {
    /// Nothing is to be done.
    pub(crate) fn rest(run: Option<Run>, finding: Finding) -> Self {
        Self { next: Next::Rest, run, finding, again: None, notes: Vec::new() }
    }
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next<L, R, S> {
    /// Look, and decide again.
    Look(L),
    /// Write the status. The pass ends.
    Record(Box<R>),
    /// Do this. The pass ends.
    Do(Box<S>),
    /// Nothing is left outside, or what is left was named: the object may go.
    Release,
    /// Nothing.
    Rest,
}

impl<L, R, S> Next<L, R, S> {
    /// Whether another pass has something to do at once.
    pub fn goes_on(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Do(_) | Self::Release)
    }
}

/// An effect. `A` is what can be done in coderd, `M` what annotations say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step<A, M> {
    /// Put the finalizer on the object.
    Hold,
    /// Change something in coderd.
    Coderd(A),
    /// Copy what a Secret holds, with its annotations, from one place to another.
    Copy {
        /// From here.
        from: SecretPlace,
        /// To here.
        to: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: M,
    },
    /// Write the annotations of a Secret anew, and leave its data.
    Annotate {
        /// Which.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: M,
    },
    /// Take a place that nothing reads any more: its data key, and with the last of ours the Secret.
    Remove {
        /// Which.
        secret: SecretPlace,
        /// The Secret that is expected there.
        version: Version,
    },
}

/// Why a rule does not get to its end.
#[derive(Debug)]
pub(crate) enum Stop<L, R, S> {
    /// This comes first.
    Next(Box<Next<L, R, S>>),
    /// Something is in the way.
    Wait(Finding),
}

impl<L, R, S> Stop<L, R, S> {
    pub(crate) fn look(look: L) -> Self {
        Self::Next(Box::new(Next::Look(look)))
    }

    pub(crate) fn step(step: S) -> Self {
        Self::Next(Box::new(Next::Do(Box::new(step))))
    }

    pub(crate) fn record(record: R) -> Self {
        Self::Next(Box::new(Next::Record(Box::new(record))))
    }

    pub(crate) fn unsure(trouble: &Trouble) -> Self {
        Self::Wait(Finding::unsure(trouble))
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
    Unknown(Trouble),
}

impl<H, M> Secret<H, M> {
    /// The version that a write expects, or why it cannot be written. `field` of the spec chooses another Secret.
    pub(crate) fn writable(
        this: Option<&Self>,
        place: &SecretPlace,
        field: &str,
    ) -> Result<Version, Finding> {
        match this {
            Some(Self::Ours { version, .. }) => Ok(Version::Is(version.clone())),
            Some(Self::Blocked(obstacle)) => Err(Finding::blocked(place, obstacle, field)),
            Some(Self::Unknown(trouble)) => Err(Finding::unsure(trouble)),
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
    Unknown(Trouble),
    /// Nothing is left to ask with: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
}
