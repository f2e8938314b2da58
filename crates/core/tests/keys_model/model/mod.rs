//! A model of everything around the provisioner key protocol, and an exhaustive search of what can happen in it.
//!
//! The machine under test is `decide` itself. The world around it is modelled: two coderds, two Secrets, a Deployment
//! with pods that read the Secret when they start, a user who edits, other people who make, delete and replace keys,
//! damage the Secret or the status, and an operator that can die, or lose an answer, at every effect.
//!
//! The search is our own: breadth first, with a set of 128-bit fingerprints. A library for it would bring its own
//! notion of actors and a web server; what is needed is a queue, a set, and a way to say how a state came about. It
//! also lets convergence be checked cheaply: a state is good if the next undisturbed step leads to a good state.
//!
//! Abstractions, each on the side of more behaviour: times are either before or long after the deadlines of the
//! protocol, except that a request under way ends before they pass, and before a later one is answered; a status is written by compare-and-swap, so that
//! it is one step; keys of others are as young as ours. One race is left out, since no client of coderd can close it:
//! coderd deletes by name, and somebody may replace a key between the last listing and the deletion.

// Everything in the model that can be two things is a bool: the state stays small.
#![allow(clippy::struct_excessive_bools)]

pub mod act;
pub mod environment;
pub mod observe;
pub mod properties;
pub mod search;
pub mod world;

pub use self::{
    search::search,
    world::{Limits, Start},
};
