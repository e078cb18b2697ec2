//! The wheel, with uv, pip and pipx. They get no index: the folder with the wheel is all they may use.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cove_testkit::skip::skip_without_all;
use serde_json::{Value, json};

use crate::install_home::{InstallHome, succeed};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A program from the environment of the outside judges.
fn installer(test: &str, name: &str) -> Option<PathBuf> {
    let judges = std::env::var_os("COVE_TEST_JUDGES").filter(|folder| !folder.is_empty());
    if judges.is_none() {
        skip_without_all(test, "it installs uv and pipx");
    }
    Some(Path::new(&judges?).join("venv-installers/bin").join(name))
}

/// A home with the wheel, and uv's programs.
fn home_with_uv(test: &str) -> Option<InstallHome> {
    let home = InstallHome::new(test)?;
    // Programs alone: the environment that they come from may be closed to the user.
    for name in ["uv", "uvx"] {
        home.take(&installer(test, name)?, &format!("bin/{name}"));
    }
    home.take_package(".whl");
    Some(home)
}

fn uv(home: &InstallHome, program: &str) -> Command {
    let mut command = home.command(home.at("bin").join(program));
    command.env("UV_OFFLINE", "1").env("UV_FIND_LINKS", home.at("packages")).env("UV_PYTHON_DOWNLOADS", "never");
    command.env("UV_NO_CONFIG", "1").env("UV_PYTHON", "/usr/bin/python3");
    command
}

#[test]
fn wheel_installs_with_uv() {
    let Some(home) = home_with_uv("wheel_installs_with_uv") else { return };
    succeed(uv(&home, "uv").args(["tool", "install", "cove-mcp"]));
    home.check_cove("cove");
    assert_eq!(home.run("cove-mcp", &["run", "-c", "print(2)"]), "2\n");
    succeed(uv(&home, "uv").args(["tool", "uninstall", "cove-mcp"]));
    succeed(uv(&home, "uv").args(["cache", "clean"]));
    assert_eq!(home.traces(".local"), Vec::<String>::new());
    assert_eq!(home.traces(".cache"), Vec::<String>::new());
}

#[test]
fn wheel_installs_with_pip() {
    let Some(home) = InstallHome::new("wheel_installs_with_pip") else { return };
    home.take_package(".whl");
    home.run("/usr/bin/python3", &["-m", "venv", "venv"]);
    let before = home.paths("venv");
    let pip = |args: &[&str]| {
        let mut command = home.command(home.at("venv/bin/pip"));
        succeed(command.args(args).env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PYTHONDONTWRITEBYTECODE", "1"))
    };
    pip(&["install", "--no-index", "--find-links", "packages", "cove-mcp"]);
    home.check_cove(home.at("venv/bin/cove"));
    assert_eq!(home.run(home.at("venv/bin/cove-mcp"), &["run", "-c", "print(2)"]), "2\n");
    let shown = pip(&["show", "--files", "cove-mcp"]);
    for part in [&format!("Version: {VERSION}"), "licenses/NOTICE", "../../../bin/cove"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    pip(&["uninstall", "--yes", "cove-mcp"]);
    let left: Vec<String> =
        home.paths("venv").difference(&before).filter(|path| !path.contains("__pycache__")).cloned().collect();
    assert_eq!(left, Vec::<String>::new());
}

/// Without an installation the client's entry names the package: uv may empty its cache at any time.
#[test]
fn uvx_registers_itself_and_not_its_cache() {
    let Some(home) = home_with_uv("uvx_registers_itself_and_not_its_cache") else { return };
    assert_eq!(succeed(uv(&home, "uvx").args(["cove-mcp", "run", "-c", "print(3)"])), "3\n");
    let said = succeed(uv(&home, "uvx").args(["cove-mcp", "install", "cursor"]));
    assert!(said.contains("`uv tool install cove-mcp`"), "{said}");
    let entry = cursor_entry(&home);
    assert_eq!(entry, json!({"command": "uvx", "args": [format!("cove-mcp@{VERSION}"), "serve"]}));

    // The entry works as it is written, also after the cache was emptied.
    succeed(uv(&home, "uv").args(["cache", "clean"]));
    let mut server = uv(&home, "uvx");
    server.args(entry["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()));
    let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}});
    let mut input = server.stdin.take().unwrap();
    writeln!(input, "{initialize}").unwrap();
    let mut answer = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("serverInfo"), "{answer}");
    drop(input);
    assert!(server.wait().unwrap().success());

    // An installation replaces the entry, and any Cove removes it.
    succeed(uv(&home, "uv").args(["tool", "install", "cove-mcp"]));
    home.run("cove", &["install", "cursor"]);
    let program = home.at(".local/share/uv/tools/cove-mcp/bin/cove");
    assert_eq!(cursor_entry(&home)["command"], program.to_str().unwrap());
    succeed(uv(&home, "uvx").args(["cove-mcp", "uninstall", "cursor"]));
    assert!(!home.at(".cursor/mcp.json").exists());
}

#[test]
fn wheel_installs_with_pipx() {
    let test = "wheel_installs_with_pipx";
    let Some(home) = InstallHome::new(test) else { return };
    let Some(program) = installer(test, "pipx") else { return };
    let wheel = home.take_package(".whl");
    let wheel = wheel.to_str().unwrap();
    // As the invoking user, who can read the environment that it comes from, and with uv, which needs no newer pip.
    let search = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let pipx = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).env_clear().env("HOME", home.at("pipx")).env("PATH", &search);
        command.env("PIPX_DEFAULT_PYTHON", "/usr/bin/python3").env("UV_OFFLINE", "1").env("PIPX_DEFAULT_BACKEND", "uv");
        succeed(command.current_dir(home.at(".")))
    };
    pipx(&["install", wheel]);
    home.check_cove(home.at("pipx/.local/share/pipx/venvs/cove-mcp/bin/cove"));
    assert!(home.at("pipx/.local/bin/cove-mcp").exists());
    pipx(&["uninstall", "cove-mcp"]);
    assert_eq!(home.traces("pipx/.local/bin"), Vec::<String>::new());
    assert!(!home.at("pipx/.local/share/pipx/venvs/cove-mcp").exists());
    let entry = pipx(&["run", "--spec", wheel, "cove", "install", "--print", "cursor"]);
    let entry: Value = serde_json::from_str(&entry).unwrap();
    let args = json!(["run", "--spec", format!("cove-mcp=={VERSION}"), "cove", "serve"]);
    assert_eq!(entry["mcpServers"]["cove"], json!({"command": "pipx", "args": args}));
}

fn cursor_entry(home: &InstallHome) -> Value {
    let text = std::fs::read_to_string(home.at(".cursor/mcp.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    file["mcpServers"]["cove"].clone()
}
