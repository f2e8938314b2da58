//! The real garbage collector and the real namespace controller.

use coder_k8s_testbed::eventually;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Resource as _;
use kube::api::{Api, DeleteParams, DynamicObject, PostParams};
use serde_json::json;

use crate::{SOON, shared, widget};

#[tokio::test]
async fn what_a_custom_resource_owns_goes_with_it() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("gc").await);
    let resource = widget::resource();
    let widgets = Api::<DynamicObject>::namespaced_with(client.clone(), namespace.name(), &resource);
    let owner =
        widgets.create(&PostParams::default(), &DynamicObject::new("owner", &resource)).await.unwrap();

    let maps = Api::<ConfigMap>::namespaced(client, namespace.name());
    let mut map = ConfigMap::default();
    map.metadata.name = Some("owned".into());
    map.metadata.owner_references = owner.controller_owner_ref(&resource).map(|reference| vec![reference]);
    maps.create(&PostParams::default(), &map).await.unwrap();

    widgets.delete("owner", &DeleteParams::default()).await.unwrap();
    eventually(SOON, || async {
        match maps.get_opt("owned").await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("it is still there".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_deleted_namespace_goes_away_with_its_content() {
    let shared = shared().await;
    let (client, namespace) = (shared.cluster.client(), shared.namespace("doomed").await);
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace.name());
    let map = serde_json::from_value(json!({ "metadata": { "name": "content" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let namespaces = Api::<Namespace>::all(client);
    namespaces.delete(namespace.name(), &DeleteParams::default()).await.unwrap();
    eventually(SOON, || async {
        match namespaces.get_opt(namespace.name()).await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
    .unwrap();
}
