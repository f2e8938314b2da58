//! Judges every request of a simulator: does the credential in it belong to the deployment that it was sent to?
//!
//! All simulators of a process share one table of who issued which token, key and proxy token. A request that carries a
//! credential of another deployment, or a license under a token that this deployment has not accepted yet, is a
//! violation, and the test fails when its simulator is dropped. A credential that no simulator issued is not judged:
//! tests make such texts up. A first contact with another deployment is declared with
//! [`CoderSim::expect_foreign_credentials`].
//!
//! [`SimView`] is how the monitor of conditions, which knows a server by its address only, reads what it holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::OpenOptions,
    io::Write as _,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

use super::{
    CoderSim, KeySeen, ProxySeen, Shared,
    auth::{credential, session_token},
    log::fingerprint,
    message::Asked,
    state::State,
};

/// Deployments that accept a credential, by the name of the credential.
static ISSUERS: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::new(BTreeMap::new());
/// Simulators by the address that they listen on.
static SIMULATORS: Mutex<BTreeMap<SocketAddr, Weak<Shared>>> = Mutex::new(BTreeMap::new());
/// An exchange that identified the server before its identity changed may still go on for this long.
const EXCHANGE: Duration = Duration::from_secs(5);

/// What a monitor judged, and what it found. Printed by the test command, see [`report`].
pub const REPORT_FILE: &str = "CODER_K8S_MONITOR_REPORT";

/// Adds to the report of the test command, if there is one.
pub fn report(what: &str, judged: u64, violations: usize) {
    let Some(file) = std::env::var_os(REPORT_FILE) else { return };
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file) {
        let _ = file.write_all(format!("{what} {judged} {violations}\n").as_bytes());
    }
}

/// What the monitor of one simulator has seen.
#[derive(Default)]
pub(super) struct Monitor {
    judged: u64,
    violations: Vec<String>,
    /// Credentials that a request of this deployment was granted with.
    accepted: BTreeSet<(String, String)>,
    identity_changed: Option<Instant>,
    /// What the server held at any request: a claim about it was true then.
    ever: Held,
    expects_foreign: bool,
}

/// What a server holds that conditions speak of.
#[derive(Clone, Default)]
struct Held {
    licenses: BTreeSet<String>,
    keys: Vec<KeySeen>,
    proxies: Vec<ProxySeen>,
    features: BTreeSet<&'static str>,
}

impl Held {
    fn of(state: &State) -> Self {
        let granted = |feature: &&str| state.entitlements().is_enabled(feature);
        Self {
            licenses: state.licenses.iter().map(|license| license.jwt.clone()).collect(),
            keys: state.shown_keys(),
            proxies: state.shown_proxies().into_iter().filter(|proxy| !proxy.deleted).collect(),
            features: ["external_provisioner_daemons"].into_iter().filter(granted).collect(),
        }
    }

    fn extend(&mut self, now: Self) {
        self.licenses.extend(now.licenses);
        self.features.extend(now.features);
        let new = |key: &KeySeen| !self.keys.iter().any(|known| known.id == key.id && known.tags == key.tags);
        let keys: Vec<_> = now.keys.into_iter().filter(new).collect();
        self.keys.extend(keys);
        let token = |proxy: &ProxySeen| proxy.token.expose_secret().to_owned();
        let known: BTreeSet<_> =
            self.proxies.iter().map(|proxy| (token(proxy), proxy.name.clone())).collect();
        self.proxies.extend(now.proxies.into_iter().filter(|p| !known.contains(&(token(p), p.name.clone()))));
    }
}

/// Remembers what the server holds now.
pub(super) fn remember(shared: &Shared) {
    remember_state(shared, &shared.state.lock());
}

/// Remembers what the server holds in this state.
pub(super) fn remember_state(shared: &Shared, state: &State) {
    shared.monitor.lock().ever.extend(Held::of(state));
}

/// The name of a token: its id. The secret half is known to its holder alone.
pub(super) fn token_name(id: &str) -> String {
    format!("token {id}")
}

/// The name of a provisioner key.
pub(super) fn key_name(material: &str) -> String {
    format!("provisioner key {}", fingerprint(material))
}

/// The name of the token of a proxy.
pub(super) fn proxy_name(id: &str) -> String {
    format!("proxy token {id}")
}

/// Records that a deployment issued a credential, or accepts it from now on.
pub(super) fn issued(deployment: &str, credential: String) {
    ISSUERS.lock().entry(credential).or_default().insert(deployment.to_owned());
}

impl State {
    /// Records everything that this deployment accepts now.
    pub(super) fn issue_all(&self) {
        let tokens = self.tokens.iter().map(|token| token_name(&token.id));
        let keys = self.keys.iter().map(|key| key_name(&key.material));
        let proxies = self.proxies.iter().map(|proxy| proxy_name(&proxy.id));
        for name in tokens.chain(keys).chain(proxies) {
            issued(&self.deployment_id, name);
        }
    }
}

fn name_of(asked: &Asked) -> Option<String> {
    let text = credential(asked)?;
    Some(match (session_token(asked), asked.header("coder-provisioner-daemon-key")) {
        (Some(token), _) => token_name(token.split('-').next().unwrap_or_default()),
        (None, Some(key)) => key_name(key),
        (None, None) => proxy_name(text.split(':').next().unwrap_or_default()),
    })
}

/// Judges a request on arrival, before any fault.
pub(super) fn judge(shared: &Shared, asked: &Asked) {
    let Some(name) = name_of(asked) else { return };
    let here = shared.state.lock().deployment_id.clone();
    let issuers = ISSUERS.lock().get(&name).cloned();
    let mut monitor = shared.monitor.lock();
    monitor.judged += 1;
    let what = format!("{} {} carried the {name}", asked.method, asked.path);
    let changed_just_now = monitor.identity_changed.is_some_and(|at| at.elapsed() < EXCHANGE);
    if let Some(issuers) = issuers.filter(|issuers| !issuers.contains(&here) && !changed_just_now) {
        monitor.violations.push(format!("{what} of {issuers:?} to the deployment {here}"));
    }
    let sends_license = asked.method == "POST" && asked.path == "/api/v2/licenses";
    if sends_license && !monitor.accepted.contains(&(here, name)) {
        monitor.violations.push(format!("{what} with a license before this deployment had accepted it"));
    }
}

/// Records that a request was granted.
pub(super) fn granted(shared: &Shared, asked: &Asked, status: u16) {
    if let Some(name) = name_of(asked).filter(|_| (200..300).contains(&status)) {
        let here = shared.state.lock().deployment_id.clone();
        shared.monitor.lock().accepted.insert((here, name));
    }
}

/// Records that the server has another identity from now on.
pub(super) fn identity_changed(shared: &Shared) {
    shared.monitor.lock().identity_changed = Some(Instant::now());
}

/// Makes a simulator known by its address.
pub(super) fn started(address: SocketAddr, shared: &Arc<Shared>) {
    SIMULATORS.lock().insert(address, Arc::downgrade(shared));
}

impl CoderSim {
    /// Declares that what the server holds belongs to its new identity from now on, as after a person has confirmed it.
    pub fn accept_held_credentials(&self) {
        self.shared.state.lock().issue_all();
    }

    /// Says that a proxy in front of this simulator listens on an address: the monitor of conditions finds it there.
    pub fn also_at(&self, address: SocketAddr) {
        SIMULATORS.lock().insert(address, Arc::downgrade(&self.shared));
    }

    /// Declares that the test lets a credential of another deployment reach this one.
    pub fn expect_foreign_credentials(&self) {
        self.shared.monitor.lock().expects_foreign = true;
    }
}

impl Drop for CoderSim {
    /// Fails the test whose requests carried a credential to the wrong deployment.
    fn drop(&mut self) {
        let Monitor { judged, violations, expects_foreign, .. } =
            std::mem::take(&mut *self.shared.monitor.lock());
        let found = if expects_foreign { 0 } else { violations.len() };
        report("requests", judged, found);
        assert!(
            found == 0 || std::thread::panicking(),
            "credentials went astray:\n{}",
            violations.join("\n")
        );
    }
}

/// When a claim must have been true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Now.
    Now,
    /// At any request so far.
    Ever,
}

/// What a simulated server holds, for who knows its address only.
pub struct SimView(Arc<Shared>);

impl SimView {
    /// The simulator that listens on this address, if there is one in this process.
    pub fn at(address: SocketAddr) -> Option<Self> {
        SIMULATORS.lock().get(&address).and_then(Weak::upgrade).map(Self)
    }

    /// Whether every call is answered as coderd would: the server listens and no fault is injected.
    pub fn is_healthy(&self) -> bool {
        self.0.listens() && self.0.rules.lock().is_empty()
    }

    /// UUID of the deployment.
    pub fn deployment_id(&self) -> String {
        self.0.state.lock().deployment_id.clone()
    }

    fn held(&self, when: When) -> Held {
        let mut held = Held::of(&self.0.state.lock());
        if when == When::Ever {
            held.extend(self.0.monitor.lock().ever.clone());
        }
        held
    }

    /// Whether a license is installed.
    pub fn holds_license(&self, license: &str, when: When) -> bool {
        self.held(when).licenses.contains(license)
    }

    /// Whether a token is accepted.
    pub fn accepts(&self, token: &SecretString, when: When) -> bool {
        let name = token_name(token.expose_secret().split('-').next().unwrap_or_default());
        let was_accepted = || self.0.monitor.lock().accepted.iter().any(|(_, accepted)| *accepted == name);
        self.0.state.lock().accepts(token) || (when == When::Ever && was_accepted())
    }

    /// Whether the license covers a feature.
    pub fn entitles(&self, feature: &str, when: When) -> bool {
        self.held(when).features.contains(feature)
    }

    /// Whether a provisioner key has this material and these tags. `scope` and `owner` mean nothing on a key.
    pub fn has_key(&self, material: &SecretString, tags: &BTreeMap<String, String>, when: When) -> bool {
        let counts = |(name, _): &(&String, &String)| !matches!(name.as_str(), "scope" | "owner");
        let is_it = |key: &KeySeen| {
            key.material.expose_secret() == material.expose_secret()
                && key.tags.iter().filter(counts).eq(tags.iter().filter(counts))
        };
        self.held(when).keys.iter().any(is_it)
    }

    /// Whether a proxy of this name is registered with this token.
    pub fn has_proxy(&self, token: &SecretString, name: &str, when: When) -> bool {
        let is_it = |proxy: &ProxySeen| {
            proxy.token.expose_secret() == token.expose_secret() && proxy.name.eq_ignore_ascii_case(name)
        };
        self.held(when).proxies.iter().any(is_it)
    }
}
