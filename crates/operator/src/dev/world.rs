//! What is in the cluster of `dev`, for the view, the table at the end and `--until-ready`.
//!
//! It is filled by watches (`watch.rs`) and holds only what is shown. Whether an object is as it should be is decided
//! here, from its conditions.

use std::collections::{BTreeMap, VecDeque};

use coder_k8s_api::{
    CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy,
    condition::condition_type::{DAEMONS_CONNECTED, HEALTHY, LICENSE_APPLIED, OPERATOR_ACCESS_READY, READY},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::controller::CoderResource;

/// How many events are kept.
const EVENTS: usize = 100;

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// One of our objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Object {
    /// Status, reason and message of the condition Ready.
    pub(super) ready: Option<(String, String, String)>,
    /// Why the object is not as its spec asks. `None` if it is.
    pub(super) missing: Option<String>,
    /// What is worth knowing about it, in a few words each.
    pub(super) facts: Vec<String>,
}

/// An object that the operator made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) owner: Option<Id>,
    /// Such as `2/2`. Empty for a kind without a state.
    pub(super) state: String,
}

/// An event about one of our objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    /// UID of the event, which is the same when it is counted again.
    pub(super) uid: String,
    pub(super) at: Timestamp,
    pub(super) about: Id,
    pub(super) warning: bool,
    pub(super) text: String,
}

/// All that is shown, at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub(super) objects: BTreeMap<Id, Object>,
    pub(super) children: BTreeMap<Id, Child>,
    /// Oldest first.
    pub(super) events: VecDeque<Happened>,
}

impl Observed {
    /// How many objects are as they should be.
    pub(super) fn ready(&self) -> usize {
        self.objects.values().filter(|object| object.missing.is_none()).count()
    }

    /// What is missing of these objects, in a line each.
    pub(super) fn missing(&self, expected: &[Id]) -> Vec<String> {
        let line = |id: &Id| match self.objects.get(id) {
            None => Some(format!("{id}: does not exist")),
            Some(object) => object.missing.as_ref().map(|missing| format!("{id}: {missing}")),
        };
        expected.iter().filter_map(line).collect()
    }
}

/// The present state, and a signal when it changes.
pub(super) struct World {
    seen: Mutex<Observed>,
    changes: watch::Sender<u64>,
}

impl World {
    pub(super) fn new() -> Self {
        Self { seen: Mutex::default(), changes: watch::Sender::new(0) }
    }

    pub(super) fn seen(&self) -> Observed {
        self.seen.lock().clone()
    }

    /// Changes with every change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Observed) -> T) -> T {
        let outcome = change(&mut self.seen.lock());
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        outcome
    }

    /// Stores an object. Returns what was known before.
    pub(super) fn put_object(&self, id: Id, object: Object) -> Option<Object> {
        self.change(|seen| seen.objects.insert(id, object))
    }

    /// Stores a child. Returns what was known before.
    pub(super) fn put_child(&self, id: Id, child: Child) -> Option<Child> {
        self.change(|seen| seen.children.insert(id, child))
    }

    /// Forgets an object or child.
    pub(super) fn remove(&self, id: &Id) {
        self.change(|seen| {
            seen.objects.remove(id);
            seen.children.remove(id);
        });
    }

    /// Adds an event, or moves it to the end if it happened again.
    pub(super) fn happened(&self, event: Happened) {
        self.change(|seen| {
            seen.events.retain(|known| known.uid != event.uid);
            let later = seen.events.iter().rposition(|known| known.at <= event.at).map_or(0, |at| at + 1);
            seen.events.insert(later, event);
            if seen.events.len() > EVENTS {
                seen.events.pop_front();
            }
        });
    }

    /// Waits until nothing is missing of these objects.
    pub(super) async fn until_ready(&self, expected: &[Id]) {
        let mut changes = self.changes();
        while !self.seen.lock().missing(expected).is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Which parts are simulated, for the words about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Simulated {
    pub(super) coderd: bool,
    pub(super) daemons: bool,
}

impl Simulated {
    fn word(simulated: bool) -> &'static str {
        if simulated { "simulated " } else { "" }
    }
}

/// What the view shows of a kind.
pub(super) trait Shown: CoderResource {
    /// Conditions that do not affect Ready, or not always, and without which the object is of no use here.
    fn also(&self) -> Vec<&'static str>;

    fn facts(&self, simulated: Simulated) -> Vec<String>;
}

/// What is shown of an object.
pub(super) fn object<K: Shown>(object: &K, simulated: Simulated) -> Object {
    let conditions = object.status().map_or(&[][..], K::conditions);
    let find = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    let observed = object.status().and_then(|status| K::workload(status).observed_generation);
    let ready = find(READY);
    let missing = if object.meta().deletion_timestamp.is_some() {
        Some("is being deleted".to_owned())
    } else if observed.is_none() || observed != object.meta().generation {
        Some("waiting for the operator".to_owned())
    } else {
        let mut checked = std::iter::once(READY).chain(object.also());
        checked.find_map(|type_| lacking(type_, find(type_)))
    };
    Object {
        ready: ready.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone())),
        missing,
        facts: object.facts(simulated),
    }
}

fn lacking(type_: &str, condition: Option<&Condition>) -> Option<String> {
    match condition {
        Some(condition) if condition.status == "True" => None,
        Some(Condition { status, reason, message, .. }) => {
            Some(format!("{type_}={status} {reason}: {message}"))
        }
        None => Some(format!("{type_} is not known yet")),
    }
}

impl Shown for CoderControlPlane {
    fn also(&self) -> Vec<&'static str> {
        let access = (!self.spec.operator_access.disabled).then_some(OPERATOR_ACCESS_READY);
        let license = self.spec.license_secret_ref.as_ref().map(|_| LICENSE_APPLIED);
        access.into_iter().chain(license).collect()
    }

    fn facts(&self, simulated: Simulated) -> Vec<String> {
        let Some(status) = &self.status else { return Vec::new() };
        let version = status.version.as_ref();
        let version = version.map(|version| format!("{}coderd {version}", Simulated::word(simulated.coderd)));
        let license = status.license.as_ref().and_then(|license| {
            let until = license.expires.as_ref()?.0.strftime("%Y-%m-%d").to_string();
            Some(format!("{} license until {until}", license.tier.as_deref().unwrap_or("a")))
        });
        let features = status.entitlements.as_ref().map(|found| found.features.len());
        let features = features.filter(|count| *count > 0).map(|count| format!("{count} features entitled"));
        [version, license, features].into_iter().flatten().collect()
    }
}

impl Shown for CoderProvisioner {
    fn also(&self) -> Vec<&'static str> {
        vec![DAEMONS_CONNECTED]
    }

    fn facts(&self, simulated: Simulated) -> Vec<String> {
        let tags = self.spec.tags.iter().map(|(name, value)| format!("{name}={value}"));
        let tags = tags.collect::<Vec<_>>().join(",");
        let mut facts = vec![format!("tags {}", if tags.is_empty() { "none" } else { &tags })];
        let Some(status) = &self.status else { return facts };
        facts.extend(status.provisioner_key_name.as_ref().map(|key| format!("key {key}")));
        facts.extend(status.pending_key.as_ref().map(|key| format!("new key {}", key.name)));
        facts.extend(status.stale_keys.iter().map(|key| format!("old key {} until unused", key.name)));
        facts.extend(status.daemons.as_ref().map(|daemons| {
            let s = if daemons.connected == 1 { "" } else { "s" };
            format!("{} {}daemon{s} connected", daemons.connected, Simulated::word(simulated.daemons))
        }));
        facts
    }
}

impl Shown for CoderWorkspaceProxy {
    /// coderd watches the proxies that the operator registered.
    fn also(&self) -> Vec<&'static str> {
        if self.spec.proxy_session_token_secret_ref.is_some() { Vec::new() } else { vec![HEALTHY] }
    }

    fn facts(&self, simulated: Simulated) -> Vec<String> {
        let Some(status) = &self.status else { return Vec::new() };
        let name = status.proxy_name.as_ref().filter(|_| status.registered == Some(true));
        let name = name.map(|name| format!("registered as {name}"));
        let health = status.health.as_ref();
        let health = health.map(|health| format!("{}health {health}", Simulated::word(simulated.daemons)));
        name.into_iter().chain(health).chain(status.access_url.clone()).collect()
    }
}

/// The name of an object.
pub(super) fn id<K: Resource<DynamicType = ()>>(object: &K) -> Id {
    Id {
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SIMULATED: Simulated = Simulated { coderd: true, daemons: true };

    fn pool(generation: i64, conditions: &[(&str, &str)]) -> Object {
        let time = "2026-01-01T00:00:00Z";
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status)| {
                json!({"type": type_, "status": status, "reason": "R", "message": "m", "lastTransitionTime": time})
            })
            .collect();
        let pool: CoderProvisioner = serde_json::from_value(json!({
            "apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": "pool", "namespace": "coder", "generation": generation},
            "spec": {"controlPlaneRef": {"name": "coder"}, "tags": {"a": "b", "c": "d"}},
            "status": {"observedGeneration": 2, "conditions": conditions, "provisionerKeyName": "pool",
                "staleKeys": [{"name": "pool-1"}],
                "daemons": {"connected": 1, "busy": 0, "idle": 1, "outdated": 0}},
        }))
        .unwrap();
        object(&pool, SIMULATED)
    }

    #[test]
    fn an_object_is_ready_when_its_conditions_say_so_for_the_present_spec() {
        let both = [(READY, "True"), (DAEMONS_CONNECTED, "True")];
        for (generation, conditions, missing) in [
            (2, &both[..], None),
            (3, &both, Some("waiting for the operator")),
            (2, &[(READY, "False"), (DAEMONS_CONNECTED, "True")], Some("Ready=False R: m")),
            (2, &[(READY, "True"), (DAEMONS_CONNECTED, "Unknown")], Some("DaemonsConnected=Unknown R: m")),
            (2, &[(READY, "True")], Some("DaemonsConnected is not known yet")),
        ] {
            assert_eq!(pool(generation, conditions).missing.as_deref(), missing, "{conditions:?}");
        }
    }

    #[test]
    fn the_facts_of_a_pool_are_tags_keys_and_daemons() {
        let expected =
            ["tags a=b,c=d", "key pool", "old key pool-1 until unused", "1 simulated daemon connected"];
        assert_eq!(pool(2, &[]).facts, expected);
    }

    #[tokio::test]
    async fn what_is_missing_is_named_until_nothing_is() {
        let world = World::new();
        let id = |name: &str| Id { kind: "Kind".into(), namespace: "n".into(), name: name.into() };
        let expected = [id("a"), id("b")];
        world.put_object(id("a"), Object { missing: Some("why".into()), ..Object::default() });
        assert_eq!(world.seen().missing(&expected), ["Kind n/a: why", "Kind n/b: does not exist"]);
        let ready = world.until_ready(&expected);
        world.put_object(id("a"), Object::default());
        world.put_object(id("b"), Object::default());
        ready.await;
        assert_eq!(world.seen().ready(), 2);
    }

    #[test]
    fn events_are_in_order_and_each_is_there_once() {
        let world = World::new();
        let happened = |uid: &str, second: i64| Happened {
            uid: uid.into(),
            at: Timestamp::from_second(second).unwrap(),
            about: Id { kind: "Kind".into(), namespace: "n".into(), name: "a".into() },
            warning: false,
            text: String::new(),
        };
        for event in [happened("a", 3), happened("b", 1), happened("a", 5), happened("c", 4)] {
            world.happened(event);
        }
        let order: Vec<_> = world.seen().events.into_iter().map(|event| event.uid).collect();
        assert_eq!(order, ["b", "c", "a"]);
    }
}
