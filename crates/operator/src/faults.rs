//! Injects faults for tests of the whole process. Not part of the released binary.
//!
//! `CODER_K8S_FAULTS` names a file that is read again at every call. Each line is one fault:
//! `before|after VERB RESOURCE PATH FAULT COUNT`, where `*` stands for any verb or resource, PATH is a part of the path
//! (`/` for any), FAULT is `error`, `exit`, `status=500` or `delay=200` (milliseconds), and COUNT how often it
//! happens. `after` means that the server has carried out the request, and the response is lost.

use std::{collections::HashMap, fs, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use coder_k8s_coderd::Settings;
use coder_k8s_engine::client::{Call, Fault, Faults};
use futures::future::BoxFuture;
use parking_lot::Mutex;

/// The environment variable with the path of the faults.
pub(crate) const VARIABLE: &str = "CODER_K8S_FAULTS";

/// The faults for calls to Kubernetes. None: the variable is not set.
pub(crate) fn from_env() -> Option<Arc<dyn Faults>> {
    let file = PathBuf::from(std::env::var_os(VARIABLE)?);
    tracing::debug!("faults of {} are injected", file.display());
    Some(Arc::new(FaultsFile { file, used: Mutex::default() }))
}

/// Adds faults and addresses to the settings of coderd's clients. In a fault `VERB` is `coderd`, and `RESOURCE` the name of
/// the call with dashes. `CODER_K8S_HOSTS` names a file with lines `HOST ADDRESS:PORT`, because the DNS names of Services do
/// not resolve outside a cluster.
pub(crate) fn of_coderd(settings: Settings) -> Settings {
    let listed = std::env::var_os(VARIABLE).map(|file| {
        Arc::new(FaultsFile { file: file.into(), used: Mutex::default() })
            as Arc<dyn coder_k8s_coderd::Faults>
    });
    let hosts = std::env::var_os("CODER_K8S_HOSTS")
        .map(|file| Arc::new(HostsFile { file: file.into() }) as Arc<dyn coder_k8s_coderd::Resolve>);
    Settings { faults: listed, resolver: hosts.or(settings.resolver.clone()), ..settings }
}

impl coder_k8s_coderd::Faults for FaultsFile {
    fn before(&self, call: &coder_k8s_coderd::Call) -> Option<coder_k8s_coderd::Fault> {
        self.find("before", "coderd", &call.name.replace(' ', "-"), "/").map(to_coderd)
    }

    fn after(&self, call: &coder_k8s_coderd::Call) -> Option<coder_k8s_coderd::Fault> {
        self.find("after", "coderd", &call.name.replace(' ', "-"), "/").map(to_coderd)
    }
}

fn to_coderd(fault: Fault) -> coder_k8s_coderd::Fault {
    match fault {
        Fault::Error => coder_k8s_coderd::Fault::Error,
        Fault::Status(code) => coder_k8s_coderd::Fault::Status(code),
        Fault::Delay(time) => coder_k8s_coderd::Fault::Delay(time),
        Fault::Exit => coder_k8s_coderd::Fault::Exit,
    }
}

/// Resolves names by a file that is read at every call.
struct HostsFile {
    file: PathBuf,
}

impl coder_k8s_coderd::Resolve for HostsFile {
    fn resolve(&self, host: String, _port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let found = text.lines().find_map(|line| {
            let (name, address) = line.split_once(' ')?;
            (name == host).then(|| address.trim().parse().ok())?
        });
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no such host in the file of hosts");
        Box::pin(async move { found.map(|address| vec![address]).ok_or_else(missing) })
    }
}

struct FaultsFile {
    file: PathBuf,
    /// How often each line was used.
    used: Mutex<HashMap<String, u32>>,
}

impl Faults for FaultsFile {
    fn before(&self, call: &Call) -> Option<Fault> {
        self.find("before", call.verb, &call.resource, &call.path)
    }

    fn after(&self, call: &Call) -> Option<Fault> {
        self.find("after", call.verb, &call.resource, &call.path)
    }
}

impl FaultsFile {
    fn find(&self, when: &str, verb: &str, resource: &str, path: &str) -> Option<Fault> {
        let text = fs::read_to_string(&self.file).ok()?;
        let line = text.lines().find(|line| applies(line, when, verb, resource, path))?;
        let mut parts = line.split_whitespace().skip(4);
        let (fault, times) = (parts.next()?, parts.next().and_then(|n| n.parse().ok()).unwrap_or(u32::MAX));
        let mut used = self.used.lock();
        let count = used.entry(line.to_owned()).or_default();
        if *count >= times {
            return None;
        }
        *count += 1;
        parse(fault)
    }
}

fn applies(line: &str, when: &str, verb: &str, resource: &str, path: &str) -> bool {
    let parts: Vec<_> = line.split_whitespace().collect();
    let [line_when, line_verb, line_resource, line_path, ..] = parts.as_slice() else { return false };
    let matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
    *line_when == when
        && matches(line_verb, verb)
        && matches(line_resource, resource)
        && path.contains(line_path)
}

fn parse(fault: &str) -> Option<Fault> {
    match fault.split_once('=') {
        Some(("status", code)) => code.parse().ok().map(Fault::Status),
        Some(("delay", ms)) => ms.parse().ok().map(|ms| Fault::Delay(Duration::from_millis(ms))),
        None if fault == "exit" => Some(Fault::Exit),
        None if fault == "error" => Some(Fault::Error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_used_as_often_as_it_says() {
        let folder = std::env::temp_dir().join(format!("faults-{}", std::process::id()));
        fs::write(&folder, "before apply deployments /namespaces/a/ status=500 2\nafter * * / exit\n")
            .unwrap();
        let listed = FaultsFile { file: folder.clone(), used: Mutex::default() };
        let find = |when: &str, path: &str| listed.find(when, "apply", "deployments", path);
        assert_eq!(find("before", "/namespaces/b/x"), None);
        assert_eq!(find("before", "/namespaces/a/x"), Some(Fault::Status(500)));
        assert_eq!(find("before", "/namespaces/a/x"), Some(Fault::Status(500)));
        assert_eq!(find("before", "/namespaces/a/x"), None);
        assert_eq!(find("after", "/x"), Some(Fault::Exit));
        fs::remove_file(folder).unwrap();
    }
}
