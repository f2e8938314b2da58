//! Whose a key is.
//!
//! Ours are the keys whose UUID is on the status or in the annotations of our Secret; and one that bears the announced
//! name, carries the announced tags, was made after the announcement, and that no daemon ever connected with. A name
//! alone says nothing.

use jiff::{SignedDuration, Timestamp};

use super::{
    observed::{KeyMarks, ListedKey},
    record::{KeyIntent, KeyRecord, ProvisionerKeyRecord},
    tags,
};

/// How far the clocks of coderd and of the operator may be apart. A listing showed the name to be free before it was
/// announced, so that this lets no older key pass for ours.
const CLOCKS: SignedDuration = SignedDuration::from_mins(5);

/// Whether a listed key is one that was announced and made, and whose material reached nobody.
pub fn was_announced(listed: &ListedKey, name: &str, tags_hash: &str, since: Timestamp) -> bool {
    let after = listed.created.is_some_and(|created| created.duration_since(since) >= -CLOCKS);
    listed.key.name.eq_ignore_ascii_case(name)
        && tags::hash(&listed.key.tags) == tags_hash
        && after
        && !listed.was_used
}

/// Whether a listed key is the pending one, made in an earlier attempt.
pub fn is_pending(listed: &ListedKey, pending: &KeyIntent) -> bool {
    was_announced(listed, &pending.name, &pending.tags_hash, pending.since)
}

/// Whether a listed key without a UUID on the record is the one that was announced as `key`.
pub fn is_leftover(listed: &ListedKey, key: &ProvisionerKeyRecord, since: Timestamp) -> bool {
    key.tags_hash.as_deref().is_some_and(|hash| was_announced(listed, &key.name, hash, since))
}

/// Whether a UUID is known to be ours.
pub fn is_known(id: &str, record: &KeyRecord, marks: &[&KeyMarks]) -> bool {
    record.knows(id) || marks.iter().any(|marks| marks.id.as_deref() == Some(id))
}
