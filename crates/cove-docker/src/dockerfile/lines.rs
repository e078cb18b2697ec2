//! Splits a Dockerfile into lines as builders do: joins continued lines, drops comments, and separates options and
//! values.

use super::{BUILDER_ARGUMENTS, BuildArguments};

/// The keyword of a line for which builders disagree about whether the next line belongs to it.
pub(super) const AMBIGUOUS: &str = "\\";

pub(super) struct DockerfileLine {
    /// The number of its first line, counted from 1.
    pub(super) number: usize,
    /// The keyword in upper case.
    pub(super) keyword: String,
    pub(super) rest: String,
}

pub(super) fn parse_lines(text: &str) -> Vec<DockerfileLine> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let escape = escape_character(text);
    let mut all = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        // The pieces are joined without a space: a word can continue on the next line.
        let (number, mut joined) = begun.take().unwrap_or_else(|| (index + 1, String::new()));
        match line.trim_end().strip_suffix(escape) {
            Some(piece) if piece.ends_with(escape) => {
                all.push(DockerfileLine { number, keyword: AMBIGUOUS.to_owned(), rest: trimmed.to_owned() });
            }
            Some(piece) => {
                joined.push_str(piece);
                begun = Some((number, joined));
            }
            None => {
                joined.push_str(line);
                all.push(parse_line(number, &joined));
            }
        }
    }
    all.extend(begun.map(|(number, joined)| parse_line(number, &joined)));
    all
}

fn parse_line(number: usize, text: &str) -> DockerfileLine {
    let text = text.trim();
    let (keyword, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    DockerfileLine { number, keyword: keyword.to_ascii_uppercase(), rest: rest.to_owned() }
}

/// Returns the character that continues a line. A `# escape=` directive at the top can change it.
fn escape_character(text: &str) -> char {
    for line in text.lines() {
        let Some((key, value)) = line.trim().strip_prefix('#').and_then(|line| line.split_once('=')) else {
            break;
        };
        if key.trim().eq_ignore_ascii_case("escape") && value.trim() == "`" {
            return '`';
        }
    }
    '\\'
}

/// Splits the leading options from the rest of a line. Quotes and backslashes in options are resolved as builders do:
/// `--fr"om"=x` is `--from=x`.
pub(super) fn split_options(text: &str) -> (Vec<String>, &str) {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while rest.starts_with("--") {
        let (word, after) = next_word(rest);
        if word == "--" {
            return (all, after);
        }
        all.push(word);
        rest = after.trim_start();
    }
    (all, rest)
}

fn next_word(text: &str) -> (String, &str) {
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (c, quote) {
            ('\\', _) => word.extend(chars.next().map(|(_, escaped)| escaped)),
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (c, None) if c.is_whitespace() => return (word, &text[at..]),
            _ => word.push(c),
        }
    }
    (word, "")
}

pub(super) fn unquote(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

/// Expands `$X`, `${X}`, `${X:-else}` and `${X:+then}`. Returns `None` if a variable has no value.
pub(super) fn expand_variables(text: &str, arguments: &BuildArguments) -> Option<String> {
    let is_known = |name: &str| !BUILDER_ARGUMENTS.contains(&name);
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let value = |name: &str| arguments.get(name).filter(|value| is_known(name) && !value.is_empty()).cloned();
        if let Some(braced) = after.strip_prefix('{') {
            let (inner, tail) = braced.split_once('}')?;
            if BUILDER_ARGUMENTS.iter().any(|name| inner.starts_with(name)) {
                return None;
            }
            let filled = match (inner.split_once(":-"), inner.split_once(":+")) {
                (Some((name, other)), _) => value(name).unwrap_or_else(|| other.to_owned()),
                (None, Some((name, other))) => value(name).map_or_else(String::new, |_| other.to_owned()),
                (None, None) => value(inner)?,
            };
            result.push_str(&filled);
            rest = tail;
        } else {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
            result.push_str(&value(&after[..end])?);
            rest = &after[end..];
        }
    }
    result.push_str(rest);
    Some(result)
}
