//! One life: what its seed says happens, and then peace.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, names::annotation};
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode, SimFault},
    postgres::{self, Database, Proxy, Trouble, migrated},
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

use crate::{
    acts::{Act, End, plan},
    peace,
    support::Operator,
    world::{On, World},
};

/// How long a life may take to come to rest. It counts the longest delay after the failures that happen in it.
const PEACE: Duration = Duration::from_secs(150);
/// How long nothing may be written for a life to be quiet.
const QUIET: Duration = Duration::from_millis(1500);
/// How often entitlements may be read anew in that time.
const REFRESHES: usize = 3;
/// The organization besides the default one.
pub const ELSEWHERE: &str = "acme";

/// What a life was like.
#[derive(Debug)]
pub struct Story {
    pub acts: usize,
    /// How often the operator ended.
    pub crashes: usize,
}

/// A pool as it is wanted.
#[derive(Clone, Debug)]
pub struct Pool {
    pub tags: u8,
    key_name: u8,
    pub elsewhere: bool,
    other_secret: bool,
    replicas: u8,
    paused: bool,
}

impl Pool {
    /// The name of the Secret of its key.
    pub fn secret(&self, name: &str) -> String {
        if self.other_secret { format!("{name}-other") } else { format!("{name}-provisioner-key") }
    }

    /// The tags of its key, without those that coderd adds.
    pub fn tags(&self) -> BTreeMap<String, String> {
        if self.tags == 0 {
            BTreeMap::new()
        } else {
            BTreeMap::from([("round".to_owned(), self.tags.to_string())])
        }
    }

    fn object(&self, name: &str) -> Value {
        let mut key = json!({});
        if self.key_name > 0 {
            key["name"] = json!(format!("{name}-k{}", self.key_name));
        }
        if self.other_secret {
            key["secretName"] = json!(self.secret(name));
        }
        let organization = if self.elsewhere { ELSEWHERE } else { "default" };
        let mut object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": name},
            "spec": {"controlPlaneRef": {"name": "coder"}, "organizationName": organization,
                "replicas": self.replicas}});
        // An empty map that was not empty before is applied as null by the API server, and refused.
        if self.paused {
            object["metadata"]["annotations"] = json!({annotation::PAUSED: "true"});
        }
        if !self.tags().is_empty() {
            object["spec"]["tags"] = json!(self.tags());
        }
        if key != json!({}) {
            object["spec"]["key"] = key;
        }
        object
    }
}

/// The name of a pool.
pub fn name_of(pool: usize) -> String {
    format!("pool-{pool}")
}

/// Whether a key is a pool's, by its name.
pub fn is_of(key: &str, pool: &str) -> bool {
    key == pool || key.starts_with(&format!("{pool}-"))
}

/// The database of coderd, where the operator makes its own token.
pub struct Based {
    pub database: Database<'static>,
    proxy: Arc<Proxy>,
}

pub struct Life {
    pub world: World,
    pub sim: Arc<CoderSim>,
    pub based: Option<Based>,
    pub pools: BTreeMap<usize, Pool>,
    pub license: SecretString,
    token: SecretString,
    image: u8,
    operator: Operator,
    users: Vec<String>,
    crashes: usize,
    /// What passes by itself.
    passing: JoinSet<()>,
}

/// Lives the life of a seed. An error says how it ended.
pub async fn live(on: On, seed: u64) -> Result<Story, String> {
    let acts = plan(seed);
    let mut life = Life::begin(on, seed).await;
    for (pause, act) in &acts {
        tokio::time::sleep(*pause).await;
        life.tend();
        say(&format!("{act:?}"));
        life.happens(act).await;
    }
    match life.rests().await {
        Ok(()) => Ok(Story { acts: acts.len(), crashes: life.crashes }),
        Err(why) => Err(format!("{why}\nwhat happened: {acts:?}\n{}", life.operator.tail())),
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
                proxy: Arc::new(Proxy::start(postgres::shared().await.port()).await.unwrap()),
            })
        } else {
            sim.add_organization(ELSEWHERE);
            None
        };
        let operator = world.operator();
        let life = Self {
            users: vec![operator.user.clone()],
            token: if based.is_some() { "".into() } else { sim.owner_token() },
            license: license(1),
            world,
            sim,
            based,
            pools: BTreeMap::new(),
            image: 0,
            operator,
            crashes: 0,
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
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
    }

    async fn store(&self, name: &str, key: &str, value: &SecretString) {
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

    /// Does what somebody else does to something that may not be there.
    async fn lose<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let _ = self.api::<K>().delete(name, &DeleteParams::default()).await;
    }

    async fn happens(&mut self, act: &Act) {
        match act.clone() {
            Act::Tags(pool, tags) => self.edit(pool, |wanted| wanted.tags = tags).await,
            Act::KeyName(pool, name) => self.edit(pool, |wanted| wanted.key_name = name).await,
            Act::Organization(pool, elsewhere) => {
                self.edit(pool, |wanted| wanted.elsewhere = elsewhere).await;
            }
            Act::SecretName(pool, other) => self.edit(pool, |wanted| wanted.other_secret = other).await,
            Act::Replicas(pool, replicas) => self.edit(pool, |wanted| wanted.replicas = replicas).await,
            Act::Pause(pool, paused) => self.edit(pool, |wanted| wanted.paused = paused).await,
            Act::Delete(pool) => {
                self.pools.remove(&pool);
                self.lose::<CoderProvisioner>(&name_of(pool)).await;
            }
            Act::LoseKey(pool) => {
                for key in self.sim.keys().iter().filter(|key| is_of(&key.name, &name_of(pool))) {
                    self.sim.delete_key(&key.name);
                }
            }
            Act::LoseSecret(pool) => self.lose::<Secret>(&self.secret_of(pool)).await,
            Act::SpoilSecret(pool) => {
                let spoilt = Patch::Merge(json!({"data": {"key": "c3BvaWx0"}}));
                let _ =
                    self.api::<Secret>().patch(&self.secret_of(pool), &PatchParams::default(), &spoilt).await;
            }
            Act::LoseDeployment(pool) => {
                self.lose::<Deployment>(&format!("provisioner-{}", name_of(pool))).await;
            }
            Act::Image(image) => {
                self.image = image;
                self.write_plane().await;
            }
            Act::License(number) => {
                self.license = license(number);
                self.store("license", "license", &self.license.clone()).await;
            }
            Act::LoseLicenses => {
                for license in self.sim.licenses() {
                    self.sim.delete_license(license.id);
                }
            }
            Act::LoseToken => self.lose_token().await,
            Act::Coderd(call, fault, times) => self.trouble_coderd(call, fault, times),
            Act::Outage(time) => {
                let sim = self.sim.clone();
                sim.stop().await;
                self.passing.spawn(async move {
                    tokio::time::sleep(time).await;
                    sim.restart().await.unwrap();
                });
            }
            Act::Api(line) => self.operator.faults(&[line]),
            Act::Watches => self.world.break_watches(),
            Act::Database(trouble, time) => self.trouble_database(trouble, time),
            Act::Operator(end) => self.end(end).await,
        }
    }

    fn secret_of(&self, pool: usize) -> String {
        let name = name_of(pool);
        self.pools.get(&pool).map_or_else(|| format!("{name}-provisioner-key"), |wanted| wanted.secret(&name))
    }

    async fn lose_token(&mut self) {
        if let Some(based) = &self.based {
            let client = based.database.connect_as_superuser().await.unwrap();
            client
                .batch_execute("DELETE FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%'")
                .await
                .unwrap();
            return;
        }
        let fresh = self.sim.owner_token();
        self.sim.revoke(&std::mem::replace(&mut self.token, fresh.clone()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.store("token", "token", &fresh).await;
    }

    fn trouble_coderd(&self, call: u8, fault: u8, times: u8) {
        let calls = [
            ("POST", "/api/v2/organizations"),
            ("DELETE", "/api/v2/organizations"),
            ("GET", "/api/v2/organizations"),
            ("GET", "/api/v2/provisionerkeys"),
            ("GET", "/api/v2/entitlements"),
            ("GET", "/api/v2"),
        ];
        let fault = match fault {
            0 => SimFault::status(500, "Internal error.", "on purpose"),
            1 => SimFault::html(502),
            2 => SimFault::rate_limited(Duration::from_secs(1)),
            3 => SimFault::Reset,
            4 => SimFault::ResetAfter,
            _ => SimFault::Latency(Duration::from_millis(1300)),
        };
        let (method, path) = calls[usize::from(call)];
        self.sim.fault(method, path, fault, Some(u32::from(times)));
    }

    fn trouble_database(&mut self, trouble: u8, time: Duration) {
        let Some(based) = &self.based else { return };
        let trouble = match trouble {
            0 => Trouble::Close,
            1 => Trouble::Hang,
            2 => Trouble::CutBefore("COMMIT"),
            3 => Trouble::CutAfter("COMMIT"),
            _ => Trouble::SilentAfter("COMMIT"),
        };
        based.proxy.set(trouble);
        let proxy = based.proxy.clone();
        self.passing.spawn(async move {
            tokio::time::sleep(time).await;
            proxy.set(Trouble::None);
        });
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
    fn tend(&mut self) {
        if !self.operator.runs() {
            self.crashes += 1;
            let next = self.world.operator();
            self.begins(next);
        }
    }

    /// Nothing goes wrong any more. Waits until everything is as it is wanted, and nothing is written.
    async fn rests(&mut self) -> Result<(), String> {
        while self.passing.join_next().await.is_some() {}
        self.sim.clear_faults();
        self.operator.faults(&[]);
        for pool in self.pools.keys().copied().collect::<Vec<_>>() {
            self.edit(pool, |wanted| wanted.paused = false).await;
        }
        let deadline = Instant::now() + PEACE;
        let mut last = String::new();
        loop {
            self.tend();
            let peace = self.is_quiet().await;
            match peace {
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

    /// A pool that was edited while it was on its way out is made again.
    async fn make_again(&self) {
        for (pool, wanted) in &self.pools {
            let name = name_of(*pool);
            if self.api::<CoderProvisioner>().get_opt(&name).await.unwrap().is_none() {
                self.apply::<CoderProvisioner>(&name, &wanted.object(&name)).await;
            }
        }
    }

    async fn is_quiet(&self) -> Result<(), String> {
        peace::holds(self).await?;
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
        peace::holds(self).await
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
