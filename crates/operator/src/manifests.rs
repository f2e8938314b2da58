//! `coder-k8s manifests`: the objects that install the operator.
//!
//! The RBAC comes from the table in [`crate::permissions`]. With `--watch-namespaces` everything but reading CRDs and
//! the lease is granted by Roles in those namespaces, so that there is no cluster-wide access to Secrets.

use anyhow::{Result, bail};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use crate::permissions::{Within, rules};

const NAME: &str = "coder-k8s";
const NAMESPACE: &str = "coder-system";
const IMAGE: &str = concat!("ghcr.io/coder/coder-k8s:v", env!("CARGO_PKG_VERSION"));

/// Flags of the installation. The doc comments of the fields are the text of `--help`.
#[derive(Clone, Debug, clap::Args)]
pub struct Install {
    /// Namespace of the operator
    #[arg(long, default_value = NAMESPACE, env = "CODER_K8S_NAMESPACE")]
    pub namespace: String,

    /// Image of the operator
    #[arg(long, default_value = IMAGE, env = "CODER_K8S_IMAGE")]
    pub image: String,

    /// Number of instances; one leads, the others stand by
    #[arg(long, default_value_t = 1, env = "CODER_K8S_REPLICAS")]
    pub replicas: u16,

    /// Namespaces to watch, separated by commas [default: all]
    #[arg(long, env = "CODER_K8S_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,

    /// Print the CRDs as well, before the rest
    #[arg(long, env = "CODER_K8S_WITH_CRDS")]
    pub with_crds: bool,
}

impl Default for Install {
    fn default() -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            image: IMAGE.to_owned(),
            replicas: 1,
            watch_namespaces: Vec::new(),
            with_crds: false,
        }
    }
}

/// The objects, in the order in which to apply them. Fails if a namespace is not a valid name.
pub fn objects(install: &Install) -> Result<Vec<Value>> {
    for name in install.watch_namespaces.iter().chain([&install.namespace]) {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(valid) {
            bail!(
                "{name:?} is not the name of a namespace: use lower-case letters, digits and '-', at most 63 characters"
            );
        }
    }
    let mut objects = Vec::new();
    if install.with_crds {
        for crd in coder_k8s_api::crds() {
            objects.push(serde_json::to_value(crd)?);
        }
    }
    objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": install.namespace, "labels": labels()}}));
    objects.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(&install.namespace)}));
    objects.extend(access(install));
    for role in coder_k8s_api::access::user_roles() {
        objects.push(serde_json::to_value(role)?);
    }
    objects.push(deployment(install));
    Ok(objects)
}

/// The Roles of the operator, bound to its ServiceAccount.
pub fn access(install: &Install) -> Vec<Value> {
    let mut places: Vec<(Option<&str>, &str, &[Within])> = Vec::new();
    if install.watch_namespaces.is_empty() {
        places.push((None, NAME, &[Within::Cluster, Within::ClusterIfAll, Within::Watched]));
    } else {
        places.push((None, NAME, &[Within::Cluster]));
        places.extend(
            install.watch_namespaces.iter().map(|name| (Some(name.as_str()), NAME, &[Within::Watched][..])),
        );
    }
    places.push((Some(&install.namespace), "coder-k8s-leader-election", &[Within::Own]));
    let granted = |(namespace, name, within)| granted(namespace, name, &rules(within), &install.namespace);
    places.into_iter().flat_map(granted).collect()
}

/// A Role and its binding in a namespace, or a ClusterRole and its binding without one.
fn granted(namespace: Option<&str>, name: &str, rules: &[PolicyRule], of: &str) -> [Value; 2] {
    const API: &str = "rbac.authorization.k8s.io";
    let role = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let mut metadata = json!({"name": name, "labels": labels()});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    [
        json!({"apiVersion": format!("{API}/v1"), "kind": role, "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": format!("{API}/v1"),
            "kind": format!("{role}Binding"),
            "metadata": metadata,
            "roleRef": {"apiGroup": API, "kind": role, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": of}],
        }),
    ]
}

fn deployment(install: &Install) -> Value {
    let mut args = vec!["controller".to_owned()];
    if !install.watch_namespaces.is_empty() {
        args.push(format!("--watch-namespaces={}", install.watch_namespaces.join(",")));
    }
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "health"}});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(&install.namespace),
        "spec": {
            "replicas": install.replicas,
            "selector": {"matchLabels": labels()},
            "template": {
                "metadata": {"labels": labels()},
                "spec": {
                    "serviceAccountName": NAME,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "controller",
                        "image": install.image,
                        "args": args,
                        "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")],
                        "ports": [
                            {"name": "health", "containerPort": 8081, "protocol": "TCP"},
                            {"name": "metrics", "containerPort": 8080, "protocol": "TCP"},
                        ],
                        "livenessProbe": probe("/livez"),
                        "readinessProbe": probe("/readyz"),
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    })
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": NAME})
}

fn meta(namespace: &str) -> Value {
    json!({"name": NAME, "namespace": namespace, "labels": labels()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster_wide_resources(install: &Install) -> Vec<String> {
        let roles = access(install).into_iter().filter(|object| object["kind"] == "ClusterRole");
        roles
            .flat_map(|role| role["rules"].as_array().unwrap().clone())
            .flat_map(|rule| rule["resources"].as_array().unwrap().clone())
            .map(|resource| resource.as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn an_install_for_some_namespaces_reads_no_secrets_elsewhere() {
        let install = Install { watch_namespaces: vec!["a".into(), "b".into()], ..Install::default() };
        assert_eq!(cluster_wide_resources(&install), ["customresourcedefinitions"]);
        let roles = access(&install).into_iter().filter(|object| object["kind"] == "Role");
        let places: Vec<_> = roles.map(|role| role["metadata"]["namespace"].clone()).collect();
        assert_eq!(places, ["a", "b", "coder-system"]);
    }

    #[test]
    fn leases_are_accessed_in_the_own_namespace_alone() {
        assert!(!cluster_wide_resources(&Install::default()).contains(&"leases".to_owned()));
    }

    #[test]
    fn a_namespace_that_cannot_exist_is_rejected() {
        let install = Install { watch_namespaces: vec!["A b".into()], ..Install::default() };
        assert!(
            objects(&install).unwrap_err().to_string().starts_with(r#""A b" is not the name of a namespace"#)
        );
    }

    #[test]
    fn nothing_is_granted_with_a_star() {
        assert!(!serde_json::to_string(&access(&Install::default())).unwrap().contains('*'));
    }
}
