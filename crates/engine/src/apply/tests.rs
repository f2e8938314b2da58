use k8s_openapi::{api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::api::ObjectMeta;

use std::collections::BTreeMap;

use super::{desired::DesiredObject, *};

/// The annotation that the operator would hand in.
const UID: &str = "example.com/owner-uid";

fn owner() -> Owner {
    Owner {
        namespace: "ns".into(),
        reference: OwnerReference {
            api_version: "example.com/v1".into(),
            kind: "Widget".into(),
            name: "main".into(),
            uid: "1".into(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        },
        labels: [("app.kubernetes.io/managed-by".to_owned(), "coder-k8s".to_owned())].into(),
        mark: OwnerMark::ControllerReference,
        parts: Vec::new(),
    }
}

fn account(annotation: Option<&str>, owners: Vec<OwnerReference>) -> ServiceAccount {
    ServiceAccount {
        metadata: ObjectMeta {
            name: Some("coder".into()),
            annotations: annotation.map(|value| [(annotation::ADOPT_BY.to_owned(), value.to_owned())].into()),
            owner_references: Some(owners),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    }
}

#[test]
fn the_hash_changes_with_the_content_and_not_with_the_run() {
    let mut other = account(None, vec![]);
    other.automount_service_account_token = Some(false);
    let hash = |object| DesiredObject::new(&owner(), object).unwrap().hash;
    assert_eq!(hash(account(None, vec![])), hash(account(None, vec![])));
    assert_ne!(hash(account(None, vec![])), hash(other));
}

#[test]
fn only_the_same_incarnation_of_the_owner_owns() {
    let (me, mut before) = (owner(), owner().reference);
    assert!(me.owns(&account(None, vec![me.reference.clone()])));
    before.uid = "0".into();
    assert!(!me.owns(&account(None, vec![before])));
    let mut guest = owner().reference;
    guest.controller = None;
    assert!(!me.owns(&account(None, vec![guest])));
}

#[test]
fn in_another_namespace_the_annotation_marks_and_no_reference_is_written() {
    let me = owner().in_namespace("dev", UID);
    let marked = |uid: &str| {
        let mut object = account(None, vec![]);
        let mark = (UID.to_owned(), uid.to_owned());
        object.metadata.annotations = Some([mark].into());
        object
    };
    assert!(me.owns(&marked("1")) && !me.owns(&marked("2")));
    let desired = DesiredObject::new(&me, marked("1")).unwrap();
    assert_eq!(desired.object["metadata"].get("ownerReferences"), None);
    assert_eq!(desired.object["metadata"]["namespace"], "dev");
    let mut labelled = marked("0");
    assert!(!desired.labels_match(&labelled));
    labelled.metadata.labels = Some(me.labels.clone());
    assert!(desired.labels_match(&labelled), "left by an earlier object of the same name");
}

#[test]
fn an_object_is_handed_over_by_name_and_only_without_a_controller() {
    let me = owner();
    assert!(me.was_given(&account(Some("Widget/main"), vec![])));
    assert!(!me.was_given(&account(Some("Widget/other"), vec![])));
    assert!(!me.was_given(&account(None, vec![])));
    let mut other = me.reference.clone();
    other.uid = "2".into();
    assert!(!me.was_given(&account(Some("Widget/main"), vec![other])));
}

#[test]
fn a_hand_over_stops_at_what_cannot_be_taken_over() {
    let me = owner();
    let labels: BTreeMap<_, _> = [("app".to_owned(), "main".to_owned())].into();
    let part = Part::deployment("coder".into(), labels);
    let mut other = me.reference.clone();
    other.kind = "Gadget".into();
    let mut before = me.reference.clone();
    before.uid = "0".into();
    let (given, ours) = (Some("Widget/main"), json!({"matchLabels": {"app": "main"}}));
    let theirs = json!({"matchLabels": {"app": "theirs"}});
    let more =
        json!({"matchLabels": {"app": "main"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]});
    for (annotation, owners, selector, obstacle) in [
        (given, vec![], &ours, None),
        (None, vec![me.reference.clone()], &ours, None),
        (None, vec![before], &theirs, None),
        (None, vec![], &ours, Some("coder.com/adopt-by=Widget/main")),
        (given, vec![other], &ours, Some("belongs to somebody else")),
        (given, vec![], &theirs, Some("has another selector")),
        (given, vec![], &more, Some("has another selector")),
    ] {
        let mut live = DynamicObject::new("coder", &part.resource);
        live.metadata = account(annotation, owners).metadata;
        live.data = json!({"spec": {"selector": selector}});
        let found = me.obstacle(&part, &live);
        match (&found, obstacle) {
            (Some(found), Some(part)) => assert!(found.contains(part), "{found}"),
            _ => assert_eq!(found.as_deref(), obstacle, "{live:?}"),
        }
    }
}
