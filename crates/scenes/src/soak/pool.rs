//! The pools of a life.

use std::collections::BTreeMap;

use coder_k8s_api::names::annotation;
use serde_json::{Value, json};

/// The organization besides the default one.
pub const ELSEWHERE: &str = "acme";

/// A pool as it is wanted.
#[derive(Clone, Debug)]
pub struct Pool {
    pub tags: u8,
    pub key_name: u8,
    pub elsewhere: bool,
    pub other_secret: bool,
    pub replicas: u8,
    pub paused: bool,
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

    pub fn object(&self, name: &str) -> Value {
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
