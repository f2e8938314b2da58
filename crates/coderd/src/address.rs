//! Which addresses the operator connects to, whatever URL or name led there.
//!
//! A spec names hosts, and the answer of what listens there ends up in a status. So the operator never connects to itself,
//! to the link, to the metadata service of a cloud or to the API server. [`is_allowed`] decides about one address. It is asked for
//! every connection, about the address that is dialed and not about a name that was resolved earlier: a name may lead
//! elsewhere the next time.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    time::Instant,
};

use parking_lot::Mutex;
use tokio::net::lookup_host;

use crate::{connector::Resolve, intervals::API_SERVER_LOOKUP_TTL};

/// Addresses of one family with a common prefix, written as in `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    base: IpAddr,
    /// Bits of the prefix, at most those of the family.
    prefix: u8,
}

/// Why a text is not a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRange {
    /// No address, no slash, or no number after it.
    #[error("{0:?} is not a range of addresses: write it as 10.0.0.0/8 or fd00::/8")]
    Syntax(String),
    /// More bits than the addresses have.
    #[error("{0:?} has a longer prefix than its addresses: at most /32 for IPv4 and /128 for IPv6")]
    Prefix(String),
    /// The address is not the first one of the range.
    #[error("{0:?} is not the beginning of its range: write {1}")]
    Base(String, AddressRange),
}

impl AddressRange {
    const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        Self { base: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(bits: u128, prefix: u8) -> Self {
        Self { base: IpAddr::V6(Ipv6Addr::from_bits(bits)), prefix }
    }

    /// Whether it is a range of IPv4 addresses.
    pub fn is_ipv4(&self) -> bool {
        self.base.is_ipv4()
    }

    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.is_ipv4() && first_of(ip, self.prefix) == self.base
    }
}

/// The first address of the range with this prefix that an address is in.
fn first_of(ip: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - prefix.min(32)).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - prefix.min(128)).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}

impl FromStr for AddressRange {
    type Err = BadRange;

    fn from_str(given: &str) -> Result<Self, BadRange> {
        let parsed = given
            .trim()
            .split_once('/')
            .and_then(|(base, prefix)| Some((base.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?)));
        let (base, prefix) = parsed.ok_or_else(|| BadRange::Syntax(given.to_owned()))?;
        if prefix > if base.is_ipv4() { 32 } else { 128 } {
            return Err(BadRange::Prefix(given.to_owned()));
        }
        let range = Self { base: first_of(base, prefix), prefix };
        if range.base == base { Ok(range) } else { Err(BadRange::Base(given.to_owned(), range)) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// What nobody may reach through the operator unless a flag says so. Metadata services outside the link have addresses of
/// their own, each named by the documentation of its cloud.
pub const REFUSED: [AddressRange; 15] = [
    // "This network": Linux connects 0.0.0.0 to itself.
    AddressRange::v4(0, 0, 0, 0, 8),
    AddressRange::v4(127, 0, 0, 0, 8),
    // Link-local, with the metadata services of AWS, Azure, Google, Oracle and others.
    AddressRange::v4(169, 254, 0, 0, 16),
    // Metadata of Alibaba, of Azure (WireServer) and of Oracle.
    AddressRange::v4(100, 100, 100, 200, 32),
    AddressRange::v4(168, 63, 129, 16, 32),
    AddressRange::v4(192, 0, 0, 192, 32),
    // Multicast and broadcast.
    AddressRange::v4(224, 0, 0, 0, 4),
    AddressRange::v4(255, 255, 255, 255, 32),
    // Unspecified and loopback.
    AddressRange::v6(0, 128),
    AddressRange::v6(1, 128),
    AddressRange::v6(0xfe80 << 112, 10),
    // Metadata of AWS, of Google and of Scaleway.
    AddressRange::v6(0xfd00_0ec2 << 96, 32),
    AddressRange::v6(0xfd20_00ce << 96 | 0x254, 128),
    AddressRange::v6(0xfd00_0042 << 96 | 0x42, 128),
    AddressRange::v6(0xff00 << 112, 8),
];

/// Whether the operator connects to an address. `allowed` overrides [`REFUSED`], and nothing overrides `api_server`.
fn is_allowed(address: SocketAddr, allowed: &[AddressRange], api_server: &[SocketAddr]) -> bool {
    let ip = address.ip().to_canonical();
    let listed = |ip: IpAddr| allowed.iter().any(|range| range.contains(ip));
    let refused = |ip: IpAddr| REFUSED.iter().any(|range| range.contains(ip));
    // A gateway may turn an address that embeds another into a connection to that one.
    let reached = || [Some(ip), embedded(ip)].into_iter().flatten();
    let is_api_server = reached().any(|ip| {
        api_server.iter().any(|known| known.port() == address.port() && known.ip().to_canonical() == ip)
    });
    !is_api_server && (listed(ip) || reached().all(|ip| listed(ip) || !refused(ip)))
}

/// The IPv4 address inside of an IPv6 address. A mapped one (`::ffff:a.b.c.d`) is canonical by now.
fn embedded(ip: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(ip) = ip else { return None };
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into());
    match ip.segments() {
        // Teredo, which stores the address of the client inverted.
        [0x2001, 0, _, _, _, _, high, low] => v4(!high, !low),
        // IPv4-compatible, and IPv4-translated (RFC 2765).
        [0, 0, 0, 0, 0 | 0xffff, 0, high, low]
        // NAT64: the well-known prefix and the one for local use (RFC 6052, RFC 8215).
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        // 6to4.
        | [0x2002, high, low, ..]
        // ISATAP, last: only its end is fixed, and the beginning leads the way.
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => v4(high, low),
        _ => None,
    }
}

/// What the operator connects to: the flag, and where the API server is.
#[derive(Debug, Default)]
pub struct AddressPolicy {
    allowed: Vec<AddressRange>,
    /// Hosts and ports of the API server.
    api_server: Vec<(String, u16)>,
    looked_up: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

/// Why there is no address to connect to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    /// The host leads nowhere but to addresses that are not allowed.
    #[error("{NOT_ALLOWED}")]
    NotAllowed,
    /// The name was not resolved.
    #[error(transparent)]
    Lookup(#[from] io::Error),
}

/// Says the same whatever is or is not listening at the address, and which kind of address it is.
pub(crate) const NOT_ALLOWED: &str = "the operator does not connect there: the host leads to a loopback, link-local, \
     metadata or multicast address, or to the Kubernetes API server. Name another host, or allow a range of addresses with \
     --allowed-address-ranges of the operator";

impl AddressPolicy {
    /// `allowed` is allowed besides what is by default. `api_server` are hosts and ports that never are.
    pub fn new(allowed: Vec<AddressRange>, api_server: Vec<(String, u16)>) -> Self {
        Self { allowed, api_server, looked_up: Mutex::default() }
    }

    /// Loopback is allowed, where tests have their servers.
    #[cfg(feature = "test-util")]
    pub fn on_loopback() -> Self {
        Self::new(vec![AddressRange::v4(127, 0, 0, 0, 8)], Vec::new())
    }

    /// The addresses of a host that may be dialed. An address that the resolver returns without a port gets the given one.
    pub(crate) async fn resolve(
        &self,
        resolver: Option<&dyn Resolve>,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, AddressError> {
        let mut found = match (host.parse(), resolver) {
            (Ok(ip), _) => vec![SocketAddr::new(ip, port)],
            (Err(_), Some(resolver)) => resolver.resolve(host.to_owned(), port).await?,
            (Err(_), None) => lookup_host((host, port)).await?.collect(),
        };
        for address in found.iter_mut().filter(|address| address.port() == 0) {
            address.set_port(port);
        }
        let (resolved, api_server) = (!found.is_empty(), self.api_server().await);
        found.retain(|address| is_allowed(*address, &self.allowed, &api_server));
        if resolved && found.is_empty() { Err(AddressError::NotAllowed) } else { Ok(found) }
    }

    /// The addresses of the API server. A name of it is looked up again after a while. If that fails, the last answer counts.
    async fn api_server(&self) -> Vec<SocketAddr> {
        let known = self.looked_up.lock().clone();
        if let Some((_, known)) = known.as_ref().filter(|(at, _)| at.elapsed() < API_SERVER_LOOKUP_TTL) {
            return known.clone();
        }
        let mut found = Vec::new();
        for (host, port) in &self.api_server {
            match lookup_host((host.as_str(), *port)).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => tracing::warn!("cannot look up the API server {host}: {error}"),
            }
        }
        if found.is_empty() {
            found = known.map(|(_, known)| known).unwrap_or_default();
        }
        *self.looked_up.lock() = Some((Instant::now(), found.clone()));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<AddressRange> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap_or_else(|_| SocketAddr::new(text.parse().unwrap(), 5432))
    }

    #[test]
    fn addresses_of_the_machine_the_link_and_the_cloud_are_refused_in_every_form() {
        for refused in [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
            "ff02::1",
            // Mapped, compatible, translated.
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            // NAT64, 6to4, ISATAP, Teredo.
            "64:ff9b::7f00:1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001:db8::5efe:127.0.0.1",
            "fd00::200:5efe:169.254.169.254",
            "2001:0:1:2:3:4:80ff:fffe",
            // Two forms at once: the beginning decides.
            "2002:7f00:1::5efe:10.0.0.1",
        ] {
            assert!(!is_allowed(address(refused), &[], &[]), "{refused}");
            let everything = ranges(&["0.0.0.0/0", "::/0"]);
            assert!(is_allowed(address(refused), &everything, &[]), "{refused} with a flag");
        }
    }

    #[test]
    fn addresses_of_clusters_and_of_the_internet_are_allowed() {
        for allowed in [
            "10.96.0.10",
            "172.16.3.4",
            "192.168.1.1",
            "192.0.0.193",
            "100.64.0.1",
            "100.100.100.201",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.1",
            "223.255.255.255",
            // Pods of some clouds.
            "240.0.0.1",
            "203.0.113.7",
            "fd00::1",
            "fd00:ec3::254",
            "fec0::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:a00:1::1",
        ] {
            assert!(is_allowed(address(allowed), &[], &[]), "{allowed}");
        }
    }

    #[test]
    fn a_range_allows_exactly_its_own_addresses() {
        let allowed = ranges(&["127.0.0.0/8", "fe80::/64"]);
        for (given, expected) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("64:ff9b::127.0.0.1", true),
            ("fe80::1", true),
            ("fe80:0:0:1::1", false),
            ("169.254.169.254", false),
            ("::1", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(is_allowed(address(given), &allowed, &[]), expected, "{given}");
        }
        assert!(is_allowed(address("::1"), &ranges(&["::1/128"]), &[]));
    }

    #[test]
    fn the_api_server_is_refused_by_address_and_port_whatever_is_allowed() {
        let (everything, servers) =
            (ranges(&["0.0.0.0/0", "::/0"]), [address("10.96.0.1:443"), address("[fd00::1]:6443")]);
        for (given, expected) in [
            ("10.96.0.1:443", false),
            ("[::ffff:10.96.0.1]:443", false),
            ("[64:ff9b::a60:1]:443", false),
            ("[fd00::1]:6443", false),
            ("10.96.0.1:5432", true),
            ("10.96.0.2:443", true),
            ("[fd00::1]:443", true),
        ] {
            for allowed in [&[][..], &everything] {
                assert_eq!(is_allowed(address(given), allowed, &servers), expected, "{given}");
            }
        }
    }

    #[test]
    fn ranges_are_read_and_a_mistake_is_named() {
        for good in ["127.0.0.0/8", "0.0.0.0/0", "10.1.2.3/32", "::/0", "fd00:ec2::254/128"] {
            assert_eq!(good.parse::<AddressRange>().unwrap().to_string(), good);
        }
        for (bad, says) in [
            ("", "write it as 10.0.0.0/8"),
            ("127.0.0.1", "write it as 10.0.0.0/8"),
            ("localhost/8", "write it as 10.0.0.0/8"),
            ("10.0.0.0/x", "write it as 10.0.0.0/8"),
            ("10.0.0.0/33", "at most /32"),
            ("::/129", "at most /32"),
            ("10.1.2.3/8", "write 10.0.0.0/8"),
            ("fd00::1/64", "write fd00::/64"),
        ] {
            let error = bad.parse::<AddressRange>().unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    struct Rebinding(Mutex<Vec<Vec<SocketAddr>>>);

    impl Resolve for Rebinding {
        fn resolve(
            &self,
            _host: String,
            _port: u16,
        ) -> futures::future::BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
            let next = self.0.lock().remove(0);
            Box::pin(async move { Ok(next) })
        }
    }

    #[tokio::test]
    async fn every_answer_of_a_resolver_is_checked_and_what_is_refused_is_never_dialed() {
        let policy = AddressPolicy::new(Vec::new(), vec![("10.0.0.1".to_owned(), 6443)]);
        let answers = [
            vec![address("10.0.0.7:0")],
            vec![address("127.0.0.1:0")],
            vec![address("169.254.169.254:80"), address("10.0.0.8:80"), address("[::1]:80")],
            vec![address("10.0.0.1:6443")],
            vec![],
        ];
        let rebinding = Rebinding(Mutex::new(answers.into()));
        let mut found = Vec::new();
        for _ in 0..5 {
            found.push(policy.resolve(Some(&rebinding), "coder.test", 3000).await.ok());
        }
        let expected = [
            Some(vec![address("10.0.0.7:3000")]),
            None,
            Some(vec![address("10.0.0.8:80")]),
            None,
            Some(vec![]),
        ];
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn literals_and_names_of_the_system_are_checked_too() {
        let policy = AddressPolicy::default();
        for refused in ["127.0.0.1", "::1", "localhost", "169.254.169.254"] {
            let error = policy.resolve(None, refused, 80).await.unwrap_err();
            assert!(matches!(error, AddressError::NotAllowed), "{refused}: {error}");
        }
        let named = AddressPolicy::new(ranges(&["127.0.0.0/8"]), vec![("localhost".to_owned(), 6443)]);
        assert!(
            named.resolve(None, "127.0.0.1", 6443).await.is_err(),
            "the name of the API server is resolved"
        );
        assert!(named.resolve(None, "127.0.0.1", 6444).await.is_ok());
    }
}
