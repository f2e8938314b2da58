//! When a server is left alone, and for how long. Pure: the time comes from outside.

use std::time::{Duration, Instant};

const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
const LONGEST_PATIENCE: Duration = Duration::from_mins(5);
/// What those hear who come while another call finds out whether the server is back.
const TRIAL: Duration = Duration::from_millis(500);

/// What is known about how a server bears requests.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    limited_until: Option<Instant>,
    out_of_reach_until: Option<Instant>,
    trying: bool,
    failures: u32,
    last_answer: Option<Instant>,
    last_failure: Option<Instant>,
}

/// Why a server is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It asked for it.
    RateLimited,
    /// It could not be reached, or did not answer in time.
    OutOfReach,
}

/// A server that is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Why.
    pub why: Why,
    /// For how long from now.
    pub remaining: Duration,
}

/// A request that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Since when.
    pub at: Instant,
    /// Whether it finds out for all others if the server is back.
    pub trial: bool,
}

/// What a request showed about its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It answers, whatever it says.
    Answered,
    /// It asks to be left alone for this long.
    RateLimited(Duration),
    /// It cannot be reached, breaks off, or takes too long.
    Unreachable,
    /// The request was given up.
    Nothing,
}

impl Pace {
    /// Whether a request would be admitted, without asking for it.
    pub fn check(&self, now: Instant) -> Result<(), Hold> {
        let hold = |why, remaining| Err(Hold { why, remaining });
        match (self.limited_until, self.out_of_reach_until) {
            (Some(until), _) if now < until => hold(Why::RateLimited, until - now),
            (_, Some(until)) if now < until => hold(Why::OutOfReach, until - now),
            (_, Some(_)) if self.trying => hold(Why::OutOfReach, TRIAL),
            _ => Ok(()),
        }
    }

    /// Asks to send a request. After a time out of reach, one request goes ahead and the others wait for it.
    pub fn admit(&mut self, now: Instant) -> Result<Admitted, Hold> {
        self.check(now)?;
        let trial = self.out_of_reach_until.is_some();
        self.trying |= trial;
        Ok(Admitted { at: now, trial })
    }

    /// Notes what came of a request.
    pub fn record(&mut self, request: Admitted, now: Instant, outcome: CallOutcome) {
        if request.trial {
            self.trying = false;
        }
        match outcome {
            CallOutcome::Nothing => {}
            CallOutcome::Answered => self.answered(now),
            CallOutcome::RateLimited(patience) => {
                self.answered(now);
                let until = now + patience.min(LONGEST_PATIENCE);
                self.limited_until = Some(self.limited_until.map_or(until, |other| other.max(until)));
            }
            CallOutcome::Unreachable => self.failed(request, now),
        }
    }

    fn answered(&mut self, now: Instant) {
        self.failures = 0;
        self.out_of_reach_until = None;
        self.last_answer = Some(now);
    }

    fn failed(&mut self, request: Admitted, now: Instant) {
        let outdated = |other: Option<Instant>| other.is_some_and(|other| request.at < other);
        // Somebody who began later was answered, or failed for the same cause and was counted.
        if outdated(self.last_answer) || outdated(self.last_failure) {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.last_failure = Some(now);
        let doubled = FIRST_DELAY
            .saturating_mul(1_u32.checked_shl(self.failures.saturating_sub(1)).unwrap_or(u32::MAX));
        self.out_of_reach_until = Some(now + doubled.min(LONGEST_DELAY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fail(pace: &mut Pace, now: Instant) -> Duration {
        let request = pace.admit(now).unwrap();
        pace.record(request, now, CallOutcome::Unreachable);
        pace.check(now).unwrap_err().remaining
    }

    #[test]
    fn a_server_out_of_reach_is_left_alone_ever_longer_up_to_half_a_minute() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let mut delays = Vec::new();
        for _ in 0..40 {
            let delay = fail(&mut pace, now);
            delays.push(delay.as_millis());
            now += delay;
        }
        assert_eq!(delays[..4], [500, 1000, 2000, 4000]);
        assert_eq!(delays[39], 30_000);
    }

    #[test]
    fn one_request_finds_out_whether_the_server_is_back() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        fail(&mut pace, start);
        let now = start + SECOND;
        let trial = pace.admit(now).unwrap();
        assert!(trial.trial);
        assert_eq!(pace.admit(now).unwrap_err().why, Why::OutOfReach);
        pace.record(trial, now, CallOutcome::Answered);
        assert!(!pace.admit(now).unwrap().trial);
        assert_eq!(fail(&mut pace, now + SECOND), FIRST_DELAY, "failures are counted anew");
    }

    #[test]
    fn a_trial_given_up_is_followed_by_another() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        fail(&mut pace, start);
        let trial = pace.admit(start + SECOND).unwrap();
        pace.record(trial, start + SECOND, CallOutcome::Nothing);
        assert!(pace.admit(start + SECOND).unwrap().trial);
    }

    #[test]
    fn requests_that_fail_together_count_once() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let requests: Vec<_> = (0..4).map(|_| pace.admit(start).unwrap()).collect();
        for request in requests {
            pace.record(request, start + SECOND, CallOutcome::Unreachable);
        }
        assert_eq!(pace.check(start + SECOND).unwrap_err().remaining, FIRST_DELAY);
    }

    #[test]
    fn a_late_failure_does_not_count_against_a_server_that_answered_since() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let slow = pace.admit(start).unwrap();
        let quick = pace.admit(start + SECOND).unwrap();
        pace.record(quick, start + SECOND, CallOutcome::Answered);
        pace.record(slow, start + SECOND * 9, CallOutcome::Unreachable);
        assert_eq!(pace.check(start + SECOND * 9), Ok(()));
    }

    #[test]
    fn the_longest_patience_asked_for_holds_and_an_answer_does_not_end_it() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let [a, b, c] = [0; 3].map(|_| pace.admit(start).unwrap());
        pace.record(a, start, CallOutcome::RateLimited(SECOND * 60));
        pace.record(b, start, CallOutcome::RateLimited(SECOND * 5));
        pace.record(c, start, CallOutcome::Answered);
        assert_eq!(pace.check(start), Err(Hold { why: Why::RateLimited, remaining: SECOND * 60 }));
        assert_eq!(pace.check(start + SECOND * 60), Ok(()));
        let request = pace.admit(start + SECOND * 60).unwrap();
        pace.record(request, start + SECOND * 60, CallOutcome::RateLimited(SECOND * 86_400));
        assert_eq!(pace.check(start + SECOND * 60).unwrap_err().remaining, LONGEST_PATIENCE);
    }
}
