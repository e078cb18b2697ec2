//! Text that a model reads and a person does not see, through the real program: whatever a guest, a file name or a
//! server says, no hidden character leaves Cove.

use std::fs;

use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::{Value, json};

use crate::broker::BrokerHome;

/// One of each kind, between letters.
const HIDDEN: &str = "\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180e}\u{180f}\u{200b}\u{200c}\
     \u{200d}\u{200e}\u{202a}\u{202e}\u{2028}\u{2060}\u{2063}\u{2066}\u{206f}\u{2800}\u{3164}\u{fe00}\u{fe0e}\u{fe0f}\
     \u{feff}\u{ffa0}\u{fff0}\u{fff9}\u{1bca0}\u{1d173}\u{e0001}\u{e0041}\u{e0100}\u{e01ef}";

/// A word with all of them.
fn poison(word: &str) -> String {
    format!("{word}{HIDDEN}end")
}

/// Fails if a message has a hidden character.
#[track_caller]
fn assert_visible(what: &str, message: &Value) {
    let text = message.to_string();
    let found: Vec<char> = text.chars().filter(|c| HIDDEN.contains(*c)).collect();
    assert!(found.is_empty(), "{what} has {found:?}: {text}");
}

/// A home with a server whose every word is poisoned.
fn poisoned_home() -> BrokerHome {
    let home = BrokerHome::new(json!({}));
    let schema = json!({
        "type": "object", "title": poison("title"), "description": poison("schema"), "required": ["a"],
        "properties": {
            "a": {"type": "string", "description": poison("parameter"), "enum": ["x", poison("choice")]},
            poison("b"): {"type": "string", "default": poison("default")},
        },
    });
    let tool = |name: &str| {
        json!({
            "name": name, "title": poison("tool"), "description": poison("description"), "inputSchema": schema,
            "outputSchema": {"type": "object", "properties": {poison("out"): {"description": poison("output")}}},
        })
    };
    let replay = json!({
        "tools": [tool("fine"), tool(&poison("name"))],
        "instructions": poison("instructions"),
        "answers": {"fine": {"content": [{"type": "text", "text": poison("result")}], "isError": true}},
    });
    let path = home.path("poison.replay");
    fs::write(&path, replay.to_string()).unwrap();
    home.define("poison", json!({"poison": home.fixture(&["--replay", path.to_str().unwrap()])}));
    let log = home.path("log").to_string_lossy().into_owned();
    home.define("fixture", json!({"fixture": home.fixture(&["--elicit", "--log", &log])}));
    home
}

fn serve(home: &BrokerHome, era: ClientEra, format: &str) -> TestStdioClient {
    let command = home.command(&["serve", "--tools", "all", "--output", format]);
    TestStdioClient::start(command, era)
}

#[test]
fn no_hidden_text_reaches_the_model() {
    let home = poisoned_home();
    // Python writes the characters by number.
    let python = |text: &str| {
        let escaped: String = poison(text).chars().map(|c| format!("\\U{:08x}", c as u32)).collect();
        format!("'{escaped}'")
    };
    for (era, format) in [(ClientEra::Modern, "compact"), (ClientEra::Legacy, "json"), (ClientEra::Modern, "toon")] {
        let mut client = serve(&home, era, format);
        let mut check = |what: &str, method: &str, params: Value| {
            let id = client.begin(method, params);
            let answer = client.answer(id);
            assert_visible(&format!("{what} as {format}"), &answer);
            answer.to_string()
        };
        let call = |tool: &str, arguments: Value| json!({"name": tool, "arguments": arguments});
        let code = |code: String| call("execute_code", json!({"code": code, "session": "s"}));
        let mut run = |what: &str, text: String| check(what, "tools/call", code(text));
        // What a guest says, in every way it can.
        assert!(run("output", format!("print({})", python("out"))).contains("u{e0041}"));
        run("standard error", format!("import sys; sys.stderr.write({})", python("err")));
        run("a value", format!("[{}]", python("value")));
        run("an exception", format!("raise ValueError({})", python("error")));
        run("the name of an exception", format!("raise type({}, (Exception,), {{}})()", python("Class")));
        run("the exit", format!("import sys; sys.exit({})", python("exit")));
        run("a file name", format!("open('/workspace/' + {}, 'w').write('x')", python("file")));
        run("a file", format!("open('/workspace/f', 'w').write({})", python("content")));
        run("progress", format!("import time; print({}, flush=True); time.sleep(2.5)", python("line")));
        // What servers say, and how code shows it.
        for text in [
            "print(mcp.help('poison'))",
            "print(mcp.help('poison.fine'))",
            "print(mcp.find('description'))",
            "mcp.poison.fine(a='x')",
            "mcp.poison.fine(a='wrong')",
            "help(mcp.poison.fine)",
        ] {
            // The server's own words are there, without what was hidden in them.
            let shown = run(text, text.to_owned());
            assert!(shown.contains("end"), "{text}: {shown}");
        }
        run("a call of a tool with a hidden name", format!("mcp.call('poison', {}, {{}})", python("name")));
        run("an echoed result", format!("mcp.fixture.echo(text={})", python("echo")));
        for (tool, arguments) in [
            ("find_tools", json!({"query": "description"})),
            ("find_tools", json!({"query": poison("description")})),
            ("sandbox_list_files", json!({"session": "s"})),
            ("sandbox_read_file", json!({"session": "s", "path": "/workspace/f"})),
            ("sandbox_read_file", json!({"session": "s", "path": poison("/workspace/none")})),
            ("sandbox_read_file", json!({"session": poison("none"), "path": "f"})),
            ("sandbox_write_file", json!({"session": "s", "path": poison("/none/f"), "content": "x"})),
            ("start_session", json!({"image": poison("none")})),
            ("stop_session", json!({"session_id": poison("none")})),
            ("list_images", json!({})),
            ("execute_code", json!({"code": "1", "language": poison("ruby")})),
            ("execute_code", json!({"code": "1", poison("argument"): 1})),
            (&poison("tool"), json!({})),
        ] {
            check(tool, "tools/call", call(tool, arguments));
        }
        let long = call("execute_code", json!({"code": format!("for _ in range(4000): print({})", python("long"))}));
        let cut = check("long output", "tools/call", long);
        let id = cut.split("cove://outputs/").nth(1).expect("it has an address").split([' ', '\\', '"', '?']).next();
        let output = format!("cove://outputs/{}", id.unwrap());
        // From within a character too.
        for query in ["", "?offset=5", "?offset=6", "?offset=7&length=100", "?offset=8&length=1000"] {
            let uri = format!("{output}{query}");
            let read = check(&uri, "resources/read", json!({"uri": uri}));
            assert!(read.contains("u{e0041}"), "{uri}: {read}");
        }
        for list in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
            check(list, list, Value::Null);
        }
        for named in
            [json!({"type": "ref/prompt", "name": poison("p")}), json!({"type": "ref/resource", "uri": poison("u")})]
        {
            let argument = json!({"name": poison("argument"), "value": poison("value")});
            check("a completion", "completion/complete", json!({"ref": named, "argument": argument}));
        }
        check("the prompt", "prompts/get", json!({"name": "code-mode", "arguments": {"task": poison("task")}}));
        check("an unknown prompt", "prompts/get", json!({"name": poison("prompt")}));
        check("an unknown resource", "resources/read", json!({"uri": poison("cove://none")}));
        check("an unknown method", &poison("none/such"), json!({}));
        for notification in &client.notifications {
            assert_visible("a notification", notification);
        }
    }
}

#[test]
fn questions_of_servers_have_no_hidden_text() {
    let home = poisoned_home();
    let command = home.command(&["serve"]);
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}});
    let mut client = TestStdioClient::start_with(command, ClientEra::Legacy, capabilities);
    let escaped: String = HIDDEN.chars().map(|c| format!("\\U{:08x}", c as u32)).collect();
    for method in ["elicitation/create", "sampling/createMessage"] {
        let code = format!("print(mcp.fixture.elicit(message='a{escaped}b', method='{method}', reveal=True))");
        let id = client.begin_call("execute_code", json!({"code": code}));
        let question = client.wait_for_message(method);
        assert_visible("a question", &question);
        let answer = json!({
            "action": "accept", "content": {"name": poison("name")}, "role": "assistant", "model": "m",
        });
        let sampled = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": poison("said")}});
        client.reply(&question, if method == "elicitation/create" { answer } else { sampled });
        assert_visible("the result", &client.answer(id));
    }
}

#[test]
fn needed_joiners_and_selectors_stay_readable() {
    let home = BrokerHome::new(json!({}));
    let mut client = home.serve(&[]);
    let text = "❤️ 👩‍👩‍👧 🏳️‍🌈 1️⃣ می‌خواهم क्‍ष";
    assert_eq!(client.call("execute_code", json!({"code": format!("print('{text}')")})).ok(), format!("{text}\n"));
}
