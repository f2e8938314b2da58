//! The side of the test: what administrators, daemons and accidents do to a deployment.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::{
    CoderSim, Mode,
    daemons::normal_tags,
    monitor,
    state::{Daemon, Job, Key, NIL, RESERVED_KEYS, State, Token, id},
};

const ADMIN: &str = "admin";
/// E-mail address of the user of [`CoderSim::owner_token`].
const ADMIN_EMAIL: &str = "admin@example.com";
const WEEK: SignedDuration = SignedDuration::from_hours(168);

/// A license in the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LicenseSeen {
    /// Number of the license.
    pub id: i32,
    /// The `jti` if it is a UUID, else random.
    pub uuid: String,
    /// When the license was added.
    pub uploaded_at: Timestamp,
}

/// A provisioner key in the simulator. Reserved keys are left out.
#[derive(Clone, Debug)]
pub struct KeySeen {
    /// UUID of the key.
    pub id: String,
    /// UUID of the organization.
    pub organization: String,
    /// Name in lower case.
    pub name: String,
    /// Tags as given at the creation.
    pub tags: BTreeMap<String, String>,
    /// The secret that daemons connect with.
    pub material: SecretString,
}

/// A workspace proxy in the simulator.
#[derive(Clone, Debug)]
pub struct ProxySeen {
    /// UUID of the proxy.
    pub id: String,
    /// Name of the proxy.
    pub name: String,
    /// Name for people.
    pub display_name: String,
    /// Path or URL of the icon.
    pub icon: String,
    /// Whether the proxy was deleted.
    pub deleted: bool,
    /// Health: `ok`, `unreachable`, `unhealthy` or `unregistered`.
    pub status: String,
    /// URL that the proxy registered. Empty before.
    pub url: String,
    /// Version that the proxy registered.
    pub version: String,
    /// The token that the proxy registers with.
    pub token: SecretString,
}

/// A daemon to list, without a connection.
#[derive(Clone, Debug)]
pub struct DaemonSeed {
    /// Name of the daemon.
    pub name: String,
    /// UUID of the key. `None` for a built-in daemon.
    pub key_id: Option<String>,
    /// Time since its last heartbeat.
    pub seen_ago: Duration,
    /// Whether the daemon runs a job.
    pub busy: bool,
}

/// A job to list.
#[derive(Clone, Debug)]
pub struct JobSeed {
    /// `pending`, `running`, ...
    pub status: String,
    /// Tags that a daemon must have.
    pub tags: BTreeMap<String, String>,
    /// Time since the job was queued.
    pub waiting: Duration,
    /// UUID of the daemon that runs the job.
    pub worker_id: Option<String>,
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

impl State {
    pub(super) fn accepts(&self, token: &SecretString) -> bool {
        let Some((id, secret)) = token.expose_secret().split_once('-') else { return false };
        let (hash, now) = (Sha256::digest(secret), self.now());
        let good = |token: &&Token| {
            token.id == id && token.hashed_secret == hash.as_slice() && token.expires_at > now
        };
        let user = self.tokens.iter().find(good).map(|token| &token.user_id);
        user.is_some_and(|user| {
            self.users.iter().any(|found| found.id == *user && found.status != "suspended")
        })
    }

    pub(super) fn shown_keys(&self) -> Vec<KeySeen> {
        let own = self.keys.iter().filter(|key| !key.material.is_empty());
        let seen = own.map(|key| KeySeen {
            id: key.id.clone(),
            organization: key.organization.clone(),
            name: key.name.clone(),
            tags: key.tags.clone(),
            material: key.material.as_str().into(),
        });
        seen.collect()
    }

    pub(super) fn shown_proxies(&self) -> Vec<ProxySeen> {
        let seen = self.proxies.iter().map(|proxy| ProxySeen {
            id: proxy.id.clone(),
            name: proxy.name.clone(),
            display_name: proxy.display_name.clone(),
            icon: proxy.icon.clone(),
            deleted: proxy.deleted,
            status: proxy.status.clone(),
            url: proxy.url.clone(),
            version: proxy.version.clone(),
            token: format!("{}:{}", proxy.id, proxy.secret).into(),
        });
        seen.collect()
    }
}

impl CoderSim {
    /// Looks at the state, or changes it as somebody else than a client does. What was held until then counts as held.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.shared.state.lock();
        monitor::remember_state(&self.shared, &state);
        change(&mut state)
    }

    /// A token of an owner, without a request in the log. Creates the first user if there is none.
    pub fn owner_token(&self) -> SecretString {
        self.with(|state| {
            let found = state.users.iter().find(|user| user.is_owner()).map(|user| user.id.clone());
            let user = found.unwrap_or_else(|| state.add_user(ADMIN, ADMIN_EMAIL, &id(), &["owner"]));
            state.add_token(&user, &id(), WEEK, false).1.into()
        })
    }

    /// A token of a new user with these site roles. Without roles, the user is a plain member.
    pub fn token_with_roles(&self, username: &str, roles: &[&str]) -> SecretString {
        self.with(|state| {
            let user = state.add_user(username, &format!("{username}@example.com"), &id(), roles);
            state.add_token(&user, &id(), WEEK, false).1.into()
        })
    }

    /// Suspends or reactivates a user.
    pub fn suspend(&self, username: &str, suspended: bool) {
        self.with(|state| {
            for user in state.users.iter_mut().filter(|user| user.username == username) {
                user.status = if suspended { "suspended" } else { "active" };
            }
        });
    }

    /// Deletes a token, as an administrator does.
    pub fn revoke(&self, token: &SecretString) {
        let id = token.expose_secret().split('-').next().unwrap_or_default().to_owned();
        self.with(|state| state.tokens.retain(|token| token.id != id));
    }

    /// Whether the simulator would accept the token now.
    pub fn accepts(&self, token: &SecretString) -> bool {
        self.with(|state| state.accepts(token))
    }

    /// Names of all tokens, without the sessions of passwords.
    pub fn token_names(&self) -> Vec<String> {
        self.with(|state| {
            let tokens = state.tokens.iter().filter(|token| !token.session);
            tokens.map(|token| token.name.clone()).collect()
        })
    }

    /// The names of all users.
    pub fn usernames(&self) -> Vec<String> {
        self.with(|state| state.users.iter().map(|user| user.username.clone()).collect())
    }

    /// Installs a license without a request in the log. Returns its number.
    pub fn add_license(&self, license: &SecretString) -> i32 {
        self.with(|state| state.install(license.expose_secret()))
    }

    /// Deletes a license.
    pub fn delete_license(&self, number: i32) {
        self.with(|state| state.licenses.retain(|license| license.id != number));
    }

    /// All licenses.
    pub fn licenses(&self) -> Vec<LicenseSeen> {
        self.with(|state| {
            let seen = state.licenses.iter().map(|license| LicenseSeen {
                id: license.id,
                uuid: license.uuid.clone(),
                uploaded_at: license.uploaded_at,
            });
            seen.collect()
        })
    }

    /// Creates a provisioner key in the default organization. Returns its material.
    pub fn add_key(&self, name: &str, tags: &BTreeMap<String, String>) -> SecretString {
        self.with(|state| {
            let organization = state.default_organization().id;
            state.add_key(&organization, name, tags.clone()).into()
        })
    }

    /// Restores a key with its UUID and material, as a restored database does.
    pub fn restore_key(&self, key: &KeySeen) {
        self.with(|state| {
            let KeySeen { id, organization, name, tags, material } = key.clone();
            let (material, created_at) = (material.expose_secret().to_owned(), state.now());
            state.keys.push(Key { id, organization, name, tags, material, created_at });
            state.issue_all();
        });
    }

    /// Changes the UUID of the default organization and of everything in it.
    pub fn set_default_organization(&self, id: &str) {
        self.with(|state| {
            let old = state.default_organization().id;
            for organization in state.organizations.iter_mut().filter(|found| found.id == old) {
                id.clone_into(&mut organization.id);
            }
            for key in state.keys.iter_mut().filter(|key| key.organization == old) {
                id.clone_into(&mut key.organization);
            }
        });
    }

    /// Accepts a token of an owner, as a restored database does.
    pub fn restore_token(&self, token: &SecretString) {
        self.owner_token();
        self.with(|state| {
            let Some((id, secret)) = token.expose_secret().split_once('-') else { return };
            let hash = Sha256::digest(secret).to_vec();
            if let Some(last) = state.tokens.last_mut() {
                (last.id, last.hashed_secret) = (id.to_owned(), hash);
            }
            state.issue_all();
        });
    }

    /// Deletes all keys with this name.
    pub fn delete_key(&self, name: &str) {
        self.with(|state| {
            while let Some(at) =
                state.keys.iter().position(|key| key.name == name && !key.material.is_empty())
            {
                state.remove_key(at);
            }
        });
    }

    /// All provisioner keys without the reserved ones.
    pub fn keys(&self) -> Vec<KeySeen> {
        self.with(|state| state.shown_keys())
    }

    /// Replaces the daemons of the default organization. Returns their UUIDs.
    pub fn set_daemons(&self, daemons: &[DaemonSeed]) -> Vec<String> {
        self.with(|state| {
            let (now, organization) = (state.now(), state.default_organization().id);
            let made = daemons.iter().map(|seed| {
                let key = state.keys.iter().find(|key| Some(&key.id) == seed.key_id.as_ref());
                let seen = now - signed(seed.seen_ago);
                Daemon {
                    id: id(),
                    organization: key.map_or_else(|| organization.clone(), |key| key.organization.clone()),
                    key_id: seed.key_id.clone().unwrap_or_else(|| RESERVED_KEYS[0].1.to_owned()),
                    name: seed.name.clone(),
                    version: state.version.clone(),
                    api_version: state.provisioner_api_text(),
                    tags: normal_tags(&key.map(|key| key.tags.clone()).unwrap_or_default()),
                    busy: seed.busy,
                    created_at: seen,
                    last_seen_at: seen,
                }
            });
            state.daemons = made.collect();
            state.daemons.iter().map(|daemon| daemon.id.clone()).collect()
        })
    }

    /// Replaces the jobs of the default organization. Returns their UUIDs.
    pub fn set_jobs(&self, jobs: &[JobSeed]) -> Vec<String> {
        self.with(|state| {
            let (now, organization) = (state.now(), state.default_organization().id);
            let made = jobs.iter().map(|seed| Job {
                id: id(),
                organization: organization.clone(),
                status: seed.status.clone(),
                tags: normal_tags(&seed.tags),
                created_at: now - signed(seed.waiting),
                worker_id: seed.worker_id.clone(),
            });
            state.jobs = made.collect();
            state.jobs.iter().map(|job| job.id.clone()).collect()
        })
    }

    /// All proxies, including deleted ones.
    pub fn proxies(&self) -> Vec<ProxySeen> {
        self.with(|state| state.shown_proxies())
    }

    /// Sets the health of a proxy: `ok`, `unreachable`, `unhealthy` or `unregistered`.
    pub fn set_proxy_status(&self, name: &str, status: &str, version: &str) {
        self.with(|state| {
            for proxy in state.proxies.iter_mut().filter(|proxy| proxy.name == name) {
                (proxy.status, proxy.version) = (status.to_owned(), version.to_owned());
            }
        });
    }

    /// Adds an organization. Returns its UUID.
    pub fn add_organization(&self, name: &str) -> String {
        self.with(|state| {
            let mut made = state.default_organization();
            made.id = id();
            (made.name, made.display_name, made.is_default) = (name.to_owned(), name.to_owned(), false);
            state.organizations.push(made.clone());
            made.id
        })
    }

    /// UUID of the default organization.
    pub fn default_organization(&self) -> String {
        self.with(|state| state.default_organization().id)
    }

    /// UUID of the deployment.
    pub fn deployment_id(&self) -> String {
        self.with(|state| state.deployment_id.clone())
    }

    /// Changes the identity of the deployment and keeps its content.
    pub fn set_deployment_id(&self, deployment_id: &str) {
        self.with(|state| deployment_id.clone_into(&mut state.deployment_id));
        monitor::identity_changed(&self.shared);
    }

    /// Changes the version, which has a leading `v`.
    pub fn set_version(&self, version: &str) {
        self.with(|state| version.clone_into(&mut state.version));
    }

    /// The newest protocol version of daemons that is accepted. A newer daemon is refused.
    pub fn set_provisioner_api(&self, major: u32, minor: u32) {
        self.with(|state| state.provisioner_api = (major, minor));
    }

    /// Switches the build, so that routes appear or disappear. Licenses stay.
    pub fn set_mode(&self, mode: Mode) {
        self.with(|state| state.mode = mode);
    }

    /// Requests a minute for each caller and path. Defaults to 512; `None` is unlimited.
    pub fn set_rate_limit(&self, limit: Option<u32>) {
        self.with(|state| state.rate_limit = limit);
    }

    /// Moves the clock of the deployment forward, so that tokens and licenses expire.
    pub fn advance(&self, time: Duration) {
        self.with(|state| state.ahead += signed(time));
    }

    /// Simulates a lost database: an empty deployment with another identity, without users and licenses.
    pub fn reset_backend(&self) {
        self.with(|state| {
            let (mode, version, rate_limit) = (state.mode, state.version.clone(), state.rate_limit);
            *state = State::new(if mode == Mode::Agpl { mode } else { Mode::Unlicensed });
            (state.mode, state.version, state.rate_limit) = (mode, version, rate_limit);
        });
        monitor::identity_changed(&self.shared);
    }

    /// The UUID that stands for the default organization in requests.
    pub fn nil_uuid() -> &'static str {
        NIL
    }
}
