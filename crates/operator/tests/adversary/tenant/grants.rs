//! Rights for workspaces that nobody consented to, that were withdrawn, or that nobody may grant.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_api::names::{FIELD_MANAGER, annotation, label};
use coder_k8s_core::names::{workspace_binding, workspace_role};
use coder_k8s_scenes::{requests, scene::Scene, writes};
use coder_k8s_testbed::{Shared, eventually};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    Row, Verdict, ensure,
    hostile::text_of,
    is_asked_for, row,
    stage::{SOON, Stage, Tenant, make, object},
};

/// Grants whose owner is gone when the operator starts.
const ORPHANS: &str = "T1 grant-orphaned";

/// The rows.
pub(crate) fn rows() -> Vec<Row> {
    let never = "RuleNotAllowed, and the Role does not have it";
    let rule = |id, does, rule: Value| row(id, does, never, move |stage| rule_refused(stage, rule.clone()));
    let one = |group: &str, resource: &str, verb: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
    vec![
        row(
            "T1 consent-watched",
            "an operator of two namespaces, of which one names the other",
            "no grant without consent",
            watched_only,
        ),
        row(
            "T1 consent-none",
            "workspaces in a namespace that does not consent",
            "ConsentMissing, and nothing is written there",
            |stage| no_consent(stage, None),
        ),
        row(
            "T1 consent-denied",
            "workspaces in a namespace whose label denies",
            "ConsentMissing, and nothing is written there",
            |stage| no_consent(stage, Some("deny")),
        ),
        row(
            "T1 consent-system",
            "workspaces in kube-system",
            "ConsentMissing, and nothing is written there",
            in_kube_system,
        ),
        row("T1 consent-withdrawn", "consent withdrawn", "the grant goes", |stage| withdrawn(stage, false)),
        row(
            "T1 consent-withdrawn-paused",
            "consent withdrawn while the object is paused",
            "the grant goes",
            |stage| withdrawn(stage, true),
        ),
        row(
            ORPHANS,
            "an object paused, stripped of its finalizer and deleted while no operator ran",
            "they go",
            orphaned,
        ),
        row("T1 role-taken", "a Role of somebody else with the name of ours", "no binding to it", role_taken),
        row(
            "T1 binding-taken",
            "a RoleBinding of somebody else with the name of ours",
            "it is left alone",
            binding_taken,
        ),
        rule(
            "T1 rule-status",
            "a rule to write our own status",
            one("coder.com", "codercontrolplanes/status", "patch"),
        ),
        rule(
            "T1 rule-kinds",
            "a rule to write our own kinds",
            one("coder.com", "coderprovisioners", "patch"),
        ),
        rule("T1 rule-everything", "a rule for everything", one("*", "*", "*")),
        rule("T1 rule-core", "a rule for everything of the core group", one("", "*", "get")),
        rule("T1 rule-secrets", "a rule for Secrets", one("", "secrets", "get")),
        rule("T1 rule-bind", "a rule to bind Roles", one("rbac.authorization.k8s.io", "roles", "bind")),
        rule("T1 rule-escalate", "a rule to escalate", one("rbac.authorization.k8s.io", "roles", "escalate")),
        rule(
            "T1 rule-impersonate",
            "a rule for tokens of ServiceAccounts",
            one("", "serviceaccounts/token", "create"),
        ),
    ]
}

/// Stores grants of a control plane that does not exist any more.
pub(crate) async fn store(shared: &Shared, client: &Client) -> BTreeMap<&'static str, String> {
    if !is_asked_for(ORPHANS) {
        return BTreeMap::new();
    }
    let source = shared.namespace("gone").await.name().to_owned();
    let namespace = shared.namespace("orphaned").await.name().to_owned();
    let labels = json!({label::CONTROL_PLANE: "coder", label::CONTROL_PLANE_NAMESPACE: source, label::MANAGED_BY: label::MANAGER});
    let owner = json!({annotation::WORKSPACE_RBAC_OWNER_UID: "00000000-0000-4000-8000-000000000009"});
    let metadata = json!({"labels": labels, "annotations": owner, "namespace": namespace});
    let (role, binding) =
        (workspace_role("coder", &source, "coder"), workspace_binding("coder", &source, "coder"));
    let mut bound = grant("RoleBinding", &binding, metadata.clone());
    bound["roleRef"]["name"] = json!(role);
    bound["subjects"] = json!([{"kind": "ServiceAccount", "name": "coder", "namespace": source}]);
    let params = PatchParams::apply(FIELD_MANAGER);
    let roles: Api<Role> = Api::namespaced(client.clone(), &namespace);
    roles.patch(&role, &params, &Patch::Apply(&grant("Role", &role, metadata))).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &namespace);
    bindings.patch(&binding, &params, &Patch::Apply(&bound)).await.unwrap();
    BTreeMap::from([(ORPHANS, namespace)])
}

/// A Role, or a RoleBinding to the Role of the same name.
fn grant(kind: &str, name: &str, metadata: Value) -> Value {
    let mut object =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata});
    object["metadata"]["name"] = json!(name);
    match kind {
        "Role" => object["rules"] = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]),
        _ => {
            object["roleRef"] =
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
        }
    }
    object
}

async fn orphaned(stage: &'static Stage) -> Verdict {
    let tenant = Tenant { stage, namespace: stage.stored[ORPHANS].clone() };
    let gone = eventually(SOON, || async {
        match (tenant.count("RoleBinding").await, tenant.count("Role").await) {
            (0, 0) => Ok(()),
            left => Err(format!("{left:?} bindings and Roles are left")),
        }
    });
    gone.await.map_err(|error| error.to_string())?;
    Ok("gone".to_owned())
}

/// Sets the label of a namespace by which it consents, or denies, or does neither.
async fn consent(tenant: &Tenant, namespace: &str, value: Option<&str>) {
    let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(tenant.stage.client.clone());
    let label = format!("{}{}", label::WORKSPACES_OF, tenant.namespace);
    let patch = json!({"metadata": {"labels": {label: value}}});
    api.patch(namespace, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

fn granted(tenant: &Tenant) -> [(&'static str, String); 2] {
    let names = (&*tenant.namespace, "coder");
    [
        ("Role", workspace_role("coder", names.0, names.1)),
        ("RoleBinding", workspace_binding("coder", names.0, names.1)),
    ]
}

/// A control plane with a grant in another namespace, which consents.
async fn with_grant(stage: &'static Stage) -> Result<(Tenant, String), String> {
    let tenant = Tenant::new(stage, "grant").await;
    let other = Tenant::new(stage, "granting").await.namespace;
    consent(&tenant, &other, Some("allow")).await;
    tenant.plane("coder", json!({"rbac": {"workspaceNamespaces": [other]}})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "WorkspaceAccess", &["Granted"]).await?;
    Ok((tenant, other))
}

async fn until_withdrawn(tenant: &Tenant, other: &str) -> Verdict {
    for (kind, name) in granted(tenant) {
        tenant.until_gone(SOON, kind, other, &name).await?;
    }
    Ok("gone".to_owned())
}

async fn withdrawn(stage: &'static Stage, paused: bool) -> Verdict {
    let (tenant, other) = with_grant(stage).await?;
    if paused {
        pause(&tenant).await?;
    }
    consent(&tenant, &other, None).await;
    until_withdrawn(&tenant, &other).await
}

async fn pause(tenant: &Tenant) -> Result<(), String> {
    let paused = json!({"metadata": {"annotations": {annotation::PAUSED: "true"}}});
    tenant.edit("CoderControlPlane", "coder", paused).await?;
    tenant.until_reason("CoderControlPlane", "coder", "Paused", &["Annotated"]).await.map(drop)
}

async fn no_consent(stage: &'static Stage, value: Option<&'static str>) -> Verdict {
    let tenant = Tenant::new(stage, "consent").await;
    let other = Tenant::new(stage, "unwilling").await;
    consent(&tenant, &other.namespace, value).await;
    tenant.plane("coder", json!({"rbac": {"workspaceNamespaces": [other.namespace]}})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "WorkspaceAccess", &["ConsentMissing"]).await?;
    nothing_written(&other)
}

async fn in_kube_system(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "consent").await;
    let other = Tenant { stage, namespace: "kube-system".to_owned() };
    tenant.plane("coder", json!({"rbac": {"workspaceNamespaces": ["kube-system"]}})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "WorkspaceAccess", &["ConsentMissing"]).await?;
    nothing_written(&other)
}

fn nothing_written(other: &Tenant) -> Verdict {
    let all = other.requests();
    let written: Vec<_> =
        writes(&all).into_iter().map(|event| format!("{} {}", event.verb, event.uri)).collect();
    ensure(written.is_empty(), || written.join(", "))?;
    Ok("nothing written".to_owned())
}

/// An operator that watches two namespaces alone: that both are watched is no consent.
async fn watched_only(_: &'static Stage) -> Verdict {
    let scene = Scene::bare_with("watched", &["beside"]).await;
    let operator = scene.start(&[]);
    operator.until_leading().await;
    let other = scene.beside()[0].clone();
    let plane = object(
        "CoderControlPlane",
        "coder",
        json!({"replicas": 0, "rbac": {"workspaceNamespaces": [other]}}),
    );
    make(&scene.client, &scene.namespace, plane).await?;
    scene.until_observed("coder").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = requests(scene.cluster(), |user| user == operator.user);
    let written: Vec<_> = writes(&all).into_iter().filter(|event| event.namespace == other).collect();
    ensure(written.is_empty(), || format!("{} {}", written[0].verb, written[0].uri))?;
    Ok("nothing written".to_owned())
}

async fn role_taken(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "role").await;
    let [(_, role), (_, binding)] = granted(&tenant);
    tenant.make(grant("Role", &role, json!({}))).await?;
    tenant.plane("coder", json!({})).await?;
    tenant.until_observed("CoderControlPlane", "coder").await?;
    tenant.until_reason("CoderControlPlane", "coder", "WorkspaceAccess", &[]).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let bound = tenant.api("RoleBinding").get_opt(&binding).await.map_err(|error| error.to_string())?;
    ensure(bound.is_none(), || format!("{binding} binds the Role of somebody else"))?;
    Ok("no binding".to_owned())
}

async fn binding_taken(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "binding").await;
    let [_, (_, binding)] = granted(&tenant);
    let before = tenant.make(grant("RoleBinding", &binding, json!({}))).await?;
    tenant.plane("coder", json!({})).await?;
    tenant.until_observed("CoderControlPlane", "coder").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let now = tenant.api("RoleBinding").get(&binding).await.map_err(|error| error.to_string())?;
    ensure(
        now.metadata.resource_version.as_deref() == before["metadata"]["resourceVersion"].as_str(),
        || format!("{now:?}"),
    )?;
    Ok("left alone".to_owned())
}

async fn rule_refused(stage: &'static Stage, rule: Value) -> Verdict {
    let tenant = Tenant::new(stage, "rule").await;
    let spec = json!({"rbac": {"extraRules": [rule]}});
    if let Err(refusal) = tenant.plane("coder", spec).await {
        return Ok(format!("refused: {}", refusal.chars().take(60).collect::<String>()));
    }
    let said = tenant.until_reason("CoderControlPlane", "coder", "WorkspaceAccess", &[]).await?;
    ensure(said["reason"] == "RuleNotAllowed", || said.to_string())?;
    let [(_, role), _] = granted(&tenant);
    let found = tenant.api("Role").get_opt(&role).await.map_err(|error| error.to_string())?;
    let rules = found.map(|role| role.data["rules"].clone()).unwrap_or_default();
    let has = rules.as_array().is_some_and(|rules| {
        rules.iter().any(|granted| {
            granted["apiGroups"] == rule["apiGroups"] && granted["resources"] == rule["resources"]
        })
    });
    ensure(!has, || rules.to_string())?;
    Ok(text_of(&said["reason"]).to_owned())
}
