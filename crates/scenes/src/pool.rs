//! A pool with a coderd behind its control plane.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use coder_k8s_api::{CoderControlPlane, CoderProvisioner, CoderProvisionerStatus};
use coder_k8s_testbed::{
    codersim::{CoderSim, KeySeen, Mode},
    eventually,
};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Secret, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{ResourceExt, api::ListParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{
    Installation, PATIENCE, apply,
    scene::{Scene, status as status_of},
};

/// The Secret of the pool `pool` when nobody names another one.
pub const SECRET: &str = "pool-provisioner-key";
/// The image of the control plane.
pub const IMAGE: &str = "example.test/coder:v2.36.1";

/// A namespace with a simulated coderd behind the control plane `coder`.
pub struct PoolScene {
    /// The namespace.
    pub scene: Scene,
    /// The server.
    pub sim: Arc<CoderSim>,
}

impl PoolScene {
    /// A namespace and a server; nothing else yet.
    pub async fn bare(installation: &'static Installation, prefix: &str, mode: Mode) -> Self {
        Self::within(Scene::new(installation, prefix).await, mode).await
    }

    /// The same in a namespace that is there.
    pub async fn within(scene: Scene, mode: Mode) -> Self {
        let sim = Arc::new(CoderSim::start(mode).await.unwrap());
        scene.service("coder", sim.address());
        Self { scene, sim }
    }

    /// With a control plane that has answered; no pool yet.
    pub async fn plane(installation: &'static Installation, prefix: &str, mode: Mode) -> Self {
        let pool = Self::bare(installation, prefix, mode).await;
        pool.make_plane(json!({})).await;
        pool.until_answered().await;
        pool
    }

    /// With a license and a pool that is ready.
    pub async fn ready(installation: &'static Installation, prefix: &str, spec: Value) -> Self {
        let pool = Self::plane(installation, prefix, Mode::Licensed).await;
        pool.make(spec).await;
        pool.until_ready().await;
        pool
    }

    /// Makes the control plane `coder` with the owner's token, and what `more` adds to its spec.
    pub async fn make_plane(&self, more: Value) {
        self.secret("token", "token", &self.sim.owner_token()).await;
        self.scene.plane("coder", plane_spec(more)).await;
    }

    /// Another control plane of that name with a coderd of its own.
    pub async fn another_plane(&self, name: &str) -> CoderSim {
        let sim = CoderSim::start(Mode::Licensed).await.unwrap();
        self.scene.service(name, sim.address());
        let token = format!("{name}-token");
        self.secret(&token, "token", &sim.owner_token()).await;
        let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": token}});
        self.scene.plane(name, json!({"image": IMAGE, "operatorAccess": access})).await;
        self.until_plane_answered(name).await;
        sim
    }

    /// Waits until the control plane has answered: who it is, and what its license covers.
    pub async fn until_answered(&self) -> CoderControlPlane {
        self.until_plane_answered("coder").await
    }

    async fn until_plane_answered(&self, name: &str) -> CoderControlPlane {
        self.scene
            .until(name, |plane: &CoderControlPlane| {
                let status = status_of(plane);
                let entitlement = status.external_provisioner_daemons_entitlement.as_deref();
                status.operator_access_ready == Some(true)
                    && status.deployment_id.is_some()
                    && status.workload.image.is_some()
                    && entitlement.is_some_and(|known| known != "unknown")
            })
            .await
    }

    /// Makes the pool `pool`.
    pub async fn make(&self, spec: Value) -> CoderProvisioner {
        self.make_named("pool", spec).await
    }

    /// Makes a pool.
    pub async fn make_named(&self, name: &str, spec: Value) -> CoderProvisioner {
        self.scene.create(object(name, spec)).await
    }

    /// Edits the spec of the pool.
    pub async fn edit(&self, patch: Value) -> CoderProvisioner {
        self.scene.edit("pool", json!({"spec": patch})).await
    }

    /// Puts a value into a Secret, which may be new.
    pub async fn secret(&self, name: &str, key: &str, value: &SecretString) {
        self.secret_text(name, key, value.expose_secret()).await;
    }

    /// Puts a text into a Secret, which may be new.
    pub async fn secret_text(&self, name: &str, key: &str, value: &str) {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": self.scene.namespace}, "stringData": {key: value}});
        apply(&self.scene.client, secret).await;
    }

    /// The pool as it is.
    pub async fn now(&self) -> CoderProvisioner {
        self.scene.until_exists("pool").await
    }

    /// Waits until something holds of the pool.
    pub async fn until(&self, holds: impl Fn(&CoderProvisioner) -> bool) -> CoderProvisioner {
        self.scene.until("pool", holds).await
    }

    /// Waits until the pool is ready in its present generation.
    pub async fn until_ready(&self) -> CoderProvisioner {
        self.until_ready_named("pool").await
    }

    /// Waits until a pool is ready in its present generation.
    pub async fn until_ready_named(&self, name: &str) -> CoderProvisioner {
        self.until_condition_of(name, "Ready", "True", None).await
    }

    /// Waits until the pool is ready and nothing is left to be done about its key.
    pub async fn until_settled(&self) -> CoderProvisioner {
        self.until(is_settled).await
    }

    /// Waits until a condition of the present generation has this status and reason.
    pub async fn until_condition(&self, type_: &str, status: &str, reason: &str) -> CoderProvisioner {
        self.until_condition_of("pool", type_, status, Some(reason)).await
    }

    /// Waits until a condition of the present generation of a pool has this status and, if given, this reason.
    pub async fn until_condition_of(
        &self,
        name: &str,
        type_: &str,
        status: &str,
        reason: Option<&str>,
    ) -> CoderProvisioner {
        self.scene.until(name, |pool| is(pool, type_, status, reason)).await
    }

    /// The Deployment of the pool, once its present generation is ready.
    pub async fn deployment(&self) -> Deployment {
        self.scene.until_exists("provisioner-pool").await
    }

    /// The only key of a name in coderd.
    pub fn key(&self, name: &str) -> KeySeen {
        let mut found: Vec<_> = self.sim.keys().into_iter().filter(|key| key.name == name).collect();
        assert_eq!(found.len(), 1, "{name}: {:?}", names(&self.sim));
        found.remove(0)
    }

    /// The only key in coderd.
    pub fn only_key(&self) -> KeySeen {
        let mut keys = self.sim.keys();
        assert_eq!(keys.len(), 1, "{:?}", names(&self.sim));
        keys.remove(0)
    }

    /// Waits until coderd has exactly these keys.
    pub async fn until_holds(&self, expected: &[&str]) {
        holds(&self.sim, expected).await;
    }

    /// Asserts that the Secret holds the material of this key, with its annotations.
    pub async fn assert_stores(&self, secret: &str, data_key: &str, key: &KeySeen) -> Secret {
        let found: Secret = self.scene.until_exists(secret).await;
        let value = &found.data.as_ref().unwrap()[data_key].0;
        assert!(value == key.material.expose_secret().as_bytes(), "{secret} holds something else");
        let marks = found.annotations();
        assert_eq!(marks["coder.com/provisioner-key-id"], key.id);
        assert_eq!(marks["coder.com/provisioner-key-name"], key.name);
        assert_eq!(marks["coder.com/provisioner-key-organization-id"], key.organization);
        found
    }

    /// Asserts that the pool is at rest with exactly one key, which everything agrees on.
    pub async fn assert_consistent(&self, spec_tags: &[(&str, &str)]) -> KeySeen {
        let pool = self.until_settled().await;
        let status = status(&pool);
        let id = status.provisioner_key_id.clone().unwrap();
        let key = self.sim.keys().into_iter().find(|key| key.id == id);
        let key = key.unwrap_or_else(|| panic!("coderd does not know {status:?}"));
        assert_eq!(Some(&key.name), status.provisioner_key_name.as_ref());
        assert_eq!(key.tags, tags(spec_tags));
        let place = status.secret_ref.clone().unwrap();
        self.assert_stores(&place.name, place.key.as_deref().unwrap(), &key).await;
        let run =
            self.deployment().await.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
        let from = run[1].value_from.clone().unwrap().secret_key_ref.unwrap();
        assert_eq!((Some(&from.name), Some(&from.key)), (Some(&place.name), place.key.as_ref()));
        key
    }

    /// How many keys were asked for.
    pub fn made(&self) -> usize {
        self.sim
            .requests()
            .iter()
            .filter(|e| e.method == "POST" && e.path.ends_with("/provisionerkeys"))
            .count()
    }

    /// The checksum of the key on the pods.
    pub async fn checksum(&self) -> String {
        let template = self.deployment().await.spec.unwrap().template;
        template.metadata.unwrap().annotations.unwrap()["checksum/provisioner-key"].clone()
    }

    /// Messages of the operator's events about the pool with a reason.
    pub async fn events(&self, reason: &str) -> Vec<String> {
        let all = self.scene.api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let ours = all.into_iter().filter(|event| {
            event.reason.as_deref() == Some(reason)
                && event.regarding.as_ref().is_some_and(|r| r.kind.as_deref() == Some("CoderProvisioner"))
        });
        ours.filter_map(|event| event.note).collect()
    }

    /// Waits until the key was verified once more.
    pub async fn until_verified(&self) {
        self.until_verified_by(async || {}).await;
    }

    /// Does something that has the key verified, again and again until that happens: a server that asked for patience
    /// is not asked for a while.
    pub async fn until_verified_by(&self, doing: impl AsyncFn()) {
        let count = || self.sim.count("GET", "/api/v2/provisionerkeys/");
        let before = count();
        let asked = eventually(PATIENCE, || async {
            doing().await;
            let soon = eventually(Duration::from_secs(10), || async {
                if count() > before { Ok(()) } else { Err("not asked") }
            });
            soon.await.map_err(|error| error.to_string())
        });
        asked.await.unwrap_or_else(|error| panic!("{error}\n{}", self.scene.log()));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// The spec of a control plane with a token.
pub fn plane_spec(more: Value) -> Value {
    let mut spec = json!({"image": IMAGE,
        "operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}}});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

/// A pool of the control plane `coder`.
pub fn object(name: &str, more: Value) -> Value {
    let mut spec = json!({"controlPlaneRef": {"name": "coder"}});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner", "metadata": {"name": name}, "spec": spec})
}

/// Waits until a coderd has exactly these keys.
pub async fn holds(sim: &CoderSim, expected: &[&str]) {
    let mut expected: Vec<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    expected.sort();
    let found = eventually(PATIENCE, || async {
        let all = names(sim);
        if all == expected { Ok(()) } else { Err(format!("{all:?}, not {expected:?}")) }
    });
    found.await.unwrap();
}

/// The names of all keys, in order.
pub fn names(sim: &CoderSim) -> Vec<String> {
    let mut all: Vec<_> = sim.keys().into_iter().map(|key| key.name).collect();
    all.sort();
    all
}

/// Tags as the simulator holds them.
pub fn tags(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The status of a pool.
pub fn status(pool: &CoderProvisioner) -> CoderProvisionerStatus {
    pool.status.clone().unwrap_or_default()
}

/// A condition of a pool.
pub fn condition(pool: &CoderProvisioner, type_: &str) -> Option<Condition> {
    pool.status.as_ref()?.workload.conditions.iter().find(|c| c.type_ == type_).cloned()
}

/// The message of a condition.
pub fn message(pool: &CoderProvisioner, type_: &str) -> String {
    condition(pool, type_).unwrap_or_else(|| panic!("no {type_}: {:?}", pool.status)).message
}

/// Whether a condition of the present generation has this status and, if given, this reason.
pub fn is(pool: &CoderProvisioner, type_: &str, status: &str, reason: Option<&str>) -> bool {
    condition(pool, type_).is_some_and(|said| {
        said.observed_generation == pool.metadata.generation
            && said.status == status
            && reason.is_none_or(|reason| reason == said.reason)
    })
}

/// Whether a pool is ready in its present generation and nothing is left to be done about its key.
pub fn is_settled(pool: &CoderProvisioner) -> bool {
    let status = status(pool);
    is(pool, "Ready", "True", None) && status.pending_key.is_none() && status.stale_keys.is_empty()
}
