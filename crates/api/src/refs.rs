//! References to other objects.
//!
//! A reference never has a namespace: it always means the namespace of the object that contains it. Otherwise a
//! person who may create a custom resource could make the operator read Secrets that the person may not read.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::text::{DataKey, ObjectName};

/// A key of a Secret in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    pub name: ObjectName,
    /// Key in the data of the Secret. The field that holds the reference documents the default.
    pub key: Option<DataKey>,
}

/// A key of a Secret in the same namespace. Both parts are required.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: ObjectName,
    /// Key in the data of the Secret.
    pub key: DataKey,
}

/// A Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: ObjectName,
}

/// A CoderControlPlane in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneRef {
    /// Name of the CoderControlPlane.
    pub name: ObjectName,
}

/// The Secret and key that the operator uses, as reported on status.
///
/// The parts are plain strings without validation: the value may stem from another release, and a status that fails
/// validation could not be written any more.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedSecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in the data of the Secret.
    pub key: Option<String>,
}
