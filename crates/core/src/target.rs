//! Where coderds and Secrets are, and what is held against a Secret before it is written.

use coder_k8s_api::{CredentialsSource, ReportedSecretRef};

/// The key of a token where none is recorded.
const TOKEN: &str = "token";

/// A coderd, and with what it can be asked to manage keys and proxies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CoderdTarget {
    /// The control plane that leads there. Empty: the address alone does.
    pub control_plane: String,
    /// Its address.
    pub url: String,
    /// Its identity. None: recorded by the existing operator, which did not ask.
    pub deployment_id: Option<String>,
    /// What it accepts. None: recorded by the existing operator, which used the control plane's token.
    pub credentials: Option<Credentials>,
}

impl CoderdTarget {
    /// Whether two places are one coderd. Where an identity is not known, the control plane tells.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.deployment_id, &other.deployment_id) {
            (Some(one), Some(two)) => one == two,
            _ => self.control_plane == other.control_plane,
        }
    }
}

/// Where a token for managing keys or proxies is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Credentials {
    /// Whose it is.
    pub kind: CredentialsKind,
    /// The Secret, if one is named.
    pub secret: Option<SecretDataRef>,
}

/// Whose a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CredentialsKind {
    /// The control plane's operator token.
    Operator,
    /// The token of `spec.bootstrap`.
    Bootstrap,
}

/// A key in the data of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretDataRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in its data.
    pub key: String,
}

/// The Secret that a write expects to find.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// None.
    Absent,
    /// The one with this resourceVersion.
    Is(String),
}

/// Why a Secret cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It belongs to somebody else, who can hand it over with this annotation.
    Foreign(String),
    /// Somebody made it immutable.
    Immutable,
}

impl Credentials {
    /// As a status holds them.
    pub fn of(source: Option<&CredentialsSource>) -> Option<Self> {
        let kind = match source?.type_.as_deref()? {
            "Operator" => CredentialsKind::Operator,
            "Bootstrap" => CredentialsKind::Bootstrap,
            _ => return None,
        };
        let secret = source?.secret_ref.as_ref().map(|secret| SecretDataRef::of(secret, TOKEN));
        Some(Self { kind, secret })
    }

    /// For a status.
    pub fn source(&self) -> CredentialsSource {
        let kind = match self.kind {
            CredentialsKind::Operator => "Operator",
            CredentialsKind::Bootstrap => "Bootstrap",
        };
        let secret_ref = self.secret.as_ref().map(SecretDataRef::reported);
        CredentialsSource { type_: Some(kind.to_owned()), secret_ref }
    }
}

impl SecretDataRef {
    /// As a status holds it. `default` stands for a key that is not recorded.
    pub fn of(secret: &ReportedSecretRef, default: &str) -> Self {
        let key = secret.key.clone().filter(|key| !key.is_empty());
        Self { name: secret.name.clone(), key: key.unwrap_or_else(|| default.to_owned()) }
    }

    /// For a status.
    pub fn reported(&self) -> ReportedSecretRef {
        ReportedSecretRef { name: self.name.clone(), key: Some(self.key.clone()) }
    }
}
