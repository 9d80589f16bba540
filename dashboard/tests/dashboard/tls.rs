//! The page by TLS.

use std::sync::Arc;

use monarch_dashboard::{Front, Tls};
use monarch_harness::{Authority, fresh_name};
use reqwest::header;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::fixture::{OPERATOR, Page, Setting};

#[tokio::test]
async fn by_tls_it_is_reached_by_who_trusts_its_authority() {
    let authority = Authority::new().unwrap();
    let server = authority.server(&["127.0.0.1"]).unwrap();
    let folder = std::env::temp_dir().join(fresh_name("dashboard"));
    std::fs::create_dir(&folder).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, &server.certificate_pem).unwrap();
    std::fs::write(&key, &server.key_pem).unwrap();
    let tls = Tls::from_files(&cert, &key).unwrap();
    assert!(
        Tls::from_files(&key, &cert).is_err(),
        "a key was taken for a certificate"
    );
    std::fs::remove_dir_all(&folder).unwrap();
    let front = Front {
        hosts: vec!["127.0.0.1".to_owned()],
        tls: true,
        ..Front::default()
    };
    let page = Page::with(Setting {
        front,
        tls: Some(tls),
        ..Setting::default()
    })
    .await;
    let address = format!("https://{}/", page.address);
    assert!(
        page.browser.get(&address).send().await.is_err(),
        "a stranger was trusted"
    );

    let mut roots = rustls::RootCertStore::empty();
    let trusted = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
    roots.add(trusted).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let browser = reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .build()
        .unwrap();
    let answer = browser
        .get(&address)
        .bearer_auth(OPERATOR)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    assert!(
        answer
            .headers()
            .contains_key(header::STRICT_TRANSPORT_SECURITY)
    );
}
