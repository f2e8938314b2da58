//! The owner of children, and how its children differ from objects of others.

use std::collections::BTreeMap;

use coder_k8s_api::names::annotation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// The object that children belong to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Namespace of the children.
    pub namespace: String,
    /// The controller reference to the owner.
    pub reference: OwnerReference,
    /// Labels that are added to each child.
    pub labels: BTreeMap<String, String>,
    /// How a child shows that it belongs to the owner.
    pub mark: OwnerMark,
}

/// How a child shows that it belongs to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerMark {
    /// By its controller reference. The garbage collector deletes the child with its owner.
    ControllerReference,
    /// By an annotation of this name with the uid of the owner. For children in other namespaces, where owner
    /// references are not valid. The operator must delete these children itself.
    UidAnnotation(&'static str),
}

impl Owner {
    /// The same owner with children in another namespace, marked by the annotation `uid_annotation`.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str, uid_annotation: &'static str) -> Self {
        let mark = OwnerMark::UidAnnotation(uid_annotation);
        Self { namespace: namespace.to_owned(), mark, ..self.clone() }
    }

    /// The value of the annotation that hands an object over to this owner: `<kind>/<name>`.
    pub(crate) fn adopt_value(&self) -> String {
        format!("{}/{}", self.reference.kind, self.reference.name)
    }

    /// Whether an object belongs to this incarnation of the owner.
    pub(super) fn owns<K: Resource>(&self, object: &K) -> bool {
        match self.mark {
            OwnerMark::ControllerReference => {
                self.controllers_of_our_name(object).any(|reference| reference.uid == self.reference.uid)
            }
            OwnerMark::UidAnnotation(name) => object.annotations().get(name) == Some(&self.reference.uid),
        }
    }

    /// Whether an object belongs to an earlier object of the owner's name. The garbage collector is about to delete it.
    pub(super) fn owned_before<K: Resource>(&self, object: &K) -> bool {
        self.mark == OwnerMark::ControllerReference
            && self.controllers_of_our_name(object).any(|reference| reference.uid != self.reference.uid)
    }

    /// Whether an object that nobody controls was handed over to this owner with an annotation.
    pub(super) fn was_given<K: Resource>(&self, object: &K) -> bool {
        let controlled = object.owner_references().iter().any(|reference| reference.controller == Some(true));
        !controlled && object.annotations().get(annotation::ADOPT_BY) == Some(&self.adopt_value())
    }

    fn controllers_of_our_name<'a, K: Resource>(
        &'a self,
        object: &'a K,
    ) -> impl Iterator<Item = &'a OwnerReference> {
        object.owner_references().iter().filter(|reference| {
            reference.controller == Some(true)
                && reference.kind == self.reference.kind
                && reference.name == self.reference.name
        })
    }
}
