//! Command lines of the components. A flag that is not set here has the default of the component.

use std::path::Path;

/// Controllers that need a kubelet or a cloud. Without those they would evict pods or wait forever.
const DISABLED_CONTROLLERS: [&str; 8] = [
    "cloud-node-lifecycle-controller",
    "node-ipam-controller",
    "node-lifecycle-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "service-lb-controller",
    "taint-eviction-controller",
    "ttl-controller",
];

/// Files of the run directory that the command lines refer to.
pub(super) struct Files<'a> {
    pub(super) dir: &'a Path,
}

impl Files<'_> {
    pub(super) const AUDIT_POLICY: &'static str = "audit-policy.json";
    pub(super) const CA: &'static str = "ca.pem";
    pub(super) const CONTROLLER_MANAGER_KUBECONFIG: &'static str = "kube-controller-manager.kubeconfig";
    pub(super) const SERVER: &'static str = "server.pem";
    pub(super) const SERVER_KEY: &'static str = "server-key.pem";
    pub(super) const SERVICE_ACCOUNT_KEY: &'static str = "service-account-key.pem";
    pub(super) const SERVICE_ACCOUNT_PUBLIC_KEY: &'static str = "service-account.pem";
    pub(super) const TOKENS: &'static str = "tokens.csv";

    fn flag(&self, flag: &str, file: &str) -> String {
        format!("--{flag}={}", self.dir.join(file).display())
    }
}

pub(super) fn etcd(files: &Files<'_>, port: u16) -> Vec<String> {
    let url = format!("http://127.0.0.1:{port}");
    vec![
        files.flag("data-dir", "etcd"),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        "--listen-peer-urls=http://127.0.0.1:0".into(),
        "--log-level=warn".into(),
        // The data is thrown away, so it does not have to survive a power loss.
        "--unsafe-no-fsync".into(),
    ]
}

pub(super) fn kube_apiserver(
    files: &Files<'_>,
    port: u16,
    etcd_port: u16,
    audit_log: &str,
    controllers: bool,
) -> Vec<String> {
    let mut args = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        // Without it the server looks for an interface with a default route, which a machine without a network lacks.
        "--advertise-address=127.0.0.1".into(),
        // A loopback address is no valid endpoint, so the server must not register itself as one.
        "--endpoint-reconciler-type=none".into(),
        files.flag("cert-dir", "apiserver-certs"),
        files.flag("tls-cert-file", Files::SERVER),
        files.flag("tls-private-key-file", Files::SERVER_KEY),
        files.flag("token-auth-file", Files::TOKENS),
        "--authorization-mode=RBAC".into(),
        "--allow-privileged=true".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        files.flag("service-account-signing-key-file", Files::SERVICE_ACCOUNT_KEY),
        files.flag("service-account-key-file", Files::SERVICE_ACCOUNT_PUBLIC_KEY),
        files.flag("audit-policy-file", Files::AUDIT_POLICY),
        files.flag("audit-log-path", audit_log),
        "--audit-log-maxsize=0".into(),
    ];
    if !controllers {
        args.push("--disable-admission-plugins=ServiceAccount".into());
    }
    args
}

pub(super) fn kube_controller_manager(files: &Files<'_>) -> Vec<String> {
    let left_out: String = DISABLED_CONTROLLERS.iter().flat_map(|name| [",-", name]).collect();
    vec![
        files.flag("kubeconfig", Files::CONTROLLER_MANAGER_KUBECONFIG),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
        "--use-service-account-credentials=false".into(),
        files.flag("root-ca-file", Files::CA),
        files.flag("service-account-private-key-file", Files::SERVICE_ACCOUNT_KEY),
        format!("--controllers=*{left_out}"),
        // The default of 20 requests a second would dominate tests with many objects.
        "--kube-api-qps=300".into(),
        "--kube-api-burst=600".into(),
    ]
}
