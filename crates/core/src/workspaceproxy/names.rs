//! Names of what belongs to a workspace proxy. None of them can be too long.

use crate::names::{LABEL_LIMIT, NAME_LIMIT, fit};

/// The name of the Deployment, the Service and everything else that stands beside them. A control plane of the same name
/// has other ones.
pub fn child(name: &str) -> String {
    fit("wsproxy-", name, "", LABEL_LIMIT)
}

/// The name of the token's Secret when nobody gives one.
pub fn secret(name: &str) -> String {
    fit("", name, "-proxy-token", NAME_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_named_as_they_always_were() {
        let a = |count: usize| "a".repeat(count);
        assert_eq!(child("eu"), "wsproxy-eu");
        assert_eq!(child(&a(55)), format!("wsproxy-{}", a(55)));
        assert_eq!(child(&a(70)), format!("wsproxy-{}-5904740b", a(46)));
        assert_eq!(secret("eu"), "eu-proxy-token");
        for length in 1..=253 {
            assert!(child(&a(length)).len() <= 63 && secret(&a(length)).len() <= 253);
        }
    }
}
