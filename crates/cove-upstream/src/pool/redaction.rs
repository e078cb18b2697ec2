//! Removes secrets from the results and messages of a server. A tool that prints its environment would otherwise show
//! its secrets to code and to a model, perhaps encoded. Only values that are likely secrets are removed from results;
//! other values, such as a directory, may be what the result is about.
//!
//! All forms of all values are one automaton, so the cost depends on the length of a text and not on how many secrets
//! there are. It is built at the first use.

mod encodings;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/exercise/redaction.rs"]
pub(super) mod exercise;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock, RwLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use serde_json::Value;

use cove_core::sync::{read, write};

/// Shorter values are hardly secrets, and would match ordinary text.
const MIN_SECRET_LENGTH: usize = 8;
/// Shorter values are too common in ordinary text to be removed from messages.
const MIN_HIDDEN_LENGTH: usize = 5;
/// Up to this many bytes of patterns, memory is spent for speed.
const MAX_DENSE: usize = 32 * 1024;
/// Most places in a message where a text may have been cut, and most bytes of a value that stand there.
const MAX_CUTS: usize = 64;
const MAX_CUT_VALUE: usize = 8 * 1024;
/// Most tokens that are hidden at once. A request in flight may still use older ones than the newest.
const MAX_TOKENS: usize = 32;
const REDACTED: &str = "[redacted]";

/// The secret values of one server. Clones share them, so that a value that is learned later is guarded everywhere.
#[derive(Clone, Default)]
pub(super) struct ServerSecrets(Arc<RwLock<GuardedValues>>);

#[derive(Default)]
struct GuardedValues {
    /// Hidden in messages.
    values: Vec<String>,
    /// Hidden in results too.
    secrets: Vec<String>,
    /// Secrets that change while the server runs, which are hidden in results too. The newest is the last.
    tokens: VecDeque<String>,
    redactor: Arc<OnceLock<ValueRedactor>>,
}

impl ServerSecrets {
    /// `values` are hidden in messages, `secrets` in results too.
    pub(super) fn new(values: Vec<String>, secrets: Vec<String>) -> Self {
        Self(Arc::new(RwLock::new(GuardedValues { values, secrets, ..GuardedValues::default() })))
    }

    /// Hides a token from now on, such as one that replaces another. All clones of these secrets do so.
    pub(super) fn add_token(&self, token: &str) {
        let mut guarded = write(&self.0);
        if guarded.secrets.iter().chain(&guarded.tokens).any(|known| known == token) {
            return;
        }
        guarded.tokens.push_back(token.to_owned());
        if guarded.tokens.len() > MAX_TOKENS {
            guarded.tokens.pop_front();
        }
        guarded.redactor = Arc::default();
    }

    /// Returns a message with every secret value replaced.
    pub(super) fn redact(&self, text: &str) -> String {
        self.with_redactor(|redactor| redactor.redact_text(text, RedactionScope::Message))
            .unwrap_or_else(|| text.to_owned())
    }

    /// Redacts a result.
    pub(super) fn redact_value(&self, value: &mut Value) {
        self.with_redactor(|redactor| redactor.redact_value(value));
    }

    fn with_redactor<T>(&self, use_redactor: impl FnOnce(&ValueRedactor) -> T) -> T {
        let guarded = read(&self.0);
        let redactor = Arc::clone(&guarded.redactor);
        let redactor = redactor.get_or_init(|| {
            let secrets = guarded.secrets.iter().chain(&guarded.tokens);
            ValueRedactor::new(&guarded.values, secrets.map(String::as_str))
        });
        use_redactor(redactor)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RedactionScope {
    Message,
    Result,
}

/// Finds values in every form in which a program may repeat them.
#[derive(Default)]
struct ValueRedactor {
    /// None without values.
    automaton: Option<AhoCorasick>,
    patterns: Vec<String>,
    /// For each pattern, whether it is redacted in results too.
    is_secret: Vec<bool>,
    /// True if a number may be a secret.
    has_numbers: bool,
}

impl ValueRedactor {
    fn new<'a>(values: &[String], secrets: impl Iterator<Item = &'a str>) -> Self {
        let mut patterns: BTreeMap<String, bool> = BTreeMap::new();
        for value in values.iter().filter(|value| value.len() >= MIN_HIDDEN_LENGTH) {
            patterns.insert(value.clone(), false);
        }
        for secret in secrets {
            // `Bearer …`: the scheme is not part of the secret.
            let is_scheme = |word: &str| word.len() <= 10 && word.bytes().all(|byte| byte.is_ascii_alphabetic());
            let credential = secret.split_once(' ').filter(|(scheme, _)| is_scheme(scheme));
            let credential = credential.map(|(_, rest)| rest).filter(|rest| !rest.contains(char::is_whitespace));
            for value in [Some(secret), credential].into_iter().flatten() {
                if value.len() >= MIN_SECRET_LENGTH {
                    patterns.extend(encodings::encoded_forms(value).into_iter().map(|form| (form, true)));
                } else if value.len() >= MIN_HIDDEN_LENGTH {
                    patterns.entry(value.to_owned()).or_insert(false);
                }
            }
        }
        let total: usize = patterns.keys().map(String::len).sum();
        let kind = if total <= MAX_DENSE { AhoCorasickKind::DFA } else { AhoCorasickKind::ContiguousNFA };
        let has_numbers = patterns.iter().any(|(pattern, is_secret)| *is_secret && pattern.parse::<f64>().is_ok());
        let (patterns, is_secret): (Vec<String>, Vec<bool>) = patterns.into_iter().unzip();
        // Overlapping matches are all found: what is left of one secret beside another must not stay.
        let builder = || AhoCorasick::builder().match_kind(MatchKind::Standard).kind(Some(kind)).build(&patterns);
        // It can only fail with more patterns than bounds allow. Redacting nothing would be worse than the panic.
        let automaton = (!patterns.is_empty()).then(|| builder().expect("the values of a server are bounded"));
        Self { automaton, patterns, is_secret, has_numbers }
    }

    /// Redacts keys as well, because a server can put any text there.
    fn redact_value(&self, value: &mut Value) {
        if self.automaton.is_none() {
            return;
        }
        match value {
            Value::String(text) => {
                if let Some(clean) = self.redact_text(text, RedactionScope::Result) {
                    *text = clean;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| self.redact_value(field));
                let clean = |key: &String| Some((key.clone(), self.redact_text(key, RedactionScope::Result)?));
                let dirty: Vec<(String, String)> = fields.keys().filter_map(clean).collect();
                for (key, clean) in dirty {
                    if let Some(value) = fields.remove(&key) {
                        fields.insert(clean, value);
                    }
                }
            }
            Value::Number(number) if self.has_numbers => {
                if let Some(clean) = self.redact_text(&number.to_string(), RedactionScope::Result) {
                    *value = Value::String(clean);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Adds the beginnings of values that stand before an ellipsis: messages quote texts of servers that were cut.
    fn add_cut_values(&self, text: &str, spans: &mut Vec<(usize, usize)>) {
        for (end, _) in text.match_indices('…').take(MAX_CUTS) {
            let before = &text[..end];
            let beginning = |pattern: &String| {
                let most = pattern.floor_char_boundary(before.len().min(MAX_CUT_VALUE));
                let mut lengths = (MIN_HIDDEN_LENGTH..=most).rev().filter(|length| pattern.is_char_boundary(*length));
                lengths.find(|length| before.ends_with(&pattern[..*length]))
            };
            if let Some(longest) = self.patterns.iter().filter_map(beginning).max() {
                let start = end - longest;
                spans.retain(|(from, to)| *to <= start || *from >= end);
                spans.push((start, end));
            }
        }
        spans.sort_unstable();
    }

    /// Returns the text without secrets, or `None` if it has none.
    fn redact_text(&self, text: &str, scope: RedactionScope) -> Option<String> {
        let automaton = self.automaton.as_ref()?;
        // Matches come in the order of their ends.
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for found in automaton.find_overlapping_iter(text) {
            if scope == RedactionScope::Result && !self.is_secret[found.pattern().as_usize()] {
                continue;
            }
            let (mut start, end) = (found.start(), found.end());
            while let Some((earlier, _)) = spans.pop_if(|(_, earlier_end)| *earlier_end > start) {
                start = start.min(earlier);
            }
            spans.push((start, end));
        }
        if scope == RedactionScope::Message {
            self.add_cut_values(text, &mut spans);
        }
        if spans.is_empty() {
            return None;
        }
        let mut clean = String::with_capacity(text.len());
        let mut from = 0;
        for (start, end) in spans {
            clean.push_str(&text[from..start]);
            clean.push_str(REDACTED);
            from = end;
        }
        clean.push_str(&text[from..]);
        Some(clean)
    }
}

#[cfg(test)]
mod tests;
