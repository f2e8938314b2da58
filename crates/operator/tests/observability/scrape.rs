//! Alerts and dashboard against the metrics of an operator that runs a control plane with a license, a pool with daemons,
//! a proxy, and jobs that wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use coder_k8s_scenes::{
    Operator,
    coderd::license,
    daemons::DaemonScene,
    pool::{PoolScene, tags},
    proxy::ProxyScene,
    scene::Scene,
};
use coder_k8s_testbed::{
    codersim::{JobSeed, Mode},
    metrics_lint::{Sample, lint, samples},
    observability::{label_variables, panels, substituted},
    promql::{self, Selector},
};
use serde_json::{Value, json};

use crate::{alerts, dashboard, promtool, test_files};

/// Scaled time: coderd is asked every second.
const FLAGS: &[&str] = &[
    "--leader-elect=false",
    "--entitlements-interval=2s",
    "--verify-interval=8s",
    "--daemons-interval=1s",
    "--autoscaling-interval=1s",
    "--daemons-patience=4s",
    "--coderd-timeout=3s",
];

/// Labels that Prometheus adds to what it scrapes. `cluster` is for those who have it.
const TARGET_LABELS: [&str; 5] = ["cluster", "namespace", "job", "instance", "pod"];

/// The minutes of the series that are made of two scrapes.
const MINUTES: u32 = 30;

fn job(list: &[(&str, &str)], seconds: u64) -> JobSeed {
    let waiting = Duration::from_secs(seconds);
    JobSeed { status: "pending".into(), tags: tags(list), waiting, worker_id: None }
}

/// What an operator exported, early and later, and the namespace of its objects.
struct Scrapes {
    early: String,
    late: String,
    namespace: String,
}

async fn scrape(operator: &Operator) -> String {
    let (code, text) = operator.get("--metrics-addr", "/metrics").await;
    assert_eq!(code, 200);
    assert_eq!(lint(&text), Vec::<String>::new(), "{text}");
    text
}

/// Runs an operator for a while. One of its watches and one of its writes fail at first.
async fn run_operator() -> Scrapes {
    let coder = PoolScene::within(Scene::unmanaged("observe").await, Mode::Licensed).await;
    let namespace = coder.scene.namespace.clone();
    let faults =
        ["before watch coderprovisioners / status=500 2", "before create deployments / status=500 2"];
    let operator = coder.scene.start_failing(FLAGS, &faults.map(String::from));
    operator.until_leading().await;

    coder.secret("license", "license", &license(1)).await;
    coder.make_plane(json!({"licenseSecretRef": {"name": "license"}})).await;
    coder.until_answered().await;
    let site = ProxyScene { coder };
    site.make(json!({})).await;
    site.until_ready().await;
    let scaled = json!({"tags": {"region": "eu"}, "autoscaling": {"minReplicas": 2, "maxReplicas": 5}});
    let mut crew = DaemonScene::of(site.coder, scaled).await;
    let early = scrape(&operator).await;

    crew.pool.scene.until_ready("coder").await;
    crew.until_pods(2).await;
    let daemons = crew.connect_all().await;
    crew.busy(&daemons[0], true);
    crew.until_condition("True", "Connected").await;
    crew.pool.sim.set_jobs(&[job(&[("region", "eu")], 20), job(&[("gpu", "1")], 300)]);
    crew.pool.scene.until_condition("coder", "JobsRunnable", "False", Some("NoDaemonMatches")).await;
    // The busy daemon is on the status with the next poll.
    crew.pool
        .until(|pool| pool.status.as_ref().and_then(|s| s.daemons.as_ref()).is_some_and(|d| d.busy == 1))
        .await;
    let late = scrape(&operator).await;
    Scrapes { early, late, namespace }
}

#[tokio::test]
async fn everything_that_alerts_and_dashboard_name_is_exported_by_an_operator_at_work() {
    let scrapes = run_operator().await;
    check_metrics(&scrapes.late);
    let exported = Exported::of(&scrapes.late);
    let mut selectors = 0;
    for alert in alerts() {
        selectors += exported.assert_has(&alert.name, &alert.expr);
    }
    for panel in panels(&dashboard()) {
        for query in &panel.queries {
            selectors += exported.assert_has(&panel.title, &substituted(query, &scrapes.variables()));
        }
    }
    let inputs = test_inputs();
    for series in &inputs {
        exported.assert_has_selector("a test of the alerts", series);
    }
    println!(
        "{} series in {} families; {selectors} selectors of alerts and dashboard and {} series of tests are in them",
        samples(&scrapes.late).len(),
        scrapes.late.lines().filter(|line| line.starts_with("# TYPE")).count(),
        inputs.len(),
    );
    evaluate_queries(&scrapes);
    alerts_of_the_scrape(&scrapes);
}

/// `promtool check metrics` reads the older text format, in which a counter is described with its `_total`.
fn check_metrics(text: &str) {
    let counters: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let converted = text.lines().filter(|line| !line.starts_with("# UNIT") && *line != "# EOF").map(|line| {
        let mut words = line.splitn(4, ' ');
        let described = (words.next(), words.next(), words.next(), words.next());
        match described {
            (Some("#"), Some(word), Some(name), Some(rest)) if counters.contains(name) => {
                format!("# {word} {name}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    });
    let (passed, said) = promtool(["check", "metrics"], &[], &converted.collect::<String>());
    println!("promtool check metrics: passed={passed} {said}");
    assert!(passed, "{said}");
}

/// The names of all series, each with the sets of labels that it has.
struct Exported(BTreeMap<String, BTreeSet<String>>);

impl Exported {
    fn of(text: &str) -> Self {
        let mut all = BTreeMap::<_, BTreeSet<_>>::new();
        for Sample { name, labels, .. } in samples(text) {
            all.entry(name.to_owned())
                .or_default()
                .extend(labels.into_iter().map(|(label, _)| label.to_owned()));
        }
        Self(all)
    }

    /// Asserts that all metrics and labels of an expression are there, and returns how many metrics those are.
    fn assert_has(&self, whose: &str, expression: &str) -> usize {
        let found = promql::mentions(expression).unwrap_or_else(|error| panic!("{whose}: {error}"));
        let mut labels: BTreeSet<_> = TARGET_LABELS.map(String::from).into();
        for selector in &found.selectors {
            self.assert_has_selector(whose, selector);
            labels.extend(self.0[&selector.metric].clone());
        }
        let unknown: Vec<_> = found.grouping.iter().filter(|label| !labels.contains(*label)).collect();
        assert!(unknown.is_empty(), "{whose} groups by {unknown:?}: {expression}");
        found.selectors.len()
    }

    fn assert_has_selector(&self, whose: &str, selector: &Selector) {
        let known = self.0.get(&selector.metric);
        let known = known.unwrap_or_else(|| panic!("{whose}: {} is not exported", selector.metric));
        for matcher in &selector.matchers {
            let label = &matcher.label;
            assert!(
                known.contains(label) || TARGET_LABELS.contains(&label.as_str()),
                "{whose}: {} has no label {label}",
                selector.metric
            );
        }
    }
}

/// The series that the tests of the alerts begin with.
fn test_inputs() -> Vec<Selector> {
    let mut all = Vec::new();
    for file in test_files() {
        let tests: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for test in tests["tests"].as_array().unwrap() {
            for series in test["input_series"].as_array().unwrap() {
                all.extend(promql::mentions(series["series"].as_str().unwrap()).unwrap().selectors);
            }
        }
    }
    all
}

impl Scrapes {
    /// Values for the variables of the dashboard.
    fn variables(&self) -> BTreeMap<String, String> {
        let known = BTreeMap::from([
            ("namespace".to_owned(), self.namespace.clone()),
            ("name".to_owned(), "coder".to_owned()),
        ]);
        let all = label_variables(&dashboard()).unwrap();
        let names: BTreeSet<_> = all.iter().map(|variable| variable.name.clone()).collect();
        let expected: BTreeSet<_> = known.keys().cloned().collect();
        assert_eq!(names, expected, "the variables of the dashboard");
        for variable in all {
            let selector =
                promql::mentions(&substituted(&variable.selector, &known)).unwrap().selectors.remove(0);
            let offered = samples(&self.late).into_iter().any(|sample| {
                let has =
                    |label: &str, value: &str| sample.labels.iter().any(|(l, v)| *l == label && v == value);
                sample.name == selector.metric
                    && selector.matchers.iter().all(|matcher| has(&matcher.label, &matcher.value))
                    && has(&variable.label, &known[&variable.name])
            });
            assert!(offered, "{variable:?} does not offer {}", known[&variable.name]);
        }
        known
    }

    /// The scrapes as series of a promtool test, as Prometheus stores them with `honor_labels`: counters grow evenly from
    /// the first to the second, and gauges have the value of the second.
    fn series(&self) -> Vec<Value> {
        let early: BTreeMap<_, _> =
            samples(&self.early).into_iter().map(|sample| (notation(&sample), sample.value)).collect();
        let kinds: BTreeMap<_, _> =
            self.late.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let grows = |name: &str| {
            let family =
                ["_total", "_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            family.is_some_and(|family| matches!(kinds.get(family), Some(&("counter" | "histogram"))))
        };
        let all = samples(&self.late).into_iter().map(|sample| {
            let (series, last) = (notation(&sample), sample.value);
            let first = if grows(sample.name) { early.get(&series).copied().unwrap_or(0.0) } else { last };
            let step = (last - first) / f64::from(MINUTES);
            json!({"series": series, "values": format!("{first}+{step}x{MINUTES}")})
        });
        all.collect()
    }

    /// Runs a promtool test on these series.
    fn test(&self, cases: &Value, field: &str) -> (bool, String) {
        let rules = crate::folder().join("alerts.yaml").canonicalize().unwrap();
        let test = json!({"rule_files": [rules], "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": self.series(), field: cases}]});
        let file = std::env::temp_dir().join(format!("coder-k8s-scrape-{}-{field}.yaml", std::process::id()));
        fs::write(&file, test.to_string()).unwrap();
        let outcome = promtool(["test", "rules"], std::slice::from_ref(&file), "");
        fs::remove_file(file).unwrap();
        outcome
    }
}

/// A sample without its value, with the labels of its target.
fn notation(sample: &Sample<'_>) -> String {
    let target = [
        ("namespace", "coder-system"),
        ("job", "coder-k8s"),
        ("instance", "10.0.0.1:8080"),
        ("pod", "coder-k8s-0"),
    ];
    let own = |label: &str| sample.labels.iter().any(|(name, _)| *name == label);
    let target =
        target.iter().filter(|(label, _)| !own(label)).map(|(label, value)| (*label, (*value).to_owned()));
    let labels: Vec<_> = sample
        .labels
        .iter()
        .cloned()
        .chain(target)
        .map(|(label, value)| format!("{label}={}", Value::String(value)))
        .collect();
    format!("{}{{{}}}", sample.name, labels.join(","))
}

/// A test that a query has at least one result that is a number.
fn finds_something(query: &str) -> Value {
    json!({"expr": format!("count(({query}) >= -Inf) > bool 0"), "eval_time": format!("{MINUTES}m"),
        "exp_samples": [{"labels": "{}", "value": 1}]})
}

/// Every query of the dashboard has a result.
fn evaluate_queries(scrapes: &Scrapes) {
    let variables = scrapes.variables();
    let queries: Vec<_> = panels(&dashboard())
        .iter()
        .flat_map(|panel| panel.queries.clone())
        .map(|query| substituted(&query, &variables))
        .collect();
    let cases: Vec<_> = queries.iter().map(|query| finds_something(query)).collect();
    let (passed, said) = scrapes.test(&json!(cases), "promql_expr_test");
    println!(
        "promtool: {} queries of the dashboard on {} series: {said}",
        queries.len(),
        scrapes.series().len()
    );
    assert!(passed, "{said}");
    // What finds nothing fails.
    let nothing = finds_something(r#"coder_k8s_condition{type="Nonsense"}"#);
    let (passed, said) = scrapes.test(&json!([nothing]), "promql_expr_test");
    assert!(!passed, "{said}");
}

/// The alerts of the scrape itself: jobs that nobody can run, and a proxy that coderd has not heard of. Nothing else is wrong.
fn alerts_of_the_scrape(scrapes: &Scrapes) {
    let due = ["CoderJobsNotRunnable", "CoderWorkspaceProxyUnhealthy"];
    for alert in alerts() {
        let quiet = json!([{"alertname": alert.name, "eval_time": format!("{MINUTES}m"), "exp_alerts": []}]);
        let (is_quiet, said) = scrapes.test(&quiet, "alert_rule_test");
        assert_eq!(is_quiet, !due.contains(&alert.name.as_str()), "{}: {said}", alert.name);
    }
}
