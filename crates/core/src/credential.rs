//! The protocol of credentials in coderd: the key of a pool, the registration of a proxy.
//!
//! What is remembered ([`Record`]), what is observed ([`Observed`]), how a credential is found again and deleted
//! ([`retirement`]), the shape of a decision and what status says of it are the same for both, and are here. A
//! [`CredentialKind`] says what differs. Each kind decides by itself when its credential is replaced, because there they have
//! nothing in common: a key is shown once and cannot be changed, so that another one is made under another name before the
//! old one goes; a registration is renamed and gets another token in place.

mod facts;
mod record;
pub(crate) mod retirement;
mod verdict;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    hash::Hash,
    time::Duration,
};

use jiff::SignedDuration;

pub(crate) use self::{
    facts::{Facts, Flow, Stop},
    record::{recorded_time, reported_target},
    retirement::{clean_up, retire},
};
pub use self::{
    record::{CredentialRef, Details, Intent, Record, Retired},
    retirement::Listed,
    verdict::{
        CredentialConditions, CredentialProgress, CredentialStanding, CredentialVerdict, deleting,
        set_control_plane_ready, set_credentials_ready, usable,
    },
};
use crate::{
    object::Deletion,
    outcome::{Blocker, EventNote},
    target::{CoderdTarget, Obstacle, SecretDataRef, Version},
    workload::{PodCredential, Workload},
};

/// What differs between the kinds of credentials.
pub trait CredentialKind: Clone + Debug + Eq + Hash {
    /// What only this kind records of a credential.
    type Details: Details;
    /// What the spec asks for.
    type Desired: Clone + Debug;
    /// What only this kind observes.
    type Observed: Clone + Debug;
    /// What a listing of coderd is of.
    type Scope: Clone + Debug + Ord + Hash;
    /// A credential in a listing.
    type Listed: Listed<Self::Details> + Clone + Debug + Eq;
    /// What may be known of material in a Secret. Never the material.
    type Held: Clone + Debug + Eq;
    /// What the annotations of a Secret say.
    type Marks: Clone + Debug + Eq + Hash;
    /// What coderd tells of material that it knows.
    type Proven: Clone + Debug + Eq;
    /// What only this kind asks.
    type Query: Clone + Debug + Eq + Hash;
    /// What a credential is made with.
    type Settings: Clone + Debug + Eq + Hash;
    /// What only this kind changes in coderd.
    type Effect: Clone + Debug + Eq + Hash;

    /// How soon to decide again while something is in use.
    const REQUEUE: Duration;
    /// How long the record keeps a replaced key or registration that cannot be deleted, because neither the control
    /// plane nor a session token exists any more.
    const ABANDON_AFTER: SignedDuration;
    /// The field of the spec that chooses another Secret.
    const SECRET_FIELD: &'static str;

    /// The listing that shows a credential.
    fn scope(credential: &CredentialRef<Self::Details>) -> Self::Scope;
    /// The blocker for a listing whose target is gone: neither the control plane nor the credentials exist.
    fn gone(scope: &Self::Scope) -> Blocker;
    /// The annotations that identify a credential.
    fn marks(credential: &CredentialRef<Self::Details>) -> Self::Marks;
    /// The credential that annotations identify. Of its coderd they know the deployment alone.
    fn marked(marks: &Self::Marks) -> CredentialRef<Self::Details>;
    /// The checksums that pods with this material may carry, the one of this operator first.
    fn checksums(held: &Self::Held) -> &[String];
    /// The control plane and the Secret that the spec names. None: it asks for no credential.
    fn wanted(desired: &Self::Desired) -> Option<(&str, &SecretDataRef)>;
    /// Whether a recorded credential is called and made as the spec asks, wherever it is.
    fn is_wanted(desired: &Self::Desired, recorded: &CredentialRef<Self::Details>) -> bool;
    /// The address that pods connect to.
    fn url(observed: &Observed<Self>) -> Option<&String>;
    /// Whether a Secret of ours that is not the wanted one is to go.
    fn is_leftover(place: &SecretDataRef, wanted: &SecretDataRef, marks: Option<&Self::Marks>) -> bool;
    /// Tells that a credential stays behind that could not be deleted.
    fn abandoned(credential: &CredentialRef<Self::Details>) -> EventNote;

    /// Tells of a credential that has an announced name and is not known to be ours, if people are to know.
    fn left_alone(_: &CredentialRef<Self::Details>) -> Option<EventNote> {
        None
    }

    /// Whether somebody may still use it. Asked before coderd is, and again with what it lists.
    fn is_in_use(_: &Retired<Self::Details>, _: Option<&Self::Listed>) -> bool {
        false
    }
}

/// Another object that asks for a name, and was there first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameConflict {
    /// An object of the same namespace, by name.
    Neighbour(String),
    /// An object of another namespace. That it means the same coderd is only what its own server says, and any server can
    /// repeat the identity of another. So it blocks nobody: whether the name is taken is for coderd to say, to those whose
    /// credentials it accepts. No message tells of it.
    Elsewhere,
}

impl NameConflict {
    /// The object of the same namespace, which has the better claim.
    pub fn neighbour(&self) -> Option<&str> {
        match self {
            Self::Neighbour(name) => Some(name),
            Self::Elsewhere => None,
        }
    }
}

/// What was observed so far. Maps grow as [`Query`] asks for it. Plain data: the operator fills it in, and so does the model.
#[derive(Clone, Debug)]
pub struct Observed<K: CredentialKind> {
    /// What the spec asks for.
    pub desired: K::Desired,
    /// What the status remembers.
    pub record: Record<K::Details>,
    /// Whether the finalizer keeps the object until its credentials are deleted.
    pub has_finalizer: bool,
    /// Whether coderd is to be asked even if nothing changed: on a change of the spec or a Secret, and at an interval.
    pub verify_due: bool,
    /// Whether something may be made: license and credentials.
    pub may_make: Result<(), Blocker>,
    /// The coderd that the spec leads to, with identity and credentials; or why there is none.
    pub target: Result<CoderdTarget, Blocker>,
    /// The wanted Secret, the recorded one, and every other with our annotations. Always there.
    pub secrets: BTreeMap<SecretDataRef, Secret<K::Held, K::Marks>>,
    /// The Deployment, if there is one. Always there.
    pub workload: Option<Workload>,
    /// How long after an announcement a credential may still appear: coderd may carry out a request whose sender died.
    pub late_effect_window: SignedDuration,
    /// Another object that asks for the same name in the same coderd, and was there first.
    pub name_conflict: Option<NameConflict>,
    /// Whether the object is being deleted.
    pub deletion: Option<Deletion>,
    /// What coderd answers about the material in a Secret.
    pub proofs: BTreeMap<SecretDataRef, Proof<K::Proven>>,
    /// What coderd lists.
    pub listings: BTreeMap<K::Scope, Listing<K::Listed>>,
    /// UUIDs of credentials whose deletion was tried in this reconcile, whatever came of it. Each is tried once.
    pub tried: BTreeSet<String>,
    /// What only this kind observes.
    pub own: K::Observed,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<K: CredentialKind> {
    /// The one thing to do next.
    pub next: NextStep<K>,
    /// What pods run with. None: there is no credential for them yet, or the object is being deleted.
    pub pod_credential: Option<PodCredential>,
    /// What the conditions report.
    pub verdict: CredentialVerdict,
    /// When to reconcile again, if nothing else happens.
    pub again: Option<Duration>,
    /// Events, which are published before anything else is done.
    pub events: Vec<EventNote>,
}

impl<K: CredentialKind> Decision<K> {
    /// Nothing is to be done.
    pub(crate) fn rest(pod_credential: Option<PodCredential>, verdict: CredentialVerdict) -> Self {
        Self { next: NextStep::Done, pod_credential, verdict, again: None, events: Vec::new() }
    }

    /// The same, with something to do.
    pub(crate) fn then(self, next: NextStep<K>) -> Self {
        Self { next, ..self }
    }

    /// The same, and waits for something to be gone.
    pub(crate) fn wait(self) -> Self {
        Self { again: Some(K::REQUEUE), ..self }
    }
}

/// The next step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep<K: CredentialKind> {
    /// Answer this and decide again.
    Ask(Query<K>),
    /// Write the status with this record, which the status of the kind does. The reconcile ends.
    WriteStatus(Box<Record<K::Details>>),
    /// Perform this, read the Secrets again and decide again.
    Act(Box<Effect<K>>),
    /// Nothing is left in coderd, or events named what is left: the object may go.
    RemoveFinalizer,
    /// Nothing is to be done.
    Done,
}

impl<K: CredentialKind> NextStep<K> {
    /// Whether another reconcile has something to do at once.
    pub fn continues(&self) -> bool {
        matches!(self, Self::WriteStatus(_) | Self::Act(_) | Self::RemoveFinalizer)
    }
}

/// What a decision needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query<K: CredentialKind> {
    /// What the target answers about the material in this Secret.
    Proof(SecretDataRef),
    /// What coderd lists.
    Listing(K::Scope),
    /// What only this kind asks.
    Own(K::Query),
}

/// An effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<K: CredentialKind> {
    /// Add the finalizer to the object.
    AddFinalizer,
    /// Make in coderd what was announced, write its UUID to the status with the resourceVersion that was decided on, and then
    /// store the material with annotations. Whatever fails on the way ends it: material that was not stored is of no use, and
    /// a later reconcile makes another one. A registration that was announced with its UUID gets another token.
    Make {
        /// What was announced.
        pending: Box<Intent<K::Details>>,
        /// What it is made with.
        settings: K::Settings,
        /// Where the material goes.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
    },
    /// Delete a credential in coderd. A listing has shown its UUID under this name.
    Delete {
        /// Where it is.
        scope: K::Scope,
        /// Its name.
        name: String,
        /// Its UUID.
        id: String,
    },
    /// Change something else in coderd.
    Own(K::Effect),
    /// Copy the value of a Secret to another one.
    CopySecret {
        /// The Secret that is read.
        from: SecretDataRef,
        /// The Secret that is written.
        to: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: K::Marks,
    },
    /// Write the annotations of a Secret, and leave its data.
    AnnotateSecret {
        /// The Secret that is written.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
        /// The annotations.
        marks: K::Marks,
    },
    /// Remove a data key that nothing reads any more, and with the last of ours the Secret.
    RemoveSecret {
        /// The data key.
        secret: SecretDataRef,
        /// The Secret that is expected there.
        version: Version,
    },
}

/// A Secret, read live. `H` is what may be known of its content, `M` what its annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret<H, M> {
    /// It does not exist.
    Absent,
    /// It is ours: it has our owner reference, or was handed over.
    Ours {
        /// resourceVersion, which a write expects.
        version: String,
        /// What the data key holds. None: nothing, or an empty value.
        holds: Option<H>,
        /// The annotations that identify its content. None: it has none of ours.
        marks: Option<M>,
    },
    /// It cannot be written.
    Blocked(Obstacle),
    /// It could not be read.
    Unknown(Blocker),
}

/// What coderd answers about material.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof<T> {
    /// coderd knows it, and tells this of it.
    Is(T),
    /// coderd does not know it.
    Refused,
    /// This release of coderd has no such endpoint.
    Unsupported,
    /// No definite answer.
    Unknown(Blocker),
}

/// The credentials of one kind that coderd lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing<T> {
    /// Everything that the operator's credentials may see.
    Known(Vec<T>),
    /// coderd gave no definite answer.
    Unknown(Blocker),
    /// Nothing is left to ask with: neither the control plane nor the credentials exist, or another deployment answers.
    Gone,
}
