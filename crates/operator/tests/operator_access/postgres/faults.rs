//! What goes wrong with the database: what is said, what is kept, and that it comes back.

use std::time::{Duration, Instant};

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::postgres::{Proxy, ProxyFault, shared};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use secrecy::ExposeSecret;
use serde_json::json;

use super::{Based, with_url};
use coder_k8s_scenes::scene::{condition, message, status};

/// What happens between the operator and the database, or in it.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Network(ProxyFault),
    /// Statements for the superuser: to break it, and to mend it. `ROLE` is the user, `DATABASE` its database.
    Sql(&'static str, &'static str),
}

const TABLE: [(&str, Fault, &str); 9] = [
    ("refuses", Fault::Network(ProxyFault::Close), "DatabaseUnreachable"),
    ("hangs", Fault::Network(ProxyFault::Hang), "DatabaseTimeout"),
    ("dies in the transaction", Fault::Network(ProxyFault::CutBefore("INSERT INTO")), "DatabaseUnreachable"),
    ("commits and drops the reply", Fault::Network(ProxyFault::CutAfter("COMMIT")), "DatabaseUnreachable"),
    ("commits and never answers", Fault::Network(ProxyFault::SilentAfter("COMMIT")), "DatabaseTimeout"),
    (
        "is read-only",
        Fault::Sql(
            "ALTER DATABASE DATABASE SET default_transaction_read_only = on",
            "ALTER DATABASE DATABASE RESET default_transaction_read_only",
        ),
        "DatabaseReadOnly",
    ),
    (
        "does not let the user in",
        Fault::Sql("ALTER ROLE ROLE NOLOGIN", "ALTER ROLE ROLE LOGIN"),
        "DatabaseAuthFailed",
    ),
    (
        "has tables of another shape",
        Fault::Sql(
            "ALTER TABLE api_keys ADD COLUMN surprise text NOT NULL DEFAULT ''; ALTER TABLE api_keys ALTER COLUMN surprise DROP DEFAULT",
            "ALTER TABLE api_keys DROP COLUMN surprise",
        ),
        "SchemaUnknown",
    ),
    (
        "lacks permissions",
        Fault::Sql(
            "ALTER TABLE api_keys OWNER TO postgres; REVOKE ALL ON api_keys FROM PUBLIC",
            "GRANT ALL ON api_keys TO PUBLIC",
        ),
        "DatabasePermissionDenied",
    ),
];

async fn set(based: &Based, proxy: &Proxy, fault: Fault, broken: bool) {
    match fault {
        Fault::Network(trouble) => proxy.set(if broken { trouble } else { ProxyFault::None }),
        Fault::Sql(breaks, mends) => {
            let text = if broken { breaks } else { mends };
            let name = based.database.name();
            based
                .sql(
                    &text
                        .replace("ALTER DATABASE DATABASE", &format!("ALTER DATABASE {name}"))
                        .replace("ROLE ROLE", &format!("ROLE {name}")),
                )
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_told_by_its_reason_and_passes_by_itself() {
    join_all(TABLE.map(|(title, fault, reason)| async move {
        let based = Based::new("pgf").await;
        let proxy = Proxy::start(shared().await.port()).await.unwrap();
        set(&based, &proxy, fault, true).await;
        based.coder.scene.plane("coder", with_url(&based.database.url_through(proxy.port()))).await;
        let plane = based.coder.until_condition("OperatorAccessReady", "False", reason).await;
        let said = message(&plane, "OperatorAccessReady");
        println!("{title}: {reason}: {said}");
        assert!(said.contains(based.database.name()), "{title} names the database: {said}");
        assert!(!said.contains(based.database.password()), "{title}");
        assert_eq!(status(&plane).operator_access_ready, None, "{title}");
        assert_eq!(condition(&plane, "Ready").unwrap().status, "True", "{title}");
        assert!(based.coder.scene.absent::<Secret>("coder-operator-token").await, "{title}");
        set(&based, &proxy, fault, false).await;
        based.until_accepted().await;
        let names = based.tokens().await;
        assert_eq!(names.len(), 1, "{title}: {names:?}");
        assert!(based.accepts(&based.stored().await).await, "{title}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_works_is_kept_whatever_happens_to_the_database() {
    join_all(TABLE.map(|(title, fault, _)| async move {
        let based = Based::new("pgk").await;
        let proxy = Proxy::start(shared().await.port()).await.unwrap();
        based.coder.scene.plane("coder", with_url(&based.database.url_through(proxy.port()))).await;
        let before = status(&based.until_accepted().await);
        let token = based.stored().await;
        set(&based, &proxy, fault, true).await;
        // A new organization calls for the database, and so shows what is wrong with it.
        based.coder.sim.add_organization_to_database("more").await.unwrap();
        let overdue = |plane: &CoderControlPlane| {
            condition(plane, "OperatorAccessReady").is_some_and(|c| c.reason == "RenewalFails")
        };
        let uncertain = matches!(fault, Fault::Network(ProxyFault::CutAfter(_) | ProxyFault::SilentAfter(_)));
        let writes_no_token = matches!(fault, Fault::Sql(breaks, _) if breaks.contains("GRANT"));
        if !uncertain && !writes_no_token {
            let plane = based.coder.scene.until("coder", overdue).await;
            let said = status(&plane);
            assert_eq!(said.operator_access_ready, Some(true), "{title}");
            assert_eq!(said.operator_token_secret_ref, before.operator_token_secret_ref, "{title}");
            assert_eq!(condition(&plane, "OperatorAccessReady").unwrap().status, "True", "{title}");
        } else {
            tokio::time::sleep(Duration::from_secs(16)).await;
        }
        assert_eq!(based.stored().await.expose_secret(), token.expose_secret(), "{title}");
        assert!(based.accepts(&token).await, "{title}");
        set(&based, &proxy, fault, false).await;
        based.coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
        assert_eq!(based.stored().await.expose_secret(), token.expose_secret(), "{title}");
    }))
    .await;
}

/// The median of five edits of the control plane: databases that hang would delay each of them, a busy machine one or two.
async fn median(scene: &coder_k8s_scenes::scene::Scene, round: u32) -> Duration {
    let mut took = Vec::new();
    for edit in 0..5 {
        let image = format!("ghcr.io/coder/coder:v2.{round}.{edit}");
        let began = Instant::now();
        scene.spec("coder", json!({"image": image})).await;
        scene
            .until("coder", |found: &k8s_openapi::api::apps::v1::Deployment| {
                found.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].image.as_deref()
                    == Some(image.as_str())
            })
            .await;
        took.push(began.elapsed());
    }
    took.sort();
    took[2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_database_delays_no_other_object() {
    let _measuring = crate::MEASURING.lock().await;
    let based = Based::new("pgh").await;
    let scene = &based.coder.scene;
    based.accessible().await;
    let alone = median(scene, 1).await;
    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    proxy.set(ProxyFault::Hang);
    for n in 0..20 {
        let name = format!("hanging-{n}");
        scene.service(&name, based.coder.sim.address());
        scene.plane(&name, with_url(&based.database.url_through(proxy.port()))).await;
    }
    scene.until_condition("hanging-19", "OperatorAccessReady", "False", Some("DatabaseTimeout")).await;
    let beside = median(scene, 2).await;
    println!("median of five edits: alone {alone:?}, beside 20 hanging databases {beside:?}");
    // Other tests may have made the machine busy since then. One database after the other would take 40 s.
    assert!(beside < Duration::from_secs(10), "alone {alone:?}, beside {beside:?}");
    // Another database is reached as quickly.
    scene.service("other", based.coder.sim.address());
    let plane = scene.plane("other", with_url(&based.database.url())).await;
    scene.until_condition("other", "OperatorAccessReady", "True", Some("TokenAccepted")).await;
    assert!(!plane.name_any().is_empty());
}

#[tokio::test]
async fn the_password_of_the_database_and_the_token_are_nowhere_to_be_read() {
    let based = Based::new("pgs").await;
    let scene = &based.coder.scene;
    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    proxy.set(ProxyFault::CutBefore("INSERT INTO"));
    scene.plane("coder", with_url(&based.database.url_through(proxy.port()))).await;
    based.coder.until_condition("OperatorAccessReady", "False", "DatabaseUnreachable").await;
    proxy.set(ProxyFault::None);
    based.until_accepted().await;
    let (password, token) = (based.database.password().to_owned(), based.stored().await);
    let plane = scene.until_observed("coder").await;
    let mut said = vec![("status", serde_json::to_string(&plane.status).unwrap()), ("log", scene.log())];
    said.push(("events", format!("{:?}", scene.events("coder").await)));
    said.push(("metrics", scene.operator().get("--metrics-addr", "/metrics").await.1));
    for (place, text) in said {
        assert!(!text.contains(&password), "{place}: the password");
        assert!(!text.contains(token.expose_secret().split_once('-').unwrap().1), "{place}: the token");
    }
}
