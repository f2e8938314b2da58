//! What a proxy costs when it is made, while nothing happens, and after a restart.

use std::time::Duration;

use coder_k8s::manifests::Install;
use coder_k8s_api::{CoderWorkspaceProxy, crds};
use coder_k8s_testbed::{AuditEvent, Cluster, codersim::Mode};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    pool::Pool,
    proxy::{Site, is_settled, object, with_plane},
    scene::Scene,
    support::{Operator, grant, requests, writes},
};

const PROXIES: usize = 5;
const WATCHED: Duration = Duration::from_secs(20);

fn besides(all: &[AuditEvent]) -> Vec<String> {
    let all = all.iter().filter(|event| event.resource != "leases" && event.verb != "watch");
    all.map(|event| format!("{} {}/{} {}", event.verb, event.resource, event.subresource, event.name))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_costs_nothing_at_rest_and_no_write_after_a_restart() {
    let cluster = Cluster::builder().crds(crds()).start().await.unwrap();
    let _node = cluster.node("testbed").await.unwrap();
    grant(&cluster.client(), &Install::default()).await;
    let mut scene = Scene::new("rest").await;
    (scene.client, scene.namespace) = (cluster.client(), "default".to_owned());
    let site = Site { coder: Pool::within(scene, Mode::Licensed).await };
    let start = || {
        let operator = Operator::start(
            &cluster,
            &[
                "--leader-elect=false",
                "--entitlements-interval=10m",
                "--verify-interval=24h",
                "--allowed-coder-urls=http://far.test",
            ],
        );
        operator.host("coder.default.svc.cluster.local", site.sim().address());
        operator.host("far.test", site.sim().address());
        operator
    };
    let mut first = start();
    site.coder.make_plane(json!({})).await;
    site.coder.answered().await;
    site.coder.secret("creds", "token", &site.sim().owner_token()).await;
    site.coder.secret_text("mine", "token", "anything").await;
    let count = requests(&cluster, |user| user == first.user).len();
    site.make(json!({})).await;
    site.settles().await;
    site.sim().set_proxy_status("eu", "ok", "v2.36.1");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = requests(&cluster, |user| user == first.user).split_off(count);
    let written = writes(&asked);
    println!("{} writes for a new proxy", written.len());
    for child in ["serviceaccounts", "services", "secrets", "deployments"] {
        let of = written.iter().filter(|event| event.resource == child).count();
        assert_eq!(of, 1, "{child}: {:?}", besides(&asked));
    }
    let statuses = written.iter().filter(|event| event.subresource == "status");
    let statuses = statuses.filter(|event| event.resource == "coderworkspaceproxies").count();
    assert!(statuses <= 6, "{statuses}: {:?}", besides(&asked));

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
        .until("p1", |proxy: &CoderWorkspaceProxy| crate::proxy::is(proxy, "Ready", "True", None))
        .await;
    first.calm("CoderWorkspaceProxy").await;
    let (mark, count) = (site.sim().mark(), requests(&cluster, |user| user == first.user).len());
    tokio::time::sleep(WATCHED).await;
    let asked = requests(&cluster, |user| user == first.user).split_off(count);
    assert_eq!(besides(&asked), [""; 0], "at rest for {WATCHED:?}");
    assert_eq!(site.sim().since(mark), [], "at rest for {WATCHED:?}");

    first.signal(Signal::TERM);
    assert_eq!(first.exit_code().await, Some(0), "{}", first.output());
    let mark = site.sim().mark();
    let second = start();
    second.reconciled("CoderWorkspaceProxy", PROXIES as u64).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = requests(&cluster, |user| user == second.user);
    let written: Vec<_> =
        writes(&asked).into_iter().filter(|event| event.resource != "codercontrolplanes").collect();
    assert!(written.is_empty(), "{written:?}");
    let early = site.sim().since(mark).iter().filter(|e| e.path.contains("workspaceprox")).count();
    assert!(early <= 2, "a restart alone verifies within the interval: {:?}", site.sim().since(mark));
}
