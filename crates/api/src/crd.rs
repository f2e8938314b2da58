//! The CRDs as they are installed.
//!
//! The derive macros write almost all of it. What they cannot express is mended here: no field accepts
//! `null` (the API server then drops a null, or puts the default in its place), and a CoderControlPlane needs no `spec`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{CoderControlPlane, CoderControlPlaneSpec, CoderProvisioner, CoderWorkspaceProxy};

/// The CRDs of all kinds.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut control_plane = CoderControlPlane::crd();
    for root in roots(&mut control_plane) {
        make_spec_optional(root);
    }
    let mut crds = vec![control_plane, CoderProvisioner::crd(), CoderWorkspaceProxy::crd()];
    for root in crds.iter_mut().flat_map(roots) {
        refuse_nulls(root);
    }
    crds
}

fn roots(crd: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

/// An absent `spec` becomes one with all its defaults. They are spelled out, because the API server
/// holds the rules of the schema against a default as it is written.
fn make_spec_optional(root: &mut JSONSchemaProps) {
    if let Some(required) = &mut root.required {
        required.retain(|field| field != "spec");
    }
    root.required.take_if(|required| required.is_empty());
    if let Some(spec) = root.properties.as_mut().and_then(|properties| properties.get_mut("spec")) {
        spec.default = serde_json::to_value(CoderControlPlaneSpec::default()).ok().map(JSON);
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
