//! The text of a token, `<id>-<secret>` as coderd creates it, and the two names that a token may have.

use rustls::crypto::aws_lc_rs;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};

use super::error::DatabaseErrorKind;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The largest multiple of 62 in a byte. Larger bytes are skipped, because they would make some characters more
/// likely.
const UNBIASED_BYTES: u8 = 248;
const ID: usize = 10;
const SECRET: usize = 22;
/// Suffix of the name of a token that will replace the one with the plain name.
const NEXT_SUFFIX: &str = "-next";

/// A token, split. coderd stores the digest of the secret only.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TokenParts {
    pub(super) id: String,
    pub(super) digest: [u8; 32],
}

impl TokenParts {
    /// `None` if the text is not a token.
    pub(super) fn of(token: &SecretString) -> Option<Self> {
        let (id, secret) = token.expose_secret().trim().split_once('-')?;
        (!id.is_empty() && !secret.is_empty())
            .then(|| Self { id: id.to_owned(), digest: Sha256::digest(secret).into() })
    }
}

/// Creates a random token.
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
        let fair = bytes.iter().filter(|byte| **byte < UNBIASED_BYTES);
        let characters = fair.filter_map(|byte| ALPHABET.get(usize::from(*byte) % ALPHABET.len()));
        let missing = length - text.len();
        text.extend(characters.take(missing).map(|byte| char::from(*byte)));
    }
    Ok(text)
}

/// The two names that tokens of one control plane have. Two, because a new token exists beside the old one until it
/// is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenNames {
    pub(super) plain: String,
    pub(super) next: String,
}

impl TokenNames {
    pub(super) fn of(name: &str) -> Self {
        Self { plain: name.to_owned(), next: format!("{name}{NEXT_SUFFIX}") }
    }

    /// The name that is free while a token has this one.
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
        assert_eq!(usize::from(UNBIASED_BYTES) % ALPHABET.len(), 0, "and none more often than another");
    }

    #[test]
    fn a_token_is_taken_apart_at_its_first_dash() {
        let parts = |text: &str| TokenParts::of(&SecretString::from(text));
        let whole = parts(" id-sec-ret\n").unwrap();
        assert_eq!(whole.id, "id");
        assert_eq!(whole.digest, <[u8; 32]>::from(Sha256::digest("sec-ret")));
        for text in ["", "id", "id-", "-secret", "-"] {
            assert!(parts(text).is_none(), "{text}");
        }
    }

    #[test]
    fn the_other_name_is_always_the_one_that_is_free() {
        let names = TokenNames::of("a");
        assert_eq!(names.both(), ["a", "a-next"]);
        assert_eq!((names.other("a"), names.other("a-next")), ("a-next", "a"));
    }
}
