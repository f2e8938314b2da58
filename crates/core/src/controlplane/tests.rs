use coder_k8s_api::{Reason, condition::condition_type};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Container, ServiceAccount},
};
use serde_json::{Value, json};

use super::*;
use crate::object::{finalizers, is_paused};
use crate::{
    exposure::{Exposure, route::Acceptance},
    outcome::ActResult,
};
use coder_k8s_api::names::finalizer;

fn observed(spec: Value) -> Observed {
    let mut object = CoderControlPlane::new("coder", serde_json::from_value(spec).unwrap());
    object.metadata.namespace = Some("ns".into());
    object.metadata.uid = Some("uid".into());
    object.metadata.generation = Some(4);
    Observed {
        inputs: coderd::PresentInputs::default(),
        object: Arc::new(object),
        children: Children::default(),
        newer_deployment: None,
        sources: Ok(SourceContents::new()),
        consent: BTreeMap::new(),
        gateway_api: true,
        grant_policy: GrantPolicy::default(),
        coderd: coderd::CoderdReport::default(),
        jobs: JobsVerdict::NotPolledYet,
    }
}

fn container(spec: Value) -> Container {
    let made = build_deployment(&observed(spec), &SourceContents::new(), false);
    made.spec.unwrap().template.spec.unwrap().containers.remove(0)
}

fn env(container: &Container) -> Vec<(String, String)> {
    let entries = container.env.iter().flatten();
    entries.map(|entry| (entry.name.clone(), entry.value.clone().unwrap_or_default())).collect()
}

/// The Deployment that the plan makes, with all its pods ready.
fn rolled_out(observed: &Observed) -> Arc<Deployment> {
    let mut made = build_deployment(observed, &SourceContents::new(), false);
    let replicas = made.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    made.status = serde_json::from_value(json!({
        "replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas,
    }))
    .unwrap();
    Arc::new(made)
}

fn conditions(observed: &Observed, outcome: &Outcome) -> BTreeMap<String, (String, String)> {
    let status = status(observed, &decide(observed), outcome, Timestamp::UNIX_EPOCH);
    status.workload.conditions.into_iter().map(|c| (c.type_, (c.status, c.reason))).collect()
}

fn is(all: &BTreeMap<String, (String, String)>, type_: &str, status: &str, reason: Reason) {
    assert_eq!(all[type_], (status.to_owned(), reason.to_string()), "{type_}");
}

#[test]
fn the_environment_has_its_order() {
    let spec = json!({
        "tls": {"secretNames": ["my-tls"]}, "prometheus": {"enabled": true},
        "expose": {"ingress": {"host": "c.example.com", "wildcardHost": "*.example.com", "tls": {"secretName": "s"}}},
        "extraEnv": [{"name": "MINE", "value": "1"}, {"name": "CODER_TLS_ADDRESS", "value": "[::]:8443"}],
    });
    let container = container(spec);
    let expected = [
        ("KUBE_POD_IP", ""),
        ("CODER_DERP_SERVER_RELAY_URL", "http://$(KUBE_POD_IP):8080"),
        ("CODER_ACCESS_URL", "https://c.example.com"),
        ("CODER_WILDCARD_ACCESS_URL", "*.example.com"),
        ("CODER_TLS_ENABLE", "true"),
        ("CODER_TLS_ADDRESS", "[::]:8443"),
        ("CODER_TLS_CERT_FILE", "/etc/ssl/certs/coder/my-tls/tls.crt"),
        ("CODER_TLS_KEY_FILE", "/etc/ssl/certs/coder/my-tls/tls.key"),
        ("CODER_PROMETHEUS_ENABLE", "true"),
        ("CODER_PROMETHEUS_ADDRESS", "0.0.0.0:2112"),
        ("MINE", "1"),
    ];
    assert_eq!(env(&container), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let ports: Vec<_> = container.ports.unwrap().iter().map(|port| port.container_port).collect();
    assert_eq!(ports, [8080, 8443, 2112]);
}

#[test]
fn ipv6_pods_listen_and_relay_on_ipv6() {
    let spec = json!({"tls": {"secretNames": ["s"]}});
    let made = build_deployment(&observed(spec), &SourceContents::new(), true);
    let container = made.spec.unwrap().template.spec.unwrap().containers.remove(0);
    assert_eq!(container.args.clone().unwrap(), ["--http-address=[::]:8080"]);
    let all: BTreeMap<_, _> = env(&container).into_iter().collect();
    assert_eq!(all["CODER_DERP_SERVER_RELAY_URL"], "http://[$(KUBE_POD_IP)]:8080");
    assert_eq!(all["CODER_TLS_ADDRESS"], "[::]:8443");
}

#[test]
fn arguments_of_users_follow() {
    let container = container(json!({"extraArgs": ["--verbose"]}));
    assert_eq!(container.args.unwrap(), ["--http-address=0.0.0.0:8080", "--verbose"]);
    assert_eq!(container.command, None);
    assert_eq!(container.name, "coder");
}

#[test]
fn somebody_else_may_scale() {
    let mut observed = observed(json!({"scaling": "External", "replicas": 3}));
    let made = build_deployment(&observed, &SourceContents::new(), false);
    assert_eq!(made.spec.as_ref().unwrap().replicas, None);
    assert!(!decide(&observed).desired.unwrap().hand_over_replicas, "there is nothing to hand over yet");
    let mut held = made.clone();
    held.metadata.annotations = None;
    observed.children.deployment = Some(Arc::new(held));
    assert!(decide(&observed).desired.unwrap().hand_over_replicas);
    observed.newer_deployment = Some(Arc::new(made));
    assert!(!decide(&observed).desired.unwrap().hand_over_replicas, "the cache is late");
    observed.newer_deployment = observed.children.deployment.take();
    assert!(decide(&observed).desired.unwrap().hand_over_replicas, "it was written a moment ago");
}

#[test]
fn the_budget_follows_whoever_scales() {
    assert!(decide(&observed(json!({"replicas": 1}))).desired.unwrap().budget.is_none());
    assert!(decide(&observed(json!({"replicas": 2}))).desired.unwrap().budget.is_some());
    let mut external = observed(json!({"scaling": "External"}));
    let mut held = build_deployment(&external, &SourceContents::new(), false);
    held.spec.as_mut().unwrap().replicas = Some(4);
    external.children.deployment = Some(Arc::new(held));
    assert!(decide(&external).desired.unwrap().budget.is_some());
}

#[test]
fn an_earlier_service_account_goes_when_no_pod_uses_it() {
    let account = |name: &str| {
        let metadata =
            kube::core::ObjectMeta { name: Some(name.to_owned()), ..kube::core::ObjectMeta::default() };
        Arc::new(ServiceAccount { metadata, ..ServiceAccount::default() })
    };
    let mut observed = observed(json!({"serviceAccount": {"name": " robot "}}));
    observed.children.service_accounts = vec![account("coder"), account("robot")];
    assert_eq!(decide(&observed).desired.unwrap().accounts.desired.unwrap().name_any(), "robot");
    assert!(decide(&observed).desired.unwrap().accounts.obsolete.is_empty(), "no pod runs yet");
    observed.children.deployment = Some(rolled_out(&observed));
    let obsolete = decide(&observed).desired.unwrap().accounts.obsolete;
    assert_eq!(obsolete.iter().map(|a| a.name_any()).collect::<Vec<_>>(), ["coder"]);
}

#[test]
fn disabling_creation_detaches_what_there_is() {
    let mut observed = observed(json!({"serviceAccount": {"disableCreate": true}}));
    observed.children.service_accounts = vec![Arc::default()];
    let desired = decide(&observed).desired.unwrap();
    assert_eq!(
        (desired.accounts.desired, desired.accounts.detached.len(), desired.accounts.obsolete.len()),
        (None, 1, 0)
    );
}

#[test]
fn a_going_object_wants_nothing_but_to_clean_up() {
    let mut observed = observed(json!({"rbac": {"workspaceNamespaces": ["dev"]}}));
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
    Arc::make_mut(&mut observed.object).metadata.deletion_timestamp = Some(time);
    let plan = decide(&observed);
    assert_eq!((plan.desired.is_none(), plan.finalizer, plan.workspaces.grants.len()), (true, false, 0));
}

#[test]
fn the_finalizer_of_others_is_left_alone() {
    let mut object = CoderControlPlane::new("coder", coder_k8s_api::CoderControlPlaneSpec::default());
    object.metadata.finalizers = Some(vec!["theirs".into()]);
    assert_eq!(finalizers(&object, finalizer::CONTROL_PLANE, false), None);
    let with = finalizers(&object, finalizer::CONTROL_PLANE, true).unwrap();
    assert_eq!(with, ["theirs", finalizer::CONTROL_PLANE]);
    object.metadata.finalizers = Some(with);
    assert_eq!(finalizers(&object, finalizer::CONTROL_PLANE, true), None);
    assert_eq!(finalizers(&object, finalizer::CONTROL_PLANE, false).unwrap(), ["theirs"]);
}

#[test]
fn ready_means_rolled_out_and_exposed() {
    let observed = observed(json!({"expose": {"gateway": {"host": "a.b", "parentRefs": [{"name": "gw"}]}}}));
    let outcome =
        |exposure| Outcome { deployment: Some(rolled_out(&observed)), exposure, ..Outcome::default() };
    let all = conditions(&observed, &outcome(Exposure::Route(Acceptance::Pending)));
    is(&all, condition_type::READY, "True", Reason::RolledOut);
    is(&all, condition_type::RECONCILING, "False", Reason::Reconciled);
    is(&all, condition_type::EXPOSED, "Unknown", Reason::Pending);
    is(&all, condition_type::DEPLOYMENT_READY, "True", Reason::RolledOut);
    is(&all, condition_type::WORKSPACE_ACCESS, "True", Reason::Granted);
    let all = conditions(&observed, &outcome(Exposure::GatewayApiMissing));
    is(&all, condition_type::READY, "False", Reason::GatewayApiMissing);
    is(&all, condition_type::RECONCILING, "True", Reason::GatewayApiMissing);
    let all = conditions(&observed, &outcome(Exposure::Route(Acceptance::Refused("no".into()))));
    is(&all, condition_type::EXPOSED, "False", Reason::RouteNotAccepted);
    is(&all, condition_type::READY, "True", Reason::RolledOut);
}

#[test]
fn no_pods_asked_for_is_a_settled_state() {
    let observed = observed(json!({"replicas": 0}));
    let all =
        conditions(&observed, &Outcome { deployment: Some(rolled_out(&observed)), ..Outcome::default() });
    is(&all, condition_type::READY, "True", Reason::ScaledToZero);
}

#[test]
fn a_license_that_is_asked_for_must_be_applied() {
    let observed = observed(json!({"licenseSecretRef": {"name": "license"}}));
    let all =
        conditions(&observed, &Outcome { deployment: Some(rolled_out(&observed)), ..Outcome::default() });
    is(&all, condition_type::READY, "False", Reason::Pending);
    is(&all, condition_type::LICENSE_APPLIED, "False", Reason::Pending);
}

#[test]
fn a_missing_consent_holds_nothing_up() {
    let mut observed = observed(json!({"rbac": {"workspaceNamespaces": ["dev"]}}));
    observed.consent.insert("dev".into(), Consent::Missing);
    let outcome = Outcome { deployment: Some(rolled_out(&observed)), ..Outcome::default() };
    let all = conditions(&observed, &outcome);
    is(&all, condition_type::WORKSPACE_ACCESS, "False", Reason::ConsentMissing);
    is(&all, condition_type::READY, "True", Reason::RolledOut);
    let status = status(&observed, &decide(&observed), &outcome, Timestamp::UNIX_EPOCH);
    let said =
        status.workload.conditions.iter().find(|c| c.type_ == condition_type::WORKSPACE_ACCESS).unwrap();
    assert!(
        said.message.contains("kubectl label namespace dev workspaces.coder.com/ns=allow"),
        "{}",
        said.message
    );
}

#[test]
fn the_number_of_pods_alone_is_not_worth_a_write_while_they_roll_out() {
    let mut observed = observed(json!({}));
    let with = |count: i32, ready: i32, generation: i64| {
        let mut made = build_deployment(&observed, &SourceContents::new(), false);
        made.metadata.generation = Some(1);
        made.status = serde_json::from_value(
            json!({"observedGeneration": generation, "replicas": count, "updatedReplicas": count, "readyReplicas": ready, "availableReplicas": ready}),
        )
        .unwrap();
        Outcome { deployment: Some(Arc::new(made)), ..Outcome::default() }
    };
    let (fresh, rolling, ready) = (with(0, 0, 0), with(1, 0, 1), with(1, 1, 1));
    let of = |observed: &Observed, outcome: &Outcome| {
        status(observed, &decide(observed), outcome, Timestamp::UNIX_EPOCH)
    };
    let first = of(&observed, &fresh);
    Arc::make_mut(&mut observed.object).status = Some(first.clone());
    assert_eq!(of(&observed, &rolling), first);
    assert_eq!(of(&observed, &ready).workload.replicas, Some(1));
}

#[test]
fn a_downgrade_is_warned_about() {
    let mut observed = observed(json!({"image": "ghcr.io/coder/coder:v2.30.0"}));
    let ran =
        coder_k8s_api::CoderControlPlaneStatus { version: Some("v2.31.0".into()), ..Default::default() };
    Arc::make_mut(&mut observed.object).status = Some(ran);
    is(
        &conditions(&observed, &Outcome::default()),
        condition_type::DOWNGRADE,
        "True",
        Reason::OlderThanDatabase,
    );
}

#[test]
fn a_pause_says_so_and_leaves_the_rest() {
    let mut observed = observed(json!({}));
    let before = status(&observed, &decide(&observed), &Outcome::default(), Timestamp::UNIX_EPOCH);
    let object = Arc::make_mut(&mut observed.object);
    object.status = Some(before.clone());
    object.metadata.annotations = Some([(annotation::PAUSED.to_owned(), "true".to_owned())].into());
    assert!(is_paused(object));
    let nothing = workspace_access::Plan::default();
    let during = paused(object, &nothing, &[], Timestamp::UNIX_EPOCH);
    assert_eq!(during.workload.conditions.len(), before.workload.conditions.len() + 1);
    assert_eq!(paused(object, &nothing, &[], Timestamp::UNIX_EPOCH), during);
    let lost = workspace_access::Plan {
        without_consent: vec![("dev".to_owned(), Consent::Missing, false)],
        ..workspace_access::Plan::default()
    };
    let without = paused(object, &lost, &[], Timestamp::UNIX_EPOCH).workload.conditions;
    let said = without.iter().find(|condition| condition.type_ == condition_type::WORKSPACE_ACCESS).unwrap();
    assert_eq!((&*said.status, &*said.reason), ("False", Reason::ConsentMissing.as_str()));
    object.status = Some(during);
    assert_eq!(
        status(&observed, &decide(&observed), &Outcome::default(), Timestamp::UNIX_EPOCH)
            .workload
            .conditions
            .len(),
        before.workload.conditions.len()
    );
}

#[test]
fn the_status_belongs_to_the_generation_that_was_seen() {
    let observed = observed(json!({"service": {"port": 8080}}));
    let status = status(
        &observed,
        &decide(&observed),
        &Outcome { done: ActResult::default(), ..Outcome::default() },
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!(status.workload.observed_generation, Some(4));
    assert!(status.workload.conditions.iter().all(|c| c.observed_generation == Some(4)));
    assert_eq!(status.workload.phase.as_deref(), Some("Pending"));
    assert_eq!(status.url.as_deref(), Some("http://coder.ns.svc.cluster.local:8080"));
}
