//! How far the rollout of a Deployment has come, with the reason and message for conditions.

use coder_k8s_api::Reason;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};

/// The reason of the condition `Progressing` once a template has rolled out. Scaling does not change it.
const NEW_REPLICA_SET_AVAILABLE: &str = "NewReplicaSetAvailable";

/// The progress of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The stage.
    pub stage: RolloutStage,
    /// Desired pods.
    pub desired: i32,
    /// Existing pods.
    pub replicas: i32,
    /// Ready pods.
    pub ready: i32,
}

/// The stage of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStage {
    /// There is no Deployment.
    Missing,
    /// Every pod is of the newest template and available.
    Complete,
    /// No pod is asked for, and none is left.
    ScaledToZero,
    /// Every pod is of the newest template, which has rolled out before. Some are ready, and more are starting.
    Scaling,
    /// The controller works on it, or has not seen the newest generation yet.
    Progressing,
    /// Somebody paused it.
    Paused,
    /// The API server refuses to create pods; its message.
    Refused(String),
    /// No progress within `progressDeadlineSeconds`; the message of the Deployment.
    DeadlineExceeded(String),
}

impl Rollout {
    /// How far a Deployment has come.
    pub fn of(deployment: Option<&Deployment>) -> Self {
        let Some(deployment) = deployment else {
            return Self { stage: RolloutStage::Missing, desired: 0, replicas: 0, ready: 0 };
        };
        let spec = deployment.spec.as_ref();
        let status = deployment.status.clone().unwrap_or_default();
        let desired = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let [replicas, ready, updated, available] =
            [status.replicas, status.ready_replicas, status.updated_replicas, status.available_replicas]
                .map(|count| count.unwrap_or(0));
        let observed = status.observed_generation >= deployment.metadata.generation;
        let condition = |type_: &str, state: &str| {
            let conditions = status.conditions.iter().flatten();
            conditions.filter(|c| c.type_ == type_ && c.status == state).find_map(sentence)
        };
        let stalled = condition("Progressing", "False");
        let stage = if !observed {
            RolloutStage::Progressing
        } else if updated == desired && replicas == desired && available == desired {
            if desired == 0 { RolloutStage::ScaledToZero } else { RolloutStage::Complete }
        } else if let Some(why) = stalled {
            RolloutStage::DeadlineExceeded(why)
        } else if let Some(why) = condition("ReplicaFailure", "True") {
            RolloutStage::Refused(why)
        } else if spec.is_some_and(|spec| spec.paused == Some(true)) {
            RolloutStage::Paused
        } else {
            RolloutStage::Progressing
        };
        Self { stage, desired, replicas, ready }
    }

    /// How far a Deployment has come whose replicas the operator scales: it does not stop being ready while pods are added to
    /// those that are.
    pub fn of_scaled(deployment: Option<&Deployment>) -> Self {
        let rollout = Self::of(deployment);
        let status = deployment.and_then(|deployment| deployment.status.clone()).unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        let has_rolled_out = conditions.any(|condition| {
            condition.type_ == "Progressing" && condition.reason.as_deref() == Some(NEW_REPLICA_SET_AVAILABLE)
        });
        let is_observed =
            deployment.is_some_and(|deployment| status.observed_generation >= deployment.metadata.generation);
        let is_updated = status.updated_replicas.unwrap_or(0) == status.replicas.unwrap_or(0);
        let is_scaling = matches!(rollout.stage, RolloutStage::Progressing | RolloutStage::Refused(_))
            && has_rolled_out
            && is_observed
            && is_updated
            && rollout.ready > 0;
        if is_scaling { Self { stage: RolloutStage::Scaling, ..rollout } } else { rollout }
    }

    /// Whether there is nothing left to wait for.
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, RolloutStage::Complete | RolloutStage::ScaledToZero | RolloutStage::Scaling)
    }

    /// Whether only a person can continue it.
    pub fn is_stalled(&self) -> bool {
        matches!(self.stage, RolloutStage::DeadlineExceeded(_) | RolloutStage::Paused)
    }

    /// The reason for conditions.
    pub fn reason(&self) -> Reason {
        match self.stage {
            RolloutStage::Missing => Reason::Pending,
            RolloutStage::Complete | RolloutStage::Scaling => Reason::RolledOut,
            RolloutStage::ScaledToZero => Reason::ScaledToZero,
            RolloutStage::Progressing => Reason::Progressing,
            RolloutStage::Paused => Reason::DeploymentPaused,
            RolloutStage::Refused(_) => Reason::PodsRefused,
            RolloutStage::DeadlineExceeded(_) => Reason::ProgressDeadlineExceeded,
        }
    }

    /// The message for conditions.
    pub fn message(&self) -> String {
        let Self { stage, desired, ready, .. } = self;
        let pods = format!("{ready} of {desired} pods are ready");
        match stage {
            RolloutStage::Missing => "waiting for the Deployment to be written".to_owned(),
            RolloutStage::Complete | RolloutStage::Scaling => pods,
            RolloutStage::ScaledToZero => "no pods are desired".to_owned(),
            RolloutStage::Progressing => format!("rolling out: {pods}"),
            RolloutStage::Paused => {
                format!(
                    "somebody paused the rollout of the Deployment; run kubectl rollout resume to continue it: {pods}"
                )
            }
            RolloutStage::Refused(why) => format!("the API server refuses to create pods: {why}"),
            RolloutStage::DeadlineExceeded(why) => format!("the rollout makes no progress: {why}; {pods}"),
        }
    }
}

fn sentence(condition: &DeploymentCondition) -> Option<String> {
    condition.message.clone().or_else(|| condition.reason.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "so that tests read as tables")]
    fn stage(generation: i64, spec: Value, status: Value) -> RolloutStage {
        let deployment = json!({
            "metadata": {"generation": generation}, "spec": spec, "status": status,
        });
        let mut deployment = deployment;
        deployment["spec"]["selector"] = json!({});
        deployment["spec"]["template"] = json!({});
        Rollout::of(Some(&serde_json::from_value(deployment).unwrap())).stage
    }

    fn counts(observed: i64, replicas: i32, updated: i32, ready: i32) -> Value {
        json!({"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated,
            "readyReplicas": ready, "availableReplicas": ready})
    }

    #[test]
    fn a_rollout_is_complete_only_when_every_pod_is_new_and_available() {
        let two = json!({"replicas": 2});
        assert_eq!(stage(3, two.clone(), counts(3, 2, 2, 2)), RolloutStage::Complete);
        assert_eq!(stage(3, two.clone(), counts(2, 2, 2, 2)), RolloutStage::Progressing, "not seen yet");
        assert_eq!(
            stage(3, two.clone(), counts(3, 3, 2, 3)),
            RolloutStage::Progressing,
            "an old pod is left"
        );
        assert_eq!(stage(3, two.clone(), counts(3, 2, 1, 2)), RolloutStage::Progressing, "one is old");
        assert_eq!(stage(3, two, counts(3, 2, 2, 1)), RolloutStage::Progressing, "one is not ready");
        assert_eq!(stage(1, json!({"replicas": 0}), counts(1, 0, 0, 0)), RolloutStage::ScaledToZero);
        assert_eq!(stage(1, json!({"replicas": 0}), counts(1, 1, 1, 1)), RolloutStage::Progressing);
        assert_eq!(stage(1, json!({}), json!({})), RolloutStage::Progressing);
        assert_eq!(Rollout::of(None).stage, RolloutStage::Missing);
    }

    #[test]
    fn a_deadline_a_refusal_and_a_pause_are_told_apart() {
        let with = |type_: &str, status: &str| {
            let mut all = counts(1, 1, 1, 0);
            all["conditions"] = json!([{"type": type_, "status": status, "reason": "R", "message": "why"}]);
            all
        };
        let one = json!({"replicas": 1});
        assert_eq!(
            stage(1, one.clone(), with("Progressing", "False")),
            RolloutStage::DeadlineExceeded("why".into())
        );
        assert_eq!(
            stage(1, one.clone(), with("ReplicaFailure", "True")),
            RolloutStage::Refused("why".into())
        );
        assert_eq!(
            stage(1, json!({"replicas": 1, "paused": true}), with("Progressing", "Unknown")),
            RolloutStage::Paused
        );
        assert_eq!(stage(1, one.clone(), with("Progressing", "True")), RolloutStage::Progressing);
        assert_eq!(
            stage(2, one, with("Progressing", "False")),
            RolloutStage::Progressing,
            "what was said of the last generation is not said of this one"
        );
    }
}
