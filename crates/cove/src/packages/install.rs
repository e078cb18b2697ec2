//! The programs that resolve and install packages: `uv` or `pip` for Python, `npm` for Node. They get names that were
//! checked before, take wheels only or run no scripts, and so run no code of a package.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cove_core::backend::jail::PythonInstallation;
use cove_core::error::{Failure, escape_control};
use cove_core::host_query::query_command;
use cove_core::policy::packages::InstalledPackage;
use cove_core::policy::{Policy, SandboxRoot};
use cove_core::process_env::ProcessEnv;
use cove_core::search_path::programs;
use serde::Deserialize;

use super::lock::{lock_from_pip_report, locked_packages};
use super::name::{PackageKind, PackageRequest};

/// How much of what an installer reports is read.
const MAX_REPORT: u64 = 64 << 20;
const MAX_REASONS: u64 = 64 << 10;
/// The two lines of a resolver's reason, each at most this long.
const MAX_REASON: usize = 300;

/// Exact versions, and the text that makes an installer install just these.
pub(crate) struct PackageLock {
    pub(super) text: String,
    pub(super) packages: Vec<InstalledPackage>,
}

/// Installs packages of one language into a folder.
pub(crate) trait PackageInstaller {
    fn kind(&self) -> PackageKind;

    /// The interpreter that the packages are for.
    fn program(&self) -> &str;

    /// What beside the lock decides which files are installed.
    fn platform(&self) -> &str;

    /// Returns exact versions of the packages and of all that they need. Fails with the resolver's reason.
    fn lock(&self, requests: &[PackageRequest], build: &Path) -> Result<PackageLock, Failure>;

    /// Installs the packages of a lock below `build`, and returns the folder in it that sandboxes are to see.
    fn install(&self, lock: &PackageLock, build: &Path) -> Result<&'static str, Failure>;
}

/// `uv` if it is on the search path, else the `pip` of the Python that the packages are for.
pub(crate) struct PythonInstaller {
    program: String,
    platform: String,
    uv: Option<PathBuf>,
}

impl PythonInstaller {
    pub(crate) fn find(policy: &Policy, env: &ProcessEnv) -> Result<Self, Failure> {
        let could_not = || Failure::operator("could not install packages for python");
        if let SandboxRoot::Tree(_) = policy.root {
            return Err(could_not()
                .because("the python of `--rootfs` runs only inside that tree")
                .with_hint("install packages in that tree, or leave `--rootfs` out"));
        }
        let program = PythonInstallation::find(policy)?.program;
        let script = "import sys, sysconfig; print(*sys.version_info[:3], sys.implementation.cache_tag, \
                      sysconfig.get_platform(), sep='-', end='')";
        // Without `site`: the packages of a virtual environment may run code when it is loaded.
        let answer = query_command(Path::new(&program)).args(["-I", "-S", "-c", script]).output();
        let platform = match answer {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            Ok(output) => return Err(could_not().because(format!("`{program}` ended with {}", output.status))),
            Err(error) => return Err(could_not().because(format!("`{program}` could not be started: {error}"))),
        };
        let search = env.env.get("PATH").cloned().unwrap_or_default();
        let uv = programs("uv", &search).next();
        let has_pip = || {
            let mut pip = Command::new(&program);
            pip.args(["-c", "import pip"]).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
            pip.status().is_ok_and(|status| status.success())
        };
        if uv.is_none() && !has_pip() {
            return Err(could_not()
                .because(format!("there is no `uv` on the search path, and `{program}` has no `pip`"))
                .with_hint("install uv (`https://docs.astral.sh/uv`), or pip (`apt install python3-pip`)"));
        }
        Ok(Self { program, platform, uv })
    }

    /// A command that installs, with settings that a person may have for other purposes switched off.
    fn command(&self, build: &Path) -> Command {
        let mut command = match &self.uv {
            Some(uv) => Command::new(uv),
            None => {
                let mut pip = Command::new(&self.program);
                pip.args(["-m", "pip"]);
                pip
            }
        };
        // The build folder as working directory: with `-m`, Python imports modules from there first.
        command.current_dir(build).env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0").env("PIP_NO_INPUT", "1");
        command.env_remove("PIP_NO_COMPILE").env_remove("PIP_PREFIX").env_remove("PIP_ROOT");
        command
    }
}

impl PackageInstaller for PythonInstaller {
    fn kind(&self) -> PackageKind {
        PackageKind::Python
    }

    fn program(&self) -> &str {
        &self.program
    }

    fn platform(&self) -> &str {
        &self.platform
    }

    fn lock(&self, requests: &[PackageRequest], build: &Path) -> Result<PackageLock, Failure> {
        let names: Vec<String> = requests.iter().map(ToString::to_string).collect();
        let could_not = || Failure::operator(format!("could not find versions of {}", names.join(", ")));
        let mut command = self.command(build);
        let text = if self.uv.is_some() {
            write_file(&build.join("requirements.in"), &(names.join("\n") + "\n"))?;
            command.args(["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]);
            command.args(["--only-binary", ":all:", "--python", &self.program, "-o", "lock.txt", "requirements.in"]);
            run_installer(command, build, could_not)?;
            let text = read_report(&build.join("lock.txt"))?;
            String::from_utf8(text).map_err(|error| could_not().because(error))?
        } else {
            command.args(["install", "--dry-run", "--quiet", "--report", "report.json", "--only-binary", ":all:"]);
            command.args(["--target", "site", "--"]).args(&names);
            run_installer(command, build, could_not)?;
            let text = lock_from_pip_report(&read_report(&build.join("report.json"))?);
            text.map_err(|cause| could_not().because(cause))?
        };
        Ok(PackageLock { packages: locked_packages(&text), text })
    }

    fn install(&self, lock: &PackageLock, build: &Path) -> Result<&'static str, Failure> {
        write_file(&build.join("lock.txt"), &lock.text)?;
        let mut command = self.command(build);
        match &self.uv {
            // Copies, because links into uv's cache would share their modes with it.
            Some(_) => command
                .args(["pip", "install", "--link-mode", "copy", "--compile-bytecode", "--python"])
                .arg(&self.program),
            None => command.arg("install"),
        };
        command.args(["--quiet", "--no-deps", "--only-binary", ":all:", "--target", "site", "-r", "lock.txt"]);
        if lock.text.contains("--hash=") {
            command.arg("--require-hashes");
        }
        run_installer(command, build, || Failure::operator("could not install the packages"))?;
        Ok("site")
    }
}

/// `npm`, without scripts of packages.
pub(crate) struct NodeInstaller {
    npm: PathBuf,
}

#[derive(Deserialize)]
struct NodeLock {
    packages: BTreeMap<String, NodeLockEntry>,
}

#[derive(Deserialize)]
struct NodeLockEntry {
    #[serde(default)]
    version: String,
}

impl NodeInstaller {
    pub(crate) fn find(env: &ProcessEnv) -> Result<Self, Failure> {
        let search = env.env.get("PATH").cloned().unwrap_or_default();
        let npm = programs("npm", &search).next().ok_or_else(|| {
            Failure::operator("could not install packages for node")
                .because("there is no `npm` on the search path")
                .with_hint("install npm, as with `apt install npm`")
        })?;
        Ok(Self { npm })
    }

    fn command(&self, build: &Path, action: &str) -> Command {
        let mut command = Command::new(&self.npm);
        command.current_dir(build).arg(action).args(["--ignore-scripts", "--no-bin-links", "--no-audit", "--no-fund"]);
        command.args(["--no-update-notifier", "--omit=dev", "--omit=peer", "--loglevel=error", "--global=false"]);
        command
    }
}

impl PackageInstaller for NodeInstaller {
    fn kind(&self) -> PackageKind {
        PackageKind::Node
    }

    fn program(&self) -> &str {
        "node"
    }

    fn platform(&self) -> &str {
        concat!("node-", env!("CARGO_PKG_VERSION_MAJOR"))
    }

    fn lock(&self, requests: &[PackageRequest], build: &Path) -> Result<PackageLock, Failure> {
        let names: Vec<String> = requests.iter().map(ToString::to_string).collect();
        let could_not = || Failure::operator(format!("could not find versions of {}", names.join(", ")));
        let range = |request: &PackageRequest| match request.suffix.strip_prefix('@') {
            Some(range) => range.to_owned(),
            None => "*".to_owned(),
        };
        let wanted: BTreeMap<&str, String> =
            requests.iter().map(|request| (request.name.as_str(), range(request))).collect();
        let manifest = serde_json::json!({"private": true, "dependencies": wanted});
        write_file(&build.join("package.json"), &manifest.to_string())?;
        let mut command = self.command(build, "install");
        command.arg("--package-lock-only").arg("--package-lock=true");
        run_installer(command, build, could_not)?;
        let text = read_report(&build.join("package-lock.json"))?;
        let lock: NodeLock = serde_json::from_slice(&text).map_err(|error| could_not().because(error))?;
        let package = |request: &PackageRequest| {
            let entry = lock.packages.get(&format!("node_modules/{}", request.name))?;
            Some(InstalledPackage { name: request.name.clone(), version: entry.version.clone() })
        };
        let packages = requests.iter().filter_map(package).collect();
        Ok(PackageLock { text: String::from_utf8_lossy(&text).into_owned(), packages })
    }

    fn install(&self, _lock: &PackageLock, build: &Path) -> Result<&'static str, Failure> {
        let command = self.command(build, "ci");
        run_installer(command, build, || Failure::operator("could not install the packages"))?;
        Ok("node_modules")
    }
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::operator("could not write a list of packages").because(error))
}

fn read_report(path: &Path) -> Result<Vec<u8>, Failure> {
    let could_not = || Failure::operator("could not read which packages were found");
    let mut bytes = Vec::new();
    let count = File::open(path).and_then(|file| file.take(MAX_REPORT).read_to_end(&mut bytes));
    match count {
        Ok(count) if (count as u64) < MAX_REPORT => Ok(bytes),
        Ok(_) => Err(could_not().because("the report is too large")),
        Err(error) => Err(could_not().because(error)),
    }
}

/// Runs an installer to its end. If it fails, its own words become the cause, in two lines at most.
fn run_installer(mut command: Command, build: &Path, could_not: impl Fn() -> Failure) -> Result<(), Failure> {
    let failed = |error: std::io::Error| could_not().because(error);
    // A file and not a pipe, because an index may make the installer say more than fits in memory.
    let path = build.join("errors.txt");
    let errors = File::create(&path).map_err(failed)?;
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).status().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    let mut file = File::open(&path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_REASONS))).map_err(failed)?;
    file.take(MAX_REASONS).read_to_end(&mut said).map_err(failed)?;
    let mut reasons = resolver_reasons(&String::from_utf8_lossy(&said)).into_iter();
    let hint = "check names and versions; nothing was changed";
    Err(match (reasons.next(), reasons.next()) {
        (Some(first), Some(second)) => could_not().because(Failure::operator(first).because(second)),
        (Some(first), None) => could_not().because(first),
        (None, _) => could_not().because(format!("the installer ended with {status}")),
    }
    .with_hint(hint))
}

/// Returns at most two lines that say why an installer failed.
fn resolver_reasons(said: &str) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    // pip marks its reasons; the rest are warnings.
    let is_pip = said.lines().any(|line| line.starts_with("ERROR:"));
    for line in said.lines().filter(|line| !is_pip || line.starts_with("ERROR:")) {
        let marked = ["ERROR:", "npm error", "npm ERR!", "error:"].iter().find_map(|mark| line.strip_prefix(mark));
        let text = marked.unwrap_or(line).trim().trim_start_matches(['×', '╰', '─', '▶', '│', ' ']);
        let text = text.trim_start_matches("404 ").trim_start_matches("cause:").trim();
        let says_nothing = ["code ", "A complete log", "ResolutionImpossible", "[notice]", "hint:"];
        if text.is_empty() || text == "404" || says_nothing.iter().any(|start| text.starts_with(start)) {
            continue;
        }
        match reasons.last_mut() {
            // uv continues a sentence on the next lines.
            Some(last) if marked.is_none() && line.starts_with("      ") => *last = format!("{last} {text}"),
            _ => reasons.push(text.to_owned()),
        }
    }
    reasons.truncate(2);
    reasons.iter().map(|reason| shorten(reason)).collect()
}

fn shorten(text: &str) -> String {
    let text = escape_control(text);
    match text.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_resolver_has_two_lines() {
        let cases = [
            (
                "WARNING: old\nERROR: Could not find a version that satisfies x\nERROR: No matching distribution found for x\n",
                vec!["Could not find a version that satisfies x", "No matching distribution found for x"],
            ),
            (
                "npm error code E404\nnpm error 404 Not Found - GET https://r/x - Not found\nnpm error 404\n\
                 npm error 404  'x@*' is not in this registry.\nnpm error A complete log of this run\n",
                vec!["Not Found - GET https://r/x - Not found", "'x@*' is not in this registry."],
            ),
            (
                "  × No solution found when resolving dependencies:\n  ╰─▶ Because x was not found and you\n      require x, it fails.\n",
                vec![
                    "No solution found when resolving dependencies:",
                    "Because x was not found and you require x, it fails.",
                ],
            ),
            (
                "error: No solution found\n  cause: Because x has no wheels,\n         it fails.\n\nhint: Wheels are required\n",
                vec!["No solution found", "Because x has no wheels, it fails."],
            ),
            ("ERROR: \u{1b}[31mred\n", vec!["\\u{1b}[31mred"]),
            ("", vec![]),
        ];
        for (said, expected) in cases {
            assert_eq!(resolver_reasons(said), expected, "{said}");
        }
        assert_eq!(resolver_reasons(&"x".repeat(1000))[0].chars().count(), MAX_REASON + 1);
    }
}
