//! Takes a secret out of what a server answers: its bytes, in the forms in which programs repeat them, become those of the
//! placeholder. Lengths stay as they are. Bytes wait only while they could be the beginning of a form.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::credential::percent_encode;
use crate::secret_value::SecretValue;

/// A shorter part of a form says too little to be looked for.
const MIN_FORM: usize = 4;

/// The forms of some secrets.
pub(crate) struct SecretForms {
    automaton: AhoCorasick,
    forms: Vec<Zeroizing<Vec<u8>>>,
    placeholder: Vec<u8>,
}

impl SecretForms {
    /// Returns the forms of these secrets, or None if there are none. `placeholder` takes their place.
    pub(crate) fn new<'a>(secrets: impl Iterator<Item = &'a SecretValue>, placeholder: &str) -> Option<Self> {
        let forms: BTreeSet<Vec<u8>> = secrets.flat_map(|secret| forms_of(secret.reveal())).collect();
        let forms: Vec<_> = forms.into_iter().filter(|form| form.len() >= MIN_FORM).map(Zeroizing::new).collect();
        if forms.is_empty() || placeholder.is_empty() {
            return None;
        }
        let patterns = forms.iter().map(|form| form.as_slice());
        // It can only fail with more patterns than bounds allow. Passing secrets on would be worse than the panic.
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(patterns);
        let automaton = automaton.expect("the forms of a secret are bounded");
        Some(Self { automaton, forms, placeholder: placeholder.as_bytes().to_vec() })
    }

    /// Returns a whole text without the secrets, or None if it has none.
    pub(crate) fn scrub_whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.automaton.is_match(bytes).then(|| {
            let mut scrubber = AnswerScrubber::default();
            let mut clean = scrubber.push(self, bytes);
            clean.extend(scrubber.finish(self));
            clean
        })
    }

    /// Returns how many bytes at the end could be the beginning of a form.
    fn waiting(&self, bytes: &[u8]) -> usize {
        let of_form = |form: &Zeroizing<Vec<u8>>| {
            let most = (form.len() - 1).min(bytes.len());
            (1..=most).rev().find(|count| bytes[bytes.len() - count..] == form[..*count]).unwrap_or(0)
        };
        self.forms.iter().map(of_form).max().unwrap_or(0)
    }
}

/// Returns a secret as it is, percent-encoded, in base64 and in hexadecimal digits.
fn forms_of(secret: &str) -> Vec<Vec<u8>> {
    let escaped = percent_encode(secret);
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![secret.to_owned(), escaped.clone(), lower_escapes(&escaped), hex.to_uppercase(), hex];
    forms.extend((0..3).flat_map(|offset| base64_parts(secret.as_bytes(), offset)));
    forms.into_iter().map(String::into_bytes).collect()
}

/// Returns the characters of base64, in both alphabets, that depend on the value alone, if `offset` bytes of a group of
/// three precede it.
fn base64_parts(value: &[u8], offset: usize) -> [String; 2] {
    let padded = [&vec![0; offset][..], value].concat();
    let (from, to) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
    [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)].map(|text| text[from..to].to_owned())
}

/// Writes the digits of escapes with small letters.
fn lower_escapes(text: &str) -> String {
    let mut parts = text.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (digits, rest) = part.split_at(part.len().min(2));
        text + "%" + &digits.to_ascii_lowercase() + rest
    })
}

/// The state of one answer.
#[derive(Default)]
pub(crate) struct AnswerScrubber {
    /// Bytes that wait, and whether each is part of a secret.
    waiting: Zeroizing<Vec<u8>>,
    is_secret: Vec<bool>,
    /// How many bytes of the present secret were written.
    written: usize,
}

impl AnswerScrubber {
    /// Takes the next bytes, and returns those that can be passed on.
    pub(crate) fn push(&mut self, forms: &SecretForms, bytes: &[u8]) -> Vec<u8> {
        self.waiting.extend_from_slice(bytes);
        self.is_secret.resize(self.waiting.len(), false);
        for found in forms.automaton.find_overlapping_iter(self.waiting.as_slice()) {
            self.is_secret[found.range()].fill(true);
        }
        let count = self.waiting.len() - forms.waiting(&self.waiting);
        self.take(forms, count)
    }

    /// Returns the bytes that still wait, at the end of the answer.
    pub(crate) fn finish(&mut self, forms: &SecretForms) -> Vec<u8> {
        self.take(forms, self.waiting.len())
    }

    fn take(&mut self, forms: &SecretForms, count: usize) -> Vec<u8> {
        let taken = Zeroizing::new(self.waiting.drain(..count).collect::<Vec<u8>>());
        let passed = taken.iter().zip(self.is_secret.drain(..count)).map(|(&byte, is_secret)| {
            self.written = if is_secret { self.written + 1 } else { 0 };
            if is_secret { forms.placeholder[(self.written - 1) % forms.placeholder.len()] } else { byte }
        });
        passed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "tok/en+S3cret-value";
    const PLACEHOLDER: &str = "PLACEHOLDERPLACEHOLDER";

    fn forms() -> SecretForms {
        SecretForms::new([SecretValue::new(SECRET.into())].iter(), PLACEHOLDER).unwrap()
    }

    /// Returns the answer, passed on in pieces of this size.
    fn scrub(answer: &str, piece: usize) -> String {
        let (forms, mut scrubber) = (forms(), AnswerScrubber::default());
        let mut passed: Vec<u8> =
            answer.as_bytes().chunks(piece).flat_map(|bytes| scrubber.push(&forms, bytes)).collect();
        passed.extend(scrubber.finish(&forms));
        String::from_utf8(passed).unwrap()
    }

    #[test]
    fn secrets_are_found_in_every_form_and_across_every_border() {
        let basic = STANDARD_NO_PAD.encode(format!("me:{SECRET}"));
        let url = URL_SAFE_NO_PAD.encode(format!("{SECRET}?"));
        let answer = format!("a {SECRET} b {} c {basic} d {url} e {SECRET}{SECRET}", percent_encode(SECRET));
        let expected = scrub(&answer, answer.len());
        for piece in 1..answer.len() {
            assert_eq!(scrub(&answer, piece), expected, "pieces of {piece}");
        }
        assert_eq!(expected.len(), answer.len());
        assert!(expected.starts_with("a PLACEHOLDERPLACEHOL b "), "{expected}");
        for part in [SECRET, "S3cret", "%2Fen", &basic[6..20], &url[..20]] {
            assert!(!expected.contains(part), "`{part}` in {expected}");
        }
        let lower = percent_encode(SECRET).replace("%2F", "%2f").replace("%2B", "%2b");
        assert!(!scrub(&lower, 3).contains("S3cret"), "{}", scrub(&lower, 3));
    }

    #[test]
    fn bytes_wait_only_while_they_could_begin_a_secret() {
        let (forms, mut scrubber) = (forms(), AnswerScrubber::default());
        assert_eq!(scrubber.push(&forms, b"data: 1\n\n"), b"data: 1\n\n");
        assert_eq!(scrubber.push(&forms, b"data: tok/e"), b"data: ");
        assert_eq!(scrubber.push(&forms, b"xit\n\n"), b"tok/exit\n\n");
        assert_eq!(scrubber.push(&forms, b"to"), b"");
        assert_eq!(scrubber.finish(&forms), b"to");
    }

    #[test]
    fn a_whole_text_is_scrubbed_at_once() {
        assert_eq!(forms().scrub_whole(b"nothing here"), None);
        assert_eq!(forms().scrub_whole(format!("x{SECRET}").as_bytes()).unwrap(), b"xPLACEHOLDERPLACEHOL");
        assert!(SecretForms::new([].iter(), PLACEHOLDER).is_none());
    }
}
