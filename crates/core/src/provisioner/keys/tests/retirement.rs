//! When an old key or Secret goes.

use super::*;

/// A pool that changed from key k0 to k1, and of which all pods have changed over.
fn replaced(unused: Option<i64>) -> ObservedKeys {
    let mut observed = running();
    let old = RetiredKey { unused_since: unused.map(at), ..stale(Some("k0"), &spare()) };
    observed.record.stale.push(old);
    let used = ListedKey { was_used: true, last_seen: Some(at(NOW - 60)), ..listed("k0", &spare()) };
    knows(observed, KeyProof::Is(found("k1", "pool")), vec![listed("k1", "pool"), used])
}

#[test]
fn an_old_key_goes_when_no_pod_and_no_daemon_uses_it() {
    let mut observed = replaced(None);
    observed.record = recorded(&observed);
    assert_eq!(observed.record.stale[0].unused_since, Some(at(NOW + 1)), "the moment is remembered");
    assert!(matches!(step(&observed), Effect::Delete { id, .. } if id == "k0"));
    observed.listings.insert(here(), Listing::Known(vec![listed("k1", "pool")]));
    assert_eq!(recorded(&observed).stale, Vec::new());
}

#[test]
fn an_old_key_stays_while_anything_may_use_it() {
    let mut rolling = replaced(None);
    rolling.workload.as_mut().unwrap().is_rolled_out = false;
    let mut unrolled = replaced(None);
    unrolled.workload.as_mut().unwrap().pod_credential.checksum = "sum-k0".into();
    let mut missing = replaced(None);
    missing.workload = None;
    let mut ending = replaced(None);
    ending.own.old_pods = Some(Ok(true));
    let mut unknown = replaced(None);
    unknown.own.old_pods = Some(Err(blocker()));
    let mut seen_later = replaced(Some(NOW - 90));
    seen_later.listings.insert(
        here(),
        Listing::Known(vec![ListedKey { last_seen: Some(at(NOW - 30)), ..listed("k0", &spare()) }]),
    );
    let mut silent = replaced(Some(NOW - 30));
    silent.listings.insert(here(), Listing::Unknown(blocker()));
    for (what, observed) in [
        ("rollout under way", rolling),
        ("rollout not begun", unrolled),
        ("no Deployment", missing),
        ("a pod is ending", ending),
        ("pods unknown", unknown),
        ("a daemon was seen after", seen_later),
        ("coderd silent", silent),
    ] {
        let decision = decide(&observed, at(NOW));
        assert_eq!(decision.next, NextStep::Done, "{what}");
        assert!(decision.again.is_some() && decision.verdict.is_ready(), "{what}");
    }
}

#[test]
fn pods_are_looked_for_before_anything_goes() {
    let mut observed = replaced(None);
    observed.own.old_pods = None;
    assert_eq!(next(&observed), NextStep::Ask(Query::Own(KeyQuery::Pods)));
}

#[test]
fn a_key_of_another_coderd_goes_with_what_belongs_to_that_one() {
    let mut observed = replaced(Some(NOW - 30));
    observed.record.stale[0].credential.target = place("old");
    let there = KeyScope { target: place("old"), ..here() };
    assert_eq!(next(&observed), NextStep::Ask(Query::Listing(there.clone())));
    observed.listings.insert(there.clone(), Listing::Known(vec![listed("k0", &spare())]));
    assert!(matches!(step(&observed), Effect::Delete { scope, .. } if scope == there));
}

#[test]
fn a_key_that_nothing_is_left_to_delete_with_is_named_after_a_while() {
    let mut observed = replaced(Some(NOW - 30));
    observed.record.stale[0].credential.target = place("old");
    observed.listings.insert(KeyScope { target: place("old"), ..here() }, Listing::Gone);
    assert_eq!(next(&observed), NextStep::Done);
    observed.record.stale[0].since = at(NOW - 4000);
    let decision = decide(&observed, at(NOW));
    assert!(matches!(decision.next, NextStep::WriteStatus(record) if record.stale.is_empty()));
    assert!(decision.events[0].warning && decision.events[0].message.contains("(k0)"));
}

#[test]
fn a_name_that_somebody_else_has_by_now_is_left_alone() {
    let mut observed = replaced(Some(NOW - 30));
    observed.listings.insert(here(), Listing::Known(vec![listed("k1", "pool"), listed("theirs", &spare())]));
    assert_eq!(recorded(&observed).stale, Vec::new());
}

#[test]
fn a_key_that_was_perhaps_made_is_waited_for() {
    let mut observed = running();
    observed.record.stale.push(stale(None, &spare()));
    let mut observed = verified(observed);
    assert_eq!(next(&observed), NextStep::Done, "the request may still be carried out");
    observed.record.stale[0].since = at(NOW - 300);
    assert_eq!(recorded(&observed).stale, Vec::new());
}

#[test]
fn an_old_secret_goes_with_the_last_pod_that_reads_it() {
    let mut observed = running();
    let version = "5".to_owned();
    let old = Secret::Ours { version: version.clone(), holds: None, marks: None };
    observed.secrets.insert(secret_at("old"), old);
    let mut observed = verified(observed);
    observed.own.old_pods = Some(Ok(true));
    assert_eq!(next(&observed), NextStep::Done);
    observed.own.old_pods = Some(Ok(false));
    assert_eq!(
        step(&observed),
        Effect::RemoveSecret { secret: secret_at("old"), version: Version::Is(version) }
    );
}

#[test]
fn a_restored_secret_makes_an_old_key_current_again() {
    let mut observed = replaced(Some(NOW - 30));
    observed.secrets.insert(secret_at("s"), secret("k0", &spare()));
    observed.proofs.insert(secret_at("s"), KeyProof::Is(found("k0", &spare())));
    let record = recorded(&observed);
    assert_eq!(record.current.unwrap().id.as_deref(), Some("k0"));
    assert_eq!(record.stale[0].credential.id.as_deref(), Some("k1"));
}
