//! Session tokens of users. Their expiry never slides, and that of an owner's is a week away at most.

use std::time::Duration;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;

use crate::{
    call::{Request, Surface},
    client::Client,
    decode,
    error::Error,
};

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Token {
    /// The public half, ten characters.
    pub id: String,
    /// Whose it is.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub user_id: String,
    /// Unique among the tokens of its user, expired ones included.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub token_name: String,
    /// When it was made.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// When it ends.
    #[serde(default, deserialize_with = "decode::time")]
    pub expires_at: Option<Timestamp>,
}

/// A token that was just made; shown once.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The public half, by which it is deleted.
    pub id: String,
    /// The whole.
    pub secret: SecretString,
}

#[derive(Deserialize)]
struct Made {
    #[serde(deserialize_with = "decode::secret")]
    key: SecretString,
}

#[derive(Deserialize)]
struct Config {
    max_token_lifetime: u64,
}

impl Client {
    /// Makes a token that may do what its user may. `user` is a uuid, a name, or `me`.
    ///
    /// `Invalid`: longer than the server allows, see [`Self::longest_token_lifetime`]; `Duplicate`: the name is taken.
    pub async fn create_token(
        &self,
        user: &str,
        name: &str,
        lifetime: Option<Duration>,
    ) -> Result<NewToken, Error> {
        // In nanoseconds; zero is the server's default.
        let lifetime = lifetime.map_or(0, |lifetime| i64::try_from(lifetime.as_nanos()).unwrap_or(i64::MAX));
        let body = json!({ "token_name": name, "lifetime": lifetime });
        let request = Request::post("create token").at("users").part(user).at("keys/tokens").json(&body);
        let made: Made = self.fetch(request.on(Surface::HidesForbidden)).await?;
        let id = made.key.expose_secret().split('-').next().unwrap_or_default().to_owned();
        Ok(NewToken { id, secret: made.key })
    }

    /// How long a token of this user may live at most.
    pub async fn longest_token_lifetime(&self, user: &str) -> Result<Duration, Error> {
        let request = Request::get("get token config").at("users").part(user).at("keys/tokens/tokenconfig");
        let config: Config = self.fetch(request).await?;
        Ok(Duration::from_nanos(config.max_token_lifetime))
    }

    /// The tokens of a user, expired ones included.
    pub async fn tokens(&self, user: &str) -> Result<Vec<Token>, Error> {
        let request = Request::get("list tokens").at("users").part(user).at("keys/tokens");
        self.list(request.query("include_expired", "true")).await
    }

    /// Deletes a token by its public half.
    pub async fn delete_token(&self, user: &str, id: &str) -> Result<(), Error> {
        self.perform(Request::delete("delete token").at("users").part(user).at("keys").part(id)).await
    }
}
