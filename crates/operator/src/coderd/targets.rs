//! The one factory of clients of coderd, and the session tokens that they use: an own one from `bootstrap`, else the operator
//! token of the control plane.
//!
//! An address becomes a [`Server`], a server that answered which deployment it is becomes an [`IdentifiedServer`], and only that
//! takes a credential, which must belong to its deployment. [`Connections`] does this for the targets of one reconcile and
//! is dropped at its end, so that the next reconcile identifies the servers again.

use std::collections::BTreeMap;

use coder_k8s_api::{
    CoderControlPlane, CoderProvisioner, CredentialBinding, ProxyBootstrap, Reason, SecretKeyRef,
    condition::condition_type,
};
use coder_k8s_coderd::{
    BoundToken, CallLimits, Client, CoderdError, CredentialError, Endpoint, IdentifiedServer, Server,
    is_https, is_same_server,
};
use coder_k8s_core::{
    controlplane::access_url,
    outcome::Blocker,
    target::{CoderdTarget, Credentials, CredentialsKind, SecretDataRef},
    verified,
};
use coder_k8s_engine::secret::{self, SecretData};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

use super::blocker_of_secret;
use crate::controller::{CoderResource, Context};

/// Why a target cannot be used.
pub(crate) enum TargetError {
    /// It never will be usable again: neither the control plane nor the credentials exist, or another deployment answers.
    /// A deletion does not wait for it.
    Gone,
    /// Something in Kubernetes is missing, and coderd was not called.
    Blocked(Blocker),
    /// The identification failed.
    Failed(CoderdError),
}

impl From<Blocker> for TargetError {
    fn from(blocker: Blocker) -> Self {
        Self::Blocked(blocker)
    }
}

impl From<CoderdError> for TargetError {
    fn from(error: CoderdError) -> Self {
        Self::Failed(error)
    }
}

/// The server of a control plane, at `operatorAccess.apiURL` or else at its Service: by HTTPS if a CA is named. Another address
/// than the Service must be allowed, as for [`is_allowed`].
pub(crate) async fn server_of(plane: &CoderControlPlane, ctx: &Context) -> Result<Server, Blocker> {
    let access = &plane.spec.operator_access;
    let url = match (&access.api_url, &access.ca_secret_ref) {
        (Some(url), _) if !is_service_of(plane, url.as_str()) && !is_listed(url.as_str(), ctx) => {
            let message = format!(
                "the operator does not call {url}: it is not the Service of this control plane. Leave out \
                 operatorAccess.apiURL, or add it to --allowed-coder-urls of the operator"
            );
            return Err(Blocker::until_change(Reason::UrlNotAllowed, message));
        }
        (Some(url), _) => url.to_string(),
        (None, Some(_)) => access_url::https_url(plane),
        (None, None) => access_url::http_url(plane),
    };
    let ca = access.ca_secret_ref.as_ref().map(|reference| (reference, "operatorAccess.caSecretRef"));
    server_at(url, ca, &plane.namespace().unwrap_or_default(), ctx).await
}

/// [`server_of`] for pools and proxies, for which every failure means that they wait for their control plane.
pub(crate) async fn server_of_dependent(plane: &CoderControlPlane, ctx: &Context) -> Result<Server, Blocker> {
    let server = server_of(plane, ctx).await;
    server.map_err(|blocker| Blocker::new(Reason::ControlPlaneUnavailable, blocker.message))
}

/// The server at an address. `ca` is the Secret with the CA to trust, and the field of the spec that names it.
async fn server_at(
    url: String,
    ca: Option<(&SecretKeyRef, &str)>,
    namespace: &str,
    ctx: &Context,
) -> Result<Server, Blocker> {
    let ca = read_ca(ca, namespace, ctx).await?;
    let bad = |bad| Blocker::until_change(Reason::BadTarget, format!("coderd cannot be called: {bad}"));
    let tenant = namespace.to_owned();
    ctx.external.connector.server(&Endpoint { url, ca, tenant }).map_err(bad)
}

/// The server at the address of a proxy's `bootstrap`. The caller has checked [`is_allowed`].
pub(crate) async fn bootstrap_server(
    bootstrap: &ProxyBootstrap,
    namespace: &str,
    ctx: &Context,
) -> Result<Server, Blocker> {
    let ca = bootstrap.ca_secret_ref.as_ref().map(|reference| (reference, "bootstrap.caSecretRef"));
    let server = server_at(bootstrap.coder_url.to_string(), ca, namespace, ctx).await;
    server.map_err(|blocker| Blocker::new(Reason::CoderdUnavailable, blocker.message))
}

/// Reads a Secret live. None: it does not exist.
pub(crate) async fn read_secret(
    namespace: &str,
    name: &str,
    ctx: &Context,
) -> Result<Option<SecretData>, Blocker> {
    secret::read(&ctx.client, namespace, name).await.map_err(blocker_of_secret)
}

/// The text under a key of a Secret as it was read. `field` is the field of the spec that names the Secret.
pub(crate) fn required_text(
    data: Option<&SecretData>,
    key: &str,
    name: &str,
    field: &str,
) -> Result<SecretString, Blocker> {
    data.and_then(|data| data.text(key)).ok_or_else(|| {
        let message =
            format!("Secret {name} of {field} does not exist, or its key {key} is missing or empty");
        Blocker::until_change(Reason::SecretMissing, message)
    })
}

/// Reads a CA certificate, if the spec names one: the reference, and the field of the spec that holds it.
pub(crate) async fn read_ca(
    ca: Option<(&SecretKeyRef, &str)>,
    namespace: &str,
    ctx: &Context,
) -> Result<Option<Vec<u8>>, Blocker> {
    let Some((reference, field)) = ca else { return Ok(None) };
    let key = reference.key.as_ref().map_or("ca.crt", AsRef::as_ref);
    let data = read_secret(namespace, reference.name.as_str(), ctx).await?;
    let Some(ca) = data.and_then(|data| data.value(key).map(<[u8]>::to_vec)) else {
        let message = format!("Secret {} of {field} does not exist, or has no key {key}", reference.name);
        return Err(Blocker::until_change(Reason::SecretMissing, message));
    };
    Ok(Some(ca))
}

/// Whether a credential of an object may be sent to an address: it is that of a control plane of the same namespace, or
/// `--allowed-coder-urls` lists it. Without this check the author of a spec could have a token that they cannot read sent to a
/// server of their own.
pub(crate) fn is_allowed(url: &str, namespace: &str, ctx: &Context) -> bool {
    is_listed(url, ctx) || ctx.caches.control_planes.any_in(namespace, |plane| is_service_of(plane, url))
}

fn is_listed(url: &str, ctx: &Context) -> bool {
    ctx.policy.allowed_urls.iter().any(|allowed| is_same_server(allowed, url))
}

/// Whether the token of a control plane goes over plain HTTP to another address than its Service.
pub(crate) fn is_plain_elsewhere(plane: &CoderControlPlane) -> bool {
    let url = plane.spec.operator_access.api_url.as_ref();
    url.is_some_and(|url| !is_https(url.as_str()) && !is_service_of(plane, url.as_str()))
}

/// Whether an address is that of the Service of a control plane.
fn is_service_of(plane: &CoderControlPlane, url: &str) -> bool {
    let addresses =
        [access_url::cluster_url(plane), access_url::http_url(plane), access_url::https_url(plane)];
    // A Service has a DNS name with and without the cluster domain.
    let suffix = format!(".svc.{}", plane.spec.cluster_domain);
    addresses
        .iter()
        .any(|own| is_same_server(own, url) || is_same_server(&own.replacen(&suffix, ".svc", 1), url))
}

/// The servers and clients of one reconcile. Each server is identified once.
pub(crate) struct Connections {
    namespace: String,
    tokens: OwnTokens,
    /// The address and CA in the spec of a proxy.
    bootstrap: Option<ProxyBootstrap>,
    /// By the name of the control plane, or by address where there is none.
    servers: BTreeMap<String, IdentifiedServer>,
    clients: BTreeMap<CoderdTarget, Client>,
    limits: CallLimits,
}

impl Connections {
    /// Creates connections of an object without a server. `recorded` is the coderd of the credential that its status records,
    /// `bootstrap` that of a proxy's spec.
    pub(crate) fn new<K: CoderResource>(
        object: &K,
        recorded: Option<&CoderdTarget>,
        bootstrap: Option<&ProxyBootstrap>,
    ) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            tokens: OwnTokens::new(object, recorded),
            bootstrap: bootstrap.cloned(),
            servers: BTreeMap::new(),
            clients: BTreeMap::new(),
            limits: CallLimits::default(),
        }
    }

    /// Limits the calls of this reconcile, because it has a deadline. A server that was identified before is identified again.
    pub(crate) fn limit(&mut self, limits: CallLimits) {
        self.servers.clear();
        self.clients.clear();
        self.limits = limits;
    }

    /// The identified server of a control plane.
    pub(crate) async fn plane(
        &mut self,
        plane: &CoderControlPlane,
        ctx: &Context,
    ) -> Result<IdentifiedServer, TargetError> {
        self.once(plane.name_any(), async { Ok(server_of_dependent(plane, ctx).await?) }).await
    }

    /// The server of a target, if it is the deployment that the target names.
    pub(crate) async fn server(
        &mut self,
        target: &CoderdTarget,
        ctx: &Context,
    ) -> Result<IdentifiedServer, TargetError> {
        let recorded = target.deployment_id.as_deref();
        if let Some(plane) = ctx.caches.control_planes.get(&self.namespace, &target.control_plane) {
            let published = plane.status.as_ref().and_then(|status| status.deployment_id.as_deref());
            if recorded.is_some() && published.is_some() && recorded != published {
                return Err(TargetError::Gone);
            }
            let server = self.plane(&plane, ctx).await?;
            // A retry and not `Gone`: the control plane's status still names the recorded deployment, or none yet, and is
            // corrected by its own sync.
            if recorded.is_some_and(|recorded| recorded != server.deployment_id()) {
                return Err(other_deployment().into());
            }
            return Ok(server);
        }
        let server = self.address(target, ctx).await?;
        // Without a control plane nothing but the recorded deployment ID shows that the address is the right one.
        if recorded == Some(server.deployment_id()) { Ok(server) } else { Err(TargetError::Gone) }
    }

    async fn address(
        &mut self,
        target: &CoderdTarget,
        ctx: &Context,
    ) -> Result<IdentifiedServer, TargetError> {
        let mut bootstrap = None;
        if target.control_plane.is_empty() {
            if !is_allowed(&target.url, &self.namespace, ctx) {
                return Err(TargetError::Gone);
            }
            bootstrap = self.bootstrap.clone().filter(|bootstrap| bootstrap.coder_url.as_str() == target.url);
        }
        let (namespace, url) = (self.namespace.clone(), target.url.clone());
        let server = async {
            if let Some(bootstrap) = bootstrap {
                return Ok(bootstrap_server(&bootstrap, &namespace, ctx).await?);
            }
            let target = Endpoint { url, ca: None, tenant: namespace };
            ctx.external.connector.server(&target).map_err(|_| TargetError::Gone)
        };
        self.once(target.url.clone(), server).await
    }

    /// The server that this reconcile has identified under `key`, else a new one.
    async fn once(
        &mut self,
        key: String,
        server: impl Future<Output = Result<Server, TargetError>>,
    ) -> Result<IdentifiedServer, TargetError> {
        match self.servers.get(&key) {
            Some(identified) => Ok(identified.clone()),
            None => Ok(self.identify(key, &server.await?).await?),
        }
    }

    /// Identifies a server and keeps it under `key`, the name of its control plane or its address.
    pub(crate) async fn identify(
        &mut self,
        key: String,
        server: &Server,
    ) -> Result<IdentifiedServer, CoderdError> {
        let identified = server.within(self.limits).identify().await?;
        self.servers.insert(key, identified.clone());
        Ok(identified)
    }

    /// A client with the credentials of a target.
    pub(crate) async fn client(
        &mut self,
        target: &CoderdTarget,
        ctx: &Context,
    ) -> Result<Client, TargetError> {
        if let Some(client) = self.clients.get(target) {
            return Ok(client.clone());
        }
        let plane = ctx.caches.control_planes.get(&self.namespace, &target.control_plane);
        let is_address = target.control_plane.is_empty();
        if is_address && !is_allowed(&target.url, &self.namespace, ctx) {
            return Err(TargetError::Gone);
        }
        // Nothing will bring back a target without its control plane: it is not waited for.
        let blocked = |blocker: Blocker| {
            if is_address || plane.is_some() { TargetError::Blocked(blocker) } else { TargetError::Gone }
        };
        let recorded = target.credentials.as_ref().and_then(|credentials| credentials.secret.clone());
        let published = || {
            let reference = plane.as_ref()?.status.as_ref()?.operator_token_secret_ref.as_ref()?;
            Some(SecretDataRef::of(reference, DEFAULT_TOKEN_KEY))
        };
        let Some(secret) = recorded.or_else(published) else {
            let message =
                format!("waiting for the operator token of CoderControlPlane {}", target.control_plane);
            return Err(blocked(Blocker::new(Reason::OperatorAccessNotReady, message)));
        };
        let Some(token) = read_token(&secret, &self.namespace, ctx).await? else {
            let reason = if is_address {
                Reason::CredentialsSecretUnavailable
            } else {
                Reason::OperatorTokenSecretUnavailable
            };
            return Err(blocked(missing_token(reason, &secret)));
        };
        let server = self.server(target, ctx).await?;
        let bound = match (target.credentials.as_ref().map(|credentials| credentials.kind), &plane) {
            (Some(CredentialsKind::Bootstrap), _) => self.tokens.deployment_id_of(&token, target),
            (_, Some(plane)) => OwnTokens::new(&**plane, None).deployment_id_of(&token, target),
            (_, None) => None,
        };
        let is_bound = bound.is_some();
        let published = plane.as_ref().and_then(|plane| plane.status.as_ref()?.deployment_id.clone());
        let client = match bound.or_else(|| target.deployment_id.clone()).or(published) {
            Some(deployment_id) => server.authenticate(&BoundToken::new(token.clone(), deployment_id)),
            // The Go operator records no deployment ID, so that there is nothing to compare with.
            None => server.first_contact(&token),
        };
        let client = client.map_err(|error| match error {
            CredentialError::OtherDeployment if is_bound => bound_elsewhere(&secret.name),
            error => blocker_of_credential(error),
        })?;
        self.tokens.presented.insert(target.clone(), (token, server.deployment_id().to_owned()));
        self.clients.insert(target.clone(), client.clone());
        Ok(client)
    }

    /// Records that coderd accepted the credentials of a target.
    pub(crate) fn accepted(&mut self, target: &CoderdTarget) {
        self.tokens.accepted(target);
    }

    /// The bindings of the object's own tokens, for its status.
    pub(crate) fn bindings(&self) -> &[CredentialBinding] {
        &self.tokens.bindings
    }
}

/// The tokens that an object brings along (`bootstrap`), and the deployments that accepted them. An operator token is bound on
/// the status of its control plane.
struct OwnTokens {
    uid: String,
    bindings: Vec<CredentialBinding>,
    /// The credentials and the deployment that a status without bindings records: one of an earlier release.
    implied: Option<(Credentials, String)>,
    /// What this reconcile sends to whom.
    presented: BTreeMap<CoderdTarget, (SecretString, String)>,
}

impl OwnTokens {
    fn new<K: CoderResource>(object: &K, recorded: Option<&CoderdTarget>) -> Self {
        let status = object.status().map(K::workload);
        let bindings = status.map(|status| status.credential_bindings.clone()).unwrap_or_default();
        let implied = recorded.filter(|_| bindings.is_empty()).and_then(|recorded| {
            let credentials = recorded.credentials.clone()?;
            Some((credentials, recorded.deployment_id.clone()?))
        });
        Self { uid: object.uid().unwrap_or_default(), bindings, implied, presented: BTreeMap::new() }
    }

    /// The deployment that a token belongs to. None: no deployment has accepted it yet.
    fn deployment_id_of(&self, token: &SecretString, target: &CoderdTarget) -> Option<String> {
        let bound = verified::deployment_id_of(&self.bindings, &self.content(token)).map(str::to_owned);
        let implied = self.implied.as_ref().filter(|(known, _)| Some(known) == target.credentials.as_ref());
        bound.or_else(|| implied.map(|(_, deployment_id)| deployment_id.clone()))
    }

    fn accepted(&mut self, target: &CoderdTarget) {
        let Some(credentials) = &target.credentials else { return };
        let Some((token, deployment_id)) = self.presented.remove(target) else { return };
        let content = self.content(&token);
        let is_known = verified::deployment_id_of(&self.bindings, &content) == Some(&*deployment_id);
        if credentials.kind == CredentialsKind::Bootstrap && !is_known {
            verified::bind(&mut self.bindings, &content, &deployment_id);
        }
    }

    /// The fingerprint of a token, by which a binding names it.
    fn content(&self, token: &SecretString) -> String {
        token_content(&self.uid, token)
    }
}

/// The fingerprint of a token that is used for the object with this UID.
pub(crate) fn token_content(uid: &str, token: &SecretString) -> String {
    verified::fingerprint(uid, &["token", token.expose_secret()])
}

/// The blocker for a token that another deployment accepted before.
fn bound_elsewhere(secret: &str) -> Blocker {
    let message = format!(
        "another deployment answers than the one that accepted the token in Secret {secret}, and the token was not sent: \
         correct the address, or put a token of this deployment into the Secret"
    );
    Blocker::until_change(Reason::DeploymentChanged, message)
}

/// The blocker for another deployment than the one that a credential belongs to.
pub(crate) fn other_deployment() -> Blocker {
    let message =
        "another deployment answers than the one that is recorded, and no credential was sent to it";
    Blocker::new(Reason::ControlPlaneUnavailable, message)
}

/// The blocker for a credential that must not be attached to a server.
pub(crate) fn blocker_of_credential(error: CredentialError) -> Blocker {
    match error {
        CredentialError::OtherDeployment => other_deployment(),
        CredentialError::BadToken(bad) => Blocker::new(Reason::BadToken, bad.to_string()),
    }
}

/// The key in the Secret where neither spec nor status names one.
pub(crate) const DEFAULT_TOKEN_KEY: &str = "token";

/// Where the credentials of a pool are. Those of `bootstrap` are used alone, even if they do not work.
pub(crate) fn credentials_of_pool(
    object: &CoderProvisioner,
    plane: Option<&CoderControlPlane>,
) -> Result<Credentials, Blocker> {
    if let Some(bootstrap) = &object.spec.bootstrap {
        let reference = &bootstrap.credentials_secret_ref;
        let key = reference.key.as_ref().map_or(DEFAULT_TOKEN_KEY, AsRef::as_ref).to_owned();
        let secret = Some(SecretDataRef { name: reference.name.to_string(), key });
        return Ok(Credentials { kind: CredentialsKind::Bootstrap, secret });
    }
    operator_token(object.spec.control_plane_ref.name.as_str(), plane)
}

/// Where the operator token of a control plane is, by its status. The control plane must report it as usable.
pub(crate) fn operator_token(name: &str, plane: Option<&CoderControlPlane>) -> Result<Credentials, Blocker> {
    let status = plane.and_then(|plane| plane.status.as_ref());
    if status.is_none_or(|status| status.operator_access_ready != Some(true)) {
        return Err(no_access(name, plane));
    }
    match status.and_then(|status| status.operator_token_secret_ref.as_ref()) {
        None => {
            let message = format!(
                "status.operatorTokenSecretRef of CoderControlPlane {name} is not set; see its condition OperatorAccessReady"
            );
            Err(Blocker::new(Reason::OperatorTokenSecretRefMissing, message))
        }
        Some(reference) if reference.name.trim().is_empty() => {
            let message = format!(
                "status.operatorTokenSecretRef of CoderControlPlane {name} has an empty name; see its condition \
                 OperatorAccessReady"
            );
            Err(Blocker::new(Reason::OperatorTokenSecretRefInvalid, message))
        }
        Some(reference) => {
            let secret = Some(SecretDataRef::of(reference, DEFAULT_TOKEN_KEY));
            Ok(Credentials { kind: CredentialsKind::Operator, secret })
        }
    }
}

/// The blocker for a control plane without operator access. One that is about to get it is waited for; why another one has
/// none is told by its own condition.
fn no_access(name: &str, plane: Option<&CoderControlPlane>) -> Blocker {
    let conditions =
        plane.iter().filter_map(|plane| plane.status.as_ref()).flat_map(|status| &status.workload.conditions);
    let said =
        conditions.into_iter().find(|condition| condition.type_ == condition_type::OPERATOR_ACCESS_READY);
    let reason = said.and_then(Reason::of);
    match (plane, reason) {
        (Some(_), None | Some(Reason::Pending)) => {
            let message = format!(
                "waiting for operator access of CoderControlPlane {name} (status.operatorAccessReady)"
            );
            Blocker::new(Reason::AwaitingControlPlane, message)
        }
        (None, _) => {
            let message =
                format!("CoderControlPlane {name} does not exist, so there is no status.operatorAccessReady");
            Blocker::new(Reason::OperatorAccessNotReady, message)
        }
        (Some(_), Some(reason)) => {
            let message = format!(
                "CoderControlPlane {name} has no operator access (status.operatorAccessReady): {reason}; see its condition \
                 OperatorAccessReady"
            );
            Blocker::new(Reason::OperatorAccessNotReady, message)
        }
    }
}

/// The token in a Secret. None: the Secret or its key does not exist, or the value is empty.
pub(crate) async fn read_token(
    secret: &SecretDataRef,
    namespace: &str,
    ctx: &Context,
) -> Result<Option<SecretString>, Blocker> {
    let unreadable = |blocker: Blocker| Blocker::new(Reason::SecretUnreadable, blocker.message);
    let data = read_secret(namespace, &secret.name, ctx).await.map_err(unreadable)?;
    Ok(data.and_then(|data| data.text(&secret.key)))
}

/// Whether the credentials are in their Secret. `reason` is that of the blocker if they are not, or cannot be read.
pub(crate) async fn check_token(
    credentials: &Credentials,
    reason: Reason,
    namespace: &str,
    ctx: &Context,
) -> Result<(), Blocker> {
    let Some(secret) = &credentials.secret else { return Ok(()) };
    let found = read_token(secret, namespace, ctx).await;
    match found.map_err(|blocker| Blocker { reason, ..blocker })? {
        Some(_) => Ok(()),
        None => Err(missing_token(reason, secret)),
    }
}

/// The blocker for a token that is not in its Secret.
pub(crate) fn missing_token(reason: Reason, secret: &SecretDataRef) -> Blocker {
    let message = format!(
        "Secret {} does not exist, or its key {} is missing or empty: create it",
        secret.name, secret.key
    );
    Blocker::new(reason, message)
}

#[cfg(test)]
mod tests;
