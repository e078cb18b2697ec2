//! What holds for a line of a client, whatever its bytes: the answer is one line of JSON, and an id that can be found is
//! found, also in a line that is too long to keep.

use serde_json::{Map, Value};

use super::client_line::{ClientLine, parse_line};
use super::request_scan::{RequestScan, ScannedMessage};

/// Longest id that the seeker must find, with its quotes.
const MAX_ID: usize = 100;

/// Parses the bytes and seeks their id, in pieces of several sizes. Panics where an answer breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let found = seek(bytes, bytes.len().max(1));
    for size in [1, 3] {
        assert_eq!(seek(bytes, size), found, "in pieces of {size}");
    }
    let object = serde_json::from_slice::<Map<String, Value>>(bytes).ok();
    let id = object.as_ref().and_then(|fields| plain_id(bytes, fields));
    if let (Some(id), [ScannedMessage::Request(found)]) = (&id, found.as_slice()) {
        assert_eq!(found, id, "the id is found in passing");
    }
    if let ClientLine::Refused(answers) = parse_line(bytes) {
        assert!(!answers.is_empty(), "a refusal says something");
        for answer in &answers {
            let text = serde_json::to_string(answer).expect("an answer is JSON");
            let most = 4_000 + answer.id.to_string().len();
            assert!(!text.contains('\n') && text.len() <= most, "{text:?}");
            let answer: Value = serde_json::from_str(&text).expect("an answer is JSON");
            assert!(answer["error"]["code"].is_i64() && answer["error"]["message"].is_string(), "{answer}");
            if let Some(id) = &id {
                assert_eq!(answer["id"], *id, "the answer has the id of the request");
            }
        }
    }
}

fn seek(bytes: &[u8], size: usize) -> Vec<ScannedMessage> {
    let mut scan = RequestScan::default();
    bytes.chunks(size).for_each(|piece| scan.push(piece));
    scan.finish()
}

/// The id of an object, if it is a short string or an integer and written once and without escapes.
fn plain_id(bytes: &[u8], fields: &Map<String, Value>) -> Option<Value> {
    let id = fields.get("id")?;
    let is_plain = match id {
        Value::String(text) => {
            text.len() <= MAX_ID && text.chars().all(|c| c.is_ascii_graphic() && !"\"\\".contains(c))
        }
        Value::Number(number) => number.is_i64(),
        _ => false,
    };
    let text = std::str::from_utf8(bytes).ok()?;
    // An escape may write any key in another way, and a second id leaves open which one counts.
    (is_plain && !text.contains('\\') && text.matches("\"id\"").count() == 1).then(|| id.clone())
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_client_lines() {
        crate::replay::replay("client_lines", super::exercise);
    }
}
