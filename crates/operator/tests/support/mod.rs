//! The operator as a process of its own, with exactly the rights that its manifests give it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod recorded;

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use coder_k8s::manifests::{self, Install};
use coder_k8s_api::{CoderControlPlane, CoderControlPlaneSpec, condition::kind};
use coder_k8s_testbed::{AuditEvent, Cluster, TimedOut, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    discovery,
};
use rustix::process::{Pid, Signal};

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// How long nothing happens before it is taken for rest, on a machine with much else to do.
const CALM: Duration = Duration::from_secs(3);

/// How an operator runs that may end at any step: time runs as for the others, and nobody else leads.
pub const ALONE: &[&str] = &[
    "--leader-elect=false",
    "--entitlements-interval=2s",
    "--verify-interval=8s",
    "--coderd-timeout=3s",
    "--cleanup-timeout=20s",
];

/// An end of the operator before and after each of these steps.
pub fn each(steps: &[&str]) -> Vec<String> {
    let both = |step: &&str| ["before", "after"].map(|when| format!("{when} {step} / exit 1"));
    steps.iter().flat_map(both).collect()
}

/// The group that the operators of a test belong to. Each has a user name of its own, so that the audit log
/// can tell them apart.
const GROUP: &str = "operators";

/// Grants what the manifests grant, to every operator of the test.
pub async fn grant(client: &Client, install: &Install) {
    let everyone =
        serde_json::json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": GROUP}]);
    apply(
        client,
        serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": install.namespace}}),
    )
    .await;
    for mut object in manifests::access(install) {
        if object.get("subjects").is_some() {
            object["subjects"] = everyone.clone();
        }
        apply(client, object).await;
    }
}

/// Applies any object, as an administrator would.
pub async fn apply(client: &Client, object: serde_json::Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let kind = (&object.types.clone().unwrap()).try_into().unwrap();
    let (resource, _) = discovery::pinned_kind(client, &kind).await.unwrap();
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply("tests").force();
    api.patch(object.metadata.name.as_deref().unwrap(), &params, &Patch::Apply(&object)).await.unwrap();
}

/// A running operator. Killed when dropped.
pub struct Operator {
    child: Child,
    /// Its user name in the audit log.
    pub user: String,
    output: PathBuf,
}

impl Operator {
    /// Starts an operator that may do what [`grant`] granted.
    pub fn start(cluster: &Cluster, args: &[&str]) -> Self {
        Self::start_failing(cluster, args, &[])
    }

    /// Starts one whose calls fail from the first on, one line for each fault.
    pub fn start_failing(cluster: &Cluster, args: &[&str], faults: &[String]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let user = format!("operator-{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let kubeconfig = cluster.run_dir().join(format!("kubeconfig-{user}"));
        let admin = cluster.kubeconfig_yaml();
        let acting = format!("      as: {user}\n      as-groups: [{GROUP}, \"system:authenticated\"]\n");
        fs::write(&kubeconfig, admin.replace("contexts:", &format!("{acting}contexts:"))).unwrap();
        let output = cluster.run_dir().join(format!("output-{}", kubeconfig.file_name().unwrap().display()));
        fs::write(output.with_extension("faults"), faults.join("\n")).unwrap();
        Self::start_with(user, &kubeconfig, output, args)
    }

    /// Starts an operator with a kubeconfig of any kind.
    pub fn start_with(user: String, kubeconfig: &std::path::Path, output: PathBuf, args: &[&str]) -> Self {
        let file = File::create(&output).unwrap();
        let elsewhere = args.iter().any(|arg| arg.starts_with("--leader-elect-namespace"));
        // Another build of the same program can be measured, such as the released one.
        let program =
            std::env::var("CODER_K8S_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_coder-k8s").to_owned());
        let child = Command::new(program)
            .args([
                "controller",
                "--log-format=json",
                "--health-addr=127.0.0.1:0",
                "--metrics-addr=127.0.0.1:0",
            ])
            .arg("--admin-addr=127.0.0.1:0")
            .args(Some("--leader-elect-namespace=coder-system").filter(|_| !elsewhere))
            .args(args)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .env("CODER_K8S_FAULTS", output.with_extension("faults"))
            .env("CODER_K8S_HOSTS", output.with_extension("hosts"))
            .env_remove("KUBECONFIG")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, user, output }
    }

    /// Tells where a host is, besides those that were told before. Services have no names outside a cluster.
    pub fn host(&self, name: &str, address: std::net::SocketAddr) {
        static WRITING: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one_at_a_time = WRITING.lock().unwrap();
        let file = self.output.with_extension("hosts");
        let before = fs::read_to_string(&file).unwrap_or_default();
        let others = before.lines().filter(|line| !line.starts_with(&format!("{name} ")));
        let all: Vec<_> = others.map(str::to_owned).chain([format!("{name} {address}")]).collect();
        let fresh = file.with_extension("hosts-new");
        fs::write(&fresh, all.join("\n")).unwrap();
        fs::rename(fresh, file).unwrap();
    }

    /// Makes calls fail from now on, one line for each fault (see `src/faults.rs`). No line: none any more.
    pub fn faults(&self, lines: &[String]) {
        let file = self.output.with_extension("faults");
        let fresh = file.with_extension("new");
        fs::write(&fresh, lines.join("\n")).unwrap();
        fs::rename(fresh, file).unwrap();
    }

    /// Everything that it wrote.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// The last of what it wrote.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its exit code, once it has ended by itself.
    pub async fn exit_code(&mut self) -> Option<i32> {
        for _ in 0..1200 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it does not end:\n{}", self.output());
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address that it serves for a flag such as `--health-addr`.
    pub async fn address(&self, flag: &str) -> String {
        self.until(|lines| {
            let line = lines.iter().find(|line| line["message"] == format!("serving for {flag}"))?;
            Some(line["address"].as_str()?.to_owned())
        })
        .await
    }

    /// GET, with the status code and the body.
    pub async fn get(&self, flag: &str, path: &str) -> (u16, String) {
        let address = self.address(flag).await;
        request(&address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    /// How many passes over objects of a kind have ended.
    pub async fn passes(&self, kind: &str) -> u64 {
        let (_, metrics) = self.get("--metrics-addr", "/metrics").await;
        let ours = |line: &&str| {
            line.starts_with("coder_k8s_reconciles_total") && line.contains(&format!("kind=\"{kind}\""))
        };
        let counts =
            metrics.lines().filter(ours).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum()
    }

    /// Waits until at least so many passes over objects of a kind have ended.
    pub async fn reconciled(&self, kind: &str, least: u64) {
        let ended = eventually(PATIENCE, || async {
            match self.passes(kind).await {
                passes if passes >= least => Ok(()),
                passes => Err(format!("{passes} of {least} passes")),
            }
        });
        ended.await.unwrap_or_else(|error| panic!("{error}\n{}", self.output()));
    }

    /// Waits until no pass over an object of a kind has ended for a while, and returns how many have.
    pub async fn calm(&self, kind: &str) -> u64 {
        let (mut passes, mut since) = (self.passes(kind).await, Instant::now());
        let began = since;
        while since.elapsed() < CALM {
            assert!(began.elapsed() < PATIENCE, "it does not come to rest:\n{}", self.tail());
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.passes(kind).await;
            if now != passes {
                (passes, since) = (now, Instant::now());
            }
        }
        passes
    }

    /// Waits until it is ready.
    pub async fn ready(&self) {
        let ready = eventually(PATIENCE, || async {
            match self.get("--health-addr", "/readyz").await {
                (200, _) => Ok(()),
                (code, body) => Err(format!("{code}: {body}")),
            }
        })
        .await;
        ready.unwrap_or_else(|error| panic!("not ready: {error}\n{}", self.output()));
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        self.until(|lines| {
            lines
                .iter()
                .any(|line| line["message"].as_str().is_some_and(|m| m.starts_with("leading")))
                .then_some(())
        })
        .await;
    }

    /// Waits for something in its log.
    pub async fn until<T>(&self, find: impl Fn(&[serde_json::Value]) -> Option<T>) -> T {
        let found = eventually(PATIENCE, || async {
            let lines: Vec<_> =
                self.output().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            find(&lines).ok_or("not in the log")
        })
        .await;
        found.unwrap_or_else(|error: TimedOut| panic!("{error}\n{}", self.output()))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One HTTP request on a connection of its own.
pub async fn request(address: &str, text: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code =
        head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer}"));
    (code, body.to_owned())
}

/// The requests of operators in the audit log, complete ones only.
pub fn requests(cluster: &Cluster, of: impl Fn(&str) -> bool) -> Vec<AuditEvent> {
    let all = cluster.audit().unwrap();
    let ours = |event: &AuditEvent| event.impersonated.as_deref().is_some_and(&of);
    all.into_iter().filter(|event| ours(event) && event.stage != "ResponseStarted").collect()
}

/// The writes among them, those of the lease left out.
pub fn writes(events: &[AuditEvent]) -> Vec<&AuditEvent> {
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    events.iter().filter(|event| writes.contains(&&*event.verb) && event.resource != "leases").collect()
}

/// Waits until the operator has said of an object how it stands, and returns it.
pub async fn observed(client: &Client, namespace: &str, name: &str) -> CoderControlPlane {
    let api: Api<CoderControlPlane> = Api::namespaced(client.clone(), namespace);
    let seen = eventually(PATIENCE, || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let observed = object.status.as_ref().and_then(|status| status.workload.observed_generation);
        if observed == object.metadata.generation { Ok(object) } else { Err(format!("{:?}", object.status)) }
    });
    seen.await.unwrap()
}

/// A control plane with nothing but its name.
pub fn control_plane(name: &str) -> CoderControlPlane {
    CoderControlPlane::new(name, CoderControlPlaneSpec::default())
}

/// The status, reason and message of a condition.
pub fn condition(object: &CoderControlPlane, kind: &str) -> (String, String, String) {
    let all = object.status.as_ref().map_or(&[][..], |status| &status.workload.conditions);
    let found =
        all.iter().find(|c| c.type_ == kind).unwrap_or_else(|| panic!("no condition {kind}: {all:?}"));
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

/// A cluster with these kinds and without a controller-manager.
pub async fn bare_cluster(crds: Vec<CustomResourceDefinition>) -> (Cluster, Client) {
    let cluster = Cluster::builder().controller_manager(false).crds(crds).start().await.unwrap();
    let client = cluster.client();
    (cluster, client)
}

/// The control planes of a namespace.
pub fn planes(client: &Client, namespace: &str) -> Api<CoderControlPlane> {
    Api::namespaced(client.clone(), namespace)
}

/// Waits until `/readyz` says something.
pub async fn readyz_says(operator: &Operator, code: u16, text: &str) {
    let said = eventually(PATIENCE, || async {
        match operator.get("--health-addr", "/readyz").await {
            (found, body) if found == code && body.contains(text) => Ok(()),
            (found, body) => Err(format!("{found}: {body}")),
        }
    });
    said.await.unwrap_or_else(|error| panic!("{error}\n{}", operator.output()));
}

/// Waits until `Ready` has this reason.
pub async fn ready_is(client: &Client, name: &str, reason: &str) -> CoderControlPlane {
    let api = planes(client, "default");
    let found = eventually(PATIENCE, || async {
        let object = api.get(name).await.map_err(|error| error.to_string())?;
        let all = object.status.as_ref().map_or(&[][..], |status| &status.workload.conditions);
        if all.iter().any(|c| c.type_ == kind::READY && c.reason == reason) {
            Ok(object)
        } else {
            Err(format!("{all:?}"))
        }
    });
    found.await.unwrap()
}
