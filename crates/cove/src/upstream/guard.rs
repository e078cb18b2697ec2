//! What a server was given in confidence does not come back through it: a tool that prints its environment would put it
//! in front of code and a model. Only values whose names say that they are secret are taken out of results, because
//! others, such as a folder, are what results are about.

use serde_json::Value;

/// Shorter ones are no secrets, and would be found where they are not.
const MIN: usize = 8;
const REDACTED: &str = "[redacted]";
/// Parts of names, in capitals.
const NAMES: [&str; 10] =
    ["TOKEN", "SECRET", "PASSW", "PWD", "KEY", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE", "SIGNATURE"];

/// Whether a variable or a header of this name holds a secret, as far as names tell.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    NAMES.iter().any(|part| name.contains(part))
}

/// Values to be taken out of results.
#[derive(Clone, Default)]
pub(super) struct Guard(Vec<String>);

impl Guard {
    pub(super) fn of(values: impl IntoIterator<Item = String>) -> Self {
        let mut all = Vec::new();
        for value in values.into_iter().filter(|value| value.len() >= MIN) {
            // `Bearer …`: the word before it is no part of the secret.
            if let Some((_, token)) = value.split_once(' ').filter(|(_, token)| token.len() >= MIN) {
                all.push(token.to_owned());
            }
            all.push(value);
        }
        all.sort_by_key(|value| std::cmp::Reverse(value.len()));
        all.dedup();
        Self(all)
    }

    /// Also in keys, which a server can make of anything.
    pub(super) fn hide(&self, value: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Some(clean) = self.clean(text) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| self.hide(field));
                let dirty: Vec<String> =
                    fields.keys().filter(|key| self.clean(key).is_some()).cloned().collect();
                for key in dirty {
                    if let (Some(clean), Some(value)) = (self.clean(&key), fields.remove(&key)) {
                        fields.insert(clean, value);
                    }
                }
            }
            _ => {}
        }
    }

    fn clean(&self, text: &str) -> Option<String> {
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
    fn names_tell_secrets() {
        for name in ["GITHUB_TOKEN", "api-key", "Authorization", "DB_PASSWORD", "client_secret", "Cookie"] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["MEMORY_FILE_PATH", "LOG_LEVEL", "ROOT", "PORT", "X-Region"] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secrets_are_taken_out_wherever_they_are() {
        let guard = Guard::of(["Bearer tok-12345678".into(), "hunter2-hunter2".into(), "short".into()]);
        let mut value = json!({
            "text": "x Bearer tok-12345678 y tok-12345678", "hunter2-hunter2": [{"a": "=hunter2-hunter2="}], "n": 1,
            "short": "short",
        });
        guard.hide(&mut value);
        let expected = json!({
            "text": "x [redacted] y [redacted]", "[redacted]": [{"a": "=[redacted]="}], "n": 1, "short": "short",
        });
        assert_eq!(value, expected);
    }
}
