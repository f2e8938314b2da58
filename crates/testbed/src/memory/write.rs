//! Requests that write, with the semantics of the real server.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    apply::{Managed, apply, merge},
    defaults,
    kinds::Kind,
    refusal::Refusal,
    store::{Place, Store, StoredObject, set},
};

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How<'a> {
    /// Server-side apply by a manager.
    Apply(&'a str),
    /// JSON merge.
    Merge,
    /// As a whole.
    Replace,
}

/// Creates an object.
pub(super) fn create(store: &Store, kind: &Kind, place: Place, object: Value) -> Result<Arc<Value>, Refusal> {
    let called = place.called();
    let made = store.write(place, |before| match before {
        Some(_) => Err(Refusal::exists(&called)),
        None => Ok((completed(kind, None, object), Managed::new())),
    });
    made.map(|(object, _)| object)
}

/// Changes an object or its status only. The second value is whether the object is new.
pub(super) fn change(
    store: &Store,
    kind: &Kind,
    place: Place,
    how: How<'_>,
    status: bool,
    body: &Value,
) -> Result<(Arc<Value>, bool), Refusal> {
    let called = place.called();
    let asked =
        |field: &str| body.pointer("/metadata").and_then(|meta| meta.get(field)).and_then(Value::as_str);
    store.write(place, |before| {
        let Some(before) = before else {
            // A resourceVersion of 1 is that of no object: the request requires that the object does not exist.
            let may_create =
                asked("uid").is_none() && asked("resourceVersion").is_none_or(|version| version == "1");
            return match how {
                How::Apply(manager) if !status && may_create => {
                    let (mut object, mut managed) = (json!({}), Managed::new());
                    apply(&mut object, &own_part(kind, body), manager, &mut managed);
                    Ok((completed(kind, None, object), managed))
                }
                How::Apply(_) if !status => Err(Refusal::conflict(&called)),
                _ => Err(Refusal::not_found(&called)),
            };
        };
        let differs = |field: &str| {
            let held = before.object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
            asked(field).is_some_and(|asked| Some(asked) != held)
        };
        if differs("resourceVersion") {
            return Err(Refusal::conflict(&called));
        }
        if differs("uid") {
            return Err(Refusal::invalid(&called));
        }
        Ok(changed(kind, before, how, status, body))
    })
}

fn changed(kind: &Kind, before: &StoredObject, how: How<'_>, status: bool, body: &Value) -> (Value, Managed) {
    let mut managed = before.managed.clone();
    let mut object = (*before.object).clone();
    match how {
        How::Apply(manager) => {
            let holder = if status { format!("{manager}/status") } else { manager.to_owned() };
            let wanted = if status { only_status(body) } else { own_part(kind, body) };
            apply(&mut object, &wanted, &holder, &mut managed);
        }
        How::Merge if status => merge(&mut object, &only_status(body)),
        How::Merge => merge(&mut object, &own_part(kind, body)),
        How::Replace => object = body.clone(),
    }
    if status {
        let mut whole = (*before.object).clone();
        take(&mut whole, "status", object.get("status"));
        return (whole, managed);
    }
    (completed(kind, Some(&before.object), object), managed)
}

/// Adds what the server sets, and restores what a request cannot change.
fn completed(kind: &Kind, before: Option<&Value>, mut object: Value) -> Value {
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion"] {
        set(&mut object, field, before.and_then(|before| before.pointer("/metadata")?.get(field)).cloned());
    }
    if kind.has_status {
        take(&mut object, "status", before.and_then(|before| before.get("status")));
    }
    if let Some(schema) = &kind.schema {
        defaults::fill(schema, &mut object);
    }
    if kind.called == "Secret" {
        encode(&mut object);
    }
    if kind.called == "Service"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.entry("clusterIP").or_insert_with(|| json!("10.96.0.1"));
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
    }
    if kind.called == "Deployment"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.entry("replicas").or_insert_with(|| json!(1));
    }
    object
}

/// Converts `stringData` of a Secret to `data`.
fn encode(object: &mut Value) {
    let Some(map) = object.as_object_mut() else { return };
    let Some(Value::Object(texts)) = map.remove("stringData") else { return };
    let data = map.entry("data").or_insert_with(|| json!({}));
    let Some(data) = data.as_object_mut() else { return };
    for (key, text) in texts {
        data.insert(key, json!(STANDARD.encode(text.as_str().unwrap_or_default())));
    }
}

fn only_status(body: &Value) -> Value {
    json!({"status": body.get("status").cloned().unwrap_or_default()})
}

/// The body without the fields that identify the object, and without a status that is a subresource.
fn own_part(kind: &Kind, body: &Value) -> Value {
    let mut body = body.clone();
    for field in ["uid", "resourceVersion", "name", "namespace", "managedFields"] {
        set(&mut body, field, None);
    }
    if let Some(map) = body.as_object_mut() {
        let apart = |field: &str| field == "status" && kind.has_status;
        map.retain(|field, _| field != "apiVersion" && field != "kind" && !apart(field));
    }
    body
}

fn take(object: &mut Value, field: &str, value: Option<&Value>) {
    let Some(map) = object.as_object_mut() else { return };
    match value {
        Some(value) => drop(map.insert(field.to_owned(), value.clone())),
        None => drop(map.remove(field)),
    }
}
