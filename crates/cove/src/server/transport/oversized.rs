//! The id of a message that is too large to be kept, found while its bytes pass by, so that the refusal reaches whoever
//! waits for the answer.

use rmcp::model::RequestId;

/// Longest key or id that is looked at.
const MAX_TOKEN: usize = 128;

/// Follows one JSON object just far enough to know what is at its top.
#[derive(Default)]
pub(super) struct IdSeeker {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// At the top: before a key's colon.
    before_colon: bool,
    key: Vec<u8>,
    /// At the top: the value of `id` as it comes.
    value: Option<Vec<u8>>,
    found: Option<Vec<u8>>,
}

impl IdSeeker {
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
                keep(&mut self.key, byte);
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
            keep(value, byte);
        }
    }

    fn end_value(&mut self) {
        if let Some(value) = self.value.take() {
            self.found = Some(value);
        }
        self.before_colon = true;
        self.key.clear();
    }

    pub(super) fn found(self) -> Option<RequestId> {
        serde_json::from_slice(&self.found?).ok()
    }
}

fn keep(token: &mut Vec<u8>, byte: u8) {
    if token.len() < MAX_TOKEN {
        token.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seek(text: &str) -> Option<String> {
        // However the bytes are cut.
        let whole = {
            let mut seeker = IdSeeker::default();
            seeker.push(text.as_bytes());
            seeker.found()
        };
        let mut seeker = IdSeeker::default();
        text.as_bytes().iter().for_each(|byte| seeker.push(&[*byte]));
        assert_eq!(seeker.found(), whole);
        whole.map(|id| id.to_string())
    }

    #[test]
    fn finds_the_id_at_the_top_alone() {
        let found = |text| seek(text).unwrap_or_default();
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"id":8}}"#), "7");
        assert_eq!(found(r#"{"params":{"id":8,"a":["id",{"id":9}]}, "id" : "a-1" }"#), "a-1");
        assert_eq!(found(r#"{"params":"\"id\":8,}{","id":-3}"#), "-3");
        assert_eq!(found(r#"{"a":"\\","id":5}"#), "5");
        assert_eq!(seek(r#"{"method":"id","params":{"id":1}}"#), None);
        assert_eq!(seek(r#"[{"id":1}]"#), None);
        assert_eq!(seek(r#"{"id":{"x":1}}"#), None);
        assert_eq!(seek(r#"{"id":null}"#), None);
        assert_eq!(seek("}}}}\"id\":1"), None);
        assert_eq!(seek(""), None);
        assert_eq!(seek(&format!(r#"{{"id":"{}"}}"#, "x".repeat(1000))), None);
    }
}
