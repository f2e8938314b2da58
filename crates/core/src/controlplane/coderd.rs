//! Status of a control plane that comes from coderd: operator access, license and entitlements.
//!
//! An exchange with coderd leaves a [`CoderdReport`], which a reconcile puts on the status with [`set_conditions`]. What the
//! report leaves out keeps its condition: neither a restart nor an outage withdraws anything that works. A verdict counts
//! only for the inputs that it is about ([`PresentInputs`]): a condition never speaks of a spec or a Secret that was not
//! verified.

pub mod access;
pub mod license;
pub mod operator_token;
pub mod revocation;

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderControlPlaneStatus, CredentialBinding, EntitlementsStatus,
    OperatorAccess, OperatorTokenStatus, Reason, ReportedSecretRef, SecretKeyRef, condition::condition_type,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use self::{
    access::{AccessVerdict, Revocation, TransportWarning},
    license::LicenseVerdict,
};
use crate::{
    condition::{Conditions, whole_seconds},
    license_gate::{Feature, FeatureState, Tier},
    outcome::ForeignObject,
    verified::{self, Recorded},
};

/// The next step of a decision about coderd, which needs the outside world: ask something, do something, or be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<Q, E, D> {
    /// Answer this and decide again.
    Ask(Q),
    /// Perform this, note the outcome and decide again.
    Act(E),
    /// Nothing more to ask or do in this exchange.
    Done(D),
}

/// What exchanges with coderd brought so far in this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoderdReport {
    /// Version and identity that the server reports.
    pub server: Option<ReportedServer>,
    /// The deployment that accepted the operator's token.
    pub accepted_by: Option<String>,
    /// The operator's access.
    pub access: Option<AccessVerdict>,
    /// The inputs that `access` is about. None: any, as of a server that does not answer.
    pub access_inputs: Option<String>,
    /// What an attacker on the network could do.
    pub warnings: Vec<TransportWarning>,
    /// The deployments that accepted tokens, as the status records them.
    pub bindings: Vec<CredentialBinding>,
    /// Where the operator's token is.
    pub token: Option<ReportedSecretRef>,
    /// The token that the operator has made, or is about to make.
    pub token_record: Option<OperatorTokenStatus>,
    /// The progress of a revocation.
    pub revocation: Option<Revocation>,
    /// A Secret that the operator does not own and that has the name of the token's Secret.
    pub foreign: Option<ForeignObject>,
    /// The license that the spec asks for.
    pub license: Option<LicenseVerdict>,
    /// The inputs that `license` is about. None: any.
    pub license_inputs: Option<String>,
    /// What the license allows.
    pub entitlements: Option<Entitlements>,
}

/// What the conditions about coderd depend on now: fingerprints of spec fields and Secret contents. None: a Secret could not
/// be read, so that nothing is known to have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresentInputs {
    /// Those of `OperatorAccessReady`.
    pub access: Option<String>,
    /// Those of `LicenseApplied`.
    pub license: Option<String>,
}

/// How a condition follows from the verdict of an exchange, the present inputs and the record on status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// The verdict is about the present inputs.
    Verdict,
    /// The present inputs are those that the condition was last verified for.
    Record,
    /// Nothing is recorded, or the inputs are not known: the condition stays until an exchange says otherwise.
    Unrecorded,
    /// Nobody has verified the present inputs.
    Unverified,
}

impl Basis {
    fn of(
        has_verdict: bool,
        about: Option<&String>,
        present: Option<&String>,
        status: &CoderControlPlaneStatus,
        condition: &str,
    ) -> Self {
        let is_about_present = about.is_none() || present.is_none() || about == present;
        let recorded = present
            .map_or(Recorded::Nothing, |present| verified::recorded(&status.verified, condition, present));
        match recorded {
            // An outage says nothing about the token (`about` is None): what was verified for the present inputs stays
            // valid.
            Recorded::Same if about.is_none() || !is_about_present => Self::Record,
            _ if has_verdict && is_about_present => Self::Verdict,
            Recorded::Same => Self::Record,
            Recorded::Nothing => Self::Unrecorded,
            Recorded::Other => Self::Unverified,
        }
    }
}

/// The inputs of `OperatorAccessReady`. `content` is the digest of the token that a person supplies; a token that the operator
/// creates is its own doing and no input.
pub fn access_inputs(object: &CoderControlPlane, content: &str) -> String {
    let OperatorAccess { method, token_secret_ref, api_url, ca_secret_ref, .. } =
        &object.spec.operator_access;
    let supplied = token_secret_ref.as_ref().filter(|_| *method == AccessMethod::TokenSecret);
    let part = |part: Option<String>| part.unwrap_or_default();
    inputs(
        object,
        &[
            condition_type::OPERATOR_ACCESS_READY,
            &format!("{method:?}"),
            &part(supplied.map(shown)),
            &part(api_url.as_ref().map(ToString::to_string)),
            &part(ca_secret_ref.as_ref().map(shown)),
            content,
        ],
    )
}

/// The inputs of `LicenseApplied`. `content` is the digest of the license.
pub fn license_inputs(object: &CoderControlPlane, content: &str) -> String {
    let reference = object.spec.license_secret_ref.as_ref().map(shown).unwrap_or_default();
    let address = object.spec.operator_access.api_url.as_ref().map(ToString::to_string).unwrap_or_default();
    inputs(object, &[condition_type::LICENSE_APPLIED, &reference, &address, content])
}

fn inputs(object: &CoderControlPlane, parts: &[&str]) -> String {
    verified::fingerprint(object.metadata.uid.as_deref().unwrap_or_default(), parts)
}

fn shown(reference: &SecretKeyRef) -> String {
    format!("{}/{}", reference.name, reference.key.as_ref().map(ToString::to_string).unwrap_or_default())
}

/// Version and identity of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedServer {
    /// Its version.
    pub version: String,
    /// Its identity.
    pub deployment_id: String,
}

/// What the license allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entitlements {
    /// When it was asked.
    pub checked: Timestamp,
    /// The tier.
    pub tier: Tier,
    /// Whether the license covers external provisioners.
    pub external_provisioners: FeatureState,
    /// More of it. None: a server without licenses.
    pub details: Option<EntitlementsStatus>,
}

/// What the answer of coderd amounts to, with all of its features. `None` is the answer of a server without licensed
/// features: its time does not move, so that nothing is written while nothing changes.
pub fn entitlements(
    answer: Option<EntitlementsStatus>,
    before: Option<&Entitlements>,
    asked_at: Timestamp,
) -> Entitlements {
    let Some(mut details) = answer else {
        return Entitlements {
            checked: before.map_or(asked_at, |before| before.checked),
            tier: Tier::None,
            external_provisioners: FeatureState::NotEntitled,
            details: None,
        };
    };
    let state =
        |name: &str| details.features.get(name).map_or(FeatureState::Unknown, |it| FeatureState::parse(it));
    let external_provisioners = state(Feature::Provisioners.name());
    // coderd lists every feature that it knows; the status shows those that are granted.
    details.features.retain(|_, state| FeatureState::parse(state).is_granted());
    let tier = Tier::of(&details);
    Entitlements { checked: asked_at, tier, external_provisioners, details: Some(details) }
}

/// Puts a report on the status and sets the conditions that follow from it.
pub fn set_conditions(
    object: &CoderControlPlane,
    report: &CoderdReport,
    present: &PresentInputs,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
    now: Timestamp,
) {
    if let Some(server) = &report.server {
        status.version = Some(server.version.clone());
    }
    // Pools and proxies send the operator token to the deployment of the status: it is the one that accepted the token.
    // Until one has, it is the first that answered: no token is bound elsewhere then.
    let first = report.server.as_ref().map(|server| &server.deployment_id);
    let first = first.filter(|_| status.deployment_id.is_none());
    if let Some(deployment) = report.accepted_by.as_ref().or(first) {
        status.deployment_id = Some(deployment.clone());
    }
    for binding in report.bindings.iter().rev() {
        verified::bind(&mut status.workload.credential_bindings, &binding.content, &binding.deployment_id);
    }
    access::set_conditions(object, report, present, conditions, status);
    license::set_applied(object, report, present.license.as_ref(), conditions, status);
    license::set_expiring(conditions, status.license.as_mut(), now);
    set_entitlements(object, report, conditions, status);
}

fn set_entitlements(
    object: &CoderControlPlane,
    report: &CoderdReport,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    for word in [&mut status.license_tier, &mut status.external_provisioner_daemons_entitlement] {
        if word.as_deref().is_none_or(str::is_empty) {
            *word = Some("unknown".to_owned());
        }
    }
    if let Some(Entitlements { checked, tier, external_provisioners, details }) = &report.entitlements {
        status.license_tier = Some(tier.as_str().to_owned());
        status.external_provisioner_daemons_entitlement = Some(external_provisioners.as_str().to_owned());
        status.entitlements_last_checked = Some(Time(whole_seconds(*checked)));
        status.entitlements.clone_from(details);
    }
    status.license_summary = Some(summary(status));
    let Some(known) = &status.entitlements else {
        conditions.clear(condition_type::ENTITLEMENTS_HEALTHY);
        return;
    };
    let (state, reason, message) = if !known.errors.is_empty() {
        (false, Reason::Errors, known.errors.join("; "))
    } else if object.spec.replicas > 1 && !known.features.contains_key("high_availability") {
        let message = "more than one replica needs a license for high availability: \
                       connections to workspaces break when they meet another replica";
        (false, Reason::HighAvailabilityNotEntitled, message.to_owned())
    } else if !known.warnings.is_empty() {
        (false, Reason::Warnings, known.warnings.join("; "))
    } else {
        (true, Reason::Healthy, "coderd reports no warnings or errors".to_owned())
    };
    conditions.set(condition_type::ENTITLEMENTS_HEALTHY, state, reason, message);
}

/// Tier of the license and days until it expires, as a column of `kubectl get` shows them.
fn summary(status: &CoderControlPlaneStatus) -> String {
    let tier = status.license_tier.clone().unwrap_or_default();
    match status.license.as_ref().and_then(|license| license.days_left) {
        None => tier,
        Some(days) if days < 0 => format!("{tier}, expired"),
        Some(days) => format!("{tier}, {days}d"),
    }
}

/// A condition of the status before this reconcile.
fn condition<'a>(status: &'a CoderControlPlaneStatus, type_: &str) -> Option<&'a Condition> {
    status.workload.conditions.iter().find(|c| c.type_ == type_)
}

#[cfg(test)]
mod tests;
