//! `helm lint`, values that are refused with a sentence, and arguments that the operator understands.

use serde_json::{Value, json};

use crate::{
    helm::{Helm, RELEASE, chart, only},
    rows::every_flag,
};

#[tokio::test]
async fn the_chart_passes_helm_lint() {
    let helm = Helm::new();
    for values in [json!({}), json!({"watchNamespaces": ["a"], "replicas": 2}), every_flag()] {
        let said = helm
            .must(&["lint", "--strict", chart().to_str().unwrap(), "--values", &helm.values(&values)])
            .await;
        assert!(said.contains("0 chart(s) failed"), "{said}");
        assert!(!said.contains("[ERROR]") && !said.contains("[WARNING]"), "{said}");
    }
}

#[tokio::test]
async fn a_bad_value_is_refused_with_a_sentence_that_names_it() {
    let digest = json!({"image": {"digest": "sha256:abc"}});
    let rows: Vec<(Value, &str)> = vec![
        (json!({"replicas": "two"}), "at '/replicas': got string, want integer"),
        (json!({"replicaCount": 2}), "additional properties 'replicaCount' not allowed"),
        (
            json!({"operator": {"leaseDurations": "9s"}}),
            "at '/operator': additional properties 'leaseDurations' not allowed",
        ),
        (
            json!({"operator": {"leaseDuration": "soon"}}),
            "at '/operator/leaseDuration': 'soon' does not match pattern",
        ),
        (json!({"operator": {"leaseDuration": 15}}), "at '/operator/leaseDuration': got number, want string"),
        (json!({"operator": {"concurrency": 0}}), "at '/operator/concurrency': minimum: got 0, want 1"),
        (
            json!({"operator": {"logFormat": "xml"}}),
            "at '/operator/logFormat': value must be one of 'auto', 'human', 'json'",
        ),
        (json!({"operator": {"healthAddr": "127.0.0.1:8081"}}), "at '/operator/healthAddr'"),
        (json!({"operator": {"allowedCoderUrls": ["coder.example"]}}), "at '/operator/allowedCoderUrls/0'"),
        (json!({"watchNamespaces": "team-a"}), "at '/watchNamespaces': got string, want array"),
        (json!({"watchNamespaces": ["Team A"]}), "at '/watchNamespaces/0': 'Team A' does not match pattern"),
        (json!({"watchNamespaces": ["a", "a"]}), "at '/watchNamespaces': items at 0 and 1 are equal"),
        (digest, "at '/image/digest': 'sha256:abc' does not match pattern"),
        (json!({"image": {"repository": "example/coder-k8s:v1"}}), "at '/image/repository'"),
        (json!({"podLabels": {"a": 1}}), "at '/podLabels/a': got number, want string"),
        (
            json!({"extraObjects": [{"kind": "ConfigMap"}]}),
            "at '/extraObjects/0': missing property 'apiVersion'",
        ),
        // What values say together.
        (
            json!({"replicas": 2, "operator": {"leaderElect": false}}),
            "set operator.leaderElect to true, or replicas to 1",
        ),
        (
            json!({"podDisruptionBudget": {"minAvailable": 1}}),
            "podDisruptionBudget has both minAvailable and maxUnavailable",
        ),
        (
            json!({"serviceAccount": {"create": false}}),
            "set serviceAccount.name to the ServiceAccount of the operator",
        ),
        (
            json!({"operator": {"metricsAddr": "off"}, "metrics": {"podMonitor": {"enabled": true}}}),
            "operator.metricsAddr is off",
        ),
        (
            json!({"metrics": {"podMonitor": {"enabled": true}, "serviceMonitor": {"enabled": true}}}),
            "disable one of them",
        ),
        (
            json!({"extraArgs": ["--lease-duration=9s"]}),
            "extraArgs has --lease-duration: set operator.leaseDuration instead",
        ),
        (
            json!({"extraArgs": ["--watch-namespaces", "a"]}),
            "extraArgs has --watch-namespaces: set watchNamespaces instead",
        ),
    ];
    let helm = Helm::new();
    for (values, expected) in rows {
        let file = helm.values(&values);
        let said = helm.refused(&["template", RELEASE, chart().to_str().unwrap(), "--values", &file]).await;
        assert!(said.contains(expected), "{values}: {said}");
        println!("{values}: {}", said.lines().rfind(|line| line.contains(expected)).unwrap().trim());
    }
}

#[tokio::test]
async fn alerts_that_the_chart_does_not_have_are_refused_by_name() {
    let without = crate::helm::observed_chart();
    std::fs::remove_dir_all(without.join("files/observability")).unwrap();
    let helm = Helm::new();
    for (value, file) in [("prometheusRule", "alerts.yaml"), ("dashboard", "dashboard.json")] {
        let values = helm.values(&json!({"metrics": {value: {"enabled": true}}}));
        let said = helm.refused(&["template", RELEASE, without.to_str().unwrap(), "--values", &values]).await;
        assert!(said.contains(&format!("metrics.{value} is enabled")) && said.contains(file), "{said}");
    }
}

#[tokio::test]
async fn the_operator_understands_every_flag_that_the_chart_gives_it() {
    let objects = Helm::new().render(&chart(), RELEASE, &every_flag()).await;
    let args = &only(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
    let args: Vec<String> = serde_json::from_value(args.clone()).unwrap();
    let run = |more: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_coder-k8s"));
        command.args(&args).arg(more).env_clear();
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // It gets as far as looking for the cluster.
    let (code, said) = run("--kubeconfig=/does/not/exist");
    assert!(code == Some(1) && said.contains("/does/not/exist"), "{code:?}: {said}");
    assert_eq!(run("--no-such-flag").0, Some(2), "a flag that it does not know ends it at once");
}
