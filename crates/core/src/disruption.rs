//! How many pods may be disrupted at once.

use std::collections::BTreeMap;

use coder_k8s_api::DisruptionBudget;
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::core::ObjectMeta;

/// The budget, if there is to be one: when asked for, or when there is more than one pod.
///
/// Pods that are not ready may always be evicted: else a broken rollout would block the drain of a node.
pub fn budget(
    name: &str,
    settings: Option<&DisruptionBudget>,
    replicas: i32,
    selector: &BTreeMap<String, String>,
) -> Option<PodDisruptionBudget> {
    let settings = settings.cloned().unwrap_or_default();
    if !settings.enabled.unwrap_or(replicas > 1) {
        return None;
    }
    let DisruptionBudget { enabled: _, min_available, max_unavailable } = settings;
    let one = min_available.is_none().then_some(IntOrString::Int(1));
    let spec = PodDisruptionBudgetSpec {
        selector: Some(LabelSelector { match_labels: Some(selector.clone()), ..LabelSelector::default() }),
        max_unavailable: max_unavailable.or(one),
        min_available,
        unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
    };
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    Some(PodDisruptionBudget { metadata, spec: Some(spec), status: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(settings: serde_json::Value, replicas: i32) -> Option<PodDisruptionBudgetSpec> {
        let settings = serde_json::from_value(settings).unwrap();
        budget("coder", Some(&settings), replicas, &BTreeMap::new()).and_then(|budget| budget.spec)
    }

    #[test]
    fn there_is_a_budget_as_soon_as_there_is_something_to_protect() {
        assert!(budget("coder", None, 1, &BTreeMap::new()).is_none());
        assert_eq!(
            budget("coder", None, 2, &BTreeMap::new()).unwrap().spec.unwrap().max_unavailable,
            Some(IntOrString::Int(1))
        );
        assert!(made(serde_json::json!({"enabled": false}), 5).is_none());
        let asked = made(serde_json::json!({"enabled": true, "minAvailable": "50%"}), 1).unwrap();
        assert_eq!(asked.min_available, Some(IntOrString::String("50%".into())));
        assert_eq!(asked.max_unavailable, None);
    }
}
