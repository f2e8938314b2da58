//! Keys and certificates of one cluster: its CA, the certificate of the server, the key that signs ServiceAccount
//! tokens, and bearer tokens. They are created for each cluster and never leave its run directory.

use std::fmt::Write as _;
use std::io;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::crypto::aws_lc_rs;

/// Certificates and keys of a cluster, as PEM.
pub(crate) struct Pki {
    pub(crate) ca: String,
    pub(crate) ca_der: Vec<u8>,
    pub(crate) server: String,
    pub(crate) server_key: String,
    pub(crate) service_account_key: String,
    pub(crate) service_account_public_key: String,
}

impl Pki {
    pub(crate) fn generate() -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "coder-k8s-testbed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(String::from);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        let server_key = KeyPair::generate()?;
        let server = params.signed_by(&server_key, &ca)?;

        let service_account = KeyPair::generate()?;
        Ok(Self {
            ca: ca.pem(),
            ca_der: ca.der().to_vec(),
            server: server.pem(),
            server_key: server_key.serialize_pem(),
            service_account_key: service_account.serialize_pem(),
            service_account_public_key: service_account.public_key_pem(),
        })
    }
}

/// A random bearer token.
pub(crate) fn token() -> io::Result<String> {
    Ok(random::<16>()?.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let provider = aws_lc_rs::default_provider();
    provider
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system gave no random numbers"))?;
    Ok(bytes)
}
