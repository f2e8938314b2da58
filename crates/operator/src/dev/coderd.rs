//! The simulated coderd of the local cluster.
//!
//! The node starts no containers, so that one simulator serves every control plane. It accepts the license and the token
//! in the Secrets of the samples.

use std::{io, net::SocketAddr, sync::Arc};

use anyhow::Result;
use coder_k8s_coderd::Resolve;
use coder_k8s_testbed::{CoderSim, codersim::Mode};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use secrecy::ExposeSecret;
use serde_json::json;

use super::Console;

/// Stops when dropped.
pub(super) struct Coderd {
    sim: CoderSim,
}

impl Coderd {
    pub(super) async fn start(console: &Console) -> Result<Self> {
        let sim = CoderSim::start(Mode::Unlicensed).await?;
        console.line(&format!("a simulated coderd serves all control planes at {}", sim.url()));
        Ok(Self { sim })
    }

    /// Resolves the name of any Service to the simulator.
    pub(super) fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(AnyHost(self.sim.address()))
    }

    /// Creates the Secrets that the samples name, with a license, tokens and a database URL.
    pub(super) async fn fill_secrets(&self, client: &Client) -> Result<()> {
        let license = CoderSim::license().feature_set("premium").build();
        let token = self.sim.owner_token();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), "coder");
        for (name, key, value) in [
            ("coder-license", "license", license.expose_secret()),
            ("coder-token", "token", token.expose_secret()),
            ("coder-bootstrap", "token", token.expose_secret()),
            ("coderworkspaceproxy-token", "token", "00000000-0000-0000-0000-000000000000:supplied"),
            ("coder-db-app", "uri", "postgres://coder@database.example/coder"),
        ] {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: value}});
            secrets.patch(name, &PatchParams::apply("coder-k8s-dev"), &Patch::Apply(&secret)).await?;
        }
        Ok(())
    }
}

struct AnyHost(SocketAddr);

impl Resolve for AnyHost {
    fn resolve(&self, _host: String, _port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(async { Ok(vec![self.0]) })
    }
}
