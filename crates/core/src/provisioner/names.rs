//! Names of what belongs to a pool: children, the key in coderd, the daemons. None of them can be too long.
//!
//! coderd converts the name of a key to lower case, allows 64 bytes and reserves a few names. A key is named after the base,
//! which is the name in the spec or that of the object, or after the base and a hash.

use sha2::{Digest, Sha256};

use crate::{
    names::{HASH, LABEL_LIMIT, NAME_LIMIT, cut, fit, fnv1a},
    sources::hex,
};

/// The longest name of a key in coderd.
const KEY_LIMIT: usize = 64;
/// Characters of a UID.
const UID: usize = 36;
/// How many names with a hash there are for one base. More keys of one pool never exist at a time.
const SPARE: u32 = 16;
/// Names of keys that coderd reserves.
const RESERVED: [&str; 3] = ["built-in", "user-auth", "psk"];

/// The name of the Deployment, the Role and the RoleBinding.
pub fn deployment(name: &str) -> String {
    fit("provisioner-", name, "", LABEL_LIMIT)
}

/// The name of the ServiceAccount.
pub fn service_account(name: &str) -> String {
    fit("", name, "-provisioner", LABEL_LIMIT)
}

/// The name of the key's Secret when the spec gives none.
pub fn secret(name: &str) -> String {
    fit("", name, "-provisioner-key", NAME_LIMIT)
}

/// The name of a pool's daemons, as the value of an environment variable that may refer to `POD_NAME` and `POD_UID`.
///
/// coderd wants letters, digits and inner dashes, 2 to 63 of them, one name for each daemon. The name of a pod is that,
/// unless the object's name has a dot in it: then the start of it and the pod's UID are.
pub fn daemon(object: &str) -> String {
    if !object.contains('.') {
        return "$(POD_NAME)".to_owned();
    }
    let plain = object.replace('.', "-");
    format!("{}-$(POD_UID)", cut(&plain, LABEL_LIMIT - UID - 1).trim_end_matches('-'))
}

/// The preferred name of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyBase {
    /// In lower case, and short enough.
    pub name: String,
    /// Whether the user chose it. Then another name is used only while a key of this very pool has it.
    pub chosen: bool,
    /// What the hashes of the other names start from: the object, which keeps them when its UID changes.
    seed: String,
}

impl KeyBase {
    /// From `spec.key.name`, if given, and the object.
    pub fn new(given: Option<&str>, namespace: &str, object: &str) -> Self {
        let name = given.unwrap_or(object).trim().to_lowercase();
        let name = fit("", &name, "", KEY_LIMIT);
        Self { name, chosen: given.is_some(), seed: format!("{namespace}\0{object}") }
    }

    /// The names that a key of this base may have, the best first.
    pub fn candidates(&self) -> impl Iterator<Item = String> {
        let base = Some(self.name.clone()).filter(|name| !RESERVED.contains(&&**name));
        base.into_iter().chain((0..SPARE).map(|n| self.spare(n)))
    }

    /// Whether a name is one of them.
    pub fn covers(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.candidates().any(|candidate| candidate == name)
    }

    fn spare(&self, n: u32) -> String {
        let hash = fnv1a(format!("{}\0{}\0{n}", self.seed, self.name).as_bytes());
        format!("{}-{hash:08x}", cut(&self.name, KEY_LIMIT - HASH - 1).trim_end_matches(['-', '.']))
    }
}

/// A checksum of key material, salted with the object's UID: it shows a change and nothing else.
pub fn checksum(uid: &str, material: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(uid);
    hash.update([0]);
    hash.update(material);
    hex(&hash.finalize())
}

/// The checksum that the Go operator puts on pods.
pub fn go_operator_checksum(material: &[u8]) -> String {
    format!("{:08x}", fnv1a(material))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a(count: usize) -> String {
        "a".repeat(count)
    }

    #[test]
    fn children_are_named_as_they_always_were() {
        assert_eq!(deployment("pool"), "provisioner-pool");
        assert_eq!(deployment(&a(51)), format!("provisioner-{}", a(51)));
        assert_eq!(deployment(&a(52)), format!("provisioner-{}-4f28a429", a(42)));
        assert_eq!(deployment(&a(180)), format!("provisioner-{}-b11ccea9", a(42)));
        assert_eq!(service_account(&a(51)), format!("{}-provisioner", a(51)));
        assert_eq!(service_account(&a(52)), format!("{}-4f28a429-provisioner", a(42)));
        assert_eq!(service_account(&a(180)), format!("{}-b11ccea9-provisioner", a(42)));
        assert_eq!(secret("pool"), "pool-provisioner-key");
        assert_eq!(secret(&a(180)), format!("{}-provisioner-key", a(180)));
        assert_eq!(secret(&a(237)).len(), 253);
        assert_eq!(secret(&a(240)), format!("{}-d3e55bb5-provisioner-key", a(228)));
        for length in 1..=253 {
            assert!(deployment(&a(length)).len() <= 63 && service_account(&a(length)).len() <= 63);
            assert!(secret(&a(length)).len() <= 253);
        }
    }

    #[test]
    fn a_key_is_named_after_the_object_unless_the_user_says_otherwise() {
        assert_eq!(KeyBase::new(None, "ns", "pool").name, "pool");
        assert_eq!(KeyBase::new(Some("Team-Key"), "ns", "pool").name, "team-key", "coderd lower-cases");
        assert_eq!(KeyBase::new(None, "ns", &a(64)).name, a(64));
        assert_eq!(KeyBase::new(None, "ns", &a(180)).name, format!("{}-b11ccea9", a(55)));
        assert_eq!(KeyBase::new(None, "ns", &a(180)).name.len(), 64);
    }

    #[test]
    fn every_name_of_a_key_fits_into_coderd_and_is_recognised() {
        for name in ["p", "pool", "psk", "a.b-c", &a(64), &a(253)] {
            let base = KeyBase::new(None, "ns", name);
            let all: Vec<_> = base.candidates().collect();
            for candidate in &all {
                assert!(candidate.len() <= 64 && base.covers(candidate), "{candidate}");
                assert!(base.covers(&candidate.to_uppercase()));
            }
            let mut different = all.clone();
            different.sort();
            different.dedup();
            assert_eq!(different.len(), all.len());
        }
        assert!(!KeyBase::new(None, "ns", "pool").covers("pool-2"));
    }

    #[test]
    fn a_name_that_coderd_keeps_to_itself_is_never_used() {
        assert!(KeyBase::new(None, "ns", "psk").candidates().all(|name| name != "psk"));
        assert!(KeyBase::new(None, "ns", "psk").candidates().next().unwrap().starts_with("psk-"));
    }

    #[test]
    fn objects_of_one_name_in_two_namespaces_have_different_spare_names() {
        let [one, two] = ["a", "b"].map(|namespace| KeyBase::new(None, namespace, "pool"));
        assert_eq!(one.candidates().next(), two.candidates().next());
        assert_ne!(one.candidates().nth(1), two.candidates().nth(1));
        assert_eq!(one, KeyBase::new(None, "a", "pool"), "and keep them");
    }

    #[test]
    fn a_daemon_bears_the_name_of_its_pod_if_coderd_takes_it() {
        assert_eq!(daemon("pool"), "$(POD_NAME)");
        assert_eq!(daemon("my.pool"), "my-pool-$(POD_UID)", "what comes after a dot would be lost");
        let long = daemon(&format!("{}.b", a(25))).replace("$(POD_UID)", &a(36));
        assert_eq!(long, format!("{}-{}", a(25), a(36)));
        assert!(daemon(&"a.".repeat(100)).replace("$(POD_UID)", &a(36)).len() <= 63);
    }

    #[test]
    fn checksums_tell_a_change() {
        assert_eq!(go_operator_checksum(b"provisioner-key-material"), "a7154bd1");
        assert_eq!(go_operator_checksum(b"rotated-key-material"), "34ec9eaa");
        assert_ne!(checksum("u", b"a"), checksum("u", b"b"));
        assert_ne!(checksum("u", b"a"), checksum("v", b"a"), "salted");
    }
}
