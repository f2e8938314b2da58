//! Session tokens of users. Their expiry never slides, and coderd by default limits it to a week for tokens of an
//! owner.

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
    /// The public half of the token, ten characters.
    pub id: String,
    /// UUID of the user.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub user_id: String,
    /// Unique among the tokens of the user, including expired ones.
    #[serde(default, deserialize_with = "decode::or_default")]
    pub token_name: String,
    /// When the token was created.
    #[serde(default, deserialize_with = "decode::time")]
    pub created_at: Option<Timestamp>,
    /// When the token expires.
    #[serde(default, deserialize_with = "decode::time")]
    pub expires_at: Option<Timestamp>,
}

/// A token that was just created. coderd shows it once.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// The public half, by which the token is deleted.
    pub id: String,
    /// The complete token.
    pub secret: SecretString,
}

#[derive(Deserialize)]
struct CreatedToken {
    #[serde(deserialize_with = "decode::secret")]
    key: SecretString,
}

#[derive(Deserialize)]
struct TokenConfig {
    max_token_lifetime: u64,
}

impl Client {
    /// Creates a token with all permissions of its user. `user` is a UUID, a name, or `me`.
    ///
    /// `Invalid`: the lifetime exceeds [`Self::longest_token_lifetime`]. `Duplicate`: the name is taken.
    pub async fn create_token(
        &self,
        user: &str,
        name: &str,
        lifetime: Option<Duration>,
    ) -> Result<NewToken, Error> {
        // coderd expects nanoseconds, and takes zero for its own default lifetime.
        let lifetime = lifetime.map_or(0, |lifetime| i64::try_from(lifetime.as_nanos()).unwrap_or(i64::MAX));
        let body = json!({ "token_name": name, "lifetime": lifetime });
        let request = Request::post("create token").at("users").part(user).at("keys/tokens").json(&body);
        let created: CreatedToken = self.fetch(request.on(Surface::HidesForbidden)).await?;
        let id = created.key.expose_secret().split('-').next().unwrap_or_default().to_owned();
        Ok(NewToken { id, secret: created.key })
    }

    /// The longest lifetime that coderd allows for a token of this user.
    pub async fn longest_token_lifetime(&self, user: &str) -> Result<Duration, Error> {
        let request = Request::get("get token config").at("users").part(user).at("keys/tokens/tokenconfig");
        let config: TokenConfig = self.fetch(request).await?;
        Ok(Duration::from_nanos(config.max_token_lifetime))
    }

    /// Lists the tokens of a user, including expired ones.
    pub async fn tokens(&self, user: &str) -> Result<Vec<Token>, Error> {
        let request = Request::get("list tokens").at("users").part(user).at("keys/tokens");
        self.list(request.query("include_expired", "true")).await
    }

    /// Deletes a token by its public half.
    pub async fn delete_token(&self, user: &str, id: &str) -> Result<(), Error> {
        self.perform(Request::delete("delete token").at("users").part(user).at("keys").part(id)).await
    }
}
