//! Tests of arguments that pass, pass under other names, or are refused with a helpful message.

use serde_json::{Value, json};

use super::*;

fn tool(schema: Value) -> ToolDocument {
    let Value::Object(input_schema) = schema else { panic!("an object") };
    ToolDocument { name: "t".into(), description: String::new(), input_schema, ..Default::default() }
}

fn check(schema: &Value, given: &Value) -> Result<Value, ArgumentRefusal> {
    let Value::Object(given) = given.clone() else { panic!("an object") };
    check_arguments(&tool(schema.clone()), given).map(Value::Object)
}

#[track_caller]
fn check_accepts(schema: &Value, given: Value) {
    check_respelled(schema, given.clone(), given);
}

#[track_caller]
fn check_respelled(schema: &Value, given: Value, sent: Value) {
    // Compared as text, to check the order of keys too.
    assert_eq!(check(schema, &given).map(|sent| sent.to_string()), Ok(sent.to_string()));
}

#[track_caller]
fn check_refuses(schema: &Value, given: Value, problem: &str) {
    match check(schema, &given) {
        Ok(sent) => panic!("{sent} was accepted"),
        Err(refused) => assert_eq!(refused.problems.join("; "), problem),
    }
}

fn issue_schema() -> Value {
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
fn passes_valid_arguments_unchanged() {
    check_accepts(&issue_schema(), json!({"title": "t", "owner": "o"}));
    check_accepts(&issue_schema(), json!({"title": "t", "owner": "o", "page": 3.0, "body": null, "labels": []}));
    // Undeclared, allowed, and not close to a declared name.
    check_accepts(&issue_schema(), json!({"title": "t", "owner": "o", "xyzzy": 1}));
    check_accepts(&json!({}), json!({"anything": [1, {"a": null}]}));
    check_accepts(
        &json!({"type": "object", "additionalProperties": true, "properties": {"name": {}}}),
        json!({"nam": 1}),
    );
    check_accepts(&json!({"$ref": "https://example.com/never-fetched"}), json!({"a": 1}));
    check_accepts(&json!({"properties": {"a": {"type": "string", "nullable": true}}}), json!({"a": null}));
    check_accepts(
        &json!({"properties": {"a": {"type": "string", "pattern": "^x$", "format": "email"}}}),
        json!({"a": "y"}),
    );
    check_accepts(&json!({"properties": {"n": {"enum": [1, 2.5]}}}), json!({"n": 1.0}));
}

#[test]
fn corrects_spellings_of_argument_names() {
    let given = json!({"Title": "t", "owner": "o", "from_": "x", "notion_version": "v"});
    check_respelled(&issue_schema(), given, json!({"title": "t", "owner": "o", "from": "x", "Notion-Version": "v"}));
    let both = json!({"properties": {"a-b": {"type": "string"}, "a_b": {"type": "integer"}}});
    check_respelled(&both, json!({"a_b_2": "x", "a_b": 1}), json!({"a-b": "x", "a_b": 1}));
    // Ambiguous, so neither spelling is chosen.
    check_accepts(&json!({"additionalProperties": true, "properties": {"a-b": {}, "a_b": {}}}), json!({"aB": 1}));
    let twice = json!({"title": "t", "TITLE": "u", "owner": "o"});
    check_refuses(&issue_schema(), twice, "`title` was given twice, the second time as `TITLE`");
}

#[test]
fn reports_wrong_arguments_with_the_right_ones() {
    check_refuses(&issue_schema(), json!({"owner": "o"}), "`title` is missing (required)");
    check_refuses(
        &issue_schema(),
        json!({"owner": "o", "titel": "t"}),
        "there is no parameter `titel`, did you mean `title`?; `title` is missing (required)",
    );
    let with = |name: &str, value: Value| {
        let mut given = json!({"owner": "o", "title": "t"});
        given[name] = value;
        given
    };
    check_refuses(&issue_schema(), with("page", json!("3")), "`page` must be an integer, not \"3\"");
    check_refuses(&issue_schema(), with("page", json!(1.5)), "`page` must be an integer, not 1.5");
    check_refuses(&issue_schema(), with("page", json!(0)), "`page` must be at least 1, not 0");
    check_refuses(&issue_schema(), with("title", json!(null)), "`title` must be a string, not null");
    check_refuses(&issue_schema(), with("title", json!("")), "`title` must have at least 1 character, not 0");
    check_refuses(&issue_schema(), with("labels", json!(["a", 1])), "`labels[1]` must be a string, not 1");
    check_refuses(&issue_schema(), with("labels", json!(["a", "b", "c"])), "`labels` must have at most 2 items, not 3");
    check_refuses(&issue_schema(), with("labels", json!("bug")), "`labels` must be an array, not \"bug\"");
    check_refuses(&issue_schema(), with("body", json!(1)), "`body` must be a string or null, not 1");
    check_refuses(
        &issue_schema(),
        with("state", json!("opn")),
        "`state` must be one of \"open\", \"closed\", not \"opn\", did you mean \"open\"?",
    );
    let shown = check(&issue_schema(), &json!({"owner": 1})).expect_err("two problems").to_string();
    assert_eq!(
        shown,
        "`title` is missing (required); `owner` must be a string, not 1; nothing was sent. Its parameters are \
         owner: string, title: string, page?: integer, state?: \"open\" | \"closed\", labels?: string[], \
         body?: string | null, from?: string, Notion-Version?: string"
    );
}

#[test]
fn rejects_unknown_names_if_the_schema_forbids_them() {
    let closed = json!({"additionalProperties": false, "properties": {"path": {}}});
    check_refuses(&closed, json!({"zzz": 1}), "there is no parameter `zzz`");
    let none = json!({"additionalProperties": false});
    let shown = check(&none, &json!({"a": 1})).expect_err("none").to_string();
    assert_eq!(shown, "there is no parameter `a`; nothing was sent. It has no parameters");
    // Names that choices declare count as declared.
    let choices = json!({"additionalProperties": false, "oneOf": [
        {"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}
    ]});
    check_accepts(&choices, json!({"b": 1}));
    check_refuses(
        &choices,
        json!({"a": 1}),
        "the call fits none of 2 choices: as {a}, `a` must be a string, not 1; as {b}, `b` is missing (required)",
    );
}

#[test]
fn checks_nested_objects() {
    let nested = json!({"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {
        "type": "object", "required": ["id"], "additionalProperties": false,
        "properties": {"id": {"type": "integer"}, "next": {"$ref": "#/$defs/X"}}
    }}});
    check_accepts(&nested, json!({"x": {"id": 1, "next": {"id": 2}}}));
    check_refuses(&nested, json!({"x": {"id": 1, "next": {"id": "2"}}}), "`x.next.id` must be an integer, not \"2\"");
    check_refuses(&nested, json!({"x": {"id": 1, "nxt": 1}}), "`x` has no `nxt`, did you mean `next`?");
    check_refuses(&nested, json!({"x": {}}), "`x` needs `id`");
    let one = json!({"properties": {"x": {"anyOf": [{"$ref": "#/$defs/X"}, {"type": "null"}]}}, "$defs": {"X": {
        "type": "object", "required": ["id"]
    }}});
    check_refuses(&one, json!({"x": {}}), "`x` needs `id`");
    check_accepts(&one, json!({"x": null}));
    let map = json!({"properties": {"x": {"type": "object", "additionalProperties": {"type": "integer"}}}});
    check_refuses(&map, json!({"x": {"a": 1, "b": "c"}}), "`x.b` must be an integer, not \"c\"");
    let tuple = json!({"properties": {"x": {"type": "array", "prefixItems": [{"type": "string"}], "items": false}}});
    check_accepts(&tuple, json!({"x": ["a"]}));
    check_refuses(&tuple, json!({"x": ["a", 1]}), "`x[1]` is not allowed");
}

#[test]
fn null_for_an_optional_parameter_counts_as_absent() {
    let given = json!({"owner": "o", "page": null, "title": "t", "labels": null, "body": null, "notion_version": null});
    check_respelled(&issue_schema(), given, json!({"owner": "o", "title": "t", "body": null}));
    let schema = json!({"required": ["must"], "$defs": {"N": {"type": ["integer", "null"]}, "S": {"type": "string"}},
        "properties": {"must": {}, "any": {}, "union": {"type": ["string", "null"]}, "never": false, "n": {"$ref": "#/$defs/N"},
        "s": {"$ref": "#/$defs/S"}, "e": {"enum": ["a"]}, "null": {"enum": ["a", null]}, "deep": {"type": "object", "properties":
        {"x": {"type": "string"}}}}});
    let given = json!({"must": null, "any": null, "union": null, "never": null, "n": null, "s": null, "e": null, "null": null,
        "other": null});
    let sent = json!({"must": null, "any": null, "union": null, "n": null, "null": null, "other": null});
    check_respelled(&schema, given, sent);
    // Only parameters: a member of an object stays as it is.
    check_refuses(&schema, json!({"must": 1, "deep": {"x": null}}), "`deep.x` must be a string, not null");
}

#[test]
fn problems_have_the_description_of_the_parameter() {
    let schema = json!({"required": ["time"], "properties": {
        "time": {"type": "string", "description": "Time to convert,\n  in 24-hour format (HH:MM)."},
        "zone": {"$ref": "#/$defs/Z"}, "at": {"type": "integer", "description": "x\u{1b}[31m".repeat(500)},
        "size": {"type": "object", "required": ["w"], "description": "The size", "properties": {"w": {"description": "Width"}}},
    }, "$defs": {"Z": {"enum": ["UTC"], "description": "IANA name"}}});
    check_refuses(&schema, json!({}), "`time` is missing (required): Time to convert, in 24-hour format (HH:MM)");
    check_refuses(
        &schema,
        json!({"time": 5, "zone": "X"}),
        "`time` must be a string, not 5: Time to convert, in 24-hour format (HH:MM); `zone` must be one of \"UTC\", \
         not \"X\": IANA name",
    );
    check_refuses(&schema, json!({"time": "x", "size": {}}), "`size` needs `w`: Width: The size");
    let shown = check(&schema, &json!({"time": "x", "at": "y"})).expect_err("wrong").to_string();
    assert!(shown.len() < 600 && !shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn union_problems_name_every_choice() {
    let schema = json!({"$defs": {"B": {"type": "object", "required": ["kind", "n"], "properties": {
        "kind": {"const": "b"}, "n": {"type": "integer"}}}}, "properties": {"x": {"anyOf": [
        {"type": "string", "enum": ["auto", "none"]},
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "a"}}},
        {"$ref": "#/$defs/B"}, {"type": "array", "items": {"type": "string"}},
    ]}}});
    check_refuses(
        &schema,
        json!({"x": {"kind": "c", "n": 1}}),
        "`x` fits none of 4 choices: as \"auto\" | \"none\", `x` must be a string, not an object; as {kind: \"a\"}, \
         `x.kind` must be \"a\", not \"c\"; as {kind: \"b\", n}, `x.kind` must be \"b\", not \"c\"; as array of string, `x` \
         must be an array, not an object",
    );
    check_refuses(
        &schema,
        json!({"x": "aut"}),
        "`x` fits none of 4 choices: as \"auto\" | \"none\", `x` must be one of \"auto\", \"none\", not \"aut\", did you \
         mean \"auto\"?; as {kind: \"a\"}, `x` must be an object, not \"aut\"; as {kind: \"b\", n}, `x` must be an object, \
         not \"aut\"; as array of string, `x` must be an array, not \"aut\"",
    );
    let many: Vec<Value> =
        (0..500).map(|n| json!({"type": "object", "required": [format!("{}{n}", "k".repeat(999))]})).collect();
    let shown = check(&json!({"properties": {"x": {"oneOf": many}}}), &json!({"x": {}})).expect_err("none").to_string();
    assert!(shown.len() < 2500 && shown.contains("and 492 more"), "{shown}");
}

#[test]
fn checks_names_against_patterns() {
    let schema =
        json!({"additionalProperties": false, "properties": {"id": {}}, "patternProperties": {"^x-[a-z]+$": {}}});
    check_accepts(&schema, json!({"id": 1, "x-abc": 2}));
    check_refuses(&schema, json!({"y-abc": 2}), "there is no parameter `y-abc`");
    let nested = json!({"properties": {"h": schema}});
    check_accepts(&nested, json!({"h": {"x-a": 1}}));
    check_refuses(&nested, json!({"h": {"X-A": 1}}), "`h` has no `X-A`; it has id");
    // A pattern that is not understood is left to the server.
    let hard = json!({"additionalProperties": false, "patternProperties": {"^(a|b)$": {}}});
    check_accepts(&hard, json!({"c": 1}));
    check_accepts(&json!({"properties": {"h": hard}}), json!({"h": {"c": 1}}));
    check_accepts(&json!({"additionalProperties": false, "patternProperties": 5}), json!({"c": 1}));
}

#[test]
fn hostile_schemas_and_arguments_are_checked_quickly() {
    let circle = json!({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {
        "A": {"anyOf": [{"$ref": "#/$defs/A"}, {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}]}
    }});
    check_accepts(&circle, json!({"a": {"b": [1, 2, 3]}}));
    check_accepts(&json!({"$ref": "#"}), json!({"a": 1}));
    check_accepts(&json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}], "anyOf": [{"$ref": "#"}]}), json!({"a": 1}));
    check_accepts(&json!({"properties": 1, "required": "x", "type": [], "enum": {}, "anyOf": 3}), json!({"a": 1}));
    let many = json!({"properties": {"x": {"type": "array", "items": {"type": "integer"}}}});
    check_accepts(&many, json!({"x": vec![1; 300_000]}));
    let wrong = check(&many, &json!({"x": vec!["no"; 300_000]})).expect_err("wrong");
    assert_eq!(wrong.problems.len(), MAX_PROBLEMS + 1);
    let deep = (0..100).fold(json!(1), |inner, _| json!({"n": inner}));
    check_accepts(&json!({"properties": {"n": {"$ref": "#"}}}), deep);
    let long = "x\u{1b}".repeat(1 << 19);
    let shown = check(&issue_schema(), &json!({"owner": "o", "title": long, &*long: 1})).expect_err("long").to_string();
    assert!(shown.len() < 2000 && !shown.contains('\u{1b}'), "{shown}");
}
