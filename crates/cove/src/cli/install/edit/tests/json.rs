//! JSON with everything that editors put into it.

use super::*;

const KEYS: &[&str] = &["mcpServers", "cove"];

fn set_json(before: &str) -> String {
    set_in(Format::Json, KEYS, before)
}

#[track_caller]
fn check(before: &str, after: &str) {
    assert_eq!(set_json(before), after, "from {before}");
}

#[test]
fn adds_a_member_beside_the_others() {
    check(
        r#"{
    // servers
    "mcpServers": {
        "a": { "command": "a" } // the first
        // and no more
    },
    "theme": "dark" /* at night */
}
"#,
        r#"{
    // servers
    "mcpServers": {
        "a": { "command": "a" }, // the first
        // and no more
        "cove": {
            "command": "/b/cove",
            "args": ["serve"]
        }
    },
    "theme": "dark" /* at night */
}
"#,
    );
    check(
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {},\r\n\t},\r\n}",
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {},\r\n\t\t\"cove\": {\r\n\t\t\t\"command\": \"/b/cove\",\r\n\t\t\t\
         \"args\": [\"serve\"]\r\n\t\t},\r\n\t},\r\n}",
    );
}

#[test]
fn creates_missing_containers() {
    let whole = "{\n  \"mcpServers\": {\n    \"cove\": {\n      \"command\": \"/b/cove\",\n      \"args\": \
                 [\"serve\"]\n    }\n  }\n}";
    check("", &format!("{whole}\n"));
    check("{}", whole);
    check("{}\n", &format!("{whole}\n"));
    check("\u{feff}{}", &format!("\u{feff}{whole}"));
    check("// mine\n", &format!("// mine\n{whole}\n"));
    check("/* mine */", &format!("/* mine */\n{whole}\n"));
    check("{\n}", whole);
    let entry =
        "\"mcpServers\": {\n    \"cove\": {\n      \"command\": \"/b/cove\",\n      \"args\": [\"serve\"]\n    }\n  }";
    check("{\n  \"a\": 1\n}\n", &format!("{{\n  \"a\": 1,\n  {entry}\n}}\n"));
    check("{\n  // all\n}\n", &format!("{{\n  // all\n  {entry}\n}}\n"));
}

#[test]
fn one_line_stays_one_line() {
    check(
        r#"{"mcpServers":{"a":{"command":"a"}}}"#,
        r#"{"mcpServers":{"a":{"command":"a"},"cove":{"command":"/b/cove","args":["serve"]}}}"#,
    );
    check(r#"{"mcpServers": {}}"#, r#"{"mcpServers": {"cove": {"command": "/b/cove", "args": ["serve"]}}}"#);
    check(r#"{"a": 1}"#, r#"{"a": 1, "mcpServers": {"cove": {"command": "/b/cove", "args": ["serve"]}}}"#);
}

#[test]
fn an_entry_of_ours_is_made_right_and_keeps_what_was_added() {
    check(
        r#"{
  "mcpServers": {
    "cove": {
      // moved
      "command": "/old/cove", "args": [ "serve",
        "--memory", "1g" ],
      "env": { "COVE_LOG_LEVEL": "debug" }, // mine
      "alwaysAllow": ["run"]
    },
    "b": {}
  }
}"#,
        r#"{
  "mcpServers": {
    "cove": {
      // moved
      "command": "/b/cove", "args": ["serve"],
      "env": { "COVE_LOG_LEVEL": "debug" }, // mine
      "alwaysAllow": ["run"]
    },
    "b": {}
  }
}"#,
    );
    check(
        "{\n  \"mcpServers\": {\n    \"cove\": {\n      \"command\": \"cove\"\n    }\n  }\n}",
        "{\n  \"mcpServers\": {\n    \"cove\": {\n      \"command\": \"/b/cove\",\n      \"args\": [\"serve\"]\n    }\n  }\n}",
    );
}

/// Every mix of line ends, indentations, commas, comments and neighbours.
#[test]
fn taking_it_out_gives_the_bytes_that_were_there() {
    let mut count = 0;
    for members in ["", "A", "A,", "A, B", "A, B,"] {
        for (first, second) in [("", ""), (" // a", ""), ("", " /* b, */"), (" // x, y", " // \"z\": {}")] {
            for indent in ["  ", "    ", "\t"] {
                for line_end in ["\n", "\r\n"] {
                    for last in ["", "\n", "\n\n"] {
                        for bom in ["", "\u{feff}"] {
                            let (two, three) = (indent.repeat(2), indent.repeat(3));
                            let member = |name: &str, comment: &str, comma: &str| {
                                format!("\n{two}\"{name}\": {{\n{three}\"command\": \"x\"\n{two}}}{comma}{comment}")
                            };
                            let inner = match members {
                                "" => String::new(),
                                "A" => member("a", first, "") + "\n" + indent,
                                "A," => member("a", first, ",") + "\n" + indent,
                                "A, B" => member("a", first, ",") + &member("b", second, "") + "\n" + indent,
                                _ => member("a", first, ",") + &member("b", second, ",") + "\n" + indent,
                            };
                            let text = format!(
                                "{bom}{{\n{indent}\"x\": [1, 2],{first}\n{indent}\"mcpServers\": {{{inner}}}\n}}{last}"
                            );
                            there_and_back(Format::Json, KEYS, &text.replace('\n', line_end));
                            count += 1;
                        }
                    }
                }
            }
        }
    }
    assert_eq!(count, 5 * 4 * 3 * 2 * 3 * 2);
    for text in [
        r#"{"mcpServers":{}}"#,
        r#"{"mcpServers": {"a": 1}}"#,
        r#"{"mcpServers": {"a": 1,}}"#,
        r#"{ "mcpServers" : { "a" : 1 } }"#,
        "{\"mcpServers\": {\"a\": 1 // c\n}}",
        "{\"mcpServers\": {\n\"a\": 1}}",
        "{\"mcpServers\": {\"a\": 1,\n    \"b\": 2}\n}",
        "{\"mcpServers\": {\n  \"a\": 1,\n  // last, \"b\": {}\n}}",
        "{\"mcpServers\": { /* , */ }}",
        "{\n  \"mcpServers\": {\n    // none, yet\n  }\n}",
    ] {
        there_and_back(Format::Json, KEYS, text);
    }
}

#[test]
fn removes_the_entry_wherever_it_stands() {
    let check = |before: &str, after: &str| {
        assert_eq!(removed(Format::Json, KEYS, before), after, "from {before}");
    };
    check(r#"{"mcpServers": {"cove": {}, "b": 1}}"#, r#"{"mcpServers": { "b": 1}}"#);
    check(r#"{"mcpServers": {"a": 1, "cove": {}, "b": 1}}"#, r#"{"mcpServers": {"a": 1, "b": 1}}"#);
    check(
        "{\"mcpServers\": {\n  \"a\": 1, // a\n  \"cove\": {} /* x */, // c\n  \"b\": 2\n}}",
        "{\"mcpServers\": {\n  \"a\": 1, // a /* x */ // c\n  \"b\": 2\n}}",
    );
    // The rest of the line must not become part of a comment.
    check(
        "{\"mcpServers\": {\n  \"a\": 1, // a\n  \"cove\": {}, \"b\": 2\n}}",
        "{\"mcpServers\": {\n  \"a\": 1, // a\n   \"b\": 2\n}}",
    );
    check("{\"mcpServers\": {\n  \"a\": 1, // a\n  \"cove\": {}}}", "{\"mcpServers\": {\n  \"a\": 1 // a\n  }}");
    check("{\"mcpServers\": {\n  // mine\n  \"cove\": {}\n}}", "{\"mcpServers\": {\n  // mine\n}}");
    assert!(remove(&read(Format::Json, "{}"), &path(KEYS)).unwrap().is_none());
    assert!(remove(&read(Format::Json, ""), &path(KEYS)).unwrap().is_none());
}

#[test]
fn a_project_of_claude_code_is_a_key_like_any_other() {
    let keys = ["projects", "/a b/\"c\".d", "mcpServers", "cove"];
    let before = "{\n  \"projects\": {\n    \"/other\": {\n      \"mcpServers\": {}\n    }\n  }\n}\n";
    let after = set_in(Format::Json, &keys, before);
    assert!(
        after.contains("\n    },\n    \"/a b/\\\"c\\\".d\": {\n      \"mcpServers\": {\n        \"cove\": {"),
        "{after}"
    );
    let empty = removed(Format::Json, &keys, &after);
    assert!(empty.contains("\"/a b/\\\"c\\\".d\": {\n      \"mcpServers\": {}\n    }"), "{empty}");
}

#[test]
fn a_key_with_a_dot_is_one_key() {
    let after = set_in(Format::Json, &["amp.mcpServers", "cove"], "{}");
    assert!(after.starts_with("{\n  \"amp.mcpServers\": {\n    \"cove\": {"), "{after}");
}

#[test]
fn refuses_values_that_are_not_objects() {
    let check = |text: &str, cause: &str| assert_eq!(refused(Format::Json, KEYS, text), cause, "{text}");
    check("[]", "line 1 column 1: it holds a list where an object should be");
    check(" 1", "line 1 column 2: it holds a number where an object should be");
    check(r#"{"mcpServers": "x"}"#, "line 1 column 16: `mcpServers` is a string, not an object");
    check(r#"{"mcpServers": null}"#, "line 1 column 16: `mcpServers` is null, not an object");
    check(r#"{"mcpServers": []}"#, "line 1 column 16: `mcpServers` is a list, not an object");
    check(r#"{"mcpServers": {}, "mcpServers": {}}"#, "line 1 column 20: `mcpServers` is there a second time");
    check(r#"{"mcpServers": {"cove": {}, "cove": {}}}"#, "line 1 column 29: `mcpServers.cove` is there a second time");
    // Duplicate keys elsewhere do not matter.
    there_and_back(Format::Json, KEYS, r#"{"a": 1, "a": 2, "mcpServers": {"b": 1, "b": 2}}"#);
}

#[test]
fn names_line_and_column_of_a_syntax_error() {
    let check = |text: &str, line: usize, column: usize| {
        let cause = refused(Format::Json, KEYS, text);
        let start = format!("line {line} column {column}: it is not valid JSON: ");
        assert!(cause.starts_with(&start), "{text}: {cause}");
    };
    check("{", 1, 1);
    check("{\n  \"a\": 1\n  \"b\": 2\n}", 2, 9);
    check("\u{feff}{ é }", 1, 3);
    check("{\"a\": 'x'}", 1, 7);
    check("{a: 1}", 1, 2);
    check("{\"a\": 0x1}", 1, 7);
    check("{} {}", 1, 4);
}

#[test]
fn limits_the_depth() {
    let nested = |depth: usize| format!("{{\"a\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
    there_and_back(Format::Json, &["a", "cove"], r#"{"a": {}}"#);
    assert!(set_json(&nested(200)).contains("cove"));
    for depth in [1_000, 1_000_000] {
        assert!(refused(Format::Json, KEYS, &nested(depth)).contains("it is not valid JSON"));
    }
    let objects = "{\"a\":".repeat(100_000);
    assert!(refused(Format::Json, KEYS, &objects).contains("it is not valid JSON"));
}
