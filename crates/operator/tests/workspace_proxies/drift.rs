//! What changes after a proxy was registered, in the spec, in the Secret and in coderd.

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_coderd::{Connector, Endpoint, ProxySettings, Settings};
use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    eventually,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use kube::api::{Patch, PatchParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    proxy::{CHILD, ProxyScene, SECRET, holds, is, is_settled, message, names, status},
};

use crate::OPERATOR;

fn owner(sim: &CoderSim) -> coder_k8s_coderd::Client {
    let (target, token) = (Endpoint::new(sim.url()), sim.owner_token());
    Connector::new(Settings::on_loopback()).client(&target, Some(&token)).unwrap()
}

fn called(name: &str) -> ProxySettings {
    ProxySettings { name: name.into(), display_name: "Somebody's".into(), icon: "/x.png".into() }
}

/// What coderd makes of a token when a proxy uses it.
async fn is_alive(sim: &CoderSim, token: &SecretString) -> bool {
    owner(sim).prove_proxy_token(token).await.is_ok()
}

/// Waits until the Secret holds another token than this one.
async fn is_replaced(site: &ProxyScene, token: &SecretString) {
    let old = token.expose_secret().as_bytes().to_vec();
    let other = |secret: &Secret| {
        let held = secret.data.as_ref().and_then(|data| data.get("token"));
        held.is_some_and(|held| held.0 != old)
    };
    site.scene().until(SECRET, other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_icons_follow_the_spec_with_the_same_token() {
    let site = ProxyScene::ready(&OPERATOR, "names", json!({})).await;
    let before = site.assert_consistent().await;
    assert_eq!((before.display_name.as_str(), before.icon.as_str()), ("eu", "/emojis/1f5fa.png"));
    let generation = site.deployment().await.metadata.generation;
    let registration = json!({"proxyName": "Europe-1", "displayName": "Europe", "icon": "/emojis/1f30d.png"});
    site.edit(json!({"registration": registration})).await;
    site.until(|proxy| is_settled(proxy) && status(proxy).proxy_name.as_deref() == Some("Europe-1")).await;
    let after = site.assert_consistent().await;
    assert_eq!((after.display_name.as_str(), after.icon.as_str()), ("Europe", "/emojis/1f30d.png"));
    assert_eq!((&after.id, after.token.expose_secret()), (&before.id, before.token.expose_secret()));
    assert_eq!(site.deployment().await.metadata.generation, generation, "no pod is restarted");
    // Somebody changes it in coderd: what the spec says is put back.
    owner(site.sim()).update_proxy(&before.id, &called("Europe-1"), false).await.unwrap();
    let back = eventually(PATIENCE, || async {
        let only = site.only();
        if only.display_name == "Europe" { Ok(()) } else { Err(only.display_name) }
    });
    back.await.unwrap();
    // What the spec says nothing about stays as somebody chose it.
    site.edit(json!({"registration": {"displayName": null}})).await;
    site.until_settled().await;
    owner(site.sim()).update_proxy(&before.id, &called("Europe-1"), false).await.unwrap();
    site.until_verified().await;
    assert_eq!(site.only().display_name, "Somebody's");
    assert_eq!(site.only().icon, "/emojis/1f30d.png");
    assert_eq!((site.asked("POST"), site.registrations().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_token_is_made_again_and_the_pods_roll() {
    let site = ProxyScene::ready(&OPERATOR, "lost", json!({})).await;
    let (before, checksum) = (site.assert_consistent().await, site.checksum().await);
    site.scene().delete::<Secret>(SECRET).await;
    is_replaced(&site, &before.token).await;
    let rolled = |made: &Deployment| {
        let all = made.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref()?.annotations.clone());
        all.is_some_and(|all| all["checksum/proxy-token"] != checksum)
    };
    site.scene().until(CHILD, rolled).await;
    let after = site.assert_consistent().await;
    assert_eq!(after.id, before.id, "the registration is the same");
    assert!(!is_alive(site.sim(), &before.token).await && is_alive(site.sim(), &after.token).await);
    // An emptied Secret is one too.
    site.scene().edit::<Secret>(SECRET, json!({"data": {"token": null}})).await;
    is_replaced(&site, &after.token).await;
    assert_eq!(site.assert_consistent().await.id, before.id);
    assert_eq!((site.asked("POST"), site.registrations().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_token_is_noticed_and_made_again() {
    let site = ProxyScene::ready(&OPERATOR, "dead", json!({})).await;
    let before = site.assert_consistent().await;
    let settings =
        ProxySettings { display_name: "eu".into(), icon: "/emojis/1f5fa.png".into(), ..called("eu") };
    let theirs = owner(site.sim()).update_proxy(&before.id, &settings, true).await.unwrap().token.unwrap();
    is_replaced(&site, &before.token).await;
    let after = site.assert_consistent().await;
    assert_eq!(after.id, before.id);
    assert!(!is_alive(site.sim(), &theirs).await && is_alive(site.sim(), &after.token).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_somebody_deleted_is_made_again() {
    let site = ProxyScene::ready(&OPERATOR, "deleted", json!({})).await;
    let before = site.assert_consistent().await;
    owner(site.sim()).delete_proxy(&before.id).await.unwrap();
    site.until(|proxy| is_settled(proxy) && status(proxy).proxy_id.is_some_and(|id| id != before.id)).await;
    let after = site.assert_consistent().await;
    assert!(is_alive(site.sim(), &after.token).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_of_somebody_else_is_never_touched() {
    let site = ProxyScene::plane(&OPERATOR, "theirs", Mode::Licensed).await;
    let theirs = owner(site.sim()).create_proxy(&called("EU")).await.unwrap();
    site.make(json!({})).await;
    let proxy = site.until_condition("Registered", "False", "ProxyConflict").await;
    assert!(message(&proxy, "Registered").contains("did not register"));
    assert!(is(&proxy, "Ready", "False", Some("ProxyConflict")) && is(&proxy, "Stalled", "True", None));
    assert_eq!(site.asked("PATCH"), 0);
    assert!(is_alive(site.sim(), &theirs.token.unwrap()).await);
    assert_eq!(site.only().display_name, "Somebody's");
    owner(site.sim()).delete_proxy("EU").await.unwrap();
    site.assert_consistent().await;
    // Nor is its own one renamed onto another's.
    owner(site.sim()).create_proxy(&called("us")).await.unwrap();
    site.edit(json!({"registration": {"proxyName": "us"}})).await;
    site.until_condition("Registered", "False", "ProxyConflict").await;
    assert_eq!(names(site.sim()), ["eu", "us"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_objects_with_one_name_the_older_gets_it() {
    let site = ProxyScene::ready(&OPERATOR, "two", json!({})).await;
    let before = site.assert_consistent().await;
    let spec = json!({"controlPlaneRef": {"name": "coder"}, "registration": {"proxyName": "EU"}});
    site.make_as("younger", spec).await;
    let refused = |proxy: &CoderWorkspaceProxy| is(proxy, "Registered", "False", Some("ProxyConflict"));
    site.scene().until("younger", refused).await;
    assert_eq!(site.assert_consistent().await.token.expose_secret(), before.token.expose_secret());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_secret_and_a_lost_status_cost_no_token() {
    let site = ProxyScene::ready(&OPERATOR, "renamed", json!({})).await;
    let before = site.assert_consistent().await;
    site.edit(json!({"registration": {"generatedTokenSecretName": "other"}})).await;
    site.scene().until_gone::<Secret>(SECRET).await;
    let is_there = |proxy: &CoderWorkspaceProxy| {
        is_settled(proxy) && status(proxy).proxy_token_secret_ref.is_some_and(|place| place.name == "other")
    };
    site.until(is_there).await;
    site.assert_consistent().await;
    let api = site.scene().api::<CoderWorkspaceProxy>();
    let lost = json!({"status": {"proxyID": null, "proxyName": null, "deploymentID": null, "coderURL": null,
        "credentialsSource": null, "controlPlaneRefName": null, "proxyTokenSecretRef": null, "conditions": null}});
    api.patch_status("eu", &PatchParams::default(), &Patch::Merge(&lost)).await.unwrap();
    let after = site.assert_consistent().await;
    assert_eq!((after.id, after.token.expose_secret()), (before.id, before.token.expose_secret()));
    assert_eq!((site.asked("POST"), site.asked("PATCH")), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_control_plane_means_another_registration_and_the_old_one_goes() {
    let site = ProxyScene::ready(&OPERATOR, "moves", json!({})).await;
    let other = site.coder.another_plane("other").await;
    site.edit(json!({"controlPlaneRef": {"name": "other"}})).await;
    let has_moved = |proxy: &CoderWorkspaceProxy| {
        is_settled(proxy) && status(proxy).control_plane_ref_name.as_deref() == Some("other")
    };
    site.until(has_moved).await;
    holds(&other, &["eu"]).await;
    site.until_holds(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_a_person_supplies_takes_the_place_of_the_registration() {
    let site = ProxyScene::ready(&OPERATOR, "supplied", json!({})).await;
    site.coder.secret_text("mine", "token", "anything").await;
    let spec = json!({"controlPlaneRef": null, "primaryAccessURL": "https://coder.example.com",
        "proxySessionTokenSecretRef": {"name": "mine"}});
    site.edit(spec).await;
    site.until_holds(&[]).await;
    site.scene().until_gone::<Secret>(SECRET).await;
    let is_free =
        |proxy: &CoderWorkspaceProxy| is(proxy, "Ready", "True", None) && proxy.metadata.finalizers.is_none();
    let proxy = site.until(is_free).await;
    assert_eq!(status(&proxy).registered, Some(false));
}
