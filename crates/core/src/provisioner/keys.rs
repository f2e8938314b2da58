//! The provisioner key of a pool: made before the last one is broken, identified by what proves it, deleted when nothing
//! uses it any more.
//!
//! coderd shows the material of a key once and cannot change a key, so that a rotation makes another key under a free name.
//! [`decide`] returns a query, after which it is called again, or the one thing to do next. Everything that is remembered
//! is in the [`KeyRecord`], which is the object's status, and in the annotations of the Secret. The process may die before
//! and after every effect; the next reconcile starts from what it finds.
//!
//! Ours are the keys whose UUID is on the status or in the annotations of our Secret; and one that has the announced name
//! and tags, was made after the announcement, and that no daemon ever connected with. No other key is touched. An answer
//! that is not definite rotates nothing and deletes nothing. No key is deleted before its successor is proven and every pod
//! that could hold it is gone.
//!
//! The caller guarantees the following:
//! - [`NextStep::Record`] is written with the resourceVersion that was decided on, and ends the reconcile.
//! - Before [`NextStep::Act`] the object, and the Secret of the effect, are read live; if either is not the one that was
//!   decided on, the reconcile ends. Keys are listed right before a deletion: coderd deletes by name.
//! - [`Decision::events`] are published before [`NextStep`] is done.
//! - [`Decision::run`] is what pods run with. The rest of the Deployment is no concern of the key.

mod decide;
mod evidence;
mod observed;
mod record;
mod replace;
mod retire;
pub mod tags;
#[cfg(test)]
mod tests;

pub use self::{
    decide::decide,
    observed::{
        Blocker, CONDITIONS, Claimant, Decision, Deletion, DesiredKey, Effect, FoundKey, KeyEffect, KeyMarks,
        KeyProof, KeyQuery, ListedKey, Listing, NextStep, ObservedKeys, Obstacle, Run, Secret, Version,
        Workload, leaving,
    },
    record::{KeyDetails, KeyIntent, KeyRecord, KeyRef, KeyScope, Organization, RetiredKey},
};
pub use crate::{
    credential::{CredentialProgress, CredentialVerdict},
    target::{CoderdTarget, Credentials, CredentialsKind, SecretDataRef},
};
