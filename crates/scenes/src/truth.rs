//! Judges every version of every object: is what its conditions claim true of the simulated servers behind it?
//!
//! A monitor follows the three kinds, the Secrets and the Deployments of the namespace of a test, and fails the test when
//! its scene is dropped. It knows two lies:
//!
//! - **Never verified**: a condition of the present generation is True for inputs (spec fields, Secret contents, server)
//!   for which it was never true. Each version is judged once, [`SETTLE`] after it was written, so that the watches of the
//!   monitor have caught up; the contents that a Secret had shortly before count as well, because the operator may not
//!   have seen the newest.
//! - **Out of date**: a condition stays True although the server changed underneath, longer than the operator's interval
//!   plus [`SLACK`]; or although a Secret changed, longer than [`NOTICE`]. Time during which the server does not answer
//!   properly does not count: nobody can know. Only where an operator runs all the time.
//!
//! Besides, `Ready` is never True beside a condition that it depends on and that is not.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use coder_k8s_api::{condition::condition_type, names::annotation};
use coder_k8s_testbed::codersim::{SimView, When, report};
use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::watcher::{self, watcher},
};
use secrecy::SecretString;
use serde_json::Value;
use tokio::task::JoinHandle;

/// How long after a version was written it is judged.
const SETTLE: Duration = Duration::from_secs(2);
/// How long a Secret's former content may still be what a condition speaks of.
const NOTICE: Duration = Duration::from_secs(5);
/// What a condition may be late by, beyond the interval at which the operator looks.
const SLACK: Duration = Duration::from_secs(15);
/// How often the present state is judged.
const TICK: Duration = Duration::from_millis(250);

/// The conditions that a monitor can judge, and which of the intervals brings them up to date.
const JUDGED: &[(&str, Interval)] = &[
    (condition_type::LICENSE_APPLIED, Interval::Verify),
    (condition_type::OPERATOR_ACCESS_READY, Interval::Verify),
    (condition_type::PROVISIONER_KEY_READY, Interval::Verify),
    (condition_type::PROVISIONER_KEY_SECRET_READY, Interval::Verify),
    (condition_type::REGISTERED, Interval::Verify),
    (condition_type::TOKEN_SECRET_READY, Interval::Verify),
    (condition_type::EXTERNAL_PROVISIONERS_ENTITLED, Interval::Entitlements),
    (condition_type::DEPLOYMENT_READY, Interval::Watch),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Interval {
    Verify,
    Entitlements,
    /// Kubernetes tells at once.
    Watch,
}

/// How often an operator looks.
#[derive(Clone, Copy)]
pub(crate) struct Intervals {
    verify: Duration,
    entitlements: Duration,
}

impl Intervals {
    /// Those of an operator with these flags.
    pub(crate) fn of(args: &[&str]) -> Self {
        let seconds = |flag: &str, default: u64| {
            let given = args.iter().rev().find_map(|arg| arg.strip_prefix(flag));
            let parsed = given.map(|text| match text.strip_suffix('s') {
                Some(seconds) => seconds.parse::<u64>().unwrap_or(default),
                None => default,
            });
            Duration::from_secs(parsed.unwrap_or(default))
        };
        Self {
            verify: seconds("--verify-interval=", 600),
            entitlements: seconds("--entitlements-interval=", 100),
        }
    }
}

/// The monitor of one namespace.
pub(crate) struct TruthMonitor {
    world: Arc<Mutex<World>>,
    task: JoinHandle<()>,
}

impl TruthMonitor {
    /// Follows a namespace. Without intervals, no operator need be running, and nothing is out of date.
    pub(crate) fn start(client: &Client, namespace: &str, intervals: Option<Intervals>) -> Self {
        let world =
            Arc::new(Mutex::new(World { intervals, namespace: namespace.to_owned(), ..World::default() }));
        let task = tokio::spawn(follow(client.clone(), namespace.to_owned(), world.clone()));
        Self { world, task }
    }

    /// Says where a host is.
    pub(crate) fn host(&self, name: &str, address: SocketAddr) {
        locked(&self.world).hosts.insert(name.to_owned(), address);
    }

    /// Declares that a condition type cannot be judged in this test, with the reason.
    pub(crate) fn except(&self, condition: &'static str, _reason: &'static str) {
        locked(&self.world).exceptions.insert(condition);
    }

    /// Judges no condition at all.
    pub(crate) fn except_all(&self) {
        self.task.abort();
    }
}

impl Drop for TruthMonitor {
    /// Fails the test in which an object lied.
    fn drop(&mut self) {
        self.task.abort();
        let world = locked(&self.world);
        report("versions", world.versions, world.lies.len());
        assert!(
            world.lies.is_empty() || std::thread::panicking(),
            "conditions that were not true:\n{}",
            world.lies.join("\n")
        );
    }
}

fn locked(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn follow(client: Client, namespace: String, world: Arc<Mutex<World>>) {
    let kinds = [
        ("coder.com", "v1alpha1", "CoderControlPlane"),
        ("coder.com", "v1alpha1", "CoderProvisioner"),
        ("coder.com", "v1alpha1", "CoderWorkspaceProxy"),
        ("", "v1", "Secret"),
        ("apps", "v1", "Deployment"),
    ];
    let streams = kinds.map(|(group, version, kind)| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        watcher(api, watcher::Config::default()).map(move |event| (kind, event)).boxed()
    });
    let mut events = stream::select_all(streams);
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some((kind, Ok(event))) => locked(&world).event(kind, event),
                Some((_, Err(_))) => tokio::time::sleep(TICK).await,
            },
            _ = tick.tick() => locked(&world).tick(),
        }
    }
}

/// A kind and a name.
type Id = (&'static str, String);

#[derive(Default)]
struct World {
    namespace: String,
    intervals: Option<Intervals>,
    hosts: BTreeMap<String, SocketAddr>,
    objects: BTreeMap<Id, Value>,
    /// Contents of Secrets, the newest last, with the time until which each held.
    secrets: BTreeMap<String, Vec<(Value, Option<Instant>)>>,
    deployments: BTreeMap<String, Value>,
    /// Versions that are to be judged, oldest first.
    unjudged: VecDeque<(Instant, Id, Value)>,
    claims: BTreeMap<(Id, &'static str), Claim>,
    exceptions: BTreeSet<&'static str>,
    versions: u64,
    lies: Vec<String>,
}

/// The history of one condition of one object.
#[derive(Default)]
struct Claim {
    /// Inputs for which it was true at some time.
    verified: BTreeSet<String>,
    false_since: Option<Instant>,
    /// The inputs as of then: other ones are another claim.
    inputs: String,
}

/// What a condition says, against what is.
enum Judgement {
    Holds,
    Fails(String),
    /// The monitor cannot tell.
    Unknown,
}

impl World {
    fn event(&mut self, kind: &'static str, event: watcher::Event<DynamicObject>) {
        let (object, gone) = match event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => (object, false),
            watcher::Event::Delete(object) => (object, true),
            watcher::Event::Init | watcher::Event::InitDone => return,
        };
        let now = Instant::now();
        let name = object.metadata.name.clone().unwrap_or_default();
        let value = serde_json::to_value(&object).unwrap_or_default();
        match kind {
            "Secret" => {
                let contents = self.secrets.entry(name).or_default();
                if let Some((last, until)) = contents.last_mut() {
                    if !gone && *last == value["data"] {
                        *until = None;
                        return;
                    }
                    until.get_or_insert(now);
                }
                if !gone {
                    contents.push((value["data"].clone(), None));
                }
            }
            "Deployment" if gone => drop(self.deployments.remove(&name)),
            "Deployment" => drop(self.deployments.insert(name, value)),
            _ if gone => {
                self.claims.retain(|((of, named), _), _| (*of, named) != (kind, &name));
                self.objects.remove(&(kind, name));
            }
            _ => {
                self.versions += 1;
                self.note_what_holds(now, &(kind, name.clone()), &value);
                self.unjudged.push_back((now, (kind, name.clone()), value.clone()));
                self.objects.insert((kind, name), value);
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        while let Some((at, ..)) = self.unjudged.front()
            && now.duration_since(*at) >= SETTLE
            && let Some((at, id, object)) = self.unjudged.pop_front()
        {
            self.judge_version(at, &id, &object);
        }
        if let Some(intervals) = self.intervals {
            for (id, object) in self.objects.clone() {
                self.judge_present(now, intervals, &id, &object);
            }
        }
    }

    /// Remembers which claims are true on arrival: the test may change the server before the version is judged.
    fn note_what_holds(&mut self, now: Instant, id: &Id, object: &Value) {
        for &(condition, _) in JUDGED {
            if self.claims_true(object, condition)
                && let (inputs, Judgement::Holds) = self.judge(id, object, condition, now.checked_sub(NOTICE))
            {
                self.claims.entry((id.clone(), condition)).or_default().verified.insert(inputs);
            }
        }
    }

    /// Whether a version claims what was never true of its inputs.
    fn judge_version(&mut self, at: Instant, id: &Id, object: &Value) {
        self.judge_ready(id, object);
        for &(condition, interval) in JUDGED {
            // What Kubernetes reports changes too quickly to be judged afterwards.
            if interval == Interval::Watch || !self.claims_true(object, condition) {
                continue;
            }
            let (inputs, judgement) = self.judge(id, object, condition, at.checked_sub(NOTICE));
            let claim = self.claims.entry((id.clone(), condition)).or_default();
            match judgement {
                Judgement::Holds => drop(claim.verified.insert(inputs)),
                Judgement::Fails(why) if !claim.verified.contains(&inputs) => {
                    let generation = &object["metadata"]["generation"];
                    let (kind, name) = id;
                    let text = condition_of(object, condition).map(|found| found["message"].clone());
                    self.lies.push(format!(
                        "{kind} {name}, generation {generation}: {condition} is True ({}) and was never verified: {why}",
                        text.unwrap_or_default()
                    ));
                }
                Judgement::Fails(_) | Judgement::Unknown => {}
            }
        }
    }

    /// `Ready` depends on what the spec asks for.
    fn judge_ready(&mut self, (kind, name): &Id, object: &Value) {
        if !self.claims_true(object, condition_type::READY) {
            return;
        }
        let needed: &[&str] = match *kind {
            "CoderControlPlane" if object["spec"]["licenseSecretRef"].is_object() => {
                &[condition_type::LICENSE_APPLIED]
            }
            "CoderControlPlane" => &[],
            "CoderProvisioner" => {
                &[condition_type::PROVISIONER_KEY_READY, condition_type::PROVISIONER_KEY_SECRET_READY]
            }
            _ if object["spec"]["proxySessionTokenSecretRef"].is_object() => &[],
            _ => &[condition_type::REGISTERED, condition_type::TOKEN_SECRET_READY],
        };
        for needed in needed {
            if !condition_of(object, needed).is_some_and(|found| found["status"] == "True") {
                self.lies.push(format!("{kind} {name}: Ready is True beside {needed}, which is not"));
            }
        }
    }

    /// Whether what is claimed now has been false for too long.
    fn judge_present(&mut self, now: Instant, intervals: Intervals, id: &Id, object: &Value) {
        for &(condition, interval) in JUDGED {
            if !self.claims_true(object, condition) {
                self.claims.entry((id.clone(), condition)).or_default().false_since = None;
                continue;
            }
            let (inputs, judgement) = self.judge(id, object, condition, None);
            let was_true = matches!(self.judge(id, object, condition, Some(now)).1, Judgement::Holds);
            let healthy = self.server(id, object).is_none_or(|server| server.is_healthy());
            let claim = self.claims.entry((id.clone(), condition)).or_default();
            if claim.inputs != inputs {
                (claim.inputs, claim.false_since) = (inputs.clone(), None);
            }
            let Judgement::Fails(why) = judgement else {
                if matches!(judgement, Judgement::Holds) {
                    claim.verified.insert(inputs);
                }
                claim.false_since = None;
                continue;
            };
            if was_true {
                claim.verified.insert(inputs.clone());
            }
            let allowed = match interval {
                Interval::Watch => NOTICE,
                _ if !claim.verified.contains(&inputs) => NOTICE,
                Interval::Verify => intervals.verify + SLACK,
                Interval::Entitlements => intervals.entitlements + SLACK,
            };
            if !healthy && claim.verified.contains(&inputs) {
                claim.false_since = None;
                continue;
            }
            if now.duration_since(*claim.false_since.get_or_insert(now)) > allowed {
                claim.false_since = None;
                let (kind, name) = id;
                self.lies.push(format!("{kind} {name}: {condition} is still True after {allowed:?}: {why}"));
            }
        }
    }

    /// Whether an object says that a condition is True for its present spec. One that is paused or going says nothing.
    fn claims_true(&self, object: &Value, condition: &str) -> bool {
        let metadata = &object["metadata"];
        let paused = metadata["annotations"].get(annotation::PAUSED).is_some();
        let found = condition_of(object, condition);
        !paused
            && !self.exceptions.contains(condition)
            && metadata["deletionTimestamp"].is_null()
            && found.is_some_and(|found| {
                found["status"] == "True" && found["observedGeneration"] == metadata["generation"]
            })
    }

    /// Compares a condition with the world as it is. With `since`, with what it ever was, and contents that a Secret had
    /// after that time count too.
    fn judge(&self, id: &Id, object: &Value, condition: &str, since: Option<Instant>) -> (String, Judgement) {
        if condition == condition_type::DEPLOYMENT_READY {
            return (String::new(), self.rolled_out(object));
        }
        let Some(server) = self.server(id, object) else { return (String::new(), Judgement::Unknown) };
        let (spec, status) = (&object["spec"], &object["status"]);
        let deployment = server.deployment_id();
        let when = if since.is_some() { When::Ever } else { When::Now };
        if condition == condition_type::EXTERNAL_PROVISIONERS_ENTITLED {
            let holds = server.entitles("external_provisioner_daemons", when);
            let why = "the license does not cover external provisioners";
            return (deployment, if holds { Judgement::Holds } else { Judgement::Fails(why.to_owned()) });
        }
        let (reference, default_key): (&Value, &str) = match condition {
            condition_type::LICENSE_APPLIED => (&spec["licenseSecretRef"], "license"),
            condition_type::OPERATOR_ACCESS_READY if id.0 == "CoderControlPlane" => {
                match &spec["operatorAccess"] {
                    access if access["method"] == "TokenSecret" => (&access["tokenSecretRef"], "token"),
                    _ => (&status["operatorTokenSecretRef"], "token"),
                }
            }
            condition_type::OPERATOR_ACCESS_READY => (&spec["bootstrap"]["credentialsSecretRef"], "token"),
            condition_type::PROVISIONER_KEY_READY | condition_type::PROVISIONER_KEY_SECRET_READY => {
                (&status["secretRef"], "key")
            }
            _ if spec["proxySessionTokenSecretRef"].is_object() => (&Value::Null, ""),
            _ => (&status["proxyTokenSecretRef"], "token"),
        };
        let Some(name) = reference["name"].as_str() else { return (deployment, Judgement::Unknown) };
        let key = reference["key"].as_str().unwrap_or(default_key);
        let contents = self.contents(name, key, since);
        let inputs = format!(
            "{deployment} {reference} {:?} {} {}",
            contents.last(),
            spec["tags"],
            spec["key"]["name"]
        );
        let holds = |content: &String| {
            let secret = SecretString::from(content.trim().to_owned());
            match condition {
                condition_type::LICENSE_APPLIED => server.holds_license(content.trim(), when),
                condition_type::OPERATOR_ACCESS_READY => server.accepts(&secret, when),
                condition_type::PROVISIONER_KEY_READY | condition_type::PROVISIONER_KEY_SECRET_READY => {
                    server.has_key(&secret, &tags_of(&spec["tags"]), when)
                }
                _ => server.has_proxy(&secret, status["proxyName"].as_str().unwrap_or_default(), when),
            }
        };
        let judgement = match contents.iter().any(holds) {
            true => Judgement::Holds,
            false if contents.is_empty() => Judgement::Fails(format!("Secret {name} has no {key}")),
            false => Judgement::Fails(format!(
                "coderd does not know what Secret {name} holds, as the spec asks for it"
            )),
        };
        (inputs, judgement)
    }

    /// The contents of a key of a Secret: the present one, and with a time those that it had after it.
    fn contents(&self, secret: &str, key: &str, since: Option<Instant>) -> Vec<String> {
        let all = self.secrets.get(secret).map_or(&[][..], Vec::as_slice);
        let counts = |until: &Option<Instant>| match (until, since) {
            (None, _) => true,
            (Some(until), Some(since)) => *until >= since,
            (Some(_), None) => false,
        };
        let decoded = all.iter().filter(|(_, until)| counts(until)).filter_map(|(data, _)| {
            let bytes: k8s_openapi::ByteString = serde_json::from_value(data.get(key)?.clone()).ok()?;
            String::from_utf8(bytes.0).ok()
        });
        decoded.filter(|content| !content.trim().is_empty()).collect()
    }

    /// The simulated coderd of an object.
    fn server(&self, (kind, name): &Id, object: &Value) -> Option<SimView> {
        let spec = &object["spec"];
        let plane = match *kind {
            "CoderControlPlane" => object.clone(),
            _ => match spec["controlPlaneRef"]["name"].as_str() {
                Some(plane) => self.objects.get(&("CoderControlPlane", plane.to_owned()))?.clone(),
                None => return self.at(spec["bootstrap"]["coderURL"].as_str()?),
            },
        };
        let named = plane["metadata"]["name"].as_str().unwrap_or(name);
        match plane["spec"]["operatorAccess"]["apiURL"].as_str() {
            Some(url) => self.at(url),
            None => self.at(&format!("http://{named}.{}.svc.cluster.local", self.namespace)),
        }
    }

    fn at(&self, url: &str) -> Option<SimView> {
        let authority = url.split("://").nth(1)?.split('/').next()?;
        let host = authority.split(':').next()?;
        let address = self.hosts.get(host).copied().or_else(|| authority.parse().ok())?;
        SimView::at(address)
    }

    /// Whether the Deployment of an object is rolled out with the image and replicas of its spec.
    fn rolled_out(&self, object: &Value) -> Judgement {
        let uid = &object["metadata"]["uid"];
        let owned = |found: &&Value| found["metadata"]["ownerReferences"][0]["uid"] == *uid;
        let Some(deployment) = self.deployments.values().find(owned) else {
            return Judgement::Fails("there is no Deployment".to_owned());
        };
        let (spec, status) = (&deployment["spec"], &deployment["status"]);
        let desired = spec["replicas"].as_i64().unwrap_or(1);
        let count = |field: &str| status[field].as_i64().unwrap_or_default();
        let current = status["observedGeneration"].as_i64() >= deployment["metadata"]["generation"].as_i64();
        // Of a pool the condition says whether any pod is ready, as the Go operator does.
        if object["kind"] == "CoderProvisioner" && count("readyReplicas") > 0 {
            return Judgement::Holds;
        }
        if !current || count("updatedReplicas") < desired || count("readyReplicas") < desired {
            return Judgement::Fails(format!("the Deployment is not rolled out: {status}"));
        }
        Judgement::Holds
    }
}

fn condition_of<'a>(object: &'a Value, condition: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == condition)
}

fn tags_of(tags: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(tags.clone()).unwrap_or_default()
}
