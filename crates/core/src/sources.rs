//! What an object refers to ([`References`]): a change of it enqueues the object. And the Secrets and ConfigMaps that its pods
//! read when they start: which of them, which keys, and a checksum of it all.
//!
//! Values come in only to be hashed. None is stored, except a value of a ConfigMap that is needed by key.

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, PodSettings, Tls, WorkspaceRbac,
};
use k8s_openapi::api::core::v1::EnvFromSource;
use kube::{Resource, ResourceExt};
use sha2::{Digest, Sha256};

use crate::{names, provisioner, workspaceproxy};

/// A Secret or ConfigMap of the object's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A Secret.
    Secret(String),
    /// A ConfigMap.
    ConfigMap(String),
}

/// The keys of a source that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeededKeys {
    /// Whether all of its data matters.
    pub all: bool,
    /// Else these keys.
    pub keys: BTreeSet<String>,
    /// Keys of a ConfigMap whose value is needed too.
    pub values: BTreeSet<String>,
}

/// The content of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceContent {
    /// It does not exist.
    Absent,
    /// It exists.
    Data {
        /// Checksum of the keys that matter.
        digest: String,
        /// The keys that it has.
        keys: BTreeSet<String>,
        /// The values that were needed.
        values: BTreeMap<String, String>,
    },
}

/// The contents of all sources.
pub type SourceContents = BTreeMap<Source, SourceContent>;

/// How pods use a Secret or ConfigMap.
enum Use<'a> {
    /// They read these keys.
    Keys(Source, Vec<&'a str>),
    /// Its data becomes environment variables.
    Environment(Source, &'a EnvFromSource),
}

/// Every Secret and ConfigMap that the pods use. What is watched and what is hashed both follow this list.
fn uses<'a>(pod: &'a PodSettings, tls: &'a Tls) -> impl Iterator<Item = Use<'a>> {
    let tls = tls.secret_names.iter();
    let tls = tls.map(|name| Use::Keys(Source::Secret(name.to_string()), vec!["tls.crt", "tls.key"]));
    let certs = pod.certs.secrets.iter();
    let certs = certs.map(|cert| Use::Keys(Source::Secret(cert.name.to_string()), vec![cert.key.as_str()]));
    let variables = pod.extra_env.iter().filter_map(|env| env.value_from.as_ref()).flat_map(|from| {
        let secret = from.secret_key_ref.iter();
        let secret =
            secret.map(|secret| Use::Keys(Source::Secret(secret.name.clone()), vec![secret.key.as_str()]));
        let map = from.config_map_key_ref.iter();
        let map = map.map(|map| Use::Keys(Source::ConfigMap(map.name.clone()), vec![map.key.as_str()]));
        secret.chain(map)
    });
    let environment = pod.env_from.iter().filter_map(|from| Some(Use::Environment(source_of(from)?, from)));
    tls.chain(certs).chain(variables).chain(environment)
}

/// The Secrets and ConfigMaps that the pods use, whether or not a change of them restarts the pods.
pub fn used(pod: &PodSettings, tls: &Tls) -> BTreeSet<Source> {
    uses(pod, tls)
        .map(|one| match one {
            Use::Keys(source, _) | Use::Environment(source, _) => source,
        })
        .collect()
}

/// What is read of each source. `inspected` are variables whose definition by `envFrom` is asked for.
pub fn needed(pod: &PodSettings, tls: &Tls, inspected: &[&str]) -> BTreeMap<Source, NeededKeys> {
    let mut all: BTreeMap<Source, NeededKeys> = BTreeMap::new();
    for one in uses(pod, tls) {
        match one {
            Use::Keys(source, keys) if pod.restart_on_config_change => {
                let desired = all.entry(source).or_default();
                desired.keys.extend(keys.into_iter().map(str::to_owned));
            }
            Use::Keys(..) => {}
            Use::Environment(source, from) => {
                let defining = inspected.iter().filter_map(|variable| key_for(from, variable));
                let defining: BTreeSet<_> = defining.map(str::to_owned).collect();
                if pod.restart_on_config_change || !defining.is_empty() {
                    let desired = all.entry(source).or_default();
                    desired.all |= pod.restart_on_config_change;
                    desired.values.extend(defining);
                }
            }
        }
    }
    all
}

/// What `envFrom` refers to.
pub fn source_of(from: &EnvFromSource) -> Option<Source> {
    let map = from.config_map_ref.as_ref().map(|map| Source::ConfigMap(map.name.clone()));
    map.or_else(|| from.secret_ref.as_ref().map(|secret| Source::Secret(secret.name.clone())))
}

/// The key under which a source would define a variable, given its prefix.
pub fn key_for<'a>(from: &EnvFromSource, variable: &'a str) -> Option<&'a str> {
    let prefix = from.prefix.as_deref().unwrap_or_default().trim();
    variable.strip_prefix(prefix).filter(|key| !key.is_empty())
}

/// How `envFrom` defines a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defined {
    /// Not at all.
    No,
    /// By a ConfigMap, with this value.
    As(String),
    /// By a Secret.
    FromSecret,
}

/// Whether, and how, `envFrom` defines a variable. Of several sources the last wins, as it does in Kubernetes.
pub fn definition(env_from: &[EnvFromSource], variable: &str, found: &SourceContents) -> Defined {
    let mut defined = Defined::No;
    for from in env_from {
        let Some(key) = key_for(from, variable) else { continue };
        let Some(source) = source_of(from) else { continue };
        if let Some(SourceContent::Data { keys, values, .. }) = found.get(&source)
            && keys.contains(key)
        {
            let value = values.get(key).filter(|_| matches!(source, Source::ConfigMap(_)));
            defined = value.map_or(Defined::FromSecret, |value| Defined::As(value.clone()));
        }
    }
    defined
}

/// The checksum of one source: over the keys that matter, salted with the UID of the object, so that equal
/// Secrets of different objects have different checksums.
pub fn digest<'a>(
    uid: &str,
    source: &Source,
    entries: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> String {
    let (kind, name) = match source {
        Source::Secret(name) => ("Secret", name),
        Source::ConfigMap(name) => ("ConfigMap", name),
    };
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(bytes);
    };
    for text in [uid, kind, name] {
        part(text.as_bytes());
    }
    for (key, value) in entries {
        part(key.as_bytes());
        match value {
            Some(value) => part(value),
            None => part(b"absent"),
        }
    }
    hex(&hash.finalize())
}

/// The checksum of one key of a Secret. A Secret or key that is missing has one too, so that its loss is a change.
pub fn secret_digest(uid: &str, name: &str, key: &str, value: Option<&[u8]>) -> String {
    digest(uid, &Source::Secret(name.to_owned()), [(key, value)].into_iter())
}

/// The checksum of everything that the pods read. None: they read nothing, or the spec disables restarts.
pub fn checksum(pod: &PodSettings, found: &SourceContents) -> Option<String> {
    if !pod.restart_on_config_change || found.is_empty() {
        return None;
    }
    let mut hash = Sha256::new();
    for (source, found) in found {
        hash.update(format!("{source:?}="));
        match found {
            SourceContent::Absent => hash.update("absent;"),
            SourceContent::Data { digest, .. } => hash.update(format!("{digest};")),
        }
    }
    Some(hex(&hash.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Something that an object refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    /// A Secret of the same namespace.
    Secret(String),
    /// A ConfigMap of the same namespace.
    ConfigMap(String),
    /// A namespace.
    Namespace(String),
    /// A CoderControlPlane of the same namespace.
    ControlPlane(String),
}

/// An object that refers to others.
pub trait References: Resource<DynamicType = ()> {
    /// Everything that this object refers to.
    fn references(&self) -> BTreeSet<Reference>;
}

impl References for CoderControlPlane {
    fn references(&self) -> BTreeSet<Reference> {
        let spec = &self.spec;
        let access = &spec.operator_access;
        let mut all = of_pod(&spec.pod, &spec.tls);
        all.extend(of_rbac(&spec.rbac));
        let keys = [
            &spec.license_secret_ref,
            &access.token_secret_ref,
            &access.ca_secret_ref,
            &access.database_ca_secret_ref,
        ];
        all.extend(keys.into_iter().flatten().map(|secret| secret_named(&secret.name)));
        all.extend(access.first_user_secret_ref.iter().map(|secret| secret_named(&secret.name)));
        match access.method {
            AccessMethod::Postgres | AccessMethod::FirstUser if !access.disabled => {
                let given = access.generated_token_secret_name.as_ref().map(ToString::to_string);
                all.insert(Reference::Secret(given.unwrap_or_else(|| names::token_secret(&self.name_any()))));
            }
            AccessMethod::Postgres | AccessMethod::FirstUser | AccessMethod::TokenSecret => {}
        }
        all
    }
}

impl References for CoderProvisioner {
    fn references(&self) -> BTreeSet<Reference> {
        let spec = &self.spec;
        let mut all = of_pod(&spec.pod, &Tls::default());
        all.extend(of_rbac(&spec.rbac));
        all.insert(Reference::ControlPlane(spec.control_plane_ref.name.to_string()));
        all.extend(
            spec.bootstrap.iter().map(|bootstrap| secret_named(&bootstrap.credentials_secret_ref.name)),
        );
        let given = spec.key.as_ref().and_then(|key| key.secret_name.as_ref()).map(ToString::to_string);
        let key = given.unwrap_or_else(|| provisioner::names::secret(&self.name_any()));
        all.insert(Reference::Secret(key));
        all
    }
}

impl References for CoderWorkspaceProxy {
    fn references(&self) -> BTreeSet<Reference> {
        let spec = &self.spec;
        let mut all = of_pod(&spec.pod, &spec.tls);
        all.extend(
            spec.control_plane_ref.iter().map(|plane| Reference::ControlPlane(plane.name.to_string())),
        );
        all.extend(spec.proxy_session_token_secret_ref.iter().map(|secret| secret_named(&secret.name)));
        if let Some(bootstrap) = &spec.bootstrap {
            all.insert(secret_named(&bootstrap.credentials_secret_ref.name));
            all.extend(bootstrap.ca_secret_ref.iter().map(|secret| secret_named(&secret.name)));
        }
        all.extend(
            workspaceproxy::wanted_registration(self).map(|desired| secret_named(desired.secret.name)),
        );
        all
    }
}

fn secret_named(name: impl AsRef<str>) -> Reference {
    Reference::Secret(name.as_ref().to_owned())
}

fn of_rbac(rbac: &WorkspaceRbac) -> impl Iterator<Item = Reference> {
    rbac.workspace_namespaces.iter().map(|namespace| Reference::Namespace(namespace.to_string()))
}

/// The Secrets and ConfigMaps that the pods use.
fn of_pod(pod: &PodSettings, tls: &Tls) -> BTreeSet<Reference> {
    let reference = |source| match source {
        Source::Secret(name) => Reference::Secret(name),
        Source::ConfigMap(name) => Reference::ConfigMap(name),
    };
    used(pod, tls).into_iter().map(reference).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_control_plane_names_every_secret_it_uses() {
        let spec = serde_json::json!({
            "licenseSecretRef": {"name": "license"},
            "tls": {"secretNames": ["tls"]},
            "certs": {"secrets": [{"name": "ca", "key": "ca.crt"}]},
            "operatorAccess": {"method": "TokenSecret", "tokenSecretRef": {"name": "token"}, "caSecretRef": {"name": "api-ca"}},
            "envFrom": [{"secretRef": {"name": "env"}}, {"configMapRef": {"name": "settings"}}],
            "extraEnv": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "more", "key": "b"}}},
            ],
            "rbac": {"workspaceNamespaces": ["dev"]},
        });
        let object = CoderControlPlane::new("coder", serde_json::from_value(spec).unwrap());
        let secrets = ["license", "tls", "ca", "token", "api-ca", "env", "db"].map(secret_named);
        let maps = ["settings", "more"].map(|name| Reference::ConfigMap(name.to_owned()));
        let expected: BTreeSet<_> =
            secrets.into_iter().chain(maps).chain([Reference::Namespace("dev".to_owned())]).collect();
        assert_eq!(object.references(), expected);
    }

    #[test]
    fn a_pool_and_a_proxy_name_their_control_plane_and_credentials() {
        let pool = serde_json::json!({"controlPlaneRef": {"name": "coder"}, "bootstrap": {"credentialsSecretRef": {"name": "c"}}});
        let pool = CoderProvisioner::new("pool", serde_json::from_value(pool).unwrap());
        assert_eq!(
            pool.references(),
            [
                Reference::ControlPlane("coder".into()),
                Reference::Secret("c".into()),
                Reference::Secret("pool-provisioner-key".into())
            ]
            .into()
        );
        let proxy = serde_json::json!({"bootstrap": {"coderURL": "http://c", "credentialsSecretRef": {"name": "c"}, "caSecretRef": {"name": "ca"}}});
        let proxy = CoderWorkspaceProxy::new("proxy", serde_json::from_value(proxy).unwrap());
        assert_eq!(proxy.references(), ["c", "ca", "proxy-proxy-token"].map(secret_named).into());
    }

    const URL: &str = "CODER_ACCESS_URL";

    fn pod(spec: Value) -> PodSettings {
        serde_json::from_value(spec).unwrap()
    }

    fn data(values: &[(&str, &str)]) -> SourceContent {
        let values: BTreeMap<_, _> =
            values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        SourceContent::Data { digest: "d".into(), keys: values.keys().cloned().collect(), values }
    }

    #[test]
    fn every_reference_of_the_pods_counts_with_its_keys() {
        let pod = pod(json!({
            "certs": {"secrets": [{"name": "ca", "key": "ca.crt"}]},
            "envFrom": [{"configMapRef": {"name": "settings"}}, {"prefix": "CODER_", "secretRef": {"name": "env"}}],
            "extraEnv": [{"name": "DB", "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}}}],
        }));
        let tls = Tls { secret_names: vec!["cert".into()] };
        let all = needed(&pod, &tls, &[URL]);
        let secret = |name: &str| &all[&Source::Secret(name.to_owned())];
        assert_eq!(secret("cert").keys, ["tls.crt".to_owned(), "tls.key".to_owned()].into());
        assert_eq!(secret("ca").keys, ["ca.crt".to_owned()].into());
        assert_eq!(secret("db").keys, ["url".to_owned()].into());
        assert!(secret("env").all);
        assert_eq!(secret("env").values, ["ACCESS_URL".to_owned()].into());
        assert_eq!(all[&Source::ConfigMap("settings".into())].values, [URL.to_owned()].into());
    }

    #[test]
    fn without_restarts_only_what_may_define_a_variable_is_read() {
        let pod = pod(json!({
            "restartOnConfigChange": false,
            "certs": {"secrets": [{"name": "ca", "key": "ca.crt"}]},
            "envFrom": [
                {"configMapRef": {"name": "settings"}},
                {"prefix": "OTHER_", "configMapRef": {"name": "other"}},
                {"prefix": URL, "configMapRef": {"name": "whole"}},
            ],
        }));
        let all = needed(&pod, &Tls::default(), &[URL]);
        assert_eq!(all.keys().cloned().collect::<Vec<_>>(), [Source::ConfigMap("settings".into())]);
        assert_eq!(checksum(&pod, &[(Source::ConfigMap("settings".into()), data(&[]))].into()), None);
    }

    #[test]
    fn a_variable_is_defined_by_the_key_that_its_prefix_leaves() {
        let from = |list: Value| pod(json!({"envFrom": list})).env_from;
        let map = Source::ConfigMap("m".into());
        let secret = Source::Secret("s".into());
        let given: SourceContents =
            [(map, data(&[("ACCESS_URL", "http://a")])), (secret, data(&[(URL, "http://secret")]))].into();
        for (list, expected) in [
            (
                json!([{"prefix": " CODER_ ", "configMapRef": {"name": "m"}}]),
                Defined::As("http://a".to_owned()),
            ),
            (json!([{"configMapRef": {"name": "m"}}]), Defined::No),
            (json!([{"prefix": URL, "configMapRef": {"name": "m"}}]), Defined::No),
            (json!([{"secretRef": {"name": "s"}}]), Defined::FromSecret),
            (json!([{"configMapRef": {"name": "missing", "optional": true}}]), Defined::No),
        ] {
            assert_eq!(definition(&from(list.clone()), URL, &given), expected, "{list}");
        }
    }

    #[test]
    fn the_checksum_follows_the_values_and_the_object() {
        let source = Source::Secret("s".into());
        let one = |uid: &str, value: Option<&'static [u8]>| digest(uid, &source, [("k", value)].into_iter());
        assert_eq!(one("u", Some(b"a")), one("u", Some(b"a")));
        assert_ne!(one("u", Some(b"a")), one("u", Some(b"b")));
        assert_ne!(one("u", Some(b"a")), one("v", Some(b"a")), "salted");
        assert_ne!(one("u", Some(b"a")), one("u", None));
        let sum = |found: SourceContent| checksum(&PodSettings::default(), &[(source.clone(), found)].into());
        assert_ne!(sum(SourceContent::Absent), sum(data(&[])));
        assert_eq!(checksum(&PodSettings::default(), &SourceContents::new()), None);
    }
}
