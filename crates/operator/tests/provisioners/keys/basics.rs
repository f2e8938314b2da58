//! A pool from nothing to ready, and what it is made of.

use std::time::Duration;

use coder_k8s_api::CoderProvisioner;
use coder_k8s_testbed::{Behaviour, Rule, codersim::Mode};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Secret, ServiceAccount},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

use coder_k8s_scenes::{
    daemons::DaemonScene,
    pool::{IMAGE, PoolScene, SECRET, condition, is, message, object, plane_spec, status, tags},
    scene::Kind,
};

use crate::{DAEMONS, KEYS};

fn belongs<K: Kind>(child: &K, pool: &CoderProvisioner) {
    let [owner] = child.owner_references() else { panic!("{:?}", child.owner_references()) };
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("CoderProvisioner", pool.uid().as_ref()));
    assert_eq!(owner.controller, Some(true));
    let labels = child.labels();
    assert_eq!(labels["app.kubernetes.io/name"], "coder-provisioner");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "coder-k8s");
    assert!(labels.contains_key("app.kubernetes.io/instance"));
}

#[tokio::test]
async fn a_pool_gets_a_key_its_secret_its_account_and_its_pods() {
    let pool =
        PoolScene::ready(&KEYS, "basics", json!({"tags": {"region": "eu", "scope": "organization"}})).await;
    let object = pool.until_settled().await;
    let key = pool.only_key();
    assert_eq!(
        (key.name.as_str(), &key.tags),
        ("pool", &tags(&[("region", "eu"), ("scope", "organization")]))
    );
    let secret = pool.assert_stores(SECRET, "key", &key).await;
    belongs(&secret, &object);
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    assert_eq!(secret.data.as_ref().unwrap().len(), 1);
    assert_eq!(secret.annotations()["coder.com/provisioner-key-deployment-id"], pool.sim.deployment_id());
    assert_eq!(secret.annotations()["coder.com/provisioner-key-tags-hash"].len(), 8);

    let account: ServiceAccount = pool.scene.until_exists("pool-provisioner").await;
    belongs(&account, &object);
    let role: Role = pool.scene.until_exists("provisioner-pool").await;
    belongs(&role, &object);
    let binding: RoleBinding = pool.scene.until_exists("provisioner-pool").await;
    belongs(&binding, &object);
    assert_eq!((&*binding.role_ref.kind, &*binding.role_ref.name), ("Role", "provisioner-pool"));
    let subject = &binding.subjects.unwrap()[0];
    assert_eq!(
        (&*subject.name, subject.namespace.as_ref()),
        ("pool-provisioner", Some(&pool.scene.namespace))
    );

    let deployment = pool.deployment().await;
    belongs(&deployment, &object);
    let spec = deployment.spec.unwrap();
    assert_eq!(spec.replicas, Some(1));
    let labels = spec.template.metadata.as_ref().unwrap().labels.clone().unwrap();
    assert_eq!(spec.selector.match_labels, Some(labels));
    assert_eq!(pool.checksum().await.len(), 64);
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.termination_grace_period_seconds, Some(600));
    assert_eq!(pod.service_account_name.as_deref(), Some("pool-provisioner"));
    let [container] = &pod.containers[..] else { panic!("{:?}", pod.containers) };
    assert_eq!((&*container.name, container.image.as_deref()), ("provisioner", Some(IMAGE)));
    assert_eq!(container.command.as_deref().unwrap(), ["coder"]);
    assert_eq!(container.args.as_deref().unwrap(), ["provisioner", "start"]);
    let env = container.env.clone().unwrap();
    let names: Vec<_> = env.iter().map(|entry| entry.name.as_str()).collect();
    let expected =
        ["CODER_URL", "CODER_PROVISIONER_DAEMON_KEY", "POD_NAME", "POD_UID", "CODER_PROVISIONER_DAEMON_NAME"];
    assert_eq!(names, expected, "and no organization: with a key the daemon refuses it");
    let url = format!("http://coder.{}.svc.cluster.local:80", pool.scene.namespace);
    assert_eq!(env[0].value.as_ref(), Some(&url));
    let from = env[1].value_from.as_ref().unwrap().secret_key_ref.as_ref().unwrap();
    assert_eq!((&*from.name, &*from.key, from.optional), (SECRET, "key", None));
    assert_eq!(env[4].value.as_deref(), Some("$(POD_NAME)"));

    let said = status(&object);
    assert_eq!(object.finalizers(), ["coder.com/provisioner-key-cleanup"]);
    assert_eq!(object.metadata.generation, Some(1), "the spec is the user's alone");
    assert_eq!(said.workload.observed_generation, object.metadata.generation);
    assert_eq!(said.workload.phase.as_deref(), Some("Ready"));
    assert_eq!((said.workload.replicas, said.workload.ready_replicas), (Some(1), Some(1)));
    assert!(said.workload.selector.unwrap().contains("app.kubernetes.io/instance=pool"));
    assert_eq!(said.workload.image.as_deref(), Some(IMAGE));
    assert_eq!(said.provisioner_key_id, Some(key.id));
    assert_eq!(said.provisioner_key_name.as_deref(), Some("pool"));
    assert_eq!(said.organization_id, Some(pool.sim.default_organization()));
    assert_eq!(said.organization_name.as_deref(), Some("default"));
    assert_eq!(said.tags_hash.map(|hash| hash.len()), Some(8));
    assert_eq!(said.control_plane_ref_name.as_deref(), Some("coder"));
    assert_eq!(said.control_plane_url, Some(url));
    assert_eq!(said.deployment_id, Some(pool.sim.deployment_id()));
    let secret = said.secret_ref.unwrap();
    assert_eq!((&*secret.name, secret.key.as_deref()), (SECRET, Some("key")));
    let source = said.credentials_source.unwrap();
    assert_eq!((source.type_.as_deref(), &*source.secret_ref.unwrap().name), (Some("Operator"), "token"));
    for (type_, status, reason) in [
        ("Ready", "True", "RolledOut"),
        ("Reconciling", "False", "Reconciled"),
        ("Stalled", "False", "Reconciled"),
        ("ControlPlaneReady", "True", "ControlPlaneAvailable"),
        ("OperatorAccessReady", "True", "OperatorAccessReady"),
        ("ExternalProvisionersEntitled", "True", "Entitled"),
        ("ProvisionerKeyReady", "True", "ProvisionerKeyReady"),
        ("ProvisionerKeySecretReady", "True", "SecretReady"),
        ("DeploymentReady", "True", "MinimumReplicasReady"),
    ] {
        assert!(is(&object, type_, status, Some(reason)), "{type_}: {:?}", condition(&object, type_));
    }
    assert!(condition(&object, "BootstrapSecretReady").is_none());
    assert_eq!(pool.made(), 1, "one key was asked for");
}

#[tokio::test]
async fn every_choice_of_the_user_is_followed() {
    let pool = PoolScene::plane(&KEYS, "basics", Mode::Licensed).await;
    let acme = pool.sim.add_organization("acme");
    pool.make(json!({
        "organizationName": "acme",
        "key": {"name": "Team-Key", "secretName": "daemons", "secretKey": "daemon-key"},
        "replicas": 2, "terminationGracePeriodSeconds": 120, "tags": {"region": "us"},
        "image": "example.test/own:1", "extraArgs": ["--verbose"],
        "extraEnv": [{"name": "A", "value": "1"}, {"name": "CODER_URL", "value": "http://other"}],
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"name": "daemons"},
        "podDisruptionBudget": {"maxUnavailable": 1},
        "prometheus": {"enabled": true, "port": 2112},
    }))
    .await;
    let object = pool.until_ready().await;
    let key = pool.only_key();
    assert_eq!((key.name.as_str(), &key.organization), ("team-key", &acme), "coderd lower-cases");
    pool.assert_stores("daemons", "daemon-key", &key).await;
    assert_eq!(status(&object).organization_name.as_deref(), Some("acme"));
    assert_eq!(status(&object).provisioner_key_name.as_deref(), Some("team-key"));
    let spec = pool.deployment().await.spec.unwrap();
    assert_eq!(spec.replicas, Some(2));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.termination_grace_period_seconds, Some(120));
    assert_eq!(pod.service_account_name.as_deref(), Some("daemons"));
    assert_eq!(pod.image_pull_secrets.unwrap()[0].name, "pull");
    let container = &pod.containers[0];
    assert_eq!(container.image.as_deref(), Some("example.test/own:1"));
    assert_eq!(container.args.as_deref().unwrap(), ["provisioner", "start", "--verbose"]);
    let env = container.env.clone().unwrap();
    assert_eq!((&*env[0].name, env[0].value.as_deref()), ("CODER_URL", Some("http://other")), "in its place");
    assert_eq!(env.last().unwrap().name, "A");
    let value =
        |name: &str| env.iter().find(|entry| entry.name == name).and_then(|entry| entry.value.clone());
    assert_eq!(value("CODER_PROMETHEUS_ENABLE").as_deref(), Some("true"));
    assert_eq!(value("CODER_PROMETHEUS_ADDRESS").as_deref(), Some("0.0.0.0:2112"));
    assert_eq!(container.ports.as_ref().unwrap()[0].container_port, 2112);
    let annotations = spec.template.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["prometheus.io/port"], "2112");
    let budget: PodDisruptionBudget = pool.scene.until_exists("provisioner-pool").await;
    assert!(budget.spec.unwrap().max_unavailable.is_some());
    assert!(pool.scene.absent::<ServiceAccount>("pool-provisioner").await);

    // The budget goes when nobody asks for it any more. An address of the user's own keeps no old key.
    pool.edit(json!({"podDisruptionBudget": null, "tags": {"region": "eu"}})).await;
    let key = pool.assert_consistent(&[("region", "eu")]).await;
    pool.until_holds(&[&key.name]).await;
    pool.scene.until_gone::<PodDisruptionBudget>("provisioner-pool").await;
}

#[tokio::test]
async fn long_and_dotted_names_fit_everywhere() {
    let pool = PoolScene::plane(&KEYS, "basics", Mode::Licensed).await;
    let (long, dotted) = ("a".repeat(180), "my.pool");
    pool.make_named(&long, json!({})).await;
    pool.make_named(dotted, json!({})).await;
    let object = pool.until_ready_named(&long).await;
    let name = format!("{}-b11ccea9", "a".repeat(55));
    assert_eq!(pool.key(&name).name.len(), 64);
    assert_eq!(status(&object).provisioner_key_name, Some(name));
    let short = "a".repeat(42);
    let deployment: Deployment = pool.scene.until_exists(&format!("provisioner-{short}-b11ccea9")).await;
    assert_eq!(deployment.labels()["app.kubernetes.io/instance"], format!("{}-b11ccea9", "a".repeat(54)));
    pool.scene.until_exists::<ServiceAccount>(&format!("{short}-b11ccea9-provisioner")).await;
    pool.scene.until_exists::<Secret>(&format!("{long}-provisioner-key")).await;

    pool.until_ready_named(dotted).await;
    let deployment: Deployment = pool.scene.until_exists("provisioner-my.pool").await;
    let env = deployment.spec.unwrap().template.spec.unwrap().containers.remove(0).env.unwrap();
    assert_eq!(env[4].value.as_deref(), Some("my-pool-$(POD_UID)"), "one name for each daemon");
    assert_eq!(pool.key("my.pool").name, "my.pool");
}

#[tokio::test]
async fn daemons_follow_the_image_that_the_control_plane_has_rolled_out() {
    const NEXT: &str = "example.test/coder:next";
    let pool = PoolScene::ready(&KEYS, "basics", json!({})).await;
    let rule = || Rule::namespace(&pool.scene.namespace).image(NEXT);
    pool.scene.node().behave(rule(), Behaviour::Unready);
    pool.scene.spec("coder", json!({"image": NEXT})).await;
    let asks = |deployment: &Deployment| {
        let pod = deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        pod.containers[0].image.as_deref() == Some(NEXT)
    };
    pool.scene.until("coder", asks).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!asks(&pool.deployment().await), "coderd refuses daemons that are newer");
    pool.scene.node().behave(rule(), Behaviour::Ready);
    pool.scene.until("provisioner-pool", asks).await;
    pool.until_ready().await;
    assert_eq!(pool.made(), 1, "an image is no reason for a new key");
}

#[tokio::test]
async fn a_pool_can_be_scaled_and_paused() {
    let pool = PoolScene::ready(&KEYS, "basics", json!({})).await;
    let api = pool.scene.api::<CoderProvisioner>();
    let scale = api.get_scale("pool").await.unwrap();
    assert_eq!(scale.status.unwrap().replicas, 1);
    let patch = kube::api::Patch::Merge(json!({"spec": {"replicas": 3}}));
    api.patch_scale("pool", &kube::api::PatchParams::default(), &patch).await.unwrap();
    let object = pool.until(|pool| status(pool).workload.ready_replicas == Some(3)).await;
    assert_eq!(object.spec.replicas, 3);
    pool.until_ready().await;
    pool.edit(json!({"replicas": 0})).await;
    // Nothing more is asked for, once the last one is gone.
    let object = pool
        .until(|pool| {
            is(pool, "DeploymentReady", "False", Some("NoReplicasReady")) && is(pool, "Ready", "True", None)
        })
        .await;
    assert_eq!(status(&object).workload.phase.as_deref(), Some("Pending"));

    let pause = |value: Value| json!({"metadata": {"annotations": {"coder.com/paused": value}}});
    pool.scene.edit::<CoderProvisioner>("pool", pause(json!("true"))).await;
    pool.until(|pool| condition(pool, "Paused").is_some_and(|said| said.status == "True")).await;
    pool.edit(json!({"replicas": 1, "tags": {"a": "b"}})).await;
    let before = pool.scene.requests_in(&pool.scene.namespace).len();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = pool.scene.requests_in(&pool.scene.namespace);
    let written = coder_k8s_scenes::writes(&all[before..]);
    // Statuses, and the event of the pause, which comes after its status.
    let is_about_itself = |resource: &str| resource.starts_with("coder") || resource == "events";
    assert!(written.iter().all(|event| is_about_itself(&event.resource)), "{written:?}");
    assert_eq!(pool.made(), 1);
    assert_eq!(pool.deployment().await.spec.unwrap().replicas, Some(0));
    pool.scene.edit::<CoderProvisioner>("pool", pause(Value::Null)).await;
    pool.assert_consistent(&[("a", "b")]).await;
    assert!(condition(&pool.now().await, "Paused").is_none());
}

#[tokio::test]
async fn a_pool_at_rest_asks_and_writes_nothing_but_its_verification() {
    let pool = PoolScene::ready(&KEYS, "basics", json!({})).await;
    pool.until_settled().await;
    pool.until_verified().await;
    let (mark, before) = (pool.sim.mark(), pool.scene.requests_in(&pool.scene.namespace).len());
    pool.until_verified().await;
    let calls = pool.sim.since(mark);
    let about_keys: Vec<_> = calls.iter().filter(|entry| entry.path.contains("provisionerkeys")).collect();
    assert!(about_keys.len() <= 2, "the material, at its interval: {about_keys:?}");
    assert!(
        about_keys.iter().all(|entry| entry.path.starts_with("/api/v2/provisionerkeys/")),
        "{about_keys:?}"
    );
    let all = pool.scene.requests_in(&pool.scene.namespace);
    let written = coder_k8s_scenes::writes(&all[before..]);
    assert!(written.iter().all(|event| event.resource == "codercontrolplanes"), "{written:?}");
}

#[tokio::test]
async fn credentials_of_its_own_need_no_operator_access() {
    let pool = PoolScene::bare(&KEYS, "basics", Mode::Licensed).await;
    let spec = json!({"image": coder_k8s_scenes::pool::IMAGE, "operatorAccess": {"disabled": true}});
    pool.scene.plane("coder", spec).await;
    pool.make(json!({"bootstrap": {"credentialsSecretRef": {"name": "mine"}}})).await;
    let object = pool.until_condition("BootstrapSecretReady", "False", "BootstrapSecretUnavailable").await;
    assert!(
        message(&object, "BootstrapSecretReady").contains("Secret mine does not exist, or its key token")
    );
    assert!(condition(&object, "OperatorAccessReady").is_none());
    let token = pool.sim.token_with_roles("builder", &["owner"]);
    pool.secret("mine", "token", &token).await;
    let object = pool.until_ready().await;
    assert!(is(&object, "BootstrapSecretReady", "True", Some("BootstrapSecretAvailable")));
    assert!(
        is(&object, "ExternalProvisionersEntitled", "True", Some("Entitled")),
        "asked by the pool itself"
    );
    let source = status(&object).credentials_source.unwrap();
    let secret = source.secret_ref.unwrap();
    assert_eq!(
        (source.type_.as_deref(), &*secret.name, secret.key.as_deref()),
        (Some("Bootstrap"), "mine", Some("token"))
    );
    assert_eq!(pool.only_key().name, "pool");
    pool.assert_consistent(&[]).await;
}

#[tokio::test]
async fn what_is_missing_is_named_and_waited_for() {
    let pool = PoolScene::bare(&KEYS, "basics", Mode::Licensed).await;
    pool.make(json!({})).await;
    let object = pool.until_condition("ControlPlaneReady", "False", "ControlPlaneUnavailable").await;
    assert!(message(&object, "ControlPlaneReady").contains("CoderControlPlane coder does not exist"));
    assert!(is(&object, "OperatorAccessReady", "False", Some("OperatorAccessNotReady")));
    assert!(message(&object, "OperatorAccessReady").contains("CoderControlPlane coder does not exist"));
    assert!(object.finalizers().is_empty(), "there is nothing outside yet");
    assert!(is(&object, "Ready", "False", None) && is(&object, "Reconciling", "True", None));
    assert_eq!(status(&object).workload.phase.as_deref(), Some("Pending"));

    // A control plane without a token, then with a wrong one, then all is well.
    pool.scene.plane("coder", plane_spec(json!({}))).await;
    let object = pool.until_condition("ControlPlaneReady", "True", "ControlPlaneAvailable").await;
    assert!(is(&object, "OperatorAccessReady", "False", Some("OperatorAccessNotReady")));
    pool.secret_text("token", "token", "wrong-token1234567890123456789012").await;
    pool.scene.until_condition("coder", "OperatorAccessReady", "False", Some("Unauthenticated")).await;
    assert_eq!(pool.sim.keys().len(), 0);
    pool.secret("token", "token", &pool.sim.owner_token()).await;
    pool.until_ready().await;
    pool.assert_consistent(&[]).await;
}

#[tokio::test]
async fn a_token_that_disappears_stops_nothing_that_runs() {
    let pool = PoolScene::ready(&KEYS, "basics", json!({})).await;
    pool.until_settled().await;
    pool.scene.delete::<Secret>("token").await;
    pool.until(|pool| condition(pool, "OperatorAccessReady").is_some_and(|said| said.status == "False"))
        .await;
    pool.edit(json!({"replicas": 2})).await;
    pool.until(|pool| status(pool).workload.ready_replicas == Some(2)).await;
    pool.until_ready().await;
    assert_eq!(pool.made(), 1);
}

#[tokio::test]
async fn an_organization_that_nobody_knows_is_said_so() {
    let pool = PoolScene::plane(&KEYS, "basics", Mode::Licensed).await;
    pool.make(json!({"organizationName": "nowhere"})).await;
    let object = pool.until_condition("ProvisionerKeyReady", "False", "OrganizationNotFound").await;
    assert!(message(&object, "ProvisionerKeyReady").contains("nowhere"));
    assert!(is(&object, "Stalled", "True", Some("OrganizationNotFound")));
    pool.sim.add_organization("nowhere");
    pool.until_ready().await;
}

#[tokio::test]
async fn a_reserved_name_of_an_object_gets_another_key() {
    let pool = PoolScene::plane(&KEYS, "basics", Mode::Licensed).await;
    pool.make_named("psk", json!({})).await;
    pool.until_ready_named("psk").await;
    assert!(pool.only_key().name.starts_with("psk-"));
    let other = serde_json::from_value(object("other", json!({"key": {"name": "Built-In"}}))).unwrap();
    let refused = pool.scene.api::<CoderProvisioner>().create(&PostParams::default(), &other).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("key.name"), "{error}");
}

#[tokio::test]
async fn the_children_of_a_pool_are_put_back() {
    let pool = PoolScene::ready(&KEYS, "basics", json!({})).await;
    pool.until_settled().await;
    let before = pool.deployment().await;
    pool.scene.edit::<Deployment>("provisioner-pool", json!({"spec": {"replicas": 5}})).await;
    pool.scene.until("provisioner-pool", |d: &Deployment| d.spec.as_ref().unwrap().replicas == Some(1)).await;
    pool.scene.delete::<RoleBinding>("provisioner-pool").await;
    pool.scene.delete::<ServiceAccount>("pool-provisioner").await;
    pool.scene.delete::<Deployment>("provisioner-pool").await;
    pool.scene.until("provisioner-pool", |d: &Deployment| d.uid() != before.uid()).await;
    pool.scene.until_exists::<RoleBinding>("provisioner-pool").await;
    pool.scene.until_exists::<ServiceAccount>("pool-provisioner").await;
    pool.until_ready().await;
    assert_eq!(pool.made(), 1);
    let all = pool.scene.api::<Secret>().list(&ListParams::default()).await.unwrap();
    assert_eq!(all.iter().filter(|secret| secret.name_any().contains("provisioner")).count(), 1);
}

#[tokio::test]
async fn kubectl_get_shows_a_ready_pool_in_one_row() {
    let tags = json!({"region": "eu", "gpu": "yes", "scope": "organization"});
    let mut crew = DaemonScene::new(&DAEMONS, "columns", json!({"replicas": 2, "tags": tags})).await;
    let names = crew.until_pods(2).await;
    crew.connect_all().await;
    crew.busy(&names[0], true);
    crew.pool
        .until(|pool| {
            let daemons = status(pool).daemons.map(|daemons| (daemons.connected, daemons.busy));
            daemons == Some((2, 1)) && is(pool, "Ready", "True", None)
        })
        .await;
    let narrow = json!([
        ["Name", "pool"],
        ["Ready", "True"],
        ["Status", "RolledOut"],
        ["Replicas", 2],
        ["Daemons", 2],
        ["Tags", "gpu=yes,region=eu"],
    ]);
    assert_eq!(crew.pool.scene.row::<CoderProvisioner>("pool", false).await, narrow);
    let wide = json!([
        ["Name", "pool"],
        ["Ready", "True"],
        ["Status", "RolledOut"],
        ["Replicas", 2],
        ["Daemons", 2],
        ["Tags", "gpu=yes,region=eu"],
        ["Desired", 2],
        ["Busy", 1],
        ["Scaling", null],
        ["Organization", "default"],
        ["Control Plane", "coder"],
        ["Key", "pool"],
        ["Image", IMAGE],
        ["Phase", "Ready"],
    ]);
    assert_eq!(crew.pool.scene.row::<CoderProvisioner>("pool", true).await, wide);
}
