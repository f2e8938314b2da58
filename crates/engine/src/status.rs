//! What users see of a reconcile: the status of an object, and Kubernetes Events about it.
//!
//! A status is replaced as a whole, only if it changes, and only in the version from which it was computed, so that neither
//! a newer spec nor a recreated object gets the status of an older one. That is why it needs no server-side apply, which
//! costs the API server more than twice as much: nobody else can have written a field in between. Events are for people and
//! nothing depends on them: one that cannot be written is logged and not retried.

use std::fmt::Debug;

use coder_k8s_api::{names::FIELD_MANAGER, shortened};
use coder_k8s_core::outcome::EventNote;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, ResourceExt,
    api::{PartialObjectMeta, PostParams, Request},
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde::Serialize;
use serde_json::json;

use crate::{apply::NamespacedKind, client};

/// The result of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrite {
    /// The object already has this status; nothing was sent.
    Unchanged,
    /// The status was written.
    Changed,
    /// The object has changed or is gone since it was read; nothing was written.
    Outdated,
}

/// Writes `next` as the status of `object`, whose status is `current`.
pub async fn write<K, S>(
    client: &Client,
    object: &K,
    current: Option<&S>,
    next: &S,
) -> kube::Result<StatusWrite>
where
    K: NamespacedKind,
    S: Serialize + Debug + PartialEq,
{
    if current == Some(next) {
        return Ok(StatusWrite::Unchanged);
    }
    let name = object.name_any();
    // The API server takes everything but the status from the stored object.
    let body = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": {
            "name": name, "namespace": object.namespace(), "uid": object.uid(),
            "resourceVersion": object.resource_version(),
        },
        "status": next,
    });
    let body = serde_json::to_vec(&body).map_err(kube::Error::SerdeError)?;
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let mut request = Request::new(K::url_path(&(), object.namespace().as_deref()))
        .replace_subresource("status", &name, &params, body)
        .map_err(kube::Error::BuildRequest)?;
    // As kube marks its own requests, so that the client knows what is meant.
    request.extensions_mut().insert("replace_subresource");
    match client.request::<PartialObjectMeta<K>>(request).await {
        Ok(_) => Ok(StatusWrite::Changed),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            Ok(StatusWrite::Outdated)
        }
        Err(error) => Err(error),
    }
}

/// The longest note that the API server accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// Publishes events. A repeated event raises the count of the first one.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Creates a publisher. `instance` identifies this process among its replicas.
    pub fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(instance) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Publishes an event about an object. The message is cut to the longest that the API server accepts.
    pub async fn publish(&self, about: &ObjectReference, event: &EventNote) {
        let event = Event {
            type_: if event.warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.to_string(),
            note: Some(shortened(event.message.as_str(), MAX_NOTE_BYTES)),
            // The API server requires an action for events of events.k8s.io/v1.
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        match self.recorder.publish(&event, about).await {
            Ok(()) => {}
            Err(error) if client::is_unanswered(&error) => {
                tracing::debug!("the event {} is not written: {}", event.reason, client::describe(&error));
            }
            Err(error) => {
                tracing::warn!("the event {} is not written: {}", event.reason, client::describe(&error));
            }
        }
    }
}
