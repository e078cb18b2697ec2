//! The forms in which programs repeat a secret: as it is, in base64, in hexadecimal digits, reversed, escaped for JSON,
//! or escaped for an address.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Longer values are only searched as they are: their forms would take too much memory.
const MAX_ENCODED: usize = 8 * 1024;
/// Shorter lines of a value are not searched on their own.
const MIN_LINE: usize = 16;

/// Returns all forms of a value.
pub(super) fn encoded_forms(value: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::from([value.to_owned()]);
    let lines = value.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE && !line.starts_with("-----"));
    if value.contains('\n') {
        // Keys have several lines, and programs quote single ones.
        forms.extend(lines.map(str::to_owned));
    }
    if value.len() > MAX_ENCODED {
        return forms;
    }
    forms.extend((0..3).flat_map(|offset| base64_parts(value.as_bytes(), offset)));
    forms.extend([hex::encode(value), hex::encode_upper(value)]);
    forms.insert(value.chars().rev().collect());
    let json = serde_json::Value::from(value).to_string();
    forms.insert(json[1..json.len() - 1].to_owned());
    for kept in ["-_.~", "-_.~/", "-_.!~*'()"] {
        let upper = percent_encode(value, kept);
        forms.insert(upper.replace("%20", "+"));
        forms.insert(lower_escapes(&upper));
        forms.insert(upper);
    }
    forms
}

/// Returns the characters of base64, in both alphabets, that depend on the value alone, if `offset` bytes of a group of
/// three precede it. What stands before and behind the value decides about the characters at its edges.
fn base64_parts(value: &[u8], offset: usize) -> [String; 2] {
    let padded = [&vec![0; offset][..], value].concat();
    let (from, to) = ((offset * 8).div_ceil(6), padded.len() * 8 / 6);
    [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)].map(|text| text[from..to].to_owned())
}

fn percent_encode(value: &str, kept: &str) -> String {
    let mut encoded = String::with_capacity(value.len() * 3);
    for byte in value.bytes() {
        match char::from(byte) {
            c if c.is_ascii_alphanumeric() || kept.contains(c) => encoded.push(c),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Writes the escapes of an encoded text with small letters.
fn lower_escapes(encoded: &str) -> String {
    let mut left = 0;
    let lower = |c: char| match (c, left) {
        ('%', _) => {
            left = 2;
            c
        }
        (_, 0) => c,
        _ => {
            left -= 1;
            c.to_ascii_lowercase()
        }
    };
    encoded.chars().map(lower).collect()
}
