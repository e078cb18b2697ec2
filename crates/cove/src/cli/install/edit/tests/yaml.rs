//! YAML in blocks, in braces, and in between.

use super::*;

const KEYS: &[&str] = &["extensions", "cove"];
const LINES: &str = "  cove:\n    command: /b/cove\n    args: [\"serve\"]\n";

#[track_caller]
fn check(before: &str, after: &str) {
    assert_eq!(set(Format::Yaml, KEYS, before), after, "from {before}");
}

#[test]
fn lines_join_the_others() {
    check("", &format!("extensions:\n{LINES}"));
    check("# mine\n", &format!("# mine\nextensions:\n{LINES}"));
    check("a: 1\n", &format!("a: 1\nextensions:\n{LINES}"));
    check("a: 1", &format!("a: 1\nextensions:\n{}", LINES.trim_end()));
    check("extensions: {} # none\nb: 2\n", &format!("extensions: # none\n{LINES}b: 2\n"));
    check("extensions:\nb: 2\n", &format!("extensions:\n{LINES}b: 2\n"));
    check(
        "extensions:\n  a:\n    cmd: x # why\n    args:\n    - y\n    - z # last\n\n# about b\nb: 2\n",
        &format!(
            "extensions:\n  a:\n    cmd: x # why\n    args:\n    - y\n    - z # last\n{LINES}\n# about b\nb: 2\n"
        ),
    );
    check(
        "extensions: {a: {cmd: x}}\n",
        "extensions: {a: {cmd: x}, cove: {command: /b/cove, args: [\"serve\"]}}\n",
    );
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
fn it_is_taken_out_wherever_it_stands() {
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
fn words_that_mean_something_else_are_quoted() {
    let alone = |text: &str| {
        let entry = Entry { fixed: vec![("a".to_owned(), Plain::text(text))], initial: Vec::new() };
        Format::Yaml.alone(&path(&["x"]), &entry).unwrap()
    };
    assert_eq!(alone("/usr/bin/cove"), "x:\n  a: /usr/bin/cove\n");
    for text in [
        "", "yes", "No", "null", "1.5", "a b", "a: b", "- a", "#a", "*a", "a\nb", "~", "=", "\u{85}", "'",
        "😀",
    ] {
        assert_eq!(alone(text), format!("x:\n  a: {}\n", crate::cli::install::tree::quoted(text)));
    }
}

#[test]
fn what_has_no_room_is_left_alone() {
    let check = |text: &str, wrong: &str| {
        let found = format!("{:?}", refused(Format::Yaml, KEYS, text));
        assert!(found.starts_with(wrong), "{text}: {found}");
    };
    check("- a\n", "Blocked(NoMap { path: [], at: 0, found: \"an array\"");
    check("extensions: x\n", "Blocked(NoMap");
    check("a: &a {}\nextensions: *a\n", "Blocked(NoMap");
    check("extensions: {}\nextensions: {}\n", "Blocked(Twice");
    check("a: 1\n---\nb: 1\n", "Unreadable(Unreadable { line: 2");
    check("a: b: c\n", "Unreadable(Unreadable { line: 1");
    check("a:\n\t- b\n", "Unreadable(Unreadable { line: 2");
    check("a: 'x\n", "Unreadable(");
    check(&"[".repeat(100_000), "Unreadable(");
    check(&format!("a: {}{}", "[".repeat(1_000), "]".repeat(1_000)), "Unreadable(");
    let deep: String = (0..2_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    check(&deep, "Unreadable(");
}
