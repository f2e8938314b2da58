//! The registration of a workspace proxy and its token: made once, kept, given another token only when the one that there
//! is, is lost or dead.
//!
//! A pass is a loop, as it is for the keys of pools: [`decide`] says what to look at, and is asked again with what was
//! seen; or it says the one thing to do next. What is remembered is in the [`Record`], which is the object's status, and
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
//! - [`Next::Record`] is written with the resourceVersion that was decided on, and ends the pass.
//! - before [`Next::Do`] the object is read live; a Secret is written onto the version that was decided on.
//! - what [`Decision::notes`] says is told before [`Next`] is done.

mod called;
mod decide;
mod direct;
mod finding;
mod going;
mod record;
mod retire;
mod seen;
mod status;
mod step;
#[cfg(test)]
mod tests;
mod token;

pub use self::{
    decide::{CREDENTIALS_MISSING, DEPLOYMENT_CHANGED, URL_NOT_ALLOWED, decide, health},
    finding::{Finding, Stage, TOLD},
    record::{Pending, Record, Registration, Stale},
    seen::{Given, Listed, Listing, Marks, Proof, Secret, Seen, Token, Wanted, token_id},
    step::{Act, Decision, Health, Look, Next, Settings, Step},
};
