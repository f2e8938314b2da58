//! Status of a control plane that comes from coderd: operator access, license and entitlements.
//!
//! An exchange with coderd leaves a [`CoderdReport`], which a reconcile puts on the status with [`set_conditions`]. What the
//! report leaves out keeps its condition: neither a restart nor an outage withdraws anything that works.

pub mod access;
pub mod license;
pub mod operator_token;
pub mod revocation;

use std::collections::BTreeMap;

use coder_k8s_api::{
    CoderControlPlane, CoderControlPlaneStatus, EntitlementsStatus, LicenseStatus, Reason, ReportedSecretRef,
    condition::kind,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub use self::access::{Access, Grant, MintedToken, Revocation};
pub use crate::outcome::Blocker;
use crate::{
    condition::{ConditionStatus, Conditions, Progress, whole_seconds},
    entitlements::{FeatureState, Tier},
    license_gate::Feature,
    outcome::ForeignObject,
};

/// What exchanges with coderd brought so far in this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoderdReport {
    /// Version and identity that the server reports.
    pub server: Option<ReportedServer>,
    /// The operator's access.
    pub access: Option<Access>,
    /// Where the operator's token is.
    pub token: Option<ReportedSecretRef>,
    /// The token that the operator has made, or is about to make.
    pub grant: Option<Grant>,
    /// The progress of a revocation.
    pub revocation: Option<Revocation>,
    /// A Secret that the operator does not own and that has the name of the token's Secret.
    pub foreign: Option<ForeignObject>,
    /// The license that the spec asks for.
    pub license: Option<License>,
    /// What the license allows.
    pub entitlements: Option<Entitlements>,
}

/// Version and identity of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedServer {
    /// Its version.
    pub version: String,
    /// Its identity.
    pub deployment_id: String,
}

/// The license that the spec asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum License {
    /// coderd holds it.
    Applied {
        /// SHA-256 of it.
        hash: String,
        /// When coderd accepted it. None: coderd held it already.
        accepted: Option<Timestamp>,
        /// What coderd lists of it.
        installed: Option<Installed>,
    },
    /// Not applied, for a reason that may pass.
    Blocker(Blocker),
    /// coderd does not take it, and will not until it, or the server, is another one.
    Refused {
        /// Why.
        blocker: Blocker,
        /// Which value on which server was refused.
        mark: String,
    },
}

/// A license that coderd lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its number.
    pub id: i64,
    /// Its UUID.
    pub uuid: String,
    /// The account that it was issued to.
    pub account: String,
    /// Its tier.
    pub tier: Tier,
    /// When its term ends.
    pub expires: Option<Timestamp>,
    /// UUID of the license that it replaces and that is still to be removed.
    pub replaces: Option<String>,
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

/// What coderd answers when it is asked for its entitlements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntitlementsAnswer {
    /// Whether any license is installed.
    pub has_license: bool,
    /// Whether it is a trial.
    pub trial: bool,
    /// The state of each feature, by coderd's name for it.
    pub features: BTreeMap<String, FeatureState>,
    /// Warnings for administrators.
    pub warnings: Vec<String>,
    /// Errors for administrators.
    pub errors: Vec<String>,
}

/// What an answer amounts to. `None` is the answer of a server without licensed features: its time does not move, so that
/// nothing is written while nothing changes.
pub fn entitlements(
    answer: Option<EntitlementsAnswer>,
    before: Option<&Entitlements>,
    asked_at: Timestamp,
) -> Entitlements {
    let Some(EntitlementsAnswer { has_license, trial, features, warnings, errors }) = answer else {
        return Entitlements {
            checked: before.map_or(asked_at, |before| before.checked),
            tier: Tier::None,
            external_provisioners: FeatureState::NotEntitled,
            details: None,
        };
    };
    let tier = Tier::of(has_license, trial, &features);
    let external_provisioners =
        features.get(Feature::Provisioners.name()).copied().unwrap_or(FeatureState::Unknown);
    let granted = features.into_iter().filter(|(_, state)| state.is_granted());
    let features = granted.map(|(name, state)| (name, state.as_str().to_owned())).collect();
    let details = EntitlementsStatus { has_license, trial, features, warnings, errors };
    Entitlements { checked: asked_at, tier, external_provisioners, details: Some(details) }
}

impl License {
    /// The same verdict, with the time at which an earlier exchange had the same license accepted.
    #[must_use]
    pub fn keeping_time_of(self, before: Option<&Self>) -> Self {
        match (self, before) {
            (
                Self::Applied { hash, accepted: None, installed },
                Some(Self::Applied { hash: earlier, accepted, .. }),
            ) if hash == *earlier => Self::Applied { hash, accepted: *accepted, installed },
            (license, _) => license,
        }
    }
}

/// How many days before its end a license is first warned about, and again.
const WARN_DAYS: [(i64, Reason); 3] =
    [(1, Reason::ExpiresIn1Day), (7, Reason::ExpiresIn7Days), (30, Reason::ExpiresIn30Days)];

/// Puts a report on the status and sets the conditions that follow from it.
pub fn set_conditions(
    object: &CoderControlPlane,
    report: &CoderdReport,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
    now: Timestamp,
) {
    if let Some(server) = &report.server {
        status.version = Some(server.version.clone());
        status.deployment_id = Some(server.deployment_id.clone());
    }
    access::set_conditions(object, report, conditions, status);
    set_license_applied(object, report, conditions, status);
    set_license_expiring(conditions, status, now);
    set_entitlements(object, report, conditions, status);
}

fn set_license_applied(
    object: &CoderControlPlane,
    report: &CoderdReport,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    if object.spec.license_secret_ref.is_none() {
        conditions.set(
            kind::LICENSE_APPLIED,
            ConditionStatus::Unknown,
            Reason::Pending,
            "spec.licenseSecretRef is not set",
        );
        return;
    }
    let mut set = |state: bool, reason: Reason, message: &str| {
        conditions.set(kind::LICENSE_APPLIED, state, reason, message);
    };
    match &report.license {
        None if has_condition(status, kind::LICENSE_APPLIED) && is_about_a_license(status) => {}
        None => set(
            false,
            Reason::Pending,
            "waiting for operator access to coderd (condition OperatorAccessReady)",
        ),
        Some(License::Blocker(blocker)) => set(false, blocker.reason, &blocker.message),
        Some(License::Refused { blocker, mark }) => {
            set(false, blocker.reason, &blocker.message);
            let refused = status.license.get_or_insert_default();
            refused.refused = Some(mark.clone());
        }
        Some(License::Applied { hash, accepted, installed }) => {
            set(true, Reason::Applied, "coderd holds the license of the Secret");
            if let Some(at) = accepted {
                status.license_last_applied = Some(Time(whole_seconds(*at)));
            }
            status.license_last_applied_hash = Some(hash.clone());
            match installed {
                Some(installed) => status.license = Some(shown(installed)),
                // What the list did not show says nothing against what is known.
                None => status.license.iter_mut().for_each(|license| license.refused = None),
            }
        }
    }
}

/// The license as it is on status.
fn shown(installed: &Installed) -> LicenseStatus {
    LicenseStatus {
        id: Some(installed.id),
        uuid: Some(installed.uuid.clone()).filter(|uuid| !uuid.is_empty()),
        account: Some(installed.account.clone()).filter(|account| !account.is_empty()),
        tier: Some(installed.tier.as_str().to_owned()),
        expires: installed.expires.map(|at| Time(whole_seconds(at))),
        days_left: None,
        refused: None,
        replaces: installed.replaces.clone(),
    }
}

/// Days left, and a warning when they are few.
fn set_license_expiring(
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
    now: Timestamp,
) {
    let Some(license) = &mut status.license else {
        conditions.clear(kind::LICENSE_EXPIRING);
        return;
    };
    let Some(expires) = license.expires.as_ref().map(|time| time.0) else {
        license.days_left = None;
        conditions.clear(kind::LICENSE_EXPIRING);
        return;
    };
    let left = expires.duration_since(now);
    let days = left.as_hours().div_euclid(24);
    license.days_left = Some(days);
    let date = expires.strftime("%Y-%m-%d");
    if left < SignedDuration::ZERO {
        let message = format!("the license ended on {date}; coderd may still be in its grace period");
        conditions.set(kind::LICENSE_EXPIRING, true, Reason::Expired, message);
        return;
    }
    match WARN_DAYS.iter().find(|(limit, _)| days < *limit) {
        Some((_, reason)) => {
            conditions.set(kind::LICENSE_EXPIRING, true, *reason, format!("the license ends on {date}"));
        }
        None => conditions.set(
            kind::LICENSE_EXPIRING,
            false,
            Reason::Valid,
            format!("the license ends on {date}"),
        ),
    }
}

fn set_entitlements(
    object: &CoderControlPlane,
    report: &CoderdReport,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    let unknown = || Some("unknown".to_owned());
    if status.license_tier.as_deref().is_none_or(str::is_empty) {
        status.license_tier = unknown();
    }
    if status.external_provisioner_daemons_entitlement.as_deref().is_none_or(str::is_empty) {
        status.external_provisioner_daemons_entitlement = unknown();
    }
    if let Some(Entitlements { checked, tier, external_provisioners, details }) = &report.entitlements {
        status.license_tier = Some(tier.as_str().to_owned());
        status.external_provisioner_daemons_entitlement = Some(external_provisioners.as_str().to_owned());
        status.entitlements_last_checked = Some(Time(whole_seconds(*checked)));
        status.entitlements.clone_from(details);
    }
    let Some(known) = &status.entitlements else {
        conditions.clear(kind::ENTITLEMENTS_HEALTHY);
        return;
    };
    let (state, reason, message) = if let Some(error) = joined(&known.errors) {
        (false, Reason::Errors, error)
    } else if object.spec.replicas > 1 && !known.features.contains_key("high_availability") {
        let message = "more than one replica needs a license for high availability: \
                       connections to workspaces break when they meet another replica";
        (false, Reason::HighAvailabilityNotEntitled, message.to_owned())
    } else if let Some(warning) = joined(&known.warnings) {
        (false, Reason::Warnings, warning)
    } else {
        (true, Reason::Healthy, "coderd reports no warnings or errors".to_owned())
    };
    conditions.set(kind::ENTITLEMENTS_HEALTHY, state, reason, message);
}

/// Whether a license that is asked for stands in the way of readiness. None: it does not.
pub(super) fn license_verdict(
    object: &CoderControlPlane,
    said: Option<&Condition>,
) -> Option<(Progress, String)> {
    object.spec.license_secret_ref.as_ref()?;
    let Some(said) = said else {
        return Some((Progress::Working, "the license is not applied yet".to_owned()));
    };
    if said.status == "True" {
        return None;
    }
    let settled = [
        Reason::InvalidLicense,
        Reason::NotSupported,
        Reason::Unauthenticated,
        Reason::Forbidden,
        Reason::Redirected,
        Reason::NotALicense,
    ];
    let progress = if Reason::of(said).is_some_and(|reason| settled.contains(&reason)) {
        Progress::Stalled
    } else {
        Progress::Working
    };
    Some((progress, format!("the license is not applied: {}", said.message)))
}

fn joined(texts: &[String]) -> Option<String> {
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn has_condition(status: &CoderControlPlaneStatus, type_: &str) -> bool {
    status.workload.conditions.iter().any(|c| c.type_ == type_)
}

/// Whether the condition is about a license: without a reference in the spec it is `Unknown`.
fn is_about_a_license(status: &CoderControlPlaneStatus) -> bool {
    let said = status.workload.conditions.iter().find(|c| c.type_ == kind::LICENSE_APPLIED);
    said.is_some_and(|c| c.status != "Unknown")
}

#[cfg(test)]
mod tests;
