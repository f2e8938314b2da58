//! The same objects written without an operator: what the API server itself needs for them.
//!
//! They are written on a cluster of their own, which grows through the same sizes, by an account with the rights of the
//! operator. So the figures tell what of a creation, and of its growth, is the API server's.

use std::{
    num::NonZero,
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use coder_k8s_testbed::Cluster;
use futures::{TryStreamExt, future};
use k8s_openapi::{
    Resource as _,
    api::{
        apps::v1::Deployment,
        core::v1::{Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::{
    fleet::{self, Child, Fleet},
    measure::{Plan, as_f64},
    process,
    report::Report,
    say,
};

/// Control planes whose children are written at a time, as many as our operator reconciles.
const CONTROL_PLANES: usize = 32;

/// A control plane as the operator left it. The others are written after it.
#[derive(Debug)]
pub(crate) struct Sample {
    name: String,
    uid: String,
    /// As JSON, with this name and UID.
    children: Vec<(ApiResource, String)>,
    status: String,
}

impl Sample {
    /// The control plane of a number.
    pub(crate) async fn of(client: &Client, fleet: &Fleet, number: usize) -> Result<Self> {
        let (name, namespace) = (fleet::name(number), fleet.namespace_of(number));
        let plane = fleet::planes_of(client, namespace).get(&name).await?;
        let mut children = Vec::new();
        for (kind, child) in fleet.get(number).children {
            let resource = resource(kind);
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
            let object = serde_json::to_value(api.get(&child.name).await?)?;
            children.push((resource, stripped(object).to_string()));
        }
        let status = plane.data.get("status").context("a control plane without a status")?.to_string();
        Ok(Self { name, uid: plane.uid().unwrap_or_default(), children, status })
    }

    /// The text of the sample for another control plane.
    fn adapted<T: serde::de::DeserializeOwned>(&self, text: &str, plane: &DynamicObject) -> Result<T> {
        let uid = plane.uid().unwrap_or_default();
        Ok(serde_json::from_str(&text.replace(&self.name, &plane.name_any()).replace(&self.uid, &uid))?)
    }

    /// Writes children and status of a control plane that was just created.
    async fn write(&self, client: &Client, plane: DynamicObject) -> Result<()> {
        let namespace = plane.namespace().unwrap_or_default();
        // Who is no administrator binds a Role that exists.
        let is_last = |(resource, _): &&(ApiResource, String)| resource.kind == RoleBinding::KIND;
        let (last, first): (Vec<_>, Vec<_>) = self.children.iter().partition(is_last);
        for children in [first, last] {
            let written = children.into_iter().map(|(resource, text)| {
                let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
                let child: Result<DynamicObject> = self.adapted(text, &plane);
                async move {
                    let written = api.create(&PostParams::default(), &child?).await;
                    written.with_context(|| format!("cannot write a {}", resource.kind))
                }
            });
            future::try_join_all(written).await?;
        }
        self.write_status(client, plane).await
    }

    /// Writes what follows from the new number of replicas of a control plane: its Deployment and its status.
    async fn edit(&self, client: &Client, plane: DynamicObject, replicas: u32) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), &plane.namespace().unwrap_or_default());
        let patch = Patch::Strategic(json!({"spec": {"replicas": replicas}}));
        api.patch(&plane.name_any(), &PatchParams::default(), &patch)
            .await
            .context("cannot patch a Deployment")?;
        self.write_status(client, plane).await
    }

    async fn write_status(&self, client: &Client, mut plane: DynamicObject) -> Result<()> {
        let mut status: Value = self.adapted(&self.status, &plane)?;
        observe_generation(&mut status, plane.metadata.generation.unwrap_or_default());
        if let Some(fields) = plane.data.as_object_mut() {
            fields.insert("status".to_owned(), status);
        }
        let api = fleet::planes_of(client, &plane.namespace().unwrap_or_default());
        api.replace_status(&plane.name_any(), &PostParams::default(), &plane)
            .await
            .context("cannot write a status")?;
        Ok(())
    }
}

/// Sets `observedGeneration` of a status and of its conditions.
fn observe_generation(status: &mut Value, generation: i64) {
    match status {
        Value::Object(fields) => {
            for (field, value) in fields {
                if field == "observedGeneration" {
                    *value = generation.into();
                } else {
                    observe_generation(value, generation);
                }
            }
        }
        Value::Array(entries) => entries.iter_mut().for_each(|entry| observe_generation(entry, generation)),
        _ => {}
    }
}

fn resource(kind: Child) -> ApiResource {
    match kind {
        Child::Deployment => ApiResource::erase::<Deployment>(&()),
        Child::Service => ApiResource::erase::<Service>(&()),
        Child::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
        Child::Role => ApiResource::erase::<Role>(&()),
        Child::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
    }
}

/// An object without what the API server assigns.
fn stripped(mut object: Value) -> Value {
    let keep = |fields: Option<&mut Value>, kept: fn(&str) -> bool| {
        if let Some(fields) = fields.and_then(Value::as_object_mut) {
            fields.retain(|field, _| kept(field));
        }
    };
    keep(Some(&mut object), |field| field != "status");
    keep(object.pointer_mut("/spec"), |field| !matches!(field, "clusterIP" | "clusterIPs"));
    keep(object.pointer_mut("/metadata"), |field| {
        matches!(field, "name" | "labels" | "annotations" | "ownerReferences")
    });
    object
}

/// Writes the fleet of a plan, and adds what it took to the figures of the operator.
pub(crate) async fn measure(
    cluster: &Cluster,
    kubeconfig: &Path,
    sample: &Sample,
    plan: &Plan,
    report: &mut Report,
) -> Result<()> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    // As with the operator, the cluster has one already, and what is done once is done.
    let first = Fleet::new(cluster.client(), "bench-first", NonZero::<usize>::MIN).await?;
    write(&first, 0..1, sample, &client).await?;

    let fleet = Fleet::new(cluster.client(), "bench", plan.namespaces).await?;
    let mut meter = Meter::of(cluster)?;
    let mut made = 0;
    for size in plan.sizes.iter().copied() {
        say(&format!("{size} control planes without an operator"));
        let numbers = made..size;
        meter.reset()?;
        write(&fleet, numbers.clone(), sample, &client).await?;
        meter.report(report, ("raw writes, up to", "created, up to"), size, numbers.len())?;
        // The first edit of an operator adds a child; the second one is compared.
        edit(&fleet, numbers.clone(), sample, &client, 2).await?;
        meter.reset()?;
        edit(&fleet, numbers.clone(), sample, &client, 3).await?;
        meter.report(report, ("raw edits, beside", "edited again, beside"), size, numbers.len())?;
        made = size;
    }
    Ok(())
}

/// Time, and CPU of those who work without an operator.
struct Meter {
    api_server: u32,
    etcd: u32,
    began: Instant,
    /// CPU of kube-apiserver, and of etcd and the bench.
    used: [Duration; 2],
}

impl Meter {
    fn of(cluster: &Cluster) -> Result<Self> {
        let [api_server, etcd] = ["kube-apiserver", "etcd"].map(|name| process::named(&cluster.pids(), name));
        Ok(Self { api_server: api_server?, etcd: etcd?, began: Instant::now(), used: Default::default() })
    }

    fn reset(&mut self) -> Result<()> {
        (self.began, self.used) = (Instant::now(), self.used()?);
        Ok(())
    }

    fn used(&self) -> Result<[Duration; 2]> {
        let others = process::cpu(self.etcd)? + process::cpu(std::process::id())?;
        Ok([process::cpu(self.api_server)?, others])
    }

    /// Adds what it took since the last reset, and the share of that rate which the operator reached. `done` is the beginning
    /// of the names of the figures, without an operator and with one.
    fn report(
        &self,
        report: &mut Report,
        (done, by_operator): (&str, &str),
        size: usize,
        count: usize,
    ) -> Result<()> {
        let (took, after) = (self.began.elapsed(), self.used()?);
        let ms = |time: Duration| time.as_secs_f64() * 1000.0 / as_f64(count);
        let what = format!("{done} {size}");
        let each = ms(took);
        report.measured(format!("{what}, time for each"), each, "ms");
        for ((name, after), before) in
            ["kube-apiserver", "etcd and the bench"].into_iter().zip(after).zip(self.used)
        {
            let cpu = ms(after.saturating_sub(before));
            report.measured(format!("{what}, CPU of {name} for each"), cpu, "ms");
        }
        if let Some(taken) = report.get(&format!("{by_operator} {size}, time for each")) {
            report.measured(format!("share of the rate of {what}"), each / taken, "");
        }
        Ok(())
    }
}

/// Edits control planes of these numbers with all that follows, and waits as for an operator.
async fn edit(
    fleet: &Fleet,
    numbers: Range<usize>,
    sample: &Sample,
    client: &Client,
    replicas: u32,
) -> Result<()> {
    let edited = fleet.scaled(numbers.clone(), replicas).map_ok(|plane| sample.edit(client, plane, replicas));
    edited.try_buffer_unordered(CONTROL_PLANES).try_collect::<()>().await?;
    fleet.until("raw edits", numbers, |plane| plane.is_edited_to(replicas)).await
}

/// Writes control planes of these numbers with all that belongs to them, and waits as for an operator.
async fn write(fleet: &Fleet, numbers: Range<usize>, sample: &Sample, client: &Client) -> Result<()> {
    let written = fleet.created(numbers.clone()).map_ok(|plane| sample.write(client, plane));
    written.try_buffer_unordered(CONTROL_PLANES).try_collect::<()>().await?;
    fleet.until("raw writes", numbers, fleet::Plane::is_complete).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_status_says_which_generation_it_is_of() {
        let mut status = json!({"observedGeneration": 1, "phase": "Ready",
            "conditions": [{"type": "Ready", "observedGeneration": 1}]});
        observe_generation(&mut status, 3);
        let expected = json!({"observedGeneration": 3, "phase": "Ready",
            "conditions": [{"type": "Ready", "observedGeneration": 3}]});
        assert_eq!(status, expected);
    }

    #[test]
    fn a_child_is_written_again_for_another_control_plane() {
        let service = stripped(json!({"apiVersion": "v1", "kind": "Service", "status": {"loadBalancer": {}},
            "metadata": {"name": "plane-00000", "namespace": "bench-1", "uid": "s", "resourceVersion": "7",
                "managedFields": [], "labels": {"of": "plane-00000"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "plane-00000", "uid": "u-0"}]},
            "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "ClusterIP"}}));
        let sample = Sample {
            name: "plane-00000".to_owned(),
            uid: "u-0".to_owned(),
            children: Vec::new(),
            status: String::new(),
        };
        let plane: DynamicObject =
            serde_json::from_value(json!({"metadata": {"name": "plane-00041", "uid": "u-41"}})).unwrap();
        let written: Value = sample.adapted(&service.to_string(), &plane).unwrap();
        let expected = json!({"apiVersion": "v1", "kind": "Service", "spec": {"type": "ClusterIP"},
            "metadata": {"name": "plane-00041", "labels": {"of": "plane-00041"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "plane-00041", "uid": "u-41"}]}});
        assert_eq!(written, expected);
    }
}
