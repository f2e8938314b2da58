//! Decides whether the daemons of a pool are connected to coderd, and if not, why.
//!
//! A pod is ready when its process runs, which says nothing about coderd: so the daemons that coderd lists are compared
//! with the pods. The result never affects `Ready`. It names the pods that only a restart can help.

mod pod;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coder_k8s_api::{CoderProvisionerStatus, DaemonStatus, DaemonsStatus, Reason, condition::condition_type};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::Deployment,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};

pub use self::pod::{DELETION_COST, DaemonPod, DeletionCost, busy_daemons, deletion_costs};
use super::{
    keys::{CredentialProgress, CredentialVerdict, Decision},
    license_gate::{GateState, LicenseGate},
};
use crate::{
    condition::{ConditionStatus, Conditions, whole_seconds},
    daemon_listing::{DaemonListing, ListedDaemon},
    intervals::{MAX_DAEMONS_ON_STATUS, MAX_PODS_IN_MESSAGE},
    workload::{Release, Rollout},
};

/// What was observed.
#[derive(Clone, Debug, Default)]
pub struct ObservedDaemons {
    /// The last listing of the organization. None: this process has not polled it yet.
    pub listing: Option<Arc<DaemonListing>>,
    /// The pods. None: they were not needed, or could not be listed.
    pub pods: Option<Arc<Vec<DaemonPod>>>,
    /// How long a daemon may take to connect after its pod is ready.
    pub patience: Duration,
}

/// How the daemons of a pool are.
#[derive(Clone, Debug, Default)]
pub struct DaemonHealth {
    /// None: the condition stays as it is.
    finding: Option<Finding>,
    /// The daemons that count. None: not known, and the status stays as it is.
    daemons: Option<Vec<ListedDaemon>>,
    /// The version of coderd.
    coderd_version: Option<String>,
}

/// The condition `DaemonsConnected`, and what to do about it.
#[derive(Clone, Debug)]
struct Finding {
    status: ConditionStatus,
    reason: Reason,
    message: String,
    /// Pods whose daemons never try again by themselves.
    restart: Vec<DaemonPod>,
    /// When the time of a daemon that may still connect is over.
    again: Option<Duration>,
}

/// What a verdict rests on.
struct Facts<'a> {
    desired: i32,
    ready: i32,
    listing: Option<&'a DaemonListing>,
    pods: Option<&'a [DaemonPod]>,
    patience: SignedDuration,
    /// UUIDs of the keys of the pool.
    keys: Vec<String>,
    gate: &'a LicenseGate,
    /// Since when the license covers the pool.
    entitled: Option<Timestamp>,
    key: &'a CredentialVerdict,
    /// The version of coderd.
    coderd_version: Option<&'a str>,
    /// The condition on status.
    before: Option<&'a Condition>,
    now: Timestamp,
}

/// UUIDs of the keys that daemons of a pool may have connected with.
pub fn keys(status: &CoderProvisionerStatus) -> Vec<String> {
    let current = status.provisioner_key_id.iter();
    let pending = status.pending_key.iter().filter_map(|key| key.id.as_ref());
    let stale = status.stale_keys.iter().filter_map(|key| key.id.as_ref());
    current.chain(pending).chain(stale).filter(|id| !id.is_empty()).cloned().collect()
}

/// Judges, given the Deployment as it is now and what was decided about the key.
pub fn judge(
    observed: &super::Observed,
    deployment: Option<&Deployment>,
    key: &Decision,
    now: Timestamp,
) -> DaemonHealth {
    let (Some(status), Some(_)) = (observed.object.status.as_ref(), deployment) else {
        return DaemonHealth::default();
    };
    let rollout = Rollout::of(deployment);
    let condition = |type_: &str| status.workload.conditions.iter().find(|c| c.type_ == type_);
    let entitled = match condition(condition_type::EXTERNAL_PROVISIONERS_ENTITLED) {
        Some(before) if before.status == "True" => Some(before.last_transition_time.0),
        // This reconcile sets the condition to True.
        Some(_) if observed.gate.state == GateState::Open => Some(now),
        _ => None,
    };
    let facts = Facts {
        desired: rollout.desired,
        ready: rollout.ready,
        listing: observed.daemons.listing.as_deref(),
        pods: observed.daemons.pods.as_ref().map(|pods| pods.as_slice()),
        patience: SignedDuration::try_from(observed.daemons.patience).unwrap_or(SignedDuration::MAX),
        keys: keys(status),
        gate: &observed.gate,
        entitled,
        key: &key.verdict,
        coderd_version: observed
            .control_plane
            .as_ref()
            .and_then(|plane| plane.status.as_ref()?.version.as_deref()),
        before: condition(condition_type::DAEMONS_CONNECTED),
        now,
    };
    facts.judge()
}

impl<'a> Facts<'a> {
    fn judge(&self) -> DaemonHealth {
        let listing = self.listing.filter(|listing| !listing.outdated);
        let live = listing.map(|listing| self.live(listing));
        DaemonHealth {
            finding: self.find(live.as_deref()),
            daemons: live.map(|live| live.into_iter().cloned().collect()),
            coderd_version: self.coderd_version.map(str::to_owned),
        }
    }

    /// The condition, given the daemons that count. None: it stays as it is.
    fn find(&self, live: Option<&[&ListedDaemon]>) -> Option<Finding> {
        let is = |status, reason, message: &str| Some(Finding::new(status, reason, message));
        if self.ready == 0 {
            return match self.desired {
                0 => is(ConditionStatus::True, Reason::ScaledToZero, "no pods are desired"),
                _ => is(
                    ConditionStatus::False,
                    Reason::NoPodsReady,
                    "waiting for a ready pod (condition DeploymentReady)",
                ),
            };
        }
        let outdated = self.listing.filter(|listing| listing.outdated);
        if let Some(blocker) = outdated.and_then(|listing| listing.blocker.as_ref()) {
            let message = format!("the daemons cannot be listed: {}", blocker.message);
            return is(ConditionStatus::Unknown, blocker.reason, &message);
        }
        let Some(live) = live else {
            // coderd is polled within moments. Until then a condition about daemons stays, and one about pods does not.
            let about_daemons = self.before.is_some_and(|before| {
                !matches!(Reason::of(before), Some(Reason::NoPodsReady | Reason::ScaledToZero))
            });
            return is(ConditionStatus::False, Reason::Connecting, CONNECTING).filter(|_| !about_daemons);
        };
        // The first rule that applies is reported. What a person must change comes before what time may cure, and what is
        // certain before what is likely.
        let missing = self.missing(live);
        if let Some(shared) = self.shared_name() {
            return Some(shared);
        }
        if missing.is_empty() {
            let message = "the daemon of every ready pod is connected";
            return is(ConditionStatus::True, Reason::Connected, message);
        }
        self.closed_license()
            .or_else(|| self.taken_name(&missing))
            .or_else(|| self.stopped(&missing))
            .or_else(|| self.connecting(&missing))
            .or_else(|| self.dead_key(live))
            .or_else(|| self.refused_version(&missing))
            .or_else(|| Some(self.not_connected(&missing, live)))
    }

    /// The daemons of the pool that coderd lists and whose pods exist. coderd lists a daemon for 90 seconds after it left.
    fn live(&self, listing: &'a DaemonListing) -> Vec<&'a ListedDaemon> {
        let named = self.pods.filter(|pods| pods.iter().all(|pod| pod.daemon.is_some()));
        let has_pod = |daemon: &&ListedDaemon| {
            named.is_none_or(|pods| pods.iter().any(|pod| pod.daemon.as_ref() == Some(&daemon.name)))
        };
        let ours = listing.daemons.iter().filter(|daemon| self.keys.contains(&daemon.key));
        ours.filter(has_pod).collect()
    }

    fn ready_pods(&self) -> impl Iterator<Item = &'a DaemonPod> {
        self.pods.unwrap_or_default().iter().filter(|pod| pod.ready_since.is_some() && !pod.is_deleting)
    }

    /// Ready pods without a daemon. If the names of daemons are not known: all of them, if there are too few daemons.
    fn missing(&self, live: &[&ListedDaemon]) -> Vec<DaemonPod> {
        let named = self.pods.is_some() && self.ready_pods().all(|pod| pod.daemon.is_some());
        if named {
            let is_listed =
                |pod: &&DaemonPod| live.iter().any(|daemon| Some(&daemon.name) == pod.daemon.as_ref());
            return self.ready_pods().filter(|pod| !is_listed(pod)).cloned().collect();
        }
        let few = live.len() < usize::try_from(self.ready).unwrap_or(0);
        match (few, self.pods) {
            (false, _) => Vec::new(),
            (true, Some(_)) => self.ready_pods().cloned().collect(),
            (true, None) => vec![DaemonPod::unknown()],
        }
    }

    /// Several pods give their daemon the same name: coderd keeps one row for it.
    fn shared_name(&self) -> Option<Finding> {
        let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pod in self.ready_pods() {
            by_name.entry(pod.daemon.as_deref()?).or_default().push(&pod.name);
        }
        let (name, pods) = by_name.into_iter().find(|(_, pods)| pods.len() > 1)?;
        let message = format!(
            "{} all call their daemon {name}, of which coderd keeps one: leave CODER_PROVISIONER_DAEMON_NAME and --name \
             out of the spec, or let them differ with $(POD_NAME)",
            some_of(pods)
        );
        Some(Finding::failing(Reason::DuplicateName, message))
    }

    fn closed_license(&self) -> Option<Finding> {
        let message = || format!("coderd refuses the daemons: {}", self.gate.message);
        (self.gate.state == GateState::Closed).then(|| Finding::failing(self.gate.reason, message()))
    }

    /// A daemon with a key of somebody else has the name.
    fn taken_name(&self, missing: &[DaemonPod]) -> Option<Finding> {
        let name = missing.iter().find_map(|pod| {
            let name = pod.daemon.as_ref()?;
            let other = self.listing?.daemons.iter().find(|daemon| daemon.name == *name)?;
            (!self.keys.contains(&other.key)).then_some(name)
        })?;
        let message = format!(
            "a daemon with another key is called {name}, and names are unique in an organization: rename one of them"
        );
        Some(Finding::failing(Reason::DuplicateName, message))
    }

    /// Daemons that coderd refused before the license covered them, and that have had time to connect since. A refused
    /// daemon does not retry.
    fn stopped(&self, missing: &[DaemonPod]) -> Option<Finding> {
        let is_stopped = |pod: &&DaemonPod| !self.time_left(pod).is_positive() && self.is_before_license(pod);
        let restart: Vec<_> = missing.iter().filter(is_stopped).cloned().collect();
        if restart.is_empty() || self.gate.state != GateState::Open {
            return None;
        }
        let names = some_of(restart.iter().map(|pod| &*pod.name));
        let message = format!(
            "daemons that coderd refused for want of a license never try again, so the operator restarts {names}"
        );
        Some(Finding { restart, ..Finding::failing(Reason::StoppedTrying, message) })
    }

    /// A daemon still has time to connect.
    fn connecting(&self, missing: &[DaemonPod]) -> Option<Finding> {
        let longest =
            missing.iter().map(|pod| self.time_left(pod)).max().filter(SignedDuration::is_positive)?;
        let again = Duration::try_from(longest).ok();
        Some(Finding { again, ..Finding::failing(Reason::Connecting, CONNECTING) })
    }

    /// coderd no longer accepts the key. The sessions of a key that is merely being replaced go on.
    fn dead_key(&self, live: &[&ListedDaemon]) -> Option<Finding> {
        let is_replaced = matches!(self.key.stage, CredentialProgress::Working | CredentialProgress::Stalled);
        let message = || format!("coderd does not accept the key that the pods have: {}", self.key.message);
        (is_replaced && live.is_empty()).then(|| Finding::failing(Reason::KeyNotAccepted, message()))
    }

    /// coderd refuses daemons that are newer than itself.
    fn refused_version(&self, missing: &[DaemonPod]) -> Option<Finding> {
        let server = self.coderd_version?;
        let is_newer = |image: &&str| {
            let releases = (Release::of_image(image), Release::parse(server));
            matches!(releases, (Some(image), Some(server)) if image > server)
        };
        let image = missing.iter().filter_map(|pod| pod.image.as_deref()).find(is_newer)?;
        let message = format!(
            "the image {image} is newer than coderd {server}, which refuses newer daemons: set spec.image to that version, \
             or leave it out"
        );
        Some(Finding::failing(Reason::VersionRefused, message))
    }

    /// No cause is known. The message says where to look for one.
    fn not_connected(&self, missing: &[DaemonPod], live: &[&ListedDaemon]) -> Finding {
        let names = some_of(missing.iter().map(|pod| &*pod.name).filter(|name| !name.is_empty()));
        let of = if names.is_empty() { String::new() } else { format!(" of {names}") };
        let (reason, what) = if live.is_empty() {
            (Reason::NoneConnected, "no daemon is connected to coderd".to_owned())
        } else {
            (Reason::SomeConnected, format!("the daemon{of} is not connected to coderd"))
        };
        let image = missing.iter().find_map(|pod| pod.image.as_deref());
        let hint = match (image.filter(|image| Release::of_image(image).is_none()), self.coderd_version) {
            (Some(image), Some(server)) => format!(
                "see their logs; coderd {server} refuses daemons that are newer, and the version of {image} is not known"
            ),
            _ => "see their logs".to_owned(),
        };
        Finding::failing(reason, format!("{what}, though the pods are ready: {hint}"))
    }

    /// How long the daemon of a pod may still take: since the pod is ready, or since the license covers it.
    fn time_left(&self, pod: &DaemonPod) -> SignedDuration {
        let since = pod.ready_since.max(self.entitled.filter(|_| self.is_before_license(pod)));
        since.map_or(SignedDuration::ZERO, |since| {
            self.patience - self.now.duration_since(since).max(SignedDuration::ZERO)
        })
    }

    /// Whether a pod was ready before the license covered it, so that coderd may have refused its daemon. Of a pod whose
    /// daemon has no known name that cannot be said.
    fn is_before_license(&self, pod: &DaemonPod) -> bool {
        pod.daemon.is_some()
            && matches!((pod.ready_since, self.entitled), (Some(ready), Some(entitled)) if ready < entitled)
    }
}

const CONNECTING: &str = "waiting for the daemons of ready pods to connect";

impl Finding {
    fn new(status: ConditionStatus, reason: Reason, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into(), restart: Vec::new(), again: None }
    }

    fn failing(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(ConditionStatus::False, reason, message)
    }
}

impl DaemonHealth {
    /// Whether a daemon may connect at any moment.
    pub fn is_expecting(&self) -> bool {
        self.finding.as_ref().is_some_and(|finding| finding.reason == Reason::Connecting)
    }

    /// Pods to restart, because their daemons never try again by themselves.
    pub fn restart(&self) -> &[DaemonPod] {
        self.finding.as_ref().map_or(&[], |finding| &finding.restart)
    }

    /// When to judge again, because a daemon that may still connect has no more time then.
    pub fn again(&self) -> Option<Duration> {
        self.finding.as_ref()?.again
    }

    /// Sets the condition `DaemonsConnected`.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>) {
        if let Some(Finding { status, reason, message, .. }) = &self.finding {
            conditions.set(condition_type::DAEMONS_CONNECTED, *status, *reason, message.clone());
        }
    }

    /// The daemons for the status, which had `before`. coderd records a sign of life of each daemon every minute: a status
    /// that differs in times alone is not written.
    pub fn report(&self, before: Option<&DaemonsStatus>, now: Timestamp) -> Option<DaemonsStatus> {
        let Some(daemons) = &self.daemons else { return before.cloned() };
        let next = self.status(daemons, now);
        match before {
            None => Some(next).filter(|next| next.connected > 0),
            Some(before) if timeless(before) == timeless(&next) => Some(before.clone()),
            Some(_) => Some(next),
        }
    }

    fn status(&self, daemons: &[ListedDaemon], now: Timestamp) -> DaemonsStatus {
        let count = |is: &dyn Fn(&ListedDaemon) -> bool| {
            i32::try_from(daemons.iter().filter(|daemon| is(daemon)).count()).unwrap_or(i32::MAX)
        };
        let mut sorted: Vec<_> = daemons.iter().collect();
        sorted.sort_by_key(|daemon| &daemon.name);
        DaemonsStatus {
            connected: count(&|_| true),
            busy: count(&|daemon| daemon.busy),
            idle: count(&|daemon| !daemon.busy),
            outdated: count(&|daemon| {
                self.coderd_version.as_deref().is_some_and(|server| is_other_release(&daemon.version, server))
            }),
            as_of: Some(Time(whole_seconds(now))),
            list: sorted.into_iter().take(MAX_DAEMONS_ON_STATUS).map(shown).collect(),
        }
    }
}

fn shown(daemon: &ListedDaemon) -> DaemonStatus {
    DaemonStatus {
        name: daemon.name.clone(),
        version: Some(daemon.version.clone()).filter(|version| !version.is_empty()),
        status: Some(if daemon.busy { "Busy" } else { "Idle" }.to_owned()),
        last_seen: daemon.last_seen.map(|time| Time(whole_seconds(time))),
    }
}

/// Whether a daemon has another major or minor version than coderd. Versions of an unknown form are compared as text.
fn is_other_release(daemon: &str, server: &str) -> bool {
    match (Release::parse(daemon), Release::parse(server)) {
        (Some(daemon), Some(server)) => daemon != server,
        _ => !daemon.is_empty() && daemon != server,
    }
}

fn timeless(status: &DaemonsStatus) -> DaemonsStatus {
    let mut status = DaemonsStatus { as_of: None, ..status.clone() };
    status.list.iter_mut().for_each(|daemon| daemon.last_seen = None);
    status
}

/// The first few names in order.
fn some_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    let more = names.len() > MAX_PODS_IN_MESSAGE;
    names.truncate(MAX_PODS_IN_MESSAGE);
    if more { format!("{} and others", names.join(", ")) } else { names.join(", ") }
}

#[cfg(test)]
mod tests;
