//! What the conditions report about a credential in coderd.

use crate::{
    condition::Conditions,
    outcome::Blocker,
    target::{Obstacle, SecretDataRef},
};
use coder_k8s_api::Reason;

/// The state of a credential, as conditions report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialVerdict {
    /// How far the credential has come.
    pub stage: CredentialProgress,
    /// For the condition.
    pub reason: Reason,
    /// For the condition. The same text on every retry, so that the status is not rewritten.
    pub message: String,
    /// Whether the wanted Secret holds the credential. None: not known, and the condition stays as it is.
    pub in_place: Option<bool>,
}

/// How far a credential has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialProgress {
    /// The credential is as the spec asks, and in its Secret.
    Ready,
    /// It is being made.
    Working,
    /// The state is unknown, or a blocker may pass. What works is left as it is.
    Unsure,
    /// Nothing moves until a person changes something.
    Stalled,
}

/// The condition types of one kind of credential.
#[derive(Clone, Copy, Debug)]
pub struct CredentialConditions {
    /// Whether coderd knows the credential.
    pub known: &'static str,
    /// Whether the Secret holds it.
    pub in_place: &'static str,
    /// Message of `in_place` when it is true.
    pub held: &'static str,
}

impl CredentialVerdict {
    pub(crate) fn ready(reason: Reason, message: impl Into<String>) -> Self {
        Self { stage: CredentialProgress::Ready, reason, message: message.into(), in_place: Some(true) }
    }

    pub(crate) fn working(reason: Reason, message: impl Into<String>) -> Self {
        Self { stage: CredentialProgress::Working, reason, message: message.into(), in_place: None }
    }

    pub(crate) fn unsure(blocker: &Blocker) -> Self {
        let Blocker { reason, message, retry: _ } = blocker;
        Self { stage: CredentialProgress::Unsure, reason: *reason, message: message.clone(), in_place: None }
    }

    pub(crate) fn stalled(reason: Reason, message: impl Into<String>) -> Self {
        Self { stage: CredentialProgress::Stalled, reason, message: message.into(), in_place: None }
    }

    /// The Secret cannot be written. `field` of the spec chooses another one.
    pub(crate) fn blocked(place: &SecretDataRef, obstacle: &Obstacle, field: &str) -> Self {
        let name = &place.name;
        let message = match obstacle {
            Obstacle::Foreign(hand_over) => format!(
                "Secret {name} exists and belongs to somebody else; choose another name with {field}, or hand it over \
                 with the annotation {hand_over}"
            ),
            Obstacle::Immutable => {
                format!("Secret {name} is immutable; delete it, so that it is written anew")
            }
        };
        let reason = match obstacle {
            Obstacle::Foreign(_) => Reason::ForeignObject,
            Obstacle::Immutable => Reason::SecretImmutable,
        };
        Self { in_place: Some(false), ..Self::stalled(reason, message) }
    }

    /// An unknown state leaves an object as ready as it was; but not if its own record says that something else is wanted.
    pub(crate) fn unless_recorded(self, is_wanted_on_record: bool) -> Self {
        match self.stage {
            CredentialProgress::Unsure if !is_wanted_on_record => {
                Self { stage: CredentialProgress::Working, ..self }
            }
            _ => self,
        }
    }

    /// The same verdict with the blocker of the last effect as its reason.
    #[must_use]
    pub fn delayed(self, blocker: Blocker) -> Self {
        let Blocker { reason, message, retry: _ } = blocker;
        if self.is_ready() { self } else { Self { reason, message, ..self } }
    }

    /// Whether the credential is as the spec asks.
    pub fn is_ready(&self) -> bool {
        self.stage == CredentialProgress::Ready
    }

    /// Sets the conditions. Keeps a true condition when the current state is unknown.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>, types: &CredentialConditions) {
        let worked = |type_: &str| conditions.said(type_).is_some_and(|said| said.status == "True");
        let keep = self.stage == CredentialProgress::Unsure && worked(types.known);
        if !keep {
            conditions.set(types.known, self.is_ready(), self.reason, self.message.clone());
        }
        match self.in_place {
            Some(true) => conditions.set(types.in_place, true, Reason::SecretReady, types.held),
            Some(false) => conditions.set(types.in_place, false, self.reason, self.message.clone()),
            None => {}
        }
    }
}
