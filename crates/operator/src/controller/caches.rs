//! The caches: our objects and their children, as the watches last showed them.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, names::label};
use coder_k8s_core::{exposure::route::HTTPRoute, names::instance_label, workspace_access::Kind};
use coder_k8s_engine::cache::{Cache, controller_uid};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Service, ServiceAccount},
    networking::v1::Ingress,
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{Resource, ResourceExt};

use super::kinds::CoderKind;

/// One cache for each kind of object that is watched in full.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    pub(crate) control_planes: Cache<CoderControlPlane>,
    pub(crate) provisioners: Cache<CoderProvisioner>,
    pub(crate) workspace_proxies: Cache<CoderWorkspaceProxy>,
    pub(crate) service_accounts: Cache<ServiceAccount>,
    pub(crate) services: Cache<Service>,
    pub(crate) deployments: Cache<Deployment>,
    pub(crate) budgets: Cache<PodDisruptionBudget>,
    pub(crate) ingresses: Cache<Ingress>,
    pub(crate) routes: Cache<HTTPRoute>,
    pub(crate) roles: Cache<Role>,
    pub(crate) bindings: Cache<RoleBinding>,
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            control_planes: Cache::new(CoderKind::ControlPlane.as_str()),
            provisioners: Cache::new(CoderKind::Provisioner.as_str()),
            workspace_proxies: Cache::new(CoderKind::WorkspaceProxy.as_str()),
            service_accounts: Cache::grouped("ServiceAccount", controller_uid),
            services: Cache::new("Service"),
            deployments: Cache::new("Deployment"),
            budgets: Cache::new("PodDisruptionBudget"),
            ingresses: Cache::new("Ingress"),
            routes: Cache::new("HTTPRoute"),
            roles: Cache::grouped("Role", served),
            bindings: Cache::grouped("RoleBinding", served),
        }
    }
}

/// The object that a Role or RoleBinding of workspaces serves, by its labels.
pub(crate) fn served<K: Resource>(object: &K) -> Option<String> {
    let labels = object.labels();
    let by =
        |kind, name: &str, namespace: &str| Some(served_by(kind, labels.get(namespace)?, labels.get(name)?));
    by(Kind::ControlPlane, label::CONTROL_PLANE, label::CONTROL_PLANE_NAMESPACE)
        .or_else(|| by(Kind::Provisioner, label::PROVISIONER, label::PROVISIONER_NAMESPACE))
}

/// The group of the Roles and RoleBindings that serve an object.
pub(crate) fn served_by(kind: Kind, namespace: &str, name: &str) -> String {
    format!("{kind:?} {namespace}/{}", instance_label(name))
}
