//! The alerts and the dashboard in `config/observability` against the metrics that the operator registers. What takes
//! promtool or a running operator is in `tests/observability`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use coder_k8s_api::{CoderKind, Reason};
use coder_k8s_testbed::{
    metrics_lint::{lint, samples},
    observability::{Alert, Panel, alerts as read_alerts, label_variables, panels, substituted},
    promql::{self, Matcher},
};
use serde_json::Value;

use super::example;
use crate::controller::exported_conditions;

/// Labels that Prometheus adds to what it scrapes. `cluster` is for those who have it.
const TARGET_LABELS: [&str; 5] = ["cluster", "namespace", "job", "instance", "pod"];

/// All labels of all metrics. Each takes names of objects or words of ours, or is bounded by its owner: a label for a
/// message, an address or an id of somebody else has no place here.
const LABELS: [&str; 18] = [
    "about",
    "call",
    "code",
    "control_plane",
    "kind",
    "le",
    "name",
    "namespace",
    "organization",
    "outcome",
    "ready",
    "reason",
    "resource",
    "status",
    "tags",
    "type",
    "verb",
    "version",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/observability")
}

fn alerts() -> Vec<Alert> {
    read_alerts(&fs::read_to_string(folder().join("alerts.yaml")).unwrap()).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(folder().join("dashboard.json")).unwrap()).unwrap()
}

/// Labels of each series of the registry.
fn registered() -> BTreeMap<String, BTreeSet<String>> {
    let text = example().unwrap();
    assert_eq!(lint(&text), Vec::<String>::new(), "{text}");
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for sample in samples(&text) {
        let labels = sample.labels.into_iter().map(|(label, _)| label.to_owned());
        all.entry(sample.name.to_owned()).or_default().extend(labels);
    }
    all
}

/// Asserts that an expression names only metrics and labels of the registry, and only values that a label can have.
fn assert_registered(whose: &str, expression: &str) {
    let known = registered();
    let found = promql::mentions(expression).unwrap_or_else(|error| panic!("{whose}: {error}"));
    let mut labels: BTreeSet<_> = TARGET_LABELS.map(String::from).into();
    for selector in found.selectors {
        let metric = &selector.metric;
        let of_metric = known.get(metric).unwrap_or_else(|| panic!("{whose}: nobody registers {metric}"));
        labels.extend(of_metric.clone());
        for matcher in selector.matchers {
            assert!(of_metric.contains(&matcher.label), "{whose}: {metric} has no label {}", matcher.label);
            assert_possible(whose, &matcher);
        }
    }
    for label in found.grouping {
        assert!(labels.contains(&label), "{whose} groups by {label}, which no metric of it has");
    }
}

fn assert_possible(whose: &str, matcher: &Matcher) {
    let kinds = || CoderKind::ALL.iter().map(|kind| kind.as_str());
    let conditions = || CoderKind::ALL.iter().flat_map(|kind| exported_conditions(*kind)).copied();
    let possible: BTreeSet<&str> = match matcher.label.as_str() {
        "kind" => kinds().collect(),
        "type" => conditions().collect(),
        "reason" => Reason::ALL.iter().map(|reason| reason.as_str()).collect(),
        "status" => ["True", "False", "Unknown"].into(),
        "ready" => ["true", "false", "unknown"].into(),
        "outcome" => ["settled", "waiting", "failed"].into(),
        "about" => ["objects", "jobs"].into(),
        "namespace" | "name" | "control_plane" => return,
        other => panic!("{whose}: the values of {other} are not known here"),
    };
    for value in matcher.value.split('|') {
        assert!(possible.contains(value), "{whose}: {} is never {value}", matcher.label);
    }
}

#[test]
fn alerts_name_only_metrics_and_labels_that_exist() {
    for alert in alerts() {
        assert_registered(&alert.name, &alert.expr);
    }
}

#[test]
fn the_dashboard_names_only_metrics_and_labels_that_exist() {
    let variables: BTreeMap<_, _> =
        ["namespace", "name"].map(|name| (name.to_owned(), name.to_owned())).into();
    for Panel { title, queries, .. } in panels(&dashboard()) {
        assert!(!queries.is_empty(), "{title} has no query");
        for query in queries {
            assert_registered(&title, &substituted(&query, &variables));
        }
    }
    for variable in label_variables(&dashboard()).unwrap() {
        assert_registered(&variable.name, &substituted(&variable.selector, &variables));
        assert!(variables.contains_key(&variable.name), "{variable:?}");
    }
}

#[test]
fn no_metric_has_a_label_that_others_fill_at_will() {
    let used: BTreeSet<_> = registered().into_values().flatten().collect();
    assert_eq!(
        used,
        BTreeSet::from(LABELS.map(String::from)),
        "see the comment of LABELS before you add one"
    );
}

#[test]
fn every_alert_says_how_bad_it_is_what_is_wrong_with_whom_and_where_to_read_on() {
    let mut names = BTreeSet::new();
    for Alert { name, labels, annotations, expr, .. } in alerts() {
        assert!(name.starts_with("Coder") && names.insert(name.clone()), "{name}");
        let severities = labels.get("severity").map(String::as_str);
        assert!(
            matches!(severities, Some("critical" | "warning" | "info")) && labels.len() == 1,
            "{name}: {labels:?}"
        );
        let text = |annotation: &str| annotations.get(annotation).cloned().unwrap_or_default();
        let by_object = expr.contains("by (cluster, namespace, name");
        for annotation in ["summary", "description"] {
            let text = text(annotation);
            assert!(!text.is_empty(), "{name} has no {annotation}");
            let names_object = text.contains("{{ $labels.namespace }}/{{ $labels.name }}");
            assert!(!by_object || names_object, "{name}: the {annotation} does not name the object");
        }
        assert!(text("description").ends_with('.'), "{name}");
        let anchor = format!("/docs/reference/alerts.md#{}", name.to_lowercase());
        assert!(text("runbook_url").ends_with(&anchor), "{name}: {}", text("runbook_url"));
        assert_eq!(annotations.len(), 3, "{name}");
    }
}

/// One check of a test: when, and whether something fires.
type Check = (u64, bool);

#[test]
fn the_tests_of_every_alert_have_it_silent_then_firing_then_silent_again() {
    let mut checks = BTreeMap::<String, Vec<Vec<Check>>>::new();
    for file in fs::read_dir(folder().join("tests")).unwrap() {
        let tests: Value =
            serde_saphyr::from_str(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
        for test in tests["tests"].as_array().unwrap() {
            let mut of_test = BTreeMap::<String, Vec<Check>>::new();
            for case in test["alert_rule_test"].as_array().unwrap() {
                let minutes = case["eval_time"].as_str().unwrap().strip_suffix('m').unwrap().parse().unwrap();
                let fires = !case["exp_alerts"].as_array().unwrap().is_empty();
                of_test
                    .entry(case["alertname"].as_str().unwrap().to_owned())
                    .or_default()
                    .push((minutes, fires));
            }
            for (alert, mut found) in of_test {
                found.sort_unstable();
                checks.entry(alert).or_default().push(found);
            }
        }
    }
    let is_whole = |checks: &Vec<Check>| {
        let mut phases: Vec<_> = checks.iter().map(|(_, fires)| *fires).collect();
        phases.dedup();
        phases == [false, true, false]
    };
    for alert in alerts() {
        let whole = checks.get(&alert.name).is_some_and(|tests| tests.iter().any(is_whole));
        assert!(whole, "no test has {} silent, then firing, then silent again", alert.name);
    }
    let known: BTreeSet<_> = alerts().into_iter().map(|alert| alert.name).collect();
    assert!(checks.keys().all(|name| known.contains(name)), "a test is about an alert that does not exist");
}

#[test]
fn every_panel_explains_itself_and_takes_the_data_source_of_the_variable() {
    let dashboard = dashboard();
    assert_eq!(dashboard["schemaVersion"], 42);
    let panels = panels(&dashboard);
    let rows: Vec<_> =
        panels.iter().map(|panel| panel.row.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(
        rows,
        ["Control plane $namespace/$name", "Fleet", "Operator health", "Pools and queues", "Scaled pools"]
    );
    let mut titles = BTreeSet::new();
    for Panel { row, title, json, .. } in &panels {
        assert!(titles.insert((row, title)), "{row} has {title} twice");
        assert!(
            json["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title} has no description"
        );
        let defaults = &json["fieldConfig"]["defaults"];
        assert!(defaults["unit"].is_string(), "{title} has no unit");
        assert!(defaults["thresholds"]["steps"].is_array(), "{title} has no thresholds");
        let targets = json["targets"].as_array().unwrap().iter();
        for datasource in targets.map(|target| &target["datasource"]).chain([&json["datasource"]]) {
            assert_eq!(datasource["uid"], "${datasource}", "{title}");
        }
    }
    assert_apart(&dashboard);
}

/// Panels have ids of their own, stay within the 24 columns, and do not overlap.
fn assert_apart(dashboard: &Value) {
    let all = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = all.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "ids are unique");
    let mut cells = BTreeSet::new();
    for panel in all {
        let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{} covers another panel", panel["title"]);
            }
        }
    }
}
