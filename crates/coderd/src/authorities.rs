//! Certificate authorities that a spec supplies as PEM, for coderd and for its database.
//!
//! A client keeps them for as long as it lives, and whoever writes the Secret decides how many there are, so their size and
//! number are bounded before they are parsed.

use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::intervals::{MAX_CA_BYTES, MAX_CA_CERTIFICATES};

/// The certificates of a bundle. The error says what is wrong with it and quotes nothing.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    if pem.len() > MAX_CA_BYTES {
        return Err("they are larger than 256 KiB");
    }
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).take(MAX_CA_CERTIFICATES + 1).collect();
    match all.map_err(|_| "they are not PEM")? {
        all if all.is_empty() => Err("there is no certificate in them"),
        all if all.len() > MAX_CA_CERTIFICATES => Err("they are more than 256 certificates"),
        all => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_bounded_in_size_and_number() {
        let one = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        for (pem, expected) in [
            (one.to_owned(), Ok(1)),
            (format!("# a comment\n{}", one.repeat(MAX_CA_CERTIFICATES)), Ok(MAX_CA_CERTIFICATES)),
            (one.repeat(MAX_CA_CERTIFICATES + 1), Err("they are more than 256 certificates")),
            (format!("{one}{}", " ".repeat(MAX_CA_BYTES)), Err("they are larger than 256 KiB")),
            ("no certificate".to_owned(), Err("there is no certificate in them")),
            ("-----BEGIN CERTIFICATE-----\n".to_owned(), Err("they are not PEM")),
        ] {
            assert_eq!(certificates(pem.as_bytes()).map(|all| all.len()), expected);
        }
    }
}
