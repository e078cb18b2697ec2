//! Ten tasks as an agent does them, with only what Cove printed before: the list of tools, search results, hints. Each
//! step is checked for that, no step may fail, and the number of calls is limited. What both sides said is kept in
//! snapshots, for people to read.

mod files_and_code;
mod servers;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;

use cove_testkit::mcp::ToolAnswer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CoveAgent, LONG, UpstreamHome};
use crate::judges::OutsideJudges;

/// An agent at work on one task.
struct TaskTranscript<'a> {
    agent: CoveAgent<'a>,
    /// What the agent has read: the person's words, and everything that Cove printed.
    known: String,
    /// What both sides said, as the snapshot shows it.
    text: String,
    calls: usize,
}

/// The names in Python code that its author must have read somewhere.
#[derive(Deserialize)]
struct ForeignNames {
    /// Tools by their whole name, such as `mcp.time.convert_time`, with the names of their arguments.
    calls: BTreeMap<String, Vec<String>>,
    words: Vec<String>,
}

impl<'a> TaskTranscript<'a> {
    /// Starts Cove, and reads what every client shows its model first. `task` is what the person wants.
    fn begin(house: &'a UpstreamHome<'a>, arguments: &[&str], task: &str) -> Self {
        let mut agent = house.serve(arguments);
        let mut text = agent.client.handshake["instructions"].as_str().expect("instructions").to_owned() + "\n";
        let listed = agent.client.request("tools/list", json!({})).expect("a list");
        for tool in listed["tools"].as_array().expect("tools") {
            let word = |value: &Value| value.as_str().expect("a text").to_owned();
            text += &format!("\n{}: {}\n", word(&tool["name"]), word(&tool["description"]));
            for (name, parameter) in tool["inputSchema"]["properties"].as_object().expect("parameters") {
                text += &format!("  {name}: {}\n", word(&parameter["description"]));
            }
        }
        Self { agent, known: format!("{task}\n{text}"), text: format!("PERSON: {task}\n\nCOVE:\n{text}"), calls: 0 }
    }

    /// Searches, as an agent does before it writes code.
    fn find_tools(&mut self, query: &str) -> String {
        self.check_words("the search", &["find_tools", "query"]);
        self.step("find_tools", json!({ "query": query })).ok()
    }

    fn run_python(&mut self, code: &str) -> ToolAnswer {
        self.check_python(code);
        self.step("execute_code", json!({ "code": code }))
    }

    /// Runs code that calls no server.
    fn run_other(&mut self, language: &str, code: &str) -> ToolAnswer {
        assert!(!code.contains("mcp"), "{code}");
        self.check_words("the language", &["execute_code", "language", language]);
        self.step("execute_code", json!({ "code": code, "language": language }))
    }

    fn step(&mut self, tool: &str, arguments: Value) -> ToolAnswer {
        self.calls += 1;
        let said = match (&arguments["code"], &arguments["language"]) {
            (Value::String(code), Value::String(language)) => format!("{tool} ({language})\n{code}"),
            (Value::String(code), _) => format!("{tool}\n{code}"),
            _ => format!("{tool} {arguments}"),
        };
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "step" } });
        let id = self.agent.client.begin("tools/call", params);
        let answer = self.agent.client.answer_within(id, LONG);
        let answer = answer.unwrap_or_else(|| panic!("no answer: {}", self.agent.client.errors()));
        assert!(answer.get("error").is_none(), "{answer}");
        let answer = ToolAnswer(answer["result"].clone());
        self.known += &format!("{}\n", answer.text());
        let failed = if answer.is_error() { " (error)" } else { "" };
        self.text += &format!("\nAGENT: {}\n\nCOVE{failed}:\n{}\n", said.trim_end(), answer.text().trim_end());
        for block in answer.0["content"].as_array().into_iter().flatten().filter(|block| block["type"] == "image") {
            self.text += &format!("[an image: {}]\n", block["mimeType"].as_str().unwrap_or_default());
        }
        answer
    }

    /// Fails if the code has names that neither Python nor any earlier text defines.
    #[track_caller]
    fn check_python(&self, code: &str) {
        self.check_words("the tool", &["execute_code", "code"]);
        let mut command = self.agent.house.judges.python("upstreams/transcripts/names.py");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python can be started");
        child.stdin.take().expect("a pipe").write_all(code.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{code}");
        let foreign: ForeignNames = serde_json::from_slice(&output.stdout).expect("it prints JSON");
        for (tool, keys) in &foreign.calls {
            // The last signature that was printed counts.
            let signature = self.known.rsplit_once(&format!("{tool}(")).map(|(_, after)| after);
            let signature = signature.unwrap_or_else(|| panic!("no text names {tool}: {}", self.known));
            let signature = signature.lines().next().unwrap_or_default();
            for key in keys {
                assert!(has_word(signature, key), "no text says that {tool} has `{key}`: {signature}");
            }
        }
        assert!(!code.contains("mcp_") || self.known.contains("async: mcp_SERVER.TOOL"), "{}", self.known);
        let words: Vec<&str> = foreign.words.iter().map(String::as_str).collect();
        self.check_words(code, &words);
    }

    #[track_caller]
    fn check_words(&self, context: &str, words: &[&str]) {
        for word in words {
            assert!(has_word(&self.known, word), "no text names `{word}`, in {context}: {}", self.known);
        }
    }

    /// Compares the conversation with its snapshot. Fails if it needed more calls than `limit`.
    #[track_caller]
    fn end(self, name: &str, limit: usize) {
        assert!(self.calls <= limit, "{} calls: {}", self.calls, self.text);
        let folder = self.agent.house.folder.to_string_lossy().into_owned();
        // Pythons differ in how they mark the place of an error.
        let is_marker = |line: &&str| line.contains('^') && line.chars().all(|c| " ^~".contains(c));
        let lines: Vec<&str> = self.text.lines().filter(|line| !is_marker(line)).collect();
        let text = hide_handles(&lines.join("\n").replace(&folder, "/home/me"));
        self.agent.close();
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.set_snapshot_path(crate::judges::test_file("upstreams/transcripts/snapshots"));
        settings.bind(|| insta::assert_snapshot!(name, text));
    }
}

/// Returns true if the text has this word, not as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// Replaces what is random in handles of outputs and sessions.
fn hide_handles(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split_inclusive(['o', 's']).enumerate() {
        let handle = |part: &str| {
            part.starts_with('_') && part[1..].chars().take(32).filter(char::is_ascii_hexdigit).count() == 32
        };
        out += if at > 0 && handle(part) { "_…" } else { "" };
        out += if at > 0 && handle(part) { &part[33..] } else { part };
    }
    out
}

impl<'a> UpstreamHome<'a> {
    /// A home with eight servers that Cove knows: the seven real ones, and `shop`.
    fn for_transcripts(judges: &'a OutsideJudges) -> Self {
        let house = Self::empty(judges);
        house.configure("real", house.real_servers());
        let script = crate::judges::test_file("upstreams/transcripts/shop.py");
        let shop = json!({ "command": judges.path("venv/bin/python"), "args": [script, house.path("items.json")] });
        house.configure("shop", json!({ "shop": shop }));
        std::fs::write(house.path("items.json"), json!(servers::items()).to_string()).expect("it can be written");
        let output = house.cove(&["servers", "refresh"]).output().expect("cove can be started");
        assert!(output.status.success(), "{output:?}");
        house
    }
}

#[test]
fn recognises_words_and_handles() {
    assert!(has_word("mcp.time(zone: str)", "zone") && !has_word("timezone: str", "zone"));
    let handle = "o_0123456789abcdef0123456789abcdef";
    assert_eq!(hide_handles(&format!("so `{handle}` is some_of s_1")), "so `o_…` is some_of s_1");
}

#[test]
fn invented_names_fail_a_transcript() {
    let Some(judges) = OutsideJudges::find("invented_names_fail_a_transcript") else { return };
    let house = UpstreamHome::empty(&judges);
    let mut agent = TaskTranscript::begin(&house, &[], "What does it cost?");
    agent.known += "mcp.shop.list_items(*, cursor: str) -> {\"items\": list[{\"price\": float}]}\n";
    for (code, is_known) in [
        ("import json\nprint(json.dumps([mcp.shop.list_items(cursor=\"1\").items[0].price]))", true),
        ("mcp.shop.list_items(page=1)", false),
        ("mcp.shop.sell()", false),
        ("mcp.other.list_items(cursor=\"1\")", false),
        ("mcp.shop.list_items(cursor=\"1\").items[0][\"cost_of_it\"]", false),
        ("mcp.shop.list_items(cursor=\"1\").total", false),
        ("mcp_shop.list_items(cursor=\"1\")", false),
        ("import pandas", false),
        ("find(\"price\")", false),
        ("mcp.output(\"o_1\")", false),
    ] {
        let check = std::panic::AssertUnwindSafe(|| agent.check_python(code));
        assert_eq!(std::panic::catch_unwind(check).is_ok(), is_known, "{code}");
    }
}
