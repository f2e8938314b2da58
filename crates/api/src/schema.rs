//! Parts of the JSON schemas that the derive macros cannot express.
//!
//! Embedded Kubernetes types keep their structure and lose their descriptions: with them, one CRD would exceed the
//! size of an annotation, in which client-side `kubectl apply` stores it. Every list and string that a CEL rule reads
//! has an upper bound, because the API server rejects a CRD whose rules could cost too much for the largest possible
//! input.

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, LocalObjectReference, Volume, VolumeMount,
};
use k8s_openapi::api::rbac::v1::PolicyRule;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::refs::{bound_names, bound_object_name};

/// Upper bound of lists of containers, volumes, mounts and references.
const MAX_ITEMS: u32 = 128;
/// Upper bound of lists of environment variables.
const MAX_ENV: u32 = 512;
/// CEL rule for the name of a volume or container.
const DNS_LABEL: &str = "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')";

/// The schema of an embedded Kubernetes type: without descriptions, and with bounds on the names of other objects.
pub(crate) fn embed<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<T>();
    if let Some(object) = schema.as_object_mut() {
        strip_descriptions(object);
        bound_names(object, "");
        bound_numbers_or_texts(object);
    }
    schema
}

/// Fields of embedded types that hold a number of 32 bits or a text. The others that hold a number or a text are quantities,
/// whose number has no such bound.
const NUMBERS_OR_TEXTS: [&str; 4] = ["port", "maxSurge", "maxUnavailable", "minAvailable"];

/// The bounds of a number of 32 bits, for a field that holds such a number or a text: the API server checks the number
/// of a field with `x-kubernetes-int-or-string` against no format.
pub(crate) fn bound_to_32_bits(schema: &mut Map<String, Value>) {
    schema.insert("minimum".into(), json!(i32::MIN));
    schema.insert("maximum".into(), json!(i32::MAX));
}

fn bound_numbers_or_texts(schema: &mut Map<String, Value>) {
    for (keyword, value) in schema.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    let Some(property) = property.as_object_mut() else { continue };
                    let is_either = property.get("x-kubernetes-int-or-string") == Some(&json!(true));
                    if is_either && NUMBERS_OR_TEXTS.contains(&name.as_str()) {
                        bound_to_32_bits(property);
                    }
                    bound_numbers_or_texts(property);
                }
            }
            ("items" | "additionalProperties", Value::Object(inner)) => bound_numbers_or_texts(inner),
            _ => {}
        }
    }
}

/// A bounded list of an embedded Kubernetes type.
pub(crate) fn embed_list<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    list(&embed::<T>(generator), MAX_ITEMS)
}

/// Environment variables: unique by name, each with a value or exactly one source.
pub(crate) fn env_vars(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<EnvVar>(generator);
    bound_name(
        &mut entry,
        253,
        "size(self.trim()) > 0 && !self.contains('=')",
        "an environment variable needs a name, and the name has no '='",
    );
    if let Some(source) = property(&mut entry, "valueFrom") {
        source.insert("minProperties".into(), json!(1));
        source.insert("maxProperties".into(), json!(1));
        for reference in ["secretKeyRef", "configMapKeyRef"] {
            if let Some(reference) = nested(source, reference) {
                require_name(reference);
            }
        }
    }
    add_rule(
        &mut entry,
        "!has(self.valueFrom) || !has(self.value) || self.value == ''",
        "an environment variable has either a value or a valueFrom, not both",
    );
    keyed_list(&entry, MAX_ENV, "name")
}

/// `envFrom` entries, each with exactly one of a ConfigMap and a Secret.
pub(crate) fn env_from(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<EnvFromSource>(generator);
    add_rule(
        &mut entry,
        "!(has(self.configMapRef) && has(self.secretRef))",
        "an envFrom entry names one source: configMapRef or secretRef, not both",
    );
    add_rule(
        &mut entry,
        "has(self.configMapRef) || has(self.secretRef)",
        "an envFrom entry needs a configMapRef or a secretRef",
    );
    for source in ["configMapRef", "secretRef"] {
        if let Some(reference) = property(&mut entry, source) {
            require_name(reference);
        }
    }
    list(&entry, MAX_ITEMS)
}

/// Volumes: unique by name, each with at most one source.
pub(crate) fn volumes(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<Volume>(generator);
    bound_name(
        &mut entry,
        63,
        DNS_LABEL,
        "a volume's name is a DNS label: lower-case letters, digits and '-', at most 63 characters",
    );
    if let Some(volume) = entry.as_object_mut() {
        // The name and one source: Kubernetes has no other way to say "at most one source".
        volume.insert("maxProperties".into(), json!(2));
        let template = nested(volume, "ephemeral").and_then(|source| nested(source, "volumeClaimTemplate"));
        let metadata = template.and_then(|template| nested(template, "metadata"));
        if let Some(Value::Object(fields)) = metadata.and_then(|metadata| metadata.get_mut("properties")) {
            // Kubernetes copies these alone and refuses a pod with any other. Among the others are times, and the API
            // server accepts a list where a schema asks for a text with a format.
            fields.retain(|name, _| ["labels", "annotations"].contains(&name.as_str()));
        }
    }
    keyed_list(&entry, MAX_ITEMS, "name")
}

/// Volume mounts, unique by mount path.
pub(crate) fn volume_mounts(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<VolumeMount>(generator);
    for field in ["mountPath", "name"] {
        if let Some(text) = property(&mut entry, field) {
            text.insert("minLength".into(), json!(1));
        }
    }
    keyed_list(&entry, MAX_ITEMS, "mountPath")
}

/// Init containers, unique by name.
pub(crate) fn containers(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<Container>(generator);
    bound_name(
        &mut entry,
        63,
        DNS_LABEL,
        "a container's name is a DNS label: lower-case letters, digits and '-', at most 63 characters",
    );
    keyed_list(&entry, MAX_ITEMS, "name")
}

/// References to image pull Secrets, unique by name.
pub(crate) fn pull_secrets(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<LocalObjectReference>(generator);
    if let Some(object) = entry.as_object_mut() {
        require_name(object);
    }
    keyed_list(&entry, MAX_ITEMS, "name")
}

/// Rules that a Role accepts: no `nonResourceURLs`, and at least one verb, API group and resource.
pub(crate) fn role_rules(generator: &mut SchemaGenerator) -> Schema {
    let mut entry = embed::<PolicyRule>(generator);
    if let Some(verbs) = property(&mut entry, "verbs") {
        verbs.insert("minItems".into(), json!(1));
    }
    add_rule(
        &mut entry,
        "!has(self.nonResourceURLs) && has(self.apiGroups) && has(self.resources) && size(self.apiGroups) > 0 && size(self.resources) > 0",
        "a rule of a Role names apiGroups and resources, and no nonResourceURLs",
    );
    list(&entry, MAX_ITEMS)
}

/// A map of strings with bounds, so that CEL rules may read it.
pub(crate) fn string_map(_: &mut SchemaGenerator) -> Schema {
    schema(json!({
        "type": "object",
        "maxProperties": 256,
        "additionalProperties": {"type": "string", "maxLength": 65536},
    }))
}

/// A list of non-empty strings.
pub(crate) fn arguments(_: &mut SchemaGenerator) -> Schema {
    schema(json!({
        "type": "array",
        "maxItems": MAX_ITEMS,
        "items": {"type": "string", "minLength": 1, "maxLength": 8192},
    }))
}

/// The value that the API server stores for `{}`: every default is stated once, in the attribute of its field.
#[expect(clippy::expect_used, reason = "a type with a required field has no default, and a test says so")]
pub(crate) fn defaults<T: DeserializeOwned>() -> T {
    // invariant: the types that call this have no required field.
    serde_json::from_value(json!({})).expect("every field has a default")
}

/// Converts a JSON object literal into a schema.
pub(crate) fn schema(value: Value) -> Schema {
    match value {
        Value::Object(object) => Schema::from(object),
        other => Schema::from(other.as_bool().unwrap_or(true)),
    }
}

/// Adds a CEL rule. `message` is what `kubectl apply` prints when the rule fails.
pub(crate) fn add_rule(schema: &mut Schema, rule: &str, message: &str) {
    if let Some(object) = schema.as_object_mut() {
        push_rule(object, rule, message);
    }
}

fn push_rule(object: &mut Map<String, Value>, rule: &str, message: &str) {
    let rules = object.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Some(rules) = rules.as_array_mut() {
        rules.push(json!({"rule": rule, "message": message}));
    }
}

fn list(items: &Schema, max: u32) -> Schema {
    schema(json!({"type": "array", "maxItems": max, "items": items}))
}

/// A list whose entries differ in `key`, by which server-side apply merges them.
fn keyed_list(items: &Schema, max: u32, key: &str) -> Schema {
    schema(json!({
        "type": "array",
        "maxItems": max,
        "items": items,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }))
}

/// Bounds the `name` of a list entry and adds a CEL rule, which reads the name as `self`.
fn bound_name(entry: &mut Schema, max: u32, rule: &str, message: &str) {
    if let Some(name) = property(entry, "name") {
        name.insert("maxLength".into(), json!(max));
        push_rule(name, rule, message);
    }
}

/// Makes the name of a reference required and non-blank. The schema of Kubernetes defaults it to an empty string.
fn require_name(reference: &mut Map<String, Value>) {
    match reference.get_mut("required").and_then(Value::as_array_mut) {
        Some(required) if !required.contains(&json!("name")) => required.push(json!("name")),
        Some(_) => {}
        None => drop(reference.insert("required".into(), json!(["name"]))),
    }
    if let Some(name) = nested(reference, "name") {
        name.remove("default");
        bound_object_name(name);
        push_rule(name, "size(self.trim()) > 0", "the name of the referenced object is missing");
    }
}

fn nested<'a>(object: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut("properties")?.get_mut(name)?.as_object_mut()
}

fn property<'a>(schema: &'a mut Schema, name: &str) -> Option<&'a mut Map<String, Value>> {
    nested(schema.as_object_mut()?, name)
}

/// Removes descriptions recursively. The keys of `properties` are names of fields, so a field called `description`
/// stays.
fn strip_descriptions(object: &mut Map<String, Value>) {
    object.remove("description");
    for (keyword, value) in object.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for property in properties.values_mut().filter_map(Value::as_object_mut) {
                    strip_descriptions(property);
                }
            }
            ("items" | "additionalProperties", Value::Object(inner)) => strip_descriptions(inner),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_with_defaults_can_be_left_out() {
        let spec = crate::CoderControlPlaneSpec::default();
        assert_eq!((spec.replicas, spec.service.port, spec.prometheus.port), (1, 80, 2112));
        assert_eq!((spec.pod.progress_deadline_seconds, spec.pod.restart_on_config_change), (600, true));
        assert!(spec.rbac.workspace_perms && spec.rbac.enable_deployments && spec.rbac.own_namespace);
        assert_eq!(spec.rbac, crate::WorkspaceRbac::default());
        assert_eq!(spec.image.as_str(), crate::DEFAULT_IMAGE);
    }

    /// The API server would store a value that this operator cannot parse: a list in place of a text with a format, or a
    /// number that its type has no room for.
    #[test]
    fn whatever_a_schema_accepts_can_be_parsed() {
        fn walk(path: &str, schema: &Value, wrong: &mut Vec<String>) {
            if schema["type"] == "string" && !schema["format"].is_null() {
                wrong.push(format!("{path} is a text with a format"));
            }
            if schema["type"] == "integer" && schema["format"].is_null() {
                wrong.push(format!("{path} is a number without bounds"));
            }
            let name = path.rsplit('.').next().unwrap();
            let is_quantity = ["divisor", "sizeLimit"].contains(&name) || name.ends_with("{}");
            if schema["x-kubernetes-int-or-string"] == true
                && !is_quantity
                && (schema["minimum"].as_f64(), schema["maximum"].as_f64())
                    != (Some(i32::MIN.into()), Some(i32::MAX.into()))
            {
                wrong.push(format!("{path} is a number or a text without bounds"));
            }
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                walk(&format!("{path}.{name}"), property, wrong);
            }
            for (inner, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
                if schema[inner].is_object() {
                    walk(&format!("{path}{mark}"), &schema[inner], wrong);
                }
            }
        }
        let mut wrong = Vec::new();
        for crd in crate::crds() {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
            let spec = &schema["openAPIV3Schema"]["properties"]["spec"];
            walk(&crd.spec.names.kind, spec, &mut wrong);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_property_called_description_survives_the_stripping() {
        let mut object = json!({
            "description": "gone",
            "properties": {"description": {"type": "string", "description": "gone"}},
            "items": {"description": "gone", "type": "string"},
        });
        strip_descriptions(object.as_object_mut().unwrap());
        assert_eq!(
            object,
            json!({"properties": {"description": {"type": "string"}}, "items": {"type": "string"}})
        );
    }
}
