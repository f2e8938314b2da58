//! The properties of a kind, from its schema, and values for them: plausible ones and absurd ones.

use serde_json::{Map, Value, json};

/// How deep a value is made. Schemas of pods are deep and do not recur.
const DEPTH: usize = 24;

/// Texts that one or the other pattern accepts.
const TEXTS: [&str; 14] = [
    "example",
    "https://coder.example.test",
    "example.test/coder:v1",
    "coder.example.test",
    "*.example.test",
    "10m",
    "1",
    "8080",
    "/path",
    "10.0.0.1",
    "eu-1",
    "EXAMPLE",
    "2030-01-01T00:00:00Z",
    "24h",
];

/// A step on the way to a property.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    /// The only item of a list.
    Item,
    /// The only entry of a map.
    Entry,
}

/// One property of a spec.
#[derive(Clone, Debug)]
pub struct Property {
    steps: Vec<Step>,
    schema: Value,
}

impl Property {
    /// Its path, such as `expose.ingress.host` or `volumes[].name`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            match step {
                Step::Field(name) if path.is_empty() => path.push_str(name),
                Step::Field(name) => path.extend([".", name]),
                Step::Item => path.push_str("[]"),
                Step::Entry => path.push_str("{}"),
            }
        }
        path
    }

    /// The field of the spec that it belongs to.
    pub fn top(&self) -> &str {
        match self.steps.first() {
            Some(Step::Field(name)) => name,
            _ => "",
        }
    }

    /// Plausible values, of which at least one should be accepted.
    pub fn plausible(&self) -> Vec<Value> {
        let count = match kind(&self.schema) {
            "string" if self.schema["enum"].is_null() => TEXTS.len(),
            "string" => self.schema["enum"].as_array().map_or(1, Vec::len),
            "boolean" => 2,
            "integer" => 3,
            // What is in it may be a text.
            _ => TEXTS.len(),
        };
        (0..count).map(|number| plausible(&self.schema, number, DEPTH)).collect()
    }

    /// Absurd values: of another type, and the extremes of its own.
    pub fn absurd(&self) -> Vec<Value> {
        match kind(&self.schema) {
            "string" => {
                vec![
                    json!(["a list"]),
                    json!({"a": "map"}),
                    json!("x".repeat(5000)),
                    json!(""),
                    json!("\u{1}\u{202e}💣 ../../etc"),
                ]
            }
            "integer" | "number" => {
                vec![json!("three"), json!(i64::MAX), json!(1_i64 << 31), json!(1.5), json!(-1), json!(0)]
            }
            "boolean" => vec![json!("yes")],
            "array" => {
                let item = plausible(&self.schema["items"], 0, DEPTH);
                vec![json!("no list"), json!([null]), json!(vec![item; 300])]
            }
            "object" => {
                // The API server answers each field that it does not know with a header.
                let count = if self.schema["additionalProperties"].is_object() { 300 } else { 5 };
                let many: Map<_, _> =
                    (0..count).map(|number| (format!("key-{number}"), json!("v"))).collect();
                vec![json!(7), Value::Object(many)]
            }
            // A number or a text.
            _ => vec![
                json!({"neither": "nor"}),
                json!(["a list"]),
                json!("x".repeat(5000)),
                json!(i64::MAX),
                json!(-1),
                json!(1.5),
            ],
        }
    }

    /// The patch of a spec that gives the property this value, with everything around it that the schema requires. The number
    /// chooses among plausible texts.
    pub fn patch(&self, root: &Value, value: Value, number: usize) -> Value {
        around(&self.steps, root, value, number)
    }
}

/// All properties below a schema of a spec.
pub fn properties(schema: &Value) -> Vec<Property> {
    let mut all = Vec::new();
    walk(schema, &mut Vec::new(), &mut all);
    all
}

fn walk(schema: &Value, steps: &mut Vec<Step>, all: &mut Vec<Property>) {
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        steps.push(Step::Field(name.clone()));
        all.push(Property { steps: steps.clone(), schema: below.clone() });
        walk(below, steps, all);
        steps.pop();
    }
    for (field, step) in [("items", Step::Item), ("additionalProperties", Step::Entry)] {
        if schema[field].is_object() {
            steps.push(step);
            walk(&schema[field], steps, all);
            steps.pop();
        }
    }
}

fn around(steps: &[Step], schema: &Value, value: Value, number: usize) -> Value {
    let Some((step, rest)) = steps.split_first() else { return value };
    match step {
        Step::Field(name) => {
            let mut made = required(schema, number, DEPTH);
            made.insert(name.clone(), around(rest, &schema["properties"][name], value, number));
            Value::Object(made)
        }
        Step::Item => json!([around(rest, &schema["items"], value, number)]),
        Step::Entry => json!({"key": around(rest, &schema["additionalProperties"], value, number)}),
    }
}

fn kind(schema: &Value) -> &str {
    schema["type"].as_str().unwrap_or_default()
}

fn required(schema: &Value, number: usize, depth: usize) -> Map<String, Value> {
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    names.map(|name| (name.to_owned(), plausible(&schema["properties"][name], number, depth))).collect()
}

fn plausible(schema: &Value, number: usize, depth: usize) -> Value {
    if depth == 0 {
        return Value::Null;
    }
    let text = TEXTS.get(number % TEXTS.len()).copied().unwrap_or_default();
    if let Some(choices) = schema["enum"].as_array().filter(|choices| !choices.is_empty()) {
        return choices.get(number % choices.len()).cloned().unwrap_or_default();
    }
    match kind(schema) {
        "string" => json!(text),
        "boolean" => json!(number.is_multiple_of(2)),
        "integer" | "number" => {
            let least = schema["minimum"].as_i64().unwrap_or(1).max(1);
            json!(least + i64::try_from(number % 3).unwrap_or_default())
        }
        "array" => json!([plausible(&schema["items"], number, depth - 1)]),
        "object" if schema["additionalProperties"].is_object() => {
            json!({"key": plausible(&schema["additionalProperties"], number, depth - 1)})
        }
        "object" => {
            let mut made = required(schema, number, depth - 1);
            // An empty object says little: one more field, by turns.
            let fields = schema["properties"].as_object();
            if let Some((name, below)) =
                fields.and_then(|fields| fields.iter().nth(number % fields.len().max(1)))
            {
                made.entry(name.clone()).or_insert_with(|| plausible(below, number, depth - 1));
            }
            Value::Object(made)
        }
        // A number or a text.
        _ => json!(number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "mounts": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "path": {"type": "string"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "count": {"type": "integer", "minimum": 3},
        }})
    }

    #[test]
    fn every_property_is_found_with_its_path() {
        let mut paths: Vec<_> = properties(&schema()).iter().map(Property::path).collect();
        paths.sort();
        assert_eq!(paths, ["count", "labels", "mounts", "mounts[].name", "mounts[].path"]);
    }

    #[test]
    fn a_patch_holds_what_is_required_around_it() {
        let schema = schema();
        let all = properties(&schema);
        let path = all.iter().find(|property| property.path() == "mounts[].path").unwrap();
        assert_eq!(
            path.patch(&schema, json!("/data"), 0),
            json!({"mounts": [{"name": "example", "path": "/data"}]})
        );
        let count = all.iter().find(|property| property.path() == "count").unwrap();
        assert_eq!(count.plausible(), [json!(3), json!(4), json!(5)]);
        assert_eq!(count.top(), "count");
    }
}
