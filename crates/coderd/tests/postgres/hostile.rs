//! A server that speaks the protocol of Postgres and sends without end: the operator stops reading, and says why.

use std::time::{Duration, Instant};

use coder_k8s_coderd::postgres::Postgres;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::scene::{NAME, dsn, hasty};

/// What a server sends at most in a test. Without a bound of the operator all of it would arrive.
const ALL: usize = 512 << 20;
/// What may be on its way when the operator stops: its own bound, and the buffers of both sockets.
const ON_ITS_WAY: usize = 16 << 20;
/// What a call may cost. The rows of [`ALL`] would take a hundred times that.
const MEMORY: u64 = 48 << 20;

/// Where the server begins to stream, and the message that it repeats.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Notices in place of the end of the login.
    Notices,
    /// Settings in place of the end of the login, each of another name.
    Settings,
    /// An answer to a statement that is one message of a gigabyte.
    OneMessage,
    /// An answer of small rows.
    Rows,
    /// An error whose text never ends.
    Error,
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag], length.as_slice(), body].concat()
}

/// The rows of the catalog: three columns of text, text and boolean.
fn row_description() -> Vec<u8> {
    let column = |kind: u32| {
        let zeros = [0; 6];
        [b"c\0".as_slice(), &zeros, &kind.to_be_bytes(), &[0, 0, 0, 0, 0, 0, 0, 0]].concat()
    };
    let columns = [[0, 3].to_vec(), column(25), column(25), column(16)].concat();
    message(b'T', &columns)
}

fn row() -> Vec<u8> {
    message(b'D', &[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
}

/// Sends a chunk until the operator hangs up or everything is sent. Returns the bytes that it took.
async fn stream(socket: &mut TcpStream, mut chunk: impl FnMut(usize) -> Vec<u8>) -> usize {
    let mut sent = 0;
    while sent < ALL {
        let next = chunk(sent);
        if socket.write_all(&next).await.is_err() {
            break;
        }
        sent += next.len();
    }
    sent
}

/// Serves one connection and returns how much it took.
async fn serve(mut socket: TcpStream, attack: Attack) -> std::io::Result<usize> {
    let length = socket.read_u32().await?;
    socket.read_exact(&mut vec![0; length as usize - 4]).await?;
    socket.write_all(&message(b'R', &[0; 4])).await?;
    match attack {
        Attack::Notices => return Ok(stream(&mut socket, |_| message(b'N', &[0]).repeat(1000)).await),
        Attack::Settings => {
            let setting = |sent| message(b'S', format!("{sent:08}\0\0").as_bytes());
            return Ok(stream(&mut socket, setting).await);
        }
        Attack::OneMessage | Attack::Rows | Attack::Error => {}
    }
    let ready = message(b'Z', b"I");
    socket.write_all(&ready).await?;
    loop {
        let (tag, length) = (socket.read_u8().await?, socket.read_u32().await?);
        socket.read_exact(&mut vec![0; length as usize - 4]).await?;
        match (tag, attack) {
            (b'Q', Attack::OneMessage) => {
                socket.write_all(&[b'D', 0x40, 0, 0, 0]).await?;
                return Ok(stream(&mut socket, |_| vec![0; 64 << 10]).await);
            }
            (b'Q', Attack::Error) => {
                socket.write_all(&[b'E', 0x40, 0, 0, 0, b'M']).await?;
                return Ok(stream(&mut socket, |_| vec![b'x'; 64 << 10]).await);
            }
            (b'Q', _) => socket.write_all(&[message(b'C', b"BEGIN\0"), ready.clone()].concat()).await?,
            // Sync, the end of a statement.
            (b'S', _) => {
                let begin = [message(b'1', &[]), message(b'2', &[]), row_description()].concat();
                socket.write_all(&begin).await?;
                return Ok(stream(&mut socket, |_| row().repeat(2000)).await);
            }
            _ => {}
        }
    }
}

/// A field of the process's own memory in bytes.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_server_that_sends_without_end_is_left_within_the_bound() {
    let operator = Postgres::new(hasty());
    for attack in [Attack::Notices, Attack::Settings, Attack::OneMessage, Attack::Rows, Attack::Error] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("postgres://u:p@{}/c?sslmode=disable", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { serve(listener.accept().await.unwrap().0, attack).await });
        let (before, began) = (memory("VmRSS:"), Instant::now());
        let error = operator.revoke(&dsn(&target), None, NAME).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(10), "{attack:?} took {:?}", began.elapsed());
        assert_eq!(error.reason().as_str(), "DatabaseError", "{attack:?}: {error}");
        assert!(error.to_string().contains("more than 1024 KiB on one connection"), "{attack:?}: {error}");
        let grown = memory("VmHWM:").saturating_sub(before);
        assert!(grown < MEMORY, "{attack:?} grew the process by {} MiB", grown >> 20);
        let taken = server.await.unwrap().unwrap();
        assert!(taken < ON_ITS_WAY, "{attack:?} took {} MiB", taken >> 20);
        println!(
            "{attack:?}: took {} KiB, grew by at most {} KiB, {:?}",
            taken >> 10,
            grown >> 10,
            began.elapsed()
        );
    }
}
