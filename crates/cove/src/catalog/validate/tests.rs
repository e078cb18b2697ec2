//! Arguments that pass as they are, that pass under other names, and that are refused with words that help.

use serde_json::{Value, json};

use super::*;

fn tool(schema: Value) -> ToolDocument {
    let Value::Object(input_schema) = schema else { panic!("an object") };
    ToolDocument {
        name: "t".into(),
        title: None,
        description: String::new(),
        input_schema,
        output_schema: None,
        read_only: false,
    }
}

fn run(schema: &Value, given: &Value) -> Result<Value, Refused> {
    let Value::Object(given) = given.clone() else { panic!("an object") };
    arguments(&tool(schema.clone()), given).map(Value::Object)
}

#[track_caller]
fn passes(schema: &Value, given: Value) {
    becomes(schema, given.clone(), given);
}

#[track_caller]
fn becomes(schema: &Value, given: Value, sent: Value) {
    // As text: the order of keys is kept too.
    assert_eq!(run(schema, &given).map(|sent| sent.to_string()), Ok(sent.to_string()));
}

#[track_caller]
fn refused(schema: &Value, given: Value, problem: &str) {
    match run(schema, &given) {
        Ok(sent) => panic!("{sent} was accepted"),
        Err(refused) => assert_eq!(refused.problems.join("; "), problem),
    }
}

fn issue() -> Value {
    json!({"type": "object", "required": ["owner", "title"], "properties": {
        "owner": {"type": "string"},
        "title": {"type": "string", "minLength": 1, "maxLength": 10},
        "page": {"type": "integer", "minimum": 1, "maximum": 100},
        "state": {"type": "string", "enum": ["open", "closed"], "default": "open"},
        "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "body": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "from": {"type": "string"},
        "Notion-Version": {"type": "string"}
    }})
}

#[test]
fn what_is_right_goes_through_unchanged() {
    passes(&issue(), json!({"title": "t", "owner": "o"}));
    passes(&issue(), json!({"title": "t", "owner": "o", "page": 3.0, "body": null, "labels": []}));
    // Not declared, not forbidden, and like nothing that is.
    passes(&issue(), json!({"title": "t", "owner": "o", "xyzzy": 1}));
    passes(&json!({}), json!({"anything": [1, {"a": null}]}));
    passes(
        &json!({"type": "object", "additionalProperties": true, "properties": {"name": {}}}),
        json!({"nam": 1}),
    );
    passes(&json!({"$ref": "https://example.com/never-fetched"}), json!({"a": 1}));
    passes(&json!({"properties": {"a": {"type": "string", "nullable": true}}}), json!({"a": null}));
    passes(
        &json!({"properties": {"a": {"type": "string", "pattern": "^x$", "format": "email"}}}),
        json!({"a": "y"}),
    );
    passes(&json!({"properties": {"n": {"enum": [1, 2.5]}}}), json!({"n": 1.0}));
}

#[test]
fn other_spellings_become_the_server_s() {
    let given = json!({"Title": "t", "owner": "o", "from_": "x", "notion_version": "v"});
    becomes(&issue(), given, json!({"title": "t", "owner": "o", "from": "x", "Notion-Version": "v"}));
    let both = json!({"properties": {"a-b": {"type": "string"}, "a_b": {"type": "integer"}}});
    becomes(&both, json!({"a_b_2": "x", "a_b": 1}), json!({"a-b": "x", "a_b": 1}));
    // Which of the two is not for us to say.
    passes(&json!({"additionalProperties": true, "properties": {"a-b": {}, "a_b": {}}}), json!({"aB": 1}));
    let twice = json!({"title": "t", "TITLE": "u", "owner": "o"});
    refused(&issue(), twice, "`title` was given twice, the second time as `TITLE`");
}

#[test]
fn mistakes_are_told_with_what_is_right() {
    refused(&issue(), json!({"owner": "o"}), "`title` is required, and missing");
    refused(
        &issue(),
        json!({"owner": "o", "titel": "t"}),
        "there is no parameter `titel`, did you mean `title`?; `title` is required, and missing",
    );
    let with = |name: &str, value: Value| {
        let mut given = json!({"owner": "o", "title": "t"});
        given[name] = value;
        given
    };
    refused(&issue(), with("page", json!("3")), "`page` must be integer, and is \"3\"");
    refused(&issue(), with("page", json!(1.5)), "`page` must be integer, and is 1.5");
    refused(&issue(), with("page", json!(0)), "`page` must be at least 1, and is 0");
    refused(&issue(), with("page", json!(null)), "`page` must be integer, and is null; leave it out instead");
    refused(&issue(), with("title", json!("")), "`title` must have at least 1 characters, and has 0");
    refused(&issue(), with("labels", json!(["a", 1])), "`labels[1]` must be string, and is 1");
    refused(
        &issue(),
        with("labels", json!(["a", "b", "c"])),
        "`labels` must have at most 2 items, and has 3",
    );
    refused(&issue(), with("labels", json!("bug")), "`labels` must be array, and is \"bug\"");
    refused(&issue(), with("body", json!(1)), "`body` must be string or null, and is 1");
    refused(
        &issue(),
        with("state", json!("opn")),
        "`state` must be one of \"open\", \"closed\", and is \"opn\", did you mean \"open\"?",
    );
    let shown = run(&issue(), &json!({"owner": 1})).expect_err("two problems").to_string();
    assert_eq!(
        shown,
        "`title` is required, and missing; `owner` must be string, and is 1; nothing was sent. Its parameters are \
         owner: string, title: string, page?: integer, state?: \"open\" | \"closed\", labels?: string[], \
         body?: string | null, from?: string, Notion-Version?: string"
    );
}

#[test]
fn names_are_forbidden_where_the_schema_says_so() {
    let closed = json!({"additionalProperties": false, "properties": {"path": {}}});
    refused(&closed, json!({"zzz": 1}), "there is no parameter `zzz`");
    let none = json!({"additionalProperties": false});
    let shown = run(&none, &json!({"a": 1})).expect_err("none").to_string();
    assert_eq!(shown, "there is no parameter `a`; nothing was sent. It has no parameters");
    // What choices declare is declared.
    let choices = json!({"additionalProperties": false, "oneOf": [
        {"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}
    ]});
    passes(&choices, json!({"b": 1}));
    refused(
        &choices,
        json!({"a": 1}),
        "the whole fits none of 2 choices; nearest to one, `a` must be string, and is 1",
    );
}

#[test]
fn inside_of_objects() {
    let nested = json!({"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {
        "type": "object", "required": ["id"], "additionalProperties": false,
        "properties": {"id": {"type": "integer"}, "next": {"$ref": "#/$defs/X"}}
    }}});
    passes(&nested, json!({"x": {"id": 1, "next": {"id": 2}}}));
    refused(
        &nested,
        json!({"x": {"id": 1, "next": {"id": "2"}}}),
        "`x.next.id` must be integer, and is \"2\"",
    );
    refused(&nested, json!({"x": {"id": 1, "nxt": 1}}), "`x` has no `nxt`, did you mean `next`?");
    refused(&nested, json!({"x": {}}), "`x` needs `id`");
    let one = json!({"properties": {"x": {"anyOf": [{"$ref": "#/$defs/X"}, {"type": "null"}]}}, "$defs": {"X": {
        "type": "object", "required": ["id"]
    }}});
    refused(&one, json!({"x": {}}), "`x` needs `id`");
    passes(&one, json!({"x": null}));
    let map = json!({"properties": {"x": {"type": "object", "additionalProperties": {"type": "integer"}}}});
    refused(&map, json!({"x": {"a": 1, "b": "c"}}), "`x.b` must be integer, and is \"c\"");
    let tuple =
        json!({"properties": {"x": {"type": "array", "prefixItems": [{"type": "string"}], "items": false}}});
    passes(&tuple, json!({"x": ["a"]}));
    refused(&tuple, json!({"x": ["a", 1]}), "`x[1]` is not allowed");
}

#[test]
fn hostile_schemas_and_arguments_end_soon() {
    let circle = json!({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {
        "A": {"anyOf": [{"$ref": "#/$defs/A"}, {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}]}
    }});
    passes(&circle, json!({"a": {"b": [1, 2, 3]}}));
    passes(&json!({"$ref": "#"}), json!({"a": 1}));
    passes(&json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "anyOf": [{"$ref": "#"}]}), json!({"a": 1}));
    passes(&json!({"properties": 1, "required": "x", "type": [], "enum": {}, "anyOf": 3}), json!({"a": 1}));
    let many = json!({"properties": {"x": {"type": "array", "items": {"type": "integer"}}}});
    passes(&many, json!({"x": vec![1; 300_000]}));
    let wrong = run(&many, &json!({"x": vec!["no"; 300_000]})).expect_err("wrong");
    assert_eq!(wrong.problems.len(), MAX_PROBLEMS + 1);
    let deep = (0..100).fold(json!(1), |inner, _| json!({"n": inner}));
    passes(&json!({"properties": {"n": {"$ref": "#"}}}), deep);
    let long = "x\u{1b}".repeat(1 << 19);
    let shown =
        run(&issue(), &json!({"owner": "o", "title": long, &*long: 1})).expect_err("long").to_string();
    assert!(shown.len() < 2000 && !shown.contains('\u{1b}'), "{shown}");
}
