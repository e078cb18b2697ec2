//! Removes secrets from the results of a server. A tool that prints its environment would otherwise show its secrets
//! to code and to a model. Only values whose names mark them as secret are removed from results; other values, such
//! as a directory, may be what the result is about.

use serde_json::Value;

/// Shorter values are hardly secrets, and would match ordinary text.
const MIN_SECRET_LENGTH: usize = 8;
/// Shorter values are too common in ordinary text to be removed from messages.
const MIN_HIDDEN_LENGTH: usize = 5;
const REDACTED: &str = "[redacted]";
/// Parts of secret names, in upper case.
const SECRET_NAME_PARTS: [&str; 10] =
    ["TOKEN", "SECRET", "PASSW", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE", "SIGNATURE"];

/// Returns true if the name of a variable or header suggests a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// The secret values of one server.
#[derive(Clone, Default)]
pub(super) struct ServerSecrets {
    /// Values that no message may repeat.
    messages: ValueRedactor,
    /// The values that must not appear in results either.
    results: ValueRedactor,
}

impl ServerSecrets {
    /// `values` are hidden in messages, `secrets` in results too.
    pub(super) fn new(values: Vec<String>, secrets: Vec<String>) -> Self {
        // `Bearer …`: the scheme is not part of the secret.
        let tokens = secrets.iter().filter_map(|value| Some(value.split_once(' ')?.1.to_owned()));
        Self {
            results: ValueRedactor::new(tokens.chain(secrets.iter().cloned()), MIN_SECRET_LENGTH),
            messages: ValueRedactor::new(values.into_iter().chain(secrets.iter().cloned()), MIN_HIDDEN_LENGTH),
        }
    }

    /// Returns a message with every secret value replaced.
    pub(super) fn redact(&self, text: &str) -> String {
        self.messages.redact_text(text).unwrap_or_else(|| text.to_owned())
    }

    /// Redacts a result.
    pub(super) fn redact_value(&self, value: &mut Value) {
        self.results.redact_value(value);
    }
}

/// Replaces some values, longest first.
#[derive(Clone, Default)]
struct ValueRedactor(Vec<String>);

impl ValueRedactor {
    fn new(values: impl Iterator<Item = String>, least: usize) -> Self {
        let mut values: Vec<String> = values.filter(|value| value.len() >= least).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self(values)
    }

    /// Redacts keys as well, because a server can put any text there.
    fn redact_value(&self, value: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Some(clean) = self.redact_text(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| self.redact_value(field));
                let dirty: Vec<String> = fields.keys().filter(|key| self.redact_text(key).is_some()).cloned().collect();
                for key in dirty {
                    if let (Some(clean), Some(value)) = (self.redact_text(&key), fields.remove(&key)) {
                        fields.insert(clean, value);
                    }
                }
            }
            _ => {}
        }
    }

    fn redact_text(&self, text: &str) -> Option<String> {
        let mut clean: Option<String> = None;
        for secret in &self.0 {
            let now = clean.as_deref().unwrap_or(text);
            if now.contains(secret.as_str()) {
                clean = Some(now.replace(secret.as_str(), REDACTED));
            }
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn recognizes_secret_names() {
        for name in ["GITHUB_TOKEN", "api-key", "Authorization", "DB_PASSWORD", "client_secret", "Cookie"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["MEMORY_FILE_PATH", "LOG_LEVEL", "ROOT", "PORT", "X-Region"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn redacts_secrets_in_values_and_keys() {
        let secrets = ["Bearer tok-12345678", "hunter2-hunter2", "short"].map(str::to_owned);
        let guard = ServerSecrets::new(Vec::new(), secrets.into());
        let mut value = json!({
            "text": "x Bearer tok-12345678 y tok-12345678", "hunter2-hunter2": [{"a": "=hunter2-hunter2="}], "n": 1,
            "short": "short",
        });
        guard.redact_value(&mut value);
        let expected = json!({
            "text": "x [redacted] y [redacted]", "[redacted]": [{"a": "=[redacted]="}], "n": 1, "short": "short",
        });
        assert_eq!(value, expected);
    }
}
