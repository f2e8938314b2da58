//! References to other objects.
//!
//! A reference never has a namespace: it always means the namespace of the object that contains it. Otherwise a
//! person who may create a custom resource could make the operator read Secrets that the person may not read.
//!
//! A name in a reference becomes part of a request path. The types of this crate bring their own rule; the names in
//! embedded Kubernetes types, which Kubernetes itself accepts whatever they are, get one from [`NAMES`].

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;

use crate::text::{DataKey, ObjectName};

/// A key of a Secret in the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    pub name: ObjectName,
    /// Key in the data of the Secret. The field that holds the reference documents the default.
    pub key: Option<DataKey>,
}

/// A key of a Secret in the same namespace. Both parts are required.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: ObjectName,
    /// Key in the data of the Secret.
    pub key: DataKey,
}

/// A Secret in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: ObjectName,
}

/// A CoderControlPlane in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneRef {
    /// Name of the CoderControlPlane.
    pub name: ObjectName,
}

/// The Secret and key that the operator uses, as reported on status.
///
/// The parts are plain strings without validation: the value may stem from another release, and a status that fails
/// validation could not be written any more.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportedSecretRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in the data of the Secret.
    pub key: Option<String>,
}

/// The form of a name, as the API server requires it of the object, namespace or key that bears the name.
#[derive(Clone, Copy)]
enum Form {
    /// A DNS subdomain, as of a Secret.
    Object,
    /// A DNS subdomain, or an empty string with a meaning of its own.
    ObjectOrEmpty,
    /// A DNS label.
    Namespace,
    /// A key in the data of a Secret or ConfigMap.
    DataKey,
    /// A DNS subdomain that may start with the name of a signer, separated by colons.
    TrustBundle,
}

/// The names in embedded Kubernetes types: the field, the field that contains it, if that matters, and the form.
const NAMES: &[(&str, Option<&str>, Form)] = &[
    ("name", Some("secretKeyRef"), Form::Object),
    ("name", Some("configMapKeyRef"), Form::Object),
    ("name", Some("secretRef"), Form::Object),
    ("name", Some("configMapRef"), Form::Object),
    ("name", Some("nodePublishSecretRef"), Form::Object),
    ("name", Some("secret"), Form::Object),
    ("name", Some("configMap"), Form::Object),
    ("name", Some("dataSource"), Form::Object),
    ("name", Some("dataSourceRef"), Form::Object),
    ("name", Some("clusterTrustBundle"), Form::TrustBundle),
    ("secretName", None, Form::Object),
    ("claimName", None, Form::Object),
    ("endpoints", None, Form::Object),
    ("gmsaCredentialSpecName", None, Form::Object),
    ("storageClassName", None, Form::ObjectOrEmpty),
    ("volumeAttributesClassName", None, Form::ObjectOrEmpty),
    ("volumeName", Some("spec"), Form::ObjectOrEmpty),
    ("namespace", Some("dataSourceRef"), Form::Namespace),
    ("namespaces", None, Form::Namespace),
    ("key", Some("secretKeyRef"), Form::DataKey),
    ("key", Some("configMapKeyRef"), Form::DataKey),
    ("key", Some("items"), Form::DataKey),
];

impl Form {
    fn schema(self) -> (&'static str, u32) {
        match self {
            Self::Object => {
                (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", MAX_OBJECT_NAME)
            }
            Self::ObjectOrEmpty => {
                (r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$", MAX_OBJECT_NAME)
            }
            Self::Namespace => (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", 63),
            Self::DataKey => (r"^[-._a-zA-Z0-9]+$", MAX_OBJECT_NAME),
            Self::TrustBundle => (r"^[a-z0-9]([-a-z0-9.:]*[a-z0-9])?$", MAX_OBJECT_NAME),
        }
    }
}

const MAX_OBJECT_NAME: u32 = 253;

/// Bounds the schema of a name. It is a `pattern` and not a CEL rule: the lists in embedded types have no upper bound, so
/// that the API server would reject the CRD for what a rule could cost.
fn bound(name: &mut Map<String, Value>, form: Form) {
    let (pattern, max) = form.schema();
    name.insert("pattern".into(), json!(pattern));
    name.insert("maxLength".into(), json!(max));
}

/// Bounds the schema of the name of an object.
pub(crate) fn bound_object_name(name: &mut Map<String, Value>) {
    bound(name, Form::Object);
}

/// Bounds every name of [`NAMES`] in the schema of an embedded type. `field` is the name of the field that has this schema.
pub(crate) fn bound_names(schema: &mut Map<String, Value>, field: &str) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, property) in properties {
        let form =
            NAMES.iter().find(|(known, within, _)| known == name && within.is_none_or(|it| it == field));
        let mut property = property.as_object_mut();
        while let Some(schema) = property {
            match form {
                Some((.., form)) if schema.get("type") == Some(&json!("string")) => bound(schema, *form),
                _ => bound_names(schema, name),
            }
            property = schema.get_mut("items").and_then(Value::as_object_mut);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        JSONSchemaProps, JSONSchemaPropsOrArray,
    };

    /// Names that look like references and refer to nothing in the API: endings of their paths.
    const NO_REFERENCES: &[&str] = &[
        // Within the pod, which the API server validates as a whole.
        ".env[].name",
        ".extraEnv[].name",
        ".ports[].name",
        ".volumeMounts[].name",
        ".volumeDevices[].name",
        ".claims[].name",
        ".containerName",
        ".fileKeyRef.key",
        ".fileKeyRef.volumeName",
        ".httpHeaders[].name",
        ".resourceName",
        ".sysctls[].name",
        ".runAsUserName",
        ".hostnames[]",
        ".signerName",
        // Names of labels, and rules of a Role, which the API server validates.
        ".matchExpressions[].key",
        ".matchFields[].key",
        ".tolerations[].key",
        ".resourceNames[]",
        // Names in storage systems.
        ".diskName",
        ".shareName",
        ".datasetName",
        ".pdName",
        ".initiatorName",
        ".storagePolicyName",
        ".scaleIO.volumeName",
        ".storageos.volumeName",
        ".storageos.volumeNamespace",
        // Text that coderd shows.
        ".displayName",
    ];

    fn strings(path: &str, schema: &JSONSchemaProps, found: &mut Vec<(String, JSONSchemaProps)>) {
        if schema.type_.as_deref() == Some("string") {
            found.push((path.to_owned(), schema.clone()));
        }
        for (name, property) in schema.properties.iter().flatten() {
            // Kubernetes refuses all metadata of a claim template but labels and annotations.
            if !path.ends_with(".volumeClaimTemplate") || name != "metadata" {
                strings(&format!("{path}.{name}"), property, found);
            }
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            strings(&format!("{path}[]"), items, found);
        }
    }

    fn looks_like_a_reference(path: &str) -> bool {
        let field = path.rsplit('.').next().unwrap_or_default().trim_end_matches("[]").to_lowercase();
        let ends = ["name", "names", "namespace", "namespaces"].iter().any(|end| field.ends_with(end));
        ends || matches!(&*field, "key" | "endpoints") || path.ends_with("Ref")
    }

    fn is_bounded(schema: &JSONSchemaProps) -> bool {
        let rules = schema.x_kubernetes_validations.iter().flatten();
        let by_rule = rules.into_iter().any(|rule| rule.rule.contains(".matches('^"));
        schema.enum_.is_some() || (schema.max_length.is_some() && (schema.pattern.is_some() || by_rule))
    }

    #[test]
    fn every_name_in_a_spec_has_a_form_and_a_bound() {
        let mut references = 0;
        for crd in crate::crds() {
            let root = crd.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
            let mut found = Vec::new();
            strings("spec", &root.properties.as_ref().unwrap()["spec"], &mut found);
            let of_objects = found.iter().filter(|(path, _)| {
                looks_like_a_reference(path) && !NO_REFERENCES.iter().any(|end| path.ends_with(end))
            });
            for (path, schema) in of_objects {
                assert!(is_bounded(schema), "{}: {path} has no pattern", crd.spec.names.kind);
                references += 1;
            }
        }
        assert!(references > 150, "only {references} references were found");
    }
}
