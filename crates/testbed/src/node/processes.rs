//! The processes of a node: programs, addresses of pods, files.
//!
//! In the API a pod has an address that an `EndpointSlice` accepts. Its processes listen on another one, of
//! 127.0.0.0/8, which no other pod of this host has.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::program::{Program, Programs};
use super::substitutions::ServiceName;
use crate::ports::own_address;
use crate::process::Group;

/// A stub. A provisioner daemon looks for terraform at its start, and downloads it if there is none.
const TERRAFORM: &str = "#!/bin/sh
echo '{\"terraform_version\":\"1.15.5\",\"platform\":\"linux_amd64\",\"provider_selections\":{},\"terraform_outdated\":false}'
";
const TAIL_LINES: usize = 40;

/// Everything about the processes of one node.
#[derive(Debug, Default)]
pub(super) struct Processes {
    group: OnceLock<Group>,
    programs: Mutex<Programs>,
    /// Listen address by the address of the pod in the API.
    addresses: Mutex<HashMap<Ipv4Addr, Ipv4Addr>>,
    /// Services outside the cluster, see `Node::host`.
    outside: Mutex<HashMap<ServiceName, SocketAddr>>,
    /// Exits with the namespace of their pod.
    exits: Mutex<Vec<(String, Exit)>>,
}

/// Exit of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Name of the pod.
    pub pod: String,
    /// Exit code as container runtimes report it: 128 plus the number of the signal.
    pub code: i32,
    /// When the process was asked to stop, because its pod was deleted or its probe failed. `None` if it exited by
    /// itself.
    pub told: Option<Timestamp>,
    /// When the process exited.
    pub finished: Timestamp,
}

/// Directories of one pod.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    pub(super) home: PathBuf,
    pub(super) temporary: PathBuf,
    pub(super) path: String,
    log: PathBuf,
}

impl Processes {
    /// Registers a program for an image.
    pub(super) fn add(&self, image: &str, program: Program) -> io::Result<()> {
        if self.group.get().is_none() {
            let group = Group::start()?;
            let terraform = group.dir().file("bin/terraform");
            for folder in ["bin", "logs", "pods"] {
                std::fs::create_dir(group.dir().file(folder))?;
            }
            std::fs::write(&terraform, TERRAFORM)?;
            std::fs::set_permissions(&terraform, std::fs::Permissions::from_mode(0o755))?;
            // Another caller may have set its group first. That one is used, and this one ends when it is dropped.
            let _ = self.group.set(group);
        }
        self.programs.lock().add(image, program);
        Ok(())
    }

    pub(super) fn group(&self) -> io::Result<&Group> {
        self.group.get().ok_or_else(|| io::Error::other("the node runs no programs"))
    }

    pub(super) fn program(&self, container: &Container) -> Option<Program> {
        self.programs.lock().of(container).cloned()
    }

    /// Assigns a listen address to a pod.
    pub(super) fn place(&self, pod: &Pod, ip: Ipv4Addr) -> io::Result<Ipv4Addr> {
        if let Some(address) = self.address(ip) {
            return Ok(address);
        }
        let address = free_address(&ports(pod))?;
        self.addresses.lock().insert(ip, address);
        Ok(address)
    }

    pub(super) fn address(&self, ip: Ipv4Addr) -> Option<Ipv4Addr> {
        self.addresses.lock().get(&ip).copied()
    }

    pub(super) fn forget(&self, ip: Ipv4Addr) {
        self.addresses.lock().remove(&ip);
    }

    /// Records a Service outside the cluster.
    pub(super) fn outside(&self, name: &str, address: SocketAddr) {
        if let Some(name) = ServiceName::parse(name) {
            self.outside.lock().insert(name, address);
        }
    }

    pub(super) fn found_outside(&self, name: &ServiceName) -> Option<SocketAddr> {
        self.outside.lock().get(name).copied()
    }

    /// Records an exit.
    pub(super) fn ended(&self, namespace: String, exit: Exit) {
        self.exits.lock().push((namespace, exit));
    }

    pub(super) fn exits(&self, namespace: &str) -> Vec<Exit> {
        let all = self.exits.lock();
        all.iter().filter(|(of, _)| of == namespace).map(|(_, exit)| exit.clone()).collect()
    }

    /// Creates the directories of a pod. Its logs outlive it.
    pub(super) fn folders(&self, pod: &Pod) -> io::Result<Folders> {
        let run = self.group()?.dir();
        let own = run.file("pods").join(pod.uid().unwrap_or_default());
        let (home, temporary) = (own.join("home"), own.join("tmp"));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&temporary)?;
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", run.file("bin").display());
        let log =
            run.file("logs").join(format!("{}_{}", pod.namespace().unwrap_or_default(), pod.name_any()));
        Ok(Folders { home, temporary, path, log })
    }

    /// Last lines of each container of a namespace.
    pub(super) fn logs(&self, namespace: &str) -> Vec<(String, String)> {
        let Some(group) = self.group.get() else { return Vec::new() };
        let prefix = format!("{namespace}_");
        let mut found: Vec<_> = std::fs::read_dir(group.dir().file("logs"))
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry
                    .file_name()
                    .to_str()?
                    .strip_prefix(&prefix)?
                    .trim_end_matches(".log")
                    .replace('_', "/");
                let text = std::fs::read(entry.path()).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                let lines: Vec<_> = text.lines().collect();
                let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n");
                Some((name, tail))
            })
            .collect();
        found.sort();
        found
    }

    /// Kills every process.
    pub(super) fn stop(&self) {
        if let Some(group) = self.group.get() {
            group.stop();
        }
    }
}

impl Folders {
    /// Path of the log of a container.
    pub(super) fn log(&self, container: &str) -> PathBuf {
        let mut path = self.log.clone().into_os_string();
        path.push(format!("_{container}.log"));
        path.into()
    }
}

fn ports(pod: &Pod) -> Vec<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| u16::try_from(port.container_port).ok())
        .collect()
}

/// An address of 127.0.0.0/8 on which these ports are unused.
fn free_address(ports: &[u16]) -> io::Result<Ipv4Addr> {
    let mut last = io::Error::other("no random numbers");
    for _ in 0..100 {
        let address = own_address()?;
        let taken = ports.iter().find_map(|port| TcpListener::bind(SocketAddr::from((address, *port))).err());
        match taken {
            None => return Ok(address),
            Some(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_pods_own_until_it_is_forgotten() {
        let processes = Processes::default();
        let (pod, ip) = (Pod::default(), Ipv4Addr::new(10, 128, 0, 1));
        let address = processes.place(&pod, ip).unwrap();
        assert!(address.is_loopback() && address.octets()[1] != 0, "{address}");
        assert_eq!(processes.place(&pod, ip).unwrap(), address);
        assert_eq!(processes.address(ip), Some(address));
        processes.forget(ip);
        assert_eq!(processes.address(ip), None);
    }
}
