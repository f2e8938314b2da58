//! Patches: server-side apply with the fields of each manager, and JSON merge patch.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Path to a field: names of fields, and `key=value` for elements of keyed lists.
pub(super) type Path = Vec<Step>;

/// One segment of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// A field of an object.
    Field(String),
    /// The element of a keyed list whose key has this value, as JSON.
    Element(&'static str, String),
}

/// Fields of each manager.
pub(super) type Managed = BTreeMap<String, BTreeSet<Path>>;

/// Applies an object of a manager. A field that the manager owned, no longer applies and shares with nobody is
/// removed.
pub(super) fn apply(object: &mut Value, wanted: &Value, manager: &str, managed: &mut Managed) {
    let mut fields = BTreeSet::new();
    collect(wanted, &mut Vec::new(), &mut fields);
    let before = managed.insert(manager.to_owned(), fields.clone()).unwrap_or_default();
    let kept = |path: &Path| managed.values().any(|held| held.contains(path));
    // In order: an element is removed as a whole before its fields, one of which is its key.
    for path in before.iter().filter(|path| !kept(path)) {
        remove(object, path);
    }
    merge_applied(object, wanted, None);
}

/// JSON merge patch: null removes.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Some(map) = object.as_object_mut() else { return };
    for (name, change) in changes {
        if change.is_null() {
            map.remove(name);
        } else {
            merge(map.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

/// The key of a list, by the name of its field. A list without a key is atomic.
fn key_of(field: Option<&str>, items: &[Value]) -> Option<&'static str> {
    let key = match field? {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => "name",
        "volumeMounts" => "mountPath",
        "conditions" => "type",
        "ownerReferences" => "uid",
        "ports" if items.iter().all(|item| item.get("containerPort").is_some()) => "containerPort",
        "ports" => "port",
        _ => return None,
    };
    items.iter().all(|item| item.get(key).is_some()).then_some(key)
}

fn collect(value: &Value, path: &mut Path, fields: &mut BTreeSet<Path>) {
    let field = match path.last() {
        Some(Step::Field(name)) => Some(name.clone()),
        _ => None,
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, inner) in map {
                path.push(Step::Field(name.clone()));
                collect(inner, path, fields);
                path.pop();
            }
        }
        Value::Array(items) => match key_of(field.as_deref(), items) {
            Some(key) if !items.is_empty() => {
                for item in items {
                    path.push(Step::Element(key, identity(item, key)));
                    fields.insert(path.clone());
                    collect(item, path, fields);
                    path.pop();
                }
            }
            _ => {
                fields.insert(path.clone());
            }
        },
        _ => {
            fields.insert(path.clone());
        }
    }
}

fn identity(item: &Value, key: &str) -> String {
    item.get(key).map(Value::to_string).unwrap_or_default()
}

/// Removes a field, and the objects around it that become empty.
fn remove(object: &mut Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (step, object) {
        (Step::Field(name), Value::Object(map)) => {
            if rest.is_empty() {
                // Of an object that was empty when it was applied, what others have put into it stays.
                if !map.get(name).is_some_and(|held| held.is_object() && !is_empty(held)) {
                    map.remove(name);
                }
            } else if let Some(inner) = map.get_mut(name) {
                remove(inner, rest);
                if is_empty(inner) {
                    map.remove(name);
                }
            }
        }
        (Step::Element(key, wanted), Value::Array(items)) => {
            if rest.is_empty() {
                items.retain(|item| identity(item, key) != *wanted);
            } else if let Some(item) = items.iter_mut().find(|item| identity(item, key) == *wanted) {
                remove(item, rest);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

fn merge_applied(object: &mut Value, wanted: &Value, field: Option<&str>) {
    match (object, wanted) {
        (Value::Object(map), Value::Object(changes)) => {
            for (name, change) in changes {
                merge_applied(map.entry(name.clone()).or_insert(Value::Null), change, Some(name));
            }
        }
        (Value::Array(items), Value::Array(changes)) => {
            let Some(key) =
                key_of(field, changes).filter(|_| key_of(field, items).is_some() || items.is_empty())
            else {
                items.clone_from(changes);
                return;
            };
            let mut merged = Vec::new();
            for change in changes {
                let at = items.iter().position(|item| identity(item, key) == identity(change, key));
                let mut item = at.map_or(Value::Null, |at| items.remove(at));
                merge_applied(&mut item, change, None);
                merged.push(item);
            }
            merged.append(items);
            *items = merged;
        }
        (object, wanted) => *object = wanted.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_nobody_wants_any_more_go_and_those_of_others_stay() {
        let (mut object, mut managed) = (json!({}), Managed::new());
        let env = |names: &[&str]| {
            let env: Vec<_> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
            json!({"spec": {"containers": [{"name": "c", "env": env}]}, "status": {"a": {"b": 1}}})
        };
        apply(&mut object, &env(&["X", "Y"]), "one", &mut managed);
        apply(
            &mut object,
            &json!({"spec": {"containers": [{"name": "c", "env": [{"name": "Z", "value": "2"}]}]}}),
            "two",
            &mut managed,
        );
        let mut fewer = env(&["Y"]);
        fewer.as_object_mut().unwrap().remove("status");
        apply(&mut object, &fewer, "one", &mut managed);
        assert_eq!(
            object,
            json!({"spec": {"containers": [{"name": "c", "env": [{"name": "Y", "value": "1"}, {"name": "Z", "value": "2"}]}]}})
        );
    }

    #[test]
    fn what_others_put_into_an_object_that_was_applied_empty_stays() {
        let (mut object, mut managed) = (json!({}), Managed::new());
        apply(&mut object, &json!({"metadata": {}, "spec": {}}), "one", &mut managed);
        merge(&mut object, &json!({"metadata": {"finalizers": ["x"]}}));
        apply(&mut object, &json!({"metadata": {"annotations": {"a": "1"}}}), "one", &mut managed);
        assert_eq!(object, json!({"metadata": {"finalizers": ["x"], "annotations": {"a": "1"}}}));
    }

    #[test]
    fn a_merge_removes_what_is_null() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(&mut object, &json!({"a": {"b": null}, "d": [2], "e": {"f": 3}}));
        assert_eq!(object, json!({"a": {"c": 2}, "d": [2], "e": {"f": 3}}));
    }
}
