//! What a condition was verified for, and which deployment a credential belongs to.
//!
//! A condition about coderd speaks of spec fields and Secret contents: its inputs. Status records a fingerprint of those for
//! which the condition was last verified, so that a later process can tell whether the condition still speaks of the present
//! inputs. A credential is bound in the same way: status records the deployment that accepted its content, and bound content is
//! sent to no other deployment, whatever is edited. Fingerprints are salted with the UID of the object, so that equal secrets of
//! two objects do not show as equal. Nothing here sees a secret: contents come in as digests.

use coder_k8s_api::{CredentialBinding, VerifiedInputs};
use sha2::{Digest, Sha256};

/// How many bindings status keeps. It bounds the status; older tokens than these count as new again.
const MAX_BINDINGS: usize = 4;

/// The fingerprint of inputs. Parts are length-prefixed, so that no two lists of parts read the same.
pub fn fingerprint(uid: &str, parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in [uid].iter().chain(parts) {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    // 128 bits: a collision would only let an object's own author call a changed input verified.
    hash.finalize().iter().take(16).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// How the present inputs of a condition compare with those that it was last verified for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The condition was verified for them.
    Same,
    /// It was verified for others.
    Other,
    /// An earlier release, or the Go operator, recorded none.
    Nothing,
}

/// Compares the present inputs of a condition with what status records.
pub fn recorded(all: &[VerifiedInputs], condition: &str, inputs: &str) -> Recorded {
    match all.iter().find(|verified| verified.type_ == condition) {
        None => Recorded::Nothing,
        Some(verified) if verified.inputs == inputs => Recorded::Same,
        Some(_) => Recorded::Other,
    }
}

/// Records that a condition was verified for these inputs.
pub fn record(all: &mut Vec<VerifiedInputs>, condition: &str, inputs: &str) {
    all.retain(|verified| verified.type_ != condition);
    all.push(VerifiedInputs { type_: condition.to_owned(), inputs: inputs.to_owned() });
    all.sort_by(|a, b| a.type_.cmp(&b.type_));
}

/// The deployment that accepted a content. None: the content is bound to none.
pub fn deployment_id_of<'a>(
    bindings: impl IntoIterator<Item = &'a CredentialBinding>,
    content: &str,
) -> Option<&'a str> {
    let found = bindings.into_iter().find(|binding| binding.content == content);
    found.map(|binding| binding.deployment_id.as_str())
}

/// Records that a deployment accepted a content. The oldest binding makes room.
pub fn bind(bindings: &mut Vec<CredentialBinding>, content: &str, deployment_id: &str) {
    bindings.retain(|binding| binding.content != content);
    let binding = CredentialBinding { content: content.to_owned(), deployment_id: deployment_id.to_owned() };
    bindings.insert(0, binding);
    bindings.truncate(MAX_BINDINGS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_depends_on_every_part_and_on_the_object() {
        let all = [
            fingerprint("uid", &["a", "b"]),
            fingerprint("uid", &["ab", ""]),
            fingerprint("uid", &["a", "b", ""]),
            fingerprint("other", &["a", "b"]),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(all[0], fingerprint("uid", &["a", "b"]));
        assert_eq!(all[0].len(), 32);
    }

    #[test]
    fn a_condition_is_compared_with_its_own_inputs_only() {
        let mut all = Vec::new();
        assert_eq!(recorded(&all, "A", "1"), Recorded::Nothing);
        record(&mut all, "B", "2");
        record(&mut all, "A", "1");
        assert_eq!((recorded(&all, "A", "1"), recorded(&all, "A", "2")), (Recorded::Same, Recorded::Other));
        record(&mut all, "A", "2");
        assert_eq!(recorded(&all, "A", "2"), Recorded::Same);
        assert_eq!(all.len(), 2, "one for each condition");
    }

    #[test]
    fn a_content_stays_with_its_deployment_until_newer_ones_displace_it() {
        let mut all = Vec::new();
        bind(&mut all, "a", "one");
        bind(&mut all, "b", "two");
        assert_eq!((deployment_id_of(&all, "a"), deployment_id_of(&all, "c")), (Some("one"), None));
        bind(&mut all, "a", "two");
        assert_eq!(deployment_id_of(&all, "a"), Some("two"), "a restored database accepts an old token");
        for content in ["c", "d", "e"] {
            bind(&mut all, content, "two");
        }
        assert_eq!(all.len(), MAX_BINDINGS);
        assert_eq!(deployment_id_of(&all, "b"), None);
    }
}
