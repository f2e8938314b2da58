//! The sync of control planes with their coderd: decides when an exchange is due, and keeps what it brought.
//!
//! Exchanges run in their own queue, apart from reconciles, so that a server that is slow or dead delays nothing but its own
//! exchange, not even its own Deployment. An exchange leaves a [`CoderdReport`]; the next reconcile puts it on the status. At
//! rest an exchange runs only when an interval ends or something changes; a restart alone starts none before its time.

mod database;
mod first_user;
mod license;
mod revocation;
mod token;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, EntitlementsStatus, condition::condition_type, names::component,
};
use coder_k8s_coderd::{Client, ErrorKind, IdentifiedServer, Server};
use coder_k8s_core::{
    controlplane::coderd::{
        self, CoderdReport, PresentInputs,
        access::{self, AccessVerdict, TransportWarning},
        license::LicenseVerdict,
    },
    license_gate::EntitlementAnswer,
    names, object,
    outcome::{Blocker, Retry},
    verified::{self, Recorded},
    workload::Rollout,
};
use coder_k8s_engine::{apply::Owner, backoff::jitter, cache::ObjectKey, queue::Action, secret};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use secrecy::SecretString;

use crate::{
    coderd::{
        blocker_of, feature_state,
        license_gate::failed_answer,
        schedule::{Creations, Schedule, Task, is_verified, jittered},
        targets,
    },
    controller::{Context, children},
    intervals::REQUEUE_AWAITING_RECORD,
};

/// The intervals of exchanges, from the flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intervals {
    pub(crate) entitlements: Duration,
    pub(crate) verify: Duration,
}

/// The sync of all control planes of the process.
pub(crate) struct CoderdSync {
    pub(crate) schedule: Schedule,
    /// Boxed: a map of large values has as much room again that is empty.
    states: Mutex<HashMap<ObjectKey, Box<SyncState>>>,
    /// Names of Secrets and ConfigMaps of each control plane that changed since its last exchange.
    changed: Mutex<HashMap<ObjectKey, BTreeSet<String>>>,
    intervals: Intervals,
}

/// A control plane as one run of the sync sees it.
#[derive(Clone, Copy)]
struct Plane<'a> {
    key: &'a ObjectKey,
    object: &'a CoderControlPlane,
    /// The control plane as the owner of the token's Secret.
    owner: &'a Owner,
    ctx: &'a Context,
}

impl Plane<'_> {
    /// The name of the operator token in coderd.
    fn token_name(&self) -> String {
        names::operator_token(&self.key.namespace, &self.key.name)
    }
}

/// What the process knows of one control plane between exchanges.
#[derive(Clone, Default)]
struct SyncState {
    uid: Option<String>,
    inputs: Inputs,
    report: CoderdReport,
    /// The server without a credential, with its CA. Read again when something changes.
    server: Option<Server>,
    /// The token in the Secret, as it was read or written last.
    token: Option<SecretString>,
    /// The version of the token's Secret that this process wrote.
    stored_version: Option<String>,
    /// Whether nobody verifies who answers as the database. None: not read since something changed.
    is_database_unverified: Option<bool>,
    /// The digest of the token that a person supplies, as it was read last.
    supplied_digest: Option<String>,
    /// Whether nothing changed since the start of the process, so that a token without a binding may be that of an earlier
    /// release, which recorded its deployment only.
    implies_binding: bool,
    /// Why the last exchange did not bring entitlements.
    entitlements_failure: Option<EntitlementAnswer>,
    /// The operator tokens that were created since coderd last accepted one.
    creations: Creations,
    /// Whether the status must record a token before it is created, so that a crash in between loses track of none.
    awaits_record: bool,
}

/// What an exchange depends on, besides Secrets and ConfigMaps. Another value starts another exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Inputs {
    generation: Option<i64>,
    /// Whether any pod is ready.
    is_serving: bool,
    /// The generation of the Deployment, once it has rolled out: another one may run another version of coderd.
    rolled_out: Option<i64>,
}

impl Inputs {
    fn of(object: &CoderControlPlane, deployment: Option<&Deployment>) -> Self {
        let rollout = Rollout::of(deployment);
        let complete = deployment.filter(|_| rollout.is_rolled_out());
        Self {
            generation: object.metadata.generation,
            is_serving: rollout.ready > 0,
            rolled_out: complete.and_then(|deployment| deployment.metadata.generation),
        }
    }
}

impl CoderdSync {
    pub(crate) fn new(intervals: Intervals) -> Self {
        Self { schedule: Schedule::new(None), states: Mutex::default(), changed: Mutex::default(), intervals }
    }

    /// What exchanges brought so far. Empty for another UID: a control plane that was deleted and created again starts anew.
    pub(crate) fn report(&self, key: &ObjectKey, uid: Option<&String>) -> CoderdReport {
        let states = self.states.lock();
        let state = states.get(key).filter(|state| state.uid.as_ref() == uid);
        state.map(|state| state.report.clone()).unwrap_or_default()
    }

    /// Why the last exchange did not bring entitlements. None: it did, or none has run.
    pub(crate) fn entitlements_failure(
        &self,
        key: &ObjectKey,
        uid: Option<&String>,
    ) -> Option<EntitlementAnswer> {
        let states = self.states.lock();
        states.get(key).filter(|state| state.uid.as_ref() == uid)?.entitlements_failure.clone()
    }

    /// Starts an exchange if its inputs changed, or the revocation of the token if the control plane is being deleted.
    pub(crate) fn consider(
        &self,
        key: &ObjectKey,
        object: &CoderControlPlane,
        deployment: Option<&Deployment>,
    ) {
        if object::is_deleting(object) {
            if access::needs_cleaning(object, &self.report(key, object.uid().as_ref())) {
                self.schedule.queue.enqueue(key.clone());
            }
            return;
        }
        let inputs = Inputs::of(object, deployment);
        let is_new = |state: &SyncState| state.uid != object.uid() || state.inputs != inputs;
        if self.states.lock().get(key).is_none_or(|state| is_new(state)) {
            self.schedule.queue.enqueue(key.clone());
        }
    }

    /// Starts an exchange because a Secret or ConfigMap that a control plane refers to changed.
    pub(crate) fn source_changed(&self, key: &ObjectKey, name: &str) {
        self.changed.lock().entry(key.clone()).or_default().insert(name.to_owned());
        self.schedule.queue.enqueue(key.clone());
    }

    /// Forgets a control plane that is paused or no longer exists.
    fn forget(&self, key: &ObjectKey) {
        self.states.lock().remove(key);
        self.changed.lock().remove(key);
        self.schedule.forget(key);
    }

    /// Forgets a control plane that no longer exists.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        self.forget(key);
        self.schedule.remove(key);
    }
}

/// Runs what is due for one control plane, and enqueues its reconcile if the report changed.
pub(crate) async fn run_due(key: ObjectKey, ctx: Arc<Context>) -> Action {
    let sync = &ctx.coderd_sync;
    let object = ctx.caches.control_planes.get(&key.namespace, &key.name);
    let Some(object) = object.filter(|object| !object::is_paused(&**object)) else {
        sync.forget(&key);
        return Action::AwaitChange;
    };
    let Some(owner) = children::owner_of(&*object, component::CONTROL_PLANE) else {
        return Action::AwaitChange;
    };
    let plane = Plane { key: &key, object: &object, owner: &owner, ctx: &ctx };
    let deployment = ctx.caches.deployments.get(&key.namespace, &key.name);
    let inputs = Inputs::of(&object, deployment.as_deref());
    let changed = sync.changed.lock().remove(&key).unwrap_or_default();
    let before = sync.states.lock().get(&key).filter(|state| state.uid == object.uid()).cloned();
    let is_first = before.is_none();
    let mut state = before.clone().unwrap_or_else(|| Box::new(resume(&key, &object, &inputs, sync)));
    let has_changed = changed_by_others(&state, &changed, plane).await || state.inputs != inputs;
    if state.inputs.generation != inputs.generation {
        state.creations = Creations::default();
    }
    state.inputs = inputs;
    let next = if object::is_deleting(&*object) {
        revocation::on_deletion(&mut state, plane).await
    } else if object.spec.operator_access.disabled {
        state.forget_access();
        revocation::on_disabled(&mut state, plane).await
    } else {
        state.drop_reports_of_other_methods(&object);
        sync_due(&mut state, has_changed, is_first, plane).await
    };
    let failed = |state: &SyncState| state.entitlements_failure.clone();
    let fails_anew = before.as_deref().and_then(failed) != failed(&state);
    let has_news = before.map(|before| before.report).unwrap_or_default() != state.report;
    sync.states.lock().insert(key.clone(), state);
    if fails_anew {
        // No status tells the dependents of it.
        ctx.references.of(&key).into_iter().for_each(|dependent| ctx.enqueue(dependent));
    }
    if has_news {
        ctx.queue.enqueue(key);
    }
    next
}

/// What the conditions about coderd depend on now. The contents of Secrets are read once, and again after a change.
pub(crate) async fn present_inputs(
    key: &ObjectKey,
    object: &CoderControlPlane,
    ctx: &Context,
) -> PresentInputs {
    let uid = object.uid().unwrap_or_default();
    let digest = |(name, data_key)| ctx.referenced.secret_digest(&ctx.client, key, &uid, (name, data_key));
    let access = match access::supplied_token(object) {
        None => Some(coderd::access_inputs(object, "")),
        Some(reference) => {
            digest(reference).await.ok().map(|content| coderd::access_inputs(object, &content))
        }
    };
    let license = match coderd::license::secret_key(object) {
        None => None,
        Some(reference) => {
            digest(reference).await.ok().map(|content| coderd::license_inputs(object, &content))
        }
    };
    PresentInputs { access, license }
}

/// Whether somebody else changed a Secret or ConfigMap. The watch shows the operator's own write of the token too, which must
/// not start another exchange.
async fn changed_by_others(state: &SyncState, changed: &BTreeSet<String>, plane: Plane<'_>) -> bool {
    let token = access::secret_name(plane.object);
    if changed.len() != 1 || !changed.contains(&token) || state.stored_version.is_none() {
        return !changed.is_empty();
    }
    let read = secret::read(&plane.ctx.client, &plane.key.namespace, &token).await;
    read.ok().flatten().map(|live| live.resource_version) != state.stored_version
}

impl SyncState {
    /// Drops what an earlier `operatorAccess.method` reported.
    fn drop_reports_of_other_methods(&mut self, object: &CoderControlPlane) {
        let method = object.spec.operator_access.method;
        self.report.token_record.take_if(|record| record.method != method);
        if access::replaced_tokens(object).is_empty() {
            self.report.revocation = None;
        }
    }

    /// Forgets everything but the revocation, which may still be under way.
    fn forget_access(&mut self) {
        (self.token, self.server, self.entitlements_failure) = (None, None, None);
        self.report = CoderdReport { revocation: self.report.revocation.take(), ..CoderdReport::default() };
    }
}

/// The state after a restart. What the status reports as well is verified within one interval, spread at random; the rest at
/// once.
fn resume(key: &ObjectKey, object: &CoderControlPlane, inputs: &Inputs, sync: &CoderdSync) -> SyncState {
    let status = object.status.as_ref();
    let checked = status.and_then(|status| status.entitlements_last_checked.as_ref());
    let age = checked.and_then(|at| Duration::try_from(Timestamp::now().duration_since(at.0)).ok());
    // A record without times is that of a token whose creation may have been interrupted.
    let needs_no_token = status
        .and_then(|status| status.operator_token.as_ref())
        .is_none_or(|record| record.renew_after.as_ref().is_some_and(|at| at.0 > Timestamp::now()));
    let licensed =
        object.spec.license_secret_ref.is_none() || is_verified(object, condition_type::LICENSE_APPLIED);
    let has_access = needs_no_token && is_verified(object, condition_type::OPERATOR_ACCESS_READY);
    let is_steady = licensed && has_access && age.is_some();
    let intervals = sync.intervals;
    let verify_in = if is_steady { intervals.verify.mul_f64(jitter()) } else { Duration::ZERO };
    let refresh_in = age.map_or(Duration::ZERO, |age| jittered(intervals.entitlements).saturating_sub(age));
    sync.schedule.set_due(key, Task::Verify, verify_in);
    sync.schedule.set_due(key, Task::Entitlements, refresh_in);
    SyncState { uid: object.uid(), inputs: inputs.clone(), implies_binding: true, ..SyncState::default() }
}

/// Whether the status records that the present inputs were verified. An earlier release recorded nothing: what it left is
/// verified at once.
fn are_recorded(object: &CoderControlPlane, present: &PresentInputs) -> bool {
    let all = object.status.as_ref().map_or(&[][..], |status| &status.verified);
    let is_same = |type_, inputs: &Option<String>| {
        inputs.as_ref().is_none_or(|inputs| verified::recorded(all, type_, inputs) == Recorded::Same)
    };
    is_same(condition_type::OPERATOR_ACCESS_READY, &present.access)
        && is_same(condition_type::LICENSE_APPLIED, &present.license)
}

/// Runs an exchange if one is due, and returns when the next one is.
async fn sync_due(state: &mut SyncState, has_changed: bool, is_first: bool, plane: Plane<'_>) -> Action {
    let CoderdSync { schedule, intervals, .. } = &plane.ctx.coderd_sync;
    let key = plane.key;
    if !state.inputs.is_serving {
        return Action::AwaitChange;
    }
    // No watch shows a change that happened while the operator did not run.
    let present = present_inputs(key, plane.object, plane.ctx).await;
    if has_changed || (is_first && !are_recorded(plane.object, &present)) {
        schedule.set_due(key, Task::Verify, Duration::ZERO);
        schedule.set_due(key, Task::Entitlements, Duration::ZERO);
    }
    if has_changed {
        (state.token, state.server) = (None, None);
        state.is_database_unverified = None;
        state.implies_binding = false;
    }
    // Re-verifies as soon as coderd answers after an outage, without waiting for the interval.
    let is_degraded =
        matches!(state.report.access, Some(AccessVerdict::Degraded(_) | AccessVerdict::Overdue(_)));
    let verify = schedule.is_due(key, Task::Verify) || state.awaits_record || is_degraded;
    state.awaits_record = false;
    if !verify && !schedule.is_due(key, Task::Entitlements) {
        return schedule.at_next_due(key);
    }
    let mut exchange = Exchange { state, plane, present };
    if let Err(retry) = exchange.run(verify).await {
        return Action::RequeueAfter(schedule.failed(key, retry));
    }
    if state.awaits_record {
        return Action::RequeueAfter(REQUEUE_AWAITING_RECORD);
    }
    schedule.succeeded(key);
    if verify {
        schedule.set_due(key, Task::Verify, jittered(intervals.verify));
    }
    // An AGPL server has no entitlements until its image changes, so that it is asked less often.
    let is_agpl = state.report.entitlements.as_ref().is_some_and(|known| known.details.is_none());
    let interval = if is_agpl { intervals.verify } else { intervals.entitlements };
    schedule.set_due(key, Task::Entitlements, jittered(interval));
    schedule.at_next_due(key)
}

/// One exchange with the coderd of a control plane, in order: identify the server, verify the token, apply the license, read
/// the entitlements.
///
/// A part that fails does not stop later parts that do not need it. The exchange writes only its report; failures that are
/// worth a condition are in it.
struct Exchange<'a> {
    state: &'a mut SyncState,
    plane: Plane<'a>,
    /// What the conditions depend on, as of the start of this exchange.
    present: PresentInputs,
}

impl Exchange<'_> {
    /// Runs the exchange. `verify`: the token and the license are verified, not only what is still to be applied. The error
    /// says when to retry; what failed is in the report.
    async fn run(&mut self, verify: bool) -> Result<(), Retry> {
        let Some(server) = self.server().await? else { return Ok(()) };
        let (client, token_retry) = if verify {
            let identified = self.identify(&server).await?;
            self.verify_token(&identified).await
        } else if coderd::license::is_outstanding(&self.state.report, self.plane.object, &self.present) {
            (self.reuse_token(&server).await?, None)
        } else {
            (None, None)
        };
        let license_retry = match &client {
            Some(client)
                if verify
                    || coderd::license::is_outstanding(
                        &self.state.report,
                        self.plane.object,
                        &self.present,
                    ) =>
            {
                license::sync(self, client).await
            }
            _ => None,
        };
        // coderd serves entitlements without a token, so that they are read whatever became of it.
        let entitlements = self.refresh_entitlements(&server).await;
        match token_retry.or(license_retry) {
            Some(retry) => Err(retry),
            None => entitlements,
        }
    }

    /// The server without a credential. None: the spec gives no usable address, and the report says why.
    async fn server(&mut self) -> Result<Option<Server>, Retry> {
        if self.state.server.is_none() {
            match targets::server_of(self.plane.object, self.plane.ctx).await {
                Ok(server) => self.state.server = Some(server),
                Err(blocker) if blocker.retry == Retry::OnChange => {
                    self.state.entitlements_failure =
                        Some(EntitlementAnswer::Failed(blocker.message.clone()));
                    self.state.report.access = Some(AccessVerdict::Refused(blocker));
                    self.state.report.access_inputs.clone_from(&self.present.access);
                }
                Err(blocker) => {
                    tracing::warn!(reason = %blocker.reason, "{}", blocker.message);
                    self.state.entitlements_failure = Some(EntitlementAnswer::Failed(blocker.message));
                    return Err(blocker.retry);
                }
            }
        }
        Ok(self.state.server.clone())
    }

    /// Asks the server which deployment it is.
    async fn identify(&mut self, server: &Server) -> Result<IdentifiedServer, Retry> {
        let identified = match server.identify().await {
            Ok(identified) => identified,
            Err(error) => {
                self.state.entitlements_failure = Some(EntitlementAnswer::Failed(error.to_string()));
                return Err(self.unreachable(&blocker_of(&error)));
            }
        };
        self.state.report.server = Some(coderd::ReportedServer {
            version: identified.version().to_owned(),
            deployment_id: identified.deployment_id().to_owned(),
        });
        Ok(identified)
    }

    /// The inputs of `OperatorAccessReady` that this exchange verified: with the supplied token as it was read.
    fn verified_inputs(&self) -> String {
        let digest = self.state.supplied_digest.as_deref();
        let digest = digest.filter(|_| access::supplied_token(self.plane.object).is_some());
        coderd::access_inputs(self.plane.object, digest.unwrap_or_default())
    }

    /// Runs the token's protocol. Returns a client if coderd accepts the token, and when to retry.
    async fn verify_token(&mut self, server: &IdentifiedServer) -> (Option<Client>, Option<Retry>) {
        let (report, client) = token::sync(self, server).await;
        let state = &mut *self.state;
        state.awaits_record = report.awaits_record;
        if let Some(record) = report.token_record {
            state.report.token_record = Some(record);
            // An earlier revocation says nothing about a token that was created after it.
            state.report.revocation = None;
        }
        state.report.revocation = report.revocation.or(state.report.revocation.take());
        if let Some(access) = report.access {
            if access == AccessVerdict::Ready {
                self.state.creations = Creations::default();
                self.state.report.warnings = self.transport_warnings().await;
            }
            if let (true, AccessVerdict::Refused(blocker) | AccessVerdict::Degraded(blocker)) =
                (report.blocks_license, &access)
            {
                let blocker = blocker.clone();
                self.block_license(&blocker);
            }
            // An outage says nothing about the token.
            self.state.report.access_inputs =
                (!matches!(access, AccessVerdict::Degraded(_))).then(|| self.verified_inputs());
            self.state.report.access = Some(access);
        }
        for event in &report.events {
            tracing::warn!("{}", event.message);
            self.plane.ctx.events.publish(&self.plane.object.object_ref(&()), event).await;
        }
        (client.filter(|_| report.is_usable), report.retry)
    }

    /// What an attacker on the network could do. The database's address is read once, and again after a change.
    async fn transport_warnings(&mut self) -> Vec<TransportWarning> {
        let object = self.plane.object;
        let is_in_database = object.spec.operator_access.method == AccessMethod::Postgres;
        if is_in_database && self.state.is_database_unverified.is_none() {
            self.state.is_database_unverified = database::is_unverified(self.plane).await.ok();
        }
        let is_unverified = is_in_database && self.state.is_database_unverified == Some(true);
        let plain = targets::is_plain_elsewhere(object).then_some(TransportWarning::PlainHttp);
        plain.into_iter().chain(is_unverified.then_some(TransportWarning::UnverifiedDatabase)).collect()
    }

    /// A client with the token of the last verification, for a license that is still to be applied. None: coderd refused it.
    async fn reuse_token(&mut self, server: &Server) -> Result<Option<Client>, Retry> {
        let is_refused = matches!(self.state.report.access, Some(AccessVerdict::Refused(_)));
        let Some(token) = self.state.token.clone().filter(|_| !is_refused) else { return Ok(None) };
        let identified = self.identify(server).await?;
        Ok(self.client(&identified, &token).ok())
    }

    /// Reports that coderd does not answer. The token and the license stay as they are.
    fn unreachable(&mut self, blocker: &Blocker) -> Retry {
        if self.state.token.is_some() || access::has_token_source(self.plane.object) {
            self.state.report.access = Some(AccessVerdict::unreachable(blocker));
            self.state.report.access_inputs = None;
            self.block_license(blocker);
        }
        blocker.retry
    }

    fn block_license(&mut self, blocker: &Blocker) {
        if self.plane.object.spec.license_secret_ref.is_some()
            && !coderd::license::is_applied(&self.state.report, self.plane.object, &self.present)
        {
            self.state.report.license = Some(LicenseVerdict::Blocker(blocker.clone()));
            self.state.report.license_inputs = None;
        }
    }

    async fn refresh_entitlements(&mut self, server: &Server) -> Result<(), Retry> {
        let asked_at = Timestamp::now();
        let answer = match server.entitlements().await {
            Ok(answer) => Some(answer),
            Err(error) if error.kind == ErrorKind::NotSupported => None,
            Err(error) => {
                self.state.entitlements_failure = Some(failed_answer(&error));
                return Err(self.unreachable(&blocker_of(&error)));
            }
        };
        self.state.entitlements_failure = None;
        let answer = answer.map(|found| EntitlementsStatus {
            has_license: found.has_license,
            trial: found.trial,
            features: found
                .features
                .iter()
                .map(|(name, feature)| (name.clone(), feature_state(feature).as_str().to_owned()))
                .collect(),
            warnings: found.warnings,
            errors: found.errors,
        });
        let before = self.state.report.entitlements.take();
        self.state.report.entitlements = Some(coderd::entitlements(answer, before.as_ref(), asked_at));
        Ok(())
    }
}
