//! A pod of a pool, as far as its daemon is concerned: the name of the daemon, and the deletion cost of the pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use crate::{
    daemon_listing::ListedDaemon,
    pod::find_variable,
    provisioner::{CONTAINER, DAEMON_NAME},
};

/// The annotation by which a ReplicaSet chooses the pods to delete when it is scaled down: those with the lowest cost
/// first. A pod without it costs 0.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// The cost of a pod whose daemon runs a job, or may run one.
const BUSY: &str = "1000";
/// The flag with the name of the daemon, which takes precedence over the variable.
const FLAG: &str = "--name";
/// Why a container waits, where the kubelet has tried to start it and could not.
const START_FAILURES: [&str; 8] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// A pod that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonPod {
    /// Name of the pod.
    pub name: String,
    /// Tells it from a later pod of the same name.
    pub uid: String,
    /// The name of its daemon. None: it depends on something that only the pod knows.
    pub daemon: Option<String>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether a container of it fails to start, as the kubelet reports it. It tries again.
    pub fails: bool,
    /// Since when it is ready, if it is.
    pub ready_since: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Image of the main container.
    pub image: Option<String>,
    /// The value of [`DELETION_COST`].
    pub cost: Option<String>,
}

impl DaemonPod {
    /// Reads a pod. None: it has ended.
    pub fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref();
        if matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed")) {
            return None;
        }
        let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let ready = conditions.into_iter().find(|c| c.type_ == "Ready" && c.status == "True");
        let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
        let container = containers.iter().find(|container| container.name == CONTAINER);
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        Some(Self {
            daemon: container.and_then(|container| daemon(container, &name, &uid)),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            fails: ready.is_none() && fails(pod),
            // Without a time the pod counts as ready since ever.
            ready_since: ready.map(|c| c.last_transition_time.as_ref().map_or(Timestamp::MIN, |time| time.0)),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            image: container.and_then(|container| container.image.clone()),
            cost: pod.annotations().get(DELETION_COST).cloned(),
            name,
            uid,
        })
    }

    /// Stands for the pods when they could not be listed.
    pub(super) fn unknown() -> Self {
        Self { ready_since: Some(Timestamp::MIN), ..Self::default() }
    }
}

fn fails(pod: &Pod) -> bool {
    let status = pod.status.iter();
    let containers = status
        .flat_map(|status| status.init_container_statuses.iter().chain(&status.container_statuses).flatten());
    let mut waiting =
        containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    waiting.any(|reason| START_FAILURES.contains(&reason))
}

/// The name that a daemon is given: by a flag, else by the variable. Both may refer to the name and UID of the pod.
fn daemon(container: &Container, pod: &str, uid: &str) -> Option<String> {
    let mut args = container.args.iter().flatten();
    while let Some(arg) = args.next() {
        let value = match arg.strip_prefix(FLAG) {
            Some("") => args.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        if let Some(value) = value {
            return expanded(value, pod, uid);
        }
    }
    let entry = find_variable(container.env.as_deref().unwrap_or_default(), DAEMON_NAME)?;
    match (&entry.value, &entry.value_from) {
        (Some(value), _) => expanded(value, pod, uid),
        (None, Some(from)) => {
            let field = from.field_ref.as_ref()?;
            (field.field_path == "metadata.name").then(|| pod.to_owned())
        }
        (None, None) => None,
    }
}

/// The value with the name and UID of the pod in it. None: it refers to another variable.
fn expanded(value: &str, pod: &str, uid: &str) -> Option<String> {
    let text = value.replace("$(POD_NAME)", pod).replace("$(POD_UID)", uid);
    (!text.contains("$(")).then_some(text)
}

/// A change of the deletion cost of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionCost {
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// The new cost. None: the annotation is removed.
    pub cost: Option<&'static str>,
}

/// How many daemons with one of these keys run a build, in pods that stay. A daemon whose pod is not known counts.
pub fn busy_daemons(pods: Option<&[DaemonPod]>, daemons: &[ListedDaemon], keys: &[String]) -> u32 {
    let named = pods.filter(|pods| pods.iter().all(|pod| pod.daemon.is_some()));
    let leaves = |daemon: &ListedDaemon| {
        let mut of_daemon =
            named.unwrap_or_default().iter().filter(|pod| pod.daemon.as_ref() == Some(&daemon.name));
        named.is_some() && of_daemon.all(|pod| pod.is_deleting)
    };
    let busy = daemons.iter().filter(|daemon| daemon.busy && keys.contains(&daemon.key));
    u32::try_from(busy.filter(|daemon| !leaves(daemon)).count()).unwrap_or(u32::MAX)
}

/// The deletion costs to change before a scale-down, so that pods with busy daemons are deleted last. A ready pod whose daemon
/// is not listed may have lost its connection with a build in hand.
pub fn deletion_costs(pods: &[DaemonPod], daemons: &[ListedDaemon]) -> Vec<DeletionCost> {
    let is_busy = |pod: &DaemonPod| {
        let listed = daemons.iter().find(|daemon| Some(&daemon.name) == pod.daemon.as_ref());
        listed.map_or(pod.daemon.is_some() && pod.ready_since.is_some(), |daemon| daemon.busy)
    };
    let staying = pods.iter().filter(|pod| !pod.is_deleting);
    let desired = staying.map(|pod| (pod, is_busy(pod).then_some(BUSY)));
    let differ = desired.filter(|(pod, cost)| pod.cost.as_deref() != *cost);
    differ.map(|(pod, cost)| DeletionCost { pod: pod.name.clone(), uid: pod.uid.clone(), cost }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn named(container: Value) -> Option<String> {
        let mut container = container;
        container["name"] = json!("provisioner");
        let pod =
            json!({"metadata": {"name": "pool-abc", "uid": "u-1"}, "spec": {"containers": [container]}});
        DaemonPod::of(&serde_json::from_value(pod).unwrap()).unwrap().daemon
    }

    #[test]
    fn a_daemon_is_called_as_its_pod_is_told_to_call_it() {
        let variable = |value: &str| json!({"env": [{"name": DAEMON_NAME, "value": value}]});
        let field = |path: &str| json!({"env": [{"name": DAEMON_NAME, "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
        for (container, expected) in [
            (variable("$(POD_NAME)"), Some("pool-abc")),
            (variable("a-b-$(POD_UID)"), Some("a-b-u-1")),
            (variable("fixed"), Some("fixed")),
            (variable("$(SOMETHING)-x"), None),
            (field("metadata.name"), Some("pool-abc")),
            (field("spec.nodeName"), None),
            (json!({}), None),
            (
                json!({"args": ["provisioner", "start", "--name=flag"], "env": [{"name": DAEMON_NAME, "value": "v"}]}),
                Some("flag"),
            ),
            (json!({"args": ["start", "--name", "$(POD_NAME)-x"]}), Some("pool-abc-x")),
            (
                json!({"args": ["--names", "--name-not=x"], "env": [{"name": DAEMON_NAME, "value": "v"}]}),
                Some("v"),
            ),
        ] {
            assert_eq!(named(container.clone()).as_deref(), expected, "{container}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_none() {
        let pod = |phase: &str| {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"phase": phase}})).unwrap()
        };
        assert!(DaemonPod::of(&pod("Failed")).is_none() && DaemonPod::of(&pod("Succeeded")).is_none());
        assert!(DaemonPod::of(&pod("Running")).unwrap().ready_since.is_none());
    }

    #[test]
    fn a_container_that_does_not_start_is_seen() {
        let pod = |reason: &str, ready: &str| {
            let waiting = json!([{"name": "provisioner", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason}}}]);
            let pod = json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {
                "phase": "Pending", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": waiting}});
            DaemonPod::of(&serde_json::from_value(pod).unwrap()).unwrap()
        };
        assert!(pod("ImagePullBackOff", "False").fails);
        assert!(!pod("ContainerCreating", "False").fails);
        assert!(!pod("ImagePullBackOff", "True").fails, "a ready pod has started");
        assert!(pod("", "False").created.is_some());
    }

    #[test]
    fn only_what_differs_is_marked() {
        let pod = |name: &str, cost: Option<&str>| DaemonPod {
            name: name.into(),
            daemon: Some(name.into()),
            cost: cost.map(str::to_owned),
            ..DaemonPod::default()
        };
        let going = DaemonPod { is_deleting: true, ..pod("going", None) };
        let lost = DaemonPod { ready_since: Some(Timestamp::MIN), ..pod("lost", None) };
        let nameless = DaemonPod { daemon: None, ..pod("nameless", None) };
        let pods = [
            pod("busy", None),
            pod("idle", None),
            pod("still-busy", Some(BUSY)),
            pod("was-busy", Some(BUSY)),
            going,
            lost,
            nameless,
        ];
        let daemon = |name: &str| ListedDaemon {
            name: name.into(),
            busy: !name.contains("idle"),
            ..ListedDaemon::default()
        };
        let daemons = ["busy", "idle", "still-busy", "going"].map(daemon);
        let found = deletion_costs(&pods, &daemons);
        let found: Vec<_> = found.iter().map(|mark| (&*mark.pod, mark.cost)).collect();
        assert_eq!(found, [("busy", Some(BUSY)), ("was-busy", None), ("lost", Some(BUSY))]);
    }
}
