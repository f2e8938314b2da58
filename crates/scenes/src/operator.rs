//! The operator as a process of its own.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use coder_k8s_testbed::{Cluster, TimedOut, eventually};
use rustix::process::{Pid, Signal};

use crate::{PATIENCE, install::GROUP};

/// How long nothing happens before it is taken for rest, on a machine with much else to do.
const IDLE: Duration = Duration::from_secs(3);

/// Where hosts are, in a file that operators read before each call: Services have no names outside a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Hosts(PathBuf);

impl Hosts {
    pub(crate) fn new(file: PathBuf) -> Self {
        Self(file)
    }

    /// Adds a host, or moves it.
    pub(crate) fn add(&self, name: &str, address: SocketAddr) {
        static WRITING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = WRITING.lock().unwrap();
        let before = fs::read_to_string(&self.0).unwrap_or_default();
        let others = before.lines().filter(|line| !line.starts_with(&format!("{name} ")));
        let all: Vec<_> = others.map(str::to_owned).chain([format!("{name} {address}")]).collect();
        replace(&self.0, &all.join("\n"));
    }
}

/// Writes a file that somebody may be reading.
fn replace(file: &Path, text: &str) {
    let mut fresh = file.as_os_str().to_owned();
    fresh.push("-new");
    fs::write(&fresh, text).unwrap();
    fs::rename(fresh, file).unwrap();
}

/// The program under test: beside the programs of the tests, where cargo puts it for them. `CODER_K8S_BINARY` names
/// another build of it, such as the released one.
fn program() -> PathBuf {
    std::env::var_os("CODER_K8S_BINARY").map_or_else(
        || std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("coder-k8s"),
        PathBuf::from,
    )
}

/// A running operator. Killed when dropped.
pub struct Operator {
    child: Child,
    /// Its user name in the audit log.
    pub user: String,
    output: PathBuf,
    hosts: Hosts,
    addresses: Mutex<BTreeMap<String, String>>,
    guard: Child,
}

/// A shell that ends a process when the test program ends, however that happens: its standard input is a pipe that only
/// the test program holds. Operators in a `static` are never dropped, and without a lease nothing else ends them.
fn guard(process: u32) -> Child {
    let script = format!("read -r _; kill -9 {process}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn().unwrap()
}

impl Operator {
    /// Starts an operator with the rights of [`crate::grant`].
    pub fn start(cluster: &Cluster, args: &[&str]) -> Self {
        Self::start_as(cluster, &[GROUP], None, args, &[])
    }

    /// Starts an operator that belongs to these groups and looks up hosts in a file, its own if there is none. Its calls
    /// fail from the first on, one line for each fault.
    pub(crate) fn start_as(
        cluster: &Cluster,
        groups: &[&str],
        hosts: Option<&Hosts>,
        args: &[&str],
        faults: &[String],
    ) -> Self {
        let (user, kubeconfig, output) = Self::account(cluster, groups);
        fs::write(output.with_extension("faults"), faults.join("\n")).unwrap();
        let hosts = hosts.cloned().unwrap_or_else(|| Hosts::new(output.with_extension("hosts")));
        Self::spawn(user, &kubeconfig, output, hosts, args, &program())
    }

    /// Starts an operator with the rights of [`crate::grant`] and without a flag for the namespace of its lease, in a pod
    /// of this namespace (`POD_NAMESPACE`) or with no pod around it.
    pub fn start_in_pod_of(cluster: &Cluster, namespace: Option<&str>, args: &[&str]) -> Self {
        let (user, kubeconfig, output) = Self::account(cluster, &[GROUP]);
        let hosts = Hosts::new(output.with_extension("hosts"));
        let mut command = Self::command(&kubeconfig, &output, &hosts, args, &program());
        command.env_remove("CODER_K8S_LEADER_ELECT_NAMESPACE").env_remove("POD_NAMESPACE");
        command.envs(namespace.map(|namespace| ("POD_NAMESPACE", namespace)));
        Self::run(user, output, hosts, command)
    }

    /// Starts an operator that reaches the API server at an address of plain HTTP, without credentials.
    pub(crate) fn start_at(cluster: &Cluster, server: &str, hosts: &Hosts, args: &[&str]) -> Self {
        let (user, kubeconfig, output) = Self::account(cluster, &[GROUP]);
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: through\n\
             clusters: [{{name: through, cluster: {{server: \"{server}\"}}}}]\n\
             contexts: [{{name: through, context: {{cluster: through, user: through}}}}]\n\
             users: [{{name: through, user: {{}}}}]\n"
        );
        fs::write(&kubeconfig, config).unwrap();
        Self::spawn(user, &kubeconfig, output, hosts.clone(), args, &program())
    }

    /// A new user of these groups, with its kubeconfig, and the file for its output.
    fn account(cluster: &Cluster, groups: &[&str]) -> (String, PathBuf, PathBuf) {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let user = format!("operator-{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let kubeconfig = cluster.run_dir().join(format!("kubeconfig-{user}"));
        let admin = cluster.kubeconfig_yaml();
        let groups = groups.join(", ");
        let acting = format!("      as: {user}\n      as-groups: [{groups}, \"system:authenticated\"]\n");
        fs::write(&kubeconfig, admin.replace("contexts:", &format!("{acting}contexts:"))).unwrap();
        let output = cluster.run_dir().join(format!("output-{user}"));
        (user, kubeconfig, output)
    }

    /// Starts another build of the operator, as [`Self::start_as`] does this one.
    pub(crate) fn start_program(
        program: &Path,
        cluster: &Cluster,
        groups: &[&str],
        hosts: &Hosts,
        args: &[&str],
    ) -> Self {
        let (user, kubeconfig, output) = Self::account(cluster, groups);
        Self::spawn(user, &kubeconfig, output, hosts.clone(), args, program)
    }

    /// Starts one, as [`Self::start_as`] does, that finds no root certificates on the system.
    pub(crate) fn start_without_roots(
        cluster: &Cluster,
        groups: &[&str],
        hosts: &Hosts,
        args: &[&str],
    ) -> Self {
        let (user, kubeconfig, output) = Self::account(cluster, groups);
        let roots = output.with_extension("roots");
        fs::write(&roots, "").unwrap();
        let mut command = Self::command(&kubeconfig, &output, hosts, args, &program());
        command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR");
        Self::run(user, output, hosts.clone(), command)
    }

    /// Starts a command that becomes an operator, which logs as JSON. It gets nothing that is not in the command.
    pub fn start_command(user: String, output: PathBuf, command: Command) -> Self {
        let hosts = Hosts::new(output.with_extension("hosts"));
        Self::run(user, output, hosts, command)
    }

    /// Starts an operator with a kubeconfig of any kind.
    pub fn start_with(user: String, kubeconfig: &Path, output: PathBuf, args: &[&str]) -> Self {
        let hosts = Hosts::new(output.with_extension("hosts"));
        Self::spawn(user, kubeconfig, output, hosts, args, &program())
    }

    fn spawn(
        user: String,
        kubeconfig: &Path,
        output: PathBuf,
        hosts: Hosts,
        args: &[&str],
        program: &Path,
    ) -> Self {
        let mut command = Self::command(kubeconfig, &output, &hosts, args, program);
        if !args.iter().any(|arg| arg.starts_with("--leader-elect-namespace")) {
            command.arg("--leader-elect-namespace=coder-system");
        }
        Self::run(user, output, hosts, command)
    }

    fn command(kubeconfig: &Path, output: &Path, hosts: &Hosts, args: &[&str], program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .args([
                "controller",
                "--log-format=json",
                "--health-addr=127.0.0.1:0",
                "--metrics-addr=127.0.0.1:0",
            ])
            .arg("--admin-addr=127.0.0.1:0")
            .args(args)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .env("CODER_K8S_FAULTS", output.with_extension("faults"))
            .env("CODER_K8S_HOSTS", &hosts.0)
            // Servers of tests are on loopback. A variable, because an earlier build does not know the flag.
            .env("CODER_K8S_ALLOWED_ADDRESS_RANGES", "127.0.0.0/8")
            .env_remove("KUBECONFIG")
            .env_remove("RUST_BACKTRACE");
        command
    }

    fn run(user: String, output: PathBuf, hosts: Hosts, mut command: Command) -> Self {
        let file = File::create(&output).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap();
        let guard = guard(child.id());
        Self { child, user, output, hosts, addresses: Mutex::default(), guard }
    }

    /// Tells where a host is, besides those that were told before.
    pub fn host(&self, name: &str, address: SocketAddr) {
        self.hosts.add(name, address);
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    pub(crate) fn output_file(&self) -> &Path {
        &self.output
    }

    /// Makes calls fail from now on, one line for each fault (see `src/faults.rs`). No line: none any more.
    pub fn faults(&self, lines: &[String]) {
        replace(&self.output.with_extension("faults"), &lines.join("\n"));
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
            if let Some(status) = self.ended() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it does not end:\n{}", self.output());
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.ended().is_none()
    }

    /// How it ended, if it has. Its number may soon be that of another process, so that the guard goes too.
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().unwrap()?;
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        Some(status)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address that it serves for a flag such as `--health-addr`. Read from the log once, which may be long later.
    pub async fn address(&self, flag: &str) -> String {
        if let Some(known) = self.addresses.lock().unwrap().get(flag) {
            return known.clone();
        }
        let address = self.until(|lines| {
            let line = lines.iter().find(|line| line["message"] == format!("serving for {flag}"))?;
            Some(line["address"].as_str()?.to_owned())
        });
        let address = address.await;
        self.addresses.lock().unwrap().insert(flag.to_owned(), address.clone());
        address
    }

    /// GET, with the status code and the body.
    pub async fn get(&self, flag: &str, path: &str) -> (u16, String) {
        let address = self.address(flag).await;
        request(&address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    /// How many reconciles of objects of a kind have ended.
    pub async fn reconciles(&self, kind: &str) -> u64 {
        let (_, metrics) = self.get("--metrics-addr", "/metrics").await;
        let ours = |line: &&str| {
            line.starts_with("coder_k8s_reconciles_total") && line.contains(&format!("kind=\"{kind}\""))
        };
        let counts =
            metrics.lines().filter(ours).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.sum()
    }

    /// Waits until at least so many reconciles of objects of a kind have ended.
    pub async fn until_reconciled(&self, kind: &str, least: u64) {
        let ended = eventually(PATIENCE, || async {
            match self.reconciles(kind).await {
                reconciles if reconciles >= least => Ok(()),
                reconciles => Err(format!("{reconciles} of {least} reconciles")),
            }
        });
        ended.await.unwrap_or_else(|error| panic!("{error}\n{}", self.output()));
    }

    /// Waits until no reconcile of an object of a kind has ended for a while, and returns how many have.
    pub async fn until_idle(&self, kind: &str) -> u64 {
        let (mut reconciles, mut since) = (self.reconciles(kind).await, Instant::now());
        let began = since;
        while since.elapsed() < IDLE {
            assert!(began.elapsed() < PATIENCE, "it does not come to rest:\n{}", self.tail());
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.reconciles(kind).await;
            if now != reconciles {
                (reconciles, since) = (now, Instant::now());
            }
        }
        reconciles
    }

    /// Waits until it is ready.
    pub async fn until_ready(&self) {
        let ready = eventually(PATIENCE, || async {
            match self.get("--health-addr", "/readyz").await {
                (200, _) => Ok(()),
                (code, body) => Err(format!("{code}: {body}")),
            }
        })
        .await;
        ready.unwrap_or_else(|error| panic!("not ready: {error}\n{}", self.output()));
    }

    /// Waits until `/readyz` answers with this code and has this text in its body.
    pub async fn until_readyz(&self, code: u16, text: &str) {
        let said = eventually(PATIENCE, || async {
            match self.get("--health-addr", "/readyz").await {
                (found, body) if found == code && body.contains(text) => Ok(()),
                (found, body) => Err(format!("{found}: {body}")),
            }
        });
        said.await.unwrap_or_else(|error| panic!("{error}\n{}", self.output()));
    }

    /// Waits until it leads.
    pub async fn until_leading(&self) {
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
        // The guard first: the number of the operator may soon be that of another process.
        for process in [&mut self.guard, &mut self.child] {
            let _ = process.kill();
            let _ = process.wait();
        }
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
