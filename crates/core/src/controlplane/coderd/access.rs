//! The record of the operator token on status, the condition `OperatorAccessReady`, and whether the object needs its finalizer.
//!
//! The status announces a token before it is created, so that every later process knows that it may exist, and names it
//! until it is revoked. Nothing here asks or changes anything: the input is the object and the report of exchanges.

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderControlPlaneStatus, OperatorTokenStatus, Reason, ReplacedToken,
    condition::kind, names::finalizer,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{Blocker, CoderdReport, has_condition, whole_seconds};
use crate::{condition::Conditions, controlplane::database, names, object};

/// The operator's access to coderd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// coderd accepts the token.
    Ready,
    /// coderd accepts the token, which should have been replaced by now.
    Overdue(Blocker),
    /// The token worked and cannot be verified now, for a reason that may pass.
    Degraded(Blocker),
    /// There is no token that coderd accepts, and a person must act.
    Refused(Blocker),
}

/// The record of a token that the operator creates. Without times, the token is announced and not proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The method that creates it.
    pub method: AccessMethod,
    /// UUID of its user in coderd. None until coderd accepted the token.
    pub user_id: Option<String>,
    /// When it expires.
    pub expires: Option<Timestamp>,
    /// When the operator replaces it.
    pub renew_after: Option<Timestamp>,
    /// A token of another method that is still to be revoked.
    pub replaces: Option<MintedToken>,
}

/// A token of the operator that may exist in coderd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MintedToken {
    /// The method that created it.
    pub method: AccessMethod,
    /// UUID of its user. None: it was announced and not proven, or the Go operator created it.
    pub user_id: Option<String>,
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

impl Access {
    /// What a failed call means. A redirect stays until a person names the right address; everything else may pass.
    pub fn unreachable(blocker: &Blocker) -> Self {
        match blocker.reason {
            Reason::Redirected => Self::Refused(blocker.clone()),
            _ => Self::Degraded(blocker.clone()),
        }
    }
}

impl Revocation {
    fn is_over(&self) -> bool {
        matches!(self, Self::Done | Self::Abandoned)
    }
}

/// The token that the record names: it may exist in coderd.
pub fn minted_token(object: &CoderControlPlane) -> Option<MintedToken> {
    let status = object.status.as_ref()?;
    if let Some(OperatorTokenStatus { method, user_id, .. }) = &status.operator_token {
        return Some(MintedToken { method: *method, user_id: user_id.clone() });
    }
    // The Go operator records the Secret alone, and its tokens come from the database.
    let reference = status.operator_token_secret_ref.as_ref()?;
    (reference.name == secret_name(object)).then(MintedToken::default)
}

/// The tokens on record that were created by another method than the one of the spec, and are still to be revoked.
///
/// At most one if the operator creates the token by the method of the spec, at most two if a person supplies it. A token of
/// the spec's own method is never among them, even if the record names it as replaced: after a change from one method to
/// another and back it is the token in use.
pub fn replaced_tokens(object: &CoderControlPlane) -> Vec<MintedToken> {
    let access = &object.spec.operator_access;
    let supplied = access.token_secret_ref.as_ref();
    if supplied.is_some_and(|supplied| supplied.name.as_str() == secret_name(object)) {
        // A person supplies the very token that the operator created.
        return Vec::new();
    }
    let record = object.status.as_ref().and_then(|status| status.operator_token.as_ref());
    let replaced = record.and_then(|record| record.replaces.as_ref());
    let replaced = replaced.map(|old| MintedToken { method: old.method, user_id: old.user_id.clone() });
    let all = replaced.into_iter().chain(minted_token(object));
    all.filter(|token| token.method != access.method).collect()
}

/// Whether a token may be created: the status announces it and the finalizer holds the object until it is revoked.
pub fn is_recorded(object: &CoderControlPlane) -> bool {
    let method = object.spec.operator_access.method;
    let token = object.status.as_ref().and_then(|status| status.operator_token.as_ref());
    token.is_some_and(|token| token.method == method)
        && object::has_finalizer(object, finalizer::CONTROL_PLANE)
}

/// The token on record, if it was proven: only a proven one has times.
pub fn proven_record(object: &CoderControlPlane) -> Option<Grant> {
    let token = object.status.as_ref()?.operator_token.as_ref()?;
    let time = |at: &Option<Time>| at.as_ref().map(|at| at.0);
    (token.method == object.spec.operator_access.method && token.renew_after.is_some()).then(|| Grant {
        method: token.method,
        user_id: token.user_id.clone(),
        expires: time(&token.expires),
        renew_after: time(&token.renew_after),
        replaces: replaced_tokens(object).into_iter().next(),
    })
}

/// Whether the object needs its finalizer: a token may exist in coderd, or is about to.
pub fn needs_cleaning(object: &CoderControlPlane, report: &CoderdReport) -> bool {
    let over = report.revocation.as_ref().is_some_and(Revocation::is_over);
    let one_is_wanted = !object.spec.operator_access.disabled && object.metadata.deletion_timestamp.is_none();
    let any = minted_token(object).is_some() || report.grant.is_some();
    any && (!over || (one_is_wanted && report.grant.is_some()))
}

/// Whether the status says that the access is disabled and no token is left.
pub fn is_revoked(object: &CoderControlPlane) -> bool {
    let said = object.status.iter().flat_map(|status| &status.workload.conditions);
    let disabled = said
        .into_iter()
        .any(|c| c.type_ == kind::OPERATOR_ACCESS_READY && Reason::of(c) == Some(Reason::Disabled));
    minted_token(object).is_none() && (disabled || no_token_possible(object))
}

/// Whether an earlier process replaced a refused token for this spec, and coderd refused the replacement too.
///
/// Not while a token of another method is still to be revoked: the condition may then be about that token, because the
/// last report is put on the status of the new generation before the first exchange about it.
pub fn is_replacement_refused(object: &CoderControlPlane) -> bool {
    let mut conditions = object.status.iter().flat_map(|status| &status.workload.conditions);
    let is_refused = conditions.any(|c| {
        c.type_ == kind::OPERATOR_ACCESS_READY
            && c.observed_generation == object.metadata.generation
            && Reason::of(c) == Some(Reason::TokenRefused)
    });
    is_refused && replaced_tokens(object).is_empty()
}

/// Whether the spec names a source for a token.
pub fn has_token_source(object: &CoderControlPlane) -> bool {
    let method = object.spec.operator_access.method;
    method != AccessMethod::Postgres || database::may_be_configured(&object.spec.pod)
}

/// Whether the method of the spec cannot have created a token that nothing records. The first user's token is recorded
/// before it is created; the Go operator recorded none of those from the database.
fn no_token_possible(object: &CoderControlPlane) -> bool {
    object.spec.operator_access.method != AccessMethod::Postgres || !has_token_source(object)
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
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    let mut set = |state: bool, reason: Reason, message: &str| {
        conditions.set(kind::OPERATOR_ACCESS_READY, state, reason, message);
    };
    if object.spec.operator_access.disabled {
        status.operator_access_ready = None;
        match &report.revocation {
            Some(Revocation::Failing(Blocker { reason, message, .. })) => {
                set(false, *reason, &format!("the operator token is not revoked yet: {message}"));
            }
            None if !is_revoked(object) => {
                set(false, Reason::Revoking, "revoking the operator token");
            }
            None | Some(Revocation::Done | Revocation::Abandoned) => {
                (status.operator_token, status.operator_token_secret_ref) = (None, None);
                set(false, Reason::Disabled, "operatorAccess.disabled is set");
            }
        }
        return;
    }
    let worked = status.operator_access_ready == Some(true);
    if let Some(token) = &report.token {
        if status.operator_token.is_none() && token.name != secret_name(object) {
            // The reference is the only record of a token of the Go operator. It must outlive the reference.
            let implied = minted_token(object).map(|MintedToken { method, user_id }| Grant {
                method,
                user_id,
                ..Grant::default()
            });
            status.operator_token = implied.as_ref().map(shown);
        }
        status.operator_token_secret_ref = Some(token.clone());
    }
    match (&report.grant, &report.revocation) {
        (Some(grant), _) => status.operator_token = Some(shown(grant)),
        (None, Some(Revocation::Done)) => status.operator_token = None,
        (None, _) => {}
    }
    match &report.access {
        None if worked && !has_condition(status, kind::OPERATOR_ACCESS_READY) => {
            set(true, Reason::Kept, "using the token of an earlier release until it is verified");
        }
        // Keeps the condition of an earlier process about this generation until an exchange reports something else.
        None if worked || is_of_generation(status, object.metadata.generation) => {}
        None => {
            let (reason, message) = awaited(object);
            set(false, reason, message);
        }
        Some(Access::Ready) => {
            set(true, Reason::TokenAccepted, "coderd accepts the operator token");
            status.operator_access_ready = Some(true);
        }
        Some(Access::Overdue(Blocker { message, .. })) => {
            let message = format!("coderd accepts the operator token, which could not be renewed: {message}");
            set(true, Reason::RenewalFails, &message);
            status.operator_access_ready = Some(true);
        }
        Some(Access::Degraded(blocker)) => set(false, blocker.reason, &blocker.message),
        Some(Access::Refused(blocker)) => {
            set(false, blocker.reason, &blocker.message);
            status.operator_access_ready = None;
        }
    }
}

/// Whether the condition is about this generation.
fn is_of_generation(status: &CoderControlPlaneStatus, generation: Option<i64>) -> bool {
    let said = status.workload.conditions.iter().find(|c| c.type_ == kind::OPERATOR_ACCESS_READY);
    said.is_some_and(|c| c.observed_generation == generation && Reason::of(c) != Some(Reason::Pending))
}

/// What is missing for a first exchange.
fn awaited(object: &CoderControlPlane) -> (Reason, &'static str) {
    if has_token_source(object) {
        (Reason::Pending, "waiting for a ready pod of coderd")
    } else {
        (Reason::DatabaseUrlMissing, database::HOW_TO_CONFIGURE)
    }
}

/// The record as it is on status.
fn shown(grant: &Grant) -> OperatorTokenStatus {
    let time = |at: Option<Timestamp>| at.map(|at| Time(whole_seconds(at)));
    OperatorTokenStatus {
        method: grant.method,
        user_id: grant.user_id.clone(),
        expires: time(grant.expires),
        renew_after: time(grant.renew_after),
        replaces: grant
            .replaces
            .as_ref()
            .map(|old| ReplacedToken { method: old.method, user_id: old.user_id.clone() }),
    }
}

#[cfg(test)]
mod tests;
