//! The registration of a workspace proxy and its token: made once, kept, given another token only when the one that there
//! is, is lost or dead.
//!
//! A pass is a loop, as it is for the keys of pools: [`decide`] says what to look at, and is asked again with what was
//! seen; or it says the one thing to do next. What is remembered is in the [`RegistrationRecord`], which is the object's status, and
//! in the annotations of the Secret. The process may die before and after every effect.
//!
//! A token says itself which registration it is for. A registration is ours if its UUID is on the status, in the
//! annotations of our Secret or in the token that our Secret holds; or if it bears a name that was announced when it was
//! free, was made after that, and no proxy ever ran with it. Everybody else's is never touched.
//!
//! What is never done: an answer that is not definite makes no token and deletes nothing. No registration and no token is
//! made that the status does not announce. No registration is deleted before its successor runs.
//!
//! What the one who carries it out must hold to:
//! - [`NextStep::Record`] is written with the resourceVersion that was decided on, and ends the pass.
//! - before [`NextStep::Act`] the object is read live; a Secret is written onto the version that was decided on.
//! - what [`Decision::events`] says is told before [`NextStep`] is done.

mod decide;
mod deletion;
mod direct;
mod effect;
mod naming;
mod observed;
mod record;
mod retire;
mod status;
#[cfg(test)]
mod tests;
mod token;
mod verdict;

pub use self::{
    decide::{decide, health},
    effect::{Decision, Effect, Health, NextStep, ProxyProfile, RegistrationEffect, RegistrationQuery},
    observed::{
        DesiredRegistration, ListedProxy, Listing, ObservedRegistration, RegistrationMarks, Secret,
        SuppliedToken, TokenFacts, TokenProof, token_id,
    },
    record::{RegistrationIntent, RegistrationRecord, RegistrationRef, RetiredRegistration},
    verdict::{CONDITIONS, CredentialProgress, CredentialVerdict},
};
