//! The operator's access: a token that a person gives, or one that an earlier operator left.

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::codersim::{CoderSim, Mode, SimFault};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use secrecy::ExposeSecret;
use serde_json::json;

use coder_k8s_scenes::{
    coderd::{CoderdScene, license},
    scene::{condition, message, status},
};

use crate::OPERATOR;

#[tokio::test]
async fn a_token_that_is_missing_wrong_and_then_right_is_followed_without_a_restart() {
    let coder = CoderdScene::new(&OPERATOR, "access", Mode::Unlicensed).await;
    coder.plane(json!({})).await;
    coder.without("token").await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "SecretMissing").await;
    assert!(message(&plane, "OperatorAccessReady").contains("Secret token of operatorAccess.tokenSecretRef"));
    coder.secret_text("token", "token", "wrong-token1234567890123456789012").await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "Unauthenticated").await;
    assert_eq!(status(&plane).operator_access_ready, None);
    assert_eq!(condition(&plane, "Ready").unwrap().status, "True", "nothing that the spec asks for needs it");
    coder.secret("token", "token", &coder.sim.owner_token()).await;
    let plane = coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert_eq!(status(&plane).operator_access_ready, Some(true));
}

#[tokio::test]
async fn a_token_without_the_right_to_licenses_says_so() {
    let coder = CoderdScene::new(&OPERATOR, "access", Mode::Unlicensed).await;
    coder.licensed_plane(&license(1)).await;
    coder.secret("token", "token", &coder.sim.token_with_roles("auditor", &["auditor"])).await;
    let plane = coder.until_condition("LicenseApplied", "False", "Forbidden").await;
    assert_eq!(condition(&plane, "Stalled").unwrap().status, "True");
}

#[tokio::test]
async fn a_redirect_is_never_followed_with_a_credential() {
    let coder = CoderdScene::new(&OPERATOR, "access", Mode::Unlicensed).await;
    let elsewhere = CoderSim::start(Mode::Unlicensed).await.unwrap();
    coder.sim.fault("*", "/api/v2/**", SimFault::redirect(&elsewhere.url()), None);
    coder.licensed_plane(&license(1)).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "Redirected").await;
    let said = message(&plane, "OperatorAccessReady");
    assert!(said.contains("operatorAccess.apiURL") && said.contains("--allowed-coder-urls"), "{said}");
    assert_eq!(elsewhere.requests().len(), 0);
    // The address that answers can be given, if the operator may call it.
    coder.scene.spec("coder", json!({"operatorAccess": {"apiURL": elsewhere.url()}})).await;
    let plane = coder.until_condition("OperatorAccessReady", "False", "URLNotAllowed").await;
    assert!(message(&plane, "OperatorAccessReady").contains("--allowed-coder-urls"));
    assert_eq!(elsewhere.requests().len(), 0);
    coder.scene.host("answers.test", elsewhere.address());
    elsewhere.add_license(&license(9));
    coder.secret("token", "token", &elsewhere.owner_token()).await;
    coder.scene.spec("coder", json!({"operatorAccess": {"apiURL": "http://answers.test"}})).await;
    let plane = coder.scene.until_ready("coder").await;
    assert!(message(&plane, "OperatorAccessReady").contains("plain HTTP"), "{plane:?}");
    assert!(coder.sim.requests().iter().all(|entry| !entry.is("POST", "/")));
}

#[tokio::test]
async fn the_token_of_an_earlier_operator_is_used_as_it_is_and_nobody_elses() {
    let coder = CoderdScene::new(&OPERATOR, "access", Mode::Unlicensed).await;
    coder.secret("license", "license", &license(1)).await;
    // Somebody's Secret of that name, not made for this object.
    let token = coder.sim.owner_token();
    coder.secret("coder-operator-token", "token", &token).await;
    let plane = coder.scene.plane("coder", json!({"licenseSecretRef": {"name": "license"}})).await;
    coder.scene.until_condition("coder", "DeploymentReady", "True", None).await;
    coder.until_condition("OperatorAccessReady", "False", "ForeignObject").await;
    coder.until_refreshed(1).await;
    assert!(
        coder.sim.requests().iter().all(|entry| entry.credential.is_none()),
        "nobody else's token is sent"
    );

    let owner = json!([{"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "name": "coder",
        "uid": plane.uid().unwrap(), "controller": true, "blockOwnerDeletion": true}]);
    let before: Secret =
        coder.scene.edit("coder-operator-token", json!({"metadata": {"ownerReferences": owner}})).await;
    let plane = coder.scene.until_ready("coder").await;
    assert_eq!(status(&plane).operator_token_secret_ref.unwrap().name, "coder-operator-token");
    let said = condition(&plane, "OperatorAccessReady").unwrap();
    assert_eq!(
        (said.status.as_str(), said.reason.as_str()),
        ("True", "RenewalFails"),
        "there is no database"
    );
    let after: Secret = coder.scene.until_exists("coder-operator-token").await;
    assert_eq!(after.data, before.data);
    assert_eq!(after.data.unwrap()["token"].0, token.expose_secret().as_bytes());
}

#[tokio::test]
async fn a_server_with_a_certificate_of_its_own_is_called_by_https() {
    let scene = coder_k8s_scenes::scene::Scene::new(&OPERATOR, "access").await;
    let issued =
        rcgen::generate_simple_self_signed(vec![format!("coder.{}.svc.cluster.local", scene.namespace)])
            .unwrap();
    let sim = CoderSim::builder(Mode::Unlicensed)
        .tls(issued.cert.pem(), issued.signing_key.serialize_pem())
        .start()
        .await
        .unwrap();
    scene.service("coder", sim.address());
    let coder = CoderdScene { scene, sim };
    let access =
        json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"}, "caSecretRef": {"name": "ca"}});
    coder.plane(json!({"operatorAccess": access, "tls": {"secretNames": ["cert"]}})).await;
    coder.until_condition("OperatorAccessReady", "False", "SecretMissing").await;
    coder.secret_text("ca", "ca.crt", &issued.cert.pem()).await;
    coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
}

#[tokio::test]
async fn an_operator_that_shall_not_talk_does_not() {
    let coder = CoderdScene::new(&OPERATOR, "access", Mode::Licensed).await;
    coder.plane(json!({"operatorAccess": {"disabled": true}})).await;
    let plane = coder.scene.until_ready("coder").await;
    assert_eq!(condition(&plane, "OperatorAccessReady").unwrap().reason, "Disabled");
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(coder.sim.requests().len(), 0);
    let plane: CoderControlPlane = coder.scene.until_exists("coder").await;
    assert_eq!(status(&plane).license_tier.as_deref(), Some("unknown"));
}
