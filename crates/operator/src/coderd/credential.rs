//! Runs the decisions about the credential of an object in coderd: the key of a pool, the registration of a proxy.
//!
//! `core` decides; [`run_steps`] answers its queries and performs its effects. Material is in memory only while it is
//! proven, copied or stored. The object is read live before every effect, so that nothing is done for a spec that is no
//! longer there.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use coder_k8s_coderd::{Client, Error, IdentifiedServer};
use coder_k8s_core::{
    credential::{Decision, Effect, NextStep},
    outcome::{Blocker, EventNote, Retry},
    steps::Step,
    target::{CoderdTarget, SecretDataRef, Version},
    workload::Run,
};
use coder_k8s_engine::{
    apply::Owner,
    cache::ObjectKey,
    client,
    secret::{self, SecretData},
    status::StatusWrite,
};
use secrecy::SecretString;

use super::{
    driver, later, retry_of,
    targets::{Connections, TargetError, other_deployment},
};
use crate::controller::{CoderResource, Context, finalizer};

/// The most effects of one reconcile. More than these follow in the next one.
const MAX_EFFECTS: usize = 6;
/// The most queries of one reconcile.
const MAX_QUERIES: usize = 32;

/// What the steps of one reconcile work with, and what came of them.
pub(crate) struct StepState<K> {
    pub(crate) ctx: Arc<Context>,
    pub(crate) key: ObjectKey,
    pub(crate) object: Arc<K>,
    pub(crate) owner: Owner,
    /// The servers that this reconcile has identified.
    pub(crate) connections: Connections,
    /// Secrets as they were read last, by name.
    pub(crate) stored: BTreeMap<String, SecretData>,
    /// What pods run with, as far as it is known without coderd.
    pub(crate) first_run: Option<Run>,
    /// Whether the object itself was written, so that what was observed of it is outdated.
    pub(crate) object_written: bool,
    /// When to try again what failed. No effect follows a failure.
    pub(crate) retry: Option<Retry>,
    /// Why the last effect failed.
    pub(crate) blocker: Option<Blocker>,
}

/// The decisions, queries and effects of one kind of credential.
pub(crate) trait CredentialReconciler {
    type Kind: CoderResource;
    type Query: Clone;
    /// What the status records.
    type Record;
    /// What can be done in coderd.
    type Effect: Clone;
    /// What the annotations of a Secret say.
    type Marks: Clone;

    const FINALIZER: &'static str;

    /// Decides on what was observed so far.
    fn decide(&self) -> DecisionOf<Self>;
    /// Whether an effect makes material that is lost unless it is stored.
    fn makes(effect: &Self::Effect) -> bool;
    fn state(&mut self) -> &mut StepState<Self::Kind>;
    /// What a failed call means for the object. The same from try to try.
    fn blocker_of(&self, error: &Error) -> Blocker;
    /// Answers a query and notes the answer. A failure is an answer too.
    async fn ask(&mut self, query: Self::Query);
    /// Performs an effect in coderd. False: the reconcile must end.
    async fn act(&mut self, effect: Self::Effect) -> bool;
    /// Writes material, or annotations alone, onto exactly the Secret that was decided on.
    async fn store(
        &mut self,
        place: &SecretDataRef,
        version: &Version,
        material: Option<&SecretString>,
        marks: &Self::Marks,
    ) -> bool;
    /// Removes a data key that nothing reads any more, and with the last of ours the Secret.
    async fn remove(&mut self, place: &SecretDataRef, version: &Version) -> bool;
    /// Reads the Secrets live, after an effect.
    async fn read_secrets(&mut self);

    /// The server of a target. The error is None if the target is gone.
    async fn server(&mut self, target: &CoderdTarget) -> Result<IdentifiedServer, Option<Blocker>> {
        let StepState { connections, ctx, .. } = self.state();
        let found = connections.server(target, ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    /// A client with the credentials of a target. The error is None if the target is gone.
    async fn client(&mut self, target: &CoderdTarget) -> Result<Client, Option<Blocker>> {
        let StepState { connections, ctx, .. } = self.state();
        let found = connections.client(target, ctx).await;
        found.map_err(|error| self.unusable(error))
    }

    fn unusable(&mut self, error: TargetError) -> Option<Blocker> {
        match error {
            TargetError::Gone => None,
            TargetError::Blocked(blocker) => Some(blocker),
            TargetError::Failed(error) => Some(self.failed(&error)),
        }
    }

    /// Notes a failed call to coderd, so that the object is retried, and not before coderd asks for.
    fn failed(&mut self, error: &Error) -> Blocker {
        let state = self.state();
        state.retry = Some(later(state.retry, retry_of(error)));
        self.blocker_of(error)
    }
}

/// A decision of one kind of credential.
pub(crate) type DecisionOf<R> =
    Decision<<R as CredentialReconciler>::Query, <R as CredentialReconciler>::Record, EffectOf<R>>;

type EffectOf<R> = Effect<<R as CredentialReconciler>::Effect, <R as CredentialReconciler>::Marks>;

/// Asks and acts until there is nothing more to do, or until the next step is to write the status.
pub(crate) async fn run_steps<R: CredentialReconciler>(reconciler: &mut R) -> DecisionOf<R> {
    let mut steps = CredentialSteps { reconciler, queries: 0, effects: 0 };
    let decision = driver::run(&mut steps).await;
    let decision = decision.unwrap_or_else(|| reconciler.decide());
    reconciler.state().publish(&decision.events).await;
    decision
}

/// The steps of one reconcile, as the driver runs them.
struct CredentialSteps<'a, R: CredentialReconciler> {
    reconciler: &'a mut R,
    queries: usize,
    effects: usize,
}

impl<R: CredentialReconciler> driver::Protocol for CredentialSteps<'_, R> {
    type Query = R::Query;
    /// The decision whose next step is the effect.
    type Effect = DecisionOf<R>;
    type Done = DecisionOf<R>;

    fn decide(&mut self) -> Step<Self::Query, Self::Effect, Self::Done> {
        let decision = self.reconciler.decide();
        match &decision.next {
            NextStep::Ask(query) if self.queries < MAX_QUERIES => Step::Ask(query.clone()),
            NextStep::Act(effect) if self.effects < MAX_EFFECTS && may_act(self.reconciler, effect) => {
                Step::Act(decision)
            }
            _ => Step::Done(decision),
        }
    }

    async fn ask(&mut self, query: Self::Query) {
        self.queries += 1;
        self.reconciler.ask(query).await;
    }

    async fn act(&mut self, mut decision: Self::Effect) -> ControlFlow<Self::Done> {
        self.effects += 1;
        let events = std::mem::take(&mut decision.events);
        self.reconciler.state().publish(&events).await;
        let NextStep::Act(effect) = &decision.next else { return ControlFlow::Break(decision) };
        if perform(self.reconciler, Effect::clone(effect)).await.is_continue() {
            return ControlFlow::Continue(());
        }
        if let Some(blocker) = self.reconciler.state().blocker.take() {
            decision.verdict = decision.verdict.delayed(blocker);
        }
        ControlFlow::Break(decision)
    }
}

/// Whether an effect may be performed in this reconcile: none after a failure, and nothing is made again before the backoff
/// of material that could not be stored has passed.
fn may_act<R: CredentialReconciler>(reconciler: &mut R, effect: &EffectOf<R>) -> bool {
    let state = reconciler.state();
    let makes = matches!(effect, Effect::Coderd(effect) if R::makes(effect));
    state.retry.is_none() && !(makes && state.ctx.verify_schedule.creation_backoff(&state.key).is_some())
}

/// Performs one effect. Breaks where the reconcile must end: it failed, or what was observed is outdated.
async fn perform<R: CredentialReconciler>(reconciler: &mut R, effect: EffectOf<R>) -> ControlFlow<()> {
    let state = reconciler.state();
    if let Effect::AddFinalizer = effect {
        return state.add_finalizer(R::FINALIZER).await;
    }
    // The object is still the one that was decided on, and this process still holds the lease.
    if !state.ctx.is_current(&*state.object).await {
        state.outdated();
        return ControlFlow::Break(());
    }
    let done = match effect {
        Effect::AddFinalizer => true,
        Effect::Coderd(effect) => reconciler.act(effect).await,
        Effect::CopySecret { from, to, version, marks } => match state.material(&from) {
            Some(material) => reconciler.store(&to, &version, Some(&material), &marks).await,
            None => state.outdated(),
        },
        Effect::AnnotateSecret { secret, version, marks } => {
            reconciler.store(&secret, &version, None, &marks).await
        }
        Effect::RemoveSecret { secret, version } => reconciler.remove(&secret, &version).await,
    };
    if !done || reconciler.state().object_written {
        return ControlFlow::Break(());
    }
    reconciler.read_secrets().await;
    ControlFlow::Continue(())
}

impl<K: CoderResource> StepState<K> {
    async fn publish(&self, events: &[EventNote]) {
        for note in events {
            tracing::info!(reason = %note.reason, "{}", note.message);
            self.ctx.events.publish(&self.object.object_ref(&()), note).await;
        }
    }

    /// The material that a Secret held when it was read last.
    pub(crate) fn material(&self, place: &SecretDataRef) -> Option<SecretString> {
        self.stored.get(&place.name)?.text(&place.key)
    }

    async fn add_finalizer(&mut self, finalizer: &str) -> ControlFlow<()> {
        let added = finalizer::add(&*self.object, finalizer, &self.ctx).await;
        added.map_break(|failed| {
            self.retry = failed;
            self.object_written = failed.is_none();
        })
    }

    /// What was observed is outdated: the reconcile ends, and another one starts soon.
    pub(crate) fn outdated(&mut self) -> bool {
        self.retry = Some(Retry::Soon);
        false
    }

    /// Notes that an effect was not performed because its target cannot be used.
    pub(crate) fn not_performed(&mut self, blocker: Option<Blocker>) -> bool {
        self.retry = Some(self.retry.unwrap_or(Retry::Backoff));
        self.blocker = Some(blocker.unwrap_or_else(other_deployment));
        false
    }

    /// Writes the status between two parts of an effect, after which the reconcile ends.
    pub(crate) async fn record_status(&mut self, status: &K::Status) -> bool {
        match self.ctx.record_status(&self.key, &*self.object, status).await {
            Ok(StatusWrite::Changed) => {
                self.object_written = true;
                true
            }
            Ok(StatusWrite::Unchanged | StatusWrite::Outdated) => self.outdated(),
            Err(error) => {
                let failure = client::blocker("write the status", &error);
                tracing::warn!(reason = %failure.reason, "{}", failure.message);
                self.retry = Some(failure.retry);
                false
            }
        }
    }

    /// Notes the result of a write to a Secret. False: it failed, or the Secret is not the expected one.
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
