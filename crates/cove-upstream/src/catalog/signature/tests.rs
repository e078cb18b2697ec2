//! Difficult schemas and their exact signatures in Python and TypeScript.

use serde_json::{Value, json};

use super::*;

fn tool(name: &str, input: Value, output: Option<Value>) -> ToolDocument {
    let object = |value: Value| match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is no object"),
    };
    ToolDocument {
        name: name.into(),
        description: "Does it. And more".into(),
        input_schema: object(input),
        output_schema: output.map(object),
        ..Default::default()
    }
}

fn render_signature(language: Language, server: &str, tool: &str, document: &ToolDocument) -> String {
    ToolReference { language, server, tool, document, learned: None }.signature()
}

fn render_stub(language: Language, document: &ToolDocument, detail: CommentDetail) -> String {
    ToolReference { language, server: "s", tool: "t", document, learned: None }.stub(detail)
}

#[track_caller]
fn check(input: Value, python: &str, node: &str) {
    check_all(input, None, python, node);
}

#[track_caller]
fn check_all(input: Value, output: Option<Value>, python: &str, node: &str) {
    let document = tool("t", input, output);
    assert_eq!(render_signature(Language::Python, "s", "t", &document), python);
    assert_eq!(render_signature(Language::Node, "s", "t", &document), node);
}

/// Checks one optional parameter `x` of this schema.
#[track_caller]
fn check_type(schema: Value, python: &str, node: &str) {
    check(
        json!({"type": "object", "properties": {"x": schema}}),
        &format!("mcp.s.t(*, x: {python} = ...) -> Any"),
        &format!("mcp.s.t(input?: {{ x?: {node} }}): Promise<unknown>"),
    );
}

#[test]
fn renders_names_that_are_not_identifiers() {
    check(
        json!({"type": "object", "required": ["from"], "properties": {
            "cik-A": {"type": "integer"}, "from": {"type": "string"}, "Notion-Version": {"type": "string"}
        }}),
        "mcp.s.t(*, from_: str, cik_A: int = ..., Notion_Version: str = ...) -> Any",
        "mcp.s.t(input: { from: string; \"cik-A\"?: number; \"Notion-Version\"?: string }): Promise<unknown>",
    );
    check(
        json!({"type": "object", "properties": {"a-b": {}, "a_b": {}, "class": {}, "2x": {}, "": {}, "é\"\n": {}}}),
        "mcp.s.t(*, a_b_2: Any = ..., a_b: Any = ..., class_: Any = ..., _2x: Any = ..., _: Any = ..., \
         ___: Any = ...) -> Any",
        "mcp.s.t(input?: { \"a-b\"?: unknown; a_b?: unknown; class?: unknown; \"2x\"?: unknown; \"\"?: unknown; \
         \"é\\\"\\n\"?: unknown }): Promise<unknown>",
    );
}

#[test]
fn renders_plain_types() {
    check_type(json!({"type": "string"}), "str", "string");
    check_type(json!({"type": "number"}), "float", "number");
    check_type(json!({"type": "boolean"}), "bool", "boolean");
    check_type(json!({"type": "null"}), "None", "null");
    check_type(json!({"type": "array"}), "list[Any]", "unknown[]");
    check_type(json!({"type": "object"}), "dict[str, Any]", "Record<string, unknown>");
    check_type(json!({}), "Any", "unknown");
    check_type(json!(true), "Any", "unknown");
    check_type(json!(false), "Never", "never");
    check_type(json!({"type": "nonsense"}), "Any", "unknown");
    check_type(json!({"not": {"type": "string"}}), "Any", "unknown");
    check_type(json!({"type": 7, "enum": 7, "anyOf": 7, "properties": 7}), "dict[str, Any]", "Record<string, unknown>");
}

#[test]
fn nullable_is_not_optional() {
    check(
        json!({"type": "object", "required": ["a", "b", "c"], "properties": {
            "a": {"type": ["string", "null"]},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null},
            "c": {"type": "string", "nullable": true},
            "d": {"type": "string"}
        }}),
        "mcp.s.t(*, a: str | None, b: int | None, c: str | None, d: str = ...) -> Any",
        "mcp.s.t(input: { a: string | null; b: number | null /* = null */; c: string | null; d?: string }): \
         Promise<unknown>",
    );
}

#[test]
fn renders_enum_values_and_defaults() {
    check_type(json!({"enum": ["a", 1, null, true]}), "Literal[\"a\", 1, None, True]", "\"a\" | 1 | null | true");
    check_type(json!({"const": "x"}), "Literal[\"x\"]", "\"x\"");
    check_type(json!({"type": "string", "enum": ["a", 1]}), "Literal[\"a\"]", "\"a\"");
    check_type(json!({"enum": []}), "Never", "never");
    check_type(json!({"enum": [{"a": 1}]}), "Any", "unknown");
    check_type(
        json!({"anyOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}]}),
        "Literal[\"a\", \"b\"] | None",
        "\"a\" | \"b\" | null",
    );
    check(
        json!({"type": "object", "properties": {
            "a": {"type": "string", "default": "x\"y"}, "b": {"type": "boolean", "default": false},
            "c": {"type": "array", "default": []}, "d": {"default": {"k": 1}}, "e": {"default": "*/ //"}
        }}),
        "mcp.s.t(*, a: str = \"x\\\"y\", b: bool = False, c: list[Any] = [], d: Any = ..., e: Any = \"*/ //\") -> Any",
        "mcp.s.t(input?: { a?: string /* = \"x\\\"y\" */; b?: boolean /* = false */; c?: unknown[] /* = [] */; \
         d?: unknown; e?: unknown /* = \"* / //\" */ }): Promise<unknown>",
    );
}

#[test]
fn shortens_long_enums_with_a_note() {
    let values: Vec<String> = (0..32).map(|n| format!("v{n}")).collect();
    let document = tool("t", json!({"type": "object", "properties": {"x": {"enum": values}}}), None);
    let python = render_signature(Language::Python, "s", "t", &document);
    assert!(python.contains("\"v29\"] | str = ...) -> Any\n# 30 of 32 values of x shown"), "{python}");
    let node = render_signature(Language::Node, "s", "t", &document);
    assert!(node.contains("\"v29\" | string /* 2 more */ }"), "{node}");
}

#[test]
fn renders_arrays() {
    let either = json!({"anyOf": [{"type": "string"}, {"type": "integer"}]});
    check_type(json!({"type": "array", "items": either}), "list[str | int]", "(string | number)[]");
    check_type(
        json!({"type": "array", "items": {"enum": ["a", "b"]}}),
        "list[Literal[\"a\", \"b\"]]",
        "(\"a\" | \"b\")[]",
    );
    check_type(json!({"items": {"type": "array", "items": {"type": "string"}}}), "list[list[str]]", "string[][]");
    check_type(json!({"type": ["array", "null"], "items": {"type": "string"}}), "list[str] | None", "string[] | null");
    check_type(
        json!({"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}], "items": false}),
        "tuple[float, str]",
        "[number, string]",
    );
    check_type(
        json!({"type": "array", "prefixItems": [{"type": "number"}], "items": {"type": "string"}}),
        "tuple[float, *tuple[str, ...]]",
        "[number, ...(string)[]]",
    );
    check_type(json!({"type": "array", "items": [{"type": "number"}]}), "tuple[float]", "[number]");
}

#[test]
fn renders_nested_objects() {
    check(
        json!({"type": "object", "required": ["x"], "properties": {"x": {
            "type": "object", "required": ["b"], "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}
        }}}),
        "mcp.s.t(*, x: {\"b\": int, \"a\": NotRequired[str]}) -> Any",
        "mcp.s.t(input: { x: { b: number; a?: string } }): Promise<unknown>",
    );
    check(
        json!({"type": "object", "properties": {"x": {"properties": {"data-id": {"type": "string"}, "__p": {}}}}}),
        "mcp.s.t(*, x: {\"data-id\": NotRequired[str], \"__p\": NotRequired[Any]} = ...) -> Any",
        "mcp.s.t(input?: { x?: { \"data-id\"?: string; __p?: unknown } }): Promise<unknown>",
    );
    check_type(
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        "dict[str, int]",
        "Record<string, number>",
    );
    check(
        json!({"type": "object", "properties": {"x": {
            "type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}
        }}}),
        "mcp.s.t(*, x: {\"a\": NotRequired[str]} = ...) -> Any",
        "mcp.s.t(input?: { x?: { a?: string } & Record<string, unknown> }): Promise<unknown>",
    );
}

#[test]
fn combines_choices_with_sibling_keywords() {
    check(
        json!({"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
            "anyOf": [{"required": ["id"]}, {"required": ["name"]}]}),
        "mcp.s.t(*, id: int = ..., name: str = ...) -> Any\n# needs id, or name",
        "mcp.s.t(input: { id?: number; name?: string }): Promise<unknown>\n// needs id, or name",
    );
    check(
        json!({"type": "object", "properties": {"x": {
            "type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"],
            "oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}]
        }}}),
        "mcp.s.t(*, x: {\"k\": str, \"a\": NotRequired[int]} | {\"k\": str, \"b\": NotRequired[int]} = ...) -> Any",
        "mcp.s.t(input?: { x?: { k: string; a?: number } | { k: string; b?: number } }): Promise<unknown>",
    );
    check(
        json!({"type": "object", "oneOf": [
            {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
            {"properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind", "y"]}
        ]}),
        "mcp.s.t(*, kind: Literal[\"a\", \"b\"], x: int = ..., y: str = ...) -> Any\n# needs x, or y",
        "mcp.s.t(input: { kind: \"a\" | \"b\"; x?: number; y?: string }): Promise<unknown>\n// needs x, or y",
    );
    check(
        json!({"allOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["a"]}, {"$ref": "#/$defs/B"}],
            "$defs": {"B": {"type": "object", "properties": {"b": {"type": "integer"}}}}}),
        "mcp.s.t(*, a: str, b: int = ...) -> Any",
        "mcp.s.t(input: { a: string; b?: number }): Promise<unknown>",
    );
}

#[test]
fn renders_references_as_names_without_looping() {
    check(
        json!({"type": "object", "properties": {"node": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": {
            "type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}
        }}}),
        "class TNode(TypedDict): next: NotRequired[TNode | None]\nmcp.s.t(*, node: TNode = ...) -> Any",
        "type TNode = { next?: TNode | null };\nmcp.s.t(input?: { node?: TNode }): Promise<unknown>",
    );
    check(
        json!({"type": "object", "properties": {"more": {"$ref": "#"}}}),
        "class TInput(TypedDict): more: NotRequired[TInput]\nmcp.s.t(*, more: TInput = ...) -> Any",
        "type TInput = { more?: TInput };\nmcp.s.t(input?: { more?: TInput }): Promise<unknown>",
    );
    check(
        json!({"type": "object", "properties": {"v": {"$ref": "#/definitions/V"}}, "definitions": {
            "V": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/definitions/V"}}]}
        }}),
        "TV = str | list[TV]\nmcp.s.t(*, v: TV = ...) -> Any",
        "type TV = string | TV[];\nmcp.s.t(input?: { v?: TV }): Promise<unknown>",
    );
    // Types that are used once stand where they are used; others have a name.
    let point = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/P"}}, "$defs": {"P": {
        "type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}
    }}});
    let mut twice = point.clone();
    twice["properties"]["b"] = point["properties"]["a"].clone();
    check(
        point,
        "mcp.s.t(*, a: {\"x\": int} = ...) -> Any",
        "mcp.s.t(input?: { a?: { x: number } }): Promise<unknown>",
    );
    check(
        twice,
        "class TP(TypedDict): x: int\nmcp.s.t(*, a: TP = ..., b: TP = ...) -> Any",
        "type TP = { x: number };\nmcp.s.t(input?: { a?: TP; b?: TP }): Promise<unknown>",
    );
    // Short types stand where they are used.
    check(
        json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {"type": "string"}}}),
        "mcp.s.t(*, a: str = ...) -> Any",
        "mcp.s.t(input?: { a?: string }): Promise<unknown>",
    );
    for nothing in ["https://example.com/schema", "#/$defs/none", "#anchor", "file:///etc/passwd"] {
        check_type(json!({"$ref": nothing}), "Any", "unknown");
    }
    let circles = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}});
    let python = render_signature(Language::Python, "s", "t", &tool("t", circles, None));
    assert_eq!(python, "mcp.s.t(*, a: Any = ...) -> Any");
}

#[test]
fn renders_calls_with_no_or_any_parameters() {
    for none in [json!({}), json!({"type": "object"}), json!({"type": "object", "properties": {}})] {
        check(none, "mcp.s.t() -> Any", "mcp.s.t(): Promise<unknown>");
    }
    check(
        json!({"type": "object", "additionalProperties": true}),
        "mcp.s.t(**arguments: Any) -> Any",
        "mcp.s.t(input?: Record<string, unknown>): Promise<unknown>",
    );
    check(
        json!({"$ref": "https://example.com"}),
        "mcp.s.t(**arguments: Any) -> Any",
        "mcp.s.t(input?: Record<string, unknown>): Promise<unknown>",
    );
}

#[test]
fn renders_results_without_their_wrapper() {
    let result = |output: Value, python: &str, node: &str| {
        check_all(json!({}), Some(output), &format!("mcp.s.t() -> {python}"), &format!("mcp.s.t(): Promise<{node}>"));
    };
    result(json!({"type": "object", "properties": {"result": {"type": "integer"}}}), "int", "number");
    result(
        json!({"properties": {"content": {"type": "array", "items": {"type": ["string", "null"]}}}}),
        "list[str | None]",
        "(string | null)[]",
    );
    result(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        "dict[str, str]",
        "Record<string, string>",
    );
    check_all(
        json!({}),
        Some(json!({"properties": {"result": {"type": "integer"}, "next": {"type": "string"}}})),
        "mcp.s.t() -> {\"result\": NotRequired[int], \"next\": NotRequired[str]}",
        "mcp.s.t(): Promise<{ result?: number; next?: string }>",
    );
    check_all(
        json!({}),
        Some(json!({"properties": {"result": {"$ref": "#/$defs/R"}}, "$defs": {"R": {"properties": {"a": {}}}}})),
        "mcp.s.t() -> {\"a\": NotRequired[Any]}",
        "mcp.s.t(): Promise<{ a?: unknown }>",
    );
}

#[test]
fn limits_and_formats_are_notes() {
    check(
        json!({"type": "object", "properties": {
            "since": {"type": "string", "format": "date-time"},
            "page": {"type": "integer", "minimum": 1, "maximum": 100},
            "q": {"type": "string", "minLength": 2, "pattern": "^a\nimport os"}
        }}),
        "mcp.s.t(*, since: str = ..., page: int = ..., q: str = ...) -> Any\n\
         # since: date-time; page: 1 to 100; q: like ^a import os, at least 2 characters",
        "mcp.s.t(input?: { since?: string; page?: number; q?: string }): Promise<unknown>\n\
         // since: date-time; page: 1 to 100; q: like ^a import os, at least 2 characters",
    );
}

#[test]
fn shortens_huge_signatures_with_a_note() {
    let deep = (0..100).fold(json!({"type": "string"}), |inner, _| json!({"properties": {"x": inner}}));
    let wide: Map<String, Value> =
        (0..2000).map(|n| (format!("p{n}"), json!({"properties": {"a": {"type": "string"}}}))).collect();
    let long: Map<String, Value> = (0..20).map(|n| (format!("{n}").repeat(5000), json!({}))).collect();
    let required: Vec<&String> = wide.keys().collect();
    let bomb: Map<String, Value> = (0..30)
        .map(|n| {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            (format!("d{n}"), json!({"anyOf": [{"properties": {"a": next}}, {"properties": {"b": next}}]}))
        })
        .collect();
    for monster in [
        deep,
        json!({"properties": wide}),
        json!({"properties": wide, "required": required}),
        json!({"properties": long}),
        json!({"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": bomb}),
    ] {
        for language in [Language::Python, Language::Node, Language::Sh] {
            let text = render_signature(language, "s", "t", &tool("t", monster.clone(), None));
            assert!(text.len() <= MAX_LENGTH + 100, "{}", text.len());
            assert!(text.lines().last().is_some_and(|line| line.contains("shortened; all: ")), "{text}");
            let everything = render_stub(language, &tool("t", monster.clone(), None), CommentDetail::Everything);
            assert!(everything.len() <= 60_000 && !everything.contains("shortened; all: mcp.help"));
        }
    }
}

#[test]
fn renders_shell_calls() {
    let document = tool(
        "t",
        json!({"required": ["a"], "properties": {
            "a": {"type": "string"}, "state": {"enum": ["open", "in progress"]}, "n": {"type": "integer"},
            "x y": {"type": "object"}, "q'; rm": {"type": "boolean"},
            "o": {"type": "array", "items": {"required": ["k'"], "properties": {"k'": {"type": "string"}, "n": {}}}}
        }}),
        Some(json!({"type": "object", "additionalProperties": {"type": "integer"}})),
    );
    assert_eq!(
        render_stub(Language::Sh, &document, CommentDetail::Brief),
        "mcp call s.t a=TEXT [state=open|'in progress'] [n=INTEGER] ['x y'=JSON] ['q'\\''; rm'=true|false] \
         [o='[{\"k'\\''\": TEXT, \"n\"?: JSON}, …]']\n# prints {KEY: INTEGER, …}\n# Does it. And more"
    );
    let node = json!({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}, "c": {"$ref": "#"}}});
    let endless = json!({"properties": {"x": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"properties": {
        "a": {"$ref": "#/$defs/N"}, "b": {"$ref": "#/$defs/N"}, "c": {"$ref": "#/$defs/N"}
    }}}});
    for endless in [node, endless] {
        assert!(render_stub(Language::Sh, &tool("t", endless, None), CommentDetail::Brief).contains("=JSON]"));
    }
}

#[test]
fn results_are_shortened_before_parameters() {
    let fields: Map<String, Value> = (0..200).map(|n| (format!("field_{n}"), json!({"type": "string"}))).collect();
    let input = json!({"properties": {"x": {"properties": {"a": {"type": "string"}}}}});
    let document = tool("t", input, Some(json!({"type": "object", "properties": fields})));
    let python = render_signature(Language::Python, "s", "t", &document);
    let call = "mcp.s.t(*, x: {\"a\": NotRequired[str]} = ...) -> dict[str, Any]";
    assert_eq!(python, format!("{call}\n# shortened; all: mcp.help(\"s.t\")"));
}

#[test]
fn long_objects_are_typed_dicts() {
    let fields: Map<String, Value> = (0..40).map(|n| (format!("field_{n}"), json!({"type": "string"}))).collect();
    let required: Vec<&String> = fields.keys().collect();
    let document = tool("t", json!({"properties": {"x": {"properties": fields, "required": required}}}), None);
    let python = render_signature(Language::Python, "s", "t", &document);
    assert!(python.starts_with("class TX(TypedDict): field_0: str; ") && python.contains("x: TX = ..."), "{python}");
}

/// A tool whose parameters have descriptions of every kind.
fn described_tool() -> ToolDocument {
    let input = json!({"type": "object", "required": ["time", "path"], "properties": {
        "time": {"type": "string", "description": "Time to convert in 24-hour format (HH:MM). Not a date."},
        "path": {"type": "string", "minLength": 1, "description": "The path"},
        "page": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}], "description": "Page"},
        "from": {"type": "string", "description": "Where it starts"},
        "filter": {"type": "object", "properties": {"state": {"type": "string", "description": "Only this one"}}}
    }});
    ToolDocument {
        title: Some("Time zone converter".into()),
        description: "Converts a time. Knows summer time.\nArgs:\n    time: see below\n\nReturns text.".into(),
        destructive: true,
        ..tool("convert", input, None)
    }
}

#[test]
fn comments_describe_the_tool_and_its_parameters() {
    let call = "mcp.s.t(*, time: str, path: str, page: int | None = ..., from_: str = ..., \
                filter: {\"state\": NotRequired[str]} = ...) -> Any";
    let stub = |detail| render_stub(Language::Python, &described_tool(), detail);
    let brief = "# Destructive. Time zone converter: Converts a time. Knows summer time.\n\
                 #   time: Time to convert in 24-hour format (HH:MM). Not a date.";
    assert_eq!(stub(CommentDetail::Brief), format!("{call}\n{brief}"));
    let whole = "# Destructive. Time zone converter: Converts a time. Knows summer time.\n# Args:\n# time: see below\n\
                 # Returns text.\n#   time: Time to convert in 24-hour format (HH:MM). Not a date.\n\
                 #   page: 1 to 9\n#   from_: Where it starts\n#   filter.state: Only this one";
    assert_eq!(stub(CommentDetail::Whole), format!("{call}\n{whole}"));
    assert_eq!(stub(CommentDetail::Everything), stub(CommentDetail::Whole));
    let node = render_stub(Language::Node, &described_tool(), CommentDetail::Whole);
    assert!(
        node.ends_with("//   page: 1 to 9\n//   from: Where it starts\n//   filter.state: Only this one"),
        "{node}"
    );
}

#[test]
fn titles_and_descriptions_that_repeat_names_are_left_out() {
    let plain = ToolDocument { title: Some("Convert Tool".into()), description: String::new(), ..described_tool() };
    let stub = render_stub(Language::Python, &plain, CommentDetail::Brief);
    assert!(stub.contains("\n# Destructive.\n") && !stub.contains("Convert Tool"), "{stub}");
    let optional = tool("t", json!({"properties": {"a": {"description": "First one"}, "b": {"format": "date"}}}), None);
    let stub = render_stub(Language::Python, &optional, CommentDetail::Brief);
    assert!(stub.ends_with("\n#   a: First one; b: date"), "{stub}");
    let old = ToolDocument { deprecated: true, destructive: false, title: None, ..described_tool() };
    assert!(render_stub(Language::Sh, &old, CommentDetail::Brief).contains("\n# Deprecated. Converts a time."));
    let says_so = ToolDocument { description: "[DEPRECATED] Use x.".into(), ..old };
    assert!(render_stub(Language::Sh, &says_so, CommentDetail::Brief).contains("\n# [DEPRECATED] Use x."));
}

#[test]
fn comments_are_bounded() {
    let long = "word ".repeat(10_000);
    let properties: Map<String, Value> =
        (0..200).map(|n| (format!("p{n}"), json!({"type": "string", "description": long}))).collect();
    let nested = json!({"type": "object", "properties": properties});
    let document = ToolDocument {
        description: long.clone(),
        title: Some(long),
        ..tool("t", json!({"properties": {"a": nested, "b": nested}}), None)
    };
    for (detail, most) in
        [(CommentDetail::Brief, 600), (CommentDetail::Whole, 3_000), (CommentDetail::Everything, 45_000)]
    {
        let comment =
            ToolReference { language: Language::Python, server: "s", tool: "t", document: &document, learned: None }
                .comment(detail);
        assert!(comment.len() <= most, "{} of {most}", comment.len());
        assert!(comment.lines().all(|line| line.starts_with('#')), "{comment}");
    }
}

#[test]
fn learned_results_are_shown_unless_the_server_declares_them() {
    let learned =
        ResultShape::from_answer(&json!([{"id": 1, "name": "n"}])).merge(ResultShape::from_answer(&json!("none")));
    let show = |document: &ToolDocument, language| {
        ToolReference { language, server: "s", tool: "t", document, learned: Some(&learned) }.signature()
    };
    let undeclared = tool("t", json!({}), None);
    assert_eq!(show(&undeclared, Language::Python), "mcp.s.t() -> list[{\"id\": int, \"name\": str}] | str");
    assert_eq!(show(&undeclared, Language::Node), "mcp.s.t(): Promise<{ id: number; name: string }[] | string>");
    assert_eq!(show(&undeclared, Language::Sh), "mcp call s.t\n# prints [{\"id\": INTEGER, \"name\": TEXT}, …]|TEXT");
    let declared = tool("t", json!({}), Some(json!({"type": "object", "properties": {"result": {"type": "integer"}}})));
    assert_eq!(show(&declared, Language::Python), "mcp.s.t() -> int");
}
