//! What the reconcilers of all kinds share, the kinds that our objects refer to, and the caches of all that is watched in full.

use std::fmt::Debug;

use coder_k8s_api::{CoderControlPlane, CoderKind, CoderProvisioner, CoderWorkspaceProxy, WorkloadStatus};
use coder_k8s_core::{
    exposure::route::HTTPRoute,
    workspace_access::{GranteeKind, served},
};
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

use crate::{controlplane::daemon_poll::plane_of, provisioner::keys, workspaceproxy::registration};

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

    fn workload_mut(status: &mut Self::Status) -> &mut WorkloadStatus;

    fn conditions(status: &Self::Status) -> &[Condition] {
        &Self::workload(status).conditions
    }

    /// The group of the objects that ask for the same name in coderd, of which the oldest gets it. None: it asks for none.
    fn claim(&self) -> Option<String>;
}

macro_rules! coder_resource {
    ($($type:ty => $kind:ident, $status:ty, $claim:expr;)+) => {$(
        impl CoderResource for $type {
            const KIND: CoderKind = CoderKind::$kind;
            type Status = $status;

            fn status(&self) -> Option<&$status> {
                self.status.as_ref()
            }

            fn workload(status: &$status) -> &WorkloadStatus {
                &status.workload
            }

            fn workload_mut(status: &mut $status) -> &mut WorkloadStatus {
                &mut status.workload
            }

            fn claim(&self) -> Option<String> {
                let claim: fn(&$type) -> Option<String> = $claim;
                claim(self)
            }
        }
    )+};
}

coder_resource! {
    CoderControlPlane => ControlPlane, coder_k8s_api::CoderControlPlaneStatus, |_| None;
    CoderProvisioner => Provisioner, coder_k8s_api::CoderProvisionerStatus, |pool| Some(keys::claim(pool));
    CoderWorkspaceProxy => WorkspaceProxy, coder_k8s_api::CoderWorkspaceProxyStatus, registration::claim;
}

/// One cache for each kind that is watched in full. Children are cached only if they bear the label of the operator and an
/// object of ours controls them, or for grants, if they name the object that they serve: anybody can set the label. Secrets, ConfigMaps and Namespaces of others never.
///
/// All are compact: they are read one at a time, by a reconcile, or by a group. A pool is also found by its control plane and by
/// the name of its key, a proxy by the name of its registration.
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

impl Caches {
    /// Tells the kind of every cache, and how many bytes it keeps.
    pub(crate) fn each_size(&self, mut tell: impl FnMut(&'static str, usize)) {
        macro_rules! sizes {
            ($($cache:ident),+) => {
                // All of them, or this does not compile.
                let Self { $($cache),+ } = self;
                $(tell($cache.kind(), $cache.kept_bytes());)+
            };
        }
        sizes!(
            control_planes,
            provisioners,
            workspace_proxies,
            service_accounts,
            services,
            deployments,
            budgets,
            ingresses,
            routes,
            roles,
            bindings
        );
    }
}

impl Default for Caches {
    fn default() -> Self {
        Self {
            control_planes: Cache::grouped(CoderKind::ControlPlane.as_str(), |plane| {
                served_by_grants(GranteeKind::ControlPlane, plane).into_iter().collect()
            })
            .compact(),
            provisioners: Cache::grouped(CoderKind::Provisioner.as_str(), |pool| {
                let served = served_by_grants(GranteeKind::Provisioner, pool);
                served.into_iter().chain([plane_of(pool).to_string(), keys::claim(pool)]).collect()
            })
            .compact(),
            workspace_proxies: Cache::grouped(CoderKind::WorkspaceProxy.as_str(), |proxy| {
                registration::claim(proxy).into_iter().collect()
            })
            .compact(),
            service_accounts: Cache::grouped("ServiceAccount", controller_uid)
                .keeping(is_controlled)
                .compact(),
            services: Cache::new("Service").keeping(is_controlled).compact(),
            deployments: Cache::new("Deployment").keeping(is_controlled).compact(),
            budgets: Cache::new("PodDisruptionBudget").keeping(is_controlled).compact(),
            ingresses: Cache::new("Ingress").keeping(is_controlled).compact(),
            routes: Cache::new("HTTPRoute").keeping(is_controlled).compact(),
            roles: Cache::grouped("Role", grant_groups).keeping(is_grant).compact(),
            bindings: Cache::grouped("RoleBinding", grant_groups).keeping(is_grant).compact(),
        }
    }
}

/// The group of an object whose pods run workspaces, which is that of its Roles and RoleBindings.
fn served_by_grants<K: Resource>(kind: GranteeKind, object: &K) -> Option<String> {
    Some(kind.group(&object.namespace()?, &object.name_any()))
}

fn grant_groups<K: Resource>(grant: &K) -> Vec<String> {
    served(grant).into_iter().collect()
}

/// The objects of ours that control a child of their namespace.
pub(crate) fn controllers<K: Resource>(child: &K) -> impl Iterator<Item = ObjectKey> {
    let controls = child.owner_references().iter().filter(|owner| owner.controller == Some(true));
    controls.filter_map(|owner| {
        let kind = CoderKind::named(&owner.kind)?;
        Some(ObjectKey::new(kind.as_str(), child.namespace().unwrap_or_default(), &*owner.name))
    })
}

pub(crate) fn is_controlled<K: Resource>(child: &K) -> bool {
    controllers(child).next().is_some()
}

/// Whether a Role or RoleBinding may be one of workspaces. In another namespace than the object that it serves it has no owner.
fn is_grant<K: Resource>(object: &K) -> bool {
    is_controlled(object) || served(object).is_some()
}
