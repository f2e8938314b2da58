//! Finds out why the pods of a stalled rollout do not run, for the message of a condition.
//!
//! Reads pods live and only when a rollout is stalled. The message never quotes what a container printed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, Client, ResourceExt, api::ListParams, core::Selector};

/// The most pods that are read, so that a large Deployment costs no more than a small one.
const MAX_PODS: u32 = 20;

/// Why a pod does not run: the newest pod that has a reason is quoted. None also if pods cannot be listed: the rollout is
/// reported as stalled in any case.
pub(crate) async fn failure_message(
    client: &Client,
    namespace: &str,
    selector: &BTreeMap<String, String>,
) -> Option<String> {
    let selector: Selector = selector.clone().into_iter().collect();
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut pods = api.list(&ListParams::default().labels_from(&selector).limit(MAX_PODS)).await.ok()?.items;
    pods.sort_by_key(|pod| std::cmp::Reverse(pod.creation_timestamp().map(|time| time.0)));
    pods.iter().find_map(pod_message)
}

fn pod_message(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False")
        .and_then(|c| c.message.clone());
    if let Some(why) = unscheduled {
        return Some(format!("a pod cannot be scheduled: {why}"));
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.filter(|container| !container.ready).find_map(container_message)
}

/// Why a container waits. The kubelet's message may quote the output of a program, for example in `CrashLoopBackOff`, so
/// that it is repeated only for reasons where the kubelet writes all of it itself.
fn container_message(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let is_kubelet_text = matches!(
        reason,
        "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "CreateContainerConfigError"
    );
    let message = waiting.message.as_deref().filter(|_| is_kubelet_text);
    match (reason, message) {
        // A pod that starts has not failed.
        ("ContainerCreating" | "PodInitializing", _) => None,
        (_, Some(message)) => Some(format!("container {}: {reason}: {message}", container.name)),
        (_, None) => Some(format!("container {}: {reason}", container.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    #[test]
    fn the_message_names_why_a_pod_does_not_run() {
        let waiting = |reason: &str, message: &str| {
            pod(
                &serde_json::json!({"containerStatuses": [{"name": "coder", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]}),
            )
        };
        assert_eq!(
            pod_message(&waiting("ImagePullBackOff", "Back-off pulling image \"x\"")).unwrap(),
            "container coder: ImagePullBackOff: Back-off pulling image \"x\""
        );
        assert_eq!(
            pod_message(&waiting("CrashLoopBackOff", "secret output")).unwrap(),
            "container coder: CrashLoopBackOff"
        );
        assert_eq!(pod_message(&waiting("ContainerCreating", "")), None);
        let unscheduled = serde_json::json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]});
        assert_eq!(pod_message(&pod(&unscheduled)).unwrap(), "a pod cannot be scheduled: no node");
    }
}
