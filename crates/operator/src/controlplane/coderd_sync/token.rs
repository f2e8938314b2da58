//! Answers the queries and performs the effects of the operator token's protocol: reads Secrets, asks coderd, creates and
//! stores tokens.
//!
//! What to ask and do is decided in `core::controlplane::coderd::operator_token`, which never sees a token. Tokens are never
//! printed.

use std::ops::ControlFlow;

use coder_k8s_api::{AccessMethod, CoderControlPlane, Reason, ReportedSecretRef, names::component};
use coder_k8s_coderd::{Client, ErrorKind, IdentifiedServer, User};
use coder_k8s_core::{
    controlplane::coderd::{
        access::{self, MintedToken},
        operator_token::{
            self, CreatedToken, ObservedToken, TokenCheck, TokenEffect, TokenQuery, TokenReport, TokenSecret,
        },
    },
    outcome::{Blocker, Retry},
    steps::Step,
};
use coder_k8s_engine::{apply::Owner, cache::ObjectKey};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};

use super::{
    database,
    exchange::Exchange,
    first_user,
    token_secret::{self, Found, StoredSecret},
};
use crate::{
    coderd::{blocker_of, blocker_of_secret, driver, targets},
    controller::{Context, children},
};

/// How long a token lives unless `operatorAccess.tokenLifetimeDays` says otherwise.
const DEFAULT_LIFETIME_DAYS: i64 = 365;

/// A token that was created, or the present one if it is good for long enough.
pub(super) struct NewToken {
    pub(super) token: SecretString,
    pub(super) expires: Timestamp,
    pub(super) renew_after: Timestamp,
    /// Whether coderd has no other token of this control plane.
    pub(super) is_only_one: bool,
}

/// What creating a token needs.
pub(super) struct TokenRequest<'a> {
    pub(super) object: &'a CoderControlPlane,
    pub(super) key: &'a ObjectKey,
    pub(super) ctx: &'a Context,
    pub(super) server: &'a IdentifiedServer,
    /// The token in the Secret.
    pub(super) current: Option<&'a SecretString>,
    /// Whether that token works and creates its own successor.
    pub(super) renews: bool,
    /// Whether coderd refuses that token.
    pub(super) is_refused: bool,
}

impl TokenRequest<'_> {
    pub(super) fn lifetime(&self) -> SignedDuration {
        let days = self.object.spec.operator_access.token_lifetime_days;
        SignedDuration::from_hours(24 * days.map_or(DEFAULT_LIFETIME_DAYS, i64::from))
    }
}

/// Runs the protocol. Returns the client with the token that coderd accepted, if it accepted one.
pub(super) async fn sync(
    exchange: &mut Exchange<'_>,
    server: &IdentifiedServer,
) -> (TokenReport, Option<Client>) {
    let Some(owner) = children::owner_of(exchange.object, component::CONTROL_PLANE) else {
        return (TokenReport::default(), None);
    };
    let mut protocol = TokenProtocol {
        observed: observed(exchange),
        exchange,
        server,
        owner,
        secret: None,
        current: None,
        user: None,
        created: None,
        client: None,
    };
    let report = driver::run(&mut protocol)
        .await
        .unwrap_or(TokenReport { retry: Some(Retry::Backoff), ..TokenReport::default() });
    let client = protocol.client;
    (report, client)
}

fn observed(exchange: &Exchange<'_>) -> ObservedToken {
    let object = exchange.object;
    let method = object.spec.operator_access.method;
    ObservedToken {
        is_recorded: access::is_recorded(object),
        record: access::proven_record(object),
        replaced: access::replaced_tokens(object),
        replaced_refused: exchange.state.replaced_refused,
        ..ObservedToken::new(method)
    }
}

struct TokenProtocol<'a, 'e> {
    observed: ObservedToken,
    exchange: &'a mut Exchange<'e>,
    server: &'a IdentifiedServer,
    owner: Owner,
    secret: Option<StoredSecret>,
    current: Option<SecretString>,
    user: Option<User>,
    created: Option<SecretString>,
    /// With the token that coderd accepted last.
    client: Option<Client>,
}

impl driver::Protocol for TokenProtocol<'_, '_> {
    type Query = TokenQuery;
    type Effect = TokenEffect;
    type Done = TokenReport;

    fn decide(&mut self) -> Step<TokenQuery, TokenEffect, TokenReport> {
        operator_token::decide(&self.observed, Timestamp::now())
    }

    async fn ask(&mut self, query: TokenQuery) {
        match query {
            TokenQuery::Secret => self.observed.secret = Some(self.read_secret().await),
            TokenQuery::Check => {
                let token = self.current.clone();
                self.observed.check = Some(self.check(token).await);
            }
            TokenQuery::Proof => {
                let token = self.created.clone();
                self.observed.proof = Some(self.check(token).await);
            }
            TokenQuery::Rights => self.observed.rights = Some(self.rights().await),
            TokenQuery::Source => self.observed.source = Some(self.source().await),
        }
    }

    async fn act(&mut self, effect: TokenEffect) -> ControlFlow<TokenReport> {
        // A token for a spec that was edited meanwhile must be neither created nor revoked.
        if !self.exchange.ctx.is_unedited(self.exchange.object).await {
            let retry = Some(Retry::Backoff);
            let replaced_refused = self.observed.replaced_refused;
            return ControlFlow::Break(TokenReport { retry, replaced_refused, ..TokenReport::default() });
        }
        match effect {
            TokenEffect::Store => self.observed.stored = Some(self.store_current().await),
            TokenEffect::Create { renews, is_refused } => {
                let created = self.create(renews, is_refused).await;
                if let Err(blocker) = &created {
                    tracing::warn!(reason = %blocker.reason, "{}", blocker.message);
                }
                self.observed.created = Some(created);
            }
            TokenEffect::RemoveOthers => self.observed.others_removed = Some(self.remove_others().await),
            TokenEffect::RevokeReplaced(replaced) => {
                let revoked = self.revoke_replaced(&replaced).await;
                self.observed.replaced_revoked.push(revoked);
            }
        }
        ControlFlow::Continue(())
    }
}

impl TokenProtocol<'_, '_> {
    async fn read_secret(&mut self) -> Result<TokenSecret, Blocker> {
        let (object, ctx) = (self.exchange.object, self.exchange.ctx);
        if self.observed.method == AccessMethod::TokenSecret {
            return self.read_supplied().await;
        }
        let found = token_secret::read(&self.owner, object, ctx).await;
        self.exchange.state.report.foreign = None;
        let secret = match found? {
            Found::Ours(secret) => *secret,
            Found::Foreign(foreign) => {
                let name = foreign.name.clone();
                self.exchange.state.report.foreign = Some(foreign);
                return Ok(TokenSecret::Foreign { name });
            }
        };
        let (has_token, in_place) = (secret.token.is_some(), secret.is_in_place());
        self.current.clone_from(&secret.token);
        self.exchange.state.token.clone_from(&secret.token);
        self.secret = Some(secret);
        Ok(TokenSecret::Ours { has_token, in_place })
    }

    /// Reads the token that a person supplies, once until something changes.
    async fn read_supplied(&mut self) -> Result<TokenSecret, Blocker> {
        let Some(reference) = &self.exchange.object.spec.operator_access.token_secret_ref else {
            return Err(Blocker::until_change(
                Reason::SecretMissing,
                "operatorAccess.tokenSecretRef is not set: name the Secret with the token there",
            ));
        };
        let data_key = reference.key.as_ref().map_or("token", AsRef::as_ref);
        if self.exchange.state.token.is_none() {
            let read = targets::read_secret(
                &self.exchange.key.namespace,
                reference.name.as_str(),
                self.exchange.ctx,
            );
            let Some(token) = read.await?.and_then(|data| data.text(data_key)) else {
                let message = format!(
                    "Secret {} of operatorAccess.tokenSecretRef does not exist, or its key {data_key} is missing or empty",
                    reference.name
                );
                return Err(Blocker::until_change(Reason::SecretMissing, message));
            };
            self.exchange.state.token = Some(token);
            self.exchange.state.report.token =
                Some(ReportedSecretRef { name: reference.name.to_string(), key: Some(data_key.to_owned()) });
        }
        self.current.clone_from(&self.exchange.state.token);
        Ok(TokenSecret::Ours { has_token: true, in_place: true })
    }

    async fn check(&mut self, token: Option<SecretString>) -> TokenCheck {
        let Some(token) = token else {
            return TokenCheck::Refused(Blocker::until_change(Reason::BadToken, "there is no token"));
        };
        let client = match self.exchange.client(self.server, &token) {
            Ok(client) => client,
            Err(blocker) => return TokenCheck::Refused(blocker),
        };
        let is_supplied = self.observed.method == AccessMethod::TokenSecret;
        match client.me().await {
            Ok(user) => {
                let user_id = user.id.clone();
                (self.user, self.client) = (Some(user), Some(client));
                self.exchange.state.token = Some(token);
                if let Some(secret) = self.secret.as_ref().filter(|secret| secret.is_in_place()) {
                    self.exchange.state.report.token = Some(secret.reference());
                }
                TokenCheck::Accepted { user_id }
            }
            Err(error) => match error.kind {
                ErrorKind::Unauthenticated { .. } => TokenCheck::Refused(blocker_of(&error)),
                ErrorKind::Forbidden { .. } if is_supplied => TokenCheck::Refused(blocker_of(&error)),
                _ => TokenCheck::Unknown(blocker_of(&error)),
            },
        }
    }

    /// Whether the token's user is an owner and a member of every organization.
    async fn rights(&self) -> Result<bool, Blocker> {
        let (Some(user), Some(client)) = (&self.user, &self.client) else { return Ok(false) };
        if !user.is_owner() {
            return Ok(false);
        }
        let all = client.organizations().await.map_err(|error| blocker_of(&error))?;
        Ok(all.iter().all(|organization| user.organization_ids.contains(&organization.id)))
    }

    fn request(&self, renews: bool, is_refused: bool) -> TokenRequest<'_> {
        TokenRequest {
            object: self.exchange.object,
            key: self.exchange.key,
            ctx: self.exchange.ctx,
            server: self.server,
            current: self.current.as_ref(),
            renews,
            is_refused,
        }
    }

    /// Whether a token could be created: the Secret of the first user, or the address of the database, can be read.
    async fn source(&self) -> Result<(), Blocker> {
        let request = self.request(false, false);
        match self.observed.method {
            AccessMethod::FirstUser => first_user::read(&request).await.map(drop),
            AccessMethod::Postgres | AccessMethod::TokenSecret => database::check(&request).await,
        }
    }

    async fn store_current(&mut self) -> Result<(), Blocker> {
        match self.current.clone() {
            Some(token) => self.store(&token).await,
            None => Ok(()),
        }
    }

    async fn store(&mut self, token: &SecretString) -> Result<(), Blocker> {
        let Some(secret) = &self.secret else { return Ok(()) };
        if let Some(version) = secret.write(token, &self.owner, self.exchange.ctx).await? {
            self.exchange.state.stored_version = Some(version);
        }
        secret.remove_earlier(&self.owner, self.exchange.ctx).await.map_err(blocker_of_secret)?;
        self.exchange.state.token = Some(token.clone());
        self.exchange.state.report.token = Some(secret.reference());
        Ok(())
    }

    /// Creates a token and stores it. The token that it replaces keeps working until [`TokenEffect::RemoveOthers`].
    async fn create(&mut self, renews: bool, is_refused: bool) -> Result<CreatedToken, Blocker> {
        let request = self.request(renews, is_refused);
        let NewToken { token, expires, renew_after, is_only_one } = match self.observed.method {
            AccessMethod::FirstUser => first_user::create(&request).await?,
            AccessMethod::Postgres | AccessMethod::TokenSecret => database::create(&request).await?,
        };
        self.store(&token).await?;
        self.created = Some(token);
        Ok(CreatedToken { expires, renew_after, is_only_one })
    }

    async fn remove_others(&self) -> Result<(), Blocker> {
        let request = self.request(false, false);
        match (self.observed.method, &self.client, &self.created) {
            (AccessMethod::FirstUser, Some(client), Some(token)) => {
                first_user::remove_tokens(&request, client, "me", Some(token_id(token))).await
            }
            (AccessMethod::Postgres, _, Some(token)) => database::keep_only(&request, token).await,
            _ => Ok(()),
        }
    }

    async fn revoke_replaced(&mut self, replaced: &MintedToken) -> Result<(), Blocker> {
        let (key, object, ctx) = (self.exchange.key, self.exchange.object, self.exchange.ctx);
        let revoked = match (replaced.method, &self.client, &replaced.user_id) {
            (AccessMethod::Postgres, _, _) => database::revoke(key, object, ctx).await,
            (AccessMethod::FirstUser, Some(client), Some(user)) => {
                first_user::remove_tokens(&self.request(false, false), client, user, None).await
            }
            // Nothing records whose token it was. `me` would be the user of the token in use.
            (AccessMethod::FirstUser, _, None) => first_user::remove_all(&self.request(false, false)).await,
            (AccessMethod::FirstUser, None, Some(_)) | (AccessMethod::TokenSecret, _, _) => Ok(()),
        };
        // What will be retried may still need its Secret.
        if revoked.as_ref().is_err_and(|blocker| blocker.retry != Retry::OnChange) {
            return revoked;
        }
        if self.observed.method == AccessMethod::TokenSecret {
            // The Secret of a revoked token is of no use. If it cannot be removed, garbage collection removes it with the
            // object.
            let removed = async {
                match token_secret::read(&self.owner, object, ctx).await? {
                    Found::Ours(secret) => secret.remove(&self.owner, ctx).await,
                    Found::Foreign(_) => Ok(()),
                }
            };
            if let Err(blocker) = removed.await {
                tracing::warn!(reason = %blocker.reason, "{}", blocker.message);
            }
        }
        revoked
    }
}

/// The public half of a token, `<id>-<secret>`, by which coderd lists and deletes it.
pub(super) fn token_id(token: &SecretString) -> &str {
    let text = token.expose_secret();
    text.split_once('-').map_or(text, |(id, _)| id)
}
