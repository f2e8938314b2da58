use axum::{
    body::Body,
    http::{Method, Request},
};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use super::*;

async fn request(router: &Router, method: Method, path: &str, body: &str) -> (u16, String, String) {
    let built = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(built).await.unwrap();
    let kind = response.headers().get(CONTENT_TYPE).map_or("", |v| v.to_str().unwrap()).to_owned();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, kind, String::from_utf8(body.to_vec()).unwrap())
}

async fn get_path(router: &Router, path: &str) -> (u16, String) {
    let (status, _, body) = request(router, Method::GET, path, "").await;
    (status, body)
}

#[tokio::test]
async fn a_process_that_is_not_ready_is_alive() {
    let readiness = Readiness::default();
    let check = readiness.ready_check("watch secrets");
    let router = probes(readiness);
    assert_eq!(get_path(&router, "/livez").await, (200, "ok".into()));
    assert_eq!(get_path(&router, "/healthz").await, (200, "ok".into()));
    assert_eq!(
        get_path(&router, "/readyz").await,
        (503, "[-] watch secrets: not started\nnot ready\n".into())
    );
    check.pass();
    assert_eq!(get_path(&router, "/readyz").await, (200, "[+] watch secrets ok\nok\n".into()));
}

#[tokio::test]
async fn an_unknown_path_lists_the_known_ones() {
    let (status, body) = get_path(&probes(Readiness::default()), "/health?x=y").await;
    assert_eq!(status, 404);
    assert_eq!(
        body,
        "/health is not served here; this listener serves GET /livez, GET /healthz, GET /readyz\n"
    );
    assert_eq!(request(&probes(Readiness::default()), Method::POST, "/livez", "").await.0, 405);
}

#[tokio::test]
async fn metrics_are_refreshed_before_they_are_shown() {
    let numbers = Metrics::new();
    let counted = numbers.clone();
    let router = metrics(numbers, Some(Arc::new(move || counted.queue_depth(7))));
    let (status, kind, body) = request(&router, Method::GET, "/metrics", "").await;
    assert_eq!((status, kind.as_str()), (200, "application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(body.contains("\ncoder_k8s_queue_depth 7\n"));
    assert_eq!(coder_k8s_testbed::metrics_lint::lint(&body), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_scrape_sees_gauges_that_another_one_is_refreshing() {
    let numbers = Metrics::new();
    let counted = numbers.clone();
    let refresh = move || {
        counted.queue_depth(0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        counted.queue_depth(7);
    };
    let router = metrics(numbers, Some(Arc::new(refresh)));
    let scrapes = (0..16).map(|_| {
        let router = router.clone();
        tokio::spawn(async move { request(&router, Method::GET, "/metrics", "").await.2 })
    });
    for scrape in scrapes.collect::<Vec<_>>() {
        assert!(scrape.await.unwrap().contains("\ncoder_k8s_queue_depth 7\n"));
    }
}

#[tokio::test]
async fn the_log_level_is_read_and_set() {
    let (_subscriber, handle, _) = logs::tests::subscriber(false, "info");
    let router = admin(handle.clone());
    assert_eq!(get_path(&router, "/log-level").await, (200, "info\n".into()));
    let (status, _, body) = request(&router, Method::PUT, "/log-level", "debug\n").await;
    assert_eq!((status, body.as_str()), (200, "debug\n"));
    assert_eq!(handle.current(), "debug");
    let (status, _, body) = request(&router, Method::PUT, "/log-level", "loud").await;
    assert_eq!(status, 400);
    assert!(body.starts_with("\"loud\" is not a log filter: "), "{body}");
    assert_eq!(get_path(&router, "/log-level").await, (200, "debug\n".into()));
}

async fn fetch(addr: std::net::SocketAddr) -> String {
    let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_listener_serves_until_it_is_stopped() {
    for address in [":0", "127.0.0.1:0", "localhost:0"] {
        let address: Address = address.parse().unwrap();
        let bound = bind(&address, "--health-address").await.unwrap().unwrap();
        let port = bound.local_addr.port();
        assert_ne!(port, 0);
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(bound, probes(Readiness::default()), stop.clone()));
        assert!(fetch(([127, 0, 0, 1], port).into()).await.starts_with("HTTP/1.1 200"), "{address}");
        stop.cancel();
        server.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_up_the_stop() {
    let bound = bind(&"127.0.0.1:0".parse().unwrap(), "--x").await.unwrap().unwrap();
    let (addr, stop) = (bound.local_addr, CancellationToken::new());
    let server = tokio::spawn(serve(bound, probes(Readiness::default()), stop.clone()));
    let _half_a_request = {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        stream.write_all(b"GET /liv").await.unwrap();
        stream
    };
    stop.cancel();
    tokio::time::timeout(std::time::Duration::from_secs(5), server).await.unwrap().unwrap().unwrap();
}

async fn start() -> (std::net::SocketAddr, CancellationToken) {
    let bound = bind(&"127.0.0.1:0".parse().unwrap(), "--x").await.unwrap().unwrap();
    let (addr, stop) = (bound.local_addr, CancellationToken::new());
    tokio::spawn(serve(bound, probes(Readiness::default()), stop.clone()));
    (addr, stop)
}

/// Reads until the server ends the connection. A reset ends it too.
async fn ended(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn clients_that_do_nothing_keep_no_probe_from_being_answered() {
    let (addr, _stop) = start().await;
    let mut slow = Vec::new();
    for n in 0..3 * MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(if n % 2 == 0 { b"" } else { b"GET /livez HTTP/1.1\r\nHost" }).await.unwrap();
        slow.push(stream);
        if n % 16 == 0 {
            assert!(fetch(addr).await.starts_with("HTTP/1.1 200"), "with {n} slow clients");
        }
    }
    let oldest = slow.remove(0);
    assert_eq!(timeout(std::time::Duration::from_secs(5), ended(oldest)).await.unwrap(), "", "it made room");
}

#[tokio::test]
async fn a_probe_among_connections_that_are_accepted_at_once_is_answered() {
    let bound = bind(&"127.0.0.1:0".parse().unwrap(), "--x").await.unwrap().unwrap();
    let (addr, stop) = (bound.local_addr, CancellationToken::new());
    // All of them wait to be accepted.
    let mut probe = TcpStream::connect(addr).await.unwrap();
    probe.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut slow = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        slow.push(TcpStream::connect(addr).await.unwrap());
    }
    tokio::spawn(serve(bound, probes(Readiness::default()), stop.clone()));
    let answered = timeout(std::time::Duration::from_secs(5), ended(probe)).await.unwrap();
    assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
}

#[tokio::test]
async fn a_connection_ends_at_its_deadline_and_after_one_request() {
    let (addr, _stop) = start().await;
    let mut slow = TcpStream::connect(addr).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    let mut kept = TcpStream::connect(addr).await.unwrap();
    kept.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let answered = timeout(std::time::Duration::from_secs(5), ended(kept)).await.unwrap();
    assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    let deadline = SERVER_CONNECTION_DEADLINE + std::time::Duration::from_secs(5);
    assert_eq!(timeout(deadline, ended(slow)).await.unwrap(), "");
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let (addr, _stop) = start().await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ").await.unwrap();
    let filled = async { while stream.write_all(&[b'x'; 1024]).await.is_ok() {} };
    timeout(std::time::Duration::from_secs(5), filled).await.expect("the server breaks off");
}

#[tokio::test]
async fn a_taken_port_names_the_address_and_the_flag() {
    let first = bind(&":0".parse().unwrap(), "--health-address").await.unwrap().unwrap();
    let taken: Address = format!(":{}", first.local_addr.port()).parse().unwrap();
    let error = bind(&taken, "--health-address").await.unwrap_err();
    assert!(error.is_in_use());
    assert!(std::error::Error::source(&error).is_none(), "a source is printed once more");
    let sentence = format!(
        "cannot listen on {taken}: another process listens there; choose another address with --health-address, or `off`"
    );
    assert_eq!(error.to_string(), sentence);
    let free = bind(&taken.with_free_port(), "--health-address").await.unwrap().unwrap();
    assert_ne!(free.local_addr.port(), first.local_addr.port());
}

#[tokio::test]
async fn off_listens_nowhere() {
    assert!(bind(&Address::Off, "--health-address").await.unwrap().is_none());
}

#[test]
fn the_process_is_ready_when_every_check_passes() {
    let readiness = Readiness::default();
    assert!(!readiness.is_ready(), "nothing has started");
    let widgets = readiness.ready_check("watch widgets");
    let secrets = readiness.ready_check("watch secrets");
    let alive = Arc::new(AtomicBool::new(true));
    let state = alive.clone();
    readiness.check("lease loop", move || {
        if state.load(Ordering::SeqCst) { Ok(()) } else { Err("no sign of life for 12 s".into()) }
    });
    widgets.pass();
    assert_eq!(
        readiness.report().text,
        "[+] watch widgets ok\n[-] watch secrets: not started\n[+] lease loop ok\nnot ready\n"
    );
    secrets.pass();
    assert_eq!(
        readiness.report().text,
        "[+] watch widgets ok\n[+] watch secrets ok\n[+] lease loop ok\nok\n"
    );
    secrets.fail("not synced yet");
    assert!(readiness.report().text.contains("[-] watch secrets: not synced yet\n"));
    secrets.pass();
    alive.store(false, Ordering::SeqCst);
    assert!(!readiness.is_ready());
}
