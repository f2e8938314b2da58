use std::sync::atomic::{AtomicUsize, Ordering};

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
            log.lock().push((key.name, start.elapsed().as_millis()));
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
            if key.name == "slow" {
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
