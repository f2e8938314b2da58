//! The provisioner key of a pool: made before the last one is broken, known by what proves it, deleted when nothing
//! uses it any more.
//!
//! A pass is a loop: [`decide`] says what to look at, and is asked again with what was seen; or it says the one thing to
//! do next. Everything that is remembered is in the [`KeyRecord`], which is the object's status, and in the annotations of
//! the Secret. The process may die before and after every effect; the next pass starts from what it finds.
//!
//! What is never done: an answer that is not definite rotates nothing and deletes nothing. A key that is not ours by
//! the rules of [`ours`] is not touched. No key is deleted before its successor is proven and every pod that could hold
//! it is gone. No key is made that the status does not announce.
//!
//! What the one who carries it out must hold to:
//! - [`NextStep::Record`] is written with the resourceVersion that was decided on, and ends the pass.
//! - before [`NextStep::Act`] the object, and the Secret of the step, are read live; if either is not the one that was
//!   decided on, the pass ends. A listing is taken right before a deletion: coderd deletes by name.
//! - what [`Decision::events`] says is told before [`NextStep`] is done.
//! - [`Decision::run`] is what pods are to run with. The rest of the Deployment is no concern of the key.

mod decide;
mod deletion;
mod effect;
mod evidence;
mod observed;
pub mod ownership;
mod record;
mod replace;
mod retire;
mod settle;
mod status;
pub mod tags;
mod target;
#[cfg(test)]
mod tests;
mod verdict;

pub use self::{
    decide::decide,
    effect::{Decision, Effect, KeyEffect, KeyQuery, NextStep, leaving},
    observed::{
        Blocker, Claimant, Deletion, DesiredKey, FoundKey, KeyMarks, KeyProof, ListedKey, Listing,
        ObservedKeys, Obstacle, Run, Secret, Version, Workload,
    },
    record::{KeyIntent, KeyRecord, ProvisionerKeyRecord, RetiredKey},
    target::{CoderdTarget, Credentials, CredentialsKind, KeyScope, Organization, SecretDataRef},
    verdict::{CONDITIONS, CredentialProgress, CredentialVerdict},
};
