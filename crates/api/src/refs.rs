//! References to objects. All of them name an object of the same namespace: a custom resource never
//! borrows the operator's right to read another one.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::text::{DataKey, ObjectName};

/// A key of a Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    pub name: ObjectName,
    /// Key in the Secret's data. Each use documents its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<DataKey>,
}

/// A key of a Secret, both parts given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: ObjectName,
    /// Key in the Secret's data.
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
/// Plain strings: what is reported may stem from an earlier release and is never refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedSecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret's data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
