//! What pods say when a rollout does not get on.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};

/// The most pods that are looked at.
const LIMIT: u32 = 20;

/// The complaint of the first pod that has one, in words. A failure to ask is no news: the rollout is told anyway.
pub(crate) async fn complaint(
    client: &Client,
    namespace: &str,
    selector: &BTreeMap<String, String>,
) -> Option<String> {
    let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut pods = api.list(&ListParams::default().labels(&labels).limit(LIMIT)).await.ok()?.items;
    pods.sort_by_key(|pod| std::cmp::Reverse(pod.creation_timestamp().map(|time| time.0)));
    pods.iter().find_map(words)
}

fn words(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False")
        .and_then(|c| c.message.clone());
    if let Some(why) = unscheduled {
        return Some(format!("a pod cannot be placed: {why}"));
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.filter(|container| !container.ready).find_map(stuck)
}

/// Why a container does not run. The message of the kubelet may hold what a program printed, so that only its reason
/// is told, and the message only where it is the kubelet's own.
fn stuck(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let quotes_only_itself = matches!(
        reason,
        "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "CreateContainerConfigError"
    );
    let message = waiting.message.as_deref().filter(|_| quotes_only_itself);
    match (reason, message) {
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
    fn a_pod_says_why_it_does_not_run() {
        let waiting = |reason: &str, message: &str| {
            pod(
                &serde_json::json!({"containerStatuses": [{"name": "coder", "image": "i", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]}),
            )
        };
        assert_eq!(
            words(&waiting("ImagePullBackOff", "Back-off pulling image \"x\"")).unwrap(),
            "container coder: ImagePullBackOff: Back-off pulling image \"x\""
        );
        assert_eq!(
            words(&waiting("CrashLoopBackOff", "secret output")).unwrap(),
            "container coder: CrashLoopBackOff"
        );
        assert_eq!(words(&waiting("ContainerCreating", "")), None);
        let unplaced = serde_json::json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]});
        assert_eq!(words(&pod(&unplaced)).unwrap(), "a pod cannot be placed: no node");
    }
}
