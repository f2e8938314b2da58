//! Makes an input out of those that are there: bytes and words changed, ranges removed, repeated, or taken from another.

use fastrand::Rng;

/// What grammars of the targets are made of.
const WORDS: [&[u8]; 36] = [
    b"$(",
    b")",
    b"$$",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u0000",
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"=",
    b"&",
    b"?",
    b"@",
    b"/",
    b"%00",
    b"%",
    b"'",
    b" ",
    b"\n",
    b"\0",
    b"\xff\xff\xff\xff",
    b"\xc3\xa4",
    b"[::1]",
    b"-----BEGIN CERTIFICATE-----\n",
    b"-----END CERTIFICATE-----\n",
    b"scope",
    b"owner",
    b".",
];

/// An input of at most `max` bytes.
pub(crate) fn mutate(pool: &[Vec<u8>], random: &mut Rng, max: usize) -> Vec<u8> {
    let mut input = random.choice(pool).cloned().unwrap_or_default();
    for _ in 0..=random.u8(..4) {
        let (from, to) = range(&input, random);
        match random.u8(..7) {
            0 => input.extend((0..random.usize(1..16)).map(|_| random.u8(..))),
            1 => input.iter_mut().skip(from).take(1).for_each(|byte| *byte ^= 1 << random.u8(..8)),
            2 => drop(input.drain(from..to)),
            3 => drop(input.splice(from..from, random.choice(WORDS).unwrap_or_default().iter().copied())),
            4 => drop(input.splice(from..to, random.choice(WORDS).unwrap_or_default().iter().copied())),
            5 => {
                let part: Vec<u8> = input.drain(from..to).collect();
                // Mostly a few times; sometimes as often as fits, to find what is not linear.
                let times = if random.u8(..64) == 0 { max / part.len().max(1) } else { random.usize(1..8) };
                drop(input.splice(from..from, part.repeat(times)));
            }
            _ => {
                let other = random.choice(pool).map_or(&[][..], Vec::as_slice);
                let (start, end) = range(other, random);
                let part = other.get(start..end).unwrap_or_default().to_vec();
                drop(input.splice(from..to, part));
            }
        }
        input.truncate(max);
    }
    input
}

/// A range within the input, mostly a short one.
fn range(input: &[u8], random: &mut Rng) -> (usize, usize) {
    let from = random.usize(..=input.len());
    let longest = input.len() - from;
    let longest = if random.bool() { longest } else { longest.min(16) };
    (from, from + random.usize(..=longest))
}
