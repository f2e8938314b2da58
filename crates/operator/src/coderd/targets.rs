//! The one factory of clients.
//!
//! An address becomes a [`Server`], a server that said which deployment it is becomes an [`IdentifiedServer`], and only that
//! takes a credential, which must belong to its deployment. [`Connections`] does this for the targets of one reconcile and
//! is dropped at its end, so that the next reconcile asks again who answers.

use std::collections::BTreeMap;

use coder_k8s_api::{CoderControlPlane, ProxyBootstrap, Reason, SecretKeyRef};
use coder_k8s_coderd::{
    BoundToken, Client, CredentialError, Error, IdentifiedServer, Server, Target, is_same_server,
};
use coder_k8s_core::{
    controlplane::access_url,
    outcome::Blocker,
    target::{CoderdTarget, SecretDataRef},
};
use coder_k8s_engine::secret::{self, SecretData};
use kube::ResourceExt;

use super::{blocker_of_secret, credentials};
use crate::controller::Context;

/// Why a target cannot be used.
pub(crate) enum TargetError {
    /// It never can: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
    /// Something other than coderd stands in the way.
    Blocked(Blocker),
    /// coderd was asked who it is and did not answer as it should.
    Failed(Error),
}

impl From<Blocker> for TargetError {
    fn from(blocker: Blocker) -> Self {
        Self::Blocked(blocker)
    }
}

impl From<Error> for TargetError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The server of a control plane, at the address that the operator calls.
pub(crate) async fn server_of(plane: &CoderControlPlane, ctx: &Context) -> Result<Server, Blocker> {
    let access = &plane.spec.operator_access;
    let url = match (&access.api_url, &access.ca_secret_ref) {
        (Some(url), _) => url.to_string(),
        (None, Some(_)) => access_url::https_url(plane),
        (None, None) => access_url::http_url(plane),
    };
    let ca = access.ca_secret_ref.as_ref().map(|reference| (reference, "operatorAccess.caSecretRef"));
    server_at(url, ca, &plane.namespace().unwrap_or_default(), ctx).await
}

/// The server at an address. `ca` is the Secret with the CA that vouches for it, and the field that names the Secret.
async fn server_at(
    url: String,
    ca: Option<(&SecretKeyRef, &str)>,
    namespace: &str,
    ctx: &Context,
) -> Result<Server, Blocker> {
    let ca = match ca {
        None => None,
        Some((reference, field)) => Some(read_ca(reference, field, namespace, ctx).await?),
    };
    let bad = |bad| Blocker::until_change(Reason::BadTarget, format!("coderd cannot be called: {bad}"));
    ctx.external.connector.server(&Target { url, ca }).map_err(bad)
}

/// The server at the address of a proxy's `bootstrap`, which is allowed.
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

/// Reads a certificate authority, which the given field of the spec names.
pub(crate) async fn read_ca(
    reference: &SecretKeyRef,
    field: &str,
    namespace: &str,
    ctx: &Context,
) -> Result<Vec<u8>, Blocker> {
    let key = reference.key.as_ref().map_or("ca.crt", AsRef::as_ref);
    let data = read_secret(namespace, reference.name.as_str(), ctx).await?;
    data.and_then(|data| data.value(key).map(<[u8]>::to_vec)).ok_or_else(|| {
        let message = format!("Secret {} of {field} does not exist, or has no key {key}", reference.name);
        Blocker::until_change(Reason::SecretMissing, message)
    })
}

/// Whether a credential of an object may be sent to an address: it is that of a control plane of the same namespace, or
/// whoever runs the operator allows it.
pub(crate) fn is_allowed(url: &str, namespace: &str, ctx: &Context) -> bool {
    if ctx.policy.allowed_urls.iter().any(|allowed| is_same_server(allowed, url)) {
        return true;
    }
    let planes = ctx.caches.control_planes.filter(|plane| plane.namespace().as_deref() == Some(namespace));
    planes.iter().any(|plane| {
        let long =
            [access_url::cluster_url(plane), access_url::http_url(plane), access_url::https_url(plane)];
        let short = format!(".svc.{}", plane.spec.cluster_domain);
        long.iter()
            .any(|own| is_same_server(own, url) || is_same_server(&own.replacen(&short, ".svc", 1), url))
    })
}

/// The servers and clients of one reconcile. Each server is identified once.
pub(crate) struct Connections {
    namespace: String,
    /// The address, with its CA, that the spec of a proxy names.
    bootstrap: Option<ProxyBootstrap>,
    /// By control plane, or by address where there is none.
    servers: BTreeMap<String, IdentifiedServer>,
    clients: BTreeMap<CoderdTarget, Client>,
}

impl Connections {
    /// No server is identified yet. `bootstrap` is what the spec of a proxy names.
    pub(crate) fn new(namespace: &str, bootstrap: Option<&ProxyBootstrap>) -> Self {
        let (namespace, bootstrap) = (namespace.to_owned(), bootstrap.cloned());
        Self { namespace, bootstrap, servers: BTreeMap::new(), clients: BTreeMap::new() }
    }

    /// The server of a control plane.
    pub(crate) async fn plane(
        &mut self,
        plane: &CoderControlPlane,
        ctx: &Context,
    ) -> Result<IdentifiedServer, TargetError> {
        if let Some(server) = self.servers.get(&plane.name_any()) {
            return Ok(server.clone());
        }
        let unavailable = |blocker: Blocker| Blocker::new(Reason::ControlPlaneUnavailable, blocker.message);
        let server = server_of(plane, ctx).await.map_err(unavailable)?;
        Ok(self.identify(plane.name_any(), &server).await?)
    }

    /// The server at the address of `bootstrap`, which is allowed.
    pub(crate) async fn bootstrap(
        &mut self,
        bootstrap: &ProxyBootstrap,
        ctx: &Context,
    ) -> Result<IdentifiedServer, TargetError> {
        let url = bootstrap.coder_url.to_string();
        if let Some(server) = self.servers.get(&url) {
            return Ok(server.clone());
        }
        let server = bootstrap_server(bootstrap, &self.namespace, ctx).await?;
        Ok(self.identify(url, &server).await?)
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
            // The status of the control plane says in its time which deployment answers now.
            if recorded.is_some_and(|recorded| recorded != server.deployment_id()) {
                return Err(other_deployment().into());
            }
            return Ok(server);
        }
        let server = self.address(target, ctx).await?;
        // Without a control plane nobody vouches for the address: it must be the deployment that is recorded.
        if recorded != Some(server.deployment_id()) { Err(TargetError::Gone) } else { Ok(server) }
    }

    async fn address(
        &mut self,
        target: &CoderdTarget,
        ctx: &Context,
    ) -> Result<IdentifiedServer, TargetError> {
        if target.control_plane.is_empty() {
            if !is_allowed(&target.url, &self.namespace, ctx) {
                return Err(TargetError::Gone);
            }
            let bootstrap = self.bootstrap.clone();
            if let Some(bootstrap) = bootstrap.filter(|bootstrap| bootstrap.coder_url.as_str() == target.url)
            {
                return self.bootstrap(&bootstrap, ctx).await;
            }
        }
        if let Some(server) = self.servers.get(&target.url) {
            return Ok(server.clone());
        }
        let server =
            ctx.external.connector.server(&Target::new(target.url.clone())).map_err(|_| TargetError::Gone)?;
        Ok(self.identify(target.url.clone(), &server).await?)
    }

    /// Asks a server who it is and remembers the answer under its control plane or address.
    pub(crate) async fn identify(&mut self, key: String, server: &Server) -> Result<IdentifiedServer, Error> {
        let identified = server.identify().await?;
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
        // A target that is gone for good is not waited for.
        let blocked = |blocker: Blocker| match is_address || plane.is_some() {
            true => TargetError::Blocked(blocker),
            false => TargetError::Gone,
        };
        let recorded = target.credentials.as_ref().and_then(|credentials| credentials.secret.clone());
        let published = || {
            let reference = plane.as_ref()?.status.as_ref()?.operator_token_secret_ref.as_ref()?;
            Some(SecretDataRef::of(reference, credentials::DEFAULT_TOKEN_KEY))
        };
        let Some(secret) = recorded.or_else(published) else {
            let message = format!("CoderControlPlane {} has no operator token", target.control_plane);
            return Err(blocked(Blocker::new(Reason::OperatorAccessNotReady, message)));
        };
        let Some(token) = credentials::read(&secret, &self.namespace, ctx).await? else {
            let reason = match is_address {
                true => Reason::CredentialsSecretUnavailable,
                false => Reason::OperatorTokenSecretUnavailable,
            };
            return Err(blocked(credentials::missing(reason, &secret)));
        };
        let server = self.server(target, ctx).await?;
        let published = plane.as_ref().and_then(|plane| plane.status.as_ref()?.deployment_id.clone());
        let client = match target.deployment_id.clone().or(published) {
            Some(deployment_id) => server.authenticate(&BoundToken::new(token, deployment_id)),
            // The Go operator records no deployment.
            None => server.first_contact(&token),
        };
        let client = client.map_err(blocker_of_credential)?;
        self.clients.insert(target.clone(), client.clone());
        Ok(client)
    }
}

/// Another deployment answers than the one that the credential belongs to.
pub(crate) fn other_deployment() -> Blocker {
    let message =
        "another deployment answers than the one that is recorded, and no credential was sent to it";
    Blocker::new(Reason::ControlPlaneUnavailable, message)
}

/// What a refused credential means.
pub(crate) fn blocker_of_credential(error: CredentialError) -> Blocker {
    match error {
        CredentialError::OtherDeployment => other_deployment(),
        CredentialError::BadToken(bad) => Blocker::new(Reason::BadToken, bad.to_string()),
    }
}
