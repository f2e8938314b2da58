//! A cluster of one test's own, with a coderd behind the Service `coder` of its default namespace and operators that the
//! test starts and ends.

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_testbed::{
    Cluster, Node,
    codersim::{CoderSim, Mode},
    eventually,
};
use kube::{Api, Client, api::PostParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{
    scene::{condition, status},
    support::{Operator, PATIENCE, apply, grant, planes},
};

/// Another operator takes over at once, because the last one is known to be gone.
pub const QUICK: [&str; 1] = ["--leader-elect=false"];

pub struct Own {
    pub cluster: Cluster,
    pub client: Client,
    pub sim: CoderSim,
    _node: Node,
}

impl Own {
    pub async fn new() -> Self {
        let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
        let client = cluster.client();
        let node = cluster.node("testbed").await.unwrap();
        grant(&client, &Install::default()).await;
        let sim = CoderSim::start(Mode::Unlicensed).await.unwrap();
        Self { cluster, client, sim, _node: node }
    }

    /// An operator that knows where coderd is. It may not lead yet.
    pub fn operator(&self, args: &[&str]) -> Operator {
        self.failing_operator(args, &[])
    }

    /// One whose calls fail from the first on.
    pub fn failing_operator(&self, args: &[&str], faults: &[String]) -> Operator {
        let operator = Operator::start_failing(&self.cluster, args, faults);
        operator.host("coder.default.svc.cluster.local", self.sim.address());
        operator
    }

    /// Puts a value into a Secret, which may be new.
    pub async fn secret(&self, namespace: &str, name: &str, value: &SecretString) {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace}, "stringData": {name: value.expose_secret()}});
        apply(&self.client, secret).await;
    }

    /// Puts a license into its Secret.
    pub async fn license(&self, license: &SecretString) {
        self.secret("default", "license", license).await;
    }

    /// Makes the control plane `coder` with the token and the license of the Secrets.
    pub async fn plane(&self, namespace: &str, more: Value) {
        let mut spec = json!({"licenseSecretRef": {"name": "license"},
            "operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}}});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let plane: CoderControlPlane =
            serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane",
            "metadata": {"name": "coder"}, "spec": spec}))
            .unwrap();
        self.planes(namespace).create(&PostParams::default(), &plane).await.unwrap();
    }

    /// The control plane with the owner's token and a license, once it is ready.
    pub async fn licensed_plane(&self, license: &SecretString, more: Value) -> CoderControlPlane {
        self.secret("default", "token", &self.sim.owner_token()).await;
        self.license(license).await;
        self.plane("default", more).await;
        self.says("Ready", "True", None).await
    }

    pub fn planes(&self, namespace: &str) -> Api<CoderControlPlane> {
        planes(&self.client, namespace)
    }

    /// Waits until something holds of the control plane.
    pub async fn until(&self, holds: impl Fn(&CoderControlPlane) -> bool) -> CoderControlPlane {
        let found = eventually(PATIENCE, || async {
            let plane = self.planes("default").get("coder").await.map_err(|error| error.to_string())?;
            if holds(&plane) { Ok(plane) } else { Err(serde_json::to_string(&plane.status).unwrap()) }
        });
        found.await.unwrap()
    }

    /// Waits until a condition says something.
    pub async fn says(&self, type_: &str, status: &str, reason: Option<&str>) -> CoderControlPlane {
        self.until(|plane| {
            condition(plane, type_)
                .is_some_and(|c| c.status == status && reason.is_none_or(|reason| reason == c.reason))
        })
        .await
    }

    /// Waits until the status names this license as the one that was applied last.
    pub async fn applied(&self, license: &SecretString) -> CoderControlPlane {
        let expected = Some(coder_k8s_core::license::hash(license.expose_secret()));
        self.until(|plane| status(plane).license_last_applied_hash == expected).await
    }

    /// Waits until coderd holds exactly these licenses.
    pub async fn holds(&self, uuids: &[String]) {
        let found = eventually(PATIENCE, || async {
            let mut all: Vec<_> = self.sim.licenses().into_iter().map(|license| license.uuid).collect();
            all.sort();
            if all == uuids { Ok(()) } else { Err(format!("{all:?}")) }
        });
        found.await.unwrap();
    }
}
