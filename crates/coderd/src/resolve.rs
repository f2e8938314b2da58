//! Where a server's name leads. A running operator asks the system; `dev` and tests bring their own answer,
//! because the names of Services resolve only inside a cluster.

use std::{io, net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolving};

/// Finds the addresses of a server. Asked for names only, never for a literal address.
pub trait Resolve: Send + Sync {
    /// The addresses behind a host and a port. The port may become another one, as with a Service.
    fn resolve(&self, host: String, port: u16) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>>;
}

/// A resolver for one port, as reqwest asks: it knows hosts alone.
pub(crate) struct OfPort {
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) port: u16,
}

impl reqwest::dns::Resolve for OfPort {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolver, port) = (self.resolver.clone(), self.port);
        Box::pin(async move {
            let found = resolver.resolve(name.as_str().to_owned(), port).await?;
            // Without a port reqwest would take that of the scheme, not that of the URL.
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
