//! Models of everything around the credential protocols, and an exhaustive search of what can happen in them.
//!
//! The machines under test are `decide` of provisioner keys and `decide` of proxy registrations. The world around them is
//! modelled: two coderds, two Secrets, a Deployment with pods that read the Secret when they start, a user who edits,
//! other people who make, delete and replace credentials and damage the Secret or the status, and an operator that can
//! die, or lose a reply, at every effect.
//!
//! Abstractions, each on the side of more behaviour: times are either before or long after the deadlines of the
//! protocol, except that a request under way ends before they pass, and before a later one is answered; a status is
//! written by compare-and-swap, so that it is one step.

// Everything in the models that can be two things is a bool: the states stay small.
#![allow(clippy::struct_excessive_bools)]

pub mod keys;
pub mod registrations;
pub mod search;

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
};

use coder_k8s_api::Reason;
use coder_k8s_core::{
    outcome::Blocker,
    target::{CoderdTarget, Version},
};
use jiff::Timestamp;

/// How much may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub edits: u8,
    /// Deaths of the operator and lost replies.
    pub crashes: u8,
    /// Damage to Secrets.
    pub damages: u8,
    /// What other people do in coderd.
    pub others: u8,
    /// Restarts of pods.
    pub restarts: u8,
    /// Losses of the status.
    pub losses: u8,
    pub deletions: u8,
}

impl Budget {
    pub const NONE: Self =
        Self { edits: 0, crashes: 0, damages: 0, others: 0, restarts: 0, losses: 0, deletions: 0 };
}

/// Where a search starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    New,
    /// The pods run, and nothing is left to do.
    Settled,
    /// Settled by the Go operator: no annotations, no deployment ID on status, another checksum on the pods.
    TakenOver,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub title: &'static str,
    pub start: Start,
    pub budget: Budget,
    /// Whether the user chose the name of the key. Registrations have no other names.
    pub chosen: bool,
    /// Whether every edit waits until the last one has settled.
    pub sequential: bool,
}

/// Whether the object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Alive,
    Deletion { overdue: bool },
    Gone,
}

/// How an effect goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Well,
    /// It happens, and the operator does not learn of it.
    Lost,
    /// The reply does not come; the effect happens later.
    Late,
    /// It does not happen: the process died before it, or the server refused.
    Dropped,
}

pub const HOWS: [How; 4] = [How::Well, How::Lost, How::Late, How::Dropped];

/// When everything that is recorded was recorded.
pub const THEN: i64 = 1_000_000;

pub fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or_default()
}

pub fn place(server: bool, address: bool) -> CoderdTarget {
    let name = if server { "b" } else { "a" };
    CoderdTarget {
        control_plane: name.to_owned(),
        url: format!("http://{name}{}", u8::from(address)),
        deployment_id: Some(format!("d-{name}")),
        credentials: None,
    }
}

/// Which coderd a target is.
pub fn server_of(target: &CoderdTarget) -> bool {
    target.control_plane == "b"
}

/// Which coderd an address leads to.
pub fn server_at(url: &str) -> bool {
    url.starts_with("http://b")
}

/// A resourceVersion: the same for the same content.
pub fn version(content: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{:x}", hasher.finish())
}

/// Whether a write that expects this version finds it.
pub fn is_expected(content: Option<&impl Hash>, expected: &Version) -> bool {
    match (content, expected) {
        (None, Version::Absent) => true,
        (Some(content), Version::Is(is)) => version(content) == *is,
        _ => false,
    }
}

pub fn silence() -> Blocker {
    Blocker::new(Reason::Unreachable, "no answer")
}
