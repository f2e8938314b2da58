//! An access that is given up: disabled, or gone with its object.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::postgres::{Proxy, ProxyFault, shared};
use k8s_openapi::api::{core::v1::Secret, events::v1::Event};
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};

use super::{Based, with_url};
use coder_k8s_scenes::scene::{condition, message, status};

fn disabled(url: Option<&str>) -> Value {
    let mut spec = url.map_or_else(|| json!({}), with_url);
    spec["operatorAccess"] = json!({"disabled": true});
    spec
}

#[tokio::test]
async fn without_an_address_there_is_nothing_to_revoke_and_nobodys_secret_goes() {
    let based = Based::new("pg").await;
    based.coder.secret_text("coder-operator-token", "token", "somebody's").await;
    based.coder.scene.plane("coder", disabled(None)).await;
    let plane = based.coder.until_condition("OperatorAccessReady", "False", "Disabled").await;
    assert_eq!(
        (status(&plane).operator_access_ready, status(&plane).operator_token_secret_ref),
        (None, None)
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    let secret: Secret = based.coder.scene.until_exists("coder-operator-token").await;
    assert_eq!(secret.data.unwrap()["token"].0, b"somebody's");
    assert_eq!(based.database.connections(), 0);
}

#[tokio::test]
async fn a_token_that_nothing_records_is_revoked_once() {
    let based = Based::new("pg").await;
    based.accessible().await;
    // All that was known is lost, as with an object that was deleted by force and made again.
    let strip = json!({"metadata": {"finalizers": null}});
    based
        .coder
        .scene
        .edit::<CoderControlPlane>(
            "coder",
            json!({"metadata": {"annotations": {"coder.com/paused": "true"}}}),
        )
        .await;
    based.coder.scene.until_condition("coder", "Paused", "True", None).await;
    based.coder.scene.edit::<CoderControlPlane>("coder", strip).await;
    based.coder.scene.delete::<CoderControlPlane>("coder").await;
    based.coder.scene.until_gone::<CoderControlPlane>("coder").await;
    based.coder.scene.until_gone::<Secret>("coder-operator-token").await;
    assert_eq!(based.tokens().await.len(), 1);
    let connections = based.database.connections();
    based.coder.scene.plane("coder", disabled(Some(&based.database.url()))).await;
    let plane = based.coder.until_condition("OperatorAccessReady", "False", "Disabled").await;
    assert_eq!(based.tokens().await, [""; 0]);
    assert_eq!(status(&plane).operator_token_secret_ref, None);
    // Once: neither time nor an edit asks again.
    based.coder.scene.spec("coder", json!({"replicas": 2})).await;
    based.coder.scene.until_ready("coder").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(based.database.connections(), connections + 1);
}

#[tokio::test]
async fn a_disabled_access_loses_token_secret_and_account() {
    let based = Based::new("pg").await;
    based.accessible().await;
    based.coder.scene.spec("coder", json!({"operatorAccess": {"disabled": true}})).await;
    let plane = based.coder.until_condition("OperatorAccessReady", "False", "Disabled").await;
    let said = status(&plane);
    assert_eq!(
        (said.operator_token, said.operator_token_secret_ref, said.operator_access_ready),
        (None, None, None)
    );
    assert_eq!(based.tokens().await, [""; 0]);
    based.coder.scene.until_gone::<Secret>("coder-operator-token").await;
    let client = based.database.connect_as_superuser().await.unwrap();
    let query =
        "SELECT status::text, cardinality(rbac_roles) FROM users WHERE username = 'coder-k8s-operator'";
    let row = client.query_one(query, &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1)), ("suspended", 0), "no owner is left behind");
    based.coder.scene.until::<CoderControlPlane>("coder", |plane| plane.finalizers().is_empty()).await;
    // And back.
    based.coder.scene.spec("coder", json!({"operatorAccess": {"disabled": false}})).await;
    based.until_accepted().await;
    assert!(based.accepts(&based.stored().await).await);
}

#[tokio::test]
async fn a_revocation_that_fails_is_tried_until_it_works() {
    let based = Based::new("pg").await;
    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    let url = based.database.url_through(proxy.port());
    based.coder.scene.plane("coder", with_url(&url)).await;
    based.until_accepted().await;
    proxy.set(ProxyFault::Close);
    based.coder.scene.spec("coder", json!({"operatorAccess": {"disabled": true}})).await;
    let plane = based.coder.until_condition("OperatorAccessReady", "False", "DatabaseUnreachable").await;
    assert!(message(&plane, "OperatorAccessReady").contains("is not revoked yet"));
    let said = status(&plane);
    assert!(said.operator_token.is_some() && said.operator_token_secret_ref.is_some(), "it is still known");
    assert_eq!(said.operator_access_ready, None);
    based.coder.scene.until_gone::<Secret>("coder-operator-token").await;
    assert!(!plane.finalizers().is_empty());
    assert_eq!(based.tokens().await.len(), 1);
    proxy.set(ProxyFault::None);
    based.coder.until_condition("OperatorAccessReady", "False", "Disabled").await;
    assert_eq!(based.tokens().await, [""; 0]);
}

#[tokio::test]
async fn a_deleted_object_leaves_no_token_behind() {
    let based = Based::new("pg").await;
    based.accessible().await;
    based.coder.scene.delete::<CoderControlPlane>("coder").await;
    based.coder.scene.until_gone::<CoderControlPlane>("coder").await;
    assert_eq!(based.tokens().await, [""; 0]);
}

#[tokio::test]
async fn a_dead_database_holds_a_deletion_up_for_a_while_and_is_told_of() {
    let based = Based::new("pg").await;
    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    let url = based.database.url_through(proxy.port());
    based.coder.scene.plane("coder", with_url(&url)).await;
    based.until_accepted().await;
    proxy.set(ProxyFault::Close);
    let began = std::time::Instant::now();
    based.coder.scene.delete::<CoderControlPlane>("coder").await;
    let going = |plane: &CoderControlPlane| {
        condition(plane, "Reconciling").is_some_and(|c| c.reason == "DatabaseUnreachable")
    };
    based.coder.scene.until("coder", going).await;
    based.coder.scene.until_gone::<CoderControlPlane>("coder").await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(5), "the deadline of this operator is 6 s, and it took {took:?}");
    let events = based.coder.scene.api::<Event>().list(&ListParams::default()).await.unwrap().items;
    let told = events.into_iter().find(|event| event.reason.as_deref() == Some("TokenAbandoned"));
    let note = told.and_then(|event| event.note).expect("it is told of");
    let name = coder_k8s_core::names::operator_token(&based.coder.scene.namespace, "coder");
    assert!(note.contains(&name), "{note}");
    assert_eq!(based.tokens().await.len(), 1);
}
