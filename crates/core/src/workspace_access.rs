//! Decides what pods may do in Kubernetes to run workspaces: one Role and RoleBinding in each namespace for workspaces.
//!
//! Another namespace takes part only if it consents. Secrets, RBAC and tokens are never granted, unless the operator runs
//! with `--allow-privileged-workspace-rules`, and our own kinds never are: whoever writes their status decides which address
//! gets a token. A Role or RoleBinding that is no longer desired is removed in whatever namespace it is. It is recognised by
//! the UID of the object that it was written for. What no reconcile would remove, because its object is paused or gone, is
//! decided in [`stray`].

pub mod stray;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use coder_k8s_api::{
    CoderKind, Reason, WorkspaceRbac,
    condition::condition_type,
    names::{GROUP, annotation, label},
};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::{Resource, ResourceExt, core::ObjectMeta};

use crate::{
    condition::Conditions,
    names::{self, instance_label},
    outcome::Blocker,
    provisioner,
};

const RBAC: &str = "rbac.authorization.k8s.io";

/// For whom access is granted.
#[derive(Clone, Debug)]
pub struct Grantee {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// The ServiceAccount of its pods.
    pub service_account: String,
    /// Its kind.
    pub kind: GranteeKind,
}

/// The kinds whose pods run workspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GranteeKind {
    /// CoderControlPlane
    ControlPlane,
    /// CoderProvisioner
    Provisioner,
}

impl GranteeKind {
    /// None: the pods of the kind run no workspaces.
    const fn of(kind: CoderKind) -> Option<Self> {
        match kind {
            CoderKind::ControlPlane => Some(Self::ControlPlane),
            CoderKind::Provisioner => Some(Self::Provisioner),
            CoderKind::WorkspaceProxy => None,
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        CoderKind::ALL.iter().copied().filter_map(Self::of)
    }

    /// The labels with the name and the namespace of the object that a Role or RoleBinding serves.
    pub const fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::ControlPlane => (label::CONTROL_PLANE, label::CONTROL_PLANE_NAMESPACE),
            Self::Provisioner => (label::PROVISIONER, label::PROVISIONER_NAMESPACE),
        }
    }

    /// The group of the Roles and RoleBindings that serve an object, and of the object itself. A name and the label value
    /// that it is shortened to give the same group.
    pub fn group(self, namespace: &str, name: &str) -> String {
        format!("{self:?} {namespace}/{}", instance_label(name))
    }
}

/// The group of a Role or RoleBinding of workspaces: the object that it serves, by its labels, because it may be in another
/// namespace than that object.
pub fn served<K: Resource>(object: &K) -> Option<String> {
    let labels = object.labels();
    GranteeKind::all().find_map(|kind| {
        let (name, namespace) = kind.labels();
        Some(kind.group(labels.get(namespace)?, labels.get(name)?))
    })
}

/// Whether a namespace lets workspaces of another run in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Its label allows it.
    Given,
    /// It has no such label.
    Missing,
    /// Its labels could not be read. What is granted there stays as it is.
    Unknown,
    /// `--watch-namespaces` excludes it. The operator then does not read its labels.
    Unwatched,
    /// There is no such namespace.
    NoNamespace,
}

impl Consent {
    /// What the labels of a namespace say to the workspaces of `source`.
    pub fn of_labels(labels: &BTreeMap<String, String>, source: &str) -> Self {
        let given = labels.get(&format!("{}{source}", label::WORKSPACES_OF));
        if given.is_some_and(|value| value == label::ALLOW) { Self::Given } else { Self::Missing }
    }
}

/// What the flags of the operator say about grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantPolicy {
    /// Whether rules for Secrets, RBAC and tokens are granted.
    pub privileged_rules: bool,
    /// Whether `--watch-namespaces` names what is watched. An earlier release took that for the consent of those
    /// namespaces, so that grants with consent are marked there.
    pub named_namespaces: bool,
}

impl GrantPolicy {
    /// Whether a grant is kept for one release in a namespace that does not consent: the Go operator wrote it and this
    /// operator has not changed it since, or an earlier release wrote it in a watched namespace. This operator origin all
    /// it writes.
    fn tolerates<K: Resource>(self, object: &K) -> bool {
        let has = |mark: &str| object.annotations().contains_key(mark);
        !has(annotation::APPLIED_HASH) || (self.named_namespaces && !has(annotation::WORKSPACE_RBAC_CONSENT))
    }
}

/// Roles and RoleBindings with the labels of the object, in all namespaces.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    /// Roles.
    pub roles: Vec<Arc<Role>>,
    /// RoleBindings.
    pub bindings: Vec<Arc<RoleBinding>>,
}

/// The access to one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkspaceGrant {
    /// The namespace.
    pub namespace: String,
    /// The rules.
    pub role: Role,
    /// Gives them to the ServiceAccount.
    pub binding: RoleBinding,
    /// The rules of the Role that users add. The API server may refuse some of them.
    pub extra: Vec<PolicyRule>,
}

impl WorkspaceGrant {
    /// The Role with these of the rules that users add.
    pub fn role_with(&self, extra: &[PolicyRule]) -> Role {
        let all = self.role.rules.as_deref().unwrap_or_default();
        let base = all.get(..all.len().saturating_sub(self.extra.len())).unwrap_or_default();
        Role { rules: Some([base, extra].concat()), ..self.role.clone() }
    }

    /// Why a rule that users add is not granted. The API server lets nobody grant more than they may do.
    pub fn ungrantable(&self, rule: &PolicyRule) -> Blocker {
        let message = format!(
            "{} in namespace {} cannot be granted, because the operator may not do it itself: \
             give the operator these permissions, or remove the rule; the other rules are granted",
            rule_in_words(rule),
            self.namespace
        );
        Blocker::new(Reason::Forbidden, message)
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Access to grant.
    pub grants: Vec<WorkspaceGrant>,
    /// Namespaces that are asked for and have not consented, and whether an older grant there is kept.
    pub without_consent: Vec<(String, Consent, bool)>,
    /// Namespaces that are asked for and whose consent is unknown.
    pub unknown_consent: Vec<String>,
    /// Rules that are never granted.
    pub refused_rules: Vec<String>,
    /// Bindings to remove.
    pub obsolete_bindings: Vec<Arc<RoleBinding>>,
    /// Roles to remove.
    pub obsolete_roles: Vec<Arc<Role>>,
}

impl Plan {
    /// Whether anything is, or is to be, outside the namespace of the object.
    pub fn reaches_outside(&self, grantee: &Grantee, existing: &Existing) -> bool {
        let outside = |namespace: Option<String>| namespace.as_ref() != Some(&grantee.namespace);
        self.grants.iter().any(|grant| grant.namespace != grantee.namespace)
            || existing.roles.iter().any(|role| outside(role.namespace()) && grantee.made(&**role))
            || existing.bindings.iter().any(|b| outside(b.namespace()) && grantee.made(&**b))
    }

    /// Whether an existing Role or RoleBinding stays. One under another name stays until all pods use the ServiceAccount of
    /// the new one, and one of an earlier operator stays where the namespace has not consented yet.
    fn keeps<K: Resource>(
        &self,
        object: &K,
        is_desired: impl Fn(&K, &WorkspaceGrant) -> bool,
        have_all_moved: bool,
        policy: GrantPolicy,
    ) -> bool {
        let namespace = object.namespace().unwrap_or_default();
        let grant = self.grants.iter().find(|grant| grant.namespace == namespace);
        let tolerated = |(asked, given, kept): &(String, Consent, bool)| {
            *kept && *given != Consent::NoNamespace && *asked == namespace
        };
        grant.is_some_and(|grant| is_desired(object, grant) || !have_all_moved)
            || self.unknown_consent.contains(&namespace)
            || (policy.tolerates(object) && self.without_consent.iter().any(tolerated))
    }
}

/// The namespaces that are asked for: the object's own first, each once.
pub fn asked_namespaces(rbac: &WorkspaceRbac, own: &str) -> Vec<String> {
    if !rbac.workspace_perms {
        return Vec::new();
    }
    let mut observed = BTreeSet::new();
    let own = rbac.own_namespace.then(|| own.to_owned());
    let others = rbac.workspace_namespaces.iter().map(ToString::to_string);
    own.into_iter().chain(others).filter(|namespace| observed.insert(namespace.clone())).collect()
}

/// Decides what is to be done.
///
/// `have_all_moved`: whether all pods use the ServiceAccount of `grantee`, so that what an earlier one needed can be removed.
pub fn decide(
    rbac: &WorkspaceRbac,
    grantee: &Grantee,
    consent: &BTreeMap<String, Consent>,
    existing: &Existing,
    have_all_moved: bool,
    policy: GrantPolicy,
) -> Plan {
    let mut plan = Plan::default();
    let refused_as = |rule: &PolicyRule| refusal(rule, policy.privileged_rules);
    let (allowed, refused): (Vec<_>, Vec<_>) =
        rbac.extra_rules.iter().cloned().partition(|rule| refused_as(rule).is_none());
    if rbac.workspace_perms {
        plan.refused_rules = refused.iter().filter_map(refused_as).collect();
    }
    for namespace in asked_namespaces(rbac, &grantee.namespace) {
        let given = if namespace == grantee.namespace {
            Consent::Given
        } else {
            consent.get(&namespace).copied().unwrap_or(Consent::Missing)
        };
        match given {
            Consent::Given => plan.grants.push(grantee.grant(&namespace, rbac, &allowed, policy)),
            Consent::Unknown => plan.unknown_consent.push(namespace),
            Consent::Missing | Consent::Unwatched | Consent::NoNamespace => {
                let kept = existing.bindings.iter().any(|b| grantee.inherited(&**b, &namespace, policy));
                plan.without_consent.push((namespace, given, kept));
            }
        }
    }
    let roles = existing.roles.iter().filter(|role| grantee.made(&***role) || grantee.left_role(role));
    let is_desired = |role: &Role, grant: &WorkspaceGrant| role.name_any() == grant.role.name_any();
    plan.obsolete_roles =
        roles.filter(|role| !plan.keeps(&***role, is_desired, have_all_moved, policy)).cloned().collect();
    let bindings = existing.bindings.iter().filter(|b| grantee.made(&***b) || grantee.left_binding(b));
    let is_desired = |b: &RoleBinding, grant: &WorkspaceGrant| b.name_any() == grant.binding.name_any();
    plan.obsolete_bindings =
        bindings.filter(|b| !plan.keeps(&***b, is_desired, have_all_moved, policy)).cloned().collect();
    plan
}

impl Grantee {
    /// For an object whose pods run as `service_account`.
    pub fn of<K: Resource>(object: &K, kind: GranteeKind, service_account: String) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            service_account,
            kind,
        }
    }

    /// The labels by which its Roles and RoleBindings are found.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let (name, namespace) = self.kind.labels();
        [(name.to_owned(), instance_label(&self.name)), (namespace.to_owned(), self.namespace.clone())].into()
    }

    fn grant(
        &self,
        namespace: &str,
        rbac: &WorkspaceRbac,
        extra: &[PolicyRule],
        policy: GrantPolicy,
    ) -> WorkspaceGrant {
        let (role, binding) = self.names_in(namespace);
        let owner = (annotation::WORKSPACE_RBAC_OWNER_UID.to_owned(), self.uid.clone());
        let has_consented = policy.named_namespaces && namespace != self.namespace;
        let consent = has_consented.then(|| {
            (annotation::WORKSPACE_RBAC_CONSENT.to_owned(), label::WORKSPACES_OF.to_owned() + &self.namespace)
        });
        let annotations: BTreeMap<_, _> = [owner].into_iter().chain(consent).collect();
        let metadata = |name: String| ObjectMeta {
            name: Some(name),
            labels: Some(self.labels()),
            annotations: Some(annotations.clone()),
            ..ObjectMeta::default()
        };
        let subject = Subject {
            kind: "ServiceAccount".to_owned(),
            name: self.service_account.clone(),
            namespace: Some(self.namespace.clone()),
            api_group: None,
        };
        WorkspaceGrant {
            namespace: namespace.to_owned(),
            role: Role {
                metadata: metadata(role.clone()),
                rules: Some([base_rules(rbac), extra.to_vec()].concat()),
            },
            extra: extra.to_vec(),
            binding: RoleBinding {
                metadata: metadata(binding),
                role_ref: RoleRef { api_group: Some(RBAC.to_owned()), kind: "Role".to_owned(), name: role },
                subjects: Some(vec![subject]),
            },
        }
    }

    /// The names of the Role and of the RoleBinding in a namespace.
    fn names_in(&self, namespace: &str) -> (String, String) {
        if self.kind == GranteeKind::Provisioner && namespace == self.namespace {
            let name = provisioner::names::deployment(&self.name);
            return (name.clone(), name);
        }
        let Self { service_account, namespace, name, .. } = self;
        (
            names::workspace_role(service_account, namespace, name),
            names::workspace_binding(service_account, namespace, name),
        )
    }

    /// Whether an object was written for this very object: it owns it, or its uid is on it.
    pub fn made<K: Resource>(&self, object: &K) -> bool {
        let owned = object.owner_references().iter().any(|o| o.controller == Some(true) && o.uid == self.uid);
        owned
            || (self.identifies(object)
                && object.annotations().get(annotation::WORKSPACE_RBAC_OWNER_UID) == Some(&self.uid))
    }

    /// Whether a grant was found when this release took over from an operator that needed no consent.
    fn inherited<K: Resource>(&self, object: &K, namespace: &str, policy: GrantPolicy) -> bool {
        object.namespace().as_deref() == Some(namespace) && self.made(object) && policy.tolerates(object)
    }

    /// Whether a Role elsewhere stems from an earlier object of the same name.
    fn left_role(&self, role: &Role) -> bool {
        let namespace = role.namespace().unwrap_or_default();
        self.identifies(role) && self.is_outside(role) && role.name_any() == self.names_in(&namespace).0
    }

    /// Whether a RoleBinding elsewhere stems from an earlier object of the same name.
    fn left_binding(&self, binding: &RoleBinding) -> bool {
        let subjects = binding.subjects.as_deref().unwrap_or_default();
        let ours = |subject: &Subject| {
            subject.kind == "ServiceAccount"
                && subject.name == self.service_account
                && subject.namespace.as_ref() == Some(&self.namespace)
        };
        let (role, name) = self.names_in(&binding.namespace().unwrap_or_default());
        self.identifies(binding)
            && self.is_outside(binding)
            && binding.name_any() == name
            && binding.role_ref.kind == "Role"
            && binding.role_ref.api_group.as_deref() == Some(RBAC)
            && binding.role_ref.name == role
            && matches!(subjects, [one] if ours(one))
    }

    fn identifies<K: Resource>(&self, object: &K) -> bool {
        self.labels().iter().all(|(key, value)| object.labels().get(key) == Some(value))
    }

    fn is_outside<K: Resource>(&self, object: &K) -> bool {
        object.namespace().as_ref() != Some(&self.namespace)
    }
}

/// What every workspace needs.
fn base_rules(rbac: &WorkspaceRbac) -> Vec<PolicyRule> {
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    let rule = |group: &str, resource: &str| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    let mut rules = vec![rule("", "pods"), rule("", "persistentvolumeclaims")];
    if rbac.enable_deployments {
        rules.push(rule("apps", "deployments"));
    }
    rules
}

/// Why a rule is not granted, as a sentence for the condition. `privileged` is whether Secrets, RBAC and tokens are.
fn refusal(rule: &PolicyRule, privileged: bool) -> Option<String> {
    let words = rule_in_words(rule);
    if let Some(part) = never_granted(rule) {
        return Some(format!("{words} would give workspaces {part}, which the operator never grants"));
    }
    let part = privileged_part(rule).filter(|_| !privileged)?;
    let flag = "--allow-privileged-workspace-rules";
    Some(format!("{words} would give workspaces {part}, which the operator grants only with {flag}"))
}

/// Whether a list of a rule has one of these entries.
fn names_any(list: Option<&Vec<String>>, desired: &[&str]) -> bool {
    list.into_iter().flatten().any(|item| desired.contains(&item.as_str()))
}

/// What no flag makes the operator grant: everything in its own API group, also by a wildcard.
fn never_granted(rule: &PolicyRule) -> Option<&'static str> {
    if names_any(rule.api_groups.as_ref(), &[GROUP, "*"]) {
        Some("the kinds of the operator (coder.com)")
    } else if rule.non_resource_urls.as_ref().is_some_and(|urls| !urls.is_empty()) {
        Some("paths of the API server")
    } else {
        None
    }
}

/// What workspaces get only where the person who runs the operator has said so.
fn privileged_part(rule: &PolicyRule) -> Option<&'static str> {
    let has = |desired: &[&str]| names_any(rule.resources.as_ref(), desired);
    let verb = |desired: &[&str]| rule.verbs.iter().any(|verb| desired.contains(&verb.as_str()));
    let core = names_any(rule.api_groups.as_ref(), &[""]);
    if core && has(&["*", "*/*", "secrets", "secrets/*"]) {
        Some("Secrets")
    } else if core && has(&["serviceaccounts/token", "serviceaccounts/*", "*/token"]) {
        Some("tokens of ServiceAccounts")
    } else if names_any(rule.api_groups.as_ref(), &[RBAC]) {
        Some("RBAC")
    } else if verb(&["impersonate", "escalate", "bind"])
        || (verb(&["*"]) && core && has(&["serviceaccounts"]))
    {
        Some("the identity of others")
    } else {
        None
    }
}

fn rule_in_words(rule: &PolicyRule) -> String {
    let resources = rule.resources.clone().unwrap_or_default().join(",");
    format!("the rule for \"{resources}\" ({})", rule.verbs.join(","))
}

/// As [`set_conditions`], for a paused object that was granted access in other namespaces and has lost it (`lost`).
pub fn set_lost(
    conditions: &mut Conditions<'_>,
    own: &str,
    lost: &Plan,
    grant_blockers: &[(String, Blocker)],
) {
    // A read that failed is retried and says nothing about the grants.
    if !lost.without_consent.is_empty() {
        set_conditions(conditions, own, lost, grant_blockers);
    }
}

/// Sets the condition `WorkspaceAccess`. `grant_blockers` are grants that failed, with the namespace.
pub fn set_conditions(
    conditions: &mut Conditions<'_>,
    own: &str,
    plan: &Plan,
    grant_blockers: &[(String, Blocker)],
) {
    let Plan { grants, without_consent, refused_rules, .. } = plan;
    let refused = refused_rules.iter().map(|rule| (Reason::RuleNotAllowed, rule.clone()));
    let mut blockers: Vec<_> = refused.collect();
    blockers.extend(grant_blockers.iter().map(|(_, failure)| (failure.reason, failure.message.clone())));
    blockers.extend(without_consent.iter().map(|(namespace, consent, kept)| {
        let what = match consent {
            Consent::NoNamespace => format!(
                "namespace {namespace} does not exist: create it, or remove it from rbac.workspaceNamespaces"
            ),
            Consent::Unwatched => {
                format!("the operator does not watch namespace {namespace}: add it to --watch-namespaces")
            }
            Consent::Given | Consent::Missing | Consent::Unknown => format!(
                "namespace {namespace} has not consented to workspaces: \
                 kubectl label namespace {namespace} {}{own}={}",
                label::WORKSPACES_OF,
                label::ALLOW
            ),
        };
        let kept =
            if *kept { "; what an earlier operator granted there is kept for this release" } else { "" };
        (Reason::ConsentMissing, format!("{what}{kept}"))
    }));
    if let Some((reason, _)) = blockers.first() {
        let all: Vec<_> = blockers.iter().map(|(_, what)| what.as_str()).collect();
        conditions.set(condition_type::WORKSPACE_ACCESS, false, *reason, all.join("; "));
        return;
    }
    if grants.is_empty() {
        let message = "the spec asks for no workspace RBAC";
        conditions.set(condition_type::WORKSPACE_ACCESS, false, Reason::Disabled, message);
        return;
    }
    let all: Vec<_> = grants.iter().map(|grant| grant.namespace.as_str()).collect();
    let message = format!("workspaces may run in {}", all.join(", "));
    conditions.set(condition_type::WORKSPACE_ACCESS, true, Reason::Granted, message);
}

#[cfg(test)]
mod tests;
