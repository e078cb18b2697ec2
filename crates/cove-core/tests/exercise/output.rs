//! What holds for the text of a guest, whatever bytes it wrote: nothing in it acts on a terminal or hides from a reader,
//! and no limit is exceeded.

use super::{BoundedText, OutputLimit, TextNeutraliser, neutralise};
use crate::text::{cut, estimate_tokens, token_prefix, token_suffix};

/// Cleans the bytes, whole and in pieces, and panics where the result breaks a promise.
pub fn exercise(bytes: &[u8]) {
    let clean = neutralise(bytes);
    if let Some(bad) = clean.chars().find(|c| is_harmful(*c)) {
        panic!("{bad:?} is left in {clean:?}");
    }
    assert_eq!(neutralise(&clean), clean, "clean text stays as it is");
    // The longest form of one byte is `\u{7f}`.
    assert!(clean.len() <= 6 * bytes.len(), "{} bytes became {}", bytes.len(), clean.len());
    for size in [1, 2, 3, 7, 64] {
        let mut neutraliser = TextNeutraliser::default();
        let mut pieces: String = bytes.chunks(size).map(|piece| neutraliser.push(piece)).collect();
        pieces += &neutraliser.finish();
        assert_eq!(pieces, clean, "in pieces of {size}");
    }
    for most in [0, 1, 10, 100] {
        check_bounds(&clean, most);
    }
}

/// Characters that no output may have, in whatever context.
fn is_harmful(c: char) -> bool {
    let is_hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0061}'
        | '\u{e0080}'..='\u{e00ff}' | '\u{e0120}'..='\u{e0fff}');
    is_hidden || (c.is_control() && c != '\n' && c != '\t')
}

fn check_bounds(text: &str, most: usize) {
    let shortened = cut(text, most);
    assert!(shortened.len() <= most.max('…'.len_utf8()), "{shortened:?} is longer than {most}");
    let (head, tail) = (token_prefix(text, most), token_suffix(text, most));
    assert!(text.starts_with(head) && text.ends_with(tail));
    assert!(estimate_tokens(head) <= most && estimate_tokens(tail) <= most);
    let whole = text.chars().count() as u64;
    for limit in [OutputLimit::Characters(most), OutputLimit::Tokens(most)] {
        let kept = bounded(text, text.len().max(1), limit);
        assert_eq!(bounded(text, 3, limit), kept, "in pieces with {limit:?}");
        let (text_kept, left_out) = kept;
        if left_out == 0 {
            assert_eq!(text_kept, text, "nothing was left out");
        }
        assert!(left_out <= whole, "{left_out} of {whole} left out");
    }
}

fn bounded(text: &str, piece: usize, limit: OutputLimit) -> (String, u64) {
    let mut bounded = BoundedText::new(limit);
    let mut rest = text;
    while !rest.is_empty() {
        let (first, other) = rest.split_at(rest.ceil_char_boundary(piece));
        bounded.push(first);
        rest = other;
    }
    let kept = bounded.finish();
    (kept.text, kept.left_out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn replays_the_corpus_of_output() {
        crate::replay::replay("output", super::exercise);
    }
}
