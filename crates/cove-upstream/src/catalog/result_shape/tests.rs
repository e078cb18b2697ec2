//! Answers and the shapes that are learned from them.

use super::*;

#[track_caller]
fn check(answers: &[Value], expected: Value) {
    let shapes = answers.iter().map(ResultShape::from_answer);
    let shape = shapes.reduce(ResultShape::merge).expect("an answer");
    assert_eq!(Value::Object(shape.to_schema()), expected);
    let text = serde_json::to_string(&shape).expect("JSON");
    assert_eq!(serde_json::from_str::<ResultShape>(&text).expect("a shape"), shape, "the cache keeps it");
}

/// Returns true if an object with this key is a map.
fn is_map(key: &str) -> bool {
    let shape = ResultShape::from_answer(&json!({ key: 1, "name": "n" }));
    let is_map = matches!(shape.object, Some(ResultKeys::Map(_)));
    assert_eq!(is_map, !serde_json::to_string(&shape).expect("JSON").contains("name"));
    is_map
}

#[test]
fn learns_types_and_keys() {
    check(&[json!("some text")], json!({"type": ["string"]}));
    check(&[json!([1, 2.5, null])], json!({"type": ["array"], "items": {"type": ["number", "null"]}}));
    check(
        &[json!([{"id": 1, "title": "a"}, {"id": 2, "title": null, "open": true}])],
        json!({"type": ["array"], "items": {"type": ["object"], "required": ["id", "title"], "properties": {
            "id": {"type": ["integer"]}, "title": {"type": ["string", "null"]}, "open": {"type": ["boolean"]}
        }}}),
    );
    check(&[json!([])], json!({"type": ["array"], "items": {}}));
}

#[test]
fn further_answers_widen_the_shape() {
    check(
        &[json!({"a": 1, "b": "x"}), json!({"a": 2}), json!("nothing found")],
        json!({"type": ["object", "string"], "required": ["a"], "properties": {
            "a": {"type": ["integer"]}, "b": {"type": ["string"]}
        }}),
    );
    let unknown = ResultShape::from_answer(&json!("x")).merge(ResultShape::unknown());
    assert_eq!(unknown.to_schema(), Map::new());
}

#[test]
fn keys_that_are_data_make_a_map() {
    for data in [
        "sk-live-4f9a8b7c6d5e",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "AKIAIOSFODNN7EXAMPLE",
        "alice@example.com",
        "2026-11-17",
        "550e8400-e29b-41d4-a716-446655440000",
        "/etc/passwd",
        "Alice Smith",
        "example.com",
        "",
        "é",
        "a\nb",
        "xoxb-123456",
        "dGhpcyBpcyBhIHNlY3JldA",
        "qwhfkjsdhfkjwehrkjhsdkf",
        "x\"); import os",
        "*/",
        "zL9qX2vB7m",
    ] {
        assert!(is_map(data), "{data:?}");
    }
    for name in [
        "id",
        "created_at",
        "html_url",
        "@type",
        "_links",
        "sha256",
        "isError",
        "Content-Type",
        "nextPageToken",
        "address_line_1",
        "allowMultipleAnswers",
        "iso8601",
        "requires_authentication",
    ] {
        assert!(!is_map(name), "{name}");
    }
    let map = |value: Value| json!({"type": ["object"], "additionalProperties": value});
    check(&[json!({"alice": 1}), json!({"bob": 2})], map(json!({"type": ["integer"]})));
    let people = json!({"alice": {"age": 1}, "bob": {"age": 2}, "carol": {"age": 3}});
    let person = json!({"type": ["object"], "required": ["age"], "properties": {"age": {"type": ["integer"]}}});
    check(&[people], map(person));
}

#[test]
fn hostile_answers_cost_little_and_show_nothing() {
    let long = "k".repeat(1 << 20);
    assert!(is_map(&long));
    let many: Map<String, Value> = (0..100_000).map(|n| (format!("key{n}"), json!(n))).collect();
    check(&[Value::Object(many)], json!({"type": ["object"], "additionalProperties": {"type": ["integer"]}}));
    let deep = (0..100).fold(json!("secret"), |inner, _| json!({ "a": inner }));
    let text = Value::Object(ResultShape::from_answer(&deep).to_schema()).to_string();
    assert_eq!(text.matches("\"a\"").count(), 2 * MAX_DEPTH, "{text}");
    let letters = |n: u8| char::from(b'a' + n);
    let wide = |inner: &Value| -> Value {
        (0..36).map(|n| (format!("{}_{}", letters(n % 6), letters(n / 6)), inner.clone())).collect::<Map<_, _>>().into()
    };
    let huge = wide(&json!([wide(&json!(["secret"])), 1]));
    let shape = ResultShape::from_answer(&json!([huge, "x"]));
    assert!(shape.parts() <= MAX_PARTS && serde_json::to_string(&shape).expect("JSON").len() < 8_000);
    let list = ResultShape::from_answer(&json!(vec![json!({"name": "secret"}); 1_000_000]));
    assert!(Value::Object(list.to_schema()).to_string().contains("name"));
    for shape in [shape, list] {
        assert!(!serde_json::to_string(&shape).expect("JSON").contains("secret"));
    }
}
