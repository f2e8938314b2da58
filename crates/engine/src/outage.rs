//! Whether the API server answers, as every call of the process finds it, and a log that does not repeat itself.
//!
//! When the server goes away, each watch, the lease and every reconcile fails by itself. They all call through
//! [`crate::client`], which reports here: one line says that the server does not answer, another one follows at growing
//! intervals while it stays away, and one says that it is back and how long it was away. Who fails meanwhile asks
//! [`Outage::is_away`] and logs nothing of its own. Nothing here changes what is retried, or when.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::intervals::{OUTAGE_LINE_DELAY, OUTAGE_LINE_DELAY_MAX, OUTAGE_SETTLE};

/// Whether the API server answers. Clones share one state; a new one has seen no outage.
#[derive(Clone, Debug, Default)]
pub struct Outage {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// When the server last answered.
    answered: Option<Instant>,
    /// Since when it does not.
    away: Option<Away>,
    /// When the last outage ended.
    ended: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Away {
    since: Instant,
    next_line: Instant,
    /// The time between the last line and the next.
    delay: Duration,
}

impl Outage {
    /// The server answered a call, whatever it said.
    pub(crate) fn answered(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.answered = Some(now);
        if let Some(away) = state.away.take() {
            state.ended = Some(now);
            drop(state);
            tracing::info!("the API server answers again, after {} s", seconds(now - away.since));
        }
    }

    /// A call that began at `started` got no answer. It says nothing if the server has answered another one since.
    pub(crate) fn unanswered(&self, started: Instant, why: impl FnOnce() -> String) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.answered.is_some_and(|answered| answered > started) {
            return;
        }
        let line = match &mut state.away {
            None => {
                let delay = OUTAGE_LINE_DELAY;
                state.away = Some(Away { since: started, next_line: now + delay, delay });
                "the API server does not answer".to_owned()
            }
            Some(away) if now >= away.next_line => {
                away.delay = away.delay.saturating_mul(2).min(OUTAGE_LINE_DELAY_MAX);
                away.next_line = now + away.delay;
                format!("the API server has not answered for {} s", seconds(now - away.since))
            }
            Some(_) => return,
        };
        drop(state);
        tracing::warn!("{line}, and the operator keeps trying: {}", why());
    }

    /// Whether the last calls got no answer.
    pub fn is_away(&self) -> bool {
        self.state.lock().away.is_some()
    }

    /// Whether the server is away, or is back for so short a time that it may still refuse what it will allow: a server that
    /// starts does not know its RBAC rules yet.
    pub fn is_recent(&self) -> bool {
        let state = self.state.lock();
        state.away.is_some() || state.ended.is_some_and(|ended| ended.elapsed() < OUTAGE_SETTLE)
    }
}

/// A duration in seconds for a sentence: to the tenth if it is short.
fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        format!("{:.1}", time.as_secs_f64())
    } else {
        time.as_secs().to_string()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn refused(outage: &Outage) {
        outage.unanswered(Instant::now(), || "connection refused".to_owned());
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_one_line_then_lines_at_growing_intervals_and_one_at_its_end() {
        let (subscriber, _, captured) = crate::logs::tests::subscriber(false, "info");
        let _logging = tracing::subscriber::set_default(subscriber);
        let outage = Outage::default();
        outage.answered();
        assert!(!outage.is_away() && !outage.is_recent());
        let mut gaps = Vec::new();
        let mut last = Instant::now();
        // Twenty watches that try every second, for six hours.
        for _ in 0..6 * 3600 {
            advance(Duration::from_secs(1)).await;
            (0..20).for_each(|_| refused(&outage));
            let lines = captured.take();
            if !lines.is_empty() {
                assert_eq!(lines.lines().count(), 1, "{lines}");
                assert!(
                    lines.contains("WARN the API server ") && lines.contains(": connection refused"),
                    "{lines}"
                );
                gaps.push(last.elapsed().as_secs());
                last = Instant::now();
            }
        }
        assert_eq!(gaps, [1, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600, 3600]);
        assert!(outage.is_away());
        outage.answered();
        assert!(captured.take().ends_with("INFO the API server answers again, after 21599 s\n"));
        assert!(!outage.is_away() && outage.is_recent());
        advance(OUTAGE_SETTLE).await;
        assert!(!outage.is_recent());
        outage.answered();
        assert_eq!(captured.take(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_fails_late_does_not_outweigh_a_later_answer() {
        let outage = Outage::default();
        let started = Instant::now();
        advance(Duration::from_secs(5)).await;
        outage.answered();
        outage.unanswered(started, || "timeout".to_owned());
        assert!(!outage.is_away());
        outage.unanswered(Instant::now(), || "timeout".to_owned());
        assert!(outage.is_away());
    }
}
