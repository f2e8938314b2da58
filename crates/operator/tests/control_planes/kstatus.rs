//! What a tool that follows kstatus sees, at every moment.

use std::{sync::Arc, time::Duration};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{Behaviour, Rule};
use futures::TryStreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use serde_json::json;

use coder_k8s_scenes::scene::{Scene, message};

use crate::OPERATOR;

/// What kstatus makes of a custom resource. After its published rules: deletion, generation, Reconciling, Stalled, Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    InProgress,
    Current,
    Failed,
    Terminating,
}

fn verdict(plane: &CoderControlPlane) -> Verdict {
    let is = |type_: &str, status: &str| {
        coder_k8s_scenes::scene::condition(plane, type_).is_some_and(|c| c.status == status)
    };
    let observed = plane.status.as_ref().and_then(|status| status.workload.observed_generation);
    if plane.metadata.deletion_timestamp.is_some() {
        Verdict::Terminating
    } else if observed != plane.metadata.generation || is("Reconciling", "True") {
        Verdict::InProgress
    } else if is("Stalled", "True") {
        Verdict::Failed
    } else if is("Ready", "True") {
        Verdict::Current
    } else {
        Verdict::InProgress
    }
}

/// Every verdict that was ever true of the object, in order, without repetition.
struct Observer {
    seen: Arc<Mutex<Vec<(Verdict, String)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Observer {
    fn start(scene: &Scene, name: &str) -> Self {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let stream = watcher(scene.api::<CoderControlPlane>(), config).default_backoff().applied_objects();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (writing, mut stream) = (seen.clone(), Box::pin(stream));
        let task = tokio::spawn(async move {
            while let Ok(Some(plane)) = stream.try_next().await {
                let now = verdict(&plane);
                let ready = coder_k8s_scenes::scene::condition(&plane, "Ready");
                // Conditions that contradict each other are worse than none.
                let stalled =
                    coder_k8s_scenes::scene::condition(&plane, "Stalled").is_some_and(|c| c.status == "True");
                let working = coder_k8s_scenes::scene::condition(&plane, "Reconciling")
                    .is_some_and(|c| c.status == "True");
                assert!(!(stalled && working), "both stalled and reconciling: {:?}", plane.status);
                let said = ready.map(|c| c.message).unwrap_or_default();
                let mut seen = writing.lock();
                if seen.last().is_none_or(|(last, _): &(Verdict, String)| *last != now) {
                    seen.push((now, said));
                }
            }
        });
        Self { seen, task }
    }

    async fn ends_with(&self, expected: &[Verdict]) {
        for _ in 0..600 {
            let seen: Vec<_> = self.seen.lock().iter().map(|(verdict, _)| *verdict).collect();
            if seen == expected {
                return;
            }
            assert!(!self.task.is_finished(), "the observer has ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("expected {expected:?}, saw {:?}", self.seen.lock());
    }
}

#[tokio::test]
async fn create_update_failure_recovery_and_delete_look_as_they_should() {
    use Verdict::{Current, Failed, InProgress, Terminating};
    let scene = Scene::new(&OPERATOR, "kstatus").await;
    let elsewhere = scene.another("kstatus-ws", scene.consent()).await;
    let bad = Rule::namespace(&scene.namespace).image("broken");
    scene.node().behave(bad, Behaviour::ImagePullBackOff);
    let observer = Observer::start(&scene, "coder");
    let spec = json!({"image": "coder:v1", "progressDeadlineSeconds": 10, "rbac": {"workspaceNamespaces": [elsewhere]}});
    scene.plane("coder", spec).await;
    observer.ends_with(&[InProgress, Current]).await;

    scene.spec("coder", json!({"image": "coder:v2"})).await;
    observer.ends_with(&[InProgress, Current, InProgress, Current]).await;

    scene.spec("coder", json!({"image": "coder:broken"})).await;
    observer.ends_with(&[InProgress, Current, InProgress, Current, InProgress, Failed]).await;
    let plane = scene.until_condition("coder", "Stalled", "True", Some("ProgressDeadlineExceeded")).await;
    assert!(message(&plane, "Stalled").contains("ImagePullBackOff"), "{}", message(&plane, "Stalled"));
    assert_eq!(
        plane.status.as_ref().unwrap().workload.phase.as_deref(),
        Some("Ready"),
        "the old pod still serves"
    );
    assert_eq!(
        plane.status.as_ref().unwrap().workload.image.as_deref(),
        Some("coder:v2"),
        "what has rolled out"
    );

    scene.spec("coder", json!({"image": "coder:v3"})).await;
    observer
        .ends_with(&[InProgress, Current, InProgress, Current, InProgress, Failed, InProgress, Current])
        .await;
    scene.delete::<CoderControlPlane>("coder").await;
    observer
        .ends_with(&[
            InProgress,
            Current,
            InProgress,
            Current,
            InProgress,
            Failed,
            InProgress,
            Current,
            Terminating,
        ])
        .await;
    scene.until_gone::<CoderControlPlane>("coder").await;
}
