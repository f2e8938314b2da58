//! Who a server is, and which credential it may see.
//!
//! An address becomes a [`Server`], which takes no credential. Asked who it is, it becomes an [`IdentifiedServer`], and only
//! that takes one: a [`BoundToken`] if the server is the deployment that the token belongs to, or, by the method that says
//! so, a token that belongs to nobody yet ([`IdentifiedServer::first_contact`]). Code that skips the question does not
//! compile.
//!
//! An identification holds for one exchange. Whoever keeps a [`Server`] identifies it again before the next one: another
//! deployment may answer at the same address by then.

use std::fmt;

use secrecy::SecretString;

use crate::{
    basics::BuildInfo,
    client::Client,
    entitlements::Entitlements,
    error::Error,
    provisionerkeys::ProvisionerKey,
    target::BadTarget,
    users::{FirstUser, NewFirstUser},
};

/// A coderd at an address. It is called without a credential.
#[derive(Clone, Debug)]
pub struct Server {
    client: Client,
}

impl Server {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Asks the server which deployment it is. One call.
    pub async fn identify(&self) -> Result<IdentifiedServer, Error> {
        let info = self.client.build_info().await?;
        Ok(IdentifiedServer { client: self.client.clone(), info })
    }

    /// What the license allows. coderd answers this to anybody.
    pub async fn entitlements(&self) -> Result<Entitlements, Error> {
        self.client.entitlements().await
    }
}

/// A session token and the deployment that accepted it.
#[derive(Clone)]
pub struct BoundToken {
    token: SecretString,
    deployment_id: String,
}

impl BoundToken {
    /// Binds a token to the deployment that it belongs to, as status records it.
    pub fn new(token: SecretString, deployment_id: impl Into<String>) -> Self {
        Self { token, deployment_id: deployment_id.into() }
    }
}

impl fmt::Debug for BoundToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundToken").field("deployment_id", &self.deployment_id).finish_non_exhaustive()
    }
}

/// Why a server gets no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The server is another deployment than the one that the token belongs to.
    #[error("another deployment answers than the one that the token belongs to")]
    OtherDeployment,
    /// The token cannot be sent at all.
    #[error(transparent)]
    BadToken(#[from] BadTarget),
}

/// A server that said which deployment it is.
#[derive(Clone, Debug)]
pub struct IdentifiedServer {
    client: Client,
    info: BuildInfo,
}

impl IdentifiedServer {
    /// The version that the server reports, with a leading `v`.
    pub fn version(&self) -> &str {
        &self.info.version
    }

    /// The deployment that the server belongs to. All replicas of one coderd report the same.
    pub fn deployment_id(&self) -> &str {
        &self.info.deployment_id
    }

    /// A client with a token of this deployment.
    pub fn authenticate(&self, token: &BoundToken) -> Result<Client, CredentialError> {
        if token.deployment_id != self.info.deployment_id {
            return Err(CredentialError::OtherDeployment);
        }
        Ok(self.client.with_token(&token.token)?)
    }

    /// A client with a token that is bound to no deployment: one that nobody sent anywhere yet, or that this very server
    /// issued a moment ago.
    pub fn first_contact(&self, token: &SecretString) -> Result<Client, CredentialError> {
        Ok(self.client.with_token(token)?)
    }

    /// What the license allows.
    pub async fn entitlements(&self) -> Result<Entitlements, Error> {
        self.client.entitlements().await
    }

    /// Whether the deployment has a user yet.
    pub async fn has_first_user(&self) -> Result<bool, Error> {
        self.client.has_first_user().await
    }

    /// Creates the first user. See [`Client::create_first_user`].
    pub async fn create_first_user(&self, user: &NewFirstUser) -> Result<FirstUser, Error> {
        self.client.create_first_user(user).await
    }

    /// Logs in with a password. See [`Client::log_in`].
    pub async fn log_in(&self, email: &str, password: &SecretString) -> Result<SecretString, Error> {
        self.client.log_in(email, password).await
    }

    /// The key that this material belongs to. The material itself is the credential.
    pub async fn provisioner_key_details(&self, material: &SecretString) -> Result<ProvisionerKey, Error> {
        self.client.provisioner_key_details(material).await
    }

    /// Whether coderd accepts the token of a workspace proxy. The token itself is the credential.
    pub async fn prove_proxy_token(&self, token: &SecretString) -> Result<(), Error> {
        self.client.prove_proxy_token(token).await
    }
}
