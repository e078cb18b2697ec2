//! Command lines as people and models write them.

use super::*;

fn parsed(line: &[&str]) -> UsageResult<McpCommand> {
    let args: Vec<String> = line.iter().map(|&arg| arg.to_owned()).collect();
    parse(&args, &b"{\"from\": \"input\"}"[..])
}

#[track_caller]
fn check(line: &[&str], expected: Value) {
    match parsed(line) {
        Ok(McpCommand::Call { request, .. }) => assert_eq!(Value::Object(request), expected, "{line:?}"),
        other => panic!("{line:?}: {other:?}"),
    }
}

/// Checks the arguments of a tool that these words give.
#[track_caller]
fn check_arguments(words: &[&str], expected: Value) {
    let line = [&["call", "s.t"], words].concat();
    check(&line, json!({"ask": "call", "server": "s", "tool": "t", "arguments": expected}));
}

#[track_caller]
fn check_wrong(line: &[&str], why: &str) {
    match parsed(line) {
        Err(message) => assert!(message.contains(why), "{line:?}: {message}"),
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn reads_each_command() {
    check(&["find", "create", "issue"], json!({"ask": "find", "query": "create issue", "language": "shell"}));
    let found = json!({"ask": "find", "query": "x", "language": "shell", "limit": 3});
    check(&["find", "x", "--limit", "3"], found.clone());
    check(&["find"], json!({"ask": "find", "query": "", "language": "shell"}));
    check(&["find", "--limit=3", "x"], found);
    check(&["find", "--", "--limit"], json!({"ask": "find", "query": "--limit", "language": "shell"}));
    check(&["servers"], json!({"ask": "servers"}));
    check(&["servers", "find", "a", "b", "--limit", "2"], json!({"ask": "find_servers", "query": "a b", "limit": 2}));
    let request = json!({"ask": "request_server", "name": "com.example/x", "why": "to see"});
    check(&["servers", "request", "com.example/x", "to", "see"], request);
    check(&["help"], json!({"ask": "help"}));
    check(&["help", "a.b"], json!({"ask": "help", "topic": "a.b", "language": "shell"}));
    check(&["tools", "github"], json!({"ask": "tools", "server": "github"}));
    check(&["tools", "github", "list"], json!({"ask": "tools", "server": "github"}));
    check(&["resources", "github"], json!({"ask": "resources", "server": "github"}));
    check(&["read", "docs", "file:///a=b"], json!({"ask": "read_resource", "server": "docs", "uri": "file:///a=b"}));
    check(&["prompts", "docs"], json!({"ask": "prompts", "server": "docs"}));
    check(
        &["prompt", "docs", "greet", "name=Ada"],
        json!({"ask": "prompt", "server": "docs", "name": "greet", "arguments": {"name": "Ada"}}),
    );
    // Arguments of a prompt are text, as typed.
    check(
        &["prompt", "docs", "greet", "n=1", "m=1.50", "k:=[1]", "{\"o\": null}"],
        json!({"ask": "prompt", "server": "docs", "name": "greet",
               "arguments": {"k": "[1]", "o": "null", "n": "1", "m": "1.50"}}),
    );
    check(
        &["complete", "docs", "prompt", "greet", "who", "A", "n=1"],
        json!({"ask": "complete", "server": "docs", "prompt": "greet", "argument": "who", "value": "A",
               "context": {"n": "1"}}),
    );
    check(
        &["complete", "docs", "resource", "a://{n}", "n"],
        json!({"ask": "complete", "server": "docs", "resource": "a://{n}", "argument": "n", "value": "",
               "context": {}}),
    );
    check_wrong(&["complete", "docs", "tool", "greet", "who"], "does not take these arguments");
    check(&["subscribe", "docs", "a://1"], json!({"ask": "subscribe", "server": "docs", "uri": "a://1"}));
    check(&["changes", "1", "0"], json!({"ask": "changes", "subscription": 1, "seen": 0, "timeout": 60}));
    check(
        &["changes", "1", "2", "--timeout", "0.5"],
        json!({"ask": "changes", "subscription": 1, "seen": 2, "timeout": 0.5}),
    );
    check_wrong(&["changes", "1", "-2"], "`-2` is not a whole number");
    check(&["logs", "docs"], json!({"ask": "logs", "server": "docs"}));
    check(&["output", "o_1"], json!({"ask": "output", "handle": "o_1"}));
    assert_eq!(parsed(&["--help"]), Ok(McpCommand::Usage));
    assert_eq!(parsed(&["call", "-h"]), Ok(McpCommand::Usage));
}

#[test]
fn names_a_tool_with_a_dot_or_a_space() {
    let call = |server: &str, tool: &str| json!({"ask": "call", "server": server, "tool": tool, "arguments": {}});
    check(&["call", "github.list_issues"], call("github", "list_issues"));
    check(&["call", "github", "list_issues"], call("github", "list_issues"));
    check(&["call", "github.issues.list"], call("github", "issues.list"));
    let mut raw = call("a", "b");
    raw["raw"] = true.into();
    raw["timeout"] = json!(1.5);
    check(&["call", "--raw", "a.b", "--timeout", "1.5"], raw);
}

#[test]
fn reads_values_as_json_if_they_are_json() {
    check_arguments(&[], json!({}));
    check_arguments(&["owner=o", "repo=r"], json!({"owner": "o", "repo": "r"}));
    check_arguments(&["n=1", "f=-2.5e3", "t=true", "z=null"], json!({"n": 1, "f": -2500.0, "t": true, "z": null}));
    check_arguments(&["l=[1,\"a\"]", "o={\"k\":[]}"], json!({"l": [1, "a"], "o": {"k": []}}));
    check_arguments(&["a=", "b=x=y", "c= ", "d=True"], json!({"a": "", "b": "x=y", "c": " ", "d": "True"}));
    check_arguments(&["a=007", "b=1.2.3", "c=+1", "d=NaN"], json!({"a": "007", "b": "1.2.3", "c": "+1", "d": "NaN"}));
    check_arguments(&["a=\"x\"", "b=[draft] x", "c={"], json!({"a": "\"x\"", "b": "[draft] x", "c": "{"}));
    // The second number does not fit into 64 bits, so it stays text.
    let (fits, long) = ("18446744073709551615", "18446744073709551616");
    check_arguments(&[&format!("a={fits}"), &format!("b={long}")], json!({"a": u64::MAX, "b": long}));
    check_arguments(&["a:=\"007\"", "b:=1", "c:= {}"], json!({"a": "007", "b": 1, "c": {}}));
    check_arguments(&["url=https://x/?a=1&b:=2"], json!({"url": "https://x/?a=1&b:=2"}));
    check_arguments(&["-x=1"], json!({"-x": 1}));
}

#[test]
fn prints_json_unless_the_answer_is_prose() {
    let is_json = |line: &[&str]| match parsed(line) {
        Ok(McpCommand::Call { print_options, .. }) => print_options.json,
        other => panic!("{line:?}: {other:?}"),
    };
    for line in [&["call", "a.b"][..], &["find", "x"], &["read", "s", "u"], &["help", "--json"]] {
        assert!(is_json(line), "{line:?}");
    }
    for line in [&["call", "a.b", "--text"][..], &["help"], &["output", "o"]] {
        assert!(!is_json(line), "{line:?}");
    }
}

/// Only these values can have another type in the tool's schema.
#[test]
fn remembers_values_as_typed() {
    let line = ["call", "s.t", "a=1", "b:=2", "c=x=y", "{\"d\": 3}", "e=@-"];
    match parsed(&line) {
        Ok(McpCommand::Call { typed, .. }) => {
            let expected = [("a", "1"), ("c", "x=y")].map(|(key, text)| (key.to_owned(), text.to_owned()));
            assert_eq!(typed, expected);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_objects_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("f");
    std::fs::write(&file, "[1]\n").unwrap();
    let file = file.display();
    check_arguments(&["{\"a\": 1}", "b=2"], json!({"a": 1, "b": 2}));
    check_arguments(&[&format!("t=@{file}"), &format!("j:=@{file}")], json!({"t": "[1]\n", "j": [1]}));
    check_arguments(&["@-"], json!({"from": "input"}));
    check_arguments(&["-", "b=2"], json!({"from": "input", "b": 2}));
    check_wrong(&["call", "s", "-"], "needs `SERVER.TOOL`, not `s`");
    check_arguments(&["t=@-"], json!({"t": "{\"from\": \"input\"}"}));
    check_wrong(&["call", "s.t", &format!("@{file}")], "is not a JSON object");
    check_wrong(&["call", "s.t", "user=@ada"], "user:='\"@ada\"'");
}

#[test]
fn explains_wrong_command_lines() {
    check_wrong(&[], "a command is missing");
    check_wrong(&["fnd", "x"], "there is no command `fnd`");
    check_wrong(&["find", "x", "--limit"], "`--limit` needs a value");
    check_wrong(&["find", "x", "--limit", "0"], "whole number, at least 1");
    check_wrong(&["find", "x", "--raw"], "an option of `mcp call`");
    check_wrong(&["find", "--all", "x"], "there is no option `--all`");
    check_wrong(&["call"], "needs `SERVER.TOOL`");
    check_wrong(&["call", "github"], "not `github`");
    check_wrong(&["call", "github", "a=1"], "not `github`");
    check_wrong(&["call", "s.t", "x"], "`x` is neither KEY=VALUE nor a JSON object");
    check_wrong(&["call", "s.t", "=x"], "neither KEY=VALUE");
    check_wrong(&["call", "s.t", ":=x"], "neither KEY=VALUE");
    check_wrong(&["call", "s.t", "{\"a\":}"], "is not a JSON object");
    check_wrong(&["call", "s.t", "a:=x"], "the value of `a` is not JSON");
    check_wrong(&["call", "s.t", "a=1", "{\"a\":2}"], "`a` is given twice");
    check_wrong(&["call", "s.t", "--timeout", "soon"], "number of seconds");
    check_wrong(&["servers", "x"], "does not take these arguments");
    check_wrong(&["servers", "request"], "does not take these arguments");
    check_wrong(&["servers", "--limit", "2"], "does not take these arguments");
    check_wrong(&["tools"], "does not take these arguments");
}
