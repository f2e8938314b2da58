//! An operator that ends at any step leaves a pool that ends with exactly one key of its own, which its Secret holds.

use std::time::Duration;

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::{codersim::Mode, eventually};
use k8s_openapi::api::core::v1::Secret;
use secrecy::ExposeSecret;
use serde_json::json;

use coder_k8s_scenes::{
    CRASHING, Operator, PATIENCE, exits_around,
    pool::{PoolScene, SECRET, is, names, status, tags},
    scene::Scene,
};

/// A pool of which only an operator of the test takes care, and that may end.
struct Own {
    pool: PoolScene,
    victim: Operator,
    theirs: String,
}

impl Own {
    async fn new() -> Self {
        let pool = PoolScene::within(Scene::unmanaged("crashes").await, Mode::Licensed).await;
        pool.sim.add_key("theirs", &tags(&[]));
        let theirs = pool.only_key().id;
        let victim = pool.scene.start(CRASHING);
        pool.make_plane(json!({})).await;
        pool.until_answered().await;
        Self { pool, victim, theirs }
    }

    /// Does something, of which the operator dies at this step, and lets another one go on.
    async fn dies(&mut self, fault: &str, doing: impl AsyncFnOnce(&PoolScene)) {
        self.victim.faults(&[fault.to_owned()]);
        doing(&self.pool).await;
        let code = self.victim.exit_code().await;
        assert_eq!(code, Some(coder_k8s_engine::client::EXIT_CODE), "{fault}: {}", self.victim.output());
        self.victim = self.pool.scene.start(CRASHING);
    }

    /// Waits for exactly one key of ours that is in the Secret, with these tags.
    async fn ends_well(&self, what: &str, expected: &[(&str, &str)]) {
        let well = eventually(PATIENCE, || async {
            let object = self.pool.now().await;
            let state = format!("{:?} {:?}", names(&self.pool.sim), object.status);
            if !is(&object, "Ready", "True", None) || status(&object).pending_key.is_some() {
                return Err(state);
            }
            let keys = self.pool.sim.keys();
            let [ours] = &keys.iter().filter(|key| key.id != self.theirs).collect::<Vec<_>>()[..] else {
                return Err(state);
            };
            let secret: Secret = self.pool.scene.until_exists(SECRET).await;
            let held = &secret.data.unwrap()["key"].0;
            let fits = status(&object).provisioner_key_id.as_ref() == Some(&ours.id)
                && held == ours.material.expose_secret().as_bytes()
                && ours.tags == tags(expected);
            if fits { Ok(()) } else { Err(state) }
        });
        well.await.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.victim.tail()));
        assert!(self.pool.sim.keys().iter().any(|key| key.id == self.theirs), "{what}: not ours");
    }

    async fn delete(&self, what: &str) {
        let api = self.pool.scene.api::<CoderProvisioner>();
        let _ = api.delete("pool", &kube::api::DeleteParams::default()).await;
        let gone = eventually(PATIENCE, || async {
            match api.get_opt("pool").await.unwrap() {
                None => Ok(()),
                Some(object) => Err(format!("{:?}", object.status)),
            }
        });
        gone.await.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.victim.tail()));
        let left: Vec<_> = self.pool.sim.keys().into_iter().map(|key| key.id).collect();
        assert_eq!(left, std::slice::from_ref(&self.theirs), "{what}: {:?}", names(&self.pool.sim));
        // What goes with it is gone before the next of that name.
        let secrets = self.pool.scene.api::<Secret>();
        let gone = eventually(PATIENCE, || async {
            if secrets.get_opt(SECRET).await.unwrap().is_none() { Ok(()) } else { Err("the Secret is there") }
        });
        gone.await.unwrap();
    }
}

/// C1, C2, C3, C5, C6, C8, C9, C10, C11.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_first_key_is_made() {
    let mut own = Own::new().await;
    let steps = [
        "patch coderprovisioners",
        "coderd list-provisionerkeys",
        "update coderprovisioners/status",
        "coderd create-provisionerkey",
        "apply secrets",
        "coderd get-provisionerkey-details",
        "create serviceaccounts",
        "create deployments",
    ];
    for fault in exits_around(&steps) {
        let made = own.pool.made();
        own.dies(&fault, async |pool| drop(pool.make(json!({"tags": {"a": "1"}})).await)).await;
        own.ends_well(&fault, &[("a", "1")]).await;
        println!("{fault}: {} keys asked for", own.pool.made() - made);
        assert!(own.pool.made() - made <= 2, "{fault}: one is wasted at most");
        own.delete(&fault).await;
    }
}

/// C4, C5, C7, C8, C9, C11, and the deletion of the old key.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_key_is_replaced() {
    let mut own = Own::new().await;
    own.pool.make(json!({"tags": {"n": "0"}})).await;
    own.ends_well("at first", &[("n", "0")]).await;
    let steps = [
        "update coderprovisioners/status",
        "coderd create-provisionerkey",
        "patch secrets",
        "patch deployments",
        "coderd delete-provisionerkey",
    ];
    let faults = exits_around(&steps).into_iter().enumerate();
    for (n, fault) in faults {
        let n = (n + 1).to_string();
        let made = own.pool.made();
        own.dies(&fault, async |pool| drop(pool.edit(json!({"tags": {"n": n}})).await)).await;
        own.ends_well(&fault, &[("n", &n)]).await;
        assert!(own.pool.made() - made <= 2, "{fault}: one is wasted at most");
    }
    own.delete("at last").await;
}

/// C4, C5 and C8 with a spec that is taken back before anybody goes on.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_key_is_replaced_and_the_edit_is_taken_back() {
    let mut own = Own::new().await;
    own.pool.make(json!({"tags": {"n": "0"}})).await;
    own.ends_well("at first", &[("n", "0")]).await;
    for fault in
        exits_around(&["coderd create-provisionerkey", "patch secrets", "coderd delete-provisionerkey"])
    {
        own.victim.faults(std::slice::from_ref(&fault));
        own.pool.edit(json!({"tags": {"n": "1"}})).await;
        own.victim.exit_code().await;
        own.pool.edit(json!({"tags": {"n": "0"}})).await;
        own.victim = own.pool.scene.start(CRASHING);
        own.ends_well(&fault, &[("n", "0")]).await;
    }
    own.delete("at last").await;
}

/// C12.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_key_of_a_deleted_pool_goes() {
    let mut own = Own::new().await;
    for fault in exits_around(&[
        "coderd delete-provisionerkey",
        "patch coderprovisioners",
        "coderd list-provisionerkeys",
    ]) {
        own.pool.make(json!({})).await;
        own.ends_well(&fault, &[]).await;
        own.dies(&fault, async |pool| pool.scene.delete::<CoderProvisioner>("pool").await).await;
        own.delete(&fault).await;
    }
}

/// C13, C14, C15: writes that fail, conflict or whose answer is lost.
#[tokio::test(flavor = "multi_thread")]
async fn writes_that_fail_or_whose_answers_are_lost_cost_no_key() {
    let own = Own::new().await;
    let mut faults: Vec<String> = Vec::new();
    for when in ["before", "after"] {
        for step in ["apply secrets", "patch secrets", "update coderprovisioners/status"] {
            for fault in ["status=409", "status=500", "error"] {
                faults.push(format!("{when} {step} / {fault} 2"));
            }
        }
    }
    own.pool.make(json!({"tags": {"n": "0"}})).await;
    own.ends_well("at first", &[("n", "0")]).await;
    for (n, fault) in faults.iter().enumerate() {
        let made = own.pool.made();
        own.victim.faults(std::slice::from_ref(fault));
        if fault.contains("apply secrets") {
            let lost = status(&own.pool.now().await).provisioner_key_id;
            own.pool.scene.delete::<Secret>(SECRET).await;
            own.pool.until(|pool| status(pool).provisioner_key_id != lost).await;
        }
        let n = (n + 1).to_string();
        own.pool.edit(json!({"tags": {"n": n}})).await;
        own.ends_well(fault, &[("n", &n)]).await;
        own.victim.faults(&[]);
        let made = own.pool.made() - made;
        println!("{fault}: {made} keys asked for");
        assert!(made <= 5, "{fault}: {made}");
    }
    // A Secret that cannot be written for long costs a key now and then, not one after the other, although the status of
    // the control plane wakes its pools every two seconds.
    own.victim.faults(&["before patch secrets / status=500 1000".to_owned()]);
    let made = own.pool.made();
    own.pool.edit(json!({"tags": {"n": "last"}})).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let wasted = own.pool.made() - made;
    println!("{wasted} keys in 10 s");
    assert!((1..=7).contains(&wasted), "{wasted}");
    assert!(own.pool.sim.keys().len() <= 3, "{:?}", names(&own.pool.sim));
    own.victim.faults(&[]);
    own.ends_well("at last", &[("n", "last")]).await;
}

/// Two operators at once, as between two leaders.
#[tokio::test(flavor = "multi_thread")]
async fn two_operators_at_once_end_with_one_key() {
    let own = Own::new().await;
    let second = own.pool.scene.start(CRASHING);
    own.pool.make(json!({"tags": {"n": "0"}})).await;
    own.ends_well("at first", &[("n", "0")]).await;
    for n in 1..=3 {
        let n = n.to_string();
        own.pool.edit(json!({"tags": {"n": n}})).await;
        own.ends_well(&n, &[("n", &n)]).await;
    }
    drop(second);
    own.delete("at last").await;
}
