//! What becomes of a CoderProvisioner: a key in coderd, the Secret that holds it, and the pods that connect with it.
//!
//! The key has a protocol of its own ([`keys`]), and so has the license ([`crate::license_gate`]). The rest is decided here, and goes on
//! whatever the key and the license are doing.

pub mod daemons;
pub mod deployment;
pub mod keys;
pub mod names;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, WorkspaceRbac, names::component};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ServiceAccount, policy::v1::PodDisruptionBudget};
use kube::ResourceExt;

pub use self::status::{Outcome, control_plane, paused, status};
pub use crate::license_gate;
pub use crate::workload::Children;
use crate::{
    account::{self, Accounts},
    controlplane::access_url,
    object,
    outcome::Blocker,
    pod,
    sources::SourceContents,
    workload,
    workspace_access::{self, Consent, Existing, Grantee},
};

/// What was observed, besides what concerns the key.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub object: Arc<CoderProvisioner>,
    /// The control plane that it names.
    pub control_plane: Option<Arc<CoderControlPlane>>,
    /// Which deployment answers there, once known.
    pub deployment_id: Option<String>,
    /// Its children, as far as they bear our label.
    pub children: Children,
    /// Secrets and ConfigMaps that the pods read, or why they could not be read.
    pub sources: Result<SourceContents, Blocker>,
    /// Whether other namespaces consent to workspaces.
    pub consent: BTreeMap<String, Consent>,
    /// Whether workspaces may be given Secrets, RBAC and tokens.
    pub privileged_rules: bool,
    /// Whether the license covers it.
    pub gate: license_gate::LicenseGate,
    /// Whether the credentials for managing keys are there.
    pub credentials: Result<(), keys::Blocker>,
    /// What is known of its daemons.
    pub daemons: daemons::ObservedDaemons,
}

/// What is to be done, besides what concerns the key.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether the finalizer is to be there for what is in other namespaces.
    pub reaches_outside: bool,
    /// The wanted children. None: the object is going.
    pub desired: Option<Desired>,
    /// Access for workspaces.
    pub workspaces: workspace_access::Plan,
}

/// The children that are wanted, besides the Deployment, which [`deployment::build`] makes once there is a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The ServiceAccount, and what becomes of others.
    pub accounts: Accounts,
    /// The disruption budget.
    pub budget: Option<PodDisruptionBudget>,
}

impl Observed {
    /// The labels that all children bear and that select the pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        object::selector(&*self.object, component::PROVISIONER)
    }

    /// The name of the pods' ServiceAccount.
    pub fn service_account(&self) -> String {
        let name = self.object.name_any();
        account::name(&self.object.spec.service_account, || names::service_account(&name))
    }

    /// For whom workspaces are granted access.
    pub fn grantee(&self) -> Grantee {
        Grantee {
            namespace: self.object.namespace().unwrap_or_default(),
            name: self.object.name_any(),
            uid: self.object.uid().unwrap_or_default(),
            service_account: self.service_account(),
            kind: workspace_access::Kind::Provisioner,
        }
    }

    /// How many pods are to run.
    pub fn replicas(&self) -> i32 {
        self.gate.replicas(self.object.spec.replicas, self.object.spec.on_entitlement_lost)
    }

    /// The image of the daemons. One newer than coderd is refused by it, so that an image of their own apart, they follow
    /// what the control plane has rolled out; until that is known, what they run stays.
    pub fn image(&self) -> Option<String> {
        let given = self.object.spec.image.as_ref().map(ToString::to_string);
        let rolled_out =
            || self.control_plane.as_ref().and_then(|plane| plane.status.as_ref()?.workload.image.clone());
        given.or_else(rolled_out).or_else(|| workload::image(self.children.deployment.as_deref()?))
    }
}

/// The address that daemons connect to: the Service, by HTTP where it has a certificate of its own.
pub fn daemon_url(plane: &CoderControlPlane) -> String {
    if plane.spec.tls.secret_names.is_empty() {
        access_url::cluster_url(plane)
    } else {
        access_url::http_url(plane)
    }
}

/// Decides what is to be done.
pub fn decide(observed: &Observed) -> Plan {
    let (grantee, rbac) = (observed.grantee(), &observed.children.rbac);
    let spec = &observed.object.spec;
    let going = object::is_deleting(&*observed.object);
    let nothing = WorkspaceRbac { workspace_perms: false, ..WorkspaceRbac::default() };
    let asked = if going { &nothing } else { &spec.rbac };
    let account = observed.service_account();
    let moved = account::have_moved(observed.children.deployment.as_deref(), &account);
    let workspaces = workspace_access::decide(
        asked,
        &grantee,
        &observed.consent,
        rbac,
        going || moved,
        observed.privileged_rules,
    );
    let desired = (!going).then(|| Desired {
        accounts: account::decide(
            &spec.service_account,
            &account,
            &observed.children.service_accounts,
            moved,
        ),
        budget: pod::disruption_budget(
            &names::deployment(&observed.object.name_any()),
            spec.pod_disruption_budget.as_ref(),
            // A budget is made only when it is asked for: an evicted daemon finishes its build in its grace period.
            spec.pod_disruption_budget.as_ref().map_or(0, |_| observed.replicas()),
            &observed.selector(),
        ),
    });
    Plan { reaches_outside: workspaces.reaches_outside(&grantee, rbac), desired, workspaces }
}
