//! What becomes of a CoderControlPlane.
//!
//! For now one child, the ServiceAccount, and a status that says so.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderControlPlaneStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{ResourceExt, core::ObjectMeta};

use crate::{condition::Verdict, outcome::Done, workload};

/// What was observed.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The object.
    pub object: Arc<CoderControlPlane>,
    /// The ServiceAccounts that belong to it.
    pub service_accounts: Vec<Arc<ServiceAccount>>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The ServiceAccount, if there is to be one.
    pub service_account: Option<ServiceAccount>,
    /// ServiceAccounts of earlier names.
    pub obsolete: Vec<Arc<ServiceAccount>>,
}

/// Decides what is to be done.
pub fn decide(seen: &Seen) -> Plan {
    let spec = &seen.object.spec.service_account;
    if seen.object.metadata.deletion_timestamp.is_some() || spec.disable_create {
        return Plan { service_account: None, obsolete: Vec::new() };
    }
    let name = spec.name.as_ref().map_or_else(|| seen.object.name_any(), ToString::to_string);
    let obsolete =
        seen.service_accounts.iter().filter(|account| account.name_any() != name).cloned().collect();
    let service_account = ServiceAccount {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(spec.labels.clone()).filter(|labels| !labels.is_empty()),
            annotations: Some(spec.annotations.clone()).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    Plan { service_account: Some(service_account), obsolete }
}

/// Says how things stand after the plan was carried out as far as `done` tells.
pub fn status(seen: &Seen, done: &Done, now: Timestamp) -> CoderControlPlaneStatus {
    let before = seen.object.status.clone().unwrap_or_default();
    let verdict = Verdict {
        ready: false,
        working: false,
        reason: "NotDeployed",
        message: "this release does not deploy coderd yet",
    };
    let workload = workload::status(&before.workload, seen.object.metadata.generation, done, verdict, now);
    CoderControlPlaneStatus { workload, ..before }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(spec: serde_json::Value, accounts: &[&str]) -> Seen {
        let account = |name: &&str| {
            let metadata = ObjectMeta { name: Some((*name).to_owned()), ..ObjectMeta::default() };
            Arc::new(ServiceAccount { metadata, ..ServiceAccount::default() })
        };
        let mut object = CoderControlPlane::new("coder", serde_json::from_value(spec).unwrap());
        object.metadata.generation = Some(4);
        Seen { object: Arc::new(object), service_accounts: accounts.iter().map(account).collect() }
    }

    #[test]
    fn the_service_account_bears_the_name_of_the_object_unless_another_is_given() {
        let name = |spec| decide(&seen(spec, &[])).service_account.unwrap().name_any();
        assert_eq!(name(serde_json::json!({})), "coder");
        assert_eq!(name(serde_json::json!({"serviceAccount": {"name": " robot "}})), "robot");
    }

    #[test]
    fn a_renamed_service_account_replaces_the_old_one() {
        let plan =
            decide(&seen(serde_json::json!({"serviceAccount": {"name": "robot"}}), &["coder", "robot"]));
        assert_eq!(plan.obsolete.iter().map(|a| a.name_any()).collect::<Vec<_>>(), ["coder"]);
    }

    #[test]
    fn nothing_is_made_when_creation_is_disabled_or_the_object_goes() {
        assert_eq!(
            decide(&seen(serde_json::json!({"serviceAccount": {"disableCreate": true}}), &["coder"]))
                .service_account,
            None
        );
        let mut going = seen(serde_json::json!({}), &["coder"]);
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        Arc::make_mut(&mut going.object).metadata.deletion_timestamp = Some(time);
        assert_eq!(decide(&going), Plan { service_account: None, obsolete: Vec::new() });
    }

    #[test]
    fn the_status_belongs_to_the_generation_that_was_seen() {
        let status = status(&seen(serde_json::json!({}), &[]), &Done::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(status.workload.observed_generation, Some(4));
        assert!(status.workload.conditions.iter().all(|c| c.observed_generation == Some(4)));
        assert_eq!(status.workload.phase.as_deref(), Some("Pending"));
    }
}
