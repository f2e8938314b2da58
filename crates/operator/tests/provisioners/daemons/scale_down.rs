//! A pool that is made smaller keeps the pods whose daemons are at work.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use coder_k8s_scenes::{daemons::DaemonScene, pool::status};

use crate::DAEMONS;

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// How often pods were patched by the operator.
fn marks(crew: &DaemonScene) -> usize {
    let all = crew.pool.scene.requests_in(&crew.pool.scene.namespace);
    all.iter().filter(|event| event.resource == "pods" && event.verb == "patch").count()
}

#[tokio::test]
async fn idle_daemons_go_first() {
    let mut crew = DaemonScene::new(&DAEMONS, "shrink", json!({"replicas": 3})).await;
    let mut kept = None::<String>;
    for round in 0..2 {
        let names = crew.until_pods(3).await;
        crew.connect_all().await;
        // The youngest: the one that a ReplicaSet would take first. In the second round the one that was kept is idle.
        let busy = names.iter().rev().find(|name| Some(*name) != kept.as_ref()).unwrap().clone();
        crew.busy(&busy, true);
        crew.until_condition("True", "Connected").await;
        crew.pool.until(|pool| status(pool).daemons.is_some_and(|daemons| daemons.busy == 1)).await;
        assert_eq!(marks(&crew), [0, 1][round], "nothing is marked at rest");
        crew.pool.edit(json!({"replicas": 1})).await;
        let left = crew.until_pods(1).await;
        assert_eq!(left, std::slice::from_ref(&busy), "round {round}");
        let pod: Pod = crew.pool.scene.until_exists(&busy).await;
        assert_eq!(pod.annotations().get(COST).map(String::as_str), Some("1000"));
        assert_eq!(pod.spec.unwrap().termination_grace_period_seconds, Some(600), "time to finish");
        crew.busy(&busy, false);
        kept = Some(busy);
        crew.all_leave();
        crew.pool.edit(json!({"replicas": 3})).await;
    }
    // One for the busy one of each round, and one for the one that was busy before.
    assert_eq!(marks(&crew), 3);
}

#[tokio::test]
async fn a_cost_that_the_user_sets_is_left_alone_and_coderd_being_away_holds_up_nothing() {
    let annotations = json!({COST: "7"});
    let mut crew =
        DaemonScene::new(&DAEMONS, "shrink", json!({"replicas": 2, "podAnnotations": annotations})).await;
    crew.until_pods(2).await;
    let names = crew.connect_all().await;
    crew.busy(&names[0], true);
    crew.until_condition("True", "Connected").await;
    crew.pool.edit(json!({"replicas": 1})).await;
    let left = crew.until_pods(1).await;
    let pod: Pod = crew.pool.scene.until_exists(&left[0]).await;
    assert_eq!(pod.annotations()[COST], "7");
    assert_eq!(marks(&crew), 0);

    crew.pool.edit(json!({"replicas": 2, "podAnnotations": null})).await;
    crew.pool.until_ready().await;
    crew.until_pods(2).await;
    let away = coder_k8s_testbed::codersim::SimFault::Reset;
    crew.pool.sim.fault("GET", "/api/v2/organizations/*/provisionerdaemons", away, None);
    crew.pool.edit(json!({"replicas": 1})).await;
    crew.until_pods(1).await;
}
