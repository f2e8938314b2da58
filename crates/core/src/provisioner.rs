//! Decides about a CoderProvisioner: its children ([`decide`]), its Deployment ([`build_deployment`]) and its status
//! ([`status`]).
//!
//! The key ([`keys`]) and the license ([`crate::license_gate`]) are decided apart. Nothing here waits for them, except that
//! the Deployment needs a key.

pub mod daemons;
pub mod keys;
pub mod names;
pub mod scaling;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderControlPlane, CoderProvisioner, CoderProvisionerStatus, Reason, WorkspaceRbac,
    condition::condition_type,
    names::{annotation, component},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, PodTemplateSpec},
    policy::v1::PodDisruptionBudget,
};
use kube::ResourceExt;

use self::{
    daemons::DaemonHealth,
    keys::{CONDITIONS, Decision, NextStep, PodCredential, tags},
};
use crate::{
    condition::Conditions,
    controlplane::access_url,
    credential::{self, CredentialStanding},
    object,
    outcome::{ActResult, Blocker},
    pod::{self, Needs, variable},
    sources::SourceContents,
    workload::{self, Accounts, Rollout},
    workspace_access::{self, Consent, GrantPolicy, Grantee},
};

pub use crate::{license_gate, workload::Children};

/// What was observed, besides what concerns the key.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub object: Arc<CoderProvisioner>,
    /// The control plane that it names.
    pub control_plane: Option<Arc<CoderControlPlane>>,
    /// Which deployment answers there, once known.
    pub deployment_id: Option<String>,
    /// Its children with the label of the operator.
    pub children: Children,
    /// Secrets and ConfigMaps that the pods read, or why they could not be read.
    pub sources: Result<SourceContents, Blocker>,
    /// Whether other namespaces consent to workspaces.
    pub consent: BTreeMap<String, Consent>,
    /// What the flags say about access for workspaces.
    pub grant_policy: GrantPolicy,
    /// Whether the license covers it.
    pub gate: license_gate::LicenseGate,
    /// Whether there are credentials to manage keys with.
    pub credentials: Result<(), keys::Blocker>,
    /// The daemons that coderd lists, and the pods.
    pub daemons: daemons::ObservedDaemons,
    /// How it is scaled. None: it has a fixed number of daemons.
    pub scaling: Option<scaling::ObservedScaling>,
}

/// What is to be done, besides what concerns the key.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether the finalizer is to be there for what is in other namespaces.
    pub reaches_outside: bool,
    /// The desired children. None: the object is being deleted.
    pub desired: Option<Desired>,
    /// Access for workspaces.
    pub workspaces: workspace_access::Plan,
}

/// The desired children, besides the Deployment, which [`build_deployment`] builds once there is a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The ServiceAccount, and those to give up or remove.
    pub accounts: Accounts,
    /// The disruption budget.
    pub budget: Option<PodDisruptionBudget>,
}

impl Observed {
    /// The labels of all children, which also select the pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        object::selector(&*self.object, component::PROVISIONER)
    }

    /// The name of the pods' ServiceAccount.
    pub fn service_account(&self) -> String {
        let name = self.object.name_any();
        workload::account_name(&self.object.spec.service_account, || names::service_account(&name))
    }

    /// For whom workspaces are granted access.
    pub fn grantee(&self) -> Grantee {
        Grantee::of(&*self.object, workspace_access::GranteeKind::Provisioner, self.service_account())
    }

    /// How many pods are to run.
    pub fn replicas(&self) -> i32 {
        let deployment = self.children.deployment.as_ref().and_then(|deployment| deployment.spec.as_ref());
        let current = deployment.and_then(|spec| spec.replicas);
        let spec = &self.object.spec;
        let asked = self.scaling.as_ref().map_or(spec.replicas, |scaling| scaling.replicas(current));
        self.gate.replicas(asked, spec.on_entitlement_lost)
    }

    /// How many pods may run, whatever the queue asks for.
    fn max_replicas(&self) -> i32 {
        let scaling = self.object.spec.autoscaling.as_ref();
        scaling.map_or_else(|| self.replicas(), |scaling| scaling.max_replicas)
    }

    /// The image of the daemons. Without one in the spec it is the image that the control plane has rolled out, because
    /// coderd refuses newer daemons. Until that is known, they keep their image.
    pub fn image(&self) -> Option<String> {
        let given = self.object.spec.image.as_ref().map(ToString::to_string);
        let (plane, deployment) = (self.control_plane.as_deref(), self.children.deployment.as_deref());
        given.or_else(|| workload::followed_image(plane, deployment))
    }
}

/// The address that daemons and proxies connect to: the Service, by HTTP even if coderd serves HTTPS, because its
/// certificate need not name the Service and their pods need not trust it.
pub fn pods_url(plane: &CoderControlPlane) -> String {
    access_url::http_url(plane)
}

/// Decides what is to be done.
pub fn decide(observed: &Observed) -> Plan {
    let (grantee, rbac) = (observed.grantee(), &observed.children.rbac);
    let spec = &observed.object.spec;
    let deleting = object::is_deleting(&*observed.object);
    let nothing = WorkspaceRbac { workspace_perms: false, ..WorkspaceRbac::default() };
    let asked = if deleting { &nothing } else { &spec.rbac };
    let account = observed.service_account();
    let moved = workload::have_moved(observed.children.deployment.as_deref(), &account);
    let workspaces = workspace_access::decide(
        asked,
        &grantee,
        &observed.consent,
        rbac,
        deleting || moved,
        observed.grant_policy,
    );
    let desired = (!deleting).then(|| Desired {
        accounts: workload::decide_accounts(
            &spec.service_account,
            &account,
            &observed.children.service_accounts,
            moved,
        ),
        budget: pod::disruption_budget(
            &names::deployment(&observed.object.name_any()),
            spec.pod_disruption_budget.as_ref(),
            // Only if the spec asks for a budget: an evicted daemon finishes its build in its grace period.
            spec.pod_disruption_budget.as_ref().map_or(0, |_| observed.max_replicas()),
            &observed.selector(),
        ),
    });
    Plan { reaches_outside: workspaces.reaches_outside(&grantee, rbac), desired, workspaces }
}

/// Name of the container.
pub const CONTAINER: &str = "provisioner";
/// The variable with the name of the daemon.
const DAEMON_NAME: &str = "CODER_PROVISIONER_DAEMON_NAME";
/// The variable with the key.
const KEY_VARIABLE: &str = "CODER_PROVISIONER_DAEMON_KEY";
/// The variable with the address of coderd.
const URL_VARIABLE: &str = "CODER_URL";

/// The Deployment, given what pods are to run with. None: no image is known yet.
pub fn build_deployment(
    observed: &Observed,
    sources: &SourceContents,
    pod_credential: &PodCredential,
) -> Option<Deployment> {
    let spec = &observed.object.spec;
    let name = observed.object.name_any();
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(observed.image()?),
        // The entrypoint of the image starts a server.
        command: Some(vec!["coder".to_owned()]),
        args: Some(vec!["provisioner".to_owned(), "start".to_owned()]),
        // Neither an organization nor tags: coderd takes both from the key, and the daemon refuses to start with them.
        env: Some(vec![
            variable(URL_VARIABLE, pod_credential.url.clone()),
            pod::secret_variable(KEY_VARIABLE, &pod_credential.secret),
            pod::field("POD_NAME", "metadata.name"),
            pod::field("POD_UID", "metadata.uid"),
            variable(DAEMON_NAME, names::daemon(&name)),
        ]),
        ..Container::default()
    };
    let needs = Needs {
        name: names::deployment(&name),
        selector: observed.selector(),
        replicas: Some(observed.replicas()),
        container,
        service_account: observed.service_account(),
        annotations: [].into(),
        pod_annotations: [(annotation::KEY_CHECKSUM.to_owned(), pod_credential.checksum.clone())].into(),
        sources,
        prometheus: &spec.prometheus,
        serving: None,
    };
    Some(pod::deployment(&spec.pod, needs))
}

/// Whether the spec sets the address that pods connect to. The address of the key then does not have to be theirs.
pub fn own_url(pool: &CoderProvisioner) -> bool {
    pod::find_variable(&pool.spec.pod.extra_env, URL_VARIABLE).is_some()
}

/// What the pods of a template run with. None: it is not that of a pool.
pub fn pod_credential_of(template: &PodTemplateSpec) -> Option<PodCredential> {
    PodCredential::of(template, CONTAINER, annotation::KEY_CHECKSUM, KEY_VARIABLE, URL_VARIABLE)
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
    /// Grants that failed, with the namespace.
    pub grant_blockers: Vec<(String, Blocker)>,
}

impl Outcome {
    /// All that failed, for the retry.
    pub fn into_done(self) -> ActResult {
        let mut done = self.done;
        done.failures.extend(self.grant_blockers.into_iter().map(|(_, failure)| failure));
        done
    }
}

/// Says how things stand after the plan was carried out as far as the outcome tells, and the key as far as decided.
pub fn status(
    observed: &Observed,
    plan: &Plan,
    outcome: &Outcome,
    decision: &Decision,
    daemons: &DaemonHealth,
    now: Timestamp,
) -> CoderProvisionerStatus {
    let object = &*observed.object;
    let generation = object.metadata.generation;
    let before = object.status.clone().unwrap_or_default();
    let mut next = before.clone();
    if let NextStep::WriteStatus(record) = &decision.next {
        record.write(&mut next);
    }
    show_tags(object, &mut next);
    let rollout = match observed.scaling {
        Some(_) => Rollout::of_scaled(outcome.deployment.as_deref()),
        None => Rollout::of(outcome.deployment.as_deref()),
    };
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    if object::is_deleting(object) {
        let grant_blockers = || outcome.grant_blockers.first().map(|(_, failure)| failure);
        let failure = outcome.done.failures.first().or_else(grant_blockers);
        let workload =
            credential::deleting(&before.workload, generation, conditions, failure, &decision.verdict);
        return CoderProvisionerStatus { workload, ..next };
    }
    let plane = object.spec.control_plane_ref.name.as_str();
    credential::set_control_plane_ready(&mut conditions, plane, control_plane(observed));
    set_credentials_ready(&mut conditions, observed);
    let license_gate::LicenseGate { reason: why, message, .. } = &observed.gate;
    conditions.set(
        condition_type::EXTERNAL_PROVISIONERS_ENTITLED,
        observed.gate.condition_status(),
        *why,
        message.clone(),
    );
    decision.verdict.set_conditions(&mut conditions, &CONDITIONS);
    let said_ready =
        conditions.said(condition_type::PROVISIONER_KEY_READY).is_some_and(|c| c.status == "True");
    let standing = CredentialStanding {
        verdict: &decision.verdict,
        said_good: said_ready,
        gate: Some(&observed.gate),
        can_run: outcome.deployment.is_some() || observed.image().is_some(),
        rollout: &rollout,
        pod_message: outcome.pod_message.as_deref(),
    };
    let verdict = standing.not_ready().unwrap_or_else(|| standing.ready());
    conditions.set_common(&outcome.done, verdict);
    set_deployment_ready(&mut conditions, &rollout, outcome.pod_message.as_deref());
    daemons.set_conditions(&mut conditions);
    next.daemons = daemons.report(before.daemons.as_ref(), now);
    let (scaling, decided) = (observed.scaling.as_ref(), before.autoscaling.as_ref());
    let is_plane_paused = observed.control_plane.as_deref().is_some_and(object::is_paused);
    next.autoscaling =
        scaling::set_conditions(&mut conditions, object, scaling, &observed.gate, is_plane_paused, decided);
    let own = object.namespace().unwrap_or_default();
    workspace_access::set_conditions(&mut conditions, &own, &plan.workspaces, &outcome.grant_blockers);
    conditions.clear(condition_type::PAUSED);
    let workload =
        workload::status(&before.workload, generation, outcome.deployment.as_deref(), &rollout, conditions);
    CoderProvisionerStatus { workload, ..next }
}

/// Shows the tags of the key in use. While that is the key of an earlier spec, they stay as they were shown.
fn show_tags(object: &CoderProvisioner, next: &mut CoderProvisionerStatus) {
    match &next.tags_hash {
        Some(hash) if *hash == tags::hash(&object.spec.tags) => {
            next.tags = Some(tags::shown(&object.spec.tags));
        }
        Some(_) => {}
        None => next.tags = None,
    }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
/// `lost` is what it was granted in other namespaces and no longer has, and `grant_blockers` what could not be withdrawn.
pub fn paused(
    object: &CoderProvisioner,
    lost: &workspace_access::Plan,
    grant_blockers: &[(String, Blocker)],
    now: Timestamp,
) -> CoderProvisionerStatus {
    let mut status = object.status.clone().unwrap_or_default();
    let own = object.namespace().unwrap_or_default();
    workload::set_paused(&mut status.workload, object.metadata.generation, now, |conditions| {
        workspace_access::set_lost(conditions, &own, lost, grant_blockers);
    });
    status
}

/// The control plane, if daemons can join it.
pub fn control_plane(observed: &Observed) -> Result<&CoderControlPlane, Blocker> {
    let name = observed.object.spec.control_plane_ref.name.as_str();
    credential::usable(name, observed.control_plane.as_deref(), observed.deployment_id.as_ref())
}

/// Of a pool the Go operator says whether any pod is ready, and so do scripts that wait for it. Whether all are as
/// the spec asks is what `Ready` says.
fn set_deployment_ready(conditions: &mut Conditions<'_>, rollout: &Rollout, pod_message: Option<&str>) {
    let ready = rollout.ready > 0;
    let reason = if ready { Reason::MinimumReplicasReady } else { Reason::NoReplicasReady };
    conditions.set(
        condition_type::DEPLOYMENT_READY,
        ready,
        reason,
        workload::with_words(rollout, pod_message),
    );
}

fn set_credentials_ready(conditions: &mut Conditions<'_>, observed: &Observed) {
    let bootstrap =
        (Reason::BootstrapSecretAvailable, "the Secret of bootstrap.credentialsSecretRef holds a token");
    let operator = (Reason::OperatorAccessReady, "the pool uses the operator token of its control plane");
    let (type_, other, ready) = if observed.object.spec.bootstrap.is_some() {
        (condition_type::BOOTSTRAP_SECRET_READY, condition_type::OPERATOR_ACCESS_READY, bootstrap)
    } else {
        (condition_type::OPERATOR_ACCESS_READY, condition_type::BOOTSTRAP_SECRET_READY, operator)
    };
    conditions.clear(other);
    credential::set_credentials_ready(conditions, type_, &observed.credentials, ready);
}
