//! Keeps the head and the tail of a text, cut at line ends, and counts the characters left out between them. Memory is
//! bounded however long the text is.

use serde::Serialize;

use crate::text::{estimate_tokens, token_prefix, token_suffix};

/// How much of a text is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OutputLimit {
    Characters(usize),
    /// Estimated tokens, and at most four times as many characters.
    Tokens(usize),
}

impl From<usize> for OutputLimit {
    fn from(characters: usize) -> Self {
        Self::Characters(characters)
    }
}

impl OutputLimit {
    fn characters(self) -> usize {
        match self {
            Self::Characters(most) => most,
            Self::Tokens(most) => most.saturating_mul(4),
        }
    }
}

/// Keeps the beginning and the end of one stream.
pub struct BoundedText {
    limit: OutputLimit,
    /// Characters of the head, and of the tail.
    half: usize,
    head: String,
    head_chars: usize,
    tail: String,
    tail_chars: usize,
    total_chars: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TruncatedText {
    pub text: String,
    /// Characters left out; 0 when `text` is everything.
    pub left_out: u64,
}

impl BoundedText {
    pub fn new(limit: OutputLimit) -> Self {
        let half = limit.characters() / 2;
        Self { limit, half, head: String::new(), head_chars: 0, tail: String::new(), tail_chars: 0, total_chars: 0 }
    }

    pub fn push(&mut self, mut text: &str) {
        if self.head_chars < self.half {
            let room = self.half - self.head_chars;
            let cut = text.char_indices().nth(room).map_or(text.len(), |(at, _)| at);
            let (fits, rest) = text.split_at(cut);
            let count = fits.chars().count();
            self.head.push_str(fits);
            self.head_chars += count;
            self.total_chars += count as u64;
            text = rest;
        }
        if text.is_empty() {
            return;
        }
        let count = text.chars().count();
        self.total_chars += count as u64;
        // Only the end of a piece longer than the tail is kept. It is found from the end, which is shorter.
        if count > self.half {
            let start = text.char_indices().rev().nth(self.half.saturating_sub(1)).map_or(0, |(at, _)| at);
            self.tail.clear();
            self.tail.push_str(if self.half == 0 { "" } else { &text[start..] });
            self.tail_chars = self.half;
            return;
        }
        self.tail.push_str(text);
        self.tail_chars += count;
        // The tail grows to twice its size before it is cut, so that each character is moved about once.
        if self.tail_chars > 2 * self.half.max(1024) {
            self.trim_tail();
        }
    }

    fn trim_tail(&mut self) {
        let excess = self.tail_chars.saturating_sub(self.half);
        let cut = self.tail.char_indices().nth(excess).map_or(self.tail.len(), |(at, _)| at);
        self.tail.drain(..cut);
        self.tail_chars -= excess;
    }

    /// Moves what is beyond this many tokens from the head, which is the whole text, to the tail.
    fn split_head(&mut self, most: usize) {
        let end = token_prefix(&self.head, most).len();
        self.tail = self.head.split_off(end);
        self.tail_chars = self.tail.chars().count();
        self.half = self.half.max(self.tail_chars);
    }

    /// Returns the whole text if it fits, else its head and tail with a note between them.
    pub fn finish(mut self) -> TruncatedText {
        if self.total_chars <= (self.half * 2) as u64 {
            self.head.push_str(&std::mem::take(&mut self.tail));
            match self.limit {
                OutputLimit::Tokens(most) if estimate_tokens(&self.head) > most => self.split_head(most / 2),
                _ => return TruncatedText { text: self.head, left_out: 0 },
            }
        }
        self.trim_tail();
        if let OutputLimit::Tokens(most) = self.limit {
            self.head.truncate(token_prefix(&self.head, most / 2).len());
            self.tail = token_suffix(&self.tail, most / 2).to_owned();
        }
        // Whole lines read better, unless one line is most of the text.
        let head_end = self.head.rfind('\n').map_or(self.head.len(), |at| at + 1);
        let head = if head_end * 2 >= self.head.len() { &self.head[..head_end] } else { &self.head[..] };
        let tail_start = self.tail.find('\n').map_or(0, |at| at + 1);
        let tail = if tail_start * 2 <= self.tail.len() { &self.tail[tail_start..] } else { &self.tail[..] };
        let kept = (head.chars().count() + tail.chars().count()) as u64;
        let left_out = self.total_chars - kept;
        let gap = if head.ends_with('\n') || head.is_empty() { "" } else { "\n" };
        TruncatedText {
            text: format!("{head}{gap}[... truncated: {left_out} characters left out ...]\n{tail}"),
            left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truncate(limit: usize, pieces: &[&str]) -> TruncatedText {
        let mut bounded = BoundedText::new(OutputLimit::Characters(limit));
        pieces.iter().for_each(|piece| bounded.push(piece));
        bounded.finish()
    }

    #[test]
    fn keeps_text_within_the_limit_unchanged() {
        assert_eq!(truncate(10, &["one\n", "two\n"]), TruncatedText { text: "one\ntwo\n".into(), left_out: 0 });
        assert_eq!(truncate(10, &["0123456789"]).left_out, 0);
        assert_eq!(truncate(10, &[]), TruncatedText { text: String::new(), left_out: 0 });
    }

    #[test]
    fn cuts_head_and_tail_at_line_ends_and_counts_the_rest() {
        let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let kept = truncate(200, &[&lines]);
        assert!(kept.text.starts_with("line 0\n"), "{}", kept.text);
        assert!(kept.text.ends_with("line 999\n"), "{}", kept.text);
        assert!(kept.text.chars().count() < 260);
        let shown: usize = kept.text.lines().filter(|l| l.starts_with("line ")).map(|l| l.len() + 1).sum();
        assert_eq!(shown as u64 + kept.left_out, lines.len() as u64);
    }

    #[test]
    fn bounds_memory_for_an_endless_line() {
        let mut bounded = BoundedText::new(OutputLimit::Characters(100));
        let piece = "x".repeat(1000);
        for _ in 0..10_000 {
            bounded.push(&piece);
            assert!(bounded.head.len() + bounded.tail.len() < 8 * 1024);
        }
        let kept = bounded.finish();
        assert_eq!(kept.left_out, 10_000_000 - 100);
    }

    #[test]
    fn cuts_by_estimated_tokens() {
        let truncate = |text: &str| {
            let mut bounded = BoundedText::new(OutputLimit::Tokens(100));
            text.as_bytes().chunks(7).for_each(|piece| bounded.push(&String::from_utf8_lossy(piece)));
            bounded.finish()
        };
        // Words and spaces are cheap, signs are not.
        let words = "word ".repeat(70);
        assert_eq!(truncate(&words), TruncatedText { text: words, left_out: 0 });
        let cases = [
            "{},\n".repeat(40),
            "{},\n".repeat(40_000),
            ";".repeat(101),
            "word\n".repeat(10_000),
            " ".repeat(401),
            "1,22\n".repeat(90),
        ];
        for text in cases {
            let kept = truncate(&text);
            assert!(kept.left_out > 0, "{} characters", text.len());
            assert!(estimate_tokens(&kept.text) <= 100 + 30, "{}", kept.text);
            let (head, rest) = kept.text.split_once("[... truncated: ").expect("a note");
            let tail = rest.split_once("...]\n").expect("its end").1;
            assert!(text.starts_with(head.trim_end_matches('\n')) && text.ends_with(tail), "{}", kept.text);
            assert!(!head.is_empty() && !tail.is_empty(), "{}", kept.text);
        }
    }
}
