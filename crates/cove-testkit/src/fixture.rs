//! An MCP server made for tests: JSON-RPC on standard input and output, written by hand so that it can also do what no
//! library lets a server do. Flags choose its era and how it misbehaves; tools do the rest.

#[cfg(feature = "kit")]
pub mod front;
mod tools;

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const META: &str = "io.modelcontextprotocol/";

/// Which first words it understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    Both,
    Modern,
    Legacy,
    /// Older, and never answers what it does not know.
    Silent,
    /// Older, and ends at what it does not know.
    Fragile,
}

/// How it behaves, from its flags: `--era modern`, `--tools 10000`, `--page 100`, and so on.
#[derive(Debug)]
struct Options {
    era: Era,
    /// Tools beside the named ones, which `--only` leaves out, and how many a page has.
    tools: usize,
    only: bool,
    page: usize,
    /// Before it reads anything.
    slow: Duration,
    refuse: bool,
    /// Lines that are no messages, before anything else; `--nonsense` never stops writing them.
    junk: usize,
    nonsense: bool,
    noise: usize,
    /// Writes one line that never ends.
    flood: bool,
    /// Its list has tools with names and words that no list should have.
    hostile: bool,
    /// Goes on after its input ended.
    stubborn: bool,
    /// Starts a process of its own, and writes both ids here.
    pids: Option<PathBuf>,
    /// Every message that came in, one a line. The file is there as soon as the server was started.
    log: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut options = Self {
            era: Era::Both,
            tools: 0,
            only: false,
            page: usize::MAX,
            slow: Duration::ZERO,
            refuse: false,
            junk: 0,
            nonsense: false,
            noise: 0,
            flood: false,
            hostile: false,
            stubborn: false,
            pids: None,
            log: None,
        };
        let mut arguments = arguments;
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{flag} wants a value"));
            match flag.as_str() {
                "--era" => {
                    options.era = match value().as_str() {
                        "both" => Era::Both,
                        "modern" => Era::Modern,
                        "legacy" => Era::Legacy,
                        "silent" => Era::Silent,
                        "fragile" => Era::Fragile,
                        other => panic!("no era {other}"),
                    }
                }
                "--tools" => options.tools = value().parse().expect("a number"),
                "--only" => options.only = true,
                "--page" => options.page = value().parse().expect("a number"),
                "--slow" => options.slow = Duration::from_millis(value().parse().expect("milliseconds")),
                "--refuse" => options.refuse = true,
                "--junk" => options.junk = value().parse().expect("a number"),
                "--nonsense" => options.nonsense = true,
                "--noise" => options.noise = value().parse().expect("a number"),
                "--flood" => options.flood = true,
                "--hostile" => options.hostile = true,
                "--stubborn" => options.stubborn = true,
                "--pids" => options.pids = Some(value().into()),
                "--log" => options.log = Some(value().into()),
                other => panic!("no flag {other}"),
            }
        }
        options
    }
}

/// What its threads share.
struct Shared {
    options: Options,
    out: Mutex<io::Stdout>,
    /// Requests that were cancelled.
    cancelled: Mutex<HashSet<String>>,
    /// Who listens for changes in the newer era.
    listeners: Mutex<Vec<Value>>,
    /// A tool that was not there at first.
    has_changed: Mutex<bool>,
    /// Answers to what it asked itself.
    answers: Mutex<Vec<Value>>,
    /// The era it was first greeted in.
    greeted: Mutex<Option<Era>>,
}

/// The whole server, until its input ends.
pub fn main() {
    let options = Options::parse(std::env::args().skip(1));
    for number in 0..options.noise {
        eprintln!("noise {number}");
    }
    if let Some(path) = &options.log {
        OpenOptions::new().create(true).append(true).open(path).expect("the log opens");
    }
    if options.refuse {
        eprintln!("fixture: no database at {}", std::env::var("DATABASE").unwrap_or_default());
        std::process::exit(3);
    }
    if let Some(path) = &options.pids {
        // It is left behind: whoever ends this server must end it too.
        #[expect(clippy::zombie_processes)]
        let child =
            Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep can be started");
        std::fs::write(path, format!("{} {}", std::process::id(), child.id())).expect("ids can be written");
    }
    for number in 0..options.junk {
        println!("junk {number}");
    }
    if options.nonsense {
        loop {
            println!("BLAH BLAH BLAH");
        }
    }
    if options.flood {
        let piece = "x".repeat(1 << 16);
        let mut out = io::stdout();
        while out.write_all(piece.as_bytes()).is_ok() {}
    }
    std::thread::sleep(options.slow);
    let is_stubborn = options.stubborn;
    let shared = Arc::new(Shared {
        options,
        out: Mutex::new(io::stdout()),
        cancelled: Mutex::default(),
        listeners: Mutex::default(),
        has_changed: Mutex::default(),
        answers: Mutex::default(),
        greeted: Mutex::default(),
    });
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        shared.log(&line);
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            shared.take(message);
        }
    }
    if is_stubborn {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

impl Shared {
    fn log(&self, line: &str) {
        if let Some(path) = &self.options.log {
            let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the log opens");
            file.write_all(format!("{line}\n").as_bytes()).expect("the log takes it");
        }
    }

    fn write(&self, line: &str) {
        let mut out = lock(&self.out);
        let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
    }

    fn answer(&self, id: &Value, result: Result<Value, (i64, String)>) {
        self.write(
            &match result {
                Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                Err((code, message)) => {
                    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
                }
            }
            .to_string(),
        );
    }

    fn is_cancelled(&self, id: &Value) -> bool {
        lock(&self.cancelled).contains(&id.to_string())
    }

    fn take(self: &Arc<Self>, message: Value) {
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            lock(&self.answers).push(message);
            return;
        };
        let params = message["params"].clone();
        let Some(id) = message.get("id").cloned() else {
            if method == "notifications/cancelled" {
                lock(&self.cancelled).insert(params["requestId"].to_string());
            }
            return;
        };
        let is_modern = params["_meta"].get(format!("{META}protocolVersion")).is_some();
        if let Some(refusal) = self.refusal(&method, is_modern) {
            return self.answer(&id, Err(refusal));
        }
        let this = Arc::clone(self);
        // Calls run side by side; everything else is answered in order.
        if method == "tools/call" {
            std::thread::spawn(move || tools::call(&this, &id, &params, is_modern));
        } else {
            self.serve(&id, &method, &params, is_modern);
        }
    }

    /// What this era does not know.
    fn refusal(&self, method: &str, is_modern: bool) -> Option<(i64, String)> {
        let era = self.options.era;
        let unknown = || Some((-32601, format!("Method not found: {method}")));
        match (method, era) {
            ("server/discover", Era::Legacy) => unknown(),
            ("server/discover", Era::Silent) => Some((0, String::new())).filter(|_| false),
            ("server/discover", Era::Fragile) => {
                eprintln!("fixture: expected initialize");
                std::process::exit(1);
            }
            ("initialize", Era::Modern) => Some((-32022, "Unsupported protocol version".to_owned())),
            ("initialize", Era::Both) if *lock(&self.greeted) == Some(Era::Modern) => {
                Some((-32022, "Unsupported protocol version".to_owned()))
            }
            ("server/discover" | "initialize", _) => None,
            (_, Era::Modern) if !is_modern => Some((-32602, "Missing _meta".to_owned())),
            _ => None,
        }
    }

    fn serve(&self, id: &Value, method: &str, params: &Value, is_modern: bool) {
        let capabilities = json!({
            "tools": {"listChanged": true}, "resources": {}, "prompts": {},
        });
        let about = json!({"name": "fixture", "version": "1.0.0"});
        let words = "Call echo first.";
        let result = match method {
            "server/discover" if self.options.era == Era::Silent => return,
            "server/discover" => {
                lock(&self.greeted).get_or_insert(Era::Modern);
                json!({
                    "supportedVersions": [MODERN], "capabilities": capabilities, "serverInfo": about,
                    "instructions": words, "ttlMs": 0, "cacheScope": "private",
                })
            }
            "initialize" => {
                lock(&self.greeted).get_or_insert(Era::Legacy);
                json!({
                    "protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": about,
                    "instructions": words,
                })
            }
            "ping" => json!({}),
            "tools/list" => {
                let mut all = match self.options.only {
                    true => tools::ordinary(self.options.tools),
                    false => tools::list(self.options.tools, *lock(&self.has_changed)),
                };
                if self.options.hostile {
                    all.extend(tools::hostile());
                }
                self.page("tools", all, params)
            }
            "resources/list" => json!({"resources": [
                {"uri": "fixture://a", "name": "a"}, {"uri": "fixture://b", "name": "b"},
                {"uri": "fixture://json", "name": "json", "mimeType": "application/json"},
                {"uri": "fixture://bytes", "name": "bytes", "mimeType": "application/octet-stream"},
            ]}),
            // As some real servers do, which announce resources all the same.
            "resources/templates/list" => {
                return self.answer(id, Err((-32601, "Method not found".to_owned())));
            }
            "resources/read" => tools::resource(&params["uri"]),
            "prompts/list" => {
                json!({"prompts": [{"name": "greet", "arguments": [{"name": "who", "required": true}]}]})
            }
            "prompts/get" => {
                let text = format!("Greet {}", params["arguments"]["who"].as_str().unwrap_or("nobody"));
                json!({
                    "description": "A greeting",
                    "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
                })
            }
            "subscriptions/listen" => {
                lock(&self.listeners).push(id.clone());
                let meta = json!({(format!("{META}subscriptionId")): id});
                let params = json!({"_meta": meta, "notifications": {"toolsListChanged": true}});
                let method = "notifications/subscriptions/acknowledged";
                return self
                    .write(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
            }
            _ => return self.answer(id, Err((-32601, format!("Method not found: {method}")))),
        };
        self.answer(id, Ok(finished(result, is_modern)));
    }

    fn page(&self, key: &str, all: Vec<Value>, params: &Value) -> Value {
        let from: usize = params["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let to = from.saturating_add(self.options.page).min(all.len());
        let mut page = json!({(key): all[from.min(to)..to]});
        if to < all.len() {
            page["nextCursor"] = json!(to.to_string());
        }
        page
    }

    /// Tells everyone that there is another tool now.
    fn change(&self) {
        *lock(&self.has_changed) = true;
        let method = "notifications/tools/list_changed";
        let listeners = lock(&self.listeners).clone();
        if listeners.is_empty() {
            self.write(&json!({"jsonrpc": "2.0", "method": method}).to_string());
        }
        for listener in listeners {
            let meta = json!({(format!("{META}subscriptionId")): listener});
            self.write(&json!({"jsonrpc": "2.0", "method": method, "params": {"_meta": meta}}).to_string());
        }
    }

    /// Asks the client something, and waits for what it says.
    fn ask(&self, method: &str) -> Value {
        let id = format!("mine-{method}");
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string());
        for _ in 0..500 {
            if let Some(answer) = lock(&self.answers).iter().find(|answer| answer["id"] == id.as_str()) {
                return answer.clone();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Value::Null
    }
}

/// A result as its era wants it.
fn finished(mut result: Value, is_modern: bool) -> Value {
    if is_modern {
        result["resultType"] = json!("complete");
        result["ttlMs"] = json!(0);
        result["cacheScope"] = json!("private");
    }
    result
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the server's program is. It is built on its own, without what the rest of the tests needs: that takes seconds,
/// once, whatever else is being built.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows its program");
        // target/<triple>/release/deps/<test>
        let release = test.ancestors().nth(2).expect("it lies in a build folder");
        let target = release.ancestors().nth(2).expect("of a target").join("fixture");
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--quiet", "--offline", "--no-default-features"])
            .args(["--package", "cove-testkit", "--bin", "fixture-server", "--target-dir"])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "the fixture server can be built");
        let triple = release.parent().and_then(Path::file_name).expect("a build has a target");
        target.join(triple).join("release/fixture-server")
    })
}

/// Its definition, as JSON in the common form.
pub fn definition(flags: &[&str]) -> Map<String, Value> {
    let definition = json!({"command": program(), "args": flags});
    definition.as_object().cloned().unwrap_or_default()
}
