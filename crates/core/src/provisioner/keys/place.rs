//! Where keys and Secrets are.

/// A coderd, and with what it can be asked to manage keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    /// The control plane that leads there.
    pub control_plane: String,
    /// Its address.
    pub url: String,
    /// Its identity. None: recorded by the existing operator, which did not ask.
    pub deployment_id: Option<String>,
    /// What it accepts. None: recorded by the existing operator, which used the control plane's token.
    pub credentials: Option<Credentials>,
}

impl Place {
    /// Whether two places are one coderd. Where an identity is not known, the control plane tells.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.deployment_id, &other.deployment_id) {
            (Some(one), Some(two)) => one == two,
            _ => self.control_plane == other.control_plane,
        }
    }
}

/// Where a token for managing keys is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Credentials {
    /// Whose it is.
    pub kind: CredentialsKind,
    /// The Secret, if one is named.
    pub secret: Option<SecretPlace>,
}

/// Whose a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CredentialsKind {
    /// The control plane's operator token.
    Operator,
    /// The token of `spec.bootstrap`.
    Bootstrap,
}

/// An organization.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Organization {
    /// Its UUID, once known.
    pub id: Option<String>,
    /// What the spec called it. Several names can mean one: `default` is also what it is really called.
    pub name: String,
}

impl Organization {
    /// What coderd can find it by.
    pub fn word(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.name)
    }
}

/// An organization of a coderd: what a listing of keys is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    /// The coderd.
    pub place: Place,
    /// The organization.
    pub organization: Organization,
}

impl At {
    /// Whether two are the same organization of the same coderd.
    pub fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (&self.organization, &other.organization);
        let same = match (&one.id, &two.id) {
            (Some(one), Some(two)) => one == two,
            _ => one.name == two.name,
        };
        same && self.place.is_same(&other.place)
    }
}

/// A key in the data of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretPlace {
    /// Name of the Secret.
    pub name: String,
    /// Key in its data.
    pub key: String,
}
