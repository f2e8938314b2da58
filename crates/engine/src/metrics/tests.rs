use coder_k8s_testbed::metrics_lint::lint;

use super::*;

fn everything_set() -> String {
    let metrics = Metrics::new();
    let took = Duration::from_millis(30);
    for outcome in [ReconcileOutcome::Settled, ReconcileOutcome::Waiting, ReconcileOutcome::Failed] {
        metrics.reconciled("Widget", outcome, Reason::Reconciled, took);
    }
    metrics.reconciled("Gadget", ReconcileOutcome::Failed, Reason::Forbidden, took);
    metrics.queue_depth(3);
    metrics.queue_wait(took);
    metrics.api_call("get", "secrets", "200", took);
    metrics.api_call("get", "secrets", "404", took);
    metrics.api_call("apply", "deployments/status", "timeout", Duration::from_mins(1));
    metrics.leading(true);
    metrics.objects("Widget", "true", 4);
    metrics.objects("Widget", "unknown", 0);
    metrics.unparsable("Widget", 1);
    metrics.watch_restarts("secrets");
    let colours = Family::<Vec<(&str, &str)>, Level>::default();
    metrics.register(|own| count(own, "colours", "Registered by somebody else", colours.clone()));
    colours.get_or_create(&vec![("name", "\"red\"\\\n")]).set(2);
    metrics.encode().unwrap()
}

#[test]
fn the_exposition_is_clean() {
    let text = everything_set();
    assert_eq!(lint(&text), Vec::<String>::new(), "{text}");
    assert_eq!(lint(&Metrics::new().encode().unwrap()), Vec::<String>::new(), "before anything is counted");
}

#[test]
fn each_method_sets_its_series() {
    let text = everything_set();
    for line in [
        "coder_k8s_reconciles_total{kind=\"Widget\",outcome=\"settled\",reason=\"Reconciled\"} 1",
        "coder_k8s_reconcile_duration_seconds_count{kind=\"Widget\"} 3",
        "coder_k8s_queue_depth 3",
        "coder_k8s_queue_wait_seconds_count 1",
        "coder_k8s_api_calls_total{verb=\"get\",resource=\"secrets\",code=\"404\"} 1",
        "coder_k8s_api_call_duration_seconds_count{verb=\"apply\"} 1",
        "coder_k8s_leading 1",
        "coder_k8s_objects{kind=\"Widget\",ready=\"true\"} 4",
        "coder_k8s_unparsable_objects{kind=\"Widget\"} 1",
        "coder_k8s_watch_restarts_total{resource=\"secrets\"} 1",
        r#"coder_k8s_colours{name="\"red\"\\\n"} 2"#,
        concat!("coder_k8s_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing from\n{text}");
    }
}

#[test]
fn the_process_metrics_are_plausible() {
    let text = Metrics::new().encode().unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|l| l.starts_with(&format!("{name} "))).expect(name);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("process_cpu_seconds_total") >= 0.0);
    assert!(value("process_open_fds") >= 3.0);
    let age = f64::from(u32::try_from(jiff::Timestamp::now().as_second()).unwrap())
        - value("process_start_time_seconds");
    assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
}

#[test]
fn every_registered_family_is_listed_and_has_an_example() {
    let metrics = Metrics::new();
    metrics.set_examples();
    let text = metrics.encode().unwrap();
    let described = |line: &str| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned());
    let shown: Vec<_> =
        text.lines().filter_map(described).filter(|name| !name.starts_with("process_")).collect();
    assert_eq!(shown, metrics.families());
    assert!(metrics.is_leading());
}
