//! What all clients of a process share.

use std::{sync::Arc, time::Duration};

use crate::{
    answer,
    client::Client,
    faults::Faults,
    pools::{ConnectionPools, Trust},
    resolve::Resolve,
    server::Server,
    servers::Servers,
    target::{BadTarget, Origin, Target},
};

/// Told of every call when it ends.
pub trait Observer: Send + Sync {
    /// A call ended: `ok`, the reason of its error, or `canceled`.
    fn called(&self, call: &'static str, outcome: &str, elapsed: Duration);
}

/// How clients behave.
#[derive(Clone)]
pub struct Settings {
    /// How long a call may take: the wait for a slot, the connection, and the whole answer.
    pub deadline: Duration,
    /// Who finds the addresses of servers; None: the system.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// Where calls are counted.
    pub observer: Option<Arc<dyn Observer>>,
    /// What goes wrong on purpose.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(10), resolver: None, observer: None, faults: None }
    }
}

/// Makes servers, whose clients share connections and request budgets. One is enough for a process.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) servers: Servers,
    pools: ConnectionPools,
}

impl Connector {
    /// A connector with these settings.
    pub fn new(settings: Settings) -> Self {
        let pools = ConnectionPools::new(settings.resolver.clone());
        Self { shared: Arc::new(Shared { settings, servers: Servers::default(), pools }) }
    }

    /// The server at an address. Sends nothing.
    pub fn server(&self, target: &Target) -> Result<Server, BadTarget> {
        self.anonymous(target).map(Server::new)
    }

    /// A client without a credential, to which tests attach any credential that they like.
    #[cfg(feature = "test-util")]
    pub fn client(
        &self,
        target: &Target,
        token: Option<&secrecy::SecretString>,
    ) -> Result<Client, BadTarget> {
        let client = self.anonymous(target)?;
        token.map_or(Ok(client.clone()), |token| client.with_token(token))
    }

    fn anonymous(&self, target: &Target) -> Result<Client, BadTarget> {
        let Target { url, ca } = target;
        let origin = Origin::parse(url)?;
        let trust = match ca.as_deref() {
            _ if !origin.https => Trust::Plain,
            None => Trust::System,
            Some(pem) => Trust::Only(pem),
        };
        let pool = self.shared.pools.get(trust, origin.port);
        let pool = pool.map_err(|error| BadTarget::Authorities(answer::cause(&error)))?;
        let budget = self.shared.servers.get(origin.url.as_str());
        let rerouted = origin.named && self.shared.pools.resolves();
        Ok(Client::new(self.shared.clone(), origin, rerouted, budget, pool))
    }

    /// The request budgets.
    pub fn servers(&self) -> &Servers {
        &self.shared.servers
    }
}
