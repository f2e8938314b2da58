//! Classifies a request by its method, path, query and content type, without reading the body. The result has few
//! distinct values, fit for metric labels: the name of an object is never part of it.

use http::{Method, Request, header::CONTENT_TYPE};

/// A classified call to the API server.
#[derive(Clone, Debug)]
pub struct Call {
    /// The verb as RBAC names it, except that server-side apply is `apply` and not `patch`.
    pub verb: &'static str,
    /// Resource and subresource, such as `pods` or `deployments/status`; outside of the API the first segment of the
    /// path, such as `/version`.
    pub resource: String,
    /// Whether the call changes stored objects. Dry runs and access reviews do not.
    pub writes: bool,
    /// Whether the response has no end of its own: a watch or a followed log.
    pub streams: bool,
    /// The path without the query. It names the object: fit for logs, not for labels.
    pub path: String,
}

impl Call {
    /// Classifies a request.
    pub fn of<B>(request: &Request<B>) -> Self {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let asks = |options: &[&str]| query.split('&').any(|pair| options.contains(&pair));
        let RequestTarget { resource, collection, review } = RequestTarget::of(path);
        let verb = match *request.method() {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH if is_apply(request) => "apply",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            _ if asks(&["watch=true", "watch=1"]) => "watch",
            _ if collection => "list",
            _ => "get",
        };
        let reads = matches!(verb, "get" | "list" | "watch");
        Self {
            verb,
            resource,
            writes: !reads && !asks(&["dryRun=All"]) && !review,
            streams: verb == "watch" || asks(&["follow=true", "follow=1"]),
            path: path.to_owned(),
        }
    }
}

fn is_apply<B>(request: &Request<B>) -> bool {
    let content = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content.is_some_and(|content| content.starts_with("application/apply-patch"))
}

struct RequestTarget {
    resource: String,
    collection: bool,
    /// Access and token reviews are created with POST but never stored.
    review: bool,
}

impl RequestTarget {
    fn of(path: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let (root, group) = match parts.next() {
            Some("api") => ("/api", parts.next().map(|_version| "")),
            Some("apis") => ("/apis", parts.next().filter(|_group| parts.next().is_some())),
            Some(first) => return Self::outside(format!("/{first}")),
            None => return Self::outside("/".into()),
        };
        let (Some(group), Some(first)) = (group, parts.next()) else {
            return Self::outside(root.into());
        };
        let rest: Vec<&str> = parts.collect();
        let (resource, name, sub) = match (first, rest.as_slice()) {
            // `namespaces/x/pods` is about pods, but `namespaces/x/status` about the namespace.
            ("namespaces", [_, sub @ ("status" | "finalize"), ..]) => ("namespaces", true, Some(*sub)),
            ("namespaces", [_, resource, inner @ ..]) => {
                (*resource, !inner.is_empty(), inner.get(1).copied())
            }
            (resource, inner) => (resource, !inner.is_empty(), inner.get(1).copied()),
        };
        let review = matches!(group, "authorization.k8s.io" | "authentication.k8s.io");
        let resource = sub.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
        Self { resource, collection: !name, review }
    }

    fn outside(resource: String) -> Self {
        Self { resource, collection: false, review: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, uri: &str, content: &str) -> Call {
        Call::of(&Request::builder().method(method).uri(uri).header(CONTENT_TYPE, content).body(()).unwrap())
    }

    #[test]
    fn requests_are_named_by_verb_and_resource() {
        const JSON: &str = "application/json";
        const APPLY: &str = "application/apply-patch+yaml";
        const MERGE: &str = "application/merge-patch+json";
        const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/ns/deployments";
        let table = [
            ("GET", "/api/v1/pods", JSON, "list pods", false),
            ("GET", "/api/v1/pods?watch=true&resourceVersion=1", JSON, "watch pods", false),
            ("GET", "/api/v1/namespaces/ns/pods?&labelSelector=watch%3Dtrue", JSON, "list pods", false),
            ("GET", "/api/v1/namespaces/ns/pods/x", JSON, "get pods", false),
            ("GET", "/api/v1/namespaces/ns/pods/x/log?follow=true", JSON, "get pods/log", false),
            ("GET", "/api/v1/namespaces/ns/services/x/proxy/a/b/c", JSON, "get services/proxy", false),
            ("GET", "/api/v1/namespaces", JSON, "list namespaces", false),
            ("GET", "/api/v1/namespaces/ns", JSON, "get namespaces", false),
            ("PUT", "/api/v1/namespaces/ns/finalize", JSON, "update namespaces/finalize", true),
            ("PATCH", "/api/v1/namespaces/ns/status", MERGE, "patch namespaces/status", true),
            ("POST", "/api/v1/namespaces/ns/pods/x/eviction", JSON, "create pods/eviction", true),
            (
                "POST",
                "/api/v1/namespaces/ns/serviceaccounts/x/token",
                JSON,
                "create serviceaccounts/token",
                true,
            ),
            ("GET", "/apis/apps/v1/deployments", JSON, "list deployments", false),
            ("POST", DEPLOYMENTS, JSON, "create deployments", true),
            ("DELETE", DEPLOYMENTS, JSON, "deletecollection deployments", true),
            ("PUT", &format!("{DEPLOYMENTS}/x"), JSON, "update deployments", true),
            (
                "PATCH",
                &format!("{DEPLOYMENTS}/x?fieldManager=m&force=true"),
                APPLY,
                "apply deployments",
                true,
            ),
            ("PATCH", &format!("{DEPLOYMENTS}/x?dryRun=All"), APPLY, "apply deployments", false),
            ("PATCH", &format!("{DEPLOYMENTS}/x/status"), APPLY, "apply deployments/status", true),
            ("PATCH", &format!("{DEPLOYMENTS}/x/scale"), MERGE, "patch deployments/scale", true),
            ("DELETE", &format!("{DEPLOYMENTS}/x"), JSON, "delete deployments", true),
            (
                "GET",
                "/apis/coder.com/v1alpha1/namespaces/a/codercontrolplanes/b",
                JSON,
                "get codercontrolplanes",
                false,
            ),
            ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/x", JSON, "get clusterroles", false),
            ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", JSON, "create clusterroles", true),
            (
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                JSON,
                "create selfsubjectaccessreviews",
                false,
            ),
            ("GET", "/version", JSON, "get /version", false),
            ("GET", "/openapi/v3/apis/apps/v1", JSON, "get /openapi", false),
            ("GET", "/api", JSON, "get /api", false),
            ("GET", "/api/v1", JSON, "get /api", false),
            ("GET", "/apis", JSON, "get /apis", false),
            ("GET", "/apis/apps", JSON, "get /apis", false),
            ("GET", "/apis/apps/v1", JSON, "get /apis", false),
            ("GET", "/", JSON, "get /", false),
        ];
        for (method, uri, content, expected, writes) in table {
            let call = call(method, uri, content);
            assert_eq!(format!("{} {}", call.verb, call.resource), expected, "{method} {uri}");
            assert_eq!(call.writes, writes, "{method} {uri}");
        }
    }

    #[test]
    fn watches_and_followed_logs_have_no_end() {
        assert!(call("GET", "/api/v1/pods?watch=1", "").streams);
        assert!(call("GET", "/api/v1/namespaces/ns/pods/x/log?follow=true", "").streams);
        assert!(!call("GET", "/api/v1/pods?watch=false", "").streams);
    }
}
