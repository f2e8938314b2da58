//! What pods may do in Kubernetes to run workspaces: one Role and RoleBinding in each namespace for workspaces.
//!
//! Another namespace takes part only when it consents. Secrets, RBAC and tokens are never granted, unless the operator
//! was told so when it was started. What is no longer wanted is removed wherever we wrote, recognised by the uid
//! of the object that it was written for.

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
    /// Its uid.
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
    /// It does.
    Given,
    /// It does not.
    Missing,
    /// The operator does not look after it, and under such a limit that is what counts.
    Unwatched,
    /// There is no such namespace.
    NoNamespace,
}

/// Roles and RoleBindings that bear the labels of the object, wherever they are.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    /// Roles.
    pub roles: Vec<Arc<Role>>,
    /// RoleBindings.
    pub bindings: Vec<Arc<RoleBinding>>,
}

/// The access to one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The namespace.
    pub namespace: String,
    /// What may be done.
    pub role: Role,
    /// By whom.
    pub binding: RoleBinding,
    /// The Role without the rules that users add, in case those cannot be granted.
    pub plain: Option<Role>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Access to grant.
    pub grants: Vec<Grant>,
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
/// `settled`: whether all pods use the ServiceAccount of `grantee`, so that what an earlier one needed can go.
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
    let kept = |object: &dyn Held| {
        let namespace = object.home();
        let desired = plan.grants.iter().any(|grant| grant.namespace == namespace && object.is_of(grant));
        let replaced = plan.grants.iter().any(|grant| grant.namespace == namespace);
        let tolerated = plan
            .without_consent
            .iter()
            .any(|(asked, given, kept)| *kept && *given != Consent::NoNamespace && *asked == namespace)
            && object.is_unhashed();
        desired || (replaced && !settled) || tolerated
    };
    let roles = existing.roles.iter().filter(|role| grantee.made(&***role) || grantee.left_role(role));
    plan.obsolete_roles = roles.filter(|role| !kept(&***role)).cloned().collect();
    let bindings = existing.bindings.iter().filter(|b| grantee.made(&***b) || grantee.left_binding(b));
    plan.obsolete_bindings = bindings.filter(|binding| !kept(&***binding)).cloned().collect();
    plan
}

/// What the two kinds have in common for the decision.
trait Held {
    fn home(&self) -> String;
    fn is_of(&self, grant: &Grant) -> bool;
    fn is_unhashed(&self) -> bool;
}

impl Held for Role {
    fn home(&self) -> String {
        self.namespace().unwrap_or_default()
    }
    fn is_of(&self, grant: &Grant) -> bool {
        self.name_any() == grant.role.name_any()
    }
    fn is_unhashed(&self) -> bool {
        !self.annotations().contains_key(annotation::APPLIED_HASH)
    }
}

impl Held for RoleBinding {
    fn home(&self) -> String {
        self.namespace().unwrap_or_default()
    }
    fn is_of(&self, grant: &Grant) -> bool {
        self.name_any() == grant.binding.name_any()
    }
    fn is_unhashed(&self) -> bool {
        !self.annotations().contains_key(annotation::APPLIED_HASH)
    }
}

impl Grantee {
    /// The labels by which its Roles and RoleBindings are found.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let (name, namespace) = match self.kind {
            Kind::ControlPlane => (label::CONTROL_PLANE, label::CONTROL_PLANE_NAMESPACE),
            Kind::Provisioner => (label::PROVISIONER, label::PROVISIONER_NAMESPACE),
        };
        [(name.to_owned(), instance_label(&self.name)), (namespace.to_owned(), self.namespace.clone())].into()
    }

    fn grant(&self, namespace: &str, rbac: &WorkspaceRbac, extra: &[PolicyRule]) -> Grant {
        let (role, binding) = (self.role_name(namespace), self.binding_name(namespace));
        let metadata = |name: String| ObjectMeta {
            name: Some(name),
            labels: Some(self.labels()),
            annotations: Some([(annotation::WORKSPACE_RBAC_OWNER_UID.to_owned(), self.uid.clone())].into()),
            ..ObjectMeta::default()
        };
        let plain = Role { metadata: metadata(role.clone()), rules: Some(base_rules(rbac)) };
        let subject = Subject {
            kind: "ServiceAccount".to_owned(),
            name: self.service_account.clone(),
            namespace: Some(self.namespace.clone()),
            api_group: None,
        };
        Grant {
            namespace: namespace.to_owned(),
            role: Role { rules: Some([base_rules(rbac), extra.to_vec()].concat()), ..plain.clone() },
            plain: (!extra.is_empty()).then_some(plain),
            binding: RoleBinding {
                metadata: metadata(binding),
                role_ref: RoleRef { api_group: Some(RBAC.to_owned()), kind: "Role".to_owned(), name: role },
                subjects: Some(vec![subject]),
            },
        }
    }

    fn role_name(&self, namespace: &str) -> String {
        match self.kind {
            Kind::Provisioner if namespace == self.namespace => provisioner::names::deployment(&self.name),
            _ => names::workspace_role(&self.service_account, &self.namespace, &self.name),
        }
    }

    fn binding_name(&self, namespace: &str) -> String {
        match self.kind {
            Kind::Provisioner if namespace == self.namespace => provisioner::names::deployment(&self.name),
            _ => names::workspace_binding(&self.service_account, &self.namespace, &self.name),
        }
    }

    /// Whether an object was written for this very object: it owns it, or its uid is on it.
    pub fn made<K: Resource>(&self, object: &K) -> bool {
        let owned = object.owner_references().iter().any(|o| o.controller == Some(true) && o.uid == self.uid);
        owned
            || (self.identifies(object)
                && object.annotations().get(annotation::WORKSPACE_RBAC_OWNER_UID) == Some(&self.uid))
    }

    /// Whether a grant was found when this operator took over from the one before, which asked nobody for consent.
    fn inherited<K: Resource>(&self, object: &K, namespace: &str) -> bool {
        object.namespace().as_deref() == Some(namespace)
            && self.made(object)
            && !object.annotations().contains_key(annotation::APPLIED_HASH)
    }

    /// Whether a Role elsewhere stems from an earlier object of the same name.
    fn left_role(&self, role: &Role) -> bool {
        self.identifies(role) && self.is_outside(role) && role.name_any() == self.role_name(&role.home())
    }

    /// Whether a RoleBinding elsewhere stems from an earlier object of the same name.
    fn left_binding(&self, binding: &RoleBinding) -> bool {
        let subjects = binding.subjects.as_deref().unwrap_or_default();
        let ours = |subject: &Subject| {
            subject.kind == "ServiceAccount"
                && subject.name == self.service_account
                && subject.namespace.as_ref() == Some(&self.namespace)
        };
        self.identifies(binding)
            && self.is_outside(binding)
            && binding.name_any() == self.binding_name(&binding.home())
            && binding.role_ref.kind == "Role"
            && binding.role_ref.api_group.as_deref() == Some(RBAC)
            && binding.role_ref.name == self.role_name(&binding.home())
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
    let join = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
    Some(format!(
        "the rule for \"{}\" ({}) would give workspaces {part}",
        join(&rule.resources),
        rule.verbs.join(",")
    ))
}

/// Says where workspaces may run, and where they may not. `grant_blockers` are grants that failed, with the namespace.
pub fn set_conditions(
    conditions: &mut Conditions<'_>,
    own: &str,
    plan: &Plan,
    grant_blockers: &[(String, Blocker)],
) {
    let Plan { grants, without_consent, refused_rules, .. } = plan;
    let mut blockers: Vec<(Reason, String)> = refused_rules
        .iter()
        .map(|rule| {
            (
                Reason::RuleNotAllowed,
                format!("{rule}, which the operator grants only with --allow-privileged-workspace-rules"),
            )
        })
        .collect();
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
