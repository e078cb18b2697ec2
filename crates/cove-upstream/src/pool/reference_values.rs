//! Values of references outside of definitions of servers, such as those of credentials for the network.

use super::resolve::{self, FetchedValues, ValueSource};
use super::settings::UpstreamSettings;
use crate::definition::references::{TextPart, ValueReference, find_mistake, split_references};
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

    /// Returns the text with its values, or None if that needs a program, which is not run. Fails with what is missing, or with
    /// a mistake in a reference.
    pub fn check(&self, text: &str) -> Result<Option<String>, String> {
        if let Some(mistake) = find_mistake(text) {
            return Err(format!("another reference than `{}`, which {}", mistake.shown, mistake.reason));
        }
        let needs_program = |part: &TextPart<'_>| match part {
            TextPart::Reference(ValueReference::Command(_)) => true,
            TextPart::Reference(ValueReference::Secret(_)) => self.settings.secrets.has_helper(),
            TextPart::Reference(_) | TextPart::Literal(_) => false,
        };
        let value = resolve::expand_text(text, &self.settings, &ValueSource::Unfetched)?;
        Ok(Some(value).filter(|_| !split_references(text).iter().any(needs_program)))
    }

    /// Returns the text with its values. Fails with what is missing.
    pub async fn read(&self, text: &str) -> Result<String, String> {
        let fetched = FetchedValues::fetch_text(text, &self.settings).await;
        resolve::expand_text(text, &self.settings, &ValueSource::Fetched(fetched))
    }
}
