//! The key of a pool: observes what [`decide`] rests on, answers its queries and performs its effects.

mod coderd;
mod secrets;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderProvisioner, Reason,
    names::{annotation, component, finalizer},
};
use coder_k8s_coderd::{CoderdError, ErrorKind};
use coder_k8s_core::{
    object,
    provisioner::{
        self, Observed,
        deployment::{own_url, run_of},
        keys::{
            self, Blocker, Claimant, CoderdTarget, Decision, DesiredKey, KeyEffect, KeyMarks, KeyQuery,
            KeyRecord, SecretDataRef, Version, Workload, decide,
        },
        names,
    },
    rollout::Rollout,
};
use coder_k8s_engine::{
    cache::ObjectKey,
    secret::{self, SecretPatch},
};
use kube::ResourceExt;
use secrecy::SecretString;

use crate::{
    coderd::{
        credential::{self, StepState},
        credentials,
        targets::Connections,
    },
    controller::{Context, children, secrets as storing},
};

/// The key of one pool in one reconcile.
pub(super) struct KeyReconciler {
    pub(super) state: StepState<CoderProvisioner>,
    observed: keys::ObservedKeys,
    selector: BTreeMap<String, String>,
    /// Whether `extraEnv` sets the address that pods connect to.
    own_url: bool,
}

impl KeyReconciler {
    /// Reads what is known without coderd. None: the object has no UID, because it was never stored.
    pub(super) async fn begin(
        key: &ObjectKey,
        pool: &Observed,
        connections: Connections,
        verify_due: bool,
        ctx: &Arc<Context>,
    ) -> Option<Self> {
        let object = &*pool.object;
        let owner = children::owner_of(object, component::PROVISIONER)?;
        let record = object.status.as_ref().map(KeyRecord::of).unwrap_or_default();
        let desired = desired(object);
        let (secrets, stored) = secrets::read(&owner, &desired.secret, &record, object, ctx).await;
        let observed = keys::ObservedKeys {
            object: claimant(object),
            claimants: claimants(object, pool, ctx),
            desired,
            record,
            has_finalizer: object::has_finalizer(object, finalizer::PROVISIONER),
            verify_due,
            may_make: may_make(pool),
            target: target(pool),
            secrets,
            workload: workload(pool),
            deletion: ctx.deletion(object),
            organization: None,
            proofs: BTreeMap::new(),
            listings: BTreeMap::new(),
            late_effect_window: ctx.policy.late_effect_window,
            old_pods: None,
        };
        let first_run = decide(&observed, ctx.now()).run;
        let state = StepState {
            ctx: ctx.clone(),
            key: key.clone(),
            connections,
            object: pool.object.clone(),
            owner,
            stored,
            first_run,
            object_written: false,
            retry: None,
            blocker: None,
        };
        Some(Self { state, observed, selector: pool.selector(), own_url: own_url(pool) })
    }
}

impl credential::CredentialReconciler for KeyReconciler {
    type Kind = CoderProvisioner;
    type Query = KeyQuery;
    type Record = KeyRecord;
    type Effect = KeyEffect;
    type Marks = KeyMarks;

    const FINALIZER: &'static str = finalizer::PROVISIONER;

    fn decide(&self) -> Decision {
        decide(&self.observed, self.state.ctx.now())
    }

    fn makes(effect: &KeyEffect) -> bool {
        matches!(effect, KeyEffect::Make { .. })
    }

    fn state(&mut self) -> &mut StepState<CoderProvisioner> {
        &mut self.state
    }

    fn blocker_of(&self, error: &CoderdError) -> Blocker {
        let message = match error.kind {
            ErrorKind::RateLimited { .. } => {
                "Coder API rate limited while reconciling provisioner key".to_owned()
            }
            _ => error.to_string(),
        };
        Blocker::new(error.reason(), message)
    }

    async fn ask(&mut self, query: KeyQuery) {
        match query {
            KeyQuery::Organization => self.observed.organization = Some(self.organization().await),
            KeyQuery::KeyProof(place) => {
                let proof = self.proof(&place).await;
                self.observed.proofs.insert(place, proof);
            }
            KeyQuery::Keys(scope) => {
                let listing = self.listing(&scope).await;
                self.observed.listings.insert(scope, listing);
            }
            KeyQuery::Pods => self.observed.old_pods = Some(self.old_pods().await),
        }
    }

    async fn act(&mut self, effect: KeyEffect) -> bool {
        match effect {
            KeyEffect::Make { key, tags, secret, version, marks } => {
                self.make(&key, &tags, &secret, &version, marks).await
            }
            KeyEffect::Delete { scope, name, id } => self.delete(&scope, &name, &id).await,
        }
    }

    async fn store(
        &mut self,
        place: &SecretDataRef,
        version: &Version,
        material: Option<&SecretString>,
        marks: &KeyMarks,
    ) -> bool {
        let StepState { ctx, owner, stored, .. } = &self.state;
        let live = stored.get(&place.name);
        let mut annotations = secrets::annotations(marks);
        let mut data_keys = live.map(|live| secrets::data_keys(&live.annotations)).unwrap_or_default();
        data_keys.insert(place.key.clone());
        annotations.insert(annotation::KEY_DATA_KEYS.to_owned(), Some(secrets::list(data_keys)));
        let written = storing::store(place, version, live, material, annotations, owner, ctx).await;
        self.state.is_stored(&place.name, written)
    }

    async fn remove(&mut self, place: &SecretDataRef, version: &Version) -> bool {
        let StepState { ctx, owner, stored, .. } = &self.state;
        let Some(live) = stored.get(&place.name).filter(|live| storing::is_version(live, version)) else {
            return self.state.outdated();
        };
        let mut ours = secrets::data_keys(&live.annotations);
        ours.remove(&place.key);
        let others = live.keys().filter(|key| *key != place.key).count();
        let written = if ours.is_empty() && others == 0 {
            let removed = secret::remove(&ctx.client, &owner.namespace, &place.name, live).await;
            removed.map(|_| Some(String::new()))
        } else {
            let change = SecretPatch {
                data: [(place.key.clone(), None)].into(),
                annotations: [(annotation::KEY_DATA_KEYS.to_owned(), Some(secrets::list(ours)))].into(),
            };
            secret::patch(&ctx.client, owner, &place.name, live, &change).await
        };
        self.state.is_stored(&place.name, written)
    }

    async fn read_secrets(&mut self) {
        let StepState { ctx, owner, object, .. } = &self.state;
        let (secrets, stored) =
            secrets::read(owner, &self.observed.desired.secret, &self.observed.record, object, ctx).await;
        self.observed.secrets = secrets;
        self.state.stored = stored;
        self.observed.proofs.clear();
    }
}

fn desired(object: &CoderProvisioner) -> DesiredKey {
    let (spec, name) = (&object.spec, object.name_any());
    let namespace = object.namespace().unwrap_or_default();
    let key = spec.key.as_ref();
    let given = key.and_then(|key| key.name.as_ref()).map(AsRef::as_ref);
    DesiredKey {
        control_plane: spec.control_plane_ref.name.to_string(),
        organization: spec
            .organization_name
            .as_ref()
            .map_or_else(|| "default".to_owned(), ToString::to_string),
        name: names::KeyBase::new(given, &namespace, &name),
        tags: spec.tags.clone(),
        secret: SecretDataRef {
            name: key
                .and_then(|key| key.secret_name.as_ref())
                .map_or_else(|| names::secret(&name), ToString::to_string),
            key: key
                .and_then(|key| key.secret_key.as_ref())
                .map_or_else(|| "key".to_owned(), ToString::to_string),
        },
    }
}

fn claimant(object: &CoderProvisioner) -> Claimant {
    Claimant {
        created: object.creation_timestamp().map(|time| time.0),
        uid: object.uid().unwrap_or_default(),
        called: format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()),
    }
}

/// Other pools that claim the name in the same organization of the same coderd.
fn claimants(object: &CoderProvisioner, pool: &Observed, ctx: &Context) -> Vec<Claimant> {
    let deployment = |object: &CoderProvisioner, plane: Option<&coder_k8s_api::CoderControlPlane>| {
        let published = plane.and_then(|plane| plane.status.as_ref()?.deployment_id.clone());
        published.or_else(|| object.status.as_ref()?.deployment_id.clone())
    };
    let own = (desired(object), pool.deployment_id.clone());
    let others = ctx.caches.provisioners.filter(|other| {
        if other.uid() == object.uid() || object::is_deleting(other) {
            return false;
        }
        let theirs = desired(other);
        if theirs.name.name != own.0.name.name || theirs.organization != own.0.organization {
            return false;
        }
        let namespace = other.namespace().unwrap_or_default();
        let plane = ctx.caches.control_planes.get(&namespace, &theirs.control_plane);
        own.1.is_some() && deployment(other, plane.as_deref()) == own.1
    });
    others.iter().map(|other| claimant(other)).collect()
}

/// Whether a key may be made now.
fn may_make(pool: &Observed) -> Result<(), Blocker> {
    pool.credentials.clone()?;
    if pool.gate.may_begin() {
        return Ok(());
    }
    Err(Blocker::new(pool.gate.reason, pool.gate.message.clone()))
}

/// The coderd that the spec leads to.
fn target(pool: &Observed) -> Result<CoderdTarget, Blocker> {
    let plane = provisioner::control_plane(pool)
        .map_err(|message| Blocker::new(Reason::ControlPlaneUnavailable, message))?;
    Ok(CoderdTarget {
        control_plane: plane.name_any(),
        url: provisioner::daemon_url(plane),
        deployment_id: pool.deployment_id.clone(),
        credentials: Some(credentials::of_pool(&pool.object, Some(plane))?),
    })
}

fn workload(pool: &Observed) -> Option<Workload> {
    let deployment = pool.children.deployment.as_deref()?;
    let mut run = run_of(&deployment.spec.as_ref()?.template)?;
    if let Some(plane) = pool.control_plane.as_deref().filter(|_| own_url(pool)) {
        run.url = provisioner::daemon_url(plane);
    }
    Some(Workload { run, settled: Rollout::of(Some(deployment)).is_settled() })
}
