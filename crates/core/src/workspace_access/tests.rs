use serde_json::{Value, json};

use super::*;

fn rbac(spec: Value) -> WorkspaceRbac {
    serde_json::from_value(spec).unwrap()
}

pub(super) fn grantee() -> Grantee {
    Grantee {
        kind: GranteeKind::ControlPlane,
        namespace: "coder".into(),
        name: "coder".into(),
        uid: "uid-1".into(),
        service_account: "coder".into(),
    }
}

fn consents(all: &[(&str, Consent)]) -> BTreeMap<String, Consent> {
    all.iter().map(|(namespace, consent)| ((*namespace).to_owned(), *consent)).collect()
}

fn plan(spec: Value, consent: &[(&str, Consent)], existing: &Existing) -> Plan {
    decide(&rbac(spec), &grantee(), &consents(consent), existing, true, GrantPolicy::default())
}

/// A grant as it stands in the cluster.
pub(super) fn standing(namespace: &str, uid: &str, hashed: bool) -> Existing {
    let grant = Grantee { uid: uid.into(), ..grantee() }.grant(
        namespace,
        &WorkspaceRbac::default(),
        &[],
        GrantPolicy::default(),
    );
    let (mut role, mut binding) = (grant.role, grant.binding);
    for meta in [role.meta_mut(), binding.meta_mut()] {
        meta.namespace = Some(namespace.to_owned());
        if hashed {
            meta.annotations.get_or_insert_default().insert(annotation::APPLIED_HASH.into(), "h".into());
        }
    }
    Existing { roles: vec![Arc::new(role)], bindings: vec![Arc::new(binding)] }
}

fn removed(plan: &Plan) -> (usize, usize) {
    (plan.obsolete_roles.len(), plan.obsolete_bindings.len())
}

#[test]
fn the_own_namespace_comes_first_and_each_namespace_once() {
    assert_eq!(
        asked_namespaces(&rbac(json!({"workspaceNamespaces": [" b ", "coder", "b", "a"]})), "coder"),
        ["coder", "b", "a"]
    );
    assert_eq!(
        asked_namespaces(&rbac(json!({"ownNamespace": false, "workspaceNamespaces": ["b"]})), "coder"),
        ["b"]
    );
    assert!(
        asked_namespaces(&rbac(json!({"workspacePerms": false, "workspaceNamespaces": ["b"]})), "coder")
            .is_empty()
    );
}

#[test]
fn a_grant_is_named_marked_and_bound_as_it_always_was() {
    let made = &plan(json!({}), &[], &Existing::default()).grants[0];
    assert_eq!(made.role.name_any(), "coder-84e8e53b-workspace-perms");
    assert_eq!(made.binding.name_any(), "coder-84e8e53b");
    assert_eq!(made.role.annotations()[annotation::WORKSPACE_RBAC_OWNER_UID], "uid-1");
    let rules = made.role.rules.as_ref().unwrap();
    let resources: Vec<_> = rules.iter().map(|rule| rule.resources.as_ref().unwrap()[0].as_str()).collect();
    assert_eq!(resources, ["pods", "persistentvolumeclaims", "deployments"]);
    let without = plan(json!({"enableDeployments": false}), &[], &Existing::default());
    assert_eq!(without.grants[0].role.rules.as_ref().unwrap().len(), 2);
    assert_eq!(made.binding.subjects.as_ref().unwrap()[0].namespace.as_deref(), Some("coder"));
}

#[test]
fn another_namespace_takes_part_only_when_it_consents() {
    let spec = json!({"workspaceNamespaces": ["dev", "qa", "gone"]});
    let consent = [("dev", Consent::Given), ("qa", Consent::Missing), ("gone", Consent::NoNamespace)];
    let plan = plan(spec, &consent, &Existing::default());
    let granted: Vec<_> = plan.grants.iter().map(|grant| grant.namespace.as_str()).collect();
    assert_eq!(granted, ["coder", "dev"]);
    assert_eq!(
        plan.without_consent,
        [("qa".to_owned(), Consent::Missing, false), ("gone".to_owned(), Consent::NoNamespace, false)]
    );
}

#[test]
fn a_withdrawn_consent_ends_our_grants_and_one_from_before_is_kept_and_reported() {
    let spec = || json!({"workspaceNamespaces": ["dev"]});
    let missing = [("dev", Consent::Missing)];
    let ours = plan(spec(), &missing, &standing("dev", "uid-1", true));
    assert_eq!(removed(&ours), (1, 1));
    assert_eq!(ours.without_consent, [("dev".to_owned(), Consent::Missing, false)]);
    let before = plan(spec(), &missing, &standing("dev", "uid-1", false));
    assert_eq!(removed(&before), (0, 0));
    assert_eq!(before.without_consent, [("dev".to_owned(), Consent::Missing, true)]);
    let unasked = plan(json!({}), &[], &standing("dev", "uid-1", false));
    assert_eq!(removed(&unasked), (1, 1), "what nobody asks for goes");
}

#[test]
fn an_unknown_consent_grants_nothing_new_and_takes_nothing_back() {
    let spec = || json!({"workspaceNamespaces": ["dev"]});
    let unknown = [("dev", Consent::Unknown)];
    let plan = plan(spec(), &unknown, &standing("dev", "uid-1", true));
    assert_eq!((removed(&plan), plan.grants.len()), ((0, 0), 1), "the own namespace alone");
    assert!(plan.without_consent.is_empty());
}

#[test]
fn with_named_namespaces_a_grant_says_that_it_was_consented_to_and_an_older_one_is_kept() {
    let policy = GrantPolicy { named_namespaces: true, ..GrantPolicy::default() };
    let spec = rbac(json!({"workspaceNamespaces": ["dev"]}));
    let at = |consent, existing: &Existing| {
        decide(&spec, &grantee(), &consents(&[("dev", consent)]), existing, true, policy)
    };
    let given = at(Consent::Given, &Existing::default());
    let mark =
        |grant: &WorkspaceGrant| grant.binding.annotations().get(annotation::WORKSPACE_RBAC_CONSENT).cloned();
    assert_eq!(
        given.grants.iter().map(mark).collect::<Vec<_>>(),
        [None, Some("workspaces.coder.com/coder".to_owned())]
    );
    let older = at(Consent::Missing, &standing("dev", "uid-1", true));
    assert_eq!(removed(&older), (0, 0), "the release before took the flag for consent");
    assert_eq!(older.without_consent, [("dev".to_owned(), Consent::Missing, true)]);
    let mut marked = standing("dev", "uid-1", true);
    let consented = |meta: &mut ObjectMeta| {
        meta.annotations
            .get_or_insert_default()
            .insert(annotation::WORKSPACE_RBAC_CONSENT.into(), "l".into());
    };
    consented(Arc::make_mut(&mut marked.roles[0]).meta_mut());
    consented(Arc::make_mut(&mut marked.bindings[0]).meta_mut());
    assert_eq!(removed(&at(Consent::Missing, &marked)), (1, 1));
}

#[test]
fn a_name_and_the_label_that_it_is_shortened_to_belong_together() {
    let long = Grantee { name: "a".repeat(80), ..grantee() };
    let mut role = Role::default();
    role.metadata.labels = Some(long.labels());
    assert_eq!(served(&role), Some(GranteeKind::ControlPlane.group("coder", &long.name)));
    assert_ne!(served(&role), Some(GranteeKind::Provisioner.group("coder", &long.name)));
}

#[test]
fn only_what_was_written_for_this_object_is_removed() {
    let none = json!({"workspacePerms": false});
    assert_eq!(removed(&plan(none.clone(), &[], &standing("dev", "uid-1", true))), (1, 1));
    assert_eq!(removed(&plan(none.clone(), &[], &standing("coder", "uid-1", true))), (1, 1));
    assert_eq!(
        removed(&plan(none.clone(), &[], &standing("dev", "uid-0", true))),
        (1, 1),
        "left by an earlier object of the same name, under exactly the expected names"
    );
    assert_eq!(
        removed(&plan(none.clone(), &[], &standing("coder", "uid-0", true))),
        (0, 0),
        "in the own namespace the garbage collector sees to it"
    );
    let mut manual = standing("dev", "uid-0", false);
    Arc::make_mut(&mut manual.roles[0]).metadata.name = Some("by-hand".into());
    Arc::make_mut(&mut manual.bindings[0]).metadata.name = Some("by-hand".into());
    assert_eq!(removed(&plan(none.clone(), &[], &manual)), (0, 0), "same labels, not ours");
    let mut widened = standing("dev", "uid-0", false);
    let somebody = Subject { kind: "User".into(), name: "eve".into(), ..Subject::default() };
    Arc::make_mut(&mut widened.bindings[0]).subjects.as_mut().unwrap().push(somebody);
    assert_eq!(removed(&plan(none, &[], &widened)), (1, 0), "a binding that serves others too");
}

#[test]
fn what_an_earlier_service_account_needs_stays_until_the_pods_have_moved() {
    let renamed = Grantee { service_account: "robot".into(), ..grantee() };
    let existing = standing("coder", "uid-1", true);
    let at = |settled| {
        let policy = GrantPolicy::default();
        removed(&decide(&WorkspaceRbac::default(), &renamed, &BTreeMap::new(), &existing, settled, policy))
    };
    assert_eq!(at(false), (0, 0));
    assert_eq!(at(true), (1, 1));
}

#[test]
fn secrets_rbac_and_tokens_are_never_granted_unless_the_operator_was_told_so() {
    let rule = |groups: Value, resources: Value, verbs: Value| json!({"apiGroups": groups, "resources": resources, "verbs": verbs});
    for (rule, refused) in [
        (rule(json!([""]), json!(["configmaps"]), json!(["get"])), false),
        (rule(json!(["batch"]), json!(["*"]), json!(["*"])), false),
        (rule(json!([""]), json!(["pods/exec"]), json!(["create"])), false),
        (rule(json!([""]), json!(["secrets"]), json!(["get"])), true),
        (rule(json!([""]), json!(["*"]), json!(["get"])), true),
        (rule(json!([""]), json!(["serviceaccounts/token"]), json!(["create"])), true),
        (rule(json!(["rbac.authorization.k8s.io"]), json!(["roles"]), json!(["get"])), true),
        (rule(json!([""]), json!(["serviceaccounts"]), json!(["impersonate"])), true),
        (rule(json!([""]), json!(["serviceaccounts"]), json!(["*"])), true),
    ] {
        let spec = rbac(json!({"extraRules": [rule]}));
        let at = |privileged_rules| {
            let policy = GrantPolicy { privileged_rules, ..GrantPolicy::default() };
            decide(&spec, &grantee(), &BTreeMap::new(), &Existing::default(), true, policy)
        };
        assert_eq!(at(false).refused_rules.len(), usize::from(refused), "{spec:?}");
        assert_eq!(at(false).grants[0].role.rules.as_ref().unwrap().len(), 3 + usize::from(!refused));
        assert_eq!(at(true).grants[0].role.rules.as_ref().unwrap().len(), 4);
    }
}

#[test]
fn our_own_kinds_are_never_granted_whatever_the_operator_was_told() {
    for rule in [
        json!({"apiGroups": ["coder.com"], "resources": ["codercontrolplanes/status"], "verbs": ["patch"]}),
        json!({"apiGroups": ["coder.com"], "resources": ["codercontrolplanes"], "verbs": ["get"]}),
        json!({"apiGroups": ["coder.com"], "resources": ["*"], "verbs": ["*"]}),
        json!({"apiGroups": ["*"], "resources": ["*/status"], "verbs": ["update"]}),
        json!({"apiGroups": ["*"], "resources": ["configmaps"], "verbs": ["get"]}),
        json!({"apiGroups": ["apps", "coder.com"], "resources": ["deployments"], "verbs": ["get"]}),
        json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
    ] {
        let spec = rbac(json!({"extraRules": [rule]}));
        for privileged in [false, true] {
            let policy = GrantPolicy { privileged_rules: privileged, ..GrantPolicy::default() };
            let plan = decide(&spec, &grantee(), &BTreeMap::new(), &Existing::default(), true, policy);
            assert_eq!(plan.grants[0].role.rules.as_ref().unwrap().len(), 3, "{spec:?}");
            assert!(
                plan.refused_rules[0].ends_with("which the operator never grants"),
                "{:?}",
                plan.refused_rules
            );
        }
    }
}

#[test]
fn one_rule_that_is_refused_takes_no_other_with_it() {
    let rule = |name: &str| json!({"apiGroups": [""], "resources": [name], "verbs": ["get", "list"]});
    let spec = json!({"extraRules": [rule("a"), rule("b"), rule("c")]});
    let grant = &plan(spec, &[], &Existing::default()).grants[0];
    let resources = |extra: &[PolicyRule]| {
        let rules = grant.role_with(extra).rules.unwrap();
        rules.into_iter().map(|rule| rule.resources.unwrap().join(",")).collect::<Vec<_>>()
    };
    let usual = ["pods", "persistentvolumeclaims", "deployments"];
    assert_eq!(resources(&[]), usual);
    assert_eq!(
        resources(&[grant.extra[0].clone(), grant.extra[2].clone()]),
        [&usual[..], &["a", "c"]].concat()
    );
    assert_eq!(grant.role_with(&grant.extra), grant.role);
    let blocker = grant.ungrantable(&grant.extra[1]);
    assert_eq!(blocker.reason, Reason::Forbidden);
    assert!(blocker.message.contains("the rule for \"b\" (get,list)"), "{}", blocker.message);
}

#[test]
fn a_finalizer_is_needed_only_for_what_is_outside() {
    let reaches = |spec: Value, existing: &Existing| {
        plan(spec, &[("dev", Consent::Given)], existing).reaches_outside(&grantee(), existing)
    };
    assert!(!reaches(json!({}), &standing("coder", "uid-1", true)));
    assert!(reaches(json!({"workspaceNamespaces": ["dev"]}), &Existing::default()));
    assert!(reaches(json!({}), &standing("dev", "uid-1", true)), "still to be removed");
}
