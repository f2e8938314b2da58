//! Leader election over a Lease: at most one process at a time has an open [`Fence`].
//!
//! A read of the Lease gives a pure decision; a claim is a compare-and-swap on its resourceVersion. Each process
//! measures time with its own monotonic clock and never compares it with the times in the Lease. A leader counts from
//! the moment *before* it sends a renewal, a follower from the moment *after* it read a new version, and the leader's
//! time is the shorter one: so the leader stops before a follower starts. A leader that cannot renew in time, or finds
//! another holder in the Lease, never leads again: the process is expected to exit.

mod decide;
mod failure;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::jitter,
    fence::{Fence, Moment},
    intervals::{LEASE_DURATION, LEASE_RELEASE_RETRY, LEASE_RENEW_DEADLINE, LEASE_RETRY_PERIOD},
    outage::Outage,
};

use decide::{LeaseDecision, ObservedHolder, claimed, decide, holder, observe, released};
use failure::{AttemptError, FailureLog};

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
    fn attempt_timeout(&self) -> Duration {
        self.retry_period.max(self.renew_deadline / 2)
    }
}

/// How the election ended for this process.
#[derive(Debug)]
pub enum ElectionEnd {
    /// The process was asked to stop. If it led, it tried to release the lease for its successor.
    Released,
    /// The process led and must not write any more. It should exit.
    Lost(Loss),
}

/// Why a leader lost the lease.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    /// The Lease names another holder.
    #[error("the lease {lease} is held by {holder}")]
    Taken {
        /// Name of the Lease.
        lease: String,
        /// Identity of the new holder.
        holder: String,
    },
    /// The Lease was deleted, or another client removed its holder.
    #[error("the lease {lease} was deleted or cleared by another client")]
    Gone {
        /// Name of the Lease.
        lease: String,
    },
    /// Renewals failed until the renew deadline.
    #[error("the lease {lease} was not renewed within {} s: {why}", .deadline.as_secs_f64())]
    Expired {
        /// Name of the Lease.
        lease: String,
        /// The renew deadline.
        deadline: Duration,
        /// The last failure.
        why: String,
    },
}

/// When the election loop last iterated, for readiness. Clones share one state.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Mutex<Moment>>);

impl Default for Heartbeat {
    /// The heartbeat of a loop that is about to start; it counts as alive from now.
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Moment::now())))
    }
}

impl Heartbeat {
    fn beat(&self) {
        *self.0.lock() = Moment::now();
    }

    /// Whether the loop iterated within `limit`. The election loop iterates at least once in a renew deadline.
    pub fn alive(&self, limit: Duration) -> bool {
        self.0.lock().elapsed() <= limit
    }
}

/// Takes part in the election until `stop`, or until this process led and lost the lease.
///
/// `client` must not be fenced by `fence`, which this loop opens, and should have connections of its own, so that
/// renewals do not queue behind other calls. `outage` is that of the client. On return the fence is closed and `leading` is
/// false.
pub async fn run(
    client: Client,
    settings: LeaseSettings,
    fence: Fence,
    leading: watch::Sender<bool>,
    heartbeat: Heartbeat,
    outage: Outage,
    stop: CancellationToken,
) -> ElectionEnd {
    let mut elector = Elector::new(client, settings, fence.clone(), heartbeat, outage);
    let term = async {
        let since = elector.acquire().await;
        leading.send_replace(true);
        elector.renew_until_lost(since).await
    };
    let ended = tokio::select! {
        // A stop and a loss at the same moment count as a stop: the lease may still be ours to release.
        biased;
        () = stop.cancelled() => None,
        loss = term => Some(loss),
    };
    fence.close();
    leading.send_replace(false);
    if let Some(loss) = ended {
        return ElectionEnd::Lost(loss);
    }
    elector.release().await;
    ElectionEnd::Released
}

struct Elector {
    api: Api<Lease>,
    settings: LeaseSettings,
    fence: Fence,
    heartbeat: Heartbeat,
    /// The other holder as this process last read it.
    observed: Option<ObservedHolder>,
    /// The Lease as this process last wrote it. `None` from the start of a claim until its response.
    last_written: Option<Lease>,
    /// Whether this process ever sent a claim. The response may have been lost, so that it may hold the lease without
    /// knowing.
    has_claimed: bool,
    failures: FailureLog,
}

impl Elector {
    fn new(
        client: Client,
        settings: LeaseSettings,
        fence: Fence,
        heartbeat: Heartbeat,
        outage: Outage,
    ) -> Self {
        Self {
            api: Api::namespaced(client, &settings.namespace),
            fence,
            heartbeat,
            observed: None,
            last_written: None,
            has_claimed: false,
            failures: FailureLog::new(&settings, outage),
            settings,
        }
    }

    /// Reads the Lease until this process holds it, then opens the fence. Returns the moment before the claim.
    async fn acquire(&mut self) -> Moment {
        let attempt_timeout = self.settings.attempt_timeout();
        loop {
            self.heartbeat.beat();
            match timeout(attempt_timeout, self.try_acquire()).await {
                Ok(Ok(claim)) => {
                    self.failures.reset();
                    if let Some(since) = claim {
                        self.fence.extend(since, self.settings.renew_deadline);
                        return since;
                    }
                }
                Ok(Err(error)) => self.failures.following(&error),
                Err(_) => self.failures.following(&AttemptError::Timeout),
            }
            // At most half a retry period, so that a released lease is acquired well within one, and up to a fifth less,
            // so that followers do not read in step.
            sleep((self.settings.retry_period / 2).mul_f64(1.0 - 0.2 * jitter())).await;
        }
    }

    /// Renews the lease until it is lost. Each renewal keeps the fence open for another renew deadline.
    async fn renew_until_lost(&mut self, mut since: Moment) -> Loss {
        let LeaseSettings { renew_deadline, retry_period, .. } = self.settings;
        let mut delay = retry_period;
        loop {
            self.heartbeat.beat();
            let expires = since.plus(renew_deadline);
            sleep(delay.min(expires.since(Moment::now()))).await;
            let left = expires.since(Moment::now());
            if left.is_zero() {
                let why = self.failures.last();
                return Loss::Expired { lease: self.settings.name.clone(), deadline: renew_deadline, why };
            }
            let attempt_timeout = self.settings.attempt_timeout().min(left);
            let error = match timeout(attempt_timeout, self.renew()).await {
                Ok(Ok(Ok(renewed))) => {
                    since = renewed;
                    self.fence.extend(since, renew_deadline);
                    self.failures.reset();
                    delay = retry_period;
                    continue;
                }
                Ok(Ok(Err(loss))) => return loss,
                Ok(Err(error)) => error,
                Err(_) => AttemptError::Timeout,
            };
            self.failures.leading(&error, since.elapsed());
            // Little time is left, and a single leader does not overload the server.
            delay = retry_period / 4;
        }
    }

    /// One attempt of a follower. Returns the moment before the claim if the lease was free and the claim succeeded.
    async fn try_acquire(&mut self) -> Result<Option<Moment>, AttemptError> {
        let lease = self.get().await?;
        match self.decide(lease.as_ref()) {
            LeaseDecision::Wait => Ok(None),
            decision => self.claim(lease, decision).await.map(Some),
        }
    }

    /// One renewal by the leader. It succeeds only if the Lease still names this process.
    ///
    /// Writes onto the Lease as last written, without a read. After a conflict or a lost response it reads first.
    async fn renew(&mut self) -> Result<Result<Moment, Loss>, AttemptError> {
        if let Some(lease) = self.last_written.take() {
            match self.claim(Some(lease), LeaseDecision::Renew).await {
                Err(error) if error.is_conflict() => {}
                other => return other.map(Ok),
            }
        }
        let live = self.get().await?;
        if self.decide(live.as_ref()) == LeaseDecision::Renew {
            return self.claim(live, LeaseDecision::Renew).await.map(Ok);
        }
        let lease = self.settings.name.clone();
        Ok(Err(match live.as_ref().and_then(holder) {
            Some(holder) => Loss::Taken { lease, holder: holder.to_owned() },
            None => Loss::Gone { lease },
        }))
    }

    fn decide(&mut self, lease: Option<&Lease>) -> LeaseDecision {
        let now = Moment::now();
        self.observed = observe(self.observed.take(), lease, &self.settings.identity, now);
        decide(lease, self.observed.as_ref(), &self.settings.identity, now)
    }

    async fn get(&self) -> Result<Option<Lease>, AttemptError> {
        self.api.get_opt(&self.settings.name).await.map_err(AttemptError::of("get"))
    }

    /// Writes this process as the holder, if `lease` is still the current version. Returns the moment before the request.
    async fn claim(&mut self, lease: Option<Lease>, decision: LeaseDecision) -> Result<Moment, AttemptError> {
        let next = claimed(lease, decision, &self.settings, Timestamp::now());
        self.has_claimed = true;
        let before = Moment::now();
        let written = if decision == LeaseDecision::Create {
            self.api.create(&PostParams::default(), &next).await.map_err(AttemptError::of("create"))?
        } else {
            self.replace(&next).await?
        };
        if decision != LeaseDecision::Renew {
            let transitions = written.spec.as_ref().and_then(|spec| spec.lease_transitions);
            let LeaseSettings { name, identity, .. } = &self.settings;
            tracing::info!(transitions, "acquired the lease {name} as {identity}");
        }
        self.last_written = Some(written);
        Ok(before)
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, AttemptError> {
        self.api
            .replace(&self.settings.name, &PostParams::default(), lease)
            .await
            .map_err(AttemptError::of("update"))
    }

    /// Releases the lease if this process holds it, so that a successor need not wait for it to expire.
    async fn release(&mut self) {
        if !self.has_claimed {
            return;
        }
        let error = match timeout(self.settings.retry_period, self.clear_holder()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => AttemptError::Timeout,
        };
        self.failures.releasing(&error);
    }

    async fn clear_holder(&self) -> Result<(), AttemptError> {
        loop {
            let Some(lease) = self.get().await?.filter(|l| holder(l) == Some(&self.settings.identity)) else {
                return Ok(());
            };
            match self.replace(&released(lease, Timestamp::now())).await {
                Ok(_) => {
                    tracing::info!("released the lease {}", self.settings.name);
                    return Ok(());
                }
                // A renewal that was abandoned on stop may still have arrived in between.
                Err(error) if error.is_conflict() => sleep(LEASE_RELEASE_RETRY).await,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests;
