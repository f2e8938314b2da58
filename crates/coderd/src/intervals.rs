//! Every fixed delay, time-out and bound of this crate in one table. Each is named after what it delays or bounds.
//! Defaults here are those of this crate alone: the operator sets them by its flags, whose defaults are in
//! `operator/src/controller/options.rs`.

use std::time::Duration;

/// Default deadline of a call to coderd: the wait for a slot, the connection, and the whole answer.
pub const CODERD_CALL_DEADLINE: Duration = Duration::from_secs(10);

/// Longest time that a connection to coderd may take to open. Half of [`CODERD_CALL_DEADLINE`], so that a server that
/// accepts no connection is told apart from one that does not answer.
pub const CODERD_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an idle connection to coderd stays open for the next call.
pub const CODERD_IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_mins(1);

/// Idle connections that are kept for each host.
pub const MAX_IDLE_CONNECTIONS: usize = 2;

/// Requests that may be under way to one server. Further calls wait for a slot.
pub const MAX_REQUESTS_IN_FLIGHT: usize = 4;

/// Request budgets that one namespace keeps without using them. Budgets in use do not count.
pub const MAX_IDLE_BUDGETS: usize = 32;

/// Connection pools that are kept. Beyond that the one goes that was not used for longest: each holds its own authorities.
pub const MAX_POOLS: usize = 64;

/// Largest bundle of certificate authorities in bytes. The bundle of a whole operating system is smaller.
pub const MAX_CA_BYTES: usize = 256 * 1024;

/// The most certificates in such a bundle.
pub const MAX_CA_CERTIFICATES: usize = 256;

/// How long a request budget or connection pool stays after its last use. Bounds what deleted objects cost.
pub const UNUSED_SERVER_TTL: Duration = Duration::from_mins(10);

/// First delay after a server could not be reached. It doubles with each failure in a row.
pub const UNREACHABLE_DELAY_MIN: Duration = Duration::from_millis(500);

/// Longest delay after a server could not be reached.
pub const UNREACHABLE_DELAY_MAX: Duration = Duration::from_secs(30);

/// Delay of calls that come while one request probes whether the server is back.
pub const PROBE_DELAY: Duration = Duration::from_millis(500);

/// Delay after a 429 without a usable `Retry-After`.
pub const RATE_LIMIT_DELAY_DEFAULT: Duration = Duration::from_secs(30);

/// Longest delay that a server gets by a `Retry-After`, so that a wrong header does not stop the operator for a day.
pub const RATE_LIMIT_DELAY_MAX: Duration = Duration::from_mins(5);

/// Largest body of an answer in bytes, whoever sends it.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// The most values in the JSON of one answer. Every value that is kept costs more memory than its text: a set with one tag
/// takes fifty times the bytes that it takes on the wire.
pub const MAX_ANSWER_VALUES: usize = 100_000;

/// Longest id, name or version of an answer in bytes. Those of coderd have at most a hundred.
pub const MAX_WORD_BYTES: usize = 1024;

/// The most features of a license in one answer.
pub const MAX_FEATURES: usize = 256;

/// The most warnings, and the most errors, about licenses that are kept.
pub const MAX_NOTES: usize = 20;

/// Longest such warning or error in bytes.
pub const MAX_NOTE_BYTES: usize = 500;

/// Longest message of a refusal in bytes that is searched for what must not be shown. A longer one is not shown at all.
pub const MAX_REFUSAL_BYTES: usize = 8 * 1024;

/// Largest license in bytes. A real one has 2 to 4 KiB.
pub const MAX_LICENSE_BYTES: usize = 64 * 1024;

/// Characters of a message of coderd that are kept in an error. It ends up in a condition.
pub const MAX_MESSAGE_CHARS: usize = 200;

/// How long the addresses of the API server, to which nobody's URL may lead, count before its name is looked up again.
pub const API_SERVER_LOOKUP_TTL: Duration = Duration::from_mins(1);

/// Deadline for a connection to the database, including TLS and authentication. A shorter `connect_timeout` in the
/// connection URL replaces it.
pub const DATABASE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Deadline for one statement. The server enforces it too.
pub const DATABASE_STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Deadline for a whole call to the database.
pub const DATABASE_CALL_DEADLINE: Duration = Duration::from_secs(15);

/// How much later than the server the operator gives up a statement. The error of the server says more than a timeout.
pub const DATABASE_STATEMENT_GRACE: Duration = Duration::from_millis(250);

/// The most bytes that are read from one connection to the database. A call reads some 10 KiB, and 24 bytes for each
/// organization.
pub const MAX_DATABASE_BYTES: usize = 1024 * 1024;

/// Longest name of a table, column or type of the database in a message, in bytes. Postgres itself allows 63.
pub const MAX_IDENTIFIER_BYTES: usize = 200;

/// Longest time that the end of a connection to the database may take.
pub const DATABASE_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
