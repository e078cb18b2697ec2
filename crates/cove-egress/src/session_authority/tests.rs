//! Certificates of a session, as a client sees them.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::*;

fn authority(hosts: &[&str]) -> SessionAuthority {
    SessionAuthority::new(hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect()).unwrap()
}

/// Returns what a client that trusts the authority says about a leaf for this host.
fn verify(authority: &SessionAuthority, leaf: &CertifiedKey, host: &str) -> Result<(), rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    verifier.verify_server_cert(&leaf.cert[0], &[], &name, &[], UnixTime::now()).map(drop)
}

#[test]
fn clients_accept_a_leaf_for_an_inspected_host_and_no_other() {
    let authority = authority(&["api.example.com", "*.data.example.com", "192.0.2.7"]);
    for host in ["api.example.com", "x.data.example.com", "192.0.2.7"] {
        let leaf = authority.leaf(&TargetHost::parse(host).unwrap()).unwrap();
        verify(&authority, &leaf, host).unwrap();
        assert!(verify(&authority, &leaf, "other.example.com").is_err(), "{host}");
    }
    for host in ["evil.test", "example.com", "a.b.data.example.com", "192.0.2.8"] {
        let host = TargetHost::parse(host).unwrap();
        assert!(authority.leaf(&host).is_err(), "{host}");
    }
    // Even a leaf that someone makes with the key is worth nothing for another host.
    for host in ["evil.test", "example.com", "192.0.2.8"] {
        let leaf = authority.sign_leaf(&TargetHost::parse(host).unwrap()).unwrap();
        let refused = verify(&authority, &leaf, host).unwrap_err();
        assert!(format!("{refused:?}").contains("NameConstraintViolation"), "{host}: {refused:?}");
    }
}

#[test]
fn addresses_are_excluded_unless_one_is_inspected() {
    let authority = authority(&["api.example.com"]);
    for host in ["192.0.2.7", "[2001:db8::1]"] {
        let leaf = authority.sign_leaf(&TargetHost::parse(host).unwrap()).unwrap();
        assert!(verify(&authority, &leaf, host.trim_matches(['[', ']'])).is_err(), "{host}");
    }
}

#[test]
fn leaves_are_kept_up_to_a_bound() {
    let authority = authority(&["*.example.com"]);
    let host = |number: usize| TargetHost::parse(&format!("h{number}.example.com")).unwrap();
    let first = authority.leaf(&host(0)).unwrap();
    assert!(Arc::ptr_eq(&first, &authority.leaf(&host(0)).unwrap()));
    for number in 1..=MAX_LEAVES {
        authority.leaf(&host(number)).unwrap();
    }
    assert_eq!(lock(&authority.leaves).leaves.len(), MAX_LEAVES);
    assert!(!Arc::ptr_eq(&first, &authority.leaf(&host(0)).unwrap()), "the oldest went first");
}

#[test]
fn every_authority_is_another_one() {
    let [one, other] = [authority(&["a.example.com"]), authority(&["a.example.com"])];
    let leaf = one.leaf(&TargetHost::parse("a.example.com").unwrap()).unwrap();
    assert!(verify(&other, &leaf, "a.example.com").is_err());
    assert!(!one.certificate().contains("PRIVATE KEY"));
}
