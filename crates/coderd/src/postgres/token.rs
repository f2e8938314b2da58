//! The text of a token: an id and a secret, as coderd makes them.

use rustls::crypto::aws_lc_rs;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use super::error::DatabaseErrorKind;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The largest multiple of 62 that a byte can count to: above it, some characters would come more often.
const FAIR: u8 = 248;
const ID: usize = 10;
const SECRET: usize = 22;
/// What is next to the name of the token that is to take its place.
const NEXT: &str = "-next";

/// A token taken apart. coderd keeps the digest of the secret alone.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
}

impl Parts {
    /// None when it is no token.
    pub(super) fn of(token: &SecretString) -> Option<Self> {
        let (id, secret) = token.expose_secret().trim().split_once('-')?;
        (!id.is_empty() && !secret.is_empty())
            .then(|| Self { id: id.to_owned(), digest: Sha256::digest(secret).into() })
    }
}

/// A new token.
pub(super) fn make() -> Result<SecretString, DatabaseErrorKind> {
    let [id, secret] = [random(ID)?, random(SECRET)?];
    Ok(SecretString::from(format!("{}-{}", *id, *secret)))
}

fn random(length: usize) -> Result<Zeroizing<String>, DatabaseErrorKind> {
    let source = aws_lc_rs::default_provider().secure_random;
    let mut text = Zeroizing::new(String::with_capacity(length));
    let mut bytes = Zeroizing::new([0_u8; 64]);
    while text.len() < length {
        source.fill(bytes.as_mut_slice()).map_err(|_| DatabaseErrorKind::Unexpected("make a token"))?;
        let fair = bytes.iter().filter(|byte| **byte < FAIR);
        let characters = fair.filter_map(|byte| ALPHABET.get(usize::from(*byte) % ALPHABET.len()));
        let missing = length - text.len();
        text.extend(characters.take(missing).map(|byte| char::from(*byte)));
    }
    Ok(text)
}

/// The two names that the tokens of one control plane may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) plain: String,
    pub(super) next: String,
}

impl Names {
    pub(super) fn of(name: &str) -> Self {
        Self { plain: name.to_owned(), next: format!("{name}{NEXT}") }
    }

    /// The one that is not this one.
    pub(super) fn other(&self, name: &str) -> &str {
        if name == self.plain { &self.next } else { &self.plain }
    }

    pub(super) fn both(&self) -> [&str; 2] {
        [&self.plain, &self.next]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_token_has_the_shape_of_coderds_own() {
        let mut seen = BTreeSet::new();
        for _ in 0..300 {
            let token = make().unwrap();
            let (id, secret) = token.expose_secret().split_once('-').unwrap();
            assert_eq!((id.len(), secret.len()), (ID, SECRET));
            assert!(id.chars().chain(secret.chars()).all(|c| c.is_ascii_alphanumeric()));
            seen.extend(secret.chars());
        }
        assert_eq!(seen.len(), ALPHABET.len(), "every character comes up");
        assert_eq!(usize::from(FAIR) % ALPHABET.len(), 0, "and none more often than another");
    }

    #[test]
    fn a_token_is_taken_apart_at_its_first_dash() {
        let parts = |text: &str| Parts::of(&SecretString::from(text));
        let whole = parts(" id-sec-ret\n").unwrap();
        assert_eq!(whole.id, "id");
        assert_eq!(whole.digest, <[u8; 32]>::from(Sha256::digest("sec-ret")));
        for text in ["", "id", "id-", "-secret", "-"] {
            assert!(parts(text).is_none(), "{text}");
        }
    }

    #[test]
    fn the_other_name_is_always_the_one_that_is_free() {
        let names = Names::of("a");
        assert_eq!(names.both(), ["a", "a-next"]);
        assert_eq!((names.other("a"), names.other("a-next")), ("a-next", "a"));
    }
}
