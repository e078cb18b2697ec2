//! SPDX licence expressions, as far as crates use them: `OR`, `AND`, `WITH`, parentheses, and the old `/` for `OR`.
//! <https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/>

use std::iter::Peekable;
use std::vec::IntoIter;

/// Returns whether an expression is satisfied by the licences that are allowed; one with an exception is allowed only
/// with it, as in `Apache-2.0 WITH LLVM-exception`. Fails if the text is not an expression.
pub(super) fn is_satisfied(text: &str, allowed: &dyn Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<String> = spaced.split_whitespace().map(str::to_owned).collect();
    let mut reader = ExpressionReader { words: words.into_iter().peekable(), allowed };
    let verdict = reader.any()?;
    match reader.words.next() {
        None => Ok(verdict),
        Some(word) => Err(format!("`{word}` is not expected")),
    }
}

/// Reads an expression word by word, and decides it on the way.
struct ExpressionReader<'a> {
    words: Peekable<IntoIter<String>>,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl ExpressionReader<'_> {
    fn any(&mut self) -> Result<bool, String> {
        let mut verdict = self.all()?;
        while self.words.next_if(|word| word == "OR").is_some() {
            verdict |= self.all()?;
        }
        Ok(verdict)
    }

    /// `AND` binds tighter than `OR`.
    fn all(&mut self) -> Result<bool, String> {
        let mut verdict = self.one()?;
        while self.words.next_if(|word| word == "AND").is_some() {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool, String> {
        let word = self.words.next().ok_or("it ends too early")?;
        match word.as_str() {
            "(" => {
                let verdict = self.any()?;
                match self.words.next().as_deref() {
                    Some(")") => Ok(verdict),
                    _ => Err("a `)` is missing".to_owned()),
                }
            }
            "OR" | "AND" | "WITH" | ")" => Err(format!("`{word}` is not expected")),
            _ if self.words.next_if(|next| next == "WITH").is_some() => {
                let exception = self.words.next().ok_or("it ends too early")?;
                Ok((self.allowed)(&format!("{word} WITH {exception}")))
            }
            _ => Ok((self.allowed)(&word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_satisfied_by_what_is_allowed() {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        let cases = [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT AND Unicode-3.0", true),
            ("MIT/GPL-3.0-only", true),
            ("GPL-2.0 / GPL-3.0-only", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(GPL-3.0-only OR Apache-2.0) AND Unicode-3.0", false),
            // Without parentheses `AND` binds tighter: the left side alone is enough.
            ("MIT OR GPL-3.0-only AND LGPL-3.0", true),
            ("(MIT OR GPL-3.0-only) AND LGPL-3.0", false),
            ("((MIT))", true),
            ("Apache-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            // A name that only begins like an allowed one is another licence.
            ("MIT-0", false),
        ];
        for (text, expected) in cases {
            assert_eq!(is_satisfied(text, &|one| allowed.contains(&one)), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_an_expression_is_refused() {
        for text in ["", "MIT OR", "OR MIT", "MIT MIT", "(MIT", "MIT)", "()", "MIT WITH", "MIT AND OR ISC"] {
            assert!(is_satisfied(text, &|_| true).is_err(), "{text}");
        }
    }
}
