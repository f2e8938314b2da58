//! Which coderd and which Secret a credential is in, and what stands in the way of writing a Secret.

use coder_k8s_api::{CredentialsSource, ReportedSecretRef};

/// The key of a token where none is recorded.
const TOKEN: &str = "token";

/// A coderd, and the credentials to manage keys and proxies in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CoderdTarget {
    /// The control plane that leads there. Empty: the address alone does.
    pub control_plane: String,
    /// Address that the pods connect to. The operator calls it only where no control plane is named, or the named one is
    /// gone, and otherwise asks `targets::server_of`.
    pub url: String,
    /// The ID that the coderd reports of itself. None: recorded by the Go operator, which did not ask.
    pub deployment_id: Option<String>,
    /// Which token manages keys and proxies there. None: recorded by the Go operator, which used the control plane's token.
    pub credentials: Option<Credentials>,
}

impl CoderdTarget {
    /// Reads the fields of a status, of which a part may be missing.
    pub(crate) fn recorded(
        control_plane: Option<&String>,
        url: Option<&String>,
        deployment_id: Option<&String>,
        credentials: Option<&CredentialsSource>,
    ) -> Self {
        Self {
            control_plane: control_plane.cloned().unwrap_or_default(),
            url: url.cloned().unwrap_or_default(),
            deployment_id: deployment_id.cloned(),
            credentials: Credentials::of(credentials),
        }
    }

    /// Whether two targets are one coderd. If a deployment ID is not known, the control plane decides.
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
    /// Whose token it is.
    pub kind: CredentialsKind,
    /// The Secret that holds it. None: the control plane's status names it.
    pub secret: Option<SecretDataRef>,
}

/// Whose token it is.
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
    /// Name of the Secret, in the namespace of the object.
    pub name: String,
    /// Key in `data`.
    pub key: String,
}

/// The Secret that a write expects to find. A write that finds another one does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// No Secret of the name exists.
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
    /// Reads a status. None: nothing is recorded, or a source that this release does not know.
    pub fn of(source: Option<&CredentialsSource>) -> Option<Self> {
        let kind = match source?.type_.as_deref()? {
            "Operator" => CredentialsKind::Operator,
            "Bootstrap" => CredentialsKind::Bootstrap,
            _ => return None,
        };
        let secret = source?.secret_ref.as_ref().map(|secret| SecretDataRef::of(secret, TOKEN));
        Some(Self { kind, secret })
    }

    /// As status reports them.
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
    /// Reads a status. `default` stands for a key that is not recorded.
    pub fn of(secret: &ReportedSecretRef, default: &str) -> Self {
        let key = secret.key.clone().filter(|key| !key.is_empty());
        Self { name: secret.name.clone(), key: key.unwrap_or_else(|| default.to_owned()) }
    }

    /// As status reports it.
    pub fn reported(&self) -> ReportedSecretRef {
        ReportedSecretRef { name: self.name.clone(), key: Some(self.key.clone()) }
    }
}

/// The text, unless it is empty: a status leaves empty fields out.
pub(crate) fn nonempty(text: Option<&String>) -> Option<String> {
    text.filter(|text| !text.is_empty()).cloned()
}
