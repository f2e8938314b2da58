//! Polls coderd for the live daemons and the pending jobs of each organization.
//!
//! One poll for each control plane, at an interval, serves all of its pools and the report of jobs. Where a pool is scaled, it
//! comes more often, and ends with a decision about the replicas ([`scaling`]). Polls have their own queue, so that a slow
//! server delays nothing else. A poll enqueues a pool only when the pool's own daemons or its decision changed, and the
//! control plane only when the verdict about its jobs changed. A failed poll changes nothing for three intervals. At rest a
//! poll calls coderd alone, never the API server: the address and the token are remembered while they work.

mod query;
mod scaling;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::{CoderControlPlane, CoderKind, CoderProvisioner, Reason, condition};
use coder_k8s_coderd::{BoundToken, IdentifiedServer, Server};
use coder_k8s_core::{
    autoscaling::{DaemonTimes, ScaleReason},
    daemon_listing::{DaemonListing, PoolDaemons},
    jobs::{self, JobsVerdict},
    object,
    outcome::{Blocker, Retry},
    provisioner::daemons::{self, DaemonHealth},
    workload::Rollout,
};
use coder_k8s_engine::{
    backoff::jitter,
    cache::ObjectKey,
    queue::{Action, due_in},
};
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use self::query::daemons_now;
use self::{
    query::{Answer, PollFailure},
    scaling::PoolDecision,
};
use crate::{
    coderd::{
        schedule::{Schedule, jittered},
        targets,
    },
    controller::Context,
    metrics::JobQueue,
};

/// The number of intervals without an answer after which the last listing no longer counts.
const INTERVALS_UNTIL_OUTDATED: u32 = 3;
/// The longest backoff of a failed poll where a pool is scaled, in intervals.
const MAX_BACKOFF_INTERVALS: u32 = 6;
/// The factor by which coderd is polled more often while a daemon is expected to connect.
const EXPECTING_FACTOR: u32 = 6;

/// The polls of all control planes of the process.
pub(crate) struct DaemonPoller {
    pub(crate) schedule: Schedule,
    interval: Duration,
    /// The interval where a pool is scaled, while jobs wait or pods start.
    scaling_interval: Duration,
    /// How long a daemon may take to connect after its pod is ready.
    pub(crate) patience: Duration,
    planes: Mutex<HashMap<ObjectKey, PolledPlane>>,
}

/// What the process knows of one control plane between polls.
#[derive(Default)]
struct PolledPlane {
    /// By the UUID of the organization.
    organizations: BTreeMap<String, PolledOrganization>,
    jobs: Option<JobsVerdict>,
    /// Until when a daemon is expected to connect.
    expecting_until: Option<Instant>,
    /// The generation of the control plane at the last poll. What is remembered below, and the token of each organization,
    /// is used again while the generation is the same.
    generation: Option<i64>,
    /// The server that answered last.
    server: Option<Server>,
}

struct PolledOrganization {
    name: String,
    listing: Option<Arc<DaemonListing>>,
    /// When coderd last answered. Before its first answer: when the organization became known.
    since: Instant,
    /// The token that coderd accepted last.
    token: Option<BoundToken>,
    /// When it was polled last, whatever came of it.
    polled: Option<Instant>,
    /// When coderd last listed the jobs. Before it first did: when the organization became known.
    answered: Timestamp,
    /// What the process remembers of the daemons, for the decisions.
    times: DaemonTimes,
    /// The last decision about each scaled pool, by its name.
    decisions: BTreeMap<String, PoolDecision>,
}

impl PolledOrganization {
    fn new(name: &str, now: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            listing: None,
            since: Instant::now(),
            token: None,
            polled: None,
            answered: now,
            times: DaemonTimes::new(now),
            decisions: BTreeMap::new(),
        }
    }

    /// Records the outcome of a poll. A listing counts for `valid_for` after coderd last answered.
    fn record(&mut self, answer: Result<Answer, PollFailure>, valid_for: Duration, now: Timestamp) {
        self.polled = Some(Instant::now());
        match answer {
            Ok(Answer { daemons, jobs, blocker, token }) => {
                if jobs.is_some() {
                    self.answered = now;
                }
                self.times.record(&daemons, now);
                self.listing = Some(Arc::new(DaemonListing { daemons, jobs, blocker, outdated: false }));
                self.since = Instant::now();
                self.token = Some(token);
            }
            Err(PollFailure { blocker, .. }) => {
                self.times.record_failure(now);
                self.token = None;
                let outdated = self.since.elapsed() > valid_for;
                let before = self.listing.as_deref().cloned();
                // The first polls may fail while coderd starts: reported only after the same time as any outage.
                if before.is_some() || outdated {
                    let before = before.unwrap_or_default();
                    self.listing =
                        Some(Arc::new(DaemonListing { blocker: Some(blocker), outdated, ..before }));
                }
            }
        }
    }
}

impl DaemonPoller {
    /// Creates a poller without control planes: they are added as their pools are reconciled.
    pub(crate) fn new(interval: Duration, scaling_interval: Duration, patience: Duration) -> Self {
        let schedule = Schedule::new(None);
        Self { schedule, interval, scaling_interval, patience, planes: Mutex::default() }
    }

    /// The last listing of an organization. None: it was not polled yet.
    pub(crate) fn listing(&self, plane: &ObjectKey, organization: &str) -> Option<Arc<DaemonListing>> {
        self.planes.lock().get(plane)?.organizations.get(organization)?.listing.clone()
    }

    /// Whether the jobs of a control plane can run. Schedules the first poll of a control plane with pools.
    pub(crate) fn jobs(&self, plane: &ObjectKey, ctx: &Context) -> JobsVerdict {
        if let Some(known) = self.planes.lock().get(plane) {
            return known.jobs.clone().unwrap_or(JobsVerdict::NotPolledYet);
        }
        if pools(plane, ctx).is_empty() {
            return JobsVerdict::NotRequested;
        }
        self.schedule.queue.enqueue_within(plane.clone(), self.interval.mul_f64(jitter()));
        JobsVerdict::NotPolledYet
    }

    /// Schedules a poll if the organization of a pool was not polled yet, at once if a scaled pool has no decision for its
    /// spec, and soon if one of its daemons is expected to connect. After a restart of the operator the first poll is spread
    /// over the interval.
    pub(crate) fn consider(&self, pool: &CoderProvisioner, health: &DaemonHealth, now: Timestamp) {
        let Some(organization) = organization(pool).filter(|_| !object::is_deleting(pool)) else { return };
        let plane = plane_of(pool);
        let is_scaled = scaling::is_scaled(pool);
        let mut all = self.planes.lock();
        let known = all.entry(plane.clone()).or_default();
        let is_new = !known.organizations.contains_key(&organization);
        let new = || PolledOrganization::new(&organization_name(pool), now);
        let polled = known.organizations.entry(organization).or_insert_with(new);
        let is_undecided = is_scaled && polled.decision(pool).is_none();
        if health.is_expecting() {
            known.expecting_until = Some(due_in(self.patience));
        }
        drop(all);
        let conditions = pool.status.iter().flat_map(|status| &status.workload.conditions);
        let was_polled =
            conditions.into_iter().any(|c| c.type_ == condition::condition_type::DAEMONS_CONNECTED);
        match (is_new, health.is_expecting()) {
            (true, false) if was_polled => {
                let interval = if is_scaled { self.scaling_interval } else { self.interval };
                self.schedule.queue.enqueue_within(plane, interval.mul_f64(jitter()));
            }
            (true, _) => self.schedule.queue.enqueue(plane),
            // An edit, or the return of the license.
            (false, _) if is_undecided => self.schedule.queue.enqueue(plane),
            (false, true) => self.schedule.queue.enqueue_within(plane, self.interval / EXPECTING_FACTOR),
            (false, false) => {}
        }
    }

    /// Forgets a control plane without pools. Returns whether it was polled.
    fn forget(&self, plane: &ObjectKey) -> bool {
        self.schedule.forget(plane);
        self.planes.lock().remove(plane).is_some()
    }

    /// Forgets a control plane that no longer exists.
    pub(crate) fn remove(&self, plane: &ObjectKey) {
        self.forget(plane);
        self.schedule.remove(plane);
    }

    /// The pending jobs of each organization, for the metrics. `waiting` is in seconds. A listing that no longer counts has
    /// none: its jobs would seem to wait for ever.
    pub(crate) fn queues(&self, now: Timestamp) -> Vec<JobQueue> {
        // Counted after the lock, which every reconcile of a control plane takes.
        let listed: Vec<_> = self
            .planes
            .lock()
            .iter()
            .flat_map(|(plane, known)| known.organizations.values().map(move |polled| (plane, polled)))
            .filter_map(|(plane, polled)| {
                let listing = polled.listing.clone().filter(|listing| !listing.outdated)?;
                Some((plane.clone(), polled.name.clone(), listing))
            })
            .collect();
        let queues = listed.into_iter().flat_map(|(plane, organization, listing)| {
            let queues = jobs::queues(listing.jobs.as_deref().unwrap_or_default());
            queues.into_iter().map(move |queue| JobQueue {
                namespace: plane.namespace.to_string(),
                name: plane.name.to_string(),
                organization: organization.clone(),
                tags: queue.tags,
                pending: queue.pending,
                waiting: queue.since.map_or(0, |since| now.duration_since(since).as_secs().max(0)),
            })
        });
        queues.collect()
    }

    /// The token that coderd accepted last, while the control plane is of the same generation.
    fn token(&self, key: &ObjectKey, organization: &str, plane: &CoderControlPlane) -> Option<BoundToken> {
        let planes = self.planes.lock();
        let known = planes.get(key).filter(|known| known.generation == plane.metadata.generation)?;
        known.organizations.get(organization)?.token.clone()
    }

    /// The delay until the next poll, of which a part is `scaled` for the decisions about pools.
    fn delay_until_next(&self, plane: &ObjectKey, scaled: Option<Duration>) -> Duration {
        let expecting_until = self.planes.lock().get(plane).and_then(|known| known.expecting_until);
        let is_expecting = expecting_until.is_some_and(|until| until > Instant::now());
        let delay = jittered(if is_expecting { self.interval / EXPECTING_FACTOR } else { self.interval });
        scaled.map_or(delay, |scaled| scaled.min(delay))
    }

    /// Whether an organization without scaled pools is to be polled beside others that have some.
    fn is_due(&self, plane: &ObjectKey, organization: &str) -> bool {
        let planes = self.planes.lock();
        let Some(known) = planes.get(plane) else { return true };
        let is_expecting = known.expecting_until.is_some_and(|until| until > Instant::now());
        let interval = if is_expecting { self.interval / EXPECTING_FACTOR } else { self.interval };
        let polled = known.organizations.get(organization).and_then(|polled| polled.polled);
        polled.is_none_or(|polled| polled.elapsed() >= interval)
    }
}

/// Polls one control plane, and forgets it if it is paused, being deleted or without pools.
pub(crate) async fn poll(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let poller = &ctx.daemon_poller;
    let plane = ctx.caches.control_planes.get(&key.namespace, &key.name);
    let plane = plane.filter(|plane| !object::is_paused(&**plane) && !object::is_deleting(&**plane));
    let pools = pools(&key, &ctx);
    let Some(plane) = plane.filter(|_| !pools.is_empty()) else {
        if poller.forget(&key) {
            ctx.queue.enqueue(key);
        }
        return Action::AwaitChange;
    };
    // Once for all organizations: an identification costs one call and holds for one poll.
    let server = identify(&plane, &key, &ctx).await;
    let mut answers = BTreeMap::new();
    let has_scaled = pools.values().flatten().any(|pool| scaling::is_scaled(pool));
    for (organization, members) in &pools {
        let is_scaled = members.iter().any(|pool| scaling::is_scaled(pool));
        if has_scaled && !is_scaled && !poller.is_due(&key, organization) {
            continue;
        }
        let answer = match &server {
            Ok(server) => {
                let token = poller.token(&key, organization, &plane);
                query::daemons_and_jobs(server, token, &plane, organization, members, &ctx).await
            }
            Err(failure) => Err(failure.clone()),
        };
        answers.insert(organization, answer);
    }
    let failures = || answers.values().filter_map(|answer| answer.as_ref().err());
    for PollFailure { blocker, .. } in failures() {
        tracing::debug!(reason = %blocker.reason, "the daemon poll failed: {}", blocker.message);
    }
    let retry = failures().find_map(|failure| failure.retry);
    record(answers, &pools, &key, &ctx);
    let scaled = scaling::decide(&key, &pools, &ctx).await;
    let delay = poller.delay_until_next(&key, scaled);
    match retry {
        None => {
            poller.schedule.succeeded(&key);
            Action::RequeueAfter(delay)
        }
        Some(retry) => {
            let backoff = poller.schedule.failed(&key, retry);
            // The jobs that wait for a scaled pool do not wait for a long backoff once coderd is back.
            let backoff = match (retry, scaled) {
                (Retry::Backoff, Some(scaled)) => backoff.min(scaled * MAX_BACKOFF_INTERVALS),
                _ => backoff,
            };
            Action::RequeueAfter(backoff.max(delay))
        }
    }
}

async fn identify(
    plane: &CoderControlPlane,
    key: &ObjectKey,
    ctx: &Context,
) -> Result<IdentifiedServer, PollFailure> {
    let deployment = ctx.caches.deployments.get(&key.namespace, &key.name);
    if Rollout::of(deployment.as_deref()).ready == 0 {
        let message = format!("waiting for a ready pod of CoderControlPlane {}", key.name);
        return Err(Blocker::new(Reason::AwaitingControlPlane, message).into());
    }
    let server = server(plane, key, ctx).await?;
    let identified = server.identify().await?;
    let mut planes = ctx.daemon_poller.planes.lock();
    let known = planes.entry(key.clone()).or_default();
    if known.generation != plane.metadata.generation {
        known.generation = plane.metadata.generation;
        known.organizations.values_mut().for_each(|polled| polled.token = None);
    }
    known.server = Some(server);
    Ok(identified)
}

/// The server that answered last, while the control plane is of the same generation, else a new one. Not identified yet.
async fn server(plane: &CoderControlPlane, key: &ObjectKey, ctx: &Context) -> Result<Server, Blocker> {
    let remembered = ctx
        .daemon_poller
        .planes
        .lock()
        .get(key)
        .and_then(|known| known.server.clone().filter(|_| known.generation == plane.metadata.generation));
    match remembered {
        Some(server) => Ok(server),
        None => targets::server_of_dependent(plane, ctx).await,
    }
}

/// Records the answers, and enqueues the objects that they concern. The verdict is computed between the locks, which every
/// reconcile of a control plane takes: a key is polled by one worker at a time, so that nobody else records in between.
fn record(
    answers: BTreeMap<&String, Result<Answer, PollFailure>>,
    pools: &PoolsByOrganization,
    key: &ObjectKey,
    ctx: &Context,
) {
    let (poller, now) = (&ctx.daemon_poller, ctx.now());
    let mut all = poller.planes.lock();
    let known = all.entry(key.clone()).or_default();
    let before = listings(known);
    known.organizations.retain(|id, _| pools.contains_key(id));
    for (id, answer) in answers {
        let first = pools.get(id).and_then(|members| members.first());
        let name = first.map_or_else(|| id.clone(), |pool| organization_name(pool));
        let new = || PolledOrganization::new(&name, now);
        let polled = known.organizations.entry(id.clone()).or_insert_with(new);
        polled.record(answer, poller.interval * INTERVALS_UNTIL_OUTDATED, now);
        polled.name = name;
    }
    let after = listings(known);
    drop(all);
    let jobs = verdict(&after, pools, now, poller);
    let mut changed = Vec::new();
    for (id, members) in pools {
        let of_organization = |all: &Listings| all.get(id).map(|(_, listing)| listing.clone());
        let (before, Some(after)) = (of_organization(&before), of_organization(&after)) else { continue };
        let (before, after) = (before.as_deref(), &*after);
        for pool in members {
            let is_same = |before: &DaemonListing| {
                part(before, pool) == part(after, pool) && before.outdated == after.outdated
            };
            if !before.is_some_and(is_same) {
                let key = ObjectKey::of(CoderKind::Provisioner.as_str(), &**pool);
                changed.push((key, has_vanished(pool, before, after)));
            }
        }
    }
    for (pool, vanished) in changed {
        if vanished {
            // A daemon disappears when its key is deleted in coderd, so that the key is verified at once.
            ctx.dependents.make_due(&pool);
        }
        ctx.dependents.schedule.queue.enqueue(pool);
    }
    // A control plane that was removed meanwhile has no verdict any more.
    let changed = poller.planes.lock().get_mut(key).is_some_and(|known| {
        let changed = known.jobs.as_ref() != Some(&jobs);
        known.jobs = Some(jobs);
        changed
    });
    if changed {
        ctx.queue.enqueue(key.clone());
    }
}

/// The name and the last listing of each organization that has been polled, by UUID.
type Listings = BTreeMap<String, (String, Arc<DaemonListing>)>;

fn listings(known: &PolledPlane) -> Listings {
    let listed = known.organizations.iter();
    listed
        .filter_map(|(id, polled)| Some((id.clone(), (polled.name.clone(), polled.listing.clone()?))))
        .collect()
}

/// Whether the jobs of a control plane can run, judged by the organizations that have been polled.
fn verdict(
    polled: &Listings,
    pools: &PoolsByOrganization,
    now: Timestamp,
    poller: &DaemonPoller,
) -> JobsVerdict {
    let polled: Vec<_> =
        polled.iter().map(|(id, (name, listing))| jobs::ListedOrganization { id, name, listing }).collect();
    if polled.is_empty() {
        return JobsVerdict::NotPolledYet;
    }
    let ours = pools.iter().flat_map(|(id, members)| {
        members.iter().map(|pool| jobs::TaggedPool {
            name: pool.name_any(),
            organization: id.clone(),
            tags: pool.spec.tags.clone(),
            is_scaled_to_zero: pool.spec.autoscaling.is_none() && pool.spec.replicas == 0,
            is_growing: poller
                .decision(pool)
                .is_some_and(|decision| decision.reason == ScaleReason::ScalingUp),
        })
    });
    jobs::judge(&polled, &ours.collect::<Vec<_>>(), now)
}

/// Whether a daemon of the pool was listed before and no longer is. After a restart the status says what was listed.
fn has_vanished(pool: &CoderProvisioner, before: Option<&DaemonListing>, after: &DaemonListing) -> bool {
    let after_names = part(after, pool);
    let status = pool.status.as_ref().and_then(|status| status.daemons.as_ref());
    let is_unlisted = |name: &String| !after_names.contains_key(name);
    match before {
        Some(before) => part(before, pool).keys().any(is_unlisted),
        None => status.into_iter().flat_map(|status| &status.list).any(|daemon| is_unlisted(&daemon.name)),
    }
}

/// The daemons of a pool in a listing.
fn part(listing: &DaemonListing, pool: &CoderProvisioner) -> PoolDaemons {
    pool.status.as_ref().map(|status| listing.of_keys(&daemons::keys(status))).unwrap_or_default()
}

/// By the UUID of the organization.
type PoolsByOrganization = BTreeMap<String, Vec<Arc<CoderProvisioner>>>;

/// The pools of a control plane that have a key in it. A pool whose key is in another deployment, as after a restored
/// database, has no daemons here.
fn pools(plane: &ObjectKey, ctx: &Context) -> PoolsByOrganization {
    let deployment = |plane: &CoderControlPlane| plane.status.as_ref()?.deployment_id.clone();
    let present = ctx.caches.control_planes.get(&plane.namespace, &plane.name);
    let present = present.and_then(|plane| deployment(&plane));
    let is_of_deployment = |pool: &CoderProvisioner| {
        let recorded = pool.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        !matches!((recorded, &present), (Some(recorded), Some(present)) if recorded != present)
    };
    let mut found = ctx.caches.provisioners.of_group(&plane.to_string());
    found.retain(|pool| !object::is_deleting(&**pool) && is_of_deployment(pool));
    let mut all = PoolsByOrganization::new();
    for pool in found {
        if let Some(id) = organization(&pool) {
            all.entry(id).or_default().push(pool);
        }
    }
    all
}

/// The control plane of a pool.
pub(crate) fn plane_of(pool: &CoderProvisioner) -> ObjectKey {
    let namespace = pool.namespace().unwrap_or_default();
    ObjectKey::new(CoderKind::ControlPlane.as_str(), namespace, pool.spec.control_plane_ref.name.as_str())
}

/// The UUID of the organization in which a pool has a key of its present control plane. None: it has no such key.
pub(crate) fn organization(pool: &CoderProvisioner) -> Option<String> {
    let status = pool.status.as_ref()?;
    let of_plane =
        status.control_plane_ref_name.as_deref() == Some(pool.spec.control_plane_ref.name.as_str());
    status.provisioner_key_id.as_ref()?;
    status.organization_id.clone().filter(|id| of_plane && !id.is_empty())
}

fn organization_name(pool: &CoderProvisioner) -> String {
    let name = pool.status.as_ref().and_then(|status| status.organization_name.clone());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| organization(pool).unwrap_or_default())
}
