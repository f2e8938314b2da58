//! Users and organizations, and how the first user of a deployment is created.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    call::{Auth, Request},
    client::Client,
    decode,
    error::Error,
};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct User {
    /// UUID of the user.
    pub id: String,
    /// Unique name of the user.
    pub username: String,
    /// Empty for a service account.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub email: String,
    /// `active`, `dormant` or `suspended`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub status: String,
    /// How the user logs in, such as `password` or `none`.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub login_type: String,
    /// Whether the user is a service account, which needs a license.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub is_service_account: bool,
    /// UUIDs of the organizations that the user is a member of.
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
    pub id: String,
    /// Unique name of the organization.
    pub name: String,
    /// Name for people.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub display_name: String,
    /// Whether this is the organization that `default` stands for in requests.
    #[serde(default, deserialize_with = "decode::or_default")]
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
    #[serde(default, deserialize_with = "decode::or_default")]
    pub user_id: String,
    /// UUID of the default organization.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub organization_id: String,
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

#[derive(Deserialize)]
struct Session {
    #[serde(deserialize_with = "decode::secret")]
    session_token: SecretString,
}

impl Client {
    /// Whether the deployment has a user.
    pub async fn has_first_user(&self) -> Result<bool, Error> {
        match self.perform(Request::get("get first user").at("users/first").by(Auth::Nobody)).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates the first user. `Duplicate`: there is one.
    ///
    /// Must not run concurrently: coderd checks and inserts in two steps, so that two requests can both succeed.
    pub async fn create_first_user(&self, user: &NewFirstUser) -> Result<FirstUser, Error> {
        let NewFirstUser { email, username, password } = user;
        let body = json!({ "email": email, "username": username, "password": password.expose_secret() });
        let request = Request::post("create first user").at("users/first").by(Auth::Nobody);
        let request = request.json(&body).hiding(password);
        let call = request.call;
        let answer = self.send(request).await?;
        // An empty 200 means that coderd created the user and then failed to refresh its entitlements.
        if answer.body.is_empty() {
            return Ok(FirstUser::default());
        }
        decode::object(&answer).map_err(|kind| self.error(call, kind))
    }

    /// Logs in with a password. The session expires after a day without use; create a token with it.
    pub async fn log_in(&self, email: &str, password: &SecretString) -> Result<SecretString, Error> {
        let body = json!({ "email": email, "password": password.expose_secret() });
        let request = Request::post("log in").at("users/login").by(Auth::Nobody);
        let session: Session = self.fetch(request.json(&body).hiding(password)).await?;
        Ok(session.session_token)
    }

    /// Returns the user of the token.
    pub async fn me(&self) -> Result<User, Error> {
        self.fetch(Request::get("get user").at("users/me")).await
    }

    /// Creates an active user. `Duplicate`: the name or e-mail address is taken.
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

    /// Lists the organizations that the credential may read.
    pub async fn organizations(&self) -> Result<Vec<Organization>, Error> {
        self.list(Request::get("list organizations").at("organizations")).await
    }

    /// Returns an organization by UUID, by name, or as `default`.
    pub async fn organization(&self, organization: &str) -> Result<Organization, Error> {
        self.fetch(Request::get("get organization").at("organizations").part(organization)).await
    }
}
