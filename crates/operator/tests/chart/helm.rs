//! Running Helm and kubectl as people do, and what they print.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicUsize, Ordering},
};

use coder_k8s_testbed::{Cluster, binaries};
use serde_json::Value;
use tokio::process::Command;

/// The release and the namespace of `coder-k8s manifests`.
pub(crate) const RELEASE: &str = "coder-k8s";
pub(crate) const NAMESPACE: &str = "coder-system";

/// The chart of this work tree.
pub(crate) fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/coder-k8s").canonicalize().unwrap()
}

/// A copy of the chart with alerts and a dashboard of the test.
pub(crate) fn observed_chart() -> PathBuf {
    let copy = folder().join("coder-k8s");
    let status = std::process::Command::new("cp").arg("-r").arg(chart()).arg(&copy).status().unwrap();
    assert!(status.success());
    let files = copy.join("files/observability");
    fs::create_dir_all(&files).unwrap();
    let alerts = "# For a person.\ngroups:\n  - name: coder-k8s\n    rules:\n      - alert: Lost\n        expr: up == 0\n        \
        annotations: {summary: \"{{ $labels.pod }} is lost\"}\n";
    fs::write(files.join("alerts.yaml"), alerts).unwrap();
    fs::write(files.join("dashboard.json"), r#"{"title": "{{pod}} of coder-k8s"}"#).unwrap();
    copy
}

/// A new folder of this run.
fn folder() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("chart-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Helm with a home of its own, and the cluster that it talks to.
pub(crate) struct Helm {
    program: PathBuf,
    home: PathBuf,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Without a cluster, for rendering.
    pub(crate) fn new() -> Self {
        Self { program: binaries::locate_helm().unwrap(), home: folder(), kubeconfig: None }
    }

    /// As an administrator of a cluster.
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut helm = Self::new();
        helm.kubeconfig = Some(cluster.kubeconfig_path());
        helm
    }

    async fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command.args(args).env("KUBECONFIG", self.kubeconfig.as_deref().unwrap_or(Path::new("/dev/null")));
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.join(variable));
        }
        command.output().await.unwrap()
    }

    /// Standard output of a command that must succeed.
    pub(crate) async fn must(&self, args: &[&str]) -> String {
        let output = self.output(args).await;
        let (out, err) = texts(&output);
        assert!(output.status.success(), "helm {}: {err}\n{out}", args.join(" "));
        out
    }

    /// Standard error of a command that must fail.
    pub(crate) async fn refused(&self, args: &[&str]) -> String {
        let output = self.output(args).await;
        let (out, err) = texts(&output);
        assert!(!output.status.success(), "helm {} is not refused: {out}", args.join(" "));
        err
    }

    /// A file with values.
    pub(crate) fn values(&self, values: &Value) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let file = self.home.join(format!("values-{}.json", COUNT.fetch_add(1, Ordering::SeqCst)));
        fs::write(&file, values.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// The objects of a release with these values.
    pub(crate) async fn render(&self, chart: &Path, release: &str, values: &Value) -> Vec<Value> {
        let (chart, values) = (chart.to_str().unwrap(), self.values(values));
        let all =
            self.must(&["template", release, chart, "--namespace", NAMESPACE, "--values", &values]).await;
        documents(&all)
    }

    /// Runs `install` or `upgrade` of the chart of this work tree, and returns what it says.
    pub(crate) async fn apply(&self, verb: &str, values: &Value, more: &[&str]) -> String {
        let (chart, values) = (chart(), self.values(values));
        let all = [verb, RELEASE, chart.to_str().unwrap(), "--namespace", NAMESPACE, "--values", &values];
        // The node needs a moment to report the pod.
        let wait = ["--wait", "--timeout", "2m"];
        self.must(&[&all[..], &wait, more].concat()).await
    }
}

impl Drop for Helm {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The documents of a YAML file that are not empty.
pub(crate) fn documents(yaml: &str) -> Vec<Value> {
    let each = yaml.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap_or(Value::Null));
    each.filter(|document| !document.is_null()).collect()
}

/// Runs a line of a shell with kubectl as an administrator, and returns standard output.
pub(crate) async fn shell(cluster: &Cluster, line: &str) -> String {
    let kubectl = cluster.binaries().kubectl().unwrap().parent().unwrap().to_owned();
    let path = format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-euc", line]).env("PATH", path).env("KUBECONFIG", cluster.kubeconfig_path());
    let output = command.output().await.unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{line}: {err}\n{out}");
    out
}

/// The only object of a kind among rendered ones.
pub(crate) fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<_> = objects.iter().filter(|object| object["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}: {:?}", names(objects));
    found[0]
}

/// Kinds and names of objects, in order.
pub(crate) fn names(objects: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |object: &Value| {
        let place = text(&object["metadata"]["namespace"]);
        let slash = if place.is_empty() { "" } else { "/" };
        format!("{} {place}{slash}{}", text(&object["kind"]), text(&object["metadata"]["name"]))
    };
    let mut all: Vec<_> = objects.iter().map(name).collect();
    all.sort();
    all
}
