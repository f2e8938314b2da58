//! Whether the daemons of a pool are connected, and if not, why.
//!
//! A pod of a daemon is ready when its process runs, which says nothing about coderd. So the list of coderd is held
//! against the pods. Nothing here makes a pool less ready; what can be repaired by starting a pod anew is named.

pub mod cost;
mod pod;
mod report;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coder_k8s_api::{Reason, condition::kind};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::Condition};

pub use self::pod::Pod;
use super::{
    keys::{CredentialProgress, CredentialVerdict, Decision},
    license_gate::{self, LicenseGate},
};
use crate::{
    condition::{ConditionStatus, Conditions},
    daemon_listing::{Daemon, DaemonListing},
    rollout::Rollout,
    version,
};

/// The most pods and daemons that a message names.
const NAMED: usize = 3;

/// What was observed.
#[derive(Clone, Debug, Default)]
pub struct ObservedDaemons {
    /// What coderd last said of the organization. None: it was not asked yet in this process.
    pub listing: Option<Arc<DaemonListing>>,
    /// The pods. None: not looked at, or not to be had.
    pub pods: Option<Arc<Vec<Pod>>>,
    /// How long a daemon may take to connect after its pod is ready.
    pub patience: Duration,
}

/// How the daemons of a pool are.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// What the condition says. None: what it said before.
    verdict: Option<(ConditionStatus, Reason, String)>,
    /// The daemons that count. None: not known, and said as before.
    daemons: Option<Vec<Daemon>>,
    /// The version of coderd.
    server: Option<String>,
    /// Pods to be started anew.
    pub restart: Vec<Pod>,
    /// When to look again, because somebody who is waited for has no more time then.
    pub again: Option<Duration>,
}

/// What a verdict rests on.
struct Facts<'a> {
    desired: i32,
    ready: i32,
    listing: Option<&'a DaemonListing>,
    pods: Option<&'a [Pod]>,
    patience: SignedDuration,
    /// UUIDs of the keys of the pool.
    keys: Vec<String>,
    gate: &'a LicenseGate,
    /// Since when the license covers the pool.
    entitled: Option<Timestamp>,
    key: &'a CredentialVerdict,
    /// The version of coderd.
    server: Option<&'a str>,
    /// What was said before.
    said: Option<&'a Condition>,
    now: Timestamp,
}

/// UUIDs of the keys that daemons of a pool may have come with.
pub fn keys(status: &coder_k8s_api::CoderProvisionerStatus) -> Vec<String> {
    let current = status.provisioner_key_id.iter();
    let pending = status.pending_key.iter().filter_map(|key| key.id.as_ref());
    let stale = status.stale_keys.iter().filter_map(|key| key.id.as_ref());
    current.chain(pending).chain(stale).filter(|id| !id.is_empty()).cloned().collect()
}

/// Judges, given the Deployment as it is now and what was decided of the key.
pub fn judge(
    observed: &super::Observed,
    deployment: Option<&Deployment>,
    key: &Decision,
    now: Timestamp,
) -> Health {
    let Some(status) = observed.object.status.as_ref() else { return Health::default() };
    let rollout = Rollout::of(deployment);
    let condition = |type_: &str| status.workload.conditions.iter().find(|c| c.type_ == type_);
    let entitled = match condition(kind::EXTERNAL_PROVISIONERS_ENTITLED) {
        Some(said) if said.status == "True" => Some(said.last_transition_time.0),
        // It is about to be said.
        Some(_) if observed.gate.state == license_gate::GateState::Open => Some(now),
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
        server: observed.control_plane.as_ref().and_then(|plane| plane.status.as_ref()?.version.as_deref()),
        said: condition(kind::DAEMONS_CONNECTED),
        now,
    };
    if deployment.is_none() { Health::default() } else { facts.judge() }
}

/// Why daemons are missing.
enum Cause {
    Said(Reason, String),
    /// They never try again by themselves.
    Stopped(Vec<Pod>),
    /// They have so much time left.
    Connecting(SignedDuration),
}

impl<'a> Facts<'a> {
    fn judge(&self) -> Health {
        let listing = self.listing.filter(|listing| !listing.outdated);
        let live = listing.map(|listing| self.live(listing));
        let daemons = live.as_ref().map(|live| live.iter().map(|daemon| (*daemon).clone()).collect());
        let health = Health { daemons, server: self.server.map(str::to_owned), ..Health::default() };
        let say = |state: ConditionStatus, reason, message: &str| Some((state, reason, message.to_owned()));
        if self.ready == 0 {
            let verdict = if self.desired == 0 {
                say(ConditionStatus::True, Reason::ScaledToZero, "no pods are asked for")
            } else {
                say(ConditionStatus::False, Reason::NoPodsReady, "no pod is ready")
            };
            return Health { verdict, ..health };
        }
        if let Some(blocker) =
            self.listing.filter(|listing| listing.outdated).and_then(|listing| listing.blocker.as_ref())
        {
            let message = format!("the daemons cannot be listed: {}", blocker.message);
            return Health { verdict: say(ConditionStatus::Unknown, blocker.reason, &message), ..health };
        }
        let Some(live) = live else {
            // Asked within moments; what was said of daemons before stays said.
            let was_said = self.said.is_some_and(|said| {
                !matches!(Reason::of(said), Some(Reason::NoPodsReady | Reason::ScaledToZero))
            });
            let verdict =
                if was_said { None } else { say(ConditionStatus::False, Reason::Connecting, CONNECTING) };
            return Health { verdict, ..health };
        };
        let shared = self.shared_name();
        let missing = self.missing(&live);
        if shared.is_none() && missing.is_empty() {
            let verdict =
                say(ConditionStatus::True, Reason::Connected, "the daemon of every ready pod is connected");
            return Health { verdict, ..health };
        }
        let cause = shared
            .or_else(|| self.closed())
            .or_else(|| self.taken(&missing))
            .unwrap_or_else(|| self.by_time(&missing, &live));
        match cause {
            Cause::Said(reason, message) => {
                Health { verdict: say(ConditionStatus::False, reason, &message), ..health }
            }
            Cause::Stopped(restart) => {
                let names = some_of(restart.iter().map(|pod| &*pod.name));
                let message = format!(
                    "daemons that coderd refused for want of a license never try again: {names} start anew"
                );
                Health {
                    verdict: say(ConditionStatus::False, Reason::StoppedTrying, &message),
                    restart,
                    ..health
                }
            }
            Cause::Connecting(left) => Health {
                verdict: say(ConditionStatus::False, Reason::Connecting, CONNECTING),
                again: Duration::try_from(left).ok(),
                ..health
            },
        }
    }

    /// The daemons of the pool that coderd lists and whose pods there are. coderd lists one for 90 seconds after it left.
    fn live(&self, listing: &'a DaemonListing) -> Vec<&'a Daemon> {
        let ours = listing.daemons.iter().filter(|daemon| self.keys.contains(&daemon.key));
        match self.pods.filter(|pods| pods.iter().all(|pod| pod.daemon.is_some())) {
            None => ours.collect(),
            Some(pods) => ours
                .filter(|daemon| pods.iter().any(|pod| pod.daemon.as_ref() == Some(&daemon.name)))
                .collect(),
        }
    }

    fn ready_pods(&self) -> impl Iterator<Item = &'a Pod> {
        self.pods.unwrap_or_default().iter().filter(|pod| pod.ready_since.is_some() && !pod.is_deleting)
    }

    /// Ready pods without a daemon. Where it cannot be told which: all of them, if daemons are too few.
    fn missing(&self, live: &[&Daemon]) -> Vec<Pod> {
        let named = self.pods.is_some() && self.ready_pods().all(|pod| pod.daemon.is_some());
        if named {
            let is_listed = |pod: &&Pod| live.iter().any(|daemon| Some(&daemon.name) == pod.daemon.as_ref());
            return self.ready_pods().filter(|pod| !is_listed(pod)).cloned().collect();
        }
        let few = live.len() < usize::try_from(self.ready).unwrap_or(0);
        match (few, self.pods) {
            (false, _) => Vec::new(),
            (true, Some(_)) => self.ready_pods().cloned().collect(),
            (true, None) => vec![Pod::unknown()],
        }
    }

    /// One name for several pods: coderd keeps one row for it.
    fn shared_name(&self) -> Option<Cause> {
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
        Some(Cause::Said(Reason::DuplicateName, message))
    }

    /// The license keeps them out.
    fn closed(&self) -> Option<Cause> {
        (self.gate.state == license_gate::GateState::Closed).then(|| {
            let message = format!("coderd refuses the daemons: {}", self.gate.message);
            Cause::Said(self.gate.reason, message)
        })
    }

    /// Somebody else has the name of a daemon.
    fn taken(&self, missing: &[Pod]) -> Option<Cause> {
        let name = missing.iter().find_map(|pod| {
            let name = pod.daemon.as_ref()?;
            let holder = self.listing?.daemons.iter().find(|daemon| daemon.name == *name)?;
            (!self.keys.contains(&holder.key)).then_some(name)
        })?;
        let message =
            format!("a daemon with another key is called {name}: names are unique in an organization");
        Some(Cause::Said(Reason::DuplicateName, message))
    }

    /// coderd does not know the key any more. A key that is merely being replaced keeps its sessions.
    fn dead_key(&self, live: &[&Daemon]) -> Option<Cause> {
        let is_replaced = matches!(self.key.stage, CredentialProgress::Working | CredentialProgress::Stalled);
        (is_replaced && live.is_empty()).then(|| {
            let message = format!("coderd does not accept the key that the pods have: {}", self.key.message);
            Cause::Said(Reason::KeyNotAccepted, message)
        })
    }

    /// coderd refuses daemons that are newer than itself.
    fn refused_version(&self, missing: &[Pod]) -> Option<Cause> {
        let newer =
            missing.iter().filter_map(|pod| pod.image.as_deref()).find(|image| self.is_newer(image))?;
        let message = format!(
            "the image {newer} is newer than coderd {}, which refuses newer daemons: set spec.image to that version, or \
             leave it out",
            self.server.unwrap_or_default()
        );
        Some(Cause::Said(Reason::VersionRefused, message))
    }

    fn is_newer(&self, image: &str) -> bool {
        let versions = (version::of_image(image), self.server.and_then(version::parse));
        matches!(versions, (Some(image), Some(server)) if image.release() > server.release())
    }

    /// Who has still time has it; of the others, what is known.
    fn by_time(&self, missing: &[Pod], live: &[&Daemon]) -> Cause {
        let waits_since =
            |pod: &Pod| pod.ready_since.max(self.entitled.filter(|_| self.is_before_license(pod)));
        let left = |pod: &Pod| {
            waits_since(pod).map_or(SignedDuration::ZERO, |since| {
                self.patience - self.now.duration_since(since).max(SignedDuration::ZERO)
            })
        };
        let longest = missing.iter().map(left).max().unwrap_or_default();
        let overdue = missing.iter().filter(|pod| !left(pod).is_positive());
        let stopped: Vec<_> = overdue.filter(|pod| self.is_before_license(pod)).cloned().collect();
        if !stopped.is_empty() && self.gate.state == license_gate::GateState::Open {
            return Cause::Stopped(stopped);
        }
        if longest.is_positive() {
            return Cause::Connecting(longest);
        }
        if let Some(cause) = self.dead_key(live).or_else(|| self.refused_version(missing)) {
            return cause;
        }
        let names = some_of(missing.iter().map(|pod| &*pod.name).filter(|name| !name.is_empty()));
        let of = if names.is_empty() { String::new() } else { format!(" of {names}") };
        let (reason, what) = if live.is_empty() {
            (Reason::NoneConnected, "no daemon is connected to coderd".to_owned())
        } else {
            (Reason::SomeConnected, format!("the daemon{of} is not connected to coderd"))
        };
        Cause::Said(reason, format!("{what}, though the pods are ready: {}", self.hint(missing)))
    }

    /// Whether a pod was ready before the license came: its daemon may have been refused, and then it does not try again.
    /// Of a pod whose daemon cannot be told nothing is known.
    fn is_before_license(&self, pod: &Pod) -> bool {
        pod.daemon.is_some()
            && matches!((pod.ready_since, self.entitled), (Some(ready), Some(entitled)) if ready < entitled)
    }

    /// What to look at.
    fn hint(&self, missing: &[Pod]) -> String {
        let image = missing.iter().find_map(|pod| pod.image.as_deref());
        match (image.filter(|image| version::of_image(image).is_none()), self.server) {
            (Some(image), Some(server)) => {
                format!(
                    "see their logs; coderd {server} refuses daemons that are newer, and the version of {image} is not known"
                )
            }
            _ => "see their logs".to_owned(),
        }
    }
}

const CONNECTING: &str = "the pods are ready, and not every daemon is connected yet";

impl Health {
    /// Whether somebody is waited for who may connect any moment.
    pub fn is_expecting(&self) -> bool {
        self.verdict.as_ref().is_some_and(|(_, reason, _)| *reason == Reason::Connecting)
    }

    /// Says it.
    pub fn set_conditions(&self, conditions: &mut Conditions<'_>) {
        if let Some((state, reason, message)) = &self.verdict {
            conditions.set(kind::DAEMONS_CONNECTED, *state, *reason, message.clone());
        }
    }
}

/// The first few names in order.
fn some_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    let more = names.len() > NAMED;
    names.truncate(NAMED);
    if more { format!("{} and others", names.join(", ")) } else { names.join(", ") }
}

#[cfg(test)]
mod tests;
