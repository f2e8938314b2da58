//! An operator that ends at any step leaves a proxy that ends with exactly one registration, whose living token its Secret
//! holds.

use std::time::Duration;

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::{codersim::Mode, eventually};
use k8s_openapi::api::core::v1::Secret;
use secrecy::ExposeSecret;
use serde_json::json;

use coder_k8s_scenes::{
    CRASHING, Operator, PATIENCE, exits_around,
    pool::PoolScene,
    proxy::{CHILD, ProxyScene, SECRET, is_settled, names, status},
    scene::Scene,
};

/// A proxy of which only an operator of the test takes care, and that may end.
struct Own {
    site: ProxyScene,
    victim: Operator,
}

impl Own {
    async fn new() -> Self {
        let scene = Scene::unmanaged("crashes").await;
        let site = ProxyScene { coder: PoolScene::within(scene, Mode::Licensed).await };
        let victim = site.scene().start(CRASHING);
        site.coder.make_plane(json!({})).await;
        site.coder.until_answered().await;
        Self { site, victim }
    }

    /// Does something, of which the operator dies at this step, and lets another one go on.
    async fn dies(&mut self, fault: &str, doing: impl AsyncFnOnce(&ProxyScene)) {
        self.victim.faults(&[fault.to_owned()]);
        doing(&self.site).await;
        let code = self.victim.exit_code().await;
        assert_eq!(code, Some(coder_k8s_engine::client::EXIT_CODE), "{fault}: {}", self.victim.output());
        self.victim = self.site.scene().start(CRASHING);
    }

    /// Waits for exactly one registration whose token is in the Secret and on the pods.
    async fn ends_well(&self, what: &str) {
        let well = eventually(PATIENCE, || async {
            let object = self.site.now().await;
            let state = format!("{:?} {:?}", names(self.site.sim()), object.status);
            let all = self.site.registrations();
            let [only] = &all[..] else { return Err(state) };
            if !is_settled(&object) || status(&object).proxy_id.as_ref() != Some(&only.id) {
                return Err(state);
            }
            let secret: Secret = self.site.scene().until_exists(SECRET).await;
            let held = secret.data.unwrap_or_default().remove("token").unwrap_or_default().0;
            if held == only.token.expose_secret().as_bytes() { Ok(()) } else { Err(format!("dead: {state}")) }
        });
        well.await.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.victim.tail()));
    }

    async fn delete(&self, what: &str) {
        let api = self.site.scene().api::<CoderWorkspaceProxy>();
        let _ = api.delete("eu", &kube::api::DeleteParams::default()).await;
        let gone = eventually(PATIENCE, || async {
            match api.get_opt("eu").await.unwrap() {
                None => Ok(()),
                Some(object) => Err(format!("{:?}", object.status)),
            }
        });
        gone.await.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.victim.tail()));
        assert_eq!(names(self.site.sim()), [""; 0], "{what}");
        // What goes with it is gone before the next of that name.
        self.site.scene().until_gone::<Secret>(SECRET).await;
        self.site.scene().until_gone::<k8s_openapi::api::apps::v1::Deployment>(CHILD).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_proxy_is_registered() {
    let mut own = Own::new().await;
    let steps = [
        "patch coderworkspaceproxies",
        "coderd list-workspaceproxies",
        "update coderworkspaceproxies/status",
        "coderd create-workspaceproxy",
        "apply secrets",
        "coderd prove-workspaceproxy-token",
        "create services",
        "create deployments",
    ];
    for fault in exits_around(&steps) {
        let made = own.site.asked("POST");
        own.dies(&fault, async |site| drop(site.make(json!({})).await)).await;
        own.ends_well(&fault).await;
        println!("{fault}: {} registrations asked for", own.site.asked("POST") - made);
        assert_eq!(own.site.asked("POST") - made, 1, "{fault}: never two");
        own.delete(&fault).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_token_is_made_again() {
    let mut own = Own::new().await;
    own.site.make(json!({})).await;
    own.ends_well("at first").await;
    let steps = [
        "update coderworkspaceproxies/status",
        "coderd update-workspaceproxy",
        "apply secrets",
        "coderd prove-workspaceproxy-token",
        "patch deployments",
    ];
    for fault in exits_around(&steps) {
        let lost = own.site.only().token;
        own.dies(&fault, async |site| site.scene().delete::<Secret>(SECRET).await).await;
        own.ends_well(&fault).await;
        assert_ne!(own.site.only().token.expose_secret(), lost.expose_secret(), "{fault}");
    }
    // The same with a name that changes, which costs no token.
    for (n, fault) in exits_around(&["coderd update-workspaceproxy"]).iter().enumerate() {
        let token = own.site.only().token;
        let name = format!("eu-{n}");
        own.dies(fault, async |site| drop(site.edit(json!({"registration": {"proxyName": name}})).await))
            .await;
        own.site.until(|proxy| is_settled(proxy) && status(proxy).proxy_name.as_ref() == Some(&name)).await;
        own.ends_well(fault).await;
        assert_eq!(own.site.only().token.expose_secret(), token.expose_secret(), "{fault}");
    }
    own.delete("at last").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_deleted_proxy_goes() {
    let mut own = Own::new().await;
    let steps =
        ["coderd delete-workspaceproxy", "patch coderworkspaceproxies", "coderd list-workspaceproxies"];
    for fault in exits_around(&steps) {
        own.site.make(json!({})).await;
        own.ends_well(&fault).await;
        own.dies(&fault, async |site| site.scene().delete::<CoderWorkspaceProxy>("eu").await).await;
        own.delete(&fault).await;
    }
}

/// Writes that fail, conflict or whose answer is lost.
#[tokio::test(flavor = "multi_thread")]
async fn failing_writes_and_lost_answers_leave_one_registration_and_a_living_token() {
    let own = Own::new().await;
    own.site.make(json!({})).await;
    own.ends_well("at first").await;
    for when in ["before", "after"] {
        for step in ["apply secrets", "update coderworkspaceproxies/status", "coderd update-workspaceproxy"] {
            for fault in ["status=500", "error"] {
                let fault = format!("{when} {step} / {fault} 2");
                let (lost, patched) = (own.site.only().token, own.site.asked("PATCH"));
                own.victim.faults(std::slice::from_ref(&fault));
                own.site.scene().delete::<Secret>(SECRET).await;
                own.ends_well(&fault).await;
                own.victim.faults(&[]);
                let made = own.site.asked("PATCH") - patched;
                println!("{fault}: {made} tokens asked for");
                assert_ne!(own.site.only().token.expose_secret(), lost.expose_secret(), "{fault}");
                assert!(made <= 4, "{fault}: {made}");
            }
        }
    }
    assert_eq!(own.site.asked("POST"), 1);
    // A Secret that cannot be written for long costs a token now and then, whatever wakes the proxy in the meantime.
    let patched = own.site.asked("PATCH");
    own.victim.faults(&["before apply secrets / status=500 1000".to_owned()]);
    own.site.scene().delete::<Secret>(SECRET).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let wasted = own.site.asked("PATCH") - patched;
    println!("{wasted} tokens in 10 s");
    assert!((1..=7).contains(&wasted), "{wasted}");
    own.victim.faults(&[]);
    own.ends_well("at last").await;
}
