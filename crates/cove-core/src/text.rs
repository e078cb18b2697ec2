//! Text from programs and servers: which characters a person cannot see, and how text is cut to a length.

/// True for characters that are invisible or change the direction of text, so that a person reads something else than a
/// model or a program. Joiners are not included, because some scripts need them.
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Cuts text to at most `most` bytes, with an ellipsis where something is missing.
pub fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most.saturating_sub('…'.len_utf8()))])
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
    fn joiners_and_letters_are_visible() {
        assert!("é日👩\u{200d}👧\u{200c}א ".chars().all(|c| !is_invisible(c)));
        assert!("\u{200b}\u{202e}\u{2066}\u{feff}\u{e0041}".chars().all(is_invisible));
    }
}
