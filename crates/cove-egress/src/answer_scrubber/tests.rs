//! What becomes of secrets in an answer, and what code can learn from how it arrives.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::*;
use crate::answer_forms::SecretForms;
use crate::credential::percent_encode;

const SECRET: &str = "tok/en+S3cret-value&=";
const PLACEHOLDER: &str = "PLACEHOLDERPLACEHOLDERPLACEHOLDER";

fn forms(secret: &str) -> AnswerForms {
    AnswerForms::new(vec![Arc::new(SecretForms::new(secret))], PLACEHOLDER).unwrap()
}

/// Returns what is passed on after each piece of this size, and at the end.
fn pass(secret: &str, answer: &str, size: usize) -> Vec<Vec<u8>> {
    let (forms, mut scrubber) = (forms(secret), AnswerScrubber::new());
    let mut passed = Vec::new();
    for piece in answer.as_bytes().chunks(size) {
        scrubber.read(&forms, piece, AnswerPart::Content);
        passed.push(scrubber.pass(&forms));
    }
    passed.push(scrubber.pass_all(&forms));
    passed
}

fn scrub(answer: &str, size: usize) -> String {
    String::from_utf8(pass(SECRET, answer, size).concat()).unwrap()
}

fn sizes(secret: &str, answer: &str, size: usize) -> Vec<usize> {
    pass(secret, answer, size).iter().map(Vec::len).collect()
}

/// Returns a text with each of these characters written as `escape` says.
fn escape(text: &str, characters: &str, escape: impl Fn(u32) -> String) -> String {
    let written = |c: char| if characters.contains(c) { escape(c.into()) } else { c.to_string() };
    text.chars().map(written).collect()
}

/// Returns the secret as servers write it, without the parts of base64 that depend on what is beside it.
fn written_secrets() -> Vec<String> {
    let escaped = percent_encode(SECRET);
    let base64 = |offset: usize| STANDARD_NO_PAD.encode(format!("{}{SECRET}", &"123"[..offset]));
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    let html = |text: &str| text.replace('&', "&amp;").replace('=', "&#x3D;").replace('+', "&#43;");
    vec![
        SECRET.to_owned(),
        escaped.replace("%2F", "%2f").replace("%2B", "%2b"),
        escaped.replace("%2F", "/"),
        escaped,
        base64(0)[..28].to_owned(),
        base64(1)[2..29].to_owned(),
        base64(2)[3..30].to_owned(),
        URL_SAFE_NO_PAD.encode(SECRET)[..28].to_owned(),
        STANDARD_NO_PAD.encode(SECRET)[..28].replace('/', "\\/"),
        percent_encode(&STANDARD_NO_PAD.encode(SECRET)[..28]),
        hex.to_uppercase(),
        hex,
        SECRET.replace('/', "\\/"),
        escape(SECRET, "+&=", |c| format!("\\u{c:04X}")),
        escape(SECRET, "+&=", |c| format!("\\u{c:04x}")),
        escape(SECRET, "/+-&=", |c| format!("\\x{c:02x}")),
        escape(&SECRET.replace('/', "\\/"), "&", |c| format!("\\u{c:04x}")),
        html(SECRET),
        html(SECRET).replace('/', "&#x2F;"),
        html(SECRET).replace('/', "&sol;").replace('-', "&#x2d;"),
        escape(SECRET, SECRET, |c| format!("&#x{c:X};")),
    ]
}

#[test]
fn secrets_are_found_in_every_form_and_across_every_border() {
    for written in written_secrets() {
        let answer = format!("a {written} b\nc {written}");
        let expected = answer.replace(&written, &PLACEHOLDER.repeat(5)[..written.len()]);
        for size in 1..=answer.len() {
            assert_eq!(scrub(&answer, size), expected, "pieces of {size}");
        }
    }
    let answer = format!("a {SECRET}{SECRET} b");
    assert_eq!(scrub(&answer, 5), format!("a {} b", &PLACEHOLDER.repeat(2)[..2 * SECRET.len()]));
    let long = format!("{}{SECRET}{}", "x".repeat(3 * BLOCK - 7), "%".repeat(3 * BLOCK));
    assert!(!scrub(&long, 2 * BLOCK).contains("S3cret"));
}

#[test]
fn the_token_behind_a_scheme_is_found_alone() {
    let answer = format!("{{\"token\":\"{SECRET}\"}}");
    let passed = pass(&format!("Bearer {SECRET}"), &answer, 7).concat();
    assert_eq!(String::from_utf8(passed).unwrap(), answer.replace(SECRET, &PLACEHOLDER[..SECRET.len()]));
}

/// What leaves, and when, must not depend on the secret: here it is the one that an answer repeats in part, and others.
#[test]
fn pieces_do_not_show_how_much_of_a_secret_was_guessed() {
    let others = ["0123456789abcdefghijk", "tok/en+S3cret-value&!", "_ok/en+S3cret-value&="];
    for written in written_secrets() {
        for end in 1..=written.len() {
            let guess = &written[..end];
            for answer in [format!("a {guess}"), format!("a {guess}\nb {guess}z c"), guess.repeat(20)] {
                for size in [1, 7, answer.len()] {
                    let expected = sizes(SECRET, &answer, size);
                    for other in others {
                        assert_eq!(sizes(other, &answer, size), expected, "{answer} in pieces of {size}");
                    }
                }
            }
        }
    }
    // Guesses of one length, as code would compare them.
    let guesses = (0..SECRET.len()).map(|end| format!("{}{}", &SECRET[..end], "z".repeat(SECRET.len() - end)));
    let guesses: Vec<String> = guesses.filter(|guess| !guess.contains('&')).collect();
    for size in [1, 4, 20, 1000] {
        let expected = sizes(SECRET, &guesses[0].repeat(9), size);
        assert!(guesses.iter().all(|guess| sizes(SECRET, &guess.repeat(9), size) == expected), "pieces of {size}");
    }
}

#[test]
fn lines_and_messages_pass_at_once_and_other_bytes_wait_for_so_many() {
    let (forms, mut scrubber) = (forms(SECRET), AnswerScrubber::new());
    let mut push = |text: &str| {
        scrubber.read(&forms, text.as_bytes(), AnswerPart::Content);
        String::from_utf8(scrubber.pass(&forms)).unwrap()
    };
    assert_eq!(push("data: tok/e\n\n"), "data: tok/e\n\n");
    assert_eq!(push("data: 1"), "");
    assert_eq!(push("\r\nx"), "data: 1\r\n");
    let wait = 2 * SECRET.len() - 1;
    assert_eq!(push(&"y".repeat(wait)), "x");
    assert_eq!(push("zz"), "yy");
    assert_eq!(String::from_utf8(scrubber.pass_all(&forms)).unwrap(), format!("{}zz", "y".repeat(wait - 2)));
    // What follows the end of a message is still found.
    scrubber.read(&forms, &SECRET.as_bytes()[..5], AnswerPart::Content);
    assert_eq!(scrubber.pass_all(&forms), b"tok/e");
    scrubber.read(&forms, &SECRET.as_bytes()[5..], AnswerPart::Content);
    assert_eq!(scrubber.pass_all(&forms), &PLACEHOLDER.as_bytes()[..SECRET.len() - 5]);
}

#[test]
fn a_whole_text_is_scrubbed_at_once() {
    let forms = forms(SECRET);
    assert_eq!(AnswerScrubber::scrub_whole(&forms, b"nothing here"), None);
    let clean = AnswerScrubber::scrub_whole(&forms, format!("x{SECRET}").as_bytes()).unwrap();
    assert_eq!(clean, [b"x", &PLACEHOLDER.as_bytes()[..SECRET.len()]].concat());
    assert!(AnswerForms::new(Vec::new(), PLACEHOLDER).is_none());
}

#[test]
fn an_answer_keeps_no_more_than_a_form_can_reach() {
    let (forms, mut scrubber) = (forms(SECRET), AnswerScrubber::new());
    for _ in 0..100 {
        scrubber.read(&forms, "%2F\\/&amp;x".repeat(1000).as_bytes(), AnswerPart::Content);
        scrubber.pass(&forms);
    }
    assert!(scrubber.escaped.iter().all(|reading| reading.chars.len() <= forms.longest()));
    assert!(scrubber.waiting.len() < 10 * forms.longest());
    assert!(scrubber.plain.chars.capacity() < 4 * BLOCK);
}

/// Whatever an answer has, its cuts change nothing, lengths stay, and no secret passes.
#[test]
fn cuts_change_nothing_whatever_an_answer_has() {
    let parts =
        ["%", "2", "F", "\\", "/", "u00", "&", "#x", "amp;", ";", "\n", "tok", SECRET, "x", "ü", "%2F", "&#x2F;"];
    let mut state = 7_u64;
    for _ in 0..300 {
        let mut answer = String::new();
        for _ in 0..60 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            answer.push_str(parts[(state >> 33) as usize % parts.len()]);
        }
        let whole = pass(SECRET, &answer, answer.len()).concat();
        assert_eq!(whole.len(), answer.len());
        assert!(!String::from_utf8_lossy(&whole).contains(SECRET), "{answer:?}");
        for size in [1, 2, 3, 11] {
            assert_eq!(pass(SECRET, &answer, size).concat(), whole, "{answer:?} in pieces of {size}");
        }
    }
}
