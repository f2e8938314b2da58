//! Decides what pods may do in Kubernetes to run workspaces: one Role and RoleBinding in each namespace for workspaces.
//!
//! Another namespace takes part only if it consents. Secrets, RBAC and tokens are never granted, unless the operator runs
//! with `--allow-privileged-workspace-rules`. A Role or RoleBinding that is no longer desired is removed in whatever
//! namespace it is. It is recognised by the UID of the object that it was written for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use coder_k8s_api::{
    Reason, WorkspaceRbac,
    condition::kind,
    names::{annotation, label},
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
    pub kind: Kind,
}

/// The kinds whose pods run workspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CoderControlPlane
    ControlPlane,
    /// CoderProvisioner
    Provisioner,
}

/// Whether a namespace lets workspaces of another run in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Its label allows it.
    Given,
    /// It has no such label.
    Missing,
    /// `--watch-namespaces` excludes it. The operator then does not read its labels.
    Unwatched,
    /// There is no such namespace.
    NoNamespace,
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
    /// the new one, and one of the Go operator stays where the namespace has not consented yet.
    fn keeps<K: Resource>(
        &self,
        object: &K,
        is_desired: impl Fn(&K, &WorkspaceGrant) -> bool,
        settled: bool,
    ) -> bool {
        let namespace = object.namespace().unwrap_or_default();
        let grant = self.grants.iter().find(|grant| grant.namespace == namespace);
        let tolerated = |(asked, given, kept): &(String, Consent, bool)| {
            *kept && *given != Consent::NoNamespace && *asked == namespace
        };
        grant.is_some_and(|grant| is_desired(object, grant) || !settled)
            || (is_of_go_operator(object) && self.without_consent.iter().any(tolerated))
    }
}

/// The namespaces that are asked for: the object's own first, each once.
pub fn targets(rbac: &WorkspaceRbac, own: &str) -> Vec<String> {
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
/// `settled`: whether all pods use the ServiceAccount of `grantee`, so that what an earlier one needed can be removed.
/// `privileged`: whether rules for Secrets, RBAC and tokens are granted.
pub fn decide(
    rbac: &WorkspaceRbac,
    grantee: &Grantee,
    consent: &BTreeMap<String, Consent>,
    existing: &Existing,
    settled: bool,
    privileged: bool,
) -> Plan {
    let mut plan = Plan::default();
    let (allowed, refused): (Vec<_>, Vec<_>) =
        rbac.extra_rules.iter().cloned().partition(|rule| privileged || forbidden_part(rule).is_none());
    if rbac.workspace_perms {
        plan.refused_rules = refused.iter().filter_map(forbidden_part).collect();
    }
    for namespace in targets(rbac, &grantee.namespace) {
        let given = if namespace == grantee.namespace {
            Consent::Given
        } else {
            consent.get(&namespace).copied().unwrap_or(Consent::Missing)
        };
        if given == Consent::Given {
            plan.grants.push(grantee.grant(&namespace, rbac, &allowed));
        } else {
            let kept = existing.bindings.iter().any(|b| grantee.inherited(&**b, &namespace));
            plan.without_consent.push((namespace, given, kept));
        }
    }
    let roles = existing.roles.iter().filter(|role| grantee.made(&***role) || grantee.left_role(role));
    let is_desired = |role: &Role, grant: &WorkspaceGrant| role.name_any() == grant.role.name_any();
    plan.obsolete_roles = roles.filter(|role| !plan.keeps(&***role, is_desired, settled)).cloned().collect();
    let bindings = existing.bindings.iter().filter(|b| grantee.made(&***b) || grantee.left_binding(b));
    let is_desired = |b: &RoleBinding, grant: &WorkspaceGrant| b.name_any() == grant.binding.name_any();
    plan.obsolete_bindings = bindings.filter(|b| !plan.keeps(&***b, is_desired, settled)).cloned().collect();
    plan
}

impl Grantee {
    /// For an object whose pods run as `service_account`.
    pub fn of<K: Resource>(object: &K, kind: Kind, service_account: String) -> Self {
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
        let (name, namespace) = match self.kind {
            Kind::ControlPlane => (label::CONTROL_PLANE, label::CONTROL_PLANE_NAMESPACE),
            Kind::Provisioner => (label::PROVISIONER, label::PROVISIONER_NAMESPACE),
        };
        [(name.to_owned(), instance_label(&self.name)), (namespace.to_owned(), self.namespace.clone())].into()
    }

    fn grant(&self, namespace: &str, rbac: &WorkspaceRbac, extra: &[PolicyRule]) -> WorkspaceGrant {
        let (role, binding) = self.names_in(namespace);
        let metadata = |name: String| ObjectMeta {
            name: Some(name),
            labels: Some(self.labels()),
            annotations: Some([(annotation::WORKSPACE_RBAC_OWNER_UID.to_owned(), self.uid.clone())].into()),
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
        if self.kind == Kind::Provisioner && namespace == self.namespace {
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

    /// Whether a grant was found when this operator took over from the Go operator, which needed no consent.
    fn inherited<K: Resource>(&self, object: &K, namespace: &str) -> bool {
        object.namespace().as_deref() == Some(namespace) && self.made(object) && is_of_go_operator(object)
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

/// Whether the Go operator wrote an object and this operator has not changed it since. This operator marks all it writes.
fn is_of_go_operator<K: Resource>(object: &K) -> bool {
    !object.annotations().contains_key(annotation::APPLIED_HASH)
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

/// The part of a rule that workspaces are never given, in words.
fn forbidden_part(rule: &PolicyRule) -> Option<String> {
    let has = |list: &Option<Vec<String>>, desired: &[&str]| {
        list.iter().flatten().any(|item| desired.contains(&item.as_str()))
    };
    let core = has(&rule.api_groups, &["", "*"]);
    let verb = |desired: &[&str]| rule.verbs.iter().any(|verb| desired.contains(&verb.as_str()));
    let all = has(&rule.resources, &["*", "*/*"]);
    let part = if core && (all || has(&rule.resources, &["secrets", "secrets/*"])) {
        "Secrets"
    } else if core && has(&rule.resources, &["serviceaccounts/token", "serviceaccounts/*", "*/token"]) {
        "tokens of ServiceAccounts"
    } else if has(&rule.api_groups, &[RBAC, "*"]) {
        "RBAC"
    } else if verb(&["impersonate", "escalate", "bind"])
        || (verb(&["*"]) && core && has(&rule.resources, &["serviceaccounts"]))
    {
        "the identity of others"
    } else {
        return None;
    };
    Some(format!("{} would give workspaces {part}", rule_in_words(rule)))
}

fn rule_in_words(rule: &PolicyRule) -> String {
    let resources = rule.resources.clone().unwrap_or_default().join(",");
    format!("the rule for \"{resources}\" ({})", rule.verbs.join(","))
}

/// Sets the condition `WorkspaceAccess`. `grant_blockers` are grants that failed, with the namespace.
pub fn set_conditions(
    conditions: &mut Conditions<'_>,
    own: &str,
    plan: &Plan,
    grant_blockers: &[(String, Blocker)],
) {
    let Plan { grants, without_consent, refused_rules, .. } = plan;
    let refused = refused_rules.iter().map(|rule| {
        let only = "which the operator grants only with --allow-privileged-workspace-rules";
        (Reason::RuleNotAllowed, format!("{rule}, {only}"))
    });
    let mut blockers: Vec<_> = refused.collect();
    blockers.extend(grant_blockers.iter().map(|(_, failure)| (failure.reason, failure.message.clone())));
    blockers.extend(without_consent.iter().map(|(namespace, consent, kept)| {
        let what = match consent {
            Consent::NoNamespace => format!("namespace {namespace} does not exist"),
            Consent::Unwatched => {
                format!(
                    "namespace {namespace} is not looked after by this operator: add it to --watch-namespaces"
                )
            }
            Consent::Given | Consent::Missing => format!(
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
        conditions.set(kind::WORKSPACE_ACCESS, false, *reason, all.join("; "));
        return;
    }
    if grants.is_empty() {
        let message = "no namespace for workspaces is asked for";
        conditions.set(kind::WORKSPACE_ACCESS, false, Reason::Disabled, message);
        return;
    }
    let all: Vec<_> = grants.iter().map(|grant| grant.namespace.as_str()).collect();
    let message = format!("workspaces may run in {}", all.join(", "));
    conditions.set(kind::WORKSPACE_ACCESS, true, Reason::Granted, message);
}

#[cfg(test)]
mod tests;
