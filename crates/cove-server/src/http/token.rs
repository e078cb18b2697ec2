//! Bearer tokens: their principals, the format of the token file, and the comparison with a request. This module
//! never puts a token into a message or a log; only the public functions of `file` return one.

use std::fmt;

use http::HeaderValue;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use cove_core::session::registry::Principal;

pub(super) mod file;
pub(super) mod keeper;

/// The principal of a token without a name.
pub(super) const OWNER: &str = "owner";
/// Shorter tokens could be guessed.
const MIN_TOKEN_LENGTH: usize = 16;
const MAX_TOKEN_LENGTH: usize = 512;
const MAX_TOKENS: usize = 1000;

/// All tokens of a file, in its order.
#[derive(PartialEq, Eq)]
pub(super) struct TokenSet(Vec<AcceptedToken>);

/// One token, of which only the digest is kept.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AcceptedToken {
    pub(super) principal: Principal,
    /// SHA-256 of the token. All digests have the same length, so the time of a comparison does not depend on the
    /// length of the token.
    digest: [u8; 32],
}

impl AcceptedToken {
    fn new(name: &str, token: &str) -> Self {
        Self { principal: Principal(name.to_owned()), digest: Sha256::digest(token).into() }
    }

    #[cfg(test)]
    pub(super) fn for_test(name: &str) -> Self {
        Self::new(name, name)
    }

    /// Returns what stands for a client of a server that needs no token.
    pub(super) fn of_anyone() -> Self {
        Self::new(OWNER, "")
    }
}

impl fmt::Debug for AcceptedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AcceptedToken").field(&self.principal.0).finish()
    }
}

impl fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| &entry.principal.0)).finish()
    }
}

/// The problem with a line, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenFileError {
    #[error("line {0} is neither `TOKEN` nor `NAME TOKEN`")]
    Shape(usize),
    #[error("the name on line {0} is not 1 to 64 letters, digits or `-_.@`")]
    Name(usize),
    #[error("the token on line {0} is not {MIN_TOKEN_LENGTH} to {MAX_TOKEN_LENGTH} letters, digits or `-._~+/=`")]
    Token(usize),
    #[error("line {0} has the same name as line {1}")]
    SameName(usize, usize),
    #[error("line {0} has the same token as line {1}")]
    SameToken(usize, usize),
    #[error("there are more than {MAX_TOKENS} tokens in it")]
    TooMany,
    #[error("there is no token in it")]
    Empty,
}

impl TokenSet {
    /// Returns a set with one token, for example from the environment; `None` if it is not valid.
    pub(super) fn single(token: &str) -> Option<Self> {
        is_valid_token(token).then(|| Self(vec![AcceptedToken::new(OWNER, token)]))
    }

    /// Returns a set that accepts nothing.
    pub(super) fn empty() -> Self {
        Self(Vec::new())
    }

    #[cfg(test)]
    pub(super) fn for_test(names: &[&str]) -> Self {
        Self(names.iter().map(|name| AcceptedToken::for_test(name)).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &AcceptedToken> {
        self.0.iter()
    }

    /// Returns true if the token is still one of these, for the same principal.
    pub(super) fn has(&self, token: &AcceptedToken) -> bool {
        self.0.contains(token)
    }

    /// Parses the text of a token file. Fails with the problem of the first bad line.
    pub(super) fn parse(text: &str) -> Result<Self, TokenFileError> {
        let lines = parse_lines(text)?;
        Ok(Self(lines.iter().map(|line| AcceptedToken::new(line.name, line.token)).collect()))
    }

    pub(super) fn has_principal(&self, principal: &Principal) -> bool {
        self.principals().any(|known| known == principal)
    }

    /// Returns the principal of each token, in the order of the file.
    pub(super) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.0.iter().map(|entry| &entry.principal)
    }

    /// Returns the token that `Authorization` carries. Compares every token in constant time, whichever matches, so the
    /// time reveals nothing about them.
    pub(super) fn find(&self, authorization: &HeaderValue) -> Option<&AcceptedToken> {
        let presented: [u8; 32] = Sha256::digest(bearer_token(authorization)?).into();
        let mut found = None;
        for entry in &self.0 {
            found = if bool::from(entry.digest.ct_eq(&presented)) { Some(entry) } else { found };
        }
        found
    }
}

/// A line of a token file that holds a token.
struct TokenLine<'a> {
    /// From 1.
    number: usize,
    name: &'a str,
    token: &'a str,
}

/// Returns the lines with tokens, at least one. Fails with the problem of the first bad line.
fn parse_lines(text: &str) -> Result<Vec<TokenLine<'_>>, TokenFileError> {
    let mut lines: Vec<TokenLine<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (name, token) = match words.as_slice() {
            [token] => (OWNER, *token),
            [name, token] => (*name, *token),
            _ => return Err(TokenFileError::Shape(number)),
        };
        if !is_valid_name(name) {
            return Err(TokenFileError::Name(number));
        }
        if !is_valid_token(token) {
            return Err(TokenFileError::Token(number));
        }
        if let Some(before) = lines.iter().find(|before| before.name == name) {
            return Err(TokenFileError::SameName(number, before.number));
        }
        if let Some(before) = lines.iter().find(|before| before.token == token) {
            return Err(TokenFileError::SameToken(number, before.number));
        }
        if lines.len() >= MAX_TOKENS {
            return Err(TokenFileError::TooMany);
        }
        lines.push(TokenLine { number, name, token });
    }
    if lines.is_empty() {
        return Err(TokenFileError::Empty);
    }
    Ok(lines)
}

/// Returns the part after `Bearer`, which may be written in any case.
fn bearer_token(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = authorization.as_bytes().split_at_checked(6)?;
    let token = rest.strip_prefix(b" ")?.trim_ascii();
    let possible =
        scheme.eq_ignore_ascii_case(b"bearer") && (MIN_TOKEN_LENGTH..=MAX_TOKEN_LENGTH).contains(&token.len());
    possible.then_some(token)
}

fn is_valid_token(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    (MIN_TOKEN_LENGTH..=MAX_TOKEN_LENGTH).contains(&text.len()) && text.bytes().all(plain)
}

fn is_valid_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.@".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn parses_token_files() {
        let names = |text: &str| -> Result<String, TokenFileError> {
            let tokens = TokenSet::parse(text)?;
            Ok(tokens.principals().map(|principal| principal.0.clone()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names(A).as_deref(), Ok("owner"));
        assert_eq!(names(&format!("# mine\r\n\n  {A}\r\nbot@ci\t{B}\n")).as_deref(), Ok("owner bot@ci"));
        let cases = [
            (String::new(), TokenFileError::Empty),
            ("# none\n".to_owned(), TokenFileError::Empty),
            (format!("{A} x y"), TokenFileError::Shape(1)),
            ("\nshort".to_owned(), TokenFileError::Token(2)),
            (format!("bot {A}\nb\u{f6}t {B}"), TokenFileError::Name(2)),
            (format!("{A}\u{fc}"), TokenFileError::Token(1)),
            ("x".repeat(513), TokenFileError::Token(1)),
            (format!("{} {A}", "n".repeat(65)), TokenFileError::Name(1)),
            (format!("{A}\n{B}"), TokenFileError::SameName(2, 1)),
            (format!("a {A}\n\nb {A}"), TokenFileError::SameToken(3, 1)),
            (format!("{A}\nowner {B}"), TokenFileError::SameName(2, 1)),
        ];
        for (text, expected) in cases {
            let found = TokenSet::parse(&text).unwrap_err();
            assert_eq!(found, expected, "{text}");
            assert!(!found.to_string().contains(A) && !found.to_string().contains("short"));
        }
    }

    #[test]
    fn finds_the_principal_of_a_token() {
        let tokens = TokenSet::parse(&format!("a {A}\nb {B}\n")).unwrap();
        let find = |value: &str| {
            let found = tokens.find(&HeaderValue::from_bytes(value.as_bytes()).unwrap());
            found.map(|token| token.principal.0.as_str())
        };
        assert_eq!(find(&format!("Bearer {A}")), Some("a"));
        assert_eq!(find(&format!("bEARER   {B} ")), Some("b"));
        let long = A.repeat(2);
        let wrong = [
            "",
            "Bearer",
            "Bearer ",
            A,
            &format!("Bearer{A}"),
            &format!("Basic {A}"),
            &format!("Bearer {A}x"),
            &format!("Bearer {}", &A[1..]),
            &format!("Bearer {long}"),
            &format!("Bearer {A},{B}"),
            &format!("Bearer {A} {B}"),
            &format!("Bearer {}", "x".repeat(60_000)),
            "B\u{f6}rer xxxxxxxxxxxxxxxxx",
        ];
        for value in wrong {
            assert_eq!(find(value), None, "{value}");
        }
    }

    #[test]
    fn debug_output_hides_tokens() {
        let tokens = TokenSet::parse(&format!("a {A}\n")).unwrap();
        assert_eq!(format!("{tokens:?}"), "[\"a\"]");
        assert!(TokenSet::single("short").is_none() && TokenSet::single(A).is_some());
    }
}
