//! Access through coderd's database: a real Postgres with coderd's own tables, and a simulated coderd that looks there.

mod crashes;
mod faults;
mod given_up;
mod sources;

use std::time::Duration;

use coder_k8s_api::{AccessMethod, CoderControlPlane, names::finalizer};
use coder_k8s_coderd::postgres::{DatabaseTokenRequest, Dsn, DsnContext, Postgres, PostgresSettings};
use coder_k8s_testbed::{
    codersim::Mode,
    eventually,
    postgres::{Database, migrated},
};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use coder_k8s_scenes::{
    PATIENCE,
    coderd::{CoderdScene, license},
    scene::{belongs, condition, message, status},
};

use crate::OPERATOR;

/// A control plane whose coderd has a database.
pub struct Based {
    pub coder: CoderdScene,
    pub database: Database<'static>,
}

impl Based {
    pub async fn new(prefix: &str) -> Self {
        let coder = CoderdScene::new(&OPERATOR, prefix, Mode::Unlicensed).await;
        let database = migrated(None).await;
        coder.sim.use_database(database.connect_as_superuser().await.unwrap()).await.unwrap();
        Self { coder, database }
    }

    /// Makes the control plane `coder` with the address of its database.
    pub async fn plane(&self) -> CoderControlPlane {
        self.coder.scene.plane("coder", with_url(&self.database.url())).await
    }

    /// The same, once its access works.
    pub async fn accessible(&self) -> CoderControlPlane {
        self.plane().await;
        self.until_accepted().await
    }

    pub async fn until_accepted(&self) -> CoderControlPlane {
        self.coder.until_condition("OperatorAccessReady", "True", "TokenAccepted").await;
        // With what the record says of the token.
        self.coder
            .scene
            .until("coder", |plane: &CoderControlPlane| {
                status(plane).operator_token.is_some_and(|token| token.renew_after.is_some())
            })
            .await
    }

    /// The token in the Secret.
    pub async fn stored(&self) -> SecretString {
        let secret: Secret = self.coder.scene.until_exists("coder-operator-token").await;
        String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap().into()
    }

    /// Whether coderd accepts a token at this moment.
    pub async fn accepts(&self, token: &SecretString) -> bool {
        self.coder.sim.look_at_database().await;
        self.coder.sim.accepts(token)
    }

    /// The names of the operator's tokens in the database.
    pub async fn tokens(&self) -> Vec<String> {
        tokens(&self.database).await
    }

    /// Changes something in the database, as nobody who is counted.
    pub async fn sql(&self, statement: &str) {
        let client = self.database.connect_as_superuser().await.unwrap();
        client.batch_execute("SET default_transaction_read_only = off").await.unwrap();
        client.batch_execute(statement).await.unwrap();
    }
}

/// The names of the operator's tokens in a database.
pub async fn tokens(database: &Database<'_>) -> Vec<String> {
    let client = database.connect_as_superuser().await.unwrap();
    let rows = client
        .query("SELECT token_name FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%' ORDER BY 1", &[])
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

pub fn with_url(url: &str) -> Value {
    json!({"extraEnv": [{"name": "CODER_PG_CONNECTION_URL", "value": url}]})
}

#[tokio::test]
async fn a_control_plane_with_a_database_gets_its_access_by_itself() {
    let based = Based::new("pg").await;
    let coder = &based.coder;
    coder.secret("license", "license", &license(1)).await;
    let mut spec = with_url(&based.database.url());
    spec["licenseSecretRef"] = json!({"name": "license"});
    coder.scene.plane("coder", spec).await;
    let plane = coder.scene.until_ready("coder").await;
    let said = status(&plane);
    assert_eq!(said.operator_access_ready, Some(true));
    let reference = said.operator_token_secret_ref.unwrap();
    assert_eq!((reference.name.as_str(), reference.key.as_deref()), ("coder-operator-token", Some("token")));
    let plane = based.until_accepted().await;
    let token = status(&plane).operator_token.unwrap();
    let now = jiff::Timestamp::now();
    assert_eq!(token.method, AccessMethod::Postgres);
    assert_eq!(token.expires.unwrap().0.duration_since(now).as_hours(), 365 * 24 - 1);
    assert_eq!(token.renew_after.unwrap().0.duration_since(now).as_hours(), 365 * 16 - 1);
    assert!(plane.finalizers().contains(&finalizer::CONTROL_PLANE.to_owned()));
    let secret: Secret = coder.scene.until_exists("coder-operator-token").await;
    assert!(belongs(&secret, &plane));
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    assert_eq!(based.tokens().await.len(), 1);
    assert_eq!(coder.sim.count("GET", "/api/v2/users/first"), 0, "the set-up page is left to people");
    assert!(coder.sim.usernames().contains(&"coder-k8s-operator".to_owned()));
}

#[tokio::test]
async fn at_rest_no_connection_to_the_database_is_made() {
    let based = Based::new("pg").await;
    based.accessible().await;
    let (connections, statements) = (based.database.connections(), based.database.statements().len());
    let token = based.stored().await;
    // Four verifications and more.
    tokio::time::sleep(Duration::from_secs(50)).await;
    println!(
        "to begin with: {connections} connections, {statements} statements; in four verifications: {} and {}",
        based.database.connections() - connections,
        based.database.statements().len() - statements
    );
    assert_eq!((based.database.connections(), based.database.statements().len()), (connections, statements));
    assert_eq!(connections, 1);
    // An edit asks coderd alone.
    based.coder.scene.spec("coder", json!({"replicas": 2})).await;
    let asked = || based.coder.sim.count("GET", "/api/v2/users/me");
    let before = asked();
    let again = eventually(PATIENCE, || async { if asked() > before { Ok(()) } else { Err("not asked") } });
    again.await.unwrap();
    assert_eq!(based.database.connections(), connections);
    assert_eq!(based.stored().await.expose_secret(), token.expose_secret());
    let open = based.database.connect_as_superuser().await.unwrap();
    let query = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    let count: i64 = open.query_one(query, &[&based.database.name()]).await.unwrap().get(0);
    assert_eq!(count, 0);
}

#[tokio::test]
async fn a_secret_that_lost_its_token_gets_another_one() {
    let based = Based::new("pg").await;
    based.accessible().await;
    let before = based.stored().await;
    let patch = json!({"data": {"token": null, "wrong": "eA=="}});
    based.coder.scene.edit::<Secret>("coder-operator-token", patch).await;
    let found = eventually(PATIENCE, || async {
        let secret: Secret = based.coder.scene.until_exists("coder-operator-token").await;
        let data = secret.data.unwrap_or_default();
        match data.get("token") {
            Some(token) if token.0 != before.expose_secret().as_bytes() && data.contains_key("wrong") => {
                Ok(())
            }
            _ => Err(format!("{:?}", data.keys().collect::<Vec<_>>())),
        }
    });
    found.await.unwrap();
    based.until_accepted().await;
    assert_eq!(based.tokens().await.len(), 1);
    assert!(based.accepts(&based.stored().await).await);
}

#[tokio::test]
async fn control_planes_that_share_a_database_leave_each_others_tokens_alone() {
    let based = Based::new("pg").await;
    let scene = &based.coder.scene;
    based.accessible().await;
    scene.service("second", based.coder.sim.address());
    scene.plane("second", with_url(&based.database.url())).await;
    scene.until_condition("second", "OperatorAccessReady", "True", Some("TokenAccepted")).await;
    let names = based.tokens().await;
    assert_eq!(names.len(), 2);
    assert_ne!(names[0], names[1]);
    scene.delete::<CoderControlPlane>("second").await;
    scene.until_gone::<CoderControlPlane>("second").await;
    assert_eq!(based.tokens().await.len(), 1);
    assert!(based.accepts(&based.stored().await).await, "the account is not suspended while it is used");
}

#[tokio::test]
async fn a_new_organization_is_joined() {
    let based = Based::new("pg").await;
    based.accessible().await;
    let token = based.stored().await;
    based.coder.sim.add_organization_to_database("research").await.unwrap();
    let joined = eventually(PATIENCE, || async {
        let client = based.database.connect_as_superuser().await.unwrap();
        let query = "SELECT count(*) FROM organization_members m JOIN users u ON u.id = m.user_id \
                     WHERE u.username = 'coder-k8s-operator' AND 'organization-admin' = ANY(m.roles)";
        let count: i64 = client.query_one(query, &[]).await.unwrap().get(0);
        if count == 2 { Ok(()) } else { Err(format!("{count}")) }
    });
    joined.await.unwrap();
    assert_eq!(based.stored().await.expose_secret(), token.expose_secret(), "the token stays");
}

#[tokio::test]
async fn a_token_that_coderd_refuses_is_replaced() {
    let based = Based::new("pg").await;
    based.accessible().await;
    for damage in [
        "DELETE FROM api_keys WHERE token_name LIKE 'coder-k8s-operator-%'",
        "UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE token_name LIKE 'coder-k8s-operator-%'",
        "UPDATE users SET status = 'suspended' WHERE username = 'coder-k8s-operator'",
    ] {
        based.sql(damage).await;
        let healed = eventually(PATIENCE, || async {
            let secret: Secret = based.coder.scene.until_exists("coder-operator-token").await;
            let token = String::from_utf8(secret.data.unwrap()["token"].0.clone()).unwrap();
            if based.accepts(&token.into()).await { Ok(()) } else { Err("not accepted") }
        });
        healed.await.unwrap();
        based.until_accepted().await;
        // An account that works again makes the replaced token work too, until that one is revoked.
        let alone = eventually(PATIENCE, || async {
            let names = based.tokens().await;
            if names.len() == 1 { Ok(()) } else { Err(format!("{damage}: {names:?}")) }
        });
        alone.await.unwrap();
    }
}

#[tokio::test]
async fn a_token_that_coderd_goes_on_refusing_is_replaced_after_a_growing_delay() {
    let based = Based::new("pg").await;
    let refusal = coder_k8s_testbed::codersim::SimFault::status(401, "You are signed out.", "");
    based.coder.sim.fault("GET", "/api/v2/users/me", refusal, None);
    based.coder.secret("license", "license", &license(1)).await;
    let mut spec = with_url(&based.database.url());
    spec["licenseSecretRef"] = json!({"name": "license"});
    based.coder.scene.plane("coder", spec).await;
    let plane = based.coder.until_condition("OperatorAccessReady", "False", "TokenRefused").await;
    assert!(message(&plane, "OperatorAccessReady").contains("CODER_PG_CONNECTION_URL"));
    assert_eq!(status(&plane).operator_access_ready, None);
    let (token, connections) = (based.stored().await, based.database.connections());
    let replaced = eventually(PATIENCE, || async {
        let is_another = based.stored().await.expose_secret() != token.expose_secret();
        if is_another { Ok(()) } else { Err("it is still the first one") }
    });
    replaced.await.unwrap();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(15) {
        let plane: CoderControlPlane = based.coder.scene.until_exists("coder").await;
        for type_ in ["OperatorAccessReady", "LicenseApplied"] {
            let found = condition(&plane, type_).unwrap();
            assert_eq!(found.reason, "TokenRefused", "{type_} does not flap");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let made = based.database.connections() - connections;
    assert!((1..=8).contains(&made), "{made} connections to the database within seconds");
    assert!(based.tokens().await.len() <= 2, "the refused ones go");
    assert_eq!(based.coder.sent(), 0, "the license is not sent with a token that is refused");
    based.coder.sim.clear_faults();
    based.until_accepted().await;
    assert_eq!(based.tokens().await.len(), 1);
}

#[tokio::test]
async fn an_account_of_a_person_is_left_alone() {
    let based = Based::new("pg").await;
    based
        .sql("INSERT INTO users (id, email, username, hashed_password, created_at, updated_at, rbac_roles, login_type) \
              VALUES (gen_random_uuid(), 'jo@example.com', 'Coder-K8s-Operator', '\\x00', now(), now(), '{}', 'password')")
        .await;
    based.plane().await;
    let plane = based.coder.until_condition("OperatorAccessReady", "False", "AccountTaken").await;
    assert!(message(&plane, "OperatorAccessReady").contains("rename it in coderd"));
    assert_eq!(condition(&plane, "Ready").unwrap().status, "True", "nothing that the spec asks for needs it");
    assert!(based.coder.scene.absent::<Secret>("coder-operator-token").await);
    let client = based.database.connect_as_superuser().await.unwrap();
    let row =
        client.query_one("SELECT rbac_roles, is_system FROM users WHERE email = 'jo@example.com'", &[]).await;
    let row = row.unwrap();
    assert_eq!((row.get::<_, Vec<String>>(0), row.get::<_, bool>(1)), (vec![], false));
    // Once it has another name, the operator goes on by itself.
    based.sql("UPDATE users SET username = 'jo' WHERE email = 'jo@example.com'").await;
    based.until_accepted().await;
}

#[tokio::test]
async fn what_the_go_operator_left_is_used_and_not_replaced() {
    let based = Based::new("pg").await;
    let scene = &based.coder.scene;
    // Its account and token are as ours; its status records the Secret alone.
    let maker = Postgres::new(PostgresSettings::on_loopback());
    let context = DsnContext { namespace: "x" };
    let dsn = Dsn::parse(&based.database.url(), &context).unwrap();
    let name = coder_k8s_core::names::operator_token(&scene.namespace, "coder");
    let request = DatabaseTokenRequest {
        token_name: &name,
        existing: None,
        lifetime: jiff::SignedDuration::from_hours(365 * 24),
        now: jiff::Timestamp::now(),
        replace: false,
    };
    let made = maker.ensure(&dsn, None, &request).await.unwrap();
    let mut spec = with_url(&based.database.url());
    spec["replicas"] = json!(0);
    let plane = scene.plane("coder", spec).await;
    scene.until_observed("coder").await;
    let owner = json!([{"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "name": "coder",
        "uid": plane.uid().unwrap(), "controller": true, "blockOwnerDeletion": true}]);
    let secret: Secret = scene
        .create(json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "coder-operator-token", "ownerReferences": owner},
            "stringData": {"token": made.token.expose_secret()}}))
        .await;
    scene.spec("coder", json!({"replicas": 1})).await;
    based.until_accepted().await;
    let after: Secret = scene.until_exists("coder-operator-token").await;
    assert_eq!(after.metadata.resource_version, secret.metadata.resource_version, "it was not written");
    assert_eq!(based.tokens().await, [name]);
}
