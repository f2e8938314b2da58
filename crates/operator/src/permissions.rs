//! What the operator touches in a cluster, and so what it may do there.
//!
//! The one place that says it. The installation manifests are made from this table, and the tests run the operator
//! with exactly these rights: a call that is not declared here fails there.

use std::fmt::Write as _;

use k8s_openapi::api::rbac::v1::PolicyRule;

/// Where a right is needed.
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

/// Something that the operator touches.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    /// The one object that is meant; none stands for all.
    only: Option<&'static str>,
    within: Within,
    why: &'static str,
}

/// Everything that the operator touches.
pub const TOUCHES: [Touch; 19] = [
    Touch {
        group: "coder.com",
        resources: &["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"],
        verbs: &["list", "watch"],
        only: None,
        within: Within::Watched,
        why: "the objects that it looks after",
    },
    Touch {
        group: "coder.com",
        resources: &["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"],
        verbs: &["patch"],
        only: None,
        within: Within::Watched,
        why: "the finalizer, while other namespaces or coderd hold something to clean up",
    },
    Touch {
        group: "coder.com",
        resources: &["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"],
        verbs: &["get"],
        only: None,
        within: Within::Watched,
        why: "reading the object live before something is created or deleted in coderd",
    },
    Touch {
        group: "coder.com",
        resources: &["codercontrolplanes/status", "coderprovisioners/status", "coderworkspaceproxies/status"],
        verbs: &["patch"],
        only: None,
        within: Within::Watched,
        why: "saying how they stand",
    },
    Touch {
        group: "coder.com",
        resources: &[
            "codercontrolplanes/finalizers",
            "coderprovisioners/finalizers",
            "coderworkspaceproxies/finalizers",
        ],
        verbs: &["update"],
        only: None,
        within: Within::Watched,
        why: "children that block the deletion of their owner, where the cluster checks that",
    },
    Touch {
        group: "",
        resources: &["serviceaccounts", "services"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "the identity and the address of the pods",
    },
    Touch {
        group: "apps",
        resources: &["deployments"],
        verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        only: None,
        within: Within::Watched,
        why: "the pods; updating and deleting many only so that workspaces may be granted it",
    },
    Touch {
        group: "",
        resources: &["pods", "persistentvolumeclaims"],
        verbs: &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        only: None,
        within: Within::Watched,
        why: "telling why pods do not start and whose daemon is missing, marking those at work before a pool shrinks, starting those anew whose daemon has given up; the rest only so that workspaces may be granted it",
    },
    Touch {
        group: "policy",
        resources: &["poddisruptionbudgets"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "how many pods may be disrupted at once",
    },
    Touch {
        group: "networking.k8s.io",
        resources: &["ingresses"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "exposure by an Ingress",
    },
    Touch {
        group: "gateway.networking.k8s.io",
        resources: &["httproutes"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "exposure by a route of the Gateway API",
    },
    Touch {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
        only: None,
        within: Within::Watched,
        why: "what workspaces may do; never more than the operator itself may",
    },
    Touch {
        group: "",
        resources: &["configmaps", "secrets"],
        verbs: &["get", "list", "watch"],
        only: None,
        within: Within::Watched,
        why: "reading those that objects refer to; the watch asks for metadata only",
    },
    Touch {
        group: "",
        resources: &["secrets"],
        verbs: &["create", "delete", "patch"],
        only: None,
        within: Within::Watched,
        why: "the operator's own token, the keys of pools and the tokens of proxies; a Secret of others is never written",
    },
    Touch {
        group: "events.k8s.io",
        resources: &["events"],
        verbs: &["create", "patch"],
        only: None,
        within: Within::Watched,
        why: "telling of transitions",
    },
    Touch {
        group: "",
        resources: &["namespaces"],
        verbs: &["get", "list", "watch"],
        only: None,
        within: Within::ClusterIfAll,
        why: "whether a namespace consents to workspaces; only metadata is asked for",
    },
    Touch {
        group: "apiextensions.k8s.io",
        resources: &["customresourcedefinitions"],
        verbs: &["get", "list", "watch"],
        only: None,
        within: Within::Cluster,
        why: "knowing whether the kinds, and the Gateway API, are installed and up to date",
    },
    Touch {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        only: None,
        within: Within::Own,
        why: "making the lease, which cannot be limited to a name",
    },
    Touch {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update"],
        only: Some(coder_k8s_api::names::LEASE),
        within: Within::Own,
        why: "electing a leader",
    },
];

/// The rules for what is touched at one of these places.
pub fn rules(within: &[Within]) -> Vec<PolicyRule> {
    let strings = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    TOUCHES
        .iter()
        .filter(|touch| within.contains(&touch.within))
        .map(|touch| PolicyRule {
            api_groups: Some(strings(&[touch.group])),
            resources: Some(strings(touch.resources)),
            verbs: strings(touch.verbs),
            resource_names: touch.only.map(|name| strings(&[name])),
            ..PolicyRule::default()
        })
        .collect()
}

/// A page for those who must approve the rights: what is touched, where, and what for.
pub fn page() -> String {
    let mut page = "# Permissions\n\nWhat the operator may do, and what for. Nothing else is granted.\n\n\
        | Where | Resources | Verbs | What for |\n|---|---|---|---|\n"
        .to_owned();
    for Touch { group, resources, verbs, only, within, why } in TOUCHES {
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
