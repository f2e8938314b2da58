//! One connection for one call: opened, used and closed within its deadlines.
//!
//! Every step passes [`CallScope::step`], which counts it and can make it fail before and after its effect. A wait that
//! reaches its deadline drops the connection. The server has the same deadlines, so that it does not continue work
//! whose result nobody waits for.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::dsn::Dsn;
use super::error::{self, DatabaseError, DatabaseErrorKind, Result};
use super::limited::{Excess, Limited};
use super::tls::TlsHandshake;
use super::{COMMIT, CONNECT, PostgresSettings};
use crate::Call;
use crate::address::AddressError;
use crate::connector::{CallTimer, inject};
use crate::intervals::{DATABASE_CLOSE_TIMEOUT, DATABASE_STATEMENT_GRACE};

const APPLICATION: &str = "coder-k8s";

/// A value and its type for a statement. The type is given so that the driver need not prepare the statement first, which
/// some poolers do not support.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What all steps of one call share.
#[derive(Clone, Copy)]
pub(super) struct CallScope<'a> {
    settings: &'a PostgresSettings,
    dsn: &'a Dsn,
    until: Instant,
}

impl<'a> CallScope<'a> {
    pub(super) fn new(settings: &'a PostgresSettings, dsn: &'a Dsn) -> Self {
        Self { settings, dsn, until: Instant::now() + settings.whole }
    }

    /// The error of a step that wrote nothing.
    pub(super) fn error(&self, call: Call, kind: DatabaseErrorKind) -> DatabaseError {
        DatabaseError { call: call.name, server: self.dsn.server().to_owned(), kind, uncertain: false }
    }

    /// Runs one step within the deadline of the whole call, with the faults that tests inject.
    pub(super) async fn step<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T, DatabaseError> {
        let mut timer = CallTimer::start(self.settings.observer.as_ref(), call);
        let injected = |_| DatabaseErrorKind::Unreachable("injected fault".to_owned());
        let mut sent = false;
        let faulty = async {
            let faults = self.settings.faults.as_ref();
            inject(faults.and_then(|faults| faults.before(&call))).await.map_err(injected)?;
            sent = true;
            let result = work.await;
            inject(faults.and_then(|faults| faults.after(&call))).await.map_err(injected)?;
            result
        };
        let timed_out = |_| DatabaseErrorKind::Timeout(self.settings.whole);
        let result = timeout_at(self.until, faulty).await.map_err(timed_out).flatten();
        timer.outcome = result.as_ref().map_or_else(|kind| kind.reason().as_str(), |_| "ok");
        result.map_err(|kind| {
            let uncertain = sent && call == COMMIT && kind.may_have_been_received();
            DatabaseError { uncertain, ..self.error(call, kind) }
        })
    }
}

/// A connection with an open transaction.
pub(super) struct Session<'a> {
    client: Client,
    driver: Driver,
    excess: Excess,
    scope: CallScope<'a>,
}

impl<'a> Session<'a> {
    /// Connects. The transaction begins with [`Session::begin`].
    pub(super) async fn open(scope: CallScope<'a>, ca: Option<&[u8]>) -> Result<Self, DatabaseError> {
        let CallScope { settings, dsn, .. } = scope;
        let allowed = dsn.connect_timeout.map_or(settings.connect, |asked| asked.min(settings.connect));
        let excess = Excess::default();
        let connected = async {
            let tls = TlsHandshake::of(dsn, ca)?;
            // Boxed: TLS makes this future large, and every caller would carry its size.
            let connecting = Box::pin(async {
                let stream = dial(settings, dsn, allowed).await?;
                match tls {
                    None => log_in(dsn, stream, allowed, &excess).await,
                    Some(tls) => log_in(dsn, tls.connect(stream).await?, allowed, &excess).await,
                }
            });
            timeout(allowed, connecting).await.unwrap_or(Err(DatabaseErrorKind::Timeout(allowed)))
        };
        let (client, driver) = scope.step(CONNECT, connected).await?;
        Ok(Self { client, driver, excess, scope })
    }

    /// A session over a stream that a test supplies.
    #[cfg(feature = "test-util")]
    pub(super) async fn over<S>(scope: CallScope<'a>, stream: S) -> Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let excess = Excess::default();
        let (client, driver) = log_in(scope.dsn, stream, scope.settings.connect, &excess).await?;
        Ok(Self { client, driver, excess, scope })
    }

    /// Begins the transaction. The deadlines and the settings of the URL apply to this transaction only, so that a
    /// pooler in between gets back a clean connection.
    pub(super) async fn begin(&self) -> Result<()> {
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
                let set = "SELECT pg_catalog.set_config($1, $2, true)";
                let params: [Param<'_>; 2] = [(&name, Type::TEXT), (value, Type::TEXT)];
                self.execute("apply the parameters of the connection URL", set, &params).await?;
            }
        }
        Ok(())
    }

    /// Runs a query and decodes each row with `read` as it arrives: an undecoded row takes many times its bytes.
    pub(super) async fn query<T>(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
        read: impl Fn(&Row) -> Result<T>,
    ) -> Result<Vec<T>> {
        let params = params.iter().map(|(value, kind)| (*value, kind.clone()));
        let decoded = async {
            let mut rows = pin!(self.client.query_typed_raw(sql, params).await?);
            let mut all = Vec::new();
            while let Some(row) = rows.try_next().await? {
                match read(&row) {
                    Ok(value) => all.push(value),
                    Err(unreadable) => return Ok(Err(unreadable)),
                }
            }
            Ok(Ok(all))
        };
        self.bounded(doing, decoded).await?
    }

    /// Runs a query for one value. `None` if there is no row.
    pub(super) async fn query_value<T: for<'r> FromSql<'r>>(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Option<T>> {
        Ok(self.query(doing, sql, params, |row| value(row, 0)).await?.into_iter().next())
    }

    /// Runs a statement and returns the number of its rows.
    pub(super) async fn execute(&self, doing: &'static str, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.bounded(doing, self.client.execute_typed(sql, params)).await
    }

    /// Commits the transaction.
    pub(super) async fn commit(&self) -> Result<(), DatabaseError> {
        self.scope.step(COMMIT, self.bounded("commit", self.client.batch_execute("COMMIT"))).await
    }

    /// Closes the connection. What was not committed is rolled back.
    pub(super) async fn close(self) {
        let Self { client, mut driver, scope, excess: _ } = self;
        let goodbye = async {
            let _ = client.batch_execute("ROLLBACK").await;
            drop(client);
            let _ = (&mut driver.0).await;
        };
        let _ = timeout_at((Instant::now() + DATABASE_CLOSE_TIMEOUT).min(scope.until), goodbye).await;
    }

    async fn bounded<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let limit = self.scope.settings.statement;
        match timeout(limit + DATABASE_STATEMENT_GRACE, work).await {
            Ok(Err(_)) if self.excess.is_seen() => Err(DatabaseErrorKind::TooMuch),
            Ok(result) => result.map_err(|error| error::running(&error, doing, limit)),
            Err(_) => Err(DatabaseErrorKind::Timeout(limit)),
        }
    }
}

/// Decodes a value of a row.
pub(super) fn value<'r, T: FromSql<'r>>(row: &'r Row, index: usize) -> Result<T> {
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

async fn dial(settings: &PostgresSettings, dsn: &Dsn, allowed: Duration) -> Result<TcpStream> {
    let began = Instant::now();
    let addresses = settings.addresses.resolve(settings.resolver.as_deref(), &dsn.dial, dsn.port).await;
    let addresses = addresses.map_err(|error| match error {
        AddressError::NotAllowed => DatabaseErrorKind::AddressNotAllowed,
        AddressError::Lookup(error) => {
            DatabaseErrorKind::Unreachable(format!("the name `{}` does not resolve: {error}", dsn.dial))
        }
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
            Ok(Err(error)) => last = error::broken(&error),
            Err(_) => last = DatabaseErrorKind::Timeout(allowed),
        }
    }
    Err(last)
}

async fn log_in<S>(dsn: &Dsn, stream: S, allowed: Duration, excess: &Excess) -> Result<(Client, Driver)>
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
    let connected = config.connect_raw(Limited::new(stream, excess.clone()), NoTls).await;
    let (client, connection) = connected.map_err(|error| {
        if excess.is_seen() {
            return DatabaseErrorKind::TooMuch;
        }
        error::connecting(&error, dsn, allowed)
    })?;
    let driver = tokio::spawn(async move {
        // The error also reaches whoever waits for an answer, so it is ignored here.
        let _ = connection.await;
    });
    Ok((client, Driver(driver)))
}
