//! Opens a listener on an [`Address`] and serves a router on it until the process stops.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use axum::Router;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::{address::Address, intervals::SERVER_DRAIN_TIMEOUT};

const BACKLOG: u32 = 256;

/// An open listener.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    /// The address with the actual port, also if port 0 was given.
    pub local_addr: SocketAddr,
}

/// The listener cannot be opened. The message names the flag that sets its address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another address with {flag}")]
pub struct BindError {
    address: Address,
    flag: &'static str,
    source: io::Error,
}

/// Opens a listener on `address`; `None` if the address is off. `flag` is the flag that sets the address, for the error.
pub async fn bind(address: &Address, flag: &'static str) -> Result<Option<Bound>, BindError> {
    let listener = match address {
        Address::Off => return Ok(None),
        Address::Any(port) => all_interfaces(*port).await,
        Address::Ip(ip, port) => TcpListener::bind((*ip, *port)).await,
        Address::Name(name, port) => TcpListener::bind((name.as_str(), *port)).await,
    };
    listener
        .and_then(|listener| Ok(Some(Bound { local_addr: listener.local_addr()?, listener })))
        .map_err(|source| BindError { address: address.clone(), flag, source })
}

/// Serves until `stop`, then waits up to [`SERVER_DRAIN_TIMEOUT`] for responses in flight.
pub async fn serve(bound: Bound, router: Router, stop: CancellationToken) -> io::Result<()> {
    let stopped = stop.clone();
    let server = axum::serve(bound.listener, router).with_graceful_shutdown(stopped.cancelled_owned());
    tokio::select! {
        result = server => result,
        () = async { stop.cancelled().await; tokio::time::sleep(SERVER_DRAIN_TIMEOUT).await } => Ok(()),
    }
}

/// Listens on IPv6 and IPv4 with one socket, or on IPv4 alone where the machine has no IPv6.
async fn all_interfaces(port: u16) -> io::Result<TcpListener> {
    match dual_stack(port) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        other => other,
    }
}

fn dual_stack(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    // The default depends on the sysctl net.ipv6.bindv6only.
    rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}
