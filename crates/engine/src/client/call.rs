//! Classifies a request by its method, path, query and content type, without reading the body. The result has few
//! distinct values, fit for metric labels: the name of an object is never part of it.
//!
//! kube puts names into a path as they are, so that a name such as `?watch=true` or `../x` makes another request of it.
//! kube also notes which of its methods built a request. A request that is not what that method builds is recognised
//! here, and never sent.

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
    /// Whether the response has no end of its own: a watch or a followed log, and only one that the caller asked for.
    pub streams: bool,
    /// Whether the request is the one that the caller meant. False: a name in it is not that of an object.
    pub as_meant: bool,
    /// The path without the query. It names the object: fit for logs, not for labels.
    pub path: String,
}

impl Call {
    /// Classifies a request.
    pub fn of<B>(request: &Request<B>) -> Self {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let asks = |options: &[&str]| query.split('&').any(|pair| options.contains(&pair));
        let target = RequestTarget::of(path);
        let verb = match *request.method() {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH if is_apply(request) => "apply",
            Method::PATCH => "patch",
            Method::DELETE if target.shape == Shape::Collection => "deletecollection",
            Method::DELETE => "delete",
            _ if asks(&["watch=true", "watch=1"]) => "watch",
            _ if target.shape == Shape::Collection => "list",
            _ => "get",
        };
        let reads = matches!(verb, "get" | "list" | "watch");
        let streams = verb == "watch" || asks(&["follow=true", "follow=1"]);
        let meant = request.extensions().get().copied();
        let as_meant = is_well_formed(path)
            // kube encodes values: a second `?`, or a `/`, stems from a name before the query.
            && !query.contains(['?', '/'])
            && is_built_by(meant, verb, target.shape, query)
            && (!streams || matches!(meant, Some("watch" | "watch_metadata" | "log_stream")));
        Self {
            verb,
            // A path that nobody meant has as many forms as names.
            resource: if as_meant { target.resource } else { "invalid".to_owned() },
            writes: !reads && !asks(&["dryRun=All"]) && !target.review,
            streams,
            as_meant,
            path: path.to_owned(),
        }
    }
}

/// Whether every part of a path could be the name of a resource, version, namespace or object.
fn is_well_formed(path: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_allowed);
    path == "/" || path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_name))
}

/// Whether `meant`, the method of kube that built a request, builds such requests. None: the request was built by hand.
fn is_built_by(meant: Option<&str>, verb: &str, shape: Shape, query: &str) -> bool {
    let is_plain = query.split('&').all(|pair| pair.is_empty() || pair.starts_with("resourceVersion="));
    match meant {
        Some("get" | "get_metadata") => verb == "get" && shape == Shape::Object && is_plain,
        Some("list" | "list_metadata") => verb == "list",
        Some("watch" | "watch_metadata") => verb == "watch" && shape == Shape::Collection,
        Some("create" | "delete_collection") => shape == Shape::Collection,
        Some("patch" | "patch_metadata" | "replace" | "delete") => shape == Shape::Object,
        Some(_subresource) => shape == Shape::Subresource,
        None => verb != "get" || is_plain,
    }
}

fn is_apply<B>(request: &Request<B>) -> bool {
    let content = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content.is_some_and(|content| content.starts_with("application/apply-patch"))
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Collection,
    Object,
    Subresource,
    /// Something outside of the API, such as `/version`.
    Other,
}

struct RequestTarget {
    resource: String,
    shape: Shape,
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
        let shape = match (name, sub) {
            (false, _) => Shape::Collection,
            (true, None) => Shape::Object,
            (true, Some(_)) => Shape::Subresource,
        };
        let resource = sub.map_or_else(|| resource.to_owned(), |sub| format!("{resource}/{sub}"));
        Self { resource, shape, review }
    }

    fn outside(resource: String) -> Self {
        Self { resource, shape: Shape::Other, review: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as kube builds it: `meant` is the method, empty for one built by hand.
    fn built(meant: &'static str, method: &str, uri: &str, content: &str) -> Call {
        let request = Request::builder().method(method).uri(uri).header(CONTENT_TYPE, content);
        let request = if meant.is_empty() { request } else { request.extension(meant) };
        Call::of(&request.body(()).unwrap())
    }

    fn call(method: &str, uri: &str, content: &str) -> Call {
        let meant = match method {
            "GET" if uri.contains("watch=true") || uri.contains("watch=1") => "watch",
            "GET" if uri.contains("/log?") => "log_stream",
            _ => "",
        };
        built(meant, method, uri, content)
    }

    #[test]
    fn a_request_that_nobody_meant_is_recognised() {
        const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
        let table = [
            ("get", "GET", "/db", true),
            ("get", "GET", "/db.v1", true),
            ("get", "GET", "/db?resourceVersion=0", true),
            ("list", "GET", "?&limit=500&labelSelector=a%2Fb%3Dc", true),
            ("watch", "GET", "?&watch=true&timeoutSeconds=290&resourceVersion=7", true),
            ("patch", "PATCH", "/db?&fieldManager=coder-k8s&force=true", true),
            ("delete", "DELETE", "/db?", true),
            ("create", "POST", "?", true),
            ("patch_status", "PATCH", "/db/status?&force=true", true),
            ("", "GET", "/db", true),
            ("", "PATCH", "/db?fieldManager=coder-k8s", true),
            // Names that the schema refuses, and that an object may have from before.
            ("get", "GET", "/?watch=true&timeoutSeconds=3600", false),
            ("", "GET", "/?watch=true&timeoutSeconds=3600", false),
            ("get", "GET", "/db?watch=true", false),
            ("", "GET", "/db?watch=true", false),
            ("get", "GET", "/?limit=9", false),
            ("get", "GET", "/?", false),
            ("", "GET", "/", false),
            ("get", "GET", "/a/x", false),
            ("get", "GET", "/a/", false),
            ("get", "GET", "/..", false),
            ("", "GET", "/../configmaps/x", false),
            ("get", "GET", "/%2e%2e", false),
            ("get", "GET", "/a%2fb", false),
            ("get", "GET", "/a;b", false),
            ("patch", "PATCH", "/x?dryRun=All?&fieldManager=coder-k8s", false),
            ("patch", "PATCH", "/x/status?&fieldManager=coder-k8s", false),
            ("delete", "DELETE", "/?", false),
            ("patch_status", "PATCH", "/x?/status", false),
            // A namespace of this form.
            ("list", "GET", "/../../x?", false),
            ("list", "GET", "?watch=true/pods?&limit=500", false),
        ];
        for (meant, method, rest, expected) in table {
            let call = built(meant, method, &format!("{SECRETS}{rest}"), "");
            assert_eq!(call.as_meant, expected, "{meant} {method} {rest}");
            assert!(expected || call.resource == "invalid", "{meant} {method} {rest}: {}", call.resource);
        }
        assert!(
            !built("list", "GET", "/api/v1/namespaces/a?/secrets?", "").as_meant,
            "a namespace with a query"
        );
        assert!(!built("list", "GET", "/api/v1/namespaces/a", "").as_meant, "a namespace with a fragment");
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
