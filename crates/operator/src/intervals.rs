//! Fixed delays and timeouts of the controller and of `dev`. Each is named after what it delays or limits. What a user can
//! set with a flag is in `controller/options.rs`; the parts into which a deadline of clean-up is divided are in
//! `core/cleanup.rs`.

use std::time::Duration;

use jiff::SignedDuration;

/// How soon to check again a foreign object that has the name of a child. No watch shows it, because it lacks our label.
pub(crate) const REQUEUE_FOREIGN: Duration = Duration::from_secs(5);

/// How soon to reconcile again after this process wrote the object itself. As a rule the watch enqueues it earlier.
pub(crate) const REQUEUE_OWN_WRITE: Duration = Duration::from_millis(50);

/// How soon an exchange checks again whether the status records the token that it is about to create.
pub(crate) const REQUEUE_AWAITING_RECORD: Duration = Duration::from_millis(50);

/// How long after the control plane its dependents may be deleted and still find the token: one `kubectl delete` of a
/// namespace or a manifest deletes one object after the other.
pub(crate) const DELETED_TOGETHER: SignedDuration = SignedDuration::from_secs(3);

/// The part of the verify interval after which a proxy that coderd reports as unhealthy is verified again.
pub(crate) const UNHEALTHY_FACTOR: f64 = 0.1;

/// How soon to check again whether the pods of a deleted pool have stopped.
pub(crate) const REQUEUE_DRAINING: Duration = Duration::from_secs(1);

/// How soon the next reconcile continues with the steps that one reconcile began.
pub(crate) const REQUEUE_CONTINUE: Duration = Duration::from_millis(50);

/// How long a deposed leader delays an object. The process ends before that.
pub(crate) const REQUEUE_NOT_LEADING: Duration = Duration::from_secs(1);

/// How long the reconcile of an owner waits after the deletion of its child, if a live read shows that the owner was deleted
/// or edited as well, or fails. The watch of its kind tells soon.
pub(crate) const REQUEUE_DELETED_CHILD: Duration = Duration::from_millis(300);

/// How often to look for workspace RBAC in other namespaces that has lost its object. What a reconcile removes is not left
/// to this.
pub(crate) const GRANT_SWEEP: Duration = Duration::from_mins(10);

/// How long the release of the lease may take at shutdown.
pub(crate) const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long each program of the cluster of `dev` may take to be ready. Generous, because a first run may compile beside it.
#[cfg(feature = "dev")]
pub(crate) const DEV_CLUSTER_TIMEOUT: Duration = Duration::from_mins(3);

/// Period at which `dev` reads what no watch shows: the address of a process, a key that coderd does not know yet.
#[cfg(feature = "dev")]
pub(crate) const DEV_POLL_PERIOD: Duration = Duration::from_millis(200);

/// Period at which `dev` draws its view while nothing changes, because it shows times.
#[cfg(feature = "dev")]
pub(crate) const DEV_REDRAW_PERIOD: Duration = Duration::from_secs(1);

/// How long `dev` waits for more changes before it draws one.
#[cfg(feature = "dev")]
pub(crate) const DEV_REDRAW_PAUSE: Duration = Duration::from_millis(50);

/// How often the operator of `dev` verifies what it has in coderd, so that a person sees the effect of a change soon.
#[cfg(feature = "dev")]
pub(crate) const DEV_VERIFY_INTERVAL: Duration = Duration::from_secs(20);

/// How often the operator of `dev` lists the daemons.
#[cfg(feature = "dev")]
pub(crate) const DEV_DAEMONS_INTERVAL: Duration = Duration::from_secs(5);

/// How long the tasks of `dev` may take to end when it ends.
#[cfg(feature = "dev")]
pub(crate) const DEV_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
