//! The head and the tail of a text, cut at line ends, and a count of what is missing between them. Memory stays constant
//! however much comes.

use serde::Serialize;

/// Keeps at most `limit` characters of one stream.
pub struct Bounded {
    half: usize,
    head: String,
    head_chars: usize,
    tail: String,
    tail_chars: usize,
    total_chars: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    pub text: String,
    /// Characters left out; 0 when `text` is everything.
    pub left_out: u64,
}

impl Bounded {
    pub fn new(limit: usize) -> Self {
        Self {
            half: limit / 2,
            head: String::new(),
            head_chars: 0,
            tail: String::new(),
            tail_chars: 0,
            total_chars: 0,
        }
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
        // Of a piece larger than the tail only its end can stay, found from that end.
        if count > self.half {
            let start = text.char_indices().rev().nth(self.half.saturating_sub(1)).map_or(0, |(at, _)| at);
            self.tail.clear();
            self.tail.push_str(if self.half == 0 { "" } else { &text[start..] });
            self.tail_chars = self.half;
            return;
        }
        self.tail.push_str(text);
        self.tail_chars += count;
        // Let it grow to twice its size before it is cut, so that each character is moved about once.
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

    pub fn finish(mut self) -> Kept {
        if self.total_chars <= (self.half * 2) as u64 {
            return Kept { text: self.head + &self.tail, left_out: 0 };
        }
        self.trim_tail();
        // Whole lines read better, unless a single line is most of what there is.
        let head_end = self.head.rfind('\n').map_or(self.head.len(), |at| at + 1);
        let head = if head_end * 2 >= self.head.len() { &self.head[..head_end] } else { &self.head[..] };
        let tail_start = self.tail.find('\n').map_or(0, |at| at + 1);
        let tail = if tail_start * 2 <= self.tail.len() { &self.tail[tail_start..] } else { &self.tail[..] };
        let kept = (head.chars().count() + tail.chars().count()) as u64;
        let left_out = self.total_chars - kept;
        let gap = if head.ends_with('\n') || head.is_empty() { "" } else { "\n" };
        Kept { text: format!("{head}{gap}[... {left_out} characters left out ...]\n{tail}"), left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(limit: usize, pieces: &[&str]) -> Kept {
        let mut bounded = Bounded::new(limit);
        pieces.iter().for_each(|piece| bounded.push(piece));
        bounded.finish()
    }

    #[test]
    fn what_fits_is_kept_as_it_was() {
        assert_eq!(keep(10, &["one\n", "two\n"]), Kept { text: "one\ntwo\n".into(), left_out: 0 });
        assert_eq!(keep(10, &["0123456789"]).left_out, 0);
        assert_eq!(keep(10, &[]), Kept { text: String::new(), left_out: 0 });
    }

    #[test]
    fn head_and_tail_are_cut_at_line_ends_and_the_rest_is_counted() {
        let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let kept = keep(200, &[&lines]);
        assert!(kept.text.starts_with("line 0\n"), "{}", kept.text);
        assert!(kept.text.ends_with("line 999\n"), "{}", kept.text);
        assert!(kept.text.chars().count() < 250);
        let shown: usize = kept.text.lines().filter(|l| l.starts_with("line ")).map(|l| l.len() + 1).sum();
        assert_eq!(shown as u64 + kept.left_out, lines.len() as u64);
    }

    #[test]
    fn one_endless_line_keeps_memory_constant() {
        let mut bounded = Bounded::new(100);
        let piece = "x".repeat(1000);
        for _ in 0..10_000 {
            bounded.push(&piece);
            assert!(bounded.head.len() + bounded.tail.len() < 8 * 1024);
        }
        let kept = bounded.finish();
        assert_eq!(kept.left_out, 10_000_000 - 100);
    }
}
