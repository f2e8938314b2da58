//! Clusters beside each other.

use coder_k8s_testbed::Cluster;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::alone;

#[tokio::test]
async fn two_clusters_do_not_disturb_each_other() {
    let _alone = alone().await;
    let (one, two) = tokio::join!(
        Cluster::builder().controller_manager(false).start(),
        Cluster::builder().controller_manager(false).start(),
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.url(), two.url());
    assert_ne!(one.run_dir(), two.run_dir());
    let maps = |cluster: &Cluster| Api::<ConfigMap>::namespaced(cluster.client(), "default");
    let map = serde_json::from_value(json!({ "metadata": { "name": "only-in-one" } })).unwrap();
    maps(&one).create(&PostParams::default(), &map).await.unwrap();
    assert!(maps(&two).get_opt("only-in-one").await.unwrap().is_none());

    one.stop().await;
    assert!(maps(&two).get_opt("only-in-one").await.unwrap().is_none());
    assert!(two.run_dir().exists());
}
