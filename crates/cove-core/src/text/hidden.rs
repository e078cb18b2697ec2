//! Characters that a model reads and a person does not see. One rule decides for every text that leaves Cove: such a
//! character is shown as a number or left out, unless the characters around it need it and make it visible. What stays
//! cannot carry a text of its own: one joiner or break beside a letter that needs it, the flags of three nations and no
//! other tags, and few selectors, each after a visible character that has variants.

use std::borrow::Cow;

use serde_json::Value;

/// No character before this one is invisible, so ASCII and most Latin text is decided with one comparison.
const FIRST_INVISIBLE: char = '\u{ad}';
const JOINERS: [char; 2] = ['\u{200c}', '\u{200d}'];
const WORD_BREAK: char = '\u{200b}';
const BLACK_FLAG: char = '\u{1f3f4}';
/// A tag is a letter of ASCII moved by so much.
const TAG_OFFSET: u32 = 0xe0000;
/// The tags after a black flag that make it the flag of England, Scotland or Wales.
const NATIONS: [&str; 3] = ["gbeng\x7f", "gbsct\x7f", "gbwls\x7f"];
pub const FLAG_TAGS: usize = 6;
/// A selector of a letter carries up to five bits that no person sees. So that a text has few of them, each takes the
/// room of four visible characters; eight may follow each other, as in a name.
const SELECTOR_COST: usize = 4;
const MAX_SELECTOR_ROOM: usize = 8 * SELECTOR_COST;

/// Returns true for characters without a picture, and for those that change the direction of text: the whole property
/// `Default_Ignorable_Code_Point` of Unicode, separators of lines, annotations, blanks that are no spaces, controls of
/// hieroglyphs and music, and code points that never are characters.
pub fn is_invisible(c: char) -> bool {
    c >= FIRST_INVISIBLE && (is_default_ignorable(c) || is_blank(c))
}

fn is_default_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Characters outside that property that show nothing either.
fn is_blank(c: char) -> bool {
    let never_a_character = matches!(c, '\u{fdd0}'..='\u{fdef}') || (c as u32) & 0xfffe == 0xfffe;
    never_a_character
        || matches!(c,
            '\u{2028}' | '\u{2029}' | '\u{2800}' | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}'
            | '\u{16fe4}' | '\u{1d159}')
}

/// Returns true if the characters that follow may decide whether this one is hidden. Of tags, [`FLAG_TAGS`] decide.
pub fn depends_on_next(c: char) -> bool {
    JOINERS.contains(&c) || c == WORD_BREAK || is_tag(c)
}

fn is_tag(c: char) -> bool {
    matches!(c, '\u{e0020}'..='\u{e007f}')
}

/// Decides about the characters of one text, in their order.
#[derive(Debug, Clone, Copy)]
pub struct HiddenTextFinder {
    /// The last character that was shown, or NUL.
    before: char,
    /// A selector of its presentation followed it.
    is_selected: bool,
    /// How many of the next tags belong to a flag.
    flag_tags: usize,
    /// What selectors of letters may still use. Visible characters fill it again.
    selector_room: usize,
}

impl Default for HiddenTextFinder {
    fn default() -> Self {
        Self { before: '\0', is_selected: false, flag_tags: 0, selector_room: MAX_SELECTOR_ROOM }
    }
}

impl HiddenTextFinder {
    /// Returns true if the next character of the text is hidden. `follows` are the characters after it; they count only
    /// if [`depends_on_next`].
    pub fn is_hidden(&mut self, c: char, follows: impl IntoIterator<Item = char>) -> bool {
        if !is_invisible(c) {
            self.note_visible(c, 1);
            return false;
        }
        let is_needed = match c {
            // Text or picture: one after each character that has both forms.
            '\u{fe0e}' | '\u{fe0f}' => !self.is_selected && is_emoji_base(self.before),
            _ if is_letter_selector(c, self.before) => {
                let has_room = !self.is_selected && self.selector_room >= SELECTOR_COST;
                self.selector_room -= if has_room { SELECTOR_COST } else { 0 };
                has_room
            }
            _ if is_tag(c) => self.needs_tag(c, follows),
            WORD_BREAK => self.needs_word_break(follows.into_iter().next()),
            _ if JOINERS.contains(&c) => self.needs_joiner(c, follows.into_iter().next()),
            _ => false,
        };
        self.is_selected = is_needed && !depends_on_next(c);
        if !is_needed {
            self.flag_tags = 0;
        }
        if !self.is_selected {
            // A second joiner has nothing before it.
            self.before = '\0';
        }
        !is_needed
    }

    /// Notes characters that are known to be visible: the last one, and how many they are.
    pub fn note_visible(&mut self, last: char, count: usize) {
        let selector_room = self.selector_room.saturating_add(count).min(MAX_SELECTOR_ROOM);
        *self = Self { before: last, is_selected: false, flag_tags: 0, selector_room };
    }

    /// A tag is needed in the flags of England, Scotland and Wales, which a black flag begins.
    fn needs_tag(&mut self, c: char, follows: impl IntoIterator<Item = char>) -> bool {
        if self.before == BLACK_FLAG && !self.is_selected {
            let tags = std::iter::once(c).chain(follows).take(FLAG_TAGS).filter(|c| is_tag(*c));
            let letters: String = tags.filter_map(|c| char::from_u32(c as u32 - TAG_OFFSET)).collect();
            self.flag_tags = if NATIONS.contains(&letters.as_str()) { FLAG_TAGS } else { 0 };
        }
        let is_needed = self.flag_tags > 0;
        self.flag_tags = self.flag_tags.saturating_sub(1);
        is_needed
    }

    /// A break without width is needed beside a letter of a script that is written without spaces.
    fn needs_word_break(self, follows: Option<char>) -> bool {
        let is_between = self.before != '\0' && follows.is_some_and(|c| !is_invisible(c));
        is_between && (is_unspaced_script(self.before) || follows.is_some_and(is_unspaced_script))
    }

    /// A joiner is needed inside a sequence of emoji, between letters of scripts that join, after the sign that takes the
    /// vowel from a letter, and at the end of a word in Arabic script, where it chooses the form of the last letter.
    fn needs_joiner(self, joiner: char, follows: Option<char>) -> bool {
        let (before, visible_after) = (self.before, follows.filter(|c| !is_invisible(*c)));
        let is_emoji = joiner == '\u{200d}' && is_emoji_base(before) && !before.is_ascii();
        match visible_after {
            Some(after) => {
                (is_emoji && is_emoji_base(after) && !after.is_ascii())
                    || (is_joining_script(before) && is_joining_script(after))
                    || is_virama(before)
                    || (is_arabic_letter(before) && !after.is_alphanumeric())
            }
            // At the end of a word.
            None => (is_virama(before) || is_arabic_letter(before)) && follows.is_none(),
        }
    }
}

/// Blocks with emoji. A selector after one of their other signs is as harmless.
fn is_emoji_base(c: char) -> bool {
    matches!(c,
        '#' | '*' | '0'..='9' | '\u{a9}' | '\u{ae}' | '\u{203c}' | '\u{2049}' | '\u{20e3}' | '\u{2122}' | '\u{2139}'
        | '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{24c2}' | '\u{25a0}'..='\u{27bf}'
        | '\u{2900}'..='\u{297f}' | '\u{2b00}'..='\u{2bff}' | '\u{3030}' | '\u{303d}' | '\u{3297}' | '\u{3299}'
        | '\u{1f000}'..='\u{1fffd}')
}

/// Selectors of the form of a Chinese character, of which registered ones are among the first, or of a Mongolian letter.
fn is_letter_selector(selector: char, letter: char) -> bool {
    match selector {
        '\u{e0100}'..='\u{e011f}' | '\u{fe00}'..='\u{fe02}' => matches!(letter,
            '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3fffd}'),
        '\u{180b}'..='\u{180d}' | '\u{180f}' => matches!(letter, '\u{1820}'..='\u{18aa}'),
        _ => false,
    }
}

/// Thai and Lao, Myanmar, Khmer, and the scripts of the Tai languages.
fn is_unspaced_script(c: char) -> bool {
    matches!(c,
        '\u{e01}'..='\u{edf}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17fd}' | '\u{1950}'..='\u{19ff}'
        | '\u{1a20}'..='\u{1aad}' | '\u{a9e0}'..='\u{a9fe}' | '\u{aa60}'..='\u{aadf}')
}

/// Blocks of scripts whose letters change with their neighbours.
fn is_joining_script(c: char) -> bool {
    matches!(c,
        // Arabic, Syriac, Thaana, N'Ko, Mandaic, then the scripts of India and Sri Lanka.
        '\u{620}'..='\u{dff}'
        // Tibetan, Myanmar; Khmer and Mongolian; Balinese to Ol Chiki.
        | '\u{f00}'..='\u{109f}' | '\u{1780}'..='\u{18af}' | '\u{1b00}'..='\u{1c7f}'
        | '\u{a840}'..='\u{a87f}' | '\u{a8e0}'..='\u{a8ff}' | '\u{a980}'..='\u{a9df}'
        | '\u{fb50}'..='\u{fdcf}' | '\u{fdf0}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'
        | '\u{10a00}'..='\u{10a5f}' | '\u{10ac0}'..='\u{10aff}' | '\u{10d00}'..='\u{10d3f}' | '\u{10f30}'..='\u{10fdf}'
        | '\u{11000}'..='\u{11fff}' | '\u{1e900}'..='\u{1e95f}')
}

/// Letters of the Arabic script: Kurdish words end with a joiner, and so does the sign of the Islamic calendar.
fn is_arabic_letter(c: char) -> bool {
    matches!(c, '\u{620}'..='\u{64a}' | '\u{66e}'..='\u{6d3}' | '\u{6d5}' | '\u{750}'..='\u{77f}' | '\u{8a0}'..='\u{8c9}')
}

/// The sign that takes the vowel from a letter, in the scripts of India and Sri Lanka.
fn is_virama(c: char) -> bool {
    matches!(
        c,
        '\u{94d}'
            | '\u{9cd}'
            | '\u{a4d}'
            | '\u{acd}'
            | '\u{b4d}'
            | '\u{bcd}'
            | '\u{c4d}'
            | '\u{ccd}'
            | '\u{d4d}'
            | '\u{dca}'
    )
}

/// Returns each character of a text, and whether it is hidden.
fn judge_chars(text: &str) -> impl Iterator<Item = (char, bool)> {
    let mut finder = HiddenTextFinder::default();
    let mut chars = text.chars();
    std::iter::from_fn(move || {
        let c = chars.next()?;
        Some((c, finder.is_hidden(c, chars.clone())))
    })
}

/// Returns a text without its hidden characters.
pub fn remove_hidden(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_invisible) {
        return Cow::Borrowed(text);
    }
    judge_chars(text).filter(|(_, is_hidden)| !is_hidden).map(|(c, _)| c).collect()
}

/// Returns a text with its hidden and its control characters shown as numbers. Line ends and tabs stay.
pub fn show_hidden(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || is_invisible(c));
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut judged = judge_chars(text).peekable();
    while let Some((c, is_hidden)) = judged.next() {
        let ends_line = c == '\r' && judged.peek().is_some_and(|(next, _)| *next == '\n');
        if is_hidden || (c.is_control() && !matches!(c, '\n' | '\t') && !ends_line) {
            shown.extend(c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// The same for every name and every text in a value.
pub fn show_hidden_in(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(show_hidden(&text).into_owned()),
        Value::Array(items) => Value::Array(items.into_iter().map(show_hidden_in).collect()),
        Value::Object(fields) => {
            let shown = fields.into_iter().map(|(key, value)| (show_hidden(&key).into_owned(), show_hidden_in(value)));
            Value::Object(shown.collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_property_of_unicode_is_invisible() {
        let has_property = |property: &str| -> Vec<bool> {
            let class = match regex_syntax::parse(&format!(r"\p{{{property}}}")).unwrap().into_kind() {
                regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => class,
                other => panic!("{other:?}"),
            };
            let mut all = vec![false; char::MAX as usize + 1];
            class.iter().for_each(|range| all[range.start() as usize..=range.end() as usize].fill(true));
            all
        };
        let ignorable = has_property("Default_Ignorable_Code_Point");
        let (emoji, pictograph) = (has_property("Emoji"), has_property("Extended_Pictographic"));
        for c in '\0'..=char::MAX {
            assert_eq!(is_default_ignorable(c), ignorable[c as usize], "{c:?}");
            assert!(!is_default_ignorable(c) || is_invisible(c), "{c:?}");
            assert!(is_emoji_base(c) || !(emoji[c as usize] || pictograph[c as usize]), "{c:?}");
        }
        assert_eq!(ignorable.iter().filter(|one| **one).count(), 4174);
    }

    /// Checks what is shown of a text, and that a second look changes nothing.
    fn check(text: &str, expected: &str) {
        let shown = show_hidden(text);
        assert_eq!(shown, expected, "{text:?}");
        assert_eq!(show_hidden(&shown), shown);
        let removed = remove_hidden(text);
        assert_eq!(remove_hidden(&removed), removed);
        assert_eq!(text == expected, removed == text && !text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn needed_characters_stay() {
        for text in [
            "plain\ttext\r\n",
            "é日本 עברית",
            "❤️ ☎︎ 1️⃣ ©️",
            "👩‍👩‍👧 🏳️‍🌈 👨‍⚕️ 🏃🏽‍♂️ 👁️‍🗨️",
            // Persian, Hindi, Sinhala, and Malayalam with a joiner at the end of a word.
            "می‌خواهم",
            "क्‍ष क्‌ष",
            "ශ්‍රී",
            "അവന്‍ വന്നു അവന്‍",
            // Kurdish, and a date of the Islamic calendar.
            "ئه\u{200c}مه\u{200c} ده\u{200c}قێکه\u{200c}، به\u{200c}",
            "١٤٤٥ ه\u{200d}.",
            // The flags of three nations; Japanese names; Khmer, Thai and Lao with breaks between words; Mongolian.
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f} \
             🏴\u{e0067}\u{e0062}\u{e0077}\u{e006c}\u{e0073}\u{e007f}",
            "葛\u{e0100}城 渡邉\u{e0102}花子、辻\u{e0101}、芦\u{fe00}屋",
            "ភាសា\u{200b}ខ្មែរ\u{200b}Python ภาษา\u{200b}ไทย ພາສາ\u{200b}ລາວ",
            "ᠭ\u{180b}ᠠ",
        ] {
            check(text, text);
        }
    }

    /// One selector after each of many letters would carry a text of its own.
    #[test]
    fn selectors_of_letters_are_few() {
        let shown = show_hidden(&"葛\u{e0105}".repeat(1000)).into_owned();
        assert!(shown.matches('\u{e0105}').count() < 270, "{shown}");
        let names = "葛\u{e0100}城太郎, 1.5\n".repeat(1000);
        assert_eq!(show_hidden(&names), names);
    }

    #[test]
    fn hidden_text_is_shown_as_numbers() {
        check("a\u{200d}b", "a\\u{200d}b");
        check("👩\u{200d}\u{200d}👧", "👩\\u{200d}\\u{200d}👧");
        check("👩\u{200d}", "👩\\u{200d}");
        check("م\u{200c}\u{200d}م", "م\\u{200c}\\u{200d}م");
        check("م\u{200c}\u{200d} م", "م\\u{200c}\\u{200d} م");
        check("م\u{200c}a", "م\\u{200c}a");
        check("म\u{200c} ", "म\\u{200c} ");
        check("❤\u{fe0f}\u{fe0f}", "❤\u{fe0f}\\u{fe0f}");
        check("😀\u{fe00}\u{e0100}\u{e01ef}", "😀\\u{fe00}\\u{e0100}\\u{e01ef}");
        check("a\u{fe0f}", "a\\u{fe0f}");
        check("1\u{200d}2", "1\\u{200d}2");
        check("🏴\u{e0067}\u{e007f}", "🏴\\u{e0067}\\u{e007f}");
        let letters =
            |text: &str| text.chars().map(|c| char::from_u32(c as u32 + TAG_OFFSET).unwrap()).collect::<String>();
        let number = |text: &str| letters(text).chars().map(|c| c.escape_unicode().to_string()).collect::<String>();
        for tags in ["gbeng", "gbdel\x7f", "usca\x7f", "gbengobey\x7f"] {
            check(&format!("🏴{}", letters(tags)), &format!("🏴{}", number(tags)));
        }
        let england = format!("🏴{}", letters("gbeng\x7f"));
        check(&format!("{england}{}", letters("obey")), &format!("{england}{}", number("obey")));
        check(&format!("a{}", letters("gbeng\x7f")), &format!("a{}", number("gbeng\x7f")));
        check("葛\u{e0100}\u{e0101}", "葛\u{e0100}\\u{e0101}");
        check("葛\u{e0120}あ\u{e0100}", "葛\\u{e0120}あ\\u{e0100}");
        check("ក\u{200b}\u{200b}ខ", "ក\\u{200b}\\u{200b}ខ");
        check("a\u{200b}b ក\u{200b}", "a\\u{200b}b ក\\u{200b}");
        check("\u{1b}[31m\r\u{0}", "\\u{1b}[31m\\u{d}\\u{0}");
        for c in "\u{ad}\u{34f}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180f}\u{200b}\u{202e}\u{2028}\u{2060}\u{2800}\u{3164}\u{feff}\u{ffa0}\u{fff9}\u{1bca0}\u{1d173}\u{1d17a}\u{e0001}\u{ffff}".chars() {
            check(&format!("a{c}b"), &format!("a{}b", c.escape_unicode()));
        }
    }
}
