//! Settings of the election, and the rules that they must satisfy so that two leaders are impossible.

use std::time::Duration;

use crate::intervals::{LEASE_DURATION, LEASE_RENEW_DEADLINE, LEASE_RETRY_PERIOD};

/// Which Lease to compete for, under which identity, and at which pace.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease. It is created if it does not exist.
    pub name: String,
    /// Unique for each process: `<pod or host>_<uuid>`. A restarted process must not use its old identity.
    pub identity: String,
    /// How long others wait after a renewal before they take over. Whole seconds.
    pub lease_duration: Duration,
    /// How long the leader acts after a renewal. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// How often the leader renews. Followers read the Lease twice as often.
    pub retry_period: Duration,
}

/// Why settings are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLeaseSettings {
    /// The API stores the duration in whole seconds.
    #[error("the lease duration must be a whole number of seconds and at least 1 s, not {0:?}")]
    LeaseDuration(Duration),
    /// A leader would act after others may have taken over.
    #[error("the renew deadline ({renew:?}) must be shorter than the lease duration ({lease:?})")]
    RenewDeadline {
        /// The renew deadline.
        renew: Duration,
        /// The lease duration.
        lease: Duration,
    },
    /// A leader could not retry a renewal that failed.
    #[error(
        "the retry period ({retry:?}) must be longer than zero and shorter than the renew deadline ({renew:?})"
    )]
    RetryPeriod {
        /// The retry period.
        retry: Duration,
        /// The renew deadline.
        renew: Duration,
    },
    /// In a Lease, an empty holder means that nobody holds it.
    #[error("the identity of a leader must not be empty")]
    Identity,
}

impl LeaseSettings {
    /// Settings with the default durations of [`crate::intervals`].
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: LEASE_DURATION,
            renew_deadline: LEASE_RENEW_DEADLINE,
            retry_period: LEASE_RETRY_PERIOD,
        }
    }

    /// Checks the rules without which two processes could lead at once.
    pub fn validate(&self) -> Result<(), InvalidLeaseSettings> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        let in_seconds = lease.subsec_nanos() == 0 && (1..=i32::MAX as u64).contains(&lease.as_secs());
        if !in_seconds {
            return Err(InvalidLeaseSettings::LeaseDuration(lease));
        }
        if renew >= lease {
            return Err(InvalidLeaseSettings::RenewDeadline { renew, lease });
        }
        if retry.is_zero() || retry >= renew {
            return Err(InvalidLeaseSettings::RetryPeriod { retry, renew });
        }
        if self.identity.is_empty() { Err(InvalidLeaseSettings::Identity) } else { Ok(()) }
    }

    /// The longest time of one attempt: an attempt that hangs leaves time for another on a new connection.
    pub(super) fn attempt_timeout(&self) -> Duration {
        self.retry_period.max(self.renew_deadline / 2)
    }
}
