//! What servers say about their tools reaches agents and code, in the words that the real program prints: parameters,
//! instructions, learned results. The servers are replayed, so their words can be anything.

use std::fs;

use cove_testkit::mcp::TestStdioClient;
use serde_json::{Value, json};

use crate::broker::{BrokerHome, python};

/// Adds a server that answers as this JSON says.
fn define_replay(home: &BrokerHome, server: &str, replay: &Value) {
    let path = home.path(&format!("{server}.replay"));
    fs::write(&path, replay.to_string()).expect("a file");
    home.define(server, json!({server: home.fixture(&["--replay", path.to_str().expect("a path")])}));
}

/// A home with the server `time` as it really is, and `wiki` with words of every kind.
fn documented_home() -> BrokerHome {
    let home = BrokerHome::new(json!({}));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/search/real_servers/time.json");
    define_replay(&home, "time", &serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON"));
    let page = json!({
        "name": "delete-page", "title": "Wiki page remover", "annotations": {"destructiveHint": true},
        "description": "Deletes a page.\n\nThe query language: `space:NAME` limits it to a space.",
        "inputSchema": {"type": "object", "required": ["from"], "properties": {
            "from": {"type": "string", "description": "Who asks for it", "maxLength": 9_007_199_254_740_991_u64},
            "page": {"type": "object", "required": ["id"], "properties": {
                "id": {"type": "integer", "description": "Number at the end of its address"},
            }},
        }},
    });
    let old = json!({"name": "old-page", "description": "[DEPRECATED] Use another", "inputSchema": {"type": "object"}});
    define_replay(
        &home,
        "wiki",
        &json!({"tools": [page, old], "instructions": "Call `whoami` first.\n\nThen\u{1b}[2J go on."}),
    );
    home
}

fn shell(client: &mut TestStdioClient, code: &str) -> String {
    client.call("execute_code", json!({"code": code, "language": "bash"})).ok()
}

#[test]
fn parameter_descriptions_reach_agents_and_code() {
    let home = documented_home();
    let mut client = home.serve(&[]);
    let time = "Time to convert in 24-hour format (HH:MM)";
    let found = client.call("find_tools", json!({"query": "convert time between time zones"})).ok();
    assert!(found.contains(&format!("\n#   time: {time}\n")), "{found}");
    assert!(found.ends_with("; more: mcp.help(\"time.convert_time\")"), "{found}");
    assert!(python(&mut client, "mcp.find('convert time')").contains(&format!("\n#   time: {time}\n")));
    let node = client.call("execute_code", json!({"code": "await mcp.find('convert time')", "language": "node"})).ok();
    assert!(node.contains(&format!("\n//   time: {time}\n")), "{node}");
    let found = shell(&mut client, "mcp find convert time | jq -r '.tools[0] | .signature, .comment'");
    assert!(
        found.starts_with("mcp call time.convert_time ") && found.contains(&format!("\n#   time: {time}\n")),
        "{found}"
    );
}

#[test]
fn help_shows_everything_about_a_tool() {
    let home = documented_home();
    let mut client = home.serve(&[]);
    let comment = "\
# Destructive. Wiki page remover: Deletes a page.
# The query language: `space:NAME` limits it to a space.
#   from_: Who asks for it
#   page.id: Number at the end of its address
";
    let call = "mcp.wiki.delete_page(*, from_: str, page: {\"id\": int} = ...) -> Any\n";
    for topic in ["'wiki.delete-page'", "'wiki.delete_page'", "mcp.wiki.delete_page", "wiki.delete_page"] {
        assert_eq!(python(&mut client, &format!("mcp.help({topic})")), format!("{call}{comment}"));
    }
    let node =
        client.call("execute_code", json!({"code": "await mcp.help('wiki.delete_page')", "language": "node"})).ok();
    let expected = format!(
        "mcp.wiki.delete_page(input: {{ from: string; page?: {{ id: number }} }}): Promise<unknown>\n{}",
        comment.replace("from_", "from").replace("\n#", "\n//").replacen('#', "//", 1)
    );
    assert_eq!(node, expected);
    let call = "mcp call wiki.delete_page from=TEXT [page='{\"id\": INTEGER}']\n";
    assert_eq!(shell(&mut client, "mcp help wiki.delete-page"), format!("{call}{}", comment.replace("from_", "from")));
    assert!(home.run(&["tools", "show", "wiki.delete-page"]).expect_success().ends_with(comment));
    assert!(python(&mut client, "mcp.help('wiki.old_page')").ends_with("# [DEPRECATED] Use another\n"));
    for (topic, error) in [("wiki.nope", "UnknownTool"), ("nope.x", "UnknownServer"), ("../../etc", "UnknownServer")] {
        let code = format!("try: mcp.help('{topic}')\nexcept mcp.MCPError as e: print(type(e).__name__)");
        assert_eq!(python(&mut client, &code), format!("{error}\n"));
    }
    let mut denied = home.serve(&["--deny-call", "wiki.delete-page"]);
    assert!(!python(&mut denied, "mcp.help('wiki')").contains("delete_page"));
    let code = "try: mcp.help('wiki.delete_page')\nexcept mcp.MCPError as e: print(e)";
    let refused = python(&mut denied, code);
    assert!(refused.contains("is not granted") && !refused.contains("Deletes"), "{refused}");
}

#[test]
fn help_shows_the_instructions_of_a_server_without_starting_it() {
    let home = documented_home();
    home.run(&["servers", "refresh"]).expect_success();
    // From now on the server cannot start, but what it said is known.
    fs::remove_file(home.path("wiki.replay")).expect("it is removed");
    let expected = "# wiki: 2 tools\n# Call `whoami` first.\n# Then[2J go on.\nmcp.wiki.delete_page(";
    let mut client = home.serve(&[]);
    let shown = python(&mut client, "mcp.help('wiki')");
    assert!(shown.starts_with(expected), "{shown}");
    assert!(
        shown.contains("    # Deletes a page.\n") && shown.ends_with("all about one tool: mcp.help(\"wiki.TOOL\")\n")
    );
    assert_eq!(
        shell(&mut client, "mcp help wiki | head -3"),
        "# wiki: 2 tools\n# Call `whoami` first.\n# Then[2J go on.\n"
    );
    assert!(home.run(&["tools", "show", "wiki"]).expect_success().starts_with(expected));
}

#[test]
fn results_are_learned_from_answers() {
    let home = BrokerHome::new(json!({}));
    let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    let text = |text: &str| json!({"content": [{"type": "text", "text": text}]});
    let rows = "[{\"id\": 7, \"name\": \"canary-1\"}, {\"id\": 8, \"name\": null}]";
    let secrets = "{\"sk-live-4f9a8b7c6d5e\": 1, \"x\\\"]; import os #\": 2}";
    let long = json!({"k".repeat(1 << 20): 1, "canary-2": 2}).to_string();
    let replay = json!({
        "tools": [tool("words"), tool("rows"), tool("secrets"), tool("long"), tool("never"), tool("fails")],
        "answers": {
            "words": text("just text"), "rows": text(rows), "secrets": text(secrets), "long": text(&long),
            "fails": {"content": [{"type": "text", "text": "no"}], "isError": true},
        },
    });
    define_replay(&home, "shop", &replay);
    let mut client = home.serve(&[]);
    let result = |client: &mut TestStdioClient, tool: &str| {
        let shown = python(client, &format!("mcp.help('shop.{tool}')"));
        shown.trim_end().strip_prefix(&format!("mcp.shop.{tool}() -> ")).unwrap_or(&shown).to_owned()
    };
    assert_eq!(result(&mut client, "rows"), "Any");
    let code = "for t in ('words', 'rows', 'secrets', 'long', 'fails') * 2:\n  \
                try: mcp_servers['shop'][t]()\n  except mcp.ToolError: pass";
    python(&mut client, code);
    let known = [
        ("words", "str"),
        ("rows", "list[{\"id\": int, \"name\": str | None}]"),
        ("secrets", "dict[str, int]"),
        ("long", "dict[str, int]"),
        ("never", "Any"),
        ("fails", "Any"),
    ];
    for (tool, expected) in known {
        assert_eq!(result(&mut client, tool), expected);
    }
    client.close_input();
    client.wait();
    // Another process knows it from the cache, in which no value of an answer is.
    let mut next = home.serve(&[]);
    for (tool, expected) in known {
        assert_eq!(result(&mut next, tool), expected);
    }
    for file in fs::read_dir(home.path(".local/state/cove/catalog")).expect("a folder") {
        let text = fs::read_to_string(file.expect("an entry").path()).expect("a file");
        assert!(text.contains("\"results\"") && !text.contains("canary") && !text.contains("sk-live"), "{text}");
        assert!(text.len() < 10_000, "{} bytes", text.len());
    }
    // A tool that changed is another tool.
    let mut changed = replay;
    changed["tools"][0]["description"] = json!("Other words");
    define_replay(&home, "shop", &changed);
    home.run(&["servers", "refresh"]).expect_success();
    home.run(&["servers", "accept", "shop"]).expect_success();
    let mut last = home.serve(&[]);
    assert!(result(&mut last, "words").starts_with("Any\n"), "{}", result(&mut last, "words"));
    assert_eq!(result(&mut last, "rows"), known[1].1);
}

#[test]
fn tables_that_a_server_declares_arrive_as_rows() {
    let home = BrokerHome::new(json!({}));
    let csv = "id,name\n007,Ann\n8,\"B, C\"\n";
    let resource = json!({"uri": "shop://t", "mimeType": "text/csv", "text": csv});
    let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    define_replay(
        &home,
        "shop",
        &json!({"tools": [tool("table"), tool("prose")], "answers": {
            "table": {"content": [{"type": "resource", "resource": resource}]},
            "prose": {"content": [{"type": "text", "text": csv}]},
        }}),
    );
    let mut client = home.serve(&[]);
    assert_eq!(python(&mut client, "[row['id'] + row.name for row in mcp.shop.table()]"), "['007Ann', '8B, C']\n");
    assert_eq!(python(&mut client, "mcp.shop.prose().splitlines()[0]"), "'id,name'\n");
    let shown = python(&mut client, "mcp.help('shop.table')");
    assert_eq!(shown, "mcp.shop.table() -> list[{\"id\": str, \"name\": str}]\n");
}
