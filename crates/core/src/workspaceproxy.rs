//! Decides about a CoderWorkspaceProxy: its children, its addresses, and how it is to be registered.
//!
//! The registration ([`registration`]) and the license are decided apart. Nothing here waits for them, except that the
//! Deployment needs a token.

pub mod deployment;
pub mod registration;
mod status;

use std::{collections::BTreeMap, sync::Arc};

use coder_k8s_api::{CoderControlPlane, CoderWorkspaceProxy, DEFAULT_IMAGE, Registration, names::component};
use k8s_openapi::api::{core::v1::Service, policy::v1::PodDisruptionBudget};
use kube::ResourceExt;

pub use self::status::{Outcome, control_plane, paused, status};
pub use crate::workload::Children;
use crate::{
    account::{self, Accounts},
    controlplane::access_url::{self, Defaults},
    exposure,
    license_gate::LicenseGate,
    names, object,
    outcome::Blocker,
    pod,
    provisioner::daemon_url,
    service,
    sources::SourceContents,
    target::SecretDataRef,
    workload,
};

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

/// The desired children, besides the Deployment, which [`deployment::build`] builds once there is a token.
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
        account::name(&self.object.spec.service_account, || names::proxy_child(&self.object.name_any()))
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
        Some(shown.unwrap_or_else(|| daemon_url(plane)))
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
    let moved = account::have_moved(observed.children.deployment.as_deref(), &account);
    Some(Desired {
        accounts: account::decide(
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

#[cfg(test)]
mod tests;
