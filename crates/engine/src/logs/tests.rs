use std::{io, sync::Arc};

use super::*;

/// A writer that stores what is written. Clones share one buffer.
#[derive(Clone, Default)]
pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Captured {
    /// Returns what was written since the last call.
    pub(crate) fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap()
    }
}

/// A subscriber that is installed nowhere, its handle, and what it writes.
pub(crate) fn subscriber(json: bool, filter: &str) -> (impl Subscriber + Send + Sync, Handle, Captured) {
    let captured = Captured::default();
    let writer = captured.clone();
    let (subscriber, handle) = build(json, false, filter, move || writer.clone()).unwrap();
    (subscriber, handle, captured)
}

/// Runs `body` under a subscriber of its own.
fn capture(json: bool, filter: &str, body: impl FnOnce(&Handle, &Captured)) {
    let (subscriber, handle, captured) = subscriber(json, filter);
    tracing::subscriber::with_default(subscriber, || body(&handle, &captured));
}

fn log_all() {
    tracing::debug!(target: "coder_k8s_engine::lease", "ours-debug");
    tracing::info!(target: "coder_k8s", "ours-info");
    tracing::debug!(target: "hyper::client", "theirs-debug");
    tracing::info!(target: "hyper::client", "theirs-info");
    tracing::warn!(target: "hyper::client", "theirs-warn");
    tracing::error!(target: "kube_client::client", "kube-client-body");
    tracing::warn!(target: "kube_client", "kube-client-body");
}

#[test]
fn filters_choose_within_the_limits() {
    let table = [
        ("info", vec!["ours-info", "theirs-warn"]),
        ("INFO", vec!["ours-info", "theirs-warn"]),
        ("debug", vec!["ours-debug", "ours-info", "theirs-warn"]),
        ("error", vec![]),
        ("off", vec![]),
        ("trace", vec!["ours-debug", "ours-info", "theirs-warn"]),
        ("info,hyper=trace", vec!["ours-info", "theirs-info", "theirs-warn"]),
        ("trace,kube_client=trace", vec!["ours-debug", "ours-info", "theirs-info", "theirs-warn"]),
        ("warn,coder_k8s_engine::lease=debug", vec!["ours-debug", "theirs-warn"]),
        ("kube_client=error", vec![]),
    ];
    let words = ["ours-debug", "ours-info", "theirs-debug", "theirs-info", "theirs-warn", "kube-client-body"];
    for (filter, expected) in table {
        capture(false, filter, |_, captured| {
            log_all();
            let text = captured.take();
            let logged: Vec<_> = words.into_iter().filter(|word| text.contains(word)).collect();
            assert_eq!(logged, expected, "{filter}");
        });
    }
}

#[test]
fn the_filter_changes_at_run_time() {
    capture(false, "info", |handle, captured| {
        log_all();
        assert!(!captured.take().contains("ours-debug"));
        handle.set(" debug ").unwrap();
        assert_eq!(handle.current(), "debug");
        log_all();
        let text = captured.take();
        assert!(text.contains("ours-debug") && !text.contains("kube-client-body"), "{text}");
        handle.set("nonsense").unwrap_err();
        assert_eq!(handle.current(), "debug");
        log_all();
        assert!(captured.take().contains("ours-debug"), "a refused filter changes nothing");
    });
}

#[test]
fn an_invalid_filter_is_refused_with_the_valid_forms() {
    for filter in
        ["", "  ", "inof", "3", "info,foo", "coder_k8s=loud", "info,,debug", "[{", "info,[reconcile]=debug"]
    {
        let error = parse(filter).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{filter:?} is not a log filter: ")), "{error}");
        assert!(error.contains("use one of off, error, warn"), "{error}");
    }
}

#[test]
fn a_human_line() {
    capture(false, "info", |_, captured| {
        tracing::info!(target: "coder_k8s", attempt = 3, "created the service");
        let line = captured.take();
        assert!(line.contains(" INFO created the service attempt=3\n"), "{line:?}");
        assert!(line.starts_with("20") && !line.contains('\u{1b}'), "{line:?}");
        let span =
            tracing::info_span!(target: "coder_k8s", "reconcile", object = %"CoderProvisioner team/pool");
        span.in_scope(|| tracing::info!(target: "coder_k8s", reason = %"RolledOut", "2 of 2 pods are ready"));
        let line = captured.take();
        let sentence = " INFO CoderProvisioner team/pool: 2 of 2 pods are ready reason=RolledOut\n";
        assert!(line.ends_with(sentence), "{line:?}");
    });
}

#[test]
fn a_json_line() {
    capture(true, "info", |_, captured| {
        let span = tracing::info_span!(target: "coder_k8s", "reconcile", object = "a/b");
        span.in_scope(|| tracing::info!(target: "coder_k8s", attempt = 3, "created the service"));
        let line: serde_json::Value = serde_json::from_str(&captured.take()).unwrap();
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "created the service");
        assert_eq!(line["attempt"], 3);
        assert_eq!(line["span"]["object"], "a/b");
        assert!(line.get("spans").is_none() && line.get("fields").is_none());
        line["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().expect("RFC 3339");
    });
}

#[test]
fn auto_follows_the_terminal() {
    assert!(Format::Auto.is_json(false) && !Format::Auto.is_json(true));
    assert!(Format::Json.is_json(true) && !Format::Human.is_json(false));
    for (name, format) in [("auto", Format::Auto), ("human", Format::Human), ("json", Format::Json)] {
        assert_eq!(name.parse::<Format>().unwrap(), format);
    }
    let error = "xml".parse::<Format>().unwrap_err().to_string();
    assert_eq!(error, "\"xml\" is not a log format: use auto, human or json");
}
