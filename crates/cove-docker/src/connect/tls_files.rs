//! The certificates and the key with which Cove speaks TLS to an engine, in the three files that Docker's command line
//! uses: `ca.pem`, `cert.pem` and `key.pem`.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_rustls::TlsConnector;
use url::Url;

use super::tunnel::TlsRoute;
use cove_core::document::read_text;
use cove_core::error::display_path;

/// Docker's port for connections with TLS.
const DEFAULT_PORT: u16 = 2376;

/// A folder with files that Docker's command line would use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsFiles {
    pub(super) folder: PathBuf,
}

impl TlsFiles {
    /// Returns the route to a `tcp://` address. Only the authority of `ca.pem` is trusted; without that file, those that
    /// the system trusts. Fails with the reason.
    pub(super) fn route(&self, url: &str) -> Result<TlsRoute, String> {
        let parsed = Url::parse(url).map_err(|error| format!("it is not an address ({error})"))?;
        let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| "it has no host that a certificate could name")?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.certificates("ca.pem")? {
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority).map_err(|error| self.wrong("ca.pem", error))?;
                }
                builder.with_root_certificates(roots)
            }
            None => builder.with_platform_verifier().map_err(|error| error.to_string())?,
        };
        let config = match (self.certificates("cert.pem")?, self.key("key.pem")?) {
            (Some(chain), Some(key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| self.wrong("cert.pem", error))?
            }
            (None, None) => builder.with_no_client_auth(),
            (Some(_), None) => return Err(self.wrong("key.pem", "it is missing beside `cert.pem`")),
            (None, Some(_)) => return Err(self.wrong("cert.pem", "it is missing beside `key.pem`")),
        };
        let connector = TlsConnector::from(Arc::new(config));
        Ok(TlsRoute { host, port: parsed.port().unwrap_or(DEFAULT_PORT), name, connector })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn wrong(&self, name: &str, reason: impl std::fmt::Display) -> String {
        format!("`{}` cannot be used: {reason}", display_path(&self.path(name)))
    }

    /// The text of a file, or `None` if it does not exist.
    fn read(&self, name: &str) -> Result<Option<String>, String> {
        read_text(&self.path(name)).map_err(|error| self.wrong(name, error))
    }

    fn certificates(&self, name: &str) -> Result<Option<Vec<CertificateDer<'static>>>, String> {
        let Some(text) = self.read(name)? else { return Ok(None) };
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        match all {
            Ok(all) if !all.is_empty() => Ok(Some(all)),
            Ok(_) => Err(self.wrong(name, "it holds no certificate")),
            Err(error) => Err(self.wrong(name, error)),
        }
    }

    fn key(&self, name: &str) -> Result<Option<PrivateKeyDer<'static>>, String> {
        let Some(text) = self.read(name)? else { return Ok(None) };
        // The message of the parser might repeat a part of the key.
        PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map(Some)
            .map_err(|_| self.wrong(name, "it holds no private key"))
    }
}
