//! Provisioner keys, as coderd creates, lists and deletes them.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    daemons,
    message::{Asked, Reply},
    monitor,
    state::{Key, RESERVED_KEYS, State, id, random_text},
};

const LONGEST_NAME: usize = 64;
const MATERIAL: usize = 43;
/// How long after its last heartbeat a daemon is listed with its key.
const RECENT: SignedDuration = SignedDuration::from_secs(180);

#[derive(Deserialize)]
struct KeyBody {
    #[serde(default)]
    name: String,
    #[serde(default)]
    tags: Option<BTreeMap<String, String>>,
}

impl State {
    /// Routes below `/organizations/{org}/provisionerkeys`. Checks are in the order of coderd: authentication,
    /// organization, license.
    pub(super) fn keys(&mut self, asked: &Asked, org: &str, rest: &[&str]) -> Result<Reply, Reply> {
        let roles = ["owner", "template-admin", "organization-admin", "organization-template-admin"];
        let allowed = self.authenticate(asked)?.has(&roles);
        let organization = self.organization(org).ok_or_else(Reply::not_found)?.id;
        if !self.entitlements().is_enabled("external_provisioner_daemons") {
            return Err(Reply::not_licensed("External Provisioner Daemons"));
        }
        self.beat();
        match (asked.method.as_str(), rest) {
            ("POST", []) if !allowed => Err(Reply::unmapped_denial()),
            ("POST", []) => self.post_key(asked, &organization),
            ("GET", []) => {
                let shown =
                    |key: &&Key| allowed && key.organization == organization && !is_reserved(&key.name);
                Ok(Reply::json(200, self.keys.iter().filter(shown).map(show).collect()))
            }
            ("GET", ["daemons"]) => Ok(self.get_key_daemons(&organization)),
            ("DELETE", [_]) if !allowed => Err(Reply::not_found()),
            ("DELETE", [name]) => self.delete_key(&organization, name),
            _ => Err(Reply::no_route()),
        }
    }

    fn post_key(&mut self, asked: &Asked, organization: &str) -> Result<Reply, Reply> {
        let body: KeyBody = asked.json()?;
        let invalid = |detail: &str| Reply::error(400, detail).validation("name", detail);
        if body.name.is_empty() {
            return Err(invalid("Name is required"));
        }
        if body.name.len() > LONGEST_NAME {
            return Err(invalid(&format!("Name must be at most {LONGEST_NAME} characters")));
        }
        if is_reserved(&body.name) {
            return Err(invalid(&format!("Name cannot be reserved name '{}'", body.name)));
        }
        let name = body.name.to_lowercase();
        let taken = |key: &Key| key.organization == organization && key.name == name;
        if self.keys.iter().any(taken) {
            let message = format!("Provisioner key with name '{}' already exists in organization", body.name);
            return Err(Reply::error(409, &message));
        }
        let material = self.add_key(organization, &name, body.tags.unwrap_or_default());
        Ok(Reply::json(201, json!({ "key": material })))
    }

    /// Stores a key and returns its material.
    pub(super) fn add_key(
        &mut self,
        organization: &str,
        name: &str,
        tags: BTreeMap<String, String>,
    ) -> String {
        let (material, id, name) = (random_text(MATERIAL), id(), name.to_lowercase());
        self.key_changed(&id, &name, true);
        monitor::issued(&self.deployment_id, monitor::key_name(&material));
        self.keys.push(Key {
            id,
            organization: organization.to_owned(),
            name,
            tags,
            material: material.clone(),
            created_at: self.now(),
        });
        material
    }

    fn get_key_daemons(&self, organization: &str) -> Reply {
        let now = self.now();
        let listed = |key: &Key| {
            let daemons = self.daemons.iter().filter(|daemon| {
                daemon.key_id == key.id
                    && daemon.organization == organization
                    && now.duration_since(daemon.last_seen_at) <= RECENT
            });
            let daemons: Vec<_> = daemons.map(daemons::show_with_key).collect();
            json!({ "key": show(key), "daemons": daemons })
        };
        let mut list: Vec<_> =
            self.keys.iter().filter(|key| key.organization == organization).map(listed).collect();
        // `user-auth` has a row in the default organization only. coderd lists it for the others without one.
        if !self.keys.iter().any(|key| key.organization == organization && key.name == "user-auth") {
            let (name, id) = RESERVED_KEYS[1];
            let key = json!({ "id": id, "created_at": "0001-01-01T00:00:00Z", "organization": organization,
                "name": name, "tags": {} });
            list.push(json!({ "key": key, "daemons": [] }));
        }
        Reply::json(200, list.into())
    }

    /// Identifies a key by its material. Needs neither a session nor a license.
    pub(super) fn get_key_details(&self, asked: &Asked) -> Result<Reply, Reply> {
        let header = asked.header("coder-provisioner-daemon-key");
        let material = header.ok_or_else(|| Reply::error(401, "provisioner daemon key required"))?;
        if material.len() != MATERIAL {
            return Err(Reply::error(400, "provisioner daemon key invalid").detail("must be 43 characters"));
        }
        let key = self.keys.iter().find(|key| key.material == material);
        let key = key.ok_or_else(|| Reply::error(401, "provisioner daemon key invalid"))?;
        Ok(Reply::json(200, show(key)))
    }

    fn delete_key(&mut self, organization: &str, name: &str) -> Result<Reply, Reply> {
        let name = name.to_lowercase();
        let found = self.keys.iter().position(|key| key.organization == organization && key.name == name);
        let at = found.ok_or_else(Reply::not_found)?;
        if is_reserved(&name) {
            let message = format!("Cannot delete reserved '{name}' provisioner key");
            return Err(Reply::error(400, &message));
        }
        self.remove_key(at);
        Ok(Reply::empty(204))
    }

    /// Removes a key and the daemons that connected with it.
    pub(super) fn remove_key(&mut self, at: usize) {
        let key = self.keys.remove(at);
        self.key_changed(&key.id, &key.name, false);
        self.daemons.retain(|daemon| daemon.key_id != key.id);
        self.cut_sessions_of(&key.id);
    }
}

fn is_reserved(name: &str) -> bool {
    RESERVED_KEYS.iter().any(|(reserved, _)| name.eq_ignore_ascii_case(reserved))
}

fn show(key: &Key) -> Value {
    json!({
        "id": key.id, "created_at": key.created_at.to_string(), "organization": key.organization,
        "name": key.name, "tags": key.tags,
    })
}
