//! The users and organizations of a server, and the session tokens of users.
//!
//! The expiry of a token never slides, and coderd by default limits it to a week for tokens of an owner.

use std::time::Duration;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    answer::{self, Answer},
    client::Client,
    error::{Result, Unexpected},
    request::{Auth, Request, Surface},
};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct User {
    /// UUID of the user.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Unique name of the user.
    #[serde(deserialize_with = "answer::word")]
    pub username: String,
    /// Empty for a service account.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub email: String,
    /// `active`, `dormant` or `suspended`.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub status: String,
    /// Whether the user is a service account, which needs a license.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub is_service_account: bool,
    /// UUIDs of the organizations that the user is a member of.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub organization_ids: Vec<String>,
    #[serde(default, deserialize_with = "answer::or_default")]
    roles: Vec<Role>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Role {
    #[serde(deserialize_with = "answer::word")]
    name: String,
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    organization_id: String,
}

impl User {
    /// Whether the user has the site role `owner`, which has every permission. The role of the same name in an
    /// organization does not count.
    pub fn is_owner(&self) -> bool {
        self.roles.iter().any(|role| role.name == "owner" && role.organization_id.is_empty())
    }
}

/// An organization, the scope of provisioner keys, daemons and jobs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Organization {
    /// UUID of the organization.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Unique name of the organization.
    #[serde(deserialize_with = "answer::word")]
    pub name: String,
    /// Whether this is the organization that `default` stands for in requests.
    #[serde(default, deserialize_with = "answer::or_default")]
    pub is_default: bool,
}

/// The first user to create, who becomes the owner of the deployment.
#[derive(Clone, Debug)]
pub struct NewFirstUser {
    /// E-mail address, with which the user logs in.
    pub email: String,
    /// 1 to 32 letters, digits and single hyphens.
    pub username: String,
    /// At most 64 characters. coderd refuses weak passwords.
    pub password: SecretString,
}

/// The first user that coderd created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FirstUser {
    /// UUID of the user. Empty if coderd created the user and failed afterwards.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub user_id: String,
}

/// A user to create.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// 1 to 32 letters, digits and single hyphens.
    pub username: String,
    /// E-mail address and password. `None` creates a service account, which has neither and needs a license.
    pub login: Option<(String, SecretString)>,
    /// Names of site roles.
    pub roles: Vec<String>,
    /// UUIDs of at least one organization. The nil UUID stands for the default organization.
    pub organization_ids: Vec<String>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Token {
    /// The public half of the token, ten characters.
    #[serde(deserialize_with = "answer::word")]
    pub id: String,
    /// Unique among the tokens of the user, including expired ones.
    #[serde(default, deserialize_with = "answer::word_or_empty")]
    pub token_name: String,
    /// When the token was created.
    #[serde(default, deserialize_with = "answer::time")]
    pub created_at: Option<Timestamp>,
    /// When the token expires.
    #[serde(default, deserialize_with = "answer::time")]
    pub expires_at: Option<Timestamp>,
}

/// A token that was just created. coderd shows it once.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The public half, by which the token is deleted.
    pub id: String,
    /// The complete token.
    pub secret: SecretString,
}

#[derive(Deserialize)]
struct CreatedToken {
    #[serde(deserialize_with = "answer::secret")]
    key: SecretString,
}

#[derive(Deserialize)]
struct TokenConfig {
    max_token_lifetime: u64,
}

#[derive(Deserialize)]
struct CreatedSession {
    #[serde(deserialize_with = "answer::secret")]
    session_token: SecretString,
}

impl Client {
    /// Succeeds if the HTTP server of coderd runs. Says nothing about its database.
    pub async fn healthz(&self) -> Result<()> {
        let mut request = Request::get("get healthz", &[]).by(Auth::Nobody);
        request.path = vec!["healthz".to_owned()];
        let is_ok = |answer: &Answer| answer.body.trim_ascii() == b"OK";
        let read = |answer: &Answer| {
            if is_ok(answer) { Ok(()) } else { Err(answer.unexpected(Unexpected::ContentType)) }
        };
        self.call(request, read).await
    }

    /// Whether the deployment has a user.
    pub async fn has_first_user(&self) -> Result<bool> {
        match self.perform(Request::get("get first user", &["users", "first"]).by(Auth::Nobody)).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates the first user. `Duplicate`: there is one.
    ///
    /// Must not run concurrently: coderd checks and inserts in two steps, so that two requests can both succeed.
    pub async fn create_first_user(&self, user: &NewFirstUser) -> Result<FirstUser> {
        let NewFirstUser { email, username, password } = user;
        let body = json!({ "email": email, "username": username, "password": password.expose_secret() });
        let request = Request::post("create first user", &["users", "first"], &body).by(Auth::Nobody);
        // An empty 200 means that coderd created the user and then failed to refresh its entitlements.
        let read = |answer: &Answer| {
            if answer.body.is_empty() { Ok(FirstUser::default()) } else { answer.object() }
        };
        self.call(request.hiding(password), read).await
    }

    /// Logs in with a password. The session expires after a day without use; create a token with it.
    pub async fn log_in(&self, email: &str, password: &SecretString) -> Result<SecretString> {
        let body = json!({ "email": email, "password": password.expose_secret() });
        let request = Request::post("log in", &["users", "login"], &body).by(Auth::Nobody);
        let session: CreatedSession = self.fetch(request.hiding(password)).await?;
        Ok(session.session_token)
    }

    /// Returns the user of the token.
    pub async fn me(&self) -> Result<User> {
        self.fetch(Request::get("get user", &["users", "me"])).await
    }

    /// Creates an active user. `Duplicate`: the name or e-mail address is taken.
    pub async fn create_user(&self, user: &NewUser) -> Result<User> {
        let NewUser { username, login, roles, organization_ids } = user;
        let mut body = json!({
            "username": username, "roles": roles, "organization_ids": organization_ids, "user_status": "active",
        });
        let fields = match login {
            Some((email, password)) => {
                json!({ "email": email, "password": password.expose_secret(), "login_type": "password" })
            }
            None => json!({ "service_account": true, "login_type": "none" }),
        };
        if let (Some(body), serde_json::Value::Object(fields)) = (body.as_object_mut(), fields) {
            body.extend(fields);
        }
        let mut request = Request::post("create user", &["users"], &body);
        if let Some((_, password)) = login {
            request = request.hiding(password);
        }
        self.fetch(request).await
    }

    /// Lists the organizations that the credential may read.
    pub async fn organizations(&self) -> Result<Vec<Organization>> {
        self.list(Request::get("list organizations", &["organizations"])).await
    }

    /// Returns an organization by UUID, by name, or as `default`.
    pub async fn organization(&self, organization: &str) -> Result<Organization> {
        self.fetch(Request::get("get organization", &["organizations", organization])).await
    }

    /// Creates a token with all permissions of its user. `user` is a UUID, a name, or `me`.
    ///
    /// `Invalid`: the lifetime exceeds [`Self::longest_token_lifetime`]. `Duplicate`: the name is taken.
    pub async fn create_token(
        &self,
        user: &str,
        name: &str,
        lifetime: Option<Duration>,
    ) -> Result<IssuedToken> {
        // coderd expects nanoseconds, and takes zero for its own default lifetime.
        let lifetime = lifetime.map_or(0, |lifetime| i64::try_from(lifetime.as_nanos()).unwrap_or(i64::MAX));
        let body = json!({ "token_name": name, "lifetime": lifetime });
        let request = Request::post("create token", &["users", user, "keys", "tokens"], &body);
        let created: CreatedToken = self.fetch(request.on(Surface::HidesForbidden)).await?;
        let id = created.key.expose_secret().split('-').next().unwrap_or_default().to_owned();
        Ok(IssuedToken { id, secret: created.key })
    }

    /// The longest lifetime that coderd allows for a token of this user.
    pub async fn longest_token_lifetime(&self, user: &str) -> Result<Duration> {
        let request = Request::get("get token config", &["users", user, "keys", "tokens", "tokenconfig"]);
        let config: TokenConfig = self.fetch(request).await?;
        Ok(Duration::from_nanos(config.max_token_lifetime))
    }

    /// Lists the tokens of a user, including expired ones.
    pub async fn tokens(&self, user: &str) -> Result<Vec<Token>> {
        let request = Request::get("list tokens", &["users", user, "keys", "tokens"]);
        self.list(request.query("include_expired", "true")).await
    }

    /// Deletes a token by its public half.
    pub async fn delete_token(&self, user: &str, id: &str) -> Result<()> {
        self.perform(Request::delete("delete token", &["users", user, "keys", id])).await
    }
}
