//! The certificate authority of one session. Its key exists in the memory of this process only, and its certificate is
//! good for the hosts alone whose requests the rules inspect.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use cove_core::sync::lock;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::crypto::ring::{default_provider, sign};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::host_pattern::HostPattern;
use crate::target_host::TargetHost;

/// Clocks in sandboxes may be behind.
const DATED_BACK: Duration = Duration::from_secs(24 * 3600);
/// Longer than any session.
const VALID: Duration = Duration::from_secs(366 * 24 * 3600);
/// Certificates that are kept.
const MAX_LEAVES: usize = 256;

/// Signs certificates for the inspected hosts of one session.
pub(crate) struct SessionAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    /// One key for the certificates of all hosts.
    leaf_key: KeyPair,
    leaves: Mutex<LeafCache>,
    hosts: Vec<HostPattern>,
}

#[derive(Default)]
struct LeafCache {
    /// Each with the number of its last use.
    leaves: BTreeMap<TargetHost, (u64, Arc<CertifiedKey>)>,
    uses: u64,
}

impl SessionAuthority {
    /// Makes an authority for these hosts. Fails only if the machine has no random numbers.
    pub(crate) fn new(hosts: Vec<HostPattern>) -> Result<Self, rcgen::Error> {
        let mut params = dated_params();
        params.distinguished_name.push(DnType::CommonName, "Cove session");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.name_constraints = Some(name_constraints(&hosts));
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, certificate, leaf_key: KeyPair::generate()?, leaves: Mutex::default(), hosts })
    }

    /// The certificate in PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the certificate of a host. Fails for a host that is not inspected.
    pub(crate) fn leaf(&self, host: &TargetHost) -> Result<Arc<CertifiedKey>, String> {
        if !self.hosts.iter().any(|pattern| pattern.matches(host)) {
            return Err("the session's authority is not for this host".to_owned());
        }
        let mut cache = lock(&self.leaves);
        cache.uses += 1;
        let now = cache.uses;
        if let Some((used, leaf)) = cache.leaves.get_mut(host) {
            *used = now;
            return Ok(Arc::clone(leaf));
        }
        let leaf = Arc::new(self.sign_leaf(host).map_err(|error| error.to_string())?);
        if cache.leaves.len() >= MAX_LEAVES {
            let oldest = cache.leaves.iter().min_by_key(|(_, (used, _))| *used).map(|(host, _)| host.clone());
            oldest.and_then(|oldest| cache.leaves.remove(&oldest));
        }
        cache.leaves.insert(host.clone(), (now, Arc::clone(&leaf)));
        Ok(leaf)
    }

    fn sign_leaf(&self, host: &TargetHost) -> Result<CertifiedKey, Box<dyn std::error::Error>> {
        let mut params = dated_params();
        params.distinguished_name.push(DnType::CommonName, "Cove session leaf");
        params.subject_alt_names = vec![match host {
            TargetHost::Name(name) => SanType::DnsName(name.as_str().try_into()?),
            TargetHost::Address(address) => SanType::IpAddress(*address),
        }];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.leaf_key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let key = sign::any_ecdsa_type(&key)?;
        Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
    }

    /// Returns the settings of TLS with code, for one host.
    pub(crate) fn server_config(&self, host: &TargetHost) -> Result<Arc<rustls::ServerConfig>, String> {
        let leaf = rustls::sign::SingleCertAndKey::from(self.leaf(host)?);
        let builder = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(leaf));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn dated_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = SystemTime::now();
    params.not_before = (now - DATED_BACK).into();
    params.not_after = (now + VALID).into();
    params
}

/// Permits the hosts alone. Addresses are excluded as a whole unless one is inspected.
fn name_constraints(hosts: &[HostPattern]) -> NameConstraints {
    let subtree = |pattern: &HostPattern| match pattern {
        HostPattern::Exact(TargetHost::Address(address)) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(*address, bits))
        }
        HostPattern::Exact(TargetHost::Name(name)) | HostPattern::OneLabel(name) | HostPattern::AnyLabels(name) => {
            GeneralSubtree::DnsName(name.clone())
        }
    };
    let mut permitted: Vec<GeneralSubtree> = Vec::new();
    for subtree in hosts.iter().map(subtree) {
        if !permitted.contains(&subtree) {
            permitted.push(subtree);
        }
    }
    let has = |is_kind: fn(&GeneralSubtree) -> bool| permitted.iter().any(is_kind);
    let mut excluded = Vec::new();
    if !has(|subtree| matches!(subtree, GeneralSubtree::IpAddress(_))) {
        let all = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        excluded.extend(all.map(|address| GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, 0))));
    }
    NameConstraints { permitted_subtrees: permitted, excluded_subtrees: excluded }
}

#[cfg(test)]
mod tests;
