//! What the connections of all sessions use on the host.

use std::sync::Arc;

use crate::audit_line::EgressRecorder;
use crate::dial::NameResolver;
use crate::origin_connection::OriginTrust;
use crate::rules::EgressRules;
use crate::secret_value::CredentialCache;

/// The rules, and what is needed to carry out requests.
pub(crate) struct GatewayServices {
    pub(crate) rules: EgressRules,
    pub(crate) recorder: Arc<dyn EgressRecorder>,
    pub(crate) resolver: Box<dyn NameResolver>,
    pub(crate) credentials: CredentialCache,
    pub(crate) origin_trust: OriginTrust,
}
