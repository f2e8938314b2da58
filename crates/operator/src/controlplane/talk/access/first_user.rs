//! The way to a token through the first administrator, whose name and password are in a Secret.
//!
//! The password is used once: to make the administrator, and to log in when there is no working token. After that each
//! token makes its successor.

use coder_k8s_api::Reason;
use coder_k8s_coderd::{Client, ErrorKind, NewFirstUser, Token};
use coder_k8s_core::names;
use coder_k8s_engine::secret;
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};

use super::{
    Failed,
    own::{Asking, Made, id},
};

/// Whether there is somebody to log in.
pub(super) async fn prepare(asking: &Asking<'_>) -> Result<(), Failed> {
    credentials(asking).await.map(drop)
}

/// Makes a token.
pub(super) async fn make(asking: &Asking<'_>) -> Result<Made, Failed> {
    if let Some(current) = asking.current.filter(|_| asking.renews) {
        let client = with_token(asking.anonymous, current)?;
        return mint(asking, &client, Some(id(current))).await;
    }
    let session = log_in(asking).await?;
    let client = with_token(asking.anonymous, &session)?;
    let made = mint(asking, &client, asking.current.map(id)).await;
    // A session is one more way in, and no longer needed.
    if let Err(error) = client.delete_token("me", id(&session)).await {
        tracing::warn!("the session of the first user could not be ended: {error}");
    }
    made
}

/// Removes the tokens of ours beside the one that is in use.
pub(super) async fn settle(asking: &Asking<'_>, client: &Client, token: &SecretString) -> Result<(), Failed> {
    remove_others(asking, client, "me", Some(id(token))).await
}

/// Removes the tokens of ours that a user has, but for one.
pub(super) async fn remove_others(
    asking: &Asking<'_>,
    client: &Client,
    user: &str,
    keep: Option<&str>,
) -> Result<(), Failed> {
    for token in ours(asking, client, user).await? {
        if Some(token.id.as_str()) != keep {
            delete(client, user, &token.id).await?;
        }
    }
    Ok(())
}

/// The tokens of ours that a user has.
async fn ours(asking: &Asking<'_>, client: &Client, user: &str) -> Result<Vec<Token>, Failed> {
    let all = client.tokens(user).await.map_err(|error| Failed::from(&error))?;
    let names = token_names(asking);
    Ok(all.into_iter().filter(|token| names.contains(&token.token_name)).collect())
}

pub(super) async fn delete(client: &Client, user: &str, id: &str) -> Result<(), Failed> {
    match client.delete_token(user, id).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(Failed::from(&error)),
    }
}

/// The two names that our tokens take turns in: coderd wants each name once.
fn token_names(asking: &Asking<'_>) -> [String; 2] {
    let name = names::operator_token(&asking.key.namespace, &asking.key.name);
    [format!("{name}-next"), name]
}

/// Makes a token beside the one in use, under the name that it does not bear.
async fn mint(asking: &Asking<'_>, client: &Client, in_use: Option<&str>) -> Result<Made, Failed> {
    let existing = ours(asking, client, "me").await?;
    let taken = existing.iter().find(|token| Some(token.id.as_str()) == in_use);
    let [next, plain] = token_names(asking);
    let name = if taken.is_some_and(|token| token.token_name == plain) { next } else { plain };
    for leftover in existing.iter().filter(|token| token.token_name == name) {
        delete(client, "me", &leftover.id).await?;
    }
    let longest = client.longest_token_lifetime("me").await.map_err(|error| Failed::from(&error))?;
    let longest = SignedDuration::try_from(longest).unwrap_or(SignedDuration::MAX);
    let lifetime = asking.lifetime().min(longest);
    let now = Timestamp::now();
    let asked = std::time::Duration::try_from(lifetime).unwrap_or_default();
    let token = client.create_token("me", &name, Some(asked)).await.map_err(|error| Failed::from(&error))?;
    tracing::info!(token = token.id, "coderd made a token for the operator");
    let after = |time: SignedDuration| now.checked_add(time).unwrap_or(Timestamp::MAX);
    Ok(Made {
        token: token.secret,
        expires: after(lifetime),
        renew_after: after(lifetime * 2 / 3),
        settled: false,
    })
}

/// Logs in as the first administrator, who is made if there is nobody yet.
pub(super) async fn log_in(asking: &Asking<'_>) -> Result<SecretString, Failed> {
    let user = credentials(asking).await?;
    let server = asking.anonymous;
    let initialised = server.has_first_user().await.map_err(|error| Failed::from(&error))?;
    if !initialised {
        match server.create_first_user(&user).await {
            Ok(_) => tracing::info!("made the first administrator {}", user.username),
            // Somebody was quicker, or our own try before this one was not answered: logging in tells.
            Err(error) if matches!(error.kind, ErrorKind::Duplicate { .. }) => {}
            Err(error) if matches!(error.kind, ErrorKind::Invalid { .. }) => {
                let message =
                    format!("coderd does not accept the first administrator of the Secret: {error}");
                return Err(Failed::for_good(Reason::FirstUserInvalid, message));
            }
            Err(error) => return Err(Failed::from(&error)),
        }
    }
    match server.log_in(&user.email, &user.password).await {
        Ok(session) => Ok(session),
        Err(error)
            if matches!(error.kind, ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. }) =>
        {
            let message = format!(
                "coderd has its first administrator already and does not log in the one of operatorAccess.firstUserSecretRef; \
                 correct the Secret, or use operatorAccess.method TokenSecret or Postgres: {error}"
            );
            Err(Failed::for_good(Reason::AlreadyInitialised, message))
        }
        Err(error) => Err(Failed::from(&error)),
    }
}

/// Name, address and password of the first administrator.
async fn credentials(asking: &Asking<'_>) -> Result<NewFirstUser, Failed> {
    let Some(reference) = &asking.object.spec.operator_access.first_user_secret_ref else {
        return Err(Failed::for_good(Reason::SecretMissing, "operatorAccess.firstUserSecretRef is not set"));
    };
    let name = reference.name.as_str();
    let data = secret::read(&asking.ctx.client, &asking.key.namespace, name).await?;
    let field = |key: &str| {
        data.as_ref().and_then(|data| data.text(key)).ok_or_else(|| {
            let message = format!(
                "Secret {name} with the key {key} for operatorAccess.firstUserSecretRef is not there, or empty"
            );
            Failed::for_good(Reason::SecretMissing, message)
        })
    };
    let plain = |text: SecretString| text.expose_secret().to_owned();
    Ok(NewFirstUser {
        username: plain(field("username")?),
        email: plain(field("email")?),
        password: field("password")?,
    })
}

fn with_token(client: &Client, token: &SecretString) -> Result<Client, Failed> {
    client.with_token(token).map_err(|bad| Failed::for_good(Reason::BadToken, bad.to_string()))
}
