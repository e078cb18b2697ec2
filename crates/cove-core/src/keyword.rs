//! Values that are written as one of a few words.

use crate::error::Refusal;

/// A value with a word for each of its variants. [`keywords`] defines such types.
pub trait Keyword: Copy + 'static {
    const ALL: &'static [Self];
    /// The noun for a variant in messages: "a backend".
    const NOUN: &'static str;
    /// Stands for the word in help.
    const PLACEHOLDER: &'static str;

    fn as_str(self) -> &'static str;

    /// Parses one of the words. Fails for any other text; case matters.
    fn parse(text: &str) -> Result<Self, Refusal> {
        Self::ALL.iter().copied().find(|keyword| keyword.as_str() == text).ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|keyword| keyword.as_str()).collect();
            Refusal::of_value(text, format!("is not {}", Self::NOUN), format!("write {}", alternatives(&words)))
        })
    }
}

/// Writes words as "`a`, `b` or `c`".
pub fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.as_slice() {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => quoted.concat(),
    }
}

/// Defines an enum together with the word for each variant, so that a word and its meaning cannot drift apart.
#[macro_export]
macro_rules! keywords {
    (
        $(#[$attribute:meta])*
        $visibility:vis $name:ident, $placeholder:literal, $noun:literal:
        $($(#[$variant_attribute:meta])* $variant:ident = $word:literal),+ $(,)?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $name {
            $($(#[$variant_attribute])* $variant),+
        }

        impl $name {
            $visibility const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            $visibility fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl $crate::keyword::Keyword for $name {
            const ALL: &'static [Self] = &Self::ALL;
            const NOUN: &'static str = $noun;
            const PLACEHOLDER: &'static str = $placeholder;

            fn as_str(self) -> &'static str {
                Self::as_str(self)
            }
        }
    };
}

pub use crate::keywords;

#[cfg(test)]
mod tests {
    use super::*;

    keywords!(Colour, "COLOUR", "a colour": Red = "red", Green = "green", Blue = "blue");

    #[test]
    fn reads_its_own_words_only() {
        for colour in Colour::ALL {
            assert_eq!(Colour::parse(colour.as_str()), Ok(colour));
        }
        let refusal = Colour::parse("Red").unwrap_err();
        assert_eq!(refusal, Refusal::new("`Red` is not a colour", "write `red`, `green` or `blue`"));
    }

    #[test]
    fn joins_alternatives() {
        assert_eq!(alternatives(&[]), "");
        assert_eq!(alternatives(&["a"]), "`a`");
        assert_eq!(alternatives(&["a", "b"]), "`a` or `b`");
    }
}
