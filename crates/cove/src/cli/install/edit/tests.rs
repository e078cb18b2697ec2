//! Files before and after: each format with Cove's entry in it, and the same bytes as before once it is out again.

use super::*;
use cove_core::document::DocumentFormat as Format;

mod json;
mod taken_entry;
mod toml;
mod yaml;

fn entry() -> ClientEntry {
    let args = DocumentNode::list(["serve".to_owned()]);
    let fixed = vec![DocumentMember::new("command", "/b/cove"), DocumentMember::new("args", args)];
    ClientEntry { fixed, initial: Vec::new() }
}

fn path(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[track_caller]
fn read(format: Format, text: &str) -> ConfigDocument {
    ConfigDocument::parse(format, text).unwrap_or_else(|error| panic!("{error:?} in {text}"))
}

/// The text with the entry. Setting the entry once more changes nothing.
#[track_caller]
fn set_in(format: Format, keys: &[&str], before: &str) -> String {
    let path = path(keys);
    let after = match set(&read(format, before), &path, &entry()) {
        Ok(document) => document.file_text(),
        Err(error) => panic!("{error:?} in {before:?}"),
    };
    let again = set(&read(format, &after), &path, &entry()).unwrap().file_text();
    assert_eq!(again, after);
    after
}

#[track_caller]
fn removed(format: Format, keys: &[&str], text: &str) -> String {
    remove(&read(format, text), &path(keys)).unwrap().expect("it is there").file_text()
}

/// In and out again, which must give the same bytes.
#[track_caller]
fn there_and_back(format: Format, keys: &[&str], before: &str) {
    let after = set_in(format, keys, before);
    assert_eq!(removed(format, keys, &after), before, "by way of {after}");
}

#[track_caller]
fn refused(format: Format, keys: &[&str], text: &str) -> String {
    match ConfigDocument::parse(format, text) {
        Err(error) => unreadable(format, &error).cause,
        Ok(document) => set(&document, &path(keys), &entry()).unwrap_err().cause,
    }
}

#[test]
fn an_entry_alone_is_a_whole_file() {
    let alone = |format: Format, keys: &[&str]| entry_alone(format, &path(keys), &entry()).unwrap();
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
fn strings_are_quoted_for_all_three_formats() {
    let text = "a\"b\\c\n\r\t\u{1}\u{7f}\u{85}\u{2028}\u{feff}é😀";
    let quoted = layout::quoted(text);
    assert_eq!(quoted, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\\u0085\\u2028\\ufeffé😀\"");
    assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
    let table: ::toml::Table = format!("a = {quoted}").parse().unwrap();
    assert_eq!(table["a"].as_str(), Some(text));
}

#[test]
fn splices_apply_in_order() {
    let document = read(Format::Yaml, "abcd");
    let splices = [TextSplice::insert(1, "-"), TextSplice::insert(1, "x"), TextSplice::cut(2..3)];
    assert_eq!(apply(&document, &splices).unwrap().text(), "a-xbd");
}

#[test]
fn lines_are_found() {
    let text = "a\r\n  b\nc";
    assert_eq!(line_end(text), "\r\n");
    assert_eq!(line_end("a\nb\r\n"), "\n");
    assert_eq!(line_start(text, 5), 3);
    assert_eq!((next_line(text, 0), next_line(text, 7)), (3, 8));
    assert_eq!((before_line_end(text, 3), before_line_end(text, 7)), (1, 6));
}
