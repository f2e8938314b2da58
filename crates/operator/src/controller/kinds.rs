//! The kinds whose objects are reconciled.
//!
//! A new kind is a variant of [`CoderKind`]. Every place that has to know the kinds matches on it without a wildcard, so that
//! the compiler names them all.

use std::fmt::Debug;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_engine::cache::ObjectKey;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

/// One of our kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoderKind {
    ControlPlane,
    Provisioner,
    WorkspaceProxy,
}

impl CoderKind {
    pub(crate) const ALL: [Self; 3] = [Self::ControlPlane, Self::Provisioner, Self::WorkspaceProxy];

    /// The name of the kind in the API.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "CoderControlPlane",
            Self::Provisioner => "CoderProvisioner",
            Self::WorkspaceProxy => "CoderWorkspaceProxy",
        }
    }

    /// The kind with this name in the API.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The key of an object of this kind.
    pub(crate) fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(self.as_str(), namespace, name)
    }
}

/// A kind of others that our objects refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferencedKind {
    Secret,
    ConfigMap,
    Namespace,
}

impl ReferencedKind {
    /// The name of the kind in the API.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Namespace => "Namespace",
        }
    }

    /// The key of an object of this kind.
    pub(crate) fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(self.as_str(), namespace, name)
    }
}

/// An object of one of our kinds.
pub(crate) trait CoderResource:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
    const KIND: CoderKind;

    type Status: Serialize + Debug + PartialEq;

    fn status(&self) -> Option<&Self::Status>;

    fn conditions(status: &Self::Status) -> &[Condition];
}

macro_rules! coder_resource {
    ($($type:ty => $kind:ident, $status:ty;)+) => {$(
        impl CoderResource for $type {
            const KIND: CoderKind = CoderKind::$kind;
            type Status = $status;

            fn status(&self) -> Option<&$status> {
                self.status.as_ref()
            }

            fn conditions(status: &$status) -> &[Condition] {
                &status.workload.conditions
            }
        }
    )+};
}

coder_resource! {
    CoderControlPlane => ControlPlane, coder_k8s_api::CoderControlPlaneStatus;
    CoderProvisioner => Provisioner, coder_k8s_api::CoderProvisionerStatus;
    CoderWorkspaceProxy => WorkspaceProxy, coder_k8s_api::CoderWorkspaceProxyStatus;
}
