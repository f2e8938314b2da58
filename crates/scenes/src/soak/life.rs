//! One life: what its seed says happens, and then nothing until it has converged.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy};
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    postgres::{self, Database, migrated},
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::Deployment, core::v1::Secret},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams},
};
use rustix::process::Signal;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{Operator, truth::TruthMonitor};

use super::{
    actions::{Action, End, plan},
    converged,
    pool::{ELSEWHERE, Pool, is_of, name_of},
    proxy::{self, Proxy, registrations},
    world::{On, World},
};

/// How long a life may take to come to rest. It counts the longest delay after the failures that happen in it.
const CONVERGE_WITHIN: Duration = Duration::from_mins(7);
/// How long nothing may be written for a life to be quiet.
const QUIET: Duration = Duration::from_millis(1500);
/// How often entitlements may be read anew in that time.
const REFRESHES: usize = 3;

/// How much happened in a life.
#[derive(Debug)]
pub struct Summary {
    pub actions: usize,
    /// How often the operator ended.
    pub crashes: usize,
}

/// The database of coderd, where the operator makes its own token.
pub struct Based {
    pub database: Database<'static>,
    pub proxy: Arc<postgres::Proxy>,
}

pub struct Life {
    pub world: World,
    pub sim: Arc<CoderSim>,
    pub based: Option<Based>,
    pub pools: BTreeMap<usize, Pool>,
    pub proxy: Option<Proxy>,
    pub license: SecretString,
    pub token: SecretString,
    image: u8,
    operator: Operator,
    users: Vec<String>,
    crashes: usize,
    truth: TruthMonitor,
    /// What passes by itself.
    pub passing: JoinSet<()>,
}

/// Lives the life of a seed. An error says how it ended.
pub async fn live(on: On, seed: u64) -> Result<Summary, String> {
    let actions = plan(seed);
    let mut life = Life::begin(on, seed).await;
    for (pause, action) in &actions {
        tokio::time::sleep(*pause).await;
        life.restart_if_ended();
        say(&format!("{action:?}"));
        life.perform(action).await;
    }
    match life.converge().await {
        Ok(()) => Ok(Summary { actions: actions.len(), crashes: life.crashes }),
        Err(why) => {
            let written = life.world.written(&life.users).join("\n");
            let log = life.operator.tail();
            Err(format!("{why}\nwhat happened: {actions:?}\nwhat was written:\n{written}\nthe log:\n{log}"))
        }
    }
}

impl Life {
    async fn begin(on: On, seed: u64) -> Self {
        let world = World::new(on, seed).await;
        let sim = Arc::new(CoderSim::start(Mode::Unlicensed).await.unwrap());
        // Every tenth life has a database.
        let based = if seed.is_multiple_of(10) {
            let database = migrated(None).await;
            sim.use_database(database.connect_as_superuser().await.unwrap()).await.unwrap();
            sim.add_organization_to_database(ELSEWHERE).await.unwrap();
            Some(Based {
                database,
                proxy: Arc::new(postgres::Proxy::start(postgres::shared().await.port()).await.unwrap()),
            })
        } else {
            sim.add_organization(ELSEWHERE);
            None
        };
        let operator = world.operator();
        let truth = TruthMonitor::start(&world.client, &world.namespace, None);
        let life = Self {
            users: vec![operator.user.clone()],
            token: if based.is_some() { "".into() } else { sim.owner_token() },
            license: license(1),
            world,
            sim,
            based,
            pools: BTreeMap::new(),
            proxy: None,
            image: 0,
            operator,
            crashes: 0,
            truth,
            passing: JoinSet::new(),
        };
        life.tell_hosts();
        life.store("license", "license", &life.license.clone()).await;
        life.store("token", "token", &life.token.clone()).await;
        life.write_plane().await;
        life
    }

    fn tell_hosts(&self) {
        let host = format!("coder.{}.svc.cluster.local", self.world.namespace);
        self.operator.host(&host, self.sim.address());
        self.truth.host(&host, self.sim.address());
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
    }

    pub async fn store(&self, name: &str, key: &str, value: &SecretString) {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {key: value.expose_secret()}});
        self.apply::<Secret>(name, &secret).await;
    }

    async fn apply<K>(&self, name: &str, object: &Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let params = PatchParams::apply("tests").force();
        self.api::<K>().patch(name, &params, &Patch::Apply(object)).await.unwrap();
    }

    async fn write_plane(&self) {
        let mut spec = json!({"image": format!("example.com/coder:v{}", self.image),
            "licenseSecretRef": {"name": "license"}});
        match &self.based {
            Some(based) => {
                let url = based.database.url_through(based.proxy.port());
                spec["extraEnv"] = json!([{"name": "CODER_PG_CONNECTION_URL", "value": url}]);
            }
            None => {
                spec["operatorAccess"] =
                    json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"}});
            }
        }
        let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
            "metadata": {"name": "coder"}, "spec": spec});
        self.apply::<CoderControlPlane>("coder", &object).await;
    }

    async fn edit(&mut self, pool: usize, change: impl FnOnce(&mut Pool)) {
        let fresh =
            Pool { tags: 0, key_name: 0, elsewhere: false, other_secret: false, replicas: 1, paused: false };
        let wanted = self.pools.entry(pool).or_insert(fresh);
        change(wanted);
        let (name, object) = (name_of(pool), wanted.object(&name_of(pool)));
        self.apply::<CoderProvisioner>(&name, &object).await;
    }

    async fn edit_proxy(&mut self, change: impl FnOnce(&mut Proxy)) {
        let wanted = self.proxy.get_or_insert_default();
        change(wanted);
        let object = wanted.object();
        self.apply::<CoderWorkspaceProxy>(proxy::NAME, &object).await;
    }

    /// Does what somebody else does to something that may not be there.
    async fn lose<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let _ = self.api::<K>().delete(name, &DeleteParams::default()).await;
    }

    async fn perform(&mut self, action: &Action) {
        match action.clone() {
            Action::Tags(pool, tags) => self.edit(pool, |wanted| wanted.tags = tags).await,
            Action::KeyName(pool, name) => self.edit(pool, |wanted| wanted.key_name = name).await,
            Action::Organization(pool, elsewhere) => {
                self.edit(pool, |wanted| wanted.elsewhere = elsewhere).await;
            }
            Action::SecretName(pool, other) => self.edit(pool, |wanted| wanted.other_secret = other).await,
            Action::Replicas(pool, replicas) => self.edit(pool, |wanted| wanted.replicas = replicas).await,
            Action::Pause(pool, paused) => self.edit(pool, |wanted| wanted.paused = paused).await,
            Action::Delete(pool) => {
                self.pools.remove(&pool);
                self.lose::<CoderProvisioner>(&name_of(pool)).await;
            }
            Action::LoseKey(pool) => {
                for key in self.sim.keys().iter().filter(|key| is_of(&key.name, &name_of(pool))) {
                    self.sim.delete_key(&key.name);
                }
            }
            Action::LoseSecret(pool) => self.lose::<Secret>(&self.secret_of(pool)).await,
            Action::SpoilSecret(pool) => {
                let spoilt = Patch::Merge(json!({"data": {"key": "c3BvaWx0"}}));
                let _ =
                    self.api::<Secret>().patch(&self.secret_of(pool), &PatchParams::default(), &spoilt).await;
            }
            Action::LoseDeployment(pool) => {
                self.lose::<Deployment>(&format!("provisioner-{}", name_of(pool))).await;
            }
            Action::Proxy(called, shown) => {
                self.edit_proxy(|wanted| (wanted.called, wanted.shown) = (called, shown)).await;
            }
            Action::ProxySecret(other) => self.edit_proxy(|wanted| wanted.other_secret = other).await,
            Action::DeleteProxy => {
                self.proxy = None;
                self.lose::<CoderWorkspaceProxy>(proxy::NAME).await;
            }
            Action::LoseProxy => {
                for proxy in registrations(&self.sim) {
                    self.sim.delete_proxy(&proxy.id);
                }
            }
            Action::LoseProxySecret => {
                let secret = self.proxy.clone().unwrap_or_default().secret();
                self.lose::<Secret>(secret).await;
            }
            Action::Image(image) => {
                self.image = image;
                self.write_plane().await;
            }
            Action::License(number) => {
                self.license = license(number);
                self.store("license", "license", &self.license.clone()).await;
            }
            Action::LoseLicenses => {
                for license in self.sim.licenses() {
                    self.sim.delete_license(license.id);
                }
            }
            Action::LoseToken => self.lose_token().await,
            Action::Coderd(call, fault, times) => self.trouble_coderd(call, fault, times),
            Action::Outage(time) => {
                let sim = self.sim.clone();
                sim.stop().await;
                self.passing.spawn(async move {
                    tokio::time::sleep(time).await;
                    sim.restart().await.unwrap();
                });
            }
            Action::Api(line) => self.operator.faults(&[line]),
            Action::Watches => self.world.break_watches(),
            Action::Database(trouble, time) => self.trouble_database(trouble, time),
            Action::Operator(end) => self.end(end).await,
        }
    }

    fn secret_of(&self, pool: usize) -> String {
        let name = name_of(pool);
        self.pools.get(&pool).map_or_else(|| format!("{name}-provisioner-key"), |wanted| wanted.secret(&name))
    }

    async fn end(&mut self, end: End) {
        self.crashes += 1;
        match end {
            End::Killed => {}
            End::Asked => {
                self.operator.signal(Signal::TERM);
                self.operator.exit_code().await;
            }
            End::Succeeded => {
                let next = self.world.operator();
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.begins(next);
                return;
            }
        }
        let next = self.world.operator();
        self.begins(next);
    }

    /// Another operator takes the place of the one that there is, which is killed.
    fn begins(&mut self, next: Operator) {
        self.users.push(next.user.clone());
        self.operator = next;
        self.tell_hosts();
    }

    /// What a kubelet does: an operator that has ended is started again.
    fn restart_if_ended(&mut self) {
        if !self.operator.runs() {
            self.crashes += 1;
            let next = self.world.operator();
            self.begins(next);
        }
    }

    /// Nothing goes wrong any more. Waits until everything is as it is wanted, and nothing is written.
    async fn converge(&mut self) -> Result<(), String> {
        while self.passing.join_next().await.is_some() {}
        self.sim.clear_faults();
        self.operator.faults(&[]);
        for pool in self.pools.keys().copied().collect::<Vec<_>>() {
            self.edit(pool, |wanted| wanted.paused = false).await;
        }
        let deadline = Instant::now() + CONVERGE_WITHIN;
        let mut last = String::new();
        loop {
            self.restart_if_ended();
            match self.is_quiet().await {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() > deadline => return Err(why),
                Err(why) => {
                    if why != last {
                        say(&why);
                    }
                    last = why;
                    tokio::time::sleep(Duration::from_millis(400)).await;
                }
            }
            self.make_again().await;
        }
    }

    /// What was edited while it was on its way out is made again.
    async fn make_again(&self) {
        if let Some(wanted) = &self.proxy
            && self.api::<CoderWorkspaceProxy>().get_opt(proxy::NAME).await.unwrap().is_none()
        {
            self.apply::<CoderWorkspaceProxy>(proxy::NAME, &wanted.object()).await;
        }
        for (pool, wanted) in &self.pools {
            let name = name_of(*pool);
            if self.api::<CoderProvisioner>().get_opt(&name).await.unwrap().is_none() {
                self.apply::<CoderProvisioner>(&name, &wanted.object(&name)).await;
            }
        }
    }

    async fn is_quiet(&self) -> Result<(), String> {
        proxy::comes_up(self).await;
        converged::check(self).await?;
        let changes = || self.sim.requests().iter().filter(|entry| entry.method != "GET").count();
        let (written, changed) = (self.world.written(&self.users), changes());
        tokio::time::sleep(QUIET).await;
        let mut more = self.world.written(&self.users).split_off(written.len());
        // Entitlements are read every second here, and each time is told on the status.
        let refreshes = more.iter().filter(|line| is_refresh(line)).count();
        if refreshes <= REFRESHES {
            more.retain(|line| !is_refresh(line));
        }
        if !more.is_empty() {
            return Err(format!("at rest the operator writes {more:?}"));
        }
        if changes() != changed {
            return Err("at rest the operator changes something in coderd".to_owned());
        }
        converged::check(self).await
    }
}

fn is_refresh(line: &str) -> bool {
    line.contains("codercontrolplanes/status")
}

/// Tells the story of a life that is lived alone.
fn say(text: &str) {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let elapsed = BEGAN.elapsed();
    if std::env::var_os("CODER_K8S_SOAK_SEED").is_some() {
        println!("{elapsed:.1?} {text}");
    }
}

/// A license with an id of its own; the same text each time.
fn license(number: u8) -> SecretString {
    static MADE: Mutex<BTreeMap<u8, SecretString>> = Mutex::new(BTreeMap::new());
    let id = format!("00000000-0000-4000-8000-0000000000{number:02x}");
    let make = || CoderSim::license().id(&id).build();
    MADE.lock().unwrap().entry(number).or_insert_with(make).clone()
}
