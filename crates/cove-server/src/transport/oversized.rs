//! Finds the id of a message that is too large to keep, while its bytes pass by, so that the refusal reaches the
//! request that waits for it.

use rmcp::model::RequestId;

/// Longest key or id that is kept.
const MAX_TOKEN: usize = 128;

/// Scans one JSON object just far enough to find its top-level `id`.
#[derive(Default)]
pub(super) struct IdSeeker {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// At the top level: before a key's colon.
    before_colon: bool,
    key: Vec<u8>,
    /// At the top level: the value of `id` so far.
    value: Option<Vec<u8>>,
    found: Option<Vec<u8>>,
}

impl IdSeeker {
    /// Scans the next bytes of the message.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.step(*byte);
        }
    }

    fn step(&mut self, byte: u8) {
        let at_top = self.depth == 1;
        if self.in_string {
            let ends = byte == b'"' && !self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            self.in_string = !ends;
            if at_top && self.before_colon && !ends {
                push_bounded(&mut self.key, byte);
            }
            self.keep_value(byte);
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.escaped = false;
                if at_top && self.before_colon {
                    self.key.clear();
                }
                self.keep_value(byte);
            }
            b':' if at_top && self.before_colon => {
                self.before_colon = false;
                self.value = (self.key == b"id").then(Vec::new);
            }
            b',' if at_top => self.end_value(),
            b'{' | b'[' => {
                self.depth += 1;
                self.before_colon = self.depth == 1;
            }
            b'}' | b']' => {
                if at_top {
                    self.end_value();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            _ => self.keep_value(byte),
        }
    }

    fn keep_value(&mut self, byte: u8) {
        if self.depth == 1
            && let Some(value) = &mut self.value
        {
            push_bounded(value, byte);
        }
    }

    fn end_value(&mut self) {
        if let Some(value) = self.value.take() {
            self.found = Some(value);
        }
        self.before_colon = true;
        self.key.clear();
    }

    /// Returns the id, or `None` if the bytes had no valid top-level `id`.
    pub(super) fn into_id(self) -> Option<RequestId> {
        serde_json::from_slice(&self.found?).ok()
    }
}

fn push_bounded(token: &mut Vec<u8>, byte: u8) {
    if token.len() < MAX_TOKEN {
        token.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_id(text: &str) -> Option<String> {
        // The result must not depend on how the bytes are split.
        let whole = {
            let mut seeker = IdSeeker::default();
            seeker.push(text.as_bytes());
            seeker.into_id()
        };
        let mut seeker = IdSeeker::default();
        text.as_bytes().iter().for_each(|byte| seeker.push(&[*byte]));
        assert_eq!(seeker.into_id(), whole);
        whole.map(|id| id.to_string())
    }

    #[test]
    fn finds_only_the_top_level_id() {
        let found = |text| find_id(text).unwrap_or_default();
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"id":8}}"#), "7");
        assert_eq!(found(r#"{"params":{"id":8,"a":["id",{"id":9}]}, "id" : "a-1" }"#), "a-1");
        assert_eq!(found(r#"{"params":"\"id\":8,}{","id":-3}"#), "-3");
        assert_eq!(found(r#"{"a":"\\","id":5}"#), "5");
        assert_eq!(find_id(r#"{"method":"id","params":{"id":1}}"#), None);
        assert_eq!(find_id(r#"[{"id":1}]"#), None);
        assert_eq!(find_id(r#"{"id":{"x":1}}"#), None);
        assert_eq!(find_id(r#"{"id":null}"#), None);
        assert_eq!(find_id("}}}}\"id\":1"), None);
        assert_eq!(find_id(""), None);
        assert_eq!(find_id(&format!(r#"{{"id":"{}"}}"#, "x".repeat(1000))), None);
    }
}
