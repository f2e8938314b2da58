//! The permissions that the operator needs in a cluster.
//!
//! The RBAC of the installation manifests and `docs/reference/permissions.md` are generated from this table. The tests
//! run the operator with exactly these permissions, so that a call which is not declared here fails there.

use std::fmt::Write as _;

use k8s_openapi::api::rbac::v1::PolicyRule;

/// Where a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// In the whole cluster, whatever is watched.
    Cluster,
    /// In the whole cluster, but only if the whole cluster is watched.
    ClusterIfAll,
    /// In every watched namespace.
    Watched,
    /// In the operator's own namespace.
    Own,
}

/// Verbs on resources, and why the operator needs them.
#[derive(Clone, Copy, Debug)]
pub struct Permission {
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    /// The name of the one object that is meant. `None` means all objects.
    only: Option<&'static str>,
    within: Within,
    why: &'static str,
}

/// Everything that the operator may do.
pub const PERMISSIONS: [Permission; 19] = [
    Permission {
        group: "coder.com",
        resources: &["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"],
        verbs: &["list", "watch"],
        only: None,
        within: Within::Watched,
        why: "reconciling them",
    },
    Permission {
        group: "coder.com",
        resources: &["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"],
        verbs: &["patch"],
        only: None,
        within: Within::Watched,
        why: "setting the finalizer while another namespace or coderd holds something to clean up",
    },
    Permission {
        group: "coder.com",
        resources: &["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"],
        verbs: &["get"],
        only: None,
        within: Within::Watched,
        why: "reading the object live before something is created or deleted in coderd",
    },
    Permission {
        group: "coder.com",
        resources: &["codercontrolplanes/status", "coderprovisioners/status", "coderworkspaceproxies/status"],
        verbs: &["patch"],
        only: None,
        within: Within::Watched,
        why: "writing their status",
    },
    Permission {
        group: "coder.com",
        resources: &[
            "codercontrolplanes/finalizers",
            "coderprovisioners/finalizers",
            "coderworkspaceproxies/finalizers",
        ],
        verbs: &["update"],
        only: None,
        within: Within::Watched,
        why: "creating children that block the deletion of their owner, in clusters that check this permission",
    },
    Permission {
        group: "",
        resources: &["serviceaccounts", "services"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "managing the identity and the address of the pods",
    },
    Permission {
        group: "apps",
        resources: &["deployments"],
        verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        only: None,
        within: Within::Watched,
        why: "managing the pods; `update` and `deletecollection` only to grant them to workspaces",
    },
    Permission {
        group: "",
        resources: &["pods", "persistentvolumeclaims"],
        verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        only: None,
        within: Within::Watched,
        why: "reporting why pods do not start and whose daemon is missing, marking busy pods before a pool is scaled down, restarting pods whose daemon stopped trying; the rest only to grant it to workspaces",
    },
    Permission {
        group: "policy",
        resources: &["poddisruptionbudgets"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "limiting how many pods may be disrupted at once",
    },
    Permission {
        group: "networking.k8s.io",
        resources: &["ingresses"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "exposing a control plane or proxy by an Ingress",
    },
    Permission {
        group: "gateway.networking.k8s.io",
        resources: &["httproutes"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "exposing a control plane or proxy by the Gateway API",
    },
    Permission {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "granting permissions to workspaces, never more than the operator itself has",
    },
    Permission {
        group: "",
        resources: &["configmaps", "secrets"],
        verbs: &["get", "list", "watch"],
        only: None,
        within: Within::Watched,
        why: "reading those that objects refer to; the watch asks for metadata only",
    },
    Permission {
        group: "",
        resources: &["secrets"],
        verbs: &["create", "delete", "patch"],
        only: None,
        within: Within::Watched,
        why: "storing the operator token, the keys of pools and the tokens of proxies; a foreign Secret is never written",
    },
    Permission {
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create", "patch"],
        only: None,
        within: Within::Watched,
        why: "publishing events on transitions of conditions",
    },
    Permission {
        group: "",
        resources: &["namespaces"],
        verbs: &["get", "list", "watch"],
        only: None,
        within: Within::ClusterIfAll,
        why: "checking whether a namespace consents to workspaces; only metadata is read",
    },
    Permission {
        group: "apiextensions.k8s.io",
        resources: &["customresourcedefinitions"],
        verbs: &["get", "list", "watch"],
        only: None,
        within: Within::Cluster,
        why: "checking whether the kinds and the Gateway API are installed and up to date",
    },
    Permission {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        only: None,
        within: Within::Own,
        why: "creating the lease; RBAC cannot limit `create` to a name",
    },
    Permission {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update"],
        only: Some(coder_k8s_api::names::LEASE),
        within: Within::Own,
        why: "electing a leader",
    },
];

/// The RBAC rules of the permissions in these places.
pub fn rules(within: &[Within]) -> Vec<PolicyRule> {
    let strings = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    PERMISSIONS
        .iter()
        .filter(|permission| within.contains(&permission.within))
        .map(|permission| PolicyRule {
            api_groups: Some(strings(&[permission.group])),
            resources: Some(strings(permission.resources)),
            verbs: strings(permission.verbs),
            resource_names: permission.only.map(|name| strings(&[name])),
            ..PolicyRule::default()
        })
        .collect()
}

/// The page for people who approve the permissions, as Markdown.
pub fn page() -> String {
    let mut page =
        "# Permissions\n\nWhat the operator may do, and why. The manifests grant nothing else.\n\n\
        | Where | Resources | Verbs | Why |\n|---|---|---|---|\n"
            .to_owned();
    for Permission { group, resources, verbs, only, within, why } in PERMISSIONS {
        let place = match within {
            Within::Cluster => "cluster",
            Within::ClusterIfAll => "cluster; not with `--watch-namespaces`",
            Within::Watched => "watched namespaces",
            Within::Own => "its own namespace",
        };
        let full = |resource: &&str| match resource.split_once('/') {
            _ if group.is_empty() => format!("`{resource}`"),
            Some((resource, part)) => format!("`{resource}.{group}/{part}`"),
            None => format!("`{resource}.{group}`"),
        };
        let resources = resources.iter().map(full).collect::<Vec<_>>().join(", ");
        let only = only.map(|name| format!(" named `{name}`")).unwrap_or_default();
        let _ = writeln!(page, "| {place} | {resources}{only} | {} | {why} |", verbs.join(", "));
    }
    page
}
