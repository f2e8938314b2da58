//! Probes of a container: what they ask, and what follows from the answers.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Result of a probe after its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Success,
    Failure,
}

/// A probe and its results so far.
#[derive(Debug)]
pub(super) struct Prober {
    target: Target,
    timeout: Duration,
    period: Duration,
    successes_needed: u32,
    failures_needed: u32,
    next: Instant,
    last: Option<Verdict>,
    in_a_row: u32,
}

#[derive(Debug)]
enum Target {
    Http { address: SocketAddr, head: String },
    Tcp(SocketAddr),
}

impl Prober {
    /// `None` without a probe. An error for a kind of probe that is not supported here.
    pub(super) fn new(
        probe: Option<&Probe>,
        container: &Container,
        pod: Ipv4Addr,
    ) -> Result<Option<Self>, String> {
        let Some(probe) = probe else { return Ok(None) };
        let port = |port: &IntOrString| {
            port_of(port, container).ok_or_else(|| format!("a probe names the unknown port {port:?}"))
        };
        let target = match (&probe.http_get, &probe.tcp_socket) {
            (Some(get), _) if get.scheme.as_deref().unwrap_or("HTTP") == "HTTP" => {
                let address = SocketAddr::from((pod, port(&get.port)?));
                let path = get.path.as_deref().unwrap_or("/");
                let mut head = format!(
                    "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe/testbed\r\nConnection: close\r\n"
                );
                for header in get.http_headers.iter().flatten() {
                    let _ = write!(head, "{}: {}\r\n", header.name, header.value);
                }
                head.push_str("\r\n");
                Target::Http { address, head }
            }
            (None, Some(socket)) => Target::Tcp(SocketAddr::from((pod, port(&socket.port)?))),
            _ => return Err("the testbed's node asks probes by HTTP or TCP alone".to_owned()),
        };
        let seconds = |given: Option<i32>, usual| {
            Duration::from_secs(given.and_then(|given| u64::try_from(given).ok()).unwrap_or(usual))
        };
        let count =
            |given: Option<i32>, usual| given.and_then(|given| u32::try_from(given).ok()).unwrap_or(usual);
        Ok(Some(Self {
            target,
            timeout: seconds(probe.timeout_seconds, 1),
            period: seconds(probe.period_seconds, 10),
            successes_needed: count(probe.success_threshold, 1),
            failures_needed: count(probe.failure_threshold, 3),
            next: Instant::now() + seconds(probe.initial_delay_seconds, 0),
            last: None,
            in_a_row: 0,
        }))
    }

    /// When to probe next.
    pub(super) fn due(&self) -> Instant {
        self.next
    }

    /// Probes once. Returns a verdict when the threshold is reached.
    pub(super) async fn ask(&mut self) -> Option<Verdict> {
        let asked = Instant::now();
        let answer = tokio::time::timeout(self.timeout, self.target.ask()).await;
        self.next = asked + self.period;
        self.note(if answer.unwrap_or(false) { Verdict::Success } else { Verdict::Failure })
    }

    fn note(&mut self, answer: Verdict) -> Option<Verdict> {
        if self.last != Some(answer) {
            self.last = Some(answer);
            self.in_a_row = 0;
        }
        self.in_a_row += 1;
        let needed = match answer {
            Verdict::Success => self.successes_needed,
            Verdict::Failure => self.failures_needed,
        };
        (self.in_a_row >= needed).then_some(answer)
    }
}

impl Target {
    async fn ask(&self) -> bool {
        match self {
            Self::Tcp(address) => TcpStream::connect(address).await.is_ok(),
            Self::Http { address, head } => {
                get(*address, head).await.is_some_and(|code| (200..400).contains(&code))
            }
        }
    }
}

/// Status code of a GET. `None` if there is no answer.
async fn get(address: SocketAddr, head: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await.ok()?;
    line.split(' ').nth(1)?.parse().ok()
}

/// Number of a port that may be given by name.
pub(super) fn port_of(port: &IntOrString, container: &Container) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_deref() == Some(name))?;
            u16::try_from(found.container_port).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn prober(probe: &Value) -> Result<Option<Prober>, String> {
        let container =
            json!({"name": "c", "ports": [{"name": "http", "containerPort": 8080}], "readinessProbe": probe});
        let container: Container = serde_json::from_value(container).unwrap();
        Prober::new(container.readiness_probe.as_ref(), &container, Ipv4Addr::LOCALHOST)
    }

    #[tokio::test]
    async fn a_verdict_needs_as_many_answers_as_it_says() {
        let mut prober =
            prober(&json!({"tcpSocket": {"port": 1}, "failureThreshold": 2, "successThreshold": 1}))
                .unwrap()
                .unwrap();
        assert_eq!(prober.note(Verdict::Failure), None);
        assert_eq!(prober.note(Verdict::Success), Some(Verdict::Success));
        assert_eq!(prober.note(Verdict::Failure), None);
        assert_eq!(prober.note(Verdict::Failure), Some(Verdict::Failure));
        assert_eq!(prober.note(Verdict::Failure), Some(Verdict::Failure));
    }

    #[tokio::test]
    async fn ports_may_have_names_and_other_kinds_of_probe_are_refused() {
        assert!(prober(&json!({"httpGet": {"port": "http"}})).unwrap().is_some());
        assert!(prober(&json!({"httpGet": {"port": "odd"}})).unwrap_err().contains("odd"));
        for probe in
            [json!({"exec": {"command": ["true"]}}), json!({"httpGet": {"port": 1, "scheme": "HTTPS"}})]
        {
            assert!(prober(&probe).unwrap_err().contains("HTTP or TCP alone"));
        }
    }
}
