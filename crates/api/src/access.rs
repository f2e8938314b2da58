//! Permissions in Kubernetes: those that a spec grants to workspaces, and those of people who use the kinds.
//!
//! The permissions of the operator itself are not here: the operator crate lists them beside what it reads and
//! writes.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::core::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    CoderKind,
    names::{GROUP, label},
    pod::yes,
    schema::{defaults, role_rules},
    text::NamespaceName,
};

/// Permissions to run workspaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceRbac {
    /// Whether the operator creates a Role and a RoleBinding for workspaces. Defaults to true.
    #[serde(default = "yes")]
    pub workspace_perms: bool,
    /// Whether workspaces may be Deployments. Defaults to true.
    #[serde(default = "yes")]
    pub enable_deployments: bool,
    /// Whether workspaces may run in the namespace of this object, next to its Secrets. Defaults to true.
    #[serde(default = "yes")]
    pub own_namespace: bool,
    /// Additional rules of the Role. A rule never grants Secrets, RBAC or tokens of ServiceAccounts, unless the
    /// operator runs with `--allow-privileged-workspace-rules`, and never more than the operator itself may do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "role_rules")]
    pub extra_rules: Vec<PolicyRule>,
    /// Additional namespaces in which workspaces may run. Each of them must consent with the label
    /// `workspaces.coder.com/<namespace of this object>: allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub workspace_namespaces: Vec<NamespaceName>,
}

impl Default for WorkspaceRbac {
    fn default() -> Self {
        defaults()
    }
}

/// The ClusterRoles for people. Kubernetes aggregates them into its built-in roles `view`, `edit` and `admin`.
pub fn user_roles() -> Vec<ClusterRole> {
    let every = |subresource: &str| {
        CoderKind::RESOURCES.iter().map(|name| format!("{name}{subresource}")).collect::<Vec<_>>()
    };
    let read = ["get", "list", "watch"];
    let write = ["create", "delete", "deletecollection", "patch", "update"];
    vec![
        role(
            "coder-k8s-viewer",
            &["view", "edit", "admin"],
            vec![rule(every(""), &read), rule(every("/status"), &["get"]), rule(every("/scale"), &["get"])],
        ),
        role(
            "coder-k8s-editor",
            &["edit", "admin"],
            vec![rule(every(""), &write), rule(every("/scale"), &["patch", "update"])],
        ),
    ]
}

fn role(name: &str, extends: &[&str], rules: Vec<PolicyRule>) -> ClusterRole {
    let aggregation = extends
        .iter()
        .map(|role| (format!("rbac.authorization.k8s.io/aggregate-to-{role}"), "true".to_owned()));
    let labels: BTreeMap<_, _> =
        aggregation.chain([(label::NAME.to_owned(), "coder-k8s".to_owned())]).collect();
    ClusterRole {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        rules: Some(rules),
        aggregation_rule: None,
    }
}

fn rule(resources: Vec<String>, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![GROUP.to_owned()]),
        resources: Some(resources),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}
