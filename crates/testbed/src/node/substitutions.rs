//! What must be written differently for a process of a bare host. Pure.
//!
//! Three things, and nothing else: a wildcard address to listen on becomes the pod's address, because the pods of
//! a host share its other addresses; the name of a Service becomes the address of an endpoint behind it, because
//! nobody resolves such names here; and mounts are left out, which needs no code.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

/// Replaces wildcard listen addresses. A network such as `0.0.0.0/0` is not one.
pub(super) fn listen_on(address: Ipv4Addr, text: &str) -> String {
    let address = address.to_string();
    let text = text.replace("[::]", &address);
    let mut replaced = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("0.0.0.0") {
        let longer = |c: char| c.is_ascii_digit() || c == '.';
        let whole = !before.ends_with(longer) && !after.starts_with(longer) && !after.starts_with('/');
        replaced.push_str(before);
        replaced.push_str(if whole { &address } else { "0.0.0.0" });
        rest = after;
    }
    replaced + rest
}

/// DNS name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ServiceName {
    pub(super) service: String,
    pub(super) namespace: String,
}

impl ServiceName {
    /// Parses `service.namespace.svc`, with or without the domain of the cluster.
    pub(super) fn parse(host: &str) -> Option<Self> {
        let mut labels = host.split('.');
        let (service, namespace) = (labels.next()?, labels.next()?);
        let well_formed = labels.next() == Some("svc") && !service.is_empty() && !namespace.is_empty();
        well_formed.then(|| Self { service: service.to_owned(), namespace: namespace.to_owned() })
    }
}

/// A Service that a text mentions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) name: ServiceName,
    /// Port as written or implied by the scheme. `None` if the text has only a host.
    pub(super) port: Option<u16>,
    /// Position in the text, including the port.
    range: Range<usize>,
}

/// Services that a text mentions, in order.
pub(super) fn mentions(text: &str) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut at = 0;
    let in_host = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let length = rest.find(|c| !in_host(c)).unwrap_or(rest.len());
        let (host, after) = rest.split_at(length);
        let mut end = at + length;
        if let Some(name) = ServiceName::parse(host) {
            let written = after.strip_prefix(':').map(digits).filter(|digits| !digits.is_empty());
            end += written.map_or(0, |digits| digits.len() + 1);
            let port = match written {
                Some(digits) => digits.parse().ok(),
                None => scheme(text.get(..at).unwrap_or_default()).and_then(usual_port),
            };
            found.push(Mention { name, port, range: at..end });
        }
        at = end + text.get(end..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8);
    }
    found
}

/// Replaces each mention that has an address.
pub(super) fn replace(text: &str, found: &[(Mention, SocketAddr)]) -> String {
    let mut replaced = text.to_owned();
    for (mention, address) in found.iter().rev() {
        let address = match mention.port {
            Some(_) => address.to_string(),
            None => address.ip().to_string(),
        };
        replaced.replace_range(mention.range.clone(), &address);
    }
    replaced
}

fn digits(text: &str) -> &str {
    text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default()
}

/// Scheme of the URL whose host starts right after this text. User information may be in between.
fn scheme(before: &str) -> Option<&str> {
    let (head, user) = before.rsplit_once("://")?;
    let is_user = user.is_empty() || user.ends_with('@') && !user.contains(['/', ' ', ',']);
    let scheme = head.rsplit(|c: char| !c.is_ascii_alphanumeric()).next()?;
    is_user.then_some(scheme)
}

fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        "postgres" | "postgresql" => Some(5432),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_becomes_the_pods_address() {
        let address = Ipv4Addr::new(127, 9, 8, 7);
        for (text, expected) in [
            ("0.0.0.0:8080", "127.9.8.7:8080"),
            ("--http-address=0.0.0.0:8080", "--http-address=127.9.8.7:8080"),
            ("[::]:8080", "127.9.8.7:8080"),
            ("tcp://0.0.0.0", "tcp://127.9.8.7"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("10.0.0.0.0", "10.0.0.0.0"),
            ("100.0.0.0", "100.0.0.0"),
            ("127.0.0.1:80", "127.0.0.1:80"),
        ] {
            assert_eq!(listen_on(address, text), expected);
        }
    }

    #[test]
    fn the_name_of_a_service_becomes_an_endpoint() {
        let endpoint: SocketAddr = "127.1.2.3:8080".parse().unwrap();
        for (text, port, expected) in [
            ("http://coder.ns.svc.cluster.local", Some(80), "http://127.1.2.3:8080"),
            ("https://coder.ns.svc/x", Some(443), "https://127.1.2.3:8080/x"),
            ("http://coder.ns.svc.cluster.local:81/x?y", Some(81), "http://127.1.2.3:8080/x?y"),
            ("postgres://u:p%40@db.ns.svc:5432/coder", Some(5432), "postgres://u:p%40@127.1.2.3:8080/coder"),
            ("postgres://u@db.ns.svc/coder", Some(5432), "postgres://u@127.1.2.3:8080/coder"),
            ("db.ns.svc", None, "127.1.2.3"),
            ("db.ns.svc:99", Some(99), "127.1.2.3:8080"),
        ] {
            let found = mentions(text);
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!(found[0].port, port, "{text}");
            assert_eq!(replace(text, &[(found[0].clone(), endpoint)]), expected);
        }
        let two = "http://a.n.svc,http://b.n.svc";
        let all: Vec<_> = mentions(two).into_iter().map(|mention| (mention, endpoint)).collect();
        assert_eq!(replace(two, &all), "http://127.1.2.3:8080,http://127.1.2.3:8080");
    }

    #[test]
    fn other_names_are_left_alone() {
        for text in
            ["", "http://coder.example.com", "svc", "a.svc.cluster.local", "..svc", "ä.ö", "http://a.b.svcs"]
        {
            assert_eq!(mentions(text), [], "{text}");
        }
    }
}
