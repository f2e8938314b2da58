//! Roll calls: who of an organization's daemons is alive, and which jobs wait.
//!
//! One call for each control plane and organization that has pools, at an interval, serves all of its pools and the
//! report of jobs. They have a queue of their own, so that a slow server holds up nothing else. A pool is woken only when
//! its own part has changed, the control plane only when its verdict about jobs has. A call that fails withdraws nothing
//! before three intervals are over. At rest the API server is not asked: what a client needs is kept while it works.

mod ask;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, Reason, condition::kind as said};
use coder_k8s_coderd::Client;
use coder_k8s_core::{
    daemon_listing::{DaemonListing, Part},
    jobs::{self, Jobs},
    object,
    outcome::Retry,
    provisioner::{
        daemons::{self, Health},
        keys::Blocker,
    },
    rollout::Rollout,
};
use coder_k8s_engine::{
    backoff::{Failures, jitter},
    key::Key,
    metrics::JobQueue,
    queue::{Action, Queue},
};
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use self::ask::daemons_now;
use self::ask::{Answer, Unanswered};
use crate::controller::{Context, kind};

/// After how many intervals without an answer the last one no longer counts.
const LASTS: u32 = 3;
/// How much more often is asked while a daemon may connect any moment.
const HURRY: u32 = 6;

/// All roll calls of the process.
pub(crate) struct DaemonPoller {
    /// Which control plane is asked next.
    pub(crate) queue: Queue,
    failures: Failures,
    interval: Duration,
    /// How long a daemon may take to connect after its pod is ready.
    pub(crate) patience: Duration,
    known: Mutex<HashMap<Key, Known>>,
}

/// What is known of one control plane.
#[derive(Default)]
struct Known {
    /// By the UUID of the organization.
    organizations: BTreeMap<String, Called>,
    jobs: Option<Jobs>,
    /// Until when a daemon may connect any moment.
    hurry: Option<Instant>,
}

/// What is known of one organization.
struct Called {
    name: String,
    listing: Option<Arc<DaemonListing>>,
    /// When coderd last answered; before that, when it was first to be asked.
    since: Instant,
    client: Option<RememberedClient>,
}

/// A client that has worked.
struct RememberedClient {
    generation: Option<i64>,
    client: Client,
}

impl Called {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), listing: None, since: Instant::now(), client: None }
    }

    /// Notes what became of a call.
    fn note(&mut self, answer: Result<Answer, Unanswered>, lasts: Duration) {
        match answer {
            Ok(Answer { daemons, jobs, blocker, kept }) => {
                self.listing = Some(Arc::new(DaemonListing { daemons, jobs, blocker, outdated: false }));
                self.since = Instant::now();
                self.client = Some(kept);
            }
            Err(Unanswered { blocker, .. }) => {
                self.client = None;
                let outdated = self.since.elapsed() > lasts;
                let before = self.listing.as_deref().cloned();
                // What was never known is not worth a word before its time either.
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
    /// Nobody was asked yet.
    pub(crate) fn new(interval: Duration, patience: Duration) -> Self {
        Self {
            queue: Queue::uncounted(),
            failures: Failures::default(),
            interval,
            patience,
            known: Mutex::default(),
        }
    }

    /// What coderd last said of an organization.
    pub(crate) fn listing(&self, plane: &Key, organization: &str) -> Option<Arc<DaemonListing>> {
        self.known.lock().get(plane)?.organizations.get(organization)?.listing.clone()
    }

    /// Whether the jobs of a control plane can run. One with pools that is not known yet is asked in its time.
    pub(crate) fn jobs(&self, plane: &Key, ctx: &Context) -> Jobs {
        if let Some(known) = self.known.lock().get(plane) {
            return known.jobs.clone().unwrap_or(Jobs::NotPolledYet);
        }
        if pools(plane, ctx).is_empty() {
            return Jobs::Unasked;
        }
        self.queue.enqueue_within(plane.clone(), self.interval.mul_f64(jitter()));
        Jobs::NotPolledYet
    }

    /// Has coderd asked, if it was not yet for the organization of a pool, and soon, if a daemon of it may connect any
    /// moment. After a restart it is asked in its time.
    pub(crate) fn consider(&self, pool: &CoderProvisioner, health: &Health) {
        let Some(organization) = organization(pool).filter(|_| !object::is_deleting(pool)) else { return };
        let plane = plane_of(pool);
        let mut all = self.known.lock();
        let known = all.entry(plane.clone()).or_default();
        let is_new = !known.organizations.contains_key(&organization);
        if is_new {
            known.organizations.insert(organization, Called::new(&organization_name(pool)));
        }
        if health.is_expecting() {
            known.hurry = Some(Instant::now() + self.patience);
        }
        drop(all);
        let conditions = pool.status.iter().flat_map(|status| &status.workload.conditions);
        let was_said = conditions.into_iter().any(|c| c.type_ == said::DAEMONS_CONNECTED);
        match (is_new, health.is_expecting()) {
            (true, false) if was_said => self.queue.enqueue_within(plane, self.interval.mul_f64(jitter())),
            (true, _) => self.queue.enqueue(plane),
            (false, true) => self.queue.enqueue_within(plane, self.interval / HURRY),
            (false, false) => {}
        }
    }

    /// Forgets a control plane that is gone, or that has no pools. Returns whether anything was known.
    pub(crate) fn forget(&self, plane: &Key) -> bool {
        self.failures.forget(plane);
        self.known.lock().remove(plane).is_some()
    }

    /// The jobs that wait, for the metrics.
    pub(crate) fn queues(&self, now: Timestamp) -> Vec<JobQueue> {
        let all = self.known.lock();
        let called = all
            .iter()
            .flat_map(|(plane, known)| known.organizations.values().map(move |called| (plane, called)));
        let queues = called.flat_map(|(plane, called)| {
            let jobs = called.listing.as_deref().and_then(|roll| roll.jobs.as_deref()).unwrap_or_default();
            jobs::queues(jobs).into_iter().map(move |queue| JobQueue {
                namespace: plane.namespace.clone(),
                name: plane.name.clone(),
                organization: called.name.clone(),
                tags: queue.tags,
                pending: queue.pending,
                waiting: queue.since.map_or(0, |since| now.duration_since(since).as_secs().max(0)),
            })
        });
        queues.collect()
    }

    fn kept(&self, plane: &Key, organization: &str, generation: Option<i64>) -> Option<Client> {
        let all = self.known.lock();
        let kept = all.get(plane)?.organizations.get(organization)?.client.as_ref()?;
        (kept.generation == generation).then(|| kept.client.clone())
    }

    /// How long until the next call.
    fn pause(&self, plane: &Key) -> Duration {
        let hurry = self.known.lock().get(plane).and_then(|known| known.hurry);
        let interval = if hurry.is_some_and(|until| until > Instant::now()) {
            self.interval / HURRY
        } else {
            self.interval
        };
        interval.mul_f64(0.9 + 0.2 * jitter())
    }
}

/// One roll call of a control plane.
pub(crate) async fn call(key: Key, ctx: Arc<Context>) -> Action {
    let calls = &ctx.daemon_poller;
    let plane = ctx.caches.control_planes.get(&key.namespace, &key.name);
    let plane = plane.filter(|plane| !object::is_paused(&**plane) && !object::is_deleting(&**plane));
    let pools = pools(&key, &ctx);
    let Some(plane) = plane.filter(|_| !pools.is_empty()) else {
        if calls.forget(&key) {
            ctx.queue.enqueue(key);
        }
        return Action::AwaitChange;
    };
    let mut retry = None;
    let mut answers = BTreeMap::new();
    for (organization, members) in by_organization(&pools) {
        let answer = if is_serving(&key, &ctx) {
            ask::ask(&plane, &organization, &members, &key, &ctx).await
        } else {
            let message = format!("no pod of CoderControlPlane {} is ready", key.name);
            Err(Unanswered { blocker: Blocker::new(Reason::ControlPlaneUnavailable, message), retry: None })
        };
        if let Err(unanswered) = &answer {
            tracing::debug!(
                reason = %unanswered.blocker.reason,
                "no roll call: {}",
                unanswered.blocker.message
            );
            retry = retry.or(unanswered.retry);
        }
        answers.insert(organization, answer);
    }
    note(answers, &pools, &key, &ctx);
    let pause = calls.pause(&key);
    match retry {
        None => {
            calls.failures.forget(&key);
            Action::RequeueAfter(pause)
        }
        Some(retry) => Action::RequeueAfter(calls.failures.failed(&key, retry).max(pause)),
    }
}

/// Notes what coderd said, and wakes those to whom it matters.
fn note(
    answers: BTreeMap<String, Result<Answer, Unanswered>>,
    pools: &[Arc<CoderProvisioner>],
    key: &Key,
    ctx: &Context,
) {
    let calls = &ctx.daemon_poller;
    let mut all = calls.known.lock();
    let known = all.entry(key.clone()).or_default();
    let before: BTreeMap<_, _> =
        known.organizations.iter().map(|(id, called)| (id.clone(), called.listing.clone())).collect();
    known.organizations.retain(|id, _| answers.contains_key(id));
    for (id, answer) in answers {
        let name = pools.iter().find(|pool| organization(pool).as_ref() == Some(&id));
        let name = name.map_or_else(|| id.clone(), |pool| organization_name(pool));
        let called = known.organizations.entry(id).or_insert_with(|| Called::new(&name));
        called.name = name;
        called.note(answer, calls.interval * LASTS);
    }
    let jobs = verdict(known, pools, ctx.now());
    let is_news = known.jobs.as_ref() != Some(&jobs);
    known.jobs = Some(jobs);
    let after = |pool: &CoderProvisioner| {
        known.organizations.get(&organization(pool)?).and_then(|called| called.listing.clone())
    };
    let changed: Vec<_> = pools
        .iter()
        .filter_map(|pool| {
            let before = organization(pool).and_then(|id| before.get(&id).cloned().flatten());
            let after = after(pool)?;
            let vanished = has_vanished(pool, before.as_deref(), &after);
            let same = before.is_some_and(|before| {
                part(&before, pool) == part(&after, pool) && before.outdated == after.outdated
            });
            (!same).then(|| (Key::of(kind::PROVISIONER, &**pool), vanished))
        })
        .collect();
    drop(all);
    for (pool, vanished) in changed {
        if vanished {
            // Perhaps its key was deleted, which ends every session that it began.
            ctx.verify_schedule.touch(&pool);
        }
        ctx.verify_schedule.queue.enqueue(pool);
    }
    if is_news {
        ctx.queue.enqueue(key.clone());
    }
}

/// Whether all jobs of a control plane can run, as far as coderd has been asked.
fn verdict(known: &Known, pools: &[Arc<CoderProvisioner>], now: Timestamp) -> Jobs {
    let asked: Vec<_> = known
        .organizations
        .iter()
        .filter_map(|(id, called)| {
            Some(jobs::Organization { id, name: &called.name, listing: called.listing.as_deref()? })
        })
        .collect();
    if asked.is_empty() {
        return Jobs::NotPolledYet;
    }
    let ours = pools.iter().filter_map(|pool| {
        Some(jobs::Pool {
            name: pool.name_any(),
            organization: organization(pool)?,
            tags: pool.spec.tags.clone(),
            is_scaled_to_zero: pool.spec.replicas == 0,
        })
    });
    jobs::judge(&asked, &ours.collect::<Vec<_>>(), now)
}

/// Whether a daemon is no longer listed that was.
fn has_vanished(pool: &CoderProvisioner, before: Option<&DaemonListing>, after: &DaemonListing) -> bool {
    let after_names = part(after, pool);
    let status = pool.status.as_ref().and_then(|status| status.daemons.as_ref());
    let gone = |name: &String| !after_names.contains_key(name);
    match before {
        Some(before) => part(before, pool).keys().any(gone),
        None => status.into_iter().flat_map(|status| &status.list).any(|daemon| gone(&daemon.name)),
    }
}

/// What a roll says of a pool.
fn part(listing: &DaemonListing, pool: &CoderProvisioner) -> Part {
    pool.status.as_ref().map(|status| listing.part(&daemons::keys(status))).unwrap_or_default()
}

fn is_serving(key: &Key, ctx: &Context) -> bool {
    Rollout::of(ctx.caches.deployments.get(&key.namespace, &key.name).as_deref()).ready > 0
}

/// The pools of a control plane that have a key there, and so daemons.
fn pools(plane: &Key, ctx: &Context) -> Vec<Arc<CoderProvisioner>> {
    let deployment = |plane: &CoderControlPlane| plane.status.as_ref()?.deployment_id.clone();
    let there = ctx.caches.control_planes.get(&plane.namespace, &plane.name);
    let there = there.and_then(|plane| deployment(&plane));
    let is_there = |pool: &CoderProvisioner| {
        let own = pool.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        !matches!((own, &there), (Some(own), Some(there)) if own != there)
    };
    let mut found = ctx.caches.provisioners.filter(|pool| {
        plane_of(pool) == *plane
            && organization(pool).is_some()
            && !object::is_deleting(pool)
            && is_there(pool)
    });
    found.sort_by_key(|pool| pool.name_any());
    found
}

fn by_organization(pools: &[Arc<CoderProvisioner>]) -> BTreeMap<String, Vec<Arc<CoderProvisioner>>> {
    let mut all: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for pool in pools {
        if let Some(id) = organization(pool) {
            all.entry(id).or_default().push(pool.clone());
        }
    }
    all
}

/// The control plane of a pool.
pub(crate) fn plane_of(pool: &CoderProvisioner) -> Key {
    let namespace = pool.namespace().unwrap_or_default();
    Key::new(kind::CONTROL_PLANE, &namespace, pool.spec.control_plane_ref.name.as_str())
}

/// The UUID of the organization in which a pool has a key.
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

/// When to ask again after a call that failed.
fn retry_of(error: &coder_k8s_coderd::Error) -> Retry {
    match error.retry() {
        coder_k8s_coderd::Retry::OnChange | coder_k8s_coderd::Retry::Backoff => Retry::Backoff,
        coder_k8s_coderd::Retry::After(wait) => Retry::After(wait),
    }
}
