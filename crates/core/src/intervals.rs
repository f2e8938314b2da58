//! Every fixed delay, time limit and bound of the decisions in one table, named after what it delays or limits.
//!
//! What a flag can set comes in as an argument instead. `docs/reference/intervals.md` is generated from these constants.

use std::time::Duration;

use jiff::SignedDuration;

/// Delay until the next check of an entitlement that is not known.
pub const REQUEUE_ENTITLEMENT: Duration = Duration::from_secs(30);

/// Delay until the next decision about the keys or the registration of an object that is being deleted.
pub const REQUEUE_DELETION: Duration = Duration::from_secs(5);

/// Least delay between two attempts of a clean-up.
pub const CLEANUP_DELAY_MIN: Duration = Duration::from_millis(50);

/// Delay until the next check whether a replaced key is still in use.
pub const REQUEUE_STALE_KEYS: Duration = Duration::from_secs(15);

/// Delay until the next check whether a replaced registration can be deleted.
pub const REQUEUE_STALE_REGISTRATIONS: Duration = Duration::from_secs(30);

/// Delay until the next check whether the pools and proxies of a deleted control plane are gone. Short, because the
/// deletion of a namespace waits for it.
pub const REQUEUE_DEPENDENTS: Duration = Duration::from_millis(500);

/// How long pools and proxies trust the entitlements that a control plane published. Longer than the interval of its
/// queries, so that one late query does not count as unknown.
pub const ENTITLEMENT_FRESH: SignedDuration = SignedDuration::from_secs(120);

/// How long a job is pending before `JobsRunnable` reports it. A daemon may be about to take it.
pub const JOB_PENDING: SignedDuration = SignedDuration::from_secs(60);

/// How long a pod of a scaled pool may take until its daemon connects. Then its start counts as failed. Long, because the
/// cluster may have to add a node.
pub const DAEMON_START: SignedDuration = SignedDuration::from_mins(10);

/// How long a daemon of a scaled pool is idle before it may leave, unless the spec says otherwise.
pub const SCALE_DOWN_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// How long a pending job is left to an idle daemon that belongs to no scaled pool. coderd hands out a job at once, and lists
/// a daemon for 90 seconds after it left: a job that is older shows that nobody takes it.
pub const FOREIGN_DAEMON_TAKES_JOB: SignedDuration = SignedDuration::from_secs(30);

/// How long coderd may not answer until nobody knows what the daemons did meanwhile, so that their idle times start anew.
pub const IDLE_TIME_GAP: SignedDuration = SignedDuration::from_secs(60);

/// How long a scaled pool keeps its replicas while its queue is not known. Then it gives up pods whose daemon never
/// connected.
pub const QUEUE_UNKNOWN_KEEP: SignedDuration = SignedDuration::from_mins(15);

/// How long a replaced key stays on the status when no credentials are left to delete it.
pub const STALE_KEY_WITHOUT_CREDENTIALS: SignedDuration = SignedDuration::from_hours(1);

/// How far the clocks of coderd and of the operator may differ. This is safe: a name is announced only after a listing
/// showed that no credential has it, so that an older credential of that name cannot exist. One that is up to this
/// much older than its announcement counts as made because of it.
pub const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// How far ahead of the clock a recorded time may be. A time that was lost from the status reads as the latest time there is;
/// it counts as past.
pub const MAX_TIME_AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// Seconds that a pod of a control plane or proxy serves after its deletion, until no Service sends it requests any more.
pub const POD_DRAIN_SECONDS: i64 = 10;

/// Seconds that a pod of a control plane or proxy has to stop in: the 60 of the Helm chart and [`POD_DRAIN_SECONDS`].
pub const POD_GRACE_SECONDS: i64 = 70;

/// Seconds that a provisioner daemon has to finish its build in.
pub const DAEMON_GRACE_SECONDS: i64 = 600;

/// Longest message of a condition in bytes. The API server accepts 32 KiB; nobody reads that much.
pub const MAX_CONDITION_BYTES: usize = 4096;

/// The most sets of tags that the message of `JobsRunnable` names.
pub const MAX_TAG_SETS_IN_MESSAGE: usize = 5;

/// The most tags that one verdict about the jobs of an organization compares.
pub const MAX_TAG_COMPARISONS: usize = 1_000_000;

/// The number of pods that fail to start at which a scaled pool stops growing, unless twice as many daemons are connected.
pub const MAX_FAILING_STARTS: u32 = 3;

/// The most windows of a scaled pool that count.
pub const MAX_WINDOWS: usize = 20;

/// The number of daemons of one organization above which those that are no longer listed are forgotten.
pub const MAX_REMEMBERED_DAEMONS: usize = 10_000;

/// The most polls for which a scaled pool waits before it shrinks because the deletion costs of its pods were changed.
pub const MAX_POSTPONED_POLLS: u32 = 4;

/// The factor by which the poll for scaled pools is slower while no job waits and no pod starts.
pub const AUTOSCALING_REST_FACTOR: u32 = 2;

/// The most calls of a minute with which the poll for scaled pools asks one coderd. coderd permits 512 for each path, and each
/// organization has paths of its own: this bounds the load, and lets 40 organizations be polled every 5 seconds.
pub const AUTOSCALING_CALLS_PER_MINUTE: u32 = 1_000;

/// The most characters of one set of tags in a message or metric label.
pub const MAX_TAGS_LENGTH: usize = 200;

/// Longest text of the tags of a pool on its status, in bytes: with the other columns of `kubectl get` it fits into 120.
pub const MAX_TAGS_COLUMN: usize = 40;

/// The most sets of tags of one organization that metrics count apart.
pub const MAX_JOB_QUEUES: usize = 20;

/// The most pods that the message of `DaemonsConnected` names.
pub const MAX_PODS_IN_MESSAGE: usize = 3;

/// The most daemons that the status of a pool lists.
pub const MAX_DAEMONS_ON_STATUS: usize = 20;

/// Largest sum of the bytes of all variables that the value of one variable is made of. The operator expands addresses and
/// names of login methods, which are far smaller.
pub const MAX_EXPANDED_BYTES: usize = 32 * 1024;
