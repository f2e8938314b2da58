//! Files in the main container: certificates of coderd or a proxy itself and CA certificates that it trusts.
//!
//! Names and paths are those of the Go operator, so that a takeover changes no pod, unless its own did not work.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{SecretKey, Tls};
use k8s_openapi::api::core::v1::{EnvVar, SecretVolumeSource, Volume, VolumeMount};

use super::variable;
use crate::names;

/// Where certificates of coderd itself are.
const TLS_FOLDER: &str = "/etc/ssl/certs/coder";
/// Where CA certificates are.
const CA_FOLDER: &str = "/etc/ssl/certs";

/// Volumes and where they are mounted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Files {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The mounts.
    pub mounts: Vec<VolumeMount>,
}

/// The files for certificates. `taken` are names of volumes that users gave.
pub fn certificates(tls: &Tls, cas: &[SecretKey], taken: &[Volume]) -> Files {
    let mut files = Files::default();
    for secret in unique(tls.secret_names.iter().map(AsRef::as_ref)) {
        let name = free_name("tls", secret, taken);
        files.volumes.push(secret_volume(&name, secret));
        files.mounts.push(mount(&name, format!("{TLS_FOLDER}/{secret}"), None));
    }
    let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for ca in cas {
        keys.entry(ca.name.as_str()).or_default().insert(ca.key.as_str());
    }
    let mut paths = BTreeSet::new();
    for (secret, key) in unique(cas.iter().map(|ca| (ca.name.as_str(), ca.key.as_str()))) {
        let name = free_name("ca-cert", secret, taken);
        if !files.volumes.iter().any(|volume| volume.name == name) {
            files.volumes.push(secret_volume(&name, secret));
        }
        let several = keys.get(secret).is_some_and(|keys| keys.len() > 1);
        let base = if several { format!("{secret}-{key}") } else { secret.to_owned() };
        let stem = base.strip_suffix(".crt").unwrap_or(&base);
        let file = free_file(stem, &mut paths);
        files.mounts.push(mount(&name, format!("{CA_FOLDER}/{file}"), Some(key)));
    }
    files
}

/// Paths of the certificates and of their keys, each joined as coderd reads them.
fn certificate_paths(tls: &Tls) -> (String, String) {
    let joined = |file: &str| {
        let paths = unique(tls.secret_names.iter().map(AsRef::as_ref));
        paths.iter().map(|secret| format!("{TLS_FOLDER}/{secret}/{file}")).collect::<Vec<_>>().join(",")
    };
    (joined("tls.crt"), joined("tls.key"))
}

/// The environment entries that make the container serve HTTPS at an address.
pub fn serving(tls: &Tls, address: &str) -> [EnvVar; 4] {
    let (certificates, keys) = certificate_paths(tls);
    [
        variable("CODER_TLS_ENABLE", "true"),
        variable("CODER_TLS_ADDRESS", address),
        variable("CODER_TLS_CERT_FILE", certificates),
        variable("CODER_TLS_KEY_FILE", keys),
    ]
}

/// The entries of the spec, after those of the operator whose key no entry of the spec has.
pub(super) fn replaced<T: Clone>(own: Vec<T>, users: &[T], key: impl Fn(&T) -> &String) -> Vec<T> {
    let mut all = own;
    all.retain(|one| users.iter().all(|user| key(user) != key(one)));
    all.extend(users.iter().cloned());
    all
}

fn free_name(prefix: &str, secret: &str, taken: &[Volume]) -> String {
    let name = names::volume(prefix, secret);
    if taken.iter().any(|volume| volume.name == name) { names::hashed_volume(prefix, secret) } else { name }
}

/// `<stem>.crt`, or the first of `<stem>-2.crt`, `<stem>-3.crt`, … that is not taken.
fn free_file(stem: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|n| format!("{stem}-{n}.crt"));
    let free = std::iter::once(format!("{stem}.crt")).chain(numbered).find(|file| !taken.contains(file));
    let file = free.unwrap_or_default();
    taken.insert(file.clone());
    file
}

fn secret_volume(name: &str, secret: &str) -> Volume {
    let source = SecretVolumeSource { secret_name: Some(secret.to_owned()), ..SecretVolumeSource::default() };
    Volume { name: name.to_owned(), secret: Some(source), ..Volume::default() }
}

fn mount(volume: &str, path: String, key: Option<&str>) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path,
        sub_path: key.map(str::to_owned),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

/// The items without repetition, in order.
fn unique<T: Ord + Copy>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut unique = BTreeSet::new();
    items.filter(|item| unique.insert(*item)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(names: &[&str]) -> Tls {
        Tls { secret_names: names.iter().map(|name| (*name).into()).collect() }
    }

    fn cas(list: &[(&str, &str)]) -> Vec<SecretKey> {
        list.iter().map(|(name, key)| SecretKey { name: (*name).into(), key: (*key).into() }).collect()
    }

    fn paths(files: &Files) -> Vec<&str> {
        files.mounts.iter().map(|mount| mount.mount_path.as_str()).collect()
    }

    fn volume_names(files: &Files) -> Vec<&str> {
        files.volumes.iter().map(|volume| volume.name.as_str()).collect()
    }

    #[test]
    fn a_certificate_named_twice_is_mounted_once() {
        let files = certificates(&tls(&["my-tls", "my-tls", "my.tls.secret"]), &[], &[]);
        assert_eq!(volume_names(&files), ["tls-my-tls", "tls-my-tls-secret-6a72c9df"]);
        assert_eq!(paths(&files), ["/etc/ssl/certs/coder/my-tls", "/etc/ssl/certs/coder/my.tls.secret"]);
        let (crt, key) = certificate_paths(&tls(&["a", "b", "a"]));
        assert_eq!(crt, "/etc/ssl/certs/coder/a/tls.crt,/etc/ssl/certs/coder/b/tls.crt");
        assert_eq!(key, "/etc/ssl/certs/coder/a/tls.key,/etc/ssl/certs/coder/b/tls.key");
    }

    #[test]
    fn two_keys_of_one_secret_share_a_volume() {
        let list = cas(&[("shared.ca.secret", "ca.crt"), ("shared.ca.secret", "alt.crt")]);
        let files = certificates(&Tls::default(), &list, &[]);
        assert_eq!(files.volumes.len(), 1);
        assert_eq!(
            paths(&files),
            ["/etc/ssl/certs/shared.ca.secret-ca.crt", "/etc/ssl/certs/shared.ca.secret-alt.crt"]
        );
        let keys: Vec<_> = files.mounts.iter().map(|mount| mount.sub_path.as_deref().unwrap()).collect();
        assert_eq!(keys, ["ca.crt", "alt.crt"]);
    }

    #[test]
    fn no_two_certificates_meet_at_one_path() {
        let list = cas(&[("foo", "k"), ("foo.crt", "k"), ("foo-2", "k"), ("foo-2.crt", "k")]);
        let files = certificates(&Tls::default(), &list, &[]);
        assert_eq!(
            paths(&files),
            [
                "/etc/ssl/certs/foo.crt",
                "/etc/ssl/certs/foo-2.crt",
                "/etc/ssl/certs/foo-2-2.crt",
                "/etc/ssl/certs/foo-2-3.crt"
            ]
        );
        assert_eq!(files.volumes.iter().map(|v| &v.name).collect::<BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn the_same_entry_twice_changes_no_path() {
        let files =
            certificates(&Tls::default(), &cas(&[("extra.ca.secret", "k"), ("extra.ca.secret", "k")]), &[]);
        assert_eq!(paths(&files), ["/etc/ssl/certs/extra.ca.secret.crt"]);
        assert_eq!(volume_names(&files), ["ca-cert-extra-ca-secret-207a1924"]);
    }

    #[test]
    fn a_users_volume_or_mount_of_the_same_name_is_kept() {
        let user = Volume { name: "tls-my-tls".into(), ..Volume::default() };
        let files = certificates(&tls(&["my-tls"]), &[], std::slice::from_ref(&user));
        assert_ne!(volume_names(&files), ["tls-my-tls"]);
        assert_eq!(
            replaced(files.volumes.clone(), std::slice::from_ref(&user), |volume| &volume.name).len(),
            2
        );
        let at = mount("mine", "/etc/ssl/certs/coder/my-tls".into(), None);
        assert_eq!(replaced(files.mounts, std::slice::from_ref(&at), |mount| &mount.mount_path), [at]);
    }
}
