//! Reads the alerts and the dashboard in `config/observability`, for the tests and the reference page.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// A rule file of Prometheus.
#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    rules: Vec<Alert>,
}

/// An alerting rule.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// Name of its group.
    #[serde(skip)]
    pub group: String,
    /// Unique among all groups.
    #[serde(rename = "alert")]
    pub name: String,
    /// The expression, in PromQL.
    pub expr: String,
    /// How long the expression holds before the alert fires.
    #[serde(rename = "for")]
    pub pending: String,
    /// How long the alert goes on after the expression held last.
    #[serde(default)]
    pub keep_firing_for: Option<String>,
    /// Labels that the rule adds.
    pub labels: BTreeMap<String, String>,
    /// Annotations, as templates.
    pub annotations: BTreeMap<String, String>,
}

/// Reads a rule file that has nothing but alerts.
pub fn alerts(yaml: &str) -> Result<Vec<Alert>, serde_saphyr::Error> {
    let file: RuleFile = serde_saphyr::from_str(yaml)?;
    let rules = file.groups.into_iter().flat_map(|Group { name, rules }| {
        rules.into_iter().map(move |rule| Alert { group: name.clone(), ..rule })
    });
    Ok(rules.collect())
}

/// A panel of a dashboard that is no row.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Title of the row that it is in.
    pub row: String,
    /// Unique in its row.
    pub title: String,
    /// Its queries in PromQL, with the variables of Grafana in them.
    pub queries: Vec<String>,
    /// The whole panel.
    pub json: Value,
}

/// The panels of a dashboard, those in collapsed rows too.
pub fn panels(dashboard: &Value) -> Vec<Panel> {
    let text =
        |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let list =
        |value: &Value, field: &str| value.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    let (mut row, mut all) = (String::new(), Vec::new());
    for outer in list(dashboard, "panels") {
        let inner = if text(&outer, "type") == "row" {
            row = text(&outer, "title");
            list(&outer, "panels")
        } else {
            vec![outer]
        };
        all.extend(inner.into_iter().map(|json| Panel {
            row: row.clone(),
            title: text(&json, "title"),
            queries: list(&json, "targets").iter().map(|target| text(target, "expr")).collect(),
            json,
        }));
    }
    all
}

/// A variable of a dashboard that lists the values of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelVariable {
    /// Its name, without the dollar sign.
    pub name: String,
    /// The series whose labels are listed.
    pub selector: String,
    /// The label.
    pub label: String,
}

/// The variables of a dashboard with a query, all of which must be `label_values(series, label)`.
pub fn label_variables(dashboard: &Value) -> Result<Vec<LabelVariable>, String> {
    let all = dashboard.pointer("/templating/list").and_then(Value::as_array);
    let queries = all.into_iter().flatten().filter(|variable| variable.get("type") == Some(&"query".into()));
    let parsed = queries.map(|variable| {
        let name = variable.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let query = variable.pointer("/query/query").and_then(Value::as_str).unwrap_or_default();
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = inside
            .and_then(|inside| inside.rsplit_once(','))
            .ok_or_else(|| format!("{name}: {query:?} is not label_values(series, label)"))?;
        Ok(LabelVariable { name, selector: selector.trim().to_owned(), label: label.trim().to_owned() })
    });
    parsed.collect()
}

/// A query with values for the variables of Grafana in it: those of the dashboard, by name, and intervals of five minutes.
pub fn substituted(query: &str, variables: &BTreeMap<String, String>) -> String {
    let intervals =
        ["__rate_interval", "__interval", "__range"].map(|name| (name.to_owned(), "5m".to_owned()));
    let mut all: Vec<_> = variables.clone().into_iter().chain(intervals).collect();
    // A name may be the beginning of another one.
    all.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    all.iter().fold(query.to_owned(), |query, (name, value)| {
        query.replace(&format!("${{{name}}}"), value).replace(&format!("${name}"), value)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn alerts_are_read_with_their_group() {
        let yaml = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up == 0\n    for: 5m\n    labels: {severity: info}\n    annotations: {summary: s}\n";
        let all = alerts(yaml).unwrap();
        assert_eq!((all[0].group.as_str(), all[0].name.as_str(), all[0].pending.as_str()), ("g", "A", "5m"));
        assert!(alerts(&yaml.replace("for:", "four:")).is_err(), "a field that nobody knows");
    }

    #[test]
    fn panels_are_found_in_open_and_collapsed_rows() {
        let panel = |title: &str| json!({"type": "stat", "title": title, "targets": [{"expr": "up"}]});
        let dashboard = json!({"panels": [{"type": "row", "title": "one", "panels": []}, panel("a"),
            {"type": "row", "title": "two", "panels": [panel("b")]}]});
        let found: Vec<_> =
            panels(&dashboard).into_iter().map(|panel| (panel.row, panel.title, panel.queries)).collect();
        let expected = |row: &str, title: &str| (row.to_owned(), title.to_owned(), vec!["up".to_owned()]);
        assert_eq!(found, [expected("one", "a"), expected("two", "b")]);
    }

    #[test]
    fn variables_are_replaced_whatever_their_form() {
        let values =
            [("name".to_owned(), "coder".to_owned()), ("namespace".to_owned(), "dev".to_owned())].into();
        let query = r#"rate(x{namespace="$namespace",name="${name}"}[$__rate_interval])"#;
        assert_eq!(substituted(query, &values), r#"rate(x{namespace="dev",name="coder"}[5m])"#);
    }
}
