//! An operator that ends at any step, in the database or around it.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_testbed::{
    eventually,
    postgres::{Database, migrated},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::{tokens, with_url};
use coder_k8s_scenes::{
    Operator, PATIENCE,
    scene::{condition, status},
    scoped::ScopedScene,
};

const STEPS: [&str; 6] = [
    "coderd sql-connect",
    "coderd sql-ensure",
    "coderd sql-commit",
    "apply secrets",
    "update codercontrolplanes/status",
    "coderd get-user",
];

/// No lease that the next operator waits for, and a token that coderd stops to accept is soon noticed.
const FLAGS: [&str; 2] = ["--leader-elect=false", "--verify-interval=2s"];

struct World {
    own: ScopedScene,
    database: Database<'static>,
}

impl World {
    async fn new() -> Self {
        let own = ScopedScene::new("crashes").await;
        let database = migrated(None).await;
        own.sim.use_database(database.connect_as_superuser().await.unwrap()).await.unwrap();
        Self { own, database }
    }

    async fn operator(&self) -> Operator {
        let operator = self.own.operator(&FLAGS);
        operator.until_leading().await;
        operator
    }

    async fn plane(&self) {
        let mut spec = with_url(&self.database.url());
        spec["licenseSecretRef"] = json!(null);
        spec["operatorAccess"] = json!({});
        self.own.plane(spec).await;
    }

    async fn stored(&self) -> SecretString {
        let api: Api<Secret> = self.own.scene.api();
        let secret = api.get("coder-operator-token").await.unwrap();
        String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap().into()
    }

    async fn accepts(&self, token: &SecretString) -> bool {
        self.own.sim.look_at_database().await;
        self.own.sim.accepts(token)
    }

    /// Waits until one token works, nothing else is left, and the status says so.
    async fn converged(&self, what: &str) {
        let done = eventually(PATIENCE, || async {
            let plane = self.own.planes().get("coder").await.map_err(|error| error.to_string())?;
            let accepted =
                condition(&plane, "OperatorAccessReady").is_some_and(|c| c.reason == "TokenAccepted");
            let renew = status(&plane).operator_token.and_then(|token| token.renew_after);
            let fresh = renew.is_some_and(|at| at.0 > jiff::Timestamp::now());
            let names = tokens(&self.database).await;
            let works = accepted && self.accepts(&self.stored().await).await;
            if works && fresh && names.len() == 1 && !names[0].ends_with("-next") {
                Ok(())
            } else {
                Err(format!("works: {works}, {names:?} {}", serde_json::to_string(&plane.status).unwrap()))
            }
        });
        done.await.unwrap_or_else(|last| panic!("{what}: {last}"));
    }

    /// Ends an operator at a step, and starts another.
    async fn crash(&self, when: &str, step: &str, mut victim: Operator) -> Operator {
        let ended = tokio::time::timeout(Duration::from_secs(30), victim.exit_code()).await;
        let code = ended.unwrap_or_else(|_| panic!("{when} {step} was never reached"));
        assert_eq!(code, Some(coder_k8s_engine::client::EXIT_CODE), "{when} {step}");
        drop(victim);
        self.operator().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_the_first_token_is_made_leaves_exactly_one_that_works() {
    let world = World::new().await;
    for step in STEPS {
        for when in ["before", "after"] {
            let victim = world.operator().await;
            victim.faults(&[format!("{when} {step} / exit 1")]);
            world.plane().await;
            let next = world.crash(when, step, victim).await;
            world.converged(&format!("{when} {step}")).await;
            world.own.planes().delete("coder", &DeleteParams::default()).await.unwrap();
            let gone = eventually(PATIENCE, || async {
                match world.own.planes().get_opt("coder").await {
                    Ok(None) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
            gone.await.unwrap();
            assert_eq!(tokens(&world.database).await, [""; 0], "{when} {step}");
            drop(next);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_a_token_is_renewed_leaves_exactly_one_that_works_and_never_none() {
    let world = World::new().await;
    let mut operator = world.operator().await;
    world.plane().await;
    world.converged("at first").await;
    for step in STEPS {
        for when in ["before", "after"] {
            drop(operator);
            let before = world.stored().await;
            // The token is past two thirds of its life.
            let client = world.database.connect_as_superuser().await.unwrap();
            let age = "UPDATE api_keys SET created_at = created_at - interval '300 days', expires_at = expires_at - interval '300 days' \
                       WHERE token_name LIKE 'coder-k8s-operator-%'";
            client.batch_execute(age).await.unwrap();
            let past = json!({"status": {"operatorToken": {"renewAfter": "2026-01-01T00:00:00Z"}}});
            let planes: Api<CoderControlPlane> = world.own.planes();
            planes.patch_status("coder", &PatchParams::default(), &Patch::Merge(&past)).await.unwrap();
            let victim = world.own.scene.start_failing(&FLAGS, &[format!("{when} {step} / exit 1")]);
            operator = world.crash(when, step, victim).await;
            let stored = world.stored().await;
            assert!(world.accepts(&stored).await, "{when} {step}: there is always a token that works");
            world.converged(&format!("{when} {step}")).await;
            assert_ne!(world.stored().await.expose_secret(), before.expose_secret(), "{when} {step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_a_refused_token_is_replaced_leaves_exactly_one_that_works() {
    let world = World::new().await;
    let mut operator = world.operator().await;
    world.plane().await;
    world.converged("at first").await;
    for step in ["coderd sql-commit", "apply secrets", "update codercontrolplanes/status"] {
        for when in ["before", "after"] {
            drop(operator);
            let before = world.stored().await;
            // coderd refuses the token until the operator reactivates its account. Then both are valid.
            let client = world.database.connect_as_superuser().await.unwrap();
            let suspend = "UPDATE users SET status = 'suspended' WHERE username = 'coder-k8s-operator'";
            client.batch_execute(suspend).await.unwrap();
            let victim = world.own.scene.start_failing(&FLAGS, &[format!("{when} {step} / exit 1")]);
            operator = world.crash(when, step, victim).await;
            world.converged(&format!("{when} {step}")).await;
            let is_kept = world.stored().await.expose_secret() == before.expose_secret();
            assert_eq!(world.accepts(&before).await, is_kept, "{when} {step}: what was replaced is revoked");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_the_access_is_given_up_leaves_nothing() {
    let world = World::new().await;
    let mut operator = world.operator().await;
    world.plane().await;
    world.converged("at first").await;
    for step in [
        "delete secrets",
        "coderd sql-connect",
        "coderd sql-revoke",
        "coderd sql-commit",
        "patch codercontrolplanes",
        "update codercontrolplanes/status",
    ] {
        for when in ["before", "after"] {
            operator.faults(&[format!("{when} {step} / exit 1")]);
            let disabled = json!({"spec": {"operatorAccess": {"disabled": true}}});
            let planes = world.own.planes();
            planes.patch("coder", &PatchParams::default(), &Patch::Merge(&disabled)).await.unwrap();
            operator = world.crash(when, step, operator).await;
            world.own.until_condition("OperatorAccessReady", "False", Some("Disabled")).await;
            assert_eq!(tokens(&world.database).await, [""; 0], "{when} {step}");
            let api: Api<Secret> = world.own.scene.api();
            assert!(api.get_opt("coder-operator-token").await.unwrap().is_none(), "{when} {step}");
            let enabled = json!({"spec": {"operatorAccess": {"disabled": false}}});
            planes.patch("coder", &PatchParams::default(), &Patch::Merge(&enabled)).await.unwrap();
            world.converged(&format!("{when} {step}")).await;
        }
    }
}
