//! The workspace proxy of a life.

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::codersim::{CoderSim, ProxySeen};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, Service},
};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::{
    converged::{is_absent, is_true},
    life::Life,
};

/// Its name.
pub const NAME: &str = "eu";
/// The name of its Deployment and its Service.
pub const CHILD: &str = "wsproxy-eu";

/// A proxy as it is wanted.
#[derive(Clone, Debug, Default)]
pub struct Proxy {
    pub called: u8,
    pub shown: u8,
    pub other_secret: bool,
}

impl Proxy {
    /// Its name in coderd.
    fn name(&self) -> String {
        if self.called == 0 { NAME.to_owned() } else { format!("{NAME}-{}", self.called) }
    }

    fn display_name(&self) -> String {
        format!("Europe {}", self.shown)
    }

    /// The name of the Secret of its token.
    pub fn secret(&self) -> &'static str {
        if self.other_secret { "eu-other" } else { "eu-proxy-token" }
    }

    pub fn object(&self) -> Value {
        json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderWorkspaceProxy", "metadata": {"name": NAME},
            "spec": {"controlPlaneRef": {"name": "coder"}, "registration": {"proxyName": self.name(),
                "displayName": self.display_name(), "generatedTokenSecretName": self.secret()}}})
    }
}

/// The registrations that are not deleted.
pub fn registrations(sim: &CoderSim) -> Vec<ProxySeen> {
    sim.proxies().into_iter().filter(|proxy| !proxy.deleted).collect()
}

/// Pods that hold the token of a registration have come up. One that is not healthy is looked at more often.
pub async fn comes_up(life: &Life) {
    let Some(wanted) = &life.proxy else { return };
    let held = life.api::<Secret>().get_opt(wanted.secret()).await.unwrap();
    let Some(token) = held.and_then(|secret| secret.data?.remove("token")) else { return };
    for proxy in registrations(&life.sim) {
        if token.0 == proxy.token.expose_secret().as_bytes() {
            life.sim.set_proxy_status(&proxy.name, "ok", "v1");
        }
    }
}

/// Whether there is one registration, as the spec says, whose token the Secret holds; or nothing at all.
pub async fn check(life: &Life) -> Result<(), String> {
    let found = life.api::<CoderWorkspaceProxy>().get_opt(NAME).await.map_err(|error| error.to_string())?;
    let registered = registrations(&life.sim);
    let Some(wanted) = &life.proxy else {
        is_absent::<CoderWorkspaceProxy>(life, NAME).await?;
        is_absent::<Deployment>(life, CHILD).await?;
        is_absent::<Service>(life, CHILD).await?;
        is_absent::<Secret>(life, "eu-proxy-token").await?;
        is_absent::<Secret>(life, "eu-other").await?;
        let names: Vec<_> = registered.into_iter().map(|proxy| proxy.name).collect();
        return if names.is_empty() {
            Ok(())
        } else {
            Err(format!("no proxy, and registered are {names:?}"))
        };
    };
    let Some(proxy) = found else { return Err("the proxy is not there".to_owned()) };
    let status = proxy.status.clone().unwrap_or_default();
    let told = |what: &str| format!("proxy: {what}: {}", serde_json::to_string(&status).unwrap());
    if proxy.metadata.deletion_timestamp.is_some() {
        return Err(told("it is going"));
    }
    is_true(&status.workload.conditions, "Ready", proxy.metadata.generation).map_err(|why| told(&why))?;
    if status.pending_registration.is_some() || !status.stale_registrations.is_empty() {
        return Err(told("a registration is under way"));
    }
    let [only] = registered.as_slice() else {
        return Err(told(&format!("{} registrations", registered.len())));
    };
    if only.name != wanted.name() || only.display_name != wanted.display_name() {
        return Err(told(&format!("it is registered as {} ({})", only.name, only.display_name)));
    }
    if status.proxy_id.as_ref() != Some(&only.id) {
        return Err(told(&format!("the registration is {}", only.id)));
    }
    let held = life.api::<Secret>().get_opt(wanted.secret()).await.map_err(|error| error.to_string())?;
    let held = held.and_then(|secret| secret.data?.remove("token"));
    if held.is_none_or(|held| held.0 != only.token.expose_secret().as_bytes()) {
        return Err(told("the Secret holds something else than the living token"));
    }
    let other = if wanted.other_secret { "eu-proxy-token" } else { "eu-other" };
    is_absent::<Secret>(life, other).await
}
