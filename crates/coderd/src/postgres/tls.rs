//! TLS to the database, with as much verification as the connection URL asks for.
//!
//! `require` verifies nothing, as in the driver of coderd; with a CA it means `verify-ca`. `verify-ca` verifies who
//! signed the certificate, and `verify-full` its name too. Without a CA both use the root certificates of the system.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dsn::{BadDsn, Dsn, TlsMode};
use super::error::{self, DatabaseErrorKind, Result};
use crate::authorities;

/// The SSLRequest message of the Postgres protocol: its length, and a code in place of a protocol version.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// The configuration of the handshake.
pub(super) struct TlsHandshake {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsHandshake {
    pub(super) fn of(dsn: &Dsn, ca: Option<&[u8]>) -> Result<Option<Self>> {
        if dsn.tls == TlsMode::Disable {
            return Ok(None);
        }
        if dsn.roots_in_a_file && ca.is_none() {
            return Err(BadDsn::RootsInAFile.into());
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match (dsn.tls, ca) {
            (TlsMode::Require, None) => Arc::new(Verifier { roots: None, provider: provider.clone() }),
            (TlsMode::VerifyFull, _) => {
                let roots = Arc::new(roots(ca)?);
                let built = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                built.map_err(|_| DatabaseErrorKind::BadAuthorities("there is no certificate in them"))?
            }
            _ => Arc::new(Verifier { roots: Some(roots(ca)?), provider: provider.clone() }),
        };
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| DatabaseErrorKind::Tls(error.to_string()))?;
        let config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        let name = ServerName::try_from(dsn.host.clone());
        let name = name.map_err(|_| BadDsn::Syntax("its host is not a name or an address"))?;
        Ok(Some(Self { config: Arc::new(config), name }))
    }

    /// Asks the server for TLS and performs the handshake.
    pub(super) async fn connect(self, mut stream: TcpStream) -> Result<TlsStream<TcpStream>> {
        let mut answer = [0];
        let asked = async {
            stream.write_all(&REQUEST).await?;
            stream.read_exact(&mut answer).await
        };
        asked.await.map_err(|error| error::broken(&error))?;
        match answer {
            [b'S'] => {}
            [b'N'] => {
                let text = "the server does not speak TLS; enable it there, or use sslmode=disable";
                return Err(DatabaseErrorKind::Tls(text.to_owned()));
            }
            // An ErrorResponse in place of the answer, for example from a server that is shutting down.
            [b'E'] => return Err(DatabaseErrorKind::Unreachable("the server does not serve now".to_owned())),
            _ => return Err(DatabaseErrorKind::Unexpected("ask for TLS")),
        }
        let shaken = TlsConnector::from(self.config).connect(self.name, stream).await;
        shaken.map_err(|error| failed(&error))
    }
}

fn failed(error: &io::Error) -> DatabaseErrorKind {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => DatabaseErrorKind::Tls(tls.to_string()),
        None => error::broken(error),
    }
}

fn roots(ca: Option<&[u8]>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(DatabaseErrorKind::Tls(
                "there is no root certificate to verify the server with: name its CA in \
                 `operatorAccess.databaseCASecretRef`, or install a CA bundle where the operator runs"
                    .to_owned(),
            ));
        }
        return Ok(roots);
    };
    for certificate in authorities::certificates(pem).map_err(DatabaseErrorKind::BadAuthorities)? {
        roots
            .add(certificate)
            .map_err(|_| DatabaseErrorKind::BadAuthorities("one of them is not a certificate"))?;
    }
    Ok(roots)
}

/// Verifies who signed the certificate, or nothing at all. Never verifies the name.
#[derive(Debug)]
struct Verifier {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
