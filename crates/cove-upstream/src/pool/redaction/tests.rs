//! Tests of what is redacted, in which forms, and of what is left.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde_json::json;

use super::*;

fn guard(secrets: &[&str]) -> ServerSecrets {
    ServerSecrets::new(Vec::new(), secrets.iter().map(|&secret| secret.to_owned()).collect())
}

fn redacted(guard: &ServerSecrets, text: &str) -> String {
    let mut value = Value::from(text);
    guard.redact_value(&mut value);
    value.as_str().unwrap().to_owned()
}

#[test]
fn redacts_secrets_in_values_and_keys() {
    let guard = guard(&["Bearer tok-12345678", "hunter2-hunter2", "short"]);
    let mut value = json!({
        "text": "x Bearer tok-12345678 y tok-12345678", "hunter2-hunter2": [{"a": "=hunter2-hunter2="}], "n": 1,
        "short": "short",
    });
    guard.redact_value(&mut value);
    let expected = json!({
        "text": "x [redacted] y [redacted]", "[redacted]": [{"a": "=[redacted]="}], "n": 1, "short": "short",
    });
    assert_eq!(value, expected);
    assert_eq!(guard.redact("a short message"), "a [redacted] message");
}

/// Every secret, in every encoding, at every place in a longer text.
#[test]
fn redacts_every_form() {
    for secret in ["hunter2-hunter2", "p@ss w/rd+\"\\ü&=%", "~~~???>>>~~~???>>>", "12345678", "líne one\nline two"] {
        let guard = guard(&[secret]);
        let bytes = secret.as_bytes();
        let percent = |c: &u8| format!("%{c:02X}");
        let every_byte = |hex: fn(&u8) -> String| {
            bytes.iter().map(|c| if c.is_ascii_alphanumeric() { char::from(*c).to_string() } else { hex(c) }).collect()
        };
        let mut forms: Vec<String> = vec![
            secret.to_owned(),
            hex::encode(bytes),
            hex::encode_upper(bytes),
            secret.chars().rev().collect(),
            json!(secret).to_string(),
            super::encodings::encoded_forms(secret).into_iter().next().unwrap(),
        ];
        let strict: String = every_byte(percent);
        // What `encodeURIComponent` and `quote` keep differs; each is compared with its own rules.
        if !secret.contains(['-', '~', '/', '?', '\\', '"']) {
            forms.push(strict.clone());
            forms.push(strict.replace("%20", "+"));
        }
        for before in ["", "u", "us", "user:", "a much longer text "] {
            for behind in ["", "!", "!!", " and more"] {
                let whole = format!("{before}{secret}{behind}");
                for encoded in [STANDARD.encode(&whole), URL_SAFE.encode(&whole)] {
                    let clean = redacted(&guard, &encoded);
                    assert!(clean.contains(REDACTED), "{secret}: {encoded}");
                    // At most the edges of the secret are left, less than a byte at each side.
                    let left = clean.len() - REDACTED.len();
                    assert!(left <= (before.len() + behind.len()) * 4 / 3 + 8, "{secret}: {clean}");
                }
            }
        }
        for form in forms {
            let clean = redacted(&guard, &format!("x{form}y"));
            assert!(clean.contains(REDACTED) && !clean.contains(&form), "{secret}: {form} -> {clean}");
            assert_eq!(guard.redact(&format!("x{form}y")), clean);
        }
    }
}

#[test]
fn redacts_forms_for_addresses() {
    let guard = guard(&["p@ss w/rd'~\u{e9}*"]);
    for form in [
        // `quote(s, safe="")`, `quote(s)`, `quote_plus(s)`, `encodeURIComponent(s)`, and with small letters.
        "p%40ss%20w%2Frd%27~%C3%A9%2A",
        "p%40ss%20w/rd%27~%C3%A9%2A",
        "p%40ss+w%2Frd%27~%C3%A9%2A",
        "p%40ss%20w%2Frd'~%C3%A9*",
        "p%40ss%20w%2frd%27~%c3%a9%2a",
    ] {
        assert_eq!(redacted(&guard, &format!("https://x/?a={form}&b")), "https://x/?a=[redacted]&b", "{form}");
    }
}

#[test]
fn leaves_nothing_of_secrets_that_overlap() {
    let guard = guard(&["abcdefgh1234", "1234ijklmnop", "gh1234ij"]);
    assert_eq!(redacted(&guard, "-abcdefgh1234ijklmnop-"), "-[redacted]-");
    assert_eq!(redacted(&guard, "abcdefgh1234abcdefgh1234"), "[redacted][redacted]");
}

#[test]
fn redacts_values_that_were_cut_in_messages() {
    let guard = guard(&["hunter2-hunter2", "hünter3-hünter3"]);
    assert_eq!(guard.redact("it said `x hunter2-hun…`"), "it said `x [redacted]…`");
    assert_eq!(guard.redact("hünter3-hün… and hunter…\nhunt…"), "[redacted]… and [redacted]…\nhunt…");
    assert_eq!(guard.redact("hunter2-hunter2…hunter2-hunter2hunter2…"), "[redacted]…[redacted][redacted]…");
    assert_eq!(redacted(&guard, "hunter2-hun…"), "hunter2-hun…", "results are not cut");
}

#[test]
fn redacts_lines_of_keys_and_numbers() {
    let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC";
    let key = format!("-----BEGIN PRIVATE KEY-----\n{line}\nshort\n-----END PRIVATE KEY-----");
    let guard = guard(&[&key, "1234567890"]);
    assert_eq!(redacted(&guard, &format!("line 2: {line}")), "line 2: [redacted]");
    assert_eq!(redacted(&guard, "short -----BEGIN PRIVATE KEY-----"), "short -----BEGIN PRIVATE KEY-----");
    let mut value = json!([1234567890, 17, 1.5]);
    guard.redact_value(&mut value);
    assert_eq!(value, json!(["[redacted]", 17, 1.5]));
}

#[test]
fn leaves_short_values_and_ordinary_text() {
    let guard = ServerSecrets::new(vec!["/home/me/data".into(), "1".into()], vec!["abc".into(), "true".into()]);
    for text in ["abc cba 616263 YWJj true", "/home/me/data", "1"] {
        assert_eq!(redacted(&guard, text), text);
    }
    assert_eq!(guard.redact("in /home/me/data: 1 true"), "in [redacted]: 1 true");
    assert_eq!(redacted(&ServerSecrets::default(), "hunter2"), "hunter2");
}

#[test]
fn guards_values_that_are_learned_later() {
    let first = guard(&["hunter2-hunter2"]);
    let clone = first.clone();
    assert_eq!(redacted(&clone, "token-token"), "token-token");
    first.add_token("Bearer token-token");
    assert_eq!(redacted(&clone, "token-token hunter2-hunter2"), "[redacted] [redacted]");
    (0..MAX_TOKENS).for_each(|number| first.add_token(&format!("next-token-{number}")));
    assert_eq!(redacted(&clone, "token-token next-token-7 hunter2-hunter2"), "token-token [redacted] [redacted]");
}

#[test]
fn bounds_the_forms_of_long_values() {
    let long = "0123456789abcdef".repeat(4_096);
    let guard = guard(&[&long]);
    assert_eq!(redacted(&guard, &format!("x{long}y")), "x[redacted]y");
    let lines: String = (0..4_000).map(|line| format!("line number {line:04}\n")).collect();
    let guard = self::guard(&[&lines]);
    assert_eq!(redacted(&guard, "line number 3999"), "[redacted]");
}

/// Prints how redaction compares with reading JSON. Run it with `--ignored --nocapture`, built with the profile `dist`.
#[test]
#[ignore = "a measurement, not a check"]
fn compares_redaction_with_reading_json() {
    let secrets: Vec<String> = (0..20).map(|n| format!("ghp_{}", stable_text(n, 36))).collect();
    let guard = ServerSecrets::new(Vec::new(), secrets);
    let begun = std::time::Instant::now();
    guard.redact("x");
    println!("automaton built in {:?}", begun.elapsed());
    let row =
        |n: usize| json!({"id": n, "name": stable_text(n, 40), "text": stable_text(n + 7, 400).replace('a', " ")});
    let text = json!({"rows": (0..2_100).map(row).collect::<Vec<_>>()}).to_string();
    let blob = json!({"text": stable_text(1, 1_000_000)}).to_string();
    for (what, text) in [("rows", text), ("one text", blob)] {
        let best = |work: &mut dyn FnMut()| {
            (0..15)
                .map(|_| {
                    let begun = std::time::Instant::now();
                    work();
                    begun.elapsed()
                })
                .min()
                .unwrap()
        };
        let parse = best(&mut || drop(serde_json::from_str::<Value>(&text).unwrap()));
        let mut value: Value = serde_json::from_str(&text).unwrap();
        let redact = best(&mut || guard.redact_value(&mut value));
        println!(
            "{what}: {} bytes, parse {parse:?}, redact {redact:?}, ratio {:.2}",
            text.len(),
            redact.as_secs_f64() / parse.as_secs_f64()
        );
    }
}

/// Letters and digits that look random and are the same in every run.
fn stable_text(seed: usize, length: usize) -> String {
    let alphabet = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(alphabet[(state >> 33) as usize % alphabet.len()])
    };
    (0..length).map(|_| next()).collect()
}
