//! T3: reads status, events, metrics and logs. Looks at everything that the operator wrote, when all attacks are over.

use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Namespace, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde_json::Value;

use crate::{Row, Verdict, ensure, hostile::text_of, row, stage::Stage};

/// Shorter values are words.
const TELLING: usize = 12;
/// Series of metrics, whatever tenants name.
const SERIES: usize = 5_000;

/// The rows.
pub(crate) fn rows() -> Vec<Row> {
    let never = "no secret value is there";
    vec![
        row("T3 status", "reads every object of ours", never, |stage| async {
            without_secrets(stage, &objects(stage).await)
        }),
        row("T3 events", "reads every event", never, |stage| async {
            without_secrets(stage, &events(stage).await)
        }),
        row("T3 metrics", "reads the metrics", never, |stage| async {
            without_secrets(stage, &stage.metrics().await)
        }),
        row("T3 logs", "reads the log of the operator", never, |stage| async {
            without_secrets(stage, &stage.operator.output())
        }),
        row(
            "T3 series",
            "reads the metrics",
            "their number is bounded, and no name of a tenant's is a label",
            |stage| async { series(&stage.metrics().await) },
        ),
        row(
            "T3 others",
            "reads the messages of its own objects",
            "they name no other namespace, except those of the spec",
            others,
        ),
    ]
}

const KINDS: [&str; 3] = ["CoderControlPlane", "CoderProvisioner", "CoderWorkspaceProxy"];

async fn all(stage: &Stage) -> Vec<Value> {
    let mut all = Vec::new();
    for kind in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("coder.com", "v1alpha1", kind));
        let api: Api<DynamicObject> = Api::all_with(stage.client.clone(), &resource);
        let list = api.list(&ListParams::default()).await.unwrap();
        all.extend(list.items.into_iter().map(|object| serde_json::to_value(object).unwrap()));
    }
    all
}

/// What the operator says of all objects.
async fn objects(stage: &Stage) -> String {
    all(stage).await.iter().map(|object| object["status"].to_string() + "\n").collect()
}

async fn events(stage: &Stage) -> String {
    let api: Api<Event> = Api::all(stage.client.clone());
    let all = api.list(&ListParams::default()).await.unwrap();
    all.items.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect()
}

fn without_secrets(stage: &Stage, text: &str) -> Verdict {
    let secrets = stage.secrets();
    let telling = secrets.iter().filter(|(value, _)| value.len() >= TELLING);
    let shown: Vec<_> = telling
        .clone()
        .filter_map(|(value, whose)| {
            let line = text.lines().find(|line| line.contains(value.as_str()))?;
            let at = line.find(value.as_str())?;
            let around: String =
                line.replace(value.as_str(), "[SHOWN]").chars().skip(at.saturating_sub(120)).collect();
            Some(format!("{whose}: {around}"))
        })
        .collect();
    ensure(shown.is_empty(), || shown.join(", "))?;
    Ok(format!("{} values in {} KiB", telling.count(), text.len() >> 10))
}

fn series(metrics: &str) -> Verdict {
    let all: Vec<_> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
    let odd = all.iter().find(|line| ["watch=", "limit=", "..", "%2f"].iter().any(|odd| line.contains(odd)));
    ensure(odd.is_none(), || format!("{odd:?}"))?;
    ensure(all.len() <= SERIES, || format!("{} series", all.len()))?;
    Ok(format!("{} series", all.len()))
}

async fn others(stage: &'static Stage) -> Verdict {
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    let names: BTreeSet<_> =
        namespaces.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    let mut leaks = Vec::new();
    for object in all(stage).await {
        let own = text_of(&object["metadata"]["namespace"]);
        let spec = object["spec"].to_string();
        for said in object["status"]["conditions"].as_array().into_iter().flatten() {
            let words = text_of(&said["message"]).split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            let named = words.filter(|word| {
                names.contains(*word) && *word != own && *word != "default" && !spec.contains(*word)
            });
            leaks.extend(named.map(|name| format!("{} of {own} names {name}", said["type"])));
        }
    }
    ensure(leaks.is_empty(), || leaks.join(", "))?;
    Ok(format!("{} namespaces", names.len()))
}
