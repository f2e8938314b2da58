//! Misoperations: every property of every kind is set, changed, removed and set to absurd values, and then put back.
//!
//! The API server refuses a value, or the operator observes it, whatever it makes of it. Put back, everything is as it was.
//! No controllers run, so that a change costs no pods.

use std::time::{Duration, Instant};

use coder_k8s_api::crds;
use coder_k8s_scenes::coderd::license;
use futures::{StreamExt as _, stream};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    property::{Property, properties},
    scenario,
    snapshot::Snapshot,
    stage::{Needs, Stage},
};

/// How long the operator may take to observe an edit, and to have everything as it was.
const OBSERVED_WITHIN: Duration = Duration::from_secs(20);
const BACK_WITHIN: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(20);
/// How long an operator that has written something does nothing before the API server is asked how things are. Asking costs
/// more than waiting.
const SETTLED: Duration = Duration::from_millis(60);
/// When it is asked whatever the operator does.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// What an edit leaves behind on purpose: how a proxy is called in coderd stays when the spec no longer says it, because
/// somebody may have chosen it there.
const LASTING: [&str; 1] = ["proxies[0].displayName"];
/// How many properties one stage goes through.
const CHUNK: usize = 40;

/// What misoperations did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Writes that were tried.
    pub operations: usize,
    pub accepted: usize,
    pub refused: usize,
    pub properties: usize,
    /// Properties of which no value was accepted.
    pub never_accepted: Vec<String>,
    pub failures: Vec<String>,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.properties += other.properties;
        self.never_accepted.extend(other.never_accepted);
        self.failures.extend(other.failures);
    }
}

/// A kind with the object that is edited.
#[derive(Clone, Copy)]
struct Edited {
    kind: &'static str,
    plural: &'static str,
    name: &'static str,
}

const EDITED: [Edited; 3] = [
    Edited { kind: "CoderControlPlane", plural: "codercontrolplanes", name: "coder" },
    Edited { kind: "CoderProvisioner", plural: "coderprovisioners", name: "pool" },
    Edited { kind: "CoderWorkspaceProxy", plural: "coderworkspaceproxies", name: "eu" },
];

/// Goes through all properties, or through so many of each kind by chance, and through some sequences.
pub async fn run(sample: Option<usize>, only: Option<&str>, seed: u64, at_a_time: usize) -> Tally {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut work = Vec::new();
    for edited in EDITED {
        let schema = spec_schema(edited.plural);
        let mut all = properties(&schema);
        if let Some(text) = only {
            all.retain(|property| format!("{} {}", edited.kind, property.path()).contains(text));
        }
        if let Some(sample) = sample {
            chance.shuffle(&mut all);
            all.truncate(sample);
        }
        for chunk in all.chunks(CHUNK) {
            work.push((edited, schema.clone(), chunk.to_vec(), chance.u64(..)));
        }
    }
    let count: usize = work.iter().map(|(_, _, chunk, _)| chunk.len()).sum();
    println!("misoperations of {count} properties");
    let (mut tally, began) = (Tally::default(), Instant::now());
    let mut running = stream::iter(work)
        .map(|(edited, schema, chunk, seed)| async move {
            let names: Vec<_> = chunk.iter().map(Property::path).collect();
            let played = tokio::spawn(async move { go_through(edited, &schema, &chunk, seed).await });
            played.await.unwrap_or_else(|panic| Tally {
                failures: vec![short(&format!("{} {}: {panic}", edited.kind, names.join(", ")))],
                ..Tally::default()
            })
        })
        .buffer_unordered(at_a_time.max(1));
    let mut told = Instant::now();
    while let Some(part) = running.next().await {
        for failure in &part.failures {
            println!("\nFAILED misoperation: {failure}\n");
        }
        tally.add(part);
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            println!(
                "{} of {count} properties, {} writes after {:.0?}, {} failed",
                tally.properties,
                tally.operations,
                began.elapsed(),
                tally.failures.len()
            );
        }
    }
    tally
}

/// The schema of the spec of a kind.
fn spec_schema(plural: &str) -> Value {
    let all = crds();
    let crd = all.iter().find(|crd| crd.spec.names.plural == plural).unwrap();
    let schema = crd.spec.versions.first().and_then(|version| version.schema.as_ref()).unwrap();
    let schema = serde_json::to_value(&schema.open_api_v3_schema).unwrap();
    schema["properties"]["spec"].clone()
}

/// A stage with the objects at rest, and how they are.
struct Bench {
    stage: Stage,
    edited: Edited,
    api: Api<DynamicObject>,
    base: Value,
    start: Snapshot,
}

async fn go_through(edited: Edited, schema: &Value, chunk: &[Property], seed: u64) -> Tally {
    let mut bench = Bench::new(edited).await;
    let mut tally = Tally::default();
    for property in chunk {
        let name = format!("{} {}", edited.kind, property.path());
        tally.properties += 1;
        let before = tally.accepted;
        let outcome = bench.misoperate(schema, property, &mut tally).await;
        if tally.accepted == before {
            tally.never_accepted.push(name.clone());
        }
        if let Err(why) = outcome {
            let again = format!("again: cargo xtask sweep --misoperation '{name}'");
            tally.failures.push(format!("{name}: {why}\nlog:\n{}\n{again}", bench.stage.log()));
            // The others begin where this one began.
            bench = Bench::new(edited).await;
        }
    }
    let mut chance = fastrand::Rng::with_seed(seed);
    for _ in 0..chunk.len().div_ceil(8) {
        if let Err(why) = bench.sequence(schema, chunk, &mut chance, &mut tally).await {
            tally.failures.push(format!("{} in a sequence: {why}\nlog:\n{}", edited.kind, bench.stage.log()));
            bench = Bench::new(edited).await;
        }
    }
    if bench.stage.panicked() {
        tally.failures.push(format!("{}: the operator panicked:\n{}", edited.kind, bench.stage.log()));
    }
    bench.stage.clear().await;
    tally
}

impl Bench {
    async fn new(edited: Edited) -> Self {
        let needs = Needs { bare: true, ..Needs::default() };
        let stage = Stage::new("misoperation", needs, false).await;
        stage.start();
        stage.roll_out();
        stage.coder().secret("license", "license", &license(1)).await;
        scenario::answered_plane(&stage).await;
        stage.scene().until_ready("coder").await;
        match edited.kind {
            "CoderProvisioner" => {
                stage.coder().make(json!({})).await;
                stage.coder().until_settled().await;
            }
            "CoderWorkspaceProxy" => {
                stage.site.make(json!({})).await;
                stage.site.until_settled().await;
            }
            _ => {}
        }
        let group = GroupVersionKind::gvk("coder.com", "v1alpha1", edited.kind);
        let resource = ApiResource::from_gvk_with_plural(&group, edited.plural);
        let scene = stage.scene();
        let api: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
        let quiet = Instant::now();
        while quiet.elapsed() < BACK_WITHIN
            && (stage.ledger.quiet_for() < Duration::from_millis(1500) || !stage.is_observed().await)
        {
            tokio::time::sleep(POLL * 5).await;
        }
        let start = stage.snapshot().await.unwrap();
        let base = api.get(edited.name).await.unwrap().data["spec"].clone();
        Self { stage, edited, api, base, start }
    }

    /// Sets, changes and spoils one property, and puts it back.
    async fn misoperate(&self, schema: &Value, property: &Property, tally: &mut Tally) -> Result<(), String> {
        let mut accepted = 0;
        for (number, value) in property.plausible().into_iter().enumerate() {
            // Set and changed is enough.
            if accepted < 2 && self.try_edit(&property.patch(schema, value, number), tally).await? {
                accepted += 1;
            }
        }
        for value in property.absurd() {
            self.try_edit(&property.patch(schema, value, 0), tally).await?;
        }
        self.try_edit(&json!({property.top(): null}), tally).await?;
        self.put_back(tally).await
    }

    /// A few edits one on top of the other.
    async fn sequence(
        &self,
        schema: &Value,
        chunk: &[Property],
        chance: &mut fastrand::Rng,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let mut edits = Vec::new();
        for _ in 0..4 {
            let Some(property) = chance.choice(chunk) else { return Ok(()) };
            let absurd = chance.bool();
            let values = if absurd { property.absurd() } else { property.plausible() };
            let Some(value) = chance.choice(values) else { continue };
            let patch = property.patch(schema, value, chance.usize(..8));
            if self.edit(&patch, tally).await?.is_some() {
                edits.push(short(&patch.to_string()));
            }
        }
        self.put_back(tally).await.map_err(|why| format!("{why}\nafter {}", edits.join("\n      ")))
    }

    /// Edits the spec. Returns whether the API server accepted that; then the operator has observed it.
    async fn try_edit(&self, patch: &Value, tally: &mut Tally) -> Result<bool, String> {
        let began = Instant::now();
        let Some(edited) = self.edit(patch, tally).await? else { return Ok(false) };
        if !is_observed(&edited) {
            let observed = self.until_observed(began).await;
            observed.map_err(|why| format!("{}: {why}", short(&patch.to_string())))?;
        }
        Ok(true)
    }

    /// Edits the spec. Returns the object, or None if the API server refuses that.
    async fn edit(&self, patch: &Value, tally: &mut Tally) -> Result<Option<DynamicObject>, String> {
        tally.operations += 1;
        let merge = Patch::Merge(json!({"spec": patch}));
        match self.api.patch(self.edited.name, &PatchParams::default(), &merge).await {
            Ok(edited) => {
                tally.accepted += 1;
                Ok(Some(edited))
            }
            Err(kube::Error::Api(status))
                if (400..500).contains(&status.code) && !status.message.is_empty() =>
            {
                tally.refused += 1;
                Ok(None)
            }
            Err(error) => Err(format!("{}: the API server says {error}", short(&patch.to_string()))),
        }
    }

    /// Waits until the operator has observed an edit of this time.
    async fn until_observed(&self, began: Instant) -> Result<(), String> {
        let mut since = began;
        while began.elapsed() < OBSERVED_WITHIN {
            self.until_settled(since).await;
            since = Instant::now();
            let object = self.api.get(self.edited.name).await.map_err(|error| error.to_string())?;
            if is_observed(&object) {
                return Ok(());
            }
        }
        Err(format!("not observed within {OBSERVED_WITHIN:?}"))
    }

    /// Waits until the operator has written something since then and rests, or a while has passed.
    async fn until_settled(&self, since: Instant) {
        while since.elapsed() < ASK_AFTER {
            tokio::time::sleep(POLL).await;
            let quiet = self.stage.ledger.quiet_for();
            if quiet >= SETTLED && quiet < since.elapsed() {
                return;
            }
        }
    }

    /// Puts the spec back, and waits until everything is as it was.
    async fn put_back(&self, tally: &mut Tally) -> Result<(), String> {
        tally.operations += 1;
        let replace = json!([{"op": "replace", "path": "/spec", "value": self.base}]);
        let patch = Patch::Json::<()>(serde_json::from_value(replace).map_err(|error| error.to_string())?);
        let (began, mut last) = (Instant::now(), Vec::new());
        let put = self.api.patch(self.edited.name, &PatchParams::default(), &patch).await;
        if !is_observed(&put.map_err(|error| format!("cannot be put back: {error}"))?) {
            self.until_observed(began).await?;
        }
        while began.elapsed() < BACK_WITHIN {
            let found = self.stage.snapshot().await.map_err(|error| error.to_string())?;
            last = found.difference(&self.start);
            last.retain(|line| !LASTING.iter().any(|lasting| line.contains(lasting)));
            if last.is_empty() {
                return Ok(());
            }
            self.until_settled(Instant::now()).await;
        }
        Err(format!("put back, it is not as it was:\n  {}", last.join("\n  ")))
    }
}

fn is_observed(object: &DynamicObject) -> bool {
    object.data["status"]["observedGeneration"].as_i64() == object.metadata.generation
}

fn short(text: &str) -> String {
    text.chars().take(1000).collect()
}
