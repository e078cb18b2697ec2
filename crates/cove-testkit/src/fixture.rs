//! An MCP server for tests: JSON-RPC on standard input and output, written by hand so that it can also do what no
//! library lets a server do. Flags choose its era and how it misbehaves; its tools misbehave in other ways.

mod extended;
#[cfg(feature = "kit")]
pub mod front;
mod questions;
mod tools;
mod torrent;

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const META: &str = "io.modelcontextprotocol/";

/// Which openings of a session the server understands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum FixtureEra {
    #[default]
    Both,
    Modern,
    Legacy,
    /// The older one, and it never answers an unknown method.
    Silent,
    /// The older one, and it exits at an unknown method.
    Fragile,
    /// Of the legacy era, with an empty success for what it does not know.
    Vague,
}

/// The server's flags: `--era modern`, `--tools 10000`, `--page 100`, and so on.
#[derive(Debug, Default)]
struct FixtureOptions {
    era: FixtureEra,
    /// How many tools there are beside the named ones; `--only` leaves those out; and how many a page has.
    tools: usize,
    only: bool,
    page: Option<usize>,
    /// How long it waits before it reads anything.
    slow: Duration,
    refuse: bool,
    /// How many lines that are not messages it writes first; `--nonsense` never stops writing them.
    junk: usize,
    nonsense: bool,
    noise: usize,
    /// Writes one line that never ends.
    flood: bool,
    /// Its list has tools with hostile names and descriptions.
    hostile: bool,
    /// Offers tasks, log messages, completions, and resources that report changes.
    extended: bool,
    /// Has a tool that asks a person.
    elicit: bool,
    /// Does not exit when its input ends.
    stubborn: bool,
    /// Another server that it imitates, from a JSON file: `instructions`, `tools`, and `answers` by tool.
    replay: Option<Value>,
    /// A file like that of `--replay`, read again for every request, so that a test can change the server while it runs.
    live: Option<PathBuf>,
    /// Reports a thousand changes of its tools after every call.
    storm: bool,
    /// Starts a child process, and writes both process ids to this file.
    pids: Option<PathBuf>,
    /// Writes every message that it receives to this file, one per line. The file exists as soon as the server has
    /// started.
    log: Option<PathBuf>,
    /// Adds a line to this file at every start.
    starts: Option<PathBuf>,
    /// Gives the answers of two calls that wait at the same time to each other; how long a call waits for another.
    cross: Option<Duration>,
    /// Sends without end or measure.
    torrent: Option<torrent::FixtureTorrent>,
}

impl FixtureOptions {
    fn parse(arguments: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        let mut arguments = arguments;
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{flag} wants a value"));
            match flag.as_str() {
                "--era" => {
                    options.era = match value().as_str() {
                        "both" => FixtureEra::Both,
                        "modern" => FixtureEra::Modern,
                        "legacy" => FixtureEra::Legacy,
                        "silent" => FixtureEra::Silent,
                        "fragile" => FixtureEra::Fragile,
                        "vague" => FixtureEra::Vague,
                        other => panic!("no era {other}"),
                    }
                }
                "--tools" => options.tools = value().parse().expect("a number"),
                "--only" => options.only = true,
                "--page" => options.page = Some(value().parse().expect("a number")),
                "--slow" => options.slow = Duration::from_millis(value().parse().expect("milliseconds")),
                "--refuse" => options.refuse = true,
                "--junk" => options.junk = value().parse().expect("a number"),
                "--nonsense" => options.nonsense = true,
                "--noise" => options.noise = value().parse().expect("a number"),
                "--flood" => options.flood = true,
                "--hostile" => options.hostile = true,
                "--extended" => options.extended = true,
                "--elicit" => options.elicit = true,
                "--stubborn" => options.stubborn = true,
                "--replay" => {
                    let text = std::fs::read_to_string(value()).expect("a file");
                    options.replay = Some(serde_json::from_str(&text).expect("JSON"));
                }
                "--live" => options.live = Some(value().into()),
                "--storm" => options.storm = true,
                "--pids" => options.pids = Some(value().into()),
                "--log" => options.log = Some(value().into()),
                "--cross" => {
                    options.cross = Some(Duration::from_millis(value().parse().expect("milliseconds")));
                }
                "--torrent" => options.torrent = Some(torrent::FixtureTorrent::parse(&value())),
                "--starts" => options.starts = Some(value().into()),
                other => panic!("no flag {other}"),
            }
        }
        options
    }
}

/// The server: what the thread that reads messages and the threads that run tools share.
#[derive(Default)]
struct FixtureServer {
    options: FixtureOptions,
    /// Requests that were cancelled.
    cancelled: Mutex<HashSet<String>>,
    /// Requests that listen for changes, in the newer era.
    listeners: Mutex<Vec<Value>>,
    /// The list of tools has changed, and has one more.
    has_changed: Mutex<bool>,
    /// The client's answers to the server's own requests.
    answers: Mutex<Vec<Value>>,
    tasks: Mutex<Vec<extended::FixtureTask>>,
    /// The level that the client of the older era chose.
    log_level: Mutex<Option<String>>,
    /// Resources whose changes are reported, and the requests that listen for them in the newer era.
    subscribers: Mutex<Vec<(String, Value)>>,
    /// Ids of calls whose answers wait for another call.
    crossed: Mutex<Vec<Value>>,
    /// The era of the first request that opened a session.
    opened: Mutex<Option<FixtureEra>>,
}

/// Runs the server until its input ends.
pub fn main() {
    let options = FixtureOptions::parse(std::env::args().skip(1));
    for number in 0..options.noise {
        eprintln!("noise {number}");
    }
    if let Some(path) = &options.log {
        OpenOptions::new().create(true).append(true).open(path).expect("the log opens");
    }
    if let Some(path) = &options.starts {
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the list of starts opens");
        writeln!(file, "{}", std::process::id()).expect("the list of starts takes it");
    }
    if options.refuse {
        eprintln!("fixture: no database at {}", std::env::var("DATABASE").unwrap_or_default());
        std::process::exit(3);
    }
    if let Some(path) = &options.pids {
        // It is left behind on purpose: Cove must kill it together with this server.
        #[expect(clippy::zombie_processes)]
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep can be started");
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
    let shared = Arc::new(FixtureServer { options, ..FixtureServer::default() });
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        shared.log(&line);
        if let Ok(message) = serde_json::from_str::<Value>(&line) {
            shared.handle(message);
        }
    }
    if shared.options.stubborn {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

impl FixtureServer {
    fn log(&self, line: &str) {
        if let Some(path) = &self.options.log {
            let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the log opens");
            file.write_all(format!("{line}\n").as_bytes()).expect("the log takes it");
        }
    }

    fn write(&self, line: &str) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
    }

    fn send(&self, message: &Value) {
        self.write(&message.to_string());
    }

    fn answer(&self, id: &Value, result: Result<Value, (i64, String)>) {
        let (key, value) = match result {
            Ok(result) => ("result", result),
            Err((code, message)) => ("error", json!({"code": code, "message": message})),
        };
        self.send(&json!({"jsonrpc": "2.0", "id": id, (key): value}));
    }

    fn is_cancelled(&self, id: &Value) -> bool {
        lock(&self.cancelled).contains(&id.to_string())
    }

    /// Acts on one message.
    fn handle(self: &Arc<Self>, message: Value) {
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            lock(&self.answers).push(message);
            return;
        };
        let params = message["params"].clone();
        let Some(id) = message.get("id").cloned() else {
            if method == "notifications/cancelled" {
                lock(&self.cancelled).insert(params["requestId"].to_string());
                lock(&self.subscribers).retain(|(_, listener)| *listener != params["requestId"]);
            }
            return;
        };
        let is_modern = params["_meta"].get(format!("{META}protocolVersion")).is_some();
        if let Some(refusal) = self.refusal(&method, is_modern) {
            return self.answer(&id, Err(refusal));
        }
        if let Some(torrent) = self.options.torrent
            && torrent::serve(self, torrent, &id, &method, &params)
        {
            return;
        }
        let this = Arc::clone(self);
        // Calls run in parallel. Everything else is answered in order.
        if method == "tools/call" {
            std::thread::spawn(move || tools::call(&this, &id, &params, is_modern));
        } else if method == "tasks/result" {
            // The task may ask first.
            std::thread::spawn(move || this.serve(&id, &method, &params, is_modern));
        } else {
            self.serve(&id, &method, &params, is_modern);
        }
    }

    /// Returns the error for a method that this era does not know.
    fn refusal(&self, method: &str, is_modern: bool) -> Option<(i64, String)> {
        let era = self.options.era;
        let unknown = || Some((-32601, format!("Method not found: {method}")));
        match (method, era) {
            ("server/discover", FixtureEra::Legacy) => unknown(),
            ("server/discover", FixtureEra::Fragile) => {
                eprintln!("fixture: expected initialize");
                std::process::exit(1);
            }
            ("initialize", FixtureEra::Modern) => Some((-32022, "Unsupported protocol version".to_owned())),
            ("initialize", FixtureEra::Both) if *lock(&self.opened) == Some(FixtureEra::Modern) => {
                Some((-32022, "Unsupported protocol version".to_owned()))
            }
            ("server/discover" | "initialize", _) => None,
            (_, FixtureEra::Modern) if !is_modern => Some((-32602, "Missing _meta".to_owned())),
            _ => None,
        }
    }

    fn serve(&self, id: &Value, method: &str, params: &Value, is_modern: bool) {
        let capabilities = match self.options.extended {
            true => extended::capabilities(method == "server/discover"),
            false => json!({"tools": {"listChanged": true}, "resources": {}, "prompts": {}}),
        };
        let more = self.options.extended.then(|| extended::serve(self, method, params, is_modern)).flatten();
        if let Some(answer) = more {
            return self.answer(id, answer);
        }
        let about = json!({"name": "fixture", "version": "1.0.0"});
        let replay = self.replay();
        let replay = replay.as_ref();
        let words = replay.map_or(&Value::Null, |replay| &replay["instructions"]);
        let words = if replay.is_some() { words.clone() } else { json!("Call echo first.") };
        let result = match method {
            "server/discover" if self.options.era == FixtureEra::Silent => return,
            "server/discover" if self.options.era == FixtureEra::Vague => json!({}),
            "server/discover" => {
                lock(&self.opened).get_or_insert(FixtureEra::Modern);
                json!({
                    "supportedVersions": [MODERN], "capabilities": capabilities, "serverInfo": about,
                    "instructions": words, "ttlMs": 0, "cacheScope": "private",
                })
            }
            "initialize" => {
                lock(&self.opened).get_or_insert(FixtureEra::Legacy);
                json!({
                    "protocolVersion": LEGACY, "capabilities": capabilities, "serverInfo": about,
                    "instructions": words,
                })
            }
            "ping" => json!({}),
            "tools/list" => {
                let mut all = match (replay, self.options.only) {
                    (Some(replay), _) => replay["tools"].as_array().cloned().unwrap_or_default(),
                    (None, true) => tools::ordinary(self.options.tools),
                    (None, false) => tools::list(self.options.tools, *lock(&self.has_changed)),
                };
                if self.options.extended {
                    all.extend(extended::tools());
                }
                if self.options.elicit {
                    all.push(tools::asking_tool());
                }
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
            // Some real servers do this although they announce resources.
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
                let meta = json!({(format!("{META}subscriptionId")): id});
                let wanted = &params["notifications"];
                let uris = wanted["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
                let uris: Vec<Value> = uris.into_iter().filter(|uri| *uri != "fixture://refused").collect();
                if wanted["toolsListChanged"] == true || !self.options.extended {
                    lock(&self.listeners).push(id.clone());
                }
                let subscribers = uris.iter().filter_map(|uri| Some((uri.as_str()?.to_owned(), id.clone())));
                lock(&self.subscribers).extend(subscribers);
                let accepted = match wanted.get("resourceSubscriptions") {
                    Some(_) => json!({ "resourceSubscriptions": uris }),
                    None => json!({"toolsListChanged": true}),
                };
                let params = json!({"_meta": meta, "notifications": accepted});
                let method = "notifications/subscriptions/acknowledged";
                return self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
            }
            _ => return self.answer(id, Err((-32601, format!("Method not found: {method}")))),
        };
        self.answer(id, Ok(finished(result, is_modern)));
    }

    /// Waits a while for a second call, and returns its id in place of the own one.
    fn cross_ids(&self, id: &Value, patience: Duration) -> Value {
        lock(&self.crossed).push(id.clone());
        let until = Instant::now() + patience;
        while Instant::now() < until {
            let waiting = lock(&self.crossed).clone();
            if let Some(other) = waiting.iter().find(|other| *other != id) {
                return other.clone();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        id.clone()
    }

    /// Returns the server that this one imitates.
    fn replay(&self) -> Option<Value> {
        let Some(live) = &self.options.live else { return self.options.replay.clone() };
        let text = std::fs::read_to_string(live).expect("a file");
        Some(serde_json::from_str(&text).expect("JSON"))
    }

    fn page(&self, key: &str, all: Vec<Value>, params: &Value) -> Value {
        let from: usize = params["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let to = from.saturating_add(self.options.page.unwrap_or(usize::MAX)).min(all.len());
        let mut page = json!({(key): all[from.min(to)..to]});
        if to < all.len() {
            page["nextCursor"] = json!(to.to_string());
        }
        page
    }

    /// Adds a tool, and notifies the client.
    fn change(&self) {
        *lock(&self.has_changed) = true;
        let method = "notifications/tools/list_changed";
        let listeners = lock(&self.listeners).clone();
        if listeners.is_empty() {
            self.send(&json!({"jsonrpc": "2.0", "method": method}));
        }
        for listener in listeners {
            let meta = json!({(format!("{META}subscriptionId")): listener});
            self.send(&json!({"jsonrpc": "2.0", "method": method, "params": {"_meta": meta}}));
        }
    }

    /// Sends a request to the client, and waits for its answer.
    fn ask(&self, method: &str) -> Value {
        let id = format!("mine-{method}");
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method}));
        self.wait_for_answer(&id, || false)
    }

    /// Waits for the client's answer to a request of this server. Returns null if there is none in time, or if the
    /// wait is `over`.
    fn wait_for_answer(&self, id: &str, over: impl Fn() -> bool) -> Value {
        for _ in 0..6000 {
            let mut answers = lock(&self.answers);
            if let Some(at) = answers.iter().position(|answer| answer["id"] == id) {
                return answers.remove(at);
            }
            drop(answers);
            if over() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Value::Null
    }
}

/// Returns a result with the members that its era needs.
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

/// Returns the path of the server's program. It is built on its own, without the dependencies of the other tests, which
/// takes a few seconds once.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows its program");
        // target/<triple>/release/deps/<test>
        let release = test.ancestors().nth(2).expect("it lies in a build folder");
        let triple = release.parent().and_then(Path::file_name).expect("a build has a target");
        let target = release.ancestors().nth(2).expect("of a target").join("fixture");
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--quiet", "--offline", "--no-default-features"])
            .args(["--package", "cove-testkit", "--bin", "fixture-server", "--target-dir"])
            .arg(&target)
            .arg("--target")
            .arg(triple)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "the fixture server can be built");
        target.join(triple).join("release/fixture-server")
    })
}

/// Returns a definition of this server, as JSON in the common form.
pub fn definition(flags: &[&str]) -> Map<String, Value> {
    Map::from_iter([("command".to_owned(), json!(program())), ("args".to_owned(), json!(flags))])
}
