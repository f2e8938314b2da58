//! Specs, Secrets and status that cost or claim more than they should.

use std::time::Duration;

use coder_k8s_testbed::codersim::{CoderSim, Mode};
use serde_json::{Value, json};

use crate::{
    Row, Verdict, ensure,
    hostile::{Act, Hostile, answer, text_of},
    row,
    stage::{SOON, Stage, Tenant, condition_of, object, token_access, with},
};

/// The rows.
pub(crate) fn rows() -> Vec<Row> {
    let seen = "the operator says something about it within its deadline";
    vec![
        row(
            "T1 env-doubling-plane",
            "each variable doubles the one before, 40 times, up to the database URL",
            seen,
            |stage| expanded(stage, "CoderControlPlane", doubling("CODER_PG_CONNECTION_URL")),
        ),
        row("T1 env-doubling-pool", "the same in a pool", seen, |stage| {
            expanded(stage, "CoderProvisioner", doubling("CODER_URL"))
        }),
        row("T1 env-doubling-proxy", "the same in a proxy", seen, |stage| {
            expanded(stage, "CoderWorkspaceProxy", doubling("CODER_PRIMARY_ACCESS_URL"))
        }),
        row("T1 env-itself", "a variable that refers to itself", seen, |stage| {
            let env = json!([{"name": "CODER_PG_CONNECTION_URL", "value": "$(CODER_PG_CONNECTION_URL)$(CODER_PG_CONNECTION_URL)"}]);
            expanded(stage, "CoderControlPlane", env)
        }),
        row("T1 env-cycle", "two variables that refer to each other", seen, |stage| {
            let env = json!([{"name": "A", "value": "$(B)$(B)"}, {"name": "B", "value": "$(A)$(A)"},
                {"name": "CODER_PG_CONNECTION_URL", "value": "$(A)$(B)"}]);
            expanded(stage, "CoderControlPlane", env)
        }),
        row(
            "T1 env-thousand",
            "1,000 variables, each with all before it",
            "refused, or seen within its deadline",
            thousand_variables,
        ),
        row("T1 env-secrets", "100 variables of 100 Secrets behind the database URL", seen, hundred_secrets),
        row("T1 annotations", "20 objects with 200 KiB of annotations each", seen, huge_annotations),
        row("T1 long-name", "an object whose name has 253 characters", "seen, and no loop", long_name),
        row("T1 tags-thousand", "a pool with 1,000 tags", "refused, or seen, and no loop", thousand_tags),
        row(
            "T1 license-huge",
            "a license of 900 KiB",
            "LicenseApplied is not True, and nobody is sent it",
            |stage| license(stage, "x".repeat(900 * 1024)),
        ),
        row("T1 license-garbage", "a license of control characters", "LicenseApplied is not True", |stage| {
            license(stage, "\u{1}\u{2}\u{7f}.\u{0}.{{{{".to_owned())
        }),
        row(
            "T1 license-claims",
            "a license with 600 KiB of claims",
            "LicenseApplied is not True, and the message is short",
            |stage| {
                let build = CoderSim::license().claim("features", json!({"x".repeat(600 * 1024): 1})).build();
                license(stage, secrecy::ExposeSecret::expose_secret(&build).to_owned())
            },
        ),
        row("T1 status-url", "a status that names another server", "nobody comes there", false_url),
        row(
            "T1 status-deployment",
            "a status that claims a bystander's deployment",
            "nothing is told of others",
            false_deployment,
        ),
        row(
            "T1 status-keys",
            "a status whose pending and stale keys are somebody else's",
            "those keys stay",
            false_keys,
        ),
        row(
            "T1 child-taken",
            "a Deployment of the child's name",
            "Conflict, and it is left alone",
            |stage| taken(stage, "Deployment"),
        ),
        row("T1 secret-taken", "a Secret of the key's name", "it is left alone", |stage| {
            taken(stage, "Secret")
        }),
        row(
            "T1 adopt-by",
            "a foreign object handed over to an object of another name",
            "it is left alone",
            adopted,
        ),
        row(
            "T1 forged-owner",
            "a Deployment that claims a bystander's object as its owner",
            "it is left alone",
            forged_owner,
        ),
        row("T1 held-deletion", "an object held by somebody's finalizer", "its deletion does not spin", held),
        row(
            "T1 dsn-file",
            "a database URL with paths of files",
            "BadConnectionURL, and no file is read",
            |stage| {
                database(
                    stage,
                    "postgres://u:p@db.test/coder?sslmode=verify-full&sslrootcert=/etc/passwd".to_owned(),
                    &["BadConnectionURL"],
                )
            },
        ),
        row(
            "T1 dsn-socket",
            "a database URL with a socket in the file system",
            "BadConnectionURL",
            |stage| {
                database(
                    stage,
                    "postgres://u:p@%2Fvar%2Frun%2Fpostgresql/coder".to_owned(),
                    &["BadConnectionURL"],
                )
            },
        ),
        row("T1 dsn-hosts", "a database URL with 2,000 hosts", "a condition says no", |stage| {
            let hosts = vec!["db.test:1"; 2_000].join(",");
            database(stage, format!("postgres://u:p@{hosts}/coder"), &[])
        }),
    ]
}

/// Variables of which each is twice as long as the one before.
fn doubling(last: &str) -> Value {
    let first = [json!({"name": "A0", "value": "postgres://u:p@h/d"})];
    let next = (1..=40).map(|n| json!({"name": format!("A{n}"), "value": format!("$(A{0})$(A{0})", n - 1)}));
    first.into_iter().chain(next).chain([json!({"name": last, "value": "$(A40)"})]).collect()
}

async fn expanded(stage: &'static Stage, kind: &'static str, env: Value) -> Verdict {
    let tenant = Tenant::new(stage, "env").await;
    for name in ["one", "two"] {
        tenant.proper_service(name);
        let mut spec = json!({"extraEnv": env});
        if kind != "CoderControlPlane" {
            spec["controlPlaneRef"] = json!({"name": "coder"});
        }
        tenant.make(object(kind, name, spec)).await?;
    }
    for name in ["one", "two"] {
        tenant.until_observed(kind, name).await?;
    }
    if kind == "CoderControlPlane" {
        let said = tenant.until_reason(kind, "one", "OperatorAccessReady", &[]).await?;
        ensure(said["status"] != "True", || said.to_string())?;
        return Ok(text_of(&said["reason"]).to_owned());
    }
    Ok("seen".to_owned())
}

async fn thousand_variables(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "env").await;
    let variable = |n: usize| {
        let before: String = (n.saturating_sub(40)..n).map(|n| format!("$(V{n})")).collect();
        json!({"name": format!("V{n}"), "value": format!("x{before}")})
    };
    tenant.proper_service("coder");
    let last = json!({"name": "CODER_PG_CONNECTION_URL", "value": "$(V998)"});
    let env: Value = (0..999).map(variable).chain([last]).collect();
    if let Err(refusal) = tenant.plane("coder", json!({"extraEnv": env})).await {
        return Ok(format!("refused: {}", refusal.chars().take(60).collect::<String>()));
    }
    tenant.until_observed("CoderControlPlane", "coder").await?;
    let said = tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &[]).await?;
    Ok(text_of(&said["reason"]).to_owned())
}

async fn hundred_secrets(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "env").await;
    let from = |n: usize| {
        let reference = json!({"name": format!("none-{n}"), "key": "x", "optional": true});
        json!({"name": format!("S{n}"), "valueFrom": {"secretKeyRef": reference}})
    };
    tenant.proper_service("coder");
    let all: String = (0..99).map(|n| format!("$(S{n})$(S{n})")).collect();
    let last = json!({"name": "CODER_PG_CONNECTION_URL", "value": all});
    let env: Value = (0..99).map(from).chain([last]).collect();
    if let Err(refusal) = tenant.plane("coder", json!({"extraEnv": env})).await {
        return Ok(format!("refused: {}", refusal.chars().take(60).collect::<String>()));
    }
    let said = tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &[]).await?;
    Ok(format!("{}, {} requests", text_of(&said["reason"]), tenant.requests().len()))
}

async fn huge_annotations(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "annotations").await;
    for n in 0..20 {
        let mut plane = object("CoderControlPlane", &format!("coder-{n}"), json!({"replicas": 0}));
        plane["metadata"]["annotations"] = json!({"example.com/x": "x".repeat(200 * 1024)});
        tenant.make(plane).await?;
    }
    for n in 0..20 {
        tenant.until_observed("CoderControlPlane", &format!("coder-{n}")).await?;
    }
    Ok("20 seen".to_owned())
}

async fn long_name(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "long").await;
    let name = vec!["a".repeat(62); 4].join(".");
    for kind in ["CoderControlPlane", "CoderProvisioner", "CoderWorkspaceProxy"] {
        let mut spec = json!({"replicas": 0});
        if kind != "CoderControlPlane" {
            spec["controlPlaneRef"] = json!({"name": name});
        }
        if tenant.make(object(kind, &name, spec)).await.is_ok() {
            tenant.until_observed(kind, &name).await?;
        }
    }
    tenant.at_most(20).await
}

async fn thousand_tags(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "tags").await;
    let tags: serde_json::Map<_, _> = (0..1_000).map(|n| (format!("t{n}"), json!("x".repeat(60)))).collect();
    let pool =
        object("CoderProvisioner", "pool", json!({"controlPlaneRef": {"name": "coder"}, "tags": tags}));
    if let Err(refusal) = tenant.make(pool).await {
        return Ok(format!("refused: {}", refusal.chars().take(60).collect::<String>()));
    }
    tenant.until_observed("CoderProvisioner", "pool").await?;
    tenant.at_most(10).await
}

/// A license that is none. What it says is shown by nobody.
async fn license(stage: &'static Stage, text: String) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "license", Mode::Unlicensed).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "license"}, "stringData": {"license": text}});
    tenant.make(secret).await?;
    tenant.plane_with_token(&sim.owner_token(), json!({"licenseSecretRef": {"name": "license"}})).await?;
    let reasons = ["NotALicense", "InvalidLicense", "UnexpectedAnswer"];
    let said = tenant.until_reason("CoderControlPlane", "coder", "LicenseApplied", &reasons).await?;
    ensure(said["status"] == "False", || said.to_string())?;
    let length = text_of(&said["message"]).len();
    ensure(length < 1_024, || format!("the message has {length} bytes"))?;
    let sent = sim.count("POST", "/api/v2/licenses");
    ensure(sent <= 2, || format!("sent {sent} times"))?;
    Ok(format!("{}, sent {sent} times, a message of {length} bytes", text_of(&said["reason"])))
}

async fn false_url(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "status", Mode::Licensed).await;
    let elsewhere = Hostile::start(Act::Say(answer("200 OK", "", b"{}"))).await;
    let url = format!("http://{}", elsewhere.address);
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    tenant
        .make(object(
            "CoderProvisioner",
            "pool",
            json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0}),
        ))
        .await?;
    let stale = json!([{"name": "old", "id": "00000000-0000-4000-8000-000000000001", "controlPlaneURL": url,
        "controlPlaneRefName": "coder"}]);
    for _ in 0..10 {
        tenant.write_status("CoderControlPlane", "coder", json!({"url": url, "accessURL": url})).await?;
        tenant
            .write_status("CoderProvisioner", "pool", json!({"controlPlaneURL": url, "staleKeys": stale}))
            .await?;
        tenant.edit("CoderProvisioner", "pool", json!({"spec": {"tags": {"n": "1"}}})).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    ensure(elsewhere.connections() == 0, || {
        format!("{} connections: {:?}", elsewhere.connections(), elsewhere.heads().first())
    })?;
    Ok("no connection".to_owned())
}

async fn false_deployment(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "status").await;
    let others = CoderSim::start(Mode::Licensed).await.unwrap();
    tenant.plane("coder", json!({})).await?;
    tenant.until_observed("CoderControlPlane", "coder").await?;
    let status = json!({"deploymentID": others.deployment_id(), "operatorAccessReady": true, "externalProvisionerDaemonsEntitlement": "entitled",
        "operatorTokenSecretRef": {"name": "stolen", "key": "token"}});
    tenant.secret("stolen", "token", "0123456789-0123456789abcdefghijkl").await;
    tenant.write_status("CoderControlPlane", "coder", status).await?;
    tenant
        .make(object(
            "CoderProvisioner",
            "pool",
            json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0}),
        ))
        .await?;
    let pool = tenant.until_observed("CoderProvisioner", "pool").await?;
    let key = condition_of(&pool, "ProvisionerKeyReady").unwrap_or_default();
    ensure(key["status"] != "True" && others.requests().is_empty(), || key.to_string())?;
    tenant.at_most(20).await
}

/// Keys of other pools of the same coderd, written into the status of a pool of the attacker's.
async fn false_keys(stage: &'static Stage) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "status", Mode::Licensed).await;
    sim.add_key("theirs", &std::collections::BTreeMap::new());
    let theirs = sim.keys().remove(0);
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", &["TokenAccepted"]).await?;
    tenant
        .make(object(
            "CoderProvisioner",
            "pool",
            json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0}),
        ))
        .await?;
    tenant.until_reason("CoderProvisioner", "pool", "ProvisionerKeyReady", &["ProvisionerKeyReady"]).await?;
    let named = json!({"name": "theirs", "controlPlaneRefName": "coder", "deploymentID": sim.deployment_id(),
        "organizationID": theirs.organization});
    tenant.write_status("CoderProvisioner", "pool", json!({"pendingKey": named})).await?;
    tenant.edit("CoderProvisioner", "pool", json!({"spec": {"tags": {"n": "1"}}})).await?;
    tenant.until_observed("CoderProvisioner", "pool").await?;
    tenant.delete("CoderProvisioner", "pool").await?;
    tenant.until_gone(SOON, "CoderProvisioner", &tenant.namespace, "pool").await?;
    let left: Vec<_> = sim.keys().into_iter().map(|key| key.id).collect();
    ensure(left.contains(&theirs.id), || format!("{left:?} are left"))?;
    Ok(format!("{} left", left.len()))
}

/// A foreign object with the name of a child: nothing in it changes.
async fn taken(stage: &'static Stage, kind: &'static str) -> Verdict {
    let (tenant, sim) = Tenant::with_coderd(stage, "taken", Mode::Licensed).await;
    let foreign = match kind {
        "Deployment" => deployment("coder", json!({})),
        _ => {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pool-provisioner-key"}, "stringData": {"key": "theirs"}})
        }
    };
    let before = tenant.make(foreign).await?;
    let name = text_of(&before["metadata"]["name"]).to_owned();
    tenant.plane_with_token(&sim.owner_token(), json!({})).await?;
    tenant
        .make(object(
            "CoderProvisioner",
            "pool",
            json!({"controlPlaneRef": {"name": "coder"}, "replicas": 0}),
        ))
        .await?;
    if kind == "Deployment" {
        tenant.until_reason("CoderControlPlane", "coder", "Conflict", &["ForeignObject"]).await?;
    } else {
        let refused = |pool: &Value| {
            condition_of(pool, "ProvisionerKeySecretReady").is_some_and(|said| said["status"] == "False")
        };
        tenant.until(SOON, "CoderProvisioner", "pool", refused).await?;
    }
    untouched(&tenant, kind, &name).await
}

fn deployment(name: &str, metadata: Value) -> Value {
    let template = json!({"metadata": {"labels": {"app": "theirs"}}, "spec": {"containers": [{"name": "main", "image": "theirs:v1"}]}});
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "theirs"}}, "template": template}});
    object["metadata"]["name"] = json!(name);
    object
}

/// Whether the operator wrote nothing to an object that was there before it looked.
async fn untouched(tenant: &Tenant, kind: &str, name: &str) -> Verdict {
    let now = tenant.api(kind).get(name).await.map_err(|error| error.to_string())?;
    let managers: Vec<_> =
        now.metadata.managed_fields.into_iter().flatten().filter_map(|entry| entry.manager).collect();
    ensure(!managers.contains(&"coder-k8s".to_owned()), || format!("written by {managers:?}"))?;
    Ok("untouched".to_owned())
}

async fn adopted(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "adopt").await;
    tenant
        .make(deployment(
            "coder",
            json!({"annotations": {"coder.com/adopt-by": "CoderControlPlane/another"}}),
        ))
        .await?;
    tenant.plane("coder", json!({})).await?;
    tenant.until_reason("CoderControlPlane", "coder", "Conflict", &["ForeignObject"]).await?;
    untouched(&tenant, "Deployment", "coder").await
}

async fn forged_owner(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "forged").await;
    let victim = Tenant::new(stage, "victim").await;
    let plane = victim.plane("coder", json!({})).await?;
    victim.until_observed("CoderControlPlane", "coder").await?;
    let owner = json!([{"apiVersion": "coder.com/v1alpha1", "kind": "CoderControlPlane", "name": "coder",
        "uid": plane["metadata"]["uid"], "controller": true}]);
    let labels = json!({"app.kubernetes.io/managed-by": "coder-k8s", "app.kubernetes.io/name": "coder-control-plane",
        "app.kubernetes.io/instance": "coder"});
    let before = victim.requests().len();
    // The garbage collector removes it in the end, because it has no such owner in its namespace.
    tenant.make(deployment("coder", json!({"ownerReferences": owner, "labels": labels}))).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let here: Vec<_> =
        tenant.requests().into_iter().map(|event| format!("{} {}", event.verb, event.uri)).collect();
    ensure(here.is_empty(), || format!("{here:?}"))?;
    Ok(format!("{} requests for the victim", victim.requests().len() - before))
}

async fn held(stage: &'static Stage) -> Verdict {
    let tenant = Tenant::new(stage, "held").await;
    let mut plane = object("CoderControlPlane", "coder", json!({"replicas": 0}));
    plane["metadata"]["finalizers"] = json!(["example.com/held"]);
    tenant.make(plane).await?;
    tenant.until_observed("CoderControlPlane", "coder").await?;
    tenant.delete("CoderControlPlane", "coder").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    tenant.at_most(5).await
}

/// A control plane with a database URL, and what is said of it.
async fn database(stage: &'static Stage, url: String, reasons: &[&str]) -> Verdict {
    let tenant = Tenant::new(stage, "database").await;
    tenant.plane_with_database(&url).await?;
    let said = tenant.until_reason("CoderControlPlane", "coder", "OperatorAccessReady", reasons).await?;
    ensure(said["status"] != "True", || said.to_string())?;
    Ok(text_of(&said["reason"]).to_owned())
}

/// A spec with an API address of its own.
pub(crate) fn with_api_url(url: &str) -> Value {
    let mut spec = with(token_access(), json!({}));
    spec["operatorAccess"]["apiURL"] = json!(url);
    spec
}
