//! The conditions of the Go operator, and what became of each: the same condition here, or a sentence in
//! `docs/differences.md`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot go on says so and stops"
)]

use coder_k8s_api::{Reason, condition::condition_type};

const DIFFERENCES: &str = include_str!("../../../docs/differences.md");

/// The condition types of this operator that the Go operator has as well.
const SHARED_TYPES: &[&str] = &[
    condition_type::LICENSE_APPLIED,
    condition_type::CONTROL_PLANE_READY,
    condition_type::OPERATOR_ACCESS_READY,
    condition_type::BOOTSTRAP_SECRET_READY,
    condition_type::EXTERNAL_PROVISIONERS_ENTITLED,
    condition_type::PROVISIONER_KEY_READY,
    condition_type::PROVISIONER_KEY_SECRET_READY,
    condition_type::DEPLOYMENT_READY,
];

const CONTROL_PLANE: &str = "CoderControlPlane";
const PROVISIONER: &str = "CoderProvisioner";

/// A condition that the Go operator sets. It sets none on a CoderWorkspaceProxy.
struct GoCondition {
    kind: &'static str,
    type_: &'static str,
    status: &'static str,
    reason: &'static str,
    /// When the Go operator sets it.
    when: &'static str,
    /// The reasons of this operator in that situation. Empty: the same reason.
    ours: &'static [Reason],
}

const fn go(
    kind: &'static str,
    type_: &'static str,
    status: &'static str,
    reason: &'static str,
    when: &'static str,
) -> GoCondition {
    GoCondition { kind, type_, status, reason, when, ours: &[] }
}

const LICENSE: &str = "LicenseApplied";
const PLANE: &str = "ControlPlaneReady";
const ACCESS: &str = "OperatorAccessReady";
const BOOTSTRAP: &str = "BootstrapSecretReady";
const ENTITLED: &str = "ExternalProvisionersEntitled";
const KEY: &str = "ProvisionerKeyReady";
const KEY_SECRET: &str = "ProvisionerKeySecretReady";
const DEPLOYMENT: &str = "DeploymentReady";

/// Every condition of the Go operator, with every reason and what leads to it.
const GO: &[GoCondition] = &[
    go(CONTROL_PLANE, LICENSE, "Unknown", "Pending", "spec.licenseSecretRef is not set"),
    go(CONTROL_PLANE, LICENSE, "False", "Pending", "no pod is ready"),
    go(CONTROL_PLANE, LICENSE, "False", "Pending", "the operator access fails").but(&[
        Reason::DatabaseUrlMissing,
        Reason::Unauthenticated,
        Reason::Unreachable,
    ]),
    go(CONTROL_PLANE, LICENSE, "False", "SecretMissing", "the Secret of the token is missing or empty")
        .but(&[Reason::Pending]),
    go(CONTROL_PLANE, LICENSE, "False", "SecretMissing", "the Secret of the license is missing or empty"),
    go(CONTROL_PLANE, LICENSE, "False", "Error", "a Secret cannot be read"),
    go(CONTROL_PLANE, LICENSE, "False", "NotSupported", "coderd answers 404"),
    go(CONTROL_PLANE, LICENSE, "False", "Forbidden", "coderd answers 403"),
    go(CONTROL_PLANE, LICENSE, "False", "Forbidden", "coderd answers 401").but(&[Reason::Unauthenticated]),
    go(CONTROL_PLANE, LICENSE, "False", "Error", "coderd rejects the license").but(&[Reason::InvalidLicense]),
    go(CONTROL_PLANE, LICENSE, "False", "Error", "any other answer of coderd, or none").but(&[
        Reason::RateLimited,
        Reason::ServerError,
        Reason::Timeout,
        Reason::Unreachable,
        Reason::UnexpectedAnswer,
        Reason::Redirected,
    ]),
    go(CONTROL_PLANE, LICENSE, "True", "Applied", "coderd holds the license"),
    go(PROVISIONER, PLANE, "True", "ControlPlaneAvailable", "the control plane has an address"),
    go(PROVISIONER, PLANE, "False", "ControlPlaneUnavailable", "it does not exist"),
    go(PROVISIONER, PLANE, "False", "ControlPlaneUnavailable", "it has no address yet")
        .but(&[Reason::AwaitingControlPlane]),
    go(PROVISIONER, ACCESS, "True", "OperatorAccessReady", "the token was read"),
    go(PROVISIONER, ACCESS, "False", "OperatorAccessNotReady", "status.operatorAccessReady is not true"),
    go(PROVISIONER, ACCESS, "False", "OperatorAccessNotReady", "nobody has tried to get access yet")
        .but(&[Reason::AwaitingControlPlane]),
    go(PROVISIONER, ACCESS, "False", "OperatorTokenSecretRefMissing", "no status.operatorTokenSecretRef"),
    go(PROVISIONER, ACCESS, "False", "OperatorTokenSecretRefInvalid", "its name is blank"),
    go(PROVISIONER, ACCESS, "False", "OperatorTokenSecretUnavailable", "the Secret is missing or empty"),
    go(PROVISIONER, BOOTSTRAP, "True", "BootstrapSecretAvailable", "the token was read"),
    go(PROVISIONER, BOOTSTRAP, "False", "BootstrapSecretUnavailable", "the Secret is missing or empty"),
    go(PROVISIONER, ENTITLED, "True", "Entitled", "the license covers it, or did until lately"),
    go(PROVISIONER, ENTITLED, "False", "NotEntitled", "the license does not cover it"),
    go(PROVISIONER, ENTITLED, "False", "NotSupported", "coderd answers 404").but(&[Reason::NotEntitled]),
    go(PROVISIONER, ENTITLED, "False", "Forbidden", "coderd answers 401 or 403"),
    go(PROVISIONER, ENTITLED, "False", "EntitlementsQueryFailed", "any other answer of coderd, or none"),
    go(PROVISIONER, ENTITLED, "False", "EntitlementsQueryFailed", "coderd was not asked yet")
        .but(&[Reason::AwaitingEntitlements]),
    go(PROVISIONER, KEY, "True", "ProvisionerKeyReady", "the key was created"),
    go(PROVISIONER, KEY, "False", "ProvisionerKeyFailed", "a call to coderd failed").but(&[
        Reason::Unauthenticated,
        Reason::Forbidden,
        Reason::Unreachable,
        Reason::OrganizationNotFound,
    ]),
    go(PROVISIONER, KEY, "False", "RateLimited", "coderd answers 429"),
    go(PROVISIONER, KEY_SECRET, "True", "SecretReady", "the Secret holds a value"),
    go(PROVISIONER, DEPLOYMENT, "True", "MinimumReplicasReady", "a pod is ready"),
    go(PROVISIONER, DEPLOYMENT, "False", "NoReplicasReady", "no pod is ready"),
];

/// Whether the page names a word of the API, in backticks as it is written there.
fn names(text: &str, word: &str) -> bool {
    text.contains(&format!("`{word}`"))
}

impl GoCondition {
    /// The same condition where this operator has other reasons.
    const fn but(self, ours: &'static [Reason]) -> Self {
        Self { ours, ..self }
    }

    fn describe(&self) -> String {
        format!("{}, {}={}, {} ({})", self.kind, self.type_, self.status, self.reason, self.when)
    }
}

#[test]
fn every_condition_of_the_go_operator_exists_here_or_is_named_as_a_difference() {
    for condition in GO {
        let is_type = SHARED_TYPES.contains(&condition.type_) || names(DIFFERENCES, condition.type_);
        assert!(is_type, "the type is neither ours nor in docs/differences.md: {}", condition.describe());
        let is_reason = Reason::parse(condition.reason).is_some() || names(DIFFERENCES, condition.reason);
        assert!(is_reason, "the reason is neither ours nor in docs/differences.md: {}", condition.describe());
    }
}

#[test]
fn every_condition_type_that_both_operators_have_is_in_the_list() {
    for type_ in SHARED_TYPES {
        assert!(GO.iter().any(|condition| condition.type_ == *type_), "{type_}");
    }
}

#[test]
fn one_item_of_the_page_names_each_reason_that_changed_beside_its_condition() {
    let items: Vec<_> = DIFFERENCES.lines().filter(|line| line.starts_with("- ")).collect();
    for condition in GO.iter().filter(|condition| !condition.ours.is_empty()) {
        for reason in condition.ours {
            let names_all = |item: &&str| {
                [condition.type_, condition.reason, reason.as_str()].iter().all(|word| names(item, word))
            };
            assert!(
                items.iter().any(names_all),
                "no item of docs/differences.md names `{}`, `{}` and `{reason}`: {}",
                condition.type_,
                condition.reason,
                condition.describe()
            );
        }
    }
}
