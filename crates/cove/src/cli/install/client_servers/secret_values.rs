//! Finds the values of a definition that look secret, by their names or by how tokens of known services begin, and
//! puts references in their place.

use serde_json::{Map, Value};

use cove_upstream::secrets::{is_secret_name, looks_secret};

use super::references::secret_name;
use super::secret_reference;
use crate::cli::install::server_url::SecretToken;

/// Values that no service takes for a secret, whatever the name.
const ORDINARY_WORDS: &[&str] =
    &["true", "false", "yes", "no", "none", "null", "on", "off", "basic", "bearer", "oauth"];

/// Collects the secrets of one definition.
pub(super) struct SecretCollector<'a> {
    server: &'a str,
    pub(super) secrets: Vec<(String, SecretToken)>,
}

impl<'a> SecretCollector<'a> {
    pub(super) fn new(server: &'a str) -> Self {
        Self { server, secrets: Vec::new() }
    }

    /// Replaces every value that looks secret.
    pub(super) fn hide(&mut self, definition: &mut Map<String, Value>) {
        for (field, value) in definition.iter_mut() {
            match (field.as_str(), value) {
                ("env" | "headers", Value::Object(fields)) => {
                    for (name, value) in fields {
                        if let Value::String(text) = value {
                            *text = self.hide_named(name, text);
                        }
                    }
                }
                ("oauth", Value::Object(fields)) => {
                    if let Some(Value::String(text)) = fields.get_mut("client_secret") {
                        *text = self.hide_named("CLIENT_SECRET", text);
                    }
                }
                ("args", Value::Array(items)) => self.hide_arguments(items),
                ("url", Value::String(text)) => *text = self.hide_in_url("URL", text),
                _ => {}
            }
        }
    }

    fn hide_named(&mut self, name: &str, text: &str) -> String {
        // `Bearer TOKEN`: the scheme is not part of the secret.
        let scheme =
            ["Bearer ", "bearer ", "Basic ", "Token ", "token "].into_iter().find(|scheme| text.starts_with(scheme));
        let (scheme, value) = text.split_at(scheme.map_or(0, str::len));
        let is_secret = is_secret_name(name) && !is_ordinary(name, value);
        if is_secret || looks_secret(value) { self.keep(name, scheme, value) } else { self.hide_in_url(name, text) }
    }

    fn hide_arguments(&mut self, items: &mut [Value]) {
        let mut flag: Option<String> = None;
        for item in items {
            let Value::String(text) = item else { continue };
            let named = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
            let hidden = match (flag.take(), named) {
                (Some(flag), _) if !text.starts_with('-') => match text.split_once(": ") {
                    // `--header "Authorization: Bearer TOKEN"`
                    Some((name, value)) if flag.contains("header") => {
                        format!("{name}: {}", self.hide_named(name, value))
                    }
                    _ if flag.contains("header") => text.clone(),
                    _ => self.hide_named(&flag, text),
                },
                (_, Some((name, value))) if !name.contains(['/', ':', ' ']) => {
                    let plain = name.trim_start_matches('-');
                    format!("{name}={}", self.hide_named(plain, &value))
                }
                // `sk-learn-tools-server` is the name of a package.
                _ if looks_secret(text) && text.bytes().any(|byte| byte.is_ascii_digit()) => {
                    self.keep("TOKEN", "", text)
                }
                _ => self.hide_in_url("URL", text),
            };
            let is_flag = text.starts_with('-') && !text.contains('=');
            flag = is_flag.then(|| text.trim_start_matches('-').to_lowercase());
            flag = flag.filter(|flag| is_secret_name(flag) || flag.contains("header"));
            *text = hidden;
        }
    }

    /// Hides the password of an address, and values in its query whose names suggest a secret.
    fn hide_in_url(&mut self, name: &str, text: &str) -> String {
        let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let authority = match authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?, host))) {
            Some(((user, password), host)) => {
                let password = self.keep(&format!("{name}_PASSWORD"), "", password);
                format!("{user}:{password}@{host}")
            }
            None => authority.to_owned(),
        };
        let Some((path, query)) = tail.split_once('?') else { return format!("{scheme}://{authority}{tail}") };
        let member = |member: &str| match member.split_once('=') {
            Some((key, value)) if (is_secret_name(key) && !is_ordinary(key, value)) || looks_secret(value) => {
                format!("{key}={}", self.keep(key, "", value))
            }
            _ => member.to_owned(),
        };
        let query: Vec<String> = query.split('&').map(member).collect();
        format!("{scheme}://{authority}{path}?{}", query.join("&"))
    }

    /// Keeps a value, and returns the text that stands for it. Values that refer to others are kept elsewhere already.
    fn keep(&mut self, name: &str, before: &str, value: &str) -> String {
        if value.is_empty() || value.contains("${") {
            return format!("{before}{value}");
        }
        let same = |(_, SecretToken(kept)): &&(String, SecretToken)| kept == value;
        if let Some((known, _)) = self.secrets.iter().find(same) {
            return format!("{before}{}", secret_reference(known));
        }
        let plain = format!("{}.{}", self.server, secret_name(name));
        let is_taken = |name: &str| self.secrets.iter().any(|(known, _)| known == name);
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let name = std::iter::once(plain.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or(plain);
        let reference = secret_reference(&name);
        self.secrets.push((name, SecretToken(value.to_owned())));
        format!("{before}{reference}")
    }
}

/// True for a value that is no secret although its name suggests one: a switch, or the path of a file.
fn is_ordinary(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let names_file = ["PATH", "FILE", "DIR", "SOCK", "CREDENTIALS"].iter().any(|part| name.contains(part));
    ORDINARY_WORDS.contains(&value.to_ascii_lowercase().as_str())
        || (value.len() < 4 && value.bytes().all(|byte| byte.is_ascii_digit()))
        || ["~/", "./", "../"].iter().any(|start| value.starts_with(start))
        || (names_file && value.starts_with('/'))
}
