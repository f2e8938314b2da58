//! Defaults of a structural schema.

use serde_json::Value;

/// Fills in the defaults of a schema where the value has none.
pub(super) fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, inner) in properties.into_iter().flatten() {
                if !map.contains_key(name)
                    && let Some(default) = inner.get("default")
                {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(held) = map.get_mut(name) {
                    fill(inner, held);
                }
            }
            if let Some(inner) = schema.get("additionalProperties").filter(|inner| inner.is_object()) {
                for held in map.values_mut() {
                    fill(inner, held);
                }
            }
        }
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                for item in items {
                    fill(inner, item);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_filled_in_at_every_depth_and_nothing_is_overwritten() {
        let schema = json!({"properties": {"a": {"default": {}, "properties": {"b": {"default": 1}}},
            "c": {"items": {"properties": {"d": {"default": "x"}}}}}});
        let mut value = json!({"c": [{}, {"d": "y"}]});
        fill(&schema, &mut value);
        assert_eq!(value, json!({"a": {"b": 1}, "c": [{"d": "x"}, {"d": "y"}]}));
    }
}
