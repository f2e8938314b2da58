//! The permissions that the operator needs in a cluster.
//!
//! The RBAC of the installation manifests and `docs/reference/permissions.md` are generated from this table. The tests
//! run the operator with exactly these permissions, so that a call which is not declared here fails there.

use std::{collections::BTreeSet, fmt::Write as _};

use coder_k8s_api::CoderKind;
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
    /// In every namespace that `--watch-namespaces` names, on the Namespace itself.
    NamedItself,
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

/// A permission on all objects of some resources in the watched namespaces.
const fn watched(
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    why: &'static str,
) -> Permission {
    Permission { group, resources, verbs, only: None, within: Within::Watched, why }
}

const KINDS: &[&str] = CoderKind::RESOURCES;
const READ: &[&str] = &["get", "list", "watch"];
const MANAGE: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];
/// What workspaces do with their own objects. RBAC lets nobody grant what they do not have themselves.
const GRANT: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Everything that the operator may do.
pub const PERMISSIONS: [Permission; 21] = [
    watched("coder.com", KINDS, &["list", "watch"], "reconciling them"),
    watched(
        "coder.com",
        KINDS,
        &["patch"],
        "setting the finalizer while another namespace or coderd holds something to clean up",
    ),
    watched(
        "coder.com",
        KINDS,
        &["get"],
        "reading the object live before something is created or deleted in coderd",
    ),
    watched("coder.com", CoderKind::STATUSES, &["update"], "writing their status"),
    watched(
        "coder.com",
        CoderKind::FINALIZERS,
        &["update"],
        "creating children that block the deletion of their owner, in clusters that check this permission",
    ),
    watched("", &["serviceaccounts"], MANAGE, "managing the identity of the pods"),
    watched(
        "",
        &["services"],
        &["create", "get", "list", "patch", "watch"],
        "managing the address of the pods, which goes with its object",
    ),
    watched(
        "apps",
        &["deployments"],
        GRANT,
        "managing the pods; `update` and `deletecollection` only to grant them to workspaces",
    ),
    watched(
        "",
        &["pods", "persistentvolumeclaims"],
        GRANT,
        "reporting why pods do not start and whose daemon is missing, marking busy pods before a pool is scaled down, restarting pods whose daemon stopped trying; the rest only to grant it to workspaces",
    ),
    watched("policy", &["poddisruptionbudgets"], MANAGE, "limiting how many pods may be disrupted at once"),
    watched("networking.k8s.io", &["ingresses"], MANAGE, "exposing a control plane or proxy by an Ingress"),
    watched(
        "gateway.networking.k8s.io",
        &["httproutes"],
        MANAGE,
        "exposing a control plane or proxy by the Gateway API",
    ),
    watched(
        "rbac.authorization.k8s.io",
        &["roles", "rolebindings"],
        MANAGE,
        "granting permissions to workspaces, never more than the operator itself has",
    ),
    watched(
        "",
        &["configmaps", "secrets"],
        READ,
        "reading those that objects refer to; the watch asks for metadata only",
    ),
    watched(
        "",
        &["secrets"],
        &["create", "delete", "patch"],
        "storing the operator token, the keys of pools and the tokens of proxies; a foreign Secret is never written",
    ),
    watched(
        "events.k8s.io",
        &["events"],
        &["create", "patch"],
        "publishing events on transitions of conditions",
    ),
    Permission {
        within: Within::ClusterIfAll,
        ..watched(
            "",
            &["namespaces"],
            READ,
            "checking whether a namespace consents to workspaces; only metadata is read",
        )
    },
    Permission {
        within: Within::NamedItself,
        ..watched(
            "",
            &["namespaces"],
            &["get"],
            "checking whether the namespace consents to workspaces; a Role cannot let anybody watch its Namespace",
        )
    },
    Permission {
        within: Within::Cluster,
        ..watched(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            READ,
            "checking whether the kinds and the Gateway API are installed and up to date",
        )
    },
    Permission {
        within: Within::Own,
        ..watched(
            "coordination.k8s.io",
            &["leases"],
            &["create"],
            "creating the lease; RBAC cannot limit `create` to a name",
        )
    },
    Permission {
        within: Within::Own,
        only: Some(coder_k8s_api::names::LEASE),
        ..watched("coordination.k8s.io", &["leases"], &["get", "update"], "electing a leader")
    },
];

/// What is granted although the operator itself never does it: verbs, resources, and why.
///
/// `cargo xtask test` compares what is granted with what all tests used, and fails for what is in neither.
const NEVER_USED: &[(&[&str], &[&str], &str)] = &[
    (
        &["deletecollection", "update"],
        &["pods", "deployments"],
        "RBAC lets nobody grant to workspaces what they do not have themselves",
    ),
    (&["delete"], &["deployments"], "RBAC lets nobody grant to workspaces what they do not have themselves"),
    (
        &["create", "get", "watch"],
        &["pods"],
        "RBAC lets nobody grant to workspaces what they do not have themselves",
    ),
    (
        GRANT,
        &["persistentvolumeclaims"],
        "RBAC lets nobody grant to workspaces what they do not have themselves",
    ),
    (
        &["get"],
        &["poddisruptionbudgets", "httproutes"],
        "when the name of a child is taken, the object that has it is read, as tests show for other kinds",
    ),
    (
        &["update"],
        CoderKind::FINALIZERS,
        "clusters that check it ask for it where a child blocks the deletion of its owner",
    ),
];

/// One verb on one resource that the operator is granted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Granted {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource, with its subresource if it has one.
    pub resource: &'static str,
    /// Verb.
    pub verb: &'static str,
    /// Why it is granted although the operator never does it. `None`: it does.
    pub justified: Option<&'static str>,
}

/// Everything that is granted, one verb on one resource each, without repetition.
pub fn granted() -> Vec<Granted> {
    let justified = |resource: &str, verb: &str| {
        let found = NEVER_USED
            .iter()
            .find(|(verbs, resources, _)| verbs.contains(&verb) && resources.contains(&resource));
        found.map(|(_, _, why)| *why)
    };
    let each = PERMISSIONS.iter().flat_map(|permission| {
        permission.resources.iter().flat_map(move |resource| {
            permission.verbs.iter().map(move |verb| Granted {
                group: permission.group,
                resource,
                verb,
                justified: justified(resource, verb),
            })
        })
    });
    each.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The RBAC rules of the permissions in these places, for a Role in `namespace` or a ClusterRole.
pub fn rules(within: &[Within], namespace: Option<&str>) -> Vec<PolicyRule> {
    let strings = |list: &[&str]| list.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    let only = |permission: &Permission| match permission.within {
        Within::NamedItself => namespace.map(|namespace| strings(&[namespace])),
        Within::Cluster | Within::ClusterIfAll | Within::Watched | Within::Own => {
            permission.only.map(|name| strings(&[name]))
        }
    };
    PERMISSIONS
        .iter()
        .filter(|permission| within.contains(&permission.within))
        .map(|permission| PolicyRule {
            api_groups: Some(strings(&[permission.group])),
            resources: Some(strings(permission.resources)),
            verbs: strings(permission.verbs),
            resource_names: only(permission),
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
            Within::NamedItself => "namespaces of `--watch-namespaces`, on itself",
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
