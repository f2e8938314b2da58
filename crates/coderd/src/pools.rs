//! Connection pools: one reqwest client for each set of trusted certificates and, with a resolver, for each port.
//!
//! A server behind plain HTTP loads no root certificates at all. A CA that is given for a server is the only one
//! trusted for it, as with `caBundle` in Kubernetes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use reqwest::{Certificate, redirect, retry};
use sha2::{Digest, Sha256};

use crate::{
    kept::Kept,
    resolve::{PortResolver, Resolve},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
const IDLE_CONNECTIONS: usize = 2;
const USER_AGENT: &str = concat!("coder-k8s/", env!("CARGO_PKG_VERSION"));

/// Which certificates are trusted.
#[derive(Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// No TLS.
    Plain,
    /// The root certificates of the system.
    System,
    /// These certificates only, as PEM.
    Only(&'a [u8]),
}

/// Identity of a pool. A CA is identified by its digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PoolKey {
    trust: TrustKey,
    port: Option<u16>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TrustKey {
    Plain,
    System,
    Only([u8; 32]),
}

/// All connection pools of a process.
pub(crate) struct ConnectionPools {
    resolver: Option<Arc<dyn Resolve>>,
    all: Mutex<Kept<PoolKey, reqwest::Client>>,
}

impl ConnectionPools {
    pub(crate) fn new(resolver: Option<Arc<dyn Resolve>>) -> Self {
        Self { resolver, all: Mutex::default() }
    }

    /// Whether names are resolved by a given resolver instead of the system.
    pub(crate) fn resolves(&self) -> bool {
        self.resolver.is_some()
    }

    /// Returns the pool for a trust and a port.
    pub(crate) fn get(&self, trust: Trust<'_>, port: u16) -> Result<Arc<reqwest::Client>, reqwest::Error> {
        let resolver = self.resolver.clone().map(|resolver| PortResolver { resolver, port });
        let key = PoolKey {
            trust: match trust {
                Trust::Plain => TrustKey::Plain,
                Trust::System => TrustKey::System,
                Trust::Only(pem) => TrustKey::Only(Sha256::digest(pem).into()),
            },
            port: resolver.as_ref().map(|resolver| resolver.port),
        };
        self.all.lock().get(key, Instant::now(), || build(trust, resolver))
    }
}

fn build(trust: Trust<'_>, resolver: Option<PortResolver>) -> Result<reqwest::Client, reqwest::Error> {
    let mut builder = reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .http1_only()
        .redirect(redirect::Policy::none())
        .referer(false)
        .retry(retry::never())
        // A proxy in the environment is for the internet. It does not reach Services, and over plain HTTP it would
        // read every token.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS);
    builder = match trust {
        Trust::Plain => builder.tls_certs_only([]),
        Trust::System => builder,
        Trust::Only(pem) => builder.tls_certs_only(Certificate::from_pem_bundle(pem)?),
    };
    if let Some(resolver) = resolver {
        builder = builder.dns_resolver(Arc::new(resolver));
    }
    builder.build()
}
