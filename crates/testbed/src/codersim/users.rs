//! Users, sessions, tokens and organizations, as in coderd.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    message::{Asked, Reply},
    monitor,
    rules::{check_password, email, fields, name, required},
    state::{Organization, State, Token, User, id, random_text},
};

const SESSION: SignedDuration = SignedDuration::from_hours(24);
const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_hours(168);
const OWNER_LIFETIME: SignedDuration = SignedDuration::from_hours(168);
/// A hundred years.
const LONGEST_LIFETIME: SignedDuration = SignedDuration::from_hours(876_600);

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserBody {
    email: String,
    username: String,
    password: String,
    login_type: String,
    user_status: String,
    organization_ids: Option<Vec<String>>,
    service_account: bool,
    roles: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenBody {
    lifetime: i64,
    token_name: String,
    scopes: Option<Vec<String>>,
}

impl State {
    /// Whether there is a user other than system users.
    fn has_people(&self) -> bool {
        self.users.iter().any(|user| !user.system)
    }

    pub(super) fn get_first_user(&self) -> Reply {
        if !self.has_people() {
            return Reply::error(404, "The initial user has not been created!");
        }
        Reply::error(200, "The initial user has already been created!")
    }

    pub(super) fn post_first_user(&mut self, asked: &Asked) -> Result<Reply, Reply> {
        let body: UserBody = asked.json()?;
        fields(&[
            ("email", required(&body.email).or_else(|| email(&body.email))),
            ("username", required(&body.username).or_else(|| name(&body.username))),
            ("password", required(&body.password)),
        ])?;
        if self.has_people() {
            return Err(Reply::error(409, "The initial user has already been created."));
        }
        check_password(&body.password)?;
        let organization = self.default_organization().id;
        let user = self.add_user(&body.username, &body.email, &body.password, &["owner"]);
        Ok(Reply::json(201, json!({ "user_id": user, "organization_id": organization })))
    }

    pub(super) fn post_login(&mut self, asked: &Asked) -> Result<Reply, Reply> {
        let body: UserBody = asked.json()?;
        fields(&[
            ("email", required(&body.email).or_else(|| email(&body.email))),
            ("password", required(&body.password)),
        ])?;
        let found = self.users.iter().find(|user| {
            !user.service_account
                && user.email.eq_ignore_ascii_case(&body.email)
                && user.password == body.password
        });
        let user = found.ok_or_else(|| Reply::error(401, "Incorrect email or password."))?;
        if user.status == "suspended" {
            return Err(Reply::error(401, "Your account is suspended. Contact an admin to reactivate it."));
        }
        let user = user.id.clone();
        let (_, session) = self.add_token(&user, &random_text(8), SESSION, true);
        let cookie = format!("coder_session_token={session}; Path=/; HttpOnly; SameSite=Lax");
        Ok(Reply::json(201, json!({ "session_token": session })).header("Set-Cookie", &cookie))
    }

    pub(super) fn post_user(&mut self, asked: &Asked) -> Result<Reply, Reply> {
        let allowed = self.authenticate(asked)?.has(&["owner", "user-admin"]);
        let body: UserBody = asked.json()?;
        let address = match body.email.as_str() {
            "" if body.service_account => None,
            "" => Some(("required_unless", "")),
            text => email(text),
        };
        fields(&[
            ("email", address),
            ("username", required(&body.username).or_else(|| name(&body.username))),
        ])?;
        if !allowed {
            return Err(Reply::error(403, "You are not authorized to create users."));
        }
        if body.service_account {
            for (set, refusal) in [
                (
                    !matches!(body.login_type.as_str(), "" | "none"),
                    "Service accounts must use login type 'none'.",
                ),
                (!body.password.is_empty(), "Password cannot be set for service accounts."),
                (!body.email.is_empty(), "Email cannot be set for service accounts."),
            ] {
                if set {
                    return Err(Reply::error(400, refusal));
                }
            }
            if !self.entitlements().is_enabled("service_accounts") {
                return Err(Reply::not_licensed("Service Accounts"));
            }
        } else if body.login_type == "none" {
            return Err(Reply::error(400, "Login type 'none' requires a service account."));
        } else {
            check_password(&body.password)?;
        }
        let organizations = body.organization_ids.unwrap_or_default();
        if organizations.is_empty() {
            let message = "No organization specified to place the user as a member of. It is required to specify \
                at least one organization id to place the user in.";
            return Err(Reply::error(400, message)
                .detail("required at least 1 value for the array 'organization_ids'")
                .validation("organization_ids", "Missing values, this cannot be empty"));
        }
        if let Some(unknown) = organizations.iter().find(|text| self.organization(text).is_none()) {
            let message = format!("Organization does not exist with the provided id {unknown:?}.");
            return Err(Reply::error(404, &message));
        }
        let taken = |user: &User| {
            user.username.eq_ignore_ascii_case(&body.username)
                || !body.email.is_empty() && user.email.eq_ignore_ascii_case(&body.email)
        };
        if self.users.iter().any(taken) {
            return Err(Reply::error(409, "User already exists."));
        }
        let roles = body.roles.unwrap_or_default();
        let roles: Vec<_> = roles.iter().map(String::as_str).collect();
        let user = self.add_user(&body.username, &body.email, &body.password, &roles);
        if let Some(user) = self.users.iter_mut().find(|found| found.id == user) {
            user.service_account = body.service_account;
            user.status = if body.user_status == "active" { "active" } else { "dormant" };
            return Ok(Reply::json(201, show(user)));
        }
        Err(Reply::not_found())
    }

    pub(super) fn get_user(&mut self, asked: &Asked, user: &str) -> Result<Reply, Reply> {
        let user = self.user(asked, user)?;
        Ok(Reply::json(200, show(user)))
    }

    pub(super) fn post_token(&mut self, asked: &Asked, user: &str) -> Result<Reply, Reply> {
        let user = self.user(asked, user)?;
        let (user_id, owner) = (user.id.clone(), user.is_owner());
        if user.system {
            return Err(Reply::forbidden());
        }
        let body: TokenBody = asked.json()?;
        let lifetime = SignedDuration::from_nanos(body.lifetime);
        let longest = if owner { OWNER_LIFETIME } else { LONGEST_LIFETIME };
        let unfit = if lifetime.is_negative() {
            Some("lifetime must be positive number greater than 0".to_owned())
        } else {
            (lifetime > longest).then(|| format!("lifetime must be less than {}h0m0s", longest.as_hours()))
        };
        if let Some(why) = unfit {
            return Err(Reply::error(400, "Failed to validate create API key request.").detail(&why));
        }
        let scopes = body.scopes.unwrap_or_default();
        if let Some(scope) =
            scopes.iter().find(|scope| matches!(scope.as_str(), "all" | "application_connect"))
        {
            return Err(Reply::error(500, "Failed to create API key.")
                .detail(&format!("generate API key: invalid API key scope: {scope:?}")));
        }
        if let Some(scope) = scopes.iter().find(|scope| !scope.starts_with("coder:")) {
            return Err(Reply::error(400, "Failed to create API key.")
                .detail(&format!("invalid or unsupported API key scope: {scope:?}")));
        }
        let taken =
            |token: &&Token| !token.session && token.user_id == user_id && token.name == body.token_name;
        if !body.token_name.is_empty() && self.tokens.iter().any(|token| taken(&token)) {
            let message = format!("A token with name {:?} already exists.", body.token_name);
            return Err(Reply::error(409, &message)
                .validation("name", "This value is already in use and should be unique."));
        }
        let name = if body.token_name.is_empty() { random_text(12) } else { body.token_name };
        let lifetime = if lifetime.is_zero() { DEFAULT_LIFETIME } else { lifetime };
        let (_, key) = self.add_token(&user_id, &name, lifetime, false);
        Ok(Reply::json(201, json!({ "key": key })))
    }

    pub(super) fn get_tokens(&mut self, asked: &Asked, user: &str) -> Result<Reply, Reply> {
        let user = self.user(asked, user)?;
        let (user_id, username) = (user.id.clone(), user.username.clone());
        let (now, expired) = (self.now(), asked.param("include_expired") == Some("true"));
        let mine = |token: &&Token| {
            !token.session && token.user_id == user_id && (expired || token.expires_at > now)
        };
        let list: Vec<_> =
            self.tokens.iter().filter(mine).map(|token| show_token(token, &username)).collect();
        // coderd writes an empty list as null on this route.
        Ok(Reply::json(200, if list.is_empty() { Value::Null } else { list.into() }))
    }

    pub(super) fn get_token_config(&mut self, asked: &Asked, user: &str) -> Result<Reply, Reply> {
        let longest = if self.user(asked, user)?.is_owner() { OWNER_LIFETIME } else { LONGEST_LIFETIME };
        let nanos = i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX);
        Ok(Reply::json(200, json!({ "max_token_lifetime": nanos })))
    }

    pub(super) fn delete_token(&mut self, asked: &Asked, user: &str, id: &str) -> Result<Reply, Reply> {
        let user_id = self.user(asked, user)?.id.clone();
        let before = self.tokens.len();
        self.tokens.retain(|token| token.id != id || token.user_id != user_id);
        if self.tokens.len() == before { Err(Reply::not_found()) } else { Ok(Reply::empty(204)) }
    }

    pub(super) fn get_organizations(&mut self, asked: &Asked) -> Result<Reply, Reply> {
        self.authenticate(asked)?;
        let list: Vec<_> = self.organizations.iter().map(show_organization).collect();
        Ok(Reply::json(200, list.into()))
    }

    pub(super) fn get_organization(&mut self, asked: &Asked, text: &str) -> Result<Reply, Reply> {
        self.authenticate(asked)?;
        let found = self.organization(text).ok_or_else(Reply::not_found)?;
        Ok(Reply::json(200, show_organization(&found)))
    }

    /// A user that the caller may read: itself, or anyone for an owner or user-admin.
    fn user(&mut self, asked: &Asked, text: &str) -> Result<&User, Reply> {
        let caller = self.authenticate(asked)?;
        let (caller_id, sees_all) = (caller.id.clone(), caller.has(&["owner", "user-admin"]));
        let is_asked_for = |user: &&User| match text {
            "me" => user.id == caller_id,
            _ => user.id == text || user.username.eq_ignore_ascii_case(text),
        };
        let found = self.users.iter().find(is_asked_for);
        found.filter(|user| sees_all || user.id == caller_id).ok_or_else(Reply::not_found)
    }

    pub(super) fn add_user(&mut self, username: &str, email: &str, password: &str, roles: &[&str]) -> String {
        let (id, created_at) = (id(), self.now());
        self.users.push(User {
            id: id.clone(),
            username: username.to_owned(),
            email: email.to_owned(),
            password: password.to_owned(),
            status: "active",
            roles: roles.iter().map(ToString::to_string).collect(),
            organizations: vec![self.default_organization().id],
            service_account: false,
            system: false,
            mirrored: false,
            created_at,
        });
        id
    }

    /// Returns the public half and the complete new token.
    pub(super) fn add_token(
        &mut self,
        user_id: &str,
        name: &str,
        lifetime: SignedDuration,
        session: bool,
    ) -> (String, String) {
        let (id, secret, now) = (random_text(10), random_text(22), self.now());
        let whole = format!("{id}-{secret}");
        monitor::issued(&self.deployment_id, monitor::token_name(&id));
        self.tokens.push(Token {
            id: id.clone(),
            hashed_secret: Sha256::digest(&secret).to_vec(),
            mirrored: false,
            user_id: user_id.to_owned(),
            name: name.to_owned(),
            session,
            created_at: now,
            expires_at: now.checked_add(lifetime).unwrap_or(Timestamp::MAX),
        });
        (id, whole)
    }
}

fn show(user: &User) -> Value {
    let roles = user.roles.iter().map(|role| json!({ "name": role, "display_name": role }));
    let mut shown = json!({
        "id": user.id, "username": user.username, "email": user.email,
        "created_at": user.created_at.to_string(), "updated_at": user.created_at.to_string(),
        "last_seen_at": user.created_at.to_string(), "status": user.status,
        "login_type": if user.service_account { "none" } else { "password" },
        "organization_ids": user.organizations, "roles": roles.collect::<Vec<_>>(), "has_ai_seat": false,
    });
    if let (true, Some(fields)) = (user.service_account, shown.as_object_mut()) {
        fields.insert("is_service_account".to_owned(), true.into());
    }
    shown
}

fn show_token(token: &Token, username: &str) -> Value {
    let lifetime = token.expires_at.duration_since(token.created_at).as_secs();
    json!({
        "id": token.id, "user_id": token.user_id, "last_used": "0001-01-01T00:00:00Z",
        "expires_at": token.expires_at.to_string(), "created_at": token.created_at.to_string(),
        "updated_at": token.created_at.to_string(), "login_type": "token", "scope": "all",
        "scopes": ["coder:all"], "token_name": token.name, "lifetime_seconds": lifetime,
        "allow_list": ["*:*"], "username": username,
    })
}

fn show_organization(found: &Organization) -> Value {
    json!({
        "id": found.id, "name": found.name, "display_name": found.display_name, "icon": "",
        "description": "", "created_at": found.created_at.to_string(),
        "updated_at": found.created_at.to_string(), "is_default": found.is_default,
        "default_org_member_roles": ["organization-workspace-access"],
    })
}
