//! What status remembers of credentials in coderd, whatever the kind.
//!
//! Nothing is made in coderd before it is announced here as [`Intent`], and nothing that was made is forgotten before it
//! is deleted or a person was told: it stays in [`Record::stale`]. Kinds differ in [`Details`] alone.

use std::{fmt::Debug, hash::Hash};

use coder_k8s_api::CredentialsSource;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::target::{CoderdTarget, Credentials, SecretDataRef, nonempty};

/// What one kind of credential records beyond ID, name and coderd.
pub trait Details: Clone + Debug + Eq + Hash {
    /// Whether a retry creates a second credential under the announced name, so that one of unknown UUID may be left
    /// behind, as of keys. A registration is used again, and gets another token.
    const MADE_ANEW: bool;

    /// Whether names are unique across the two. Keys of different organizations may have the same name.
    fn shares_names(&self, _: &Self) -> bool {
        true
    }

    /// Whether no part of it was lost from the status.
    fn is_complete(&self) -> bool {
        true
    }
}

/// A credential in coderd.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CredentialRef<D> {
    /// UUID. None: it was announced and perhaps never made, or a part of the status was lost.
    pub id: Option<String>,
    /// Name in coderd, unique regardless of case.
    pub name: String,
    /// The coderd that knows it.
    pub target: CoderdTarget,
    /// What only its kind records.
    pub details: D,
}

/// A credential that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Intent<D> {
    /// Its name was free when it was announced. A key gets its UUID once it is made, and its material is stored only
    /// after that. A registration with a UUID is there already, and gets another token.
    pub credential: CredentialRef<D>,
    /// Wire string of the reason. A later release may have written one that this one does not know.
    pub reason: String,
    /// When it was announced.
    pub since: Timestamp,
}

/// A credential that is no longer wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retired<D> {
    /// The credential. Without a UUID: announced, and perhaps never made.
    pub credential: CredentialRef<D>,
    /// When it was replaced; or, without a UUID, announced.
    pub since: Timestamp,
    /// When the last pod that could hold it was gone. Only keys record this.
    pub unused_since: Option<Timestamp>,
}

/// What status remembers of the credentials of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record<D> {
    /// The credential of the object.
    pub current: Option<CredentialRef<D>>,
    /// The Secret that holds it.
    pub secret: Option<SecretDataRef>,
    /// What is about to be made, or was made and is not proven yet.
    pub pending: Option<Intent<D>>,
    /// What is no longer wanted, the oldest first.
    pub stale: Vec<Retired<D>>,
}

impl<D> Default for Record<D> {
    fn default() -> Self {
        Self { current: None, secret: None, pending: None, stale: Vec::new() }
    }
}

impl<D: Details> CredentialRef<D> {
    /// Whether no two credentials of one name can exist where these two are.
    pub fn shares_names(&self, other: &Self) -> bool {
        self.target.is_same(&other.target) && self.details.shares_names(&other.details)
    }

    /// Whether both are the same credential: by UUID, or by name where one was lost.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.id, &other.id) {
            (Some(one), Some(two)) => one == two,
            _ => self.name.eq_ignore_ascii_case(&other.name) && self.shares_names(other),
        }
    }
}

impl<D: Details> Record<D> {
    /// Whether nothing in coderd would be left if the object went.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.pending.is_none() && self.stale.is_empty()
    }

    /// The UUID of the current credential.
    pub fn current_id(&self) -> Option<&String> {
        self.current.as_ref()?.id.as_ref()
    }

    /// Every credential on it: the current one, the announced one, and those that are to go.
    pub fn all(&self) -> impl Iterator<Item = &CredentialRef<D>> {
        let pending = self.pending.iter().map(|pending| &pending.credential);
        self.current.iter().chain(pending).chain(self.stale.iter().map(|stale| &stale.credential))
    }

    /// Whether a UUID is on it.
    pub fn knows(&self, id: &str) -> bool {
        self.all().any(|known| known.id.as_deref() == Some(id))
    }

    /// Makes a credential the current one. What is known of it as pending or stale is forgotten.
    pub(crate) fn adopt(&mut self, credential: CredentialRef<D>) {
        self.stale.retain(|stale| !stale.credential.is_same(&credential));
        self.pending.take_if(|pending| {
            pending.credential.name.eq_ignore_ascii_case(&credential.name)
                && pending.credential.shares_names(&credential)
        });
        self.current = Some(credential);
    }

    /// Takes back what was announced. What was perhaps made because of it is to go: a key that was stored is known by its
    /// UUID, and another one may have been made under the same name since, whose UUID nobody learned.
    pub(crate) fn drop_pending(&mut self) {
        let Some(Intent { credential, reason: _, since }) = self.pending.take() else { return };
        let unused_since = None;
        let is_made = credential.id.as_ref().is_some_and(|id| !self.knows(id));
        if is_made {
            self.add_stale(Retired { credential: credential.clone(), since, unused_since });
        }
        if D::MADE_ANEW || credential.id.is_none() {
            let credential = CredentialRef { id: None, ..credential };
            self.add_stale(Retired { credential, since, unused_since });
        }
    }

    /// Puts a credential on the list of those that are to go, once.
    pub(crate) fn add_stale(&mut self, retired: Retired<D>) {
        let (id, new) = (&retired.credential.id, &retired.credential);
        self.stale.retain(|other| other.credential.id != *id || !other.credential.is_same(new));
        self.stale.push(retired);
    }

    /// Moves every credential to the list of those to delete, the current one last.
    pub(crate) fn give_up(&mut self, now: Timestamp) {
        self.drop_pending();
        if let Some(credential) = self.current.take() {
            // Without a UUID, a credential is recognised by being younger than its announcement. The latest time there is
            // matches none, so that no credential of others is deleted.
            let since = if credential.id.is_some() { now } else { Timestamp::MAX };
            self.stale.push(Retired { credential, since, unused_since: None });
        }
    }
}

/// A time of a status. A lost one becomes the latest time there is: no credential is younger, so that none counts as ours.
pub(crate) fn recorded_time(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::MAX, |time| time.0)
}

/// A target as status reports it: control plane, address, deployment ID, credentials. Empty fields are left out.
pub(crate) fn reported_target(
    target: Option<&CoderdTarget>,
) -> (Option<String>, Option<String>, Option<String>, Option<CredentialsSource>) {
    let Some(CoderdTarget { control_plane, url, deployment_id, credentials }) = target else {
        return (None, None, None, None);
    };
    let credentials = credentials.as_ref().map(Credentials::source);
    (nonempty(Some(control_plane)), nonempty(Some(url)), deployment_id.clone(), credentials)
}
