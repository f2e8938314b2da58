//! The generated files of the Helm chart, and what must hold of the others.
//!
//! CRDs, rules of RBAC, the egress of the NetworkPolicy, flags and version come from the code, alerts and dashboard from
//! `config/observability`. Templates, values and schema are written by hand; the table of values in the README is made from
//! the comments of `values.yaml`. Nothing here runs Helm.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use coder_k8s::{
    flags,
    manifests::{self, Install},
    permissions::{Within, rules},
};
use coder_k8s_api::{access::user_roles, crds};
use serde_json::{Value, json};

use crate::{
    generate::{HEADER, generated_yaml},
    run::root,
};

const CHART: &str = "charts/coder-k8s";
/// Folders of the chart that hold nothing but generated files.
pub(crate) const FOLDERS: [&str; 3] = [
    "charts/coder-k8s/files/crds",
    "charts/coder-k8s/files/operator",
    "charts/coder-k8s/files/observability",
];
/// Where alerts and dashboard are written by hand.
const OBSERVABILITY: &str = "config/observability";
/// What the rules of a Role in a watched namespace have in place of its name.
const NAMESPACE: &str = "$(NAMESPACE)";
/// Around the table of values in the README.
const TABLE: [&str; 2] =
    ["<!-- values, by `cargo xtask generate` from values.yaml -->\n", "<!-- end of values -->\n"];

/// All generated files, by path.
pub(crate) fn files() -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut add =
        |path: &str, content: String| files.insert(PathBuf::from(format!("{CHART}/{path}")), content);
    add("Chart.yaml", chart_yaml());
    for crd in crds() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        add(&format!("files/crds/{name}.yaml"), generated_yaml(&crd)?);
    }
    add("files/operator/rbac.yaml", generated_yaml(&rbac())?);
    add("files/operator/user-roles.yaml", generated_yaml(&people())?);
    add("files/operator/egress.yaml", generated_yaml(&egress()?)?);
    add("files/operator/flags.yaml", generated_yaml(&flags_of_values())?);
    for file in ["alerts.yaml", "dashboard.json"] {
        let source = root().join(OBSERVABILITY).join(file);
        if source.exists() {
            add(&format!("files/observability/{file}"), fs::read_to_string(&source)?);
        }
    }
    let values = read("values.yaml")?;
    check_flags(&values)?;
    add("README.md", with_table(&read("README.md")?, &table(&values)?)?);
    Ok(files)
}

fn read(file: &str) -> Result<String> {
    let path = root().join(CHART).join(file);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The chart has the version of the program, and its image.
fn chart_yaml() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let repository = env!("CARGO_PKG_REPOSITORY");
    format!(
        "{HEADER}apiVersion: v2
name: coder-k8s
description: The operator that runs Coder on Kubernetes
type: application
version: {version}
appVersion: v{version}
kubeVersion: \">=1.33.0-0\"
home: {repository}
sources:
  - {repository}
keywords:
  - coder
  - operator
"
    )
}

/// The rules of each role, by where it is. [`manifests::access`] makes the same roles.
fn rbac() -> Value {
    json!({
        "cluster": rules(&[Within::Cluster, Within::ClusterIfAll, Within::Watched], None),
        "clusterIfSomeWatched": rules(&[Within::Cluster], None),
        "watched": rules(&[Within::Watched, Within::NamedItself], Some(NAMESPACE)),
        "own": rules(&[Within::Own], None),
    })
}

fn people() -> Value {
    let role = |role: k8s_openapi::api::rbac::v1::ClusterRole| {
        let name = role.metadata.name.unwrap_or_default();
        let labels = role.metadata.labels.unwrap_or_default();
        let labels: BTreeMap<_, _> =
            labels.into_iter().filter(|(name, _)| name.contains("aggregate-to")).collect();
        json!({"suffix": name.trim_start_matches("coder-k8s-"), "labels": labels, "rules": role.rules})
    };
    user_roles().into_iter().map(role).collect()
}

fn egress() -> Result<Value> {
    let objects = manifests::objects(&Install::default())?;
    let policy = objects.into_iter().find(|object| object["kind"] == "NetworkPolicy");
    policy.and_then(|policy| policy.pointer("/spec/egress").cloned()).context("no egress in the manifests")
}

fn flags_of_values() -> Value {
    let row =
        |flag: &flags::Flag| json!({"flag": flag.name, "value": flag.value_name(), "default": flag.default});
    flags::of_controller().iter().map(row).collect()
}

/// Every flag is a value of the same default, and the other way around.
fn check_flags(values: &str) -> Result<()> {
    let values: Value = serde_saphyr::from_str(values)?;
    let of_operator =
        values.get("operator").and_then(Value::as_object).context("values.yaml has no `operator`")?;
    let flags = flags::of_controller();
    for flag in &flags {
        let name = flag.value_name();
        let value = of_operator.get(&name).with_context(|| {
            format!(
                "--{} has no value: add `{name}` to `operator` in {CHART}/values.yaml and values.schema.json",
                flag.name
            )
        })?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Array(list) if list.is_empty() => String::new(),
            other => other.to_string(),
        };
        if text != flag.default {
            bail!(
                "operator.{name} in {CHART}/values.yaml is {text:?}, but the default of --{} is {:?}",
                flag.name,
                flag.default
            );
        }
    }
    match of_operator.keys().find(|name| flags.iter().all(|flag| flag.value_name() != **name)) {
        Some(name) => bail!("operator.{name} in {CHART}/values.yaml is no flag of the operator"),
        None => Ok(()),
    }
}

/// A value that has a comment, by its path.
#[derive(Debug, PartialEq, Eq)]
struct Documented {
    path: String,
    text: String,
}

/// The values with a comment, in the order of the file.
fn documented(values: &str) -> Vec<Documented> {
    let (mut found, mut stack, mut comment) = (Vec::new(), Vec::<(usize, String)>::new(), None);
    for line in values.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(text) = content.strip_prefix("# -- ") {
            comment = Some(text.to_owned());
        } else if let Some((key, _)) = content.split_once(':').filter(|_| !content.starts_with(['#', '-'])) {
            stack.retain(|(other, _)| *other < indent);
            stack.push((indent, key.to_owned()));
            let path = stack.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".");
            found.extend(comment.take().map(|text| Documented { path, text }));
        }
    }
    found
}

/// The paths of values that nothing is said about: neither about themselves nor about what they are part of.
fn undocumented(path: &str, value: &Value, documented: &[Documented]) -> Vec<String> {
    if documented.iter().any(|known| known.path == path) {
        return Vec::new();
    }
    match value {
        Value::Object(parts) if !parts.is_empty() => {
            let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            parts.iter().flat_map(|(key, part)| undocumented(&below(key), part, documented)).collect()
        }
        _ => vec![path.to_owned()],
    }
}

/// The table of values for the README.
fn table(values: &str) -> Result<String> {
    let documented = documented(values);
    let values: Value = serde_saphyr::from_str(values)?;
    let missing = undocumented("", &values, &documented);
    if !missing.is_empty() {
        bail!("{CHART}/values.yaml says nothing (`# -- ...`) about {}", missing.join(", "));
    }
    let mut table = "| Value | Default | Meaning |\n|---|---|---|\n".to_owned();
    for Documented { path, text } in documented {
        let value = values.pointer(&format!("/{}", path.replace('.', "/")));
        let default = match value.with_context(|| format!("{path} is not a value"))? {
            Value::String(text) if !text.is_empty() => text.clone(),
            other => other.to_string(),
        };
        let text = text.replace('|', "\\|");
        let _ = writeln!(table, "| `{path}` | `{default}` | {text} |");
    }
    Ok(table)
}

fn with_table(readme: &str, table: &str) -> Result<String> {
    let [begin, end] = TABLE;
    let (before, rest) = readme.split_once(begin).with_context(|| format!("README.md has no {begin:?}"))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("README.md has no {end:?}"))?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keywords of JSON Schema that the schema uses. A misspelt one would be ignored by every validator.
    const KEYWORDS: [&str; 16] = [
        "$ref",
        "$schema",
        "additionalProperties",
        "definitions",
        "enum",
        "items",
        "maxLength",
        "maximum",
        "minLength",
        "minimum",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
        "uniqueItems",
    ];
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

    fn schema() -> Value {
        serde_json::from_str(&read("values.schema.json").unwrap()).unwrap()
    }

    fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => root
                .pointer(reference.strip_prefix('#').unwrap())
                .unwrap_or_else(|| panic!("{reference} leads nowhere")),
            None => schema,
        }
    }

    fn check_schema(root: &Value, at: &str, schema: &Value) {
        for (keyword, value) in schema.as_object().unwrap_or_else(|| panic!("{at} is no schema")) {
            let at = format!("{at}/{keyword}");
            assert!(KEYWORDS.contains(&keyword.as_str()), "{at} is no keyword");
            match keyword.as_str() {
                "properties" | "definitions" => {
                    for (name, part) in value.as_object().unwrap() {
                        check_schema(root, &format!("{at}/{name}"), part);
                    }
                }
                "items" => check_schema(root, &at, value),
                "additionalProperties" if value.is_object() => check_schema(root, &at, value),
                "additionalProperties" | "uniqueItems" => assert!(value.is_boolean(), "{at}"),
                "type" => {
                    let types = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
                    assert!(
                        types.iter().all(|name| TYPES.contains(&name.as_str().unwrap())),
                        "{at}: {value}"
                    );
                }
                "enum" | "required" => {
                    assert!(value.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "{at}");
                }
                "minimum" | "maximum" | "minLength" | "maxLength" => assert!(value.is_u64(), "{at}"),
                "$ref" => assert!(resolved(root, schema).is_object(), "{at}"),
                _ => assert!(value.is_string(), "{at}"),
            }
        }
        let target = resolved(root, schema);
        assert!(target.get("type").or(target.get("enum")).is_some(), "{at} has no type");
        if target["type"] == "object" {
            let rest = target.get("additionalProperties");
            let is_open = target.get("properties").is_none();
            assert!(is_open || rest == Some(&json!(false)), "{at} lets misspelt names pass");
        }
    }

    #[test]
    fn the_schema_is_a_json_schema_that_refuses_misspelt_names() {
        let schema = schema();
        assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
        check_schema(&schema, "", &schema);
    }

    /// Names of the properties below which the schema says nothing more, or which have none.
    fn leaves(root: &Value, path: &str, schema: &Value) -> Vec<String> {
        match resolved(root, schema)["properties"].as_object() {
            Some(parts) => {
                parts.iter().flat_map(|(name, part)| leaves(root, &format!("{path}/{name}"), part)).collect()
            }
            None => vec![path.to_owned()],
        }
    }

    /// Paths of the values that are not maps of values.
    fn paths(path: &str, value: &Value) -> Vec<String> {
        match value.as_object().filter(|parts| !parts.is_empty()) {
            Some(parts) => {
                parts.iter().flat_map(|(name, part)| paths(&format!("{path}/{name}"), part)).collect()
            }
            None => vec![path.to_owned()],
        }
    }

    #[test]
    fn the_schema_has_exactly_the_values() {
        let (schema, values) = (schema(), read("values.yaml").unwrap());
        let values: Value = serde_saphyr::from_str(&values).unwrap();
        let mut known = leaves(&schema, "", &schema);
        // Helm adds it for charts that have this one as a part.
        known.retain(|path| path != "/global");
        for path in &known {
            assert!(values.pointer(path).is_some(), "the schema has {path}, and values.yaml has not");
        }
        // The schema describes everything down to its leaves, so that a value is one of them or a part of one.
        for path in paths("", &values) {
            let covered = known.iter().any(|leaf| path == *leaf || path.starts_with(&format!("{leaf}/")));
            assert!(covered, "values.yaml has {path}, and the schema has not");
        }
    }

    #[test]
    fn every_flag_of_the_operator_is_a_value_with_its_default() {
        let values = read("values.yaml").unwrap();
        check_flags(&values).unwrap();
        let other = values.replace("leaseDuration: 15s", "leaseDuration: 16s");
        let told = check_flags(&other).unwrap_err().to_string();
        assert!(told.contains("operator.leaseDuration") && told.contains("--lease-duration"), "{told}");
        let missing = values.replace("  concurrency: 32\n", "");
        assert!(check_flags(&missing).unwrap_err().to_string().contains("add `concurrency`"));
        let more = values.replace("  concurrency: 32\n", "  concurrency: 32\n  colour: red\n");
        assert!(check_flags(&more).unwrap_err().to_string().contains("operator.colour"));
    }

    #[test]
    fn a_value_without_a_comment_is_named() {
        let values = "# -- One.\na: 1\nb:\n  # -- Two.\n  c: x\n  d: {}\n# -- Whole.\ne:\n  f: 2\n";
        let found: Vec<_> = documented(values).into_iter().map(|known| known.path).collect();
        assert_eq!(found, ["a", "b.c", "e"]);
        assert!(table(values).unwrap_err().to_string().ends_with("about b.d"));
        let table = table(&values.replace("  d: {}\n", "")).unwrap();
        assert!(table.ends_with("| `b.c` | `x` | Two. |\n| `e` | `{\"f\":2}` | Whole. |\n"), "{table}");
    }

    #[test]
    fn the_rules_of_the_chart_are_those_of_the_manifests() {
        let of_manifests = |watch: &[&str]| {
            let watch_namespaces = watch.iter().map(|&name| name.to_owned()).collect();
            let install = Install { watch_namespaces, ..Install::default() };
            let roles =
                manifests::access(&install).into_iter().filter(|object| object.get("rules").is_some());
            roles.map(|role| role["rules"].clone()).collect::<Vec<_>>()
        };
        let chart = serde_json::to_value(rbac()).unwrap();
        assert_eq!(of_manifests(&[]), [chart["cluster"].clone(), chart["own"].clone()]);
        let watched = chart["watched"].to_string().replace(NAMESPACE, "team");
        let watched: Value = serde_json::from_str(&watched).unwrap();
        assert_eq!(
            of_manifests(&["team"]),
            [chart["clusterIfSomeWatched"].clone(), watched, chart["own"].clone()]
        );
    }

    #[test]
    fn the_chart_has_the_version_of_the_workspace() {
        let chart: Value = serde_saphyr::from_str(&read("Chart.yaml").unwrap()).unwrap();
        assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(chart["appVersion"], concat!("v", env!("CARGO_PKG_VERSION")));
    }
}
