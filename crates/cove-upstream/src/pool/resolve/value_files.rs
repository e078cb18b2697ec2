//! Files whose content becomes a value: `${file:PATH}` and `env_file`. Each is a regular text file of at most 64 KiB; the
//! reader never waits, as it would for a FIFO.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::secrets::MAX_SECRET_VALUE;
use cove_core::document::read_limited;

/// The text of a file, and whether other users can read it.
pub(super) struct FileText {
    pub(super) text: String,
    pub(super) is_exposed: bool,
}

/// Reads a file. Fails with the reason.
pub(super) fn read_value_file(path: &Path) -> Result<FileText, String> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let text = read_limited(file, MAX_SECRET_VALUE as u64).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
        _ => error.to_string(),
    })?;
    if text.contains('\0') {
        return Err("it has a NUL byte".to_owned());
    }
    // Container engines make the files there readable for every user of the container.
    let is_exposed = metadata.mode() & 0o044 != 0 && !path.starts_with("/run/secrets");
    Ok(FileText { text, is_exposed })
}

/// Reads lines such as `KEY=VALUE`, with comments and quotes as `.env` files have them. Later lines win. Fails with the
/// number of the first line that is none of these.
pub(super) fn parse_env_file(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut variables = Vec::new();
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(variables);
        }
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, behind)| behind);
            continue;
        }
        let before = text.len() - rest.len();
        let wrong = || text[..before].matches('\n').count() + 1;
        let (line, _) = rest.split_once('\n').unwrap_or((rest, ""));
        let (key, _) = line.split_once('=').ok_or_else(wrong)?;
        let behind = &rest[key.len() + 1..];
        let key = key.trim();
        let key = key.strip_prefix("export ").map_or(key, str::trim_start);
        if !is_variable_name(key) {
            return Err(wrong());
        }
        let (value, after) = parse_value(behind.trim_start_matches([' ', '\t'])).ok_or_else(wrong)?;
        variables.push((key.to_owned(), value));
        rest = after;
    }
}

fn is_variable_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_allowed)
}

/// Returns a value and the text behind its line. `None` if a quote is not closed, or if more follows it than a comment.
fn parse_value(text: &str) -> Option<(String, &str)> {
    let line_behind = |text: &str| text.split_once('\n').map_or(text.len(), |(line, _)| line.len() + 1);
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'' | '`')) else {
        let line = text.split('\n').next().unwrap_or_default();
        let comment = line.char_indices().find(|(at, c)| *c == '#' && (*at == 0 || line[..*at].ends_with([' ', '\t'])));
        let value = comment.map_or(line, |(at, _)| &line[..at]);
        return Some((value.trim().to_owned(), &text[line_behind(text)..]));
    };
    let mut value = String::new();
    let mut characters = text.char_indices().skip(1);
    let end = loop {
        match characters.next()? {
            (at, c) if c == quote => break at + 1,
            (_, '\\') if quote == '"' => match characters.next()?.1 {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                c @ ('"' | '\\' | '$' | '`') => value.push(c),
                c => value.extend(['\\', c]),
            },
            (_, c) => value.push(c),
        }
    };
    let behind = &text[end..];
    let line = behind.split('\n').next().unwrap_or_default().trim();
    (line.is_empty() || line.starts_with('#')).then(|| (value, &behind[line_behind(behind)..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_as_dotenv_does() {
        let text = "\u{feff}# a comment\n\nA=1\nexport B = two words # comment\nC='single $X \\n'\nD=\"a\\nb \\\"q\\\" $X\"\r\n\
                    E=\nF=a#b\nG=\"line one\nline two\" # comment\nH=`back \"tick\"`\nA=2\nI=x=y=z\nJ=";
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "single $X \\n"),
            ("D", "a\nb \"q\" $X"),
            ("E", ""),
            ("F", "a#b"),
            ("G", "line one\nline two"),
            ("H", "back \"tick\""),
            ("A", "2"),
            ("I", "x=y=z"),
            ("J", ""),
        ];
        let read = parse_env_file(text).unwrap();
        let read: Vec<(&str, &str)> = read.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(read, expected);
        assert_eq!(parse_env_file("A=1\r\nB=2\r\n").unwrap()[0].1, "1");
    }

    #[test]
    fn names_the_line_that_is_wrong() {
        for (text, line) in [
            ("A", 1),
            ("A=1\nnope\n", 2),
            ("\n\n1A=2", 3),
            ("=x", 1),
            ("A=1\nB=\"open\nC=2", 2),
            ("A='x' y", 1),
            ("A B=c", 1),
            ("# c\nA='x'\nB C=1", 3),
        ] {
            assert_eq!(parse_env_file(text), Err(line), "{text}");
        }
    }
}
