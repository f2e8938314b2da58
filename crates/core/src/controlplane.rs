//! Decides the children of a CoderControlPlane: which are desired, and which are removed.
//!
//! Nothing here waits: what cannot be decided yet is left out of the plan, and the status names what is missing.

pub mod access_url;
pub mod coderd;
pub mod deployment;
pub mod image;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderControlPlane, Scaling, WorkspaceRbac,
    names::{annotation, component},
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service, policy::v1::PodDisruptionBudget};
use kube::ResourceExt;

pub use self::status::{Outcome, paused, status};
pub use crate::workload::Children;
use crate::{
    account::{self, Accounts},
    exposure,
    jobs::JobsVerdict,
    object,
    outcome::Blocker,
    pod, service,
    sources::SourceContents,
    workspace_access::{self, Consent, GrantPolicy, Grantee},
};

/// What was observed.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub object: Arc<CoderControlPlane>,
    /// Its children, as far as they bear our label.
    pub children: Children,
    /// The Deployment as the operator last wrote it, while `children` has an older one. An image that the operator has just
    /// replaced must not look like one that somebody else set.
    pub newer_deployment: Option<Arc<Deployment>>,
    /// Secrets and ConfigMaps that the pods read, or why they could not be read.
    pub sources: Result<SourceContents, Blocker>,
    /// Whether other namespaces consent to workspaces.
    pub consent: BTreeMap<String, Consent>,
    /// Whether the cluster has the Gateway API.
    pub gateway_api: bool,
    /// What the flags say about access for workspaces.
    pub grant_policy: GrantPolicy,
    /// The report of exchanges with coderd.
    pub coderd: coderd::CoderdReport,
    /// What the conditions about coderd depend on now.
    pub inputs: coderd::PresentInputs,
    /// Whether jobs have daemons that could run them.
    pub jobs: JobsVerdict,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether the finalizer is to be there.
    pub finalizer: bool,
    /// The desired children. None: the object is being deleted.
    pub desired: Option<Desired>,
    /// Access for workspaces.
    pub workspaces: workspace_access::Plan,
}

/// The children that are wanted, besides the Deployment, which [`deployment::build`] makes once the Service is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The ServiceAccount, and what becomes of others.
    pub accounts: Accounts,
    /// The Service.
    pub service: Service,
    /// Whether another field manager takes over `replicas`, because `spec.scaling` has become External.
    pub hand_over_replicas: bool,
    /// The Ingress or route.
    pub exposure: exposure::DesiredExposure,
    /// The disruption budget.
    pub budget: Option<PodDisruptionBudget>,
}

impl Observed {
    /// The labels that all children bear and that select the pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        object::selector(&*self.object, component::CONTROL_PLANE)
    }

    /// The name of the pods' ServiceAccount.
    pub fn service_account(&self) -> String {
        account::name(&self.object.spec.service_account, || self.object.name_any())
    }

    /// For whom workspaces are granted access.
    pub fn grantee(&self) -> Grantee {
        Grantee::of(&*self.object, workspace_access::Kind::ControlPlane, self.service_account())
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether every pod runs as the wanted ServiceAccount, so that an earlier one can go.
    fn has_moved(&self) -> bool {
        account::have_moved(self.children.deployment.as_deref(), &self.service_account())
    }

    /// The image of coderd.
    fn image(&self) -> image::Image {
        image::decide(&self.object, self.newer_deployment.as_deref().or(self.children.deployment.as_deref()))
    }

    /// Pods that are asked for, by whoever decides it.
    fn replicas(&self) -> i32 {
        match self.object.spec.scaling {
            Scaling::Managed => self.object.spec.replicas,
            Scaling::External => {
                let live = self.children.deployment.as_ref().and_then(|d| d.spec.as_ref()?.replicas);
                live.unwrap_or(1)
            }
        }
    }
}

/// Decides what is to be done.
pub fn decide(observed: &Observed) -> Plan {
    let (grantee, existing) = (observed.grantee(), &observed.children.rbac);
    let is_deleting = observed.is_deleting();
    let (no_access, no_consent) =
        (WorkspaceRbac { workspace_perms: false, ..WorkspaceRbac::default() }, BTreeMap::new());
    let (rbac, consent) =
        if is_deleting { (&no_access, &no_consent) } else { (&observed.object.spec.rbac, &observed.consent) };
    let has_moved = is_deleting || observed.has_moved();
    let workspaces =
        workspace_access::decide(rbac, &grantee, consent, existing, has_moved, observed.grant_policy);
    let needs_finalizer = workspaces.reaches_outside(&grantee, existing)
        || coderd::access::needs_cleaning(&observed.object, &observed.coderd);
    let desired = (!is_deleting).then(|| desired(observed));
    Plan { finalizer: !is_deleting && needs_finalizer, desired, workspaces }
}

fn desired(observed: &Observed) -> Desired {
    let (spec, name, selector) = (&observed.object.spec, observed.object.name_any(), observed.selector());
    let tls = !spec.tls.secret_names.is_empty();
    let port = service::http_port(&spec.service, tls);
    let held = &observed.children.service_accounts;
    let accounts =
        account::decide(&spec.service_account, &observed.service_account(), held, observed.has_moved());
    let handed_over = observed
        .children
        .deployment
        .as_ref()
        .is_some_and(|held| held.annotations().get(annotation::SCALING).is_some());
    Desired {
        accounts,
        service: service::service(&name, &spec.service, service::HTTP, tls, &selector),
        hand_over_replicas: spec.scaling == Scaling::External
            && observed.children.deployment.is_some()
            && !handed_over,
        exposure: exposure::desired(&name, spec.expose.as_ref(), &name, port, observed.gateway_api),
        budget: pod::disruption_budget(
            &name,
            spec.pod_disruption_budget.as_ref(),
            observed.replicas(),
            &selector,
        ),
    }
}

#[cfg(test)]
mod tests;
