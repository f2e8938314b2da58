//! A custom resource without behaviour.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;

pub(crate) fn crd() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": { "name": "widgets.testbed.coder.com" },
        "spec": {
            "group": "testbed.coder.com",
            "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    }))
    .unwrap()
}

pub(crate) fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("testbed.coder.com", "v1", "Widget"))
}
