//! Finds the ids of messages that serde cannot read, or that are too large to keep, while their bytes pass by, so that
//! the error reaches each request that waits for it. There are several if a client wrote more than one message on a line.
//! The scan needs no valid JSON: it only counts brackets and strings.

use serde_json::Value;

/// Longest key that is kept: enough for every spelling of the names below.
const MAX_KEY: usize = 64;
/// Most bytes of ids that are kept. A message in memory may be larger, but no client counts with such ids.
const MAX_IDS: usize = 2 * 1024 * 1024;
/// Most messages on one line that are told apart.
const MAX_MESSAGES: usize = 1024;

/// Scans JSON objects just far enough to find the top-level `id` of each, and whether it is a request.
#[derive(Default)]
pub(super) struct RequestScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// At the top level: before a key's colon.
    before_colon: bool,
    key: BoundedToken,
    /// At the top level: the value of `id` so far.
    value: Option<BoundedToken>,
    found: Option<BoundedToken>,
    /// The object was closed. What follows does not belong to it.
    is_closed: bool,
    /// Something follows that is no message.
    is_over: bool,
    has_method: bool,
    has_outcome: bool,
    /// The messages before this one, and the bytes of their ids.
    earlier: Vec<ScannedMessage>,
    earlier_ids: usize,
}

/// What a scanned message was meant to be.
#[derive(Debug, PartialEq)]
pub(super) enum ScannedMessage {
    /// A message that may wait for an answer, with its id as the client wrote it. `Null` if none was found.
    Request(Value),
    Notification,
    Response,
}

/// Bytes up to a limit. A token that grew longer is unusable, because its beginning may be another valid token.
#[derive(Default)]
struct BoundedToken {
    bytes: Vec<u8>,
    is_broken: bool,
}

impl BoundedToken {
    fn push(&mut self, byte: u8, most: usize) {
        if self.bytes.len() < most {
            self.bytes.push(byte);
        } else {
            self.is_broken = true;
        }
    }

    /// Returns the token as a number or a string, and `None` for everything else.
    fn parse(&self) -> Option<Value> {
        let value: Value = serde_json::from_slice(&self.bytes).ok().filter(|_| !self.is_broken)?;
        (value.is_string() || value.is_number()).then_some(value)
    }
}

impl RequestScan {
    /// Scans the next bytes of the message.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) {
        if self.is_closed {
            return self.begin_next(byte);
        }
        let at_top = self.depth == 1;
        if self.in_string {
            let ends = byte == b'"' && !self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            self.in_string = !ends;
            self.keep(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.escaped = false;
                self.keep(byte);
            }
            b':' if at_top && self.before_colon => self.end_key(),
            b',' if at_top => self.end_value(),
            b'{' | b'[' => {
                // An id is neither an object nor a list, whatever follows.
                self.keep(byte);
                self.depth += 1;
                // A list has no keys, so nothing in it is taken for one.
                self.before_colon = self.depth == 1 && byte == b'{';
                self.is_over = self.depth == 1 && byte == b'[';
                self.is_closed = self.is_over;
            }
            b'}' | b']' => {
                if at_top {
                    self.end_value();
                    self.is_closed = true;
                }
                self.depth = self.depth.saturating_sub(1);
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => self.keep(byte),
        }
    }

    /// Keeps a byte of the current key, or of the id.
    fn keep(&mut self, byte: u8) {
        if self.depth != 1 {
            return;
        }
        if self.before_colon {
            self.key.push(byte, MAX_KEY);
        } else if let Some(value) = &mut self.value {
            value.push(byte, MAX_IDS - self.earlier_ids);
        }
    }

    fn end_key(&mut self) {
        self.before_colon = false;
        let key = std::mem::take(&mut self.key).parse();
        match key.as_ref().and_then(Value::as_str) {
            Some("id") => self.value = Some(BoundedToken::default()),
            Some("method") => self.has_method = true,
            Some("result" | "error") => self.has_outcome = true,
            _ => {}
        }
    }

    fn end_value(&mut self) {
        // Of two ids the last one counts, as in the JSON parsers of clients.
        self.found = self.value.take().or(self.found.take());
        self.before_colon = true;
        self.key = BoundedToken::default();
    }

    /// Begins another message if one follows.
    fn begin_next(&mut self, byte: u8) {
        if byte == b'{' && !self.is_over && self.earlier.len() < MAX_MESSAGES {
            let mut whole = std::mem::take(self);
            self.earlier = std::mem::take(&mut whole.earlier);
            self.earlier_ids = whole.earlier_ids + whole.found.as_ref().map_or(0, |id| id.bytes.len());
            self.earlier.push(whole.finish_message());
            self.step(byte);
        }
        self.is_over |= !(byte.is_ascii_whitespace() || matches!(byte, b',' | b'{'));
    }

    /// Returns what the messages were meant to be: the first, and those after it that are no request without an id.
    pub(super) fn finish(mut self) -> Vec<ScannedMessage> {
        let mut messages = std::mem::take(&mut self.earlier);
        messages.push(self.finish_message());
        let mut is_first = true;
        messages.retain(|message| std::mem::take(&mut is_first) || *message != ScannedMessage::Request(Value::Null));
        messages
    }

    /// A message that breaks off may be a request whose id did not arrive.
    fn finish_message(mut self) -> ScannedMessage {
        let is_whole = self.is_closed;
        if !is_whole {
            self.end_value();
        }
        match self.found {
            _ if self.has_outcome && !self.has_method => ScannedMessage::Response,
            None if is_whole && self.has_method => ScannedMessage::Notification,
            id => ScannedMessage::Request(id.and_then(|id| id.parse()).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scan(text: &[u8]) -> ScannedMessage {
        let mut found = scan_all(text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    fn scan_all(text: &[u8]) -> Vec<ScannedMessage> {
        let mut scan = RequestScan::default();
        scan.push(text);
        let whole = scan.finish();
        // The result must not depend on how the bytes are split.
        let mut scan = RequestScan::default();
        text.iter().for_each(|byte| scan.push(&[*byte]));
        assert_eq!(scan.finish(), whole);
        whole
    }

    #[test]
    fn finds_only_the_top_level_id() {
        let cases = [
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"id":8}}"#, json!(7)),
            (r#"{"params":{"id":8,"a":["id",{"id":9}]}, "id" : "a-1" }"#, json!("a-1")),
            (r#"{"params":"\"id\":8,}{","id":-3}"#, json!(-3)),
            (r#"{"a":"\\","id":5}"#, json!(5)),
            (r#"{"\u0069d":5,"params":"\ud83d"}"#, json!(5)),
            (r#"{"id":1.5,"method":"x"}"#, json!(1.5)),
            (r#"{"id":18446744073709551615}"#, json!(u64::MAX)),
            (r#"{"id":1,"id":2}"#, json!(2)),
            // A message that breaks off.
            (r#"{"method":"x","id":12"#, json!(12)),
            (r#"{"id":"a","method":"x","params":{"a":["#, json!("a")),
            (r#"{"id":"a"#, Value::Null),
            (r#"{"method":"x","params":{"id":3"#, Value::Null),
            // Brackets that do not match.
            (r#"{"params":[{"id":7}},"id":1}"#, json!(1)),
            (r#"{"params":1},"id":1}"#, Value::Null),
            (r#"[{"id":1}]"#, Value::Null),
            (r#"{"id":{"x":1}}"#, Value::Null),
            (r#"{"id":{"x":1}5}"#, Value::Null),
            (r#"{"id":[]6,"method":"x"}"#, Value::Null),
            (r#"{"id":null,"method":"x"}"#, Value::Null),
            (r#"{"id":true,"method":"x"}"#, Value::Null),
            (r#"{"id":1e999,"method":"x"}"#, Value::Null),
            ("}}}}\"id\":1", Value::Null),
            ("", Value::Null),
        ];
        for (text, id) in cases {
            assert_eq!(scan(text.as_bytes()), ScannedMessage::Request(id), "{text}");
        }
        let long = "x".repeat(1 << 20);
        assert_eq!(scan(format!(r#"{{"id":"{long}"}}"#).as_bytes()), ScannedMessage::Request(json!(long)));
        let longer = "1".repeat(3 << 20);
        assert_eq!(scan(format!(r#"{{"id":{longer}}}"#).as_bytes()), ScannedMessage::Request(Value::Null));
    }

    #[test]
    fn finds_every_message_of_a_line() {
        let request = |id: i32| ScannedMessage::Request(json!(id));
        let cases = [
            (r#"{"id":1,"method":"x"} {"id":2,"method":"x"}{"id":3"#, vec![request(1), request(2), request(3)]),
            (r#"{"method":"x"},{"id":2,"method":"x"}"#, vec![ScannedMessage::Notification, request(2)]),
            (r#"{"id":1,"result":{}} {"id":2,"method":"x"} {"#, vec![ScannedMessage::Response, request(2)]),
            (r#"{"id":1,"method":"x"} 5 {"id":2,"method":"x"}"#, vec![request(1)]),
            (r#"{"id":1,"method":"x"}}{"id":2,"method":"x"}"#, vec![request(1)]),
        ];
        for (text, expected) in cases {
            assert_eq!(scan_all(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(scan_all("{\"id\":1}".repeat(3000).as_bytes()).len(), MAX_MESSAGES + 1);
        // No more than the bytes of one long id are kept.
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(MAX_IDS - 100));
        assert_eq!(scan_all(long.repeat(3).as_bytes()).len(), 1);
    }

    #[test]
    fn tells_requests_from_notifications_and_responses() {
        for text in [r#"{"method":"id","params":{"id":1}}"#, r#"{"method":"x","params":"\ud83d"}"#] {
            assert_eq!(scan(text.as_bytes()), ScannedMessage::Notification, "{text}");
        }
        for text in [r#"{"id":1,"result":"\ud83d"}"#, r#"{"id":1,"error":{"#, "{\"result\":\"\u{0}\"}"] {
            assert_eq!(scan(text.as_bytes()), ScannedMessage::Response, "{text}");
        }
        assert_eq!(scan(b"{\"id\":4,\"method\":\"\xff\xfe\"}"), ScannedMessage::Request(json!(4)));
    }
}
