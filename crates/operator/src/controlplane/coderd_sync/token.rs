//! Answers the queries and performs the effects of the operator token's protocol: reads Secrets, asks coderd, creates and
//! stores tokens.
//!
//! What to ask and do is decided in `core::controlplane::coderd::operator_token`, which never sees a token. Tokens are never
//! printed. The Secret with the token is read live before it is written, and written only onto the version that was read. A
//! Secret of that name that the operator does not own is reported as foreign, and neither used nor written.

use std::{collections::BTreeMap, ops::ControlFlow};

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CredentialBinding, Reason, ReplacedToken, ReportedSecretRef,
    names::annotation,
};
use coder_k8s_coderd::{BoundToken, Client, CredentialError, ErrorKind, IdentifiedServer, User};
use coder_k8s_core::{
    controlplane::coderd::{
        Step, access,
        operator_token::{
            self, CreatedToken, ObservedToken, TokenCheck, TokenEffect, TokenQuery, TokenReport, TokenSecret,
        },
    },
    outcome::{Blocker, ForeignObject, Retry},
    sources, verified,
};
use coder_k8s_engine::secret::{self, SecretData, SecretEntry, SecretOwnership};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use super::{Exchange, Plane, database, first_user};
use crate::coderd::{Protocol, blocker_of, blocker_of_secret, run_protocol, targets};

/// How long a token lives unless `operatorAccess.tokenLifetimeDays` says otherwise.
const DEFAULT_LIFETIME_DAYS: i64 = 365;

/// How long a new token is to live. coderd may allow less.
pub(super) fn lifetime(object: &CoderControlPlane) -> SignedDuration {
    let days = object.spec.operator_access.token_lifetime_days;
    SignedDuration::from_hours(24 * days.map_or(DEFAULT_LIFETIME_DAYS, i64::from))
}

/// The public half of a token, `<id>-<secret>`, by which coderd lists and deletes it.
pub(super) fn token_id(token: &SecretString) -> &str {
    let text = token.expose_secret();
    text.split_once('-').map_or(text, |(id, _)| id)
}

impl Plane<'_> {
    /// A client with a token. One that a deployment accepted before is sent to that deployment alone, whatever was edited;
    /// one that nobody has accepted yet may make first contact with the server that the spec names. `bindings` are those that
    /// the status does not show yet. `implied`: a token without any binding is that of an earlier release.
    pub(super) fn client(
        &self,
        server: &IdentifiedServer,
        token: &SecretString,
        bindings: &[CredentialBinding],
        implied: bool,
    ) -> Result<Client, Blocker> {
        let client = match self.deployment_id_of(token, bindings, implied) {
            Some(deployment) => server.authenticate(&BoundToken::new(token.clone(), deployment)),
            None => server.first_contact(token),
        };
        client.map_err(|error| match error {
            CredentialError::OtherDeployment => Blocker::until_change(
                Reason::DeploymentChanged,
                "another deployment answers than the one that the operator token belongs to, and the token was not sent: \
                 correct the address, or supply a token of this deployment",
            ),
            CredentialError::BadToken(bad) => Blocker::until_change(Reason::BadToken, bad.to_string()),
        })
    }

    pub(super) fn deployment_id_of(
        &self,
        token: &SecretString,
        bindings: &[CredentialBinding],
        implied: bool,
    ) -> Option<String> {
        let (content, status) = (self.content(token), self.object.status.as_ref()?);
        let all = || bindings.iter().chain(&status.workload.credential_bindings);
        let found = verified::deployment_id_of(all(), &content);
        let is_implied = implied && all().next().is_none() && status.operator_access_ready == Some(true);
        let implied = status.deployment_id.clone().filter(|_| is_implied);
        found.map(str::to_owned).or(implied)
    }

    /// The fingerprint of a token, by which a binding names it.
    pub(super) fn content(&self, token: &SecretString) -> String {
        let uid = self.object.metadata.uid.as_deref().unwrap_or_default();
        targets::token_content(uid, token)
    }
}

impl Exchange<'_> {
    /// A client with the token of the Secret, see [`Plane::client`].
    pub(super) fn client(&self, server: &IdentifiedServer, token: &SecretString) -> Result<Client, Blocker> {
        self.plane.client(server, token, &self.state.report.bindings, self.state.implies_binding)
    }

    /// Records that the server accepted a token.
    pub(super) fn bind(&mut self, server: &IdentifiedServer, token: &SecretString) {
        let content = self.plane.content(token);
        verified::bind(&mut self.state.report.bindings, &content, server.deployment_id());
        self.state.report.accepted_by = Some(server.deployment_id().to_owned());
    }
}

/// Runs the protocol. Returns the client with the token that coderd accepted, if it accepted one.
pub(super) async fn sync(
    exchange: &mut Exchange<'_>,
    server: &IdentifiedServer,
) -> (TokenReport, Option<Client>) {
    let object = exchange.plane.object;
    let observed = ObservedToken {
        method: object.spec.operator_access.method,
        is_recorded: access::may_create(object),
        record: access::proven_record(object, &exchange.state.report),
        user_id: access::recorded_user(object, &exchange.state.report),
        replaced: access::replaced_tokens(object),
        creation_delay: exchange.state.creations.backoff(),
        ..ObservedToken::default()
    };
    let mut protocol = TokenProtocol { observed, exchange, server, secret: None, accepted: None };
    let report = run_protocol(&mut protocol)
        .await
        .unwrap_or(TokenReport { retry: Some(Retry::Backoff), ..TokenReport::default() });
    (report, protocol.accepted.map(|(client, _)| client))
}

struct TokenProtocol<'a, 'e> {
    observed: ObservedToken,
    exchange: &'a mut Exchange<'e>,
    server: &'a IdentifiedServer,
    secret: Option<StoredSecret>,
    /// The user of the token that coderd accepted last, and a client with that token.
    accepted: Option<(Client, User)>,
}

impl Protocol for TokenProtocol<'_, '_> {
    type Query = TokenQuery;
    type Effect = TokenEffect;
    type Done = TokenReport;

    fn decide(&mut self) -> Step<TokenQuery, TokenEffect, TokenReport> {
        operator_token::decide(&self.observed, Timestamp::now())
    }

    async fn ask(&mut self, query: TokenQuery) {
        match query {
            TokenQuery::Secret => self.observed.secret = Some(self.read_secret().await),
            TokenQuery::Check => self.observed.check = Some(self.check().await),
            TokenQuery::Proof => self.observed.proof = Some(self.check().await),
            TokenQuery::Rights => self.observed.rights = Some(self.rights().await),
            TokenQuery::Source => self.observed.source = Some(self.source().await),
        }
    }

    async fn act(&mut self, effect: TokenEffect) -> ControlFlow<TokenReport> {
        // A token for a spec that was edited meanwhile must be neither created nor revoked.
        if !self.exchange.plane.ctx.is_unedited(self.exchange.plane.object).await {
            return ControlFlow::Break(TokenReport { retry: Some(Retry::Backoff), ..TokenReport::default() });
        }
        match effect {
            TokenEffect::Store => {
                self.observed.stored = Some(self.store(self.exchange.state.token.clone()).await);
            }
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
        if self.observed.method == AccessMethod::TokenSecret {
            return self.read_supplied().await;
        }
        let state = &mut *self.exchange.state;
        let read = StoredSecret::read(self.exchange.plane).await;
        state.report.foreign = None;
        let secret = match read? {
            Ok(secret) => secret,
            Err(foreign) => {
                let name = foreign.name.clone();
                state.report.foreign = Some(foreign);
                return Ok(TokenSecret::Foreign { name });
            }
        };
        state.token = secret.token();
        let (has_token, in_place) = (state.token.is_some(), secret.is_in_place());
        self.secret = Some(secret);
        Ok(TokenSecret::Ours { has_token, in_place })
    }

    /// Reads the token that a person supplies, once until something changes.
    async fn read_supplied(&mut self) -> Result<TokenSecret, Blocker> {
        const FIELD: &str = "operatorAccess.tokenSecretRef";
        let Plane { key, object, ctx, .. } = self.exchange.plane;
        let Some((name, data_key)) = access::supplied_token(object) else {
            let message = format!("{FIELD} is not set: name the Secret with the token there");
            return Err(Blocker::until_change(Reason::SecretMissing, message));
        };
        if self.exchange.state.token.is_none() {
            let data = targets::read_secret(&key.namespace, name, ctx).await?;
            let uid = object.metadata.uid.as_deref().unwrap_or_default();
            let value = data.as_ref().and_then(|data| data.value(data_key));
            self.exchange.state.supplied_digest = Some(sources::secret_digest(uid, name, data_key, value));
            let token = targets::required_text(data.as_ref(), data_key, name, FIELD)?;
            self.exchange.state.token = Some(token);
            self.exchange.state.report.token =
                Some(ReportedSecretRef { name: name.to_owned(), key: Some(data_key.to_owned()) });
        }
        Ok(TokenSecret::Ours { has_token: true, in_place: true })
    }

    /// Asks coderd who the token in the Secret belongs to: the one that was read, or the one that was created since.
    async fn check(&mut self) -> TokenCheck {
        let Some(token) = self.exchange.state.token.clone() else {
            return TokenCheck::Refused(Blocker::until_change(Reason::BadToken, "there is no token"));
        };
        let client = match self.exchange.client(self.server, &token) {
            Ok(client) => client,
            Err(blocker) => return TokenCheck::Refused(blocker),
        };
        match client.me().await {
            Ok(user) => {
                let user_id = user.id.clone();
                self.exchange.bind(self.server, &token);
                self.accepted = Some((client, user));
                if let Some(secret) = self.secret.as_ref().filter(|secret| secret.is_in_place()) {
                    self.exchange.state.report.token = Some(secret.reference());
                }
                TokenCheck::Accepted { user_id }
            }
            Err(error) => match (&error.kind, self.observed.method) {
                // What a token of ours lacks, the operator gives to its user; a supplied one is a person's to replace.
                (ErrorKind::Unauthenticated { .. }, _)
                | (ErrorKind::Forbidden { .. }, AccessMethod::TokenSecret) => {
                    TokenCheck::Refused(blocker_of(&error))
                }
                _ => TokenCheck::Unknown(blocker_of(&error)),
            },
        }
    }

    /// Whether the token's user is an owner and a member of every organization.
    async fn rights(&self) -> Result<bool, Blocker> {
        let Some((client, user)) = self.accepted.as_ref().filter(|(_, user)| user.is_owner()) else {
            return Ok(false);
        };
        let all = client.organizations().await.map_err(|error| blocker_of(&error))?;
        Ok(all.iter().all(|organization| user.organization_ids.contains(&organization.id)))
    }

    /// Whether a token could be created: the Secret of the first user, or the address of the database, can be read.
    async fn source(&self) -> Result<(), Blocker> {
        let plane = self.exchange.plane;
        match self.observed.method {
            AccessMethod::FirstUser => first_user::read(plane).await.map(drop),
            AccessMethod::Postgres | AccessMethod::TokenSecret => database::check(plane).await,
        }
    }

    async fn store(&mut self, token: Option<SecretString>) -> Result<(), Blocker> {
        let (Some(secret), Some(token)) = (&self.secret, token) else { return Ok(()) };
        let (plane, state) = (self.exchange.plane, &mut *self.exchange.state);
        if let Some(version) = secret.write(&token, plane).await? {
            state.stored_version = Some(version);
        }
        secret.remove_earlier(plane).await?;
        (state.token, state.report.token) = (Some(token), Some(secret.reference()));
        Ok(())
    }

    /// Creates a token and stores it. The token that it replaces keeps working until [`TokenEffect::RemoveOthers`].
    async fn create(&mut self, renews: bool, is_refused: bool) -> Result<CreatedToken, Blocker> {
        let (plane, present) = (self.exchange.plane, self.exchange.state.token.as_ref());
        let (token, created) = match self.observed.method {
            AccessMethod::FirstUser => {
                let (created, password) = first_user::create(plane, self.server, present, renews).await;
                if let Some(password) = password {
                    self.exchange.bind(self.server, &password);
                }
                created?
            }
            AccessMethod::Postgres | AccessMethod::TokenSecret => {
                database::create(plane, self.server, present, is_refused).await?
            }
        };
        self.exchange.state.creations.created();
        self.store(Some(token)).await?;
        Ok(created)
    }

    /// Removes every token of ours but the one that was created, stored and accepted.
    async fn remove_others(&self) -> Result<(), Blocker> {
        let (plane, token) = (self.exchange.plane, self.exchange.state.token.as_ref());
        match (self.observed.method, &self.accepted, token) {
            (AccessMethod::FirstUser, Some((client, _)), Some(token)) => {
                first_user::remove_tokens(plane, client, "me", Some(token_id(token))).await
            }
            (AccessMethod::Postgres, _, Some(token)) => database::keep_only(plane, token).await,
            // No token was created, or none was accepted.
            (AccessMethod::FirstUser | AccessMethod::Postgres | AccessMethod::TokenSecret, _, _) => Ok(()),
        }
    }

    async fn revoke_replaced(&mut self, replaced: &ReplacedToken) -> Result<(), Blocker> {
        let plane = self.exchange.plane;
        let revoked = match (replaced.method, &self.accepted, &replaced.user_id) {
            (AccessMethod::Postgres, _, _) => database::revoke(plane).await,
            (AccessMethod::FirstUser, Some((client, _)), Some(user)) => {
                first_user::remove_tokens(plane, client, user, None).await
            }
            // Nothing records whose token it was. `me` would be the user of the token in use.
            (AccessMethod::FirstUser, _, None) => first_user::remove_all(plane, self.server).await,
            (AccessMethod::FirstUser, None, Some(_)) | (AccessMethod::TokenSecret, _, _) => Ok(()),
        };
        // What will be retried may still need its Secret.
        if revoked.as_ref().is_err_and(|blocker| blocker.retry != Retry::OnChange) {
            return revoked;
        }
        // The Secret of a revoked token is of no use. If it cannot be removed, garbage collection removes it with the object.
        if self.observed.method == AccessMethod::TokenSecret
            && let Err(blocker) = StoredSecret::remove(plane).await
        {
            tracing::warn!(reason = %blocker.reason, "{}", blocker.message);
        }
        revoked
    }
}

/// The Secret with the token that the operator created, as it was read, and after a rename the one before it.
pub(super) struct StoredSecret {
    name: String,
    live: Option<SecretData>,
    /// The Secret of an earlier `generatedTokenSecretName`.
    earlier: Option<(String, SecretData)>,
}

impl StoredSecret {
    /// Reads the Secret of the spec and, after a rename, the one before it. The inner error is a foreign Secret.
    pub(super) async fn read(plane: Plane<'_>) -> Result<Result<Self, ForeignObject>, Blocker> {
        let Plane { key, object, owner, ctx } = plane;
        let name = access::secret_name(object);
        let live = targets::read_secret(&key.namespace, &name, ctx).await?;
        match live.as_ref().map(|live| live.ownership(owner)) {
            None | Some(SecretOwnership::Ours) => {}
            Some(SecretOwnership::Leftover) => {
                let message = format!(
                    "waiting for the deletion of Secret {name} of an earlier object of the same name"
                );
                return Err(Blocker::new(Reason::AwaitingDeletion, message));
            }
            Some(SecretOwnership::Foreign) => {
                let hand_over = format!("{}=CoderControlPlane/{}", annotation::ADOPT_BY, object.name_any());
                return Ok(Err(ForeignObject { kind: "Secret".to_owned(), name, hand_over, refused: None }));
            }
        }
        let recorded = object.status.as_ref().and_then(|status| status.operator_token_secret_ref.as_ref());
        let renamed =
            recorded.filter(|recorded| recorded.name != name && access::minted_token(object).is_some());
        let mut earlier = None;
        if let Some(recorded) = renamed {
            let read = targets::read_secret(&key.namespace, &recorded.name, ctx).await?;
            let ours = read.filter(|earlier| earlier.ownership(owner) == SecretOwnership::Ours);
            earlier = ours.map(|earlier| (recorded.name.clone(), earlier));
        }
        Ok(Ok(Self { name, live, earlier }))
    }

    /// The token in the Secret of the spec.
    fn stored(&self) -> Option<SecretString> {
        self.live.as_ref()?.text(access::TOKEN_KEY)
    }

    /// The token in either Secret.
    pub(super) fn token(&self) -> Option<SecretString> {
        self.stored().or_else(|| self.earlier.as_ref()?.1.text(access::TOKEN_KEY))
    }

    /// Whether the Secret of the spec holds the token and no earlier one is left.
    fn is_in_place(&self) -> bool {
        self.stored().is_some() && self.earlier.is_none()
    }

    /// Where readers find the token.
    fn reference(&self) -> ReportedSecretRef {
        ReportedSecretRef { name: self.name.clone(), key: Some(access::TOKEN_KEY.to_owned()) }
    }

    /// Writes the token. Returns the new version. None: the Secret already holds it.
    async fn write(&self, token: &SecretString, plane: Plane<'_>) -> Result<Option<String>, Blocker> {
        if self.stored().is_some_and(|stored| stored.expose_secret() == token.expose_secret()) {
            return Ok(None);
        }
        let annotations = BTreeMap::new();
        let entry =
            SecretEntry { name: &self.name, key: access::TOKEN_KEY, value: token, annotations: &annotations };
        let written = secret::write(&plane.ctx.client, plane.owner, self.live.as_ref(), &entry).await;
        let Some(version) = written.map_err(blocker_of_secret)? else {
            let message = format!(
                "Secret {} changed while the operator token was stored: waiting to store it again",
                self.name
            );
            return Err(Blocker::new(Reason::Conflict, message).with_retry(Retry::Soon));
        };
        tracing::info!("stored the operator token in Secret {}", self.name);
        Ok(Some(version))
    }

    /// Removes the Secret of an earlier name.
    async fn remove_earlier(&self, Plane { key, ctx, .. }: Plane<'_>) -> Result<(), Blocker> {
        let Some((name, live)) = &self.earlier else { return Ok(()) };
        let removed = secret::remove(&ctx.client, &key.namespace, name, live).await;
        if removed.map_err(blocker_of_secret)? {
            tracing::info!("removed Secret {name}: the operator token is in Secret {} now", self.name);
        }
        Ok(())
    }

    /// Removes every Secret with the token. A foreign one stays.
    pub(super) async fn remove(plane: Plane<'_>) -> Result<(), Blocker> {
        let Ok(secret) = Self::read(plane).await? else { return Ok(()) };
        if let Some(live) = &secret.live {
            let removed = secret::remove(&plane.ctx.client, &plane.key.namespace, &secret.name, live).await;
            if removed.map_err(blocker_of_secret)? {
                tracing::info!("removed Secret {} with the operator token", secret.name);
            }
        }
        secret.remove_earlier(plane).await
    }
}
