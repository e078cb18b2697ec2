//! The same document in three formats, and where its parts stand.

use super::*;

fn parse(format: DocumentFormat, text: &str) -> ConfigDocument {
    ConfigDocument::parse(format, text).unwrap_or_else(|error| panic!("{error:?} in {text}"))
}

#[test]
fn all_formats_give_the_same_tree() {
    let json = parse(DocumentFormat::Json, "\u{feff}// c\n{\n  \"a\": {\"b\": [1, \"x\", true],},\n  \"c\": null\n}");
    let yaml = parse(DocumentFormat::Yaml, "# c\n---\na:\n  b: [1, 'x', true]\nc:\n# end\n");
    let toml = parse(DocumentFormat::Toml, "# c\n\n[a]\nb = [0x1, 'x', true]\n");
    assert_eq!(json.root(), yaml.root());
    assert_eq!(json.members()[0], toml.members()[0]);
    for document in [&json, &yaml, &toml] {
        let list = document.members()[0].node.get("b").unwrap();
        let items = list.items().unwrap();
        let found = (items[0].text_or_number(), items[1].text(), items[2].boolean());
        assert_eq!(found, (Some("1"), Some("x"), Some(true)));
        assert_eq!(document.members()[0].line, 3);
        assert!(document.text()[items[1].range.clone()].contains('x'));
        assert_eq!((list.kind(), items[0].kind(), items[1].kind()), ("a list", "a number", "a string"));
    }
    assert!(json.file_text().starts_with('\u{feff}') && !json.text().starts_with('\u{feff}'));
    assert!(json.members()[1].node.is_null());
}

#[test]
fn a_text_without_a_value_has_no_root() {
    for text in ["", "// c\n"] {
        assert!(parse(DocumentFormat::Json, text).root().is_none(), "{text}");
    }
    for text in ["", "# c\n", "---\n"] {
        assert!(parse(DocumentFormat::Yaml, text).root().is_none(), "{text}");
    }
    assert_eq!(parse(DocumentFormat::Toml, "# c\n").members(), []);
}

#[test]
fn toml_keeps_the_order_of_the_file_and_knows_its_headers() {
    let document = parse(DocumentFormat::Toml, "z = 1979-05-27\na.b = 20_000\n[y] # c\n[[x]]\n[[x]]\n");
    let source = |member: &DocumentMember| &document.text()[member.node.range.clone()];
    let members: Vec<(&str, &str, usize)> =
        document.members().iter().map(|member| (member.key.as_str(), source(member), member.line)).collect();
    assert_eq!(members, [("z", "1979-05-27", 1), ("a", "a", 2), ("y", "[y]", 3), ("x", "[[x]]", 4)]);
    assert_eq!(document.members()[0].node.kind(), "a date or time");
    assert_eq!(document.members()[1].node.get("b").unwrap().text_or_number(), Some("20000"));
    let quote = |index: usize| document.quote(&document.members()[index].key, &document.members()[index].node);
    assert_eq!((quote(0), quote(2)), ("`z = 1979-05-27`".into(), "`y`".into()));
}

#[test]
fn yaml_values_end_with_their_own_text() {
    let text = "a:\n  # c\nb:\n- x\n-\n# d\nc: {e: 1} # f\n";
    let document = parse(DocumentFormat::Yaml, text);
    let ends: Vec<&str> = document.members().iter().map(|member| &text[..member.node.range.end]).collect();
    assert!(ends[0].ends_with('a') && ends[2].ends_with("{e: 1}"), "{ends:?}");
    assert_eq!(document.members()[1].node.items().unwrap().len(), 2);
}

#[test]
fn errors_name_line_and_column() {
    for (format, text, place) in [
        (DocumentFormat::Json, "{\n  \"a\": }", (2, 8)),
        (DocumentFormat::Toml, "a = 1\na = 2\n", (2, 1)),
        (DocumentFormat::Yaml, "a: 1\n---\nb: 1\n", (2, 1)),
        (DocumentFormat::Yaml, "a: 1\r\nb: 1\rc: 1\n", (2, 5)),
    ] {
        let error = ConfigDocument::parse(format, text).unwrap_err();
        assert_eq!((error.line, error.column), place, "{format}: {error:?}");
        assert!(!error.message.is_empty() && !error.message.contains('\n'), "{error:?}");
    }
}

#[test]
fn positions_count_as_editors_do() {
    assert_eq!(position("", 0), (1, 1));
    assert_eq!(position("é\nab", 4), (2, 2));
    assert_eq!(position("a", 99), (1, 2));
}

#[test]
fn unknown_keys_get_the_nearest_known_one() {
    let known = ["command", "args"];
    assert_eq!(unknown_key_hint("commnd", &known), "did you mean `command`?");
    assert_eq!(unknown_key_hint("colour", &known), "known keys are `command`, `args`");
}
