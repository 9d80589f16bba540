//! TLS as libpq means it.
//!
//! `sslmode` says whether TLS is used; whether the server is who it says it is depends on the mode
//! *and* on whether root certificates are there: `verify-full` checks chain and name, `verify-ca`
//! the chain, and the modes below check the chain if there is a root certificate and else nothing.
//! Two things are stricter than libpq: a certificate file that is named must be there, and an
//! intermediate authority or a server certified by one needs an X.509 version 3 certificate.
//!
//! Servers are often run with a self-signed certificate, which is then its own root, or with the
//! name in the subject only, or with a version 1 certificate. Rustls by itself takes none of
//! them; [`Verifier`] takes the first two wherever libpq does, and the third where no chain is
//! checked. The signature of the handshake is checked in every mode: without it channel binding
//! would bind to nothing.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName,
    SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::oid::db::{rfc4519, rfc5912};
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::ServerError;

/// Whether TLS is used and what it must prove, from weak to strong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Whether TLS is asked for before the handshake, or begun at once (servers from 17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Negotiation {
    Postgres,
    Direct,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TlsVersion {
    V12,
    V13,
}

/// What a connection string says about TLS.
#[derive(Debug, Clone)]
pub(super) struct TlsOptions {
    pub(super) mode: SslMode,
    pub(super) negotiation: Negotiation,
    /// The operating system's authorities are the roots.
    pub(super) system_roots: bool,
    /// The file of roots, named or found in the home.
    pub(super) root_cert: Option<PathBuf>,
    pub(super) client_cert: Option<PathBuf>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) crl: Option<PathBuf>,
    pub(super) server_name_indication: bool,
    pub(super) min_version: Option<TlsVersion>,
    pub(super) max_version: Option<TlsVersion>,
}

impl TlsOptions {
    /// Reads the certificates and keys; they may have been renewed since the last connection.
    pub(super) fn client_config(&self) -> Result<Arc<ClientConfig>, ServerError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(self.verifier(&provider)?);
        let versions: Vec<_> = [
            (TlsVersion::V12, &rustls::version::TLS12),
            (TlsVersion::V13, &rustls::version::TLS13),
        ]
        .into_iter()
        .filter(|(version, _)| self.min_version.is_none_or(|min| min <= *version))
        .filter(|(version, _)| self.max_version.is_none_or(|max| *version <= max))
        .map(|(_, version)| version)
        .collect();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(tls_error)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match self.client_certificate(&provider)? {
            Some(resolver) => builder.with_client_cert_resolver(resolver),
            None => builder.with_no_client_auth(),
        };
        config.enable_sni = self.server_name_indication;
        if self.negotiation == Negotiation::Direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Arc::new(config))
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Verifier, ServerError> {
        let mut verifier = Verifier {
            provider: Arc::clone(provider),
            chain: None,
            trusted: Vec::new(),
            check_name: self.mode == SslMode::VerifyFull,
        };
        let mut roots = RootCertStore::empty();
        if self.system_roots {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(tls_error("the operating system has no root certificates"));
            }
        } else if let Some(path) = &self.root_cert {
            verifier.trusted = certificates(path)?;
            for root in &verifier.trusted {
                roots
                    .add(root.clone())
                    .map_err(|error| in_file(path, error))?;
            }
        } else if self.mode >= SslMode::VerifyCa {
            return Err(tls_error(
                "sslmode verify-ca and verify-full need root certificates: give sslrootcert, or \
                 sslrootcert=system",
            ));
        } else {
            return Ok(verifier);
        }
        let mut builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        if let Some(path) = &self.crl {
            let crls = CertificateRevocationListDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| in_file(path, error))?;
            builder = builder.with_crls(crls);
        }
        verifier.chain = Some(builder.build().map_err(tls_error)?);
        Ok(verifier)
    }

    fn client_certificate(
        &self,
        provider: &CryptoProvider,
    ) -> Result<Option<Arc<dyn ResolvesClientCert>>, ServerError> {
        let Some(path) = &self.client_cert else {
            return Ok(None);
        };
        let chain = certificates(path)?;
        let Some(key_path) = &self.client_key else {
            return Err(tls_error("there is a client certificate but no sslkey"));
        };
        refuse_open_key(key_path)?;
        let key = PrivateKeyDer::from_pem_file(key_path).map_err(|e| in_file(key_path, e))?;
        let key = provider
            .key_provider
            .load_private_key(key)
            .map_err(|error| in_file(key_path, error))?;
        let certified = CertifiedKey::new(chain, key);
        Ok(Some(Arc::new(SingleCertAndKey::from(certified))))
    }
}

/// The certificates of a PEM file, which must have one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| in_file(path, error))?;
    if found.is_empty() {
        return Err(in_file(path, "no certificate in it"));
    }
    Ok(found)
}

/// A key that others can read is refused, unless it is root's and only its group may read it.
#[cfg(unix)]
fn refuse_open_key(path: &Path) -> Result<(), ServerError> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).map_err(|error| in_file(path, error))?;
    let denied = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & denied != 0 {
        return Err(in_file(
            path,
            "group or others can read the key; set its mode to 0600",
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn refuse_open_key(_path: &Path) -> Result<(), ServerError> {
    Ok(())
}

/// The hash of `certificate` that SCRAM binds to, by RFC 5929: that of its signature, and SHA-256
/// in the place of anything weaker. None if its signature has no hash of its own.
pub(super) fn end_point_binding(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = Certificate::from_der(certificate)
        .ok()?
        .signature_algorithm
        .oid;
    match algorithm {
        rfc5912::MD_5_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_1_WITH_RSA_ENCRYPTION
        | rfc5912::SHA_256_WITH_RSA_ENCRYPTION
        | rfc5912::ECDSA_WITH_SHA_256 => Some(Sha256::digest(certificate).to_vec()),
        rfc5912::SHA_384_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_384 => {
            Some(Sha384::digest(certificate).to_vec())
        }
        rfc5912::SHA_512_WITH_RSA_ENCRYPTION | rfc5912::ECDSA_WITH_SHA_512 => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}

/// Judges a server's certificate by the rules at the top of this module.
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// Checks chain and name; absent if nothing is to be checked.
    chain: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates of the file of roots: a server that shows one of them is trusted for it.
    trusted: Vec<CertificateDer<'static>>,
    check_name: bool,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("checks_chain", &self.chain.is_some())
            .field("checks_name", &self.check_name)
            .finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        let named = if self.trusted.contains(end_entity) {
            check_dates(end_entity, now)?;
            ParsedCertificate::try_from(end_entity)
                .and_then(|parsed| verify_server_name(&parsed, server_name))
        } else {
            chain
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
                .map(|_| ())
        };
        match named {
            Ok(()) => {}
            // The name is looked at last, so the chain is good.
            Err(error) if is_about_the_name(&error) && !self.check_name => {}
            Err(error) if is_about_the_name(&error) => {
                if !subject_names(end_entity, server_name)? {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // By the bare key, since the certificate may be of version 1.
        let key = parse(cert)?
            .tbs_certificate
            .subject_public_key_info
            .to_der()
            .map_err(|_| CertificateError::BadEncoding)?;
        let key = SubjectPublicKeyInfoDer::from(key);
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn is_about_the_name(error: &rustls::Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(
        error,
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })
    )
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, rustls::Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

fn check_dates(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let validity = parse(certificate)?.tbs_certificate.validity;
    let now = now.as_secs();
    if now < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Whether the subject's common name is the server's. It counts only where the certificate has no
/// alternative name for a host.
fn subject_names(
    certificate: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
) -> Result<bool, rustls::Error> {
    let certificate = parse(certificate)?.tbs_certificate;
    let alternatives = certificate
        .get::<SubjectAltName>()
        .map_err(|_| CertificateError::BadEncoding)?;
    let for_hosts =
        |name: &GeneralName| matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_));
    if alternatives.is_some_and(|(_, names)| names.0.iter().any(for_hosts)) {
        return Ok(false);
    }
    let wanted = server_name.to_str();
    let common_names = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    Ok(common_names
        .filter(|attribute| attribute.oid == rfc4519::COMMON_NAME)
        .filter_map(|attribute| std::str::from_utf8(attribute.value.value()).ok())
        .any(|name| names_host(name, &wanted)))
}

/// Whether a certificate's name is a host's, where a leading `*` stands for one label.
fn names_host(name: &str, host: &str) -> bool {
    let beyond_first_label = host.split_once('.').map(|(_, rest)| rest);
    match name.strip_prefix("*.") {
        Some(rest) => beyond_first_label.is_some_and(|host| host.eq_ignore_ascii_case(rest)),
        None => name.eq_ignore_ascii_case(host),
    }
}

fn tls_error(error: impl fmt::Display) -> ServerError {
    ServerError::Tls(error.to_string())
}

fn in_file(path: &Path, error: impl fmt::Display) -> ServerError {
    ServerError::Tls(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_exactly_one_label() {
        assert!(names_host("DB.example", "db.Example"));
        assert!(names_host("*.example", "db.example"));
        for (name, host) in [
            ("*.example", "a.db.example"),
            ("*.example", "example"),
            ("*", "db"),
            ("d*.example", "db.example"),
            ("db.example", "db.example.evil"),
        ] {
            assert!(!names_host(name, host), "{name} was taken for {host}");
        }
    }

    /// A certificate that is trusted as it is has no chain whose dates would be checked.
    #[test]
    fn a_trusted_certificate_expires_all_the_same() {
        let mut params = rcgen::CertificateParams::new(vec!["db.test".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let at = |unix_s| {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(unix_s));
            check_dates(certificate.der(), now)
        };
        assert_eq!(at(900_000_000), Err(CertificateError::NotValidYet.into()));
        assert_eq!(at(1_000_000_000), Ok(()));
        assert_eq!(at(1_100_000_000), Err(CertificateError::Expired.into()));
    }
}
