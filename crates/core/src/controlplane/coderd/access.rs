//! The record of the operator token on status, the condition `OperatorAccessReady`, and whether the object needs its finalizer.
//!
//! The status announces a token before it is created, so that every later process knows that it may exist, and names it
//! until it is revoked. Nothing here asks or changes anything: the input is the object and the report of exchanges.

use std::iter;

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderControlPlaneStatus, OperatorTokenStatus, PodSettings, Reason,
    ReplacedToken, condition::condition_type, names::finalizer,
};
use k8s_openapi::{api::core::v1::EnvFromSource, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;

use super::{Basis, CoderdReport, PresentInputs, condition};
use crate::{
    condition::Conditions,
    names, object,
    outcome::Blocker,
    pod::find_variable,
    sources::key_for,
    verified::{self, Recorded},
};

/// The variable of the pods with the address of the database. The operator finds the database by the same variables.
pub const DATABASE_URL: &str = "CODER_PG_CONNECTION_URL";
/// The variable that says how coderd authenticates there.
pub const DATABASE_AUTH: &str = "CODER_PG_AUTH";
/// What to do when there is no address.
pub const NO_DATABASE: &str = "no database is configured: set CODER_PG_CONNECTION_URL in extraEnv or envFrom, \
     or choose another operatorAccess.method, or set operatorAccess.disabled";

/// The key in the Secret of a token, unless the spec names another one.
pub const TOKEN_KEY: &str = "token";

/// The Secret with the token that a person supplies, and the key in it.
pub fn supplied_token(object: &CoderControlPlane) -> Option<(&str, &str)> {
    let access = &object.spec.operator_access;
    let reference =
        access.token_secret_ref.as_ref().filter(|_| access.method == AccessMethod::TokenSecret)?;
    Some((reference.name.as_str(), reference.key.as_ref().map_or(TOKEN_KEY, AsRef::as_ref)))
}

/// The operator's access to coderd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// coderd accepts the token.
    Ready,
    /// coderd accepts the token, which should have been replaced by now.
    Overdue(Blocker),
    /// The token worked and cannot be verified now, for a reason that may pass.
    Degraded(Blocker),
    /// There is no token that coderd accepts, and a person must act.
    Refused(Blocker),
}

/// What an attacker on the network could do although everything works. The message of `OperatorAccessReady` says it; it gates
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportWarning {
    /// The token goes over plain HTTP to another address than the Service.
    PlainHttp,
    /// Nobody verifies who answers as the database.
    UnverifiedDatabase,
}

impl TransportWarning {
    fn sentence(self) -> &'static str {
        match self {
            Self::PlainHttp => {
                "it goes over plain HTTP to an address other than the Service, where others on the network can read it: \
                 use https in operatorAccess.apiURL"
            }
            Self::UnverifiedDatabase => {
                "sslmode=require does not verify who answers as the database: set operatorAccess.databaseCASecretRef, or \
                 sslmode=verify-full"
            }
        }
    }
}

/// The message for a token that works.
fn accepted(warnings: &[TransportWarning]) -> String {
    let sentences = warnings.iter().map(|warning| warning.sentence());
    iter::once("coderd accepts the operator token").chain(sentences).collect::<Vec<_>>().join("; ")
}

/// The progress of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// No token of the operator is left in coderd.
    Done,
    /// A token may be left; the operator tries again.
    Failing(Blocker),
    /// A token may be left, and an event names it.
    Abandoned,
}

impl AccessVerdict {
    /// What a failed call means. A redirect and an address that is not allowed stay until a person names another one;
    /// everything else may pass.
    pub fn unreachable(blocker: &Blocker) -> Self {
        match blocker.reason {
            Reason::Redirected | Reason::AddressNotAllowed => Self::Refused(blocker.clone()),
            _ => Self::Degraded(blocker.clone()),
        }
    }
}

/// The record of the token that may exist in coderd. Without times, it was announced and not proven.
pub fn minted_token(object: &CoderControlPlane) -> Option<OperatorTokenStatus> {
    let status = object.status.as_ref()?;
    if status.operator_token.is_some() {
        return status.operator_token.clone();
    }
    // The Go operator records the Secret alone, and its tokens come from the database.
    let reference = status.operator_token_secret_ref.as_ref()?;
    (reference.name == secret_name(object)).then(OperatorTokenStatus::default)
}

/// The tokens on record that were created by another method than the one of the spec, and are still to be revoked.
///
/// At most one if the operator creates the token by the method of the spec, at most two if a person supplies it. A token of
/// the spec's own method is never among them, even if the record names it as replaced: after a change from one method to
/// another and back it is the token in use.
pub fn replaced_tokens(object: &CoderControlPlane) -> Vec<ReplacedToken> {
    let access = &object.spec.operator_access;
    let supplied = access.token_secret_ref.as_ref();
    if supplied.is_some_and(|supplied| supplied.name.as_str() == secret_name(object)) {
        // A person supplies the very token that the operator created.
        return Vec::new();
    }
    let Some(OperatorTokenStatus { method, user_id, replaces, .. }) = minted_token(object) else {
        return Vec::new();
    };
    let all = replaces.into_iter().chain([ReplacedToken { method, user_id }]);
    all.filter(|token| token.method != access.method).collect()
}

/// Whether a token may be created: the status announces it and the finalizer holds the object until it is revoked.
pub fn may_create(object: &CoderControlPlane) -> bool {
    let method = object.spec.operator_access.method;
    let token = object.status.as_ref().and_then(|status| status.operator_token.as_ref());
    token.is_some_and(|token| token.method == method)
        && object::has_finalizer(object, finalizer::CONTROL_PLANE)
}

/// The token on record, if it was proven: only a proven one has times. What `report` is about to record counts.
pub fn proven_record(object: &CoderControlPlane, report: &CoderdReport) -> Option<OperatorTokenStatus> {
    let on_status = object.status.as_ref().and_then(|status| status.operator_token.as_ref());
    let is_proven = |token: &&OperatorTokenStatus| {
        token.method == object.spec.operator_access.method && token.renew_after.is_some()
    };
    let token = [report.token_record.as_ref(), on_status].into_iter().flatten().find(is_proven)?;
    Some(OperatorTokenStatus { replaces: replaced_tokens(object).into_iter().next(), ..token.clone() })
}

/// The user of the token on record, proven or not. What `report` is about to record counts.
pub fn recorded_user(object: &CoderControlPlane, report: &CoderdReport) -> Option<String> {
    let on_status = object.status.as_ref().and_then(|status| status.operator_token.as_ref());
    let all = [report.token_record.as_ref(), on_status].into_iter().flatten();
    let mut own = all.filter(|token| token.method == object.spec.operator_access.method);
    own.find_map(|token| token.user_id.clone())
}

/// Whether the object needs its finalizer: a token may exist in coderd, or is about to.
pub fn needs_cleaning(object: &CoderControlPlane, report: &CoderdReport) -> bool {
    let over = matches!(report.revocation, Some(Revocation::Done | Revocation::Abandoned));
    let one_is_wanted = !object.spec.operator_access.disabled && object.metadata.deletion_timestamp.is_none();
    let any = minted_token(object).is_some() || report.token_record.is_some();
    any && (!over || (one_is_wanted && report.token_record.is_some()))
}

/// Whether the status says that the access is disabled and no token is left.
pub fn is_revoked(object: &CoderControlPlane) -> bool {
    let is_disabled = access_condition(object).is_some_and(|c| Reason::of(c) == Some(Reason::Disabled));
    // The first user's token is recorded before it is created; the Go operator recorded none of those from the database.
    let may_be_unrecorded = match object.spec.operator_access.method {
        AccessMethod::Postgres => has_token_source(object),
        AccessMethod::FirstUser | AccessMethod::TokenSecret => false,
    };
    minted_token(object).is_none() && (is_disabled || !may_be_unrecorded)
}

fn access_condition(object: &CoderControlPlane) -> Option<&Condition> {
    condition(object.status.as_ref()?, condition_type::OPERATOR_ACCESS_READY)
}

/// Whether the spec names a source for a token.
pub fn has_token_source(object: &CoderControlPlane) -> bool {
    match object.spec.operator_access.method {
        AccessMethod::Postgres => may_have_database(&object.spec.pod),
        AccessMethod::FirstUser | AccessMethod::TokenSecret => true,
    }
}

/// Whether the pods may have the address of a database. What `envFrom` brings is known only when it is read.
fn may_have_database(pod: &PodSettings) -> bool {
    let could = |from: &EnvFromSource| key_for(from, DATABASE_URL).is_some();
    match find_variable(&pod.extra_env, DATABASE_URL) {
        // Kubernetes lets a variable that is set by name win over `envFrom`, even if it is empty.
        Some(entry) => {
            let is_set = entry.value.as_deref().is_some_and(|value| !value.trim().is_empty());
            entry.value_from.is_some() || is_set
        }
        None => pod.env_from.iter().any(could),
    }
}

/// The name of the Secret with the token that the operator creates.
pub fn secret_name(object: &CoderControlPlane) -> String {
    let given = object.spec.operator_access.generated_token_secret_name.as_ref();
    given.map_or_else(|| names::token_secret(&object.name_any()), ToString::to_string)
}

/// Sets the record, the reference to the Secret and the condition `OperatorAccessReady`. Keeps what the report says nothing about.
pub fn set_conditions(
    object: &CoderControlPlane,
    report: &CoderdReport,
    present: &PresentInputs,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    let mut set = |state: bool, reason: Reason, message: &str| {
        conditions.set(condition_type::OPERATOR_ACCESS_READY, state, reason, message);
    };
    if object.spec.operator_access.disabled {
        status.operator_access_ready = None;
        forget(status);
        match &report.revocation {
            Some(Revocation::Failing(Blocker { reason, message, .. })) => {
                set(false, *reason, &format!("the operator token is not revoked yet: {message}"));
            }
            None if !is_revoked(object) => {
                set(false, Reason::Revoking, "revoking the operator token");
            }
            None | Some(Revocation::Done | Revocation::Abandoned) => {
                // Without access nobody verifies which deployment answers.
                (status.operator_token, status.operator_token_secret_ref, status.deployment_id) =
                    (None, None, None);
                set(false, Reason::Disabled, "operatorAccess.disabled is set");
            }
        }
        return;
    }
    let worked = status.operator_access_ready == Some(true);
    if let Some(token) = &report.token {
        if status.operator_token.is_none() && token.name != secret_name(object) {
            // The reference is the only record of a token of the Go operator. It must outlive the reference.
            status.operator_token = minted_token(object);
        }
        status.operator_token_secret_ref = Some(token.clone());
    }
    match (&report.token_record, &report.revocation) {
        (Some(record), _) => status.operator_token = Some(record.clone()),
        (None, Some(Revocation::Done)) => status.operator_token = None,
        (None, _) => {}
    }
    let present = present.access.as_ref();
    let (has_verdict, about) = (report.access.is_some(), report.access_inputs.as_ref());
    let basis = Basis::of(has_verdict, about, present, status, condition_type::OPERATOR_ACCESS_READY);
    if basis == Basis::Unverified {
        let message = "waiting for coderd to verify the operator token of the present spec and Secret";
        set(false, Reason::Pending, message);
        status.operator_access_ready = None;
        return;
    }
    let said = condition(status, condition_type::OPERATOR_ACCESS_READY);
    let is_pending = said.is_some_and(|c| Reason::of(c) == Some(Reason::Pending));
    let is_current = said.is_some_and(|c| c.observed_generation == object.metadata.generation) && !is_pending;
    // An outage is a statement about the server, which is worth a condition whatever the token is.
    match report.access.as_ref().filter(|_| basis == Basis::Verdict || about.is_none()) {
        // The inputs changed and changed back before anybody verified the others.
        None if basis == Basis::Record && is_pending => {
            set(true, Reason::TokenAccepted, &accepted(&report.warnings));
            status.operator_access_ready = Some(true);
        }
        None if worked && said.is_none() => {
            set(true, Reason::Kept, "using the token of an earlier release until it is verified");
        }
        // Keeps the condition of an earlier process about this generation until an exchange reports something else.
        None if worked || is_current => {}
        None if has_token_source(object) => set(false, Reason::Pending, "waiting for a ready pod of coderd"),
        None => set(false, Reason::DatabaseUrlMissing, NO_DATABASE),
        Some(AccessVerdict::Ready) => {
            set(true, Reason::TokenAccepted, &accepted(&report.warnings));
            status.operator_access_ready = Some(true);
            record(status, present);
        }
        Some(AccessVerdict::Overdue(Blocker { message, .. })) => {
            let message = format!("coderd accepts the operator token, which could not be renewed: {message}");
            set(true, Reason::RenewalFails, &message);
            status.operator_access_ready = Some(true);
            record(status, present);
        }
        Some(AccessVerdict::Degraded(blocker)) => {
            set(false, blocker.reason, &blocker.message);
            let recorded = |inputs: &String| {
                verified::recorded(&status.verified, condition_type::OPERATOR_ACCESS_READY, inputs)
            };
            if present.map(recorded) == Some(Recorded::Other) {
                status.operator_access_ready = None;
            }
        }
        Some(AccessVerdict::Refused(blocker)) => {
            set(false, blocker.reason, &blocker.message);
            status.operator_access_ready = None;
            forget(status);
        }
    }
}

/// Drops the record: no inputs are known to be accepted any more.
fn forget(status: &mut CoderControlPlaneStatus) {
    status.verified.retain(|verified| verified.type_ != condition_type::OPERATOR_ACCESS_READY);
}

fn record(status: &mut CoderControlPlaneStatus, inputs: Option<&String>) {
    if let Some(inputs) = inputs {
        verified::record(&mut status.verified, condition_type::OPERATOR_ACCESS_READY, inputs);
    }
}

#[cfg(test)]
mod tests;
