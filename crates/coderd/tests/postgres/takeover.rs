//! Rows as the Go operator left them.

use coder_k8s_coderd::postgres::{Change, DatabaseTokenRequest};
use jiff::SignedDuration;
use secrecy::SecretString;
use serde_json::Value;

use super::scene::{DAY, Scene};

const OUTSIDE: &str = include_str!("../../../scenes/fixtures/go_operator_outside.json");
/// The token in its Secret; all values in the recording are invented.
const TOKEN: &str = "7RS6IcSy60-bzQ4nDAxeLSnHaa6dEj6SK";
const TOKEN_NAME: &str = "coder-k8s-operator-34b18bd13bc56299";
/// The life that the Go operator gives its tokens.
const YEAR: SignedDuration = SignedDuration::from_hours(24 * 365);

async fn recorded() -> Scene {
    let mut scene = Scene::new().await;
    scene.sql("SET session_replication_role = replica; DELETE FROM users; DELETE FROM organizations").await;
    scene.sql("ALTER TABLE organizations ALTER COLUMN default_org_member_roles SET DEFAULT '{}'").await;
    let outside: Value = serde_json::from_str(OUTSIDE).unwrap();
    for table in ["site_configs", "organizations", "users", "organization_members", "api_keys"] {
        let table_text = &outside["database"]["tables"][table];
        let columns: Vec<_> = table_text["columns"].as_object().unwrap().keys().cloned().collect();
        let columns = columns.join(", ");
        let rows = table_text["rows"].to_string().replace('\'', "''");
        scene
            .sql(&format!(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM json_populate_recordset(null::{table}, '{rows}')"
            ))
            .await;
    }
    scene.now = "2026-11-15T20:38:00Z".parse().unwrap();
    scene
}

fn wanted<'a>(scene: &Scene, token: &'a SecretString) -> DatabaseTokenRequest<'a> {
    DatabaseTokenRequest { token_name: TOKEN_NAME, lifetime: YEAR, ..scene.wanted(Some(token)) }
}

#[tokio::test]
async fn the_token_of_the_existing_operator_is_accepted_without_a_write() {
    let scene = recorded().await;
    let token = SecretString::from(TOKEN);
    let before = scene.fingerprint().await;
    let ensured = scene.ensure_as(&wanted(&scene, &token)).await.unwrap();
    assert!(!ensured.made && ensured.is_only_one);
    assert_eq!(ensured.changes, []);
    assert_eq!(ensured.expires, "2027-11-15T20:37:40.773128Z".parse().unwrap());
    assert_eq!(ensured.deployment_id.as_deref(), Some("f19d2b54-3a49-4267-8df5-3be47b39effe"));
    assert_eq!(scene.fingerprint().await, before);
}

#[tokio::test]
async fn it_is_renewed_in_time_without_a_gap() {
    let mut scene = recorded().await;
    let token = SecretString::from(TOKEN);
    scene.now += YEAR - DAY;
    let renewed = scene.ensure_as(&wanted(&scene, &token)).await.unwrap();
    assert_eq!(renewed.changes, [Change::TokenMade]);
    assert!(scene.accepts(&token).await && scene.accepts(&renewed.token).await);
}

#[tokio::test]
async fn a_lost_secret_costs_one_token_and_nothing_else() {
    let scene = recorded().await;
    let token = SecretString::from(TOKEN);
    let lost = DatabaseTokenRequest { existing: None, ..wanted(&scene, &token) };
    let ensured = scene.ensure_as(&lost).await.unwrap();
    assert_eq!(ensured.changes, [Change::TokensRemoved(1), Change::TokenMade]);
}
