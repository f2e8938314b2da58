//! The Secrets, ConfigMaps and Namespaces that an object refers to: a change of one of them enqueues the object.

use std::collections::BTreeSet;

use coder_k8s_api::{
    AccessMethod, CoderControlPlane, CoderProvisioner, CoderWorkspaceProxy, PodSettings, Tls, WorkspaceRbac,
};
use kube::{Resource, ResourceExt};

use crate::{
    names, provisioner,
    sources::{self, Source},
    workspaceproxy,
};

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
    sources::used(pod, tls).into_iter().map(reference).collect()
}

#[cfg(test)]
mod tests {
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
}
