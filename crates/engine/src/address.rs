//! Listen addresses as the flags take them.
//!
//! `:8081` is every interface, `127.0.0.1:8081` and `[::1]:8081` one of them, `localhost:8081` the loopback
//! by name, and `0` or `off` no listener. Parsing does not resolve names and opens no socket.

use std::{fmt, net::IpAddr, str::FromStr};

/// A parsed listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// No listener.
    Off,
    /// Every interface; IPv6 and IPv4 where the machine has both.
    Any(u16),
    /// One interface, by its address.
    Ip(IpAddr, u16),
    /// One interface, by a name that is resolved when the listener opens.
    Name(String, u16),
}

/// Why a text is not a listen address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no colon between a host and a port.
    #[error(
        "{0:?} has no port: write `:8081`, `127.0.0.1:8081`, `[::1]:8081`, `localhost:8081`, or `0` for none"
    )]
    NoPort(String),
    /// The part after the last colon is not a port.
    #[error("{port:?} in {given:?} is not a port: use a number from 0 (any free port) to 65535")]
    BadPort {
        /// The whole text.
        given: String,
        /// The part that should have been the port.
        port: String,
    },
    /// The part before the last colon is neither an IP address nor a host name.
    #[error("{host:?} in {given:?} is not an IP address or a host name{hint}")]
    BadHost {
        /// The whole text.
        given: String,
        /// The part that should have been the host.
        host: String,
        /// What to write instead; empty if unknown.
        hint: &'static str,
    },
}

impl Address {
    /// The same interface with any free port. No listener stays no listener.
    #[must_use]
    pub fn with_free_port(&self) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::Any(_) => Self::Any(0),
            Self::Ip(ip, _) => Self::Ip(*ip, 0),
            Self::Name(name, _) => Self::Name(name.clone(), 0),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(given: &str) -> Result<Self, AddressError> {
        if given == "0" || given.eq_ignore_ascii_case("off") {
            return Ok(Self::Off);
        }
        let Some((host, port)) = given.rsplit_once(':') else {
            return Err(AddressError::NoPort(given.to_owned()));
        };
        if host.starts_with('[') && port.ends_with(']') {
            return Err(AddressError::NoPort(given.to_owned()));
        }
        let port = parse_port(port)
            .ok_or_else(|| AddressError::BadPort { given: given.to_owned(), port: port.to_owned() })?;
        parse_host(host, port).map_err(|hint| AddressError::BadHost {
            given: given.to_owned(),
            host: host.to_owned(),
            hint,
        })
    }
}

fn parse_port(port: &str) -> Option<u16> {
    // `u16::from_str` accepts a leading plus sign, which is not valid in a listen address.
    port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse().ok()).flatten()
}

fn parse_host(host: &str, port: u16) -> Result<Address, &'static str> {
    if host.is_empty() {
        return Ok(Address::Any(port));
    }
    if let Some(inner) = host.strip_prefix('[') {
        let ip = inner.strip_suffix(']').and_then(|ip| ip.parse().ok()).map(IpAddr::V6);
        return ip.map(|ip| Address::Ip(ip, port)).ok_or("");
    }
    if host.contains("://") {
        return Err(": leave out the scheme, as in `localhost:8081`");
    }
    if host.contains(':') {
        return Err(": write an IPv6 address in brackets, as in `[::1]:8081`");
    }
    match host.parse() {
        Ok(ip) => Ok(Address::Ip(IpAddr::V4(ip), port)),
        Err(_) if is_host_name(host) => Ok(Address::Name(host.to_owned(), port)),
        Err(_) => Err(""),
    }
}

fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    // A last label of digits alone is a mistyped IPv4 address, not a name.
    let numeric_end = host.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    host.len() <= 253 && host.split('.').all(label) && !numeric_end
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Any(port) => write!(f, ":{port}"),
            Self::Ip(IpAddr::V4(ip), port) => write!(f, "{ip}:{port}"),
            Self::Ip(IpAddr::V6(ip), port) => write!(f, "[{ip}]:{port}"),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_addresses() {
        let ip = |ip: &str, port| Address::Ip(ip.parse().unwrap(), port);
        let table = [
            (":8081", Address::Any(8081)),
            (":0", Address::Any(0)),
            ("0", Address::Off),
            ("off", Address::Off),
            ("OFF", Address::Off),
            ("127.0.0.1:8081", ip("127.0.0.1", 8081)),
            ("0.0.0.0:8081", ip("0.0.0.0", 8081)),
            ("10.1.2.3:1", ip("10.1.2.3", 1)),
            ("[::1]:8081", ip("::1", 8081)),
            ("[::]:65535", ip("::", 65535)),
            ("localhost:8081", Address::Name("localhost".into(), 8081)),
            ("metrics.example:9090", Address::Name("metrics.example".into(), 9090)),
        ];
        for (given, address) in table {
            let parsed: Address = given.parse().unwrap();
            assert_eq!(parsed, address, "{given}");
            assert_eq!(parsed.to_string().parse(), Ok(address), "{given} reads back");
        }
    }

    #[test]
    fn errors_name_the_mistake() {
        let table = [
            ("", "has no port"),
            ("8081", "has no port"),
            ("localhost", "has no port"),
            ("[::1]", "has no port"),
            ("localhost:", "is not a port"),
            (":65536", "is not a port"),
            (":+80", "is not a port"),
            (":http", "is not a port"),
            ("::1:8081", "in brackets"),
            ("[::g]:8081", "not an IP address"),
            ("[127.0.0.1]:8081", "not an IP address"),
            ("256.0.0.1:8081", "not an IP address"),
            ("my host:8081", "not an IP address"),
            ("-x:8081", "not an IP address"),
            ("http://localhost:8081", "leave out the scheme"),
        ];
        for (given, part) in table {
            let error = given.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(part), "{given:?}: {error}");
            assert!(error.contains(given), "{given:?}: {error}");
        }
    }
}
