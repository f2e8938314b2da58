//! What happens in a case: something is prepared, comes to rest, and then somebody changes one thing.

use std::{sync::Arc, time::Duration};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_scenes::{
    apply,
    coderd::license,
    pool::{IMAGE, SECRET},
    proxy, recorded,
};
use coder_k8s_testbed::codersim::Mode;
use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::stage::{Needs, Stage, another};

/// How long another operator does nothing before that is taken for rest.
const ANOTHER_QUIET: Duration = Duration::from_secs(3);

type Step = for<'a> fn(&'a Stage) -> BoxFuture<'a, ()>;

/// One of the scenarios.
pub struct Scenario {
    pub name: &'static str,
    pub needs: Needs,
    /// Whether another operator of these kinds has it too, with the same manifests. Those of proxies differ.
    pub is_common: bool,
    /// Whether the change itself ends sessions of daemons.
    pub cuts: bool,
    /// Before the change. The operator runs already.
    pub prepare: Step,
    /// The change.
    pub change: Step,
}

/// A step from an async block.
macro_rules! step {
    (|$stage:ident| $body:block) => {
        |$stage| async move { $body }.boxed()
    };
}

const PLAIN: Needs = Needs {
    database: false,
    verifies: false,
    entitlements: false,
    bare: false,
    workspaces: false,
    late: false,
};
const BASED: Needs = Needs { database: true, ..PLAIN };
const VERIFYING: Needs = Needs { verifies: true, ..PLAIN };

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "plane-created",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| {
            stage.coder().secret("license", "license", &license(1)).await;
        }),
        change: step!(|stage| { licensed(stage).await }),
    },
    Scenario {
        name: "plane-image-changed",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_plane(stage).await }),
        change: step!(|stage| {
            stage.scene().spec("coder", json!({"image": "example.test/coder:v2.36.2"})).await;
        }),
    },
    Scenario {
        name: "plane-scaled",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_plane(stage).await }),
        change: step!(|stage| { stage.scene().spec("coder", json!({"replicas": 2})).await }),
    },
    Scenario {
        name: "plane-workspaces-elsewhere",
        needs: Needs { workspaces: true, ..PLAIN },
        is_common: false,
        cuts: false,
        prepare: step!(|stage| {
            let other = other_namespace(stage);
            stage.scene().label(&other, stage.scene().consent()).await;
            ready_plane(stage).await;
        }),
        change: step!(|stage| {
            let rbac = json!({"rbac": {"workspaceNamespaces": [other_namespace(stage)]}});
            stage.scene().spec("coder", rbac).await;
        }),
    },
    Scenario {
        name: "plane-ingress-to-gateway",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| {
            let ingress = json!({"expose": {"ingress": {"host": "coder.example.test"}}});
            plane(stage, ingress).await;
            stage.scene().until_observed("coder").await;
        }),
        change: step!(|stage| {
            let gateway = json!({"host": "coder.example.test", "parentRefs": [{"name": "gw"}]});
            stage.scene().spec("coder", json!({"expose": {"ingress": null, "gateway": gateway}})).await;
        }),
    },
    Scenario {
        name: "license-set",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| {
            stage.coder().secret("license", "license", &license(1)).await;
            ready_plane(stage).await;
        }),
        change: step!(|stage| {
            stage.scene().spec("coder", json!({"licenseSecretRef": {"name": "license"}})).await;
        }),
    },
    Scenario {
        name: "license-rotated",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_licensed(stage).await }),
        change: step!(|stage| { stage.coder().secret("license", "license", &license(2)).await }),
    },
    Scenario {
        name: "license-removed",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_licensed(stage).await }),
        change: step!(|stage| { stage.scene().spec("coder", json!({"licenseSecretRef": null})).await }),
    },
    Scenario {
        name: "license-deleted-in-coderd",
        needs: VERIFYING,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_licensed(stage).await }),
        change: step!(|stage| {
            for found in stage.sim().licenses() {
                stage.sim().delete_license(found.id);
            }
        }),
    },
    Scenario {
        name: "access-on",
        needs: BASED,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { based(stage, json!({"disabled": true})).await }),
        change: step!(|stage| {
            stage.scene().spec("coder", json!({"operatorAccess": {"disabled": false}})).await;
        }),
    },
    Scenario {
        name: "access-off",
        needs: BASED,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_based(stage).await }),
        change: step!(|stage| {
            stage.scene().spec("coder", json!({"operatorAccess": {"disabled": true}})).await;
        }),
    },
    Scenario {
        name: "token-deleted",
        needs: Needs { verifies: true, ..BASED },
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_based(stage).await }),
        change: step!(|stage| {
            sql(stage, "DELETE FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%'").await;
        }),
    },
    Scenario {
        name: "token-expired",
        needs: Needs { late: true, ..BASED },
        is_common: false,
        cuts: false,
        prepare: step!(|stage| {
            stage.start();
            ready_based(stage).await;
            stage.stop();
            // Past two thirds of its life.
            let age = "UPDATE api_keys SET created_at = created_at - interval '300 days', \
                       expires_at = expires_at - interval '300 days' \
                       WHERE token_name LIKE 'coder-k8s-operator-%'";
            sql(stage, age).await;
            let past = json!({"status": {"operatorToken": {"renewAfter": "2026-01-01T00:00:00Z"}}});
            let planes = stage.scene().api::<CoderControlPlane>();
            planes.patch_status("coder", &PatchParams::default(), &Patch::Merge(&past)).await.unwrap();
        }),
        change: step!(|stage| { stage.start() }),
    },
    Scenario {
        name: "plane-deleted",
        needs: BASED,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_based(stage).await }),
        change: step!(|stage| { stage.scene().delete::<CoderControlPlane>("coder").await }),
    },
    Scenario {
        name: "pool-created",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_plane(stage).await }),
        change: step!(|stage| { drop(stage.coder().make(json!({})).await) }),
    },
    Scenario {
        name: "pool-tags",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| { drop(stage.coder().edit(json!({"tags": {"region": "eu"}})).await) }),
    },
    Scenario {
        name: "pool-key-renamed",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| { drop(stage.coder().edit(json!({"key": {"name": "renamed"}})).await) }),
    },
    Scenario {
        name: "pool-moved",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| {
            ready_pool(stage).await;
            let other = stage.coder().another_plane("other").await;
            stage.others.lock().push(Arc::new(other));
            stage.put_to_work();
        }),
        change: step!(|stage| {
            drop(stage.coder().edit(json!({"controlPlaneRef": {"name": "other"}})).await);
        }),
    },
    Scenario {
        name: "pool-secret-deleted",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| { stage.scene().delete::<Secret>(SECRET).await }),
    },
    Scenario {
        name: "pool-key-deleted-in-coderd",
        needs: VERIFYING,
        is_common: false,
        cuts: true,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| {
            for key in stage.sim().keys() {
                stage.sim().delete_key(&key.name);
            }
        }),
    },
    Scenario {
        name: "pool-scaled",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| { drop(stage.coder().edit(json!({"replicas": 3})).await) }),
    },
    Scenario {
        name: "pool-follows-its-queue",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { scaled_pool(stage, 0).await }),
        change: step!(|stage| { stage.queue(2) }),
    },
    Scenario {
        name: "pool-keeps-the-busy",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| {
            stage.queue(1);
            scaled_pool(stage, 3).await;
        }),
        change: step!(|stage| {
            drop(stage.coder().edit(json!({"autoscaling": {"minReplicas": 0}})).await);
        }),
    },
    Scenario {
        name: "pool-license-lost-and-back",
        needs: Needs { entitlements: true, ..PLAIN },
        is_common: false,
        cuts: true,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| {
            stage.sim().set_mode(Mode::Unlicensed);
            tokio::time::sleep(Duration::from_millis(2500)).await;
            stage.sim().set_mode(Mode::Licensed);
        }),
    },
    Scenario {
        name: "pool-deleted",
        needs: PLAIN,
        is_common: true,
        cuts: false,
        prepare: step!(|stage| { ready_pool(stage).await }),
        change: step!(|stage| { stage.scene().delete::<CoderProvisioner>("pool").await }),
    },
    Scenario {
        name: "proxy-created",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_plane(stage).await }),
        change: step!(|stage| { drop(stage.site.make(json!({})).await) }),
    },
    Scenario {
        name: "proxy-renamed",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_proxy(stage).await }),
        change: step!(|stage| {
            drop(stage.site.edit(json!({"registration": {"proxyName": "europe"}})).await);
        }),
    },
    Scenario {
        name: "proxy-token-lost",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_proxy(stage).await }),
        change: step!(|stage| { stage.scene().delete::<Secret>(proxy::SECRET).await }),
    },
    Scenario {
        name: "proxy-deleted",
        needs: PLAIN,
        is_common: false,
        cuts: false,
        prepare: step!(|stage| { ready_proxy(stage).await }),
        change: step!(|stage| { stage.scene().delete::<CoderWorkspaceProxy>("eu").await }),
    },
    Scenario {
        name: "taken-over",
        needs: Needs { bare: true, workspaces: true, late: true, ..PLAIN },
        is_common: false,
        cuts: false,
        prepare: step!(|stage| {
            let scene = stage.scene();
            let namespaces = [scene.namespace.as_str(), &other_namespace(stage)];
            let of_planes = |object: &Value| {
                let of_pools = ["provisioner", "proxy"];
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let kind = object["kind"].as_str().unwrap_or_default();
                !["CoderProvisioner", "CoderWorkspaceProxy"].contains(&kind)
                    && !of_pools.iter().any(|other| name.contains(other))
            };
            recorded::replay_in(&scene.client, namespaces, of_planes).await;
            stage.roll_out();
        }),
        change: step!(|stage| { stage.start() }),
    },
];

fn other_namespace(stage: &Stage) -> String {
    stage.scene().beside().first().cloned().unwrap_or_default()
}

/// A control plane with a token, or with a database in which another operator makes one.
async fn plane(stage: &Stage, more: Value) {
    if another().is_none() {
        return stage.coder().make_plane(more).await;
    }
    let url = json!([{"name": "CODER_PG_CONNECTION_URL", "value": stage.database_url()}]);
    let mut spec = json!({"image": IMAGE, "extraEnv": url});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    stage.scene().plane("coder", spec).await;
}

/// Waits for a condition; the conditions of another operator are not known, so that for that it is rest.
async fn until<T>(stage: &Stage, holds: impl Future<Output = T>) {
    if another().is_some() {
        stage.until_quiet(ANOTHER_QUIET).await;
    } else {
        holds.await;
    }
}

/// A control plane whose coderd has answered, with pods or without.
pub async fn answered_plane(stage: &Stage) {
    plane(stage, json!({})).await;
    until(stage, stage.coder().until_answered()).await;
}

async fn ready_plane(stage: &Stage) {
    answered_plane(stage).await;
    until(stage, stage.scene().until_ready("coder")).await;
}

async fn licensed(stage: &Stage) {
    plane(stage, json!({"licenseSecretRef": {"name": "license"}})).await;
}

async fn ready_licensed(stage: &Stage) {
    stage.coder().secret("license", "license", &license(1)).await;
    licensed(stage).await;
    until(stage, stage.scene().until_condition("coder", "LicenseApplied", "True", None)).await;
    until(stage, stage.scene().until_ready("coder")).await;
}

/// A control plane whose coderd has a database.
async fn based(stage: &Stage, access: Value) {
    let url = json!([{"name": "CODER_PG_CONNECTION_URL", "value": stage.database_url()}]);
    stage.scene().plane("coder", json!({"image": IMAGE, "extraEnv": url, "operatorAccess": access})).await;
    until(stage, stage.scene().until_observed("coder")).await;
}

async fn ready_based(stage: &Stage) {
    based(stage, json!({})).await;
    until(stage, stage.scene().until_condition("coder", "OperatorAccessReady", "True", None)).await;
    until(stage, stage.scene().until_ready("coder")).await;
}

async fn ready_pool(stage: &Stage) {
    ready_plane(stage).await;
    stage.coder().make(json!({})).await;
    until(stage, stage.coder().until_settled()).await;
    if another().is_none() {
        stage.put_to_work();
    }
}

/// A pool that follows its queue, with at least so many daemons.
async fn scaled_pool(stage: &Stage, least: i32) {
    ready_plane(stage).await;
    let autoscaling = json!({"minReplicas": least, "maxReplicas": 4, "scaleDownAfter": "1s"});
    stage.coder().make(json!({"autoscaling": autoscaling})).await;
    stage.coder().until_condition("Autoscaling", "True", "Steady").await;
    stage.coder().until_settled().await;
}

async fn ready_proxy(stage: &Stage) {
    ready_plane(stage).await;
    stage.site.make(json!({})).await;
    until(stage, stage.site.until_settled()).await;
}

async fn sql(stage: &Stage, statement: &str) {
    let Some((database, _)) = &stage.database else { return };
    database.connect_as_superuser().await.unwrap().batch_execute(statement).await.unwrap();
}

/// Kinds of others that a scenario needs in the cluster.
pub async fn install(client: &kube::Client) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": open, "status": open}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "httproutes.gateway.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute",
                "listKind": "HTTPRouteList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}],
        },
    });
    apply(client, definition).await;
}
