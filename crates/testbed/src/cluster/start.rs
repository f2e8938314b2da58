//! The start of a cluster: each component starts when the one that it needs is ready.
//!
//! Every wait also watches the processes, so that a component that exits is reported at once with the end of its log.
//! A port that another process took in the meantime is the only failure that is retried.

use std::fmt::Display;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{conditions, wait::Condition as _};
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::access::{self, Access, CONTROLLER_MANAGER, TESTBED};
use super::flags::{self, Files};
use super::{Builder, Cluster, Error};
use crate::audit;
use crate::binaries::Binaries;
use crate::eventually;
use crate::pki::Pki;
use crate::ports::free_port;
use crate::process::{Component, Group};

pub(super) const AUDIT_LOG: &str = "audit.log";
pub(super) const KUBECONFIG: &str = "kubeconfig";

const ATTEMPTS: u32 = 3;
const POLL: Duration = Duration::from_millis(25);
const PROBE_WITHIN: Duration = Duration::from_secs(2);

pub(super) async fn start(builder: Builder) -> Result<Cluster, Error> {
    let binaries = match &builder.binaries {
        Some(binaries) => binaries.clone(),
        None => Binaries::locate()?,
    };
    let mut attempt = 1;
    loop {
        match start_once(&builder, &binaries).await {
            Err(error) if error.is_address_in_use() && attempt < ATTEMPTS => {
                tracing::debug!(%error, attempt, "a port was taken in the meantime");
                attempt += 1;
            }
            other => return other,
        }
    }
}

async fn start_once(builder: &Builder, binaries: &Binaries) -> Result<Cluster, Error> {
    let Builder { binaries: _, controller_manager, crds, streams_lists, ready_within, tell } = builder;
    let group = tokio::task::spawn_blocking(Group::start)
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(Error::io("set up the cluster's run directory"))?;
    let (etcd_port, api_port) = free_port()
        .and_then(|etcd| Ok((etcd, free_port()?)))
        .map_err(Error::io("find free ports on 127.0.0.1"))?;
    let pki = Pki::generate()?;
    let access = Access::new(api_port, &pki).map_err(Error::io("make tokens"))?;
    write_files(&group, &pki, &access)
        .and_then(|()| audit::create(&group.dir().file(AUDIT_LOG)))
        .map_err(Error::io("write the cluster's files"))?;
    let files = Files { dir: group.dir().path() };

    let etcd_args = flags::etcd(&files, etcd_port);
    let etcd = group.spawn("etcd", &binaries.etcd, &etcd_args).map_err(Error::io("start etcd"))?;
    ready(&etcd, &[], *ready_within, || TcpStream::connect((Ipv4Addr::LOCALHOST, etcd_port))).await?;
    tell("etcd is up");

    let mut args = flags::kube_apiserver(&files, api_port, etcd_port, AUDIT_LOG, *controller_manager);
    if !streams_lists {
        args.push("--feature-gates=WatchList=false".into());
    }
    let api_server = group
        .spawn("kube-apiserver", &binaries.kube_apiserver, &args)
        .map_err(Error::io("start kube-apiserver"))?;
    let client = own_client(&access);
    ready(&api_server, &[&etcd], *ready_within, || readyz(&client)).await?;
    tell("kube-apiserver is up");

    try_join_all(crds.iter().map(|crd| install(&client, crd, *ready_within))).await?;
    if !crds.is_empty() {
        tell("the custom resource definitions are established");
    }

    let controller_manager = if *controller_manager {
        let args = flags::kube_controller_manager(&files);
        let component = group
            .spawn("kube-controller-manager", &binaries.kube_controller_manager, &args)
            .map_err(Error::io("start kube-controller-manager"))?;
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "default");
        ready(&component, &[&etcd, &api_server], *ready_within, || accounts.get("default")).await?;
        tell("kube-controller-manager is up");
        Some(component)
    } else {
        // The API server creates it by itself, some time after it has become ready.
        let namespaces = Api::<Namespace>::all(client.clone());
        ready(&api_server, &[&etcd], *ready_within, || namespaces.get("default")).await?;
        None
    };
    Ok(Cluster {
        audit_log: parking_lot::Mutex::default(),
        binaries: binaries.clone(),
        access,
        etcd: Mutex::new(etcd),
        etcd_args,
        etcd_port,
        api_server: Mutex::new(api_server),
        api_server_args: args,
        controller_manager,
        ready_within: *ready_within,
        group,
    })
}

pub(super) fn stop_api_server(cluster: &Cluster) -> Result<(), Error> {
    let running = cluster.api_server.lock().clone();
    running.kill().map_err(Error::io("kill kube-apiserver"))
}

pub(super) async fn start_api_server(cluster: &Cluster) -> Result<(), Error> {
    let new = cluster
        .group
        .spawn("kube-apiserver", &cluster.binaries.kube_apiserver, &cluster.api_server_args)
        .map_err(Error::io("start kube-apiserver"))?;
    cluster.api_server.lock().clone_from(&new);
    let client = own_client(&cluster.access);
    let etcd = cluster.etcd.lock().clone();
    ready(&new, &[&etcd], cluster.ready_within, || readyz(&client)).await
}

pub(super) async fn restart_etcd(cluster: &Cluster) -> Result<(), Error> {
    let running = cluster.etcd.lock().clone();
    running.kill().map_err(Error::io("kill etcd"))?;
    let new = cluster
        .group
        .spawn("etcd", &cluster.binaries.etcd, &cluster.etcd_args)
        .map_err(Error::io("start etcd"))?;
    cluster.etcd.lock().clone_from(&new);
    let port = cluster.etcd_port;
    ready(&new, &[], cluster.ready_within, || TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await?;
    let client = own_client(&cluster.access);
    ready(&new, &[], cluster.ready_within, || readyz(&client)).await
}

fn write_files(group: &Group, pki: &Pki, access: &Access) -> io::Result<()> {
    let Pki { ca, ca_der: _, server, server_key, service_account_key, service_account_public_key } = pki;
    let unlogged = ["system:apiserver", CONTROLLER_MANAGER, TESTBED];
    for (name, content) in [
        (Files::CA, ca),
        (Files::SERVER, server),
        (Files::SERVER_KEY, server_key),
        (Files::SERVICE_ACCOUNT_KEY, service_account_key),
        (Files::SERVICE_ACCOUNT_PUBLIC_KEY, service_account_public_key),
        (Files::TOKENS, &access.token_file()),
        (Files::AUDIT_POLICY, &audit::policy(&unlogged)),
        (Files::CONTROLLER_MANAGER_KUBECONFIG, &access.kubeconfig(&access.controller_manager)),
        (KUBECONFIG, &access.kubeconfig(&access.admin)),
    ] {
        group.dir().write(name, content)?;
    }
    Ok(())
}

/// A client without retries, so that each check of a starting server is short.
fn own_client(access: &Access) -> Client {
    let mut config = access.config(&access.testbed);
    config.default_retry = false;
    access::client(config)
}

async fn readyz(client: &Client) -> kube::Result<String> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}

/// Waits until the probe succeeds. Fails as soon as the component, or one that it needs, exits.
async fn ready<T, E, Fut>(
    component: &Component,
    needed: &[&Component],
    within: Duration,
    mut probe: impl FnMut() -> Fut,
) -> Result<(), Error>
where
    E: Display,
    Fut: Future<Output = Result<T, E>>,
{
    let began = Instant::now();
    let mut last = String::new();
    while began.elapsed() < within {
        match tokio::time::timeout(PROBE_WITHIN, probe()).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => last = error.to_string(),
            Err(_) => last = format!("no answer within {PROBE_WITHIN:?}"),
        }
        for component in needed.iter().copied().chain([component]) {
            if let Some(status) = component.exited() {
                return Err(Error::Exited { component: component.name, status, log: component.log_tail() });
            }
        }
        tokio::time::sleep(POLL).await;
    }
    Err(Error::NotReady { component: component.name, after: within, last, log: component.log_tail() })
}

/// Installs a definition and waits until the API server serves it.
async fn install(client: &Client, crd: &CustomResourceDefinition, within: Duration) -> Result<(), Error> {
    let name = crd.name_any();
    let failed = |problem: String| Error::Crd { name: name.clone(), problem };
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let params = PatchParams::apply("coder-k8s-testbed").force();
    api.patch(&name, &params, &Patch::Apply(crd)).await.map_err(|error| failed(error.to_string()))?;
    eventually(within, || async {
        let seen = api.get(&name).await.map_err(|error| error.to_string())?;
        if conditions::is_crd_established().matches_object(Some(&seen)) {
            Ok(())
        } else {
            Err(format!("conditions {:?}", seen.status.and_then(|status| status.conditions)))
        }
    })
    .await
    .map_err(|error| failed(error.to_string()))?;

    let spec = &crd.spec;
    for version in spec.versions.iter().filter(|version| version.served) {
        let group_version = format!("{}/{}", spec.group, version.name);
        eventually(within, || async {
            match client.list_api_group_resources(&group_version).await {
                Ok(list) if list.resources.iter().any(|resource| resource.name == spec.names.plural) => {
                    Ok(())
                }
                Ok(_) => Err(format!("{group_version} does not serve it yet")),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
        .map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}
