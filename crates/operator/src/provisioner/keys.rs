//! The dealings of a pass with coderd about keys: what [`decide`] asks for is looked at, what it says is done.
//!
//! Material is held only while it is proven, copied or stored. Every effect is preceded by a live look at the object, so
//! that nothing is done for a spec that is no longer there.

mod look;
mod place;
mod secrets;
mod step;

use std::{collections::BTreeMap, ops::ControlFlow};

use coder_k8s_api::{
    CoderProvisioner,
    names::{component, finalizer},
};
use coder_k8s_core::{
    object,
    outcome::Retry,
    provisioner::{
        self, Seen,
        deployment::{own_url, run_of},
        keys::{
            self, Claimant, Decision, Next, Place, Record, Run, SecretPlace, Step, Trouble, Wanted, Workload,
            decide,
        },
        names,
    },
    rollout::Rollout,
};
use coder_k8s_engine::{gate::Owner, key::Key, secret::SecretData};
use kube::ResourceExt;

use crate::controller::{Context, children, coderd, finalizer as holding};

/// The most effects of one pass. Each is followed by a fresh look; more than these follow in the next pass.
const EFFECTS: usize = 6;
/// The most looks of one pass.
const LOOKS: usize = 32;

/// The dealings of one pass.
pub(super) struct Dealings<'a> {
    ctx: &'a Context,
    key: &'a Key,
    object: &'a CoderProvisioner,
    owner: Owner,
    seen: keys::Seen,
    selector: BTreeMap<String, String>,
    /// Whether the user gives pods the address to connect to.
    own_url: bool,
    /// Secrets as they were read, by name.
    held: BTreeMap<String, SecretData>,
    first_run: Option<Run>,
    /// Whether the object itself was written, so that what was seen of it is outdated.
    pub(super) touched: bool,
    /// When to try again what coderd did not answer.
    pub(super) retry: Option<Retry>,
    /// Why the last step failed.
    trouble: Option<Trouble>,
}

impl<'a> Dealings<'a> {
    /// Reads what is known without coderd. None: the object was never stored.
    pub(super) async fn begin(
        key: &'a Key,
        pool: &'a Seen,
        verify_due: bool,
        ctx: &'a Context,
    ) -> Option<Self> {
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
        Some(Self {
            ctx,
            key,
            object,
            owner,
            seen,
            selector: pool.selector(),
            own_url: own_url(pool),
            held,
            first_run,
            touched: false,
            retry: None,
            trouble: None,
        })
    }

    /// What pods are to run with, as far as it was known at the beginning.
    pub(super) fn run(&self) -> Option<&Run> {
        self.first_run.as_ref()
    }

    /// Looks and does, until there is nothing more to do, or what is next must be recorded first.
    pub(super) async fn carry_on(&mut self) -> Decision {
        let (mut looks, mut effects) = (0, 0);
        loop {
            let mut decision = decide(&self.seen, self.ctx.now());
            match &decision.next {
                Next::Look(look) if looks < LOOKS => {
                    looks += 1;
                    self.look(look.clone()).await;
                    continue;
                }
                Next::Do(step) if effects < EFFECTS && self.retry.is_none() => {
                    effects += 1;
                    self.tell(&decision).await;
                    let step = step.clone();
                    if self.perform(*step).await.is_break() {
                        if let Some(trouble) = self.trouble.take() {
                            decision.finding = decision.finding.delayed(trouble);
                        }
                        return decision;
                    }
                    continue;
                }
                _ => {}
            }
            self.tell(&decision).await;
            return decision;
        }
    }

    async fn tell(&self, decision: &Decision) {
        for note in &decision.notes {
            tracing::info!(reason = note.reason, "{}", note.message);
            self.ctx.events.publish(&kube::Resource::object_ref(self.object, &()), note).await;
        }
    }

    /// Whether the object is still the one that was decided on, and this process may still change anything.
    async fn is_current(&mut self) -> bool {
        let may = self.ctx.is_current(self.object).await;
        if !may {
            self.retry = Some(Retry::Soon);
        }
        may
    }

    /// Puts the finalizer on the object.
    async fn hold(&mut self) -> ControlFlow<()> {
        let held = holding::hold(self.object, finalizer::PROVISIONER, self.ctx).await;
        held.map_break(|failed| {
            self.retry = failed;
            self.touched = failed.is_none();
        })
    }

    /// Reads the Secrets anew, after one of them was written.
    async fn read_again(&mut self) {
        let (secrets, held) =
            secrets::read(&self.owner, &self.seen.wanted.secret, &self.seen.record, self.object, self.ctx)
                .await;
        self.seen.secrets = secrets;
        self.held = held;
        self.seen.proofs.clear();
    }

    async fn perform(&mut self, step: Step) -> ControlFlow<()> {
        match step {
            Step::Hold => self.hold().await,
            step => {
                if !self.is_current().await {
                    return ControlFlow::Break(());
                }
                self.effect(step).await
            }
        }
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
