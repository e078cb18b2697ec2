//! What the host keeps for one session: its certificate authority, and a placeholder for each credential.

use std::sync::Arc;

use cove_core::error::Failure;
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
    /// Makes an identity for these rules. Fails if its keys cannot be made: a session that lacks them would not do what the
    /// rules say.
    pub(crate) fn new(rules: &EgressRules) -> Result<Self, Failure> {
        let hosts = rules.inspected_hosts();
        let authority = (!hosts.is_empty()).then(|| SessionAuthority::new(hosts)).transpose().map_err(|error| {
            Failure::operator("could not make the certificate authority of a session")
                .because(error)
                .with_hint("the rules that inspect requests need one; `--no-net` drops all rules")
        })?;
        let placeholders = rules.credentials.iter().map(|credential| {
            let made = placeholder(credential).map_err(|_| {
                Failure::operator(format!("could not make a placeholder for the credential `{}`", credential.name))
                    .because("the kernel has no random numbers")
            });
            Ok((credential.name.clone(), made?))
        });
        Ok(Self { authority, placeholders: placeholders.collect::<Result<_, Failure>>()? })
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

/// Makes the network of a session with these rules. Fails if the session would not be what they say.
pub fn create_session_network(rules: &EgressRules) -> Result<SessionNetwork, Failure> {
    SessionIdentity::new(rules).map(|identity| identity.into_network(rules))
}

/// Returns a text that looks like a token and is worthless. Fails if the kernel has no random numbers.
fn placeholder(credential: &EgressCredential) -> Result<String, ring::error::Unspecified> {
    let mut bytes = [0; RANDOM_LENGTH];
    SystemRandom::new().fill(&mut bytes)?;
    let random = bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    Ok(credential.prefix.chars().chain(random).collect())
}
