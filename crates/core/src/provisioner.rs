//! Decides about a CoderProvisioner: its children, and who may run workspaces with it.
//!
//! The key ([`keys`]) and the license ([`crate::license_gate`]) are decided apart. Nothing here waits for them, except that
//! the Deployment needs a key.

pub mod daemons;
pub mod deployment;
pub mod keys;
pub mod names;
pub mod scaling;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, WorkspaceRbac, names::component};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
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
    workspace_access::{self, Consent, GrantPolicy, Grantee},
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
    /// Its children with the label of the operator.
    pub children: Children,
    /// Secrets and ConfigMaps that the pods read, or why they could not be read.
    pub sources: Result<SourceContents, Blocker>,
    /// Whether other namespaces consent to workspaces.
    pub consent: BTreeMap<String, Consent>,
    /// What the flags say about access for workspaces.
    pub grant_policy: GrantPolicy,
    /// Whether the license covers it.
    pub gate: license_gate::LicenseGate,
    /// Whether there are credentials to manage keys with.
    pub credentials: Result<(), keys::Blocker>,
    /// The daemons that coderd lists, and the pods.
    pub daemons: daemons::ObservedDaemons,
    /// How it is scaled. None: it has a fixed number of daemons.
    pub scaling: Option<scaling::ObservedScaling>,
}

/// What is to be done, besides what concerns the key.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether the finalizer is to be there for what is in other namespaces.
    pub reaches_outside: bool,
    /// The desired children. None: the object is being deleted.
    pub desired: Option<Desired>,
    /// Access for workspaces.
    pub workspaces: workspace_access::Plan,
}

/// The desired children, besides the Deployment, which [`deployment::build`] builds once there is a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The ServiceAccount, and those to give up or remove.
    pub accounts: Accounts,
    /// The disruption budget.
    pub budget: Option<PodDisruptionBudget>,
}

impl Observed {
    /// The labels of all children, which also select the pods.
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
        Grantee::of(&*self.object, workspace_access::Kind::Provisioner, self.service_account())
    }

    /// How many pods are to run.
    pub fn replicas(&self) -> i32 {
        let deployment = self.children.deployment.as_ref().and_then(|deployment| deployment.spec.as_ref());
        let current = deployment.and_then(|spec| spec.replicas);
        let spec = &self.object.spec;
        let asked = self.scaling.as_ref().map_or(spec.replicas, |scaling| scaling.replicas(current));
        self.gate.replicas(asked, spec.on_entitlement_lost)
    }

    /// How many pods may run, whatever the queue asks for.
    fn max_replicas(&self) -> i32 {
        let scaling = self.object.spec.autoscaling.as_ref();
        scaling.map_or_else(|| self.replicas(), |scaling| scaling.max_replicas)
    }

    /// The image of the daemons. Without one in the spec it is the image that the control plane has rolled out, because
    /// coderd refuses newer daemons. Until that is known, they keep their image.
    pub fn image(&self) -> Option<String> {
        let given = self.object.spec.image.as_ref().map(ToString::to_string);
        let (plane, deployment) = (self.control_plane.as_deref(), self.children.deployment.as_deref());
        given.or_else(|| workload::followed_image(plane, deployment))
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
    let deleting = object::is_deleting(&*observed.object);
    let nothing = WorkspaceRbac { workspace_perms: false, ..WorkspaceRbac::default() };
    let asked = if deleting { &nothing } else { &spec.rbac };
    let account = observed.service_account();
    let moved = account::have_moved(observed.children.deployment.as_deref(), &account);
    let workspaces = workspace_access::decide(
        asked,
        &grantee,
        &observed.consent,
        rbac,
        deleting || moved,
        observed.grant_policy,
    );
    let desired = (!deleting).then(|| Desired {
        accounts: account::decide(
            &spec.service_account,
            &account,
            &observed.children.service_accounts,
            moved,
        ),
        budget: pod::disruption_budget(
            &names::deployment(&observed.object.name_any()),
            spec.pod_disruption_budget.as_ref(),
            // Only if the spec asks for a budget: an evicted daemon finishes its build in its grace period.
            spec.pod_disruption_budget.as_ref().map_or(0, |_| observed.max_replicas()),
            &observed.selector(),
        ),
    });
    Plan { reaches_outside: workspaces.reaches_outside(&grantee, rbac), desired, workspaces }
}
