//! Every fixed delay, timeout and period of the engine in one table. Each is named after what it delays or limits.
//! Defaults here are those of this crate alone: the operator sets them by its flags, whose defaults are in
//! `operator/src/controller/options.rs`.

use std::time::Duration;

/// Longest time that a connection to the API server may take to open.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a connection to the API server that no call uses is closed. Bursts open many, and each has buffers.
pub const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many unused connections to the API server are kept at most: as many as calls that are made at a time in a burst. A
/// connection that is closed too early is opened again, which costs both sides as much CPU as a write.
pub const MAX_IDLE_CONNECTIONS: usize = 32;

/// Default deadline of one call to the API server, response body included.
pub const API_CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Period at which a write in flight checks whether the fence was closed before its time.
pub const FENCE_CHECK_PERIOD: Duration = Duration::from_millis(250);

/// Default time after the last renewal of a lease before another process may take it.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Default time after its last renewal during which the leader acts. Shorter than [`LEASE_DURATION`].
pub const LEASE_RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Default period of renewals. Followers read the lease twice as often.
pub const LEASE_RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Lease duration assumed for a holder that does not state one.
pub const ASSUMED_LEASE_DURATION: Duration = Duration::from_secs(15);

/// Delay before the release of a lease is retried after a conflict.
pub const LEASE_RELEASE_RETRY: Duration = Duration::from_millis(50);

/// Delay before a CRD that could not be read is read again.
pub const CRD_READ_RETRY: Duration = Duration::from_secs(2);

/// Time after which the API server ends a metadata watch, in seconds as the API takes it.
pub const WATCH_SERVER_TIMEOUT_SECONDS: u32 = 290;

/// Longest silence after which a metadata watch is opened again. Longer than
/// [`WATCH_SERVER_TIMEOUT_SECONDS`], so that only a dead connection reaches it.
pub const WATCH_IDLE_TIMEOUT: Duration = Duration::from_mins(5);

/// Longest silence between two of the objects that exist, with which a watch begins. Then it begins again.
pub const STREAMED_LIST_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Least time for which a watch asks for the objects that exist in pages, after the API server refused to stream them. An API
/// server that was busy, or is replaced by a newer release, can do it later.
pub const PAGED_LIST_PERIOD: Duration = Duration::from_mins(10);

/// Least time between the openings of two metadata watches.
pub const WATCH_REOPEN_DELAY: Duration = Duration::from_secs(1);

/// First delay after a metadata watch failed; it doubles up to [`WATCH_RETRY_MAX`].
pub const WATCH_RETRY_BASE: Duration = Duration::from_millis(800);

/// Longest delay after a metadata watch failed.
pub const WATCH_RETRY_MAX: Duration = Duration::from_secs(30);

/// Delay before the second line of the log about an API server that does not answer; it doubles up to
/// [`OUTAGE_LINE_DELAY_MAX`].
pub const OUTAGE_LINE_DELAY: Duration = Duration::from_secs(30);

/// Longest delay between two lines of the log about an API server that does not answer.
pub const OUTAGE_LINE_DELAY_MAX: Duration = Duration::from_hours(1);

/// Time after an outage during which a watch that the API server refuses is not logged: a server that starts does not know
/// its RBAC rules yet.
pub const OUTAGE_SETTLE: Duration = Duration::from_secs(10);

/// Time after which a call that its caller gave up counts as one that the API server did not answer.
pub const UNANSWERED_AFTER: Duration = Duration::from_secs(2);

/// Longest time for which the applier prefers its own last write over the older object of a watch.
pub const MAX_WATCH_LAG: Duration = Duration::from_secs(10);

/// First delay after a reconcile failed; it doubles up to [`REQUEUE_BACKOFF_MAX`].
pub const REQUEUE_BACKOFF_BASE: Duration = Duration::from_millis(500);

/// Longest delay after a reconcile failed, unless the other side asked for more.
pub const REQUEUE_BACKOFF_MAX: Duration = Duration::from_mins(5);

/// Longest delay that somebody gets by asking for it, such as with `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);

/// Longest delay of an object in a queue. Whoever asks for more gets this, so that no sum of times overflows.
pub const QUEUE_DELAY_MAX: Duration = Duration::from_hours(24 * 7);

/// How long objects that were enqueued without hurry are reconciled one at a time beside others. After that they have a share.
pub const HURRIED_PRECEDENCE: Duration = Duration::from_secs(1);

/// Delay before the first retry of a reconcile whose view of the cluster was out of date.
pub const REQUEUE_AFTER_CONFLICT: Duration = Duration::from_millis(50);

/// Delay before a reconcile that panicked runs again.
pub const REQUEUE_AFTER_PANIC: Duration = Duration::from_mins(1);

/// Longest time of one connection to an HTTP server of the process, which serves one request.
pub const SERVER_CONNECTION_DEADLINE: Duration = Duration::from_secs(10);

/// Time that a connection has for its request before a newer one may end it, where too many are open.
pub const SERVER_CONNECTION_LEAST: Duration = Duration::from_millis(100);

/// Delay before an HTTP server accepts again after a connection could not be accepted, as without file descriptors.
pub const SERVER_ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Longest time for which responses in flight hold up the stop of an HTTP server.
pub const SERVER_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
