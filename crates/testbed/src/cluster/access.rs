//! Users of a cluster: their tokens, kubeconfigs and client configurations.

use std::fmt;
use std::io;

use k8s_openapi::ByteString;

use crate::pki::{Pki, token};

/// Users of the components of the testbed. The audit log leaves them out.
pub(super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub(super) const TESTBED: &str = "system:coder-k8s-testbed";

/// A line of the token file.
#[derive(Clone)]
pub(super) struct User {
    name: &'static str,
    token: String,
}

impl User {
    fn new(name: &'static str) -> io::Result<Self> {
        Ok(Self { name, token: token()? })
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Address of an API server and the users that may call it.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) url: String,
    pub(super) admin: User,
    pub(super) testbed: User,
    pub(super) controller_manager: User,
    address: http::Uri,
    ca_pem: String,
    ca_der: Vec<u8>,
}

impl Access {
    pub(super) fn new(port: u16, pki: &Pki) -> io::Result<Self> {
        let url = format!("https://127.0.0.1:{port}");
        Ok(Self {
            address: url.parse().map_err(io::Error::other)?,
            url,
            admin: User::new("admin")?,
            testbed: User::new(TESTBED)?,
            controller_manager: User::new(CONTROLLER_MANAGER)?,
            ca_pem: pki.ca.clone(),
            ca_der: pki.ca_der.clone(),
        })
    }

    /// Content of `--token-auth-file`.
    pub(super) fn token_file(&self) -> String {
        [&self.admin, &self.testbed, &self.controller_manager]
            .map(|User { name, token }| format!("{token},{name},{name},system:masters\n"))
            .concat()
    }

    pub(super) fn kubeconfig(&self, User { name, token }: &User) -> String {
        self.kubeconfig_with(name, token)
    }

    pub(super) fn kubeconfig_with(&self, name: &str, token: &str) -> String {
        let url = &self.url;
        let ca = serde_json::json!(ByteString(self.ca_pem.clone().into_bytes()));
        format!(
            "apiVersion: v1
kind: Config
current-context: coder-k8s
clusters:
  - name: coder-k8s
    cluster:
      server: {url}
      certificate-authority-data: {ca}
users:
  - name: {name}
    user:
      token: {token}
contexts:
  - name: coder-k8s
    context:
      cluster: coder-k8s
      user: {name}
"
        )
    }

    pub(super) fn config(&self, user: &User) -> kube::Config {
        let mut config = kube::Config::new(self.address.clone());
        config.root_cert = Some(vec![self.ca_der.clone()]);
        config.auth_info.token = Some(user.token.clone().into());
        config
    }
}

/// Creates a client on the calling runtime.
pub(super) fn client(config: kube::Config) -> kube::Client {
    // Fails if the caller has already installed a provider, which works as well.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // invariant: the address and the certificate are of our own making.
    #[expect(clippy::expect_used)]
    kube::Client::try_from(config).expect("a client of the testbed's own configuration")
}
