//! Bearer tokens: who each belongs to, how a file of them is read, and how one that came with a request is compared. No
//! token ever reaches a message or a log from here.

use std::fmt;
use std::hint::black_box;

use http::HeaderValue;

use crate::session::registry::Principal;

pub(super) mod file;

/// Whose a token without a name is.
pub(super) const OWNER: &str = "owner";
/// Fewer could be guessed.
const LEAST: usize = 16;
const MOST: usize = 512;
const MOST_TOKENS: usize = 1000;

/// All that are accepted; never none.
pub(super) struct Tokens(Vec<Entry>);

struct Entry {
    principal: Principal,
    token: Vec<u8>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| &entry.principal.0)).finish()
    }
}

/// What is wrong with a line, without the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("line {0} is neither `TOKEN` nor `NAME TOKEN`")]
    Shape(usize),
    #[error("the name on line {0} is not 1 to 64 letters, digits or `-_.@`")]
    Name(usize),
    #[error("the token on line {0} is not {LEAST} to {MOST} letters, digits or `-._~+/=`")]
    Token(usize),
    #[error("line {0} has the same name as line {1}")]
    SameName(usize, usize),
    #[error("line {0} has the same token as line {1}")]
    SameToken(usize, usize),
    #[error("there are more than {MOST_TOKENS} tokens in it")]
    TooMany,
    #[error("there is no token in it")]
    Empty,
}

impl Tokens {
    /// One token, from elsewhere than a file.
    pub(super) fn one(token: &str) -> Option<Self> {
        let entry = Entry { principal: Principal(OWNER.to_owned()), token: token.as_bytes().to_vec() };
        is_token(token).then(|| Self(vec![entry]))
    }

    pub(super) fn parse(text: &str) -> Result<Self, Malformed> {
        let mut entries: Vec<(usize, Entry)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let (number, line) = (index + 1, line.trim());
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (name, token) = match words.as_slice() {
                [token] => (OWNER, *token),
                [name, token] => (*name, *token),
                _ => return Err(Malformed::Shape(number)),
            };
            if !is_name(name) {
                return Err(Malformed::Name(number));
            }
            if !is_token(token) {
                return Err(Malformed::Token(number));
            }
            for (before, other) in &entries {
                if other.principal.0 == name {
                    return Err(Malformed::SameName(number, *before));
                }
                if other.token == token.as_bytes() {
                    return Err(Malformed::SameToken(number, *before));
                }
            }
            if entries.len() >= MOST_TOKENS {
                return Err(Malformed::TooMany);
            }
            let principal = Principal(name.to_owned());
            entries.push((number, Entry { principal, token: token.as_bytes().to_vec() }));
        }
        if entries.is_empty() {
            return Err(Malformed::Empty);
        }
        Ok(Self(entries.into_iter().map(|(_, entry)| entry).collect()))
    }

    pub(super) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.0.iter().map(|entry| &entry.principal)
    }

    /// The place in [`Tokens::principals`] of whoever has what `Authorization` says. Every token is compared whole,
    /// whichever is right, so that the time tells nothing.
    pub(super) fn find(&self, authorization: &HeaderValue) -> Option<usize> {
        let presented = bearer(authorization)?;
        let mut found = None;
        for (place, entry) in self.0.iter().enumerate() {
            let same = black_box(is_same(presented, &entry.token));
            found = if same { Some(place) } else { found };
        }
        found
    }
}

/// What follows `Bearer`, a word that is the same in any case.
fn bearer(authorization: &HeaderValue) -> Option<&[u8]> {
    let (scheme, rest) = authorization.as_bytes().split_at_checked(6)?;
    let token = rest.strip_prefix(b" ")?.trim_ascii();
    let possible = scheme.eq_ignore_ascii_case(b"bearer") && (LEAST..=MOST).contains(&token.len());
    possible.then_some(token)
}

/// Takes as long as `presented` is, wherever the two differ.
fn is_same(presented: &[u8], token: &[u8]) -> bool {
    let mut differs = u8::from(presented.len() != token.len());
    for (at, byte) in presented.iter().enumerate() {
        // Beyond its end the token is read again from its start: what is read must not depend on where it ends.
        differs = black_box(differs | (byte ^ token[at % token.len()]));
    }
    differs == 0
}

fn is_token(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    (LEAST..=MOST).contains(&text.len()) && text.bytes().all(plain)
}

fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.@".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn files_of_tokens() {
        let names = |text: &str| -> Result<String, Malformed> {
            let tokens = Tokens::parse(text)?;
            Ok(tokens.principals().map(|principal| principal.0.clone()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(names(A).as_deref(), Ok("owner"));
        assert_eq!(names(&format!("# mine\r\n\n  {A}\r\nbot@ci\t{B}\n")).as_deref(), Ok("owner bot@ci"));
        let cases = [
            (String::new(), Malformed::Empty),
            ("# none\n".to_owned(), Malformed::Empty),
            (format!("{A} x y"), Malformed::Shape(1)),
            ("\nshort".to_owned(), Malformed::Token(2)),
            (format!("bot {A}\nb\u{f6}t {B}"), Malformed::Name(2)),
            (format!("{A}\u{fc}"), Malformed::Token(1)),
            ("x".repeat(513), Malformed::Token(1)),
            (format!("{} {A}", "n".repeat(65)), Malformed::Name(1)),
            (format!("{A}\n{B}"), Malformed::SameName(2, 1)),
            (format!("a {A}\n\nb {A}"), Malformed::SameToken(3, 1)),
            (format!("{A}\nowner {B}"), Malformed::SameName(2, 1)),
        ];
        for (text, expected) in cases {
            let found = Tokens::parse(&text).unwrap_err();
            assert_eq!(found, expected, "{text}");
            assert!(!found.to_string().contains(A) && !found.to_string().contains("short"));
        }
    }

    #[test]
    fn a_token_names_its_principal() {
        let tokens = Tokens::parse(&format!("a {A}\nb {B}\n")).unwrap();
        let find = |value: &str| tokens.find(&HeaderValue::from_bytes(value.as_bytes()).unwrap());
        assert_eq!(find(&format!("Bearer {A}")), Some(0));
        assert_eq!(find(&format!("bEARER   {B} ")), Some(1));
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
    fn tokens_are_not_shown() {
        let tokens = Tokens::parse(&format!("a {A}\n")).unwrap();
        assert_eq!(format!("{tokens:?}"), "[\"a\"]");
        assert!(Tokens::one("short").is_none() && Tokens::one(A).is_some());
    }
}
