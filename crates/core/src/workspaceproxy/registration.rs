//! The registration of a workspace proxy and its token: made once, kept, and given another token only when the one in the
//! Secret is lost or dead.
//!
//! Unlike a provisioner key, a registration can be renamed and its token regenerated in place, so that there is one for
//! each coderd that the spec leads to. [`decide`] returns a query, after which it is called again, or the one thing to do
//! next. What is remembered is in the [`RegistrationRecord`], which is the object's status, and in the annotations of the
//! Secret. The process may die before and after every effect.
//!
//! A token names its registration. A registration is ours if its UUID is on the status, in the annotations of our Secret
//! or in the token that our Secret holds; or if it has a name that was announced when it was free, was made after that, and
//! no proxy ever ran with it. No other registration is touched. An answer that is not definite makes no token and deletes
//! nothing. No registration is deleted before its successor runs.
//!
//! The caller guarantees the following:
//! - [`NextStep::Record`] is written with the resourceVersion that was decided on, and ends the reconcile.
//! - Before [`NextStep::Act`] the object is read live; a Secret is written onto the version that was decided on.
//! - [`Decision::events`] are published before [`NextStep`] is done.

mod decide;
mod observed;
mod record;
mod register;
mod retire;
#[cfg(test)]
mod tests;

pub use self::{
    decide::{decide, health},
    observed::{
        CONDITIONS, Decision, DesiredRegistration, Effect, Health, ListedProxy, Listing, NextStep,
        ObservedRegistration, ProxyProfile, RegistrationEffect, RegistrationMarks, RegistrationQuery, Secret,
        SuppliedToken, TokenFacts, TokenProof, token_id,
    },
    record::{
        RegistrationDetails, RegistrationIntent, RegistrationRecord, RegistrationRef, RetiredRegistration,
    },
};
pub use crate::credential::{CredentialProgress, CredentialVerdict};
