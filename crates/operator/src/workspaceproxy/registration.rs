//! The dealings of a pass with coderd about a registration: what [`decide`] asks for is looked at, what it says is done.

mod look;
mod secrets;
mod step;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderWorkspaceProxy,
    names::{component, finalizer},
};
use coder_k8s_coderd::Client;
use coder_k8s_core::{
    object,
    outcome::Trouble,
    place::{Place, SecretPlace, Version},
    rollout::Rollout,
    workload::Workload,
    workspaceproxy::{
        Seen,
        deployment::{own_url, run_of},
        primary_url,
        registration::{self, Act, Decision, Health, Look, Marks, Record, decide, health},
        wanted_registration,
    },
};
use coder_k8s_engine::{key::Key, secret};
use kube::ResourceExt;
use secrecy::SecretString;

use super::reach::Reached;
use crate::controller::{
    Context, children,
    credential::{self, Course},
    secrets as storing,
};

/// The dealings of one pass.
pub(super) struct Dealings {
    pub(super) course: Course<CoderWorkspaceProxy>,
    seen: registration::Seen,
    /// Clients of this pass.
    clients: BTreeMap<Place, Client>,
}

impl Dealings {
    /// Reads what is known without coderd. None: the object was never stored.
    pub(super) async fn begin(
        key: &Key,
        proxy: &Seen,
        reached: Reached,
        verify_due: bool,
        ctx: &Arc<Context>,
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
        let course = Course {
            ctx: ctx.clone(),
            key: key.clone(),
            object: proxy.object.clone(),
            owner,
            held,
            first_run,
            touched: false,
            retry: reached.retry,
            trouble: None,
        };
        Some(Self { course, seen, clients: BTreeMap::new() })
    }

    /// What coderd sees of the proxy, if it was asked.
    pub(super) fn health(&self) -> Option<Health> {
        health(&self.seen)
    }
}

impl credential::Dealings for Dealings {
    type Kind = CoderWorkspaceProxy;
    type Look = Look;
    type Record = Record;
    type Act = Act;
    type Marks = Marks;

    const FINALIZER: &'static str = finalizer::WORKSPACE_PROXY;

    fn decide(&self) -> Decision {
        decide(&self.seen, self.course.ctx.now())
    }

    fn makes(act: &Act) -> bool {
        matches!(act, Act::Make { .. })
    }

    fn course(&mut self) -> &mut Course<CoderWorkspaceProxy> {
        &mut self.course
    }

    async fn look(&mut self, look: Look) {
        self.look_at(look).await;
    }

    async fn change(&mut self, act: Act) -> bool {
        match act {
            Act::Make { pending, settings, secret, version } => {
                self.make(&pending, settings, &secret, &version).await
            }
            Act::Update { place, id, settings } => self.update(&place, &id, settings).await,
            Act::Deregister { place, id, name } => self.deregister(&place, &id, &name).await,
        }
    }

    async fn store(
        &mut self,
        place: &SecretPlace,
        version: &Version,
        token: Option<&SecretString>,
        marks: &Marks,
    ) -> bool {
        let Course { ctx, owner, held, .. } = &self.course;
        let (held, annotations) = (held.get(&place.name), secrets::annotations(marks));
        let written = storing::store(place, version, held, token, annotations, owner, ctx).await;
        self.course.is_stored(&place.name, written)
    }

    async fn remove(&mut self, place: &SecretPlace, version: &Version) -> bool {
        let Course { ctx, owner, held, .. } = &self.course;
        let Some(held) = held.get(&place.name).filter(|held| storing::is_version(held, version)) else {
            return self.course.outdated();
        };
        let removed = secret::remove(&ctx.client, &owner.namespace, &place.name, held).await;
        self.course.is_stored(&place.name, removed.map(|_| Some(String::new())))
    }

    async fn read_again(&mut self) {
        let Course { ctx, owner, object, .. } = &self.course;
        let wanted = self.seen.wanted.as_ref();
        let (secrets, held) = secrets::read(wanted, &self.seen.record, object, owner, ctx).await;
        self.seen.secrets = secrets;
        self.course.held = held;
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
