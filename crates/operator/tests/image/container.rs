//! A container without a container engine: the root folder of the image, the devices that every container has, what
//! Kubernetes mounts into one, and the user of the image. It shares network and processes with this machine.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use coder_k8s_scenes::Operator;
use coder_k8s_testbed::Cluster;
use k8s_openapi::ByteString;
use serde_json::Value;

use crate::{NAMESPACE, dns};

/// The user of the image.
const USER: &str = "65532";
/// Where a pod finds its account.
const ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";
/// Devices that every container has by the specification of runtimes, with their minor numbers. Random numbers come from one.
const DEVICES: [(&str, &str); 3] = [("null", "3"), ("random", "8"), ("urandom", "9")];
/// The name of the API server, which only the hosts file knows.
const API_SERVER: &str = "kubernetes.default.svc";

pub(crate) struct Container {
    // Removed when dropped.
    _folder: tempfile::TempDir,
    pub(crate) root: PathBuf,
}

impl Container {
    /// A copy of the image, with the account of the operator, a hosts file and the address of a DNS server.
    pub(crate) async fn new(image: &Path, cluster: &Cluster) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can enter the root folder of an image, make its devices and serve DNS: run this test as root"
        );
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let copied = Command::new("cp").arg("--archive").args([image, &root]).status().unwrap();
        assert!(copied.success(), "cannot copy {}", image.display());

        let kubeconfig = cluster.kubeconfig_for_account(NAMESPACE, "coder-k8s").await.unwrap();
        let kubeconfig: Value = serde_saphyr::from_str(&fs::read_to_string(kubeconfig).unwrap()).unwrap();
        let ca = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].clone();
        let ByteString(ca) = serde_json::from_value(ca).unwrap();
        fs::create_dir_all(root.join(ACCOUNT)).unwrap();
        let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
        for (path, content) in [
            (format!("{ACCOUNT}/token"), token.as_bytes()),
            (format!("{ACCOUNT}/ca.crt"), &ca),
            (format!("{ACCOUNT}/namespace"), NAMESPACE.as_bytes()),
            ("etc/hosts".to_owned(), format!("127.0.0.1 localhost {API_SERVER}\n").as_bytes()),
            ("etc/resolv.conf".to_owned(), format!("nameserver {}\n", dns::ADDRESS).as_bytes()),
        ] {
            fs::write(root.join(path), content).unwrap();
        }
        fs::create_dir(root.join("dev")).unwrap();
        for (device, minor) in DEVICES {
            let mut command = Command::new("mknod");
            command.arg("--mode=666").arg(root.join("dev").join(device)).args(["c", "1", minor]);
            assert!(command.status().unwrap().success(), "cannot make the device {device}");
        }
        Self { _folder: folder, root }
    }

    /// Runs the entrypoint with these arguments, as Kubernetes would in a pod of the operator.
    pub(crate) fn start(&self, cluster: &Cluster, args: &[String]) -> Operator {
        let port = cluster.url().rsplit(':').next().unwrap();
        let mut command = self.enter();
        command.arg("/coder-k8s").args(args).env_clear();
        for (name, value) in [
            // To find the program that enters the root folder.
            ("PATH", std::env::var("PATH").unwrap().as_str()),
            ("KUBERNETES_SERVICE_HOST", API_SERVER),
            ("KUBERNETES_SERVICE_PORT", port),
            ("POD_NAME", "coder-k8s-image"),
            ("POD_NAMESPACE", NAMESPACE),
            // The machine is not the container's own: ports may be in use, and the servers of the test are on loopback.
            ("CODER_K8S_HEALTH_ADDR", "127.0.0.1:0"),
            ("CODER_K8S_METRICS_ADDR", "127.0.0.1:0"),
            ("CODER_K8S_ADMIN_ADDR", "127.0.0.1:0"),
            ("CODER_K8S_ALLOWED_ADDRESS_RANGES", "127.0.0.0/8"),
            ("CODER_K8S_LOG_FORMAT", "json"),
        ] {
            command.env(name, value);
        }
        let user = format!("system:serviceaccount:{NAMESPACE}:coder-k8s");
        Operator::start_command(user, cluster.run_dir().join("output-image"), command)
    }

    /// The command that enters the root folder as the user of the image.
    fn enter(&self) -> Command {
        let mut command = Command::new("chroot");
        command.arg(format!("--userspec={USER}:{USER}")).arg(format!("--groups={USER}")).arg(&self.root);
        command
    }

    /// The paths of all files in it.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let (mut files, mut next) = (BTreeSet::new(), vec![self.root.clone()]);
        while let Some(folder) = next.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    next.push(entry.path());
                } else {
                    files.insert(entry.path());
                }
            }
        }
        files
    }
}

/// The users that a process is: real, effective, saved and for files.
pub(crate) fn users_of(process: u32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}
