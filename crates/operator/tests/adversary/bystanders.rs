//! Two tenants who do nothing wrong. Whatever the others do, every step of theirs converges within its deadline.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

use coder_k8s_scenes::{coderd::license, pool, proxy};
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    eventually,
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    Ran, Verdict,
    stage::{Stage, Tenant, is_ready, object, token_access, with},
};

/// How long a step may take, on a machine with all the attacks to compute as well.
const DEADLINE: Duration = Duration::from_secs(40);

const KINDS: [(&str, &str); 3] =
    [("CoderControlPlane", "coder"), ("CoderProvisioner", "pool"), ("CoderWorkspaceProxy", "eu")];

/// A control plane with a license, a pool and a proxy, in namespaces and with a coderd of their own.
pub(crate) struct Bystander {
    stage: &'static Stage,
    name: &'static str,
    sim: CoderSim,
    /// How many licenses were used.
    licenses: AtomicU8,
}

/// A step, and how long it took.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    name: &'static str,
    took: Duration,
    problem: Option<String>,
}

impl Bystander {
    /// A server; nothing else yet.
    pub(crate) async fn new(stage: &'static Stage, name: &'static str) -> Self {
        let sim = CoderSim::start(Mode::Licensed).await.unwrap();
        Self { stage, name, sim, licenses: AtomicU8::new(0) }
    }

    /// Goes through everything again and again, and once more at the end, while nobody disturbs any more.
    pub(crate) async fn live_until(&self, over: &CancellationToken) -> Vec<Step> {
        let mut steps = Vec::new();
        while !over.is_cancelled() {
            steps.extend(self.cycle().await);
            if steps.iter().any(|step| step.problem.is_some()) {
                break;
            }
        }
        steps
    }

    /// Create, edit, rotate, delete, in a new namespace: no garbage collector removes children.
    pub(crate) async fn cycle(&self) -> Vec<Step> {
        let tenant = Tenant::new(self.stage, self.name).await;
        tenant.service("coder", self.sim.address());
        let mut steps = Vec::new();
        for name in ["create", "edit", "rotate", "delete"] {
            let began = Instant::now();
            let done = match name {
                "create" => self.create(&tenant).await,
                "edit" => Self::edit(&tenant).await,
                "rotate" => self.rotate(&tenant).await,
                _ => self.delete(&tenant).await,
            };
            let failed = done.is_err();
            steps.push(Step { name, took: began.elapsed(), problem: done.err() });
            if failed {
                break;
            }
        }
        steps
    }

    async fn create(&self, tenant: &Tenant) -> Result<(), String> {
        self.license(tenant).await;
        self.token(tenant).await;
        let plane =
            with(token_access(), json!({"image": pool::IMAGE, "licenseSecretRef": {"name": "license"}}));
        tenant.make(object("CoderControlPlane", "coder", plane)).await?;
        tenant.make(pool::object("pool", json!({}))).await?;
        tenant
            .make(proxy::object("eu", proxy::with_plane(json!({"accessURL": "https://eu.example.test"}))))
            .await?;
        until_settled(tenant).await
    }

    async fn edit(tenant: &Tenant) -> Result<(), String> {
        for (kind, name) in KINDS {
            let edit = json!({"spec": {"extraEnv": [{"name": "EDITED", "value": "yes"}]}});
            tenant.edit(kind, name, edit).await?;
        }
        until_settled(tenant).await
    }

    async fn rotate(&self, tenant: &Tenant) -> Result<(), String> {
        let (before, licenses) = (pool::names(&self.sim), self.sim.licenses().len());
        self.license(tenant).await;
        self.token(tenant).await;
        tenant.edit("CoderProvisioner", "pool", json!({"spec": {"tags": {"region": "eu"}}})).await?;
        until_settled(tenant).await?;
        let rotated = eventually(DEADLINE, || async {
            let (now, sent) = (pool::names(&self.sim), self.sim.licenses().len() - licenses);
            if now.len() == 1 && now != before && sent == 1 {
                Ok(())
            } else {
                Err(format!("{now:?}, {sent} licenses"))
            }
        });
        rotated.await.map_err(|error| error.to_string())
    }

    async fn delete(&self, tenant: &Tenant) -> Result<(), String> {
        for (kind, name) in KINDS {
            tenant.delete(kind, name).await?;
        }
        for (kind, name) in KINDS {
            tenant.until_gone(DEADLINE, kind, &tenant.namespace, name).await?;
        }
        let left = (pool::names(&self.sim), proxy::names(&self.sim));
        if left.0.is_empty() && left.1.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?} are left in coderd"))
        }
    }

    /// Puts another license into its Secret.
    async fn license(&self, tenant: &Tenant) {
        let number = self.licenses.fetch_add(1, Ordering::SeqCst);
        tenant.secret("license", "license", license(number).expose_secret()).await;
    }

    /// Puts another token into its Secret.
    async fn token(&self, tenant: &Tenant) {
        tenant.secret("token", "token", self.sim.owner_token().expose_secret()).await;
    }
}

async fn until_settled(tenant: &Tenant) -> Result<(), String> {
    for (kind, name) in KINDS {
        tenant.until(DEADLINE, kind, name, is_settled).await?;
    }
    Ok(())
}

/// Ready in its present generation, and nothing is left to be done in coderd.
fn is_settled(object: &Value) -> bool {
    let none = |field: &str| object["status"][field].is_null();
    is_ready(object)
        && ["pendingKey", "staleKeys", "pendingRegistration", "staleRegistrations"].into_iter().all(none)
}

/// The rows about the bystanders.
pub(crate) fn judge(alone: &[Step], beside: &[Step]) -> Vec<Ran> {
    let ids = BTreeMap::from([
        ("create", "all bystanders create"),
        ("edit", "all bystanders edit"),
        ("rotate", "all bystanders rotate"),
        ("delete", "all bystanders delete"),
    ]);
    let row = |(name, id): (&'static str, &'static str)| Ran {
        id,
        does: "all of these attacks",
        must: "every such step of two bystanders converges",
        verdict: converged(name, alone, beside),
        took: Duration::ZERO,
    };
    ids.into_iter().map(row).collect()
}

fn converged(name: &str, alone: &[Step], beside: &[Step]) -> Verdict {
    let named = |steps: &[Step]| steps.iter().filter(|step| step.name == name).cloned().collect::<Vec<_>>();
    let (alone, beside) = (named(alone), named(beside));
    if let Some(problem) = alone.iter().chain(&beside).find_map(|step| step.problem.clone()) {
        return Err(problem);
    }
    let longest = |steps: &[Step]| steps.iter().map(|step| step.took).max().unwrap_or_default();
    if let Some(late) = beside.iter().find(|step| step.took > DEADLINE) {
        return Err(format!("{:?}, later than {DEADLINE:?}", late.took));
    }
    if beside.len() < 2 {
        return Err(format!("only {} of them", beside.len()));
    }
    let (one, many) = (longest(&alone).as_secs_f64(), longest(&beside).as_secs_f64());
    Ok(format!(
        "{} times, the longest {many:.1} s, alone {one:.1} s: {:.1} times as long",
        beside.len(),
        many / one
    ))
}
