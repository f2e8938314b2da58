//! A DNS server that knows one name, and remembers what it was asked.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use tokio::{net::UdpSocket, task::JoinHandle};

/// Resolvers ask the port of DNS and no other. An address of its own keeps it apart from a server of this machine.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 153);

/// Types of records.
const A: u16 = 1;

/// Runs until it is dropped.
pub(crate) struct Dns {
    asked: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl Dns {
    /// Starts a server that answers with this host for this name, and that it does not exist for every other.
    pub(crate) async fn start(name: String, host: Ipv4Addr) -> Self {
        let address = SocketAddr::from((ADDRESS, 53));
        let socket = UdpSocket::bind(address).await.unwrap_or_else(|error| {
            panic!("cannot serve DNS at {address}, which this test needs to do; run it as root: {error}")
        });
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = asked.clone();
        let serving = tokio::spawn(async move {
            let mut request = [0; 512];
            while let Ok((size, from)) = socket.recv_from(&mut request).await {
                if let Some((about, answer)) = answer(&request[..size], &name, host) {
                    notes.lock().unwrap().push(about);
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Self { asked, serving }
    }

    /// The names that it was asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The name that a request asks for, and the answer to it (RFC 1035, section 4). None: it is not a request.
fn answer(request: &[u8], known: &str, host: Ipv4Addr) -> Option<(String, Vec<u8>)> {
    let (header, mut rest) = request.split_at_checked(12)?;
    let mut labels = Vec::new();
    loop {
        let (&length, after) = rest.split_first()?;
        let (label, after) = after.split_at_checked(length.into())?;
        rest = after;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(label).to_lowercase());
    }
    let kind = u16::from_be_bytes([*rest.first()?, *rest.get(1)?]);
    let question = &request[12..request.len() - rest.len() + 4];
    let (name, is_known) = (labels.join("."), labels.join(".") == known);
    let has_address = is_known && kind == A;
    // An answer, with recursion, and the code for a name that does not exist.
    let flags = [0x81, if is_known { 0x80 } else { 0x83 }];
    let counts = [0, 1, 0, u8::from(has_address), 0, 0, 0, 0];
    let mut answer = [&header[..2], &flags, &counts, question].concat();
    if has_address {
        // The name of the question, type A, class IN, valid for a second, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(host.octets());
    }
    Some((name, answer))
}
