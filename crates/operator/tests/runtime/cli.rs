//! What the binary prints, used as a person would: piped into the real kubectl.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use coder_k8s_testbed::Cluster;

fn coder_k8s(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_coder-k8s")).args(args).env_remove("KUBECONFIG").output().unwrap()
}

fn kubectl(cluster: &Cluster, args: &[&str], input: &[u8]) -> String {
    let mut child = Command::new(cluster.binaries().kubectl().unwrap())
        .args(args)
        .env("KUBECONFIG", cluster.kubeconfig_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert!(status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_prints_installs_it() {
    let cluster = Cluster::builder().start().await.unwrap();
    // Client-side apply keeps a copy of each object in an annotation, which is limited in size.
    let applied = kubectl(&cluster, &["apply", "-f", "-"], &coder_k8s(&["crds"]).stdout);
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), 3, "{applied}");
    let again = kubectl(&cluster, &["apply", "-f", "-"], &coder_k8s(&["crds", "--format", "json"]).stdout);
    assert_eq!(again.lines().filter(|line| line.ends_with(" unchanged")).count(), 3, "{again}");
    kubectl(&cluster, &["wait", "--for=condition=Established", "crd", "--all"], b"");

    let installed =
        kubectl(&cluster, &["apply", "--server-side", "-f", "-"], &coder_k8s(&["manifests"]).stdout);
    assert!(installed.contains("deployment.apps/coder-k8s serverside-applied"), "{installed}");
    let scoped = coder_k8s(&["manifests", "--watch-namespaces=default", "--namespace=default"]);
    kubectl(&cluster, &["apply", "--server-side", "--force-conflicts", "-f", "-"], &scoped.stdout);

    let plane = b"apiVersion: coder.com/v1alpha1\nkind: CoderControlPlane\nmetadata: {name: coder}\n";
    kubectl(&cluster, &["apply", "-f", "-"], plane);
    let shown = kubectl(&cluster, &["get", "ccp", "coder", "--output=yaml"], b"");
    for default in ["image: ghcr.io/coder/coder:latest", "replicas: 1", "port: 80", "type: ClusterIP"] {
        assert!(shown.contains(default), "{default} is missing in\n{shown}");
    }
    let listed = kubectl(&cluster, &["get", "coder"], b"");
    for column in ["READY", "STATUS", "VERSION", "LICENSE", "URL", "AGE"] {
        assert!(listed.contains(column), "{column} is missing in\n{listed}");
    }
    kubectl(&cluster, &["scale", "ccp/coder", "--replicas=3"], b"");
    assert_eq!(kubectl(&cluster, &["get", "ccp", "coder", "--output=jsonpath={.spec.replicas}"], b""), "3");
    assert!(kubectl(&cluster, &["explain", "ccp.spec.scaling"], b"").contains("Who scales the Deployment"));
}

#[test]
fn it_says_who_it_is_and_completes_commands() {
    assert!(String::from_utf8(coder_k8s(&["version"]).stdout).unwrap().starts_with("coder-k8s 0."));
    let script = String::from_utf8(coder_k8s(&["completions", "bash"]).stdout).unwrap();
    assert!(script.contains("--watch-namespaces"));
}

#[test]
fn a_wrong_use_is_answered_with_a_sentence() {
    for (args, sentence) in [
        (&["--app=mcp-http"][..], "--app=mcp-http does not exist in this release"),
        (&["controller", "--renew-deadline=20s"], "renew deadline"),
        (&["controller", "--lease-duration=soon"], "is not a time such as 15s"),
        (&["controller", "--kubeconfig=/nowhere"], "cannot read --kubeconfig /nowhere"),
        (&["controller", "--log-level=louder"], "louder"),
        (&["manifests", "--namespace=No Such"], "is not the name of a namespace"),
    ] {
        let Output { status, stderr, .. } = coder_k8s(args);
        let said = String::from_utf8(stderr).unwrap();
        assert!(!status.success() && said.contains(sentence), "{args:?}: {said}");
    }
}

#[test]
fn a_port_that_is_taken_is_one_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let kubeconfig = std::env::temp_dir().join(format!("coder-k8s-cli-{}", std::process::id()));
    let config = "{apiVersion: v1, kind: Config, current-context: a, users: [],
        clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: a, context: {cluster: a}}]}";
    std::fs::write(&kubeconfig, config).unwrap();
    let free = ["--health-addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"];
    for flag in ["--health-addr", "--metrics-addr", "--admin-addr"] {
        let mut args: Vec<String> =
            vec!["controller".into(), format!("--kubeconfig={}", kubeconfig.display())];
        args.extend(free.iter().filter(|free| !free.starts_with(flag)).map(|free| (*free).to_owned()));
        args.push(format!("{flag}={address}"));
        let Output { status, stderr, .. } = coder_k8s(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let said = String::from_utf8(stderr).unwrap();
        let sentence = format!(
            "coder-k8s: cannot listen on {address}: another process listens there; choose another address with {flag}, or `off`"
        );
        assert!(!status.success());
        assert_eq!(
            said.lines().filter(|line| line.contains("cannot listen")).collect::<Vec<_>>(),
            [sentence]
        );
    }
    std::fs::remove_file(&kubeconfig).unwrap();
}

#[test]
fn a_second_instance_finds_another_port_for_its_log_level() {
    use std::io::{BufRead, BufReader};

    // Whoever has the default port: this test, or another process.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8082");
    let kubeconfig = std::env::temp_dir().join(format!("coder-k8s-second-{}", std::process::id()));
    let config = "{apiVersion: v1, kind: Config, current-context: a, users: [],
        clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: a, context: {cluster: a}}]}";
    std::fs::write(&kubeconfig, config).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_coder-k8s"))
        .args(["controller", "--health-addr=127.0.0.1:0", "--metrics-addr=off", "--log-format=human"])
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let until_admin = |line: &String| !line.contains("serving for --admin-addr");
    let lines: Vec<_> = lines.take_while(until_admin).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&kubeconfig).unwrap();
    let said = "another process listens on 127.0.0.1:8082: --admin-addr takes a free port";
    assert!(lines.iter().any(|line| line.contains(said)), "{lines:#?}");
}
