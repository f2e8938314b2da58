//! The resource or object that a request path names.

/// A resource, and the object if the path names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) user: String,
    pub(super) api_version: String,
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

impl Target {
    /// Parses `/as/<user>/api/v1/...` and `/as/<user>/apis/<group>/<version>/...`.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let (Some("as"), Some(user)) = (parts.next(), parts.next()) else { return None };
        let api_version = match parts.next()? {
            "api" => parts.next()?.to_owned(),
            "apis" => format!("{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<_> = parts.map(str::to_owned).collect();
        let (namespace, rest) = match rest.as_slice() {
            [first, namespace, rest @ ..] if first == "namespaces" && !rest.is_empty() => {
                (Some(namespace.clone()), rest)
            }
            rest => (None, rest),
        };
        let (plural, rest) = rest.split_first()?;
        let (name, subresource) = (rest.first().cloned(), rest.get(1).cloned());
        Some(Self {
            user: user.to_owned(),
            api_version,
            plural: plural.clone(),
            namespace,
            name,
            subresource,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_resources_and_objects() {
        let read = |path: &str| {
            let found = Target::parse(path)?;
            Some(
                [Some(found.plural), found.namespace, found.name, found.subresource]
                    .map(Option::unwrap_or_default)
                    .join(" "),
            )
        };
        assert_eq!(read("/as/x/api/v1/secrets").unwrap(), "secrets   ");
        assert_eq!(read("/as/x/api/v1/namespaces/a").unwrap(), "namespaces  a ");
        assert_eq!(
            read("/as/x/apis/coder.com/v1alpha1/namespaces/a/coderprovisioners/p/status").unwrap(),
            "coderprovisioners a p status"
        );
        assert_eq!(read("/version"), None);
    }
}
