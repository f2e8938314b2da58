//! One server: data directory, start and stop.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;

use super::log::Log;
use super::{Database, Error, Programs, database};
use crate::pki::token;
use crate::ports::free_port;
use crate::process::{Component, Group};
use crate::user::User;

const READY_WITHIN: Duration = Duration::from_mins(1);
const STOP_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
const ATTEMPTS: u32 = 3;
pub(super) const SUPERUSER: &str = "postgres";

const DATA: &str = "postgres";
const PASSWORD: &str = "postgres-password";
const CERTIFICATE: &str = "postgres.crt";
const KEY: &str = "postgres.key";

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    tls: Option<Vec<String>>,
}

impl Builder {
    /// Serves TLS with a certificate for these names and addresses. Plain connections are still accepted.
    #[must_use]
    pub fn tls(mut self, names: &[&str]) -> Self {
        self.tls = Some(names.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// Starts the server and waits until it accepts connections.
    pub async fn start(self) -> Result<Postgres, Error> {
        let programs = Programs::locate()?;
        let mut attempt = 1;
        loop {
            match self.clone().start_once(&programs).await {
                Err(Error::Exited { log, .. }) if log.contains("could not bind") && attempt < ATTEMPTS => {
                    tracing::debug!(attempt, "the port of postgres was taken in the meantime");
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    async fn start_once(self, programs: &Programs) -> Result<Postgres, Error> {
        let programs = programs.clone();
        let prepare = move || self.prepare(programs);
        let prepared = tokio::task::spawn_blocking(prepare).await;
        let server = prepared.map_err(io::Error::other).map_err(Error::io("set up postgres"))??;
        server.resume().await?;
        Ok(server)
    }

    /// Creates the data directory. Blocks for a second or two.
    fn prepare(self, programs: Programs) -> Result<Postgres, Error> {
        let group = Group::start().map_err(Error::io("set up the run directory of postgres"))?;
        let user = User::unless_ordinary();
        let password = token().map_err(Error::io("make a password"))?;
        let port = free_port().map_err(Error::io("find a free port on 127.0.0.1"))?;
        let identity = self.tls.map(identity).transpose()?;
        let write = || -> io::Result<PathBuf> {
            let data = group.dir().file(DATA);
            std::fs::create_dir(&data)?;
            let mut files = vec![data.clone(), group.dir().write(PASSWORD, &password)?];
            if let Some(Identity { ca: _, certificate, key }) = &identity {
                files.push(group.dir().write(CERTIFICATE, certificate)?);
                files.push(group.dir().write(KEY, key)?);
            }
            if let Some(user) = user {
                group.dir().let_others_pass()?;
                files.iter().try_for_each(|file| user.take(file))?;
            }
            Ok(data)
        };
        let data = write().map_err(Error::io("write the files of postgres"))?;
        let init = group
            .spawn_as(user, "initdb", &programs.initdb, &init_args(&data.to_string_lossy()))
            .map_err(Error::io("start initdb"))?;
        if !init.ended_within(READY_WITHIN) {
            return Err(Error::Io { action: "run initdb", source: io::ErrorKind::TimedOut.into() });
        }
        if let Some(status) = init.exited().filter(|status| !status.success()) {
            return Err(Error::InitDb { status, log: init.log_tail() });
        }
        let args = server_args(&data.to_string_lossy(), port, identity.is_some());
        let ca = identity.map(|identity| identity.ca);
        Ok(Postgres { programs, user, args, port, password, ca, running: Mutex::default(), group })
    }
}

/// A running server.
pub struct Postgres {
    programs: Programs,
    user: Option<User>,
    args: Vec<String>,
    pub(super) port: u16,
    pub(super) password: String,
    ca: Option<String>,
    running: Mutex<Option<Arc<Component>>>,
    group: Group,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres(port {})", self.port)
    }
}

impl Postgres {
    /// Starts a server without TLS.
    pub async fn start() -> Result<Self, Error> {
        Self::builder().start().await
    }

    /// A server with other options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The CA of its certificate as PEM. `None` without TLS.
    pub fn ca(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// Creates an empty database with a role of its own. Dropping it removes both.
    pub async fn database(&self) -> Result<Database<'_>, Error> {
        database::create(self, None).await
    }

    /// Stops the server at once, as a crash does: connections break, committed data stays.
    pub fn stop(&self) -> Result<(), Error> {
        let Some(component) = self.running.lock().take() else { return Ok(()) };
        // SIGQUIT makes the server end its children first. After SIGKILL they would run on until they notice.
        let _ = component.signal(Signal::QUIT);
        if component.ended_within(STOP_WITHIN) {
            return Ok(());
        }
        component.kill().map_err(Error::io("kill postgres"))
    }

    /// Starts the server again on the same port with the same data, and waits until it accepts connections.
    pub async fn resume(&self) -> Result<(), Error> {
        let component = {
            let mut running = self.running.lock();
            if let Some(component) = running.as_ref().filter(|component| component.exited().is_none()) {
                component.clone()
            } else {
                let started = self
                    .group
                    .spawn_as(self.user, "postgres", &self.programs.postgres, &self.args)
                    .map_err(Error::io("start postgres"))?;
                running.insert(started).clone()
            }
        };
        let began = Instant::now();
        let mut last = String::new();
        while began.elapsed() < READY_WITHIN {
            match database::superuser(self, SUPERUSER).await {
                Ok(_) => return Ok(()),
                Err(error) => last = super::with_sources(&error),
            }
            if let Some(status) = component.exited() {
                return Err(Error::Exited { status, log: component.log_tail() });
            }
            tokio::time::sleep(POLL).await;
        }
        Err(Error::NotReady { after: READY_WITHIN, last, log: component.log_tail() })
    }

    /// Connections and statements so far.
    pub(super) fn log(&self) -> Log {
        Log::read(&self.group.dir().file("postgres.log"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn init_args(data: &str) -> Vec<String> {
    let password = format!("--pwfile={PASSWORD}");
    ["--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256"]
        .map(String::from)
        .into_iter()
        .chain([format!("--username={SUPERUSER}"), password, format!("--pgdata={data}")])
        .collect()
}

/// Durability is off, because nothing here outlives the process.
fn server_args(data: &str, port: u16, tls: bool) -> Vec<String> {
    let mut settings = vec![
        format!("listen_addresses={}", Ipv4Addr::LOCALHOST),
        format!("port={port}"),
        "unix_socket_directories=".to_owned(),
        "fsync=off".to_owned(),
        "full_page_writes=off".to_owned(),
        "wal_level=minimal".to_owned(),
        "max_wal_senders=0".to_owned(),
        "checkpoint_timeout=1h".to_owned(),
        "shared_buffers=32MB".to_owned(),
        "max_connections=200".to_owned(),
        "autovacuum=off".to_owned(),
        "jit=off".to_owned(),
        "log_connections=on".to_owned(),
        "log_statement=all".to_owned(),
        format!("log_line_prefix={}", super::log::PREFIX),
    ];
    if tls {
        settings.push("ssl=on".to_owned());
        settings.push(format!("ssl_cert_file=../{CERTIFICATE}"));
        settings.push(format!("ssl_key_file=../{KEY}"));
    }
    ["-D".to_owned(), data.to_owned()]
        .into_iter()
        .chain(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]))
        .collect()
}

/// Certificate, key and CA of a server, as PEM.
struct Identity {
    ca: String,
    certificate: String,
    key: String,
}

fn identity(names: Vec<String>) -> Result<Identity, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "coder-k8s-testbed-postgres");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "postgres");
    let certificate = params.signed_by(&key, &ca)?;
    Ok(Identity { ca: ca.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
}
