//! The state of a deployment: what the database of coderd would hold.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use uuid::Uuid;

use super::{
    Mode,
    licenses::LicenseBuilder,
    sessions::{KeyChange, Line},
};
use crate::pki;

pub(super) const NIL: &str = "00000000-0000-0000-0000-000000000000";
/// Keys for other ways to connect, present in the default organization from the start.
pub(super) const RESERVED_KEYS: [(&str, &str); 3] = [
    ("built-in", "00000000-0000-0000-0000-000000000001"),
    ("user-auth", "00000000-0000-0000-0000-000000000002"),
    ("psk", "00000000-0000-0000-0000-000000000003"),
];

pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) version: String,
    /// The newest protocol version of daemons that is accepted.
    pub(super) provisioner_api: (u32, u32),
    pub(super) deployment_id: String,
    /// How far the clock of the deployment is ahead of this host.
    pub(super) ahead: SignedDuration,
    /// Requests a minute for each caller and path. `None` is unlimited.
    pub(super) rate_limit: Option<u32>,
    pub(super) windows: HashMap<(String, String), (Timestamp, u32)>,
    pub(super) users: Vec<User>,
    pub(super) tokens: Vec<Token>,
    pub(super) organizations: Vec<Organization>,
    pub(super) licenses: Vec<License>,
    pub(super) next_license: i32,
    pub(super) refreshed_at: Timestamp,
    pub(super) keys: Vec<Key>,
    /// Creations and deletions of keys so far.
    pub(super) key_changes: Vec<KeyChange>,
    pub(super) daemons: Vec<Daemon>,
    /// Connections of daemons so far.
    pub(super) lines: Vec<Line>,
    pub(super) jobs: Vec<Job>,
    pub(super) proxies: Vec<Proxy>,
    /// Replicas of all proxies.
    pub(super) replicas: Vec<Replica>,
    /// Keys that proxies sign and mesh with.
    pub(super) proxy_secrets: ProxySecrets,
}

pub(super) struct User {
    pub(super) id: String,
    pub(super) username: String,
    pub(super) email: String,
    pub(super) password: String,
    pub(super) status: &'static str,
    pub(super) roles: Vec<String>,
    pub(super) organizations: Vec<String>,
    pub(super) service_account: bool,
    /// Created in the database, and hidden from people.
    pub(super) system: bool,
    /// Whether the user comes from the database.
    pub(super) mirrored: bool,
    pub(super) created_at: Timestamp,
}

impl User {
    pub(super) fn is_owner(&self) -> bool {
        self.has(&["owner"])
    }

    pub(super) fn has(&self, roles: &[&str]) -> bool {
        self.roles.iter().any(|role| roles.contains(&role.as_str()))
    }
}

pub(super) struct Token {
    pub(super) id: String,
    /// SHA-256 of the secret half.
    pub(super) hashed_secret: Vec<u8>,
    pub(super) user_id: String,
    pub(super) name: String,
    /// Whether the token comes from the database.
    pub(super) mirrored: bool,
    /// Whether this is the session of a password, whose expiry slides. That of a token does not.
    pub(super) session: bool,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

#[derive(Clone)]
pub(super) struct Organization {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) display_name: String,
    pub(super) is_default: bool,
    pub(super) created_at: Timestamp,
}

pub(super) struct License {
    pub(super) id: i32,
    pub(super) uuid: String,
    pub(super) jwt: String,
    pub(super) claims: Value,
    pub(super) uploaded_at: Timestamp,
}

#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: String,
    pub(super) organization: String,
    pub(super) name: String,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) material: String,
    pub(super) created_at: Timestamp,
}

pub(super) struct Daemon {
    pub(super) id: String,
    pub(super) organization: String,
    pub(super) key_id: String,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) api_version: String,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) busy: bool,
    pub(super) created_at: Timestamp,
    pub(super) last_seen_at: Timestamp,
}

pub(super) struct Job {
    pub(super) id: String,
    pub(super) organization: String,
    pub(super) status: String,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) created_at: Timestamp,
    pub(super) worker_id: Option<String>,
}

pub(super) struct Proxy {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) display_name: String,
    pub(super) icon: String,
    pub(super) secret: String,
    pub(super) deleted: bool,
    pub(super) status: String,
    pub(super) version: String,
    /// URL that the proxy registered. Empty before.
    pub(super) url: String,
    pub(super) wildcard_hostname: String,
    pub(super) derp_enabled: bool,
    pub(super) derp_only: bool,
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) checked_at: Timestamp,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

impl Proxy {
    /// A proxy without a name that has not run yet.
    pub(super) fn unregistered(id: String, secret: String, now: Timestamp) -> Self {
        Self {
            id,
            name: String::new(),
            display_name: String::new(),
            icon: String::new(),
            secret,
            deleted: false,
            status: "unregistered".to_owned(),
            version: String::new(),
            url: String::new(),
            wildcard_hostname: String::new(),
            derp_enabled: true,
            derp_only: false,
            errors: Vec::new(),
            warnings: Vec::new(),
            checked_at: now,
            created_at: now,
            updated_at: now,
        }
    }
}

pub(super) struct Replica {
    pub(super) id: String,
    pub(super) stopped: bool,
}

pub(super) struct ProxySecrets {
    pub(super) mesh: String,
    pub(super) api_key: String,
    pub(super) token: String,
}

impl State {
    pub(super) fn new(mode: Mode) -> Self {
        let now = Timestamp::now();
        let mut state = Self {
            mode,
            version: "v2.36.1".to_owned(),
            provisioner_api: (1, 18),
            deployment_id: id(),
            ahead: SignedDuration::ZERO,
            rate_limit: Some(512),
            windows: HashMap::new(),
            users: Vec::new(),
            tokens: Vec::new(),
            organizations: vec![Organization {
                id: id(),
                name: "coder".to_owned(),
                display_name: "Coder".to_owned(),
                is_default: true,
                created_at: now,
            }],
            licenses: Vec::new(),
            next_license: 1,
            refreshed_at: now,
            keys: Vec::new(),
            key_changes: Vec::new(),
            daemons: Vec::new(),
            lines: Vec::new(),
            jobs: Vec::new(),
            proxies: Vec::new(),
            replicas: Vec::new(),
            proxy_secrets: ProxySecrets {
                mesh: random_hex::<32>(),
                api_key: random_hex::<32>(),
                token: random_hex::<64>(),
            },
        };
        let organization = state.default_organization().id.clone();
        for (name, id) in RESERVED_KEYS {
            state.keys.push(Key {
                id: id.to_owned(),
                organization: organization.clone(),
                name: name.to_owned(),
                tags: BTreeMap::new(),
                material: String::new(),
                created_at: now,
            });
        }
        if mode == Mode::Licensed {
            state.install(&LicenseBuilder::default().text());
        }
        state
    }

    /// The time of the deployment.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::now() + self.ahead
    }

    pub(super) fn default_organization(&self) -> Organization {
        let found = self.organizations.iter().find(|organization| organization.is_default);
        found.cloned().unwrap_or_else(|| Organization {
            id: NIL.to_owned(),
            name: String::new(),
            display_name: String::new(),
            is_default: true,
            created_at: self.now(),
        })
    }

    /// Finds an organization by UUID, name, `default`, or the nil UUID.
    pub(super) fn organization(&self, text: &str) -> Option<Organization> {
        if text == "default" || text == NIL {
            return Some(self.default_organization());
        }
        self.organizations.iter().find(|found| found.id == text || found.name == text).cloned()
    }
}

pub(super) fn id() -> String {
    Uuid::new_v4().to_string()
}

/// Random bytes in hexadecimal digits.
fn random_hex<const N: usize>() -> String {
    let bytes = pki::random::<N>().unwrap_or([0; N]);
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Random letters and digits.
pub(super) fn random_text(length: usize) -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let mut text = String::new();
    while text.len() < length {
        let bytes = pki::random::<32>().unwrap_or_default();
        text.extend(
            bytes
                .iter()
                .filter_map(|byte| LETTERS.get(usize::from(*byte) % LETTERS.len()))
                .map(|b| char::from(*b)),
        );
    }
    text.truncate(length);
    text
}
