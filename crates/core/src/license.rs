//! What is to be done about the license: which one must be installed, and which may go.
//!
//! It is *this* license, not any: known by what coderd lists of it. It is sent only when the list does not show it, and
//! a value that a server has refused is not sent to it again. An earlier one of ours goes only when asked for, and
//! only once the list shows its successor.

use sha2::{Digest, Sha256};

/// A license that coderd lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledLicense {
    /// Its number.
    pub id: i64,
    /// Its UUID.
    pub uuid: String,
}

/// What is known of earlier conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LicenseRecord {
    /// SHA-256 of the value that was applied last.
    pub hash: Option<String>,
    /// UUID of the license that was ours last.
    pub uuid: Option<String>,
    /// The value and server that did not go together.
    pub refused: Option<String>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LicenseStep {
    /// It is there. Nothing is to be done.
    Rest,
    /// It is there, and the one that it replaces can go.
    Remove(InstalledLicense),
    /// It is to be sent.
    Send,
    /// It was sent, and refused: nothing changes until it, or the server, does.
    Refused,
}

/// Decides the next step. `ours` is the license of the Secret, if the list shows it; `readable`: whether it can be
/// recognised in a list at all.
pub fn step(
    hash: &str,
    version: &str,
    readable: bool,
    ours: Option<&InstalledLicense>,
    listed: &[InstalledLicense],
    recorded: &LicenseRecord,
    remove_replaced: bool,
) -> LicenseStep {
    if let Some(ours) = ours {
        let replaced = recorded.uuid.as_ref().filter(|uuid| **uuid != ours.uuid && !uuid.is_empty());
        let replaced = replaced.and_then(|uuid| listed.iter().find(|other| other.uuid == *uuid));
        return match replaced {
            Some(old) if remove_replaced => LicenseStep::Remove(old.clone()),
            _ => LicenseStep::Rest,
        };
    }
    if !readable && recorded.hash.as_deref() == Some(hash) && !listed.is_empty() {
        return LicenseStep::Rest;
    }
    if recorded.refused.as_ref() == Some(&mark(hash, version)) {
        LicenseStep::Refused
    } else {
        LicenseStep::Send
    }
}

/// SHA-256 of a license without surrounding blanks, as status records it.
pub fn hash(license: &str) -> String {
    Sha256::digest(license.trim()).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Names a value and a server version, to remember that they do not go together.
pub fn mark(hash: &str, version: &str) -> String {
    format!("{hash}@{version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(list: &[&str]) -> Vec<InstalledLicense> {
        list.iter()
            .enumerate()
            .map(|(n, uuid)| InstalledLicense { id: i64::try_from(n).unwrap() + 1, uuid: (*uuid).to_owned() })
            .collect()
    }

    fn next(ours: Option<&str>, list: &[&str], recorded: &LicenseRecord, remove: bool) -> LicenseStep {
        let all = listed(list);
        let ours = ours.map(|uuid| all.iter().find(|l| l.uuid == uuid).unwrap().clone());
        step("h", "v1", true, ours.as_ref(), &all, recorded, remove)
    }

    #[test]
    fn blanks_around_a_license_do_not_count() {
        let known = "27c1063bcd5d770162ac2d23000e21037534893e0b060251c72f964ebbcbbaf5";
        assert_eq!(hash("license-jwt-initial"), known);
        assert_eq!(hash(" license-jwt-initial\n"), known);
    }

    #[test]
    fn it_is_sent_when_the_list_does_not_show_it() {
        let before = LicenseRecord { hash: Some("h".into()), ..LicenseRecord::default() };
        assert_eq!(next(None, &[], &LicenseRecord::default(), false), LicenseStep::Send);
        assert_eq!(
            next(None, &["other"], &before, false),
            LicenseStep::Send,
            "any license is not this license"
        );
        assert_eq!(
            next(Some("a"), &["a"], &LicenseRecord::default(), false),
            LicenseStep::Rest,
            "an upload that was not recorded"
        );
    }

    #[test]
    fn its_predecessor_goes_only_when_asked_and_only_after_it_is_there() {
        let before = LicenseRecord { uuid: Some("a".into()), ..LicenseRecord::default() };
        assert_eq!(next(None, &["a"], &before, true), LicenseStep::Send);
        assert_eq!(next(Some("b"), &["a", "b"], &before, false), LicenseStep::Rest);
        assert_eq!(
            next(Some("b"), &["a", "b", "c"], &before, true),
            LicenseStep::Remove(listed(&["a"]).remove(0))
        );
        assert_eq!(next(Some("b"), &["b", "c"], &before, true), LicenseStep::Rest, "somebody else's stays");
    }

    #[test]
    fn what_was_refused_is_not_sent_again_to_the_same_server() {
        let before = LicenseRecord { refused: Some(mark("h", "v1")), ..LicenseRecord::default() };
        assert_eq!(next(None, &[], &before, false), LicenseStep::Refused);
        assert_eq!(step("h", "v2", true, None, &[], &before, false), LicenseStep::Send);
        assert_eq!(step("i", "v1", true, None, &[], &before, false), LicenseStep::Send);
    }

    #[test]
    fn one_that_cannot_be_recognised_is_trusted_to_be_there_while_any_is() {
        let before = LicenseRecord { hash: Some("h".into()), ..LicenseRecord::default() };
        assert_eq!(step("h", "v1", false, None, &listed(&["x"]), &before, false), LicenseStep::Rest);
        assert_eq!(
            step("h", "v1", false, None, &[], &before, false),
            LicenseStep::Send,
            "the database was reset"
        );
    }
}
