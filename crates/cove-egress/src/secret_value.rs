//! The values of credentials: read on the host when a request needs one, kept for a short time, and overwritten in memory
//! afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_core::BoxFuture;
use cove_core::sync::lock;
use zeroize::Zeroizing;

use crate::answer_forms::{SecretForms, bare_token};

/// How long a value is used before it is read again, because tokens are renewed.
const KEPT: Duration = Duration::from_secs(300);
/// How long a failure is repeated, so that a flood of requests does not start a program for each.
const FAILURE_KEPT: Duration = Duration::from_secs(5);
/// Code that makes a server repeat texts sees which of them become a placeholder. So it could try all shorter values.
const MIN_LENGTH: usize = 8;
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

    /// Fails with what is needed if this cannot be the value of a credential.
    pub fn check(&self) -> Result<(), String> {
        let length = bare_token(&self.0).len();
        if !(MIN_LENGTH..=MAX_LENGTH).contains(&length) {
            return Err(format!("a value of {MIN_LENGTH} to {MAX_LENGTH} bytes, and it has {length}"));
        }
        match self.0.chars().any(char::is_control) {
            // Lines of answers are passed on at once because no form of a value goes beyond their end.
            true => Err("a value of one line without control characters".to_owned()),
            false => Ok(()),
        }
    }
}

/// Reads the values that the configuration refers to, such as `${GITHUB_TOKEN}`.
pub trait CredentialValues: Send + Sync {
    /// Returns the text with its values put in, or None if that needs a program, which is not run. Fails with what is missing.
    fn check(&self, text: &str) -> Result<Option<SecretValue>, String>;

    /// Returns the text with its values put in. Fails with what is missing.
    fn read<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<SecretValue, String>>;
}

/// Values of credentials where there are none.
pub(crate) struct NoValues;

impl CredentialValues for NoValues {
    fn check(&self, _: &str) -> Result<Option<SecretValue>, String> {
        Err("values".to_owned())
    }

    fn read<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<SecretValue, String>> {
        Box::pin(async { Err("values".to_owned()) })
    }
}

/// A value, and the forms in which answers could repeat it.
pub(crate) struct CredentialValue {
    pub(crate) secret: SecretValue,
    pub(crate) forms: Arc<SecretForms>,
}

type KeptValue = Result<Arc<CredentialValue>, String>;
/// Locked while the value is read, so that a program runs once for all requests that wait for it.
type KeptValueLock = Arc<tokio::sync::Mutex<Option<(Instant, KeptValue)>>>;

/// The values that were read, by the name of their credential.
pub(crate) struct CredentialCache {
    values: Arc<dyn CredentialValues>,
    kept: Mutex<BTreeMap<String, KeptValueLock>>,
}

impl CredentialCache {
    pub(crate) fn new(values: Arc<dyn CredentialValues>) -> Self {
        Self { values, kept: Mutex::default() }
    }

    /// Returns the value of a credential. Fails with what is missing.
    pub(crate) async fn read(&self, name: &str, text: &str) -> KeptValue {
        let own = Arc::clone(lock(&self.kept).entry(name.to_owned()).or_default());
        let mut kept = own.lock().await;
        if let Some((until, value)) = kept.as_ref()
            && *until > Instant::now()
        {
            return value.clone();
        }
        let value = self.values.read(text).await.and_then(|secret| {
            secret.check()?;
            let forms = Arc::new(SecretForms::new(secret.reveal()));
            Ok(Arc::new(CredentialValue { secret, forms }))
        });
        let time = if value.is_ok() { KEPT } else { FAILURE_KEPT };
        *kept = Some((Instant::now() + time, value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// `slow` is a program that does not end.
    #[derive(Default)]
    struct CountedValues(AtomicUsize);

    impl CredentialValues for CountedValues {
        fn check(&self, _: &str) -> Result<Option<SecretValue>, String> {
            Ok(None)
        }

        fn read<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<SecretValue, String>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                match text {
                    "slow" => std::future::pending().await,
                    text => Ok(SecretValue::new(text.to_owned())),
                }
            })
        }
    }

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn requests_share_a_value_and_its_forms() {
        let counted = Arc::new(CountedValues::default());
        let cache = CredentialCache::new(counted.clone());
        let read = || match poll(std::pin::pin!(cache.read("a", "a-long-value"))) {
            Poll::Ready(Ok(value)) => value,
            Poll::Ready(Err(_)) | Poll::Pending => panic!("the value is there"),
        };
        let (first, second) = (read(), read());
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first.forms, &second.forms));
        assert_eq!(counted.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_slow_value_delays_no_other_credential() {
        let cache = CredentialCache::new(Arc::new(CountedValues::default()));
        let mut slow = std::pin::pin!(cache.read("slow", "slow"));
        assert!(poll(slow.as_mut()).is_pending());
        assert!(poll(std::pin::pin!(cache.read("other", "a-long-value"))).is_ready());
        assert!(poll(slow).is_pending());
    }

    #[test]
    fn values_that_could_be_guessed_or_span_lines_are_refused() {
        let check = |value: &str| SecretValue::new(value.to_owned()).check().err().unwrap_or_default();
        assert_eq!(check("12345678"), "");
        assert_eq!(check("Bearer 12345678"), "");
        assert_eq!(check("1234567"), "a value of 8 to 16384 bytes, and it has 7");
        assert_eq!(check("Bearer 1234567"), "a value of 8 to 16384 bytes, and it has 7");
        assert_eq!(check("12345678\n"), "a value of one line without control characters");
    }
}
