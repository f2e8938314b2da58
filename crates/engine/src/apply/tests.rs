use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::ObjectMeta;

use super::*;

fn owner() -> Owner {
    Owner {
        namespace: "ns".into(),
        reference: OwnerReference {
            api_version: "coder.com/v1alpha1".into(),
            kind: "CoderControlPlane".into(),
            name: "coder".into(),
            uid: "1".into(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        },
        labels: [("app.kubernetes.io/managed-by".to_owned(), "coder-k8s".to_owned())].into(),
        claim: Claim::Reference,
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
    let hash = |object| Wanted::new(&owner(), object).unwrap().hash;
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
fn elsewhere_the_mark_counts_and_no_reference_is_written() {
    let me = owner().outside("dev");
    let marked = |uid: &str| {
        let mut object = account(None, vec![]);
        let mark = (annotation::WORKSPACE_RBAC_OWNER_UID.to_owned(), uid.to_owned());
        object.metadata.annotations = Some([mark].into());
        object
    };
    assert!(me.owns(&marked("1")) && !me.owns(&marked("2")));
    let wanted = Wanted::new(&me, marked("1")).unwrap();
    assert_eq!(wanted.object["metadata"].get("ownerReferences"), None);
    assert_eq!(wanted.object["metadata"]["namespace"], "dev");
    let mut labelled = marked("0");
    assert!(!wanted.is_labelled(&labelled));
    labelled.metadata.labels = Some(me.labels.clone());
    assert!(wanted.is_labelled(&labelled), "left by an earlier object of the same name");
}

#[test]
fn an_object_is_handed_over_by_name_and_only_if_nobody_controls_it() {
    let me = owner();
    assert!(me.was_given(&account(Some("CoderControlPlane/coder"), vec![])));
    assert!(!me.was_given(&account(Some("CoderControlPlane/other"), vec![])));
    assert!(!me.was_given(&account(None, vec![])));
    let mut other = me.reference.clone();
    other.uid = "2".into();
    assert!(!me.was_given(&account(Some("CoderControlPlane/coder"), vec![other])));
}
