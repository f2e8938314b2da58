//! The operator's own token: made in the real database or by the first administrator, and really taken back.

use coder_k8s_api::AccessMethod;
use coder_k8s_coderd::{Client, Connector, Settings};
use coder_k8s_testbed::eventually;
use k8s_openapi::api::core::v1::Secret;
use secrecy::SecretString;
use serde_json::json;

use coder_k8s_scenes::{
    PATIENCE,
    scene::{belongs, status},
};

use crate::real::Real;

const TOKEN: &str = "coder-operator-token";
const PASSWORD: &str = "correct-Horse-42-battery";

/// The token in the operator's Secret.
async fn token(real: &Real) -> SecretString {
    let secret: Secret = real.scene.until_exists(TOKEN).await;
    String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap().into()
}

async fn client(real: &Real, token: &SecretString) -> Client {
    let target = real.target().await;
    Connector::new(Settings::on_loopback()).client(&target, Some(token)).unwrap()
}

/// How many sessions and tokens there are in the database, of anybody.
async fn keys(real: &Real) -> i64 {
    let database = real.database.connect_as_superuser().await.unwrap();
    database.query_one("SELECT count(*) FROM api_keys", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_token_that_was_made_in_the_database_works_on_the_api() {
    let real = Real::serving("postgres", json!({})).await;
    let plane = real.scene.until_ready("coder").await;
    let plane_says = real.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert_eq!(status(&plane_says).operator_token.unwrap().method, AccessMethod::Postgres);
    let secret: Secret = real.scene.until_exists(TOKEN).await;
    assert!(belongs(&secret, &plane));

    let operator = client(&real, &token(&real).await).await;
    let me = operator.me().await.unwrap();
    assert!(me.is_owner() && me.status == "active", "{me:?}");
    assert!(operator.licenses().await.unwrap().is_empty());
    let organization = operator.organization("default").await.unwrap();
    assert!(me.organization_ids.contains(&organization.id), "a member of the default organization");
    assert_eq!(operator.tokens("me").await.unwrap().len(), 1, "listed as any other token");
}

#[tokio::test]
async fn the_first_administrator_is_made_and_the_operators_token_is_theirs() {
    let real = Real::new("first").await;
    let admin = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "admin", "namespace": real.scene.namespace},
        "stringData": {"username": "admin", "email": "admin@example.com", "password": PASSWORD}});
    coder_k8s_scenes::apply(&real.scene.client, admin).await;
    let access = json!({"method": "FirstUser", "firstUserSecretRef": {"name": "admin"}});
    real.plane(json!({"operatorAccess": access})).await;
    real.served().await;
    let plane = real.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert_eq!(status(&plane).operator_token.unwrap().method, AccessMethod::FirstUser);
    let operator = client(&real, &token(&real).await).await;
    let me = operator.me().await.unwrap();
    assert!(me.username == "admin" && me.is_owner(), "{me:?}");
    let nobody = Connector::new(Settings::on_loopback()).client(&real.target().await, None).unwrap();
    nobody
        .log_in("admin@example.com", &PASSWORD.into())
        .await
        .expect("a person can log in with the password");
}

#[tokio::test]
async fn a_token_that_is_taken_back_is_refused_by_the_api() {
    let real = Real::serving("revoke", json!({})).await;
    real.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    let operator = client(&real, &token(&real).await).await;
    operator.me().await.unwrap();
    real.scene.spec("coder", json!({"operatorAccess": {"disabled": true}})).await;
    real.scene.until_gone::<Secret>(TOKEN).await;
    let refused = eventually(PATIENCE, || async {
        match operator.me().await {
            Err(error) if error.reason().as_str() == "Unauthenticated" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    refused.await.unwrap();
    assert_eq!(keys(&real).await, 0);
}

#[tokio::test]
async fn nothing_of_a_deleted_control_plane_opens_its_database() {
    let real = Real::serving("gone", json!({})).await;
    real.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
    assert_eq!(keys(&real).await, 1);
    real.scene.delete::<coder_k8s_api::CoderControlPlane>("coder").await;
    real.scene.until_gone::<coder_k8s_api::CoderControlPlane>("coder").await;
    let gone = eventually(PATIENCE, || async {
        match keys(&real).await {
            0 => Ok(()),
            left => Err(format!("{left} keys are left")),
        }
    });
    gone.await.unwrap();
    real.scene.until_gone::<Secret>(TOKEN).await;
}
