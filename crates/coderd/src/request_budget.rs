//! One request budget for each coderd, as one tenant trusts it.
//!
//! At most [`MAX_REQUESTS_IN_FLIGHT`] requests are under way to a server. A server that answers 429, or that cannot be
//! reached, is left alone by all objects of a namespace: calls fail at once, without touching the network, until
//! its time has come. Other servers are never delayed by it, nor other namespaces: who names the address of another's server,
//! with a CA that did not sign its certificate, learns that it cannot be reached, and nobody else does. Servers that nobody
//! uses are forgotten, those of a namespace that names too many at once.
//!
//! The decisions are in [`Throttle`], which knows neither clock nor network.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    connector::UnusedCache,
    error::{ErrorKind, Outage},
    intervals::{
        MAX_IDLE_BUDGETS, MAX_REQUESTS_IN_FLIGHT, PROBE_DELAY, RATE_LIMIT_DELAY_MAX, UNREACHABLE_DELAY_MAX,
        UNREACHABLE_DELAY_MIN,
    },
    server::{Endpoint, Origin},
};

/// What a budget is for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct BudgetKey {
    /// The namespace on whose behalf the server is called.
    tenant: String,
    /// Scheme, host and port.
    origin: String,
    /// Digest of the only CA that is trusted. None: those of the system.
    ca: Option<[u8; 32]>,
}

impl BudgetKey {
    pub(crate) fn new(target: &Endpoint, origin: &Origin) -> Self {
        let ca = target.ca.as_deref().filter(|_| origin.https);
        Self {
            tenant: target.tenant.clone(),
            origin: origin.url.to_string(),
            ca: ca.map(|pem| Sha256::digest(pem).into()),
        }
    }
}

/// The budgets of all servers that this process talks to.
#[derive(Default)]
pub(crate) struct RequestBudgets(Mutex<UnusedCache<BudgetKey, RequestBudget>>);

impl RequestBudgets {
    /// The budget of a key; the same for everybody who asks.
    pub(crate) fn get(&self, key: BudgetKey) -> Arc<RequestBudget> {
        let make = || Ok::<_, std::convert::Infallible>(RequestBudget::default());
        let mut all = self.0.lock();
        all.make_room_for(&key, MAX_IDLE_BUDGETS, |other| other.tenant == key.tenant);
        all.get(key, now(), make).unwrap_or_else(|never| match never {})
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// The budget of one server.
pub(crate) struct RequestBudget {
    slots: Arc<Semaphore>,
    throttle: Mutex<Throttle>,
}

impl Default for RequestBudget {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(MAX_REQUESTS_IN_FLIGHT)), throttle: Mutex::default() }
    }
}

impl RequestBudget {
    /// Waits for a free slot. Fails at once while the server is left alone, also for those who waited.
    ///
    /// `patience` is the longest time that the caller leaves a server alone, whatever the server asks for: that of a caller
    /// who has a deadline. None: as long as everybody.
    pub(crate) async fn admit(self: &Arc<Self>, patience: Option<Duration>) -> Result<Permit, ErrorKind> {
        self.throttle.lock().check(now(), patience)?;
        let slot = self.slots.clone().acquire_owned().await.ok();
        let admitted = self.throttle.lock().admit(now(), patience)?;
        Ok(Permit { budget: self.clone(), admitted, outcome: CallOutcome::Nothing, _slot: slot })
    }
}

/// The right to send one request. Dropped without a report, it tells nothing about the server.
pub(crate) struct Permit {
    budget: Arc<RequestBudget>,
    admitted: Admitted,
    outcome: CallOutcome,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// Records what the request showed about the server.
    pub(crate) fn report(mut self, outcome: CallOutcome) {
        self.outcome = outcome;
    }

    /// How long the request has been under way.
    pub(crate) fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.admitted.at)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let outcome = mem::replace(&mut self.outcome, CallOutcome::Nothing);
        self.budget.throttle.lock().record(self.admitted, now(), outcome);
    }
}

/// The clock of tokio, which tests can stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// When requests to a server are held back, and for how long. Pure: the time comes from outside.
#[derive(Debug, Default)]
struct Throttle {
    /// When the server last asked for patience.
    rate_limited_at: Option<Instant>,
    rate_limited_until: Option<Instant>,
    /// Until when the server is left alone, and the last outage. Stays after its time, until the server answers.
    unreachable: Option<(Instant, Outage)>,
    /// Whether a request is under way that probes whether the server is back.
    probing: bool,
    failures: u32,
    last_answer: Option<Instant>,
    last_failure: Option<Instant>,
}

/// A request that may be sent.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    at: Instant,
    /// Whether it finds out for all others if the server is back.
    probe: bool,
}

/// What a request showed about its server.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// It answers, whatever it says.
    Answered,
    /// It asks to be left alone for this long.
    RateLimited(Duration),
    /// It cannot be reached, breaks off, or takes too long.
    Unreachable(Outage),
    /// The request was given up.
    Nothing,
}

impl Throttle {
    /// Whether a request would be admitted, without asking for it. The error is that of a call that is not sent.
    fn check(&self, now: Instant, patience: Option<Duration>) -> Result<(), ErrorKind> {
        // For a caller with less patience the time is over earlier.
        let end = |since: Option<Instant>, until: Instant| match (since, patience) {
            (Some(since), Some(patience)) => since.checked_add(patience).map_or(until, |end| end.min(until)),
            _ => until,
        };
        let limited = self.rate_limited_until.map(|until| end(self.rate_limited_at, until));
        if let Some(until) = limited.filter(|until| now < *until) {
            return Err(ErrorKind::RateLimited { retry_after: until - now });
        }
        let unreachable = self.unreachable.as_ref();
        match unreachable.map(|(until, last)| (end(self.last_failure, *until), last)) {
            Some((until, last)) if now < until || self.probing => {
                let retry_after = if now < until { until - now } else { PROBE_DELAY };
                Err(ErrorKind::Transient(Outage::HeldOff { retry_after, last: Box::new(last.clone()) }))
            }
            _ => Ok(()),
        }
    }

    /// Asks to send a request. After a time out of reach, one request goes ahead and the others wait for it.
    fn admit(&mut self, now: Instant, patience: Option<Duration>) -> Result<Admitted, ErrorKind> {
        self.check(now, patience)?;
        let probe = self.unreachable.is_some();
        self.probing |= probe;
        Ok(Admitted { at: now, probe })
    }

    /// Notes what came of a request.
    fn record(&mut self, request: Admitted, now: Instant, outcome: CallOutcome) {
        if request.probe {
            self.probing = false;
        }
        match outcome {
            CallOutcome::Nothing => {}
            CallOutcome::Answered => self.answered(now),
            CallOutcome::RateLimited(delay) => {
                self.answered(now);
                self.rate_limited_at = Some(now);
                // None is less than every time.
                self.rate_limited_until =
                    self.rate_limited_until.max(Some(now + delay.min(RATE_LIMIT_DELAY_MAX)));
            }
            CallOutcome::Unreachable(outage) => self.failed(request, now, outage),
        }
    }

    fn answered(&mut self, now: Instant) {
        self.failures = 0;
        self.unreachable = None;
        self.last_answer = Some(now);
    }

    fn failed(&mut self, request: Admitted, now: Instant, outage: Outage) {
        // Somebody who began later was answered, or failed for the same cause and was counted.
        if self.last_answer.max(self.last_failure).is_some_and(|other| request.at < other) {
            if let Some((_, last)) = &mut self.unreachable {
                *last = outage;
            }
            return;
        }
        let doublings = self.failures;
        self.failures = self.failures.saturating_add(1);
        self.last_failure = Some(now);
        let doubled = UNREACHABLE_DELAY_MIN.saturating_mul(2_u32.saturating_pow(doublings));
        self.unreachable = Some((now + doubled.min(UNREACHABLE_DELAY_MAX), outage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_mins(1);

    fn key(tenant: &str, url: &str, ca: Option<&str>) -> BudgetKey {
        let ca = ca.map(|pem| pem.as_bytes().to_vec());
        let target = Endpoint { url: url.to_owned(), ca, tenant: tenant.to_owned() };
        BudgetKey::new(&target, &Origin::parse(url).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_another_ca_takes_the_server_from_nobody() {
        const URL: &str = "https://coder.a.svc:443";
        let budgets = RequestBudgets::default();
        let own = budgets.get(key("a", URL, Some("ours")));
        for hostile in [
            key("b", URL, Some("bogus")),
            key("b", URL, Some("ours")),
            key("b", URL, None),
            key("a", URL, Some("bogus")),
            key("a", URL, None),
        ] {
            let budget = budgets.get(hostile);
            let mut slots = Vec::new();
            for _ in 0..MAX_REQUESTS_IN_FLIGHT {
                slots.push(budget.admit(None).await.unwrap());
            }
            let free = own.admit(None).await.expect("four slots of another starve nobody");
            drop(free);
            slots.pop().unwrap().report(unreachable());
            assert!(budget.admit(None).await.is_err());
            assert!(own.admit(None).await.is_ok(), "what another learns of the server is not believed");
        }
        let same = budgets.get(key("a", "https://coder.a.svc/path", Some("ours")));
        assert!(Arc::ptr_eq(&own, &same));
        let [one, two] = ["x", "y"].map(|ca| budgets.get(key("a", "http://coder.a.svc", Some(ca))));
        assert!(Arc::ptr_eq(&one, &two), "plain HTTP trusts no certificate");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_that_names_many_servers_forgets_its_own_alone() {
        let budgets = RequestBudgets::default();
        let held = budgets.get(key("b", "http://held", None));
        budgets.get(key("a", "http://coder", None)).admit(None).await.unwrap().report(unreachable());
        for n in 0..10_000 {
            budgets.get(key("b", &format!("http://{n}"), None));
            tokio::time::advance(Duration::from_micros(1)).await;
        }
        assert!(budgets.len() <= MAX_IDLE_BUDGETS + 2, "{}", budgets.len());
        assert!(
            budgets.get(key("a", "http://coder", None)).admit(None).await.is_err(),
            "its outage is known"
        );
        assert!(Arc::ptr_eq(&held, &budgets.get(key("b", "http://held", None))), "one in use stays");
        let newest = budgets.0.lock().len();
        budgets.get(key("b", "http://9999", None));
        assert_eq!(budgets.len(), newest, "the newest are kept");
    }

    fn unreachable() -> CallOutcome {
        CallOutcome::Unreachable(Outage::Unreachable("refused".to_owned()))
    }

    fn fail(throttle: &mut Throttle, now: Instant) -> Duration {
        let request = throttle.admit(now, None).unwrap();
        throttle.record(request, now, unreachable());
        held_off(throttle.check(now, None))
    }

    fn held_off<T: std::fmt::Debug>(result: Result<T, ErrorKind>) -> Duration {
        match result {
            Err(ErrorKind::Transient(Outage::HeldOff { retry_after, .. })) => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_server_out_of_reach_is_left_alone_ever_longer_up_to_half_a_minute() {
        let (mut throttle, mut now) = (Throttle::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..40 {
            let delay = fail(&mut throttle, now);
            delays.push(delay.as_millis());
            now += delay;
        }
        assert_eq!(delays[..4], [500, 1000, 2000, 4000]);
        assert_eq!(delays[39], 30_000);
    }

    #[test]
    fn one_request_finds_out_whether_the_server_is_back() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        fail(&mut throttle, start);
        let now = start + SECOND;
        let probe = throttle.admit(now, None).unwrap();
        assert!(probe.probe);
        assert_eq!(held_off(throttle.admit(now, None)), PROBE_DELAY);
        throttle.record(probe, now, CallOutcome::Answered);
        assert!(!throttle.admit(now, None).unwrap().probe);
        assert_eq!(fail(&mut throttle, now + SECOND), UNREACHABLE_DELAY_MIN, "failures are counted anew");
    }

    #[test]
    fn a_probe_given_up_is_followed_by_another() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        fail(&mut throttle, start);
        let probe = throttle.admit(start + SECOND, None).unwrap();
        throttle.record(probe, start + SECOND, CallOutcome::Nothing);
        assert!(throttle.admit(start + SECOND, None).unwrap().probe);
    }

    #[test]
    fn requests_that_fail_together_count_once() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let requests: Vec<_> = (0..4).map(|_| throttle.admit(start, None).unwrap()).collect();
        for request in requests {
            throttle.record(request, start + SECOND, unreachable());
        }
        assert_eq!(held_off(throttle.check(start + SECOND, None)), UNREACHABLE_DELAY_MIN);
    }

    #[test]
    fn a_late_failure_does_not_count_against_a_server_that_answered_since() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let slow = throttle.admit(start, None).unwrap();
        let quick = throttle.admit(start + SECOND, None).unwrap();
        throttle.record(quick, start + SECOND, CallOutcome::Answered);
        throttle.record(slow, start + SECOND * 9, unreachable());
        assert_eq!(throttle.check(start + SECOND * 9, None), Ok(()));
    }

    #[test]
    fn the_longest_patience_asked_for_holds_and_an_answer_does_not_end_it() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let [a, b, c] = [0; 3].map(|_| throttle.admit(start, None).unwrap());
        throttle.record(a, start, CallOutcome::RateLimited(MINUTE));
        throttle.record(b, start, CallOutcome::RateLimited(SECOND * 5));
        throttle.record(c, start, CallOutcome::Answered);
        assert_eq!(throttle.check(start, None), Err(ErrorKind::RateLimited { retry_after: MINUTE }));
        assert_eq!(throttle.check(start + MINUTE, None), Ok(()));
        let request = throttle.admit(start + MINUTE, None).unwrap();
        throttle.record(request, start + MINUTE, CallOutcome::RateLimited(SECOND * 86_400));
        let limited = ErrorKind::RateLimited { retry_after: RATE_LIMIT_DELAY_MAX };
        assert_eq!(throttle.check(start + MINUTE, None), Err(limited));
    }

    #[test]
    fn a_caller_with_a_deadline_waits_no_longer_than_its_patience() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        let patience = Some(SECOND * 30);
        let mut now = start;
        for _ in 0..4 {
            let request = throttle.admit(now, patience).unwrap();
            throttle.record(request, now, CallOutcome::RateLimited(Duration::from_secs(u64::MAX)));
            let limited = ErrorKind::RateLimited { retry_after: SECOND * 30 };
            assert_eq!(throttle.check(now, patience), Err(limited), "it is honoured that long");
            let limited = ErrorKind::RateLimited { retry_after: RATE_LIMIT_DELAY_MAX };
            assert_eq!(throttle.check(now, None), Err(limited), "and by others for longer");
            now += SECOND * 30;
        }
        let mut throttle = Throttle::default();
        for _ in 0..10 {
            let request = throttle.admit(now, None).unwrap();
            throttle.record(request, now, unreachable());
            now += UNREACHABLE_DELAY_MAX;
        }
        let request = throttle.admit(now, None).unwrap();
        throttle.record(request, now, unreachable());
        assert_eq!(held_off(throttle.check(now, Some(SECOND))), SECOND);
        assert!(throttle.admit(now + SECOND, Some(SECOND)).unwrap().probe);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_for_a_slot_fail_when_the_server_asks_for_patience() {
        let budgets = RequestBudgets::default();
        let budget = budgets.get(key("a", "http://one", None));
        let mut permits = Vec::new();
        for _ in 0..MAX_REQUESTS_IN_FLIGHT {
            permits.push(budget.admit(None).await.unwrap());
        }
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.admit(None).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        permits.pop().unwrap().report(CallOutcome::RateLimited(MINUTE));
        assert_eq!(waiting.await.unwrap(), Err(ErrorKind::RateLimited { retry_after: MINUTE }));

        assert!(
            budgets.get(key("a", "http://two", None)).admit(None).await.is_ok(),
            "another server is not delayed"
        );
        tokio::time::advance(MINUTE).await;
        assert!(budget.admit(None).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_given_up_frees_its_slot_and_its_probe() {
        let budget = RequestBudgets::default().get(key("a", "http://one", None));
        budget.admit(None).await.unwrap().report(unreachable());
        tokio::time::advance(MINUTE).await;
        let probe = budget.admit(None).await.unwrap();
        assert!(budget.admit(None).await.is_err(), "one at a time tries");
        drop(probe);
        assert!(budget.admit(None).await.is_ok());
        assert_eq!(budget.slots.available_permits(), MAX_REQUESTS_IN_FLIGHT);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_servers_are_forgotten_with_their_history() {
        let budgets = RequestBudgets::default();
        for n in 0..100 {
            budgets.get(key(&n.to_string(), "http://coder", None));
        }
        assert_eq!(budgets.len(), 100);
        tokio::time::advance(crate::intervals::UNUSED_SERVER_TTL * 2).await;
        budgets.get(key("last", "http://coder", None));
        assert_eq!(budgets.len(), 1);
    }
}
