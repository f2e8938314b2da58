//! Pools as they may be found, and what is decided about them.

mod deletion;
mod ownership;
mod retirement;
mod rotation;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};

use coder_k8s_api::Reason;
use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::provisioner::names::KeyBase;

/// The time of every decision.
const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn place(name: &str) -> CoderdTarget {
    let secret = SecretDataRef { name: format!("{name}-operator-token"), key: "token".into() };
    CoderdTarget {
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

fn secret_at(name: &str) -> SecretDataRef {
    SecretDataRef { name: name.into(), key: "key".into() }
}

fn details(region: &str) -> KeyDetails {
    KeyDetails { organization: organization("default", "org"), tags_hash: Some(tags::hash(&tags(region))) }
}

fn key(id: &str, name: &str) -> KeyRef {
    KeyRef { id: Some(id.into()), name: name.into(), target: place("coder"), details: details("eu") }
}

fn found(id: &str, name: &str) -> FoundKey {
    FoundKey { id: id.into(), name: name.into(), organization: "org".into(), tags: tags("eu") }
}

fn listed(id: &str, name: &str) -> ListedKey {
    ListedKey { key: found(id, name), created: Some(at(NOW - 5)), was_used: false, last_seen: None }
}

fn marks(id: &str, name: &str) -> KeyMarks {
    KeyMarks {
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

fn pending(name: &str) -> KeyIntent {
    KeyIntent {
        credential: KeyRef { id: None, ..key("", name) },
        reason: Reason::FirstKey.to_string(),
        since: at(NOW - 10),
    }
}

fn stale(id: Option<&str>, name: &str) -> RetiredKey {
    RetiredKey {
        credential: KeyRef { id: id.map(Into::into), ..key("", name) },
        since: at(NOW - 10),
        unused_since: None,
    }
}

fn blocker() -> Blocker {
    Blocker::new(Reason::Unreachable, "no answer")
}

fn base(given: Option<&str>) -> KeyBase {
    KeyBase::new(given, "ns", "pool")
}

/// The first name after the base.
fn spare() -> String {
    base(None).candidates().nth(1).unwrap()
}

fn here() -> KeyScope {
    KeyScope { target: place("coder"), organization: organization("default", "org") }
}

/// A pool that runs: key k1, called `pool`, in the Secret `s`.
fn running() -> ObservedKeys {
    let pod_credential =
        PodCredential { secret: secret_at("s"), checksum: "sum-k1".into(), url: "http://coder".into() };
    ObservedKeys {
        desired: DesiredKey {
            control_plane: "coder".into(),
            organization: "default".into(),
            name: base(None),
            tags: tags("eu"),
            secret: secret_at("s"),
        },
        record: KeyRecord {
            current: Some(key("k1", "pool")),
            secret: Some(secret_at("s")),
            pending: None,
            stale: Vec::new(),
        },
        has_finalizer: true,
        verify_due: false,
        may_make: Ok(()),
        target: Ok(place("coder")),
        secrets: [(secret_at("s"), secret("k1", "pool"))].into(),
        workload: Some(Workload { pod_credential, is_rolled_out: true }),
        name_conflict: None,
        deletion: None,
        proofs: BTreeMap::new(),
        listings: BTreeMap::new(),
        tried: BTreeSet::new(),
        late_effect_window: SignedDuration::from_mins(2),
        own: KeyContext { organization: None, old_pods: None },
    }
}

/// A pool that is new.
fn new() -> ObservedKeys {
    ObservedKeys {
        record: KeyRecord::default(),
        secrets: [(secret_at("s"), Secret::Absent)].into(),
        workload: None,
        ..running()
    }
}

/// What coderd knows: the key that the Secret holds, and all keys of the organization.
#[expect(clippy::needless_pass_by_value, reason = "so that tests read as tables")]
fn knows(mut observed: ObservedKeys, proof: KeyProof, keys: Vec<ListedKey>) -> ObservedKeys {
    observed.own.organization = Some(Ok(Some("org".into())));
    observed.proofs = observed.secrets.keys().map(|place| (place.clone(), proof.clone())).collect();
    observed.listings.insert(here(), Listing::Known(keys));
    observed.own.old_pods = Some(Ok(false));
    observed
}

/// The same pool, of which coderd says that all is well.
fn verified(observed: ObservedKeys) -> ObservedKeys {
    knows(observed, KeyProof::Is(found("k1", "pool")), vec![listed("k1", "pool")])
}

fn next(observed: &ObservedKeys) -> NextStep {
    decide(observed, at(NOW)).next
}

#[track_caller]
fn recorded(observed: &ObservedKeys) -> KeyRecord {
    match decide(observed, at(NOW)).next {
        NextStep::WriteStatus(record) => *record,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn step(observed: &ObservedKeys) -> Effect {
    match decide(observed, at(NOW)).next {
        NextStep::Act(step) => *step,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn stalls(observed: &ObservedKeys) -> Reason {
    let decision = decide(observed, at(NOW));
    assert_eq!((decision.next, decision.verdict.stage), (NextStep::Done, CredentialProgress::Stalled));
    decision.verdict.reason
}
