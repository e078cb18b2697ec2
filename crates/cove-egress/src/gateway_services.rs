//! What the connections of all sessions use on the host.

use std::sync::Arc;

use crate::audit_line::EgressRecorder;
use crate::dial::{NameLookups, NameResolver};
use crate::download_cache::DownloadCache;
use crate::egress_meter::{EgressMeter, NoMeter};
use crate::origin_connection::OriginTrust;
use crate::rules::EgressRules;
use crate::secret_value::{CredentialCache, CredentialValues, NoValues};

/// What a gateway uses on the host.
pub struct HostServices {
    pub recorder: Arc<dyn EgressRecorder>,
    pub resolver: Box<dyn NameResolver>,
    /// Reads the values of credentials.
    pub values: Arc<dyn CredentialValues>,
    /// Keeps the downloads that sessions share.
    pub downloads: Option<Arc<DownloadCache>>,
    pub meter: Arc<dyn EgressMeter>,
}

impl HostServices {
    /// Without credentials, shared downloads and metrics.
    pub fn new(recorder: Arc<dyn EgressRecorder>, resolver: Box<dyn NameResolver>) -> Self {
        Self { recorder, resolver, values: Arc::new(NoValues), downloads: None, meter: Arc::new(NoMeter) }
    }
}

/// The rules, and what is needed to carry out requests.
pub(crate) struct GatewayServices {
    pub(crate) rules: EgressRules,
    pub(crate) recorder: Arc<dyn EgressRecorder>,
    pub(crate) lookups: NameLookups,
    pub(crate) credentials: CredentialCache,
    pub(crate) origin_trust: OriginTrust,
    /// None if no rule lets sessions share downloads.
    pub(crate) downloads: Option<Arc<DownloadCache>>,
    pub(crate) meter: Arc<dyn EgressMeter>,
}

impl GatewayServices {
    pub(crate) fn new(rules: EgressRules, host: HostServices) -> Self {
        let HostServices { recorder, resolver, values, downloads, meter } = host;
        let (credentials, origin_trust) = (CredentialCache::new(values), OriginTrust::default());
        let lookups = NameLookups::new(resolver);
        Self { rules, recorder, lookups, credentials, origin_trust, downloads, meter }
    }
}
