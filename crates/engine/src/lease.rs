//! Leader election over a Lease: at most one process at a time has an open [`Fence`].
//!
//! A read of the Lease gives a pure decision; a claim is a compare-and-swap on its resourceVersion. Each process
//! measures time with its own monotonic clock and never compares it with the times in the Lease. A leader counts from
//! the moment *before* it sends a renewal, a follower from the moment *after* it read a new version, and the leader's
//! time is the shorter one: so the leader stops before a follower starts. A leader that cannot renew in time, or finds
//! another holder in the Lease, never leads again: the process is expected to exit.

mod decide;
mod failure;
mod settings;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    fence::{Fence, Moment},
    intervals::LEASE_RELEASE_RETRY,
};

pub use settings::{InvalidLeaseSettings, LeaseSettings};

use decide::{LeaseDecision, ObservedHolder, claimed, decide, holder, observe, released};
use failure::{AttemptError, FailureLog};

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
pub struct Heartbeat {
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Creates the heartbeat of a loop that is about to start; it counts as alive from now.
    pub fn new() -> Self {
        Self { last: Arc::new(AtomicU64::new(Moment::now().as_nanos())) }
    }

    fn beat(&self) {
        self.last.store(Moment::now().as_nanos(), Ordering::Relaxed);
    }

    /// Whether the loop iterated within `limit`. The election loop iterates at least once in a renew deadline.
    pub fn alive(&self, limit: Duration) -> bool {
        Moment::from_nanos(self.last.load(Ordering::Relaxed)).elapsed() <= limit
    }
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes part in the election until `stop`, or until this process led and lost the lease.
///
/// `client` must not be fenced by `fence`, which this loop opens, and should have connections of its own, so that
/// renewals do not queue behind other calls. On return the fence is closed and `leading` is false.
pub async fn run(
    client: Client,
    settings: LeaseSettings,
    fence: Fence,
    leading: watch::Sender<bool>,
    heartbeat: Heartbeat,
    stop: CancellationToken,
) -> ElectionEnd {
    let mut elector = Elector::new(client, settings, fence.clone(), heartbeat);
    let term = async {
        let since = elector.acquire().await;
        leading.send_replace(true);
        elector.renew_until_lost(since).await
    };
    let ended = tokio::select! {
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
    /// State of the random numbers that spread the reads of followers.
    random: u64,
}

impl Elector {
    fn new(client: Client, settings: LeaseSettings, fence: Fence, heartbeat: Heartbeat) -> Self {
        let mut hasher = DefaultHasher::new();
        settings.identity.hash(&mut hasher);
        Self {
            api: Api::namespaced(client, &settings.namespace),
            fence,
            heartbeat,
            observed: None,
            last_written: None,
            has_claimed: false,
            failures: FailureLog::new(&settings),
            random: hasher.finish(),
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
            let delay = self.follower_delay();
            sleep(delay).await;
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
            tracing::info!(
                lease = self.settings.name,
                identity = self.settings.identity,
                transitions,
                "acquired the lease"
            );
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
                    tracing::info!(lease = self.settings.name, "released the lease");
                    return Ok(());
                }
                // A renewal that was abandoned on stop may still have arrived in between.
                Err(error) if error.is_conflict() => sleep(LEASE_RELEASE_RETRY).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// The delay before a follower reads the Lease again: at most half a retry period, so that a released lease is
    /// acquired well within one, and up to a fifth less, so that followers do not read in step.
    fn follower_delay(&mut self) -> Duration {
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let thousandths = u32::try_from((z ^ (z >> 31)) % 201).unwrap_or(0);
        self.settings.retry_period / 2 * (1000 - thousandths) / 1000
    }
}

#[cfg(test)]
mod tests;
