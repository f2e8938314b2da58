//! What all clients of a process share: settings, hooks of tests, connection pools and request budgets.
//!
//! There is one reqwest client for each set of trusted certificates and each port. A server behind plain HTTP loads no root
//! certificates at all. A CA that is given for a server is the only one trusted for it, as with
//! `caBundle` in Kubernetes.

use std::{
    collections::HashMap,
    hash::Hash,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::{
    Certificate,
    dns::{Addrs, Name, Resolving},
    redirect, retry,
};
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use crate::{
    address::AddressPolicy,
    answer, authorities,
    client::Client,
    intervals::{
        CODERD_CALL_DEADLINE, CODERD_CONNECT_TIMEOUT, CODERD_IDLE_CONNECTION_TIMEOUT, MAX_IDLE_CONNECTIONS,
        MAX_POOLS, UNUSED_SERVER_TTL,
    },
    request::Call,
    request_budget::RequestBudgets,
    server::{BadEndpoint, Endpoint, Origin, Server},
};

const USER_AGENT: &str = concat!("coder-k8s/", env!("CARGO_PKG_VERSION"));
/// Exit code of [`Fault::Exit`]. The engine uses the same for faults of Kubernetes calls.
pub const EXIT_CODE: i32 = 86;

/// Told of every call when it ends.
pub trait Observer: Send + Sync {
    /// A call ended: `ok`, the reason of its error, or `canceled`.
    fn called(&self, call: &'static str, outcome: &str, elapsed: Duration);
}

/// Resolves the address of a server. Called for names only, never for a literal address. The operator uses the system;
/// `dev` and tests supply their own resolver, because names of Services resolve inside a cluster only.
pub trait Resolve: Send + Sync {
    /// Returns the addresses for a host and a port. A returned port other than 0 replaces the given one, as the
    /// target port of a Service does.
    fn resolve(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>>;
}

/// Decides which calls fail. Tests give one to the connector and to Postgres; an operator in production has none.
pub trait Faults: Send + Sync {
    /// Called before a request is sent. A fault other than a delay keeps the request from the server.
    fn before(&self, call: &Call) -> Option<Fault>;

    /// Called after the server has answered. A fault other than a delay replaces the answer, as if it were lost on
    /// the way: the effect has happened.
    fn after(&self, call: &Call) -> Option<Fault>;
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks.
    Error,
    /// An answer with this HTTP status.
    Status(u16),
    /// The call takes this much longer. Its deadline still applies.
    Delay(Duration),
    /// The process exits at once with [`EXIT_CODE`].
    Exit,
}

/// Applies an injected fault. An error is what the caller gets in place of an answer: this HTTP status, or a broken
/// connection for `None`.
pub(crate) async fn inject(fault: Option<Fault>) -> Result<(), Option<u16>> {
    match fault {
        None => Ok(()),
        Some(Fault::Delay(delay)) => {
            sleep(delay).await;
            Ok(())
        }
        Some(Fault::Error) => Err(None),
        Some(Fault::Status(code)) => Err(Some(code)),
        Some(Fault::Exit) => std::process::exit(EXIT_CODE),
    }
}

/// Measures one call and reports it when dropped, so that a canceled call is counted too.
pub(crate) struct CallTimer<'a> {
    observer: Option<&'a dyn Observer>,
    call: &'static str,
    started: Instant,
    pub(crate) outcome: &'static str,
}

impl<'a> CallTimer<'a> {
    pub(crate) fn start(observer: Option<&'a Arc<dyn Observer>>, call: Call) -> Self {
        let observer = observer.map(AsRef::as_ref);
        Self { observer, call: call.name, started: Instant::now(), outcome: "canceled" }
    }
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        let (call, outcome, took) = (self.call, self.outcome, self.started.elapsed());
        if let Some(observer) = self.observer {
            observer.called(call, outcome, took);
        }
        tracing::debug!(call, outcome, ms = took.as_millis(), "called coderd or its database");
    }
}

/// How clients behave.
#[derive(Clone)]
pub struct Settings {
    /// How long a call may take: the wait for a slot, the connection, and the whole answer.
    pub deadline: Duration,
    /// Which addresses may be connected to.
    pub addresses: Arc<AddressPolicy>,
    /// Who finds the addresses of servers; None: the system.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Where calls are counted.
    pub observer: Option<Arc<dyn Observer>>,
    /// What goes wrong on purpose.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: CODERD_CALL_DEADLINE,
            addresses: Arc::default(),
            resolver: None,
            observer: None,
            faults: None,
        }
    }
}

#[cfg(feature = "test-util")]
impl Settings {
    /// The defaults for servers of tests, which are on loopback.
    pub fn on_loopback() -> Self {
        Self { addresses: Arc::new(AddressPolicy::on_loopback()), ..Self::default() }
    }
}

/// Makes servers, whose clients share connections and request budgets. One is enough for a process.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) budgets: RequestBudgets,
    pools: Mutex<UnusedCache<PoolKey, reqwest::Client>>,
}

impl Connector {
    /// A connector with these settings.
    pub fn new(settings: Settings) -> Self {
        let (budgets, pools) = (RequestBudgets::default(), Mutex::new(UnusedCache::of(MAX_POOLS)));
        Self { shared: Arc::new(Shared { settings, budgets, pools }) }
    }

    /// The server at an address. Sends nothing.
    pub fn server(&self, target: &Endpoint) -> Result<Server, BadEndpoint> {
        Client::anonymous(&self.shared, target).map(Server::new)
    }

    /// A client without a credential, to which tests attach any credential that they like.
    #[cfg(feature = "test-util")]
    pub fn client(
        &self,
        target: &Endpoint,
        token: Option<&secrecy::SecretString>,
    ) -> Result<Client, BadEndpoint> {
        let client = Client::anonymous(&self.shared, target)?;
        token.map_or(Ok(client.clone()), |token| client.with_token(token))
    }

    /// How many servers have a request budget.
    pub fn server_count(&self) -> usize {
        self.shared.budgets.len()
    }
}

/// Identity of a connection pool.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    https: bool,
    /// Digest of the only CA that is trusted. `None`: those of the system.
    ca: Option<[u8; 32]>,
    /// What may be dialed depends on the port, and reqwest resolves hosts without it.
    port: u16,
}

impl Shared {
    /// Returns the connection pool for an origin and a CA as PEM. Fails if the CA cannot be used.
    pub(crate) fn pool(
        &self,
        origin: &Origin,
        ca: Option<&[u8]>,
    ) -> Result<Arc<reqwest::Client>, BadEndpoint> {
        let ca = ca.filter(|_| origin.https);
        let Settings { addresses, resolver, .. } = self.settings.clone();
        let resolver = CheckedResolver { addresses, resolver, port: origin.port };
        let key =
            PoolKey { https: origin.https, ca: ca.map(|pem| Sha256::digest(pem).into()), port: origin.port };
        self.pools.lock().get(key, Instant::now(), || build_pool(origin.https, ca, resolver))
    }
}

fn build_pool(
    https: bool,
    ca: Option<&[u8]>,
    resolver: CheckedResolver,
) -> Result<reqwest::Client, BadEndpoint> {
    let unusable = |error: reqwest::Error| BadEndpoint::Authorities(answer::cause(&error));
    // The roots of the system are loaded here, for the first server that needs them, and never at the start: an operator
    // whose servers all have a CA of their own, or none, runs without any.
    let uses_system_roots = https && ca.is_none();
    let mut builder = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .http1_only()
        .redirect(redirect::Policy::none())
        .referer(false)
        .retry(retry::never())
        // A proxy in the environment is for the internet. It does not reach Services, and over plain HTTP it would
        // read every token.
        .no_proxy()
        .dns_resolver(Arc::new(resolver))
        .connect_timeout(CODERD_CONNECT_TIMEOUT)
        .pool_idle_timeout(CODERD_IDLE_CONNECTION_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS);
    builder = match ca {
        Some(pem) => {
            let all =
                authorities::certificates(pem).map_err(|why| BadEndpoint::Authorities(why.to_owned()))?;
            let all: Result<Vec<_>, _> = all.iter().map(|one| Certificate::from_der(one)).collect();
            builder.tls_certs_only(all.map_err(unusable)?)
        }
        None if uses_system_roots => builder,
        None => builder.tls_certs_only([]),
    };
    builder.build().map_err(|error| {
        if uses_system_roots {
            BadEndpoint::NoSystemAuthorities(answer::cause(&error))
        } else {
            unusable(error)
        }
    })
}

/// Resolves names for reqwest, and returns only addresses that may be dialed. Not asked about literal addresses.
struct CheckedResolver {
    addresses: Arc<AddressPolicy>,
    resolver: Option<Arc<dyn Resolve>>,
    port: u16,
}

impl reqwest::dns::Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (addresses, resolver, port) = (self.addresses.clone(), self.resolver.clone(), self.port);
        Box::pin(async move {
            let found = addresses.resolve(resolver.as_deref(), name.as_str(), port).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Shared values by key. An entry is removed when nobody has used it for [`UNUSED_SERVER_TTL`]. It bounds what servers of
/// deleted objects cost. With a capacity, the entry that was not used for longest makes room for a new one.
pub(crate) struct UnusedCache<K, V> {
    all: HashMap<K, (Arc<V>, Instant)>,
    capacity: usize,
    swept: Option<Instant>,
}

impl<K, V> Default for UnusedCache<K, V> {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl<K, V> UnusedCache<K, V> {
    /// An empty cache of this capacity.
    pub(crate) fn of(capacity: usize) -> Self {
        Self { all: HashMap::new(), capacity, swept: None }
    }
}

impl<K: Clone + Eq + Hash, V> UnusedCache<K, V> {
    /// Returns the value of a key, and creates it first if there is none.
    pub(crate) fn get<E>(
        &mut self,
        key: K,
        now: Instant,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Arc<V>, E> {
        self.sweep(now);
        if let Some((kept, used)) = self.all.get_mut(&key) {
            *used = now;
            return Ok(kept.clone());
        }
        let made = Arc::new(make()?);
        if self.all.len() >= self.capacity {
            let oldest = self.all.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone());
            oldest.map(|oldest| self.all.remove(&oldest));
        }
        self.all.insert(key, (made.clone(), now));
        Ok(made)
    }

    /// Makes room for a new key: of a group that has `max` entries, removes those that nobody holds, the longest unused
    /// first.
    pub(crate) fn make_room_for(&mut self, key: &K, max: usize, is_of_group: impl Fn(&K) -> bool)
    where
        K: Clone,
    {
        if self.all.contains_key(key) {
            return;
        }
        let mut idle: Vec<_> = self
            .all
            .iter()
            .filter(|(other, (kept, _))| Arc::strong_count(kept) == 1 && is_of_group(other))
            .map(|(other, (_, used))| (*used, other.clone()))
            .collect();
        idle.sort_by_key(|(used, _)| *used);
        let excess = (idle.len() + 1).saturating_sub(max);
        for (_, other) in idle.into_iter().take(excess) {
            self.all.remove(&other);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Removes entries that nobody holds and that nobody asked for in time. Runs at most every tenth of that time.
    fn sweep(&mut self, now: Instant) {
        let age = |then| now.saturating_duration_since(then);
        if self.swept.is_some_and(|last| age(last) < UNUSED_SERVER_TTL / 10) {
            return;
        }
        self.swept = Some(now);
        self.all.retain(|_, (kept, used)| {
            if Arc::strong_count(kept) > 1 {
                *used = now;
            }
            age(*used) < UNUSED_SERVER_TTL
        });
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn unused_things_are_forgotten_and_held_ones_are_not() {
        let (mut kept, start) = (UnusedCache::default(), Instant::now());
        let make = |value: u32| move || Ok::<_, Infallible>(value);
        let held = kept.get("held", start, make(1)).unwrap();
        drop(kept.get("left", start, make(2)).unwrap());

        let later = start + UNUSED_SERVER_TTL * 2;
        kept.get("new", later, make(3)).unwrap();
        assert_eq!(kept.len(), 2, "the one that nobody holds is gone");
        assert!(Arc::ptr_eq(&held, &kept.get("held", later, make(9)).unwrap()));

        drop(held);
        kept.get("other", later + UNUSED_SERVER_TTL * 2, make(4)).unwrap();
        assert_eq!(kept.len(), 1);
    }

    #[test]
    fn a_new_thing_takes_the_place_of_the_one_unused_for_longest() {
        let (mut kept, start) = (UnusedCache::of(2), Instant::now());
        let mut get = |key: u32, after: u64, value: u32| {
            *kept.get(key, start + Duration::from_secs(after), || Ok::<_, Infallible>(value)).unwrap()
        };
        assert_eq!((get(1, 0, 1), get(2, 1, 2), get(1, 2, 9)), (1, 2, 1));
        assert_eq!((get(3, 3, 3), get(1, 4, 9), get(2, 5, 9)), (3, 1, 9), "2 made room, and 1 did not");
        assert_eq!(kept.len(), 2);
    }

    #[test]
    fn a_thing_in_use_is_the_same_for_everybody() {
        let (mut kept, now) = (UnusedCache::default(), Instant::now());
        let one = kept.get(1, now, || Ok::<_, Infallible>(String::new())).unwrap();
        let other = kept.get(1, now + UNUSED_SERVER_TTL / 2, || Ok::<_, Infallible>(String::new())).unwrap();
        assert!(Arc::ptr_eq(&one, &other));
    }
}
