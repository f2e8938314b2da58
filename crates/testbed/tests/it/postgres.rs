//! The real database server: roles, what it logs, its end and what a proxy does to connections.

use std::time::Duration;

use coder_k8s_testbed::postgres::{Postgres, Proxy, ProxyFault, shared};
use tokio_postgres::NoTls;

async fn dial(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

#[tokio::test]
async fn each_database_is_fresh_and_its_password_is_checked() {
    let server = shared().await;
    let (one, two) = (server.database().await.unwrap(), server.database().await.unwrap());
    let client = one.connect().await.unwrap();
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await.unwrap();
    assert!(two.connect().await.unwrap().query("SELECT n FROM t", &[]).await.is_err());
    assert!(dial(&two.url()).await.is_ok());
    let error = dial(&two.url().replace(two.password(), "wrong")).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "28P01");
}

#[tokio::test]
async fn a_dropped_database_is_gone_although_somebody_is_connected() {
    let server = shared().await;
    let database = server.database().await.unwrap();
    let (url, _client) = (database.url(), database.connect().await.unwrap());
    drop(database);
    assert!(dial(&url).await.is_err());
}

#[tokio::test]
async fn a_copy_of_a_template_has_its_tables_and_a_role_of_its_own() {
    let server = shared().await;
    let source = server.database().await.unwrap();
    source.connect().await.unwrap().batch_execute("CREATE TABLE t (n int)").await.unwrap();
    let template = source.into_template();
    let (one, two) = (template.database().await.unwrap(), template.database().await.unwrap());
    assert_ne!(one.name(), two.name());
    let client = one.connect().await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN m int").await.unwrap();
    assert!(two.connect().await.unwrap().query("SELECT n FROM t", &[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn connections_and_statements_of_a_role_are_counted() {
    let database = shared().await.database().await.unwrap();
    assert_eq!((database.connections(), database.statements().len()), (0, 0));
    let client = dial(&database.url()).await.unwrap();
    client.query("SELECT 1 +\n $1::int4", &[&1]).await.unwrap();
    client.batch_execute("SELECT 2").await.unwrap();
    database.connect_as_superuser().await.unwrap().batch_execute("SELECT 3").await.unwrap();
    assert_eq!(database.connections(), 1);
    assert_eq!(database.statements(), ["SELECT 1 +\n $1::int4", "SELECT 2"]);
}

#[tokio::test]
async fn a_stopped_server_refuses_and_comes_back_with_what_was_committed() {
    let server = Postgres::start().await.unwrap();
    let database = server.database().await.unwrap();
    let client = dial(&database.url()).await.unwrap();
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await.unwrap();
    server.stop().unwrap();
    assert!(client.batch_execute("SELECT 1").await.is_err());
    assert!(dial(&database.url()).await.is_err());
    server.resume().await.unwrap();
    let rows = dial(&database.url()).await.unwrap().query("SELECT n FROM t", &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), 7);
}

/// How long nothing is answered until it counts as never: what comes before it has time to arrive on a busy machine.
const SILENCE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_proxy_makes_connections_go_wrong() {
    let server = shared().await;
    let database = server.database().await.unwrap();
    let proxy = Proxy::start(server.port()).await.unwrap();
    let url = database.url_through(proxy.port());
    let client = dial(&url).await.unwrap();
    client.batch_execute("CREATE TABLE t (n int)").await.unwrap();

    proxy.set(ProxyFault::CutBefore("VALUES (1)"));
    assert!(client.batch_execute("INSERT INTO t VALUES (1)").await.is_err());
    let client = dial(&url).await.unwrap();
    proxy.set(ProxyFault::CutAfter("VALUES (2)"));
    assert!(client.batch_execute("INSERT INTO t VALUES (2)").await.is_err());
    let client = dial(&url).await.unwrap();
    proxy.set(ProxyFault::SilentAfter("VALUES (3)"));
    let silent = client.batch_execute("INSERT INTO t VALUES (3)");
    assert!(tokio::time::timeout(SILENCE, silent).await.is_err());
    proxy.set(ProxyFault::Close);
    assert!(dial(&url).await.is_err());
    proxy.set(ProxyFault::Hang);
    assert!(tokio::time::timeout(SILENCE, dial(&url)).await.is_err());
    assert_eq!(proxy.accepted(), 5);

    let rows = database.connect().await.unwrap().query("SELECT n FROM t ORDER BY n", &[]).await.unwrap();
    let seen: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, [2, 3]);
}
