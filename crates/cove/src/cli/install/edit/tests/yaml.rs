//! YAML in blocks, in braces, and in between.

use super::*;

const KEYS: &[&str] = &["extensions", "cove"];
const LINES: &str = "  cove:\n    command: /b/cove\n    args: [\"serve\"]\n";

#[track_caller]
fn check(before: &str, after: &str) {
    assert_eq!(set_in(Format::Yaml, KEYS, before), after, "from {before}");
}

#[test]
fn adds_lines_after_the_others() {
    check("", &format!("extensions:\n{LINES}"));
    check("# mine\n", &format!("# mine\nextensions:\n{LINES}"));
    check("a: 1\n", &format!("a: 1\nextensions:\n{LINES}"));
    check("a: 1", &format!("a: 1\nextensions:\n{}", LINES.trim_end()));
    check("extensions: {} # none\nb: 2\n", &format!("extensions: # none\n{LINES}b: 2\n"));
    check("extensions:\nb: 2\n", &format!("extensions:\n{LINES}b: 2\n"));
    check(
        "extensions:\n  a:\n    cmd: x # why\n    args:\n    - y\n    - z # last\n\n# about b\nb: 2\n",
        &format!("extensions:\n  a:\n    cmd: x # why\n    args:\n    - y\n    - z # last\n{LINES}\n# about b\nb: 2\n"),
    );
    check("extensions: {a: {cmd: x}}\n", "extensions: {a: {cmd: x}, cove: {command: /b/cove, args: [\"serve\"]}}\n");
    check(
        "extensions:\r\n    a: 1\r\n",
        "extensions:\r\n    a: 1\r\n    cove:\r\n      command: /b/cove\r\n      args: [\"serve\"]\r\n",
    );
}

#[test]
fn taking_it_out_gives_the_bytes_that_were_there() {
    for text in [
        "extensions: {}\n",
        "extensions: {}",
        "extensions: {a: 1}\n",
        "extensions: {a: 1, }\n",
        "extensions:\n  a: 1\n",
        "extensions:\n  a: 1",
        "a: &x 1\nextensions:\n    b:\n        c: *x\n        d:\n\n        # deep\n    # less\n# none\n",
        "extensions:\n  a:\n    text: |\n      one\n\n      two\n  # after\nb: 2\n",
        "extensions:\n  a:\n    text: |\n      one",
        "extensions:\n  a:\n    list:\n      - 1\n      - k: 2\n        m: 3\nb:\n- 1\n",
        "---\nextensions:\n  \"a\": 'x' # y\n...\n",
        "%YAML 1.2\n---\nextensions:\n  a: >-\n    folded\n    text\n\n\nz: 1\n",
        "extensions:\n  a: [1,\n    2]\nb: {\n  c: 1\n}\n",
        "é: ü\nextensions:\n  ñ: 1\n",
    ] {
        for line_end in ["\n", "\r\n"] {
            for bom in ["", "\u{feff}"] {
                there_and_back(Format::Yaml, KEYS, &format!("{bom}{}", text.replace('\n', line_end)));
            }
        }
    }
}

#[test]
fn removes_the_entry_wherever_it_stands() {
    let check = |before: &str, after: &str| {
        assert_eq!(removed(Format::Yaml, KEYS, before), after, "from {before}");
    };
    check("extensions:\n  cove:\n    a: 1\n  # b\n  b: 2\n", "extensions:\n  # b\n  b: 2\n");
    check("extensions: # all\n  cove:\n    a: 1\nb: 2\n", "extensions: {} # all\nb: 2\n");
    check("extensions: {cove: {a: 1}, b: 2}\n", "extensions: {b: 2}\n");
    check("extensions: {cove: {a: 1}}\n", "extensions: {}\n");
}

#[test]
fn an_entry_of_ours_is_made_right_and_keeps_what_was_added() {
    check(
        "extensions:\n  cove:\n    enabled: false # for now\n    command: \"/old/cove\" # x\n    args:\n      - serve\n      - more\n    envs:\n      A: b\n",
        "extensions:\n  cove:\n    enabled: false # for now\n    command: /b/cove # x\n    args:\n      [\"serve\"]\n    envs:\n      A: b\n",
    );
    check(
        "extensions:\n  cove:\n    command: cove\nb: 1\n",
        "extensions:\n  cove:\n    command: /b/cove\n    args: [\"serve\"]\nb: 1\n",
    );
}

#[test]
fn quotes_words_with_another_meaning() {
    let alone = |text: &str| {
        let entry = ClientEntry { fixed: vec![DocumentMember::new("a", text)], initial: Vec::new() };
        entry_alone(Format::Yaml, &path(&["x"]), &entry).unwrap()
    };
    assert_eq!(alone("/usr/bin/cove"), "x:\n  a: /usr/bin/cove\n");
    for text in
        ["", "yes", "No", "null", "1.5", "a b", "a: b", "- a", "#a", "*a", "a\nb", "~", "=", "\u{85}", "'", "😀"]
    {
        assert_eq!(alone(text), format!("x:\n  a: {}\n", layout::quoted(text)));
    }
}

#[test]
fn refuses_files_without_room() {
    let check = |text: &str, start: &str, part: &str| {
        let cause = refused(Format::Yaml, KEYS, text);
        assert!(cause.starts_with(start) && cause.contains(part), "{text}: {cause}");
    };
    let invalid = "it is not valid YAML: ";
    check("- a\n", "line 1 column 1: it holds a list where an object should be", "");
    check("extensions: x\n", "line 1 column 13: `extensions` is a string, not an object", "");
    check("a: &a {}\nextensions: *a\n", "line 2 column 13: `extensions` is an alias, not an object", "");
    let properties = "line 1 column 1: the servers have an anchor or a tag";
    check("extensions: &a\nother: *a\n", properties, "");
    check("extensions: &a {}\nother: *a\n", properties, "");
    check("extensions: &a\n  x: {}\nother: *a\n", properties, "");
    check("extensions: # note\n\n  !!map\n  x: {}\n", properties, "");
    check("extensions: {}\nextensions: {}\n", "line 2 column 1: `extensions` is there a second time", "");
    check("a: 1\n---\nb: 1\n", "line 2 ", invalid);
    check("a: b: c\n", "line 1 ", invalid);
    check("a:\n\t- b\n", "line 2 ", invalid);
    check("a: 'x\n", "", invalid);
    check(&"[".repeat(100_000), "", invalid);
    check(&format!("a: {}{}", "[".repeat(1_000), "]".repeat(1_000)), "", invalid);
    let deep: String = (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    check(&deep, "", invalid);
}
