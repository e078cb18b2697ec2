//! The configuration file: which one, and what it says by key, each value with its line. It knows keys and shapes; what
//! a value means is the setting's own business.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Count, Entry, Fallback, SETTINGS, Setting, Surroundings};
use crate::error::{Error, shown, shown_path};

/// More than anybody writes by hand.
const MAX_FILE: u64 = 1024 * 1024;

/// Tables of upstream servers, which are not settings.
const SERVERS: &str = "servers";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: PathBuf,
    /// By key: its line and its values.
    pub(super) entries: BTreeMap<&'static str, (usize, Vec<Entry>)>,
}

impl File {
    /// The named file, which must exist; else the person's own, if there is one.
    pub(super) fn find(flag: Option<&str>, around: &Surroundings) -> Result<Self, Error> {
        let named = named(flag, around)?;
        let Some(path) = place(flag, around)? else {
            return Ok(Self::default());
        };
        let unreadable = || format!("could not read the configuration file `{}`", shown_path(&path));
        match (read(&path), named) {
            (Ok(text), _) => Self::parse(path, &text),
            (Err(error), None) if is_missing(&error) => Ok(Self::default()),
            (Err(error), Some(_)) if is_missing(&error) => Err(Error::usage(unreadable())
                .because("it does not exist")
                .with_hint("name a file that exists with `--config` or `COVE_CONFIG`, or leave both out")),
            (Err(error), _) => Err(Error::usage(unreadable())
                .because(error)
                .with_hint("make it readable, or go without one: `--config /dev/null`")),
        }
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, Error> {
        let shown_path = shown_path(&path);
        let line = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
        let table = DeTable::parse(text).map_err(|error| {
            let line = line(error.span().map_or(0, |span| span.start));
            Error::usage(format!("could not read the configuration file `{shown_path}`"))
                .because(format!("line {line}: {}", error.message()))
                .with_hint("the file is TOML, with lines such as `memory = \"512m\"`")
        })?;
        let mut pairs: Vec<(&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)> =
            table.get_ref().iter().collect();
        // The table is in the order of its keys; the first mistake of the file is the one to report.
        pairs.sort_by_key(|(key, _)| key.span().start);

        let mut entries = BTreeMap::new();
        for (key, value) in pairs {
            let key_line = line(key.span().start);
            let key = key.get_ref().as_ref();
            // Tables of their own, read by `upstream`: a mistake in one must not take the others with it.
            if key == SERVERS {
                continue;
            }
            let written = |value: &Spanned<DeValue<'_>>| {
                let place = format!("in `{shown_path}`, line {}", line(value.span().start));
                match value.get_ref() {
                    DeValue::Table(_) => format!("`{}` {place}", shown(key)),
                    _ => format!("`{} = {}` {place}", shown(key), shown(&text[value.span()])),
                }
            };
            let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else {
                let shown_key = shown(key);
                return Err(Error::usage(format!(
                    "could not read `{shown_key}` in `{shown_path}`, line {key_line}"
                ))
                .because(format!("`{shown_key}` is not a setting"))
                .with_hint(suggestion(key)));
            };
            let entry = |value: &Spanned<DeValue<'_>>, text: Option<String>| {
                text.map(|text| Entry { text, written: written(value) }).ok_or_else(|| {
                    Error::usage(format!("could not read {}", written(value)))
                        .because(format!("`{key}` cannot be of type {}", value.get_ref().type_str()))
                        .with_hint(format!("write `{}`", example(setting)))
                })
            };
            let values = match (setting.count, value.get_ref()) {
                (Count::Many, DeValue::Array(values)) => values
                    .iter()
                    .map(|value| entry(value, value.get_ref().as_str().map(str::to_owned)))
                    .collect::<Result<_, _>>()?,
                (Count::Many, _) => vec![entry(value, None)?],
                (Count::One, scalar) => vec![entry(value, scalar_text(scalar))?],
            };
            entries.insert(setting.key, (key_line, values));
        }
        Ok(Self { path, entries })
    }
}

fn named<'a>(flag: Option<&'a str>, around: &'a Surroundings) -> Result<Option<&'a str>, Error> {
    match flag {
        Some(path) => Ok(Some(path)),
        None => around.var("COVE_CONFIG"),
    }
}

/// Where the configuration file is, whether or not it exists.
pub(super) fn place(flag: Option<&str>, around: &Surroundings) -> Result<Option<PathBuf>, Error> {
    if let Some(path) = named(flag, around)? {
        return Ok(Some(around.cwd.join(path)));
    }
    let configs = around.directory("XDG_CONFIG_HOME").map(Path::to_owned);
    let configs = configs.or_else(|| Some(around.home()?.join(".config")));
    Ok(configs.map(|configs| configs.join("cove/cove.toml")))
}

/// Also when what should be its directory is a file: daemons are given `HOME=/dev/null`.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// Numbers may be written bare; they are read as their text would be.
pub(crate) fn scalar_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => {
            // What does not fit is left for the setting to refuse, in its own words.
            let decimal = i128::from_str_radix(number.as_str(), number.radix()).ok();
            Some(decimal.map_or_else(|| number.to_string(), |number| number.to_string()))
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn example(setting: &Setting) -> String {
    let value = match setting.fallback {
        Fallback::Value(text) => text,
        Fallback::Absent { .. } => setting.placeholder,
    };
    match setting.count {
        Count::One => format!("{} = \"{value}\"", setting.key),
        Count::Many => format!("{} = [\"{value}\"]", setting.key),
    }
}

/// The nearest key, or all of them when none is near.
fn suggestion(wrong: &str) -> String {
    if distance(SERVERS, &plain(wrong)) <= 2 {
        return format!("did you mean `[{SERVERS}.NAME]`?");
    }
    match nearest(wrong, SETTINGS.iter().map(|setting| setting.key)) {
        Some(key) => format!("did you mean `{key}`?"),
        None => {
            let keys: Vec<String> = SETTINGS.iter().map(|setting| format!("`{}`", setting.key)).collect();
            format!("settings are {}", keys.join(", "))
        }
    }
}

fn plain(written: &str) -> String {
    written.to_lowercase().replace('_', "-")
}

/// The one that was likely meant, if one is near.
pub(crate) fn nearest<'a>(wrong: &str, keys: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = plain(wrong);
    let near = |key: &str| {
        let starts_alike = plain.len() >= 3 && (key.starts_with(&plain) || plain.starts_with(key));
        if starts_alike { 1 } else { distance(key, &plain) }
    };
    let nearest = keys.into_iter().map(|key| (near(key), key)).min();
    nearest.filter(|(distance, key)| *distance <= 1 + key.len() / 4).map(|(_, key)| key)
}

/// How many letters to insert, leave out or replace (Levenshtein).
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions() {
        let cases = [
            ("memroy", "memory"),
            ("Memory", "memory"),
            ("mem", "memory"),
            ("pids", "pids-limit"),
            ("pids_limit", "pids-limit"),
            ("mounts", "mount"),
            ("max_timout", "max-timeout"),
            ("time-out", "timeout"),
            ("cpu", "cpus"),
        ];
        for (wrong, right) in cases {
            assert_eq!(suggestion(wrong), format!("did you mean `{right}`?"), "`{wrong}`");
        }
        assert_eq!(suggestion("server"), "did you mean `[servers.NAME]`?");
        assert!(suggestion("colour-scheme").starts_with("settings are `backend`, "));
        assert!(suggestion("").starts_with("settings are "));
    }

    #[test]
    fn values_and_lines() {
        let text = "# comment\nmemory = \"1g\"\npids-limit = 0x10\ncpus = 0.5\nmount = [\n  'a:/b',\n  \"c:/d\",\n]\nmax-output = 20_000\n";
        let file = File::parse("/etc/cove.toml".into(), text).unwrap();
        let texts = |key: &str| {
            let (line, entries) = &file.entries[key];
            (*line, entries.iter().map(|entry| entry.text.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(texts("memory"), (2, vec!["1g"]));
        assert_eq!(texts("pids-limit"), (3, vec!["16"]));
        assert_eq!(texts("cpus"), (4, vec!["0.5"]));
        assert_eq!(texts("mount"), (5, vec!["a:/b", "c:/d"]));
        assert_eq!(texts("max-output"), (9, vec!["20000"]));
        assert_eq!(file.entries["mount"].1[1].written, "`mount = \"c:/d\"` in `/etc/cove.toml`, line 7");
    }

    #[test]
    fn servers_are_left_to_others() {
        let text = "memory = \"1g\"\n[servers.x]\ncommand = 1\nnonsense = true\n";
        let file = File::parse("/etc/cove.toml".into(), text).unwrap();
        assert_eq!(file.entries.keys().collect::<Vec<_>>(), [&"memory"]);
    }

    #[test]
    fn a_file_may_be_empty() {
        assert!(File::parse("/etc/cove.toml".into(), "").unwrap().entries.is_empty());
    }
}
