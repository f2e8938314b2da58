//! The registration of a proxy: observes what [`decide`] rests on, answers its queries and performs its effects.

mod coderd;
mod secrets;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderWorkspaceProxy,
    names::{component, finalizer},
};
use coder_k8s_coderd::{CoderdError, ErrorKind};
use coder_k8s_core::{
    object,
    outcome::Blocker,
    rollout::Rollout,
    target::{CoderdTarget, SecretDataRef, Version},
    workload::Workload,
    workspaceproxy::{
        Observed,
        deployment::{own_url, run_of},
        primary_url,
        registration::{
            self, Decision, Health, RegistrationEffect, RegistrationMarks, RegistrationQuery,
            RegistrationRecord, decide, health,
        },
        wanted_registration,
    },
};
use coder_k8s_engine::{cache::ObjectKey, secret};
use kube::ResourceExt;
use secrecy::SecretString;

use super::observe::ProxyTarget;
use crate::{
    coderd::{
        blocker_at,
        credential::{self, StepState},
    },
    controller::{Context, children, secrets as storing},
};

/// The registration of one proxy in one reconcile.
pub(super) struct RegistrationReconciler {
    pub(super) state: StepState<CoderWorkspaceProxy>,
    observed: registration::ObservedRegistration,
}

impl RegistrationReconciler {
    /// Reads what is known without coderd. None: the object has no UID, because it was never stored.
    pub(super) async fn begin(
        key: &ObjectKey,
        proxy: &Observed,
        target: ProxyTarget,
        verify_due: bool,
        ctx: &Arc<Context>,
    ) -> Option<Self> {
        let object = &*proxy.object;
        let owner = children::owner_of(object, component::WORKSPACE_PROXY)?;
        let record = object.status.as_ref().map(RegistrationRecord::of).unwrap_or_default();
        let desired = wanted_registration(object);
        let (secrets, stored) = secrets::read(desired.as_ref(), &record, object, &owner, ctx).await;
        let given = secrets::given(object, key, ctx).await;
        let url = primary_url(object, proxy.control_plane.as_deref());
        let may_make = match (&proxy.credentials, &proxy.gate) {
            (Some(Err(blocker)), _) => Err(blocker.clone()),
            (_, Some(gate)) if !gate.may_begin() => Err(Blocker::new(gate.reason, gate.message.clone())),
            _ => Ok(()),
        };
        let name_conflict = target.target.as_ref().ok().and_then(|target| name_conflict(object, target, ctx));
        let observed = registration::ObservedRegistration {
            desired,
            given,
            record,
            has_finalizer: object::has_finalizer(object, finalizer::WORKSPACE_PROXY),
            verify_due,
            may_make,
            target: target.target,
            name_conflict,
            workload: workload(proxy, url.as_ref()),
            url,
            secrets,
            late_effect_window: ctx.policy.late_effect_window,
            deletion: ctx.deletion(object),
            proofs: BTreeMap::new(),
            listings: BTreeMap::new(),
        };
        let first_run = decide(&observed, ctx.now()).run;
        let state = StepState {
            ctx: ctx.clone(),
            key: key.clone(),
            connections: target.connections,
            object: proxy.object.clone(),
            owner,
            stored,
            first_run,
            object_written: false,
            retry: target.retry,
            blocker: None,
        };
        Some(Self { state, observed })
    }

    /// The health of the proxy, if coderd was asked.
    pub(super) fn health(&self) -> Option<Health> {
        health(&self.observed)
    }
}

impl credential::CredentialReconciler for RegistrationReconciler {
    type Kind = CoderWorkspaceProxy;
    type Query = RegistrationQuery;
    type Record = RegistrationRecord;
    type Effect = RegistrationEffect;
    type Marks = RegistrationMarks;

    const FINALIZER: &'static str = finalizer::WORKSPACE_PROXY;

    fn decide(&self) -> Decision {
        decide(&self.observed, self.state.ctx.now())
    }

    fn makes(effect: &RegistrationEffect) -> bool {
        matches!(effect, RegistrationEffect::Make { .. })
    }

    fn state(&mut self) -> &mut StepState<CoderWorkspaceProxy> {
        &mut self.state
    }

    fn blocker_of(&self, error: &CoderdError) -> Blocker {
        let field = match &self.state.object.spec.bootstrap {
            Some(_) => "bootstrap.coderURL",
            None => "operatorAccess.apiURL of the control plane",
        };
        match error.kind {
            ErrorKind::RateLimited { .. } => {
                let message = "Coder API rate limited while reconciling the workspace proxy";
                Blocker::new(error.reason(), message)
            }
            _ => blocker_at(error, field),
        }
    }

    async fn ask(&mut self, query: RegistrationQuery) {
        match query {
            RegistrationQuery::Registrations(target) => {
                let listing = self.listing(&target).await;
                self.observed.listings.insert(target, listing);
            }
            RegistrationQuery::TokenProof(place) => {
                let proof = self.proof(&place).await;
                self.observed.proofs.insert(place, proof);
            }
        }
    }

    async fn act(&mut self, effect: RegistrationEffect) -> bool {
        match effect {
            RegistrationEffect::Make { pending, settings, secret, version } => {
                self.make(&pending, settings, &secret, &version).await
            }
            RegistrationEffect::Update { target, id, settings } => self.update(&target, &id, settings).await,
            RegistrationEffect::Deregister { target, id, name } => self.deregister(&target, &id, &name).await,
        }
    }

    async fn store(
        &mut self,
        place: &SecretDataRef,
        version: &Version,
        token: Option<&SecretString>,
        marks: &RegistrationMarks,
    ) -> bool {
        let StepState { ctx, owner, stored, .. } = &self.state;
        let (live, annotations) = (stored.get(&place.name), secrets::annotations(marks));
        let written = storing::store(place, version, live, token, annotations, owner, ctx).await;
        self.state.is_stored(&place.name, written)
    }

    async fn remove(&mut self, place: &SecretDataRef, version: &Version) -> bool {
        let StepState { ctx, owner, stored, .. } = &self.state;
        let Some(live) = stored.get(&place.name).filter(|live| storing::is_version(live, version)) else {
            return self.state.outdated();
        };
        let removed = secret::remove(&ctx.client, &owner.namespace, &place.name, live).await;
        self.state.is_stored(&place.name, removed.map(|_| Some(String::new())))
    }

    async fn read_secrets(&mut self) {
        let StepState { ctx, owner, object, .. } = &self.state;
        let desired = self.observed.desired.as_ref();
        let (secrets, stored) = secrets::read(desired, &self.observed.record, object, owner, ctx).await;
        self.observed.secrets = secrets;
        self.state.stored = stored;
        self.observed.proofs.clear();
    }
}

/// Another proxy that asks for the same name in the same coderd, and was there first.
fn name_conflict(object: &CoderWorkspaceProxy, target: &CoderdTarget, ctx: &Context) -> Option<String> {
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
            && !object::is_deleting(other)
            && age(other) < age(object)
            && wanted_registration(other).is_some_and(|desired| desired.name.eq_ignore_ascii_case(&name))
            && target.deployment_id.is_some()
            && deployment(other) == target.deployment_id
    });
    others.first().map(|other| format!("{}/{}", other.namespace().unwrap_or_default(), other.name_any()))
}

fn workload(proxy: &Observed, url: Option<&String>) -> Option<Workload> {
    let deployment = proxy.children.deployment.as_deref()?;
    let mut run = run_of(&deployment.spec.as_ref()?.template)?;
    if let Some(url) = url.filter(|_| own_url(proxy)) {
        run.url.clone_from(url);
    }
    Some(Workload { run, settled: Rollout::of(Some(deployment)).is_settled() })
}
