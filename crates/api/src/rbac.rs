//! What the pods may do in Kubernetes.

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{pod::yes, schema::role_rules, text::NamespaceName};

/// Permissions to run workspaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceRbac {
    /// Whether a Role and a RoleBinding for workspaces are made at all.
    #[serde(default = "yes")]
    pub workspace_perms: bool,
    /// Whether workspaces may be Deployments.
    #[serde(default = "yes")]
    pub enable_deployments: bool,
    /// Whether workspaces may run in the object's own namespace, where its Secrets are.
    #[serde(default = "yes")]
    pub own_namespace: bool,
    /// Further rules of the Role. Never Secrets, RBAC or tokens, unless the operator's flags allow it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "role_rules")]
    pub extra_rules: Vec<PolicyRule>,
    /// Further namespaces for workspaces. Each must consent by the label
    /// `workspaces.coder.com/<namespace of this object>: allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub workspace_namespaces: Vec<NamespaceName>,
}

impl Default for WorkspaceRbac {
    fn default() -> Self {
        Self {
            workspace_perms: yes(),
            enable_deployments: yes(),
            own_namespace: yes(),
            extra_rules: Vec::new(),
            workspace_namespaces: Vec::new(),
        }
    }
}
