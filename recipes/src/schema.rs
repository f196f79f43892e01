//! The JSON schema of recipes, for editors that complete and check YAML.

use serde_json::Value;

const SCHEMA: &str = include_str!("../schema.json");

/// The schema, as published in `recipes/schema.json`.
///
/// It covers keys and kinds; [`crate::load`] checks names, sizes and steps. An editor's YAML parser needs quotes around steps with a
/// colon.
pub fn json_schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{BLOCK_KEYS, KEYS, STATE_KEYS, TENSOR_KEYS, TRAIN_KEYS};

    fn keys(value: &Value) -> Vec<String> {
        value.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn the_schema_has_the_keys_of_the_loader() {
        let schema = json_schema();
        assert_eq!(keys(&schema["properties"]), KEYS);
        assert_eq!(keys(&schema["$defs"]["tensor"]["oneOf"][1]["properties"]), TENSOR_KEYS);
        assert_eq!(keys(&schema["$defs"]["state"]["oneOf"][1]["properties"]), STATE_KEYS);
        assert_eq!(keys(&schema["$defs"]["block"]["properties"]), BLOCK_KEYS);
        assert_eq!(keys(&schema["properties"]["train"]["properties"]), TRAIN_KEYS);
        let dtypes: Vec<&str> = sdfg::Dtype::ALL.iter().map(|d| d.name()).collect();
        assert_eq!(schema["$defs"]["dtype"]["enum"], serde_json::json!(dtypes));
    }
}
