//! All reads of a reconcile that precede its decisions.
//!
//! Children and the control plane come from caches; Secrets with keys are read live. coderd is asked here only for what no
//! control plane publishes: its identity and its entitlements. Keys are queried later, when a decision needs them.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason, Tls, condition::kind};
use coder_k8s_core::{
    object,
    provisioner::{
        Children, Observed,
        keys::{Blocker, KeyRecord},
        license_gate::{Feature, LicenseGate},
        names,
        scaling::ObservedScaling,
    },
    sources,
    target::CredentialsKind,
    workspace_access,
};
use coder_k8s_engine::{cache::ObjectKey, client};
use kube::ResourceExt;

use super::{
    daemons,
    keys::{self, KeyReconciler},
};
use crate::{
    coderd::{credentials, license_gate, targets::Connections},
    controller::{Context, workspaces},
};

pub(super) struct Observation {
    pub(super) pool: Observed,
    /// The namespaces whose consent could not be read.
    pub(super) unknown_consent: workspaces::GrantBlockers,
}

/// Observes the object, its children, its control plane, what it refers to, and the Secrets with its keys. None: the object
/// was never stored.
pub(super) async fn observe(
    key: &ObjectKey,
    object: Arc<CoderProvisioner>,
    ctx: &Arc<Context>,
) -> Option<(Observation, KeyReconciler)> {
    let verify_due = ctx.verify_schedule.is_due(key, &*object, kind::PROVISIONER_KEY_READY);
    let record = object.status.as_ref().map(KeyRecord::of).unwrap_or_default();
    let recorded = record.current.as_ref().map(|key| &key.target);
    let mut connections = Connections::new(&*object, recorded, None);
    let mut children = children(key, &object, ctx);
    let plane = object.spec.control_plane_ref.name.as_str();
    let control_plane = ctx.caches.control_planes.get(&key.namespace, plane);
    let desired = sources::desired(&object.spec.pod, &Tls::default(), &[]);
    let uid = object.uid().unwrap_or_default();
    let mut sources = ctx.referenced.sources(&ctx.client, key, &uid, desired).await;
    match daemons::current_deployment(key, &object, ctx).await {
        Ok(current) => children.deployment = current,
        // Nothing is rolled out then, as if a Secret of the pods could not be read.
        Err(error) => {
            let action = format!("read Deployment {}", names::deployment(&key.name));
            sources = Err(client::blocker(&action, &error));
        }
    }
    let (consent, unknown_consent) = workspaces::consent(key, &*object, &object.spec.rbac, ctx).await;
    // A deletion needs neither the license nor more than is on record, and has a deadline.
    let is_deleting = object::is_deleting(&*object);
    let identify = verify_due && !is_deleting;
    let deployment_id = identity(&object, control_plane.as_deref(), &mut connections, identify, ctx).await;
    let gate = if is_deleting {
        LicenseGate::open(Feature::Provisioners)
    } else {
        license_gate::of_plane(Feature::Provisioners, control_plane.as_deref(), ctx).await
    };
    let credentials = check_credentials(&object, control_plane.as_deref(), key, ctx).await;
    let daemons = daemons::observe(key, &object, children.deployment.as_deref(), ctx).await;
    let scaling = ObservedScaling::of(&object, ctx.daemon_poller.decision(&object), ctx.now());
    let pool = Observed {
        object,
        control_plane,
        deployment_id,
        children,
        sources,
        consent,
        grant_policy: ctx.policy.grants,
        gate,
        credentials,
        daemons,
        scaling,
    };
    let keys = keys::begin(key, &pool, connections, verify_due, ctx).await?;
    Some((Observation { pool, unknown_consent }, keys))
}

fn children(key: &ObjectKey, object: &CoderProvisioner, ctx: &Context) -> Children {
    let (caches, namespace) = (&ctx.caches, &key.namespace);
    let deployment = names::deployment(&key.name);
    Children {
        deployment: caches.deployments.get(namespace, &deployment),
        budget: caches.budgets.get(namespace, &deployment),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
        rbac: workspaces::existing(workspace_access::Kind::Provisioner, key, ctx),
        ..Children::default()
    }
}

/// The deployment ID of the control plane. As a rule the sync of the control plane publishes it. With operator access
/// disabled nobody does: then the pool asks coderd when it verifies, and otherwise uses its own record.
async fn identity(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
    connections: &mut Connections,
    verify_due: bool,
    ctx: &Context,
) -> Option<String> {
    let plane = plane?;
    if !plane.spec.operator_access.disabled {
        return plane.status.as_ref()?.deployment_id.clone();
    }
    let status = object.status.as_ref();
    let recorded = status
        .filter(|status| status.control_plane_ref_name.as_deref() == Some(&*plane.name_any()))
        .and_then(|status| status.deployment_id.clone());
    if recorded.is_some() && !verify_due {
        return recorded;
    }
    let server = connections.plane(plane, ctx).await.ok();
    server.map(|server| server.deployment_id().to_owned()).or(recorded)
}

/// Whether the session token that manages keys is in its Secret. Does not ask coderd whether it works.
async fn check_credentials(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
    key: &ObjectKey,
    ctx: &Context,
) -> Result<(), Blocker> {
    let credentials = credentials::of_pool(object, plane)?;
    let reason = match credentials.kind {
        CredentialsKind::Bootstrap => Reason::BootstrapSecretUnavailable,
        CredentialsKind::Operator => Reason::OperatorTokenSecretUnavailable,
    };
    credentials::check(&credentials, reason, &key.namespace, ctx).await
}
