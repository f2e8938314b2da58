//! Waiting for the real world in tests: probe until the answer is right or the deadline passes.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The deadline passed. Contains the last observation.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("not within {within:?}; last seen: {last}")]
pub struct TimedOut {
    /// The deadline.
    pub within: Duration,
    /// The last observation.
    pub last: String,
}

/// Formatted for people, because `unwrap` prints it when a test fails.
impl fmt::Debug for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Calls `probe` until it gives `Ok`, and gives up after `within` with what the last `Err` said.
///
/// The probe's error is an observation ("2 of 3 pods are ready"), not necessarily a failure. A probe that hangs is
/// cut off as well.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut pods = 0;
/// let seen = coder_k8s_testbed::eventually(Duration::from_secs(1), || {
///     pods += 1;
///     async move { if pods == 3 { Ok(pods) } else { Err(format!("{pods} of 3 pods")) } }
/// });
/// assert_eq!(seen.await, Ok(3));
/// # });
/// ```
pub async fn eventually<T, E, Fut>(within: Duration, mut probe: impl FnMut() -> Fut) -> Result<T, TimedOut>
where
    E: fmt::Display,
    Fut: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + within;
    let mut last = String::from("nothing, the first look did not end");
    let mut pause = FIRST_PAUSE;
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(observation)) => last = observation.to_string(),
            Err(_) => return Err(TimedOut { within, last }),
        }
        if Instant::now() + pause > deadline {
            return Err(TimedOut { within, last });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_time_out_tells_the_last_observation() {
        let mut n = 0;
        let result: Result<(), _> = eventually(Duration::from_millis(60), || {
            n += 1;
            std::future::ready(Err(format!("look {n}")))
        })
        .await;
        let text = format!("{:?}", result.unwrap_err());
        assert!(text.starts_with("not within 60ms; last seen: look "), "{text}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_is_cut_off() {
        let result: Result<(), TimedOut> =
            eventually(Duration::from_millis(20), std::future::pending::<Result<(), String>>).await;
        assert!(result.is_err());
    }
}
