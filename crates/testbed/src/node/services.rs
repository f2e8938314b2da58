//! Addresses behind Services, for clients outside the network of the cluster.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use coder_k8s_coderd::Resolve;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::probe::port_of;
use super::processes::Processes;
use super::substitutions::{Mention, ServiceName};

/// Resolves a Service to the processes of its ready endpoints, as the controllers of the cluster list them. Resolve
/// again for each connection to follow a rollout, as any client of a Service does.
#[derive(Clone)]
pub struct Resolver {
    client: Client,
    processes: Arc<Processes>,
}

impl Resolver {
    pub(super) fn new(client: Client, processes: Arc<Processes>) -> Self {
        Self { client, processes }
    }

    /// Addresses behind a port of a Service. `host` is its DNS name in the cluster.
    pub async fn find(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let missing = |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("{host}:{port}: {what}"));
        let name = ServiceName::parse(host).ok_or_else(|| missing("not the name of a Service"))?;
        let service = self.service(&name).await.map_err(io::Error::other)?;
        let service = service.ok_or_else(|| missing("there is no such Service"))?;
        let port =
            port_called(&service, Some(port)).ok_or_else(|| missing("the Service has no such port"))?;
        let mut found = self.ready(&name, port).await.map_err(io::Error::other)?;
        if found.is_empty() {
            found.extend(self.processes.found_outside(&name));
        }
        if found.is_empty() { Err(missing("no pod is ready")) } else { Ok(found) }
    }

    /// The address that replaces the name of a Service in the environment of a pod: that of the pod itself if it
    /// belongs to the Service, ready or not; else that of a ready pod; else the one of `Node::host`.
    pub(super) async fn stand_in(
        &self,
        mention: &Mention,
        pod: &Pod,
        address: Ipv4Addr,
    ) -> kube::Result<Option<SocketAddr>> {
        let Some(service) = self.service(&mention.name).await? else { return Ok(None) };
        let Some(port) = port_called(&service, mention.port) else { return Ok(None) };
        let same_namespace = pod.namespace().as_deref() == Some(mention.name.namespace.as_str());
        if same_namespace && selects(&service, pod) {
            return Ok(target(port, pod).map(|port| SocketAddr::from((address, port))));
        }
        let ready = self.ready(&mention.name, port).await?.first().copied();
        Ok(ready.or_else(|| self.processes.found_outside(&mention.name)))
    }

    async fn service(&self, name: &ServiceName) -> kube::Result<Option<Service>> {
        Api::<Service>::namespaced(self.client.clone(), &name.namespace).get_opt(&name.service).await
    }

    async fn ready(&self, name: &ServiceName, port: &ServicePort) -> kube::Result<Vec<SocketAddr>> {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), &name.namespace);
        let of_service =
            ListParams::default().labels(&format!("kubernetes.io/service-name={}", name.service));
        let mut found = Vec::new();
        for slice in slices.list(&of_service).await? {
            let port_name = port.name.as_deref().unwrap_or_default();
            let mut ports = slice.ports.iter().flatten();
            let number = ports
                .find(|port| port.name.as_deref().unwrap_or_default() == port_name)
                .and_then(|port| u16::try_from(port.port?).ok());
            let Some(number) = number else { continue };
            for endpoint in slice.endpoints.iter().flatten() {
                let ready = endpoint.conditions.as_ref().is_some_and(|it| it.ready == Some(true));
                let addresses =
                    endpoint.addresses.iter().filter_map(|text| self.processes.address(text.parse().ok()?));
                found.extend(addresses.filter(|_| ready).map(|address| SocketAddr::from((address, number))));
            }
        }
        Ok(found)
    }
}

impl Resolve for Resolver {
    fn resolve(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { self.find(&host, port).await })
    }
}

/// Port of the Service with this number, or its first port.
fn port_called(service: &Service, number: Option<u16>) -> Option<&ServicePort> {
    let mut ports = service.spec.as_ref()?.ports.iter().flatten();
    ports.find(|port| number.is_none_or(|number| port.port == i32::from(number)))
}

fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value))
    })
}

/// Port of the pod that a port of the Service leads to.
fn target(port: &ServicePort, pod: &Pod) -> Option<u16> {
    let default = IntOrString::Int(port.port);
    let wanted = port.target_port.as_ref().unwrap_or(&default);
    pod.spec.as_ref()?.containers.iter().find_map(|container| port_of(wanted, container))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_port_leads_to_that_of_the_pod() {
        let service: Service = serde_json::from_value(json!({"spec": {"selector": {"app": "web"}, "ports": [
            {"name": "http", "port": 80, "targetPort": "http"}, {"name": "same", "port": 99}]}}))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"labels": {"app": "web", "x": "y"}},
            "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]}}))
        .unwrap();
        let lead = |number| port_called(&service, number).and_then(|port| target(port, &pod));
        assert_eq!(
            (lead(Some(80)), lead(None), lead(Some(99)), lead(Some(81))),
            (Some(8080), Some(8080), Some(99), None)
        );
        assert!(selects(&service, &pod) && !selects(&service, &Pod::default()));
        assert!(!selects(&Service::default(), &pod));
    }
}
