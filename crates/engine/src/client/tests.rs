use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::ClientBuilder;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams},
    client::Body,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tower::BoxError;

use super::*;
use crate::fence::Moment;

const SECOND: Duration = Duration::from_secs(1);

fn settings() -> ClientSettings {
    ClientSettings { deadline: 3 * SECOND, ..ClientSettings::new(Metrics::new()) }
}

fn answer() -> Response<Full<Bytes>> {
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#;
    Response::new(Full::new(Bytes::from_static(body.as_bytes())))
}

/// A server that responds after a delay, and the number of calls that reached it.
fn server(settings: &ClientSettings, after: Duration) -> (Api<ConfigMap>, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let counted = reached.clone();
    let service = tower::service_fn(move |_: Request<Body>| {
        let counted = counted.clone();
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            sleep(after).await;
            Ok::<_, BoxError>(answer())
        }
    });
    let guard = Guard::new(settings.clone()).unwrap();
    let client = ClientBuilder::new(service, "default").with_layer(&guard).build();
    (Api::default_namespaced(client), reached)
}

fn counted(settings: &ClientSettings, verb: &str, code: &str) -> bool {
    let text = settings.metrics.encode().unwrap();
    text.contains(&format!("{{verb=\"{verb}\",resource=\"configmaps\",code=\"{code}\"}} 1\n"))
}

#[test]
fn the_roots_of_the_system_are_needed_only_to_verify_a_certificate_without_a_ca() {
    let config = |url: &str, root_cert: Option<Vec<Vec<u8>>>, accept_invalid_certs: bool| {
        let mut config = Config::new(url.parse().unwrap());
        (config.root_cert, config.accept_invalid_certs) = (root_cert, accept_invalid_certs);
        config
    };
    let https = "https://api.example.com";
    for (config, needed) in [
        (config(https, None, false), true),
        (config(https, Some(vec![vec![1]]), false), false),
        (config(https, None, true), false),
        (config("http://127.0.0.1:8001", None, false), false),
    ] {
        assert_eq!(needs_system_roots(&config), needed, "{}", config.cluster_url);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_response_ends_at_the_deadline() {
    let settings = settings();
    let (api, reached) = server(&settings, 60 * SECOND);
    let started = Instant::now();
    let error = api.get("x").await.unwrap_err();
    assert!(is_timeout(&error) && !is_not_leading(&error), "{error}");
    assert_eq!(error.to_string(), "ServiceError: no complete response from the API server within 3 s");
    assert_eq!((started.elapsed().as_secs(), reached.load(Ordering::SeqCst)), (3, 1));
    assert!(counted(&settings, "get", "timeout"));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_covers_the_body() {
    let settings = settings();
    let service = tower::service_fn(|_: Request<Body>| async {
        sleep(SECOND).await;
        let start = stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"{\"kind\"")))]);
        Ok::<_, BoxError>(Response::new(StreamBody::new(start.chain(stream::pending()))))
    });
    let guard = Guard::new(settings.clone()).unwrap();
    let client = ClientBuilder::new(service, "default").with_layer(&guard).build();
    let started = Instant::now();
    let error = Api::<ConfigMap>::default_namespaced(client).get("x").await.unwrap_err();
    assert!(is_timeout(&error), "{error}");
    assert_eq!(started.elapsed().as_secs(), 3);
    assert!(counted(&settings, "get", "timeout") && !counted(&settings, "get", "200"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_has_a_deadline_until_its_headers_and_none_after() {
    let settings = settings();
    let event = r#"{"type":"ADDED","object":{"metadata":{"name":"x"}}}"#;
    let service = tower::service_fn(move |_: Request<Body>| async move {
        let late = stream::once(async move {
            sleep(600 * SECOND).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from(format!("{event}\n"))))
        });
        Ok::<_, BoxError>(Response::new(StreamBody::new(late)))
    });
    let guard = Guard::new(settings.clone()).unwrap();
    let client = ClientBuilder::new(service, "default").with_layer(&guard).build();
    let api = Api::<ConfigMap>::default_namespaced(client);
    let mut events = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(counted(&settings, "watch", "200"), "counted when established");
    assert!(events.try_next().await.unwrap().is_some());

    let (api, _) = server(&settings, 60 * SECOND);
    assert!(is_timeout(&api.watch(&WatchParams::default(), "0").await.err().unwrap()));
}

/// Objects from before the rules of the schema may hold such names.
const BAD_NAMES: [&str; 12] = [
    "?watch=true&timeoutSeconds=3600",
    "x?watch=true",
    "x?limit=1",
    "?",
    "#",
    "a/x",
    "a/status",
    "..",
    ".",
    "../secrets",
    "%2e%2e",
    "A_B",
];

#[tokio::test(start_paused = true)]
async fn a_name_that_no_object_can_have_is_never_sent() {
    let settings = settings();
    let (api, reached) = server(&settings, 60 * SECOND);
    let client = api.clone().into_client();
    let patch = Patch::Merge(serde_json::json!({}));
    for name in BAD_NAMES {
        // A name in capitals is refused by the server, as one that it does not know.
        if name != "A_B" {
            let error = api.get(name).await.unwrap_err();
            let failure = blocker("read it", &error);
            assert_eq!(
                (failure.reason, failure.retry),
                (Reason::Invalid, Retry::OnChange),
                "{name}: {error}"
            );
            assert!(api.patch(name, &PatchParams::default(), &patch).await.is_err(), "{name}");
            assert!(api.delete(name, &DeleteParams::default()).await.is_err(), "{name}");
            let elsewhere: Api<ConfigMap> = Api::namespaced(client.clone(), name);
            assert!(elsewhere.list(&ListParams::default()).await.is_err(), "{name}");
        }
        assert!(object_name(name).is_err(), "{name}");
        let error = crate::secret::read(&client, "ns", name).await.unwrap_err().to_string();
        assert!(error.contains("not a name that an object can have"), "{error}");
    }
    assert!(crate::secret::read(&client, "ns", "a#b").await.is_err(), "would read another Secret");
    assert_eq!(reached.load(Ordering::SeqCst), 0, "nothing was sent");
    let text = settings.metrics.encode().unwrap();
    assert!(text.contains(r#"verb="get",resource="invalid",code="refused""#), "{text}");
    for line in text.lines().filter(|line| line.starts_with("coder_k8s_api_calls_total")) {
        assert!(line.contains(r#"resource="invalid""#), "{line}");
    }
}

#[test]
fn names_of_objects_are_dns_subdomains() {
    for name in ["a", "db", "db-1.v2", "0", &"a".repeat(253)] {
        assert!(object_name(name).is_ok(), "{name}");
    }
    for name in ["", "-a", "a-", "a..b", ".a", "a.", "a b", "ä", &"a".repeat(254)] {
        assert!(object_name(name).is_err(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_fence_refuses_writes_and_lets_reads_through() {
    let fence = Fence::closed();
    let settings = ClientSettings { fence: Some(fence.clone()), ..settings() };
    let (api, reached) = server(&settings, Duration::ZERO);
    let error = api.create(&PostParams::default(), &ConfigMap::default()).await.unwrap_err();
    assert!(is_not_leading(&error) && !is_timeout(&error), "{error}");
    assert_eq!(reached.load(Ordering::SeqCst), 0, "nothing was sent");
    assert!(counted(&settings, "create", "fenced"));
    api.get("x").await.unwrap();

    fence.extend(Moment::now(), SECOND);
    api.create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
    assert_eq!(reached.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_in_flight_is_abandoned_when_the_fence_closes() {
    let fence = Fence::closed();
    let settings = ClientSettings { fence: Some(fence.clone()), deadline: 60 * SECOND, ..settings() };
    let (api, _) = server(&settings, 30 * SECOND);
    let patch = Patch::Apply(serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    let params = PatchParams::apply("test");

    fence.extend(Moment::now(), 2 * SECOND);
    let started = Instant::now();
    let error = api.patch("x", &params, &patch).await.unwrap_err();
    assert!(is_not_leading(&error), "{error}");
    assert_eq!(started.elapsed().as_secs(), 2, "it expired");
    assert!(counted(&settings, "apply", "fenced"));

    fence.extend(Moment::now(), 20 * SECOND);
    let (closing, started) = (fence.clone(), Instant::now());
    let (result, ()) = tokio::join!(api.patch("x", &params, &patch), async {
        sleep(SECOND).await;
        closing.close();
    });
    assert!(is_not_leading(&result.unwrap_err()));
    assert!(started.elapsed() <= SECOND * 3 / 2, "closed by hand");

    fence.extend(Moment::now(), 20 * SECOND);
    let (result, ()) = tokio::join!(api.patch("x", &params, &patch), async {
        sleep(15 * SECOND).await;
        fence.extend(Moment::now(), 20 * SECOND);
    });
    result.expect("a renewal keeps a slow write alive");
}

#[derive(Default)]
struct Script {
    before: Mutex<VecDeque<Fault>>,
    after: Mutex<VecDeque<Fault>>,
}

impl Faults for Script {
    fn before(&self, _: &Call) -> Option<Fault> {
        self.before.lock().pop_front()
    }

    fn after(&self, call: &Call) -> Option<Fault> {
        assert_eq!(call.path, "/api/v1/namespaces/default/configmaps/x");
        self.after.lock().pop_front()
    }
}

#[tokio::test(start_paused = true)]
async fn faults_strike_before_and_after_the_server() {
    let script = Arc::new(Script::default());
    let settings = ClientSettings { faults: Some(script.clone()), ..settings() };
    let (api, reached) = server(&settings, Duration::ZERO);
    let reached = || reached.swap(0, Ordering::SeqCst);

    script.before.lock().push_back(Fault::Error);
    assert!(matches!(api.get("x").await.unwrap_err(), kube::Error::Service(_)));
    assert_eq!(reached(), 0);
    assert!(counted(&settings, "get", "error"));

    script.before.lock().push_back(Fault::Status(503));
    assert!(matches!(api.get("x").await.unwrap_err(), kube::Error::Api(status) if status.code == 503));
    assert_eq!(reached(), 0);
    assert!(counted(&settings, "get", "503"));

    script.after.lock().push_back(Fault::Error);
    api.get("x").await.unwrap_err();
    assert_eq!(reached(), 1, "the call took effect");

    script.after.lock().push_back(Fault::Status(409));
    assert!(matches!(api.get("x").await.unwrap_err(), kube::Error::Api(status) if status.code == 409));
    assert_eq!(reached(), 1);

    script.before.lock().push_back(Fault::Delay(SECOND));
    script.after.lock().push_back(Fault::Delay(SECOND));
    let started = Instant::now();
    api.get("x").await.unwrap();
    assert_eq!((started.elapsed(), reached()), (2 * SECOND, 1));
    assert!(counted(&settings, "get", "200"));

    script.before.lock().push_back(Fault::Delay(5 * SECOND));
    assert!(is_timeout(&api.get("x").await.unwrap_err()), "the deadline holds");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_counted() {
    let settings = settings();
    let (api, _) = server(&settings, 60 * SECOND);
    let given_up = tokio::time::timeout(SECOND, api.get("x")).await;
    assert!(given_up.is_err());
    assert!(counted(&settings, "get", "canceled"));
}

#[tokio::test]
async fn every_call_sends_the_user_agent() {
    let service = tower::service_fn(|request: Request<Body>| async move {
        assert_eq!(request.headers()[http::header::USER_AGENT], USER_AGENT);
        Ok::<_, BoxError>(answer())
    });
    let guard = Guard::new(settings()).unwrap();
    let client = ClientBuilder::new(service, "default").with_layer(&guard).build();
    Api::<ConfigMap>::default_namespaced(client).get("x").await.unwrap();
    assert!(USER_AGENT.starts_with("coder-k8s/"));

    let unsendable = ClientSettings { user_agent: "line\nbreak".into(), ..settings() };
    assert!(matches!(Guard::new(unsendable).err().unwrap(), kube::Error::HttpError(_)));
}

#[tokio::test]
async fn the_retry_after_of_an_overloaded_server_reaches_the_caller() {
    let service = tower::service_fn(|_: Request<Body>| async {
        let busy = Response::builder()
            .status(429)
            .header("Retry-After", "7")
            .body(Full::new(Bytes::from("slow down")));
        busy.map_err(BoxError::from)
    });
    let guard = Guard::new(settings()).unwrap();
    let client = ClientBuilder::new(service, "default").with_layer(&guard).build();
    let error = Api::<ConfigMap>::default_namespaced(client).get("x").await.unwrap_err();
    let failure = blocker("read x", &error);
    assert_eq!(failure.retry, Retry::After(7 * SECOND));
}

fn refused(code: u16, message: &str, retry_after: Option<i32>) -> kube::Error {
    let status = serde_json::json!({
        "status": "Failure", "code": code, "message": message, "reason": "",
        "details": {"retryAfterSeconds": retry_after.unwrap_or(0)},
    });
    kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
}

#[test]
fn each_response_has_its_reason_and_retry() {
    for (error, reason, retry) in [
        (refused(403, "cannot patch resource", None), Reason::Forbidden, Retry::Backoff),
        (refused(409, "conflict", None), Reason::Outdated, Retry::Soon),
        (
            refused(422, "metadata.uid: Invalid value: field is immutable", None),
            Reason::Outdated,
            Retry::Soon,
        ),
        (
            refused(422, "spec.selector: Invalid value: field is immutable", None),
            Reason::Invalid,
            Retry::Backoff,
        ),
        (refused(422, "spec.ports: Required value", None), Reason::Invalid, Retry::Backoff),
        (refused(429, "slow down", Some(7)), Reason::RateLimited, Retry::After(Duration::from_secs(7))),
        (refused(500, "x: field not declared in schema", None), Reason::SchemaSkew, Retry::Backoff),
        (
            refused(503, "shutting down", Some(1)),
            Reason::ApiServerError,
            Retry::After(Duration::from_secs(1)),
        ),
    ] {
        let failure = blocker("write ServiceAccount coder", &error);
        assert_eq!((failure.reason, failure.retry), (reason, retry), "{error}");
    }
}

#[test]
fn a_forbidden_call_names_verb_and_resource() {
    let text = r#"serviceaccounts "coder" is forbidden: User "u" cannot patch resource "serviceaccounts" in API group "" in the namespace "ns""#;
    let failure = blocker("write ServiceAccount coder", &refused(403, text, None));
    assert_eq!(failure.message, format!("cannot write ServiceAccount coder: {text}"));
}
