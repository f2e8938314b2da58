//! Requests as the routes read them, and answers.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, request::Parts};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::sessions::Admitted;

/// A request, with decoded path segments and query.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) parts: Vec<String>,
    pub(super) raw_query: String,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Asked {
    pub(super) fn new(head: &Parts, body: Bytes) -> Self {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let path = head.uri.path().to_owned();
        let raw_query = head.uri.query().unwrap_or_default().to_owned();
        let query = raw_query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(&value.replace('+', " ")))
        });
        Self {
            method: head.method.as_str().to_owned(),
            parts: path.split('/').skip(1).map(decoded).collect(),
            query: query.collect(),
            raw_query: raw_query.clone(),
            path,
            headers: head.headers.clone(),
            body,
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
    }

    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter.
    pub(super) fn params(&self, name: &str) -> Vec<&str> {
        self.query.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Reply> {
        if self.body.len() > 4 * 1024 * 1024 {
            return Err(Reply::error(413, "Request body too large."));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Reply::error(400, "Request body must be valid JSON.").detail(&error.to_string()))
    }

    /// Refuses unknown parameters, as the lists of coderd do.
    pub(super) fn only_params(&self, known: &[&str]) -> Result<(), Reply> {
        match self.query.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => Err(Reply::error(400, "Invalid query parameters.")
                .validation(name, &format!("{name:?} is not a valid query param"))),
        }
    }
}

/// What happens to the connection after the answer.
#[derive(Clone)]
pub(super) enum Then {
    /// The connection becomes the websocket of a daemon.
    ServeDaemon(Admitted),
    /// The connection becomes the coordination websocket of a proxy.
    Coordinate,
    /// The health of the proxy with this UUID is checked.
    CheckProxy(String),
}

/// An answer.
#[derive(Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) then: Option<Box<Then>>,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Empty,
    Json(Value),
    Text(String),
    Raw(String),
}

impl Reply {
    pub(super) fn json(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), then: None, content: Content::Json(body) }
    }

    pub(super) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), then: None, content: Content::Empty }
    }

    pub(super) fn text(status: u16, body: &str) -> Self {
        Self { status, headers: Vec::new(), then: None, content: Content::Text(body.to_owned()) }
    }

    pub(super) fn raw(status: u16, headers: Vec<(String, String)>, body: String) -> Self {
        Self { status, headers, then: None, content: Content::Raw(body) }
    }

    pub(super) fn error(status: u16, message: &str) -> Self {
        Self::json(status, json!({ "message": message }))
    }

    pub(super) fn no_route() -> Self {
        Self::error(404, "Route not found.")
    }

    /// Missing or not permitted: coderd does not tell the difference.
    pub(super) fn not_found() -> Self {
        Self::error(404, "Resource not found or you do not have access to this resource")
    }

    pub(super) fn forbidden() -> Self {
        Self::error(403, "Forbidden.").detail(
            "You don't have permission to view this content. If you believe this is a mistake, please contact your \
             administrator or try signing in with different credentials.",
        )
    }

    /// The 500 of a create handler that does not map a refused authorization to 403.
    pub(super) fn unmapped_denial() -> Self {
        Self::error(500, "An internal server error occurred.").detail("unauthorized: rbac: forbidden")
    }

    pub(super) fn not_licensed(feature: &str) -> Self {
        Self::error(403, &format!("{feature} is a Premium feature. Contact sales!"))
    }

    pub(super) fn detail(mut self, detail: &str) -> Self {
        if let Content::Json(Value::Object(body)) = &mut self.content {
            body.insert("detail".to_owned(), detail.into());
        }
        self
    }

    pub(super) fn validation(mut self, field: &str, detail: &str) -> Self {
        if let Content::Json(Value::Object(body)) = &mut self.content {
            let all = body.entry("validations").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut() {
                all.push(json!({ "field": field, "detail": detail }));
            }
        }
        self
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn then(mut self, then: Then) -> Self {
        self.then = Some(Box::new(then));
        self
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let (kind, body) = match self.content {
            Content::Json(value) => (Some("application/json; charset=utf-8"), value.to_string()),
            Content::Text(text) => (Some("text/plain; charset=utf-8"), text),
            Content::Raw(text) => (None, text),
            Content::Empty => (None, String::new()),
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(kind) = kind {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        for (name, value) in self.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(&value)) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}
