//! The CRDs as they are installed, and the paths of their fields.
//!
//! The derive macros generate almost everything. Five things that they cannot express are changed here: no field is
//! nullable (the API server then drops a null, or replaces it by the default), a CoderControlPlane needs no `spec`, only a
//! few defaults are stored with an object, each condition has one manager, and a field that all kinds have carries the rules
//! of its kind. A stored default and a managed field cost the API server time and memory with every write of the object; the
//! operator knows all defaults anyway.
//!
//! A rule belongs to the field that it is about. The API server evaluates the rules of `spec` with every write, of the status
//! too, and copies the schema of all fields of the spec for each one that a rule reads.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{
    CoderControlPlane, CoderControlPlaneSpec, CoderKind, CoderProvisioner, CoderWorkspaceProxy, controlplane,
    pod::FieldRule, provisioner, workspaceproxy,
};

/// The CRDs of all kinds, ready to be applied.
pub fn crds() -> Vec<CustomResourceDefinition> {
    CoderKind::ALL.iter().copied().map(crd).collect()
}

fn crd(kind: CoderKind) -> CustomResourceDefinition {
    let (mut crd, rules) = match kind {
        CoderKind::ControlPlane => (CoderControlPlane::crd(), controlplane::FIELD_RULES),
        CoderKind::Provisioner => (CoderProvisioner::crd(), provisioner::FIELD_RULES),
        CoderKind::WorkspaceProxy => (CoderWorkspaceProxy::crd(), workspaceproxy::FIELD_RULES),
    };
    for root in roots(&mut crd) {
        if kind == CoderKind::ControlPlane {
            make_spec_optional(root);
        }
        refuse_nulls(root);
        hide_defaults("", root);
        make_conditions_whole(root);
        add_field_rules(root, rules);
    }
    crd
}

/// The fields whose defaults the API server stores, so that `kubectl get -o yaml` shows them. The paths are the same for
/// each kind.
const VISIBLE_DEFAULTS: [&str; 5] =
    ["spec.image", "spec.replicas", "spec.service", "spec.service.type", "spec.service.port"];

/// Removes the defaults of our own fields, which alone have a description, but for those that are to be seen.
fn hide_defaults(path: &str, schema: &mut JSONSchemaProps) {
    let own = |field: &&mut JSONSchemaProps| field.description.is_some();
    for (name, field) in schema.properties.iter_mut().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if let Some(field) = Some(field).filter(own) {
            match &mut field.default {
                Some(JSON(default)) if path == "spec" || path == "spec.service" => {
                    keep_visible(&path, default);
                }
                default if !VISIBLE_DEFAULTS.contains(&&*path) => *default = None,
                _ => {}
            }
            hide_defaults(&path, field);
        }
    }
}

/// Removes from a default the fields whose own defaults are not stored.
fn keep_visible(path: &str, default: &mut Value) {
    let Some(fields) = default.as_object_mut() else { return };
    fields.retain(|name, _| VISIBLE_DEFAULTS.contains(&&*format!("{path}.{name}")));
    for (name, value) in fields {
        keep_visible(&format!("{path}.{name}"), value);
    }
}

/// Paths of the fields of our own types, such as `spec.expose.ingress`, down to the fourth level, without those of embedded
/// Kubernetes types. Only fields of our own types have a description. The operator compares them with an installed CRD to
/// find out whether it is outdated.
pub fn own_field_paths(crd: &CustomResourceDefinition) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for version in crd.spec.versions.iter().filter(|version| version.served) {
        let root = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        for (name, field) in root.and_then(|root| root.properties.as_ref()).into_iter().flatten() {
            collect(name, field, 3, &mut paths);
            paths.insert(name.clone());
        }
    }
    paths
}

/// [`own_field_paths`] of our CRDs by the name of the CRD. They come from a generated file, so that a running
/// operator does not have to build its schemas.
pub fn fields() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (crd, path) in include_str!("../generated/fields.txt").lines().filter_map(|line| line.split_once(' '))
    {
        all.entry(crd).or_default().push(path);
    }
    all
}

/// [`crds`] as JSON. They come from a generated file, so that the program does not contain what builds schemas.
pub fn crds_json() -> Vec<Value> {
    // A test says that the file is a list of CRDs.
    serde_json::from_str(include_str!("../generated/crds.json")).unwrap_or_default()
}

fn collect(path: &str, schema: &JSONSchemaProps, depth: usize, paths: &mut BTreeSet<String>) {
    if depth == 0 {
        return;
    }
    let own = |(_, field): &(_, &JSONSchemaProps)| field.description.is_some();
    for (name, field) in schema.properties.iter().flatten().filter(own) {
        let path = format!("{path}.{name}");
        collect(&path, field, depth - 1, paths);
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &field.items {
            collect(&format!("{path}[]"), item, depth - 1, paths);
        }
        paths.insert(path);
    }
}

fn roots(crd: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// Gives an absent `spec` all defaults. They are spelled out, because the API server validates a default as written,
/// before it applies the defaults of nested fields.
fn make_spec_optional(root: &mut JSONSchemaProps) {
    if let Some(required) = &mut root.required {
        required.retain(|field| field != "spec");
    }
    root.required.take_if(|required| required.is_empty());
    if let Some(spec) = root.properties.as_mut().and_then(|properties| properties.get_mut("spec")) {
        spec.default = serde_json::to_value(CoderControlPlaneSpec::default()).ok().map(JSON);
    }
}

/// Gives each condition, and each object in the status, one manager instead of one for each of its fields. Nobody changes the
/// reason of a condition and leaves its message. The status keeps separate managers for its conditions, by their types.
fn make_conditions_whole(root: &mut JSONSchemaProps) {
    let whole = |schema: &mut JSONSchemaProps| schema.x_kubernetes_map_type = Some("atomic".to_owned());
    let status = root.properties.as_mut().and_then(|fields| fields.get_mut("status"));
    for field in
        status.and_then(|status| status.properties.as_mut()).into_iter().flat_map(BTreeMap::values_mut)
    {
        match (field.type_.as_deref(), &mut field.items) {
            (Some("object"), _) => whole(field),
            (_, Some(JSONSchemaPropsOrArray::Schema(entry)))
                if field.x_kubernetes_list_type.as_deref() == Some("map") =>
            {
                whole(entry);
            }
            _ => {}
        }
    }
}

fn add_field_rules(root: &mut JSONSchemaProps, rules: &[FieldRule]) {
    let spec = root.properties.as_mut().and_then(|fields| fields.get_mut("spec"));
    let Some(fields) = spec.and_then(|spec| spec.properties.as_mut()) else { return };
    for FieldRule { field, rule, message } in rules.iter().copied() {
        if let Some(schema) = fields.get_mut(field) {
            schema.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
                rule: rule.to_owned(),
                message: Some(message.to_owned()),
                ..ValidationRule::default()
            });
        }
    }
}

fn refuse_nulls(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| value.0 != Value::Null);
    }
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(refuse_nulls);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => refuse_nulls(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(refuse_nulls),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        refuse_nulls(values);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_few_defaults_are_stored_and_the_others_are_known_to_the_operator_alone() {
        let mut plane = crds().remove(0);
        let root = roots(&mut plane).next().unwrap();
        let spec = root.properties.as_ref().unwrap()["spec"].clone();
        let stored = json!({"image": crate::DEFAULT_IMAGE, "replicas": 1, "service": {"type": "ClusterIP", "port": 80}});
        assert_eq!(spec.default.unwrap().0, stored);
        let fields = spec.properties.unwrap();
        let visible: Vec<_> =
            fields.iter().filter(|(_, field)| field.default.is_some()).map(|(name, _)| name).collect();
        assert_eq!(visible, ["image", "replicas", "service"]);
        let service = fields["service"].properties.as_ref().unwrap();
        assert_eq!(
            (service["port"].default.as_ref().unwrap().0.as_i64(), fields["rbac"].default.is_none()),
            (Some(80), true)
        );
        assert_eq!(
            serde_json::from_value::<CoderControlPlaneSpec>(stored).unwrap(),
            CoderControlPlaneSpec::default()
        );
    }

    #[test]
    fn each_condition_and_each_object_of_a_status_has_one_manager() {
        for mut crd in crds() {
            let root = roots(&mut crd).next().unwrap();
            let mut status = root.properties.as_ref().unwrap()["status"].properties.clone().unwrap();
            let Some(JSONSchemaPropsOrArray::Schema(condition)) = status.remove("conditions").unwrap().items
            else {
                panic!("a list of conditions");
            };
            assert_eq!(condition.x_kubernetes_map_type.as_deref(), Some("atomic"));
            for (name, field) in status.iter().filter(|(_, field)| field.type_.as_deref() == Some("object")) {
                assert_eq!(field.x_kubernetes_map_type.as_deref(), Some("atomic"), "{name}");
            }
        }
    }

    #[test]
    fn a_rule_belongs_to_the_field_that_it_is_about() {
        for kind in CoderKind::ALL {
            let mut crd = crd(*kind);
            let root = roots(&mut crd).next().unwrap();
            let spec = root.properties.as_ref().unwrap()["spec"].clone();
            for rule in spec.x_kubernetes_validations.unwrap() {
                let words = rule.rule.split("self.").skip(1);
                let read: BTreeSet<_> =
                    words.map(|word| word.split(|c: char| !c.is_alphanumeric()).next().unwrap()).collect();
                assert!(read.len() > 1, "{kind:?}: {} reads {read:?} alone", rule.rule);
            }
            let init = spec.properties.unwrap()["initContainers"].x_kubernetes_validations.clone().unwrap();
            assert!(init[0].message.as_ref().unwrap().starts_with("an init container must not be called"));
        }
    }

    #[test]
    fn the_crds_that_are_written_down_are_those_of_the_types() {
        assert_eq!(
            Value::Array(crds_json()),
            serde_json::to_value(crds()).unwrap(),
            "run `cargo xtask generate`"
        );
    }

    #[test]
    fn the_fields_that_are_written_down_are_those_of_the_crds() {
        for crd in crds() {
            let name = crd.metadata.name.clone().unwrap();
            let written: BTreeSet<_> = fields()[&*name].iter().map(ToString::to_string).collect();
            assert_eq!(written, own_field_paths(&crd), "run `cargo xtask generate`");
        }
    }
}
