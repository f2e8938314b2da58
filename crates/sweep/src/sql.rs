//! The proxy between an operator and coderd's database: each commit is an effect.

use std::{io, net::Ipv4Addr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

use crate::effect::{Fault, Ledger};

const COMMIT: &[u8] = b"COMMIT";

/// A running proxy. Dropping it closes its connections.
pub struct SqlProxy {
    port: u16,
    _task: AbortOnDropHandle<()>,
}

impl SqlProxy {
    /// Starts one in front of a port of 127.0.0.1.
    pub async fn start(to: u16, ledger: Arc<Ledger>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let ledger = ledger.clone();
                open.spawn(async move { drop(carry(client, to, &ledger).await) });
            }
        });
        Ok(Self { port, _task: AbortOnDropHandle::new(task) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

async fn carry(mut client: TcpStream, to: u16, ledger: &Ledger) -> io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await?;
    let (mut asked, mut answered) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let request = asked.get(..read?).unwrap_or_default();
                if request.is_empty() {
                    return Ok(());
                }
                if !request.windows(COMMIT.len()).any(|window| window == COMMIT) {
                    server.write_all(request).await?;
                    continue;
                }
                let (number, fault) = ledger.enter("commit database".to_owned());
                match fault {
                    Some(Fault::KilledBefore) => {
                        ledger.kill();
                        return Ok(());
                    }
                    // A database has no other way to refuse a commit than to end the connection.
                    Some(Fault::Dropped | Fault::Answered(_)) => return Ok(()),
                    Some(Fault::Delayed(time)) => tokio::time::sleep(time).await,
                    Some(Fault::KilledAfter | Fault::ReplyLost) | None => {}
                }
                server.write_all(request).await?;
                let read = server.read(&mut answered).await?;
                ledger.leave(number, 200);
                match fault {
                    Some(Fault::KilledAfter) => {
                        ledger.kill();
                        return Ok(());
                    }
                    Some(Fault::ReplyLost) => return Ok(()),
                    _ => client.write_all(answered.get(..read).unwrap_or_default()).await?,
                }
            }
            read = server.read(&mut answered) => {
                let response = answered.get(..read?).unwrap_or_default();
                if response.is_empty() {
                    return Ok(());
                }
                client.write_all(response).await?;
            }
        }
    }
}
