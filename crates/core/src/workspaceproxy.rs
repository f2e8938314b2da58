//! Decides about a CoderWorkspaceProxy: its children ([`decide`]), its addresses, its Deployment ([`build_deployment`]) and
//! its status ([`status`]).
//!
//! The registration ([`registration`]) and the license are decided apart. Nothing here waits for them, except that the
//! Deployment needs a token.

pub mod registration;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{
    CoderControlPlane, CoderWorkspaceProxy, CoderWorkspaceProxyStatus, DEFAULT_IMAGE, Reason, Registration,
    condition::condition_type,
    names::{annotation, component},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Container, EnvVar, PodTemplateSpec, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;

use self::registration::{CONDITIONS, Decision, Health, NextStep};
use crate::{
    condition::{ConditionStatus, Conditions, whole_seconds},
    controlplane::access_url::{self, Defaults},
    credential::{self, CredentialProgress, CredentialStanding, CredentialVerdict},
    exposure::{self, Exposure},
    license_gate::LicenseGate,
    names, object,
    outcome::{ActResult, Blocker},
    pod::{self, Needs, Serving, variable},
    provisioner::pods_url,
    service,
    sources::SourceContents,
    target::SecretDataRef,
    workload::{self, Accounts, PodCredential, Rollout},
};

pub use crate::workload::Children;

/// Port on which proxies serve HTTP.
pub const HTTP: i32 = 3001;

/// The key of a token in the data of a Secret.
pub const TOKEN: &str = "token";

/// What was observed, besides what concerns the registration.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object.
    pub object: Arc<CoderWorkspaceProxy>,
    /// The control plane that it names.
    pub control_plane: Option<Arc<CoderControlPlane>>,
    /// Its children with the label of the operator.
    pub children: Children,
    /// Secrets and ConfigMaps that the pods read, or why they could not be read.
    pub sources: Result<SourceContents, Blocker>,
    /// Whether the cluster has the Gateway API.
    pub gateway_api: bool,
    /// Whether the license covers it. None: nothing is to be registered.
    pub gate: Option<LicenseGate>,
    /// Whether the credentials for registering can be used. None: nothing is to be registered.
    pub credentials: Option<Result<(), Blocker>>,
}

/// The desired children, besides the Deployment, which [`build_deployment`] builds once there is a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The ServiceAccount, and those to give up or remove.
    pub accounts: Accounts,
    /// The Service.
    pub service: Service,
    /// The Ingress or route.
    pub exposure: exposure::DesiredExposure,
    /// The disruption budget.
    pub budget: Option<PodDisruptionBudget>,
}

impl Observed {
    /// The labels of all children, which also select the pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        object::selector(&*self.object, component::WORKSPACE_PROXY)
    }

    /// The name of the pods' ServiceAccount.
    pub fn service_account(&self) -> String {
        workload::account_name(&self.object.spec.service_account, || {
            names::proxy_child(&self.object.name_any())
        })
    }

    /// The image of the proxy. Without one in the spec it is the image that the control plane has rolled out. Until that is
    /// known, the pods keep their image.
    pub fn image(&self) -> Option<String> {
        let spec = &self.object.spec;
        let given = spec.image.as_ref().map(ToString::to_string);
        if spec.control_plane_ref.is_none() {
            return given.or_else(|| Some(DEFAULT_IMAGE.to_owned()));
        }
        let (plane, deployment) = (self.control_plane.as_deref(), self.children.deployment.as_deref());
        given.or_else(|| workload::followed_image(plane, deployment))
    }
}

/// The address of the coderd that the pods connect to. Browsers are sent there to sign in, so that it is the one that
/// people use, where the control plane knows it.
pub fn primary_url(object: &CoderWorkspaceProxy, plane: Option<&CoderControlPlane>) -> Option<String> {
    let spec = &object.spec;
    let given = spec.primary_access_url.as_ref().map(ToString::to_string);
    let of_bootstrap = || spec.bootstrap.as_ref().map(|bootstrap| bootstrap.coder_url.to_string());
    let of_plane = || {
        let plane = plane.filter(|_| spec.control_plane_ref.is_some())?;
        let shown = plane.status.as_ref().and_then(|status| status.access_url.clone());
        Some(shown.unwrap_or_else(|| pods_url(plane)))
    };
    given.or_else(of_bootstrap).or_else(of_plane)
}

/// How the proxy is to be registered. None: a person supplies the token.
pub fn wanted_registration(object: &CoderWorkspaceProxy) -> Option<registration::DesiredRegistration> {
    let spec = &object.spec;
    if spec.proxy_session_token_secret_ref.is_some() {
        return None;
    }
    let plain = Registration::default();
    let asked = match &spec.bootstrap {
        Some(bootstrap) => &bootstrap.registration,
        None => spec.registration.as_ref().unwrap_or(&plain),
    };
    let Registration { proxy_name, display_name, icon, generated_token_secret_name } = asked;
    let name = object.name_any();
    Some(registration::DesiredRegistration {
        control_plane: spec
            .control_plane_ref
            .as_ref()
            .map(|plane| plane.name.to_string())
            .unwrap_or_default(),
        name: proxy_name.as_ref().map_or_else(|| name.clone(), ToString::to_string),
        display_name: display_name.as_ref().map(ToString::to_string),
        icon: icon.as_ref().map(ToString::to_string),
        secret: SecretDataRef {
            name: generated_token_secret_name
                .as_ref()
                .map_or_else(|| names::proxy_secret(&name), ToString::to_string),
            key: TOKEN.to_owned(),
        },
    })
}

/// The addresses of the proxy: those of the spec, else the exposed ones, else the Service.
pub fn addresses(object: &CoderWorkspaceProxy) -> Defaults {
    let spec = &object.spec;
    let exposed = access_url::exposed(spec.expose.as_ref());
    let namespace = object.namespace().unwrap_or_default();
    let host = format!("{}.{namespace}.svc.{}", names::proxy_child(&object.name_any()), spec.cluster_domain);
    let of_service = || access_url::of_service(&host, &spec.service, !spec.tls.secret_names.is_empty());
    let given = spec.access_url.as_ref().map(ToString::to_string);
    let url =
        given.or_else(|| exposed.as_ref().map(|exposed| exposed.url.clone())).unwrap_or_else(of_service);
    let wildcard = spec.wildcard_access_url.as_ref().map(ToString::to_string);
    Defaults { url: Some(url), wildcard: wildcard.or_else(|| exposed.and_then(|exposed| exposed.wildcard)) }
}

/// Decides which children are desired. None: the object is being deleted.
pub fn decide(observed: &Observed) -> Option<Desired> {
    if object::is_deleting(&*observed.object) {
        return None;
    }
    let (spec, name, selector) =
        (&observed.object.spec, names::proxy_child(&observed.object.name_any()), observed.selector());
    let tls = !spec.tls.secret_names.is_empty();
    let port = service::http_port(&spec.service, tls);
    let account = observed.service_account();
    let moved = workload::have_moved(observed.children.deployment.as_deref(), &account);
    Some(Desired {
        accounts: workload::decide_accounts(
            &spec.service_account,
            &account,
            &observed.children.service_accounts,
            moved,
        ),
        service: service::service(&name, &spec.service, HTTP, tls, &selector),
        exposure: exposure::desired(&name, spec.expose.as_ref(), &name, port, observed.gateway_api),
        budget: pod::disruption_budget(&name, spec.pod_disruption_budget.as_ref(), spec.replicas, &selector),
    })
}

/// Name of the container.
pub const CONTAINER: &str = "workspace-proxy";
/// The variable with the token.
const TOKEN_VARIABLE: &str = "CODER_PROXY_SESSION_TOKEN";
/// The variable with the address of coderd.
const PRIMARY: &str = "CODER_PRIMARY_ACCESS_URL";
/// The variable that switches the relay off.
const DERP: &str = "CODER_DERP_SERVER_ENABLE";

/// The Deployment, given what pods are to run with and whether they have IPv6 addresses. None: no image is known yet.
pub fn build_deployment(
    observed: &Observed,
    sources: &SourceContents,
    pod_credential: &PodCredential,
    ipv6: bool,
) -> Option<Deployment> {
    let spec = &observed.object.spec;
    let address = format!("--http-address={}", pod::listen(ipv6, HTTP));
    let args = ["wsproxy".to_owned(), "server".to_owned(), address];
    let derp_only = spec.derp_only.then(|| "--derp-only".to_owned());
    let container = Container {
        name: CONTAINER.to_owned(),
        image: Some(observed.image()?),
        // The entrypoint of the image starts a server.
        command: Some(vec!["coder".to_owned()]),
        args: Some(args.into_iter().chain(derp_only).collect()),
        env: Some(environment(observed, sources, pod_credential, ipv6)),
        ..Container::default()
    };
    // A token that a person supplies has no checksum.
    let checksum = Some(pod_credential.checksum.clone()).filter(|checksum| !checksum.is_empty());
    let needs = Needs {
        name: names::proxy_child(&observed.object.name_any()),
        selector: observed.selector(),
        replicas: Some(spec.replicas),
        container,
        service_account: observed.service_account(),
        annotations: [].into(),
        pod_annotations: checksum
            .into_iter()
            .map(|checksum| (annotation::PROXY_TOKEN_CHECKSUM.to_owned(), checksum))
            .collect(),
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
    Some(pod::deployment(&spec.pod, needs))
}

/// The operator's variables. The first two are where the Go operator puts them.
fn environment(
    observed: &Observed,
    sources: &SourceContents,
    pod_credential: &PodCredential,
    ipv6: bool,
) -> Vec<EnvVar> {
    let spec = &observed.object.spec;
    let mut all = vec![
        variable(PRIMARY, pod_credential.url.clone()),
        pod::secret_variable(TOKEN_VARIABLE, &pod_credential.secret),
    ];
    let derp = pod::find_variable(&spec.pod.extra_env, DERP).and_then(|entry| entry.value.as_deref());
    if !derp.is_some_and(|derp| derp.eq_ignore_ascii_case("false")) {
        // Replicas relay for each other by the addresses of their pods. Set for one too, so that scaling restarts no pod.
        all.extend(pod::relay(ipv6, HTTP));
    }
    all.extend(addresses(&observed.object).resolved(&spec.pod, sources).env);
    all
}

/// Whether the spec sets the address that pods connect to. The address of the registration then does not have to be
/// theirs.
pub fn own_url(observed: &Observed) -> bool {
    pod::find_variable(&observed.object.spec.pod.extra_env, PRIMARY).is_some()
}

/// What the pods of a template run with. None: it is not that of a proxy.
pub fn pod_credential_of(template: &PodTemplateSpec) -> Option<PodCredential> {
    PodCredential::of(template, CONTAINER, annotation::PROXY_TOKEN_CHECKSUM, TOKEN_VARIABLE, PRIMARY)
}

/// What came of a plan.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What went wrong with children.
    pub done: ActResult,
    /// Whether the Service is written.
    pub service: bool,
    /// Whether the pods have IPv6 addresses.
    pub ipv6: bool,
    /// The Deployment as it is now.
    pub deployment: Option<Arc<Deployment>>,
    /// What pods of a rollout that does not get on say.
    pub pod_message: Option<String>,
    /// What became of the exposure.
    pub exposure: Exposure,
}

/// Says how things stand after the plan was carried out as far as the outcome tells, and the registration as far as
/// decided.
pub fn status(
    observed: &Observed,
    outcome: &Outcome,
    decision: &Decision,
    health: Option<&Health>,
    now: Timestamp,
) -> CoderWorkspaceProxyStatus {
    let object = &*observed.object;
    let generation = object.metadata.generation;
    let before = object.status.clone().unwrap_or_default();
    let mut next = before.clone();
    if let NextStep::WriteStatus(record) = &decision.next {
        record.write(&mut next);
    }
    let mut conditions = Conditions::new(&before.workload.conditions, generation, now);
    if object::is_deleting(object) {
        let failure = outcome.done.failures.first();
        let workload =
            credential::deleting(&before.workload, generation, conditions, failure, &decision.verdict);
        return CoderWorkspaceProxyStatus { workload, ..next };
    }
    let rollout = Rollout::of(outcome.deployment.as_deref());
    set_control_plane_ready(&mut conditions, observed);
    set_credentials_ready(&mut conditions, observed);
    set_entitled(&mut conditions, observed);
    next.registered = Some(set_registered(&mut conditions, observed, decision));
    let standing = CredentialStanding {
        verdict: &decision.verdict,
        said_good: next.registered == Some(true),
        gate: observed.gate.as_ref(),
        can_run: outcome.deployment.is_some() || observed.image().is_some(),
        rollout: &rollout,
        pod_message: outcome.pod_message.as_deref(),
    };
    let not_ready = standing.not_ready().or_else(|| outcome.exposure.verdict());
    let hindered = not_ready.is_some() || !outcome.done.failures.is_empty();
    conditions.set_common(&outcome.done, not_ready.unwrap_or_else(|| standing.ready()));
    if !hindered {
        set_unsure(&mut conditions, &decision.verdict, generation);
    }
    let (reason, message) = if outcome.service {
        (Reason::ServiceWritten, "the Service is written")
    } else {
        (Reason::Pending, "waiting for the Service to be written")
    };
    conditions.set(condition_type::SERVICE_READY, outcome.service, reason, message);
    workload::set_deployment_ready(&mut conditions, &rollout, outcome.pod_message.as_deref());
    outcome.exposure.set_conditions(object.spec.expose.as_ref(), &mut conditions);
    set_health(&mut conditions, &mut next, observed, health, rollout.ready > 0, now);
    conditions.clear(condition_type::PAUSED);
    if let Ok(found) = &observed.sources {
        next.access_url = addresses(object).resolved(&object.spec.pod, found).shown;
    }
    let deployment = outcome.deployment.as_deref();
    let workload = workload::status(&before.workload, generation, deployment, &rollout, conditions);
    CoderWorkspaceProxyStatus { workload, ..next }
}

/// The status of an object that is not to be touched: as it was, and why nothing moves.
pub fn paused(object: &CoderWorkspaceProxy, now: Timestamp) -> CoderWorkspaceProxyStatus {
    let mut status = object.status.clone().unwrap_or_default();
    workload::set_paused(&mut status.workload, object.metadata.generation, now, |_| {});
    status
}

fn set_control_plane_ready(conditions: &mut Conditions<'_>, observed: &Observed) {
    let Some(reference) = &observed.object.spec.control_plane_ref else {
        return conditions.clear(condition_type::CONTROL_PLANE_READY);
    };
    let name = reference.name.as_str();
    let usable = control_plane(name, observed.control_plane.as_deref());
    credential::set_control_plane_ready(conditions, name, usable);
}

/// The control plane, if the proxy can register through it.
pub fn control_plane<'a>(
    name: &str,
    plane: Option<&'a CoderControlPlane>,
) -> Result<&'a CoderControlPlane, Blocker> {
    let deployment_id = plane.and_then(|plane| plane.status.as_ref()?.deployment_id.as_ref());
    credential::usable(name, plane, deployment_id)
}

fn set_credentials_ready(conditions: &mut Conditions<'_>, observed: &Observed) {
    match &observed.credentials {
        None => conditions.clear(condition_type::CREDENTIALS_READY),
        Some(found) => {
            let ready = (Reason::CredentialsAvailable, "the operator has a token to register the proxy with");
            credential::set_credentials_ready(conditions, condition_type::CREDENTIALS_READY, found, ready);
        }
    }
}

fn set_entitled(conditions: &mut Conditions<'_>, observed: &Observed) {
    match &observed.gate {
        None => conditions.clear(condition_type::ENTITLED),
        Some(gate) => {
            conditions.set(
                condition_type::ENTITLED,
                gate.condition_status(),
                gate.reason,
                gate.message.clone(),
            );
        }
    }
}

/// Sets the conditions of the registration, and returns whether there is one.
fn set_registered(conditions: &mut Conditions<'_>, observed: &Observed, decision: &Decision) -> bool {
    let verdict = &decision.verdict;
    if observed.gate.is_some() {
        verdict.set_conditions(conditions, &CONDITIONS);
        return conditions.said(condition_type::REGISTERED).is_some_and(|said| said.status == "True");
    }
    conditions.clear(condition_type::REGISTERED);
    conditions.set(
        condition_type::TOKEN_SECRET_READY,
        verdict.is_ready(),
        verdict.reason,
        verdict.message.clone(),
    );
    false
}

/// Reports that an edit may not have reached coderd yet. The status does not record what coderd shows of a proxy, so that only
/// coderd can tell.
fn set_unsure(conditions: &mut Conditions<'_>, verdict: &CredentialVerdict, generation: Option<i64>) {
    let edited = conditions
        .said(condition_type::REGISTERED)
        .is_some_and(|said| said.observed_generation != generation);
    if verdict.stage == CredentialProgress::Unsure && edited {
        conditions.set(condition_type::RECONCILING, true, verdict.reason, verdict.message.clone());
    }
}

/// Reports the health of the proxy as coderd sees it. The time of the check changes only with the health, so that a check
/// alone writes no status.
fn set_health(
    conditions: &mut Conditions<'_>,
    next: &mut CoderWorkspaceProxyStatus,
    observed: &Observed,
    health: Option<&Health>,
    any_pod_ready: bool,
    now: Timestamp,
) {
    if observed.gate.is_none() {
        conditions.clear(condition_type::HEALTHY);
        (next.health, next.health_last_checked, next.version) = (None, None, None);
        return;
    }
    let Some(Health { status, version }) = health else {
        // Pods that became ready, or no longer are, change what a proxy that never reported waits for.
        if next.health.as_deref() == Some(UNREGISTERED) {
            let (reason, message) = unreported(any_pod_ready);
            let is_said =
                conditions.said(condition_type::HEALTHY).is_some_and(|said| Reason::of(said) == Some(reason));
            if !is_said {
                conditions.set(condition_type::HEALTHY, false, reason, message);
            }
        }
        return;
    };
    let known = (next.health.as_ref(), next.version.as_ref());
    if known != (Some(status), version.as_ref()) {
        next.health_last_checked = Some(Time(whole_seconds(now)));
    }
    next.health = Some(status.clone());
    next.version.clone_from(version);
    let (state, (reason, message)) = match status.as_str() {
        "ok" => (ConditionStatus::True, (Reason::Healthy, "coderd reaches the proxy")),
        UNREGISTERED => (ConditionStatus::False, unreported(any_pod_ready)),
        "unreachable" => {
            let message = "coderd does not reach the proxy at status.accessURL: check DNS, network policies and \
                           certificates on the way";
            (ConditionStatus::False, (Reason::Unreachable, message))
        }
        "unhealthy" => {
            let message =
                "the proxy reports errors to coderd: see the dashboard of coderd and the logs of the pods";
            (ConditionStatus::False, (Reason::Unhealthy, message))
        }
        _ => (ConditionStatus::Unknown, (Reason::Unknown, "waiting for coderd to check the proxy")),
    };
    conditions.set(condition_type::HEALTHY, state, reason, message);
}

/// What coderd calls a registration whose proxy has never run: no pod has told it its address and version.
const UNREGISTERED: &str = "unregistered";

/// What a proxy that never reported to coderd waits for.
fn unreported(any_pod_ready: bool) -> (Reason, &'static str) {
    if any_pod_ready {
        let message = "waiting for the pods to report to coderd, which has not heard from them yet; their logs say why if \
                       it stays";
        (Reason::NotReported, message)
    } else {
        (Reason::NoPodsReady, "waiting for a ready pod, which reports to coderd (condition DeploymentReady)")
    }
}

#[cfg(test)]
mod tests;
