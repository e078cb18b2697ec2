//! Files before and after: what each format looks like with our entry, and that taking it out again gives the bytes that
//! were there.

use super::*;

mod json;
mod toml;
mod yaml;

fn entry() -> Entry {
    let args = Plain::List(vec!["serve".to_owned()]);
    Entry {
        fixed: vec![("command".to_owned(), Plain::text("/b/cove")), ("args".to_owned(), args)],
        initial: Vec::new(),
    }
}

fn path(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[track_caller]
fn read(format: Format, text: &str) -> Document {
    Document::read(format, text).unwrap_or_else(|wrong| panic!("{wrong:?} in {text}"))
}

/// The text with the entry, which read and set once more is the same.
#[track_caller]
fn set(format: Format, keys: &[&str], before: &str) -> String {
    let path = path(keys);
    let after = match read(format, before).set(&path, &entry()) {
        Ok(document) => document.whole_text(),
        Err(wrong) => panic!("{wrong:?} in {before:?}"),
    };
    let again = read(format, &after).set(&path, &entry()).unwrap().whole_text();
    assert_eq!(again, after);
    after
}

#[track_caller]
fn removed(format: Format, keys: &[&str], text: &str) -> String {
    read(format, text).removed(&path(keys)).unwrap().expect("it is there").whole_text()
}

/// In and out again, which must give the same bytes.
#[track_caller]
fn there_and_back(format: Format, keys: &[&str], before: &str) {
    let after = set(format, keys, before);
    assert_eq!(removed(format, keys, &after), before, "by way of {after}");
}

#[track_caller]
fn refused(format: Format, keys: &[&str], text: &str) -> Unwritable {
    match Document::read(format, text) {
        Err(wrong) => wrong.into(),
        Ok(document) => document.set(&path(keys), &entry()).unwrap_err(),
    }
}

#[test]
fn an_entry_alone_is_a_whole_file() {
    let alone = |format: Format, keys: &[&str]| format.alone(&path(keys), &entry()).unwrap();
    assert_eq!(
        alone(Format::Toml, &["mcp_servers", "cove"]),
        "[mcp_servers.cove]\ncommand = \"/b/cove\"\nargs = [\"serve\"]\n"
    );
    assert_eq!(
        alone(Format::Yaml, &["extensions", "cove"]),
        "extensions:\n  cove:\n    command: /b/cove\n    args: [\"serve\"]\n"
    );
}

#[test]
fn places_are_counted_as_editors_do() {
    assert_eq!(place("", 0), (1, 1));
    assert_eq!(place("é\nab", 4), (2, 2));
    assert_eq!(place("a", 99), (1, 2));
}
