//! Leader election over a Lease: at most one process at a time has an open [`Fence`].
//!
//! A look at the lease gives a pure decision; a claim is a compare-and-swap on its resourceVersion. Time is
//! our own and monotonic: the clock of another holder is never compared with ours. A leader counts from the
//! moment *before* its renewing request, a follower from the moment *after* it saw a new version, and the
//! leader's time is the shorter one. A leader that cannot renew in time, or finds anything but its own name
//! in the lease, stops for good: the process is expected to exit.

mod decide;
mod heartbeat;
mod trouble;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::fence::{Fence, Moment};

pub use decide::{Decision, Observed, decide, observe};
pub use heartbeat::Heartbeat;

use decide::{claimed, holder, released};
use trouble::{Failed, Trouble};

/// The pause between two tries to release.
const RELEASE_PAUSE: Duration = Duration::from_millis(50);

/// Which lease, for whom, and how patiently.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the lease is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Who we are, unique for each process: `<pod or host>_<uuid>`.
    pub identity: String,
    /// How long others wait after a renewal before they take over.
    pub lease_duration: Duration,
    /// How long we act on a renewal.
    pub renew_deadline: Duration,
    /// How often we renew; followers look twice as often.
    pub retry_period: Duration,
}

/// Settings that cannot work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The API counts in seconds.
    #[error("the lease duration must be a whole number of seconds and at least 1 s, not {0:?}")]
    Duration(Duration),
    /// A leader would act after others may have taken over.
    #[error("the renew deadline ({renew:?}) must be shorter than the lease duration ({lease:?})")]
    Renew {
        /// The renew deadline.
        renew: Duration,
        /// The lease duration.
        lease: Duration,
    },
    /// A leader would have no second chance.
    #[error(
        "the retry period ({retry:?}) must be longer than zero and shorter than the renew deadline ({renew:?})"
    )]
    Retry {
        /// The retry period.
        retry: Duration,
        /// The renew deadline.
        renew: Duration,
    },
    /// An empty name in a lease means that nobody holds it.
    #[error("the identity of a leader must not be empty")]
    Identity,
}

impl Settings {
    /// 15 s of lease, 10 s to renew it, a try every 2 s.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Whether these settings can work.
    pub fn validate(&self) -> Result<(), Invalid> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        let in_seconds = lease.subsec_nanos() == 0 && (1..=i32::MAX as u64).contains(&lease.as_secs());
        if !in_seconds {
            return Err(Invalid::Duration(lease));
        }
        if renew >= lease {
            return Err(Invalid::Renew { renew, lease });
        }
        if retry.is_zero() || retry >= renew {
            return Err(Invalid::Retry { retry, renew });
        }
        if self.identity.is_empty() { Err(Invalid::Identity) } else { Ok(()) }
    }

    /// What one try may take: a call that hangs must leave time for another on a new connection.
    fn patience(&self) -> Duration {
        self.retry_period.max(self.renew_deadline / 2)
    }
}

/// How the election ended for this process.
#[derive(Debug)]
pub enum Ended {
    /// We were told to stop; if we led, the lease is free for the next.
    Released,
    /// We led and must not any more. The process should exit.
    Lost(Loss),
}

/// Why a leader stopped leading.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    /// Somebody else's name is in the lease.
    #[error("the lease {lease} is held by {holder}")]
    Taken {
        /// The lease.
        lease: String,
        /// Who has it now.
        holder: String,
    },
    /// The lease was deleted, or emptied by somebody else.
    #[error("the lease {lease} was deleted or cleared by somebody else")]
    Gone {
        /// The lease.
        lease: String,
    },
    /// Renewals failed for too long.
    #[error("the lease {lease} was not renewed within {} s: {why}", .deadline.as_secs_f64())]
    Expired {
        /// The lease.
        lease: String,
        /// How long we were allowed to try.
        deadline: Duration,
        /// What the last try met.
        why: String,
    },
}

/// Takes part in the election until `stop` or until a lease that was held is lost.
///
/// `client` must not have the fence that this loop opens, and should have its own connections. On return the
/// fence is closed and `leading` is false.
pub async fn run(
    client: Client,
    settings: Settings,
    fence: Fence,
    leading: watch::Sender<bool>,
    beat: Heartbeat,
    stop: CancellationToken,
) -> Ended {
    let mut elector = Elector::new(client, settings, fence.clone(), beat);
    let term = async {
        let since = elector.acquire().await;
        leading.send_replace(true);
        elector.hold(since).await
    };
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        loss = term => Some(loss),
    };
    fence.close();
    leading.send_replace(false);
    if let Some(loss) = ended {
        return Ended::Lost(loss);
    }
    elector.release().await;
    Ended::Released
}

struct Elector {
    api: Api<Lease>,
    settings: Settings,
    fence: Fence,
    beat: Heartbeat,
    /// Somebody else, as we last saw them.
    observed: Option<Observed>,
    /// The lease as our last successful claim left it; gone as soon as a claim is under way.
    held: Option<Lease>,
    /// Whether we ever sent a claim, known to have succeeded or not.
    has_claimed: bool,
    trouble: Trouble,
    dice: u64,
}

impl Elector {
    fn new(client: Client, settings: Settings, fence: Fence, beat: Heartbeat) -> Self {
        let mut hasher = DefaultHasher::new();
        settings.identity.hash(&mut hasher);
        Self {
            api: Api::namespaced(client, &settings.namespace),
            fence,
            beat,
            observed: None,
            held: None,
            has_claimed: false,
            trouble: Trouble::new(&settings),
            dice: hasher.finish(),
            settings,
        }
    }

    /// Looks again and again until the lease is ours; opens the fence.
    async fn acquire(&mut self) -> Moment {
        let patience = self.settings.patience();
        loop {
            self.beat.touch();
            match timeout(patience, self.look()).await {
                Ok(Ok(claim)) => {
                    self.trouble.is_over();
                    if let Some(since) = claim {
                        self.fence.hold_until(since, self.settings.renew_deadline);
                        return since;
                    }
                }
                Ok(Err(failed)) => self.trouble.following(&failed),
                Err(_) => self.trouble.following(&Failed::Silent),
            }
            let pace = self.pace();
            sleep(pace).await;
        }
    }

    /// Renews again and again until that fails for good; each renewal holds the fence open.
    async fn hold(&mut self, mut since: Moment) -> Loss {
        let Settings { renew_deadline, retry_period, .. } = self.settings;
        let mut nap = retry_period;
        loop {
            self.beat.touch();
            let expires = since.plus(renew_deadline);
            sleep(nap.min(expires.since(Moment::now()))).await;
            let left = expires.since(Moment::now());
            if left.is_zero() {
                let why = self.trouble.last();
                return Loss::Expired { lease: self.settings.name.clone(), deadline: renew_deadline, why };
            }
            let patience = self.settings.patience().min(left);
            let failed = match timeout(patience, self.renew()).await {
                Ok(Ok(Ok(renewed))) => {
                    since = renewed;
                    self.fence.hold_until(since, renew_deadline);
                    self.trouble.is_over();
                    nap = retry_period;
                    continue;
                }
                Ok(Ok(Err(loss))) => return loss,
                Ok(Err(failed)) => failed,
                Err(_) => Failed::Silent,
            };
            self.trouble.leading(&failed, since.elapsed());
            // The time left is short, and one leader does not hurt the server.
            nap = retry_period / 4;
        }
    }

    /// One look by a follower: the moment of our claim, if the lease was free and we got it.
    async fn look(&mut self) -> Result<Option<Moment>, Failed> {
        let lease = self.get().await?;
        match self.judge(lease.as_ref()) {
            Decision::Wait => Ok(None),
            decision => self.claim(lease, decision).await.map(Some),
        }
    }

    /// One renewal by the leader. Nothing but our own name in the lease lets us go on.
    async fn renew(&mut self) -> Result<Result<Moment, Loss>, Failed> {
        if let Some(lease) = self.held.take() {
            match self.claim(Some(lease), Decision::Renew).await {
                Err(failed) if failed.is_outdated() => {}
                other => return other.map(Ok),
            }
        }
        let seen = self.get().await?;
        if self.judge(seen.as_ref()) == Decision::Renew {
            return self.claim(seen, Decision::Renew).await.map(Ok);
        }
        let lease = self.settings.name.clone();
        Ok(Err(match seen.as_ref().and_then(holder) {
            Some(holder) => Loss::Taken { lease, holder: holder.to_owned() },
            None => Loss::Gone { lease },
        }))
    }

    fn judge(&mut self, lease: Option<&Lease>) -> Decision {
        let now = Moment::now();
        self.observed = observe(self.observed.take(), lease, &self.settings.identity, now);
        decide(lease, self.observed.as_ref(), &self.settings.identity, now)
    }

    async fn get(&self) -> Result<Option<Lease>, Failed> {
        self.api.get_opt(&self.settings.name).await.map_err(Failed::to("get"))
    }

    /// Writes our name, if the lease is still as `lease` says. Answers the moment before the request.
    async fn claim(&mut self, lease: Option<Lease>, decision: Decision) -> Result<Moment, Failed> {
        let next = claimed(lease, decision, &self.settings, Timestamp::now());
        self.has_claimed = true;
        let before = Moment::now();
        let written = if decision == Decision::Create {
            self.api.create(&PostParams::default(), &next).await.map_err(Failed::to("create"))?
        } else {
            self.replace(&next).await?
        };
        if decision != Decision::Renew {
            let transitions = written.spec.as_ref().and_then(|spec| spec.lease_transitions);
            tracing::info!(
                lease = self.settings.name,
                identity = self.settings.identity,
                transitions,
                "got the lease"
            );
        }
        self.held = Some(written);
        Ok(before)
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Failed> {
        self.api
            .replace(&self.settings.name, &PostParams::default(), lease)
            .await
            .map_err(Failed::to("update"))
    }

    /// Frees the lease if it is ours, so that a successor need not wait.
    async fn release(&mut self) {
        if !self.has_claimed {
            return;
        }
        let patience = self.settings.retry_period;
        let failed = match timeout(patience, self.clear()).await {
            Ok(Ok(())) => return,
            Ok(Err(failed)) => failed,
            Err(_) => Failed::Silent,
        };
        self.trouble.releasing(&failed);
    }

    async fn clear(&self) -> Result<(), Failed> {
        loop {
            let Some(lease) = self.get().await?.filter(|l| holder(l) == Some(&self.settings.identity)) else {
                return Ok(());
            };
            match self.replace(&released(lease, Timestamp::now())).await {
                Ok(_) => {
                    tracing::info!(lease = self.settings.name, "released the lease");
                    return Ok(());
                }
                // A renewal that was cut short may arrive in between.
                Err(failed) if failed.is_outdated() => sleep(RELEASE_PAUSE).await,
                Err(failed) => return Err(failed),
            }
        }
    }

    /// How long a follower waits: at most half a retry period, so that a released lease is taken well within
    /// one; up to a fifth less, so that followers do not march in step.
    fn pace(&mut self) -> Duration {
        // splitmix64
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let thousandths = u32::try_from((z ^ (z >> 31)) % 201).unwrap_or(0);
        self.settings.retry_period / 2 * (1000 - thousandths) / 1000
    }
}

#[cfg(test)]
mod tests;
