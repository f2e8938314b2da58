//! Servers of attackers: any bytes on a socket, with a record of who came and how much they took.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use coder_k8s_testbed::own_address;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// What one connection is given at most, so that a client without a bound harms the machine no more than it must.
const CAP: u64 = 160 * 1024 * 1024;
/// What the operator may take of one connection to coderd: its own bound, and what the buffers of two sockets hold.
pub(crate) const BOUND: u64 = 40 * 1024 * 1024;
/// The same of one connection to a database.
pub(crate) const DATABASE_BOUND: u64 = 16 * 1024 * 1024;

/// What a server does with each connection, once it has read a request.
#[derive(Clone)]
pub(crate) enum Act {
    /// Writes this and closes.
    Say(Vec<u8>),
    /// Writes the first, then the second again and again.
    Stream(Vec<u8>, Vec<u8>),
    /// Writes the first, then a blank now and then.
    Drip(Vec<u8>),
    /// Says nothing.
    Hang,
    /// Closes, with a reset if anything is unread.
    Close,
}

/// A part of a conversation with a client that speaks Postgres or HTTP.
#[derive(Default)]
struct Record {
    connections: AtomicUsize,
    longest: AtomicU64,
    heads: Mutex<Vec<String>>,
}

/// A server of an attacker. Dropping it closes its connections.
pub(crate) struct Hostile {
    pub(crate) address: SocketAddr,
    record: Arc<Record>,
    task: JoinHandle<()>,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hostile {
    /// A server that does the same to everybody.
    pub(crate) async fn start(act: Act) -> Self {
        Self::steps(vec![act]).await
    }

    /// A server that says something before what it does: one step for each request that it reads.
    pub(crate) async fn steps(acts: Vec<Act>) -> Self {
        Self::on(&format!("{}:0", own_address().unwrap()), acts).await
    }

    /// The same at an address.
    pub(crate) async fn on(address: &str, acts: Vec<Act>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let record = Arc::<Record>::default();
        let task = tokio::spawn(serve(listener, Arc::new(acts), record.clone()));
        Self { address, record, task }
    }

    /// How often somebody came.
    pub(crate) fn connections(&self) -> usize {
        self.record.connections.load(Ordering::SeqCst)
    }

    /// The most bytes that were written to one connection.
    pub(crate) fn longest(&self) -> u64 {
        self.record.longest.load(Ordering::SeqCst)
    }

    /// The beginnings of what was read.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.record.heads.lock().unwrap().clone()
    }
}

async fn serve(listener: TcpListener, acts: Arc<Vec<Act>>, record: Arc<Record>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        record.connections.fetch_add(1, Ordering::SeqCst);
        let (acts, record) = (acts.clone(), record.clone());
        connections.spawn(async move { serve_one(stream, &acts, &record).await });
    }
}

async fn serve_one(mut stream: TcpStream, acts: &[Act], record: &Record) -> io::Result<()> {
    let mut written = 0;
    for act in acts {
        let mut head = vec![0; 16 * 1024];
        if !matches!(act, Act::Close) {
            let count = stream.read(&mut head).await?;
            record.heads.lock().unwrap().push(String::from_utf8_lossy(&head[..count]).into_owned());
        }
        match act {
            Act::Say(bytes) => stream.write_all(bytes).await?,
            Act::Stream(first, piece) => {
                stream.write_all(first).await?;
                while written < CAP {
                    stream.write_all(piece).await?;
                    written += u64::try_from(piece.len()).unwrap();
                    record.longest.fetch_max(written, Ordering::SeqCst);
                }
            }
            Act::Drip(first) => {
                stream.write_all(first).await?;
                loop {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    stream.write_all(b" ").await?;
                }
            }
            Act::Hang => std::future::pending().await,
            Act::Close => return Ok(()),
        }
    }
    stream.shutdown().await
}

/// An answer of HTTP.
pub(crate) fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The beginning of an answer whose body has no length.
pub(crate) fn unbounded(headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{headers}\r\n").into_bytes()
}

/// A message of Postgres.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[kind], &length.to_be_bytes()[..], body].concat()
}

/// What Postgres says after a start without a password: everything is accepted.
pub(crate) fn welcome() -> Vec<u8> {
    [message(b'R', &0_u32.to_be_bytes()), message(b'Z', b"I")].concat()
}

/// A text of an object.
pub(crate) fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
