//! Conversations with coderd: when one is due, what is asked, and what became of it.
//!
//! They run apart from passes, so that a slow or dead server holds up nothing but its own conversation. A conversation
//! brings a report; a pass puts it into the status. Nothing is asked at rest but what an interval or a change calls for,
//! and a restart asks for nothing before its time.

mod access;
mod entitlements;
mod license;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::{CoderControlPlane, Reason, condition::kind};
use coder_k8s_coderd as coderd;
use coder_k8s_core::{
    controlplane::{
        self,
        coderd::{Access, Blocker, License, Report, Server},
    },
    object, outcome,
    rollout::Rollout,
};
use coder_k8s_engine::{
    backoff::{Failures, jitter},
    key::Key,
    queue::{Action, Queue},
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::time::Instant;

use crate::controller::Context;

/// How soon to look again whether it is recorded that there will be a token.
const RECORDED: Duration = Duration::from_millis(50);

/// How often coderd is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intervals {
    /// For its entitlements.
    pub(crate) refresh: Duration,
    /// Whether token and license are still good.
    pub(crate) verify: Duration,
}

/// All conversations of the process.
pub(crate) struct Talks {
    /// Which control plane talks next.
    pub(crate) queue: Queue,
    pub(crate) failures: Failures,
    known: Mutex<HashMap<Key, Talk>>,
    /// What has changed of the Secrets and ConfigMaps of each, by name.
    object_written: Mutex<HashMap<Key, BTreeSet<String>>>,
    intervals: Intervals,
}

/// What is known of one control plane.
#[derive(Clone)]
struct Talk {
    uid: Option<String>,
    inputs: Inputs,
    report: Report,
    token: Option<SecretString>,
    ca: Option<Vec<u8>>,
    /// The version of the token's Secret that this process wrote.
    stored: Option<String>,
    /// Whether a token that coderd refused was replaced: once for each cause.
    replaced: bool,
    /// Whether a token waits until it is recorded that it will be there.
    unrecorded: bool,
    refresh_at: Instant,
    verify_at: Instant,
}

/// What a conversation depends on, besides Secrets. Another value calls for another conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inputs {
    generation: Option<i64>,
    /// Whether any pod is ready.
    serving: bool,
    /// The template of the pods, once they have rolled out: another one may be another version.
    rolled_out: Option<i64>,
}

impl Inputs {
    fn of(object: &CoderControlPlane, deployment: Option<&Deployment>) -> Self {
        let rollout = Rollout::of(deployment);
        let settled = deployment.filter(|_| rollout.is_settled());
        Self {
            generation: object.metadata.generation,
            serving: rollout.ready > 0,
            rolled_out: settled.and_then(|deployment| deployment.metadata.generation),
        }
    }
}

impl Talks {
    /// Nobody has talked yet.
    pub(crate) fn new(intervals: Intervals) -> Self {
        Self {
            queue: Queue::uncounted(),
            failures: Failures::default(),
            known: Mutex::default(),
            object_written: Mutex::default(),
            intervals,
        }
    }

    /// What conversations with the coderd of a control plane have brought.
    pub(crate) fn report(&self, key: &Key, uid: Option<&String>) -> Report {
        let known = self.known.lock();
        known
            .get(key)
            .filter(|talk| talk.uid.as_ref() == uid)
            .map(|talk| talk.report.clone())
            .unwrap_or_default()
    }

    /// Starts a conversation if what it depends on has changed.
    pub(crate) fn consider(&self, key: &Key, object: &CoderControlPlane, deployment: Option<&Deployment>) {
        let inputs = Inputs::of(object, deployment);
        let news = |talk: &Talk| talk.uid != object.uid() || talk.inputs != inputs;
        if self.known.lock().get(key).is_none_or(news) {
            self.queue.enqueue(key.clone());
        }
    }

    /// A Secret or ConfigMap that a control plane refers to has changed.
    pub(crate) fn touch(&self, key: &Key, name: &str) {
        self.object_written.lock().entry(key.clone()).or_default().insert(name.to_owned());
        self.queue.enqueue(key.clone());
    }

    /// Starts a conversation about what is to be cleaned up.
    pub(crate) fn clean_up(&self, key: &Key, object: &CoderControlPlane) {
        if controlplane::coderd::access::needs_cleaning(object, &self.report(key, object.uid().as_ref())) {
            self.queue.enqueue(key.clone());
        }
    }

    /// Forgets a control plane that is gone, or that wants no conversation.
    pub(crate) fn forget(&self, key: &Key) {
        self.known.lock().remove(key);
        self.object_written.lock().remove(key);
        self.failures.forget(key);
    }
}

/// One conversation with the coderd of a control plane.
pub(crate) async fn converse(key: Key, ctx: Arc<Context>) -> Action {
    let talks = &ctx.talks;
    let object = ctx.caches.control_planes.get(&key.namespace, &key.name);
    let Some(object) = object.filter(|object| !object::is_paused(&**object)) else {
        talks.forget(&key);
        return Action::AwaitChange;
    };
    let deployment = ctx.caches.deployments.get(&key.namespace, &key.name);
    let inputs = Inputs::of(&object, deployment.as_deref());
    let object_written = talks.object_written.lock().remove(&key).unwrap_or_default();
    let before = talks.known.lock().get(&key).filter(|talk| talk.uid == object.uid()).cloned();
    let mut talk = before.clone().unwrap_or_else(|| resume(&object, &inputs, talks.intervals));
    let changed = talk.inputs != inputs || is_news(&talk, &object_written, &key, &object, &ctx).await;
    talk.inputs = inputs;
    let next = if object.metadata.deletion_timestamp.is_some() {
        access::go(&mut talk, &key, &object, &ctx).await
    } else if object.spec.operator_access.disabled {
        talk.give_up();
        access::disable(&mut talk, &key, &object, &ctx).await
    } else {
        talk.come_to(&object);
        speak(&mut talk, changed, before.is_none(), &key, &object, &ctx).await
    };
    let news = before.map(|before| before.report).unwrap_or_default() != talk.report;
    talks.known.lock().insert(key.clone(), talk);
    if news {
        ctx.queue.enqueue(key);
    }
    next
}

/// Whether a change is one that somebody else made.
async fn is_news(
    talk: &Talk,
    object_written: &BTreeSet<String>,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> bool {
    let token = controlplane::coderd::access::secret_name(object);
    let only_token = object_written.len() == 1 && object_written.contains(&token) && talk.stored.is_some();
    if only_token {
        return !access::is_own_write(talk, key, object, ctx).await;
    }
    !object_written.is_empty()
}

impl Talk {
    /// Forgets what was said of a token that came another way, once nothing is left of it.
    fn come_to(&mut self, object: &CoderControlPlane) {
        let method = object.spec.operator_access.method;
        self.report.grant.take_if(|grant| grant.method != method);
        if controlplane::coderd::access::outdated(object).is_none() {
            self.report.revocation = None;
        }
    }

    /// Forgets everything but what is left to be revoked.
    fn give_up(&mut self) {
        (self.token, self.ca) = (None, None);
        self.report = Report { revocation: self.report.revocation.take(), ..Report::default() };
    }
}

/// What is known after a restart: what the status says, which is verified in its time.
fn resume(object: &CoderControlPlane, inputs: &Inputs, intervals: Intervals) -> Talk {
    let now = Instant::now();
    let status = object.status.as_ref();
    let checked = status.and_then(|status| status.entitlements_last_checked.as_ref());
    let age = checked.and_then(|at| Duration::try_from(Timestamp::now().duration_since(at.0)).ok());
    let said = |type_: &str| {
        let conditions = status.into_iter().flat_map(|status| &status.workload.conditions);
        conditions.into_iter().find(|c| c.type_ == type_).cloned()
    };
    let is_true = |type_: &str| {
        said(type_).is_some_and(|c| c.status == "True" && c.observed_generation == object.metadata.generation)
    };
    let is_false = |type_: &str, reason: Reason| {
        said(type_).is_some_and(|c| {
            Reason::of(&c) == Some(reason) && c.observed_generation == object.metadata.generation
        })
    };
    let renewal = status.and_then(|status| status.operator_token.as_ref()?.renew_after.as_ref());
    let in_time = renewal.is_none_or(|at| at.0 > Timestamp::now());
    let licensed = object.spec.license_secret_ref.is_none() || is_true(kind::LICENSE_APPLIED);
    let steady = licensed && in_time && is_true(kind::OPERATOR_ACCESS_READY) && age.is_some();
    let wait = if steady { intervals.verify.mul_f64(jitter()) } else { Duration::ZERO };
    Talk {
        uid: object.uid(),
        inputs: inputs.clone(),
        report: Report::default(),
        token: None,
        ca: None,
        stored: None,
        replaced: is_false(kind::OPERATOR_ACCESS_READY, Reason::TokenRefused),
        unrecorded: false,
        refresh_at: now + age.map_or(Duration::ZERO, |age| jittered(intervals.refresh).saturating_sub(age)),
        verify_at: now + wait,
    }
}

/// Asks what is due, and says when to come back.
async fn speak(
    talk: &mut Talk,
    changed: bool,
    resumed: bool,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Action {
    let intervals = ctx.talks.intervals;
    if !talk.inputs.serving {
        return Action::AwaitChange;
    }
    let now = Instant::now();
    let exchanged = resumed && license::was_exchanged(key, object, ctx).await;
    if changed || exchanged {
        (talk.verify_at, talk.refresh_at) = (now, now);
        (talk.token, talk.ca, talk.replaced) = (None, None, false);
    }
    // What passed is shown as soon as coderd answers again, not only when its time has come.
    let verify = now >= talk.verify_at
        || talk.unrecorded
        || matches!(talk.report.access, Some(Access::Degraded(_) | Access::Overdue(_)));
    talk.unrecorded = false;
    if !verify && now < talk.refresh_at {
        return Action::RequeueAfter(talk.verify_at.min(talk.refresh_at).saturating_duration_since(now));
    }
    match exchange(talk, verify, changed || exchanged, key, object, ctx).await {
        Ok(()) if talk.unrecorded => Action::RequeueAfter(RECORDED),
        Ok(()) => {
            ctx.talks.failures.forget(key);
            let now = Instant::now();
            if verify {
                talk.verify_at = now + jittered(intervals.verify);
            }
            let patience =
                if entitlements::are_known_for_good(talk) { intervals.verify } else { intervals.refresh };
            talk.refresh_at = now + jittered(patience);
            Action::RequeueAfter(talk.verify_at.min(talk.refresh_at).saturating_duration_since(now))
        }
        Err(retry) => Action::RequeueAfter(ctx.talks.failures.failed(key, retry)),
    }
}

/// Asks everything that is due, in order. An error says when to try again; what it means is in the report.
async fn exchange(
    talk: &mut Talk,
    verify: bool,
    changed: bool,
    key: &Key,
    object: &CoderControlPlane,
    ctx: &Context,
) -> Result<(), outcome::Retry> {
    access::find_authority(talk, key, object, ctx).await?;
    let Some(anonymous) = access::client(talk, object, ctx) else { return Ok(()) };
    if verify {
        let info = anonymous.build_info().await.map_err(|error| blocker(talk, object, &error))?;
        let known = object.status.as_ref().and_then(|status| status.deployment_id.as_ref());
        let elsewhere = object.spec.operator_access.api_url.is_some()
            && known.is_some_and(|known| *known != info.deployment_id);
        if elsewhere && !changed {
            let message = "another deployment answers at operatorAccess.apiURL than the one that the token belongs to; \
                           the token was not sent: give a token of this deployment"
                .to_owned();
            talk.report.access = Some(Access::Refused(Blocker::new(Reason::DeploymentChanged, message)));
            return Ok(());
        }
        talk.report.server = Some(Server { version: info.version, deployment_id: info.deployment_id });
    }
    let established = access::establish(talk, verify, &anonymous, key, object, ctx).await;
    let licensed = match &established {
        Ok(Some(client)) if verify || license::is_open(talk, object) => {
            license::apply(talk, key, object, client, ctx).await
        }
        _ => Ok(()),
    };
    // What fails for want of a token does not keep from asking what needs none.
    let refreshed = entitlements::refresh(talk, object, &anonymous).await;
    established.map(drop).and(licensed).and(refreshed)
}

/// Notes that coderd could not be asked, and says when to try again. What works is not withdrawn.
fn blocker(talk: &mut Talk, object: &CoderControlPlane, error: &coderd::Error) -> outcome::Retry {
    let what = as_trouble(error);
    if talk.token.is_some() || controlplane::coderd::access::has_way(object) {
        talk.report.access = Some(access::in_trouble(error));
        if object.spec.license_secret_ref.is_some() && !license::is_applied(talk, object) {
            talk.report.license = Some(License::Blocker(what));
        }
    }
    retry(error)
}

fn as_trouble(error: &coderd::Error) -> Blocker {
    let message = match &error.kind {
        coderd::ErrorKind::Redirected { to } => {
            format!(
                "coderd redirects to {to}, where the token is not sent: set operatorAccess.apiURL to the address that answers"
            )
        }
        _ => error.to_string(),
    };
    Blocker::new(error.reason(), message)
}

/// When to try again.
fn retry(error: &coderd::Error) -> outcome::Retry {
    match error.retry() {
        coderd::Retry::OnChange | coderd::Retry::Backoff => outcome::Retry::Backoff,
        coderd::Retry::After(wait) => outcome::Retry::After(wait),
    }
}

/// A tenth more or less, so that many do not ask at once.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * jitter())
}

/// Whether this process may still change anything in coderd.
fn may_write(ctx: &Context) -> bool {
    ctx.fence.is_open()
}
