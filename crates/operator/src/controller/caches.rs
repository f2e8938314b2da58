//! What is remembered of the cluster: our objects and their children, as last seen.

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

/// The kinds whose objects are reconciled.
pub(crate) mod kind {
    /// CoderControlPlane
    pub(crate) const CONTROL_PLANE: &str = "CoderControlPlane";
    /// CoderProvisioner
    pub(crate) const PROVISIONER: &str = "CoderProvisioner";
    /// CoderWorkspaceProxy
    pub(crate) const WORKSPACE_PROXY: &str = "CoderWorkspaceProxy";
    /// Kinds of others that objects refer to.
    pub(crate) const SECRET: &str = "Secret";
    /// ConfigMap
    pub(crate) const CONFIG_MAP: &str = "ConfigMap";
    /// Namespace
    pub(crate) const NAMESPACE: &str = "Namespace";
}

/// The last seen state of everything that is cached.
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
            control_planes: Cache::new(kind::CONTROL_PLANE),
            provisioners: Cache::new(kind::PROVISIONER),
            workspace_proxies: Cache::new(kind::WORKSPACE_PROXY),
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
