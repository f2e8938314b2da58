//! Decides what to do about the license of the Secret: send it, recognise it, remove the one that it replaces.
//!
//! It is *this* license that counts, not any: coderd's list shows which one it holds. The operator sends a license only
//! when the list does not show it, and does not send a value again that coderd has rejected, until the value or the version of
//! coderd changes. A replaced license of ours is removed only when the spec asks for it, and only once the list shows its successor.

use coder_k8s_api::{
    CoderControlPlane, CoderControlPlaneStatus, LicenseStatus, Reason, condition::condition_type,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sha2::{Digest, Sha256};

use super::{Basis, CoderdReport, PresentInputs, Step, access::AccessVerdict, condition};
use crate::{
    condition::{ConditionStatus, Conditions, Progress, Verdict, whole_seconds},
    outcome::{Blocker, Retry},
    verified::{self, Recorded},
};

/// The license that the spec asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum LicenseVerdict {
    /// coderd holds it.
    Applied {
        /// SHA-256 of it.
        hash: String,
        /// When coderd accepted it from the operator. None: coderd held it already.
        accepted: Option<Timestamp>,
        /// When it was uploaded, by whomever.
        uploaded: Option<Timestamp>,
        /// What coderd lists of it, as the status shows it. `replaces` names a license that is still to be removed.
        installed: Option<LicenseStatus>,
    },
    /// Not applied, for a reason that may pass.
    Blocker(Blocker),
    /// coderd does not take it, and will not until it, or the server, is another one.
    Refused {
        /// Why.
        blocker: Blocker,
        /// Which value on which server was refused.
        rejection_id: String,
    },
}

impl LicenseVerdict {
    /// The same verdict, with the time at which an earlier exchange had the same license accepted.
    #[must_use]
    pub fn keeping_time_of(self, before: Option<&Self>) -> Self {
        match (self, before) {
            (
                Self::Applied { hash, accepted: None, uploaded, installed },
                Some(Self::Applied { hash: earlier, accepted, .. }),
            ) if hash == *earlier => Self::Applied { hash, accepted: *accepted, uploaded, installed },
            (license, _) => license,
        }
    }
}

/// The Secret with the license, and the key in it. None: the spec names none.
pub fn secret_key(object: &CoderControlPlane) -> Option<(&str, &str)> {
    let reference = object.spec.license_secret_ref.as_ref()?;
    Some((reference.name.as_str(), reference.key.as_ref().map_or("license", AsRef::as_ref)))
}

/// Whether the license of the spec is applied, by the last exchange or else by the status. True if the spec names none.
pub fn is_applied(report: &CoderdReport, object: &CoderControlPlane, present: &PresentInputs) -> bool {
    if object.spec.license_secret_ref.is_none() {
        return true;
    }
    let (about, present) = (report.license_inputs.as_ref(), present.license.as_ref());
    let is_about_present = about.is_none() || present.is_none() || about == present;
    match report.license.as_ref().filter(|_| is_about_present) {
        Some(LicenseVerdict::Applied { .. }) => true,
        Some(LicenseVerdict::Blocker(_) | LicenseVerdict::Refused { .. }) => false,
        None => object.status.as_ref().is_some_and(|status| {
            let condition =
                status.workload.conditions.iter().find(|c| c.type_ == condition_type::LICENSE_APPLIED);
            let is_other = present.is_some_and(|inputs| {
                verified::recorded(&status.verified, condition_type::LICENSE_APPLIED, inputs)
                    == Recorded::Other
            });
            !is_other && condition.is_some_and(|c| c.status == "True")
        }),
    }
}

/// Whether an exchange between two verifications tries to apply the license. A license that coderd rejected waits for a
/// change.
pub fn is_outstanding(report: &CoderdReport, object: &CoderControlPlane, present: &PresentInputs) -> bool {
    !is_applied(report, object, present) && !matches!(report.license, Some(LicenseVerdict::Refused { .. }))
}

/// What is known of the license. The options are filled in as [`decide`] asks for them.
#[derive(Clone, Debug, Default)]
pub struct ObservedLicense {
    /// The version of the server that would reject or accept it.
    pub server_version: String,
    /// `license.removeReplaced`.
    pub remove_replaced: bool,
    /// Whether the license of the spec was last known to be applied.
    pub was_applied: bool,
    /// What earlier exchanges recorded.
    pub record: LicenseRecord,
    /// The license of the Secret. None inside: the spec names no Secret.
    pub secret: Option<Result<Option<LicenseText>, Blocker>>,
    /// The licenses that coderd holds.
    pub list: Option<Result<LicenseList, Blocker>>,
    /// The outcome of [`LicenseEffect::Send`].
    pub sent: Option<Result<LicenseStatus, Blocker>>,
    /// The outcome of [`LicenseEffect::Remove`].
    pub removed: Option<Result<(), Blocker>>,
}

/// What is known of a license text without showing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LicenseText {
    /// SHA-256 of the text, as status records it.
    pub hash: String,
    /// Whether its claims can be read, so that it can be recognised in coderd's list.
    pub is_recognisable: bool,
}

/// coderd's list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LicenseList {
    /// The license of the Secret, if the list shows it.
    pub ours: Option<LicenseStatus>,
    /// When that one was uploaded.
    pub uploaded_at: Option<Timestamp>,
    /// UUIDs and numbers of all licenses.
    pub all: Vec<InstalledLicense>,
}

/// A license in coderd's list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InstalledLicense {
    /// coderd's number for it, by which it is deleted.
    pub id: i64,
    /// Its UUID.
    pub uuid: String,
}

/// What earlier exchanges recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LicenseRecord {
    /// SHA-256 of the value that was applied last.
    pub hash: Option<String>,
    /// UUID of the license that was ours last.
    pub uuid: Option<String>,
    /// The value and server version that did not go together, as [`rejection_id`] writes them.
    pub refused: Option<String>,
}

impl LicenseRecord {
    /// What earlier exchanges left: in this process, else on the status.
    pub fn of(report: &CoderdReport, object: &CoderControlPlane) -> Self {
        let status = object.status.as_ref();
        let on_status = status.and_then(|status| status.license.as_ref());
        let recorded = Self {
            hash: status.and_then(|status| status.license_last_applied_hash.clone()),
            uuid: on_status.and_then(|license| license.replaces.clone().or_else(|| license.uuid.clone())),
            refused: on_status.and_then(|license| license.refused.clone()),
        };
        match &report.license {
            Some(LicenseVerdict::Applied { hash, installed, .. }) => Self {
                hash: Some(hash.clone()),
                uuid: match installed {
                    Some(installed) => installed.replaces.clone().or_else(|| installed.uuid.clone()),
                    None => recorded.uuid,
                },
                refused: None,
            },
            Some(LicenseVerdict::Refused { rejection_id, .. }) => {
                Self { refused: Some(rejection_id.clone()), ..recorded }
            }
            Some(LicenseVerdict::Blocker(_)) | None => recorded,
        }
    }
}

/// What [`decide`] needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LicenseQuery {
    /// Read the Secret.
    Secret,
    /// List the licenses that coderd holds.
    List,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LicenseEffect {
    /// Send the license of the Secret to coderd.
    Send,
    /// Remove a license whose successor the list shows.
    Remove(InstalledLicense),
}

/// The result of one exchange about the license.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LicenseReport {
    /// The new verdict. None: no license is asked for, or the earlier verdict stands (see `keeps`).
    pub license: Option<LicenseVerdict>,
    /// Whether the earlier verdict about the license stands.
    pub keeps: bool,
    /// The access, if a failed call shows that the token does not work. None: unchanged.
    pub access: Option<AccessVerdict>,
    /// When to try again. None: at the next interval, or when something changes.
    pub retry: Option<Retry>,
}

/// The next step.
pub type LicenseStep = Step<LicenseQuery, LicenseEffect, LicenseReport>;

/// Decides the next step.
pub fn decide(observed: &ObservedLicense, now: Timestamp) -> LicenseStep {
    let text = match &observed.secret {
        None => return Step::Ask(LicenseQuery::Secret),
        Some(Ok(None)) => return Step::Done(LicenseReport::default()),
        Some(Err(blocker)) => {
            let retry = blocker.timed_retry();
            return Step::Done(LicenseReport { retry, ..verdict(LicenseVerdict::Blocker(blocker.clone())) });
        }
        Some(Ok(Some(text))) => text,
    };
    let list = match &observed.list {
        None => return Step::Ask(LicenseQuery::List),
        Some(Err(blocker)) => return Step::Done(observed.failed(text, blocker)),
        Some(Ok(list)) => list,
    };
    let (ours, accepted) = match &observed.sent {
        Some(Ok(installed)) => (Some(installed), Some(now)),
        Some(Err(blocker)) if blocker.reason == Reason::Duplicate => {
            // Somebody else sent it at the same moment: the list shows it by now, if it can be recognised there.
            match &list.ours {
                None if text.is_recognisable => {
                    let message = format!(
                        "waiting for coderd to list the license that it says it has already: {}",
                        blocker.message
                    );
                    let unlisted = Blocker { message, ..blocker.clone() };
                    return Step::Done(observed.failed(text, &unlisted));
                }
                None => return Step::Done(applied(text, None, Some(now), None)),
                Some(ours) => (Some(ours), Some(now)),
            }
        }
        Some(Err(blocker)) => return Step::Done(observed.failed(text, blocker)),
        None => (list.ours.as_ref(), None),
    };
    if let Some(ours) = ours {
        return match (observed.replaced_by(ours, list), &observed.removed) {
            (None, _) | (Some(_), Some(Ok(()))) => {
                Step::Done(applied(text, Some(ours.clone()), accepted, list.uploaded_at))
            }
            (Some(old), None) => Step::Act(LicenseEffect::Remove(old)),
            (Some(old), Some(Err(blocker))) => {
                let with_replaced = LicenseStatus { replaces: Some(old.uuid), ..ours.clone() };
                let retry = blocker.timed_retry().or(Some(Retry::Backoff));
                Step::Done(LicenseReport {
                    retry,
                    ..applied(text, Some(with_replaced), accepted, list.uploaded_at)
                })
            }
        };
    }
    // A text whose claims cannot be read is not recognised in any list. What was recorded is trusted while coderd holds
    // any license at all.
    let is_recorded = observed.record.hash.as_deref() == Some(&text.hash);
    if !text.is_recognisable && is_recorded && !list.all.is_empty() {
        return Step::Done(applied(text, None, None, None));
    }
    let rejection_id = rejection_id(&text.hash, &observed.server_version);
    if observed.record.refused.as_ref() == Some(&rejection_id) {
        return Step::Done(LicenseReport { keeps: true, ..LicenseReport::default() });
    }
    Step::Act(LicenseEffect::Send)
}

impl ObservedLicense {
    /// The license of ours that `ours` replaces and that the spec wants removed.
    fn replaced_by(&self, ours: &LicenseStatus, list: &LicenseList) -> Option<InstalledLicense> {
        let recorded = self.record.uuid.as_ref().filter(|uuid| !uuid.is_empty());
        let uuid = recorded.filter(|uuid| ours.uuid.as_ref() != Some(*uuid))?;
        let old = list.all.iter().find(|license| license.uuid == *uuid)?;
        self.remove_replaced.then(|| old.clone())
    }

    /// A call failed. A license that was applied stays applied while the failure may pass: then the failure is the token's.
    fn failed(&self, text: &LicenseText, blocker: &Blocker) -> LicenseReport {
        let is_same = self.was_applied && self.record.hash.as_ref() == Some(&text.hash);
        let (access, retry) = match blocker.reason {
            Reason::InvalidLicense | Reason::NotSupported => {
                let rejection_id = match blocker.reason {
                    // The AGPL build has no licenses and reports the same version as the enterprise build, which would take
                    // the license: this stops nothing, it only says what was refused.
                    Reason::NotSupported => {
                        format!("{}+agpl", rejection_id(&text.hash, &self.server_version))
                    }
                    _ => rejection_id(&text.hash, &self.server_version),
                };
                return verdict(LicenseVerdict::Refused { blocker: blocker.clone(), rejection_id });
            }
            Reason::Unauthenticated => (AccessVerdict::Refused(blocker.clone()), None),
            Reason::Forbidden | Reason::Redirected => (AccessVerdict::unreachable(blocker), None),
            _ => (AccessVerdict::Degraded(blocker.clone()), blocker.timed_retry().or(Some(Retry::Backoff))),
        };
        LicenseReport {
            license: (!is_same).then(|| LicenseVerdict::Blocker(blocker.clone())),
            keeps: is_same,
            access: (is_same || blocker.reason == Reason::Unauthenticated).then_some(access),
            retry,
        }
    }
}

fn verdict(license: LicenseVerdict) -> LicenseReport {
    LicenseReport { license: Some(license), ..LicenseReport::default() }
}

fn applied(
    text: &LicenseText,
    installed: Option<LicenseStatus>,
    accepted: Option<Timestamp>,
    uploaded: Option<Timestamp>,
) -> LicenseReport {
    verdict(LicenseVerdict::Applied { hash: text.hash.clone(), accepted, uploaded, installed })
}

/// How many days before its end a license is first warned about, and again.
const WARN_DAYS: [(i64, Reason); 3] =
    [(1, Reason::ExpiresIn1Day), (7, Reason::ExpiresIn7Days), (30, Reason::ExpiresIn30Days)];

/// Sets the condition `LicenseApplied`, and what the status shows of the license. Keeps both while there is no report.
pub(super) fn set_applied(
    object: &CoderControlPlane,
    report: &CoderdReport,
    present: Option<&String>,
    conditions: &mut Conditions<'_>,
    status: &mut CoderControlPlaneStatus,
) {
    use ConditionStatus::{False, True, Unknown};
    const HELD: &str = "coderd holds the license of the Secret";
    let (verdict, about) = (report.license.as_ref(), report.license_inputs.as_ref());
    let basis = Basis::of(verdict.is_some(), about, present, status, condition_type::LICENSE_APPLIED);
    let (state, reason, message) = match verdict.filter(|_| basis == Basis::Verdict) {
        _ if object.spec.license_secret_ref.is_none() => {
            (Unknown, Reason::Pending, "spec.licenseSecretRef is not set")
        }
        None if basis == Basis::Record => (True, Reason::Applied, HELD),
        None if basis == Basis::Unverified && object.spec.operator_access.disabled => {
            let message = "the license of the present spec and Secret cannot be verified while operatorAccess.disabled is set";
            (False, Reason::Pending, message)
        }
        None if basis == Basis::Unverified => (
            False,
            Reason::Pending,
            "waiting for coderd to verify the license of the present spec and Secret",
        ),
        // Keeps the condition of an earlier process, unless it is from before the spec named a license.
        None if condition(status, condition_type::LICENSE_APPLIED).is_some_and(|c| c.status != "Unknown") => {
            return;
        }
        None => {
            let message = "waiting for operator access to coderd (condition OperatorAccessReady)";
            (False, Reason::Pending, message)
        }
        Some(LicenseVerdict::Blocker(blocker)) => {
            forget(status, about);
            (False, blocker.reason, blocker.message.as_str())
        }
        Some(LicenseVerdict::Refused { blocker, rejection_id }) => {
            forget(status, about);
            status.license.get_or_insert_default().refused = Some(rejection_id.clone());
            (False, blocker.reason, blocker.message.as_str())
        }
        Some(LicenseVerdict::Applied { hash, accepted, uploaded, installed }) => {
            // The time is that of this license: another one's would be wrong after A, B and A again.
            let is_another = status.license_last_applied_hash.as_ref() != Some(hash);
            if is_another || status.license_last_applied.is_none() || accepted.is_some() {
                status.license_last_applied = accepted.or(*uploaded).map(|at| Time(whole_seconds(at)));
            }
            if let Some(inputs) = present {
                verified::record(&mut status.verified, condition_type::LICENSE_APPLIED, inputs);
            }
            status.license_last_applied_hash = Some(hash.clone());
            match installed {
                Some(installed) => status.license = Some(installed.clone()),
                // What the list did not show says nothing against what is known.
                None => status.license.iter_mut().for_each(|license| license.refused = None),
            }
            (True, Reason::Applied, HELD)
        }
    };
    conditions.set(condition_type::LICENSE_APPLIED, state, reason, message);
}

/// Drops the record after a negative verdict about exactly these inputs: they are no longer known to be applied.
fn forget(status: &mut CoderControlPlaneStatus, about: Option<&String>) {
    if about.is_some() {
        status.verified.retain(|verified| verified.type_ != condition_type::LICENSE_APPLIED);
    }
}

/// Days left, and a warning when they are few.
pub(super) fn set_expiring(
    conditions: &mut Conditions<'_>,
    license: Option<&mut LicenseStatus>,
    now: Timestamp,
) {
    conditions.clear(condition_type::LICENSE_EXPIRING);
    let Some(license) = license else { return };
    license.days_left = None;
    let Some(expires) = license.expires.as_ref().map(|time| time.0) else { return };
    let left = expires.duration_since(now);
    let days = left.as_hours().div_euclid(24);
    license.days_left = Some(days);
    let date = expires.strftime("%Y-%m-%d");
    let (is_expiring, reason, message) = if left.is_negative() {
        let message = format!(
            "the license expired on {date}, and coderd may still be in its grace period: apply a new one"
        );
        (true, Reason::Expired, message)
    } else {
        let due = WARN_DAYS.iter().find(|(limit, _)| days < *limit);
        let reason = due.map_or(Reason::Valid, |(_, reason)| *reason);
        let advice = if due.is_some() { ": renew it" } else { "" };
        (due.is_some(), reason, format!("the license expires on {date}{advice}"))
    };
    conditions.set(condition_type::LICENSE_EXPIRING, is_expiring, reason, message);
}

/// Why a license that is asked for stands in the way of readiness. None: it does not.
pub(in crate::controlplane) fn unready(
    object: &CoderControlPlane,
    said: Option<&Condition>,
) -> Option<Verdict> {
    object.spec.license_secret_ref.as_ref()?;
    let stalled = [
        Reason::InvalidLicense,
        Reason::NotSupported,
        Reason::Unauthenticated,
        Reason::Forbidden,
        Reason::Redirected,
        Reason::AddressNotAllowed,
        Reason::NotALicense,
    ];
    let (progress, reason, message) = match said {
        None => (Progress::Working, Reason::Pending, "waiting for the license to be applied".to_owned()),
        Some(said) if said.status == "True" => return None,
        Some(said) => {
            let message = format!("the license is not applied: {}", said.message);
            match Reason::of(said).filter(|reason| stalled.contains(reason)) {
                Some(_) => (Progress::Stalled, Reason::LicenseRefused, message),
                None => (Progress::Working, Reason::Pending, message),
            }
        }
    };
    Some(Verdict { ready: false, progress, reason, message })
}

/// SHA-256 of a license without surrounding blanks, as status records it.
pub fn hash(license: &str) -> String {
    Sha256::digest(license.trim()).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Names a value and a server version, to remember that they do not go together.
pub fn rejection_id(hash: &str, version: &str) -> String {
    format!("{hash}@{version}")
}

#[cfg(test)]
mod tests;
