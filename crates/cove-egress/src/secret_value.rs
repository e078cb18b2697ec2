//! The values of credentials: read on the host when a request needs one, kept for a short time, and overwritten in memory
//! afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_core::BoxFuture;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

/// How long a value is used before it is read again, because tokens are renewed.
const KEPT: Duration = Duration::from_secs(300);
/// How long a failure is repeated, so that a flood of requests does not start a program for each.
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// A shorter value would be found everywhere in answers.
const MIN_LENGTH: usize = 4;
const MAX_LENGTH: usize = 16 * 1024;

/// A secret. It has neither `Debug` nor `Display`, and its memory is overwritten when it is dropped.
pub struct SecretValue(Zeroizing<String>);

impl SecretValue {
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

/// Reads the values that the configuration refers to, such as `${GITHUB_TOKEN}`.
pub trait CredentialValues: Send + Sync {
    /// Fails with what is missing. Runs no program.
    fn check(&self, text: &str) -> Result<(), String>;

    /// Returns the text with its values put in. Fails with what is missing.
    fn read<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<SecretValue, String>>;
}

/// Values of credentials where there are none.
pub(crate) struct NoValues;

impl CredentialValues for NoValues {
    fn check(&self, _: &str) -> Result<(), String> {
        Err("values".to_owned())
    }

    fn read<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<SecretValue, String>> {
        Box::pin(async { Err("values".to_owned()) })
    }
}

type KeptValue = Result<Arc<SecretValue>, String>;

/// The values that were read, by the name of their credential.
pub(crate) struct CredentialCache {
    values: Arc<dyn CredentialValues>,
    /// Locked while a value is read, so that a program runs once for all requests that wait.
    kept: Mutex<BTreeMap<String, (Instant, KeptValue)>>,
}

impl CredentialCache {
    pub(crate) fn new(values: Arc<dyn CredentialValues>) -> Self {
        Self { values, kept: Mutex::default() }
    }

    /// Returns the value of a credential. Fails with what is missing.
    pub(crate) async fn read(&self, name: &str, text: &str) -> KeptValue {
        let mut kept = self.kept.lock().await;
        if let Some((until, value)) = kept.get(name)
            && *until > Instant::now()
        {
            return value.clone();
        }
        let value = self.values.read(text).await.and_then(|value| match value.reveal().len() {
            MIN_LENGTH..=MAX_LENGTH => Ok(Arc::new(value)),
            length => Err(format!("a value of {MIN_LENGTH} to {MAX_LENGTH} bytes; it has {length}")),
        });
        let time = if value.is_ok() { KEPT } else { FAILURE_KEPT };
        kept.insert(name.to_owned(), (Instant::now() + time, value.clone()));
        value
    }
}
