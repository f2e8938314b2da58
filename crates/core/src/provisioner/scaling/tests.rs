use coder_k8s_api::OnEntitlementLost;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::*;
use crate::license_gate::Feature;

#[expect(clippy::needless_pass_by_value, reason = "tests write them in place")]
fn pool(autoscaling: Value) -> CoderProvisioner {
    serde_json::from_value(json!({
        "apiVersion": "coder.com/v1alpha1", "kind": "CoderProvisioner",
        "metadata": {"name": "pool", "namespace": "ns", "generation": 2},
        "spec": {"controlPlaneRef": {"name": "coder"}, "autoscaling": autoscaling},
        "status": {"observedGeneration": 2},
    }))
    .unwrap()
}

fn now() -> Timestamp {
    "2026-11-13T07:00:00Z".parse().unwrap()
}

fn decision(reason: ScaleReason, desired: u32) -> ScaleDecision {
    ScaleDecision {
        pool: "pool".into(),
        desired,
        pending: 4,
        oldest: None,
        busy: 3,
        unlisted: 1,
        idle: 2,
        starting: 1,
        reason,
        message: "because".into(),
        until: None,
    }
}

#[test]
fn a_spec_becomes_a_policy() {
    let spec = pool(json!({"maxReplicas": 8})).spec.autoscaling.unwrap();
    let expected = ScalingPolicy {
        min: 0,
        max: 8,
        spare: 0,
        scale_down_after: SignedDuration::from_mins(5),
        windows: Vec::new(),
    };
    assert_eq!(policy(&spec), expected);

    let window = |zone: &str| json!({"weekdays": ["Friday"], "from": "07:30", "to": "09:00", "timeZone": zone, "minReplicas": 5});
    let spec = pool(json!({"minReplicas": 1, "maxReplicas": 8, "spare": 2, "scaleDownAfter": "1h30m",
        "windows": [window("Europe/Berlin"), window("Europe/Atlantis")]}));
    let found = policy(spec.spec.autoscaling.as_ref().unwrap());
    assert_eq!((found.min, found.spare, found.scale_down_after), (1, 2, SignedDuration::from_mins(90)));
    assert_eq!(found.windows.len(), 1, "a window in an unknown time zone is left out");
    // 07:30 in Berlin is 06:30 in November.
    let at = |time: &str| found.minimum(time.parse().unwrap()).0;
    assert_eq!((at("2026-11-13T06:29:59Z"), at("2026-11-13T06:30:00Z")), (1, 5));
}

#[test]
fn without_a_decision_the_replicas_stay() {
    let pool = pool(json!({"minReplicas": 2, "maxReplicas": 8}));
    let undecided = ObservedScaling::of(&pool, None, now()).unwrap();
    assert_eq!(undecided.replicas(Some(5)), 5);
    assert_eq!(undecided.replicas(None), 2, "a new Deployment has the minimum");
    let decided = ObservedScaling::of(&pool, Some(decision(ScaleReason::Steady, 3)), now()).unwrap();
    assert_eq!((decided.replicas(Some(5)), decided.replicas(None)), (3, 3));
}

#[test]
fn a_pool_shrinks_no_further_than_its_busy_daemons() {
    use ScaleReason::{QueueUnknown, ScalingDown};
    // Reason, desired, current, busy daemons right before, replicas.
    for (reason, desired, current, busy, expected) in [
        // One more daemon than coderd lists may run a build.
        (ScalingDown, 0, 5, Some(0), 1),
        (ScalingDown, 2, 5, Some(1), 2),
        (ScalingDown, 2, 5, Some(3), 4),
        (ScalingDown, 2, 5, Some(9), 5),
        (ScalingDown, 2, 5, None, 5),
        // Decided without coderd, for pods that never connected.
        (QueueUnknown, 4, 5, None, 4),
        (QueueUnknown, 2, 5, None, 3),
    ] {
        let found = decision(reason, desired).shrink(current, busy);
        assert_eq!(found, expected, "{reason:?} from {current} to {desired} with {busy:?} busy");
    }
}

fn conditions_of(
    pool: &CoderProvisioner,
    decision: Option<ScaleDecision>,
    gate: &LicenseGate,
    before: &[Condition],
) -> (Vec<(String, String, String)>, Option<AutoscalingStatus>) {
    let scaling = ObservedScaling::of(pool, decision, now());
    let shown = AutoscalingStatus { desired: 7, pending: 6, ..AutoscalingStatus::default() };
    let mut conditions = Conditions::new(before, Some(2), now());
    let status = set_conditions(&mut conditions, pool, scaling.as_ref(), gate, false, Some(&shown));
    let all = conditions.into_vec().into_iter().map(|c| (c.type_, c.status, c.reason));
    (all.collect(), status)
}

fn said(reason: &str, status: &str) -> Vec<(String, String, String)> {
    vec![("Autoscaling".into(), status.into(), reason.into())]
}

#[test]
fn the_status_says_what_was_decided() {
    let (pool, open) = (pool(json!({"maxReplicas": 8})), LicenseGate::open(Feature::Provisioners));
    for (reason, word, status) in [
        (ScaleReason::Steady, "Steady", "True"),
        (ScaleReason::ScalingUp, "ScalingUp", "True"),
        (ScaleReason::ScalingDown, "ScalingDown", "True"),
        (ScaleReason::WaitingForIdle, "WaitingForIdle", "True"),
        (ScaleReason::AtMaximum, "AtMaximum", "False"),
        (ScaleReason::StartsFail, "StartsFail", "False"),
        (ScaleReason::QueueUnknown, "QueueUnknown", "Unknown"),
    ] {
        let (conditions, shown) = conditions_of(&pool, Some(decision(reason, 5)), &open, &[]);
        assert_eq!(conditions, said(word, status));
        let shown = shown.unwrap();
        // While nobody knows which jobs wait, the last known number stays.
        let pending = if word == "QueueUnknown" { 6 } else { 4 };
        let numbers = (shown.desired, shown.pending, shown.busy, shown.idle, shown.starting);
        assert_eq!(numbers, (5, pending, 3, 2, 1), "{word}");
        assert_eq!(shown.reason, word);
    }
}

#[test]
fn a_decision_for_another_spec_is_not_said_to_hold() {
    let open = LicenseGate::open(Feature::Provisioners);
    let mut pool = pool(json!({"maxReplicas": 8}));
    let (conditions, shown) = conditions_of(&pool, None, &open, &[]);
    assert_eq!(conditions, said("Pending", "Unknown"));
    assert_eq!(shown.unwrap().desired, 7, "the last decision stays, because its replicas do");

    let mut before = Conditions::new(&[], Some(2), now());
    before.set(condition_type::AUTOSCALING, true, Reason::Steady, "fine");
    let before = before.into_vec();
    let (conditions, _) = conditions_of(&pool, None, &open, &before);
    assert_eq!(conditions, said("Steady", "True"), "a restart of the operator changes nothing");
    pool.metadata.generation = Some(3);
    let (conditions, _) = conditions_of(&pool, None, &open, &before);
    assert_eq!(conditions, said("Pending", "Unknown"), "an edit does");
}

#[test]
fn a_pool_without_a_license_is_not_scaled() {
    let pool = pool(json!({"maxReplicas": 8}));
    let unknown = LicenseGate::unknown("coderd does not answer");
    let closed = LicenseGate { state: GateState::Closed, reason: Reason::NotEntitled, ..unknown.clone() };
    let (conditions, shown) = conditions_of(&pool, Some(decision(ScaleReason::Steady, 5)), &closed, &[]);
    assert_eq!((conditions, shown), (said("NotEntitled", "False"), None));
    assert_eq!(closed.replicas(5, OnEntitlementLost::Keep), 5);

    let entitled = |status: &str, reason: &str| {
        let mut pool = pool.clone();
        let condition = json!([{"type": "ExternalProvisionersEntitled", "status": status, "reason": reason,
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        pool.status.as_mut().unwrap().workload.conditions = serde_json::from_value(condition).unwrap();
        is_scaled(&pool)
    };
    assert!(is_scaled(&pool), "before the license was asked for");
    assert!(entitled("True", "Entitled") && !entitled("False", "NotEntitled"));
    assert!(entitled("False", "EntitlementsQueryFailed") && entitled("False", "AwaitingEntitlements"));
}

#[test]
fn who_else_scales_is_named_and_goes_with_the_field() {
    let open = LicenseGate::open(Feature::Provisioners);
    let mut pool = pool(json!({"maxReplicas": 8}));
    pool.metadata.managed_fields = serde_json::from_value(json!([
        {"manager": "kubectl", "operation": "Update"},
        {"manager": "kube-controller-manager", "operation": "Update", "subresource": "scale"},
    ]))
    .unwrap();
    let (conditions, _) = conditions_of(&pool, Some(decision(ScaleReason::Steady, 5)), &open, &[]);
    let ignored = ("ScaleIgnored".to_owned(), "True".to_owned(), "ScaledByOthers".to_owned());
    assert!(conditions.contains(&ignored), "{conditions:?}");

    pool.spec.autoscaling = None;
    let before = [condition_type::AUTOSCALING, condition_type::SCALE_IGNORED].map(|type_| {
        let mut conditions = Conditions::new(&[], Some(2), now());
        conditions.set(type_, true, Reason::Steady, "");
        conditions.into_vec()
    });
    let (conditions, shown) = conditions_of(&pool, None, &open, &before.concat());
    assert_eq!((conditions, shown), (Vec::new(), None), "without autoscaling nothing is said of it");
}
