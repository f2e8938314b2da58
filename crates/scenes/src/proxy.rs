//! A workspace proxy with a coderd behind its control plane.

use coder_k8s_api::{CoderWorkspaceProxy, CoderWorkspaceProxyStatus};
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode, ProxySeen},
    eventually,
};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Secret, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{ResourceExt, api::ListParams};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::{Installation, PATIENCE, pool::PoolScene, scene::Scene};

/// The Secret of the proxy `eu` when nobody names another one.
pub const SECRET: &str = "eu-proxy-token";
/// The Deployment and the Service of the proxy `eu`.
pub const CHILD: &str = "wsproxy-eu";

/// A namespace with a simulated coderd behind the control plane `coder`.
pub struct ProxyScene {
    /// The control plane. No pool is made.
    pub coder: PoolScene,
}

impl ProxyScene {
    /// With a control plane that has answered; no proxy yet.
    pub async fn plane(installation: &'static Installation, prefix: &str, mode: Mode) -> Self {
        Self { coder: PoolScene::plane(installation, prefix, mode).await }
    }

    /// With a license and a proxy that is ready.
    pub async fn ready(installation: &'static Installation, prefix: &str, spec: Value) -> Self {
        let site = Self::plane(installation, prefix, Mode::Licensed).await;
        site.make(spec).await;
        site.until_ready().await;
        site
    }

    /// The namespace.
    pub fn scene(&self) -> &Scene {
        &self.coder.scene
    }

    /// The server.
    pub fn sim(&self) -> &CoderSim {
        &self.coder.sim
    }

    /// Makes the proxy `eu` of the control plane `coder`.
    pub async fn make(&self, more: Value) -> CoderWorkspaceProxy {
        self.scene().create(object("eu", with_plane(more))).await
    }

    /// Makes a proxy with exactly this spec.
    pub async fn make_as(&self, name: &str, spec: Value) -> CoderWorkspaceProxy {
        self.scene().create(object(name, spec)).await
    }

    /// Edits the spec of the proxy.
    pub async fn edit(&self, patch: Value) -> CoderWorkspaceProxy {
        self.scene().edit("eu", json!({"spec": patch})).await
    }

    /// The proxy as it is.
    pub async fn now(&self) -> CoderWorkspaceProxy {
        self.scene().until_exists("eu").await
    }

    /// Waits until something holds of the proxy.
    pub async fn until(&self, holds: impl Fn(&CoderWorkspaceProxy) -> bool) -> CoderWorkspaceProxy {
        self.scene().until("eu", holds).await
    }

    /// Waits until a condition of the present generation has this status and reason.
    pub async fn until_condition(&self, type_: &str, status: &str, reason: &str) -> CoderWorkspaceProxy {
        self.until(|proxy| is(proxy, type_, status, Some(reason))).await
    }

    /// Waits until the proxy is ready in its present generation.
    pub async fn until_ready(&self) -> CoderWorkspaceProxy {
        self.until(|proxy| is(proxy, "Ready", "True", None)).await
    }

    /// Waits until the proxy is ready and nothing is left to be done about its registration.
    pub async fn until_settled(&self) -> CoderWorkspaceProxy {
        self.until(is_settled).await
    }

    /// The Deployment of the proxy, once it is there.
    pub async fn deployment(&self) -> Deployment {
        self.scene().until_exists(CHILD).await
    }

    /// The checksum of the token on the pods.
    pub async fn checksum(&self) -> String {
        let template = self.deployment().await.spec.unwrap().template;
        template.metadata.unwrap().annotations.unwrap()["checksum/proxy-token"].clone()
    }

    /// The registrations that are not deleted.
    pub fn registrations(&self) -> Vec<ProxySeen> {
        registrations(self.sim())
    }

    /// The only registration that is not deleted.
    pub fn only(&self) -> ProxySeen {
        let mut all = self.registrations();
        assert_eq!(all.len(), 1, "{:?}", names(self.sim()));
        all.remove(0)
    }

    /// Waits until coderd has exactly these registrations.
    pub async fn until_holds(&self, expected: &[&str]) {
        holds(self.sim(), expected).await;
    }

    /// Asserts that the proxy is at rest with exactly one registration, which everything agrees on.
    pub async fn assert_consistent(&self) -> ProxySeen {
        let proxy = self.until_settled().await;
        let (status, only) = (status(&proxy), self.only());
        assert_eq!(status.proxy_id.as_deref(), Some(only.id.as_str()));
        assert_eq!(status.proxy_name.as_deref(), Some(only.name.as_str()));
        assert_eq!(status.registered, Some(true));
        let place = status.proxy_token_secret_ref.unwrap();
        let secret: Secret = self.scene().until_exists(&place.name).await;
        let held = &secret.data.as_ref().unwrap()[place.key.as_deref().unwrap()].0;
        assert!(held == only.token.expose_secret().as_bytes(), "the Secret holds something else");
        assert_eq!(secret.annotations()["coder.com/workspace-proxy-id"], only.id);
        let pod = self.deployment().await.spec.unwrap().template.spec.unwrap();
        let from = pod.containers[0].env.as_ref().unwrap()[1].value_from.clone().unwrap();
        assert_eq!(from.secret_key_ref.unwrap().name, place.name);
        only
    }

    /// How often something was asked of coderd.
    pub fn asked(&self, method: &str) -> usize {
        self.sim().count(method, "/api/v2/workspaceproxies")
    }

    /// Messages of the operator's events about proxies with a reason.
    pub async fn events(&self, reason: &str) -> Vec<String> {
        let all = self.scene().api::<Event>().list(&ListParams::default()).await.unwrap().items;
        let ours = all.into_iter().filter(|event| {
            event.reason.as_deref() == Some(reason)
                && event.regarding.as_ref().is_some_and(|r| r.kind.as_deref() == Some("CoderWorkspaceProxy"))
        });
        ours.filter_map(|event| event.note).collect()
    }

    /// Waits until the token was verified once more, and some.
    pub async fn until_verified(&self) {
        let count = || self.sim().count("GET", "/api/v2/workspaceproxies/me/");
        let before = count();
        let asked =
            eventually(PATIENCE, || async { if count() > before + 1 { Ok(()) } else { Err("not asked") } });
        asked.await.unwrap();
    }
}

/// A proxy.
pub fn object(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "coder.com/v1alpha1", "kind": "CoderWorkspaceProxy", "metadata": {"name": name}, "spec": spec})
}

/// A spec with the control plane `coder`.
pub fn with_plane(more: Value) -> Value {
    let mut spec = json!({"controlPlaneRef": {"name": "coder"}});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

/// The registrations that are not deleted.
pub fn registrations(sim: &CoderSim) -> Vec<ProxySeen> {
    sim.proxies().into_iter().filter(|proxy| !proxy.deleted).collect()
}

/// Their names, in order.
pub fn names(sim: &CoderSim) -> Vec<String> {
    let mut all: Vec<_> = registrations(sim).into_iter().map(|proxy| proxy.name).collect();
    all.sort();
    all
}

/// Waits until a coderd has exactly these registrations.
pub async fn holds(sim: &CoderSim, expected: &[&str]) {
    let found = eventually(PATIENCE, || async {
        let all = names(sim);
        if all == expected { Ok(()) } else { Err(format!("{all:?}, not {expected:?}")) }
    });
    found.await.unwrap();
}

/// The status of a proxy.
pub fn status(proxy: &CoderWorkspaceProxy) -> CoderWorkspaceProxyStatus {
    proxy.status.clone().unwrap_or_default()
}

/// A condition of a proxy.
pub fn condition(proxy: &CoderWorkspaceProxy, type_: &str) -> Option<Condition> {
    proxy.status.as_ref()?.workload.conditions.iter().find(|c| c.type_ == type_).cloned()
}

/// The message of a condition.
pub fn message(proxy: &CoderWorkspaceProxy, type_: &str) -> String {
    condition(proxy, type_).unwrap_or_else(|| panic!("no {type_}: {:?}", proxy.status)).message
}

/// Whether a condition of the present generation has this status and, if given, this reason.
pub fn is(proxy: &CoderWorkspaceProxy, type_: &str, status: &str, reason: Option<&str>) -> bool {
    condition(proxy, type_).is_some_and(|said| {
        said.observed_generation == proxy.metadata.generation
            && said.status == status
            && reason.is_none_or(|reason| reason == said.reason)
    })
}

/// Whether the proxy is ready and nothing is left to be done about its registration.
pub fn is_settled(proxy: &CoderWorkspaceProxy) -> bool {
    let status = status(proxy);
    is(proxy, "Ready", "True", None)
        && is(proxy, "Registered", "True", None)
        && status.pending_registration.is_none()
        && status.stale_registrations.is_empty()
}
