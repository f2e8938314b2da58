//! A control plane with a coderd behind its Service, in a namespace whose operators the test starts and ends.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    eventually,
};
use kube::{Api, api::PostParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{
    Operator, PATIENCE, apply, planes,
    scene::{Scene, condition, status},
};

/// Another operator takes over at once, because the last one is known to be gone.
pub const NO_LEASE: [&str; 1] = ["--leader-elect=false"];

/// A namespace with a simulated coderd that answers at the Service `coder`. No operator runs yet.
pub struct ScopedScene {
    /// The namespace.
    pub scene: Scene,
    /// The server.
    pub sim: CoderSim,
}

impl ScopedScene {
    /// A namespace and a server without a license.
    pub async fn new(prefix: &str) -> Self {
        let scene = Scene::unmanaged(prefix).await;
        let sim = CoderSim::start(Mode::Unlicensed).await.unwrap();
        scene.service("coder", sim.address());
        Self { scene, sim }
    }

    /// Starts an operator. It may not lead yet.
    pub fn operator(&self, args: &[&str]) -> Operator {
        self.scene.start(args)
    }

    /// Puts a value into a Secret, which may be new.
    pub async fn secret(&self, name: &str, key: &str, value: &SecretString) {
        let metadata = json!({"name": name, "namespace": self.scene.namespace});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata,
            "stringData": {key: value.expose_secret()}});
        apply(&self.scene.client, secret).await;
    }

    /// Puts a license into its Secret.
    pub async fn license(&self, license: &SecretString) {
        self.secret("license", "license", license).await;
    }

    /// Makes the control plane `coder` with the token and the license of the Secrets.
    pub async fn plane(&self, more: Value) {
        self.plane_named("coder", more).await;
    }

    /// Makes a control plane with the token and the license of the Secrets, and what `more` adds to its spec.
    pub async fn plane_named(&self, name: &str, more: Value) {
        let mut spec = json!({"licenseSecretRef": {"name": "license"},
            "operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}}});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let plane: CoderControlPlane =
            serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
            "metadata": {"name": name}, "spec": spec}))
            .unwrap();
        self.planes().create(&PostParams::default(), &plane).await.unwrap();
    }

    /// Makes the control plane with the owner's token and a license, and waits until it is ready.
    pub async fn licensed_plane(&self, license: &SecretString, more: Value) -> CoderControlPlane {
        self.secret("token", "token", &self.sim.owner_token()).await;
        self.license(license).await;
        self.plane(more).await;
        self.until_condition("Ready", "True", None).await
    }

    /// The control planes of the namespace.
    pub fn planes(&self) -> Api<CoderControlPlane> {
        planes(&self.scene.client, &self.scene.namespace)
    }

    /// Waits until something holds of the control plane.
    pub async fn until(&self, holds: impl Fn(&CoderControlPlane) -> bool) -> CoderControlPlane {
        let found = eventually(PATIENCE, || async {
            let plane = self.planes().get("coder").await.map_err(|error| error.to_string())?;
            if holds(&plane) { Ok(plane) } else { Err(serde_json::to_string(&plane.status).unwrap()) }
        });
        found.await.unwrap()
    }

    /// Waits until a condition says something.
    pub async fn until_condition(
        &self,
        type_: &str,
        status: &str,
        reason: Option<&str>,
    ) -> CoderControlPlane {
        self.until(|plane| {
            condition(plane, type_)
                .is_some_and(|c| c.status == status && reason.is_none_or(|reason| reason == c.reason))
        })
        .await
    }

    /// Waits until the status names this license as the one that was applied last.
    pub async fn until_applied(&self, license: &SecretString) -> CoderControlPlane {
        let expected = Some(coder_k8s_core::controlplane::coderd::license::hash(license.expose_secret()));
        self.until(|plane| status(plane).license_last_applied_hash == expected).await
    }

    /// Waits until coderd holds exactly these licenses.
    pub async fn until_holds(&self, uuids: &[String]) {
        let found = eventually(PATIENCE, || async {
            let mut all: Vec<_> = self.sim.licenses().into_iter().map(|license| license.uuid).collect();
            all.sort();
            if all == uuids { Ok(()) } else { Err(format!("{all:?}")) }
        });
        found.await.unwrap();
    }
}
