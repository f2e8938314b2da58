//! What goes wrong: each has its word, keeps its deadline, withdraws nothing, and the next call finds its way.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coder_k8s_coderd::postgres::{DatabaseErrorKind, Postgres, PostgresSettings};
use coder_k8s_coderd::{Call, Fault, Faults, Observer, Resolve, RetryAdvice};
use coder_k8s_testbed::postgres::{Postgres as Server, Proxy, ProxyFault, shared};
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::scene::{DAY, LIFETIME, NAME, Scene, dsn, hasty};

/// Longer than any deadline of [`hasty`], and much shorter than a minute.
const AT_MOST: Duration = Duration::from_secs(10);

#[tokio::test]
async fn troubles_of_the_network_are_told_in_time_and_got_over() {
    let mut scene = Scene::new().await;
    let held = scene.ensure(None).await.unwrap().token;
    scene.now += LIFETIME - DAY;
    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    let through = dsn(&scene.database.url_through(proxy.port()));
    let operator = Postgres::new(hasty());
    for (trouble, reason, uncertain, written) in [
        (ProxyFault::Close, "DatabaseUnreachable", false, false),
        (ProxyFault::Hang, "DatabaseTimeout", false, false),
        (ProxyFault::CutBefore("BEGIN"), "DatabaseUnreachable", false, false),
        (ProxyFault::CutBefore("FOR UPDATE"), "DatabaseUnreachable", false, false),
        (ProxyFault::CutAfter("INSERT INTO api_keys"), "DatabaseUnreachable", false, false),
        (ProxyFault::SilentAfter("INSERT INTO api_keys"), "DatabaseTimeout", false, false),
        (ProxyFault::CutBefore("COMMIT"), "DatabaseUnreachable", true, false),
        (ProxyFault::CutAfter("COMMIT"), "DatabaseUnreachable", true, true),
        (ProxyFault::SilentAfter("COMMIT"), "DatabaseTimeout", true, true),
    ] {
        let before = scene.tokens().await;
        proxy.set(trouble);
        let began = Instant::now();
        let error = operator.ensure(&through, None, &scene.wanted(Some(&held))).await.unwrap_err();
        assert!(began.elapsed() < AT_MOST, "{trouble:?} took {:?}", began.elapsed());
        let seen = (error.reason().as_str(), error.may_have_happened(), error.retry(), error.stalled());
        assert_eq!(seen, (reason, uncertain, RetryAdvice::Backoff, false), "{trouble:?}: {error}");
        assert!(error.to_string().contains(scene.database.name()), "{error}");
        assert_eq!(scene.tokens().await != before, written, "{trouble:?}");
        assert!(scene.accepts(&held).await, "{trouble:?} withdrew what worked");
    }
    proxy.set(ProxyFault::None);
    let next = operator.ensure(&through, None, &scene.wanted(Some(&held))).await.unwrap();
    operator.ensure(&through, None, &scene.wanted(Some(&next.token))).await.unwrap();
    assert_eq!(scene.token_names().await, [NAME]);
    assert!(scene.accepts(&next.token).await);
}

#[tokio::test]
async fn a_first_token_whose_commit_was_not_heard_of_is_replaced_by_one() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(shared().await.port()).await.unwrap();
    let through = dsn(&scene.database.url_through(proxy.port()));
    proxy.set(ProxyFault::CutAfter("COMMIT"));
    for _ in 0..3 {
        let error = scene.operator.ensure(&through, None, &scene.wanted(None)).await.unwrap_err();
        assert!(error.may_have_happened());
        assert_eq!(scene.tokens().await.len(), 1);
    }
    let token = scene.ensure(None).await.unwrap().token;
    assert!(scene.accepts(&token).await);
    assert_eq!(scene.tokens().await.len(), 1);
}

#[tokio::test]
async fn a_server_that_is_not_there_or_not_known_is_unreachable() {
    let server = Server::start().await.unwrap();
    let url = server.database().await.unwrap().url();
    server.stop().unwrap();
    let settings = PostgresSettings { resolver: Some(Arc::new(Unknown)), ..hasty() };
    let operator = Postgres::new(settings);
    for url in [&url, "postgres://u:p@db.example/c", "postgres://u:p@127.0.0.1:1/c?sslmode=disable"] {
        let error = operator.revoke(&dsn(url), None, NAME).await.unwrap_err();
        assert_eq!(error.reason().as_str(), "DatabaseUnreachable", "{error}");
    }
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_never_dialed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let operator = Postgres::new(PostgresSettings::default());
    for url in [
        format!("postgres://u:p@127.0.0.1:{port}/c"),
        format!("postgres://u:p@/c?host=127.1&port={port}&sslmode=disable"),
        format!("postgres://u:p@[::ffff:127.0.0.1]:{port}/c"),
        format!("user=u port={port}"),
        "host=169.254.169.254 port=80 user=u".to_owned(),
        // Whether something listens is not told.
        "host=127.0.0.1 port=1 user=u".to_owned(),
    ] {
        let error = operator.revoke(&dsn(&url), None, NAME).await.unwrap_err();
        assert_eq!(error.kind, DatabaseErrorKind::AddressNotAllowed, "{url}");
        assert!(error.stalled() && error.to_string().contains("--allowed-address-ranges"), "{error}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody connected");
}

/// Knows no name.
struct Unknown;

impl Resolve for Unknown {
    fn resolve(&self, _: String, _: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(async { Err(io::ErrorKind::NotFound.into()) })
    }
}

#[tokio::test]
async fn a_server_that_restarts_is_found_again() {
    let server = Server::start().await.unwrap();
    let database = server.database().await.unwrap();
    let (target, operator) = (dsn(&database.url()), Postgres::new(hasty()));
    assert_eq!(operator.revoke(&target, None, NAME).await, Ok(0));
    server.stop().unwrap();
    operator.revoke(&target, None, NAME).await.unwrap_err();
    server.resume().await.unwrap();
    assert_eq!(operator.revoke(&target, None, NAME).await, Ok(0));
}

#[tokio::test]
async fn a_lock_that_somebody_holds_is_not_waited_for_forever() {
    let scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    let holder = scene.database.connect_as_superuser().await.unwrap();
    let operator = Postgres::new(hasty());
    for (lock, existing) in [
        ("LOCK TABLE users IN ACCESS EXCLUSIVE MODE", Some(&token)),
        ("SELECT FROM users FOR UPDATE", None),
        ("LOCK TABLE api_keys IN EXCLUSIVE MODE", None),
    ] {
        holder.batch_execute(&format!("BEGIN; {lock}")).await.unwrap();
        let began = Instant::now();
        let error = operator.ensure(&scene.dsn, None, &scene.wanted(existing)).await.unwrap_err();
        assert_eq!(error.reason().as_str(), "DatabaseTimeout", "{lock}: {error}");
        assert!(began.elapsed() < AT_MOST, "{lock}");
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert!(scene.accepts(&token).await, "{lock}");
    }
    let mine = scene.database.name();
    let open = format!("SELECT pid::text FROM pg_stat_activity WHERE usename = '{mine}'");
    coder_k8s_testbed::eventually(AT_MOST, || async {
        let left = scene.list(&open).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} still connected")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_whole_call_has_a_deadline_too() {
    let scene = Scene::new().await;
    scene.sql("CREATE FUNCTION slow() RETURNS trigger AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$ \
               LANGUAGE plpgsql; CREATE TRIGGER slow BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION slow(); \
               CREATE TRIGGER slow BEFORE INSERT ON organization_members FOR EACH ROW EXECUTE FUNCTION slow()")
        .await;
    let settings = PostgresSettings { whole: Duration::from_millis(450), ..PostgresSettings::on_loopback() };
    let began = Instant::now();
    let error = Postgres::new(settings).ensure(&scene.dsn, None, &scene.wanted(None)).await.unwrap_err();
    assert_eq!((error.reason().as_str(), error.may_have_happened()), ("DatabaseTimeout", false));
    assert!(began.elapsed() < AT_MOST);
    assert!(scene.tokens().await.is_empty());
}

#[tokio::test]
async fn refusals_of_the_server_have_their_words() {
    let mut scene = Scene::new().await;
    let token = scene.ensure(None).await.unwrap().token;
    let role = scene.database.name().to_owned();
    let wrong = scene.database.url().replace(scene.database.password(), "wrong");
    let nobody = scene.database.url().replace(&format!("{role}:"), "nobody_there:");
    let nowhere = scene.database.url().replace(&format!("/{role}?"), "/nowhere?");
    let bare = scene.database.url().replace(&format!(":{}@", scene.database.password()), "@");
    for (url, reason) in [
        (wrong, "DatabaseAuthFailed"),
        (nobody, "DatabaseAuthFailed"),
        (bare, "DatabaseAuthFailed"),
        (nowhere, "DatabaseUnreachable"),
    ] {
        let error = scene.operator.ensure(&dsn(&url), None, &scene.wanted(None)).await.unwrap_err();
        assert_eq!(error.reason().as_str(), reason, "{error}");
    }

    scene.sql(&format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await;
    let kept = scene.ensure(Some(&token)).await.unwrap();
    assert!(kept.changes.is_empty(), "to read is enough when nothing has to be written");
    let error = scene.ensure(None).await.unwrap_err();
    assert_eq!((error.reason().as_str(), error.stalled()), ("DatabaseReadOnly", true));
    scene.sql(&format!("ALTER ROLE {role} RESET default_transaction_read_only")).await;

    scene
        .sql(&format!(
            "CREATE ROLE {role}_reader LOGIN PASSWORD 'x'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}_reader"
        ))
        .await;
    let own = scene.dsn.clone();
    scene.dsn = dsn(&scene
        .database
        .url()
        .replace(&format!("{role}:{}", scene.database.password()), &format!("{role}_reader:x")));
    assert!(scene.ensure(Some(&token)).await.unwrap().changes.is_empty());
    let error = scene.ensure(None).await.unwrap_err();
    assert_eq!((error.reason().as_str(), error.stalled()), ("DatabasePermissionDenied", true), "{error}");
    scene.sql(&format!("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}_reader")).await;
    let error = scene.ensure(Some(&token)).await.unwrap_err();
    assert_eq!(error.reason().as_str(), "DatabasePermissionDenied", "{error}");
    scene.sql(&format!("DROP OWNED BY {role}_reader; DROP ROLE {role}_reader")).await;
    scene.dsn = own;
    assert!(scene.accepts(&token).await);
}

#[tokio::test]
async fn a_server_that_is_full_is_waited_for() {
    let scene = Scene::new().await;
    let role = scene.database.name();
    scene.sql(&format!("ALTER ROLE {role} CONNECTION LIMIT 0")).await;
    let error = scene.ensure(None).await.unwrap_err();
    assert_eq!((error.reason().as_str(), error.stalled()), ("DatabaseUnreachable", false), "{error}");
}

/// One fault for one step.
struct Once {
    call: &'static str,
    before: Option<Fault>,
    after: Option<Fault>,
}

impl Faults for Once {
    fn before(&self, call: &Call) -> Option<Fault> {
        self.before.filter(|_| call.name == self.call)
    }

    fn after(&self, call: &Call) -> Option<Fault> {
        self.after.filter(|_| call.name == self.call)
    }
}

#[tokio::test]
async fn every_step_can_be_made_to_fail_before_and_after_its_effect() {
    let scene = Scene::new().await;
    for (call, after, tokens, uncertain) in [
        ("sql-connect", false, 0, false),
        ("sql-connect", true, 0, false),
        ("sql-ensure", false, 0, false),
        ("sql-ensure", true, 0, false),
        ("sql-commit", false, 0, false),
        ("sql-commit", true, 1, true),
    ] {
        scene.without_accounts().await;
        let fault = Some(Fault::Error);
        let (before, after) = if after { (None, fault) } else { (fault, None) };
        let faults: Arc<dyn Faults> = Arc::new(Once { call, before, after });
        let operator =
            Postgres::new(PostgresSettings { faults: Some(faults), ..PostgresSettings::on_loopback() });
        let error = operator.ensure(&scene.dsn, None, &scene.wanted(None)).await.unwrap_err();
        let seen = (error.call, scene.tokens().await.len(), error.may_have_happened());
        assert_eq!(seen, (call, tokens, uncertain), "{before:?} {after:?}");
        scene.ensure(None).await.unwrap();
        assert_eq!(scene.tokens().await.len(), 1);
    }
}

/// Notes what it is told.
#[derive(Default)]
struct Notes(Mutex<Vec<(&'static str, String)>>);

impl Observer for Notes {
    fn called(&self, call: &'static str, outcome: &str, _: Duration) {
        self.0.lock().push((call, outcome.to_owned()));
    }
}

#[tokio::test]
async fn every_step_is_counted_with_its_outcome() {
    let scene = Scene::new().await;
    let notes = Arc::new(Notes::default());
    let operator =
        Postgres::new(PostgresSettings { observer: Some(notes.clone()), ..PostgresSettings::on_loopback() });
    let token = operator.ensure(&scene.dsn, None, &scene.wanted(None)).await.unwrap().token;
    operator.ensure(&scene.dsn, None, &scene.wanted(Some(&token))).await.unwrap();
    operator.revoke(&scene.dsn, None, NAME).await.unwrap();
    scene.sql("UPDATE schema_migrations SET dirty = true").await;
    operator.ensure(&scene.dsn, None, &scene.wanted(None)).await.unwrap_err();
    let seen: Vec<_> = notes.0.lock().drain(..).collect();
    let expected = [
        ("sql-connect", "ok"),
        ("sql-ensure", "ok"),
        ("sql-commit", "ok"),
        ("sql-connect", "ok"),
        ("sql-ensure", "ok"),
        ("sql-connect", "ok"),
        ("sql-revoke", "ok"),
        ("sql-commit", "ok"),
        ("sql-connect", "ok"),
        ("sql-ensure", "DatabaseNotMigrated"),
    ];
    assert_eq!(seen, expected.map(|(call, outcome)| (call, outcome.to_owned())));
}
