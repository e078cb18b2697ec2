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
        title: None,
        description: "Does it. And more".into(),
        input_schema: object(input),
        output_schema: output.map(object),
        read_only: false,
    }
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
        "class TX(TypedDict): b: int; a: NotRequired[str]\nmcp.s.t(*, x: TX) -> Any",
        "mcp.s.t(input: { x: { b: number; a?: string } }): Promise<unknown>",
    );
    check(
        json!({"type": "object", "properties": {"x": {"properties": {"data-id": {"type": "string"}, "__p": {}}}}}),
        "TX = TypedDict(\"TX\", {\"data-id\": NotRequired[str], \"__p\": NotRequired[Any]})\n\
         mcp.s.t(*, x: TX = ...) -> Any",
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
        "class TX(TypedDict): a: NotRequired[str]\nmcp.s.t(*, x: TX = ...) -> Any",
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
        "class TX(TypedDict): k: str; a: NotRequired[int]\nclass TX2(TypedDict): k: str; b: NotRequired[int]\n\
         mcp.s.t(*, x: TX | TX2 = ...) -> Any",
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
    assert_eq!(python, "TA = Any\nmcp.s.t(*, a: TA = ...) -> Any");
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
        "class TResult(TypedDict): result: NotRequired[int]; next: NotRequired[str]\nmcp.s.t() -> TResult",
        "mcp.s.t(): Promise<{ result?: number; next?: string }>",
    );
    check_all(
        json!({}),
        Some(json!({"properties": {"result": {"$ref": "#/$defs/R"}}, "$defs": {"R": {"properties": {"a": {}}}}})),
        "class TResultR(TypedDict): a: NotRequired[Any]\nmcp.s.t() -> TResultR",
        "type TResultR = { a?: unknown };\nmcp.s.t(): Promise<TResultR>",
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
        }
    }
}

#[test]
fn renders_shell_calls() {
    let document = tool(
        "t",
        json!({"required": ["a"], "properties": {
            "a": {"type": "string"}, "state": {"enum": ["open", "in progress"]}, "n": {"type": "integer"},
            "x y": {"type": "object"}, "q'; rm": {"type": "boolean"}
        }}),
        None,
    );
    assert_eq!(
        render_stub(Language::Sh, "s", "t", &document),
        "mcp call s.t a=TEXT [state=open|'in progress'] [n=INTEGER] ['x y'=JSON] ['q'\\''; rm'=true|false]\n# Does it."
    );
}
