//! A certificate authority for tests of encrypted connections.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::ServerTls;

/// An authority of its own name and key; two of them do not trust one another.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
}

/// What a client shows to a server that asks for a certificate.
#[derive(Debug, Clone)]
pub struct ClientCertificate {
    /// The certificate, PEM; its common name is the role.
    pub certificate_pem: String,
    /// The certificate's key, PEM.
    pub key_pem: String,
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Errors
    ///
    /// When no key can be made.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, crate::fresh_name("authority"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().context("make the authority's key")?;
        let certificate_pem = params
            .self_signed(&key)
            .context("sign the authority's certificate")?
            .pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate_pem,
        })
    }

    /// The authority's certificate, PEM: what `sslrootcert` names.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A server's certificate for these host names and addresses. It asks clients for none; set
    /// `client_authority_pem` for that.
    ///
    /// # Errors
    ///
    /// When a name is not fit for a certificate.
    pub fn server(&self, hosts: &[&str]) -> Result<ServerTls> {
        let hosts = hosts
            .iter()
            .map(|&host| host.to_owned())
            .collect::<Vec<_>>();
        let params = CertificateParams::new(hosts).context("name a server's hosts")?;
        let (certificate_pem, key_pem) = self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)?;
        Ok(ServerTls {
            certificate_pem,
            key_pem,
            client_authority_pem: None,
        })
    }

    /// A client's certificate for a role.
    ///
    /// # Errors
    ///
    /// When no key can be made.
    pub fn client(&self, role: &str) -> Result<ClientCertificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, role);
        let (certificate_pem, key_pem) = self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)?;
        Ok(ClientCertificate {
            certificate_pem,
            key_pem,
        })
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String)> {
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().context("make a certificate's key")?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .context("sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}
