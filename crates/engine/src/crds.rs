//! Whether the API server serves the kinds that the operator needs, now and later.
//!
//! A tripwire on CRDs says when to look; a look is one live read of a CRD that matters. A CRD that is missing or
//! lacks fields of this release is waited for: nothing is half-written, and readiness names the command that helps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::field_paths;
use futures::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

use crate::{
    health::{Readiness, ReadyCheck},
    metadata_watch::{MetadataEvent, MetadataWatch},
    metrics::Metrics,
};

/// How long after a failed look the next one comes.
const RETRY: Duration = Duration::from_secs(2);

/// How a CRD stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// Not looked yet.
    Unknown,
    /// Not installed.
    Absent,
    /// Installed and not yet served.
    Pending,
    /// Of an older release: these fields are missing.
    Older(Vec<String>),
    /// As needed, as far as the operator may see.
    Ready,
}

/// The CRDs that matter, and how they stand.
#[derive(Clone, Debug)]
pub struct Crds {
    states: watch::Receiver<BTreeMap<String, Served>>,
}

impl Crds {
    /// Looks after `required` CRDs, each by its name and the fields of this release, and `optional` ones by name and the
    /// version that must be served.
    ///
    /// The second value does the looking until it is dropped.
    pub fn watch(
        client: Client,
        required: BTreeMap<&str, Vec<&'static str>>,
        optional: &[(&str, &'static str)],
        readiness: &Readiness,
        metrics: Arc<Metrics>,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
        for (name, fields) in required {
            let check = readiness.ready_check(format!("crd {name}"));
            check.fail("not looked at yet");
            wanted.insert(name.to_owned(), Wanted { fields, version: None, check: Some(check) });
        }
        for (name, version) in optional {
            let optional = Wanted { fields: Vec::new(), version: Some(version), check: None };
            wanted.insert((*name).to_owned(), optional);
        }
        let states = wanted.keys().map(|name| (name.clone(), Served::Unknown)).collect();
        let (sender, receiver) = watch::channel(states);
        let metadata_watch: MetadataWatch<CustomResourceDefinition> = MetadataWatch {
            api: Api::all(client.clone()),
            synced: readiness.ready_check("watch customresourcedefinitions"),
            metrics,
        };
        let looking = async move {
            let (look, looks) = mpsc::unbounded_channel();
            let names: Vec<String> = wanted.keys().cloned().collect();
            let again = look.clone();
            // Once by itself, for an install that may not watch CRDs; then whenever the watch says so.
            for name in &names {
                let _ = look.send(name.clone());
            }
            let telling = metadata_watch.run(move |tripped| match tripped {
                MetadataEvent::Touched { name, .. } => drop(look.send(name.to_owned())),
                MetadataEvent::Gap => names.iter().for_each(|name| drop(look.send(name.clone()))),
            });
            tokio::join!(telling, keep(Api::all(client), wanted, looks, again, sender));
        };
        (Self { states: receiver }, looking)
    }

    /// How a CRD stands now.
    pub fn state(&self, name: &str) -> Served {
        self.states.borrow().get(name).cloned().unwrap_or(Served::Absent)
    }

    /// Waits until it is known how a CRD stands.
    pub async fn known(&mut self, name: &str) {
        self.until(|states| states.get(name) != Some(&Served::Unknown)).await;
    }

    /// Waits until a CRD is as needed.
    pub async fn ready(&mut self, name: &str) {
        self.until(|states| states.get(name) == Some(&Served::Ready)).await;
    }

    /// Waits until a CRD is no longer as needed.
    pub async fn unready(&mut self, name: &str) {
        self.until(|states| states.get(name) != Some(&Served::Ready)).await;
    }

    async fn until(&mut self, holds: impl FnMut(&BTreeMap<String, Served>) -> bool) {
        if self.states.wait_for(holds).await.is_err() {
            // Nobody looks any more: nothing will ever change.
            std::future::pending::<()>().await;
        }
    }
}

struct Wanted {
    /// The fields of this release; none for a CRD that only must be there.
    fields: Vec<&'static str>,
    /// The version that must be served, where fields do not tell.
    version: Option<&'static str>,
    check: Option<ReadyCheck>,
}

async fn keep(
    api: Api<CustomResourceDefinition>,
    wanted: BTreeMap<String, Wanted>,
    mut looks: mpsc::UnboundedReceiver<String>,
    again: mpsc::UnboundedSender<String>,
    states: watch::Sender<BTreeMap<String, Served>>,
) {
    let mut names = Vec::new();
    while looks.recv_many(&mut names, 64).await > 0 {
        names.sort();
        names.dedup();
        join_all(names.drain(..).filter_map(|name| {
            let (wanted, api, again, states) = (wanted.get(&name)?, &api, &again, &states);
            Some(async move {
                let Some(state) = look(api, &name, wanted).await else {
                    let again = again.clone();
                    tokio::spawn(async move {
                        sleep(RETRY).await;
                        let _ = again.send(name);
                    });
                    return;
                };
                let changed = states.send_if_modified(|states| {
                    states.insert(name.clone(), state.clone()).as_ref() != Some(&state)
                });
                if changed {
                    report(&name, &state, wanted.check.as_ref());
                }
            })
        }))
        .await;
    }
}

/// One look at a CRD. None: it could not be seen this time.
async fn look(api: &Api<CustomResourceDefinition>, name: &str, wanted: &Wanted) -> Option<Served> {
    match api.get_opt(name).await {
        Ok(crd) => Some(judge(crd.as_ref(), &wanted.fields, wanted.version)),
        // An install that may not read CRDs goes on; the watch of the kind itself will tell.
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            tracing::warn!(crd = name, "cannot check whether the CRD is up to date: {}", status.message);
            // What nobody may ask for is not there; our own kinds are, or the operator would be useless.
            Some(if wanted.version.is_some() { Served::Absent } else { Served::Ready })
        }
        Err(error) => {
            tracing::warn!(crd = name, "cannot look at the CRD: {}", crate::client::describe(&error));
            None
        }
    }
}

fn report(name: &str, state: &Served, check: Option<&ReadyCheck>) {
    let Some(check) = check else {
        tracing::info!(crd = name, ?state, "how an optional API stands");
        return;
    };
    let help = "run `coder-k8s crds | kubectl apply --server-side -f -`";
    match state {
        Served::Ready => check.pass(),
        Served::Unknown | Served::Pending => check.fail("installed and not yet served"),
        Served::Absent => check.fail(format!("not installed; {help}")),
        Served::Older(missing) => {
            let shown = missing.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more =
                if missing.len() > 5 { format!(" and {} more", missing.len() - 5) } else { String::new() };
            check.fail(format!("older than this operator: it lacks {shown}{more}; {help}"));
        }
    }
    if *state != Served::Ready {
        tracing::warn!(crd = name, ?state, "waiting for the CRD; {help}");
    }
}

/// How a CRD stands that was just read.
fn judge(crd: Option<&CustomResourceDefinition>, fields: &[&str], version: Option<&str>) -> Served {
    let Some(crd) = crd else { return Served::Absent };
    if let Some(version) = version
        && !crd.spec.versions.iter().any(|found| found.name == version && found.served)
    {
        return Served::Older(vec![format!("version {version}")]);
    }
    let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
    let established =
        conditions.into_iter().flatten().any(|c| c.type_ == "Established" && c.status == "True");
    if !established || crd.metadata.deletion_timestamp.is_some() {
        return Served::Pending;
    }
    let found = if fields.is_empty() { BTreeSet::new() } else { field_paths(crd) };
    let missing: Vec<String> =
        fields.iter().filter(|field| !found.contains(**field)).map(ToString::to_string).collect();
    if missing.is_empty() { Served::Ready } else { Served::Older(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> CustomResourceDefinition {
        let mut crd = coder_k8s_api::crds().remove(0);
        let condition = serde_json::json!({"conditions": [{"type": "Established", "status": "True"}]});
        crd.status = Some(serde_json::from_value(condition).unwrap());
        crd
    }

    fn without(crd: &CustomResourceDefinition, field: &str) -> CustomResourceDefinition {
        let mut crd = crd.clone();
        let root = crd.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
        let spec = root.properties.as_mut().unwrap().get_mut("spec").unwrap();
        assert!(spec.properties.as_mut().unwrap().remove(field).is_some());
        crd
    }

    fn fields() -> Vec<&'static str> {
        coder_k8s_api::fields().remove("codercontrolplanes.coder.com").unwrap()
    }

    #[test]
    fn a_crd_is_judged_by_its_fields() {
        let crd = ours();
        assert_eq!(judge(Some(&crd), &fields(), None), Served::Ready);
        assert_eq!(
            judge(Some(&without(&crd, "scaling")), &fields(), None),
            Served::Older(vec!["spec.scaling".into()])
        );
        assert_eq!(judge(None, &fields(), None), Served::Absent);
        assert_eq!(judge(Some(&crd), &[], Some("v1alpha1")), Served::Ready);
        assert_eq!(judge(Some(&crd), &[], Some("v1")), Served::Older(vec!["version v1".into()]));
        assert_eq!(judge(Some(&coder_k8s_api::crds().remove(0)), &fields(), None), Served::Pending);
    }

    #[test]
    fn a_crd_of_a_later_release_will_do() {
        let older: Vec<_> = fields().into_iter().filter(|field| *field != "spec.scaling").collect();
        assert_eq!(judge(Some(&ours()), &older, None), Served::Ready);
    }
}
