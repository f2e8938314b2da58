//! Name resolution. The operator uses the system; `dev` and tests supply their own resolver, because names of
//! Services resolve inside a cluster only.

use std::{io, net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolving};

/// Resolves the address of a server. Called for names only, never for a literal address.
pub trait Resolve: Send + Sync {
    /// Returns the addresses for a host and a port. A returned port other than 0 replaces the given one, as the
    /// target port of a Service does.
    fn resolve(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>>;
}

/// Adapts a [`Resolve`] to reqwest, which resolves hosts without their port.
pub(crate) struct PortResolver {
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) port: u16,
}

impl reqwest::dns::Resolve for PortResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolver, port) = (self.resolver.clone(), self.port);
        Box::pin(async move {
            let found = resolver.resolve(name.as_str().to_owned(), port).await?;
            // For port 0 reqwest would use the port of the scheme instead of the port of the URL.
            let with_port = move |mut address: SocketAddr| {
                if address.port() == 0 {
                    address.set_port(port);
                }
                address
            };
            Ok(Box::new(found.into_iter().map(with_port)) as Addrs)
        })
    }
}
