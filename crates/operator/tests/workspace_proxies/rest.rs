//! What a proxy costs when it is made, while nothing happens, and after a restart.

use std::time::Duration;

use coder_k8s_api::CoderWorkspaceProxy;
use coder_k8s_testbed::{AuditEvent, codersim::Mode};
use rustix::process::Signal;
use serde_json::json;

use coder_k8s_scenes::{
    audit::{besides, listed},
    pool::PoolScene,
    proxy::{ProxyScene, is_settled, object, with_plane},
    requests,
    scene::Scene,
    writes,
};

const PROXIES: usize = 5;
const WATCHED: Duration = Duration::from_secs(20);

/// What is asked besides the lease and the watches, as lines to read.
fn asked_besides(all: &[AuditEvent]) -> Vec<String> {
    listed(besides(all))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_costs_nothing_at_rest_and_no_write_after_a_restart() {
    let scene = Scene::unmanaged("rest").await;
    let site = ProxyScene { coder: PoolScene::within(scene, Mode::Licensed).await };
    site.scene().host("far.test", site.sim().address());
    let start = || {
        site.scene().start(&[
            "--leader-elect=false",
            "--entitlements-interval=10m",
            "--verify-interval=24h",
            "--allowed-coder-urls=http://far.test",
        ])
    };
    let mut first = start();
    site.coder.make_plane(json!({})).await;
    site.coder.until_answered().await;
    site.coder.secret("creds", "token", &site.sim().owner_token()).await;
    site.coder.secret_text("mine", "token", "anything").await;
    let count = requests(site.scene().cluster(), |user| user == first.user).len();
    site.make(json!({})).await;
    site.until_settled().await;
    site.sim().set_proxy_status("eu", "ok", "v2.36.1");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = requests(site.scene().cluster(), |user| user == first.user).split_off(count);
    let written = writes(&asked);
    println!("{} writes for a new proxy", written.len());
    for child in ["serviceaccounts", "services", "secrets", "deployments"] {
        let of = written.iter().filter(|event| event.resource == child).count();
        assert_eq!(of, 1, "{child}: {:?}", asked_besides(&asked));
    }
    let statuses = written.iter().filter(|event| event.subresource == "status");
    let statuses = statuses.filter(|event| event.resource == "coderworkspaceproxies").count();
    assert!(statuses <= 6, "{statuses}: {:?}", asked_besides(&asked));

    for n in 1..PROXIES {
        let spec = match n {
            1 => {
                json!({"primaryAccessURL": "http://far.test", "proxySessionTokenSecretRef": {"name": "mine"}})
            }
            2 => {
                json!({"bootstrap": {"coderURL": "http://far.test", "credentialsSecretRef": {"name": "creds"}}})
            }
            _ => with_plane(json!({"replicas": n % 3})),
        };
        site.scene().create::<CoderWorkspaceProxy>(object(&format!("p{n}"), spec)).await;
    }
    for n in 2..PROXIES {
        site.scene().until(&format!("p{n}"), is_settled).await;
        site.sim().set_proxy_status(&format!("p{n}"), "ok", "v2.36.1");
    }
    site.scene()
        .until("p1", |proxy: &CoderWorkspaceProxy| coder_k8s_scenes::proxy::is(proxy, "Ready", "True", None))
        .await;
    first.until_idle("CoderWorkspaceProxy").await;
    let (mark, count) =
        (site.sim().mark(), requests(site.scene().cluster(), |user| user == first.user).len());
    tokio::time::sleep(WATCHED).await;
    let asked = requests(site.scene().cluster(), |user| user == first.user).split_off(count);
    assert_eq!(asked_besides(&asked), [""; 0], "at rest for {WATCHED:?}");
    assert_eq!(site.sim().since(mark), [], "at rest for {WATCHED:?}");

    first.signal(Signal::TERM);
    assert_eq!(first.exit_code().await, Some(0), "{}", first.output());
    let mark = site.sim().mark();
    let second = start();
    second.until_reconciled("CoderWorkspaceProxy", PROXIES as u64).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = requests(site.scene().cluster(), |user| user == second.user);
    let written: Vec<_> =
        writes(&asked).into_iter().filter(|event| event.resource != "codercontrolplanes").collect();
    assert!(written.is_empty(), "{written:?}");
    let early = site.sim().since(mark).iter().filter(|e| e.path.contains("workspaceprox")).count();
    assert!(early <= 2, "a restart alone verifies within the interval: {:?}", site.sim().since(mark));
}
