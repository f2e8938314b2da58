//! The commands of the book, run as a reader runs them: in the order of its pages, one shell for each block.
//!
//! The reader has a cluster with an operator, and in the namespace `coder` a licensed control plane `coder`, two pools and
//! a proxy, as `coder-k8s dev` sets them up. `kubectl` and `coder-k8s` are on the path, and the folder holds two
//! licenses. A command fails if its exit code says so; the pages use `kubectl wait` to say what must come true.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use coder_k8s::manifests::{self, Install};
use coder_k8s_api::{CoderControlPlane, crds};
use coder_k8s_book::{Command as Mark, Manifest, Page};
use coder_k8s_scenes::{Operator, PATIENCE, apply, plane, planes};
use coder_k8s_testbed::{Cluster, CoderSim, codersim::Mode, eventually};
use kube::Client;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// Longer than any timeout on the pages.
const BLOCK: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_book_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = coder_k8s_book::pages(&root).unwrap();
    let cluster = Cluster::builder().crds(crds()).ready_within(3 * PATIENCE).start().await.unwrap();
    let _node = cluster.node("book").await.unwrap();
    let client = cluster.client();
    let folder = tempfile::tempdir().unwrap();
    let sim = CoderSim::start(Mode::Unlicensed).await.unwrap();
    let operator = start(&cluster).await;
    operator.host("coder.coder.svc.cluster.local", sim.address());
    set_the_scene(&client, &sim, folder.path()).await;

    let (mut run, mut not_run) = (0, Vec::new());
    for page in pages.iter().filter(|page| page.is_in_book()) {
        write_files(page, folder.path());
        for block in &page.blocks {
            let place = format!("{}:{}", page.path.display(), block.line);
            match block.command().map(|mark| mark.expect(&place)) {
                None => {}
                Some(Mark::NotRun(reason)) => not_run.push(format!("{place}: {reason}")),
                Some(Mark::Run) => {
                    let began = Instant::now();
                    if let Err(output) = shell(&cluster, folder.path(), &block.text).await {
                        panic!("{place}:\n{}\n{output}\n{}", block.text, operator.tail());
                    }
                    println!("{place}: {:.1} s", began.elapsed().as_secs_f32());
                    run += 1;
                }
            }
        }
    }
    println!("{run} blocks of commands run, {} not run:\n{}", not_run.len(), not_run.join("\n"));
    assert!(run >= 20, "are the commands of the book still found?");
}

/// An operator with the rights of the manifests, under other names: pages apply and change those of the manifests.
async fn start(cluster: &Cluster) -> Operator {
    let client = cluster.client();
    apply(&client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "coder-system"}}))
        .await;
    for mut object in manifests::access(&Install::default()) {
        let renamed = json!(format!("book-{}", object["metadata"]["name"].as_str().unwrap()));
        object["metadata"]["name"] = renamed.clone();
        if object.get("subjects").is_some() {
            object["roleRef"]["name"] = renamed;
            object["subjects"] =
                json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "operators"}]);
        }
        apply(&client, object).await;
    }
    let operator = Operator::start(cluster, &["--leader-elect=false"]);
    operator.until_leading().await;
    operator
}

async fn set_the_scene(client: &Client, sim: &CoderSim, folder: &Path) {
    let license = |id: &str| CoderSim::license().id(id).feature_set("premium").build();
    let first = license("00000000-0000-0000-0000-000000000001");
    let second = license("00000000-0000-0000-0000-000000000002");
    fs::write(folder.join("license.jwt"), first.expose_secret()).unwrap();
    fs::write(folder.join("new-license.jwt"), second.expose_secret()).unwrap();
    apply(client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "coder"}})).await;
    for (name, key, value) in [
        ("coder-license", "license", first.expose_secret()),
        ("coder-token", "token", sim.owner_token().expose_secret()),
        ("coder-db-app", "uri", "postgres://coder@database.example/coder"),
    ] {
        let metadata = json!({"name": name, "namespace": "coder"});
        apply(
            client,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {key: value}}),
        )
        .await;
    }
    let access = json!({"method": "TokenSecret", "tokenSecretRef": {"name": "coder-token"}});
    let database = json!({"name": "CODER_PG_CONNECTION_URL",
        "valueFrom": {"secretKeyRef": {"name": "coder-db-app", "key": "uri"}}});
    let spec = json!({"image": "ghcr.io/coder/coder:v2.36.0", "operatorAccess": access, "extraEnv": [database],
        "licenseSecretRef": {"name": "coder-license"}});
    put(client, "CoderControlPlane", "coder", spec).await;
    // What asks before the license is applied learns that there is none, and asks again after minutes.
    let licensed = eventually(PATIENCE, || async {
        let object: CoderControlPlane = planes(client, "coder").get("coder").await.unwrap();
        let status = object.status.clone().unwrap_or_default();
        match (status.license_tier.as_deref(), status.workload.image) {
            (Some("premium"), Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    licensed.await.unwrap();
    plane::ready_is(client, "coder", "coder", "RolledOut").await;
    let of_coder = json!({"name": "coder"});
    for (region, replicas) in [("eu", 2), ("us", 1)] {
        let spec = json!({"controlPlaneRef": of_coder, "tags": {"region": region}, "replicas": replicas});
        put(client, "CoderProvisioner", &format!("pool-{region}"), spec).await;
    }
    put(client, "CoderWorkspaceProxy", "proxy-eu", json!({"controlPlaneRef": of_coder})).await;
}

async fn put(client: &Client, kind: &str, name: &str, spec: Value) {
    let metadata = json!({"name": name, "namespace": "coder"});
    let object =
        json!({"apiVersion": "coder.com/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    apply(client, object).await;
}

/// The manifests of a page that its commands name.
fn write_files(page: &Page, folder: &Path) {
    for block in &page.blocks {
        if let Some(Ok(Manifest::Whole { file: Some(name) })) = block.manifest() {
            fs::write(folder.join(name), &block.text).unwrap();
        }
    }
}

/// Runs a script, and fails with what it wrote.
async fn shell(cluster: &Cluster, folder: &Path, script: &str) -> Result<(), String> {
    let programs = [env!("CARGO_BIN_EXE_coder-k8s").into(), cluster.binaries().kubectl().unwrap().to_owned()];
    let folders =
        programs.iter().map(|program: &std::path::PathBuf| program.parent().unwrap().display().to_string());
    let path = folders.chain(std::env::var("PATH")).collect::<Vec<_>>().join(":");
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(folder);
    command.env("KUBECONFIG", cluster.kubeconfig_path()).env("PATH", path).stdin(Stdio::null());
    // A home of its own, for the cache of kubectl.
    command.env("HOME", folder);
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    match tokio::time::timeout(BLOCK, command.output()).await {
        Err(_) => Err(format!("it takes longer than {BLOCK:?}")),
        Ok(Err(error)) => Err(format!("cannot run bash: {error}")),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(format!(
            "{}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
