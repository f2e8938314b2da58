//! Decides about the replicas of scaled pools after each poll, and keeps the decisions for their reconciles.
//!
//! Reads the pods of a pool, and its Deployment where the cache lags behind: at rest neither, because the cached Deployment
//! says that none has changed.
//! Writes nothing: a changed decision enqueues its pool, whose reconcile scales the Deployment.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coder_k8s_api::{CoderKind, CoderProvisioner};
use coder_k8s_core::{
    autoscaling::{self, DaemonTimes, ObservedPool, ScaleDecision, ScaleReason, ScalingPolicy, poll_delay},
    daemon_listing::DaemonTags,
    intervals::MAX_POSTPONED_POLLS,
    object,
    provisioner::{
        daemons::{DaemonPod, keys},
        names, scaling,
    },
    workload::{Rollout, RolloutStage},
};
use coder_k8s_engine::{cache::ObjectKey, client};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{DaemonPoller, PolledOrganization, PoolsByOrganization, organization, plane_of};
use crate::{controller::Context, metrics::QueueSeries, provisioner};

/// A decision, and the part of the spec that it is for.
pub(super) struct PoolDecision {
    policy: ScalingPolicy,
    tags: DaemonTags,
    decision: ScaleDecision,
    /// Set while the pool waits before it shrinks as decided.
    shrink: Option<PostponedShrink>,
}

#[derive(Clone, Copy)]
struct PostponedShrink {
    since: Instant,
    /// When the deletion costs of its pods were last changed.
    marked: Instant,
}

impl PoolDecision {
    fn is_for(&self, pool: &CoderProvisioner) -> bool {
        let policy = pool.spec.autoscaling.as_ref().map(scaling::policy);
        policy.as_ref() == Some(&self.policy) && pool.spec.tags == self.tags
    }
}

impl PostponedShrink {
    fn waits(self, interval: Duration, now: Instant) -> bool {
        now.duration_since(self.marked) < interval
            && now.duration_since(self.since) < interval * MAX_POSTPONED_POLLS
    }
}

impl PolledOrganization {
    /// The last decision about a pool, if it is for its present spec.
    pub(super) fn decision(&self, pool: &CoderProvisioner) -> Option<&ScaleDecision> {
        let decided = self.decisions.get(&pool.name_any()).filter(|decided| decided.is_for(pool));
        decided.map(|decided| &decided.decision)
    }
}

impl DaemonPoller {
    /// The last decision about a pool, if it is for its present spec. None: there is none, and its replicas stay.
    pub(crate) fn decision(&self, pool: &CoderProvisioner) -> Option<ScaleDecision> {
        let (plane, organization) = (plane_of(pool), organization(pool)?);
        self.planes.lock().get(&plane)?.organizations.get(&organization)?.decision(pool).cloned()
    }

    /// Whether a pool waits before it shrinks as decided: for one interval after the deletion costs of its pods were changed,
    /// and for [`MAX_POSTPONED_POLLS`] at most, because where daemons take and finish builds all the time some are always new. The
    /// next poll enqueues the pool again.
    pub(crate) fn postpone(&self, pool: &CoderProvisioner, has_marked: bool) -> bool {
        let Some(organization) = organization(pool) else { return true };
        let (mut planes, now) = (self.planes.lock(), Instant::now());
        let polled =
            planes.get_mut(&plane_of(pool)).and_then(|known| known.organizations.get_mut(&organization));
        let decided = polled.and_then(|polled| polled.decisions.get_mut(&pool.name_any()));
        decided.is_none_or(|decided| {
            let shrink = decided.shrink.get_or_insert(PostponedShrink { since: now, marked: now });
            if has_marked {
                shrink.marked = now;
            }
            shrink.waits(self.scaling_interval, now)
        })
    }

    /// The jobs that wait for a pool, for the metrics. None: it is not scaled, or nobody knows.
    pub(crate) fn queue_of(&self, pool: &CoderProvisioner, now: jiff::Timestamp) -> Option<QueueSeries> {
        let decision = self.decision(pool).filter(|known| known.reason != ScaleReason::QueueUnknown)?;
        let waiting = decision.oldest.map_or(0, |oldest| now.duration_since(oldest).as_secs().max(0));
        Some(QueueSeries { pending: decision.pending.into(), waiting })
    }
}

/// Whether the replicas of a pool follow its queue now.
pub(super) fn is_scaled(pool: &CoderProvisioner) -> bool {
    scaling::is_scaled(pool) && !object::is_paused(pool) && !object::is_deleting(pool)
}

/// A scaled pool, with all that its decision depends on.
struct ScaledPool {
    object: Arc<CoderProvisioner>,
    policy: ScalingPolicy,
    replicas: u32,
    keys: Vec<String>,
    pods: Option<Arc<Vec<DaemonPod>>>,
    refused: bool,
}

/// Decides about all scaled pools of a control plane. Returns the delay until the next decision.
pub(super) async fn decide(key: &ObjectKey, pools: &PoolsByOrganization, ctx: &Context) -> Option<Duration> {
    let mut decisions = Vec::new();
    let mut calls = 1;
    for (organization, members) in pools {
        let mut scaled = Vec::new();
        for pool in members.iter().filter(|pool| is_scaled(pool)) {
            scaled.extend(observe(pool, ctx).await);
        }
        if !scaled.is_empty() {
            calls += 2;
        }
        decisions.extend(decide_organization(key, organization, &scaled, ctx));
    }
    let delay = poll_delay(&decisions, ctx.daemon_poller.scaling_interval, calls, ctx.now());
    Some(delay).filter(|_| !decisions.is_empty())
}

async fn observe(pool: &Arc<CoderProvisioner>, ctx: &Context) -> Option<ScaledPool> {
    let policy = scaling::policy(pool.spec.autoscaling.as_ref()?);
    let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &**pool);
    let (deployment, pods) = match provisioner::current_deployment(&key, pool, ctx).await {
        Ok(Some(deployment)) => {
            let pods = provisioner::current_pods(&key, &deployment, ctx).await;
            (Some(deployment), pods)
        }
        Ok(None) => (None, Some(Arc::default())),
        // Every listed daemon counts, and the reconcile writes nothing before it can read the Deployment.
        Err(error) => {
            let name = names::deployment(&key.name);
            tracing::warn!("cannot read Deployment {name}: {}", client::describe(&error));
            (ctx.caches.deployments.get(&key.namespace, &name), None)
        }
    };
    let rollout = Rollout::of(deployment.as_deref());
    Some(ScaledPool {
        object: pool.clone(),
        policy,
        replicas: u32::try_from(rollout.desired).unwrap_or(0),
        keys: pool.status.as_ref().map(keys).unwrap_or_default(),
        pods,
        refused: matches!(rollout.stage, RolloutStage::Refused(_)),
    })
}

/// Decides about the scaled pools of one organization, and enqueues those whose decision changed.
fn decide_organization(
    key: &ObjectKey,
    organization: &str,
    scaled: &[ScaledPool],
    ctx: &Context,
) -> Vec<ScaleDecision> {
    let names: Vec<_> = scaled.iter().map(|pool| pool.object.name_any()).collect();
    let observed = scaled.iter().zip(&names).map(|(pool, name)| ObservedPool {
        name,
        tags: &pool.object.spec.tags,
        policy: &pool.policy,
        replicas: pool.replicas,
        keys: &pool.keys,
        pods: pool.pods.as_ref().map(|pods| pods.as_slice()),
        refused: pool.refused,
    });
    let (observed, now): (Vec<_>, _) = (observed.collect(), ctx.now());
    let poller = &ctx.daemon_poller;
    // Decided between the locks, which every reconcile takes. Nobody else uses the times: a control plane is polled by one
    // worker at a time.
    let with_polled = |act: &mut dyn FnMut(&mut PolledOrganization)| {
        let mut planes = poller.planes.lock();
        let known = planes.get_mut(key).and_then(|known| known.organizations.get_mut(organization));
        known.map(act).is_some()
    };
    if scaled.is_empty() {
        with_polled(&mut |polled| polled.decisions.clear());
        return Vec::new();
    }
    let mut taken = None;
    with_polled(&mut |polled| {
        let times = std::mem::replace(&mut polled.times, DaemonTimes::new(now));
        taken = Some((polled.listing.clone(), polled.answered, times));
    });
    let Some((listing, answered, times)) = taken else { return Vec::new() };
    let census = autoscaling::observe(listing.as_deref(), answered, &times, &observed, now);
    let decisions = autoscaling::decide(&census.queue, &census.pools, now);
    let mut decided: BTreeMap<_, _> = scaled
        .iter()
        .zip(&decisions)
        .map(|(pool, decision)| {
            let (policy, tags) = (pool.policy.clone(), pool.object.spec.tags.clone());
            (decision.pool.clone(), PoolDecision { policy, tags, decision: decision.clone(), shrink: None })
        })
        .collect();
    let mut times = Some(times);
    with_polled(&mut |polled| {
        for (pool, decision) in
            scaled.iter().zip(&decisions).filter(|(pool, decision)| decision.desired < pool.replicas)
        {
            let before = polled.decisions.get(&decision.pool).filter(|before| before.is_for(&pool.object));
            if let (Some(before), Some(decided)) = (before, decided.get_mut(&decision.pool)) {
                decided.shrink = before.shrink;
            }
        }
        std::mem::swap(&mut polled.decisions, &mut decided);
        polled.times = times.take().unwrap_or_else(|| DaemonTimes::new(now));
    });
    let before = decided;
    for (pool, decision) in scaled.iter().zip(&decisions) {
        let is_settled = |before: &PoolDecision| before.decision == *decision && before.shrink.is_none();
        if !before.get(&decision.pool).is_some_and(is_settled) {
            let pool = ObjectKey::of(CoderKind::Provisioner.as_str(), &*pool.object);
            ctx.dependents.schedule.queue.enqueue(pool);
        }
    }
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_waits_an_interval_after_its_pods_are_marked_and_not_for_ever() {
        let (interval, since) = (Duration::from_secs(5), Instant::now());
        let marked_after = |seconds| PostponedShrink { since, marked: since + Duration::from_secs(seconds) };
        let at = |seconds| since + Duration::from_secs(seconds);
        assert!(marked_after(0).waits(interval, at(4)));
        assert!(!marked_after(0).waits(interval, at(5)));
        assert!(marked_after(4).waits(interval, at(8)), "marks were changed once more");
        assert!(!marked_after(19).waits(interval, at(20)), "daemons take and finish builds all the time");
    }
}
