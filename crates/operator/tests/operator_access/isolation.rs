//! A coderd that hangs delays nobody but its own control plane.

use std::time::{Duration, Instant};

use coder_k8s_testbed::{
    codersim::{CoderSim, Mode, SimFault},
    eventually,
};
use futures::future::join_all;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use coder_k8s_scenes::{PATIENCE, coderd::license, scoped::ScopedScene};

use crate::MEASURING;

const HANGING: usize = 20;
const EDITS: u8 = 5;
/// Whatever else hangs.
const BOUND: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn twenty_servers_that_hang_delay_no_edit_of_another() {
    let _measuring = MEASURING.lock().await;
    let own = ScopedScene::new("isolation").await;
    let operator = own.operator(&[]);
    operator.until_leading().await;
    own.licensed_plane(&license(1), json!({})).await;
    let (licensed, rolled) = measure(&own, 2).await;
    println!("alone: license {licensed:?}, image {rolled:?} (median of {EDITS})");

    let hanging = CoderSim::start(Mode::Unlicensed).await.unwrap();
    hanging.fault("*", "/**", SimFault::Latency(PATIENCE), None);
    // Secrets of their own: the others are edited.
    own.secret("hanging", "token", &hanging.owner_token()).await;
    own.secret("hanging-license", "license", &license(1)).await;
    let make = |n: usize| {
        let (own, name) = (&own, format!("hanging-{n}"));
        own.scene.service(&name, hanging.address());
        async move {
            let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": "hanging"}});
            let license = json!({"name": "hanging-license"});
            own.plane_named(&name, json!({"operatorAccess": access, "licenseSecretRef": license})).await;
        }
    };
    join_all((0..HANGING).map(make)).await;
    let all_hang = eventually(PATIENCE, || async {
        match hanging.requests().len() {
            calls if calls >= HANGING => Ok(()),
            calls => Err(format!("{calls} of {HANGING}")),
        }
    });
    all_hang.await.unwrap();
    let (licensed, rolled) = measure(&own, 2 + EDITS).await;
    println!("beside {HANGING} that hang: license {licensed:?}, image {rolled:?} (median of {EDITS})");
    assert!(licensed < BOUND && rolled < BOUND, "{licensed:?}, {rolled:?}");
}

/// From an edit to its effect: a new license, and a new image. The median of several: calls that hang would delay each of them, a busy
/// machine one or two.
async fn measure(own: &ScopedScene, first: u8) -> (Duration, Duration) {
    let mut times = (Vec::new(), Vec::new());
    let deployments: Api<Deployment> = own.scene.api();
    for n in first..first + EDITS {
        let started = Instant::now();
        own.license(&license(n)).await;
        own.until_applied(&license(n)).await;
        times.0.push(started.elapsed());

        let image = format!("ghcr.io/coder/coder:v2.36.{n}");
        let started = Instant::now();
        let edit = json!({"spec": {"image": image}});
        own.planes().patch("coder", &PatchParams::default(), &Patch::Merge(&edit)).await.unwrap();
        let asked = eventually(PATIENCE, || async {
            let spec = deployments.get("coder").await.unwrap().spec.unwrap().template.spec.unwrap();
            if spec.containers[0].image.as_ref() == Some(&image) { Ok(()) } else { Err("not yet") }
        });
        asked.await.unwrap();
        times.1.push(started.elapsed());
        own.until_condition("Ready", "True", None).await;
    }
    times.0.sort();
    times.1.sort();
    let middle = usize::from(EDITS / 2);
    (times.0[middle], times.1[middle])
}
