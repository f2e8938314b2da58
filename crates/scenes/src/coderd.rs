//! A control plane with a coderd behind its Service.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    eventually,
};
use k8s_openapi::api::core::v1::Secret;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{Installation, PATIENCE, apply, scene::Scene};

/// A namespace with a simulated coderd that answers at the Service `coder`.
pub struct CoderdScene {
    /// The namespace.
    pub scene: Scene,
    /// The server.
    pub sim: CoderSim,
}

impl CoderdScene {
    /// A namespace and a server; no control plane yet.
    pub async fn new(installation: &'static Installation, prefix: &str, mode: Mode) -> Self {
        Self::within(Scene::new(installation, prefix).await, mode).await
    }

    /// The same in a namespace that is there.
    pub async fn within(scene: Scene, mode: Mode) -> Self {
        let sim = CoderSim::start(mode).await.unwrap();
        scene.service("coder", sim.address());
        Self { scene, sim }
    }

    /// Puts a value into a Secret, which may be new.
    pub async fn secret(&self, name: &str, key: &str, value: &SecretString) {
        self.secret_text(name, key, value.expose_secret()).await;
    }

    /// Puts a text into a Secret, which may be new.
    pub async fn secret_text(&self, name: &str, key: &str, value: &str) {
        apply(
            &self.scene.client,
            json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name, "namespace": self.scene.namespace}, "stringData": {key: value}}),
        )
        .await;
    }

    /// Makes the control plane `coder` with the owner's token and what `more` adds to its spec.
    pub async fn plane(&self, more: Value) {
        self.secret("token", "token", &self.sim.owner_token()).await;
        let mut spec =
            json!({"operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}}});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        self.scene.plane("coder", spec).await;
    }

    /// The same with a license in the Secret `license`.
    pub async fn licensed_plane(&self, license: &SecretString) {
        self.secret("license", "license", license).await;
        self.plane(json!({"licenseSecretRef": {"name": "license"}})).await;
    }

    /// Waits until a condition says something, and returns the object.
    pub async fn until_condition(&self, type_: &str, status: &str, reason: &str) -> CoderControlPlane {
        self.scene.until_condition("coder", type_, status, Some(reason)).await
    }

    /// How many licenses were sent.
    pub fn sent(&self) -> usize {
        self.sim.count("POST", "/api/v2/licenses")
    }

    /// Waits until the server was asked for its entitlements so many times more.
    pub async fn until_refreshed(&self, times: usize) {
        let count = || self.sim.count("GET", "/api/v2/entitlements");
        let before = count();
        let asked = eventually(PATIENCE, || async {
            match count() - before {
                more if more >= times => Ok(()),
                more => Err(format!("{more} of {times}")),
            }
        });
        asked.await.unwrap();
    }

    /// Waits until the server was asked for its licenses once more.
    pub async fn until_verified(&self) {
        let count = || self.sim.count("GET", "/api/v2/licenses");
        let before = count();
        let asked =
            eventually(PATIENCE, || async { if count() > before { Ok(()) } else { Err("not asked") } });
        asked.await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    /// The uuids of the licenses that the server holds.
    pub fn installed(&self) -> Vec<String> {
        self.sim.licenses().into_iter().map(|license| license.uuid).collect()
    }

    /// Removes a Secret.
    pub async fn without(&self, name: &str) {
        self.scene.delete::<Secret>(name).await;
    }
}

/// A license with an id of its own; the same text each time.
pub fn license(n: u8) -> SecretString {
    static MADE: Mutex<BTreeMap<u8, SecretString>> = Mutex::new(BTreeMap::new());
    let make = || CoderSim::license().id(&uuid(n)).build();
    MADE.lock().unwrap().entry(n).or_insert_with(make).clone()
}

/// The id of the license of that number.
pub fn uuid(n: u8) -> String {
    format!("00000000-0000-4000-8000-0000000000{n:02x}")
}
