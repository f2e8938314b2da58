//! The applier on the real API server.

use std::{collections::BTreeMap, time::Duration};

use coder_k8s_api::{
    CoderControlPlane, CoderControlPlaneSpec, Reason, crds,
    names::{FIELD_MANAGER, annotation, label},
};
use coder_k8s_engine::{
    apply::{Applied, Applier, Owner, OwnerMark},
    client::{self, ClientSettings},
    metrics::Metrics,
};
use coder_k8s_testbed::{AuditEvent, Shared, eventually, shared_with};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ServiceAccount};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// A namespace with an owner in it, and an applier whose requests have a user agent of their own in the audit log.
struct Scene {
    shared: &'static Shared,
    admin: Client,
    namespace: String,
    agent: String,
    owner: Owner,
    applier: Applier,
}

impl Scene {
    async fn new(name: &str) -> Self {
        let shared = shared_with(crds).await;
        let namespace = shared.namespace(name).await.name().to_owned();
        let admin = shared.cluster.client();
        let agent = format!("applier-test/{namespace}");
        let settings = ClientSettings { user_agent: agent.clone(), ..ClientSettings::new(Metrics::new()) };
        let client = client::build(shared.cluster.config(), settings).unwrap();
        let object = CoderControlPlane::new("coder", CoderControlPlaneSpec::default());
        let planes: Api<CoderControlPlane> = Api::namespaced(admin.clone(), &namespace);
        let object = planes.create(&PostParams::default(), &object).await.unwrap();
        let owner = Owner {
            namespace: namespace.clone(),
            reference: object.controller_owner_ref(&()).unwrap(),
            labels: [(label::MANAGED_BY.to_owned(), label::MANAGER.to_owned())].into(),
            mark: OwnerMark::ControllerReference,
            parts: Vec::new(),
        };
        Self { shared, admin, namespace, agent, owner, applier: Applier::new(client) }
    }

    fn accounts(&self) -> Api<ServiceAccount> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    async fn apply(
        &self,
        desired: ServiceAccount,
        cached: Option<&ServiceAccount>,
    ) -> Applied<ServiceAccount> {
        self.applier.apply(&self.owner, desired, cached).await.unwrap()
    }

    /// The requests of the applier so far, once at least `least` have reached the audit log.
    async fn requests(&self, least: usize) -> Vec<AuditEvent> {
        eventually(Duration::from_secs(10), || async {
            let all = self.shared.cluster.audit().map_err(|error| error.to_string())?;
            let ours: Vec<_> = all.into_iter().filter(|event| event.user_agent == self.agent).collect();
            if ours.len() >= least { Ok(ours) } else { Err(format!("{} requests", ours.len())) }
        })
        .await
        .unwrap()
    }
}

fn account(annotations: &[(&str, &str)]) -> ServiceAccount {
    let annotations: BTreeMap<_, _> =
        annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ServiceAccount {
        metadata: ObjectMeta {
            name: Some("robot".into()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    }
}

fn written<K>(applied: Applied<K>) -> K {
    match applied {
        Applied::Written(object) => object,
        Applied::Unchanged(_) | Applied::Leftover => panic!("nothing was written"),
        Applied::Foreign(foreign) => panic!("{foreign:?}"),
    }
}

#[tokio::test]
async fn a_child_is_created_with_one_request_and_no_read() {
    let scene = Scene::new("applier-create").await;
    let made = written(scene.apply(account(&[("a", "1")]), None).await);
    assert_eq!(made.owner_references(), std::slice::from_ref(&scene.owner.reference));
    assert_eq!(made.labels()[label::MANAGED_BY], label::MANAGER);
    assert_eq!(made.annotations()["a"], "1");
    let requests = scene.requests(1).await;
    let verbs: Vec<_> = requests.iter().map(|r| (r.verb.as_str(), r.code)).collect();
    assert_eq!(verbs, [("create", 201)]);
}

#[tokio::test]
async fn a_changed_value_costs_one_patch_and_no_read() {
    let scene = Scene::new("applier-patch").await;
    let made = written(scene.apply(account(&[("a", "1"), ("b", "1")]), None).await);
    let changed = written(scene.apply(account(&[("a", "2"), ("b", "1")]), Some(&made)).await);
    assert_eq!((&*changed.annotations()["a"], &*changed.annotations()["b"]), ("2", "1"));
    let verbs: Vec<_> = scene.requests(2).await.iter().map(|r| (r.verb.clone(), r.code)).collect();
    assert_eq!(verbs, [("create".to_owned(), 201), ("patch".to_owned(), 200)]);
    assert!(matches!(
        scene.apply(account(&[("a", "2"), ("b", "1")]), Some(&changed)).await,
        Applied::Unchanged(_)
    ));
    // A field that goes is owned, whether it was created, patched or applied.
    let fewer = written(scene.apply(account(&[("a", "2")]), Some(&changed)).await);
    assert_eq!(
        (fewer.annotations().get("a").map(String::as_str), fewer.annotations().get("b")),
        (Some("2"), None)
    );
    let once_more = written(scene.apply(account(&[("a", "3")]), Some(&fewer)).await);
    let none = written(scene.apply(account(&[]), Some(&once_more)).await);
    assert_eq!(none.annotations().get("a"), None);
}

/// The cached child, by which the patch is made, may be older than the live one.
#[tokio::test]
async fn what_somebody_changes_just_before_a_patch_is_corrected() {
    let scene = Scene::new("applier-overtaken").await;
    let made = written(scene.apply(account(&[("a", "1"), ("b", "1")]), None).await);
    let theirs = json!({"metadata": {"annotations": {"b": "theirs"}}});
    scene.accounts().patch("robot", &PatchParams::default(), &Patch::Merge(&theirs)).await.unwrap();
    let changed = written(scene.apply(account(&[("a", "2"), ("b", "1")]), Some(&made)).await);
    assert_eq!((&*changed.annotations()["a"], &*changed.annotations()["b"]), ("2", "1"));
    assert!(matches!(
        scene.apply(account(&[("a", "2"), ("b", "1")]), Some(&changed)).await,
        Applied::Unchanged(_)
    ));
}

#[tokio::test]
async fn a_patch_is_refused_for_a_child_that_was_deleted() {
    let scene = Scene::new("applier-gone").await;
    let made = written(scene.apply(account(&[("a", "1")]), None).await);
    scene.accounts().delete("robot", &DeleteParams::default()).await.unwrap();
    let refused = scene.applier.apply(&scene.owner, account(&[("a", "2")]), Some(&made)).await;
    let failure = coder_k8s_engine::client::blocker("write ServiceAccount robot", &refused.unwrap_err());
    assert_eq!(failure.reason, Reason::Outdated);
    assert!(scene.accounts().get_opt("robot").await.unwrap().is_none());
}

#[tokio::test]
async fn what_another_operator_added_goes_also_when_the_child_is_to_change() {
    let scene = Scene::new("applier-return").await;
    let made = written(scene.apply(account(&[("a", "1")]), None).await);
    // The Go operator, which has the same field manager, ran meanwhile.
    let mut theirs = made.clone();
    theirs.annotations_mut().insert("theirs".into(), "1".into());
    let by_it = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    let theirs = scene.accounts().replace("robot", &by_it, &theirs).await.unwrap();
    // A new applier, as after a restart.
    let restarted = Applier::new(scene.admin.clone());
    let back = written(restarted.apply(&scene.owner, account(&[("a", "2")]), Some(&theirs)).await.unwrap());
    assert_eq!(
        (back.annotations().get("a").map(String::as_str), back.annotations().get("theirs")),
        (Some("2"), None)
    );
}

#[tokio::test]
async fn nothing_is_sent_when_nothing_changed() {
    let scene = Scene::new("applier-rest").await;
    written(scene.apply(account(&[("a", "1")]), None).await);
    let live = scene.accounts().get("robot").await.unwrap();
    // A new applier, as after a restart.
    let restarted =
        Scene { applier: Applier::new(scene.admin.clone()), ..Scene::new("applier-rest-2").await };
    for _ in 0..3 {
        assert!(matches!(scene.apply(account(&[("a", "1")]), Some(&live)).await, Applied::Unchanged(_)));
        let again = restarted.applier.apply(&scene.owner, account(&[("a", "1")]), Some(&live)).await.unwrap();
        assert!(matches!(again, Applied::Unchanged(_)));
    }
    assert_eq!(scene.accounts().get("robot").await.unwrap().resource_version(), live.resource_version());
    assert_eq!(scene.requests(1).await.len(), 1);
}

#[tokio::test]
async fn a_watch_that_delivers_what_was_written_tells_nothing_new() {
    let scene = Scene::new("echo").await;
    let first = written(scene.apply(account(&[("a", "1")]), None).await);
    assert!(scene.applier.delivered(&first));
    assert!(!scene.applier.delivered(&first), "only the first time, because a list may follow");
    let second = written(scene.apply(account(&[("a", "2")]), Some(&first)).await);
    assert!(!scene.applier.delivered(&first), "it is older than what was written");
    let by_others = Patch::Merge(json!({"metadata": {"annotations": {"b": "1"}}}));
    let patched =
        scene.accounts().patch(&second.name_any(), &PatchParams::default(), &by_others).await.unwrap();
    assert!(!scene.applier.delivered(&patched), "somebody else has changed it since");
    assert!(!scene.applier.delivered(&second), "nothing is awaited any more");
}

#[tokio::test]
async fn what_an_earlier_release_wrote_is_not_written_again() {
    let scene = Scene::new("applier-earlier").await;
    let made = written(scene.apply(account(&[("a", "1"), ("b", "1")]), None).await);
    // It recorded the hash alone.
    let (hash, _shape) = made.annotations()[annotation::APPLIED_HASH].split_once('.').unwrap();
    let patch = json!({"metadata": {"annotations": {annotation::APPLIED_HASH: hash}}});
    let by_us = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let earlier = scene.accounts().patch("robot", &by_us, &Patch::Merge(&patch)).await.unwrap();
    let applier = Applier::new(scene.admin.clone());
    let same = applier.apply(&scene.owner, account(&[("a", "1"), ("b", "1")]), Some(&earlier)).await.unwrap();
    assert!(matches!(same, Applied::Unchanged(_)));
    // What changes or goes does so.
    let next = written(applier.apply(&scene.owner, account(&[("a", "2")]), Some(&earlier)).await.unwrap());
    assert_eq!(
        (next.annotations().get("a").map(String::as_str), next.annotations().get("b")),
        (Some("2"), None)
    );
}

#[tokio::test]
async fn a_foreign_object_of_the_same_name_is_reported_and_untouched() {
    let scene = Scene::new("applier-foreign").await;
    let theirs =
        scene.accounts().create(&PostParams::default(), &account(&[("theirs", "yes")])).await.unwrap();
    let Applied::Foreign(foreign) = scene.apply(account(&[]), None).await else { panic!("it was adopted") };
    assert_eq!((foreign.kind.as_str(), foreign.name.as_str()), ("ServiceAccount", "robot"));
    assert_eq!(foreign.hand_over, "coder.com/adopt-by=CoderControlPlane/coder");
    assert_eq!(scene.accounts().get("robot").await.unwrap(), theirs);
    // Also when the cache shows it.
    assert!(matches!(scene.apply(account(&[]), Some(&theirs)).await, Applied::Foreign(_)));
    let writes: Vec<_> =
        scene.requests(2).await.into_iter().filter(|r| r.verb != "get" && r.code < 300).collect();
    assert!(writes.is_empty(), "{writes:?}");
}

#[tokio::test]
async fn a_foreign_object_that_is_handed_over_is_taken() {
    let scene = Scene::new("applier-adopt").await;
    let theirs = account(&[(annotation::ADOPT_BY, "CoderControlPlane/coder"), ("theirs", "yes")]);
    scene.accounts().create(&PostParams::default(), &theirs).await.unwrap();
    let taken = written(scene.apply(account(&[("a", "1")]), None).await);
    assert_eq!(taken.owner_references(), std::slice::from_ref(&scene.owner.reference));
    assert_eq!(taken.annotations()["theirs"], "yes", "what others wrote stays");
}

#[tokio::test]
async fn labels_and_annotations_of_others_survive_and_cost_nothing() {
    let scene = Scene::new("applier-share").await;
    written(scene.apply(account(&[("a", "1")]), None).await);
    let patch = json!({"metadata": {"labels": {"team": "x"}, "annotations": {"cloud": "role"}}});
    let live = scene.accounts().patch("robot", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    assert!(matches!(scene.apply(account(&[("a", "1")]), Some(&live)).await, Applied::Unchanged(_)));
    let changed = written(scene.apply(account(&[("a", "2")]), Some(&live)).await);
    assert_eq!(
        (&*changed.labels()["team"], &*changed.annotations()["cloud"], &*changed.annotations()["a"]),
        ("x", "role", "2")
    );
}

#[tokio::test]
async fn a_field_that_is_no_longer_asked_for_goes_and_a_changed_one_comes_back() {
    let scene = Scene::new("applier-drift").await;
    let made = written(scene.apply(account(&[("a", "1"), ("b", "2")]), None).await);
    let fewer = written(scene.apply(account(&[("a", "1")]), Some(&made)).await);
    assert!(!fewer.annotations().contains_key("b"));
    let drift = json!({"metadata": {"annotations": {"a": "tampered"}}});
    let drifted =
        scene.accounts().patch("robot", &PatchParams::default(), &Patch::Merge(&drift)).await.unwrap();
    let mended = written(scene.apply(account(&[("a", "1")]), Some(&drifted)).await);
    assert_eq!(mended.annotations()["a"], "1");
}

#[tokio::test]
async fn fields_written_by_plain_update_are_taken_over_and_dropped() {
    let scene = Scene::new("applier-takeover").await;
    let mut old = account(&[("kept", "1"), ("dropped", "1")]);
    old.metadata.owner_references = Some(vec![scene.owner.reference.clone()]);
    let by_us = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    let old = scene.accounts().create(&by_us, &old).await.unwrap();
    let theirs = json!({"metadata": {"annotations": {"theirs": "yes"}}});
    scene.accounts().patch("robot", &PatchParams::default(), &Patch::Merge(&theirs)).await.unwrap();

    let taken = written(scene.apply(account(&[("kept", "1")]), None).await);
    assert_eq!(taken.uid(), old.uid(), "nothing is made anew");
    assert!(!taken.annotations().contains_key("dropped"), "{:?}", taken.annotations());
    assert_eq!((&*taken.annotations()["kept"], &*taken.annotations()["theirs"]), ("1", "yes"));
    let ours = |operation: &str| {
        let mine = |e: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
            e.manager.as_deref() == Some(FIELD_MANAGER) && e.operation.as_deref() == Some(operation)
        };
        taken.managed_fields().iter().filter(mine).count()
    };
    assert_eq!((ours("Apply"), ours("Update")), (1, 0));

    // The other operator comes back for a while: it updates, and adds a field that we do not ask for.
    let mut back = taken.clone();
    back.annotations_mut().insert("theirs-again".into(), "1".into());
    back.annotations_mut().insert("kept".into(), "other".into());
    let back = scene.accounts().replace("robot", &by_us, &back).await.unwrap();
    let again = written(scene.apply(account(&[("kept", "1")]), Some(&back)).await);
    assert!(!again.annotations().contains_key("theirs-again"), "{:?}", again.annotations());
    assert_eq!(again.annotations()["kept"], "1");
}

#[tokio::test]
async fn an_outdated_view_does_not_lead_to_an_adoption() {
    let scene = Scene::new("applier-stale").await;
    let ours = written(scene.apply(account(&[("a", "1")]), None).await);
    scene.accounts().delete("robot", &DeleteParams::default()).await.unwrap();
    let theirs =
        scene.accounts().create(&PostParams::default(), &account(&[("theirs", "yes")])).await.unwrap();
    let refused = scene.applier.apply(&scene.owner, account(&[("a", "2")]), Some(&ours)).await;
    let failure = coder_k8s_engine::client::blocker("write ServiceAccount robot", &refused.unwrap_err());
    assert_eq!(failure.reason, Reason::Outdated);
    assert_eq!(scene.accounts().get("robot").await.unwrap(), theirs);
}

#[tokio::test]
async fn an_injected_sidecar_is_neither_lost_nor_fought_over() {
    let scene = Scene::new("applier-sidecar").await;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "coder"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "coder"}},
            "template": {
                "metadata": {"labels": {"app": "coder"}},
                "spec": {"containers": [{
                    "name": "coder", "image": "coder:1",
                    "env": [{"name": "A", "value": "1"}],
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}, "requests": {"cpu": "0.5"}},
                }]},
            },
        },
    }))
    .unwrap();
    written(scene.applier.apply(&scene.owner, deployment.clone(), None).await.unwrap());
    let api: Api<Deployment> = Api::namespaced(scene.admin.clone(), &scene.namespace);
    let inject = json!({"spec": {"template": {
        "metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}},
        "spec": {"containers": [{"name": "mesh", "image": "mesh:1"}], "volumes": [{"name": "mesh", "emptyDir": {}}]},
    }}});
    let live = api.patch("coder", &PatchParams::default(), &Patch::Strategic(&inject)).await.unwrap();
    assert!(matches!(
        scene.applier.apply(&scene.owner, deployment.clone(), Some(&live)).await.unwrap(),
        Applied::Unchanged(_)
    ));

    let mut next = deployment;
    next.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("coder:2".into());
    let after = written(scene.applier.apply(&scene.owner, next, Some(&live)).await.unwrap());
    let pod = after.spec.unwrap().template;
    let mut images: Vec<_> = pod.spec.unwrap().containers.into_iter().filter_map(|c| c.image).collect();
    images.sort();
    assert_eq!(images, ["coder:2", "mesh:1"]);
    assert!(pod.metadata.unwrap().annotations.unwrap().contains_key("kubectl.kubernetes.io/restartedAt"));
}

#[tokio::test]
async fn only_our_own_incarnation_is_removed() {
    let scene = Scene::new("applier-remove").await;
    let ours = written(scene.apply(account(&[]), None).await);
    let mut theirs = ours.clone();
    theirs.metadata.owner_references = None;
    assert!(!scene.applier.remove(&scene.owner, &theirs).await.unwrap());
    assert!(scene.applier.remove(&scene.owner, &ours).await.unwrap());
    assert!(scene.accounts().get_opt("robot").await.unwrap().is_none());
    assert!(!scene.applier.remove(&scene.owner, &ours).await.unwrap(), "gone is gone");
}

#[tokio::test]
async fn a_child_of_an_earlier_object_of_the_same_name_is_waited_for() {
    let scene = Scene::new("applier-leftover").await;
    written(scene.apply(account(&[("a", "1")]), None).await);
    let mut next = scene.owner.clone();
    next.reference.uid = "another-incarnation".into();
    let seen = scene.applier.apply(&next, account(&[("a", "1")]), None).await.unwrap();
    assert!(matches!(seen, Applied::Leftover), "neither adopted nor a conflict: {seen:?}");
}
