//! People and machines that coderd knows, and how the first one comes to be.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    call::{Auth, Request},
    client::Client,
    decode,
    error::Error,
};

/// A user, as far as an operator cares.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct User {
    /// Its uuid.
    pub id: String,
    /// Its name.
    pub username: String,
    /// Empty for a service account.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub email: String,
    /// `active`, `dormant` or `suspended`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub status: String,
    /// How it logs in.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub login_type: String,
    /// Whether it is a service account.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub is_service_account: bool,
    /// The organizations it is a member of.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub organization_ids: Vec<String>,
    #[serde(default, deserialize_with = "decode::or_default")]
    roles: Vec<Role>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Role {
    name: String,
    #[serde(default, deserialize_with = "decode::or_default")]
    organization_id: String,
}

impl User {
    /// Whether it may do everything.
    pub fn is_owner(&self) -> bool {
        self.roles.iter().any(|role| role.name == "owner" && role.organization_id.is_empty())
    }
}

/// The first user of a deployment, who becomes its owner.
#[derive(Clone, Debug)]
pub struct NewFirstUser {
    /// Its e-mail address, with which it logs in.
    pub email: String,
    /// 1 to 32 letters, digits and single hyphens.
    pub username: String,
    /// At most 64 characters, and hard to guess.
    pub password: SecretString,
}

/// Whom coderd made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FirstUser {
    /// Its uuid. Empty when coderd made it and then failed to say so: look it up.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub user_id: String,
    /// The default organization.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub organization_id: String,
}

/// A user to be made by another one.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// 1 to 32 letters, digits and single hyphens.
    pub username: String,
    /// E-mail address and password; None for a service account, which has neither and needs a license.
    pub login: Option<(String, SecretString)>,
    /// Names of site roles.
    pub roles: Vec<String>,
    /// At least one; `00000000-0000-0000-0000-000000000000` is the default one.
    pub organization_ids: Vec<String>,
}

#[derive(Deserialize)]
struct Session {
    #[serde(deserialize_with = "decode::secret")]
    session_token: SecretString,
}

impl Client {
    /// Whether the deployment has a user yet.
    pub async fn has_first_user(&self) -> Result<bool, Error> {
        match self.perform(Request::get("get first user").at("users/first").by(Auth::Nobody)).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the first user. `Duplicate`: there is one.
    ///
    /// Never from two places at once: coderd's check and insert are not one transaction.
    pub async fn create_first_user(&self, user: &NewFirstUser) -> Result<FirstUser, Error> {
        let NewFirstUser { email, username, password } = user;
        let body = json!({ "email": email, "username": username, "password": password.expose_secret() });
        let request = Request::post("create first user").at("users/first").by(Auth::Nobody);
        let request = request.json(&body).hiding(password);
        let call = request.call;
        let answer = self.send(request).await?;
        // An empty 200: made, but the refresh of entitlements after it failed.
        if answer.body.is_empty() {
            return Ok(FirstUser::default());
        }
        decode::object(&answer).map_err(|kind| self.error(call, kind))
    }

    /// Logs in with a password. The session slides and ends after a day; make a token with it.
    pub async fn log_in(&self, email: &str, password: &SecretString) -> Result<SecretString, Error> {
        let body = json!({ "email": email, "password": password.expose_secret() });
        let request = Request::post("log in").at("users/login").by(Auth::Nobody);
        let session: Session = self.fetch(request.json(&body).hiding(password)).await?;
        Ok(session.session_token)
    }

    /// Whose token this is.
    pub async fn me(&self) -> Result<User, Error> {
        self.fetch(Request::get("get user").at("users/me")).await
    }

    /// Makes an active user. `Duplicate`: name or address are taken.
    pub async fn create_user(&self, user: &NewUser) -> Result<User, Error> {
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
        let mut request = Request::post("create user").at("users").json(&body);
        if let Some((_, password)) = login {
            request = request.hiding(password);
        }
        self.fetch(request).await
    }
}
