//! A proxy in front of a server that breaks connections on purpose.
//!
//! It matches the text that a client sends in one piece, which is how the driver sends a statement. TLS would hide
//! the text, so connections through the proxy are plain.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const BUFFER: usize = 16 * 1024;

/// What happens to connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyFault {
    /// They work.
    #[default]
    None,
    /// They are closed as soon as they are accepted.
    Close,
    /// They are accepted and never answered.
    Hang,
    /// Closed when the client sends this text, before it reaches the server.
    CutBefore(&'static str),
    /// Closed when the server has answered this text, before the answer reaches the client.
    CutAfter(&'static str),
    /// The text reaches the server, and its answer is never delivered.
    SilentAfter(&'static str),
}

/// A proxy on 127.0.0.1. Dropping it closes its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    trouble: Arc<Mutex<ProxyFault>>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of a port of 127.0.0.1.
    pub async fn start(to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (trouble, accepted) = (Arc::<Mutex<ProxyFault>>::default(), Arc::<AtomicUsize>::default());
        let task = tokio::spawn(serve(listener, to, trouble.clone(), accepted.clone()));
        Ok(Self { port, trouble, accepted, task })
    }

    /// Port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets what happens from now on, to open connections as well.
    pub fn set(&self, trouble: ProxyFault) {
        *self.trouble.lock() = trouble;
    }

    /// Number of connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, to: u16, trouble: Arc<Mutex<ProxyFault>>, accepted: Arc<AtomicUsize>) {
    let mut open = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::SeqCst);
        let trouble = trouble.clone();
        open.spawn(async move {
            // Either side may disconnect at any time, so errors are ignored.
            let _ = carry(client, to, &trouble).await;
        });
    }
}

async fn carry(client: TcpStream, to: u16, trouble: &Mutex<ProxyFault>) -> io::Result<()> {
    let now = *trouble.lock();
    match now {
        ProxyFault::Close => return Ok(()),
        ProxyFault::Hang => return silence(client).await,
        _ => {}
    }
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let end = Mutex::new(End::Open);
    tokio::select! {
        result = requests(from_client, to_server, trouble, &end) => result,
        result = answers(from_server, to_client, &end) => result,
    }
}

/// What happens to the answers of one connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Cut,
    Silent,
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    trouble: &Mutex<ProxyFault>,
    end: &Mutex<End>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await?;
        let sent = buffer.get(..n).unwrap_or_default();
        if sent.is_empty() {
            return Ok(());
        }
        let has = |text: &str| sent.windows(text.len()).any(|window| window == text.as_bytes());
        let now = *trouble.lock();
        match now {
            ProxyFault::CutBefore(text) if has(text) => return Ok(()),
            ProxyFault::CutAfter(text) if has(text) => *end.lock() = End::Cut,
            ProxyFault::SilentAfter(text) if has(text) => *end.lock() = End::Silent,
            _ => {}
        }
        to.write_all(sent).await?;
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, end: &Mutex<End>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await?;
        let answer = buffer.get(..n).unwrap_or_default();
        let now = *end.lock();
        match now {
            End::Cut => return Ok(()),
            End::Silent if !answer.is_empty() => {}
            _ if answer.is_empty() => return Ok(()),
            _ => to.write_all(answer).await?,
        }
    }
}

/// Reads until the client disconnects, and never answers.
async fn silence(mut client: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    while client.read(&mut buffer).await? > 0 {}
    Ok(())
}
