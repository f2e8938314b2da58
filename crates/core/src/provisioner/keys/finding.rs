//! What to say about a pool's key.

use coder_k8s_api::condition::{kind, reason};

use super::{
    place::SecretPlace,
    seen::{Obstacle, Trouble},
};
use crate::condition::Conditions;

/// How things stand with the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How far it is.
    pub stage: Stage,
    /// One word.
    pub reason: &'static str,
    /// A sentence, the same from try to try.
    pub message: String,
    /// Whether the wanted Secret holds the key. None: not known, and said as before.
    pub in_place: Option<bool>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The key is as the spec asks, and in its Secret.
    Ready,
    /// It is being made.
    Working,
    /// It cannot be told, or something that may pass is in the way. What works is left as it is.
    Unsure,
    /// Only a person can help.
    Stalled,
}

impl Finding {
    pub(super) fn ready() -> Self {
        let message = "the key is known to coderd and in its Secret".to_owned();
        Self { stage: Stage::Ready, reason: "ProvisionerKeyReady", message, in_place: Some(true) }
    }

    pub(super) fn working(reason: &'static str, message: impl Into<String>) -> Self {
        Self { stage: Stage::Working, reason, message: message.into(), in_place: None }
    }

    pub(super) fn unsure(trouble: &Trouble) -> Self {
        let Trouble { reason, message } = trouble;
        Self { stage: Stage::Unsure, reason, message: message.clone(), in_place: None }
    }

    pub(super) fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self { stage: Stage::Stalled, reason, message: message.into(), in_place: None }
    }

    pub(super) fn blocked(place: &SecretPlace, obstacle: &Obstacle) -> Self {
        let name = &place.name;
        let message = match obstacle {
            Obstacle::Foreign(hand_over) => format!(
                "Secret {name} exists and belongs to somebody else; choose another name with spec.key.secretName, or \
                 hand it over with the annotation {hand_over}"
            ),
            Obstacle::Immutable => {
                format!("Secret {name} is immutable; delete it, so that it is written anew")
            }
        };
        let reason = match obstacle {
            Obstacle::Foreign(_) => reason::FOREIGN_OBJECT,
            Obstacle::Immutable => "SecretImmutable",
        };
        Self { in_place: Some(false), ..Self::stalled(reason, message) }
    }

    /// The same, held up by something that may pass.
    #[must_use]
    pub fn delayed(self, trouble: Trouble) -> Self {
        let Trouble { reason, message } = trouble;
        if self.is_ready() { self } else { Self { reason, message, ..self } }
    }

    /// Whether what the spec asks of the key is true.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Says it. What worked before and cannot be told now stays said as it was.
    pub fn tell(&self, conditions: &mut Conditions<'_>) {
        let worked = |type_: &str| conditions.said(type_).is_some_and(|said| said.status == "True");
        let keep = self.stage == Stage::Unsure && worked(kind::PROVISIONER_KEY_READY);
        if !keep {
            let message = self.message.clone();
            conditions.set(kind::PROVISIONER_KEY_READY, self.is_ready(), self.reason, message);
        }
        match self.in_place {
            Some(true) => {
                let message = "the Secret holds the key";
                conditions.set(kind::PROVISIONER_KEY_SECRET_READY, true, "SecretReady", message);
            }
            Some(false) => {
                let message = self.message.clone();
                conditions.set(kind::PROVISIONER_KEY_SECRET_READY, false, self.reason, message);
            }
            None => {}
        }
    }
}
