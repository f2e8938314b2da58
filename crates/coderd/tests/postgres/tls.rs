//! The encrypted connection: what is verified in each mode, and what is said when it fails.

use std::net::SocketAddr;
use std::sync::Arc;

use coder_k8s_coderd::Resolve;
use coder_k8s_coderd::postgres::{Postgres, PostgresSettings};
use coder_k8s_testbed::postgres::{Database, Postgres as Server, shared};
use futures::future::BoxFuture;
use rcgen::{CertificateParams, KeyPair};

use super::scene::{NAME, dsn};

/// Every name is this machine.
struct Here;

impl Resolve for Here {
    fn resolve(&self, _: String, port: u16) -> BoxFuture<'_, std::io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]) })
    }
}

/// What comes of a call: the tables are missing, so a call that got in says so.
async fn outcome(
    database: &Database<'_>,
    host: &str,
    mode: &str,
    ca: Option<&str>,
) -> (&'static str, String) {
    let url = database.url().replace("127.0.0.1", host).replace("sslmode=disable", mode);
    let operator =
        Postgres::new(PostgresSettings { resolver: Some(Arc::new(Here)), ..PostgresSettings::on_loopback() });
    match operator.revoke(&dsn(&url), ca.map(str::as_bytes), NAME).await {
        Ok(_) => ("ok", String::new()),
        Err(error) => (error.reason().as_str(), error.to_string()),
    }
}

#[tokio::test]
async fn each_mode_verifies_what_it_says() {
    let server = Server::builder().tls(&["db.example", "pg"]).start().await.unwrap();
    let database = server.database().await.unwrap();
    let ours = server.ca();
    let foreign =
        CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let foreign = Some(foreign.as_str());
    let (good, bad) = ("db.example", "other.example");
    for (host, mode, ca, expected) in [
        (good, "sslmode=disable", None, "ok"),
        (bad, "", None, "ok"),
        (bad, "sslmode=require", None, "ok"),
        (bad, "sslmode=require", ours, "ok"),
        (good, "sslmode=require", foreign, "DatabaseTLS"),
        (bad, "sslmode=verify-ca", ours, "ok"),
        (good, "sslmode=verify-ca", foreign, "DatabaseTLS"),
        (good, "sslmode=verify-ca", None, "DatabaseTLS"),
        (good, "sslmode=verify-full", ours, "ok"),
        ("pg", "sslmode=verify-full", ours, "ok"),
        (bad, "sslmode=verify-full", ours, "DatabaseTLS"),
        (good, "sslmode=verify-full", foreign, "DatabaseTLS"),
        (good, "sslmode=verify-full", None, "DatabaseTLS"),
        (good, "sslmode=verify-full&sslrootcert=/etc/ca.crt", None, "BadConnectionURL"),
        (good, "sslmode=verify-full&sslrootcert=/etc/ca.crt", ours, "ok"),
        (good, "sslmode=require", Some("no certificate"), "BadDatabaseCA"),
        (
            good,
            "sslmode=require",
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "BadDatabaseCA",
        ),
    ] {
        let (seen, text) = outcome(&database, host, mode, ca).await;
        assert_eq!(seen, expected, "{host} {mode} {}: {text}", ca.is_some());
    }
}

#[tokio::test]
async fn a_server_without_tls_is_told_from_a_bad_certificate() {
    let database = shared().await.database().await.unwrap();
    let (reason, text) = outcome(&database, "db.example", "sslmode=require", None).await;
    assert_eq!(reason, "DatabaseTLS");
    assert!(text.contains("does not speak TLS"), "{text}");
}
