//! One connection for one call: opened, used and closed within its deadlines.
//!
//! Every step passes [`Session::step`], which counts it and can make it fail before and after its effect. A wait that
//! reaches its deadline drops the connection. The server has the same deadlines, so that it does not continue work
//! whose result nobody waits for.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::classify;
use super::dsn::Dsn;
use super::error::{DatabaseError, DatabaseErrorKind};
use super::tls::Tls;
use super::{COMMIT, CONNECT, PostgresSettings};
use crate::{Call, EXIT_CODE, Fault};

/// How much later than the server this side gives up. The error of the server says more than a timeout here.
const GRACE: Duration = Duration::from_millis(250);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const APPLICATION: &str = "coder-k8s";

/// A value and its type for a statement.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection with an open transaction.
pub(super) struct Session<'a> {
    client: Client,
    driver: Driver,
    scope: Scope<'a>,
}

/// What all steps of one call share.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    settings: &'a PostgresSettings,
    dsn: &'a Dsn,
    until: Instant,
}

impl<'a> Scope<'a> {
    pub(super) fn new(settings: &'a PostgresSettings, dsn: &'a Dsn) -> Self {
        Self { settings, dsn, until: Instant::now() + settings.whole }
    }

    pub(super) fn error(&self, call: Call, kind: DatabaseErrorKind) -> DatabaseError {
        let uncertain = call == COMMIT
            && matches!(
                kind,
                DatabaseErrorKind::Timeout(_)
                    | DatabaseErrorKind::Unreachable(_)
                    | DatabaseErrorKind::Unexpected(_)
            );
        DatabaseError { call: call.name, server: self.dsn.server().to_owned(), kind, uncertain }
    }

    /// Runs one step within the deadline of the whole call, with the faults that tests inject.
    async fn step<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T, DatabaseErrorKind>>,
    ) -> Result<T, DatabaseError> {
        let mut timer = StepTimer {
            settings: self.settings,
            call,
            started: std::time::Instant::now(),
            outcome: "canceled",
        };
        let mut sent = false;
        let faulty = async {
            let faults = self.settings.faults.as_ref();
            inject(faults.and_then(|faults| faults.before(&call))).await?;
            sent = true;
            let result = work.await;
            inject(faults.and_then(|faults| faults.after(&call))).await?;
            result
        };
        let result = timeout_at(self.until, faulty).await;
        let result = result.unwrap_or_else(|_| Err(DatabaseErrorKind::Timeout(self.settings.whole)));
        timer.outcome = result.as_ref().map_or_else(|kind| kind.reason().as_str(), |_| "ok");
        result.map_err(|kind| {
            let error = self.error(call, kind);
            DatabaseError { uncertain: error.uncertain && sent, ..error }
        })
    }
}

impl<'a> Session<'a> {
    /// Connects. The transaction begins with [`Session::begin`].
    pub(super) async fn open(scope: Scope<'a>, ca: Option<&[u8]>) -> Result<Self, DatabaseError> {
        let Scope { settings, dsn, .. } = scope;
        let allowed = dsn.connect_timeout.map_or(settings.connect, |asked| asked.min(settings.connect));
        let connected = async {
            let tls = Tls::of(dsn, ca)?;
            // Boxed: TLS makes this future large, and every caller would carry its size.
            let connecting = Box::pin(connect(settings, dsn, tls, allowed));
            let connected = timeout(allowed, connecting).await;
            connected.unwrap_or(Err(DatabaseErrorKind::Timeout(allowed)))
        };
        let (client, driver) = scope.step(CONNECT, connected).await?;
        Ok(Self { client, driver, scope })
    }

    /// Runs one step of a call.
    pub(super) async fn step<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T, DatabaseErrorKind>>,
    ) -> Result<T, DatabaseError> {
        self.scope.step(call, work).await
    }

    /// Begins the transaction. The deadlines and the settings of the URL apply to this transaction only, so that a
    /// pooler in between gets back a clean connection.
    pub(super) async fn begin(&self) -> Result<(), DatabaseErrorKind> {
        let PostgresSettings { statement, whole, .. } = self.scope.settings;
        let (limit, idle) = (statement.as_millis().max(1), whole.as_millis().max(1));
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = {limit}; SET LOCAL lock_timeout = {limit}; \
             SET LOCAL idle_in_transaction_session_timeout = {idle}"
        );
        self.bounded("begin a transaction", self.client.batch_execute(&begin)).await?;
        let Dsn { role, search_path, .. } = self.scope.dsn;
        for (name, value) in [("role", role), ("search_path", search_path)] {
            if let Some(value) = value {
                let params: [Param<'_>; 2] = [(&name, Type::TEXT), (value, Type::TEXT)];
                let set = "SELECT pg_catalog.set_config($1, $2, true)";
                self.query("apply the parameters of the connection URL", set, &params).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn query(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, DatabaseErrorKind> {
        self.bounded(doing, self.client.query_typed(sql, params)).await
    }

    pub(super) async fn execute(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<u64, DatabaseErrorKind> {
        self.bounded(doing, self.client.execute_typed(sql, params)).await
    }

    /// Commits the transaction.
    pub(super) async fn commit(&self) -> Result<(), DatabaseError> {
        self.step(COMMIT, self.bounded("commit", self.client.batch_execute("COMMIT"))).await
    }

    /// Closes the connection. What was not committed is rolled back.
    pub(super) async fn close(self) {
        let Self { client, mut driver, scope } = self;
        let goodbye = async {
            let _ = client.batch_execute("ROLLBACK").await;
            drop(client);
            let _ = (&mut driver.0).await;
        };
        let _ = timeout_at((Instant::now() + CLOSE_TIMEOUT).min(scope.until), goodbye).await;
    }

    async fn bounded<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseErrorKind> {
        let limit = self.scope.settings.statement;
        match timeout(limit + GRACE, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(classify::running(&error, doing, limit)),
            Err(_) => Err(DatabaseErrorKind::Timeout(limit)),
        }
    }
}

/// Decodes a value of a row.
pub(super) fn value<'r, T: FromSql<'r>>(row: &'r Row, index: usize) -> Result<T, DatabaseErrorKind> {
    row.try_get(index)
        .map_err(|_| DatabaseErrorKind::unknown("a value is of another type than it always was"))
}

/// The task that drives the connection. The connection ends when it is dropped.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn connect(
    settings: &PostgresSettings,
    dsn: &Dsn,
    tls: Option<Tls>,
    allowed: Duration,
) -> Result<(Client, Driver), DatabaseErrorKind> {
    let stream = dial(settings, dsn, allowed).await?;
    match tls {
        None => log_in(dsn, stream, allowed).await,
        Some(tls) => log_in(dsn, tls.connect(stream).await?, allowed).await,
    }
}

async fn dial(
    settings: &PostgresSettings,
    dsn: &Dsn,
    allowed: Duration,
) -> Result<TcpStream, DatabaseErrorKind> {
    let began = Instant::now();
    let addresses = addresses(settings, dsn).await.map_err(|error| {
        let host = &dsn.dial;
        DatabaseErrorKind::Unreachable(format!("the name `{host}` does not resolve: {error}"))
    })?;
    let mut last = DatabaseErrorKind::Unreachable(format!("the name `{}` has no address", dsn.dial));
    let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    // Each address gets an equal share of the time, so that one that does not answer leaves time for the others.
    let each = allowed.saturating_sub(began.elapsed()) / count;
    for address in addresses {
        match timeout(each, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = classify::broken(&error),
            Err(_) => last = DatabaseErrorKind::Timeout(allowed),
        }
    }
    Err(last)
}

async fn addresses(settings: &PostgresSettings, dsn: &Dsn) -> io::Result<Vec<SocketAddr>> {
    let Dsn { dial, port, .. } = dsn;
    if let Ok(address) = dial.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, *port)]);
    }
    match &settings.resolver {
        None => Ok(lookup_host((dial.as_str(), *port)).await?.collect()),
        Some(resolver) => {
            let mut found = resolver.resolve(dial.clone(), *port).await?;
            for address in found.iter_mut().filter(|address| address.port() == 0) {
                address.set_port(*port);
            }
            Ok(found)
        }
    }
}

async fn log_in<S>(dsn: &Dsn, stream: S, allowed: Duration) -> Result<(Client, Driver), DatabaseErrorKind>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut config = Config::new();
    // The TLS handshake is done by now; the driver must not ask for it again.
    config.ssl_mode(SslMode::Disable).user(&dsn.user).application_name(APPLICATION);
    config.dbname(dsn.database.as_deref().unwrap_or(&dsn.user));
    if let Some(password) = &dsn.password {
        config.password(password.expose_secret());
    }
    if let Some(options) = &dsn.options {
        config.options(options);
    }
    let connected = config.connect_raw(stream, NoTls).await;
    let (client, connection) = connected.map_err(|error| classify::connecting(&error, dsn, allowed))?;
    let driver = tokio::spawn(async move {
        // The error also reaches whoever waits for an answer, so it is ignored here.
        let _ = connection.await;
    });
    Ok((client, Driver(driver)))
}

/// Applies an injected fault.
async fn inject(fault: Option<Fault>) -> Result<(), DatabaseErrorKind> {
    match fault {
        None => Ok(()),
        Some(Fault::Delay(delay)) => {
            sleep(delay).await;
            Ok(())
        }
        Some(Fault::Error | Fault::Status(_)) => {
            Err(DatabaseErrorKind::Unreachable("injected fault".to_owned()))
        }
        Some(Fault::Exit) => std::process::exit(EXIT_CODE),
    }
}

/// Reports a step when dropped, so that a cancelled step is counted too.
struct StepTimer<'a> {
    settings: &'a PostgresSettings,
    call: Call,
    started: std::time::Instant,
    outcome: &'static str,
}

impl Drop for StepTimer<'_> {
    fn drop(&mut self) {
        let (call, outcome, took) = (self.call.name, self.outcome, self.started.elapsed());
        if let Some(observer) = &self.settings.observer {
            observer.called(call, outcome, took);
        }
        tracing::debug!(call, outcome, ms = took.as_millis(), "called the database");
    }
}
