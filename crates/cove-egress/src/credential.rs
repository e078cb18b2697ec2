//! Credentials: secrets that the host puts into the requests of a rule, and the place in a request where each belongs.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::secret_value::SecretValue;

/// A secret that code uses and never sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressCredential {
    pub name: String,
    /// Refers to the value, as in `${GITHUB_TOKEN}`.
    pub reference: String,
    /// Where that stands, as in "`cove.toml`, line 7".
    pub place: String,
    pub slot: CredentialSlot,
    /// What the placeholder begins with, for programs that look at the beginning of a token.
    pub prefix: String,
    /// Variables of the sandbox that get the placeholder.
    pub variables: Vec<String>,
}

/// As `cove net show` names it, without its value.
impl fmt::Display for EgressCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "credential {}: ", self.name)?;
        match &self.slot {
            CredentialSlot::Header { name, .. } => write!(f, "header {name}")?,
            CredentialSlot::Query(name) => write!(f, "query parameter {name}")?,
            CredentialSlot::Basic { user } => write!(f, "password of `{user}`")?,
        }
        match self.variables.is_empty() {
            true => Ok(()),
            false => write!(f, ", placeholder in {}", self.variables.join(", ")),
        }
    }
}

/// Where in a request a credential stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSlot {
    /// A field, whose `{}` is the value.
    Header { name: HeaderName, format: String },
    /// A parameter of the query.
    Query(String),
    /// The user and the password of HTTP.
    Basic { user: String },
}

/// The parts of a request that a credential can stand in.
pub(crate) struct RequestSlots<'a> {
    pub(crate) headers: &'a mut HeaderMap,
    /// What stands behind the `?`.
    pub(crate) query: &'a mut Option<String>,
}

impl CredentialSlot {
    /// True if both stand in the same place.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Query(one), Self::Query(another)) => one == another,
            (Self::Query(_), _) | (_, Self::Query(_)) => false,
            _ => self.header() == other.header(),
        }
    }

    fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Header { name, .. } => Some(name),
            Self::Basic { .. } => Some(&AUTHORIZATION),
            Self::Query(_) => None,
        }
    }

    /// Takes out what code has put there.
    pub(crate) fn clear(&self, request: &mut RequestSlots<'_>) {
        if let Some(name) = self.header() {
            remove_fields(request.headers, &[name.as_str()]);
        }
        if let (Self::Query(name), Some(query)) = (self, request.query.as_mut()) {
            let kept: Vec<&str> = query.split('&').filter(|pair| !names_parameter(pair, name)).collect();
            *query = kept.join("&");
        }
    }

    /// Puts the value in. Fails if it cannot stand there.
    pub(crate) fn fill(&self, value: &SecretValue, request: &mut RequestSlots<'_>) -> Result<(), &'static str> {
        let text = Zeroizing::new(match self {
            Self::Header { format, .. } => format.replacen("{}", value.reveal(), 1),
            Self::Basic { user } => format!("Basic {}", STANDARD.encode(format!("{user}:{}", value.reveal()))),
            Self::Query(name) => {
                let pair = format!("{}={}", percent_encode(name), percent_encode(value.reveal()));
                let query = request.query.take().filter(|query| !query.is_empty());
                *request.query = Some(query.map_or_else(|| pair.clone(), |query| format!("{query}&{pair}")));
                return Ok(());
            }
        });
        let mut field = HeaderValue::from_str(&text).map_err(|_| "it has characters that no field can have")?;
        field.set_sensitive(true);
        if let Some(name) = self.header() {
            request.headers.insert(name.clone(), field);
        }
        Ok(())
    }
}

/// Removes the fields of these names, also where one has `_` in place of `-`: many servers read both as one field.
pub(crate) fn remove_fields(headers: &mut HeaderMap, names: &[&str]) {
    let plain = |name: &str| name.replace('_', "-");
    let is_meant = |field: &&HeaderName| names.iter().any(|name| plain(name) == plain(field.as_str()));
    let found: Vec<HeaderName> = headers.keys().filter(is_meant).cloned().collect();
    found.into_iter().for_each(|name| drop(headers.remove(name)));
}

/// True if a pair of a query has this name, however it is escaped.
fn names_parameter(pair: &str, name: &str) -> bool {
    let written = pair.split('=').next().unwrap_or_default();
    decode_loosely(&written.replace('+', " ")) == name.as_bytes()
}

/// Decodes escapes, and leaves what is no escape as it is.
pub(crate) fn decode_loosely(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(slot: &CredentialSlot, query: Option<&str>, expected: (Option<&str>, Option<&str>)) {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_static("Bearer own"));
        headers.append(AUTHORIZATION, HeaderValue::from_static("second"));
        let mut query = query.map(str::to_owned);
        let mut request = RequestSlots { headers: &mut headers, query: &mut query };
        slot.clear(&mut request);
        slot.fill(&SecretValue::new("s3cret/&".into()), &mut request).unwrap();
        let fields: Vec<&str> = headers.get_all(AUTHORIZATION).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!((fields.join("|").as_str(), query.as_deref()), (expected.0.unwrap(), expected.1));
    }

    #[test]
    fn the_value_takes_the_place_of_what_code_put_there() {
        let header = CredentialSlot::Header { name: AUTHORIZATION, format: "Bearer {}".into() };
        check(&header, Some("a=1"), (Some("Bearer s3cret/&"), Some("a=1")));
        check(&CredentialSlot::Basic { user: "me".into() }, None, (Some("Basic bWU6czNjcmV0LyY="), None));
        let (mut headers, mut query) = (HeaderMap::new(), None);
        for name in ["x_api_key", "x-api_key", "x-api-key"] {
            headers.append(name, HeaderValue::from_static("own"));
        }
        let slot = CredentialSlot::Header { name: HeaderName::from_static("x-api-key"), format: "{}".into() };
        slot.clear(&mut RequestSlots { headers: &mut headers, query: &mut query });
        assert!(headers.is_empty(), "{headers:?}");
        let query = CredentialSlot::Query("api key".into());
        let own = Some("Bearer own|second");
        check(&query, Some("x=1&api%20key=own&api+key=own"), (own, Some("x=1&api%20key=s3cret%2F%26")));
        check(&query, Some("%61pi%20key"), (own, Some("api%20key=s3cret%2F%26")));
        check(&query, None, (own, Some("api%20key=s3cret%2F%26")));
    }

    #[test]
    fn two_slots_in_one_place_are_found() {
        let header = |name| CredentialSlot::Header { name, format: "{}".into() };
        let basic = CredentialSlot::Basic { user: "me".into() };
        assert!(basic.is_same_place(&header(AUTHORIZATION)));
        assert!(!basic.is_same_place(&header(HeaderName::from_static("x-key"))));
        assert!(!basic.is_same_place(&CredentialSlot::Query("q".into())));
        assert!(CredentialSlot::Query("q".into()).is_same_place(&CredentialSlot::Query("q".into())));
    }

    #[test]
    fn a_value_that_no_field_can_have_is_refused() {
        let slot = CredentialSlot::Header { name: AUTHORIZATION, format: "{}".into() };
        let (mut headers, mut query) = (HeaderMap::new(), None);
        let mut request = RequestSlots { headers: &mut headers, query: &mut query };
        assert!(slot.fill(&SecretValue::new("a\r\nX: y".into()), &mut request).is_err());
    }
}
