//! The driver of what a control plane needs in coderd: operator token, license, revocation. Keys and registrations have one of
//! their own, because they write the status and Secrets between two steps: `credential.rs` beside it.
//!
//! `core` decides each step; the driver answers queries and performs effects until the decision is done. It adds no decision
//! of its own, and the number of steps is bounded.

use std::ops::ControlFlow;

use coder_k8s_core::steps::Step;

/// A decision of `core`, with the code that answers its queries and performs its effects.
pub(crate) trait Protocol {
    type Query;
    type Effect;
    type Done;

    /// The next step for what is known so far.
    fn decide(&mut self) -> Step<Self::Query, Self::Effect, Self::Done>;

    /// Answers a query and records the answer for the next decision. A failure is an answer too.
    async fn ask(&mut self, query: Self::Query);

    /// Performs an effect and records the outcome for the next decision. Breaks if the object changed meanwhile.
    async fn act(&mut self, effect: Self::Effect) -> ControlFlow<Self::Done>;
}

/// The most steps of one run. Every step adds to what is known, so that a decision that needs more has a bug.
const MAX_STEPS: usize = 64;

/// Runs a protocol to its end. None: it exceeded the bound; the caller retries later.
pub(crate) async fn run<P: Protocol>(protocol: &mut P) -> Option<P::Done> {
    for _ in 0..MAX_STEPS {
        match protocol.decide() {
            Step::Ask(query) => protocol.ask(query).await,
            Step::Act(effect) => {
                if let ControlFlow::Break(done) = protocol.act(effect).await {
                    return Some(done);
                }
            }
            Step::Done(done) => return Some(done),
        }
    }
    tracing::error!("bug: a decision about coderd did not end after {MAX_STEPS} steps");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless(usize);

    impl Protocol for Endless {
        type Query = ();
        type Effect = ();
        type Done = usize;

        fn decide(&mut self) -> Step<(), (), usize> {
            if self.0 < 3 { Step::Ask(()) } else { Step::Act(()) }
        }

        async fn ask(&mut self, (): ()) {
            self.0 += 1;
        }

        async fn act(&mut self, (): ()) -> ControlFlow<usize> {
            self.0 += 1;
            if self.0 == 5 { ControlFlow::Break(self.0) } else { ControlFlow::Continue(()) }
        }
    }

    #[tokio::test]
    async fn an_effect_can_end_the_run_and_the_run_ends_in_any_case() {
        assert_eq!(run(&mut Endless(0)).await, Some(5));
        assert_eq!(run(&mut Endless(6)).await, None);
    }
}
