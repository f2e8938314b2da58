//! The kinds of the operator, the kinds that their objects refer to, and the caches of all that is watched in full.
//!
//! A new kind is a variant of [`CoderKind`]. All code that has to know the kinds matches on it without a wildcard, so that
//! the compiler lists what a new kind needs.

use std::fmt::Debug;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, WorkloadStatus, names::label};
use coder_k8s_core::{exposure::route::HTTPRoute, names::instance_label, workspace_access::Kind};
use coder_k8s_engine::{
    apply::NamespacedKind,
    cache::{Cache, ObjectKey, controller_uid},
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Service, ServiceAccount},
        networking::v1::Ingress,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Resource, ResourceExt};
use serde::Serialize;

/// The enum with its list, so that a variant that is missing in the list does not compile.
macro_rules! coder_kinds {
    ($($kind:ident = $name:literal,)+) => {
        /// A kind whose objects the operator reconciles.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum CoderKind {
            $($kind,)+
        }

        impl CoderKind {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind,)+];

            /// The `kind` of its objects, which is also the kind of their [`ObjectKey`].
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

coder_kinds! {
    ControlPlane = "CoderControlPlane",
    Provisioner = "CoderProvisioner",
    WorkspaceProxy = "CoderWorkspaceProxy",
}

impl CoderKind {
    /// The inverse of [`Self::as_str`].
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }

    pub(crate) fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(self.as_str(), namespace, name)
    }
}

/// A kind that our objects refer to and that others own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferencedKind {
    Secret,
    ConfigMap,
    Namespace,
}

impl ReferencedKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Namespace => "Namespace",
        }
    }

    /// The key of an object. The namespace of a Namespace is empty.
    pub(crate) fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(self.as_str(), namespace, name)
    }
}

/// An object of a [`CoderKind`], with the parts that every reconciler handles alike.
pub(crate) trait CoderResource: NamespacedKind {
    const KIND: CoderKind;

    type Status: Serialize + Debug + PartialEq;

    fn status(&self) -> Option<&Self::Status>;

    fn workload(status: &Self::Status) -> &WorkloadStatus;

    fn conditions(status: &Self::Status) -> &[Condition] {
        &Self::workload(status).conditions
    }
}

macro_rules! coder_resource {
    ($($type:ty => $kind:ident, $status:ty;)+) => {$(
        impl CoderResource for $type {
            const KIND: CoderKind = CoderKind::$kind;
            type Status = $status;

            fn status(&self) -> Option<&$status> {
                self.status.as_ref()
            }

            fn workload(status: &$status) -> &WorkloadStatus {
                &status.workload
            }
        }
    )+};
}

coder_resource! {
    CoderControlPlane => ControlPlane, coder_k8s_api::CoderControlPlaneStatus;
    CoderProvisioner => Provisioner, coder_k8s_api::CoderProvisionerStatus;
    CoderWorkspaceProxy => WorkspaceProxy, coder_k8s_api::CoderWorkspaceProxyStatus;
}

/// One cache for each kind that is watched in full. Children are cached only if they bear the label of the operator, and
/// Secrets, ConfigMaps and Namespaces of others never.
///
/// A cache may lag behind the API server, this process's own writes included. Reads that precede an irreversible step go
/// to the API server instead.
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

/// The group of a Role or RoleBinding of workspaces: the object that it serves, by its labels, because it may be in another
/// namespace than that object.
pub(crate) fn served<K: Resource>(object: &K) -> Option<String> {
    let labels = object.labels();
    let by =
        |kind, name: &str, namespace: &str| Some(served_by(kind, labels.get(namespace)?, labels.get(name)?));
    by(Kind::ControlPlane, label::CONTROL_PLANE, label::CONTROL_PLANE_NAMESPACE)
        .or_else(|| by(Kind::Provisioner, label::PROVISIONER, label::PROVISIONER_NAMESPACE))
}

/// The group of the Roles and RoleBindings that serve an object. `name` is shortened as label values are.
pub(crate) fn served_by(kind: Kind, namespace: &str, name: &str) -> String {
    format!("{kind:?} {namespace}/{}", instance_label(name))
}
