//! Tracks whether the API server serves the CRDs that the operator needs, from its start on.
//!
//! A [`MetadataWatch`] on CRDs reports which one changed; each of interest is then read, at the version of the change or a
//! later one: the cache of the API server answers that for a third of what a read from etcd costs it. A CRD that is missing,
//! or lacks fields of this release, is waited for, so that no object is written without the fields that the server would
//! drop. Meanwhile the readiness of the process names the command that installs it.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, GetParams, Object},
};
use serde::Deserialize;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

use crate::{
    client,
    health::{Readiness, ReadyCheck},
    intervals::CRD_READ_RETRY,
    metadata_watch::{MetadataEvent, MetadataWatch},
    metrics::Metrics,
    outage::Outage,
};

/// The state of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// Not read yet.
    Unknown,
    /// Not installed, or an optional CRD that the operator may not read.
    Absent,
    /// Installed and not yet, or no longer, served.
    Pending,
    /// Of an older release, which lacks these fields or versions.
    Older(Vec<String>),
    /// Served with everything that the operator needs, or a required CRD that the operator may not read.
    Ready,
}

/// The states of the CRDs that the operator needs. Clones share them.
#[derive(Clone, Debug)]
pub struct Crds {
    states: watch::Receiver<BTreeMap<String, Served>>,
}

impl Crds {
    /// Tracks `required` CRDs, by name with the fields of this release, and `optional` CRDs, by name with the version that
    /// must be served. Only required ones count for `readiness`, with `install_command` as the remedy.
    ///
    /// The returned future does the work, until it is dropped.
    pub fn watch(
        client: Client,
        required: BTreeMap<&str, Vec<&'static str>>,
        optional: &[(&str, &'static str)],
        install_command: &'static str,
        readiness: &Readiness,
        metrics: Arc<Metrics>,
        outage: Outage,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let mut tracked: BTreeMap<String, Requirement> = BTreeMap::new();
        for (name, fields) in required {
            let check = readiness.ready_check(format!("crd {name}"));
            check.fail("not read yet");
            tracked.insert(name.to_owned(), Requirement::Fields { fields, check, install_command });
        }
        for (name, version) in optional {
            tracked.insert((*name).to_owned(), Requirement::Version(version));
        }
        let states = tracked.keys().map(|name| (name.clone(), Served::Unknown)).collect();
        let (sender, receiver) = watch::channel(states);
        let metadata_watch: MetadataWatch<CustomResourceDefinition> = MetadataWatch {
            api: Api::all(client.clone()),
            synced: readiness.ready_check("watch customresourcedefinitions"),
            metrics,
            outage: outage.clone(),
        };
        let tracking = async move {
            let (due, arriving) = mpsc::unbounded_channel();
            let names: Vec<String> = tracked.keys().cloned().collect();
            let retry = due.clone();
            let watching = metadata_watch.run(move |event| match event {
                MetadataEvent::Changed { name, version, .. } => {
                    drop(due.send((name.to_owned(), version.map(str::to_owned))));
                }
                MetadataEvent::Gap { version } => {
                    for name in &names {
                        drop(due.send((name.clone(), version.map(str::to_owned))));
                    }
                }
            });
            let api = Api::all_with(client, &ApiResource::erase::<CustomResourceDefinition>(&()));
            tokio::join!(watching, read_due(api, tracked, arriving, retry, sender, outage));
        };
        (Self { states: receiver }, tracking)
    }

    /// The state of a CRD; [`Served::Absent`] for one that is not tracked.
    pub fn state(&self, name: &str) -> Served {
        self.states.borrow().get(name).cloned().unwrap_or(Served::Absent)
    }

    /// Waits until the state of a CRD is known.
    pub async fn known(&mut self, name: &str) {
        self.until(|states| states.get(name) != Some(&Served::Unknown)).await;
    }

    /// Waits until a CRD is [`Served::Ready`].
    pub async fn ready(&mut self, name: &str) {
        self.until(|states| states.get(name) == Some(&Served::Ready)).await;
    }

    /// Waits until a CRD is not [`Served::Ready`].
    pub async fn unready(&mut self, name: &str) {
        self.until(|states| states.get(name) != Some(&Served::Ready)).await;
    }

    async fn until(&mut self, holds: impl FnMut(&BTreeMap<String, Served>) -> bool) {
        if self.states.wait_for(holds).await.is_err() {
            // The tracking future was dropped, at shutdown: nothing will change any more.
            std::future::pending::<()>().await;
        }
    }
}

/// What the operator needs of a CRD.
enum Requirement {
    /// A required CRD must have these fields.
    Fields { fields: Vec<&'static str>, check: ReadyCheck, install_command: &'static str },
    /// An optional CRD must serve this version.
    Version(&'static str),
}

/// A CRD to read, by name, and the version which the answer must not be older than. None: the newest.
type Due = (String, Option<String>);

/// Reads the CRDs whose names arrive, and publishes their states.
async fn read_due(
    api: Api<InstalledCrd>,
    tracked: BTreeMap<String, Requirement>,
    mut due: mpsc::UnboundedReceiver<Due>,
    retry: mpsc::UnboundedSender<Due>,
    states: watch::Sender<BTreeMap<String, Served>>,
    outage: Outage,
) {
    let mut arrived = Vec::new();
    while due.recv_many(&mut arrived, 64).await > 0 {
        // Of several of a name, the last.
        let arrived: BTreeMap<_, _> = arrived.drain(..).collect();
        join_all(arrived.into_iter().filter_map(|(name, version)| {
            let (requirement, api, retry, states, outage) =
                (tracked.get(&name)?, &api, &retry, &states, &outage);
            Some(async move {
                let Some(state) = read(api, &name, version, requirement, outage).await else {
                    let retry = retry.clone();
                    tokio::spawn(async move {
                        sleep(CRD_READ_RETRY).await;
                        // The version may never come, if the API server was restored from a backup.
                        let _ = retry.send((name, None));
                    });
                    return;
                };
                let changed = states.send_if_modified(|states| {
                    states.insert(name.clone(), state.clone()).as_ref() != Some(&state)
                });
                if changed {
                    report(&name, &state, requirement);
                }
            })
        }))
        .await;
    }
}

/// Reads a CRD. `None` if that failed and must be retried.
async fn read(
    api: &Api<InstalledCrd>,
    name: &str,
    resource_version: Option<String>,
    requirement: &Requirement,
    outage: &Outage,
) -> Option<Served> {
    match api.get_with(name, &GetParams { resource_version }).await {
        Ok(crd) => Some(state_of(&crd, requirement)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Some(Served::Absent),
        // [`Outage`] tells of it. A server that is just back may refuse what it will allow.
        Err(error) if client::is_unanswered(&error) || outage.is_recent() => None,
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            tracing::warn!("cannot check whether the CRD {name} is up to date: {}", status.message);
            // An install without permission to read CRDs works on: the required kinds are assumed to be there, and their
            // own watches say if they are not. Optional kinds are not used.
            Some(match requirement {
                Requirement::Fields { .. } => Served::Ready,
                Requirement::Version(_) => Served::Absent,
            })
        }
        Err(error) => {
            tracing::warn!("cannot read the CRD {name}: {}", client::describe(&error));
            None
        }
    }
}

fn report(name: &str, state: &Served, requirement: &Requirement) {
    let Requirement::Fields { check, install_command, .. } = requirement else {
        match state {
            Served::Ready => tracing::info!("the optional API {name} is installed"),
            Served::Absent | Served::Unknown => tracing::info!("the optional API {name} is not installed"),
            Served::Pending => tracing::info!("the optional API {name} is installed and not yet served"),
            Served::Older(missing) => tracing::info!("the optional API {name} lacks {}", missing.join(", ")),
        }
        return;
    };
    let remedy = format!("run `{install_command}`");
    let waits_for = match state {
        Served::Ready => return check.pass(),
        Served::Unknown | Served::Pending => "installed and not yet served".to_owned(),
        Served::Absent => format!("not installed; {remedy}"),
        Served::Older(missing) => {
            let shown = missing.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more =
                if missing.len() > 5 { format!(" and {} more", missing.len() - 5) } else { String::new() };
            format!("older than this operator: it lacks {shown}{more}; {remedy}")
        }
    };
    tracing::warn!("waiting for the CRD {name}, which is {waits_for}");
    check.fail(waits_for);
}

/// A CRD, as far as it is read. A whole one has thousands of values, which would be parsed at each start.
type InstalledCrd = Object<CrdSpec, CrdStatus>;

#[derive(Clone, Debug, Deserialize)]
struct CrdSpec {
    versions: Vec<CrdVersion>,
}

#[derive(Clone, Debug, Deserialize)]
struct CrdVersion {
    name: String,
    served: bool,
    #[serde(default)]
    schema: CrdSchema,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct CrdSchema {
    #[serde(default, rename = "openAPIV3Schema")]
    root: Fields,
}

/// The names of the fields of a schema.
#[derive(Clone, Debug, Default, Deserialize)]
struct Fields {
    #[serde(default)]
    properties: BTreeMap<String, Fields>,
    items: Option<Box<Fields>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct CrdStatus {
    #[serde(default)]
    conditions: Vec<CrdCondition>,
}

#[derive(Clone, Debug, Deserialize)]
struct CrdCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl Fields {
    /// Whether there is a field of this path, such as `spec.expose.ingress`, or `spec.volumes[].name` in the entries of a list.
    fn contain(&self, path: &str) -> bool {
        let found = path.split('.').try_fold(self, |fields, name| match name.strip_suffix("[]") {
            Some(list) => fields.properties.get(list)?.items.as_deref(),
            None => fields.properties.get(name),
        });
        found.is_some()
    }
}

/// The state of a CRD that was just read.
fn state_of(crd: &InstalledCrd, requirement: &Requirement) -> Served {
    let served = || crd.spec.versions.iter().filter(|version| version.served);
    let missing = match requirement {
        Requirement::Version(version) => {
            let is_served = served().any(|found| found.name == *version);
            if is_served { Vec::new() } else { return Served::Older(vec![format!("version {version}")]) }
        }
        Requirement::Fields { fields, .. } => {
            let has = |field: &&&str| served().any(|version| version.schema.root.contain(field));
            fields.iter().filter(|field| !has(field)).map(ToString::to_string).collect()
        }
    };
    let mut conditions = crd.status.iter().flat_map(|status| &status.conditions);
    let is_established = conditions.any(|found| found.type_ == "Established" && found.status == "True");
    if !is_established || crd.metadata.deletion_timestamp.is_some() {
        return Served::Pending;
    }
    if missing.is_empty() { Served::Ready } else { Served::Older(missing) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ours() -> serde_json::Value {
        let mut crd = serde_json::to_value(coder_k8s_api::crds().remove(0)).unwrap();
        crd["status"] = json!({"conditions": [{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]});
        crd
    }

    fn without(crd: &serde_json::Value, path: &str) -> serde_json::Value {
        let mut crd = crd.clone();
        let (parent, name) = path.rsplit_once('/').unwrap();
        let root = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let parent = root.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        assert!(parent.remove(name).is_some());
        crd
    }

    fn judged(crd: &serde_json::Value, requirement: &Requirement) -> Served {
        state_of(&serde_json::from_value(crd.clone()).unwrap(), requirement)
    }

    fn needs(fields: Vec<&'static str>) -> Requirement {
        let check = Readiness::default().ready_check("crd");
        Requirement::Fields { fields, check, install_command: "" }
    }

    fn fields() -> Vec<&'static str> {
        coder_k8s_api::fields().remove("codercontrolplanes.coder.com").unwrap()
    }

    #[test]
    fn a_crd_without_a_needed_field_is_older() {
        let crd = ours();
        assert_eq!(judged(&crd, &needs(fields())), Served::Ready);
        for (removed, missing) in [
            ("/properties/spec/properties/scaling", "spec.scaling"),
            ("/properties/status/properties/url", "status.url"),
            (
                "/properties/spec/properties/certs/properties/secrets/items/properties/key",
                "spec.certs.secrets[].key",
            ),
        ] {
            let state = judged(&without(&crd, removed), &needs(fields()));
            assert!(
                matches!(&state, Served::Older(all) if all.iter().any(|field| field == missing)),
                "{missing}: {state:?}"
            );
        }
        assert_eq!(
            judged(&without(&crd, "/properties/spec/properties/scaling"), &needs(fields())),
            Served::Older(vec!["spec.scaling".into()])
        );
        assert_eq!(judged(&crd, &Requirement::Version("v1alpha1")), Served::Ready);
        assert_eq!(judged(&crd, &Requirement::Version("v1")), Served::Older(vec!["version v1".into()]));
    }

    #[test]
    fn a_crd_that_is_not_served_is_pending() {
        let mut crd = ours();
        crd["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(judged(&crd, &needs(fields())), Served::Pending, "it is being deleted");
        for status in [json!({}), json!({"conditions": [{"type": "Established", "status": "False"}]})] {
            let mut crd = ours();
            crd["status"] = status;
            assert_eq!(judged(&crd, &needs(fields())), Served::Pending);
        }
        let mut crd = ours();
        crd.as_object_mut().unwrap().remove("status");
        assert_eq!(judged(&crd, &needs(fields())), Served::Pending);
        let mut unserved = ours();
        unserved["spec"]["versions"][0]["served"] = json!(false);
        assert!(matches!(judged(&unserved, &needs(fields())), Served::Older(_)));
    }

    #[test]
    fn a_crd_of_a_later_release_is_ready() {
        let older: Vec<_> = fields().into_iter().filter(|field| *field != "spec.scaling").collect();
        assert_eq!(judged(&ours(), &needs(older)), Served::Ready);
    }
}
