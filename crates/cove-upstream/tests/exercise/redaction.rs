//! What holds for secrets, whatever they are and wherever a server repeats them: no message and no result has one.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{MIN_SECRET_LENGTH, REDACTED, ServerSecrets};

/// Takes the first line as a secret, the second as a value that only messages hide, and the rest as what a server says.
/// Panics if a secret is still in a message or a result.
pub fn exercise(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.splitn(3, '\n');
    let [Some(secret), Some(value), Some(rest)] = [lines.next(), lines.next(), lines.next()] else { return };
    let secrets = ServerSecrets::new(vec![value.to_owned()], vec![secret.to_owned()]);
    // What stands in place of a secret may itself form another one with the text beside it.
    let is_plain = !secret.contains(['[', ']', '…']) && !REDACTED.contains(secret);
    if secret.len() < MIN_SECRET_LENGTH || !is_plain {
        secrets.redact(rest);
        return;
    }
    let around = format!("{rest}{secret}{rest}");
    let clean = secrets.redact(&around);
    assert!(!clean.contains(secret), "{secret:?} is in the message {clean:?}");
    assert!(clean.contains(REDACTED), "{clean:?}");
    let token = ServerSecrets::default();
    token.add_token(secret);
    assert!(!token.redact(&around).contains(secret), "a token is hidden as a secret is");

    let mut result = json!({ "text": around, "list": [rest, { (&around): around }], "plain": rest });
    secrets.redact_value(&mut result);
    for_each_text(&result, &mut |text| assert!(!text.contains(secret), "{secret:?} is in the result {text:?}"));
    let mut again = result.clone();
    secrets.redact_value(&mut again);
    assert_eq!(again, result, "a clean result stays as it is");

    if secret.len() <= 1024 {
        for encoded in encoded_forms(&around) {
            assert_ne!(secrets.redact(&encoded), encoded, "an encoded secret is found in {encoded:?}");
        }
    }
}

fn for_each_text(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| for_each_text(item, visit)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            visit(key);
            for_each_text(value, visit);
        }),
        _ => {}
    }
}

/// The text as programs encode it.
fn encoded_forms(text: &str) -> [String; 5] {
    [
        STANDARD.encode(text),
        URL_SAFE_NO_PAD.encode(text),
        hex::encode(text),
        hex::encode_upper(text),
        Value::from(text).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_redaction() {
        crate::replay::replay("redaction", super::exercise);
    }
}
