//! One pool as it may be found, and what is decided about it.

mod deletion;
mod ownership;
mod retirement;
mod rotation;
mod takeover;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::provisioner::names::KeyBase;

/// The time of every decision.
const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn place(name: &str) -> Place {
    let secret = SecretPlace { name: format!("{name}-operator-token"), key: "token".into() };
    Place {
        control_plane: name.into(),
        url: format!("http://{name}"),
        deployment_id: Some(format!("deployment-{name}")),
        credentials: Some(Credentials { kind: CredentialsKind::Operator, secret: Some(secret) }),
    }
}

fn organization(name: &str, id: &str) -> Organization {
    Organization { id: Some(id.into()), name: name.into() }
}

fn tags(region: &str) -> tags::Tags {
    [("region".to_owned(), region.to_owned())].into()
}

fn secret_at(name: &str) -> SecretPlace {
    SecretPlace { name: name.into(), key: "key".into() }
}

fn key(id: &str, name: &str) -> Key {
    Key {
        id: Some(id.into()),
        name: name.into(),
        organization: organization("default", "org"),
        tags_hash: Some(tags::hash(&tags("eu"))),
        place: place("coder"),
    }
}

fn found(id: &str, name: &str) -> Found {
    Found { id: id.into(), name: name.into(), organization: "org".into(), tags: tags("eu") }
}

fn listed(id: &str, name: &str) -> Listed {
    Listed { key: found(id, name), created: Some(at(NOW - 5)), was_used: false, last_seen: None }
}

fn marks(id: &str, name: &str) -> Marks {
    Marks {
        id: Some(id.into()),
        name: name.into(),
        organization: Some("org".into()),
        tags_hash: Some(tags::hash(&tags("eu"))),
        deployment_id: Some("deployment-coder".into()),
    }
}

fn secret(id: &str, name: &str) -> Secret {
    let checksums = Some([format!("sum-{id}"), format!("old-{id}")]);
    Secret::Ours { version: "7".into(), holds: checksums, marks: Some(marks(id, name)) }
}

fn pending(name: &str) -> Pending {
    Pending {
        name: name.into(),
        id: None,
        organization: organization("default", "org"),
        tags_hash: tags::hash(&tags("eu")),
        place: place("coder"),
        reason: "FirstKey".into(),
        since: at(NOW - 10),
    }
}

fn stale(id: Option<&str>, name: &str) -> Stale {
    Stale { key: Key { id: id.map(Into::into), ..key("", name) }, since: at(NOW - 10), unused_since: None }
}

fn trouble() -> Trouble {
    Trouble { reason: "Unreachable", message: "no answer".into() }
}

fn base(given: Option<&str>) -> KeyBase {
    KeyBase::new(given, "ns", "pool")
}

/// The first name after the base.
fn spare() -> String {
    base(None).candidates().nth(1).unwrap()
}

fn here() -> At {
    At { place: place("coder"), organization: organization("default", "org") }
}

/// A pool that runs: key k1, called `pool`, in the Secret `s`.
fn running() -> Seen {
    let run = Run { secret: secret_at("s"), checksum: "sum-k1".into(), url: "http://coder".into() };
    Seen {
        object: Claimant { created: Some(at(10)), uid: "b".into(), called: "ns/pool".into() },
        wanted: Wanted {
            control_plane: "coder".into(),
            organization: "default".into(),
            name: base(None),
            tags: tags("eu"),
            secret: secret_at("s"),
        },
        record: Record {
            current: Some(key("k1", "pool")),
            secret: Some(secret_at("s")),
            pending: None,
            stale: Vec::new(),
        },
        is_held: true,
        verify_due: false,
        may_make: Ok(()),
        target: Ok(place("coder")),
        claimants: Vec::new(),
        secrets: [(secret_at("s"), secret("k1", "pool"))].into(),
        workload: Some(Workload { run, settled: true }),
        going: None,
        organization: None,
        proofs: BTreeMap::new(),
        listings: BTreeMap::new(),
        straggler: SignedDuration::from_mins(2),
        old_pods: None,
    }
}

/// A pool that is new.
fn new() -> Seen {
    Seen {
        record: Record::default(),
        secrets: [(secret_at("s"), Secret::Absent)].into(),
        workload: None,
        ..running()
    }
}

/// What coderd knows: the key that the Secret holds, and all keys of the organization.
#[expect(clippy::needless_pass_by_value, reason = "so that tests read as tables")]
fn knows(mut seen: Seen, proof: Proof, keys: Vec<Listed>) -> Seen {
    seen.organization = Some(Ok(Some("org".into())));
    seen.proofs = seen.secrets.keys().map(|place| (place.clone(), proof.clone())).collect();
    seen.listings.insert(here(), Listing::Known(keys));
    seen.old_pods = Some(Ok(false));
    seen
}

/// The same pool, of which coderd says that all is well.
fn verified(seen: Seen) -> Seen {
    knows(seen, Proof::Is(found("k1", "pool")), vec![listed("k1", "pool")])
}

fn next(seen: &Seen) -> Next {
    decide(seen, at(NOW)).next
}

#[track_caller]
fn recorded(seen: &Seen) -> Record {
    match decide(seen, at(NOW)).next {
        Next::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn step(seen: &Seen) -> Step {
    match decide(seen, at(NOW)).next {
        Next::Do(step) => *step,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn stalls(seen: &Seen) -> &'static str {
    let decision = decide(seen, at(NOW));
    assert_eq!((decision.next, decision.finding.stage), (Next::Rest, Stage::Stalled));
    decision.finding.reason
}
