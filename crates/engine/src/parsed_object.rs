//! An object of a watch, or why it cannot be parsed: one object that is wrong must not end the watch of all others.
//!
//! kube's `DeserializeGuard` does the same through a tree of generic values, of which it makes a copy as well. For a page of
//! large objects that takes many times the memory of the objects. Here the JSON of an object is cut out and parsed once.

use std::borrow::Cow;

use kube::{Resource, api::ObjectMeta, core::PartialObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::value::RawValue;

/// An object that may not be as its type says. It has metadata in both cases.
#[derive(Clone, Debug)]
pub struct ParsedObject<K>(pub Result<K, UnparsableObject>);

/// What is known of an object that cannot be parsed.
#[derive(Clone, Debug)]
pub struct UnparsableObject {
    /// May quote a value of the object.
    pub error: String,
    /// Names the object where it is reported.
    pub metadata: ObjectMeta,
}

impl<'de, K> Deserialize<'de> for ParsedObject<K>
where
    K: DeserializeOwned + Resource,
{
    /// Works for JSON alone, and for objects that serde does not buffer. The API server sends the type of an event before
    /// its object, so that nothing is buffered.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        match serde_json::from_str(json.get()) {
            Ok(object) => Ok(Self(Ok(object))),
            Err(error) => {
                let object: PartialObjectMeta<K> = serde_json::from_str(json.get()).map_err(Error::custom)?;
                let (error, metadata) = (error.to_string(), object.metadata);
                Ok(Self(Err(UnparsableObject { error, metadata })))
            }
        }
    }
}

impl<K: Resource> Resource for ParsedObject<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(types: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(types)
    }

    fn group(types: &Self::DynamicType) -> Cow<'_, str> {
        K::group(types)
    }

    fn version(types: &Self::DynamicType) -> Cow<'_, str> {
        K::version(types)
    }

    fn plural(types: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(types)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unparsable) => &unparsable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unparsable) => &mut unparsable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServiceAccount;
    use kube::{ResourceExt, api::WatchEvent, core::ObjectList};

    use super::*;

    #[test]
    fn one_object_that_cannot_be_parsed_leaves_the_others_of_a_list() {
        let list: ObjectList<ParsedObject<ServiceAccount>> = serde_json::from_str(
            r#"{"kind": "ServiceAccountList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [
                {"metadata": {"name": "good"}, "automountServiceAccountToken": true},
                {"metadata": {"name": "bad"}, "automountServiceAccountToken": "perhaps"}]}"#,
        )
        .unwrap();
        let names: Vec<_> = list.items.iter().map(|object| (object.name_any(), object.0.is_ok())).collect();
        assert_eq!(names, [("good".to_owned(), true), ("bad".to_owned(), false)]);
        assert_eq!(list.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn an_event_is_parsed_as_the_server_sends_it() {
        let event: WatchEvent<ParsedObject<ServiceAccount>> = serde_json::from_str(
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"secrets":[{"name":"s"}]}}"#,
        )
        .unwrap();
        let WatchEvent::Added(ParsedObject(Ok(account))) = event else { panic!("{event:?}") };
        assert_eq!((account.name_any(), account.secrets.unwrap().len()), ("a".to_owned(), 1));
    }

    #[test]
    fn an_object_without_metadata_is_an_error_of_its_own() {
        assert!(serde_json::from_str::<ParsedObject<ServiceAccount>>(r#"{"metadata": 5}"#).is_err());
    }
}
