//! Free addresses and ports of loopback.
//!
//! Ports are chosen at random below the range that the kernel uses for outgoing connections, so that none of those
//! takes a port between the check and its use. Two clusters may still choose the same port; the start of a cluster is
//! then repeated.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::pki::random;

/// An address of 127.0.0.0/8, chosen at random, for a server of a test. Ports of 127.0.0.1 are used again soon after a
/// server ends, and whoever still calls it would then talk to that of another test.
pub fn own_address() -> io::Result<Ipv4Addr> {
    let [a, b, c] = random()?;
    // Not close to 127.0.0.1.
    Ok(Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254)))
}

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of 127.0.0.1 on which nothing listens now.
pub(crate) fn free_port() -> io::Result<u16> {
    let mut last = io::Error::other("no random numbers");
    for _ in 0..100 {
        let port = FIRST + u16::from_le_bytes(random()?) % COUNT;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}
