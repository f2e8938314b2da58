//! Key material reaches nothing that the operator writes but its Secret, at no level of the log.

use coder_k8s_api::{CoderControlPlane, CoderProvisioner};
use coder_k8s_testbed::codersim::{Mode, SimFault};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event as CoreEvent, Secret},
    events::v1::Event,
};
use kube::api::ListParams;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use coder_k8s_scenes::{
    Operator,
    pool::{PoolScene, SECRET, status},
    scene::Scene,
};

/// Base64 without padding, of which only the beginning counts.
fn encoded(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let sextets = |three: &[u8]| {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift & 63) as usize]))
    };
    text.as_bytes().chunks_exact(3).flat_map(sextets).collect()
}

async fn all_of<K: coder_k8s_scenes::scene::Kind>(pool: &PoolScene) -> String {
    serde_json::to_string(&pool.scene.api::<K>().list(&ListParams::default()).await.unwrap().items).unwrap()
}

async fn silent(pool: &PoolScene, operator: &Operator, secrets: &[SecretString], path: &str) {
    let mut names = pool.scene.api::<Secret>().list(&ListParams::default()).await.unwrap().items;
    for secret in &mut names {
        secret.data = None;
    }
    let written = [
        ("log", operator.output()),
        ("events", all_of::<Event>(pool).await),
        ("core events", all_of::<CoreEvent>(pool).await),
        ("pools", all_of::<CoderProvisioner>(pool).await),
        ("planes", all_of::<CoderControlPlane>(pool).await),
        ("deployments", all_of::<Deployment>(pool).await),
        ("metadata of Secrets", serde_json::to_string(&names).unwrap()),
        ("metrics", operator.get("--metrics-addr", "/metrics").await.1),
        ("readyz", operator.get("--health-addr", "/readyz?verbose").await.1),
    ];
    for (what, text) in written {
        for secret in secrets {
            let plain = secret.expose_secret();
            for canary in [plain.to_owned(), encoded(plain)] {
                let line = text.lines().find(|line| line.contains(&canary));
                assert_eq!(line, None, "{path}: {what}");
            }
        }
    }
    for entry in pool.sim.requests() {
        let sent = format!("{}?{}", entry.path, entry.query);
        assert!(secrets.iter().all(|secret| !sent.contains(secret.expose_secret())), "{path}: in a URL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_material_is_in_no_log_event_status_or_metric() {
    let pool = PoolScene::within(Scene::unmanaged("secrecy").await, Mode::Licensed).await;
    let operator = pool.scene.start(&[
        "--leader-elect=false",
        "--log-level=trace",
        "--entitlements-interval=2s",
        "--verify-interval=6s",
    ]);
    pool.make_plane(json!({})).await;
    pool.until_answered().await;
    let token = pool.sim.owner_token();
    pool.secret("mine", "token", &token).await;
    pool.make(json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}})).await;
    let mut secrets = vec![token, pool.assert_consistent(&[]).await.material];
    silent(&pool, &operator, &secrets, "made").await;

    // Answers that quote what was sent.
    let quoted = |code| {
        let text = secrets[1].expose_secret();
        SimFault::status(code, &format!("{text} is no good"), text)
    };
    for code in [403, 500] {
        let fault = pool.sim.fault("GET", "/api/v2/provisionerkeys/*", quoted(code), None);
        pool.until_verified().await;
        silent(&pool, &operator, &secrets, &format!("{code} that quotes the key")).await;
        pool.sim.clear(fault);
    }
    let fault =
        pool.sim.fault("GET", "/api/v2/provisionerkeys/*", SimFault::redirect("http://elsewhere/"), None);
    pool.until_verified().await;
    silent(&pool, &operator, &secrets, "redirected").await;
    pool.sim.clear(fault);

    // A rotation, with a Secret that somebody wrote into.
    let wrong = SecretString::from("canary-canary-canary-canary-canary-canary-1");
    let old = status(&pool.now().await).provisioner_key_id;
    pool.scene.edit::<Secret>(SECRET, json!({"stringData": {"key": wrong.expose_secret()}})).await;
    pool.until(|pool| status(pool).provisioner_key_id != old).await;
    secrets.extend([wrong, pool.assert_consistent(&[]).await.material]);
    silent(&pool, &operator, &secrets, "replaced").await;
    pool.edit(json!({"key": {"secretName": "renamed"}})).await;
    pool.scene.until_gone::<Secret>(SECRET).await;
    silent(&pool, &operator, &secrets, "renamed").await;
    pool.scene.delete::<CoderProvisioner>("pool").await;
    pool.scene.until_gone::<CoderProvisioner>("pool").await;
    pool.until_holds(&[]).await;
    silent(&pool, &operator, &secrets, "deleted").await;
}
