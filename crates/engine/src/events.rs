//! Publishes Kubernetes Events about custom resources. Events are for people and nothing depends on them: one that
//! cannot be written is logged and not retried.

use coder_k8s_api::names::FIELD_MANAGER;
use coder_k8s_core::outcome::EventNote;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

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
            note: Some(truncated(&event.message)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(reason = event.reason, "event not written: {}", crate::client::describe(&error));
        }
    }
}

fn truncated(text: &str) -> String {
    if text.len() <= MAX_NOTE_BYTES {
        return text.to_owned();
    }
    let end = (0..=MAX_NOTE_BYTES - 4).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let long = "ä".repeat(2000);
        let short = truncated(&long);
        assert!(short.len() <= MAX_NOTE_BYTES && short.ends_with('…'));
        assert_eq!(truncated("fine"), "fine");
    }
}
