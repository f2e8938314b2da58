//! Carrying out what is decided about the credential of an object in coderd: the key of a pool, the registration of a
//! proxy.
//!
//! Material is held only while it is proven, copied or stored. Every effect is preceded by a live look at the object, so
//! that nothing is done for a spec that is no longer there.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use coder_k8s_coderd::Error;
use coder_k8s_core::{
    credential::{Decision, Effect, NextStep},
    outcome::{Blocker, EventNote, Retry},
    target::{SecretDataRef, Version},
    workload::Run,
};
use coder_k8s_engine::{
    apply::Owner,
    cache::ObjectKey,
    failure,
    secret::{self, SecretData},
    status::StatusWrite,
};
use secrecy::SecretString;

use super::{
    later, retry_of,
    targets::{Connections, other_deployment},
};
use crate::controller::{CoderResource, Context, finalizer};

/// The most effects of one pass. Each is followed by a fresh look; more than these follow in the next pass.
const EFFECTS: usize = 6;
/// The most looks of one pass.
const LOOKS: usize = 32;

/// What one pass has at hand, and what came of it.
pub(crate) struct StepState<K> {
    pub(crate) ctx: Arc<Context>,
    pub(crate) key: ObjectKey,
    pub(crate) object: Arc<K>,
    pub(crate) owner: Owner,
    /// The servers that this reconcile has identified.
    pub(crate) connections: Connections,
    /// Secrets as they were read, by name.
    pub(crate) held: BTreeMap<String, SecretData>,
    /// What pods are to run with, as far as it was known at the beginning.
    pub(crate) first_run: Option<Run>,
    /// Whether the object itself was written, so that what was seen of it is outdated.
    pub(crate) object_written: bool,
    /// When to try again what was not answered.
    pub(crate) retry: Option<Retry>,
    /// Why the last step failed.
    pub(crate) blocker: Option<Blocker>,
}

/// The decisions and effects of one kind of credential.
pub(crate) trait CredentialReconciler {
    /// The kind of the object.
    type Kind: CoderResource;
    /// What can be looked at.
    type Query: Clone;
    /// What is recorded.
    type Record;
    /// What can be done in coderd.
    type Effect: Clone;
    /// What the annotations of a Secret say.
    type Marks: Clone;

    /// The finalizer of the kind.
    const FINALIZER: &'static str;

    /// Decides what is next.
    fn decide(&self) -> Decided<Self>;
    /// Whether something is made by it that would be lost if it cannot be kept.
    fn makes(act: &Self::Effect) -> bool;
    /// What the pass has at hand.
    fn state(&mut self) -> &mut StepState<Self::Kind>;
    /// Looks, and notes what was seen.
    async fn look(&mut self, look: Self::Query);
    /// Changes something in coderd. False: the pass must not go on.
    async fn change(&mut self, act: Self::Effect) -> bool;
    /// Writes material, or annotations alone, onto exactly the Secret that was decided on.
    async fn store(
        &mut self,
        place: &SecretDataRef,
        version: &Version,
        material: Option<&SecretString>,
        marks: &Self::Marks,
    ) -> bool;
    /// Takes a place away that nothing reads any more.
    async fn remove(&mut self, place: &SecretDataRef, version: &Version) -> bool;
    /// Reads the Secrets anew, after something was done.
    async fn read_again(&mut self);
}

/// What a kind of credential decides.
pub(crate) type Decided<D> = Decision<
    <D as CredentialReconciler>::Query,
    <D as CredentialReconciler>::Record,
    Effect<<D as CredentialReconciler>::Effect, <D as CredentialReconciler>::Marks>,
>;

/// Looks and does, until there is nothing more to do, or what is next must be recorded first.
pub(crate) async fn run_steps<D: CredentialReconciler>(dealings: &mut D) -> Decided<D> {
    let (mut looks, mut effects) = (0, 0);
    loop {
        let mut decision = dealings.decide();
        match &decision.next {
            NextStep::Ask(look) if looks < LOOKS => {
                looks += 1;
                dealings.look(look.clone()).await;
                continue;
            }
            NextStep::Act(step) if effects < EFFECTS && may_go_on(dealings, step) => {
                effects += 1;
                dealings.state().set_conditions(&decision.events).await;
                let step = Effect::clone(step);
                if perform(dealings, step).await.is_break() {
                    if let Some(blocker) = dealings.state().blocker.take() {
                        decision.verdict = decision.verdict.delayed(blocker);
                    }
                    return decision;
                }
                continue;
            }
            _ => {}
        }
        dealings.state().set_conditions(&decision.events).await;
        return decision;
    }
}

/// Whether a step may be taken in this pass: none after a failure, and nothing is made before its time.
fn may_go_on<D: CredentialReconciler>(dealings: &mut D, step: &Effect<D::Effect, D::Marks>) -> bool {
    let state = dealings.state();
    let makes = matches!(step, Effect::Coderd(act) if D::makes(act));
    state.retry.is_none() && !(makes && state.ctx.verify_schedule.hold(&state.key).is_some())
}

/// Does one thing. Breaks where the pass must not go on: something failed, or is no longer as it was.
async fn perform<D: CredentialReconciler>(
    dealings: &mut D,
    step: Effect<D::Effect, D::Marks>,
) -> ControlFlow<()> {
    if let Effect::AddFinalizer = step {
        return dealings.state().hold(D::FINALIZER).await;
    }
    let state = dealings.state();
    // Whether it is still the object that was decided on, and this process may still change anything.
    if !state.ctx.is_current(&*state.object).await {
        state.outdated();
        return ControlFlow::Break(());
    }
    let done = match step {
        Effect::AddFinalizer => true,
        Effect::Coderd(act) => dealings.change(act).await,
        Effect::CopySecret { from, to, version, marks } => {
            let material = state.held.get(&from.name).and_then(|held| held.text(&from.key));
            match material {
                Some(material) => dealings.store(&to, &version, Some(&material), &marks).await,
                None => state.outdated(),
            }
        }
        Effect::AnnotateSecret { secret, version, marks } => {
            dealings.store(&secret, &version, None, &marks).await
        }
        Effect::RemoveSecret { secret, version } => dealings.remove(&secret, &version).await,
    };
    if !done || dealings.state().object_written {
        return ControlFlow::Break(());
    }
    dealings.read_again().await;
    ControlFlow::Continue(())
}

impl<K: CoderResource> StepState<K> {
    async fn set_conditions(&self, events: &[EventNote]) {
        for note in events {
            tracing::info!(reason = %note.reason, "{}", note.message);
            self.ctx.events.publish(&self.object.object_ref(&()), note).await;
        }
    }

    async fn hold(&mut self, finalizer: &str) -> ControlFlow<()> {
        let held = finalizer::hold(&*self.object, finalizer, &self.ctx).await;
        held.map_break(|failed| {
            self.retry = failed;
            self.object_written = failed.is_none();
        })
    }

    /// Something is no longer as it was: the pass ends, and another one begins soon.
    pub(crate) fn outdated(&mut self) -> bool {
        self.retry = Some(Retry::Soon);
        false
    }

    /// Notes that coderd did not answer as it should, so that it is asked again, but not too soon.
    pub(crate) fn unanswered(&mut self, error: &Error) {
        self.retry = Some(later(self.retry, retry_of(error)));
    }

    /// Notes that an effect was not performed because its target cannot be used.
    pub(crate) fn not_performed(&mut self, blocker: Option<Blocker>) -> bool {
        self.retry = Some(self.retry.unwrap_or(Retry::Backoff));
        self.blocker = Some(blocker.unwrap_or_else(other_deployment));
        false
    }

    /// Writes the status in the middle of a pass, which ends with what it is for.
    pub(crate) async fn record_status(&mut self, status: &K::Status) -> bool {
        match self.ctx.record_status(&self.key, &*self.object, status).await {
            Ok(StatusWrite::Changed) => {
                self.object_written = true;
                true
            }
            Ok(StatusWrite::Unchanged | StatusWrite::Outdated) => self.outdated(),
            Err(error) => {
                let failure = failure::from_kube("write the status", &error);
                tracing::warn!(reason = %failure.reason, "{}", failure.message);
                self.retry = Some(failure.retry);
                false
            }
        }
    }

    /// Notes what became of a write to a Secret.
    pub(crate) fn is_stored(&mut self, name: &str, written: Result<Option<String>, secret::Error>) -> bool {
        match written {
            Ok(Some(_)) => {
                tracing::info!("wrote Secret {name}");
                true
            }
            Ok(None) => self.outdated(),
            Err(error) => {
                tracing::warn!("{error}");
                self.retry = Some(Retry::Backoff);
                false
            }
        }
    }
}
