//! The kinds of the operator, and the kinds that their objects refer to.
//!
//! A new kind is a variant of [`CoderKind`]. All code that has to know the kinds matches on it without a wildcard, so that
//! the compiler lists what a new kind needs.

use std::fmt::Debug;

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_engine::cache::ObjectKey;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};

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
