//! Where keys and Secrets are.

pub use crate::target::{CoderdTarget, Credentials, CredentialsKind, SecretDataRef};

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
pub struct KeyScope {
    /// The coderd.
    pub place: CoderdTarget,
    /// The organization.
    pub organization: Organization,
}

impl KeyScope {
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
