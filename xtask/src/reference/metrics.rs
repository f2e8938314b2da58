//! The page of the metrics, from an exposition in which every metric has a series.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Context, Result, ensure};
use coder_k8s::metrics::{MAX_JOB_SERIES, MAX_OBJECT_SERIES};
use coder_k8s_testbed::metrics_lint::samples;

use super::cell;

/// Labels with their values, as Markdown.
const LABELS: &[(&str, &str)] = &[
    (
        "about",
        "`objects`: conditions, licenses, daemons and what waits for a scaled pool. `jobs`: queues of jobs.",
    ),
    (
        "call",
        "What a call to coderd or a step in its database does, such as `list licenses` or `sql-connect`.",
    ),
    (
        "code",
        "HTTP status, or `error`, `timeout`, `canceled`, `fenced` (not sent because the instance does not lead) or `refused` \
         (not sent because of a name in it).",
    ),
    ("control_plane", "Name of the CoderControlPlane of a pool."),
    ("kind", "Kind of the object."),
    ("le", "Upper bound of a bucket."),
    ("name", "Name of the object. Of jobs and licenses: of the CoderControlPlane."),
    ("namespace", "Namespace of the object."),
    ("organization", "Name of the organization in coderd."),
    (
        "outcome",
        "Of a reconcile: `settled`, `waiting` or `failed`. Of a call to coderd: `ok` or the [reason](reasons.md) of its \
         failure.",
    ),
    ("ready", "Status of the condition Ready: `true`, `false` or `unknown`."),
    ("reason", "A [reason](reasons.md). Of a condition also `Other`: one that this release does not know."),
    ("resource", "Plural name of a resource of Kubernetes, or `invalid` for a call that was `refused`."),
    ("status", "Status of the condition: `True`, `False` or `Unknown`."),
    (
        "tags",
        "The tags that a job needs, without those that coderd adds. `none`: it needs none. `other`: all sets of tags beyond \
         the twenty longest queues of an organization.",
    ),
    (
        "type",
        "Type of the condition. Control planes: `Ready`, `OperatorAccessReady`, `JobsRunnable`. Pools: `Ready`, \
         `DaemonsConnected`, and with `spec.autoscaling` `Autoscaling`. Proxies: `Ready`, `Healthy`.",
    ),
    ("verb", "Verb of a call to the API server, such as `get` or `apply`."),
    ("version", "Version of the operator."),
];

/// A metric, as the exposition describes it.
#[derive(Default)]
struct Family {
    kind: String,
    unit: String,
    help: String,
    labels: Vec<String>,
}

/// The page, as Markdown, without the mark of generated files.
pub(crate) fn page() -> Result<String> {
    let text = coder_k8s::metrics::example()?;
    let mut families = BTreeMap::<&str, Family>::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some("#"), Some(word), Some(name), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let family = families.entry(name).or_default();
        let field = match word {
            "TYPE" => &mut family.kind,
            "UNIT" => &mut family.unit,
            _ => &mut family.help,
        };
        rest.clone_into(field);
    }
    for sample in samples(&text) {
        let base = |end: &str| sample.name.strip_suffix(end);
        let name =
            std::iter::once(Some(sample.name)).chain(["_total", "_bucket", "_count", "_sum"].map(base));
        let family = name.flatten().find(|name| families.contains_key(name));
        let family = family.and_then(|name| families.get_mut(name));
        let family = family.with_context(|| format!("{} is not described", sample.name))?;
        for (label, _) in sample.labels {
            if label != "le" && !family.labels.iter().any(|known| known == label) {
                family.labels.push(label.to_owned());
            }
        }
    }
    let used: BTreeSet<_> =
        families.values().flat_map(|family| &family.labels).map(String::as_str).chain(["le"]).collect();
    let listed: BTreeSet<_> = LABELS.iter().map(|(label, _)| *label).collect();
    ensure!(
        used == listed,
        "LABELS in xtask/src/reference/metrics.rs differs from the labels in use: {used:?}"
    );
    Ok(show(&families))
}

fn show(families: &BTreeMap<&str, Family>) -> String {
    let mut page = "# Metrics\n\nThe operator serves these metrics at `--metrics-addr`, `:8080` by default, under `/metrics` in the \
        OpenMetrics format. [Alerts](alerts.md) and the dashboard in `config/observability` are made of them.\n\n\
        ```yaml not-checked=\"configuration of Prometheus\"\nscrape_configs:\n  - job_name: coder-k8s\n    # The labels namespace and name are those of the object.\n    honor_labels: true\n    \
        kubernetes_sd_configs:\n      - role: pod\n        namespaces:\n          names: [coder-system]\n        selectors:\n          - role: pod\n            \
        label: app.kubernetes.io/name=coder-k8s\n    relabel_configs:\n      - source_labels: [__meta_kubernetes_pod_container_port_name]\n        \
        regex: metrics\n        action: keep\n      - source_labels: [__meta_kubernetes_namespace]\n        target_label: namespace\n      \
        - source_labels: [__meta_kubernetes_pod_name]\n        target_label: pod\n```\n\n\
        | Name | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n"
        .to_owned();
    for (name, Family { kind, unit, help, labels }) in families {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ =
            writeln!(page, "| `{name}{suffix}` | {kind} | {unit} | {} | {} |", labels.join(", "), cell(help));
    }
    page.push_str("\n## Labels\n\n| Label | Value |\n|---|---|\n");
    for (label, meaning) in LABELS {
        let _ = writeln!(page, "| `{label}` | {} |", cell(meaning));
    }
    let _ = write!(
        page,
        "\n## Which instance exports what?\n\nAll instances export their own calls, watches and memory. Only the leader exports series \
         about single objects and jobs. An object that is deleted leaves none.\n\n\
         ## How many series are there?\n\nAt most {MAX_OBJECT_SERIES} series are about objects and {MAX_JOB_SERIES} about jobs. If \
         there would be more, every namespace gets its share, and in it objects whose conditions are not True and jobs that wait \
         long come first. `coder_k8s_series_omitted` counts the others.\n",
    );
    page
}
