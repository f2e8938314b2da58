//! The operator's access: what is said of it, and what must be given back when it is no longer wanted.
//!
//! A token of our own is recorded on the status before it is made, so that whoever comes later knows that it may be
//! there; the record goes when the token has gone.

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderControlPlaneStatus, OperatorTokenStatus, Reason, ReplacedToken,
    condition::kind, names::finalizer,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{Blocker, CoderdReport, is_said, whole_seconds};
use crate::{condition::Conditions, controlplane::database, names, object};

/// The operator's access to coderd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// coderd accepts the token.
    Ready,
    /// coderd accepts the token, which should have been replaced by now.
    Overdue(Blocker),
    /// It worked, and now something that may pass is in the way.
    Degraded(Blocker),
    /// It does not work, and will not by itself.
    Refused(Blocker),
}

/// A token of our own. Without times: it is about to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// How it comes.
    pub method: AccessMethod,
    /// Whose it is in coderd.
    pub user_id: Option<String>,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// When it is replaced.
    pub renew_after: Option<Timestamp>,
    /// A token that came another way and is still to be given back.
    pub replaces: Option<MintedToken>,
}

/// A token that there may be in coderd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MintedToken {
    /// How it came.
    pub method: AccessMethod,
    /// Whose it is in coderd.
    pub user_id: Option<String>,
}

/// What became of a token that is to be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// It is gone, or was never there.
    Done,
    /// It may still be there.
    Failing(Blocker),
    /// It may still be there, and the operator no longer tries.
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

/// The token of our own that there may be, by the record.
pub fn minted_token(object: &CoderControlPlane) -> Option<MintedToken> {
    let status = object.status.as_ref()?;
    if let Some(OperatorTokenStatus { method, user_id, .. }) = &status.operator_token {
        return Some(MintedToken { method: *method, user_id: user_id.clone() });
    }
    // The existing operator records the Secret alone, and knows one way.
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

/// Whether a token may be made: whoever comes later will know of it and clean it up.
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

/// Whether the object must not go before coderd was cleaned up.
pub fn needs_cleaning(object: &CoderControlPlane, report: &CoderdReport) -> bool {
    let over = report.revocation.as_ref().is_some_and(Revocation::is_over);
    let one_is_wanted = !object.spec.operator_access.disabled && object.metadata.deletion_timestamp.is_none();
    let any = minted_token(object).is_some() || report.grant.is_some();
    any && (!over || (one_is_wanted && report.grant.is_some()))
}

/// Whether the access is given up and nothing is left of it, by what the status says.
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

/// Whether there is any way to a token, by the spec.
pub fn has_token_source(object: &CoderControlPlane) -> bool {
    let method = object.spec.operator_access.method;
    method != AccessMethod::Postgres || database::may_be_configured(&object.spec.pod)
}

/// Whether no token of our own can ever have been made.
fn no_token_possible(object: &CoderControlPlane) -> bool {
    object.spec.operator_access.method != AccessMethod::Postgres || !has_token_source(object)
}

/// The name of the Secret for a token of our own.
pub fn secret_name(object: &CoderControlPlane) -> String {
    let given = object.spec.operator_access.generated_token_secret_name.as_ref();
    given.map_or_else(|| names::token_secret(&object.name_any()), ToString::to_string)
}

/// Puts what is known of the access into a status.
pub fn set_conditions(
    object: &CoderControlPlane,
    report: &CoderdReport,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    let mut say = |state: bool, reason: Reason, message: &str| {
        conditions.set(kind::OPERATOR_ACCESS_READY, state, reason, message);
    };
    if object.spec.operator_access.disabled {
        status.operator_access_ready = None;
        match &report.revocation {
            Some(Revocation::Failing(Blocker { reason, message, .. })) => {
                say(false, *reason, &format!("the operator's token is still to be revoked: {message}"));
            }
            None if !is_revoked(object) => {
                say(false, Reason::Revoking, "the operator's token is being revoked");
            }
            None | Some(Revocation::Done | Revocation::Abandoned) => {
                (status.operator_token, status.operator_token_secret_ref) = (None, None);
                say(false, Reason::Disabled, "operatorAccess.disabled is set");
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
        None if worked && !is_said(status, kind::OPERATOR_ACCESS_READY) => {
            say(true, Reason::Kept, "the access of an earlier release is used; it is verified soon");
        }
        // What an earlier process found out about this very spec holds until something else is found out.
        None if worked || is_said_of(status, object.metadata.generation) => {}
        None => {
            let (reason, message) = awaited(object);
            say(false, reason, message);
        }
        Some(Access::Ready) => {
            say(true, Reason::TokenAccepted, "coderd accepts the operator's token");
            status.operator_access_ready = Some(true);
        }
        Some(Access::Overdue(Blocker { message, .. })) => {
            let message =
                format!("coderd accepts the operator's token, which could not be replaced: {message}");
            say(true, Reason::RenewalFails, &message);
            status.operator_access_ready = Some(true);
        }
        Some(Access::Degraded(blocker)) => say(false, blocker.reason, &blocker.message),
        Some(Access::Refused(blocker)) => {
            say(false, blocker.reason, &blocker.message);
            status.operator_access_ready = None;
        }
    }
}

/// Whether the access of this generation was spoken of.
fn is_said_of(status: &CoderControlPlaneStatus, generation: Option<i64>) -> bool {
    let said = status.workload.conditions.iter().find(|c| c.type_ == kind::OPERATOR_ACCESS_READY);
    said.is_some_and(|c| c.observed_generation == generation && Reason::of(c) != Some(Reason::Pending))
}

/// What the access waits for.
fn awaited(object: &CoderControlPlane) -> (Reason, &'static str) {
    if has_token_source(object) {
        (Reason::Pending, "a pod of coderd must be ready first")
    } else {
        (Reason::DatabaseUrlMissing, database::HOW_TO_CONFIGURE)
    }
}

/// What is shown of a token.
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
