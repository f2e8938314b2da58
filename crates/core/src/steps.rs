//! The shape of a decision that needs the outside world: ask something, do something, or be done.

/// The next step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<Q, E, D> {
    /// Answer this and decide again.
    Ask(Q),
    /// Perform this, note the outcome and decide again.
    Act(E),
    /// Nothing more to ask or do in this exchange.
    Done(D),
}
