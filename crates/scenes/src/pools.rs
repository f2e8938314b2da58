//! Many pools of one namespace, by their names.

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::eventually;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{PATIENCE, pool::is_settled, scene::Scene};

/// The pools of a scene.
#[derive(Clone, Copy)]
pub struct Pools<'a>(pub &'a Scene);

impl Pools<'_> {
    fn api(self) -> Api<CoderProvisioner> {
        self.0.api()
    }

    /// Makes a pool.
    pub async fn make(&self, name: &str, plane: &str, more: Value) {
        let mut spec = json!({"controlPlaneRef": {"name": plane}});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let object = json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
            "metadata": {"name": name}, "spec": spec});
        let object = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap();
    }

    /// Edits the spec of a pool.
    pub async fn edit(&self, name: &str, spec: Value) -> CoderProvisioner {
        let patch = json!({"spec": spec});
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    /// Waits until something holds of a pool, and returns it.
    pub async fn until(&self, name: &str, holds: impl Fn(&CoderProvisioner) -> bool) -> CoderProvisioner {
        let api = self.api();
        let found = eventually(3 * PATIENCE, || async {
            let pool = api.get(name).await.map_err(|error| error.to_string())?;
            if holds(&pool) { Ok(pool) } else { Err(serde_json::to_string(&pool).unwrap()) }
        });
        found.await.unwrap_or_else(|error| panic!("{error}\n{}", self.log(name)))
    }

    /// Waits until a pool is ready in its present generation and nothing is left to be done about its key.
    pub async fn until_settled(&self, name: &str) -> CoderProvisioner {
        self.until(name, is_settled).await
    }

    /// The Deployment of a pool.
    pub async fn deployment(&self, name: &str) -> Deployment {
        self.0.api().get(&format!("provisioner-{name}")).await.unwrap()
    }

    fn log(self, name: &str) -> String {
        self.0.log().lines().filter(|line| line.contains(name)).collect::<Vec<_>>().join("\n")
    }
}
