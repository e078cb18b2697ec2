//! Lines of clients, right and wrong.

use super::*;

/// Returns `message`, `ignored`, or id and code of each answer.
fn parsed_text(line: impl AsRef<[u8]>) -> String {
    match parse_line(line.as_ref()) {
        ClientLine::Message(_) => "message".into(),
        ClientLine::Blank => "blank".into(),
        ClientLine::Ignored(_) => "ignored".into(),
        ClientLine::Refused(answers) => {
            let shown = answers.iter().map(|answer| {
                let value = serde_json::to_value(answer).unwrap();
                assert_eq!(value["jsonrpc"], "2.0");
                format!("{} {}", value["id"], value["error"]["code"])
            });
            shown.collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn every_request_with_an_id_is_answered() {
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":3,"method":"x","params":{{"a":{}}}}}"#, "[".repeat(200) + &"]".repeat(200));
    let cases = [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "message"),
        ("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r", "message"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, "message"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#, "message"),
        (r#"{"jsonrpc":"2.0","id":-1,"method":"ping"}"#, "message"),
        (r#"{"jsonrpc":"2.0","id":"","method":"ping"}"#, "message"),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, "message"),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "message"),
        (r#"{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}"#, "message"),
        ("", "blank"),
        ("  \t\r", "blank"),
        // Not JSON.
        (r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"a":"\ud83d"}}"#, "3 -32700"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"a":"\udc00\ud83d"}}"#, "3 -32700"),
        (r#"{"jsonrpc":"2.0","id":"\ud83d","method":"x"}"#, "null -32700"),
        (&deep, "3 -32700"),
        ("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"x\",\"params\":{\"a\":\"\u{1}\"}}", "3 -32700"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"a":"#, "3 -32700"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"x"}}"#, "3 -32700"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"n":1e999}}"#, "3 -32700"),
        (r#"{"jsonrpc":"2.0","method":"x","params":{"id":3,"a":"\ud83d"}}"#, "ignored"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"x"} {"jsonrpc":"2.0","id":4,"method":"x"}"#, "3 -32700, 4 -32700"),
        (r#"{"jsonrpc":"2.0","id":3,"result":{"a":"\ud83d"}}"#, "ignored"),
        ("{\"a\":", "null -32700"),
        ("\u{0}\u{1}", "null -32700"),
        // JSON that is no request.
        ("5", "null -32600"),
        ("null", "null -32600"),
        ("\"id\"", "null -32600"),
        ("{}", "null -32600"),
        (r#"{"jsonrpc":"2.0","id":3,"method":5}"#, "3 -32600"),
        (r#"{"jsonrpc":"2.0","method":5}"#, "null -32600"),
        (r#"{"jsonrpc":"2.0","id":3}"#, "3 -32600"),
        (r#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#, "3 -32600"),
        (r#"{"id":3,"method":"ping"}"#, "3 -32600"),
        (r#"{"jsonrpc":2.0,"id":3,"method":"ping"}"#, "3 -32600"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"ping","result":{}}"#, "3 -32600"),
        // Odd ids.
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, "1.5 -32600"),
        (r#"{"jsonrpc":"2.0","id":18446744073709551615,"method":"ping"}"#, "18446744073709551615 -32600"),
        (r#"{"jsonrpc":"2.0","id":1e40,"method":"ping"}"#, "1e+40 -32600"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "null -32600"),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, "null -32600"),
        (r#"{"jsonrpc":"2.0","id":{"id":1},"method":"ping"}"#, "null -32600"),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, "null -32600"),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, "2 -32600"),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/list"}"#, "1 -32600"),
        // Wrong parameters.
        (r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":[]}"#, "3 -32602"),
        (r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":5}"#, "3 -32602"),
        // Wrong notifications and responses have no answer.
        (r#"{"jsonrpc":"1.0","method":"ping"}"#, "ignored"),
        (r#"{"jsonrpc":"2.0","id":true,"result":{}}"#, "ignored"),
        (r#"{"jsonrpc":"2.0","id":null,"error":5}"#, "ignored"),
        // Batches.
        ("[]", "null -32600"),
        ("[1]", "null -32600"),
        (r#"[{"jsonrpc":"2.0","method":"x"}]"#, "ignored"),
        (r#"[{"jsonrpc":"2.0","id":1,"result":{}}]"#, "ignored"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "1 -32600"),
        (r#"[{"id":1,"method":"a"},{"method":"b"},[{"id":2,"method":"c"}],{"id":"d"}]"#, "1 -32600, \"d\" -32600"),
    ];
    for (line, expected) in cases {
        assert_eq!(parsed_text(line), expected, "{line}");
    }
    assert_eq!(parsed_text(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"x\",\"params\":{\"a\":\"\xff\"}}"), "3 -32700");
    assert_eq!(parsed_text(b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"\xff\"}"), "3 -32700");
    let many = format!("[{}]", vec![r#"{"id":1,"method":"a"}"#; MAX_BATCH_REQUESTS + 1].join(","));
    assert_eq!(parsed_text(many), "null -32600");
}

#[test]
fn parse_errors_name_the_place_and_the_remedy() {
    let message = |line: &str| match parse_line(line.as_bytes()) {
        ClientLine::Refused(answers) => answers[0].error.message.to_string(),
        _ => panic!("{line} is not refused"),
    };
    let half = message(r#"{"jsonrpc":"2.0","id":3,"method":"x","params":{"code":"print('\ud83d')"}}"#);
    assert!(half.contains("column 69") && half.contains("half of a character"), "{half}");
    let control = message("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"a\u{1}\"}");
    assert!(control.contains("escape it"), "{control}");
}
