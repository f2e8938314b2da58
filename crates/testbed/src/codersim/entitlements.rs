//! Entitlements of the installed licenses, as coderd computes them.

use serde_json::{Map, Value, json};

use super::state::State;

const DAY: i64 = 24 * 60 * 60;

/// Name of a feature, whether only premium includes it, and whether it is enabled as soon as it is included.
const FEATURES: [(&str, bool, bool); 24] = [
    ("audit_log", false, true),
    ("connection_log", false, true),
    ("browser_only", false, false),
    ("scim", false, false),
    ("template_rbac", false, true),
    ("user_role_management", false, true),
    ("high_availability", false, true),
    ("multiple_external_auth", false, true),
    ("external_provisioner_daemons", false, true),
    ("appearance", false, true),
    ("advanced_template_scheduling", false, true),
    ("workspace_proxy", false, true),
    ("external_token_encryption", false, false),
    ("workspace_batch_actions", false, true),
    ("task_batch_actions", false, true),
    ("access_control", false, true),
    ("control_shared_ports", false, true),
    ("custom_roles", true, true),
    ("multiple_organizations", true, true),
    ("workspace_prebuilds", false, true),
    ("workspace_external_agent", false, true),
    ("aibridge", false, false),
    ("boundary", false, true),
    ("service_accounts", true, true),
];
/// Features with a number. Only explicit claims include them.
const LIMITS: [&str; 3] = ["user_limit", "managed_agent_limit", "ai_governance_user_limit"];

/// The answer of `/entitlements`.
pub(super) struct Entitlements {
    pub(super) json: Value,
}

impl Entitlements {
    /// Whether coderd would let the feature be used.
    pub(super) fn is_enabled(&self, feature: &str) -> bool {
        let found = self.json.get("features").and_then(|features| features.get(feature));
        found.and_then(|found| found.get("enabled")) == Some(&Value::Bool(true))
    }
}

impl State {
    pub(super) fn entitlements(&self) -> Entitlements {
        let now = self.now().as_second();
        let mut features = Map::new();
        for (name, _, _) in FEATURES {
            features.insert(name.to_owned(), feature("not_entitled", false));
        }
        for name in LIMITS {
            features.insert(name.to_owned(), feature("not_entitled", false));
        }
        let (mut has_license, mut trial, mut warnings) = (false, false, Vec::new());
        for license in &self.licenses {
            let at = |name: &str| license.claims.get(name).and_then(Value::as_i64).unwrap_or_default();
            if now < at("nbf") || at("exp") <= now {
                continue;
            }
            has_license = true;
            trial = license.claims.get("trial") == Some(&Value::Bool(true));
            let left = at("license_expires") - now;
            let entitlement = if left > 0 { "entitled" } else { "grace_period" };
            let soon = if trial { 7 } else { 30 } * DAY;
            if (0..soon).contains(&left) {
                let days = (left + DAY - 1) / DAY;
                let plural = if days == 1 { "" } else { "s" };
                warnings.push(json!(format!("Your license expires in {days} day{plural}.")));
            }
            grant(&license.claims, entitlement, &mut features);
        }
        if let Some(Value::Object(limit)) = features.get_mut("user_limit") {
            let active = self.users.iter().filter(|user| user.status == "active" && !user.service_account);
            limit.insert("actual".to_owned(), active.count().into());
        }
        Entitlements {
            json: json!({
                "features": features, "warnings": warnings, "errors": [], "has_license": has_license,
                "trial": trial, "require_telemetry": false, "refreshed_at": self.refreshed_at.to_string(),
            }),
        }
    }
}

/// Adds the features of one license. An entitlement takes precedence over a grace period.
fn grant(claims: &Value, entitlement: &str, features: &mut Map<String, Value>) {
    let set = claims.get("feature_set").and_then(Value::as_str).unwrap_or_default();
    let all = claims.get("all_features") == Some(&Value::Bool(true));
    let explicit = |name: &str| claims.get("features").and_then(|all| all.get(name)).and_then(Value::as_i64);
    for (name, premium_only, works) in FEATURES {
        let in_set = match set {
            "premium" => true,
            "enterprise" => !premium_only,
            "" => all && !premium_only,
            _ => false,
        };
        if (in_set || explicit(name).is_some_and(|count| count > 0)) && !is_entitled(features, name) {
            features.insert(name.to_owned(), feature(entitlement, works));
        }
    }
    for name in LIMITS {
        let given = match name {
            "managed_agent_limit" if set == "premium" => Some(1000),
            _ => None,
        };
        if let Some(limit) = explicit(name).or(given).filter(|_| !is_entitled(features, name)) {
            let mut feature = feature(entitlement, true);
            if let Some(fields) = feature.as_object_mut() {
                fields.insert("limit".to_owned(), limit.into());
            }
            features.insert(name.to_owned(), feature);
        }
    }
}

fn is_entitled(features: &Map<String, Value>, name: &str) -> bool {
    let entitlement = features.get(name).and_then(|feature| feature.get("entitlement"));
    entitlement.and_then(Value::as_str) == Some("entitled")
}

fn feature(entitlement: &str, enabled: bool) -> Value {
    json!({ "entitlement": entitlement, "enabled": enabled })
}
