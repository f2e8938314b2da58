//! The dealings of a pass with coderd about a registration: what [`decide`] asks for is looked at, what it says is done.
//!
//! A token is held only while it is proven, copied or stored. Every effect is preceded by a live look at the object, so
//! that nothing is done for a spec that is no longer there.

mod look;
mod secrets;
mod step;

use std::{collections::BTreeMap, ops::ControlFlow};

use coder_k8s_api::{
    CoderWorkspaceProxy,
    names::{component, finalizer},
};
use coder_k8s_coderd::Client;
use coder_k8s_core::{
    object,
    outcome::{Retry, Trouble},
    place::Place,
    rollout::Rollout,
    workload::{Run, Workload},
    workspaceproxy::{
        Seen,
        deployment::{own_url, run_of},
        primary_url,
        registration::{self, Decision, Next, Record, Step, decide},
        wanted_registration,
    },
};
use coder_k8s_engine::{gate::Owner, key::Key, secret::SecretData};
use kube::ResourceExt;

use super::reach::Reached;
use crate::controller::{Context, children, finalizer as holding};

/// The most effects of one pass. Each is followed by a fresh look; more than these follow in the next pass.
const EFFECTS: usize = 6;
/// The most looks of one pass.
const LOOKS: usize = 16;

/// The dealings of one pass.
pub(super) struct Dealings<'a> {
    ctx: &'a Context,
    key: &'a Key,
    object: &'a CoderWorkspaceProxy,
    owner: Owner,
    seen: registration::Seen,
    /// Secrets as they were read, by name.
    held: BTreeMap<String, SecretData>,
    /// Clients of this pass.
    clients: BTreeMap<Place, Client>,
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
        proxy: &'a Seen,
        reached: Reached,
        verify_due: bool,
        ctx: &'a Context,
    ) -> Option<Self> {
        let object = &*proxy.object;
        let owner = children::owner_of(object, component::WORKSPACE_PROXY)?;
        let record = object.status.as_ref().map(Record::of).unwrap_or_default();
        let wanted = wanted_registration(object);
        let (secrets, held) = secrets::read(wanted.as_ref(), &record, object, &owner, ctx).await;
        let given = secrets::given(object, key, ctx).await;
        let url = primary_url(object, proxy.control_plane.as_deref());
        let may_make = match (&proxy.credentials, &proxy.gate) {
            (Some(Err(trouble)), _) => Err(trouble.clone()),
            (_, Some(gate)) if !gate.may_begin() => {
                Err(Trouble { reason: gate.reason, message: gate.message.clone() })
            }
            _ => Ok(()),
        };
        let elder = reached.target.as_ref().ok().and_then(|target| elder(object, target, ctx));
        let seen = registration::Seen {
            wanted,
            given,
            record,
            is_held: object::is_held(object, finalizer::WORKSPACE_PROXY),
            verify_due,
            may_make,
            target: reached.target,
            elder,
            workload: workload(proxy, url.as_ref()),
            url,
            secrets,
            going: ctx.going(object),
            proofs: BTreeMap::new(),
            listings: BTreeMap::new(),
        };
        let first_run = decide(&seen, ctx.now()).run;
        Some(Self {
            ctx,
            key,
            object,
            owner,
            seen,
            held,
            clients: BTreeMap::new(),
            first_run,
            touched: false,
            retry: reached.retry,
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

    async fn perform(&mut self, step: Step) -> ControlFlow<()> {
        if step == Step::Hold {
            let held = holding::hold(self.object, finalizer::WORKSPACE_PROXY, self.ctx).await;
            return held.map_break(|failed| {
                self.retry = failed;
                self.touched = failed.is_none();
            });
        }
        if !self.ctx.is_current(self.object).await {
            self.retry = Some(Retry::Soon);
            return ControlFlow::Break(());
        }
        self.effect(step).await
    }

    /// Reads the Secrets anew, after one of them was written.
    async fn read_again(&mut self) {
        let wanted = self.seen.wanted.as_ref();
        let (secrets, held) =
            secrets::read(wanted, &self.seen.record, self.object, &self.owner, self.ctx).await;
        self.seen.secrets = secrets;
        self.held = held;
        self.seen.proofs.clear();
    }
}

/// Another proxy that asks for the same name in the same coderd, and was there first.
fn elder(object: &CoderWorkspaceProxy, target: &Place, ctx: &Context) -> Option<String> {
    let name = wanted_registration(object)?.name;
    let age = |object: &CoderWorkspaceProxy| (object.creation_timestamp().map(|time| time.0), object.uid());
    let deployment = |other: &CoderWorkspaceProxy| {
        let namespace = other.namespace().unwrap_or_default();
        let plane = other.spec.control_plane_ref.as_ref();
        let plane = plane.and_then(|plane| ctx.caches.control_planes.get(&namespace, plane.name.as_str()));
        let published = plane.and_then(|plane| plane.status.as_ref()?.deployment_id.clone());
        published.or_else(|| other.status.as_ref()?.deployment_id.clone())
    };
    let others = ctx.caches.workspace_proxies.filter(|other| {
        other.uid() != object.uid()
            && !object::is_going(other)
            && age(other) < age(object)
            && wanted_registration(other).is_some_and(|wanted| wanted.name.eq_ignore_ascii_case(&name))
            && target.deployment_id.is_some()
            && deployment(other) == target.deployment_id
    });
    others.first().map(|other| format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any()))
}

fn workload(proxy: &Seen, url: Option<&String>) -> Option<Workload> {
    let deployment = proxy.children.deployment.as_deref()?;
    let mut run = run_of(&deployment.spec.as_ref()?.template)?;
    if let Some(url) = url.filter(|_| own_url(proxy)) {
        run.url.clone_from(url);
    }
    Some(Workload { run, settled: Rollout::of(Some(deployment)).is_settled() })
}
