//! What an agent calls code: a script, or a script in a Markdown fence; in a language, or in one of its dialects.

use cove_protocol::Language;

use cove_core::error::{Failure, display_value};

/// The language of a cell, and the name of the cell in tracebacks. TypeScript is a dialect of Node's language: the shim
/// knows it by the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CodeLanguage {
    pub(super) language: Language,
    pub(super) cell_name: &'static str,
}

impl CodeLanguage {
    pub(super) const PYTHON: Self = Self::new(Language::Python);

    const fn new(language: Language) -> Self {
        Self { language, cell_name: "<cell>" }
    }

    /// Reads the name of a language, in any case. Returns `None` if no cell can have it.
    fn parse(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase() {
            name if is_typescript(&name) => Some(Self { language: Language::Node, cell_name: "<cell.ts>" }),
            name => name.parse().ok().map(Self::new),
        }
    }
}

/// True for the names of TypeScript, in any case.
pub fn is_typescript(name: &str) -> bool {
    ["typescript", "ts"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Returns code without the Markdown fence around it, and its language: the one that the caller passed, else the one
/// that the fence names, else Python. Fails if the caller passed a language that no cell can have.
pub(super) fn read_code(code: String, passed: Option<&str>) -> Result<(String, CodeLanguage), Failure> {
    let fenced = strip_fence(&code).map(|(info, inner)| (info.to_owned(), inner.to_owned()));
    let (info, code) = fenced.unwrap_or_else(|| (String::new(), code));
    let language = match passed {
        None => CodeLanguage::parse(&info).unwrap_or(CodeLanguage::PYTHON),
        Some(text) => CodeLanguage::parse(text).ok_or_else(|| {
            Failure::usage(format!("could not run `{}`", display_value(text)))
                .because("it is not supported")
                .with_hint("pass python, node, typescript, bash or sh")
        })?,
    };
    Ok((code, language))
}

/// Returns the first word after an opening fence, and the lines up to the closing one. Returns `None` unless the fence
/// encloses the whole text: a fence inside of it may be data.
fn strip_fence(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let mark = text.chars().next().filter(|c| ['`', '~'].contains(c))?;
    let (opening, rest) = text.split_once('\n')?;
    let (inner, closing) = rest.rsplit_once('\n').unwrap_or(("", rest));
    let info = opening.trim_start_matches(mark);
    let (length, closing) = (opening.len() - info.len(), closing.trim());
    let closes = closing.len() >= length && closing.chars().all(|c| c == mark);
    if length < 3 || !closes || info.contains('`') {
        return None;
    }
    Some((info.split_whitespace().next().unwrap_or_default(), inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, passed: Option<&str>, code: &str, language: Language) {
        let (found, dialect) = read_code(text.to_owned(), passed).unwrap();
        assert_eq!((found.as_str(), dialect.language), (code, language), "{text:?}");
    }

    #[test]
    fn fences_around_code_are_removed() {
        use Language::{Bash, Node, Python, Sh};
        check("```python\nprint(1)\n```", None, "print(1)", Python);
        check("\n  ```\r\nx = 1\n\n    y\n```  \n", None, "x = 1\n\n    y", Python);
        check("```js title=\"a\"\n1\n```", None, "1", Node);
        check("~~~~sh\necho '```'\n~~~~", None, "echo '```'", Sh);
        check("```json\n1\n```", None, "1", Python);
        check("```python\n1\n```", Some("bash"), "1", Bash);
        check("```\n```", None, "", Python);
        // A fence inside of another one is data.
        check("````python\ns = [\n```\n]\n````", None, "s = [\n```\n]", Python);
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [
            "print('```')",
            "```python\nprint(1)",
            "print(1)\n```",
            "```print(1)```",
            "Here:\n```python\n1\n```",
            "```a`b\n1\n```",
            "````\n1\n```",
            "``\n1\n``",
            "```",
            "`",
            "",
            "~~~\n1\n```",
        ] {
            check(text, None, text, Language::Python);
        }
        let huge = "`".repeat(1 << 20);
        check(&huge, None, &huge, Language::Python);
    }

    #[test]
    fn typescript_is_node_under_another_name() {
        for (text, passed) in [("1", Some("TypeScript")), ("1", Some("ts")), ("```ts\n1\n```", None)] {
            let (code, dialect) = read_code(text.to_owned(), passed).unwrap();
            assert_eq!((code.as_str(), dialect.language, dialect.cell_name), ("1", Language::Node, "<cell.ts>"));
        }
        let error = read_code("1".into(), Some("ruby")).unwrap_err().report().to_string();
        assert!(error.contains("`ruby`") && error.contains("typescript"), "{error}");
    }
}
