//! The rows of the table of values.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::helm::{NAMESPACE, RELEASE, names, only};

/// A row: what it is about, the name of the release, its values, and what must hold of the objects.
pub(crate) type Row = (&'static str, &'static str, Value, fn(&[Value]));

fn args(objects: &[Value]) -> Vec<String> {
    serde_json::from_value(container(objects)["args"].clone()).unwrap()
}

fn container(objects: &[Value]) -> Value {
    pod(objects)["containers"][0].clone()
}

fn pod(objects: &[Value]) -> Value {
    only(objects, "Deployment")["spec"]["template"]["spec"].clone()
}

fn of_kind(objects: &[Value], kind: &str) -> usize {
    objects.iter().filter(|object| object["kind"] == kind).count()
}

/// All rows.
pub(crate) fn table() -> Vec<Row> {
    let mut rows = who_and_where();
    rows.extend(left_out());
    rows.extend(pods());
    rows.extend(surroundings());
    rows
}

fn who_and_where() -> Vec<Row> {
    let none: Row = ("defaults", RELEASE, json!({}), |all| {
        assert_eq!(args(all), ["controller"]);
        assert_eq!(of_kind(all, "CustomResourceDefinition"), 3);
        assert_eq!(of_kind(all, "PodDisruptionBudget"), 0);
        assert_eq!(of_kind(all, "ServiceMonitor") + of_kind(all, "Service"), 0);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(container(all)["image"], format!("ghcr.io/coder/coder-k8s:v{version}"));
        assert_eq!(pod(all)["securityContext"]["runAsUser"], 65532);
        let crd = all.iter().find(|object| object["kind"] == "CustomResourceDefinition").unwrap();
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    });
    let some: Row = ("two namespaces", RELEASE, json!({"watchNamespaces": ["team-a", "team-b"]}), |all| {
        assert_eq!(args(all), ["controller", "--watch-namespaces=team-a,team-b"]);
        let found = names(all);
        for name in ["Role team-a/coder-k8s", "Role team-b/coder-k8s", "RoleBinding team-b/coder-k8s"] {
            assert!(found.contains(&name.to_owned()), "{name}: {found:?}");
        }
        let cluster =
            all.iter().find(|o| o["kind"] == "ClusterRole" && o["metadata"]["name"] == RELEASE).unwrap();
        assert!(!cluster.to_string().contains("secrets"), "{cluster}");
    });
    let number: Row = (
        "a namespace that is a number, and the own one",
        RELEASE,
        json!({"watchNamespaces": ["123", NAMESPACE]}),
        |all| {
            let role =
                all.iter().find(|o| o["kind"] == "Role" && o["metadata"]["namespace"] == "123").unwrap();
            let named: Vec<_> =
                role["rules"].as_array().unwrap().iter().filter_map(|r| r.get("resourceNames")).collect();
            assert_eq!(named, [&json!(["123"])]);
        },
    );
    let named: Row = (
        "names and labels",
        "blue",
        json!({"commonLabels": {"team": "blue"},
        "commonAnnotations": {"note": "ours"}}),
        |all| {
            assert!(
                names(all).contains(&format!("Deployment {NAMESPACE}/blue-coder-k8s")),
                "{:?}",
                names(all)
            );
            assert!(names(all).contains(&"ClusterRole blue-coder-k8s-viewer".to_owned()));
            for object in all {
                assert_eq!(object["metadata"]["labels"]["team"], "blue", "{object}");
                assert_eq!(object["metadata"]["annotations"]["note"], "ours", "{object}");
            }
        },
    );
    let overridden: Row = (
        "names of the user's own",
        "blue",
        json!({"nameOverride": "operator", "fullnameOverride": "mine"}),
        |all| {
            let deployment = only(all, "Deployment");
            assert_eq!(deployment["metadata"]["name"], "mine");
            assert_eq!(
                deployment["spec"]["selector"]["matchLabels"],
                json!({"app.kubernetes.io/name": "operator"})
            );
            assert_eq!(only(all, "NetworkPolicy")["spec"]["podSelector"], deployment["spec"]["selector"]);
        },
    );
    let account: Row = (
        "a ServiceAccount with a name",
        RELEASE,
        json!({"serviceAccount": {"name": "robot",
        "annotations": {"cloud.example/role": "reader"}}}),
        |all| {
            assert_eq!(
                only(all, "ServiceAccount")["metadata"]["annotations"]["cloud.example/role"],
                "reader"
            );
            assert_eq!(pod(all)["serviceAccountName"], "robot");
            for binding in all.iter().filter(|object| object.get("subjects").is_some()) {
                assert_eq!(binding["subjects"][0]["name"], "robot");
            }
        },
    );
    vec![none, some, number, named, overridden, account]
}

fn left_out() -> Vec<Row> {
    let bare: Row = (
        "everything but the Deployment is somebody else's",
        RELEASE,
        json!({
        "serviceAccount": {"create": false, "name": "given"}, "rbac": {"create": false}, "userRoles": {"create": false},
        "crds": {"install": false}, "networkPolicy": {"enabled": false}}),
        |all| {
            assert_eq!(names(all), [format!("Deployment {NAMESPACE}/coder-k8s")]);
        },
    );
    let deleted: Row = (
        "CRDs that go with the release",
        RELEASE,
        json!({"crds": {"keep": false,
        "annotations": {"note": "x"}}}),
        |all| {
            for crd in all.iter().filter(|object| object["kind"] == "CustomResourceDefinition") {
                assert_eq!(crd["metadata"]["annotations"], json!({"note": "x"}));
            }
        },
    );
    vec![bare, deleted]
}

fn pods() -> Vec<Row> {
    let several: Row = ("three replicas", RELEASE, json!({"replicas": 3}), |all| {
        assert_eq!(only(all, "PodDisruptionBudget")["spec"]["maxUnavailable"], 1);
        let spread = &pod(all)["topologySpreadConstraints"];
        assert_eq!(spread.as_array().map(Vec::len), Some(2), "{spread}");
        assert_eq!(spread[0]["labelSelector"], only(all, "Deployment")["spec"]["selector"]);
    });
    let spread: Row = (
        "own spread and budget",
        RELEASE,
        json!({"replicas": 2, "podDisruptionBudget":
        {"maxUnavailable": "", "minAvailable": "50%"}, "topologySpread": {"constraints": [{"topologyKey": "rack",
        "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]}}),
        |all| {
            let budget = &only(all, "PodDisruptionBudget")["spec"];
            assert_eq!((budget["minAvailable"].as_str(), budget.get("maxUnavailable")), (Some("50%"), None));
            assert_eq!(pod(all)["topologySpreadConstraints"][0]["topologyKey"], "rack");
        },
    );
    let unprotected: Row = (
        "two replicas without budget and spread",
        RELEASE,
        json!({"replicas": 2,
        "podDisruptionBudget": {"enabled": false}, "topologySpread": {"enabled": false}}),
        |all| {
            assert_eq!(of_kind(all, "PodDisruptionBudget"), 0);
            assert_eq!(pod(all).get("topologySpreadConstraints"), None);
        },
    );
    let image: Row = (
        "an image by digest",
        RELEASE,
        json!({"image": {"repository": "registry.example:5000/coder-k8s",
        "tag": "v9", "digest": format!("sha256:{}", "ab".repeat(32)), "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}]}),
        |all| {
            let image = container(all)["image"].as_str().unwrap().to_owned();
            assert!(image.starts_with("registry.example:5000/coder-k8s:v9@sha256:abab"), "{image}");
            assert_eq!(container(all)["imagePullPolicy"], "Always");
            assert_eq!(pod(all)["imagePullSecrets"], json!([{"name": "pull"}]));
        },
    );
    let placed: Row = (
        "where pods run",
        RELEASE,
        json!({"nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists"}], "priorityClassName": "system-cluster-critical",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}},
        "podLabels": {"a": "b", "app.kubernetes.io/name": "other"}, "podAnnotations": {"c": "d"},
        "deploymentAnnotations": {"e": "f"}, "updateStrategy": {"type": "Recreate"}, "terminationGracePeriodSeconds": 90,
        "livenessProbe": {"periodSeconds": 20}, "readinessProbe": {"failureThreshold": 5},
        "resources": {"requests": {"memory": "64Mi"}, "limits": null}}),
        |all| {
            let deployment = only(all, "Deployment");
            let labels = &deployment["spec"]["template"]["metadata"]["labels"];
            assert_eq!(labels["app.kubernetes.io/name"], "coder-k8s", "the selector must match");
            assert_eq!(
                (&labels["a"], &deployment["metadata"]["annotations"]["e"]),
                (&json!("b"), &json!("f"))
            );
            assert_eq!(
                container(all)["livenessProbe"],
                json!({"httpGet": {"path": "/livez", "port": "health"}, "periodSeconds": 20})
            );
            assert_eq!(container(all)["resources"].get("limits"), None);
            assert_eq!(pod(all)["priorityClassName"], "system-cluster-critical");
        },
    );
    let extras: Row = (
        "extras",
        RELEASE,
        json!({"extraArgs": ["--verify-interval=5m"], "extraEnv": [{"name": "A", "value": "b"}],
        "extraEnvFrom": [{"configMapRef": {"name": "more"}}], "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": true}],
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more",
            "namespace": "{{ .Release.Namespace }}"}, "data": {"image": "{{ include \"coder-k8s.image\" . }}"}}]}),
        |all| {
            assert_eq!(args(all), ["controller", "--verify-interval=5m"]);
            let more = only(all, "ConfigMap");
            assert_eq!(more["metadata"]["name"], "coder-k8s-more");
            assert_eq!(more["data"]["image"], container(all)["image"]);
            assert_eq!(container(all)["env"][2], json!({"name": "A", "value": "b"}));
        },
    );
    let assigned: Row = (
        "a user id that the platform assigns",
        RELEASE,
        json!({"podSecurityContext": {"runAsUser": null,
        "runAsGroup": null}}),
        |all| {
            let context = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
            assert_eq!(pod(all)["securityContext"], context);
        },
    );
    vec![several, spread, unprotected, image, placed, extras, assigned]
}

fn surroundings() -> Vec<Row> {
    let flags: Row = ("every flag", RELEASE, every_flag(), |all| {
        let flags = coder_k8s::flags::of_controller();
        let given = args(all);
        for flag in &flags {
            assert!(
                given.iter().any(|arg| arg.starts_with(&format!("--{}=", flag.name))),
                "{}: {given:?}",
                flag.name
            );
        }
        assert_eq!(given.len(), flags.len() + 1);
    });
    let silent: Row = (
        "no listeners",
        RELEASE,
        json!({"operator": {"healthAddr": "off", "metricsAddr": "off", "adminAddr": "off"}}),
        |all| {
            let container = container(all);
            assert_eq!((container.get("ports"), container.get("livenessProbe")), (None, None));
            assert_eq!(only(all, "NetworkPolicy")["spec"].get("ingress"), None);
        },
    );
    let network: Row = (
        "ports and peers",
        RELEASE,
        json!({"operator": {"healthAddr": "0.0.0.0:9001", "metricsAddr": ":9002",
        "allowedAddressRanges": ["169.254.0.0/16", "fe80::/10"]}, "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}],
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}}),
        |all| {
            let policy = &only(all, "NetworkPolicy")["spec"];
            assert_eq!(policy["ingress"][0]["ports"][0]["port"], 9001);
            assert_eq!(policy["ingress"][1]["from"], json!([{"namespaceSelector": {}}]));
            let egress = policy["egress"].to_string();
            assert!(
                egress.contains(r#"{"cidr":"fe80::/10"}"#) && egress.contains("192.0.2.0/24"),
                "{egress}"
            );
            assert_eq!(container(all)["ports"][1]["containerPort"], 9002);
        },
    );
    let service: Row = (
        "a ServiceMonitor",
        RELEASE,
        json!({"metrics": {"serviceMonitor": {"enabled": true, "interval": "30s",
        "scrapeTimeout": "10s", "labels": {"release": "prometheus"}, "annotations": {"a": "b"},
        "relabelings": [{"action": "replace", "targetLabel": "x", "replacement": "y"}],
        "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "go_.*"}]},
        "service": {"annotations": {"c": "d"}}}}),
        |all| {
            let (monitor, service) = (only(all, "ServiceMonitor"), only(all, "Service"));
            for (label, value) in monitor["spec"]["selector"]["matchLabels"].as_object().unwrap() {
                assert_eq!(&service["metadata"]["labels"][label], value, "{label}");
            }
            assert_eq!(service["spec"]["ports"][0]["name"], monitor["spec"]["endpoints"][0]["port"]);
            assert_eq!(
                service["spec"]["selector"],
                only(all, "Deployment")["spec"]["selector"]["matchLabels"]
            );
            assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        },
    );
    let pods: Row = ("a PodMonitor", RELEASE, json!({"metrics": {"podMonitor": {"enabled": true}}}), |all| {
        let monitor = only(all, "PodMonitor");
        assert_eq!(monitor["spec"]["selector"], only(all, "Deployment")["spec"]["selector"]);
        let endpoint = json!({"port": "metrics", "path": "/metrics", "honorLabels": true});
        assert_eq!(monitor["spec"]["podMetricsEndpoints"], json!([endpoint]));
        assert_eq!(of_kind(all, "Service"), 0);
    });
    let rules: Row = (
        "alerts and dashboard",
        RELEASE,
        json!({"metrics": {"prometheusRule": {"enabled": true,
        "labels": {"role": "alerts"}}, "dashboard": {"enabled": true, "namespace": "team-a"}}}),
        |all| {
            let rule = only(all, "PrometheusRule");
            assert_eq!(rule["metadata"]["labels"]["role"], "alerts");
            let alerts = rule["spec"]["groups"].as_array().unwrap();
            assert!(
                !alerts.is_empty() && rule.to_string().contains("$labels"),
                "templates of Alertmanager stay"
            );
            let board = only(all, "ConfigMap");
            assert_eq!(
                (&board["metadata"]["namespace"], &board["metadata"]["labels"]["grafana_dashboard"]),
                (&json!("team-a"), &json!("1"))
            );
            let board: Value =
                serde_json::from_str(board["data"]["coder-k8s.json"].as_str().unwrap()).unwrap();
            assert!(board["title"].is_string());
        },
    );
    vec![flags, silent, network, service, pods, rules]
}

/// A value for every flag that is not its default.
pub(crate) fn every_flag() -> Value {
    let value = |flag: &coder_k8s::flags::Flag| match (flag.name.as_str(), flag.default.as_str()) {
        ("allowed-coder-urls", _) => json!(["https://a.example", "https://b.example:8443"]),
        ("allowed-address-ranges", _) => json!(["127.0.0.0/8"]),
        ("leader-elect", _) => json!(false),
        ("log-format", _) => json!("json"),
        ("log-level", _) => json!("info,coder_k8s_engine::lease=debug"),
        ("health-addr", _) => json!(":9081"),
        ("metrics-addr", _) => json!(":9080"),
        ("admin-addr", _) => json!("127.0.0.1:9082"),
        (_, "false") => json!(true),
        // Times and numbers: one more of the same unit.
        (_, default) if default.starts_with(|c: char| c.is_ascii_digit()) => {
            let (number, unit) = default.split_at(default.find(char::is_alphabetic).unwrap_or(default.len()));
            let more = number.parse::<u64>().unwrap() + 1;
            if unit.is_empty() { json!(more) } else { json!(format!("{more}{unit}")) }
        }
        other => panic!("say another value than the default of {other:?}"),
    };
    let flags = coder_k8s::flags::of_controller();
    json!({"operator": flags.iter().map(|flag| (flag.value_name(), value(flag))).collect::<BTreeMap<_, _>>()})
}
