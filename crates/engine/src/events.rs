//! Events on transitions. They tell a story to people; nothing depends on them, so that a failure to write one
//! is a log line.

use coder_k8s_core::outcome::EventNote;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

/// The longest note that the API server accepts.
const NOTE_LIMIT: usize = 1024;

/// Publishes notes. Repeated ones are counted on the first.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Publishes in the name of `instance`.
    pub fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter { controller: "coder-k8s".to_owned(), instance: Some(instance) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Publishes a note about an object.
    pub async fn publish(&self, about: &ObjectReference, event: &EventNote) {
        let event = Event {
            type_: if event.warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.to_string(),
            note: Some(shortened(&event.message)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(reason = event.reason, "event not written: {}", crate::client::describe(&error));
        }
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= NOTE_LIMIT {
        return text.to_owned();
    }
    let end = (0..=NOTE_LIMIT - 4).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let long = "ä".repeat(2000);
        let short = shortened(&long);
        assert!(short.len() <= NOTE_LIMIT && short.ends_with('…'));
        assert_eq!(shortened("fine"), "fine");
    }
}
