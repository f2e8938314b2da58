//! Selectors of lists and watches.

use serde_json::Value;

/// Namespace, labels and fields that an object must have.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    pub(super) namespace: Option<String>,
    labels: Vec<Label>,
    name: Option<String>,
}

#[derive(Clone, Debug)]
enum Label {
    Is(String, String),
    IsNot(String, String),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// Parses the selectors of a query.
    pub(super) fn new(namespace: Option<String>, labels: Option<&str>, fields: Option<&str>) -> Self {
        let split = |text: Option<&str>| {
            let parts = text.unwrap_or_default().split(',').map(str::trim).map(str::to_owned);
            parts.filter(|part| !part.is_empty()).collect::<Vec<_>>()
        };
        let name = split(fields).iter().find_map(|part| {
            part.split_once('=')
                .filter(|(field, _)| *field == "metadata.name")
                .map(|(_, name)| name.to_owned())
        });
        Self { namespace, labels: split(labels).iter().map(|part| label(part)).collect(), name }
    }

    pub(super) fn shows(&self, object: &Value) -> bool {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let labels = object.pointer("/metadata/labels");
        let value = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        self.namespace.as_deref().is_none_or(|wanted| text("/metadata/namespace") == Some(wanted))
            && self.name.as_deref().is_none_or(|wanted| text("/metadata/name") == Some(wanted))
            && self.labels.iter().all(|label| match label {
                Label::Is(key, wanted) => value(key) == Some(wanted),
                Label::IsNot(key, other) => value(key) != Some(other),
                Label::Exists(key) => value(key).is_some(),
                Label::Absent(key) => value(key).is_none(),
            })
    }
}

fn label(part: &str) -> Label {
    if let Some((key, value)) = part.split_once("!=") {
        return Label::IsNot(key.to_owned(), value.to_owned());
    }
    if let Some((key, value)) = part.split_once('=') {
        return Label::Is(key.to_owned(), value.trim_start_matches('=').to_owned());
    }
    match part.strip_prefix('!') {
        Some(key) => Label::Absent(key.to_owned()),
        None => Label::Exists(part.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_choose_by_labels_name_and_namespace() {
        let object = json!({"metadata": {"name": "n", "namespace": "a", "labels": {"x": "1"}}});
        let shows = |namespace: Option<&str>, labels: &str, fields: &str| {
            Selector::new(namespace.map(str::to_owned), Some(labels), Some(fields)).shows(&object)
        };
        assert!(shows(None, "", ""));
        assert!(shows(Some("a"), "x=1,x,!y,y!=1", "metadata.name=n"));
        assert!(!shows(Some("b"), "", "") && !shows(None, "x=2", "") && !shows(None, "!x", ""));
        assert!(!shows(None, "x!=1", "") && !shows(None, "y", "") && !shows(None, "", "metadata.name=m"));
    }
}
