//! Runs the decisions about the credential of an object in coderd: the key of a pool, the registration of a proxy.
//!
//! `core` decides; [`Reconciler::run`] answers its queries and performs its effects. It adds no decision of its own. Material is
//! in memory only while it is proven, copied or stored. The object is read live before every effect, so that nothing is done
//! for a spec that is no longer there. [`Managed`] is what differs between the kinds of credentials.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
};

use coder_k8s_api::CredentialBinding;
use coder_k8s_coderd::{Client, CoderdError, ErrorKind, IdentifiedServer};
use coder_k8s_core::{
    credential::{
        CredentialKind, CredentialRef, Decision, Effect, Intent, Listed as _, Listing, NameConflict,
        NextStep, Observed, Proof, Query, Record, Secret,
    },
    object::{self, Deletion},
    outcome::{Blocker, EventNote, Retry},
    target::{CoderdTarget, SecretDataRef, Version},
    workload::{PodCredential, Rollout, Workload},
};
use coder_k8s_engine::{
    apply::Owner,
    cache::{Cache, ObjectKey},
    client,
    queue::due_in,
    secret::{self, SecretData, SecretPatch},
    status::StatusWrite,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodTemplateSpec};
use kube::{Resource as _, ResourceExt};
use secrecy::SecretString;
use tokio::time::Instant;

use super::{
    later, retry_of,
    targets::{Connections, TargetError, other_deployment},
};
use crate::controller::{
    CoderResource, Context, children,
    secrets::{self, NotWritable, ReadSecrets},
};

/// The most effects of one reconcile. More than these follow in the next one.
const MAX_EFFECTS: usize = 6;
/// The most effects of one reconcile of an object that is being deleted: every credential is tried in each attempt.
const MAX_CLEANUP_EFFECTS: usize = 24;
/// The most queries of one reconcile. Every answer adds to what is known, so that a decision that needs more has a bug.
const MAX_QUERIES: usize = 64;

/// An effect ended the reconcile: it failed, or what was observed is outdated. The blocker, if there is one, becomes
/// the reason of the condition.
pub(crate) struct Interrupted(pub(crate) Option<Blocker>);

/// The result of an effect.
pub(crate) type Performed = Result<(), Interrupted>;

/// A credential that coderd has made.
pub(crate) struct Made<K: CredentialKind> {
    pub(crate) credential: CredentialRef<K::Details>,
    /// The record with its UUID.
    pub(crate) record: Record<K::Details>,
    /// coderd shows it this once.
    pub(crate) material: SecretString,
}

/// What the operator does differently for each kind of credential.
pub(crate) trait Managed: CredentialKind {
    type Object: CoderResource;

    const FINALIZER: &'static str;
    const COMPONENT: &'static str;
    /// The annotation that a Secret with a credential of this kind has.
    const MARK: &'static str;
    /// The credential, for logs.
    const NOUN: &'static str;
    /// coderd deletes keys by name, and somebody may have replaced one: it is listed again right before.
    const DELETED_BY_NAME: bool;

    fn decide(observed: &Observed<Self>, now: Timestamp) -> Decision<Self>;
    fn target(scope: &Self::Scope) -> &CoderdTarget;
    /// What a failed call means for the object. The same from try to try.
    fn blocker_of(object: &Self::Object, error: &CoderdError) -> Blocker;
    /// The status of the object with another record.
    fn recorded(
        object: &Self::Object,
        record: &Record<Self::Details>,
    ) -> <Self::Object as CoderResource>::Status;

    /// What may be known of the material in a data key. None: there is none.
    fn held(data: &SecretData, key: &str, uid: &str) -> Option<Self::Held>;
    /// The data keys of a Secret that hold credentials, by its annotations.
    fn data_keys(annotations: &BTreeMap<String, String>) -> BTreeSet<String>;
    /// Reads annotations, of which `get` returns those that are not empty.
    fn marks_in(get: impl Fn(&str) -> Option<String>) -> Option<Self::Marks>;
    /// The annotations for a credential in this data key. None removes one.
    fn annotations(
        marks: &Self::Marks,
        place: &SecretDataRef,
        live: Option<&SecretData>,
    ) -> BTreeMap<String, Option<String>>;
    /// What is written to a Secret without this data key. None: the Secret goes.
    fn without(_: &SecretData, _: &SecretDataRef) -> Option<SecretPatch> {
        None
    }

    /// Asks the server of the target about material. Needs no other credential.
    async fn prove(server: &IdentifiedServer, material: &SecretString) -> Result<Self::Proven, CoderdError>;
    /// Whether a failure of [`Managed::prove`] says that coderd does not know the material.
    fn is_refusal(kind: &ErrorKind) -> bool {
        matches!(kind, ErrorKind::Unauthenticated { .. })
    }
    async fn list(client: &Client, scope: &Self::Scope) -> Result<Vec<Self::Listed>, CoderdError>;
    async fn delete(client: &Client, scope: &Self::Scope, name: &str, id: &str) -> Result<(), CoderdError>;
    /// Answers a query of this kind alone, and notes the answer. A failure is an answer too.
    async fn ask(this: &mut Reconciler<Self>, query: Self::Query);
    /// Makes what was announced. The material is to be stored in this Secret, which was decided on in this version.
    async fn make(
        this: &mut Reconciler<Self>,
        pending: Intent<Self::Details>,
        settings: Self::Settings,
        secret: &SecretDataRef,
        version: &Version,
    ) -> Result<Made<Self>, Interrupted>;
    /// Performs an effect of this kind alone.
    async fn act(this: &mut Reconciler<Self>, effect: Self::Effect) -> Performed;
}

/// The credential of one object in one reconcile.
pub(crate) struct Reconciler<K: Managed> {
    pub(crate) ctx: Arc<Context>,
    pub(crate) object_key: ObjectKey,
    pub(crate) object: Arc<K::Object>,
    pub(crate) owner: Owner,
    /// The servers that this reconcile has identified.
    connections: Connections,
    /// Secrets as they were read last, by name.
    stored: BTreeMap<String, SecretData>,
    pub(crate) observed: Observed<K>,
    /// What pods run with, as far as it is known without coderd.
    pub(crate) present_pod_credential: Option<PodCredential>,
    /// Whether the object itself was written, so that what was observed of it is outdated.
    pub(crate) object_written: bool,
    /// When to try again what failed. No effect follows a failure.
    pub(crate) retry: Option<Retry>,
}

impl<K: Managed> Reconciler<K> {
    /// Reads the Secrets, and decides what pods run with until coderd was asked. None: the object has no UID, because it was
    /// never stored.
    pub(crate) async fn begin(
        key: &ObjectKey,
        object: Arc<K::Object>,
        observed: Observed<K>,
        connections: Connections,
        ctx: &Arc<Context>,
    ) -> Option<Self> {
        let mut this = Self {
            ctx: ctx.clone(),
            object_key: key.clone(),
            owner: children::owner_of(&*object, K::COMPONENT)?,
            object,
            connections,
            stored: BTreeMap::new(),
            observed,
            present_pod_credential: None,
            object_written: false,
            retry: None,
        };
        if this.is_unasked() {
            this.observed.late_effect_window = SignedDuration::ZERO;
        }
        this.read_secrets().await;
        this.present_pod_credential = K::decide(&this.observed, ctx.now()).pod_credential;
        Some(this)
    }

    /// Whether no creation can be under way: this process announced the pending name, has not sent the request yet,
    /// and nothing else was announced before. Then there is nothing to wait for.
    fn is_unasked(&self) -> bool {
        let Record { pending, stale, .. } = &self.observed.record;
        let is_unasked = |pending: &Intent<K::Details>| {
            pending.credential.id.is_none()
                && self.ctx.dependents.is_unasked(&self.object_key, &pending.credential.name)
        };
        pending.as_ref().is_some_and(is_unasked) && stale.iter().all(|stale| stale.credential.id.is_some())
    }

    /// Asks and acts until there is nothing more to do, or until the next step is to write the status.
    pub(crate) async fn run(&mut self) -> Decision<K> {
        let (mut queries, mut effects) = (0, 0);
        let deadline = self.begin_cleanup();
        let max_effects = if self.observed.deletion.is_some() { MAX_CLEANUP_EFFECTS } else { MAX_EFFECTS };
        loop {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.observed.deletion = Some(Deletion { overdue: true });
            }
            let mut decision = K::decide(&self.observed, self.ctx.now());
            match &decision.next {
                NextStep::Ask(query) if queries < MAX_QUERIES => {
                    queries += 1;
                    self.ask(query.clone()).await;
                }
                NextStep::Act(effect) if effects < max_effects && self.may_act(effect) => {
                    effects += 1;
                    self.publish(&std::mem::take(&mut decision.events)).await;
                    if let Err(Interrupted(blocker)) = self.perform(Effect::clone(effect)).await {
                        if let Some(blocker) = blocker {
                            decision.verdict = decision.verdict.delayed(blocker);
                        }
                        return decision;
                    }
                }
                _ => {
                    if decision.verdict.is_ready() {
                        self.ctx.dependents.accepted(&self.object_key);
                    }
                    self.note_announcement(&decision.next);
                    self.publish(&decision.events).await;
                    return decision;
                }
            }
        }
    }

    /// Notes a name that the next status announces for the first time.
    fn note_announcement(&self, next: &NextStep<K>) {
        let NextStep::WriteStatus(record) = next else { return };
        let new = record.pending.as_ref().filter(|pending| {
            pending.credential.id.is_none() && Some(*pending) != self.observed.record.pending.as_ref()
        });
        if let Some(new) = new {
            self.ctx.dependents.note_announced(&self.object_key, &new.credential.name);
        }
    }

    /// Counts an attempt of the clean-up of an object that is being deleted, and fits its calls into the deadline. Returns
    /// when the attempt has to end.
    fn begin_cleanup(&mut self) -> Option<Instant> {
        let attempt = self.ctx.begin_cleanup(&self.object_key, &*self.object, K::FINALIZER)?;
        self.observed.deletion = Some(Deletion { overdue: attempt.overdue });
        self.connections.limit(attempt.limits());
        Some(due_in(attempt.cleanup.attempt_timeout()))
    }

    async fn publish(&self, events: &[EventNote]) {
        for note in events {
            tracing::info!(reason = %note.reason, "{}", note.message);
            self.ctx.events.publish(&self.object.object_ref(&()), note).await;
        }
    }

    async fn ask(&mut self, query: Query<K>) {
        match query {
            Query::Proof(place) => {
                let proof = self.proof(&place).await;
                self.observed.proofs.insert(place, proof);
            }
            Query::Listing(scope) => {
                let listing = self.listing(&scope).await;
                self.observed.listings.insert(scope, listing);
            }
            Query::Own(query) => K::ask(self, query).await,
        }
    }

    async fn proof(&mut self, place: &SecretDataRef) -> Proof<K::Proven> {
        let target = match self.observed.target.clone() {
            Ok(target) => target,
            Err(blocker) => return Proof::Unknown(blocker),
        };
        let Some(material) = self.material(place) else { return Proof::Refused };
        let found = self.connections.server(&target, &self.ctx).await;
        let server = match found.map_err(|error| self.unusable(error)) {
            Ok(server) => server,
            Err(blocker) => return Proof::Unknown(blocker.unwrap_or_else(other_deployment)),
        };
        // Material that annotations bind to another deployment is not shown to this one, which cannot know it.
        let bound = self.deployment_id_of(place);
        if bound.is_some_and(|bound| bound != server.deployment_id()) {
            return Proof::Refused;
        }
        match K::prove(&server, &material).await {
            Ok(proven) => Proof::Is(proven),
            Err(error) if K::is_refusal(&error.kind) => Proof::Refused,
            Err(error) if matches!(error.kind, ErrorKind::NotSupported) => Proof::Unsupported,
            Err(error) => Proof::Unknown(self.failed(&error)),
        }
    }

    /// The deployment that issued the material in a Secret, by its annotations.
    fn deployment_id_of(&self, place: &SecretDataRef) -> Option<String> {
        match self.observed.secrets.get(place)? {
            Secret::Ours { marks, .. } => K::marked(marks.as_ref()?).target.deployment_id,
            Secret::Absent | Secret::Blocked(_) | Secret::Unknown(_) => None,
        }
    }

    async fn listing(&mut self, scope: &K::Scope) -> Listing<K::Listed> {
        let client = match self.client(K::target(scope)).await {
            Ok(client) => client,
            Err(None) => return Listing::Gone,
            Err(Some(blocker)) => return Listing::Unknown(blocker),
        };
        match K::list(&client, scope).await {
            Ok(listed) => {
                self.accepted(K::target(scope));
                Listing::Known(listed)
            }
            Err(error) => Listing::Unknown(self.failed(&error)),
        }
    }

    /// A client with the credentials of a target. The error is None if the target is gone.
    pub(crate) async fn client(&mut self, target: &CoderdTarget) -> Result<Client, Option<Blocker>> {
        let found = self.connections.client(target, &self.ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    /// Records that coderd accepted the credentials of a target: from now on they are sent to no other deployment.
    pub(crate) fn accepted(&mut self, target: &CoderdTarget) {
        self.connections.accepted(target);
    }

    /// The deployments that accepted the object's own credentials, for its status.
    pub(crate) fn bindings(&self) -> Vec<CredentialBinding> {
        self.connections.bindings().to_vec()
    }

    fn unusable(&mut self, error: TargetError) -> Option<Blocker> {
        match error {
            TargetError::Gone => None,
            TargetError::Blocked(blocker) => Some(blocker),
            TargetError::Failed(error) => Some(self.failed(&error)),
        }
    }

    /// Notes a failed call to coderd, so that the object is retried, and not before coderd asks for.
    pub(crate) fn failed(&mut self, error: &CoderdError) -> Blocker {
        self.retry = Some(later(self.retry, retry_of(error)));
        K::blocker_of(&self.object, error)
    }

    /// What was observed is outdated: the reconcile ends, and another one starts soon.
    pub(crate) fn outdated(&mut self) -> Interrupted {
        self.retry = Some(Retry::Soon);
        Interrupted(None)
    }

    /// Whether an effect may be performed in this reconcile: none after a failure, and nothing is made again before the
    /// backoff of what was not stored or not accepted has passed. A clean-up tries each credential, whatever came of the others.
    fn may_act(&self, effect: &Effect<K>) -> bool {
        if self.observed.deletion.is_some() && matches!(effect, Effect::Delete { .. }) {
            return true;
        }
        let makes = matches!(effect, Effect::Make { .. });
        self.retry.is_none() && !(makes && self.ctx.dependents.creation_backoff(&self.object_key).is_some())
    }

    async fn perform(&mut self, effect: Effect<K>) -> Performed {
        if let Effect::AddFinalizer = effect {
            return self.add_finalizer().await;
        }
        // The object is still the one that was decided on, and this process still holds the lease.
        if !self.ctx.is_current(&*self.object).await {
            return Err(self.outdated());
        }
        match effect {
            Effect::AddFinalizer => {}
            Effect::Make { pending, settings, secret, version } => {
                self.ctx.dependents.note_asked(&self.object_key);
                let made = K::make(self, *pending, settings, &secret, &version).await?;
                let Made { credential, record, material } = made;
                // The UUID goes to the status first, which makes the credential ours beyond doubt.
                if record != self.observed.record {
                    self.record(&record).await?;
                }
                self.store(&secret, &version, Some(&material), &K::marks(&credential)).await?;
            }
            Effect::Delete { scope, name, id } => self.delete(&scope, &name, &id).await?,
            Effect::Own(effect) => K::act(self, effect).await?,
            Effect::CopySecret { from, to, version, marks } => {
                let Some(material) = self.material(&from) else { return Err(self.outdated()) };
                self.store(&to, &version, Some(&material), &marks).await?;
            }
            Effect::AnnotateSecret { secret, version, marks } => {
                self.store(&secret, &version, None, &marks).await?;
            }
            Effect::RemoveSecret { secret, version } => self.remove(&secret, &version).await?,
        }
        if self.object_written {
            return Err(Interrupted(None));
        }
        self.read_secrets().await;
        Ok(())
    }

    async fn add_finalizer(&mut self) -> Performed {
        match children::add_finalizer(&*self.object, K::FINALIZER, &self.ctx).await {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(failed) => {
                (self.retry, self.object_written) = (failed, failed.is_none());
                Err(Interrupted(None))
            }
        }
    }

    /// A client for making something, without which nothing is made.
    pub(crate) async fn maker(&mut self, target: &CoderdTarget) -> Result<Client, Interrupted> {
        self.client(target).await.map_err(|blocker| {
            self.retry = Some(self.retry.unwrap_or(Retry::Backoff));
            Interrupted(Some(blocker.unwrap_or_else(other_deployment)))
        })
    }

    /// Notes that coderd did not make what was announced.
    pub(crate) fn not_made(&mut self, name: &str, error: &CoderdError) -> Interrupted {
        if error.may_have_happened() {
            self.ctx.dependents.created(&self.object_key);
        }
        let blocker = self.failed(error);
        tracing::warn!(reason = %blocker.reason, "{} {name} was not made: {}", K::NOUN, blocker.message);
        Interrupted(Some(blocker))
    }

    async fn delete(&mut self, scope: &K::Scope, name: &str, id: &str) -> Performed {
        let deleted = self.try_delete(scope, name, id).await;
        // A clean-up decides again with what was tried: about the other credentials, and whether it is over.
        if self.observed.deletion.is_some() { Ok(()) } else { deleted }
    }

    async fn try_delete(&mut self, scope: &K::Scope, name: &str, id: &str) -> Performed {
        if K::DELETED_BY_NAME {
            let listing = self.listing(scope).await;
            let is_it = matches!(&listing, Listing::Known(all) if all.iter().any(|listed| listed.name() == name && listed.id() == id));
            self.observed.listings.insert(scope.clone(), listing);
            if !is_it {
                return if self.retry.is_none() { Ok(()) } else { Err(Interrupted(None)) };
            }
        }
        self.observed.tried.insert(id.to_owned());
        let Ok(client) = self.client(K::target(scope)).await else { return Err(self.outdated()) };
        match K::delete(&client, scope, name, id).await {
            Ok(()) => tracing::info!("deleted {} {name} in coderd", K::NOUN),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                let blocker = self.failed(&error);
                let noun = K::NOUN;
                tracing::warn!(reason = %blocker.reason, "{noun} {name} was not deleted: {}", blocker.message);
                return Err(Interrupted(None));
            }
        }
        self.observed.listings.remove(scope);
        Ok(())
    }

    /// Writes the record between two parts of an effect, after which the reconcile ends.
    pub(crate) async fn record(&mut self, record: &Record<K::Details>) -> Performed {
        let mut status = K::recorded(&self.object, record);
        K::Object::workload_mut(&mut status).credential_bindings = self.bindings();
        match self.ctx.record_status(&self.object_key, &*self.object, &status).await {
            Ok(StatusWrite::Changed) => {
                self.object_written = true;
                Ok(())
            }
            Ok(StatusWrite::Unchanged | StatusWrite::Outdated) => Err(self.outdated()),
            Err(error) => {
                let failure = client::blocker("write the status", &error);
                tracing::warn!(reason = %failure.reason, "{}", failure.message);
                self.retry = Some(failure.retry);
                Err(Interrupted(None))
            }
        }
    }

    /// The material that a Secret held when it was read last.
    fn material(&self, place: &SecretDataRef) -> Option<SecretString> {
        self.stored.get(&place.name)?.text(&place.key)
    }

    /// Reads live the wanted Secret, the recorded one, and every other with our annotations. What was proven of their
    /// content is forgotten.
    async fn read_secrets(&mut self) {
        let Self { ctx, owner, object, observed, .. } = self;
        let wanted = K::wanted(&observed.desired).map(|(_, secret)| secret.clone());
        let recorded = observed.record.secret.clone().filter(|_| wanted.is_some());
        let mut places: BTreeSet<SecretDataRef> = wanted.into_iter().chain(recorded).collect();
        for found in secrets::marked(owner, K::MARK, ctx).await {
            let keys = K::data_keys(found.annotations()).into_iter();
            places.extend(keys.map(|key| SecretDataRef { name: found.name_any(), key }));
        }
        let names = places.iter().map(|place| place.name.clone()).collect();
        let ReadSecrets { data, failed } = secrets::read(names, owner, ctx).await;
        let uid = object.uid().unwrap_or_default();
        let read = |place: &SecretDataRef| match (failed.get(&place.name), data.get(&place.name)) {
            (Some(blocker), _) => Secret::Unknown(blocker.clone()),
            (None, None) => Secret::Absent,
            (None, Some(data)) => match secrets::check_writable(&place.name, data, owner) {
                Ok(()) => Secret::Ours {
                    version: data.resource_version.clone(),
                    holds: K::held(data, &place.key, &uid),
                    marks: K::marks_in(|name| {
                        data.annotations.get(name).filter(|value| !value.is_empty()).cloned()
                    }),
                },
                Err(NotWritable::Blocked(obstacle)) => Secret::Blocked(obstacle),
                Err(NotWritable::Leftover(blocker)) => Secret::Unknown(blocker),
            },
        };
        observed.secrets = places.into_iter().map(|place| (place.clone(), read(&place))).collect();
        observed.proofs.clear();
        self.stored = data;
    }

    /// Writes material, or annotations alone, onto exactly the Secret that was decided on.
    pub(crate) async fn store(
        &mut self,
        place: &SecretDataRef,
        version: &Version,
        material: Option<&SecretString>,
        marks: &K::Marks,
    ) -> Performed {
        let Self { ctx, owner, stored, .. } = self;
        let live = stored.get(&place.name);
        let annotations = K::annotations(marks, place, live);
        let written = secrets::store(place, version, live, material, annotations, owner, ctx).await;
        self.written(&place.name, written)
    }

    /// Removes a data key that nothing reads any more, and with the last of ours the Secret.
    async fn remove(&mut self, place: &SecretDataRef, version: &Version) -> Performed {
        let Self { ctx, owner, stored, .. } = self;
        let Some(live) = stored.get(&place.name).filter(|live| secrets::is_version(live, version)) else {
            return Err(self.outdated());
        };
        let written = if let Some(rest) = K::without(live, place) {
            secret::patch(&ctx.client, owner, &place.name, live, &rest).await
        } else {
            let removed = secret::remove(&ctx.client, &owner.namespace, &place.name, live).await;
            removed.map(|_| Some(String::new()))
        };
        self.written(&place.name, written)
    }

    /// The result of a write to a Secret: it failed, or the Secret is not the expected one.
    fn written(&mut self, name: &str, written: Result<Option<String>, secret::Error>) -> Performed {
        match written {
            Ok(Some(_)) => {
                tracing::info!("wrote Secret {name}");
                Ok(())
            }
            Ok(None) => Err(self.outdated()),
            Err(error) => {
                tracing::warn!("{error}");
                self.retry = Some(Retry::Backoff);
                Err(Interrupted(None))
            }
        }
    }
}

/// Another object for which `claims` holds, and that was there first. One of the same namespace if there is one.
pub(crate) fn older_claimant<K: CoderResource>(
    object: &K,
    all: &Cache<K>,
    group: &str,
    claims: impl Fn(&K) -> bool,
) -> Option<NameConflict> {
    let mut others = all.of_group(group);
    others.retain(|other| {
        object::is_before(&**other, object) && !object::is_deleting(&**other) && claims(other)
    });
    let neighbour = others.iter().find(|other| other.namespace() == object.namespace());
    let neighbour = neighbour.map(|other| NameConflict::Neighbour(other.name_any()));
    neighbour.or_else(|| others.first().map(|_| NameConflict::Elsewhere))
}

/// The deployment that an object belongs to: that of the control plane which it names, or else the recorded one.
pub(crate) fn deployment_id_of<K: CoderResource>(
    object: &K,
    plane: Option<&str>,
    recorded: Option<&String>,
    ctx: &Context,
) -> Option<String> {
    let namespace = object.namespace().unwrap_or_default();
    let plane = plane.and_then(|plane| ctx.caches.control_planes.get(&namespace, plane));
    plane.and_then(|plane| plane.status.as_ref()?.deployment_id.clone()).or_else(|| recorded.cloned())
}

/// The Deployment of an object. `pod_credential` reads its template. `own_url` is the address of pods whose spec sets it by itself: what
/// the operator would have set counts.
pub(crate) fn workload(
    deployment: Option<&Deployment>,
    pod_credential: fn(&PodTemplateSpec) -> Option<PodCredential>,
    own_url: Option<String>,
) -> Option<Workload> {
    let deployment = deployment?;
    let mut pod_credential = pod_credential(&deployment.spec.as_ref()?.template)?;
    if let Some(url) = own_url {
        pod_credential.url = url;
    }
    Some(Workload { pod_credential, is_rolled_out: Rollout::of(Some(deployment)).is_rolled_out() })
}
