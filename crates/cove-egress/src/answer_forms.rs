//! The forms in which programs repeat a secret, as digests: made once for each value, and shared by all answers that are searched
//! for it. A digest tells whole forms apart and nothing else, so that a search cannot take longer, hold more or write other
//! pieces the more of a form it has seen.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// 2^61 - 1. Two different texts have the same digest with a chance of their length in this number.
const PRIME: u64 = (1 << 61) - 1;

/// What digests are powers of: random, so that no code can choose texts with the same digest.
static BASE: LazyLock<u64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    // Without random numbers, code could have its own text taken for a secret, and no more.
    let _ = SystemRandom::new().fill(&mut bytes);
    (u64::from_le_bytes(bytes) >> 5) | 1 << 59
});

/// The digest of a text: of its bytes as the digits of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct TextDigest(u64);

impl TextDigest {
    pub(crate) fn of(text: &[u8]) -> Self {
        text.iter().fold(Self::default(), |digest, byte| digest.followed_by(*byte))
    }

    /// Returns the digest of the text with one byte more.
    pub(crate) fn followed_by(self, byte: u8) -> Self {
        Self(reduce(multiply(self.0, *BASE) + u64::from(byte) + 1))
    }

    /// Returns the digest of what follows a text in another one. `power` is that of its length.
    pub(crate) fn without(self, before: Self, power: u64) -> Self {
        Self(reduce(self.0 + PRIME - multiply(before.0, power)))
    }
}

/// Returns a number below twice the prime as one below the prime.
fn reduce(number: u64) -> u64 {
    if number >= PRIME { number - PRIME } else { number }
}

fn multiply(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    reduce((product as u64 & PRIME) + (product >> 61) as u64)
}

/// The forms of one length.
pub(crate) struct FormsOfLength {
    pub(crate) length: usize,
    /// The base to the power of the length.
    pub(crate) power: u64,
    pub(crate) digests: Vec<TextDigest>,
}

/// The forms of one secret.
pub(crate) struct SecretForms(Vec<FormsOfLength>);

impl SecretForms {
    pub(crate) fn new(secret: &str) -> Self {
        let mut digests: BTreeMap<usize, Vec<TextDigest>> = BTreeMap::new();
        for form in [secret, bare_token(secret)].into_iter().flat_map(forms_of) {
            digests.entry(form.len()).or_default().push(TextDigest::of(form.as_bytes()));
        }
        let of_length = |(length, mut digests): (usize, Vec<TextDigest>)| {
            digests.sort_unstable();
            digests.dedup();
            FormsOfLength { length, power: (0..length).fold(1, |power, _| multiply(power, *BASE)), digests }
        };
        Self(digests.into_iter().map(of_length).collect())
    }
}

/// Returns a value without the scheme before it, as in `Bearer …`: servers repeat what is behind it alone.
pub(crate) fn bare_token(value: &str) -> &str {
    let is_scheme = |word: &str| word.len() <= 10 && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    let token = value.split_once(' ').filter(|(scheme, token)| is_scheme(scheme) && !token.contains(' '));
    token.map_or(value, |(_, token)| token)
}

/// Returns a secret as it is, in base64 and in hexadecimal digits. Escapes are undone before a text is compared.
fn forms_of(secret: &str) -> Vec<Zeroizing<String>> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![secret.to_owned(), hex.to_uppercase(), hex];
    forms.extend((0..3).flat_map(|offset| base64_parts(secret.as_bytes(), offset)));
    forms.into_iter().map(Zeroizing::new).collect()
}

/// Returns the characters of base64, in both alphabets, that depend on the value alone, if `offset` bytes of a group of
/// three precede it.
fn base64_parts(value: &[u8], offset: usize) -> [String; 2] {
    let padded = [&vec![0; offset][..], value].concat();
    let (from, to) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
    [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)].map(|text| text[from..to].to_owned())
}

/// The forms of all secrets of a request, and the characters that take their place in its answer.
pub(crate) struct AnswerForms {
    secrets: Vec<Arc<SecretForms>>,
    placeholder: Vec<u8>,
}

impl AnswerForms {
    /// Returns None if there are no secrets.
    pub(crate) fn new(secrets: Vec<Arc<SecretForms>>, placeholder: &str) -> Option<Self> {
        let placeholder = if placeholder.is_empty() { "*" } else { placeholder };
        (!secrets.is_empty()).then(|| Self { secrets, placeholder: placeholder.as_bytes().to_vec() })
    }

    pub(crate) fn lengths(&self) -> impl Iterator<Item = &FormsOfLength> {
        self.secrets.iter().flat_map(|forms| &forms.0)
    }

    pub(crate) fn longest(&self) -> usize {
        self.lengths().map(|forms| forms.length).max().unwrap_or(1)
    }

    /// Returns the byte that takes the place of this one of a secret.
    pub(crate) fn placeholder_byte(&self, at: usize) -> u8 {
        self.placeholder[at % self.placeholder.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_texts_apart_wherever_they_stand() {
        let text = b"a secret in a text, and a secret again";
        let digest = |range: std::ops::Range<usize>| {
            let power = (0..range.len()).fold(1, |power, _| multiply(power, *BASE));
            TextDigest::of(&text[..range.end]).without(TextDigest::of(&text[..range.start]), power)
        };
        assert_eq!(digest(2..8), TextDigest::of(b"secret"));
        assert_eq!(digest(26..32), TextDigest::of(b"secret"));
        assert_ne!(digest(3..9), TextDigest::of(b"secret"));
        assert_ne!(TextDigest::of(b"\0\0"), TextDigest::of(b"\0"));
        assert_eq!(multiply(PRIME - 1, PRIME - 1), 1);
    }

    #[test]
    fn a_scheme_is_no_part_of_a_token() {
        for (value, token) in
            [("Bearer abc", "abc"), ("abc", "abc"), ("two words more", "two words more"), ("a1 b", "a1 b")]
        {
            assert_eq!(bare_token(value), token);
        }
    }
}
