use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tower::BoxError;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);

/// One lease with the semantics of the API server.
#[derive(Clone, Default)]
struct Server {
    lease: Arc<Mutex<Option<Value>>>,
    version: Arc<AtomicU64>,
}

/// What happens between a client and the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    Up,
    /// Requests never arrive.
    Hole,
    /// Requests arrive, answers to writes do not.
    Deaf,
    /// Requests arrive late, even if their caller has given up.
    Late(Duration),
    /// The server refuses.
    Fails(u16),
}

type Switch = Arc<Mutex<Link>>;

impl Server {
    fn client(&self, link: &Switch) -> Client {
        let (server, link) = (self.clone(), link.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, link) = (server.clone(), *link.lock());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let writes = parts.method != Method::GET;
                let handle = move || server.handle(&parts.method, &body);
                match link {
                    Link::Deaf if writes => {
                        handle();
                        std::future::pending().await
                    }
                    Link::Up | Link::Deaf => {
                        sleep(Duration::from_millis(5)).await;
                        Ok::<_, BoxError>(handle())
                    }
                    Link::Hole => std::future::pending().await,
                    Link::Late(by) => Ok(tokio::spawn(async move {
                        sleep(by).await;
                        handle()
                    })
                    .await?),
                    Link::Fails(code) => Ok(refusal(code)),
                }
            }
        });
        Client::new(service, "default")
    }

    fn handle(&self, method: &Method, body: &[u8]) -> Response<Body> {
        let mut lease = self.lease.lock();
        let sent = serde_json::from_slice::<Value>(body).unwrap_or_default();
        match (method, &*lease) {
            (&Method::GET, Some(lease)) => answer(200, lease),
            (&Method::GET | &Method::PUT, None) => refusal(404),
            (&Method::POST, Some(_)) => refusal(409),
            (&Method::PUT, Some(now))
                if sent["metadata"]["resourceVersion"] != now["metadata"]["resourceVersion"] =>
            {
                refusal(409)
            }
            _ => answer(200, lease.insert(self.stamped(sent))),
        }
    }

    fn stamped(&self, mut lease: Value) -> Value {
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        lease["metadata"]["resourceVersion"] = version.to_string().into();
        lease
    }

    /// Another client writes the Lease.
    fn put(&self, spec: &Value) {
        let lease = json!({"metadata": {"name": "op", "namespace": "ns"}, "spec": spec});
        *self.lease.lock() = Some(self.stamped(lease));
    }

    fn field(&self, field: &str) -> Value {
        self.lease.lock().as_ref().map_or(Value::Null, |lease| lease["spec"][field].clone())
    }
}

fn answer(code: u16, body: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

fn refusal(code: u16) -> Response<Body> {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    answer(
        code,
        &json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}),
    )
}

/// A process that competes for the lease.
struct Candidate {
    link: Switch,
    fence: Fence,
    leading: watch::Receiver<bool>,
    heartbeat: Heartbeat,
    stop: CancellationToken,
    task: JoinHandle<ElectionEnd>,
}

impl Candidate {
    fn start(server: &Server, identity: &str) -> Self {
        let link = Switch::new(Mutex::new(Link::Up));
        let (sender, leading) = watch::channel(false);
        let (fence, heartbeat, stop) = (Fence::closed(), Heartbeat::default(), CancellationToken::new());
        let settings = LeaseSettings::new("ns", "op", identity);
        settings.validate().unwrap();
        let task = tokio::spawn(run(
            server.client(&link),
            settings,
            fence.clone(),
            sender,
            heartbeat.clone(),
            Outage::default(),
            stop.clone(),
        ));
        Self { link, fence, leading, heartbeat, stop, task }
    }

    fn leads(&self) -> bool {
        *self.leading.borrow()
    }

    async fn elected(&mut self) {
        timeout(60 * SECOND, self.leading.wait_for(|leading| *leading)).await.expect("elected").unwrap();
    }

    /// Waits for a renewal, so that a test knows where in its period the leader is.
    async fn renewed(&self) {
        let mut left = self.fence.remaining();
        loop {
            sleep(Duration::from_millis(1)).await;
            let now = self.fence.remaining();
            if now > left {
                return;
            }
            left = now;
        }
    }

    fn set(&self, link: Link) {
        *self.link.lock() = link;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_its_successor_starts() {
    for cut in [Link::Hole, Link::Deaf, Link::Fails(500)] {
        let server = Server::default();
        let mut a = Candidate::start(&server, "a");
        a.elected().await;
        let b = Candidate::start(&server, "b");
        sleep(30 * SECOND).await;
        assert!(a.leads() && a.fence.is_open() && !b.leads() && !b.fence.is_open());

        let start = Instant::now();
        a.set(cut);
        let (mut closed, mut opened) = (None, None);
        while opened.is_none() && start.elapsed() < 90 * SECOND {
            sleep(TICK).await;
            assert!(!(a.fence.is_open() && b.fence.is_open()), "two leaders");
            closed = closed.or((!a.fence.is_open()).then(|| start.elapsed()));
            opened = opened.or(b.fence.is_open().then(|| start.elapsed()));
        }
        let (closed, opened) = (closed.unwrap(), opened.expect("a successor"));
        assert!(closed <= 10 * SECOND + TICK, "{cut:?}: stopped after {closed:?}");
        // A leader whose renewals arrive but whose responses are lost keeps the lease alive until it gives up.
        let last_renewal = if cut == Link::Deaf { 10 } else { 0 };
        assert!(opened <= (17 + last_renewal) * SECOND, "{cut:?}: taken after {opened:?}");
        assert!(b.leads() && !a.leads());
        let ElectionEnd::Lost(Loss::Expired { deadline, .. }) = a.task.await.unwrap() else {
            panic!("{cut:?}: not lost")
        };
        assert_eq!(deadline, 10 * SECOND);
        assert_eq!(server.field("leaseTransitions"), 1);
        b.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn the_fence_of_a_loop_that_hangs_closes_by_itself() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    let b = Candidate::start(&server, "b");
    a.renewed().await;
    a.task.abort();
    let start = Instant::now();
    while !b.fence.is_open() {
        sleep(TICK).await;
        assert!(!(a.fence.is_open() && b.fence.is_open()), "two leaders");
        assert!(!a.fence.is_open() || start.elapsed() < 10 * SECOND, "still open");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_response_leaves_less_time() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    a.set(Link::Late(3 * SECOND));
    a.renewed().await;
    a.renewed().await;
    let left = a.fence.remaining();
    assert!(left <= 7 * SECOND && left > 6 * SECOND, "{left:?} after a response that took 3 s");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_hands_over_within_two_seconds() {
    for wait in 0..20_u32 {
        let server = Server::default();
        let mut a = Candidate::start(&server, "a");
        a.elected().await;
        let mut b = Candidate::start(&server, &format!("b{wait}"));
        sleep(7 * SECOND + wait * Duration::from_millis(97)).await;
        let start = Instant::now();
        a.stop.cancel();
        b.elected().await;
        assert!(start.elapsed() <= 2 * SECOND, "took {:?}", start.elapsed());
        assert!(matches!(a.task.await.unwrap(), ElectionEnd::Released));
        assert!(!a.fence.is_open() && b.fence.is_open());
        assert_eq!(server.field("leaseTransitions"), 1);
        b.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_empty() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    assert_eq!(server.field("holderIdentity"), "a");
    assert_eq!(server.field("leaseDurationSeconds"), 15);
    a.stop.cancel();
    assert!(matches!(a.task.await.unwrap(), ElectionEnd::Released));
    assert_eq!(server.field("holderIdentity"), "");
    assert_eq!(server.field("leaseDurationSeconds"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_cannot_be_sent_does_not_hold_up_the_exit() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    a.set(Link::Hole);
    let start = Instant::now();
    a.stop.cancel();
    assert!(matches!(a.task.await.unwrap(), ElectionEnd::Released));
    assert!(start.elapsed() <= 2 * SECOND + TICK);
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_response_was_lost_is_released_too() {
    let server = Server::default();
    let a = Candidate::start(&server, "a");
    a.set(Link::Deaf);
    sleep(6 * SECOND).await;
    assert!(!a.leads());
    assert_eq!(server.field("holderIdentity"), "a", "the claim took effect");
    a.set(Link::Up);
    a.stop.cancel();
    a.task.await.unwrap();
    assert_eq!(server.field("holderIdentity"), "");
}

#[tokio::test(start_paused = true)]
async fn of_two_that_create_the_lease_one_wins() {
    let server = Server::default();
    let (a, b) = (Candidate::start(&server, "a"), Candidate::start(&server, "b"));
    for _ in 0..3000 {
        sleep(TICK).await;
        assert!(!(a.fence.is_open() && b.fence.is_open()));
    }
    assert!(a.leads() ^ b.leads());
    assert_eq!(server.field("leaseTransitions"), 0);
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_another_holder_does_not_matter() {
    for clock in ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"] {
        let server = Server::default();
        let renewal = |turn: i32| json!({"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": clock, "leaseTransitions": turn});
        server.put(&renewal(0));
        let mut a = Candidate::start(&server, "a");
        for _ in 0..10 {
            sleep(5 * SECOND).await;
            server.put(&renewal(3));
            assert!(!a.leads(), "it is renewed, whatever its clock says");
        }
        let start = Instant::now();
        a.elected().await;
        let took = start.elapsed();
        assert!(took >= 15 * SECOND && took <= 17 * SECOND, "{clock}: {took:?}");
        assert_eq!(server.field("leaseTransitions"), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_survived_for_nine_seconds_and_not_for_eleven() {
    for (seconds, survived) in [(9, true), (11, false)] {
        for link in [Link::Fails(500), Link::Fails(409)] {
            let server = Server::default();
            let mut a = Candidate::start(&server, "a");
            a.elected().await;
            a.renewed().await;
            a.set(link);
            sleep(seconds * SECOND).await;
            a.set(Link::Up);
            sleep(30 * SECOND).await;
            assert_eq!(a.leads(), survived, "{link:?} for {seconds} s");
            assert_eq!(a.leads(), a.fence.is_open());
            if !survived {
                assert!(matches!(a.task.await.unwrap(), ElectionEnd::Lost(Loss::Expired { .. })));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_leaves_time_for_another() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    a.renewed().await;
    a.set(Link::Hole);
    sleep(4 * SECOND).await;
    a.set(Link::Up);
    sleep(30 * SECOND).await;
    assert!(a.leads());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_response_is_lost_is_found_at_the_next_read() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    a.renewed().await;
    a.set(Link::Deaf);
    sleep(3 * SECOND).await;
    a.set(Link::Up);
    sleep(30 * SECOND).await;
    assert!(a.leads() && a.fence.is_open());
}

#[tokio::test(start_paused = true)]
async fn edits_by_others_are_survived_and_another_name_is_not() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    for _ in 0..200 {
        sleep(Duration::from_millis(300)).await;
        let spec = server.lease.lock().as_ref().unwrap()["spec"].clone();
        server.put(&spec);
        assert!(a.leads() && a.fence.is_open(), "a storm of conflicts");
    }
    server.put(&json!({"holderIdentity": "b", "leaseDurationSeconds": 15}));
    let ElectionEnd::Lost(Loss::Taken { lease, holder }) = a.task.await.unwrap() else { panic!("not lost") };
    assert_eq!((lease.as_str(), holder.as_str()), ("op", "b"));
    assert!(!a.fence.is_open());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_ends_the_term_and_makes_no_second_leader() {
    let server = Server::default();
    let mut a = Candidate::start(&server, "a");
    a.elected().await;
    let mut b = Candidate::start(&server, "b");
    sleep(5 * SECOND).await;
    a.set(Link::Hole);
    *server.lease.lock() = None;
    for _ in 0..700 {
        sleep(TICK).await;
        assert!(!(a.fence.is_open() && b.fence.is_open()), "two leaders");
    }
    b.elected().await;

    *server.lease.lock() = None;
    assert!(matches!(b.task.await.unwrap(), ElectionEnd::Lost(Loss::Gone { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_goes_on_while_the_server_is_silent() {
    let server = Server::default();
    let a = Candidate::start(&server, "a");
    a.set(Link::Hole);
    for _ in 0..3000 {
        sleep(TICK).await;
        assert!(a.heartbeat.alive(10 * SECOND));
    }
    a.task.abort();
    sleep(11 * SECOND).await;
    assert!(!a.heartbeat.alive(10 * SECOND), "a dead loop is noticed");
}

#[test]
fn settings_are_checked() {
    let good = LeaseSettings::new("ns", "op", "a");
    assert_eq!(good.validate(), Ok(()));
    let with = |lease: u64, renew: u64, retry: u64| LeaseSettings {
        lease_duration: Duration::from_millis(lease),
        renew_deadline: Duration::from_millis(renew),
        retry_period: Duration::from_millis(retry),
        ..good.clone()
    };
    let said = |settings: &LeaseSettings| settings.validate().unwrap_err().to_string();
    assert_eq!(with(3000, 2000, 500).validate(), Ok(()));
    assert!(said(&with(1500, 1000, 500)).contains("whole number of seconds"));
    assert!(said(&with(0, 0, 0)).contains("at least 1 s"));
    assert!(said(&with(10_000, 10_000, 500)).contains("must be shorter than the lease duration (10s)"));
    assert!(said(&with(15_000, 10_000, 10_000)).contains("shorter than the renew deadline (10s)"));
    assert!(said(&with(15_000, 10_000, 0)).contains("longer than zero"));
    assert!(said(&LeaseSettings { identity: String::new(), ..good.clone() }).contains("identity"));
}

/// A small generator with a seed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn link(&mut self) -> Link {
        match self.roll(8) {
            0 => Link::Hole,
            1 => Link::Deaf,
            2 => Link::Late(Duration::from_millis(self.roll(20_000))),
            3 => Link::Fails(500),
            4 => Link::Fails(409),
            _ => Link::Up,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn there_are_never_two_leaders() {
    for seed in 1..=12 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let server = Server::default();
        let mut born = 0;
        let mut birth = || {
            born += 1;
            Candidate::start(&server, &format!("p{seed}-{born}"))
        };
        let mut candidates = [birth(), birth(), birth()];
        let mut terms = 0;
        for tick in 0..(300 * 50) {
            sleep(TICK).await;
            let open = candidates.iter().filter(|c| c.fence.is_open()).count();
            assert!(open <= 1, "seed {seed}, tick {tick}: {open} leaders");
            if dice.roll(200) == 0 {
                let chosen = usize::try_from(dice.roll(3)).unwrap();
                candidates[chosen].set(dice.link());
            }
            if dice.roll(3000) == 0 {
                candidates[usize::try_from(dice.roll(3)).unwrap()].stop.cancel();
            }
            for candidate in &mut candidates {
                if candidate.task.is_finished() {
                    terms += 1;
                    *candidate = birth();
                }
            }
        }
        for candidate in &candidates {
            candidate.set(Link::Up);
        }
        sleep(60 * SECOND).await;
        let open = candidates.iter().filter(|c| c.fence.is_open()).count();
        assert_eq!(open, 1, "seed {seed}: it heals");
        assert!(terms > 0, "seed {seed}: the test does something");
        for candidate in &candidates {
            candidate.stop.cancel();
        }
    }
}
