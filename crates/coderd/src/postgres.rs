//! The operator's own account in coderd's database: the way in where nobody has a token yet.
//!
//! The account has a fixed username and e-mail and is a system account, so it takes no seat and leaves the set-up
//! page to the first person. Anything else of that name or e-mail is a person's and is never touched. Each call
//! makes one connection, holds it to its deadlines, does everything in one transaction and closes it; when all is
//! right already, it only reads. No error, log line or `Debug` output holds a password, a token or a value of the
//! database.

mod classify;
mod dsn;
mod ensure;
mod error;
mod plan;
mod revoke;
mod rows;
mod schema;
mod session;
mod tls;
mod token;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;

pub use dsn::{BadDsn, Dsn, DsnContext};
pub use error::{DatabaseErrorKind, Error};

use self::session::{Scope, Session};
use crate::{Call, Faults, Observer, Resolve};

/// The operator's username in coderd, and its display name.
pub const USERNAME: &str = "coder-k8s-operator";
/// The operator's e-mail in coderd. No mail gets there.
pub const EMAIL: &str = "coder-k8s-operator@coder-k8s.invalid";

/// What the names of all our tokens start with.
const TOKEN_PREFIX: &str = "coder-k8s-operator-";
const ROLE: &str = "owner";
const ORGANIZATION_ROLE: &str = "organization-admin";
/// Not a digest of anything, so no password fits.
const PASSWORD: &str = "none";

/// Connecting: name, network, TLS and password.
pub const CONNECT: Call = Call { name: "sql-connect", writes: false };
/// All reads and writes of [`Postgres::ensure`].
pub const ENSURE: Call = Call { name: "sql-ensure", writes: true };
/// All reads and writes of [`Postgres::revoke`].
pub const REVOKE: Call = Call { name: "sql-revoke", writes: true };
/// The commit; only when something was written.
pub const COMMIT: Call = Call { name: "sql-commit", writes: true };

/// How the database is talked to.
#[derive(Clone)]
pub struct PostgresSettings {
    /// How long a connection may take to be made, with TLS and password.
    pub connect: Duration,
    /// How long one statement may take, also on the server.
    pub statement: Duration,
    /// How long a whole call may take.
    pub whole: Duration,
    /// Who finds the address of a host; None: the system.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Where steps are counted.
    pub observer: Option<Arc<dyn Observer>>,
    /// What goes wrong on purpose.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for PostgresSettings {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            statement: Duration::from_secs(5),
            whole: Duration::from_secs(15),
            resolver: None,
            observer: None,
            faults: None,
        }
    }
}

/// What the operator wants to have in the database.
#[derive(Clone, Copy, Debug)]
pub struct TokenRequest<'a> {
    /// The name of the token, which tells control planes apart.
    pub token_name: &'a str,
    /// The token that the operator has.
    pub existing: Option<&'a SecretString>,
    /// How long a new token lives. One that lives longer is renewed as if it lived this long.
    pub lifetime: SignedDuration,
    /// The time.
    pub now: Timestamp,
    /// Make a new token although the database knows the one at hand: coderd refuses it.
    pub replace: bool,
}

/// What the operator has now.
#[derive(Clone, Debug)]
pub struct Ensured {
    /// The token to use: the one that was brought, or a new one.
    pub token: SecretString,
    /// When it ends. coderd moves this while it is used, which is not relied on.
    pub expires: Timestamp,
    /// When to renew it: after two thirds of its life.
    pub renew_at: Timestamp,
    /// Whether the token is new.
    pub made: bool,
    /// Whether it is the only one. If not, the one that was brought still works too: store the new one, prove it
    /// against coderd, and call again with it, which removes the old one.
    pub settled: bool,
    /// The identity of the deployment, when coderd has written it already.
    pub deployment_id: Option<String>,
    /// What was written; empty when all was right.
    pub changes: Vec<Change>,
}

/// Something that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The account was made.
    AccountMade,
    /// The account was put right: somebody had changed or suspended it.
    AccountRepaired,
    /// So many organizations were joined.
    Joined(u64),
    /// The role was taken in so many organizations.
    Promoted(u64),
    /// A token was made.
    TokenMade,
    /// So many tokens of ours were removed.
    TokensRemoved(u64),
    /// The token got its final name.
    TokenRenamed,
}

/// Makes and unmakes the operator's access in databases of coderd. One is enough for a process.
#[derive(Clone)]
pub struct Postgres {
    settings: PostgresSettings,
}

impl Postgres {
    /// With these settings.
    pub fn new(settings: PostgresSettings) -> Self {
        Self { settings }
    }

    /// Whether the address and the authorities can be used at all. Nothing is connected.
    pub fn examine(&self, dsn: &Dsn, ca: Option<&[u8]>) -> Result<(), Error> {
        tls::Tls::of(dsn, ca).map(drop).map_err(|kind| Scope::new(&self.settings, dsn).error(CONNECT, kind))
    }

    /// Sees to it that the account, its memberships and a token are there. Only what differs is written.
    ///
    /// `ca` holds the authorities of the database as PEM. After an error nothing was changed, but for a lost answer
    /// to the commit ([`Error::may_have_happened`]); the next call finds its way from either.
    pub async fn ensure(
        &self,
        dsn: &Dsn,
        ca: Option<&[u8]>,
        wanted: &TokenRequest<'_>,
    ) -> Result<Ensured, Error> {
        let session = Session::open(Scope::new(&self.settings, dsn), ca).await?;
        let ensured = session.step(ENSURE, ensure::ensure(&session, wanted)).await?;
        if !ensured.changes.is_empty() {
            session.commit().await?;
        }
        session.close().await;
        Ok(ensured)
    }

    /// Takes the tokens of this name away, and suspends the account when no other token of ours is left. Gives how
    /// many tokens are gone: none is a success too, as is a database that coderd never set up.
    pub async fn revoke(&self, dsn: &Dsn, ca: Option<&[u8]>, token_name: &str) -> Result<u64, Error> {
        let names = token::Names::of(token_name);
        let session = Session::open(Scope::new(&self.settings, dsn), ca).await?;
        let (removed, written) = session.step(REVOKE, revoke::revoke(&session, &names)).await?;
        if written {
            session.commit().await?;
        }
        session.close().await;
        Ok(removed)
    }
}
