//! Starts of the operator: of the first instance, of one beside many objects, and of one whose leader died.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use coder_k8s_testbed::AuditEvent;
use k8s_openapi::jiff::Timestamp;

use crate::{
    fleet::{Fleet, PATIENCE, Plane},
    measure::{Bench, SETTLE, as_f64},
    process::{Operator, until_ready},
    say,
};

impl Bench<'_> {
    /// Starts the operator beside an object that it has not seen, and times what it does first. The names of the figures end
    /// with `beside`. Only an operator with probes says when it is ready.
    pub(crate) async fn start_with_new(&mut self, first: &Fleet, beside: &str) -> Result<Operator> {
        let number = self.starts;
        self.starts += 1;
        first.create(number..number + 1).await?;
        let (began, since) = (Instant::now(), Timestamp::now());
        let mut operator = self.recipe.start()?;
        let what = format!("start to the first converged object{beside}");
        let probes = operator.probes;
        let both = async {
            let converged = async {
                first.until(&what, number..number + 1, Plane::is_complete).await?;
                anyhow::Ok(began.elapsed())
            };
            let ready = async {
                let Some(probes) = probes else { return Ok(None) };
                let ready = tokio::time::timeout(PATIENCE, until_ready(probes));
                ready.await.context("the operator does not become ready")?;
                Ok(Some(began.elapsed()))
            };
            tokio::try_join!(converged, ready)
        };
        let (converged, ready) = tokio::select! {
            both = both => both?,
            ended = operator.until_ended() => return Err(ended),
        };
        let requests = self.requests(since).await?;
        let first_write = requests.iter().filter(|event| is_write(event)).map(|event| event.received).min();
        if let Some(ready) = ready {
            self.report.time(format!("start to ready{beside}"), ready);
        }
        if let Some(received) = first_write {
            let took = Duration::try_from(received.duration_since(since))?;
            self.report.time(format!("start to the first write{beside}"), took);
        }
        self.report.time(what, converged);
        Ok(operator)
    }

    /// Restarts the operator beside so many objects, and counts what it writes although nothing has changed.
    pub(crate) async fn restart(
        &mut self,
        operator: Operator,
        first: &Fleet,
        made: usize,
        seconds: u64,
    ) -> Result<Operator> {
        operator.stop().await?;
        let before = Timestamp::now();
        let operator = self.start_with_new(first, &format!(", beside {made}")).await?;
        tokio::time::sleep(Duration::from_secs(seconds.min(20))).await;
        let requests = self.requests(before).await?;
        // All but those for the new object.
        let writes = requests.iter().filter(|event| {
            !matches!(event.verb.as_str(), "get" | "list") && !first.contains(&event.namespace)
        });
        self.report.count("writes after a restart", as_f64(writes.count()), "");
        self.memory(&format!("memory after a restart with {made}"), operator.memory()?);
        Ok(operator)
    }

    /// The leader dies; another instance stands by.
    pub(crate) async fn failover(&mut self, leader: Operator, fleet: &Fleet) -> Result<Operator> {
        let mut successor = self.recipe.start()?;
        tokio::time::sleep(SETTLE).await;
        if let Err(ended) = successor.check() {
            say(&format!("no failover is measured, because a second instance does not run: {ended:#}"));
            return Ok(leader);
        }
        let rollout = fleet.get(0).rollout();
        leader.kill()?;
        let began = Instant::now();
        let replicas = if rollout % 2 == 0 { 3 } else { 2 };
        fleet.scale_one(0, replicas).await?;
        tokio::select! {
            done = fleet.until("a failover", 0..1, |plane| plane.rollout() > rollout) => done?,
            ended = successor.until_ended() => return Err(ended),
        }
        self.report.time("killed leader to changed child", began.elapsed());
        Ok(successor)
    }
}

/// Whether the request changes an object. Leases, events and questions about permissions are written before any work begins.
fn is_write(AuditEvent { verb, resource, .. }: &AuditEvent) -> bool {
    matches!(verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
        && !matches!(resource.as_str(), "leases" | "events")
        && !resource.ends_with("reviews")
}
