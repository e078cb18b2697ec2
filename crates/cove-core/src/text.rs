//! Text from programs and servers: which characters a person cannot see, how text is cut to a length, how a number is
//! written with its noun, and how many tokens text costs a model.

mod hidden;

use std::fmt::Display;

pub use hidden::{
    FLAG_TAGS, HiddenTextFinder, depends_on_next, is_invisible, remove_hidden, show_hidden, show_hidden_in,
};

/// Cuts text to at most `most` bytes, with an ellipsis where something is missing.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most.saturating_sub('…'.len_utf8()))])
}

/// Writes a number with its noun: `1 file`, `2 files`.
pub fn format_count<N: Display + PartialEq + From<u8>>(number: N, singular: &str) -> String {
    if number == N::from(1) { format!("1 {singular}") } else { format!("{number} {singular}s") }
}

/// Estimates tokens, never fewer than models count for code and data: one for each started group of four letters or three
/// digits, one for any other ASCII sign, two for a character outside ASCII. A space counts with the word that follows.
pub fn estimate_tokens(text: &str) -> usize {
    token_costs(text.char_indices()).map(|(_, cost)| cost).sum()
}

/// Returns the longest beginning of a text that costs at most this many tokens.
pub fn token_prefix(text: &str, most: usize) -> &str {
    &text[..first_beyond(text.char_indices(), most).unwrap_or(text.len())]
}

/// Returns the longest end of a text that costs at most this many tokens.
pub fn token_suffix(text: &str, most: usize) -> &str {
    let last = first_beyond(text.char_indices().rev(), most);
    &text[last.map_or(0, |at| text.ceil_char_boundary(at + 1))..]
}

/// Returns the place of the first character that does not fit.
fn first_beyond(chars: impl Iterator<Item = (usize, char)>, most: usize) -> Option<usize> {
    let mut total = 0;
    let mut beyond = token_costs(chars).skip_while(|(_, cost)| {
        total += cost;
        total <= most
    });
    beyond.next().map(|(at, _)| at)
}

/// Returns each character's place and what it adds to the estimate. Groups are counted from where the iteration starts.
fn token_costs(chars: impl Iterator<Item = (usize, char)>) -> impl Iterator<Item = (usize, usize)> {
    let (mut letters, mut digits) = (0, 0);
    chars.map(move |(at, c)| {
        let (letter, digit) = (c.is_ascii_alphabetic(), c.is_ascii_digit());
        let starts = usize::from(letter && letters % 4 == 0) + usize::from(digit && digits % 3 == 0);
        letters = if letter { letters + 1 } else { 0 };
        digits = if digit { digits + 1 } else { 0 };
        let sign = if letter || digit || c == ' ' { 0 } else { 1 + usize::from(!c.is_ascii()) };
        (at, starts + sign)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_at_character_boundaries() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("ééééé", 6), "é…");
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn token_estimate_is_never_too_low() {
        // Counts of the o200k tokenizer.
        let cases = [("hello world", 2), ("mcp.files.read(*, path: str = ...) -> Any", 15), ("日本語", 2)];
        for (text, real) in cases {
            assert!(estimate_tokens(text) >= real, "{text}: {}", estimate_tokens(text));
        }
    }

    #[test]
    fn cuts_to_a_number_of_tokens_at_either_end() {
        for text in ["one two three", "a,b,c", "日本語 x", "12345678", "", "   ", "aaaaaaaaa"] {
            for most in 0..12 {
                let (head, tail) = (token_prefix(text, most), token_suffix(text, most));
                assert!(text.starts_with(head) && text.ends_with(tail), "{text} {most}");
                assert!(estimate_tokens(head) <= most && estimate_tokens(tail) <= most, "{text} {most}");
            }
            assert_eq!((token_prefix(text, 12), token_suffix(text, 12)), (text, text));
        }
        assert_eq!((token_prefix("a,b,c", 3), token_suffix("a,b,日", 3)), ("a,b", ",日"));
    }
}
