//! The chart installs what `coder-k8s manifests` prints.

use coder_k8s::manifests::{self, Install};
use serde_json::{Value, json};

use crate::helm::{Helm, RELEASE, chart, names};

/// Without what is known to differ: labels and annotations, the fixed user id, and what Kubernetes would set by default.
fn essence(object: &Value) -> Value {
    let mut object = object.clone();
    for field in ["labels", "annotations"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    if let Some(template) = object.pointer_mut("/spec/template").filter(|template| template.is_object()) {
        template["metadata"] = json!({});
        let context = template["spec"]["securityContext"].as_object_mut().unwrap();
        context.retain(|field, _| !["runAsUser", "runAsGroup"].contains(&field.as_str()));
        template["spec"]["containers"][0].as_object_mut().unwrap().remove("imagePullPolicy");
    }
    object
}

#[tokio::test]
async fn the_chart_and_the_manifests_install_the_same_objects() {
    let helm = Helm::new();
    for watch_namespaces in [vec![], vec!["team-a".to_owned(), "team-b".to_owned()]] {
        for replicas in [1, 2] {
            let values = json!({"watchNamespaces": watch_namespaces, "replicas": replicas});
            let watch_namespaces = watch_namespaces.clone();
            let install = Install { watch_namespaces, replicas, with_crds: true, ..Install::default() };
            let mut of_manifests = manifests::objects(&install).unwrap();
            of_manifests.retain(|object| object["kind"] != "Namespace");
            let of_chart = helm.render(&chart(), RELEASE, &values).await;
            assert_eq!(names(&of_chart), names(&of_manifests));
            for object in &of_chart {
                let name = names(std::slice::from_ref(object));
                let same =
                    of_manifests.iter().find(|other| names(std::slice::from_ref(*other)) == name).unwrap();
                assert_eq!(essence(object), essence(same), "{name:?}");
                // The chart adds labels and takes none away.
                for (label, value) in same["metadata"]["labels"].as_object().into_iter().flatten() {
                    assert_eq!(&object["metadata"]["labels"][label], value, "{name:?}: {label}");
                }
            }
        }
    }
}
