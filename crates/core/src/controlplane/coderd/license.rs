//! Decides what to do about the license of the Secret: send it, recognise it, remove the one that it replaces.
//!
//! It is *this* license that counts, not any: coderd's list shows which one it holds. The operator sends a license only
//! when the list does not show it, and sends a value that a server has rejected no second time to that server. A replaced
//! license of ours is removed only when the spec asks for it, and only once the list shows its successor.

use coder_k8s_api::Reason;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{Access, Installed, License};
use crate::{
    outcome::{Blocker, Retry},
    steps::Step,
};

/// What is known of the license. The options are filled in as [`decide`] asks for them.
#[derive(Clone, Debug)]
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
    pub sent: Option<Result<Installed, Blocker>>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LicenseList {
    /// The license of the Secret, if the list shows it.
    pub ours: Option<Installed>,
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
    /// The value and server version that did not go together, as [`rejection_mark`] writes them.
    pub refused: Option<String>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LicenseReport {
    /// The new verdict. None: no license is asked for, or the earlier verdict stands (see `keeps`).
    pub license: Option<License>,
    /// Whether the earlier verdict about the license stands.
    pub keeps: bool,
    /// The access, if a failed call shows that the token does not work. None: unchanged.
    pub access: Option<Access>,
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
            let retry = Some(blocker.retry).filter(|retry| *retry != Retry::OnChange);
            return Step::Done(LicenseReport { retry, ..verdict(License::Blocker(blocker.clone())) });
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
            // Somebody else sent it at the same moment: the list shows it by now.
            match &list.ours {
                None => return Step::Done(applied(text, None, Some(now))),
                Some(ours) => (Some(ours), Some(now)),
            }
        }
        Some(Err(blocker)) => return Step::Done(observed.failed(text, blocker)),
        None => (list.ours.as_ref(), None),
    };
    if let Some(ours) = ours {
        return match (observed.replaced_by(ours, list), &observed.removed) {
            (None, _) | (Some(_), Some(Ok(()))) => Step::Done(applied(text, Some(ours.clone()), accepted)),
            (Some(old), None) => Step::Act(LicenseEffect::Remove(old)),
            (Some(old), Some(Err(blocker))) => {
                let pending = Installed { replaces: Some(old.uuid), ..ours.clone() };
                let retry = Some(blocker.retry).filter(|retry| *retry != Retry::OnChange);
                Step::Done(LicenseReport {
                    retry: retry.or(Some(Retry::Backoff)),
                    ..applied(text, Some(pending), accepted)
                })
            }
        };
    }
    // A text whose claims cannot be read is not recognised in any list. What was recorded is trusted while coderd holds
    // any license at all.
    let is_recorded = observed.record.hash.as_deref() == Some(&text.hash);
    if !text.is_recognisable && is_recorded && !list.all.is_empty() {
        return Step::Done(applied(text, None, None));
    }
    let mark = rejection_mark(&text.hash, &observed.server_version);
    if observed.record.refused.as_ref() == Some(&mark) {
        return Step::Done(LicenseReport { keeps: true, ..LicenseReport::default() });
    }
    Step::Act(LicenseEffect::Send)
}

impl ObservedLicense {
    /// The license of ours that `ours` replaces and that the spec wants removed.
    fn replaced_by(&self, ours: &Installed, list: &LicenseList) -> Option<InstalledLicense> {
        let uuid = self.record.uuid.as_ref().filter(|uuid| **uuid != ours.uuid && !uuid.is_empty())?;
        let old = list.all.iter().find(|license| license.uuid == *uuid)?;
        self.remove_replaced.then(|| old.clone())
    }

    /// A call failed. A license that was applied stays applied while the failure may pass: then the failure is the token's.
    fn failed(&self, text: &LicenseText, blocker: &Blocker) -> LicenseReport {
        let is_same = self.was_applied && self.record.hash.as_ref() == Some(&text.hash);
        let retry = Some(blocker.retry).filter(|retry| *retry != Retry::OnChange);
        let kept =
            |access: Access| LicenseReport { keeps: true, access: Some(access), ..LicenseReport::default() };
        match blocker.reason {
            Reason::InvalidLicense | Reason::NotSupported => {
                let mark = rejection_mark(&text.hash, &self.server_version);
                verdict(License::Refused { blocker: blocker.clone(), mark })
            }
            Reason::Unauthenticated if is_same => kept(Access::Refused(blocker.clone())),
            Reason::Unauthenticated => LicenseReport {
                access: Some(Access::Refused(blocker.clone())),
                ..verdict(License::Blocker(blocker.clone()))
            },
            Reason::Forbidden | Reason::Redirected if is_same => kept(Access::unreachable(blocker)),
            Reason::Forbidden | Reason::Redirected => verdict(License::Blocker(blocker.clone())),
            _ if is_same => LicenseReport {
                retry: retry.or(Some(Retry::Backoff)),
                ..kept(Access::Degraded(blocker.clone()))
            },
            _ => LicenseReport {
                retry: retry.or(Some(Retry::Backoff)),
                ..verdict(License::Blocker(blocker.clone()))
            },
        }
    }
}

fn verdict(license: License) -> LicenseReport {
    LicenseReport { license: Some(license), ..LicenseReport::default() }
}

fn applied(text: &LicenseText, installed: Option<Installed>, accepted: Option<Timestamp>) -> LicenseReport {
    verdict(License::Applied { hash: text.hash.clone(), accepted, installed })
}

/// SHA-256 of a license without surrounding blanks, as status records it.
pub fn hash(license: &str) -> String {
    Sha256::digest(license.trim()).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Names a value and a server version, to remember that they do not go together.
pub fn rejection_mark(hash: &str, version: &str) -> String {
    format!("{hash}@{version}")
}

#[cfg(test)]
mod tests;
