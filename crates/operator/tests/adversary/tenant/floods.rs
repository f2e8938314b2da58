//! Much of everything: objects, events, edits, connections.

use std::time::{Duration, Instant};

use coder_k8s_testbed::{
    codersim::{CoderSim, Mode},
    eventually,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    ByteString,
    api::{core::v1::Secret, rbac::v1::Role},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    Row, Verdict, ensure,
    hostile::{Act, Hostile, text_of},
    row,
    stage::{SOON, Stage, Tenant, condition_of, is_observed, object, token_access, with},
};

/// What keeps the API server itself busy comes one after another: how it copes is not what is asked here.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Planes whose database never answers.
const DEAD: usize = 60;
/// So many of them run a pod, without which nobody asks their database.
const RUNNING: usize = 10;
/// Objects that bear our label, of almost a quarter of a megabyte each.
const LABELLED: usize = 150;
/// Updates of a Secret that an object refers to.
const UPDATES: usize = 300;
/// Bundles of certificates, of almost a megabyte each.
const BUNDLES: usize = 25;
/// Who shares a coderd with somebody who holds its requests is served within this time: four calls.
const SERVED: Duration = Duration::from_secs(15);
/// Connections that never finish their request.
const CONNECTIONS: usize = 300;

/// The rows, the longest first.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row(
            "T1 dead-databases",
            "60 control planes whose database never answers",
            "every one is seen",
            dead_databases,
        ),
        row(
            "T1 ca-rewritten",
            "a CA bundle of 900 KiB, rewritten 25 times",
            "a condition says no, and no client is kept for each",
            ca_rewritten,
        ),
        row(
            "T1 labelled",
            "150 Roles of 200 KiB that bear our label and have no owner",
            "none of them is kept or written",
            labelled,
        ),
        row(
            "T1 secret-updates",
            "300 updates of a referenced Secret, as fast as they can be made",
            "bounded work, and the last one counts",
            secret_updates,
        ),
        row("T1 edits", "an object edited 50 times a second", "the last edit is seen", edits),
        row(
            "T1 slow-metrics",
            "300 connections to /metrics that never finish a request",
            "they are limited, and /metrics answers",
            |stage| slow(stage, "--metrics-addr", "/metrics"),
        ),
        row(
            "T1 slow-probes",
            "300 connections to /livez that never finish a request",
            "they are limited, and /livez answers",
            |stage| slow(stage, "--health-addr", "/livez"),
        ),
        row(
            "T1 same-address",
            "20 control planes with the address of a shared coderd and a bogus CA",
            "who has the right one stays connected",
            same_address,
        ),
        row(
            "T1 same-slots",
            "24 control planes that hold every request of a shared coderd",
            "another namespace is served",
            same_slots,
        ),
        row(
            "T1 same-identity",
            "a server that echoes the deployment of another, and a pool that claims its key's name",
            "the real pool is ready",
            same_identity,
        ),
    ]
}

async fn dead_databases(stage: &'static Stage) -> Verdict {
    let _alone = ONE_AT_A_TIME.lock().await;
    let tenant = Tenant::new(stage, "dead").await;
    let silent = Hostile::start(Act::Hang).await;
    let env = json!([{"name": "CODER_PG_CONNECTION_URL", "value": format!("postgres://u@{}/coder?sslmode=disable", silent.address)}]);
    let spec = json!({"extraEnv": env, "rbac": {"workspacePerms": false}, "serviceAccount": {"disableCreate": true, "name": "default"}});
    let made = stream::iter(0..DEAD).map(|n| {
        let (tenant, spec) = (&tenant, spec.clone());
        tenant.proper_service(&format!("coder-{n}"));
        let replicas = json!({"replicas": usize::from(n < RUNNING)});
        async move { tenant.plane(&format!("coder-{n}"), with(spec, replicas)).await }
    });
    let _: Vec<_> = made.buffer_unordered(8).try_collect().await?;
    let api = tenant.api("CoderControlPlane");
    let seen = eventually(2 * SOON, || async {
        let all = api.list(&kube::api::ListParams::default()).await.map_err(|error| error.to_string())?;
        let all = all.items.into_iter().map(|plane| serde_json::to_value(plane).unwrap());
        let seen = all.filter(is_observed).count();
        if seen == DEAD { Ok(()) } else { Err(format!("{seen} of {DEAD} seen")) }
    });
    seen.await.map_err(|error| error.to_string())?;
    let asked = eventually(SOON, || async {
        if silent.connections() > 0 { Ok(()) } else { Err("no database was asked".to_owned()) }
    });
    asked.await.map_err(|error| error.to_string())?;
    let connections = silent.connections();
    Ok(format!("{DEAD} seen, {connections} connections"))
}

async fn ca_rewritten(stage: &'static Stage) -> Verdict {
    let _alone = ONE_AT_A_TIME.lock().await;
    let tenant = Tenant::new(stage, "ca").await;
    let made = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
    let certificate = made.cert.pem();
    let bundle = certificate.repeat(900 * 1024 / certificate.len());
    let silent = Hostile::start(Act::Close).await;
    tenant.service("coder", silent.address);
    let mut spec = with(token_access(), json!({}));
    spec["operatorAccess"]["caSecretRef"] = json!({"name": "ca"});
    tenant.secret("token", "token", "0123456789-0123456789abcdefghijkl").await;
    tenant.plane("coder", spec).await?;
    let secrets: Api<Secret> = Api::namespaced(stage.client.clone(), &tenant.namespace);
    for n in 0..BUNDLES {
        let data = [("ca.crt".to_owned(), ByteString(format!("# {n}\n{bundle}").into_bytes()))].into();
        let secret = Secret {
            data: Some(data),
            metadata: kube::api::ObjectMeta { name: Some("ca".to_owned()), ..Default::default() },
            ..Secret::default()
        };
        if n == 0 {
            secrets.create(&PostParams::default(), &secret).await.map_err(|error| error.to_string())?;
        } else {
            secrets
                .replace("ca", &PostParams::default(), &secret)
                .await
                .map_err(|error| error.to_string())?;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let said =
        tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["BadTarget"]).await?;
    Ok(text_of(&said["reason"]).to_owned())
}

async fn labelled(stage: &'static Stage) -> Verdict {
    let _alone = ONE_AT_A_TIME.lock().await;
    let tenant = Tenant::new(stage, "labelled").await;
    let roles: Api<Role> = Api::namespaced(stage.client.clone(), &tenant.namespace);
    let made = stream::iter(0..LABELLED).map(|n| {
        let roles = roles.clone();
        async move {
            let mut role = Role::default();
            role.metadata.name = Some(format!("labelled-{n}"));
            role.metadata.labels =
                Some([("app.kubernetes.io/managed-by".to_owned(), "coder-k8s".to_owned())].into());
            role.metadata.annotations = Some([("example.com/x".to_owned(), "x".repeat(200 * 1024))].into());
            roles.create(&PostParams::default(), &role).await
        }
    });
    let _: Vec<_> =
        made.buffer_unordered(8).try_collect().await.map_err(|error: kube::Error| error.to_string())?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let requests = tenant.requests().len();
    ensure(requests == 0, || format!("{requests} requests"))?;
    Ok("no request".to_owned())
}

async fn secret_updates(stage: &'static Stage) -> Verdict {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (tenant, sim) = Tenant::with_coderd(stage, "updates", Mode::Unlicensed).await;
    tenant
        .plane_with_token(&sim.owner_token(), json!({"envFrom": [{"secretRef": {"name": "token"}}]}))
        .await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    let before = tenant.requests().len();
    let secrets: Api<Secret> = Api::namespaced(stage.client.clone(), &tenant.namespace);
    let patched = stream::iter(0..UPDATES).map(|n| {
        let (secrets, patch) = (secrets.clone(), json!({"stringData": {"other": format!("{n}")}}));
        async move { secrets.patch("token", &PatchParams::default(), &Patch::Merge(&patch)).await }
    });
    let _: Vec<_> =
        patched.buffer_unordered(8).try_collect().await.map_err(|error: kube::Error| error.to_string())?;
    let work = tenant.requests().len() - before;
    ensure(work < 4 * UPDATES, || format!("{work} requests"))?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(format!("{work} requests, then {}", tenant.at_most(30).await?))
}

async fn edits(stage: &'static Stage) -> Verdict {
    let _alone = ONE_AT_A_TIME.lock().await;
    let tenant = Tenant::new(stage, "edits").await;
    tenant.plane("coder", json!({})).await?;
    let (mut ticks, began, mut count) = (tokio::time::interval(Duration::from_millis(20)), Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(10) {
        ticks.tick().await;
        count += 1;
        let image = json!({"spec": {"image": format!("example.test/coder:v{count}")}});
        tenant.edit("CoderControlPlane", "coder", image).await?;
    }
    tenant.until_observed("CoderControlPlane", "coder").await?;
    Ok(format!("{count} edits, {} requests", tenant.requests().len()))
}

/// Connections that never finish a request do not stay for ever, and do not keep others out.
async fn slow(stage: &'static Stage, flag: &'static str, path: &'static str) -> Verdict {
    let address = stage.operator.address(flag).await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        if let Ok(mut stream) = TcpStream::connect(&address).await {
            let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Slow: ").as_bytes()).await;
            held.push(stream);
        }
    }
    let answered = eventually(SOON, || async {
        let asked = tokio::spawn(stage.operator.get(flag, path));
        match tokio::time::timeout(Duration::from_secs(5), asked).await {
            Ok(Ok((200, _))) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    answered.await.map_err(|error| format!("no answer: {error}"))?;
    let limited = eventually(SOON, || {
        let open = held.iter_mut().filter_map(|stream| stream.try_read(&mut [0; 1024]).err()).count();
        async move { if open < CONNECTIONS { Ok(open) } else { Err(format!("{open} of {CONNECTIONS} are open")) } }
    });
    let open = limited.await.map_err(|error| error.to_string())?;
    Ok(format!("{open} of {CONNECTIONS} still open when one was closed"))
}

/// A coderd that two namespaces use, one of them with a CA that did not sign its certificate.
async fn same_address(stage: &'static Stage) -> Verdict {
    let issued = rcgen::generate_simple_self_signed(vec!["shared.adversary.test".to_owned()]).unwrap();
    let bogus = rcgen::generate_simple_self_signed(vec!["shared.adversary.test".to_owned()]).unwrap();
    let sim = CoderSim::builder(Mode::Licensed).tls(issued.cert.pem(), issued.signing_key.serialize_pem());
    let sim = sim.start().await.unwrap();
    stage.operator.host("shared.adversary.test", sim.address());
    let (good, bad) = (Tenant::new(stage, "shared").await, Tenant::new(stage, "bogus").await);
    let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"},
        "apiURL": "https://shared.adversary.test", "caSecretRef": {"name": "ca"}});
    for (tenant, ca) in [(&good, issued.cert.pem()), (&bad, bogus.cert.pem())] {
        tenant.secret("token", "token", secrecy::ExposeSecret::expose_secret(&sim.owner_token())).await;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}, "stringData": {"ca.crt": ca}});
        tenant.make(secret).await?;
    }
    good.plane("coder", json!({"operatorAccess": access})).await?;
    good.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    for n in 0..20 {
        bad.plane(&format!("coder-{n}"), json!({"operatorAccess": access})).await?;
    }
    stays(&good, Duration::from_secs(10), |plane| {
        condition_of(plane, "OperatorAccessReady").is_some_and(|said| said["status"] == "True")
    })
    .await?;
    let renewed = sim.owner_token();
    good.secret("token", "token", secrecy::ExposeSecret::expose_secret(&renewed)).await;
    let mark = sim.mark();
    let used = eventually(Duration::from_secs(5), || async {
        let known =
            sim.since(mark).iter().any(|entry| entry.path == "/api/v2/users/me" && entry.status == Some(200));
        if known { Ok(()) } else { Err("not asked") }
    });
    used.await.map_err(|error| format!("the new token: {error}"))?;
    Ok("True all the time".to_owned())
}

/// Looks at the control plane for a while, in which something must hold.
async fn stays(
    tenant: &Tenant,
    time: Duration,
    holds: impl Fn(&serde_json::Value) -> bool,
) -> Result<(), String> {
    let (api, began) = (tenant.api("CoderControlPlane"), Instant::now());
    while began.elapsed() < time {
        let plane = api.get("coder").await.map_err(|error| error.to_string())?;
        let plane = serde_json::to_value(plane).unwrap();
        ensure(holds(&plane), || plane["status"]["conditions"].to_string())?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Slots of a server are shared by those who use it: one namespace cannot have them all.
async fn same_slots(stage: &'static Stage) -> Verdict {
    let sim = CoderSim::start(Mode::Licensed).await.unwrap();
    let hanging = coder_k8s_testbed::codersim::SimFault::Latency(Duration::from_secs(30));
    sim.fault("POST", "/api/v2/licenses", hanging, None);
    stage.operator.host("slow.adversary.test", sim.address());
    let (good, bad) = (Tenant::new(stage, "served").await, Tenant::new(stage, "greedy").await);
    let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": "token"}, "apiURL": "http://slow.adversary.test"});
    for tenant in [&good, &bad] {
        tenant.secret("token", "token", secrecy::ExposeSecret::expose_secret(&sim.owner_token())).await;
    }
    for n in 0..24_u8 {
        let license = coder_k8s_scenes::coderd::license(100 + n);
        bad.secret(&format!("license-{n}"), "license", secrecy::ExposeSecret::expose_secret(&license)).await;
        let spec = json!({"operatorAccess": access, "licenseSecretRef": {"name": format!("license-{n}")}});
        bad.plane(&format!("coder-{n}"), spec).await?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = Instant::now();
    good.plane("coder", json!({"operatorAccess": access})).await?;
    good.until(SOON, "CoderControlPlane", "coder", |plane| {
        condition_of(plane, "OperatorAccessReady").is_some_and(|said| said["reason"] == "TokenAccepted")
    })
    .await?;
    let served = began.elapsed();
    ensure(served < SERVED, || format!("only after {served:?}"))?;
    Ok(format!("served after {:.1} s", served.as_secs_f64()))
}

/// Two servers that say they are one deployment, and two pools with one name for their keys.
async fn same_identity(stage: &'static Stage) -> Verdict {
    let (victim, real) = Tenant::with_coderd(stage, "real", Mode::Licensed).await;
    let (attacker, echo) = Tenant::with_coderd(stage, "echo", Mode::Licensed).await;
    echo.set_deployment_id(&real.deployment_id());
    for (tenant, sim) in [(&attacker, &echo), (&victim, &real)] {
        tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
        tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
        let spec = json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0, "key": {"name": "claimed"}});
        tenant.make(object("CoderProvisioner", "pool", spec)).await?;
        let pool = tenant
            .until_reason("CoderProvisioner", "pool", "ProvisionerKeyReady", &["ProvisionerKeyReady"])
            .await;
        pool.map_err(|error| format!("in {}: {error}", tenant.namespace))?;
    }
    Ok("both have their keys".to_owned())
}
