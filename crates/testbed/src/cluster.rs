//! A control plane that runs until it is dropped.
//!
//! [`Cluster::builder`] starts real components on loopback, with RBAC and the default admission plugins. The caller
//! is `admin`, a member of `system:masters`; [`Cluster::client_as`] impersonates anyone else. Requests of the
//! components come from other users, which the audit log leaves out. Dropping the cluster, or the end of the process,
//! stops its processes and removes its files.

mod access;
mod flags;
mod start;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::audit::{self, AuditEvent};
use crate::binaries::{self, Binaries};
use crate::node::Node;
use crate::process::{Component, Group};
use access::Access;

/// Why a cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is missing.
    #[error(transparent)]
    Binaries(#[from] binaries::Error),
    /// A component exited.
    #[error("{component} ended ({status}); its last lines:\n{log}")]
    Exited {
        /// Name of the program.
        component: &'static str,
        /// Exit status.
        status: ExitStatus,
        /// Last lines of its log.
        log: String,
    },
    /// A component runs, but did not become ready.
    #[error("{component} is not ready after {after:?} ({last}); its last lines:\n{log}")]
    NotReady {
        /// Name of the program.
        component: &'static str,
        /// How long the start waited.
        after: Duration,
        /// Result of the last readiness check.
        last: String,
        /// Last lines of its log.
        log: String,
    },
    /// A custom resource definition could not be installed.
    #[error("cannot install the custom resource definition {name}: {problem}")]
    Crd {
        /// Name of the definition.
        name: String,
        /// Answer of the API server, or the condition that is missing.
        problem: String,
    },
    /// The certificates could not be created.
    #[error("cannot make the cluster's certificates")]
    Pki(#[from] rcgen::Error),
    /// An operation on a process or file failed.
    #[error("cannot {action}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl Error {
    fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// Whether another port would have helped, so that the start is worth repeating.
    fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Exited { log, .. } if log.contains("address already in use"))
    }
}

type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// Options of a cluster.
#[must_use]
pub struct Builder {
    binaries: Option<Binaries>,
    controller_manager: bool,
    crds: Vec<CustomResourceDefinition>,
    streams_lists: bool,
    ready_within: Duration,
    tell: Tell,
}

impl Builder {
    /// Whether to run kube-controller-manager; on by default. Without it nothing is garbage collected or rolled
    /// out, and the service account admission plugin, which would refuse every pod, is off.
    pub fn controller_manager(mut self, wanted: bool) -> Self {
        self.controller_manager = wanted;
        self
    }

    /// Definitions to install before the controllers start, so that garbage collection knows them at once.
    pub fn crds(mut self, crds: Vec<CustomResourceDefinition>) -> Self {
        self.crds = crds;
        self
    }

    /// Whether a watch may begin with the objects that exist (feature gate `WatchList`); on by default. An API server of
    /// Kubernetes 1.33 refuses it unless it is told otherwise.
    pub fn streaming_lists(mut self, allowed: bool) -> Self {
        self.streams_lists = allowed;
        self
    }

    /// Uses these programs instead of those of [`Binaries::locate`].
    pub fn binaries(mut self, binaries: Binaries) -> Self {
        self.binaries = Some(binaries);
        self
    }

    /// How long each component may take to become ready. Defaults to a minute.
    pub fn ready_within(mut self, limit: Duration) -> Self {
        self.ready_within = limit;
        self
    }

    /// Calls `tell` with a line for people at each step of the start.
    pub fn progress(mut self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.tell = Box::new(tell);
        self
    }

    /// Starts the cluster and waits until it is ready. Dropping the future stops what was started.
    pub async fn start(self) -> Result<Cluster, Error> {
        start::start(self).await
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct Cluster {
    binaries: Binaries,
    access: Access,
    etcd: parking_lot::Mutex<Arc<Component>>,
    etcd_args: Vec<String>,
    etcd_port: u16,
    api_server: Mutex<Arc<Component>>,
    api_server_args: Vec<String>,
    controller_manager: Option<Arc<Component>>,
    ready_within: Duration,
    audit_log: Mutex<audit::Log>,
    group: Group,
}

impl Cluster {
    /// A cluster with a controller-manager and without custom resources by default.
    pub fn builder() -> Builder {
        Builder {
            binaries: None,
            controller_manager: true,
            crds: Vec::new(),
            streams_lists: true,
            ready_within: Duration::from_mins(1),
            tell: Box::new(|_| {}),
        }
    }

    /// The programs that the cluster runs.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// URL of the API server.
    pub fn url(&self) -> &str {
        &self.access.url
    }

    /// Path of a kubeconfig for `admin`, valid while the cluster runs.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.group.dir().file(start::KUBECONFIG)
    }

    /// Content of that kubeconfig, with certificates and token inline.
    pub fn kubeconfig_yaml(&self) -> String {
        self.access.kubeconfig(&self.access.admin)
    }

    /// Writes a kubeconfig for a ServiceAccount, with a token of its own and the permissions of that account only.
    pub async fn kubeconfig_for_account(&self, namespace: &str, name: &str) -> kube::Result<PathBuf> {
        let accounts: Api<ServiceAccount> =
            Api::namespaced(access::client(self.access.config(&self.access.testbed)), namespace);
        let wanted = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(24 * 3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let given = accounts.create_token_request(name, &PostParams::default(), &wanted).await?;
        let token = given.status.and_then(|status| status.token).unwrap_or_default();
        let path = self.run_dir().join(format!("kubeconfig-{namespace}-{name}"));
        std::fs::write(&path, self.access.kubeconfig_with(name, &token))
            .map_err(|error| kube::Error::Service(error.into()))?;
        Ok(path)
    }

    /// Client configuration for `admin`.
    pub fn config(&self) -> kube::Config {
        self.access.config(&self.access.admin)
    }

    /// A new client for `admin`. Its connections belong to the calling runtime and end with it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn client(&self) -> kube::Client {
        access::client(self.config())
    }

    /// A new client that acts as someone else, by impersonation.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn client_as(&self, user: &str, groups: &[&str]) -> kube::Client {
        let mut config = self.config();
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.iter().map(|&group| group.to_owned()).collect());
        access::client(config)
    }

    /// A new client of the testbed itself, whose requests the audit log leaves out.
    pub(crate) fn own_client(&self) -> kube::Client {
        access::client(self.access.config(&self.access.testbed))
    }

    /// Starts a node on the calling runtime. The audit log leaves its requests out.
    pub async fn node(&self, name: &str) -> kube::Result<Node> {
        Node::start(self.own_client(), name).await
    }

    /// The requests so far, without those of the components. [`AuditEvent`] describes which entries arrive late.
    pub fn audit(&self) -> io::Result<Vec<AuditEvent>> {
        self.audit_where(|_| true)
    }

    /// Those of [`Self::audit`] for which something holds.
    pub fn audit_where(&self, holds: impl Fn(&AuditEvent) -> bool) -> io::Result<Vec<AuditEvent>> {
        let mut log = self.audit_log.lock();
        let events = log.events(&self.group.dir().file(start::AUDIT_LOG))?;
        Ok(events.iter().filter(|event| holds(event)).cloned().collect())
    }

    /// Whether a controller-manager runs.
    pub fn has_controller_manager(&self) -> bool {
        self.controller_manager.is_some()
    }

    /// Suspends the process of the API server: connections stay open and, once this returns, nothing is answered.
    pub fn pause_api_server(&self) -> io::Result<()> {
        self.api_server.lock().pause()
    }

    /// Continues a suspended API server.
    pub fn resume_api_server(&self) -> io::Result<()> {
        self.api_server.lock().signal(Signal::CONT)
    }

    /// Kills the API server, starts it with the same address and data, and waits until it is ready.
    pub async fn restart_api_server(&self) -> Result<(), Error> {
        self.stop_api_server()?;
        self.start_api_server().await
    }

    /// Kills the API server: connections are refused until [`Self::start_api_server`].
    pub fn stop_api_server(&self) -> Result<(), Error> {
        start::stop_api_server(self)
    }

    /// Starts an API server that was stopped, with the same address and data, and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<(), Error> {
        start::start_api_server(self).await
    }

    /// Kills etcd and starts it again with the same address and data. Waits until the API server works with it.
    pub async fn restart_etcd(&self) -> Result<(), Error> {
        start::restart_etcd(self).await
    }

    /// Directory with the data, keys and logs of the cluster.
    pub fn run_dir(&self) -> &Path {
        self.group.dir().path()
    }

    /// Process ids of the running components.
    pub fn pids(&self) -> Vec<i32> {
        self.group.pids()
    }

    /// Process id of the guard, which kills the components when this process is gone.
    pub fn guard_pid(&self) -> u32 {
        self.group.guard_pid()
    }

    /// Last lines of the log of each component, for the report on a failed test.
    pub fn logs(&self) -> Vec<(&'static str, String)> {
        let (etcd, api_server) = (self.etcd.lock().clone(), self.api_server.lock().clone());
        [Some(&etcd), Some(&api_server), self.controller_manager.as_ref()]
            .into_iter()
            .flatten()
            .map(|component| (component.name, component.log_tail()))
            .collect()
    }

    /// Stops the processes and removes the files. Unlike a drop, it does not block the runtime.
    pub async fn stop(self) {
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}
