//! Pools of provisioner daemons, whose keys a simulated coderd in this process issues.
//!
//! No node runs pods here. So the bench itself writes into the status of the control plane's Deployment that its pods are
//! ready: before that, the operator does not ask coderd. The Deployments of the pools stay without pods, and a pool is done
//! when it has its key and its Deployment: both do not depend on pods.

use std::{
    collections::{BTreeMap, HashSet},
    future::ready,
    pin::pin,
};

use anyhow::{Context, Result};
use coder_k8s_api::{CoderControlPlane, CoderProvisioner};
use coder_k8s_testbed::CoderSim;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, wait::await_condition, watcher},
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::{
    fleet::{PATIENCE, WRITERS},
    measure::{Bench, Plan, SETTLE, apply, as_f64},
    process::Operator,
    say,
};

const NAMESPACE: &str = "bench-pools";
/// The name of the control plane, and so of its Deployment.
const PLANE: &str = "coder";

/// What a pool needs to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Key,
    Deployment,
}

impl Bench<'_> {
    /// Creates pools, and looks at the operator and at coderd once more while nothing changes.
    pub(crate) async fn pools(
        &mut self,
        operator: &mut Operator,
        coderd: &CoderSim,
        &Plan { pools: count, rest, .. }: &Plan,
    ) -> Result<()> {
        say(&format!("{count} pools"));
        tokio::time::timeout(PATIENCE, Box::pin(serve(&self.client, coderd)))
            .await
            .context("the control plane of the pools gets no answer of coderd")??;
        tokio::time::sleep(SETTLE).await;
        let idle = operator.memory()?;
        let (before, mark) = (self.before(operator)?, coderd.mark());
        let done = async {
            let all =
                async { tokio::try_join!(create(&self.client, count), until_done(&self.client, count)) };
            tokio::time::timeout(PATIENCE, all).await.context("not all pools get a key and a Deployment")?
        };
        tokio::select! {
            done = done => done.map(drop)?,
            ended = operator.until_ended() => return Err(ended),
        }
        self.cost("pools created", &before, operator, count)?;
        let requests = self.requests(before.time).await?;
        let each = |number: usize| as_f64(number) / as_f64(count);
        self.report.count("requests for each new pool", each(requests.len()), "");
        self.by_verb("new pool", &requests, count);
        let calls = coderd.since(mark);
        self.report.count("calls to coderd for each new pool", each(calls.len()), "");
        let mut by_route = BTreeMap::<_, usize>::new();
        for call in &calls {
            *by_route.entry(format!("{} {}", call.method, route(&call.path))).or_default() += 1;
        }
        for (route, number) in by_route {
            self.report.count(format!("new pool: coderd {route}"), each(number), "");
        }
        tokio::time::sleep(SETTLE).await;
        let grown = operator.memory()?.grown(idle) / as_f64(count);
        self.report.measured(format!("memory for each of {count} pools"), grown, "KiB");

        let mark = coderd.mark();
        let began = self.rest(operator, rest, &format!(", with {count} pools")).await?;
        let calls = coderd.since(mark).iter().filter(|call| call.at >= began).count();
        self.report.count(
            format!("calls to coderd in {rest} s at rest, with {count} pools"),
            as_f64(calls),
            "",
        );
        Ok(())
    }
}

/// The path with a star for each segment that is a name, an id or a key.
fn route(path: &str) -> String {
    let is_fixed = |segment: &str| {
        segment == "v2"
            || (segment.len() <= 24 && segment.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
    };
    let segments: Vec<_> =
        path.split('/').map(|segment| if is_fixed(segment) { segment } else { "*" }).collect();
    segments.join("/")
}

/// Creates the control plane, and waits until coderd has told the operator who it is and what its license covers.
async fn serve(client: &Client, coderd: &CoderSim) -> Result<()> {
    for object in control_plane(coderd) {
        apply(client, object).await?;
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let exists = |deployment: Option<&Deployment>| deployment.is_some();
    let deployment = await_condition(deployments.clone(), PLANE, exists).await?.context("no Deployment")?;
    let patch = Patch::Merge(json!({"status": rolled_out(&deployment)}));
    deployments.patch_status(PLANE, &PatchParams::default(), &patch).await?;
    let planes: Api<CoderControlPlane> = Api::namespaced(client.clone(), NAMESPACE);
    await_condition(planes, PLANE, |plane: Option<&CoderControlPlane>| plane.is_some_and(is_connected))
        .await?;
    Ok(())
}

/// The namespace, the token and the control plane.
fn control_plane(coderd: &CoderSim) -> [Value; 3] {
    let meta = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let token = coderd.owner_token();
    let access =
        json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"}, "apiURL": coderd.url()});
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("token"),
            "stringData": {"token": token.expose_secret()}}),
        json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "metadata": meta(PLANE),
            "spec": {"image": "example.test/coder:v2.36.1", "operatorAccess": access}}),
    ]
}

/// The status of a Deployment all of whose pods are ready.
fn rolled_out(deployment: &Deployment) -> Value {
    let pods = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let condition = |type_: &str, reason: &str| json!({"type": type_, "status": "True", "reason": reason});
    json!({
        "observedGeneration": deployment.metadata.generation,
        "replicas": pods, "updatedReplicas": pods, "readyReplicas": pods, "availableReplicas": pods,
        "conditions": [
            condition("Available", "MinimumReplicasAvailable"),
            condition("Progressing", "NewReplicaSetAvailable"),
        ],
    })
}

fn is_connected(plane: &CoderControlPlane) -> bool {
    plane.status.as_ref().is_some_and(|status| {
        let entitlement = status.external_provisioner_daemons_entitlement.as_deref();
        status.operator_access_ready == Some(true)
            && status.deployment_id.is_some()
            && entitlement.is_some_and(|known| known != "unknown")
    })
}

async fn create(client: &Client, count: usize) -> Result<()> {
    let api: Api<CoderProvisioner> = Api::namespaced(client.clone(), NAMESPACE);
    let created = stream::iter(0..count).map(|number| {
        let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": format!("pool-{number:05}")}, "spec": {"controlPlaneRef": {"name": PLANE}}});
        let api = api.clone();
        async move {
            api.create(&PostParams::default(), &serde_json::from_value(object)?)
                .await
                .context("create a pool")
        }
    });
    created.buffer_unordered(WRITERS).try_for_each(|_| async { Ok(()) }).await
}

/// Waits until so many pools have their key and their Deployment.
async fn until_done(client: &Client, count: usize) -> Result<()> {
    let pools: Api<CoderProvisioner> = Api::namespaced(client.clone(), NAMESPACE);
    let keys = versions(pools).filter_map(|pool| ready(has_key(&pool).then(|| (Part::Key, pool.name_any()))));
    let deployments: Api<PartialObjectMeta<Deployment>> = Api::namespaced(client.clone(), NAMESPACE);
    let deployments =
        versions(deployments).filter_map(|child| ready(pool_of(&child).map(|pool| (Part::Deployment, pool))));
    let (mut parts, mut done) = (pin!(stream::select(keys, deployments)), HashSet::new());
    while done.len() < 2 * count {
        done.insert(parts.next().await.context("a watch ended")?);
    }
    Ok(())
}

/// Every version of every object that a watch delivers. A watch that fails begins again.
fn versions<K>(api: Api<K>) -> impl Stream<Item = K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let events = watcher::watcher(api, watcher::Config::default()).default_backoff();
    events.applied_objects().filter_map(|object| ready(object.ok()))
}

fn has_key(pool: &CoderProvisioner) -> bool {
    let conditions = pool.status.iter().flat_map(|status| &status.workload.conditions);
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "ProvisionerKeyReady" && condition.status == "True")
}

fn pool_of(deployment: &PartialObjectMeta<Deployment>) -> Option<String> {
    let owners = deployment.owner_references();
    owners.iter().find(|owner| owner.kind == "CoderProvisioner").map(|owner| owner.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_no_object_and_no_key() {
        let id = "7c1d4e0b-9b5f-4e0b-9b5f-7c1d4e0b9b5f";
        let path = format!("/api/v2/organizations/{id}/provisionerkeys/pool-00001");
        assert_eq!(route(&path), "/api/v2/organizations/*/provisionerkeys/*");
        assert_eq!(route("/api/v2/provisionerkeys/abcdefghijklmnopqrstuvwxyz"), "/api/v2/provisionerkeys/*");
    }
}
