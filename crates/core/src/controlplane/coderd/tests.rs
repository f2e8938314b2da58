use coder_k8s_api::{CoderControlPlaneSpec, LicenseStatus};
use serde_json::json;

use super::*;
use crate::{condition::Progress, outcome::Blocker};

fn plane(spec: serde_json::Value) -> CoderControlPlane {
    let spec: CoderControlPlaneSpec = serde_json::from_value(spec).unwrap();
    CoderControlPlane::new("coder", spec)
}

fn at(days: i64) -> Timestamp {
    Timestamp::from_second(days * 86_400).unwrap()
}

/// The status after one more report.
fn told(
    object: &CoderControlPlane,
    before: &CoderControlPlaneStatus,
    report: &CoderdReport,
) -> CoderControlPlaneStatus {
    let mut conditions = Conditions::new(&before.workload.conditions, Some(1), at(100));
    let mut status = before.clone();
    set_conditions(object, report, &PresentInputs::default(), &mut conditions, &mut status, at(100));
    status.workload.conditions = conditions.into_vec();
    status
}

fn says(status: &CoderControlPlaneStatus, type_: &str) -> (String, String) {
    let found = status.workload.conditions.iter().find(|c| c.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone())
}

fn pair(status: &str, reason: Reason) -> (String, String) {
    (status.to_owned(), reason.to_string())
}

fn applied(expires: i64) -> CoderdReport {
    let installed = LicenseStatus {
        id: Some(7),
        uuid: Some("u".into()),
        account: Some("acme".into()),
        tier: Some("premium".into()),
        expires: Some(Time(at(expires))),
        ..LicenseStatus::default()
    };
    CoderdReport {
        access: Some(AccessVerdict::Ready),
        token: Some(ReportedSecretRef { name: "t".into(), key: Some("token".into()) }),
        license: Some(LicenseVerdict::Applied {
            uploaded: None,
            hash: "h".into(),
            accepted: Some(at(100)),
            installed: Some(installed),
        }),
        ..CoderdReport::default()
    }
}

fn licensed() -> CoderControlPlane {
    plane(json!({"licenseSecretRef": {"name": "l"}}))
}

fn blocker() -> Blocker {
    Blocker::new(Reason::Unreachable, "away")
}

#[test]
fn nothing_known_says_so_and_nothing_more() {
    let fresh = told(&plane(json!({})), &CoderControlPlaneStatus::default(), &CoderdReport::default());
    assert_eq!(
        says(&fresh, condition_type::OPERATOR_ACCESS_READY),
        pair("False", Reason::DatabaseUrlMissing)
    );
    assert_eq!(says(&fresh, condition_type::LICENSE_APPLIED), pair("Unknown", Reason::Pending));
    assert_eq!(fresh.license_tier.as_deref(), Some("unknown"));
    let off = plane(json!({"operatorAccess": {"disabled": true}}));
    assert_eq!(
        says(&told(&off, &fresh, &CoderdReport::default()), condition_type::OPERATOR_ACCESS_READY),
        pair("False", Reason::Disabled)
    );
}

#[test]
fn a_restart_or_a_server_that_is_away_withdraws_nothing() {
    let well = told(&licensed(), &CoderControlPlaneStatus::default(), &applied(200));
    assert_eq!(says(&well, condition_type::LICENSE_APPLIED), pair("True", Reason::Applied));
    assert_eq!(told(&licensed(), &well, &CoderdReport::default()), well, "a restart");
    let away = CoderdReport { access: Some(AccessVerdict::Degraded(blocker())), ..CoderdReport::default() };
    let degraded = told(&licensed(), &well, &away);
    assert_eq!(says(&degraded, condition_type::OPERATOR_ACCESS_READY), pair("False", Reason::Unreachable));
    assert_eq!(degraded.operator_access_ready, Some(true));
    assert_eq!(says(&degraded, condition_type::LICENSE_APPLIED), pair("True", Reason::Applied));
}

#[test]
fn a_refused_token_is_withdrawn() {
    let well = told(&licensed(), &CoderControlPlaneStatus::default(), &applied(200));
    let refused = CoderdReport { access: Some(AccessVerdict::Refused(blocker())), ..CoderdReport::default() };
    let after = told(&licensed(), &well, &refused);
    assert_eq!(after.operator_access_ready, None);
    assert_eq!(after.operator_token_secret_ref.unwrap().name, "t");
}

#[test]
fn a_license_is_recorded_with_what_coderd_lists_of_it() {
    let well = told(&licensed(), &CoderControlPlaneStatus::default(), &applied(400));
    let license = well.license.clone().unwrap();
    assert_eq!(
        (license.id, license.account.as_deref(), license.days_left),
        (Some(7), Some("acme"), Some(300))
    );
    assert_eq!(well.license_last_applied_hash.as_deref(), Some("h"));
    assert_eq!(says(&well, condition_type::LICENSE_EXPIRING), pair("False", Reason::Valid));
    // The reference is removed: the license stays, and so does what is known of it.
    let without = told(&plane(json!({})), &well, &CoderdReport::default());
    assert_eq!(says(&without, condition_type::LICENSE_APPLIED), pair("Unknown", Reason::Pending));
    assert_eq!(without.license_last_applied_hash.as_deref(), Some("h"));
}

#[test]
fn the_end_of_a_license_is_warned_about_in_time() {
    for (days, state, reason) in [
        (31, "False", Reason::Valid),
        (29, "True", Reason::ExpiresIn30Days),
        (6, "True", Reason::ExpiresIn7Days),
        (0, "True", Reason::ExpiresIn1Day),
        (-1, "True", Reason::Expired),
    ] {
        let status = told(&licensed(), &CoderControlPlaneStatus::default(), &applied(100 + days));
        assert_eq!(says(&status, condition_type::LICENSE_EXPIRING), pair(state, reason), "{days} days");
        assert_eq!(status.license.unwrap().days_left, Some(days));
    }
}

#[test]
fn a_refused_license_waits_for_a_person_and_is_remembered() {
    let refused = LicenseVerdict::Refused {
        blocker: Blocker::new(Reason::InvalidLicense, "no"),
        rejection_id: "h@v1".into(),
    };
    let status = told(
        &licensed(),
        &CoderControlPlaneStatus::default(),
        &CoderdReport { license: Some(refused), ..CoderdReport::default() },
    );
    assert_eq!(status.license.as_ref().unwrap().refused.as_deref(), Some("h@v1"));
    let said = status.workload.conditions.iter().find(|c| c.type_ == condition_type::LICENSE_APPLIED);
    assert_eq!(license::unready(&licensed(), said).unwrap().progress, Progress::Stalled);
    assert_eq!(license::unready(&licensed(), None).unwrap().progress, Progress::Working);
    assert!(license::unready(&plane(json!({})), said).is_none());
}

#[test]
fn what_coderd_complains_about_is_shown() {
    let entitlements = |features: &[&str], warnings: &[&str], errors: &[&str]| CoderdReport {
        entitlements: Some(Entitlements {
            checked: at(100),
            tier: Tier::Premium,
            external_provisioners: FeatureState::Entitled,
            details: Some(EntitlementsStatus {
                has_license: true,
                trial: false,
                features: features.iter().map(|f| ((*f).to_owned(), "entitled".to_owned())).collect(),
                warnings: warnings.iter().map(|w| (*w).to_owned()).collect(),
                errors: errors.iter().map(|e| (*e).to_owned()).collect(),
            }),
        }),
        ..CoderdReport::default()
    };
    let of = |spec, report: &CoderdReport| {
        let status = told(&plane(spec), &CoderControlPlaneStatus::default(), report);
        (says(&status, condition_type::ENTITLEMENTS_HEALTHY), status.license_tier.unwrap())
    };
    assert_eq!(
        of(json!({}), &entitlements(&[], &[], &[])),
        (pair("True", Reason::Healthy), "premium".to_owned())
    );
    assert_eq!(of(json!({}), &entitlements(&[], &["w"], &[])).0, pair("False", Reason::Warnings));
    assert_eq!(of(json!({}), &entitlements(&[], &["w"], &["e"])).0, pair("False", Reason::Errors));
    let two = json!({"replicas": 2});
    assert_eq!(
        of(two.clone(), &entitlements(&[], &[], &[])).0,
        pair("False", Reason::HighAvailabilityNotEntitled)
    );
    assert_eq!(of(two, &entitlements(&["high_availability"], &[], &[])).0, pair("True", Reason::Healthy));
}

#[test]
fn access_of_an_earlier_release_is_used_until_it_is_verified() {
    let before = CoderControlPlaneStatus { operator_access_ready: Some(true), ..Default::default() };
    let status = told(&plane(json!({})), &before, &CoderdReport::default());
    assert_eq!(says(&status, condition_type::OPERATOR_ACCESS_READY), pair("True", Reason::Kept));
}
