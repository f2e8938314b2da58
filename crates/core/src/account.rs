//! The ServiceAccount of an object's pods: the one that is wanted, those that are given up, and those that can go.

use std::sync::Arc;

use coder_k8s_api::ServiceAccountSettings;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ServiceAccount};
use kube::{ResourceExt, core::ObjectMeta};

use crate::{pod::some_map, rollout::Rollout};

/// What becomes of ServiceAccounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accounts {
    /// The one that is wanted, if there is to be one.
    pub desired: Option<ServiceAccount>,
    /// Those that stay and no longer belong to the object.
    pub detached: Vec<Arc<ServiceAccount>>,
    /// Those of earlier names that nothing uses any more.
    pub obsolete: Vec<Arc<ServiceAccount>>,
}

/// The name of the account: as it is given, or the default.
pub fn name(settings: &ServiceAccountSettings, default: impl FnOnce() -> String) -> String {
    settings.name.as_ref().map_or_else(default, ToString::to_string)
}

/// Decides what becomes of the accounts that belong to an object. `moved`: whether every pod runs as the wanted one.
pub fn decide(
    settings: &ServiceAccountSettings,
    name: &str,
    held: &[Arc<ServiceAccount>],
    moved: bool,
) -> Accounts {
    if settings.disable_create {
        return Accounts { detached: held.to_vec(), ..Accounts::default() };
    }
    let earlier = held.iter().filter(|held| held.name_any() != name);
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: some_map(&settings.labels),
        annotations: some_map(&settings.annotations),
        ..ObjectMeta::default()
    };
    Accounts {
        desired: Some(ServiceAccount { metadata, ..ServiceAccount::default() }),
        detached: Vec::new(),
        obsolete: earlier.filter(|_| moved).cloned().collect(),
    }
}

/// Whether every pod of a Deployment runs as an account, so that an earlier one can go.
pub fn have_moved(deployment: Option<&Deployment>, account: &str) -> bool {
    let Some(deployment) = deployment else { return false };
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let runs_as = pod.and_then(|pod| pod.service_account_name.as_deref());
    runs_as == Some(account) && Rollout::of(Some(deployment)).is_settled()
}
