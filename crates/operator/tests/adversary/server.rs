//! T2: runs the coderd or the Postgres that the operator calls.

use std::time::Duration;

use coder_k8s_testbed::codersim::{CoderSim, Mode, SimFault};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::{
    Row, Verdict, ensure,
    hostile::{Act, BOUND, DATABASE_BOUND, Hostile, answer, message, text_of, unbounded, welcome},
    row,
    stage::{SOON, Stage, Tenant, condition_of, has_begun, is_observed, object},
};

const PIECE: usize = 64 * 1024;
/// A message of a condition is for people.
const MESSAGE: usize = 4_096;
/// What a status may take, whatever a server says.
const STATUS: usize = 64 * 1024;

/// The rows.
pub(crate) fn rows() -> Vec<Row> {
    let mut all = coderd();
    all.extend(answers());
    all.extend(lists());
    all.extend(postgres());
    all
}

/// Bytes that are no answer of coderd, to the first call.
fn coderd() -> Vec<Row> {
    let said = "a condition says so in a few words, and little is taken";
    let raw = |id, does, act: Act| row(id, does, said, move |stage| first_call(stage, act.clone()));
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 65536], b"\r\n"].concat();
    let continues = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(2_000);
    vec![
        raw(
            "T2 body-endless",
            "a body without an end",
            Act::Stream(unbounded("Connection: close\r\n"), vec![b' '; PIECE]),
        ),
        raw(
            "T2 body-chunked",
            "endless chunks",
            Act::Stream(unbounded("Transfer-Encoding: chunked\r\n"), chunk),
        ),
        raw(
            "T2 body-chunk-size",
            "a chunk of 2^64-1 bytes",
            Act::Stream(
                [unbounded("Transfer-Encoding: chunked\r\n"), b"ffffffffffffffff\r\n".to_vec()].concat(),
                vec![b'x'; PIECE],
            ),
        ),
        raw(
            "T2 body-length",
            "a length of 2^63 bytes",
            Act::Stream(unbounded("Content-Length: 9223372036854775807\r\n"), vec![b' '; PIECE]),
        ),
        raw("T2 body-length-negative", "a negative length", Act::Say(unbounded("Content-Length: -1\r\n"))),
        raw(
            "T2 body-slow",
            "a body of one byte now and then",
            Act::Drip(unbounded("Content-Length: 100000\r\n")),
        ),
        raw(
            "T2 body-short",
            "less than the length promised",
            Act::Say([unbounded("Content-Length: 100000\r\n"), b"{}".to_vec()].concat()),
        ),
        raw(
            "T2 body-gzip",
            "a body that claims to be compressed",
            Act::Say(answer(
                "200 OK",
                "Content-Encoding: gzip\r\n",
                &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xff],
            )),
        ),
        raw(
            "T2 body-bomb",
            "half a megabyte that unpacks to 80 MiB",
            Act::Say(answer("200 OK", "Content-Encoding: gzip\r\n", &bomb(512 * 1024))),
        ),
        raw(
            "T2 body-not-text",
            "a body that is no UTF-8",
            Act::Say(answer("200 OK", "", b"{\"deployment_id\":\"\xff\xfe\",\"version\":\"\xc3\x28\"}")),
        ),
        raw(
            "T2 body-deep",
            "JSON nested a million deep",
            Act::Say(answer("200 OK", "", &b"[".repeat(1_000_000))),
        ),
        raw(
            "T2 body-deep-objects",
            "objects nested 100,000 deep",
            Act::Say(answer("200 OK", "", &b"{\"a\":".repeat(100_000))),
        ),
        raw(
            "T2 headers-endless",
            "headers without an end",
            Act::Stream(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X-A: b\r\n".repeat(8_192)),
        ),
        raw(
            "T2 headers-huge",
            "a header of 10 MiB",
            Act::Say(
                [b"HTTP/1.1 200 OK\r\nX-A: ".to_vec(), vec![b'a'; 10 << 20], b"\r\n\r\n".to_vec()].concat(),
            ),
        ),
        raw(
            "T2 headers-slow",
            "a header of one byte now and then",
            Act::Drip(b"HTTP/1.1 200 OK\r\nX-A: ".to_vec()),
        ),
        raw("T2 continues", "endless interim answers", Act::Stream(Vec::new(), continues)),
        raw("T2 garbage", "no HTTP at all", Act::Say(b"\x00\x01\x02 nothing\r\n\r\n".to_vec())),
        raw(
            "T2 upgrade",
            "another protocol",
            Act::Say(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n".to_vec(),
            ),
        ),
        raw("T2 status-999", "a status that does not exist", Act::Say(answer("999 Odd", "", b"{}"))),
        raw("T2 reset", "closes before an answer", Act::Close),
        raw("T2 reset-body", "closes after the headers", Act::Say(unbounded("Content-Length: 10\r\n"))),
        raw("T2 hang", "never answers", Act::Hang),
        raw(
            "T2 identity-huge",
            "a deployment of a megabyte",
            Act::Say(answer(
                "200 OK",
                "",
                json!({"deployment_id": "d".repeat(1 << 20), "version": "v".repeat(1 << 20)})
                    .to_string()
                    .as_bytes(),
            )),
        ),
        raw(
            "T2 identity-odd",
            "a deployment with line breaks and control characters",
            Act::Say(answer("200 OK", "", br#"{"deployment_id":"a\nb\u0000c","version":"v2\n\u001b[31m"}"#)),
        ),
    ]
}

/// So many bytes of gzip, which unpack to 158 times as many zeros: one literal, then copies of the 258 bytes before.
fn bomb(length: usize) -> Vec<u8> {
    // One block with fixed codes, the literal 0, then 13 bits for each copy: the length 258 and the distance 1.
    let start = [true, true, false].into_iter().chain([false, false, true, true, false, false, false, false]);
    let copy = [true, true, false, false, false, true, false, true, false, false, false, false, false];
    let mut bits = start.chain(copy.into_iter().cycle());
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let body =
        std::iter::repeat_with(|| (0..8).fold(0, |byte, n| byte | u8::from(bits.next().unwrap()) << n));
    header.into_iter().chain(body).take(length).collect()
}

#[test]
fn the_bomb_unpacks() {
    let mut child = std::process::Command::new("gzip")
        .args(["-d", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &bomb(64 * 1024)));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.stdout.len() > 9 << 20, "{} bytes", output.stdout.len());
}

/// The first call gets no proper answer. The attempt ends by its deadline, takes a bounded amount, and is told in a few
/// words; attempts do not follow each other without a pause.
async fn first_call(stage: &'static Stage, act: Act) -> Verdict {
    let tenant = Tenant::new(stage, "hostile").await;
    let server = Hostile::start(act).await;
    tenant.service("coder", server.address);
    tenant.plane_with_token(&"0123456789-0123456789abcdefghijkl".to_owned().into(), json!({})).await?;
    let plane = tenant
        .until(SOON, "CoderControlPlane", "coder", |plane| {
            is_observed(plane)
                && server.connections() > 0
                && condition_of(plane, "OperatorAccessReady")
                    .is_some_and(|said| has_begun(text_of(&said["reason"])))
        })
        .await?;
    let said = condition_of(&plane, "OperatorAccessReady").unwrap();
    ensure(said["status"] != "True", || said.to_string())?;
    brief(&plane)?;
    ensure(server.longest() <= BOUND, || format!("{} MiB were taken", server.longest() >> 20))?;
    let before = server.connections();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = server.connections() - before;
    ensure(calls <= 12, || format!("{calls} connections within 2 s"))?;
    Ok(format!(
        "{}, {} KiB taken, {calls} connections within 2 s",
        text_of(&said["reason"]),
        server.longest() >> 10
    ))
}

/// Whether messages and the status as a whole are short.
fn brief(object: &Value) -> Result<(), String> {
    let status = object["status"].to_string();
    ensure(status.len() <= STATUS, || format!("a status of {} bytes", status.len()))?;
    let long = object["status"]["conditions"].as_array().into_iter().flatten().find(|said| {
        let message = text_of(&said["message"]);
        message.len() > MESSAGE || message.chars().any(|c| c.is_control() && c != '\n')
    });
    long.map_or(Ok(()), |said| {
        Err(format!("a message of {} bytes: {}", text_of(&said["message"]).len(), said["type"]))
    })
}

/// Answers of a server that speaks like coderd, and lies.
fn answers() -> Vec<Row> {
    let later = |id, does, text: &'static str| {
        row(id, does, "the next attempt comes, and the object is not lost", move |stage| {
            retry_after(stage, text)
        })
    };
    vec![
        later("T2 retry-billion", "Retry-After of 10^9 s", "1000000000"),
        later("T2 retry-max", "Retry-After of 2^64-1 s", "18446744073709551615"),
        later("T2 retry-negative", "Retry-After of -1 s", "-1"),
        later("T2 retry-fraction", "Retry-After that is no number", "soon, 1e309"),
        row(
            "T2 redirect-host",
            "a redirect to another host",
            "Redirected, and nobody comes there",
            redirected,
        ),
        row("T2 redirect-loop", "a redirect to itself", "Redirected, after one request", redirect_loop),
        row("T2 token-echo", "errors that quote the token", "the token is nowhere", echoed),
        row(
            "T2 flapping",
            "401 to every second call",
            "the status does not flap faster than calls",
            flapping,
        ),
        row(
            "T2 warnings",
            "10,000 warnings about the license of 300 bytes each",
            "a bounded number is kept",
            |stage| entitlements(stage, json!({"warnings": vec!["w".repeat(300); 10_000]})),
        ),
        row("T2 errors-long", "an error about the license of 2 MiB", "it is cut", |stage| {
            entitlements(stage, json!({"errors": ["e".repeat(2 << 20)]}))
        }),
        row("T2 features", "20,000 features", "a bounded number is kept", |stage| {
            let features: serde_json::Map<_, _> = (0..20_000)
                .map(|n| (format!("feature_{n}"), json!({"entitlement": "entitled", "enabled": true})))
                .collect();
            entitlements(stage, json!({"features": features}))
        }),
        row(
            "T2 http-1.0",
            "an answer of HTTP/1.0 without a length",
            "it is understood, or refused",
            |stage| {
                let old = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"deployment_id\":\"\",\"version\":\"\"}".to_vec();
                first_call(stage, Act::Say(old))
            },
        ),
    ]
}

/// A control plane whose token was accepted, and its server.
async fn accepted(stage: &'static Stage, prefix: &str) -> Result<(Tenant, CoderSim), String> {
    let (tenant, sim) = Tenant::with_coderd(stage, prefix, Mode::Licensed).await;
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    Ok((tenant, sim))
}

/// Rate limited with any delay: an edit is still seen, and the deletion of what has a key in coderd ends.
async fn retry_after(stage: &'static Stage, text: &'static str) -> Verdict {
    let (tenant, sim) = accepted(stage, "retry").await?;
    let pool = json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0});
    tenant.make(object("CoderProvisioner", "pool", pool)).await?;
    tenant
        .until(SOON, "CoderProvisioner", "pool", |pool| {
            condition_of(pool, "ProvisionerKeyReady").is_some_and(|said| said["status"] == "True")
        })
        .await?;
    let limited = SimFault::status(429, "slow down", "").with_header("Retry-After", text);
    sim.fault("*", "/**", limited, None);
    let before = sim.requests().len();
    tenant.edit("CoderControlPlane", "coder", json!({"spec": {"image": "example.test/coder:v2"}})).await?;
    tenant.edit("CoderProvisioner", "pool", json!({"spec": {"tags": {"region": "eu"}}})).await?;
    tenant.until_observed("CoderControlPlane", "coder").await?;
    tenant.until_observed("CoderProvisioner", "pool").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let calls = sim.requests().len() - before;
    ensure(calls <= 12, || format!("{calls} calls"))?;
    for (kind, name) in [("CoderProvisioner", "pool"), ("CoderControlPlane", "coder")] {
        tenant.delete(kind, name).await?;
        tenant.until_gone(SOON, kind, &tenant.namespace, name).await?;
    }
    Ok(format!("{calls} calls, and the deletions ended"))
}

async fn redirected(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "redirect", Mode::Licensed).await;
    let elsewhere = Hostile::start(Act::Say(answer("200 OK", "", b"{}"))).await;
    sim.fault("*", "/**", SimFault::redirect(&format!("http://{}/api/v2/users/me", elsewhere.address)), None);
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["Redirected"]).await?;
    ensure(elsewhere.connections() == 0, || format!("{:?}", elsewhere.heads()))?;
    Ok("no connection".to_owned())
}

async fn redirect_loop(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "redirect", Mode::Licensed).await;
    sim.fault("*", "/**", SimFault::redirect("/api/v2/buildinfo"), None);
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["Redirected"]).await?;
    let calls = sim.requests().len();
    ensure(calls <= 6, || format!("{calls} calls"))?;
    Ok(format!("{calls} calls"))
}

/// The token, quoted in a message, in a detail and in a header. Whether it is shown is judged at the end, for all.
async fn echoed(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "echo", Mode::Licensed).await;
    let token = sim.owner_token();
    let text = token.expose_secret();
    stage.never_shown(text.split('-').nth(1).unwrap_or_default(), "the secret half of a token");
    let fault =
        SimFault::status(500, &format!("no such token: {text}"), text).with_header("X-Request-Id", text);
    sim.fault("*", "/api/v2/users/**", fault, None);
    tenant.plane_with_token(&token, json!({})).await?;
    let said =
        tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["ServerError"]).await?;
    ensure(!said.to_string().contains(text), || "the token is in the condition".to_owned())?;
    Ok("not in the condition".to_owned())
}

async fn flapping(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = accepted(stage, "flapping").await?;
    let refused =
        SimFault::status(401, "Cookie \"coder_session_token\" or query parameter must be provided.", "");
    let before = tenant.requests().len();
    for _ in 0..10 {
        sim.fault("*", "/api/v2/users/**", refused.clone(), Some(1));
        tenant
            .edit("CoderControlPlane", "coder", json!({"metadata": {"annotations": {"touched": "yes"}}}))
            .await?;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let requests = tenant.requests().len() - before;
    ensure(requests <= 60, || format!("{requests} requests"))?;
    Ok(format!("{requests} requests within 4 s"))
}

async fn entitlements(stage: &'static Stage, more: Value) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "entitlements", Mode::Licensed).await;
    let mut body = json!({"features": {}, "warnings": [], "errors": [], "has_license": true, "trial": false,
        "require_telemetry": false, "refreshed_at": "2026-01-01T00:00:00Z"});
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    let headers = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("X-Coder-Build-Version".to_owned(), "v2.36.1".to_owned()),
    ];
    sim.fault(
        "GET",
        "/api/v2/entitlements",
        SimFault::Answer { status: 200, headers, body: body.to_string() },
        None,
    );
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    let reasons = ["TokenAccepted", "UnexpectedAnswer"];
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &reasons).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let plane = tenant.until_observed("CoderControlPlane", "coder").await?;
    brief(&plane)?;
    Ok(format!("a status of {} bytes", plane["status"].to_string().len()))
}

/// Lists just below the bound of a body.
fn lists() -> Vec<Row> {
    let must = "the pool's key is ready, and nothing waits for it";
    vec![
        row(
            "T2 jobs",
            "25,000 pending jobs of as many tags, and 12,000 daemons of as many tags",
            must,
            |stage| listed(stage, vec![("provisionerjobs", jobs()), ("provisionerdaemons", daemons())]),
        ),
        row("T2 keys", "20,000 provisioner keys", "a condition says something, and nothing waits", |stage| {
            listed(stage, vec![("provisionerkeys", keys())])
        }),
        row(
            "T2 organizations",
            "20,000 organizations",
            "a condition says something, and nothing waits",
            organizations,
        ),
        row("T2 licenses", "20,000 licenses", "a condition says something, and nothing waits", licenses),
    ]
}

fn id(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

fn jobs() -> Value {
    (0..25_000)
        .map(|n| {
            json!({"id": id(n), "status": "pending", "created_at": "2026-01-01T00:00:00Z",
        "tags": {"scope": "organization", "owner": "", "t": format!("{n}")}})
        })
        .collect()
}

fn daemons() -> Value {
    (0..12_000).map(|n| json!({"id": id(n), "name": format!("d{n}"), "key_id": id(n), "key_name": "x", "version": "v2.36.1",
        "status": "idle", "last_seen_at": "2099-01-01T00:00:00Z", "tags": {"scope": "organization", "owner": "", "d": format!("{n}")}})).collect()
}

fn keys() -> Value {
    (0..20_000)
        .map(|n| {
            json!({"id": id(n), "name": format!("k{n}"), "organization": id(1), "tags": {"t": format!("{n}")},
        "created_at": "2026-01-01T00:00:00Z"})
        })
        .collect()
}

fn json_answer(body: &Value) -> SimFault {
    let headers = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("X-Coder-Build-Version".to_owned(), "v2.36.1".to_owned()),
    ];
    SimFault::Answer { status: 200, headers, body: body.to_string() }
}

async fn listed(stage: &'static Stage, lists: Vec<(&'static str, Value)>) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "lists", Mode::Licensed).await;
    for (list, body) in &lists {
        sim.fault("GET", &format!("/api/v2/organizations/*/{list}"), json_answer(body), None);
    }
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant
        .make(object(
            "CoderProvisioner",
            "pool",
            json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0}),
        ))
        .await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    tenant
        .until(SOON, "CoderProvisioner", "pool", |pool| {
            condition_of(pool, "ProvisionerKeyReady").is_some_and(|said| has_begun(text_of(&said["reason"])))
        })
        .await?;
    // The daemons and jobs are listed again and again, and edits are seen all the same.
    for n in 0..3 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let image = json!({"spec": {"image": format!("example.test/coder:v{n}")}});
        tenant.edit("CoderControlPlane", "coder", image).await?;
        tenant.until(Duration::from_secs(10), "CoderControlPlane", "coder", is_observed).await?;
    }
    for (kind, name) in [("CoderControlPlane", "coder"), ("CoderProvisioner", "pool")] {
        brief(&tenant.until_observed(kind, name).await?)?;
    }
    let plane = tenant.until_observed("CoderControlPlane", "coder").await?;
    let jobs = condition_of(&plane, "JobsRunnable").unwrap_or_default();
    Ok(format!("{} calls, JobsRunnable: {}", sim.requests().len(), jobs["reason"]))
}

async fn organizations(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "lists", Mode::Licensed).await;
    let all: Value = (0..20_000)
        .map(|n| json!({"id": id(n), "name": format!("o{n}"), "display_name": "x", "is_default": n == 0}))
        .collect();
    sim.fault("GET", "/api/v2/organizations", json_answer(&all), None);
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    let pool = json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0, "organizationName": "o19999"});
    tenant.make(object("CoderProvisioner", "pool", pool)).await?;
    tenant.until_reason("CoderProvisioner", "pool", "ProvisionerKeyReady", &[]).await?;
    brief(&tenant.until_observed("CoderProvisioner", "pool").await?)?;
    Ok(format!("{} calls", sim.requests().len()))
}

async fn licenses(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "lists", Mode::Licensed).await;
    let all: Value = (0..20_000).map(|n| json!({"id": n, "uuid": id(n), "uploaded_at": "2026-01-01T00:00:00Z", "claims": {"jti": id(n)}})).collect();
    sim.fault("GET", "/api/v2/licenses", json_answer(&all), None);
    tenant.secret("license", "license", coder_k8s_scenes::coderd::license(90).expose_secret()).await;
    tenant.plane_with_token(&sim.owner_token(), json!({"licenseSecretRef": {"name": "license"}})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "LicenseApplied", &[]).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sent = sim.count("POST", "/api/v2/licenses");
    ensure(sent <= 3, || format!("the license was sent {sent} times"))?;
    brief(&tenant.until_observed("CoderControlPlane", "coder").await?)?;
    Ok(format!("sent {sent} times"))
}

/// A database that says more than it was asked.
fn postgres() -> Vec<Row> {
    let must = "a condition says so, and little is taken";
    let said = |id, does, acts: Vec<Act>| row(id, does, must, move |stage| database(stage, acts.clone()));
    let notice = message(b'N', &[b"SNOTICE\0Cx\0M".as_slice(), &[b'n'; 1000], b"\0\0"].concat());
    let row_of = message(b'D', &[&1_u16.to_be_bytes()[..], &1024_u32.to_be_bytes(), &[b'd'; 1024]].concat());
    let parameter = message(b'S', &[&[b'p'; 500][..], b"\0", &[b'v'; 500], b"\0"].concat());
    let huge = [b"D".as_slice(), &0x7fff_fff0_u32.to_be_bytes()[..]].concat();
    let huge_error = [b"E".as_slice(), &(100_u32 << 20).to_be_bytes()[..], b"SERROR\0CXX000\0M"].concat();
    let huge_auth = [b"R".as_slice(), &0x7fff_fff0_u32.to_be_bytes()[..], &10_u32.to_be_bytes()].concat();
    let many = |message: &[u8]| message.repeat(PIECE / message.len() + 1);
    vec![
        said(
            "T2 sql-rows",
            "endless rows",
            vec![Act::Say(welcome()), Act::Stream(Vec::new(), many(&row_of))],
        ),
        said(
            "T2 sql-message",
            "a message of 2 GiB",
            vec![Act::Say(welcome()), Act::Stream(huge, vec![b'x'; PIECE])],
        ),
        said(
            "T2 sql-error",
            "an error of 100 MiB",
            vec![Act::Say(welcome()), Act::Stream(huge_error, vec![b'e'; PIECE])],
        ),
        said(
            "T2 sql-notices",
            "endless notices",
            vec![Act::Say(welcome()), Act::Stream(Vec::new(), many(&notice))],
        ),
        said(
            "T2 sql-notices-start",
            "endless notices before the login",
            vec![Act::Stream(Vec::new(), many(&notice))],
        ),
        said(
            "T2 sql-parameters",
            "endless parameters before the login",
            vec![Act::Stream(message(b'R', &0_u32.to_be_bytes()), many(&parameter))],
        ),
        said(
            "T2 sql-login",
            "a demand for a password of 2 GiB",
            vec![Act::Stream(huge_auth, vec![b'x'; PIECE])],
        ),
        said("T2 sql-hang", "never answers", vec![Act::Hang]),
        said("T2 sql-hang-query", "never answers after the login", vec![Act::Say(welcome()), Act::Hang]),
        said(
            "T2 sql-garbage",
            "no Postgres at all",
            vec![Act::Say(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())],
        ),
        said("T2 sql-slow", "one byte now and then", vec![Act::Drip(vec![b'R'])]),
        said(
            "T2 sql-tiny",
            "a message shorter than its own length",
            vec![Act::Say([b'R', 0, 0, 0, 0].to_vec()), Act::Hang],
        ),
    ]
}

async fn database(stage: &'static Stage, acts: Vec<Act>) -> Verdict {
    let tenant = Tenant::new(stage, "sql").await;
    let server = Hostile::steps(acts).await;
    tenant
        .plane_with_database(&format!("postgres://coder:pass-{0}@{0}/coder?sslmode=disable", server.address))
        .await?;
    let plane = tenant
        .until(SOON, "CoderControlPlane", "coder", |plane| {
            server.connections() > 0
                && condition_of(plane, "OperatorAccessReady").is_some_and(|said| {
                    text_of(&said["reason"]).starts_with("Database") || said["reason"] == "SchemaUnknown"
                })
        })
        .await?;
    brief(&plane)?;
    // What one connection took, until its deadline too.
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure(server.longest() <= DATABASE_BOUND, || {
        format!("{} MiB were taken by one connection", server.longest() >> 20)
    })?;
    let said = condition_of(&plane, "OperatorAccessReady").unwrap();
    Ok(format!(
        "{}, {} KiB taken, {} connections",
        text_of(&said["reason"]),
        server.longest() >> 10,
        server.connections()
    ))
}
