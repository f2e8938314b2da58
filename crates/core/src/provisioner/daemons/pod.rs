//! A pod of a pool, as far as its daemon is concerned.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self, Container};
use kube::ResourceExt;

use crate::provisioner::deployment::CONTAINER;

/// The variable with the name of the daemon.
const NAME: &str = "CODER_PROVISIONER_DAEMON_NAME";
/// The flag with it, which counts for more.
const FLAG: &str = "--name";

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The name of its daemon. None: it cannot be told.
    pub daemon: Option<String>,
    /// Since when it is ready, if it is.
    pub ready_since: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Its image.
    pub image: Option<String>,
    /// Its deletion cost, if one is set.
    pub cost: Option<String>,
}

impl Pod {
    /// What matters of a pod. None: it has ended.
    pub fn of(pod: &v1::Pod) -> Option<Self> {
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
            // Without a time it is as old as can be.
            ready_since: ready.map(|c| c.last_transition_time.as_ref().map_or(Timestamp::MIN, |time| time.0)),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            image: container.and_then(|container| container.image.clone()),
            cost: pod.annotations().get(super::cost::ANNOTATION).cloned(),
            name,
            uid,
        })
    }

    /// One that stands for those that could not be looked at.
    pub(super) fn unknown() -> Self {
        Self { ready_since: Some(Timestamp::MIN), ..Self::default() }
    }
}

/// The name that a daemon is given: by a flag, else by the variable, in which names of the pod may stand.
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
    let entry = container.env.iter().flatten().find(|entry| entry.name == NAME)?;
    match (&entry.value, &entry.value_from) {
        (Some(value), _) => expanded(value, pod, uid),
        (None, Some(from)) => {
            let field = from.field_ref.as_ref()?;
            (field.field_path == "metadata.name").then(|| pod.to_owned())
        }
        (None, None) => None,
    }
}

/// None: it refers to something that only the pod knows.
fn expanded(value: &str, pod: &str, uid: &str) -> Option<String> {
    let text = value.replace("$(POD_NAME)", pod).replace("$(POD_UID)", uid);
    (!text.contains("$(")).then_some(text)
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
        Pod::of(&serde_json::from_value(pod).unwrap()).unwrap().daemon
    }

    #[test]
    fn a_daemon_is_called_as_its_pod_is_told_to_call_it() {
        let variable = |value: &str| json!({"env": [{"name": NAME, "value": value}]});
        let field =
            |path: &str| json!({"env": [{"name": NAME, "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
        for (container, expected) in [
            (variable("$(POD_NAME)"), Some("pool-abc")),
            (variable("a-b-$(POD_UID)"), Some("a-b-u-1")),
            (variable("fixed"), Some("fixed")),
            (variable("$(SOMETHING)-x"), None),
            (field("metadata.name"), Some("pool-abc")),
            (field("spec.nodeName"), None),
            (json!({}), None),
            (
                json!({"args": ["provisioner", "start", "--name=flag"], "env": [{"name": NAME, "value": "v"}]}),
                Some("flag"),
            ),
            (json!({"args": ["start", "--name", "$(POD_NAME)-x"]}), Some("pool-abc-x")),
            (json!({"args": ["--names", "--name-not=x"], "env": [{"name": NAME, "value": "v"}]}), Some("v")),
        ] {
            assert_eq!(named(container.clone()).as_deref(), expected, "{container}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_none() {
        let pod = |phase: &str| {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {"phase": phase}})).unwrap()
        };
        assert!(Pod::of(&pod("Failed")).is_none() && Pod::of(&pod("Succeeded")).is_none());
        assert!(Pod::of(&pod("Running")).unwrap().ready_since.is_none());
    }
}
