//! What to say about a credential of an object in coderd: the key of a pool, the registration of a proxy.

use crate::{
    condition::Conditions,
    outcome::Blocker,
    target::{Obstacle, SecretDataRef},
};
use coder_k8s_api::Reason;

/// How things stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialVerdict {
    /// How far it is.
    pub stage: CredentialProgress,
    /// One word.
    pub reason: Reason,
    /// A sentence, the same from try to try.
    pub message: String,
    /// Whether the wanted Secret holds the credential. None: not known, and said as before.
    pub in_place: Option<bool>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialProgress {
    /// The credential is as the spec asks, and in its Secret.
    Ready,
    /// It is being made.
    Working,
    /// It cannot be told, or something that may pass is in the way. What works is left as it is.
    Unsure,
    /// Only a person can help.
    Stalled,
}

/// The conditions that a finding is told by.
#[derive(Clone, Copy, Debug)]
pub struct CredentialConditions {
    /// Whether coderd knows the credential.
    pub known: &'static str,
    /// Whether the Secret holds it.
    pub in_place: &'static str,
    /// What is said when it does.
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

    /// The Secret cannot be written. `field` chooses another one.
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

    /// The same, held up by something that may pass.
    #[must_use]
    pub fn delayed(self, blocker: Blocker) -> Self {
        let Blocker { reason, message, retry: _ } = blocker;
        if self.is_ready() { self } else { Self { reason, message, ..self } }
    }

    /// Whether what the spec asks of the credential is true.
    pub fn is_ready(&self) -> bool {
        self.stage == CredentialProgress::Ready
    }

    /// Says it. What worked before and cannot be told now stays said as it was.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>, told: &CredentialConditions) {
        let worked = |type_: &str| conditions.said(type_).is_some_and(|said| said.status == "True");
        let keep = self.stage == CredentialProgress::Unsure && worked(told.known);
        if !keep {
            conditions.set(told.known, self.is_ready(), self.reason, self.message.clone());
        }
        match self.in_place {
            Some(true) => conditions.set(told.in_place, true, Reason::SecretReady, told.held),
            Some(false) => conditions.set(told.in_place, false, self.reason, self.message.clone()),
            None => {}
        }
    }
}
