//! The intervals, delays and deadlines of the operator, for `docs/reference/intervals.md`.
//!
//! A fixed value of `core` or `engine` is that of the constant, under its name. Defaults of flags, and the values of other
//! crates, are repeated here.

use std::{fmt::Write as _, time::Duration};

use coder_k8s_core::intervals as core;
use coder_k8s_engine::intervals as engine;

/// An interval, delay or deadline.
struct Interval {
    /// Unique. Says what the interval delays.
    name: &'static str,
    value: Duration,
    /// The flag or field that changes the value, as Markdown. Empty: nothing does.
    set_by: &'static str,
    meaning: &'static str,
}

/// Intervals that answer one question.
struct Topic {
    question: &'static str,
    /// What holds for all of them, or nothing.
    note: &'static str,
    intervals: &'static [Interval],
}

const fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

const fn s(value: u64) -> Duration {
    Duration::from_secs(value)
}

/// From the seconds of a field of Kubernetes.
const fn of_seconds(value: i64) -> Duration {
    Duration::from_secs(value.unsigned_abs())
}

macro_rules! topics {
    ($($question:literal $note:literal { $($name:ident $value:expr, $set_by:literal, $meaning:literal;)+ })+) => {
        const TOPICS: &[Topic] = &[$(Topic {
            question: $question,
            note: $note,
            intervals: &[$(Interval {
                name: stringify!($name),
                value: $value,
                set_by: $set_by,
                meaning: $meaning,
            },)+],
        },)+];
    };
}

topics! {
    "How often does the operator ask when nothing changes?"
    "Each interval is up to a tenth shorter or longer at random, so that objects which start together spread. That of scaled pools is as it is set." {
        VERIFY s(600), "`--verify-interval`",
            "Verification of operator token and license, of a provisioner key, and of a proxy registration.";
        VERIFY_UNHEALTHY_PROXY s(60), "a tenth of `--verify-interval`",
            "Verification of a proxy that coderd reports as unhealthy.";
        ENTITLEMENTS s(100), "`--entitlements-interval`",
            "Query of coderd's entitlements.";
        CONSENT_POLL s(60), "`--consent-interval`",
            "Reading of the labels of a watched namespace that a spec names for workspaces, with `--watch-namespaces`. Without it such a namespace is watched.";
        GRANT_SWEEP s(600), "",
            "Search for workspace RBAC in other namespaces that has lost its object or its consent. It reads the API server only if it finds some.";
        DAEMON_POLL s(60), "`--daemons-interval`",
            "Listing of the daemons and pending jobs of an organization with pools.";
        DAEMON_POLL_EXPECTING s(10), "a sixth of `--daemons-interval`",
            "The same while a daemon may connect at any moment.";
        AUTOSCALING_POLL s(5), "`--autoscaling-interval`",
            "The same for an organization with a pool that has `spec.autoscaling`, while jobs wait, pods start or coderd does not list the jobs. It is longer where it would take more than 1,000 calls of one coderd in a minute.";
        AUTOSCALING_POLL_REST s(5).saturating_mul(core::AUTOSCALING_REST_FACTOR), "twice `--autoscaling-interval`",
            "The same while no job waits and no pod starts. It is shorter where a daemon becomes idle for long enough or a window begins or ends before.";
    }

    "When is an object requeued?"
    "An event that enqueues the object ends these delays early." {
        REQUEUE_BACKOFF_BASE engine::REQUEUE_BACKOFF_BASE, "",
            "The first retry after a failure. The delay doubles with each failure in a row, is up to a fifth shorter at random, and is not shorter than a `Retry-After`.";
        REQUEUE_BACKOFF_MAX engine::REQUEUE_BACKOFF_MAX, "",
            "The longest delay after a failure, and before a key, token or registration that coderd did not accept is created again.";
        AUTOSCALING_BACKOFF_MAX s(30), "six times `--autoscaling-interval`",
            "The longest delay after a poll for scaled pools that failed, unless coderd asks for a longer one.";
        RETRY_AFTER_MAX engine::RETRY_AFTER_MAX, "",
            "The longest delay that a `Retry-After` gets.";
        QUEUE_DELAY_MAX engine::QUEUE_DELAY_MAX, "",
            "The longest delay of any object, whatever was asked for.";
        HURRIED_PRECEDENCE engine::HURRIED_PRECEDENCE, "",
            "How long the objects that a start finds as they were left are reconciled one at a time while others are. Then they have an eighth of the workers.";
        CLEANUP_DELAY_MIN core::CLEANUP_DELAY_MIN, "",
            "The least delay between two attempts of a clean-up.";
        REQUEUE_AFTER_CONFLICT engine::REQUEUE_AFTER_CONFLICT, "",
            "The first retry after the API server rejects a write because the object changed in the meantime.";
        REQUEUE_OWN_WRITE ms(50), "",
            "A reconcile while the cache does not show yet what the operator wrote to the object.";
        REQUEUE_CONTINUE ms(50), "",
            "The reconcile that continues the steps of a key or registration.";
        REQUEUE_AWAITING_RECORD ms(50), "",
            "The sync that creates an operator token, until the status records the token.";
        REQUEUE_DELETED_CHILD ms(300), "",
            "The reconcile of an owner whose child was deleted, if the owner is found deleted or edited as well. Else the child is created again at once.";
        REQUEUE_NOT_LEADING s(1), "",
            "A reconcile that failed because the instance no longer leads.";
        REQUEUE_FOREIGN_OBJECT s(5), "",
            "The next check of a foreign object that has the name of a child. The delay grows as after a failure.";
        REQUEUE_ENTITLEMENT core::REQUEUE_ENTITLEMENT, "",
            "The next check of an entitlement of a pool or proxy that is not known.";
        REQUEUE_DRAINING s(1), "",
            "The next check whether the daemons of a deleted pool have left.";
        REQUEUE_DELETION core::REQUEUE_DELETION, "",
            "The next attempt to delete the keys of a deleted pool or the registration of a deleted proxy.";
        REQUEUE_STALE_KEYS core::REQUEUE_STALE_KEYS, "",
            "The next check whether a replaced key is still in use.";
        REQUEUE_STALE_REGISTRATIONS core::REQUEUE_STALE_REGISTRATIONS, "",
            "The next check whether a replaced registration can be deleted.";
        REQUEUE_AFTER_PANIC engine::REQUEUE_AFTER_PANIC, "",
            "The reconcile after one that ended in a bug of the operator. The log has the place.";
        REQUEUE_DEPENDENTS core::REQUEUE_DEPENDENTS, "",
            "The next check whether pools and proxies of a deleted control plane are gone, before its token is revoked.";
    }

    "How long does the operator wait before it acts or gives up?"
    "" {
        TOKEN_LIFETIME s(365 * 24 * 3600), "`operatorAccess.tokenLifetimeDays`",
            "Lifetime of an operator token, which is replaced after two thirds of it.";
        ENTITLEMENT_FRESH core::ENTITLEMENT_FRESH.unsigned_abs(), "",
            "How long pools and proxies trust the entitlements that a control plane published.";
        JOB_PENDING core::JOB_PENDING.unsigned_abs(), "",
            "How long a job is pending before `JobsRunnable` reports it.";
        DAEMON_START core::DAEMON_START.unsigned_abs(), "",
            "How long a pod of a scaled pool may take until its daemon connects, before its start counts as failed; and how long a daemon that coderd no longer lists may still have a build.";
        SCALE_DOWN_AFTER core::SCALE_DOWN_AFTER.unsigned_abs(), "`autoscaling.scaleDownAfter`",
            "How long a daemon of a scaled pool is idle before it may leave.";
        FOREIGN_DAEMON_TAKES_JOB core::FOREIGN_DAEMON_TAKES_JOB.unsigned_abs(), "",
            "How long a pending job is left to an idle daemon that belongs to no scaled pool.";
        QUEUE_UNKNOWN_KEEP core::QUEUE_UNKNOWN_KEEP.unsigned_abs(), "",
            "How long a scaled pool keeps its replicas while coderd does not list the jobs. Then it gives up pods whose daemon never connected.";
        DAEMON_CONNECT s(180), "`--daemons-patience`",
            "How long a daemon may take to connect after its pod is ready.";
        DAEMON_LISTING_LIFETIME s(180), "three times `--daemons-interval`",
            "How long the last list of daemons counts while coderd does not answer.";
        CLEANUP s(120), "`--cleanup-timeout`",
            "How long clean-up in coderd may delay the deletion of an object, counted from when it can begin. Attempts are at most a sixth of it apart, and a `Retry-After` is honoured up to a quarter of it.";
        DELETED_TOGETHER s(3), "",
            "How long after a control plane its pools and proxies may be deleted and still find its token.";
        STALE_KEY_WITHOUT_CREDENTIALS core::STALE_KEY_WITHOUT_CREDENTIALS.unsigned_abs(), "",
            "How long a replaced key stays on the status when no credentials are left to delete it.";
        LATE_EFFECT_WINDOW s(120), "twelve times `--coderd-timeout`",
            "How long after its announcement a key may still appear in coderd. A request that timed out for the operator may still take effect there.";
        MAX_CLOCK_SKEW core::MAX_CLOCK_SKEW.unsigned_abs(), "",
            "How far the clocks of coderd and the operator may differ when the operator recognises a key or registration that it announced.";
        MAX_TIME_AHEAD core::MAX_TIME_AHEAD.unsigned_abs(), "",
            "How far in the future a time on the status may be. A time that is further ahead counts as past.";
        SERVER_BACKOFF_MIN ms(500), "",
            "Pause for all calls to a coderd after the first call that did not reach it. The pause doubles with each failure.";
        SERVER_BACKOFF_MAX s(30), "",
            "The longest such pause.";
        SERVER_TRIAL ms(500), "",
            "Pause for other calls while one call finds out whether coderd is back.";
        SERVER_RETRY_AFTER_DEFAULT s(30), "",
            "Pause after a rate limit without a usable `Retry-After`.";
        SERVER_RETRY_AFTER_MAX s(300), "",
            "The longest `Retry-After` of coderd that delays all calls to it.";
        CLIENT_UNUSED s(600), "",
            "How long the operator keeps the client and the budget of a coderd that it does not call.";
        CONNECTION_IDLE s(60), "",
            "How long an idle connection to coderd stays open.";
        API_SERVER_LOOKUP s(60), "",
            "How long the addresses of the API server count, to which no URL of an object may lead, before its name is looked up again.";
        MAX_WATCH_LAG engine::MAX_WATCH_LAG, "",
            "How long the operator relies on a child that it wrote before the watch shows it.";
        SHUTDOWN s(20), "`--shutdown-timeout`",
            "How long running reconciles may take after the operator is asked to stop.";
        SHUTDOWN_LEASE s(5), "",
            "How long the release of the lease may take then.";
        SERVER_CONNECTION_DEADLINE engine::SERVER_CONNECTION_DEADLINE, "",
            "How long a connection to health and metrics may take, which serves one request.";
        SERVER_CONNECTION_LEAST engine::SERVER_CONNECTION_LEAST, "",
            "How long such a connection stays at least where newer ones wait for its place.";
        SERVER_DRAIN_TIMEOUT engine::SERVER_DRAIN_TIMEOUT, "",
            "How long open requests to health and metrics may take then.";
    }

    "How long may a call take?"
    "" {
        API_CALL s(10), "`--request-timeout`",
            "A call to the API server.";
        CONNECT_TIMEOUT engine::CONNECT_TIMEOUT, "",
            "A connection to the API server.";
        CONNECTION_IDLE_TIMEOUT engine::CONNECTION_IDLE_TIMEOUT, "",
            "How long an unused connection to the API server stays open.";
        CODERD_CALL s(10), "`--coderd-timeout`",
            "A call to coderd.";
        CODERD_CONNECT s(5), "",
            "A connection to coderd.";
        DATABASE_SESSION s(10), "`--database-timeout`",
            "A whole session with a database of coderd.";
        DATABASE_CONNECT s(5), "half of `--database-timeout`",
            "A connection to the database.";
        DATABASE_STATEMENT s(5), "half of `--database-timeout`",
            "A statement.";
        DATABASE_STATEMENT_GRACE ms(250), "",
            "How much longer the operator waits for a statement than the server, whose own error says more than a timeout.";
        DATABASE_CLOSE s(1), "",
            "The end of a connection to the database.";
        FENCE_CHECK_PERIOD engine::FENCE_CHECK_PERIOD, "",
            "How often a write in flight checks whether the instance still leads.";
    }

    "How long may a pod take to stop?"
    "" {
        POD_DRAIN_SECONDS of_seconds(core::POD_DRAIN_SECONDS), "",
            "How long a pod of a control plane or proxy serves requests after its deletion, before it stops.";
        POD_GRACE_SECONDS of_seconds(core::POD_GRACE_SECONDS), "`terminationGracePeriodSeconds`",
            "Grace period of a pod of a control plane or proxy, its drain included.";
        DAEMON_GRACE_SECONDS of_seconds(core::DAEMON_GRACE_SECONDS), "`terminationGracePeriodSeconds`",
            "Grace period of a daemon, which finishes its build.";
    }

    "How fast does the leader change?"
    "" {
        LEASE_DURATION engine::LEASE_DURATION, "`--lease-duration`",
            "How long other instances respect a lease that is not renewed.";
        LEASE_RENEW_DEADLINE engine::LEASE_RENEW_DEADLINE, "`--renew-deadline`",
            "How long the leader continues without renewing its lease.";
        LEASE_RETRY_PERIOD engine::LEASE_RETRY_PERIOD, "`--retry-period`",
            "How often the lease is renewed or checked.";
        ASSUMED_LEASE_DURATION engine::ASSUMED_LEASE_DURATION, "",
            "Assumed for a lease that states no duration.";
        LEASE_RELEASE_RETRY engine::LEASE_RELEASE_RETRY, "",
            "The next attempt to release a lease that changed in the meantime.";
    }

    "How long does a watch live?"
    "Watches of Secrets, ConfigMaps, namespaces and CRDs have no cache." {
        WATCH_SERVER_TIMEOUT_SECONDS s(1).saturating_mul(engine::WATCH_SERVER_TIMEOUT_SECONDS), "",
            "How long the API server keeps a watch open. Then the operator continues with a new one.";
        WATCH_IDLE_TIMEOUT engine::WATCH_IDLE_TIMEOUT, "",
            "How long the operator trusts a silent watch.";
        WATCH_REOPEN_DELAY engine::WATCH_REOPEN_DELAY, "",
            "The shortest time from one watch to the next.";
        STREAMED_LIST_IDLE_TIMEOUT engine::STREAMED_LIST_IDLE_TIMEOUT, "",
            "How long any other watch waits for the next of the objects that exist, with which it begins.";
        PAGED_LIST_PERIOD engine::PAGED_LIST_PERIOD, "",
            "How long such a watch lists objects in pages, if the API server does not stream them, before it asks for a stream again.";
        WATCH_RETRY_BASE engine::WATCH_RETRY_BASE, "",
            "The first retry of a watch that failed. The delay doubles with each failure.";
        WATCH_RETRY_MAX engine::WATCH_RETRY_MAX, "",
            "The longest delay after a failure.";
        CRD_READ_RETRY engine::CRD_READ_RETRY, "",
            "The next check of a CRD after one that failed.";
    }

    "How often does the log tell of an API server that does not answer?"
    "The first line comes with the first call that fails, and the last one when the server answers again." {
        UNANSWERED_AFTER engine::UNANSWERED_AFTER, "",
            "How long a call must have waited when its caller gives up, so that the API server counts as not answering.";
        OUTAGE_LINE_DELAY engine::OUTAGE_LINE_DELAY, "",
            "The second line. The delay doubles with each line.";
        OUTAGE_LINE_DELAY_MAX engine::OUTAGE_LINE_DELAY_MAX, "",
            "The longest delay between two lines.";
        OUTAGE_SETTLE engine::OUTAGE_SETTLE, "",
            "How long after an outage a watch that the API server refuses is not logged.";
    }
}

/// The page as Markdown, without the mark of generated files.
pub(crate) fn page() -> String {
    let mut page = "# Intervals\n\nEvery interval, delay and deadline of the operator, with its default. Flags belong to \
        `coder-k8s controller`; some of them are hidden from `--help`.\n"
        .to_owned();
    for Topic { question, note, intervals } in TOPICS {
        let _ = write!(page, "\n## {question}\n\n");
        if !note.is_empty() {
            let _ = write!(page, "{note}\n\n");
        }
        page.push_str("| Name | Value | Set by | What it delays or limits |\n|---|---|---|---|\n");
        for Interval { name, value, set_by, meaning } in *intervals {
            let _ = writeln!(page, "| `{name}` | {} | {set_by} | {meaning} |", text(*value));
        }
    }
    page
}

/// In the largest unit that shows the value as a whole number.
fn text(value: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
    let millis = value.as_millis();
    let whole = UNITS.iter().find(|(size, _)| millis > 0 && millis.is_multiple_of(*size));
    whole.map_or_else(|| "0".to_owned(), |(size, unit)| format!("{} {unit}", millis / size))
}
