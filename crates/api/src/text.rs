//! Strings that carry their validity: names, hosts, URLs and images.
//!
//! Each type brings its own schema, so that `kubectl apply` refuses a wrong value with one sentence wherever the type
//! is used. Reading trims surrounding white space, as the Go operator does, and does not validate: the API server
//! does.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

use crate::schema::schema;

/// Declares a string type with the bound, the CEL rule and the message of its schema. `max` also bounds the cost that
/// the API server computes for the rule.
macro_rules! text_types {
    ($($(#[$doc:meta])* $name:ident { max: $max:expr, rule: $rule:expr, message: $message:expr $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The text, without surrounding blanks.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.trim().to_owned())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Cow::<'de, str>::deserialize(deserializer).map(|text| Self::from(&*text))
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schema(json!({
                    "type": "string",
                    "maxLength": $max,
                    "x-kubernetes-validations": [{"rule": $rule, "message": $message}],
                }))
            }
        }
    )+};
}

text_types! {
    /// The name of an object in the same namespace, such as a Secret.
    ObjectName {
        max: 253,
        rule: "self.trim().matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        message: "must be the name of an object: lower-case letters, digits, '-' and '.', not empty, at most 253 characters",
    }

    /// The name of a namespace.
    NamespaceName {
        max: 63,
        rule: "self.trim().matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        message: "must be the name of a namespace: lower-case letters, digits and '-', not empty, at most 63 characters",
    }

    /// A key in the data of a Secret or ConfigMap.
    DataKey {
        max: 253,
        rule: "self.trim().matches('^[-._a-zA-Z0-9]+$')",
        message: "must be a key of a Secret: letters, digits, '-', '_' and '.', not empty, at most 253 characters",
    }

    /// A container image reference.
    ImageRef {
        max: 1024,
        rule: "self.trim().matches('^[^ \\t\\r\\n]+$')",
        message: "must be a container image such as ghcr.io/coder/coder:v2.30.0, without blanks",
    }

    /// A host name for the `host` of an Ingress rule or the `hostnames` of an HTTPRoute.
    HostName {
        max: 253,
        rule: "self.trim().matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$') && !isIP(self.trim())",
        message: "must be a host name such as coder.example.com: lower-case letters, digits, '-' and '.', no scheme, no port, no IP address",
    }

    /// A host name whose first label may start with `*`, such as `*.example.com` or `*-apps.example.com`.
    WildcardHost {
        max: 253,
        rule: "self.trim().matches('^([*][-a-z0-9]*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)+$') && !isIP(self.trim())",
        message: "must be a wildcard host such as *.coder.example.com: one '*' at the start, no scheme, no port",
    }

    /// The value of `CODER_WILDCARD_ACCESS_URL`: a wildcard host with an optional port. It has no scheme, although it
    /// is called a URL.
    WildcardAccess {
        max: 261,
        rule: "self.trim().matches('^[*][-a-z0-9]*([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)+(:[0-9]+)?$')",
        message: "must be a wildcard host such as *.eu.coder.example.com: one '*' at the start, no scheme",
    }

    /// The DNS domain of a cluster. Unlike the other types, its rule refuses surrounding white space.
    ClusterDomain {
        max: 253,
        rule: "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        message: "must be the cluster's DNS domain such as cluster.local: no leading or trailing dot",
    }

    /// An `http` or `https` URL without user information.
    HttpUrl {
        max: 2048,
        rule: "isURL(self.trim()) && url(self.trim()).getScheme() in ['http', 'https'] && url(self.trim()).getHostname() != '' && !self.matches('^[^/]*//[^/]*@')",
        message: "must be a URL such as https://coder.example.com: http or https, a host, and no user or password in it",
    }

    /// The name of a Coder organization, its UUID, or `default`.
    OrganizationName {
        max: 128,
        rule: "self.trim().matches('^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$')",
        message: "must be the name of a Coder organization: letters, digits and '-', not empty, at most 128 characters",
    }

    /// The name of a provisioner key. coderd converts it to lower case.
    KeyName {
        max: 64,
        rule: "self.trim().matches('^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$') && !(self.trim().lowerAscii() in ['built-in', 'user-auth', 'psk'])",
        message: "must be a provisioner key's name: letters, digits, '-', '_' and '.', not empty, at most 64 characters, and none of coderd's own (built-in, user-auth, psk)",
    }

    /// The name of a workspace proxy in coderd.
    ProxyName {
        max: 64,
        rule: "self.trim().matches('^[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?$') && self.trim().lowerAscii() != 'primary'",
        message: "must be a workspace proxy's name: letters, digits, '-', '_' and '.', not empty, at most 64 characters, and not 'primary', which is coderd itself",
    }

    /// How long a daemon is idle before it may leave.
    IdleTime {
        max: 16,
        rule: "size(self.trim()) > 1 && self.trim().matches('^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$') && duration(self.trim()) >= duration('1s') && duration(self.trim()) <= duration('24h')",
        message: "must be a time such as 90s, 5m or 1h30m, from 1s to 24h",
    }

    /// A time of day, such as `07:30`.
    TimeOfDay {
        max: 5,
        rule: "self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",
        message: "must be a time of day such as 07:30, from 00:00 to 23:59",
    }

    /// The name of a time zone. The API server knows the zones; it refuses an unknown one because the rule fails.
    TimeZoneName {
        max: 64,
        rule: "self.matches('^[A-Z][A-Za-z0-9_+/-]*$') && self != 'Local' && timestamp('2026-01-01T00:00:00Z').getHours(self) >= 0",
        message: "must be the name of a time zone such as Europe/Berlin or UTC",
    }

    /// A non-empty line of text that coderd shows to people.
    Line {
        max: 256,
        rule: "size(self.trim()) > 0",
        message: "must not be empty: leave the field out instead",
    }
}

/// The text, cut between characters if it is longer than `max` bytes, with a sign that something is missing.
pub fn shortened(text: impl Into<String>, max: usize) -> String {
    let mut text = text.into();
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max.saturating_sub('…'.len_utf8())));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surrounding_blanks_are_dropped_on_reading() {
        let name: ObjectName = serde_json::from_str(r#"" coder-license\n""#).unwrap();
        assert_eq!(name.as_str(), "coder-license");
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""coder-license""#);
    }
}
