//! Names of children that are derived from the name of an object. None of them can be too long, and none ever changes: a
//! renamed child would be created again beside the old one.

/// The longest value of a label, and the longest name of a volume.
pub(crate) const LABEL_LIMIT: usize = 63;
/// The longest name of most objects.
pub(crate) const NAME_LIMIT: usize = 253;
/// Hexadecimal digits of a hash in a name.
pub(crate) const HASH: usize = 8;

/// The value of the instance label for an object: its name, or the start of it and a hash.
pub fn instance_label(name: &str) -> String {
    fit("", name, "", LABEL_LIMIT)
}

/// The name of the Deployment, the Service and the other children of a workspace proxy. The prefix tells them from those
/// of a control plane of the same name.
pub fn proxy_child(name: &str) -> String {
    fit("wsproxy-", name, "", LABEL_LIMIT)
}

/// The name of the Secret with the token of a workspace proxy when the spec gives none.
pub fn proxy_secret(name: &str) -> String {
    fit("", name, "-proxy-token", NAME_LIMIT)
}

/// FNV-1a with 32 bits, as the Go operator uses it for names of children.
pub fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The name of the volume for a Secret, such as `tls-my-cert`: never too long, and different for different Secrets.
pub fn volume(prefix: &str, secret: &str) -> String {
    let given = secret.trim().to_lowercase();
    let plain = label_like(&given);
    let whole = format!("{prefix}-{plain}");
    if whole.len() <= LABEL_LIMIT && plain == given { whole } else { hashed_volume(prefix, secret) }
}

/// The name of the volume for a Secret when the plain name is too long or taken.
pub fn hashed_volume(prefix: &str, secret: &str) -> String {
    let hash = fnv1a(&[prefix.as_bytes(), &[0], secret.as_bytes()].concat());
    let plain = label_like(&secret.trim().to_lowercase());
    let room = LABEL_LIMIT.saturating_sub(prefix.len() + HASH + 2);
    format!("{prefix}-{}-{hash:08x}", or_x(cut(&plain, room).trim_matches('-')))
}

/// `<prefix><name><suffix>`, or the same with the start of the name and a hash of it.
pub(crate) fn fit(prefix: &str, name: &str, suffix: &str, limit: usize) -> String {
    let whole = format!("{prefix}{name}{suffix}");
    if whole.len() <= limit {
        return whole;
    }
    let start = cut(name, limit - prefix.len() - suffix.len() - HASH - 1);
    format!("{prefix}{start}-{:08x}{suffix}", fnv1a(name.as_bytes()))
}

/// At most so many bytes, and no half characters.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= bytes).last();
    text.get(..end.unwrap_or(0)).unwrap_or(text)
}

/// The name of the Secret for the operator's token when the spec gives none.
pub fn token_secret(name: &str) -> String {
    const SUFFIX: &str = "-operator-token";
    let whole = format!("{name}{SUFFIX}");
    if whole.len() <= LABEL_LIMIT {
        return whole;
    }
    let start = cut(name, LABEL_LIMIT - SUFFIX.len() - HASH - 1).trim_end_matches(['-', '.']);
    format!("{start}-{:08x}{SUFFIX}", fnv1a(name.as_bytes()))
}

/// The name of the operator's token in coderd: another one for every control plane, because several may share a database.
pub fn operator_token(namespace: &str, name: &str) -> String {
    let scope = [namespace.as_bytes(), &[0], name.as_bytes()].concat();
    let hash = scope.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("coder-k8s-operator-{hash:016x}")
}

/// The name of the Role for workspaces.
pub fn workspace_role(service_account: &str, namespace: &str, name: &str) -> String {
    scoped(service_account, namespace, name, "-workspace-perms")
}

/// The name of the RoleBinding for workspaces.
pub fn workspace_binding(service_account: &str, namespace: &str, name: &str) -> String {
    scoped(service_account, namespace, name, "")
}

/// `<base>-<hash of the scope><suffix>`, with a base that is cut where the whole would be too long.
fn scoped(base: &str, namespace: &str, name: &str, suffix: &str) -> String {
    let hash = fnv1a(&[namespace.as_bytes(), &[0], name.as_bytes()].concat());
    let room = NAME_LIMIT - HASH - suffix.len() - 1;
    if base.len() <= room {
        return format!("{base}-{hash:08x}{suffix}");
    }
    let start = cut(base, room).trim_matches(['-', '.']);
    let start = if start.is_empty() { "workspace" } else { start };
    format!("{start}-{hash:08x}{suffix}")
}

/// Lower-case letters, digits and single dashes: every run of anything else becomes one dash.
fn label_like(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            plain.push(c);
        } else if !plain.ends_with('-') {
            plain.push('-');
        }
    }
    or_x(plain.trim_matches('-')).to_owned()
}

fn or_x(text: &str) -> &str {
    if text.is_empty() { "x" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_keeps_a_short_name_and_hashes_a_long_one() {
        assert_eq!(instance_label("coder"), "coder");
        assert_eq!(instance_label(&"a".repeat(63)), "a".repeat(63));
        assert_eq!(instance_label(&"a".repeat(180)), format!("{}-b11ccea9", "a".repeat(54)));
        assert_eq!(instance_label(&"a".repeat(70)), format!("{}-5904740b", "a".repeat(54)));
    }

    #[test]
    fn volumes_are_named_as_they_always_were() {
        let long = "a".repeat(70);
        for (prefix, secret, name) in [
            ("tls", "my-tls", "tls-my-tls".to_owned()),
            ("tls", "my.tls.secret", "tls-my-tls-secret-6a72c9df".to_owned()),
            ("ca-cert", "extra.ca.secret", "ca-cert-extra-ca-secret-207a1924".to_owned()),
            ("tls", "a--b", "tls-a-b-c3af9eef".to_owned()),
            ("tls", &long, format!("tls-{}-43b8d640", "a".repeat(50))),
            ("ca-cert", &long, format!("ca-cert-{}-d420deac", "a".repeat(46))),
        ] {
            assert_eq!(volume(prefix, secret), name);
            assert!(name.len() <= 63);
        }
        assert_eq!(volume("tls", "..."), hashed_volume("tls", "..."));
    }

    #[test]
    fn token_secrets_are_named_as_they_always_were() {
        assert_eq!(token_secret("coder"), "coder-operator-token");
        assert_eq!(token_secret(&"a".repeat(48)), format!("{}-operator-token", "a".repeat(48)));
        assert_eq!(token_secret(&"a".repeat(49)), format!("{}-4e8d2a7c-operator-token", "a".repeat(39)));
    }

    #[test]
    fn tokens_are_named_as_they_always_were() {
        assert_eq!(operator_token("coder", "coder"), "coder-k8s-operator-4ecae8b3d900ecfb");
        assert_eq!(operator_token("default", "test-cp"), "coder-k8s-operator-35245367fada26d6");
    }

    #[test]
    fn workspace_roles_are_named_as_they_always_were() {
        assert_eq!(workspace_role("coder", "coder", "coder"), "coder-84e8e53b-workspace-perms");
        assert_eq!(workspace_binding("coder", "coder", "coder"), "coder-84e8e53b");
        assert_eq!(workspace_binding("x", "default", "test-cp"), "x-56df3c36");
        let role = workspace_role(&"a".repeat(253), "coder", "coder");
        assert_eq!(role, format!("{}-84e8e53b-workspace-perms", "a".repeat(228)));
        assert_eq!(role.len(), 253);
        assert!(workspace_role(&"-".repeat(253), "c", "c").starts_with("workspace-"));
    }

    #[test]
    fn children_of_a_proxy_are_named_as_they_always_were() {
        let a = |count: usize| "a".repeat(count);
        assert_eq!(proxy_child("eu"), "wsproxy-eu");
        assert_eq!(proxy_child(&a(55)), format!("wsproxy-{}", a(55)));
        assert_eq!(proxy_child(&a(70)), format!("wsproxy-{}-5904740b", a(46)));
        assert_eq!(proxy_secret("eu"), "eu-proxy-token");
        for length in 1..=253 {
            assert!(proxy_child(&a(length)).len() <= 63 && proxy_secret(&a(length)).len() <= 253);
        }
    }
}
