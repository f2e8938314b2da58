//! The table of situations: what the condition says in each, and what is done about it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::provisioner::keys::Blocker;

const SERVER: &str = "v2.36.1+abc";
const PATIENCE: i64 = 180;
const NOW: i64 = 10_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod that has been ready for so long.
fn pod(name: &str, ready: i64) -> DaemonPod {
    DaemonPod {
        name: name.into(),
        uid: format!("uid-{name}"),
        daemon: Some(name.into()),
        ready_since: Some(at(NOW - ready)),
        image: Some("ghcr.io/coder/coder:v2.36.1".into()),
        ..DaemonPod::default()
    }
}

fn daemon(name: &str) -> ListedDaemon {
    let last_seen = Some(at(NOW - 20));
    ListedDaemon {
        name: name.into(),
        key: "key".into(),
        version: SERVER.into(),
        last_seen,
        ..ListedDaemon::default()
    }
}

fn gate(state: GateState) -> LicenseGate {
    let reason = if state == GateState::Closed { Reason::NotEntitled } else { Reason::Entitled };
    LicenseGate { state, reason, message: "what the license says".into(), again: None }
}

fn verdict(stage: CredentialProgress) -> CredentialVerdict {
    CredentialVerdict { stage, reason: Reason::Rotating, message: "a new key is made".into(), in_place: None }
}

/// One situation. What is not said is as it is in a pool of three that is well.
struct Situation {
    desired: i32,
    pods: Option<Vec<DaemonPod>>,
    daemons: Vec<ListedDaemon>,
    listing: Option<DaemonListing>,
    gate: GateState,
    entitled: i64,
    key: CredentialProgress,
    said: Option<Condition>,
}

impl Default for Situation {
    fn default() -> Self {
        Self {
            desired: 3,
            pods: Some(["a", "b", "c"].map(|name| pod(name, 600)).into()),
            daemons: ["a", "b", "c"].map(daemon).into(),
            listing: Some(DaemonListing::default()),
            gate: GateState::Open,
            entitled: 5000,
            key: CredentialProgress::Ready,
            said: None,
        }
    }
}

impl Situation {
    fn judge(self) -> DaemonHealth {
        let Self { desired, pods, daemons, listing, gate: state, entitled, key, said } = self;
        let listing = listing.map(|listing| DaemonListing { daemons, ..listing });
        let ready = pods.as_ref().map_or(3, |pods| {
            i32::try_from(pods.iter().filter(|pod| pod.ready_since.is_some() && !pod.is_deleting).count())
                .unwrap()
        });
        let (gate, key) = (gate(state), verdict(key));
        Facts {
            desired,
            ready,
            listing: listing.as_ref(),
            pods: pods.as_deref(),
            patience: SignedDuration::from_secs(PATIENCE),
            keys: vec!["key".into(), "old-key".into()],
            gate: &gate,
            entitled: Some(at(NOW - entitled)),
            key: &key,
            coderd_version: Some(SERVER),
            before: said.as_ref(),
            now: at(NOW),
        }
        .judge()
    }

    /// What the condition says, and the pods that are started anew.
    fn says(self) -> (Option<(ConditionStatus, Reason)>, Vec<String>, String) {
        let health = self.judge();
        let restart = health.restart().iter().map(|pod| pod.name.clone()).collect();
        let (said, message) = match health.finding {
            Some(Finding { status, reason, message, .. }) => (Some((status, reason)), message),
            None => (None, String::new()),
        };
        (said, restart, message)
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table")]
fn every_situation_has_its_word() {
    use ConditionStatus::{False, True, Unknown};
    let three = |ready: i64| Some(["a", "b", "c"].map(|name| pod(name, ready)).to_vec());
    let none = Vec::new;
    let well = Situation::default;
    let named = |name: Option<&str>| {
        let named = |pod: &str| DaemonPod { daemon: name.map(str::to_owned), ..self::pod(pod, 600) };
        Some(vec![named("a"), named("b")])
    };
    let with_image = |image: &str| {
        let newer = |name: &str| DaemonPod { image: Some(image.into()), ..pod(name, 600) };
        Some(vec![newer("a"), newer("b")])
    };
    let going = DaemonPod { is_deleting: true, ..pod("c", 600) };
    let old_listing = DaemonListing {
        blocker: Some(Blocker::new(Reason::Unreachable, "cannot connect")),
        outdated: true,
        ..DaemonListing::default()
    };
    let foreign = ListedDaemon { key: "theirs".into(), ..daemon("a") };
    let busy = ["a", "b", "c"].map(|name| ListedDaemon { busy: name != "c", ..daemon(name) });
    let with_old_key = ListedDaemon { key: "old-key".into(), ..daemon("c") };
    for (what, situation, state, reason, restarted, words) in [
        ("all connected", well(), True, Reason::Connected, &[][..], ""),
        ("busy", Situation { daemons: busy.into(), ..well() }, True, Reason::Connected, &[], ""),
        (
            "one still with the key that is being replaced",
            Situation { daemons: vec![daemon("a"), daemon("b"), with_old_key], ..well() },
            True,
            Reason::Connected,
            &[],
            "",
        ),
        (
            "none connected",
            Situation { daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "see their logs",
        ),
        (
            "some connected",
            Situation { daemons: vec![daemon("b")], ..well() },
            False,
            Reason::SomeConnected,
            &[],
            "the daemon of a, c is not connected",
        ),
        (
            "still connecting",
            Situation { daemons: none(), pods: three(PATIENCE - 1), entitled: 5000, ..well() },
            False,
            Reason::Connecting,
            &[],
            "",
        ),
        (
            "scaled to zero",
            Situation { desired: 0, pods: Some(vec![]), daemons: none(), ..well() },
            True,
            Reason::ScaledToZero,
            &[],
            "",
        ),
        (
            "no pod is ready",
            Situation { pods: Some(vec![]), daemons: none(), ..well() },
            False,
            Reason::NoPodsReady,
            &[],
            "",
        ),
        (
            "a pod that is going needs no daemon",
            Situation { pods: Some(vec![pod("a", 600), going]), daemons: vec![daemon("a")], ..well() },
            True,
            Reason::Connected,
            &[],
            "",
        ),
        (
            "unlicensed, and refused",
            Situation { gate: GateState::Closed, daemons: none(), ..well() },
            False,
            Reason::NotEntitled,
            &[],
            "what the license says",
        ),
        (
            "unlicensed, and not asked to leave yet",
            Situation { gate: GateState::Closed, ..well() },
            True,
            Reason::Connected,
            &[],
            "",
        ),
        (
            "the license is back, and the daemons do not try again",
            Situation { entitled: PATIENCE + 1, daemons: vec![daemon("b")], ..well() },
            False,
            Reason::StoppedTrying,
            &["a", "c"],
            "restarts a, c",
        ),
        (
            "the license is just back",
            Situation { entitled: PATIENCE - 1, daemons: none(), ..well() },
            False,
            Reason::Connecting,
            &[],
            "",
        ),
        (
            "started anew after the license came back, and no better",
            Situation { entitled: 601, daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "",
        ),
        (
            "nobody knows what the license covers",
            Situation { gate: GateState::Unknown, entitled: PATIENCE + 1, daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "",
        ),
        (
            "dead key",
            Situation { key: CredentialProgress::Working, daemons: none(), ..well() },
            False,
            Reason::KeyNotAccepted,
            &[],
            "a new key is made",
        ),
        (
            "a key that is being replaced, and one pod too few",
            Situation { key: CredentialProgress::Working, daemons: vec![daemon("a"), daemon("b")], ..well() },
            False,
            Reason::SomeConnected,
            &[],
            "",
        ),
        (
            "a key that is being replaced in peace",
            Situation { key: CredentialProgress::Working, ..well() },
            True,
            Reason::Connected,
            &[],
            "",
        ),
        (
            "a key that cannot be told",
            Situation { key: CredentialProgress::Unsure, daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "",
        ),
        (
            "wrong version",
            Situation { pods: with_image("r/coder:v2.37.0"), daemons: none(), ..well() },
            False,
            Reason::VersionRefused,
            &[],
            "r/coder:v2.37.0 is newer than coderd v2.36.1",
        ),
        (
            "a newer patch is accepted",
            Situation { pods: with_image("r/coder:v2.36.9"), daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "see their logs",
        ),
        (
            "a newer one that has just started",
            Situation {
                pods: Some(vec![DaemonPod { image: Some("r/coder:v2.37.0".into()), ..pod("a", 10) }]),
                daemons: none(),
                ..well()
            },
            False,
            Reason::Connecting,
            &[],
            "",
        ),
        (
            "a version that is not known",
            Situation { pods: with_image("r/coder:nightly"), daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "the version of r/coder:nightly is not known",
        ),
        (
            "duplicate name",
            Situation { pods: named(Some("mine")), daemons: vec![daemon("mine")], ..well() },
            False,
            Reason::DuplicateName,
            &[],
            "a, b all call their daemon mine",
        ),
        (
            "a name that somebody else has",
            Situation { pods: Some(vec![pod("a", 600)]), daemons: vec![foreign], ..well() },
            False,
            Reason::DuplicateName,
            &[],
            "another key is called a,",
        ),
        (
            "names that cannot be told, and enough daemons",
            Situation { pods: named(None), daemons: ["x", "y"].map(daemon).into(), ..well() },
            True,
            Reason::Connected,
            &[],
            "",
        ),
        (
            "names that cannot be told, and too few",
            Situation { pods: named(None), daemons: vec![daemon("x")], ..well() },
            False,
            Reason::SomeConnected,
            &[],
            "",
        ),
        ("pods that cannot be listed", Situation { pods: None, ..well() }, True, Reason::Connected, &[], ""),
        (
            "pods that cannot be listed, and too few",
            Situation { pods: None, daemons: none(), ..well() },
            False,
            Reason::NoneConnected,
            &[],
            "",
        ),
        (
            "coderd is away",
            Situation { listing: Some(old_listing), ..well() },
            Unknown,
            Reason::Unreachable,
            &[],
            "cannot connect",
        ),
        ("not asked yet", Situation { listing: None, ..well() }, False, Reason::Connecting, &[], ""),
    ] {
        let (said, restart, message) = situation.says();
        assert_eq!(said, Some((state, reason)), "{what}: {message}");
        assert_eq!(restart, restarted, "{what}");
        assert!(message.contains(words), "{what}: {message}");
    }
}

#[test]
fn what_was_said_stays_said_until_coderd_was_asked() {
    let said = |reason: Reason| Condition {
        type_: "DaemonsConnected".into(),
        status: "True".into(),
        reason: reason.to_string(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(at(0)),
    };
    let after = |reason: Reason| {
        Situation { listing: None, said: Some(said(reason)), ..Situation::default() }.says().0
    };
    assert_eq!(after(Reason::Connected), None);
    assert_eq!(after(Reason::NoneConnected), None);
    assert_eq!(after(Reason::ScaledToZero), Some((ConditionStatus::False, Reason::Connecting)));
}

#[test]
fn who_is_waited_for_is_looked_at_again_when_the_time_is_over() {
    let pods = Some(vec![pod("a", 600), pod("b", 100)]);
    let health = Situation { pods, daemons: vec![daemon("a")], ..Situation::default() }.judge();
    assert!(health.is_expecting());
    assert_eq!(health.again(), Some(Duration::from_secs(80)));
}

#[test]
fn daemons_are_counted_and_listed() {
    let mut daemons: Vec<_> = (0..30).rev().map(|n| daemon(&format!("d-{n:02}"))).collect();
    daemons[0].busy = true;
    daemons[1].version = "v2.35.9".into();
    daemons[2].version = "v2.36.7".into();
    daemons[3].version = "devel".into();
    daemons.push(ListedDaemon { key: "theirs".into(), ..daemon("other") });
    let report =
        Situation { pods: None, daemons, ..Situation::default() }.judge().report(None, at(NOW)).unwrap();
    assert_eq!((report.connected, report.busy, report.idle, report.outdated), (30, 1, 29, 2));
    assert_eq!(report.list.len(), 20);
    assert_eq!(report.list[0].name, "d-00");
    assert_eq!(report.list[0].status.as_deref(), Some("Idle"));
    assert_eq!(report.list[0].last_seen, Some(Time(at(NOW - 20))));
}

#[test]
fn a_daemon_whose_pod_is_gone_no_longer_counts() {
    let health = Situation { pods: Some(vec![pod("b", 600)]), ..Situation::default() }.judge();
    let report = health.report(None, at(NOW)).unwrap();
    assert_eq!((report.connected, &*report.list[0].name), (1, "b"));
}

#[test]
fn times_alone_are_no_news() {
    let first = Situation::default().judge().report(None, at(NOW)).unwrap();
    let later = ["a", "b", "c"].map(|name| ListedDaemon { last_seen: Some(at(NOW + 60)), ..daemon(name) });
    let again = Situation { daemons: later.clone().into(), ..Situation::default() }.judge();
    assert_eq!(again.report(Some(&first), at(NOW + 60)), Some(first.clone()));
    let mut busy = later;
    busy[1].busy = true;
    let changed = Situation { daemons: busy.into(), ..Situation::default() }.judge();
    let changed = changed.report(Some(&first), at(NOW + 60)).unwrap();
    assert_eq!((changed.busy, changed.as_of.unwrap().0), (1, at(NOW + 60)));
}

#[test]
fn nothing_is_reported_before_the_first_daemon_came_and_nothing_withdrawn_unasked() {
    let nobody = || Situation { daemons: Vec::new(), ..Situation::default() }.judge();
    assert_eq!(nobody().report(None, at(NOW)), None);
    let first = Situation::default().judge().report(None, at(NOW)).unwrap();
    assert_eq!(nobody().report(Some(&first), at(NOW)).unwrap().connected, 0);
    let unasked = Situation { listing: None, ..Situation::default() }.judge();
    assert_eq!(unasked.report(Some(&first), at(NOW)), Some(first));
}
