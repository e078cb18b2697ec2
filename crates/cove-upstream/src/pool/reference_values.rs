//! Values of references outside of definitions of servers, such as those of credentials for the network.

use super::resolve::{self, FetchedValues, ValueSource};
use super::settings::UpstreamSettings;
use crate::definition::references::find_mistake;
use crate::secrets::SecretStore;
use cove_core::process_env::ProcessEnv;

/// Puts the values of `${VAR}`, `${file:PATH}`, `${cmd:PROGRAM}` and `${secret:NAME}` into texts of the person's own
/// configuration.
pub struct ReferenceValues {
    settings: UpstreamSettings,
}

impl ReferenceValues {
    pub fn new(secrets: SecretStore, env: &ProcessEnv) -> Self {
        Self { settings: UpstreamSettings { secrets, ..UpstreamSettings::from_env(env) } }
    }

    /// Fails with what is missing, or with a mistake in a reference. Runs no program.
    pub fn check(&self, text: &str) -> Result<(), String> {
        if let Some(mistake) = find_mistake(text) {
            return Err(format!("another reference than `{}`, which {}", mistake.shown, mistake.reason));
        }
        resolve::expand_text(text, &self.settings, &ValueSource::Unfetched).map(drop)
    }

    /// Returns the text with its values. Fails with what is missing.
    pub async fn read(&self, text: &str) -> Result<String, String> {
        let fetched = FetchedValues::fetch_text(text, &self.settings).await;
        resolve::expand_text(text, &self.settings, &ValueSource::Fetched(fetched))
    }
}
