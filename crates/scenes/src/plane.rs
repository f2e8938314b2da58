//! Control planes without a scene, for tests with a cluster or an operator of their own.

use coder_k8s_api::{CoderControlPlane, CoderControlPlaneSpec, condition::condition_type};
use coder_k8s_testbed::eventually;
use kube::{Api, Client};

use crate::PATIENCE;

/// A control plane with nothing but its name.
pub fn control_plane(name: &str) -> CoderControlPlane {
    CoderControlPlane::new(name, CoderControlPlaneSpec::default())
}

/// The control planes of a namespace.
pub fn planes(client: &Client, namespace: &str) -> Api<CoderControlPlane> {
    Api::namespaced(client.clone(), namespace)
}

/// Waits until the status of a control plane is that of its present generation.
pub async fn observed(client: &Client, namespace: &str, name: &str) -> CoderControlPlane {
    let api = planes(client, namespace);
    let seen = eventually(PATIENCE, || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let observed = object.status.as_ref().and_then(|status| status.workload.observed_generation);
        if observed == object.metadata.generation { Ok(object) } else { Err(format!("{:?}", object.status)) }
    });
    seen.await.unwrap()
}

/// Waits until `Ready` has this reason.
pub async fn ready_is(client: &Client, namespace: &str, name: &str, reason: &str) -> CoderControlPlane {
    let api = planes(client, namespace);
    let found = eventually(PATIENCE, || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let all = object.status.as_ref().map_or(&[][..], |status| &status.workload.conditions);
        if all.iter().any(|c| c.type_ == condition_type::READY && c.reason == reason) {
            Ok(object)
        } else {
            Err(format!("{all:?}"))
        }
    });
    found.await.unwrap()
}

/// The status, reason and message of a condition.
pub fn condition(object: &CoderControlPlane, kind: &str) -> (String, String, String) {
    let all = object.status.as_ref().map_or(&[][..], |status| &status.workload.conditions);
    let found =
        all.iter().find(|c| c.type_ == kind).unwrap_or_else(|| panic!("no condition {kind}: {all:?}"));
    (found.status.clone(), found.reason.clone(), found.message.clone())
}
