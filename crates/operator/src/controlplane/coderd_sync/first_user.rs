//! Creates and deletes operator tokens as the first user of coderd, whose name and password are in a Secret.
//!
//! The password is used to create the first user, and to log in when there is no working token. After that each token
//! creates its successor. When to do so is decided in `core::controlplane::coderd::operator_token`.

use coder_k8s_api::Reason;
use coder_k8s_coderd::{Client, ErrorKind, IdentifiedServer, NewFirstUser, Token};
use coder_k8s_core::{controlplane::coderd::operator_token::CreatedToken, outcome::Blocker};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};

use super::{
    Plane,
    token::{lifetime, token_id},
};
use crate::coderd::{blocker_of, targets};

/// Creates a token beside the present one. `renews`: the present one works and creates its own successor. Else the password
/// does. It is returned if the server accepted it, now or before, to be bound again: later tokens must not displace it.
pub(super) async fn create(
    plane: Plane<'_>,
    server: &IdentifiedServer,
    present: Option<&SecretString>,
    renews: bool,
) -> (Result<(SecretString, CreatedToken), Blocker>, Option<SecretString>) {
    if let Some(present) = present.filter(|_| renews) {
        return (renew(plane, server, present).await, accepted_password(plane, server).await);
    }
    match log_in(plane, server).await {
        Ok((session, password)) => (create_with(plane, server, present, &session).await, Some(password)),
        Err(blocker) => (Err(blocker), None),
    }
}

async fn renew(
    plane: Plane<'_>,
    server: &IdentifiedServer,
    present: &SecretString,
) -> Result<(SecretString, CreatedToken), Blocker> {
    // It was accepted a moment ago, in the same exchange.
    let client = first_contact(server, present)?;
    mint(plane, &client, Some(token_id(present))).await
}

/// The password, if this deployment accepted it before.
async fn accepted_password(plane: Plane<'_>, server: &IdentifiedServer) -> Option<SecretString> {
    let password = read(plane).await.ok()?.password;
    let bound = plane.deployment_id_of(&password, &[], false);
    Some(password).filter(|_| bound.as_deref() == Some(server.deployment_id()))
}

async fn create_with(
    plane: Plane<'_>,
    server: &IdentifiedServer,
    present: Option<&SecretString>,
    session: &SecretString,
) -> Result<(SecretString, CreatedToken), Blocker> {
    let client = first_contact(server, session)?;
    let minted = mint(plane, &client, present.map(token_id)).await;
    // A session that stays would be one more credential.
    if let Err(error) = client.delete_token("me", token_id(session)).await {
        tracing::warn!("cannot end the session of the first user: {error}");
    }
    minted
}

/// Deletes the operator's tokens of a user, except `keep`. Recognised by name, so that those of lost responses are included.
pub(super) async fn remove_tokens(
    plane: Plane<'_>,
    client: &Client,
    user: &str,
    keep: Option<&str>,
) -> Result<(), Blocker> {
    for token in our_tokens(plane, client, user).await? {
        if Some(token.id.as_str()) != keep {
            delete(client, user, &token.id).await?;
        }
    }
    Ok(())
}

/// Deletes every token of ours that the first user has, after a login.
pub(super) async fn remove_all(plane: Plane<'_>, server: &IdentifiedServer) -> Result<(), Blocker> {
    let (session, _) = log_in(plane, server).await?;
    let client = first_contact(server, &session)?;
    let removed = remove_tokens(plane, &client, "me", None).await;
    // A session is one more way in, and no longer needed.
    delete(&client, "me", token_id(&session)).await?;
    removed
}

/// A client with a token that this very server issued or accepted a moment ago.
fn first_contact(server: &IdentifiedServer, token: &SecretString) -> Result<Client, Blocker> {
    let client = server.first_contact(token);
    client.map_err(|bad| Blocker::until_change(Reason::BadToken, bad.to_string()))
}

async fn our_tokens(plane: Plane<'_>, client: &Client, user: &str) -> Result<Vec<Token>, Blocker> {
    let all = client.tokens(user).await.map_err(|error| blocker_of(&error))?;
    let names = token_names(plane);
    Ok(all.into_iter().filter(|token| names.contains(&token.token_name)).collect())
}

/// Deletes a token. One that no longer exists is no error.
pub(super) async fn delete(client: &Client, user: &str, id: &str) -> Result<(), Blocker> {
    match client.delete_token(user, id).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(blocker_of(&error)),
    }
}

/// The two names that tokens take turns in: names are unique for each user, and a token is created while its predecessor
/// still exists.
fn token_names(plane: Plane<'_>) -> [String; 2] {
    let name = plane.token_name();
    [format!("{name}-next"), name]
}

/// Creates a token under the name that the present one does not have. An unused token of that name, left by a crash, is
/// deleted first.
async fn mint(
    plane: Plane<'_>,
    client: &Client,
    in_use: Option<&str>,
) -> Result<(SecretString, CreatedToken), Blocker> {
    let existing = our_tokens(plane, client, "me").await?;
    let present = existing.iter().find(|token| Some(token.id.as_str()) == in_use);
    let [next, plain] = token_names(plane);
    let name = if present.is_some_and(|token| token.token_name == plain) { next } else { plain };
    for leftover in existing.iter().filter(|token| token.token_name == name) {
        delete(client, "me", &leftover.id).await?;
    }
    // For owners the maximum is seven days by default, and coderd rejects a longer lifetime instead of shortening it.
    let longest = client.longest_token_lifetime("me").await.map_err(|error| blocker_of(&error))?;
    let longest = SignedDuration::try_from(longest).unwrap_or(SignedDuration::MAX);
    let lifetime = lifetime(plane.object).min(longest);
    let now = Timestamp::now();
    let requested = std::time::Duration::try_from(lifetime).unwrap_or_default();
    let token =
        client.create_token("me", &name, Some(requested)).await.map_err(|error| blocker_of(&error))?;
    tracing::info!("created operator token {} in coderd", token.id);
    let after = |time: SignedDuration| now.checked_add(time).unwrap_or(Timestamp::MAX);
    let (expires, renew_after) = (after(lifetime), after(lifetime * 2 / 3));
    Ok((token.secret, CreatedToken { expires, renew_after, is_only_one: false }))
}

/// Logs in as the first user, which is created if coderd has none yet. Returns the session and the password.
async fn log_in(
    plane: Plane<'_>,
    server: &IdentifiedServer,
) -> Result<(SecretString, SecretString), Blocker> {
    let user = read(plane).await?;
    // At the control plane's own Service another deployment is a database that was replaced, and its first user is made anew.
    // Elsewhere a password that a deployment accepted is sent to no other.
    let is_elsewhere = plane.object.spec.operator_access.api_url.is_some();
    let bound = plane.deployment_id_of(&user.password, &[], false).filter(|_| is_elsewhere);
    if bound.is_some_and(|bound| bound != server.deployment_id()) {
        let message = "another deployment answers at operatorAccess.apiURL than the one that accepted the password of \
                       operatorAccess.firstUserSecretRef, and the password was not sent: correct the address, or supply \
                       the first user of this deployment";
        return Err(Blocker::until_change(Reason::DeploymentChanged, message));
    }
    let has_user = server.anonymous().has_first_user().await.map_err(|error| blocker_of(&error))?;
    if !has_user {
        match server.anonymous().create_first_user(&user).await {
            Ok(_) => tracing::info!("created the first user {}", user.username),
            // Somebody else created the user, or the response to an earlier attempt was lost: the login shows which.
            Err(error) if matches!(error.kind, ErrorKind::Duplicate { .. }) => {}
            Err(error) if matches!(error.kind, ErrorKind::Invalid { .. }) => {
                let message =
                    format!("coderd rejects the first user of operatorAccess.firstUserSecretRef: {error}");
                return Err(Blocker::until_change(Reason::FirstUserInvalid, message));
            }
            Err(error) => return Err(blocker_of(&error)),
        }
    }
    match server.anonymous().log_in(&user.email, &user.password).await {
        Ok(session) => Ok((session, user.password)),
        Err(error)
            if matches!(error.kind, ErrorKind::Unauthenticated { .. } | ErrorKind::Forbidden { .. }) =>
        {
            let message = format!(
                "coderd already has a first user and does not log in the one of operatorAccess.firstUserSecretRef: correct \
                 the Secret, or use operatorAccess.method TokenSecret or Postgres: {error}"
            );
            Err(Blocker::until_change(Reason::AlreadyInitialised, message))
        }
        Err(error) => Err(blocker_of(&error)),
    }
}

/// Reads name, address and password of the first user.
pub(super) async fn read(Plane { key, object, ctx, .. }: Plane<'_>) -> Result<NewFirstUser, Blocker> {
    const FIELD: &str = "operatorAccess.firstUserSecretRef";
    let Some(reference) = &object.spec.operator_access.first_user_secret_ref else {
        let message = format!("{FIELD} is not set: name the Secret with the first user there");
        return Err(Blocker::until_change(Reason::SecretMissing, message));
    };
    let name = reference.name.as_str();
    let data = targets::read_secret(&key.namespace, name, ctx).await?;
    let field = |key: &str| targets::required_text(data.as_ref(), key, name, FIELD);
    let plain = |text: SecretString| text.expose_secret().to_owned();
    Ok(NewFirstUser {
        username: plain(field("username")?),
        email: plain(field("email")?),
        password: field("password")?,
    })
}
