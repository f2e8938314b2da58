//! The flags of the controller. Each has an environment variable: `--health-addr` is `CODER_K8S_HEALTH_ADDR`.

use std::{path::PathBuf, time::Duration};

use coder_k8s_api::names;
use coder_k8s_coderd::AddressRange;
use coder_k8s_engine::{address::Address, lease, logs::Format};

/// Kubernetes mounts the namespace of a pod here.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The longest time that a flag takes, so that no sum of times overflows.
const LONGEST: Duration = Duration::from_hours(30 * 24);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Default of `--admin-addr`. If another process has it, the listener takes a free port.
pub(crate) const ADMIN_ADDR: &str = "127.0.0.1:8082";

/// Flags of the controller. The doc comments are the text of `--help`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Kubeconfig file [default: KUBECONFIG, then the pod's ServiceAccount, then ~/.kube/config]
    #[arg(long, env = "CODER_K8S_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Namespaces to watch, separated by commas [default: all]
    #[arg(long, env = "CODER_K8S_WATCH_NAMESPACES", value_name = "NAMESPACES", value_delimiter = ',')]
    pub(crate) watch_namespaces: Vec<String>,

    /// Addresses of coderd that `operatorAccess.apiURL` and `bootstrap.coderURL` may name, separated by commas, for
    /// example https://coder.example.com. The Service of a control plane is always allowed to itself and to the proxies
    /// of its namespace [default: none]
    #[arg(long, env = "CODER_K8S_ALLOWED_CODER_URLS", value_name = "URLS", value_delimiter = ',')]
    pub(crate) allowed_coder_urls: Vec<String>,

    /// Ranges of addresses that URLs of coderd and of its database may lead to, although they are loopback, link-local,
    /// metadata or multicast addresses, separated by commas, for example 127.0.0.0/8. The API server is never allowed
    /// [default: none]
    #[arg(long, env = "CODER_K8S_ALLOWED_ADDRESS_RANGES", value_name = "RANGES", value_delimiter = ',')]
    pub(crate) allowed_address_ranges: Vec<AddressRange>,

    /// Allow `rbac.extraRules` to grant workspaces access to Secrets, RBAC and ServiceAccount tokens
    #[arg(long, env = "CODER_K8S_ALLOW_PRIVILEGED_WORKSPACE_RULES", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) allow_privileged_workspace_rules: bool,

    /// Write only while holding the lease, so that several instances can run
    #[arg(long, env = "CODER_K8S_LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub(crate) leader_elect: bool,

    /// Namespace of the lease [default: `POD_NAMESPACE`, then the namespace of the pod, then kube-system]
    #[arg(long, env = "CODER_K8S_LEADER_ELECT_NAMESPACE", value_name = "NAMESPACE")]
    pub(crate) leader_elect_namespace: Option<String>,

    /// How long other instances respect a lease that is not renewed
    #[arg(long, env = "CODER_K8S_LEASE_DURATION", default_value = "15s", value_parser = duration, value_name = "TIME")]
    pub(crate) lease_duration: Duration,

    /// How long the leader continues without renewing its lease
    #[arg(long, env = "CODER_K8S_RENEW_DEADLINE", default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) renew_deadline: Duration,

    /// How often the leader renews the lease and other instances check it
    #[arg(long, env = "CODER_K8S_RETRY_PERIOD", default_value = "2s", value_parser = duration, value_name = "TIME")]
    pub(crate) retry_period: Duration,

    /// Name of this instance in the lease; a random suffix is added [default: `POD_NAME`, then the host name]
    #[arg(long, env = "CODER_K8S_IDENTITY", value_name = "NAME")]
    pub(crate) identity: Option<String>,

    /// Address of /readyz, /livez and /healthz, or `off`
    #[arg(long, env = "CODER_K8S_HEALTH_ADDR", default_value = ":8081", value_name = "ADDRESS")]
    pub(crate) health_addr: Address,

    /// Address of /metrics, or `off`
    #[arg(long, env = "CODER_K8S_METRICS_ADDR", default_value = ":8080", value_name = "ADDRESS")]
    pub(crate) metrics_addr: Address,

    /// Address of /log-level, which shows and changes the log level, or `off`; reach it with `kubectl port-forward`. If
    /// the default port is taken, a free one is used, and logged
    #[arg(long, env = "CODER_K8S_ADMIN_ADDR", default_value = ADMIN_ADDR, value_name = "ADDRESS")]
    pub(crate) admin_addr: Address,

    /// Log format: human, json, or auto, which is human on a terminal and else json
    #[arg(long, env = "CODER_K8S_LOG_FORMAT", default_value = "auto", value_name = "FORMAT")]
    pub(crate) log_format: Format,

    /// Log level: error, warn, info, debug, trace, or a filter such as `info,coder_k8s_engine::lease=debug`
    #[arg(long, env = "CODER_K8S_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub(crate) log_level: String,

    /// How many objects are reconciled at a time
    #[arg(long, env = "CODER_K8S_CONCURRENCY", default_value_t = 32, value_name = "NUMBER", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) concurrency: usize,

    /// Deadline of a call to the API server
    #[arg(long, env = "CODER_K8S_REQUEST_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) request_timeout: Duration,

    /// Deadline of a call to coderd
    #[arg(long, env = "CODER_K8S_CODERD_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) coderd_timeout: Duration,

    /// Deadline of a session with a database of coderd
    #[arg(long, env = "CODER_K8S_DATABASE_TIMEOUT", default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) database_timeout: Duration,

    /// How long cleanup in coderd may delay the deletion of an object; then an event names what is left
    #[arg(long, env = "CODER_K8S_CLEANUP_TIMEOUT", default_value = "120s", value_parser = duration, value_name = "TIME")]
    pub(crate) cleanup_timeout: Duration,

    /// How often the operator reads whether a watched namespace consents to workspaces of another one. Without
    /// `--watch-namespaces` it watches namespaces instead
    #[arg(long, env = "CODER_K8S_CONSENT_INTERVAL", default_value = "60s", value_parser = interval, value_name = "TIME")]
    pub(crate) consent_interval: Duration,

    /// How often the operator asks coderd for its entitlements. Pools and proxies trust them for 120 s
    #[arg(long, env = "CODER_K8S_ENTITLEMENTS_INTERVAL", default_value = "100s", value_parser = interval, value_name = "TIME", hide = true)]
    pub(crate) entitlements_interval: Duration,

    /// How often tokens, licenses, keys and registrations are verified when nothing changes
    #[arg(long, env = "CODER_K8S_VERIFY_INTERVAL", default_value = "10m", value_parser = interval, value_name = "TIME", hide = true)]
    pub(crate) verify_interval: Duration,

    /// How often the operator lists the daemons and pending jobs of an organization with pools
    #[arg(long, env = "CODER_K8S_DAEMONS_INTERVAL", default_value = "60s", value_parser = interval, value_name = "TIME")]
    pub(crate) daemons_interval: Duration,

    /// How often the operator lists daemons and jobs where a pool has `spec.autoscaling`, while jobs wait or pods start. At
    /// rest it is half as often
    #[arg(long, env = "CODER_K8S_AUTOSCALING_INTERVAL", default_value = "5s", value_parser = interval, value_name = "TIME")]
    pub(crate) autoscaling_interval: Duration,

    /// How long a daemon may take to connect after its pod is ready before the operator reports it
    #[arg(long, env = "CODER_K8S_DAEMONS_PATIENCE", default_value = "3m", value_parser = duration, value_name = "TIME", hide = true)]
    pub(crate) daemons_patience: Duration,

    /// How long running reconciles may take after the operator is asked to stop
    #[arg(long, env = "CODER_K8S_SHUTDOWN_TIMEOUT", default_value = "20s", value_parser = duration, value_name = "TIME")]
    pub(crate) shutdown_timeout: Duration,
}

impl Options {
    /// The settings of the leader election.
    pub(crate) fn lease(&self) -> lease::LeaseSettings {
        lease::LeaseSettings {
            namespace: self.lease_namespace(),
            name: names::LEASE.to_owned(),
            identity: self.identity(),
            lease_duration: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
        }
    }

    fn lease_namespace(&self) -> String {
        let of_pod = std::env::var("POD_NAMESPACE").ok();
        first_of([self.leader_elect_namespace.clone(), of_pod, std::fs::read_to_string(NAMESPACE_FILE).ok()])
            .unwrap_or_else(|| "kube-system".to_owned())
    }

    /// Unique to this process, so that a restarted container does not hold the lease of its predecessor.
    fn identity(&self) -> String {
        let host =
            || std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
        let name = self.identity.clone().or_else(|| std::env::var("POD_NAME").ok()).or_else(host);
        format!("{}_{}", name.unwrap_or_else(|| "coder-k8s".to_owned()), uuid::Uuid::new_v4())
    }
}

/// The first candidate that is not blank, trimmed.
fn first_of(candidates: [Option<String>; 3]) -> Option<String> {
    candidates.into_iter().flatten().map(|text| text.trim().to_owned()).find(|text| !text.is_empty())
}

/// Parses `15s`, `500ms`, `2m` or `1h30m`, above zero and at most [`LONGEST`].
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| format!("{text:?} is not a time such as 15s, 500ms or 2m"))?;
    let time = Duration::try_from(parsed).unwrap_or_default();
    match time {
        Duration::ZERO => Err(format!("{text:?} is not above zero; use a time such as 15s")),
        _ if time > LONGEST => Err(format!("{text:?} is too long; use at most 30 days (720h)")),
        _ => Ok(time),
    }
}

/// Parses how often something is done. A shorter interval would be a busy loop.
fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < SHORTEST_INTERVAL {
        return Err(format!("{text:?} is too short for an interval; use at least 100ms"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_the_lease_is_the_first_that_is_known() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(first_of([some("flag"), some("pod"), some("file")]).as_deref(), Some("flag"));
        assert_eq!(first_of([None, some(" pod\n"), some("file")]).as_deref(), Some("pod"));
        assert_eq!(first_of([None, some(" "), some("file\n")]).as_deref(), Some("file"));
        assert_eq!(first_of([None, None, None]), None);
    }

    #[test]
    fn times_are_parsed_as_people_write_them() {
        assert_eq!(duration("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(duration("soon").unwrap_err().contains("is not a time such as"));
        for text in ["-5s", "0s"] {
            assert!(duration(text).unwrap_err().contains("above zero"), "{text}");
        }
        assert!(duration("721h").unwrap_err().contains("at most 30 days"));
    }

    #[test]
    fn an_interval_is_no_busy_loop() {
        assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
        for text in ["99ms", "1ns", "0s", "-1s", "9999999999h", "soon"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
