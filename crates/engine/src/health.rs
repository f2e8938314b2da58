//! The HTTP endpoints of the process: liveness, readiness, metrics and log level.
//!
//! There are three routers for three listeners, because they have three audiences: [`probes`] for the kubelet,
//! [`metrics`] for Prometheus, [`admin`] for a person on the machine. Only the last one changes anything, and only the
//! log filter. [`bind`] and [`serve`] run a router on a listen address.

mod listener;
mod readiness;

use std::sync::Arc;

use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{
    logs,
    metrics::{CONTENT_TYPE as OPEN_METRICS, Metrics},
};

pub use listener::{BindError, Bound, bind, serve};
pub use readiness::{Readiness, ReadyCheck};

/// Called before each scrape, to set gauges that are computed from caches.
pub type Refresh = Arc<dyn Fn() + Send + Sync>;

/// `/livez`, `/healthz` and `/readyz`.
///
/// Liveness only proves that the process responds: a restart does not bring an unreachable cluster back.
pub fn probes(readiness: Readiness) -> Router {
    let ready = move || {
        let readiness = readiness.clone();
        async move {
            let report = readiness.report();
            let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, report.text)
        }
    };
    Router::new()
        .route("/livez", get(async || "ok"))
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .fallback(async |uri: Uri| not_found(&uri, "GET /livez, GET /healthz, GET /readyz"))
}

/// `/metrics`, in the OpenMetrics text format.
pub fn metrics(metrics: Arc<Metrics>, refresh: Option<Refresh>) -> Router {
    let scrape = move || {
        let (metrics, refresh) = (metrics.clone(), refresh.clone());
        async move {
            if let Some(refresh) = refresh {
                refresh();
            }
            match metrics.encode() {
                Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            }
        }
    };
    Router::new().route("/metrics", get(scrape)).fallback(async |uri: Uri| not_found(&uri, "GET /metrics"))
}

/// `/log-level`: GET reads the log filter, PUT sets it to the request body.
pub fn admin(logs: logs::Handle) -> Router {
    let reading = logs.clone();
    let read = move || {
        let logs = reading.clone();
        async move { line(&logs.current()) }
    };
    let write = move |filter: String| {
        let logs = logs.clone();
        async move { set_filter(&logs, &filter) }
    };
    Router::new().route("/log-level", get(read).put(write)).fallback(async |uri: Uri| {
        not_found(&uri, "GET /log-level, PUT /log-level with the new filter as body")
    })
}

fn set_filter(logs: &logs::Handle, filter: &str) -> Response {
    let before = logs.current();
    match logs.set(filter) {
        Ok(()) => {
            tracing::info!(from = before, to = logs.current(), "changed the log filter");
            line(&logs.current()).into_response()
        }
        Err(error @ logs::Error::Filter { .. }) => {
            (StatusCode::BAD_REQUEST, line(&error.to_string())).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, line(&error.to_string())).into_response(),
    }
}

fn line(text: &str) -> String {
    format!("{text}\n")
}

fn not_found(uri: &Uri, served: &str) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("{} is not served here; this listener serves {served}\n", uri.path()))
}

#[cfg(test)]
mod tests;
