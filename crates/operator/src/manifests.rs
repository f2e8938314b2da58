//! `coder-k8s manifests`: the objects that install the operator.
//!
//! The RBAC comes from the table in [`crate::permissions`]. With `--watch-namespaces` everything but reading CRDs and
//! the lease is granted by Roles in those namespaces, so that there is no cluster-wide access to Secrets.

use anyhow::{Result, bail};
use coder_k8s_coderd::address;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use crate::permissions::{Within, rules};

const NAME: &str = "coder-k8s";
const NAMESPACE: &str = "coder-system";
/// The defaults of --health-addr and --metrics-addr.
const HEALTH_PORT: u16 = 8081;
const METRICS_PORT: u16 = 8080;
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
        objects.extend(coder_k8s_api::crds_json());
    }
    // A namespace that is watched too has objects of others: `kubectl delete -f` of this list must not delete them.
    if !install.watch_namespaces.contains(&install.namespace) {
        objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": install.namespace, "labels": labels()}}));
    }
    objects.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(&install.namespace)}));
    objects.extend(access(install));
    for role in coder_k8s_api::access::user_roles() {
        objects.push(serde_json::to_value(role)?);
    }
    objects.push(network_policy(install));
    objects.push(deployment(install));
    objects.extend(disruption_budget(install));
    Ok(objects)
}

/// The Roles of the operator, bound to its ServiceAccount.
pub fn access(install: &Install) -> Vec<Value> {
    let mut places: Vec<(Option<&str>, &str, &[Within])> = Vec::new();
    if install.watch_namespaces.is_empty() {
        places.push((None, NAME, &[Within::Cluster, Within::ClusterIfAll, Within::Watched]));
    } else {
        places.push((None, NAME, &[Within::Cluster]));
        let within = &[Within::Watched, Within::NamedItself][..];
        places.extend(install.watch_namespaces.iter().map(|name| (Some(name.as_str()), NAME, within)));
    }
    places.push((Some(&install.namespace), "coder-k8s-leader-election", &[Within::Own]));
    let granted =
        |(namespace, name, within)| granted(namespace, name, &rules(within, namespace), &install.namespace);
    places.into_iter().flat_map(granted).collect()
}

/// A Role and its binding in a namespace, or a ClusterRole and its binding without one.
fn granted(namespace: Option<&str>, name: &str, rules: &[PolicyRule], of: &str) -> [Value; 2] {
    const API: &str = "rbac.authorization.k8s.io";
    let role = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let metadata = namespace.map_or_else(
        || json!({"name": name, "labels": labels()}),
        |namespace| json!({"name": name, "namespace": namespace, "labels": labels()}),
    );
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
    let mut deployment = json!({
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
                    // Longer than the default of --shutdown-timeout and the release of the lease together.
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "controller",
                        "image": install.image,
                        "args": args,
                        "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")],
                        "ports": [
                            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
                            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
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
    });
    let pod = deployment.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut);
    if let Some(pod) = pod.filter(|_| install.replicas > 1) {
        let spread = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"].map(|key| {
            json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels()}})
        });
        pod.insert("topologySpreadConstraints".to_owned(), json!(spread));
    }
    deployment
}

/// Keeps an instance while nodes are drained. One instance alone gets none: it would hold up every drain.
fn disruption_budget(install: &Install) -> Option<Value> {
    (install.replicas > 1).then(|| {
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta(&install.namespace),
            "spec": {
                "maxUnavailable": 1,
                // Pods that are not ready may be evicted: they do not lead.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": labels()},
            },
        })
    })
}

/// What may reach the operator, and what it may reach. Where coderd and its database are is up to the control planes, so that
/// everything is allowed but the addresses that the operator refuses by itself ([`address::REFUSED`]).
fn network_policy(install: &Install) -> Value {
    let everything = |cidr: &str, is_ipv4: bool| {
        let except = address::REFUSED.iter().filter(|range| range.is_ipv4() == is_ipv4);
        json!({"ipBlock": {"cidr": cidr, "except": except.map(ToString::to_string).collect::<Vec<_>>()}})
    };
    let port = |protocol: &str, port: u16| json!({"protocol": protocol, "port": port});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": meta(&install.namespace),
        "spec": {
            "podSelector": {"matchLabels": labels()},
            "policyTypes": ["Ingress", "Egress"],
            // By number: some network plugins do not resolve names of ports.
            "ingress": [{"ports": [port("TCP", HEALTH_PORT), port("TCP", METRICS_PORT)]}],
            "egress": [
                // Anywhere: a DNS cache on the node has a link-local address, and some network plugins do not count
                // nodes, where the API server may be, among the addresses of an ipBlock.
                {"ports": [port("UDP", 53), port("TCP", 53), port("TCP", 443), port("TCP", 6443)]},
                // Some network plugins do not count pods among the addresses of an ipBlock either.
                {"to": [{"namespaceSelector": {}}]},
                {"to": [everything("0.0.0.0/0", true), everything("::/0", false)]},
            ],
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

    #[test]
    fn several_instances_are_spread_and_one_of_them_stays() {
        for (replicas, budgets, constraints) in [(1, 0, 0), (2, 1, 2)] {
            let all = objects(&Install { replicas, ..Install::default() }).unwrap();
            let of_kind = |kind: &str| all.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
            assert_eq!(of_kind("PodDisruptionBudget").len(), budgets, "{replicas} instances");
            let spread = &of_kind("Deployment")[0]["spec"]["template"]["spec"]["topologySpreadConstraints"];
            assert_eq!(spread.as_array().map_or(0, Vec::len), constraints, "{replicas} instances");
        }
    }

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
    fn an_install_for_some_namespaces_reads_each_namespace_through_its_own_role() {
        let install = Install { watch_namespaces: vec!["a".into(), "b".into()], ..Install::default() };
        let of_namespaces = |role: &Value| {
            let rules = role["rules"].as_array().unwrap().iter();
            let about = rules.filter(|rule| rule["resources"] == json!(["namespaces"]));
            about.map(|rule| (rule["verbs"].clone(), rule["resourceNames"].clone())).collect::<Vec<_>>()
        };
        let all: Vec<_> = access(&install)
            .iter()
            .filter(|object| object.get("rules").is_some())
            .flat_map(of_namespaces)
            .collect();
        assert_eq!(all, [(json!(["get"]), json!(["a"])), (json!(["get"]), json!(["b"]))]);
    }

    #[test]
    fn a_namespace_with_objects_of_others_is_not_part_of_the_install() {
        let has_namespace =
            |install: &Install| objects(install).unwrap().iter().any(|object| object["kind"] == "Namespace");
        let shared =
            Install { namespace: "a".into(), watch_namespaces: vec!["a".into()], ..Install::default() };
        assert!(has_namespace(&Install::default()) && !has_namespace(&shared));
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
    fn the_network_policy_selects_the_pods_of_the_operator_and_leaves_out_metadata() {
        let policy = network_policy(&Install::default());
        let pods = deployment(&Install::default())["spec"]["template"]["metadata"]["labels"].clone();
        assert_eq!(policy["spec"]["podSelector"]["matchLabels"], pods);
        let blocks = &policy["spec"]["egress"][2]["to"];
        for (block, cidr, left_out) in [(0, "0.0.0.0/0", "169.254.0.0/16"), (1, "::/0", "fd00:ec2::/32")] {
            let block = &blocks[block]["ipBlock"];
            assert_eq!(block["cidr"], cidr);
            let except = block["except"].as_array().unwrap();
            assert!(except.contains(&json!(left_out)), "{except:?}");
            let is_same_family = |range: &Value| range.as_str().unwrap().contains(':') == cidr.contains(':');
            assert!(except.iter().all(is_same_family), "the API server refuses others: {except:?}");
        }
    }

    #[test]
    fn nothing_is_granted_with_a_star() {
        assert!(!serde_json::to_string(&access(&Install::default())).unwrap().contains('*'));
    }
}
