//! What the host keeps for one session: its certificate authority, and a placeholder for each credential.

use std::sync::Arc;

use cove_core::guest_streams::SessionNetwork;
use ring::rand::{SecureRandom, SystemRandom};

use crate::credential::EgressCredential;
use crate::rules::EgressRules;
use crate::session_authority::SessionAuthority;

/// Random characters of a placeholder: nobody can guess one.
const RANDOM_LENGTH: usize = 32;
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// The identity of one session in front of its code. The default has no authority, so that no inspected request succeeds.
#[derive(Default)]
pub(crate) struct SessionIdentity {
    /// None if the rules inspect nothing.
    pub(crate) authority: Option<SessionAuthority>,
    /// For each credential, by its name.
    pub(crate) placeholders: Vec<(String, String)>,
}

impl SessionIdentity {
    /// Makes an identity for these rules.
    pub(crate) fn new(rules: &EgressRules) -> Self {
        let hosts = rules.inspected_hosts();
        let authority = (!hosts.is_empty()).then(|| SessionAuthority::new(hosts));
        let authority = authority.and_then(|made| {
            // Every inspected request of the session is then refused.
            made.inspect_err(|error| tracing::error!("could not make a certificate authority: {error}")).ok()
        });
        let placeholders =
            rules.credentials.iter().map(|credential| (credential.name.clone(), placeholder(credential)));
        Self { authority, placeholders: placeholders.collect() }
    }

    pub(crate) fn placeholder(&self, credential: &str) -> Option<&str> {
        let found = self.placeholders.iter().find(|(name, _)| name == credential);
        found.map(|(_, placeholder)| placeholder.as_str())
    }

    /// Returns what the session's runner is told.
    pub(crate) fn into_network(self, rules: &EgressRules) -> SessionNetwork {
        let variables = rules.credentials.iter().flat_map(|credential| {
            let placeholder = self.placeholder(&credential.name).unwrap_or_default().to_owned();
            credential.variables.iter().map(move |variable| (variable.clone(), placeholder.clone()))
        });
        SessionNetwork {
            authority: self.authority.as_ref().map(|authority| authority.certificate().to_owned()),
            variables: variables.collect(),
            state: Arc::new(self),
        }
    }
}

/// Returns a text that looks like a token and is worthless.
fn placeholder(credential: &EgressCredential) -> String {
    let mut bytes = [0; RANDOM_LENGTH];
    // It fails only where the kernel has no random numbers; a placeholder that is not random is worthless all the same.
    let _ = SystemRandom::new().fill(&mut bytes);
    let random = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    credential.prefix.chars().chain(random).collect()
}
