//! What a proxy claims of its registration is true of its present spec and Secrets. The monitor of each scene judges every
//! version of the proxy besides (see `scenes::truth`).

use coder_k8s_scenes::proxy::{ProxyScene, is};
use serde_json::json;

use crate::OPERATOR;

#[tokio::test]
async fn another_name_is_not_called_registered_while_coderd_is_away() {
    let site = ProxyScene::ready(&OPERATOR, "truth", json!({})).await;
    site.sim().stop().await;
    let edited = site.edit(json!({"registration": {"proxyName": "other"}})).await;
    let seen = site
        .until(|proxy| {
            let conditions = &proxy.status.as_ref().unwrap().workload.conditions;
            let registered = conditions.iter().find(|c| c.type_ == "Registered");
            registered.is_some_and(|c| c.observed_generation == edited.metadata.generation)
        })
        .await;
    assert!(!is(&seen, "Registered", "True", None) && !is(&seen, "Ready", "True", None), "{seen:?}");
    site.sim().restart().await.unwrap();
    site.until_settled().await;
    assert_eq!(site.only().name, "other");
}
