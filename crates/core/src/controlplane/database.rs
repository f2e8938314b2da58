//! Where the pods find coderd's database, and so where the operator finds it.

use coder_k8s_api::PodSettings;
use k8s_openapi::api::core::v1::EnvFromSource;

use crate::{pod::find_variable, sources::key_for};

/// The variable with the address of the database.
pub const URL: &str = "CODER_PG_CONNECTION_URL";
/// The variable that says how coderd authenticates there.
pub const AUTH: &str = "CODER_PG_AUTH";
/// What to do when there is no address.
pub const HOW_TO_CONFIGURE: &str = "no database is configured: set CODER_PG_CONNECTION_URL in extraEnv or envFrom, \
     or choose another operatorAccess.method, or set operatorAccess.disabled";

/// Whether the pods may have the address of a database. What `envFrom` brings is known only when it is read.
pub fn may_be_configured(pod: &PodSettings) -> bool {
    let set = find_variable(&pod.extra_env, URL);
    let could = |from: &EnvFromSource| key_for(from, URL).is_some();
    set.is_some_and(|entry| {
        entry.value_from.is_some() || entry.value.as_deref().is_some_and(|value| !value.trim().is_empty())
    }) || (set.is_none() && pod.env_from.iter().any(could))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_address_may_come_from_every_place_that_pods_read() {
        for (pod, expected) in [
            (json!({}), false),
            (json!({"extraEnv": [{"name": URL, "value": "postgres://db"}]}), true),
            (json!({"extraEnv": [{"name": URL, "value": " "}]}), false),
            (json!({"extraEnv": [{"name": URL}]}), false),
            (
                json!({"extraEnv": [{"name": URL, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                true,
            ),
            (json!({"envFrom": [{"secretRef": {"name": "s"}}]}), true),
            (json!({"envFrom": [{"prefix": "CODER_", "secretRef": {"name": "s"}}]}), true),
            (json!({"envFrom": [{"prefix": "OTHER_", "secretRef": {"name": "s"}}]}), false),
            // What is set by name wins over what a source brings, even if it is nothing.
            (
                json!({"extraEnv": [{"name": URL, "value": ""}], "envFrom": [{"secretRef": {"name": "s"}}]}),
                false,
            ),
        ] {
            let settings: PodSettings = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(may_be_configured(&settings), expected, "{pod}");
        }
    }
}
