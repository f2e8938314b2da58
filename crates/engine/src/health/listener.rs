//! Listening on an [`Address`] and serving a router there until told to stop.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use axum::Router;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::address::Address;

/// How long answers in flight may take when the server stops.
const DRAIN: Duration = Duration::from_secs(2);
const BACKLOG: u32 = 256;

/// A listener that has its port.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    /// Where it listens, with the real port where 0 was asked for.
    pub local_addr: SocketAddr,
}

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another address with {flag}")]
pub struct BindError {
    address: Address,
    flag: &'static str,
    source: io::Error,
}

/// Listens on `address`, or not at all if it is off. `flag` is where the user gave it.
pub async fn bind(address: &Address, flag: &'static str) -> Result<Option<Bound>, BindError> {
    let listener = match address {
        Address::Off => return Ok(None),
        Address::Any(port) => everywhere(*port).await,
        Address::Ip(ip, port) => TcpListener::bind((*ip, *port)).await,
        Address::Name(name, port) => TcpListener::bind((name.as_str(), *port)).await,
    };
    listener
        .and_then(|listener| Ok(Some(Bound { local_addr: listener.local_addr()?, listener })))
        .map_err(|source| BindError { address: address.clone(), flag, source })
}

/// Serves until `stop`, then lets answers in flight end, for a short while.
pub async fn serve(bound: Bound, router: Router, stop: CancellationToken) -> io::Result<()> {
    let stopped = stop.clone();
    let server = axum::serve(bound.listener, router).with_graceful_shutdown(stopped.cancelled_owned());
    tokio::select! {
        result = server => result,
        () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => Ok(()),
    }
}

/// Both families on one socket; IPv4 alone where the machine has no IPv6.
async fn everywhere(port: u16) -> io::Result<TcpListener> {
    match dual_stack(port) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        other => other,
    }
}

fn dual_stack(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // The system's default for this differs (net.ipv6.bindv6only).
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}
