//! SPDX licence expressions, as far as crates use them: `OR`, `AND`, `WITH`, parentheses, and the old `/` for `OR`.
//! <https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/>

use std::iter::Peekable;
use std::vec::IntoIter;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// One licence; with its exception, if it has one, as in `Apache-2.0 WITH LLVM-exception`.
    Licence(String),
    Any(Vec<Expression>),
    All(Vec<Expression>),
}

type Words = Peekable<IntoIter<String>>;

impl Expression {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut words = split(text).into_iter().peekable();
        let expression = any(&mut words)?;
        match words.next() {
            None => Ok(expression),
            Some(word) => Err(format!("`{word}` is not expected")),
        }
    }

    pub(super) fn is_satisfied(&self, allowed: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Expression::Licence(name) => allowed(name),
            Expression::Any(parts) => parts.iter().any(|part| part.is_satisfied(allowed)),
            Expression::All(parts) => parts.iter().all(|part| part.is_satisfied(allowed)),
        }
    }
}

fn split(text: &str) -> Vec<String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

fn any(words: &mut Words) -> Result<Expression, String> {
    joined(words, "OR", all, Expression::Any)
}

/// `AND` binds tighter than `OR`.
fn all(words: &mut Words) -> Result<Expression, String> {
    joined(words, "AND", one, Expression::All)
}

fn joined(
    words: &mut Words,
    by: &str,
    part: fn(&mut Words) -> Result<Expression, String>,
    make: fn(Vec<Expression>) -> Expression,
) -> Result<Expression, String> {
    let first = part(words)?;
    let mut rest = Vec::new();
    while words.next_if(|word| word == by).is_some() {
        rest.push(part(words)?);
    }
    if rest.is_empty() {
        return Ok(first);
    }
    rest.insert(0, first);
    Ok(make(rest))
}

fn one(words: &mut Words) -> Result<Expression, String> {
    let word = words.next().ok_or("it ends too early")?;
    match word.as_str() {
        "(" => {
            let inner = any(words)?;
            match words.next().as_deref() {
                Some(")") => Ok(inner),
                _ => Err("a `)` is missing".to_owned()),
            }
        }
        "OR" | "AND" | "WITH" | ")" => Err(format!("`{word}` is not expected")),
        _ if words.next_if(|next| next == "WITH").is_some() => {
            let exception = words.next().ok_or("it ends too early")?;
            Ok(Expression::Licence(format!("{word} WITH {exception}")))
        }
        _ => Ok(Expression::Licence(word)),
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
            let expression = Expression::parse(text).unwrap();
            assert_eq!(expression.is_satisfied(&|one| allowed.contains(&one)), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_an_expression_is_refused() {
        for text in ["", "MIT OR", "OR MIT", "MIT MIT", "(MIT", "MIT)", "()", "MIT WITH", "MIT AND OR ISC"] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }
}
