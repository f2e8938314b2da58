use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("Thing", "ns", name)
}

fn queue() -> Queue {
    Queue::new(Metrics::new())
}

/// Runs the queue for `time` with reconciles that take `each`, and returns which ran when, in milliseconds.
async fn run(queue: &Queue, time: Duration, each: Duration, next: Action) -> Vec<(String, u128)> {
    let (start, log) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let stop = CancellationToken::new();
    let jobs = queue.run(2, stop.clone(), Duration::from_secs(10), |key| {
        let log = log.clone();
        async move {
            log.lock().push((key.name.to_string(), start.elapsed().as_millis()));
            tokio::time::sleep(each).await;
            next
        }
    });
    let ((), drained) = tokio::join!(
        async {
            tokio::time::sleep(time).await;
            stop.cancel();
        },
        jobs
    );
    assert!(drained);

    log.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn an_object_is_queued_only_once() {
    let queue = queue();
    for _ in 0..5 {
        queue.enqueue(key("a"));
    }
    assert_eq!(queue.depth(), 1);
    let ran = run(&queue, Duration::from_secs(1), Duration::from_millis(10), Action::AwaitChange).await;
    assert_eq!(ran.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_enqueued_while_it_is_reconciled_is_reconciled_once_more() {
    let queue = queue();
    queue.enqueue(key("a"));
    let other = queue.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        other.enqueue(key("a"));
        other.enqueue(key("a"));
    });
    let ran = run(&queue, Duration::from_secs(1), Duration::from_millis(100), Action::AwaitChange).await;
    assert_eq!(ran, [("a".to_owned(), 0), ("a".to_owned(), 100)]);
}

#[tokio::test(start_paused = true)]
async fn an_object_without_hurry_comes_last_unless_it_is_enqueued_again() {
    let queue = queue();
    for name in ["old", "edited", "gone"] {
        queue.enqueue_unhurried(key(name));
    }
    queue.enqueue(key("new"));
    queue.enqueue(key("edited"));
    queue.enqueue_unhurried(key("new"));
    queue.enqueue_within(key("old"), Duration::from_secs(5));
    assert_eq!(queue.depth(), 4);
    queue.forget(&key("gone"));
    assert_eq!(queue.depth(), 3);
    let ran = run(&queue, Duration::from_secs(9), Duration::from_millis(10), Action::AwaitChange).await;
    let names: Vec<_> = ran.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["new", "edited", "old"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_without_hurry_is_reconciled_beside_a_queue_that_never_empties() {
    let queue = queue();
    queue.enqueue_unhurried(key("old"));
    for number in 0..100 {
        queue.enqueue(key(&format!("new-{number}")));
    }
    let ran = run(&queue, Duration::from_secs(9), Duration::from_millis(10), Action::AwaitChange).await;
    assert!(ran.iter().take(8).any(|(name, _)| name == "old"), "{ran:?}");
    assert_eq!(ran.len(), 101);
}

#[tokio::test(start_paused = true)]
async fn a_longer_delay_never_postpones_a_reconcile() {
    let queue = queue();
    queue.enqueue_within(key("a"), Duration::from_secs(5));
    queue.enqueue_within(key("a"), Duration::from_secs(2));
    queue.enqueue_within(key("a"), Duration::from_secs(9));
    queue.enqueue_within(key("b"), Duration::from_secs(5));
    queue.enqueue(key("b"));
    let ran = run(&queue, Duration::from_secs(20), Duration::ZERO, Action::AwaitChange).await;
    assert_eq!(ran, [("b".to_owned(), 0), ("a".to_owned(), 2000)]);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_object_leaves_nothing_behind() {
    let queue = queue();
    for name in ["a", "b"] {
        queue.enqueue(key(name));
    }
    queue.forget(&key("a"));
    assert_eq!((queue.depth(), queue.shared.state.lock().phases.len()), (1, 1));
    let ran = run(&queue, Duration::from_secs(1), Duration::ZERO, Action::AwaitChange).await;
    assert_eq!(ran.len(), 1);
    assert!(queue.shared.state.lock().phases.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_slow_object_delays_no_other() {
    let queue = queue();
    for name in ["slow", "a", "b", "c"] {
        queue.enqueue(key(name));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let counted = done.clone();
    let jobs = queue.run(2, stop.clone(), Duration::ZERO, move |key| {
        let done = counted.clone();
        async move {
            if *key.name == *"slow" {
                tokio::time::sleep(Duration::from_hours(1)).await;
            }
            done.fetch_add(1, Ordering::SeqCst);
            Action::AwaitChange
        }
    });
    let ((), drained) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.cancel();
        },
        jobs
    );
    assert_eq!(done.load(Ordering::SeqCst), 3);
    assert!(!drained, "the slow one did not end within the drain");
}

#[tokio::test(start_paused = true)]
async fn a_delay_ends_early_when_the_object_is_enqueued() {
    let queue = queue();
    queue.enqueue(key("a"));
    let other = queue.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        other.enqueue(key("a"));
    });
    let ran =
        run(&queue, Duration::from_secs(75), Duration::ZERO, Action::RequeueAfter(Duration::from_mins(1)))
            .await;
    let times: Vec<_> = ran.iter().map(|(_, at)| at / 1000).collect();
    assert_eq!(times, [0, 10, 70], "the end of the first delay is ignored");
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_panics_is_retried() {
    let queue = queue();
    queue.enqueue(key("a"));
    let (count, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let counted = count.clone();
    let jobs = queue.run(1, stop.clone(), Duration::ZERO, move |_| {
        let count = counted.clone();
        async move {
            assert!(count.fetch_add(1, Ordering::SeqCst) > 0, "the first run fails");
            Action::AwaitChange
        }
    });
    tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(61)).await;
            stop.cancel();
        },
        jobs
    );
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_delay_beyond_all_bounds_loses_no_object() {
    let queue = queue();
    queue.enqueue(key("a"));
    let forever = Action::RequeueAfter(Duration::from_secs(u64::MAX));
    let time = QUEUE_DELAY_MAX + Duration::from_secs(1);
    assert_eq!(run(&queue, time, Duration::ZERO, forever).await.len(), 2);
    queue.enqueue_within(key("b"), Duration::MAX);
    let ran = run(&queue, time, Duration::ZERO, Action::AwaitChange).await;
    assert!(ran.iter().any(|(name, _)| name == "b"), "{ran:?}");
}

/// What a test knows of an object in the queue.
#[derive(Clone, Copy, Default)]
struct Expected {
    is_running: bool,
    enqueued_again: bool,
}

fn any_delay(random: &mut fastrand::Rng) -> Duration {
    let delays = [0, 1, 3600, u64::from(u32::MAX), u64::MAX];
    random.choice(delays).map(Duration::from_secs).unwrap_or_default()
}

/// Every known object is exactly where its phase says, and nothing else is anywhere.
fn check(queue: &Queue, known: &HashMap<ObjectKey, Expected>, seed: u64) {
    let state = queue.shared.state.lock();
    let phases: HashSet<_> = state.phases.keys().collect();
    assert_eq!(phases, known.keys().collect(), "seed {seed}");
    let mut waiting = 0;
    for (key, phase) in &state.phases {
        assert_eq!(matches!(phase, Phase::Running { .. }), known[key].is_running, "seed {seed}: {key}");
        match phase {
            Phase::Waiting { .. } => {
                waiting += 1;
                assert_eq!(state.ready.iter().filter(|ready| *ready == key).count(), 1, "seed {seed}: {key}");
            }
            Phase::Delayed { until } => {
                let is_in = state.delays.iter().any(|Reverse((at, delayed))| at == until && delayed == key);
                assert!(is_in && *until <= due_in(Duration::MAX), "seed {seed}: {key}");
            }
            Phase::Running { enqueued_again, .. } => assert_eq!(*enqueued_again, known[key].enqueued_again),
        }
    }
    assert_eq!(state.ready.len(), waiting, "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn every_known_object_is_due_delayed_or_running() {
    for seed in 0..200 {
        let (mut random, queue) = (fastrand::Rng::with_seed(seed), queue());
        let mut known: HashMap<ObjectKey, Expected> = HashMap::new();
        for _ in 0..200 {
            let object = key(random.choice(["a", "b", "c", "d", "e"]).unwrap());
            match random.u8(..6) {
                step @ (0 | 1) => {
                    if step == 0 {
                        queue.enqueue(object.clone());
                    } else {
                        queue.enqueue_within(object.clone(), any_delay(&mut random));
                    }
                    let expected = known.entry(object).or_default();
                    expected.enqueued_again = expected.is_running;
                }
                2 => {
                    queue.forget(&object);
                    known.retain(|key, expected| *key != object || expected.is_running);
                    known.entry(object).and_modify(|expected| expected.enqueued_again = false);
                }
                3 => {
                    if let Some(taken) = queue.take(8) {
                        let before =
                            known.insert(taken, Expected { is_running: true, enqueued_again: false });
                        assert!(before.is_some_and(|before| !before.is_running), "one worker at a time");
                    }
                }
                4 if known.get(&object).is_some_and(|expected| expected.is_running) => {
                    let delay = any_delay(&mut random);
                    let next = if random.bool() { Action::AwaitChange } else { Action::RequeueAfter(delay) };
                    queue.finish(object.clone(), next);
                    let expected = known.remove(&object).unwrap();
                    if expected.enqueued_again || next != Action::AwaitChange {
                        known.insert(object, Expected::default());
                    }
                }
                _ => tokio::time::advance(Duration::from_secs(random.u64(..4000))).await,
            }
            check(&queue, &known, seed);
        }
        tokio::time::advance(QUEUE_DELAY_MAX).await;
        let taken: HashSet<_> = std::iter::from_fn(|| queue.take(8)).collect();
        let idle = known.iter().filter(|(_, expected)| !expected.is_running).map(|(key, _)| key.clone());
        assert_eq!(taken, idle.collect(), "seed {seed}: each comes up again");
    }
}

#[tokio::test(start_paused = true)]
async fn objects_without_hurry_come_one_at_a_time_beside_another_one_and_then_have_a_share_of_the_workers() {
    let queue = queue();
    for number in 0..200 {
        queue.enqueue_unhurried(key(&format!("old-{number}")));
    }
    queue.enqueue(key("new"));
    let (stop, now, most) = (CancellationToken::new(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let (now, most) = (Arc::new(now), Arc::new(most));
    let jobs = queue.run(16, stop.clone(), Duration::from_secs(10), |key| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            if &*key.name == "new" {
                tokio::time::sleep(Duration::from_millis(1205)).await;
                most.lock().push(0);
            } else {
                let beside = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.lock().push(beside);
                tokio::time::sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
            Action::AwaitChange
        }
    });
    let ((), drained) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            stop.cancel();
        },
        jobs
    );
    assert!(drained);
    let most = most.lock().clone();
    let end = most.iter().position(|beside| *beside == 0).unwrap();
    let (during, after) = most.split_at(end);
    let (first, later) = during.split_at(100);
    assert_eq!((most.len(), first.iter().max()), (201, Some(&1)), "one at a time for a second");
    assert_eq!((later.len(), later.iter().max()), (42, Some(&2)), "two of 16 for 205 ms");
    assert_eq!(after.iter().max(), Some(&16));
}

#[tokio::test(start_paused = true)]
async fn objects_without_hurry_get_their_share_although_nothing_ends() {
    let queue = queue();
    for number in 0..64 {
        queue.enqueue_unhurried(key(&format!("old-{number}")));
    }
    queue.enqueue(key("new"));
    let (start, started) = (Instant::now(), Mutex::new(Vec::new()));
    let stop = CancellationToken::new();
    let jobs = queue.run(64, stop.clone(), Duration::from_secs(10), |_| {
        started.lock().push(start.elapsed());
        // As with a server that does not answer.
        async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Action::AwaitChange
        }
    });
    let ((), drained) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            stop.cancel();
        },
        jobs
    );
    assert!(drained);
    let started = started.into_inner();
    assert_eq!(started.len(), 1 + 8, "the other one, and an eighth of the workers");
    assert_eq!(started.iter().filter(|at| **at < HURRIED_PRECEDENCE).count(), 2);
    assert!(started.iter().all(|at| *at <= HURRIED_PRECEDENCE + Duration::from_millis(5)), "{started:?}");
}
