//! The calls of daemons and proxies: dRPC, one stream for each call.
//!
//! A packet has a kind, the number of its call, its own number, and data; a long one has several frames. Only what a
//! server needs that answers almost nothing is implemented.

use bytes::{Buf as _, Bytes, BytesMut};
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use std::io;

/// Upper bound of a packet. No call of an idle daemon comes near.
const LONGEST: usize = 4 * 1024 * 1024;

/// Kind of a packet. Unknown kinds are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Invoke,
    Message,
    Error,
    Cancel,
    Close,
    CloseSend,
    Other,
}

const KINDS: [(u8, Kind); 6] = [
    (1, Kind::Invoke),
    (2, Kind::Message),
    (3, Kind::Error),
    (4, Kind::Cancel),
    (5, Kind::Close),
    (6, Kind::CloseSend),
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    /// Number of the call.
    pub(super) call: u64,
    pub(super) data: Bytes,
}

/// One side of a stream.
pub(super) struct Wire<S> {
    pub(super) stream: S,
    read: BytesMut,
    /// Frames of a packet that is not complete.
    part: BytesMut,
    sent: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, read: BytesMut::new(), part: BytesMut::new(), sent: 0 }
    }

    /// The next packet. `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> io::Result<Option<Packet>> {
        loop {
            while let Some(frame) = take(&mut self.read) {
                self.part.extend_from_slice(&frame.packet.data);
                if frame.done {
                    return Ok(Some(Packet { data: self.part.split().freeze(), ..frame.packet }));
                }
            }
            if self.read.len().max(self.part.len()) > LONGEST {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer).await? {
                0 => return Ok(None),
                length => self.read.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            }
        }
    }

    /// Sends a packet of a call.
    pub(super) async fn send(&mut self, kind: Kind, call: u64, data: &[u8]) -> io::Result<()> {
        self.sent += 1;
        let number = KINDS.iter().find(|known| known.1 == kind).map(|known| known.0).unwrap_or_default();
        let mut frame = vec![number << 1 | 1];
        for value in [call, self.sent, data.len() as u64] {
            put(&mut frame, value);
        }
        frame.extend_from_slice(data);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await
    }

    /// Refuses a call.
    pub(super) async fn refuse(&mut self, call: u64, message: &str) -> io::Result<()> {
        // The error code comes before the message; 0 means none.
        let data = [&[0; 8], message.as_bytes()].concat();
        self.send(Kind::Error, call, &data).await
    }

    /// Closes the sending side.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        self.stream.close().await
    }
}

struct Frame {
    done: bool,
    packet: Packet,
}

/// Removes the first frame from a buffer, if it is complete.
fn take(buffer: &mut BytesMut) -> Option<Frame> {
    let mut rest = buffer.as_ref();
    let (control, after) = rest.split_first()?;
    rest = after;
    let [call, _, length] = [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
    let length = usize::try_from(length).ok()?;
    if rest.len() < length {
        return None;
    }
    let (control, head) = (*control, buffer.len() - rest.len());
    buffer.advance(head);
    let data = buffer.split_to(length).freeze();
    let kind = KINDS.iter().find(|known| known.0 == (control & 0b0111_1110) >> 1);
    let packet = Packet { kind: kind.map_or(Kind::Other, |known| known.1), call, data };
    Some(Frame { done: control & 1 == 1, packet })
}

/// A variable-length integer: seven bits a byte, lowest first; the highest bit means that more follow.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use futures::io::Cursor;

    use super::*;

    #[tokio::test]
    async fn what_is_sent_is_read() {
        let mut wire = Wire::new(Cursor::new(Vec::new()));
        let long = vec![7; 300];
        wire.send(Kind::Invoke, 1, b"/call").await.unwrap();
        wire.send(Kind::Message, 200, &long).await.unwrap();
        wire.refuse(3, "no").await.unwrap();
        wire.stream.set_position(0);
        let expected = [
            (Kind::Invoke, 1, &b"/call"[..]),
            (Kind::Message, 200, &long),
            (Kind::Error, 3, b"\0\0\0\0\0\0\0\0no"),
        ];
        for (kind, call, data) in expected {
            let data = Bytes::copy_from_slice(data);
            assert_eq!(wire.next().await.unwrap(), Some(Packet { kind, call, data }));
        }
        assert_eq!(wire.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_packet_is_put_together_from_its_frames() {
        // The same packet in two frames, and then an empty one of a kind that is not known.
        let bytes =
            [&[2 << 1, 1, 1, 2][..], b"ab", &[2 << 1 | 1, 1, 1, 1], b"c", &[9 << 1 | 1, 1, 2, 0]].concat();
        let mut wire = Wire::new(Cursor::new(bytes));
        let first = Packet { kind: Kind::Message, call: 1, data: Bytes::from_static(b"abc") };
        assert_eq!(wire.next().await.unwrap(), Some(first));
        let second = Packet { kind: Kind::Other, call: 1, data: Bytes::new() };
        assert_eq!(wire.next().await.unwrap(), Some(second));
    }
}
