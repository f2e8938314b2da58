//! Whom children belong to, and how that is seen.

use std::collections::BTreeMap;

use coder_k8s_api::names::annotation;
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Resource, ResourceExt,
    api::{ApiResource, DynamicObject},
};
use serde_json::json;

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
    /// The children that are handed over only together: if one of them cannot be taken over, none is.
    pub parts: Vec<Part>,
}

/// A child that others may have created and hand over together with the other children.
#[derive(Clone, Debug)]
pub struct Part {
    pub(super) resource: ApiResource,
    pub(super) name: String,
    /// The labels that a Deployment selects, which cannot be changed.
    selector: Option<BTreeMap<String, String>>,
}

impl Part {
    /// The child `desired`.
    pub fn of<K: Resource<DynamicType = ()>>(desired: &K) -> Self {
        Self { resource: ApiResource::erase::<K>(&()), name: desired.name_any(), selector: None }
    }

    /// The Deployment of this name, which selects these labels.
    pub fn deployment(name: String, selector: BTreeMap<String, String>) -> Self {
        Self { resource: ApiResource::erase::<Deployment>(&()), name, selector: Some(selector) }
    }
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
        Self { namespace: namespace.to_owned(), mark, parts: Vec::new(), ..self.clone() }
    }

    /// The value of the annotation that hands an object over to this owner: `<kind>/<name>`.
    pub(crate) fn adopt_value(&self) -> String {
        format!("{}/{}", self.reference.kind, self.reference.name)
    }

    /// Whether an object belongs to this incarnation of the owner.
    pub fn owns<K: Resource>(&self, object: &K) -> bool {
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

    /// Why an object that exists cannot become this part. None: it belongs to the owner, was handed over, or is about to be
    /// deleted with an earlier object of the owner's name.
    pub(super) fn obstacle(&self, part: &Part, live: &DynamicObject) -> Option<String> {
        let what = format!("{} {}", part.resource.kind, part.name);
        if self.owns(live) || self.owned_before(live) {
            return None;
        }
        if !self.was_given(live) {
            let annotation = format!("{}={}", annotation::ADOPT_BY, self.adopt_value());
            return Some(format!(
                "{what} belongs to somebody else; rename or delete it, or hand it over with the annotation {annotation}"
            ));
        }
        let selector = part.selector.as_ref()?;
        (live.data.pointer("/spec/selector") != Some(&json!({"matchLabels": selector}))).then(|| {
            format!(
                "{what} has another selector, which Kubernetes does not let anybody change; delete it, and the operator \
                 creates its own"
            )
        })
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
