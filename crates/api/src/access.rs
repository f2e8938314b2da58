//! What people may do with the kinds: roles that extend the cluster's own `view`, `edit` and `admin`.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::core::ObjectMeta;

use crate::names::{GROUP, label};

const KINDS: [&str; 3] = ["codercontrolplanes", "coderprovisioners", "coderworkspaceproxies"];

/// Cluster roles for people, aggregated into the roles that every cluster has.
pub fn user_roles() -> Vec<ClusterRole> {
    let every =
        |subresource: &str| KINDS.iter().map(|kind| format!("{kind}{subresource}")).collect::<Vec<_>>();
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
