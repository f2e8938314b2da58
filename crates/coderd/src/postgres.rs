//! The account of the operator in the database of coderd: how the operator gets a token where nobody has one yet.
//!
//! The account has a fixed username and e-mail address and is a system account, so it takes no seat of the license
//! and leaves the setup page to the first person. Any other account with that name or address belongs to a person and
//! is never touched. Each call opens one connection, does everything in one transaction within its deadlines, and
//! closes the connection; if nothing has to change, it only reads. No error, log line or `Debug` output contains a
//! password, a token or a value of the database.

mod access;
mod dsn;
mod error;
mod limited;
mod plan;
mod rows;
mod schema;
mod session;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;

pub use dsn::{BadDsn, Dsn, DsnContext};
pub use error::{DatabaseError, DatabaseErrorKind};

use self::error::Result;
use self::session::{CallScope, Session};
use crate::intervals::{DATABASE_CALL_DEADLINE, DATABASE_CONNECT_TIMEOUT, DATABASE_STATEMENT_TIMEOUT};
use crate::{AddressPolicy, Call, Faults, Observer, Resolve};

/// Username and display name of the operator in coderd.
pub const USERNAME: &str = "coder-k8s-operator";
/// E-mail address of the operator in coderd. The domain `.invalid` never receives mail.
pub const EMAIL: &str = "coder-k8s-operator@coder-k8s.invalid";

/// Prefix of the names of all tokens that operators create. Several control planes may share a database.
const TOKEN_PREFIX: &str = "coder-k8s-operator-";
const ROLE: &str = "owner";
const ORGANIZATION_ROLE: &str = "organization-admin";
/// Stored in place of a password hash. It is not a hash, so no password matches it.
const PASSWORD: &str = "none";

/// Step: resolve the name, connect, TLS handshake, authentication.
pub const CONNECT: Call = Call { name: "sql-connect", writes: false };
/// Step: all reads and writes of [`Postgres::ensure`].
pub const ENSURE: Call = Call { name: "sql-ensure", writes: true };
/// Step: all reads and writes of [`Postgres::revoke`].
pub const REVOKE: Call = Call { name: "sql-revoke", writes: true };
/// Step: the commit. Only if something was written.
pub const COMMIT: Call = Call { name: "sql-commit", writes: true };

/// Deadlines and hooks of database calls.
#[derive(Clone)]
pub struct PostgresSettings {
    /// Deadline for the connection, including TLS and authentication.
    pub connect: Duration,
    /// Deadline for one statement. The server enforces it too.
    pub statement: Duration,
    /// Deadline for a whole call.
    pub whole: Duration,
    /// Which addresses may be connected to.
    pub addresses: Arc<AddressPolicy>,
    /// Resolves the host of the database. `None`: the system does.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Receives the name, outcome and duration of every step, for metrics.
    pub observer: Option<Arc<dyn Observer>>,
    /// Makes steps fail on purpose. Tests only.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for PostgresSettings {
    fn default() -> Self {
        Self {
            connect: DATABASE_CONNECT_TIMEOUT,
            statement: DATABASE_STATEMENT_TIMEOUT,
            whole: DATABASE_CALL_DEADLINE,
            addresses: Arc::default(),
            resolver: None,
            observer: None,
            faults: None,
        }
    }
}

#[cfg(feature = "test-util")]
impl PostgresSettings {
    /// The defaults for databases of tests, which are on loopback.
    pub fn on_loopback() -> Self {
        Self { addresses: Arc::new(AddressPolicy::on_loopback()), ..Self::default() }
    }
}

/// The token that a control plane needs.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseTokenRequest<'a> {
    /// Name of the token, unique for each control plane.
    pub token_name: &'a str,
    /// The token that the operator has, if any.
    pub existing: Option<&'a SecretString>,
    /// Lifetime of a new token. A longer-lived token is renewed as if it had this lifetime.
    pub lifetime: SignedDuration,
    /// The current time.
    pub now: Timestamp,
    /// Create another token although the database knows the existing one, because coderd refuses it.
    pub replace: bool,
}

/// The result of [`Postgres::ensure`].
#[derive(Clone, Debug)]
pub struct Ensured {
    /// The token to use: the existing one or a new one.
    pub token: SecretString,
    /// When the token expires. coderd may extend it while the token is used; nothing relies on that.
    pub expires: Timestamp,
    /// When to renew the token: after two thirds of its lifetime.
    pub renew_at: Timestamp,
    /// Whether the token is new.
    pub made: bool,
    /// Whether this is the only token. If not, the existing one still works: store the new token, prove it against
    /// coderd, and call again with it, which removes the old one.
    pub is_only_one: bool,
    /// UUID of the deployment. `None` if coderd has not written it yet.
    pub deployment_id: Option<String>,
    /// What was written. Empty if nothing had to change.
    pub changes: Vec<Change>,
}

/// A write to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The account was created.
    AccountMade,
    /// The account was changed back, after someone had edited or suspended it.
    AccountRepaired,
    /// The account joined this many organizations.
    Joined(u64),
    /// The account became administrator of this many organizations that it was a member of.
    Promoted(u64),
    /// A token was created.
    TokenMade,
    /// This many tokens of the control plane were deleted.
    TokensRemoved(u64),
    /// The new token took over the name of the one that it replaced.
    TokenRenamed,
}

/// Creates and revokes the access of the operator in databases of coderd. Holds no connection; one for the process is
/// enough.
#[derive(Clone)]
pub struct Postgres {
    settings: PostgresSettings,
}

impl Postgres {
    /// Connects to nothing yet.
    pub fn new(settings: PostgresSettings) -> Self {
        Self { settings }
    }

    /// Checks whether the connection URL and the CA are usable, without connecting.
    pub fn examine(&self, dsn: &Dsn, ca: Option<&[u8]>) -> Result<(), DatabaseError> {
        let checked = tls::TlsHandshake::of(dsn, ca).map(drop);
        checked.map_err(|kind| CallScope::new(&self.settings, dsn).error(CONNECT, kind))
    }

    /// Makes sure that the account, its memberships and a token exist. Writes only what differs.
    ///
    /// `ca` is the CA of the database as PEM. An error means that nothing changed, except if the answer to the commit
    /// was lost ([`DatabaseError::may_have_happened`]). The next call recovers from either.
    pub async fn ensure(
        &self,
        dsn: &Dsn,
        ca: Option<&[u8]>,
        request: &DatabaseTokenRequest<'_>,
    ) -> Result<Ensured, DatabaseError> {
        self.transact(dsn, ca, ENSURE, async |session| access::ensure(session, request).await).await
    }

    /// Deletes the tokens of this name, and suspends the account if no other token of an operator is left. Returns
    /// the number of deleted tokens. Zero is a success too, as is a database that coderd never migrated.
    pub async fn revoke(&self, dsn: &Dsn, ca: Option<&[u8]>, token_name: &str) -> Result<u64, DatabaseError> {
        let names = plan::TokenNames::of(token_name);
        self.transact(dsn, ca, REVOKE, async |session| access::revoke(session, &names).await).await
    }

    /// Logs in and reads the catalog over a stream that a test supplies.
    #[cfg(feature = "test-util")]
    pub async fn read_catalog_over<S>(&self, dsn: &Dsn, stream: S) -> Result<()>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let session = Session::over(CallScope::new(&self.settings, dsn), stream).await?;
        session.begin().await?;
        schema::Catalog::read(&session).await?.check().map(drop)
    }

    /// Does all work of a call in one transaction, and commits it if the work says that it wrote.
    async fn transact<T>(
        &self,
        dsn: &Dsn,
        ca: Option<&[u8]>,
        call: Call,
        work: impl AsyncFnOnce(&Session<'_>) -> Result<(T, bool)>,
    ) -> Result<T, DatabaseError> {
        let scope = CallScope::new(&self.settings, dsn);
        let session = Session::open(scope, ca).await?;
        let worked = async {
            session.begin().await?;
            work(&session).await
        };
        let (done, written) = scope.step(call, worked).await?;
        if written {
            session.commit().await?;
        }
        session.close().await;
        Ok(done)
    }
}
