//! What coderd may answer in place of what it should, call by call: what is shown, what is kept, and how it is got over.

use std::time::Duration;

use coder_k8s_api::CoderControlPlane;
use coder_k8s_core::controlplane::coderd::license::hash;
use coder_k8s_testbed::{
    codersim::{Mode, SimFault},
    eventually,
};
use futures::future::join_all;
use jiff::SignedDuration;
use secrecy::ExposeSecret;

use coder_k8s_scenes::{
    PATIENCE,
    coderd::{CoderdScene, license, uuid},
    scene::{condition, status},
};

use crate::OPERATOR;

const ACCESS: &str = "OperatorAccessReady";
const LICENSE: &str = "LicenseApplied";
const PATIENCE_ASKED: Duration = Duration::from_secs(4);

/// A call, by method and path.
type Call = (&'static str, &'static str);
const BUILDINFO: Call = ("GET", "/api/v2/buildinfo");
const ME: Call = ("GET", "/api/v2/users/me");
const LIST: Call = ("GET", "/api/v2/licenses");
const ADD: Call = ("POST", "/api/v2/licenses");
const ENTITLEMENTS: Call = ("GET", "/api/v2/entitlements");

/// What is seen of a fault.
#[derive(Clone, Copy)]
struct Row {
    call: Call,
    /// The condition that shows it, and its reason.
    shown: (&'static str, &'static str),
    /// Whether `operatorAccessReady` stays.
    access: bool,
    /// Whether `LicenseApplied` and with it `Ready` stay.
    licensed: bool,
    /// Whether it is tried again before anything changes.
    retried: bool,
}

/// Something that may pass: it degrades a condition and withdraws nothing.
fn passing(reason: &'static str) -> Vec<Row> {
    let kept = |call| Row { call, shown: (ACCESS, reason), access: true, licensed: true, retried: true };
    let rotated = Row { call: ADD, shown: (LICENSE, reason), access: true, licensed: false, retried: true };
    [BUILDINFO, ME, LIST, ENTITLEMENTS].map(kept).into_iter().chain([rotated]).collect()
}

/// Something that coderd means: the credential or the license is no good.
fn meant(rows: &[(Call, &'static str, &'static str, bool, bool)]) -> Vec<Row> {
    let row = |&(call, type_, reason, access, licensed): &(Call, &'static str, &'static str, bool, bool)| {
        Row { call, shown: (type_, reason), access, licensed, retried: false }
    };
    rows.iter().map(row).collect()
}

fn table() -> Vec<(&'static str, SimFault, Vec<Row>)> {
    let status = |code| SimFault::status(code, "On purpose.", "");
    vec![
        ("429", SimFault::rate_limited(PATIENCE_ASKED), passing("RateLimited")),
        ("500", status(500), passing("ServerError")),
        ("slow", SimFault::Latency(Duration::from_secs(5)), passing("Timeout")),
        ("reset", SimFault::Reset, passing("Unreachable")),
        ("page", SimFault::html(200), passing("UnexpectedAnswer")),
        (
            "400",
            status(400),
            meant(&[
                (BUILDINFO, ACCESS, "Invalid", true, true),
                (ME, ACCESS, "Invalid", true, true),
                (ENTITLEMENTS, ACCESS, "Invalid", true, true),
                (LIST, ACCESS, "Invalid", true, true),
                (ADD, LICENSE, "InvalidLicense", true, false),
            ]),
        ),
        (
            "401",
            status(401),
            meant(&[
                (BUILDINFO, ACCESS, "Unauthenticated", true, true),
                (ENTITLEMENTS, ACCESS, "Unauthenticated", true, true),
                (ME, ACCESS, "Unauthenticated", false, true),
                (LIST, ACCESS, "Unauthenticated", false, true),
                (ADD, LICENSE, "Unauthenticated", false, false),
            ]),
        ),
        (
            "403",
            status(403),
            meant(&[
                (BUILDINFO, ACCESS, "Forbidden", true, true),
                (ENTITLEMENTS, ACCESS, "Forbidden", true, true),
                (ME, ACCESS, "Forbidden", false, true),
                (LIST, ACCESS, "Forbidden", true, true),
                (ADD, LICENSE, "Forbidden", true, false),
            ]),
        ),
        (
            "404",
            status(404),
            meant(&[
                (BUILDINFO, ACCESS, "NotFound", true, true),
                (ENTITLEMENTS, ACCESS, "NotFound", true, true),
                (ME, ACCESS, "NotFound", true, true),
                (LIST, ACCESS, "NotFound", true, true),
                (ADD, LICENSE, "NotFound", true, false),
            ]),
        ),
        (
            "elsewhere",
            SimFault::redirect("http://elsewhere.example.com/"),
            meant(&[
                (BUILDINFO, ACCESS, "Redirected", false, true),
                (ENTITLEMENTS, ACCESS, "Redirected", false, true),
                (ME, ACCESS, "Redirected", false, true),
                (LIST, ACCESS, "Redirected", false, true),
                (ADD, LICENSE, "Redirected", true, false),
            ]),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_works_is_kept_through_every_fault_and_what_failed_comes_back() {
    let started = std::time::Instant::now();
    let all = table().into_iter().map(|(name, fault, rows)| async move {
        let coder = CoderdScene::new(&OPERATOR, "faults", Mode::Unlicensed).await;
        coder.licensed_plane(&license(1)).await;
        coder.scene.until_ready("coder").await;
        coder.until_condition(ACCESS, "True", "TokenAccepted").await;
        let mut held = 1;
        for (n, row) in rows.into_iter().enumerate() {
            let text = format!("{name} at {} {}", row.call.0, row.call.1);
            held = play(&coder, &fault, row, n, held, &text).await;
            println!("{:?}: {text}", started.elapsed());
        }
    });
    join_all(all).await;
}

/// Makes a call fail and then work again. Gives the number of the license that is held at the end.
async fn play(coder: &CoderdScene, fault: &SimFault, row: Row, n: usize, held: u8, text: &str) -> u8 {
    let before = coder.scene.until_exists::<CoderControlPlane>("coder").await;
    let mark = coder.sim.mark();
    let put = coder.sim.fault(row.call.0, row.call.1, fault.clone(), None);
    let next = if row.call == ADD { held + 1 } else { held };
    nudge(coder, next, &format!("{n}-wrong")).await;
    let plane = coder.until_condition(row.shown.0, "False", row.shown.1).await;
    check(&plane, &before, row, text);
    if row.retried {
        let again = eventually(PATIENCE, || async {
            let calls = coder.sim.since(mark);
            let tries = calls.iter().filter(|e| e.method == row.call.0 && e.path == row.call.1).count();
            if tries >= 2 { Ok(()) } else { Err(format!("{tries} tries: {calls:?}")) }
        });
        again.await.unwrap_or_else(|error| panic!("{text}: {error}"));
        check(&coder.scene.until_exists("coder").await, &before, row, text);
    }
    if row.shown.1 == "RateLimited" {
        let calls = coder.sim.since(mark);
        let limited = calls.iter().position(|entry| entry.status == Some(429)).unwrap();
        let wait = calls[limited + 1].at.duration_since(calls[limited].at);
        assert!(wait >= SignedDuration::try_from(PATIENCE_ASKED).unwrap(), "{text}: called after {wait}");
    }
    let tries = coder.sim.since(mark).len();
    assert!(tries < 40, "{text}: {tries} calls");
    coder.sim.clear(put);
    // What was refused for good is not sent again.
    let next = if row.shown.1 == "InvalidLicense" { next + 1 } else { next };
    if !row.retried {
        nudge(coder, next, &format!("{n}-right")).await;
    }
    let expected = Some(hash(license(next).expose_secret()));
    let plane = coder
        .scene
        .until("coder", |plane: &CoderControlPlane| {
            let is = |type_: &str| condition(plane, type_).is_some_and(|c| c.status == "True");
            is(ACCESS) && is(LICENSE) && is("Ready") && status(plane).license_last_applied_hash == expected
        })
        .await;
    assert_eq!(status(&plane).operator_access_ready, Some(true), "{text}");
    assert_eq!(coder.installed().iter().filter(|id| **id == uuid(next)).count(), 1, "{text}");
    next
}

/// What is shown, and what is kept.
fn check(plane: &CoderControlPlane, before: &CoderControlPlane, row: Row, text: &str) {
    let is = |type_: &str| condition(plane, type_).is_some_and(|c| c.status == "True");
    let (now, then) = (status(plane), status(before));
    assert_eq!(now.operator_access_ready, row.access.then_some(true), "{text}: {now:?}");
    assert_eq!(is(LICENSE), row.licensed, "{text}: {now:?}");
    assert_eq!(is("Ready"), row.licensed, "{text}: {now:?}");
    assert_eq!(now.license_last_applied_hash, then.license_last_applied_hash, "{text}");
    assert_eq!(now.license.map(|l| l.uuid), then.license.map(|l| l.uuid), "{text}");
    assert_eq!(now.license_tier, then.license_tier, "{text}");
    assert_eq!(now.version, then.version, "{text}");
    assert!(is("DeploymentReady"), "{text}");
}

/// Changes the Secrets, so that everything is verified at once.
async fn nudge(coder: &CoderdScene, held: u8, note: &str) {
    let text = license(held);
    coder_k8s_scenes::apply(
        &coder.scene.client,
        serde_json::json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "license", "namespace": coder.scene.namespace, "annotations": {"note": note}},
            "stringData": {"license": text.expose_secret()}}),
    )
    .await;
}
