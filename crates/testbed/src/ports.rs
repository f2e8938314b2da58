//! Free loopback ports.
//!
//! They are drawn at random from below the range that the kernel hands out to connecting sockets, so that no
//! outgoing connection takes one between the check and its use. Two clusters may still draw the same port; the
//! start of a cluster is tried again then.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use crate::pki::random;

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of 127.0.0.1 that nobody listens on right now.
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
