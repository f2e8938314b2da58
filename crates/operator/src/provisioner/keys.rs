//! The dealings of a pass with coderd about keys: what [`decide`] asks for is looked at, what it says is done.

mod look;
mod place;
mod secrets;
mod step;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderProvisioner,
    names::{annotation, component, finalizer},
};
use coder_k8s_core::{
    object,
    provisioner::{
        self, Seen,
        deployment::{own_url, run_of},
        keys::{
            self, Act, Claimant, Decision, Look, Marks, Place, Record, SecretPlace, Trouble, Version, Wanted,
            Workload, decide,
        },
        names,
    },
    rollout::Rollout,
};
use coder_k8s_engine::{
    key::Key,
    secret::{self, Change},
};
use kube::ResourceExt;
use secrecy::SecretString;

use crate::controller::{
    Context, children, coderd,
    credential::{self, Course},
    secrets as storing,
};

/// The dealings of one pass.
pub(super) struct Dealings {
    pub(super) course: Course<CoderProvisioner>,
    seen: keys::Seen,
    selector: BTreeMap<String, String>,
    /// Whether the user gives pods the address to connect to.
    own_url: bool,
}

impl Dealings {
    /// Reads what is known without coderd. None: the object was never stored.
    pub(super) async fn begin(key: &Key, pool: &Seen, verify_due: bool, ctx: &Arc<Context>) -> Option<Self> {
        let object = &*pool.object;
        let owner = children::owner_of(object, component::PROVISIONER)?;
        let record = object.status.as_ref().map(Record::of).unwrap_or_default();
        let wanted = wanted(object);
        let (secrets, held) = secrets::read(&owner, &wanted.secret, &record, object, ctx).await;
        let seen = keys::Seen {
            object: claimant(object),
            claimants: claimants(object, pool, ctx),
            wanted,
            record,
            is_held: object::is_held(object, finalizer::PROVISIONER),
            verify_due,
            may_make: may_make(pool),
            target: target(pool),
            secrets,
            workload: workload(pool),
            going: ctx.going(object),
            organization: None,
            proofs: BTreeMap::new(),
            listings: BTreeMap::new(),
            straggler: ctx.straggler,
            old_pods: None,
        };
        let first_run = decide(&seen, ctx.now()).run;
        let course = Course {
            ctx: ctx.clone(),
            key: key.clone(),
            object: pool.object.clone(),
            owner,
            held,
            first_run,
            touched: false,
            retry: None,
            trouble: None,
        };
        Some(Self { course, seen, selector: pool.selector(), own_url: own_url(pool) })
    }
}

impl credential::Dealings for Dealings {
    type Kind = CoderProvisioner;
    type Look = Look;
    type Record = Record;
    type Act = Act;
    type Marks = Marks;

    const FINALIZER: &'static str = finalizer::PROVISIONER;

    fn decide(&self) -> Decision {
        decide(&self.seen, self.course.ctx.now())
    }

    fn makes(act: &Act) -> bool {
        matches!(act, Act::Make { .. })
    }

    fn course(&mut self) -> &mut Course<CoderProvisioner> {
        &mut self.course
    }

    async fn look(&mut self, look: Look) {
        self.look_at(look).await;
    }

    async fn change(&mut self, act: Act) -> bool {
        match act {
            Act::Make { key, tags, secret, version, marks } => {
                self.make(&key, &tags, &secret, &version, marks).await
            }
            Act::Delete { at, name, id } => self.delete(&at, &name, &id).await,
        }
    }

    async fn store(
        &mut self,
        place: &SecretPlace,
        version: &Version,
        material: Option<&SecretString>,
        marks: &Marks,
    ) -> bool {
        let Course { ctx, owner, held, .. } = &self.course;
        let held = held.get(&place.name);
        let mut annotations = secrets::annotations(marks);
        let mut data_keys = held.map(|held| secrets::data_keys(&held.annotations)).unwrap_or_default();
        data_keys.insert(place.key.clone());
        annotations.insert(annotation::KEY_DATA_KEYS.to_owned(), Some(secrets::list(data_keys)));
        let written = storing::store(place, version, held, material, annotations, owner, ctx).await;
        self.course.is_stored(&place.name, written)
    }

    /// Takes the data key, and with the last of ours the Secret.
    async fn remove(&mut self, place: &SecretPlace, version: &Version) -> bool {
        let Course { ctx, owner, held, .. } = &self.course;
        let Some(held) = held.get(&place.name).filter(|held| storing::is_version(held, version)) else {
            return self.course.outdated();
        };
        let mut ours = secrets::data_keys(&held.annotations);
        ours.remove(&place.key);
        let others = held.keys().filter(|key| *key != place.key).count();
        let written = if ours.is_empty() && others == 0 {
            let removed = secret::remove(&ctx.client, &owner.namespace, &place.name, held).await;
            removed.map(|_| Some(String::new()))
        } else {
            let change = Change {
                data: [(place.key.clone(), None)].into(),
                annotations: [(annotation::KEY_DATA_KEYS.to_owned(), Some(secrets::list(ours)))].into(),
            };
            secret::change(&ctx.client, owner, &place.name, held, &change).await
        };
        self.course.is_stored(&place.name, written)
    }

    async fn read_again(&mut self) {
        let Course { ctx, owner, object, .. } = &self.course;
        let (secrets, held) =
            secrets::read(owner, &self.seen.wanted.secret, &self.seen.record, object, ctx).await;
        self.seen.secrets = secrets;
        self.course.held = held;
        self.seen.proofs.clear();
    }
}

fn wanted(object: &CoderProvisioner) -> Wanted {
    let (spec, name) = (&object.spec, object.name_any());
    let namespace = object.namespace().unwrap_or_default();
    let key = spec.key.as_ref();
    let given = key.and_then(|key| key.name.as_ref()).map(AsRef::as_ref);
    Wanted {
        control_plane: spec.control_plane_ref.name.to_string(),
        organization: spec
            .organization_name
            .as_ref()
            .map_or_else(|| "default".to_owned(), ToString::to_string),
        name: names::KeyBase::new(given, &namespace, &name),
        tags: spec.tags.clone(),
        secret: SecretPlace {
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
fn claimants(object: &CoderProvisioner, pool: &Seen, ctx: &Context) -> Vec<Claimant> {
    let deployment = |object: &CoderProvisioner, plane: Option<&coder_k8s_api::CoderControlPlane>| {
        let published = plane.and_then(|plane| plane.status.as_ref()?.deployment_id.clone());
        published.or_else(|| object.status.as_ref()?.deployment_id.clone())
    };
    let own = (wanted(object), pool.deployment_id.clone());
    let others = ctx.caches.provisioners.filter(|other| {
        if other.uid() == object.uid() || object::is_going(other) {
            return false;
        }
        let theirs = wanted(other);
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
fn may_make(pool: &Seen) -> Result<(), Trouble> {
    pool.credentials.clone()?;
    if pool.gate.may_begin() {
        return Ok(());
    }
    Err(Trouble { reason: pool.gate.reason, message: pool.gate.message.clone() })
}

/// The coderd that the spec leads to.
fn target(pool: &Seen) -> Result<Place, Trouble> {
    let plane = provisioner::control_plane(pool)
        .map_err(|message| Trouble { reason: "ControlPlaneUnavailable", message })?;
    Ok(Place {
        control_plane: plane.name_any(),
        url: provisioner::daemon_url(plane),
        deployment_id: pool.deployment_id.clone(),
        credentials: Some(coderd::credentials(&pool.object, Some(plane))?),
    })
}

fn workload(pool: &Seen) -> Option<Workload> {
    let deployment = pool.children.deployment.as_deref()?;
    let mut run = run_of(&deployment.spec.as_ref()?.template)?;
    if let Some(plane) = pool.control_plane.as_deref().filter(|_| own_url(pool)) {
        run.url = provisioner::daemon_url(plane);
    }
    Some(Workload { run, settled: Rollout::of(Some(deployment)).is_settled() })
}
