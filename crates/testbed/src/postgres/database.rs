//! Databases of tests, each with a role of its own. Dropping one removes both.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::{Config, NoTls};

use super::server::SUPERUSER;
use super::{Error, Postgres};
use crate::pki::token;

const REMOVED_WITHIN: Duration = Duration::from_secs(5);

/// A connection for assertions. Dropping it closes it.
pub struct Client {
    client: tokio_postgres::Client,
    connection: JoinHandle<()>,
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

impl std::ops::DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.client
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Address and owner of a database.
#[derive(Clone)]
struct Place {
    port: u16,
    superuser: String,
    name: String,
    password: String,
}

/// A database of one test.
pub struct Database<'a> {
    server: &'a Postgres,
    place: Place,
}

/// A database to copy from, which is much faster than to run the migrations for each test.
pub struct Template<'a> {
    database: Database<'a>,
}

impl fmt::Debug for Database<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({} on port {})", self.place.name, self.place.port)
    }
}

impl<'a> Database<'a> {
    /// Name of the database and of its role.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// The password of its role.
    pub fn password(&self) -> &str {
        &self.place.password
    }

    /// Connection URL with user and password.
    pub fn url(&self) -> String {
        self.url_through(self.place.port)
    }

    /// Connection URL with another port of 127.0.0.1, such as that of a [`Proxy`](super::Proxy).
    pub fn url_through(&self, port: u16) -> String {
        let Place { name, password, .. } = &self.place;
        format!("postgres://{name}:{password}@{}:{port}/{name}?sslmode=disable", Ipv4Addr::LOCALHOST)
    }

    /// Connects as the role of the database.
    pub async fn connect(&self) -> Result<Client, Error> {
        let Place { port, name, password, .. } = &self.place;
        connect(*port, name, password, name).await.map_err(Error::sql("connect to the database"))
    }

    /// Connects as the superuser, whose connections and statements are not counted.
    pub async fn connect_as_superuser(&self) -> Result<Client, Error> {
        superuser(self.server, &self.place.name).await
    }

    /// Number of accepted connections of its role so far.
    pub fn connections(&self) -> usize {
        self.server.log().connections(&self.place.name)
    }

    /// The statements of its role so far, in order.
    pub fn statements(&self) -> Vec<String> {
        self.server.log().statements(&self.place.name)
    }

    /// Converts the database into a template. No connection may be open; the server waits a few seconds for closing
    /// ones.
    pub fn into_template(self) -> Template<'a> {
        Template { database: self }
    }
}

impl<'a> Template<'a> {
    /// Copies the template. The role of the copy has the permissions of the owner of the template.
    pub async fn database(&self) -> Result<Database<'a>, Error> {
        create(self.database.server, Some(self)).await
    }
}

pub(super) async fn create<'a>(
    server: &'a Postgres,
    template: Option<&Template<'_>>,
) -> Result<Database<'a>, Error> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let place = Place {
        port: server.port,
        superuser: server.password.clone(),
        name: format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        password: token().map_err(Error::io("make a password"))?,
    };
    let client = superuser(server, SUPERUSER).await?;
    let Place { name, password, .. } = &place;
    let member =
        template.map(|template| format!(" IN ROLE {}", template.database.name())).unwrap_or_default();
    let role = format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'{member}");
    client.batch_execute(&role).await.map_err(Error::sql("create a role"))?;
    let source = template.map_or("template0", |template| template.database.name());
    let database = format!("CREATE DATABASE {name} OWNER {name} TEMPLATE {source}");
    client.batch_execute(&database).await.map_err(Error::sql("create a database"))?;
    Ok(Database { server, place })
}

pub(super) async fn superuser(server: &Postgres, database: &str) -> Result<Client, Error> {
    let client = connect(server.port, SUPERUSER, &server.password, database).await;
    client.map_err(Error::sql("connect to postgres as its superuser"))
}

async fn connect(
    port: u16,
    user: &str,
    password: &str,
    database: &str,
) -> Result<Client, tokio_postgres::Error> {
    let mut config = Config::new();
    config.host(Ipv4Addr::LOCALHOST.to_string()).port(port).user(user).password(password).dbname(database);
    let (client, connection) = config.connect(NoTls).await?;
    let connection = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to postgres ended");
        }
    });
    Ok(Client { client, connection })
}

/// Cuts open connections instead of waiting for them, because a test may end at any point. Errors are ignored: the
/// server may be stopped, and is thrown away as a whole.
impl Drop for Database<'_> {
    fn drop(&mut self) {
        let place = self.place.clone();
        // A drop cannot await, and a runtime cannot block inside another, so a thread with its own runtime does the work.
        let _ = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async { tokio::time::timeout(REMOVED_WITHIN, remove(&place)).await }).ok()
        })
        .join();
    }
}

async fn remove(place: &Place) -> Result<(), tokio_postgres::Error> {
    let Place { port, superuser, name, password: _ } = place;
    let client = connect(*port, SUPERUSER, superuser, SUPERUSER).await?;
    client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
    client.batch_execute(&format!("DROP ROLE IF EXISTS {name}")).await
}
