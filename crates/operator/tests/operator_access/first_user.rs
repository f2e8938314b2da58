//! Access through the first administrator, whose name and password are in a Secret.

use std::time::Duration;

use coder_k8s_api::{AccessMethod, CoderControlPlane, names::finalizer};
use coder_k8s_testbed::codersim::Mode;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use coder_k8s_scenes::{
    apply,
    coderd::{CoderdScene, license},
    scene::{belongs, condition, message, status},
    scoped::{NO_LEASE, ScopedScene},
};

use crate::OPERATOR;

const PASSWORD: &str = "correct-Horse-42-battery";

fn user(namespace: &str, password: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "admin", "namespace": namespace},
        "stringData": {"username": "admin", "email": "admin@example.com\n", "password": format!("{password}\n")}})
}

fn first_user() -> Value {
    json!({"method": "FirstUser", "firstUserSecretRef": {"name": "admin"}})
}

async fn fresh(mode: Mode) -> CoderdScene {
    let coder = CoderdScene::new(&OPERATOR, "first", mode).await;
    apply(&coder.scene.client, user(&coder.scene.namespace, PASSWORD)).await;
    coder
}

/// The token in the Secret.
async fn stored(api: &Api<Secret>) -> SecretString {
    let secret = api.get("coder-operator-token").await.unwrap();
    String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap().into()
}

/// Makes the time to renew come, as far as the status knows.
async fn is_due(planes: &Api<CoderControlPlane>) {
    let past = json!({"status": {"operatorToken": {"renewAfter": "2026-01-01T00:00:00Z"}}});
    planes.patch_status("coder", &PatchParams::default(), &Patch::Merge(&past)).await.unwrap();
}

#[tokio::test]
async fn a_fresh_deployment_gets_its_administrator_and_the_operator_a_token() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.secret("license", "license", &license(1)).await;
    let spec = json!({"operatorAccess": first_user(), "licenseSecretRef": {"name": "license"}});
    coder.scene.plane("coder", spec).await;
    let plane = coder.scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "OperatorAccessReady").unwrap().reason, "TokenAccepted");
    assert_eq!(coder.sim.usernames(), ["admin"]);
    let names = coder.sim.token_names();
    assert_eq!(names.len(), 1);
    assert!(names[0].starts_with("coder-k8s-operator-"), "{names:?}");
    let token = status(&plane).operator_token.unwrap();
    assert_eq!(token.method, AccessMethod::FirstUser);
    let (ends, renewed) = (token.expires.unwrap().0, token.renew_after.unwrap().0);
    let now = jiff::Timestamp::now();
    assert_eq!(ends.duration_since(now).as_hours(), 167, "an administrator's token lives a week");
    assert_eq!(renewed.duration_since(now).as_hours(), 111, "two thirds of it");
    assert!(plane.finalizers().contains(&finalizer::CONTROL_PLANE.to_owned()));
    let secret: Secret = coder.scene.until_exists("coder-operator-token").await;
    assert!(belongs(&secret, &plane));
    assert_eq!(coder.sim.count("POST", "/api/v2/users/login"), 1);
    assert_eq!(coder.sim.count("DELETE", "/api/v2/users/me/keys"), 1, "the session is ended");
    coder.until_verified().await;
    assert_eq!(coder.sim.count("POST", "/api/v2/users/login"), 1, "a token that works is kept");
    assert_eq!(coder.sim.token_names(), names);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_replaced_before_it_ends_and_the_old_one_goes_after_that() {
    let own = ScopedScene::new("first-user").await;
    apply(&own.scene.client, user(&own.scene.namespace, PASSWORD)).await;
    let secrets: Api<Secret> = own.scene.api();
    let operator = own.operator(&NO_LEASE);
    operator.until_leading().await;
    own.plane(json!({"operatorAccess": first_user(), "licenseSecretRef": null})).await;
    own.until_condition("OperatorAccessReady", "True", Some("TokenAccepted")).await;
    own.until(is_fresh).await;
    drop(operator);
    // Twice, so that both names are used.
    for _ in 0..2 {
        let before = stored(&secrets).await;
        is_due(&own.planes()).await;
        let operator = own.operator(&NO_LEASE);
        operator.until_leading().await;
        own.until(is_fresh).await;
        let after = stored(&secrets).await;
        assert_ne!(before.expose_secret(), after.expose_secret());
        assert!(own.sim.accepts(&after) && !own.sim.accepts(&before));
        assert_eq!(own.sim.token_names().len(), 1);
        own.until_condition("OperatorAccessReady", "True", Some("TokenAccepted")).await;
    }
    assert_eq!(own.sim.count("POST", "/api/v2/users/login"), 1, "each was made with the token before it");
}

/// Whether the time to renew is yet to come.
fn is_fresh(plane: &CoderControlPlane) -> bool {
    let renew = status(plane).operator_token.and_then(|token| token.renew_after);
    renew.is_some_and(|at| at.0 > jiff::Timestamp::now())
}

#[tokio::test]
async fn after_an_outage_longer_than_the_tokens_life_it_logs_in_again() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let api = coder.scene.api::<Secret>();
    let before = stored(&api).await;
    coder.sim.advance(Duration::from_hours(8 * 24));
    coder.scene.spec("coder", json!({"replicas": 2})).await;
    coder
        .scene
        .until::<Secret>("coder-operator-token", |secret| {
            secret.data.as_ref().unwrap()["token"].0 != before.expose_secret().as_bytes()
        })
        .await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert_eq!(coder.sim.count("POST", "/api/v2/users/login"), 2);
    assert_eq!(coder.sim.usernames(), ["admin"]);
}

#[tokio::test]
async fn an_initialised_server_that_knows_another_administrator_is_told_and_not_asked_again() {
    let coder = CoderdScene::new(&OPERATOR, "first", Mode::Unlicensed).await;
    coder.sim.owner_token();
    apply(&coder.scene.client, user(&coder.scene.namespace, PASSWORD)).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "AlreadyInitialised").await;
    assert!(message(&plane, "OperatorAccessReady").contains("method TokenSecret or Postgres"));
    assert_eq!(condition(&plane, "Ready").unwrap().status, "True", "nothing that the spec asks for needs it");
    let asked = coder.sim.count("POST", "/api/v2/users/login");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(
        coder.sim.count("POST", "/api/v2/users/login"),
        asked,
        "a password is not tried again and again"
    );
    assert_eq!(coder.sim.count("POST", "/api/v2/users/first"), 0);
}

#[tokio::test]
async fn a_missing_or_unfit_administrator_is_named_and_followed() {
    let coder = CoderdScene::new(&OPERATOR, "first", Mode::Unlicensed).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "SecretMissing").await;
    assert!(
        message(&plane, "OperatorAccessReady").contains("Secret admin of operatorAccess.firstUserSecretRef")
    );
    assert!(plane.finalizers().is_empty(), "nothing was made");
    apply(&coder.scene.client, user(&coder.scene.namespace, "short")).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "FirstUserInvalid").await;
    assert!(!message(&plane, "OperatorAccessReady").contains("short"));
    apply(&coder.scene.client, user(&coder.scene.namespace, PASSWORD)).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
}

#[tokio::test]
async fn a_disabled_access_is_given_back_and_can_come_again() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let token = stored(&coder.scene.api()).await;
    coder.scene.spec("coder", json!({"operatorAccess": {"disabled": true}})).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "Disabled").await;
    let said = status(&plane);
    assert_eq!(
        (said.operator_token, said.operator_token_secret_ref, said.operator_access_ready),
        (None, None, None)
    );
    assert_eq!(coder.sim.token_names(), [""; 0]);
    coder.scene.until_gone::<Secret>("coder-operator-token").await;
    coder.scene.until::<CoderControlPlane>("coder", |plane| plane.finalizers().is_empty()).await;
    coder.scene.until_idle().await;
    let mark = coder.sim.mark();
    coder.scene.assert_no_writes(Duration::from_secs(4)).await;
    assert_eq!(coder.sim.since(mark).len(), 0);
    coder.scene.spec("coder", json!({"operatorAccess": {"disabled": false}})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert_ne!(stored(&coder.scene.api()).await.expose_secret(), token.expose_secret());
}

#[tokio::test]
async fn a_deleted_object_leaves_no_token_behind() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    coder.scene.delete::<CoderControlPlane>("coder").await;
    coder.scene.until_gone::<CoderControlPlane>("coder").await;
    assert_eq!(coder.sim.token_names(), [""; 0]);
    assert_eq!(coder.sim.usernames(), ["admin"], "the administrator is a person's");
}

#[tokio::test]
async fn a_token_that_a_person_supplies_takes_over_from_one_of_our_own() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let theirs = coder.sim.owner_token();
    coder.secret("token", "token", &theirs).await;
    let access =
        json!({"method": "TokenSecret", "firstUserSecretRef": null, "tokenSecretRef": {"name": "token"}});
    coder.scene.spec("coder", json!({"operatorAccess": access})).await;
    let plane = coder
        .scene
        .until::<CoderControlPlane>("coder", |plane| {
            status(plane).operator_token.is_none() && plane.finalizers().is_empty()
        })
        .await;
    assert_eq!(status(&plane).operator_token_secret_ref.unwrap().name, "token");
    coder.scene.until_gone::<Secret>("coder-operator-token").await;
    assert_eq!(coder.sim.token_names().len(), 1, "theirs");
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
}

#[tokio::test]
async fn a_secret_of_others_under_the_tokens_name_is_left_alone() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.secret_text("coder-operator-token", "token", "somebody's").await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "ForeignObject").await;
    assert!(plane.finalizers().is_empty() && coder.sim.usernames().is_empty(), "nothing was made");
    let plane = coder.scene.until_condition("coder", "Conflict", "True", None).await;
    assert!(message(&plane, "Conflict").contains("Secret coder-operator-token"));
    let hand_over = json!({"metadata": {"annotations": {"coder.com/adopt-by": "CoderControlPlane/coder"}}});
    coder.scene.edit::<Secret>("coder-operator-token", hand_over).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    coder.scene.until_condition("coder", "Conflict", "False", None).await;
}

#[tokio::test]
async fn a_secret_of_another_name_gets_the_same_token() {
    let coder = fresh(Mode::Unlicensed).await;
    coder.scene.plane("coder", json!({"operatorAccess": first_user()})).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let before = stored(&coder.scene.api()).await;
    coder.scene.spec("coder", json!({"operatorAccess": {"generatedTokenSecretName": "elsewhere"}})).await;
    let secret: Secret = coder.scene.until("elsewhere", |_| true).await;
    assert_eq!(secret.data.unwrap()["token"].0, before.expose_secret().as_bytes());
    coder.scene.until_gone::<Secret>("coder-operator-token").await;
    let named = |plane: &CoderControlPlane| {
        status(plane).operator_token_secret_ref.is_some_and(|reference| reference.name == "elsewhere")
    };
    coder.scene.until("coder", named).await;
    assert_eq!(coder.sim.token_names().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_step_leaves_one_token_that_works() {
    let own = ScopedScene::new("first-user").await;
    apply(&own.scene.client, user(&own.scene.namespace, PASSWORD)).await;
    let secrets: Api<Secret> = own.scene.api();
    let plane: CoderControlPlane = serde_json::from_value(json!({"apiVersion": "coder.com/v1alpha1",
        "kind": "CoderControlPlane", "metadata": {"name": "coder"}, "spec": {"operatorAccess": first_user()}}))
    .unwrap();
    for step in [
        "patch codercontrolplanes",
        "update codercontrolplanes/status",
        "coderd create-first-user",
        "coderd log-in",
        "coderd create-token",
        "coderd delete-token",
        "apply secrets",
    ] {
        for when in ["before", "after"] {
            let mut victim = own.operator(&NO_LEASE);
            victim.until_leading().await;
            victim.faults(&[format!("{when} {step} / exit 1")]);
            own.planes().create(&kube::api::PostParams::default(), &plane).await.unwrap();
            // The administrator is made once; after that there is nobody to make.
            let ended = tokio::time::timeout(Duration::from_secs(20), victim.exit_code()).await;
            let made_once = step == "coderd create-first-user" && own.sim.usernames() == ["admin"];
            assert!(ended.is_ok() || made_once, "{when} {step} was never reached");
            drop(victim);
            let next = own.operator(&NO_LEASE);
            next.until_leading().await;
            own.until_condition("OperatorAccessReady", "True", Some("TokenAccepted")).await;
            own.until(|plane| status(plane).operator_token.is_some_and(|token| token.renew_after.is_some()))
                .await;
            assert_eq!(own.sim.usernames(), ["admin"], "{when} {step}");
            assert_eq!(own.sim.token_names().len(), 1, "{when} {step}: exactly one token");
            let token = stored(&secrets).await;
            let works = own.sim.accepts(&token);
            assert!(works, "{when} {step}: the Secret holds a token that works");
            own.planes().delete("coder", &kube::api::DeleteParams::default()).await.unwrap();
            let gone = coder_k8s_testbed::eventually(coder_k8s_scenes::PATIENCE, || async {
                match own.planes().get_opt("coder").await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
            gone.await.unwrap();
            assert_eq!(own.sim.token_names(), [""; 0], "{when} {step}: nothing is left");
            drop(next);
        }
    }
}
