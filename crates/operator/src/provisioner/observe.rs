//! All reads of a pass that need no coderd.

use std::sync::Arc;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Tls};
use coder_k8s_core::{
    provisioner::{
        Children, Seen,
        gate::{self, Answer, Gate, Published},
        keys::Trouble,
        names,
    },
    sources,
    workspace_access::{self, Existing},
};
use coder_k8s_engine::{key::Key, secret};
use kube::ResourceExt;

use super::health;
use crate::controller::{Context, coderd, served_by, workspaces};

/// What there is of the object, its children, its control plane and what it refers to. The second value tells of
/// namespaces that could not be asked.
pub(super) async fn observe(
    key: &Key,
    object: Arc<CoderProvisioner>,
    verify_due: bool,
    ctx: &Context,
) -> (Seen, workspaces::Ungranted) {
    let children = children(key, &object, ctx);
    let plane = object.spec.control_plane_ref.name.as_str();
    let control_plane = ctx.caches.control_planes.get(&key.namespace, plane);
    let wanted = sources::wanted(&object.spec.pod, &Tls::default(), &[]);
    let uid = object.uid().unwrap_or_default();
    let sources = ctx.lookups.sources(&ctx.client, key, &uid, wanted).await;
    let (consent, unasked) = workspaces::consent(key, &object.spec.rbac, &children.rbac, ctx).await;
    let deployment_id = identity(&object, control_plane.as_deref(), verify_due, ctx).await;
    let gate = gate(control_plane.as_deref(), ctx).await;
    let credentials = credentials(&object, control_plane.as_deref(), key, ctx).await;
    let privileged_rules = ctx.privileged_rules;
    let daemons = health::look(key, &object, children.deployment.as_deref(), ctx).await;
    let seen = Seen {
        object,
        control_plane,
        deployment_id,
        children,
        sources,
        consent,
        privileged_rules,
        gate,
        credentials,
        daemons,
    };
    (seen, unasked)
}

fn children(key: &Key, object: &CoderProvisioner, ctx: &Context) -> Children {
    let (caches, namespace) = (&ctx.caches, &key.namespace);
    let deployment = names::deployment(&key.name);
    let served = served_by(workspace_access::Kind::Provisioner, namespace, &key.name);
    Children {
        deployment: caches.deployments.get(namespace, &deployment),
        budget: caches.budgets.get(namespace, &deployment),
        service_accounts: caches.service_accounts.of_group(&object.uid().unwrap_or_default()),
        rbac: Existing { roles: caches.roles.of_group(&served), bindings: caches.bindings.of_group(&served) },
    }
}

/// Which deployment the control plane leads to. The control plane asks, unless its access is disabled: then the pool
/// asks by itself, when it verifies, and else goes by what it has recorded.
async fn identity(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
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
    let client = coderd::client(plane, ctx).await.ok()?;
    client.build_info().await.ok().map(|info| info.deployment_id).or(recorded)
}

/// Whether the license covers pools. The control plane asks for all of them.
async fn gate(plane: Option<&CoderControlPlane>, ctx: &Context) -> Gate {
    let status = plane.and_then(|plane| plane.status.as_ref());
    let published = Published {
        entitlement: status.and_then(|status| status.external_provisioner_daemons_entitlement.clone()),
        checked: status.and_then(|status| status.entitlements_last_checked.as_ref()).map(|time| time.0),
        kept: plane.is_some_and(|plane| !plane.spec.operator_access.disabled),
    };
    match gate::decide(&published, None, ctx.now()) {
        gate::Next::Know(gate) => gate,
        gate::Next::Ask => {
            let answer = ask(plane, ctx).await;
            match gate::decide(&published, Some(&answer), ctx.now()) {
                gate::Next::Know(gate) => gate,
                gate::Next::Ask => Gate::unknown("coderd was not asked"),
            }
        }
    }
}

/// Asks coderd itself. Anybody may.
async fn ask(plane: Option<&CoderControlPlane>, ctx: &Context) -> Answer {
    let Some(plane) = plane else { return Answer::Failed("the control plane does not exist".to_owned()) };
    let client = match coderd::client(plane, ctx).await {
        Ok(client) => client,
        Err(trouble) => return Answer::Failed(trouble.message),
    };
    match client.entitlements().await {
        Ok(all) => {
            let feature = all.features.get("external_provisioner_daemons");
            Answer::Entitlement(feature.map(|feature| feature.entitlement.as_str().to_owned()))
        }
        Err(error) => match error.kind {
            coder_k8s_coderd::Kind::NotSupported => Answer::NotSupported,
            coder_k8s_coderd::Kind::Unauthenticated { .. } | coder_k8s_coderd::Kind::Forbidden { .. } => {
                Answer::Forbidden
            }
            _ => Answer::Failed(error.to_string()),
        },
    }
}

/// Whether there is a token for managing keys.
async fn credentials(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
    key: &Key,
    ctx: &Context,
) -> Result<(), Trouble> {
    let place = coderd::credentials(object, plane)?;
    let Some(secret) = &place.secret else { return Ok(()) };
    let reason = match place.kind {
        coder_k8s_core::provisioner::keys::CredentialsKind::Bootstrap => "BootstrapSecretUnavailable",
        coder_k8s_core::provisioner::keys::CredentialsKind::Operator => "OperatorTokenSecretUnavailable",
    };
    let read = secret::read(&ctx.client, &key.namespace, &secret.name).await;
    let read = read.map_err(|error| Trouble { reason, message: error.to_string() })?;
    if read.is_some_and(|held| held.text(&secret.key).is_some()) {
        return Ok(());
    }
    let message = format!("Secret {} with the key {} is not there, or empty", secret.name, secret.key);
    Err(Trouble { reason, message })
}
