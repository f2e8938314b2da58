//! What is measured, in order, on one cluster with one operator.

use std::{
    collections::BTreeMap,
    num::NonZero,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use coder_k8s_testbed::{AuditEvent, Cluster, CoderSim};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::Value;

use crate::{
    fleet::{Child, Fleet, WRITERS},
    process::{self, Memory, Operator, Recipe},
    raw::Sample,
    report::Report,
    say,
};

/// After a burst, before memory is read.
pub(crate) const SETTLE: Duration = Duration::from_secs(5);
/// After a creation, before memory is read. Twice as long as an unused connection of our operator stays open.
const SETTLE_CREATED: Duration = Duration::from_secs(20);
/// Starts beside fewer objects than this are timed only after the last size.
const RESTARTED_FROM: usize = 200;

/// How much is measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) sizes: Vec<usize>,
    /// Over how many the control planes are spread.
    pub(crate) namespaces: NonZero<usize>,
    pub(crate) samples: usize,
    /// Seconds.
    pub(crate) rest: u64,
    /// Whether the leader is killed, the API server restarted, and so many Secrets of others created.
    pub(crate) disasters: Option<usize>,
    /// How many pools. Without a simulated coderd there are none.
    pub(crate) pools: usize,
}

/// A cluster and the operator that is measured on it.
pub(crate) struct Bench<'a> {
    cluster: &'a Cluster,
    pub(crate) client: Client,
    pub(crate) recipe: Recipe,
    user_agent: String,
    api_server: u32,
    etcd: u32,
    /// How often the operator was started beside a new object, which is the number of the next one.
    pub(crate) starts: usize,
    pub(crate) report: Report,
    /// One of the control planes that were created first.
    pub(crate) sample: Option<Sample>,
}

/// What a step began with.
pub(crate) struct Before {
    at: Instant,
    pub(crate) time: Timestamp,
    operator: Duration,
    api_server: Duration,
    /// Of etcd and of the bench itself, which use the same cores.
    others: Duration,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(cluster: &'a Cluster, recipe: Recipe, user_agent: &str) -> Result<Self> {
        let api_server = process::named(&cluster.pids(), "kube-apiserver")?;
        let etcd = process::named(&cluster.pids(), "etcd")?;
        let (client, report) = (cluster.client(), Report::default());
        let user_agent = user_agent.to_owned();
        Ok(Self { cluster, client, recipe, user_agent, api_server, etcd, starts: 0, report, sample: None })
    }

    /// Everything. Pools are last, so that no other figure is one beside pools.
    pub(crate) async fn all(&mut self, plan: &Plan, coderd: Option<&CoderSim>) -> Result<Report> {
        let first = Fleet::new(self.client.clone(), "bench-first", NonZero::<usize>::MIN).await?;
        let mut operator = self.start_with_new(&first, "").await?;
        tokio::time::sleep(SETTLE).await;
        let idle = operator.memory()?;
        self.memory("memory with one object", idle);

        let fleet = Fleet::new(self.client.clone(), "bench", plan.namespaces).await?;
        let mut made = 0;
        for size in plan.sizes.iter().copied() {
            say(&format!("{size} control planes"));
            self.create(&mut operator, &fleet, made..size, idle).await?;
            self.edit(&mut operator, &fleet, made..size, size).await?;
            self.latency(&fleet, size, plan.samples).await?;
            made = size;
            // Memory at the next sizes is then that of an instance that was started beside these objects.
            if size >= RESTARTED_FROM && plan.sizes.last() != Some(&size) {
                operator.stop().await?;
                operator = self.start_with_new(&first, &format!(", beside {size}")).await?;
            }
        }
        self.rest(&mut operator, plan.rest, "").await?;
        operator = self.restart(operator, &first, made, plan.rest).await?;
        if let Some(secrets) = plan.disasters {
            operator = self.failover(operator, &fleet).await?;
            self.relist(&mut operator, made).await?;
            self.foreign_secrets(&mut operator, secrets).await?;
        }
        if let Some(coderd) = coderd {
            self.pools(&mut operator, coderd, plan).await?;
        }
        operator.stop().await?;
        Ok(std::mem::take(&mut self.report))
    }

    pub(crate) fn before(&self, operator: &Operator) -> Result<Before> {
        Ok(Before {
            at: Instant::now(),
            time: Timestamp::now(),
            operator: process::cpu(operator.pid())?,
            api_server: process::cpu(self.api_server)?,
            others: self.others()?,
        })
    }

    fn others(&self) -> Result<Duration> {
        Ok(process::cpu(self.etcd)? + process::cpu(std::process::id())?)
    }

    /// Time since then and CPU of all processes, for each object.
    pub(crate) fn cost(
        &mut self,
        what: &str,
        before: &Before,
        operator: &Operator,
        objects: usize,
    ) -> Result<()> {
        let each = |time: Duration| time.as_secs_f64() * 1000.0 / as_f64(objects);
        let cpu = process::cpu(operator.pid())?.saturating_sub(before.operator);
        let of_server = process::cpu(self.api_server)?.saturating_sub(before.api_server);
        self.report.measured(format!("{what}, time for each"), each(before.at.elapsed()), "ms");
        self.report.measured(format!("{what}, CPU of the operator for each"), each(cpu), "ms");
        self.report.measured(format!("{what}, CPU of kube-apiserver for each"), each(of_server), "ms");
        let others = self.others()?.saturating_sub(before.others);
        self.report.measured(format!("{what}, CPU of etcd and the bench for each"), each(others), "ms");
        Ok(())
    }

    /// The requests of the operator since then, but for those of the lease and for streams.
    pub(crate) async fn requests(&self, since: Timestamp) -> Result<Vec<AuditEvent>> {
        // The server writes a line after it has answered.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ours = |event: &AuditEvent| {
            event.received >= since
                && event.user_agent.starts_with(&self.user_agent)
                && event.verb != "watch"
                && event.resource != "leases"
        };
        Ok(self.cluster.audit_where(ours)?)
    }

    async fn create(
        &mut self,
        operator: &mut Operator,
        fleet: &Fleet,
        numbers: std::ops::Range<usize>,
        idle: Memory,
    ) -> Result<()> {
        let (size, count) = (numbers.end, numbers.len());
        let what = format!("created, up to {size}");
        let before = self.before(operator)?;
        fleet.create(numbers.clone()).await?;
        fleet.until(&what, numbers.clone(), super::fleet::Plane::is_complete).await?;
        operator.check()?;
        self.cost(&what, &before, operator, count)?;
        let requests = self.requests(before.time).await?;
        if size == count {
            let each = |requests: usize| as_f64(requests) / as_f64(count);
            self.report.count("requests for each new control plane", each(requests.len()), "");
            let reads = requests.iter().filter(|event| matches!(event.verb.as_str(), "get" | "list"));
            self.report.count("reads for each new control plane", each(reads.count()), "");
            self.by_verb("new control plane", &requests, count);
            self.sample = Some(Sample::of(&self.client, fleet, numbers.start).await?);
        }
        tokio::time::sleep(SETTLE_CREATED).await;
        if let Some(probes) = operator.probes.filter(|_| size == count) {
            let kept = process::gauge(probes, "coder_k8s_cache_bytes{").await?;
            self.report.count("bytes kept for each control plane", kept / as_f64(count), "bytes");
        }
        let memory = operator.memory()?;
        self.memory(&format!("memory with {size}"), memory);
        let each = as_f64(usize::try_from(memory.pss.saturating_sub(idle.pss))?) / as_f64(size);
        self.report.measured(format!("memory for each of {size}"), each, "KiB");
        Ok(())
    }

    /// How many requests of each verb and resource there were for each object.
    pub(crate) fn by_verb(&mut self, what: &str, requests: &[AuditEvent], count: usize) {
        let mut by_verb = BTreeMap::<String, usize>::new();
        for AuditEvent { verb, resource, subresource, .. } in requests {
            *by_verb.entry(format!("{verb} {resource}/{subresource}")).or_default() += 1;
        }
        for (verb, number) in by_verb {
            let each = as_f64(number) / as_f64(count);
            self.report.count(format!("{what}: {}", verb.trim_end_matches('/')), each, "");
        }
    }

    /// Scales to two, which adds a PodDisruptionBudget, and then to three, which changes the Deployment alone.
    async fn edit(
        &mut self,
        operator: &mut Operator,
        fleet: &Fleet,
        numbers: std::ops::Range<usize>,
        size: usize,
    ) -> Result<()> {
        for (edited, replicas) in [("edited", 2), ("edited again", 3)] {
            let (what, count) = (format!("{edited}, beside {size}"), numbers.len());
            let before = self.before(operator)?;
            fleet.scale(numbers.clone(), replicas).await?;
            fleet.until(&what, numbers.clone(), |plane| plane.is_edited_to(replicas)).await?;
            operator.check()?;
            self.cost(&what, &before, operator, count)?;
            if size == count {
                let requests = self.requests(before.time).await?;
                let each = as_f64(requests.len()) / as_f64(count);
                self.report.count(format!("requests for each control plane {edited}"), each, "");
                self.by_verb(&format!("control plane {edited}"), &requests, count);
            }
        }
        Ok(())
    }

    /// One edit, or one deleted child, at a time.
    async fn latency(&mut self, fleet: &Fleet, size: usize, samples: usize) -> Result<()> {
        let (mut edits, mut deletions) = (Vec::new(), Vec::new());
        for sample in 0..samples {
            let number = sample % size;
            let rollout = fleet.get(number).rollout();
            let began = Instant::now();
            let replicas = if rollout % 2 == 0 { 3 } else { 2 };
            fleet.scale_one(number, replicas).await?;
            fleet.until("an edit", number..number + 1, |plane| plane.rollout() > rollout).await?;
            edits.extend(changed(fleet, number, Child::Deployment, began));
            fleet.until("an edit", number..number + 1, super::fleet::Plane::is_complete).await?;
        }
        for sample in 0..samples {
            let number = sample % size;
            let uid = fleet.get(number).children.get(&Child::Service).map(|child| child.uid.clone());
            let began = Instant::now();
            fleet.delete_service(number).await?;
            let is_new = |plane: &super::fleet::Plane| {
                plane.children.get(&Child::Service).is_some_and(|child| Some(&child.uid) != uid.as_ref())
            };
            fleet.until("a deleted child", number..number + 1, is_new).await?;
            deletions.extend(changed(fleet, number, Child::Service, began));
        }
        self.report.times(&format!("edit to changed child, beside {size}"), edits);
        self.report.times(&format!("deleted child to restored child, beside {size}"), deletions);
        Ok(())
    }

    /// Requests and CPU while nothing changes. The names of the figures end with `beside`. Returns when it began.
    pub(crate) async fn rest(
        &mut self,
        operator: &mut Operator,
        seconds: u64,
        beside: &str,
    ) -> Result<Timestamp> {
        tokio::time::sleep(SETTLE).await;
        let before = self.before(operator)?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let requests = self.requests(before.time).await?.len();
        self.report.count(format!("requests at rest{beside}"), as_f64(requests), "");
        let cpu = process::cpu(operator.pid())?.saturating_sub(before.operator);
        self.report.measured(
            format!("CPU at rest{beside}"),
            cpu.as_secs_f64() * 1000.0 / before.at.elapsed().as_secs_f64(),
            "ms/s",
        );
        Ok(before.time)
    }

    /// The API server restarts: every watch begins again.
    async fn relist(&mut self, operator: &mut Operator, made: usize) -> Result<()> {
        tokio::time::sleep(SETTLE).await;
        let steady = operator.memory()?.rss;
        self.cluster.restart_api_server().await?;
        self.api_server = process::named(&self.cluster.pids(), "kube-apiserver")?;
        let (mut peak, began) = (steady, Instant::now());
        while began.elapsed() < Duration::from_secs(40) {
            peak = peak.max(operator.memory()?.rss);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        operator.check()?;
        let ratio = as_f64(usize::try_from(peak)?) / as_f64(usize::try_from(steady)?);
        self.report.measured(format!("peak over steady when all watches begin again with {made}"), ratio, "");
        Ok(())
    }

    async fn foreign_secrets(&mut self, operator: &mut Operator, count: usize) -> Result<()> {
        let before = operator.memory()?;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), "default");
        let written = stream::iter(0..count).map(|number| {
            let secret = Secret {
                metadata: kube::api::ObjectMeta {
                    name: Some(format!("foreign-{number}")),
                    ..Default::default()
                },
                data: Some([("data".to_owned(), ByteString(vec![b'x'; 4096]))].into()),
                ..Secret::default()
            };
            let api = api.clone();
            async move { api.create(&PostParams::default(), &secret).await }
        });
        written
            .buffer_unordered(WRITERS)
            .try_for_each(|_| async { Ok(()) })
            .await
            .context("foreign Secrets")?;
        tokio::time::sleep(SETTLE).await;
        operator.check()?;
        let after = operator.memory()?;
        self.report.measured(
            format!("memory for {count} foreign Secrets"),
            after.grown(before) / 1024.0,
            "MiB",
        );
        Ok(())
    }

    pub(crate) fn memory(&mut self, what: &str, Memory { rss, pss }: Memory) {
        for (word, kib) in [("RSS", rss), ("PSS", pss)] {
            #[expect(clippy::cast_precision_loss, reason = "KiB of a process")]
            self.report.measured(format!("{what}, {word}"), kib as f64 / 1024.0, "MiB");
        }
    }
}

/// When the child of this kind last changed, counted from `began`.
fn changed(fleet: &Fleet, number: usize, kind: Child, began: Instant) -> Option<Duration> {
    fleet.get(number).children.get(&kind).map(|child| child.at.saturating_duration_since(began))
}

/// Applies an object of any kind.
pub(crate) async fn apply(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.as_ref().context("an object without a kind")?;
    let resource = ApiResource::from_gvk(&types.try_into()?);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.patch(&object.name_any(), &PatchParams::apply("bench").force(), &Patch::Apply(&object)).await?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bench are far below 2^52")]
pub(crate) fn as_f64(count: usize) -> f64 {
    count as f64
}
