//! Decides about a CoderControlPlane: its children ([`decide`]), its Deployment ([`build_deployment`]) and its status
//! ([`status`]).
//!
//! Nothing here waits: what cannot be decided yet is left out of the plan, and the status names what is missing. The operator
//! token and the license are decided in [`coderd`].

pub mod access_url;
pub mod coderd;
pub mod image;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderControlPlane, CoderControlPlaneStatus, Reason, Scaling, WorkspaceRbac,
    condition::condition_type,
    names::{annotation, component},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Container, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::ResourceExt;

use self::image::Image;
use crate::{
    condition::{Conditions, Progress, Verdict},
    exposure::{self, Exposure},
    jobs::JobsVerdict,
    object,
    outcome::{ActResult, Blocker},
    pod::{self, Needs, Serving},
    service::{self, HTTP},
    sources::SourceContents,
    workload::{self, Accounts, Rollout},
    workspace_access::{self, Consent, GrantPolicy, Grantee},
};

pub use crate::workload::Children;

/// What was observed.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub object: Arc<CoderControlPlane>,
    /// Its children, as far as they bear our label.
    pub children: Children,
    /// The Deployment as the operator last wrote it, or read it live, while `children` has an older one. An image that
    /// the operator has just replaced must not look like one that somebody else set.
    pub newer_deployment: Option<Arc<Deployment>>,
    /// Secrets and ConfigMaps that the pods read, or why they could not be read.
    pub sources: Result<SourceContents, Blocker>,
    /// Whether other namespaces consent to workspaces.
    pub consent: BTreeMap<String, Consent>,
    /// Whether the cluster has the Gateway API.
    pub gateway_api: bool,
    /// What the flags say about access for workspaces.
    pub grant_policy: GrantPolicy,
    /// The report of exchanges with coderd.
    pub coderd: coderd::CoderdReport,
    /// What the conditions about coderd depend on now.
    pub inputs: coderd::PresentInputs,
    /// Whether jobs have daemons that could run them.
    pub jobs: JobsVerdict,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether the finalizer is to be there.
    pub finalizer: bool,
    /// The desired children. None: the object is being deleted.
    pub desired: Option<Desired>,
    /// Access for workspaces.
    pub workspaces: workspace_access::Plan,
}

/// The children that are wanted, besides the Deployment, which [`build_deployment`] makes once the Service is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The ServiceAccount, and what becomes of others.
    pub accounts: Accounts,
    /// The Service.
    pub service: Service,
    /// Whether another field manager takes over `replicas`, because `spec.scaling` has become External.
    pub hand_over_replicas: bool,
    /// The Ingress or route.
    pub exposure: exposure::DesiredExposure,
    /// The disruption budget.
    pub budget: Option<PodDisruptionBudget>,
}

impl Observed {
    /// The labels that all children bear and that select the pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        object::selector(&*self.object, component::CONTROL_PLANE)
    }

    /// The name of the pods' ServiceAccount.
    pub fn service_account(&self) -> String {
        workload::account_name(&self.object.spec.service_account, || self.object.name_any())
    }

    /// For whom workspaces are granted access.
    pub fn grantee(&self) -> Grantee {
        Grantee::of(&*self.object, workspace_access::GranteeKind::ControlPlane, self.service_account())
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// The latest Deployment that is known.
    pub fn deployment(&self) -> Option<&Arc<Deployment>> {
        self.newer_deployment.as_ref().or(self.children.deployment.as_ref())
    }

    /// Whether every pod runs as the wanted ServiceAccount, so that an earlier one can go.
    fn has_moved(&self) -> bool {
        workload::have_moved(self.children.deployment.as_deref(), &self.service_account())
    }

    /// The image of coderd.
    fn image(&self) -> image::Image {
        image::decide(&self.object, self.deployment().map(Arc::as_ref))
    }

    /// Pods that are asked for, by whoever decides it.
    fn replicas(&self) -> i32 {
        match self.object.spec.scaling {
            Scaling::Managed => self.object.spec.replicas,
            Scaling::External => {
                let live = self.deployment().and_then(|d| d.spec.as_ref()?.replicas);
                live.unwrap_or(1)
            }
        }
    }
}

/// Decides what is to be done.
pub fn decide(observed: &Observed) -> Plan {
    let (grantee, existing) = (observed.grantee(), &observed.children.rbac);
    let is_deleting = observed.is_deleting();
    let (no_access, no_consent) =
        (WorkspaceRbac { workspace_perms: false, ..WorkspaceRbac::default() }, BTreeMap::new());
    let (rbac, consent) =
        if is_deleting { (&no_access, &no_consent) } else { (&observed.object.spec.rbac, &observed.consent) };
    let has_moved = is_deleting || observed.has_moved();
    let workspaces =
        workspace_access::decide(rbac, &grantee, consent, existing, has_moved, observed.grant_policy);
    let needs_finalizer = workspaces.reaches_outside(&grantee, existing)
        || coderd::access::needs_cleaning(&observed.object, &observed.coderd);
    let desired = (!is_deleting).then(|| desired(observed));
    Plan { finalizer: !is_deleting && needs_finalizer, desired, workspaces }
}

fn desired(observed: &Observed) -> Desired {
    let (spec, name, selector) = (&observed.object.spec, observed.object.name_any(), observed.selector());
    let tls = !spec.tls.secret_names.is_empty();
    let port = service::http_port(&spec.service, tls);
    let held = &observed.children.service_accounts;
    let accounts = workload::decide_accounts(
        &spec.service_account,
        &observed.service_account(),
        held,
        observed.has_moved(),
    );
    let is_to_hand_over = |live: &Arc<Deployment>| !live.annotations().contains_key(annotation::SCALING);
    Desired {
        accounts,
        service: service::service(&name, &spec.service, service::HTTP, tls, &selector),
        hand_over_replicas: spec.scaling == Scaling::External
            && observed.deployment().is_some_and(is_to_hand_over),
        exposure: exposure::desired(&name, spec.expose.as_ref(), &name, port, observed.gateway_api),
        budget: pod::disruption_budget(
            &name,
            spec.pod_disruption_budget.as_ref(),
            observed.replicas(),
            &selector,
        ),
    }
}

/// Name of the container.
pub const CONTAINER: &str = "coder";

/// The Deployment, given what its sources say and whether the pods have IPv6 addresses.
pub fn build_deployment(observed: &Observed, sources: &SourceContents, ipv6: bool) -> Deployment {
    let spec = &observed.object.spec;
    let mut env = pod::relay(ipv6, HTTP).to_vec();
    env.extend(access_url::addresses(&observed.object, sources).env);
    let (image, kept) = match observed.image() {
        Image::Asked => (spec.image.to_string(), None),
        Image::Kept(newer) => (newer.clone(), Some((annotation::KEPT_IMAGE.to_owned(), newer))),
    };
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(image),
        args: Some(vec![format!("--http-address={}", pod::listen(ipv6, HTTP))]),
        env: Some(env),
        ..Container::default()
    };
    let external = spec.scaling == Scaling::External;
    let scaled_by = external.then(|| (annotation::SCALING.to_owned(), "External".to_owned()));
    let needs = Needs {
        name: observed.object.name_any(),
        selector: observed.selector(),
        replicas: (!external).then_some(spec.replicas),
        container,
        service_account: observed.service_account(),
        annotations: scaled_by.into_iter().chain(kept).collect(),
        pod_annotations: [].into(),
        sources,
        prometheus: &spec.prometheus,
        serving: Some(Serving {
            http: HTTP,
            ipv6,
            tls: &spec.tls,
            readiness: &spec.readiness_probe,
            liveness: &spec.liveness_probe,
        }),
    };
    pod::deployment(&spec.pod, needs)
}

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong with children.
    pub done: ActResult,
    /// The Deployment as it is now.
    pub deployment: Option<Arc<Deployment>>,
    /// What pods of a rollout that does not get on say.
    pub pod_message: Option<String>,
    /// What became of the exposure.
    pub exposure: Exposure,
    /// Grants that failed, with the namespace.
    pub grant_blockers: Vec<(String, Blocker)>,
    /// Whether the object itself was written, so that what was seen of it is outdated and another reconcile follows.
    pub object_written: bool,
}

impl Outcome {
    /// All that failed, for the retry.
    pub fn into_done(self) -> ActResult {
        let mut done = self.done;
        done.failures.extend(self.grant_blockers.into_iter().map(|(_, failure)| failure));
        done
    }
}

/// Computes the status after the plan was carried out as far as the outcome shows.
pub fn status(
    observed: &Observed,
    plan: &Plan,
    outcome: &Outcome,
    now: Timestamp,
) -> CoderControlPlaneStatus {
    let object = &*observed.object;
    let before = object.status.clone().unwrap_or_default();
    let rollout = Rollout::of(outcome.deployment.as_deref());
    let mut conditions = Conditions::new(&before.workload.conditions, object.metadata.generation, now);
    if observed.is_deleting() {
        set_deleting(&mut conditions, observed, outcome);
        let workload = coder_k8s_api::WorkloadStatus {
            observed_generation: object.metadata.generation,
            conditions: conditions.into_vec(),
            ..before.workload.clone()
        };
        return CoderControlPlaneStatus { workload, ..before };
    }
    let mut next = before.clone();
    coderd::set_conditions(object, &observed.coderd, &observed.inputs, &mut conditions, &mut next, now);
    let image = observed.image();
    next.applied_image = image::applied(object, &image, outcome.deployment.as_deref());
    let downgrade = image::downgrade(object.spec.image.as_str(), &image, next.version.as_deref());
    let kept = downgrade.clone().filter(|_| matches!(image, image::Image::Kept(_)));
    let verdict = verdict(object, outcome, &rollout, kept, conditions.said(condition_type::LICENSE_APPLIED));
    conditions.set_common(&outcome.done, verdict);
    workload::set_deployment_ready(&mut conditions, &rollout, outcome.pod_message.as_deref());
    outcome.exposure.set_conditions(object.spec.expose.as_ref(), &mut conditions);
    let own = object.namespace().unwrap_or_default();
    workspace_access::set_conditions(&mut conditions, &own, &plan.workspaces, &outcome.grant_blockers);
    observed.jobs.set_conditions(&mut conditions);
    conditions.clear(condition_type::PAUSED);
    match downgrade {
        Some(why) => conditions.set(condition_type::DOWNGRADE, true, Reason::OlderThanDatabase, why),
        None => conditions.clear(condition_type::DOWNGRADE),
    }
    let workload = workload::status(
        &next.workload,
        object.metadata.generation,
        outcome.deployment.as_deref(),
        &rollout,
        conditions,
    );
    let shown = match &observed.sources {
        Ok(found) => access_url::addresses(object, found).shown,
        Err(_) => before.access_url.clone(),
    };
    CoderControlPlaneStatus {
        workload,
        url: Some(access_url::cluster_url(object)),
        access_url: shown,
        ..next
    }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
/// `lost` is what it was granted in other namespaces and no longer has, and `grant_blockers` what could not be withdrawn.
pub fn paused(
    object: &CoderControlPlane,
    lost: &workspace_access::Plan,
    grant_blockers: &[(String, Blocker)],
    now: Timestamp,
) -> CoderControlPlaneStatus {
    let mut status = object.status.clone().unwrap_or_default();
    let own = object.namespace().unwrap_or_default();
    workload::set_paused(&mut status.workload, object.metadata.generation, now, |conditions| {
        workspace_access::set_lost(conditions, &own, lost, grant_blockers);
    });
    status
}

/// Whether the object is as its spec asks, if nothing failed.
fn verdict(
    object: &CoderControlPlane,
    outcome: &Outcome,
    rollout: &Rollout,
    kept_image: Option<String>,
    license: Option<&Condition>,
) -> Verdict {
    if !rollout.is_rolled_out() {
        return workload::still_rolling_out(rollout, outcome.pod_message.as_deref());
    }
    if let Some(message) = kept_image {
        let (progress, reason) = (Progress::Stalled, Reason::OlderThanDatabase);
        return Verdict { ready: false, progress, reason, message };
    }
    let waiting = outcome.exposure.verdict().or_else(|| coderd::license::unready(object, license));
    waiting.unwrap_or_else(|| Verdict {
        ready: true,
        progress: Progress::Settled,
        reason: rollout.reason(),
        message: rollout.message(),
    })
}

fn set_deleting(conditions: &mut Conditions<'_>, observed: &Observed, outcome: &Outcome) {
    let failure =
        outcome.done.failures.first().or_else(|| outcome.grant_blockers.first().map(|(_, failure)| failure));
    let (reason, message) = match (failure, &observed.coderd.revocation) {
        (Some(failure), _) => (failure.reason, failure.message.clone()),
        (None, Some(coderd::access::Revocation::Failing(blocker))) => {
            (blocker.reason, format!("the operator token is not revoked yet: {}", blocker.message))
        }
        (None, None) if coderd::access::needs_cleaning(&observed.object, &observed.coderd) => {
            (Reason::Revoking, "revoking the operator token".to_owned())
        }
        (None, _) => (Reason::Deleting, "the object is being deleted".to_owned()),
    };
    conditions.set(condition_type::READY, false, Reason::Deleting, "the object is being deleted");
    conditions.set(condition_type::RECONCILING, true, reason, message);
}

#[cfg(test)]
mod tests;
