//! `cove packages` as an operator uses it, with wheels and a registry of the test's own, so that no network is needed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cove_testkit::TestUser;
use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::skip_without_all;

use crate::cove;

/// A folder with wheels, and a state directory that is empty.
struct PackageFixture {
    folder: tempfile::TempDir,
    who: TestUser,
    /// Where `npm` finds its registry.
    registry: Option<String>,
    /// An environment with pip, if the system's Python has none.
    venv: Option<PathBuf>,
}

/// Writes wheels and a source package: `covegreet` 1.0 and 2.0, `covepolite` which needs `covegreet<2`, and `only-source`.
const MAKE_WHEELS: &str = r#"
import base64, hashlib, io, sys, tarfile, zipfile
def wheel(name, version, files, needs=()):
    info = f"{name}-{version}.dist-info"
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {**files, f"{info}/METADATA": meta, f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    record = "".join(f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}-{version}-py3-none-any.whl", "w") as out:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            out.writestr(path, text)
wheel("covegreet", "1.0", {"covegreet/__init__.py": "hello = 'hello 1'\n"})
wheel("covegreet", "2.0", {"covegreet/__init__.py": "hello = 'hello 2'\n"})
wheel("covepolite", "1.0", {"covepolite.py": "from covegreet import hello\n"}, ["covegreet<2"])
with tarfile.open(f"{sys.argv[1]}/only_source-1.0.tar.gz", "w:gz") as out:
    text = b"import os; os.system('touch /tmp/cove-ran-setup')\n"
    entry = tarfile.TarInfo("only_source-1.0/setup.py"); entry.size = len(text)
    out.addfile(entry, io.BytesIO(text))
"#;

impl PackageFixture {
    /// One for each user.
    fn all(test: &str) -> Vec<Self> {
        TestUser::all(test).into_iter().map(Self::new).collect()
    }

    fn new(who: TestUser) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::create_dir(folder.path().join("wheels")).unwrap();
        let made =
            Command::new("/usr/bin/python3").args(["-c", MAKE_WHEELS]).arg(folder.path().join("wheels")).status();
        assert!(made.unwrap().success());
        let has_pip = Command::new("/usr/bin/python3").args(["-c", "import pip"]).current_dir("/").output();
        // Debian's python3 has pip in another package, but can always make an environment with one.
        let venv = (!has_pip.unwrap().status.success()).then(|| folder.path().join("venv"));
        if let Some(venv) = &venv {
            let made = Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(venv).status();
            assert!(made.unwrap().success());
        }
        Self { folder, who, registry: None, venv }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str]) -> FinishedProgram {
        let mut command = cove().command(self.who);
        let wheels = self.path("wheels");
        command.env("HOME", self.path("home")).env("COVE_STATE_DIR", self.path("state"));
        command.env("PIP_FIND_LINKS", &wheels).env("PIP_NO_INDEX", "1").env("PIP_NO_CACHE_DIR", "1");
        command.env("UV_FIND_LINKS", &wheels).env("UV_NO_INDEX", "1").env("UV_CACHE_DIR", self.path("uv"));
        command.env("npm_config_cache", self.path("npm"));
        if let Some(venv) = &self.venv {
            command.env("COVE_PYTHON", venv.join("bin/python"));
        }
        if let Some(registry) = &self.registry {
            command.env("npm_config_registry", registry);
        }
        FinishedProgram::from_output(command.args(args).output().unwrap())
    }

    fn record(&self) -> Vec<u8> {
        fs::read(self.path("state/packages/record.json")).unwrap_or_default()
    }
}

#[test]
fn every_session_sees_added_packages_and_cannot_change_them() {
    for fixture in PackageFixture::all("every_session_sees_added_packages_and_cannot_change_them") {
        let said = fixture.run(&["packages", "add", "CovePolite", "covegreet"]).expect_success();
        assert!(said.starts_with("python: installed covegreet 1.0, covepolite 1.0 ("), "{said}");
        let code = "import covepolite, subprocess, sys\nprint(covepolite.hello)\n\
                    subprocess.run([sys.executable, '-c', 'import covegreet; print(covegreet.hello)'], check=True);";
        assert_eq!(fixture.run(&["run", "-c", code]).expect_success(), "hello 1\nhello 1\n");
        if fixture.venv.is_none() {
            let out =
                fixture.run(&["run", "-l", "bash", "-c", "python3 -c 'import covepolite; print(covepolite.hello)'"]);
            assert_eq!(out.expect_success(), "hello 1\n");
        }
        let out = fixture.run(&["run", "-c", "import covegreet; open(covegreet.__file__, 'a')"]);
        // Another user for root, and the same user with a read-only mount.
        let is_refused = ["Read-only file system", "Permission denied"].iter().any(|why| out.stderr.contains(why));
        assert!(out.code == Some(1) && is_refused, "{out:#?}");
        let lock = find_lock(&fixture.path("state/packages"));
        assert!(lock.contains("covegreet==1.0") && lock.contains("--hash=sha256:"), "{lock}");
        let listed = fixture.run(&["packages", "list"]).expect_success();
        assert_eq!(
            listed,
            "python  covegreet   1.0  asked for: covegreet\npython  covepolite  1.0  asked for: covepolite\n"
        );
        let said = fixture.run(&["packages", "remove", "covepolite", "covegreet"]).expect_success();
        assert_eq!(said, "python: no packages are left\n");
        assert!(fixture.run(&["run", "-c", "import covegreet"]).stderr.contains("ModuleNotFoundError"));
        let left = fs::read_dir(fixture.path("state/packages")).unwrap().flatten();
        assert_eq!(left.filter(|entry| entry.path().is_dir()).count(), 0, "unused folders are removed");
    }
}

/// Returns the text of the only lock file.
fn find_lock(packages: &Path) -> String {
    let folders = fs::read_dir(packages).unwrap().flatten().map(|entry| entry.path());
    let locks: Vec<String> = folders.filter_map(|folder| fs::read_to_string(folder.join("lock.txt")).ok()).collect();
    assert_eq!(locks.len(), 1);
    locks[0].clone()
}

#[test]
fn a_package_that_cannot_be_installed_leaves_everything_as_before() {
    for fixture in PackageFixture::all("a_package_that_cannot_be_installed_leaves_everything_as_before") {
        fixture.run(&["packages", "add", "covegreet==1.0"]).expect_success();
        let before = fixture.record();
        for (name, reason) in
            [("no-such-package", "no-such-package"), ("only-source", "only-source"), ("covegreet==3", "covegreet")]
        {
            let failed = fixture.run(&["packages", "add", name]);
            assert_eq!((failed.code, failed.stdout.as_str()), (Some(125), ""), "{failed:#?}");
            let lines: Vec<&str> = failed.stderr.lines().collect();
            assert!(lines[0].starts_with("could not find versions of "), "{failed:#?}");
            assert!(lines[1].starts_with("caused by: ") && lines[1].contains(reason), "{failed:#?}");
            assert!(lines.len() <= 4 && lines.last().unwrap().starts_with("hint: "), "{failed:#?}");
            assert_eq!(fixture.record(), before);
        }
        assert!(!Path::new("/tmp/cove-ran-setup").exists(), "no code of a package runs");
        let out = fixture.run(&["run", "-c", "import covegreet; print(covegreet.hello)"]).expect_success();
        assert_eq!(out, "hello 1\n");
    }
}

#[test]
fn options_paths_and_addresses_never_reach_an_installer() {
    let fixture = PackageFixture::new(TestUser::all("options_paths_and_addresses_never_reach_an_installer")[0]);
    for (name, reason) in [
        ("../../etc", "is a path"),
        ("-rx", "is an option"),
        ("--index-url=http://127.0.0.1", "is an option"),
        ("git+https://127.0.0.1/a", "is an address"),
        ("covegreet @ file:///etc/passwd", "is an address"),
        ("a;b", "is not the name of a package"),
    ] {
        for kind in [None, Some("--node")] {
            let args: Vec<&str> = ["packages", "add"].into_iter().chain(kind).chain([name]).collect();
            let refused = fixture.run(&args);
            assert_eq!(refused.code, Some(2), "{refused:#?}");
            assert!(refused.stderr.contains(reason) || kind.is_some(), "{refused:#?}");
        }
        let refused = fixture.run(&["run", &format!("--packages={name}"), "-c", "1"]);
        assert_eq!(refused.code, Some(2), "{refused:#?}");
    }
    assert!(!fixture.path("state/packages").exists(), "nothing was begun");
}

#[test]
fn packages_of_the_configuration_are_installed_by_sync() {
    for fixture in PackageFixture::all("packages_of_the_configuration_are_installed_by_sync") {
        fs::create_dir_all(fixture.path("home/.config/cove")).unwrap();
        fs::write(fixture.path("home/.config/cove/cove.toml"), "packages = [\"covegreet\"]\n").unwrap();
        let code = ["run", "-c", "import covegreet; print(covegreet.hello)"];
        let missing = fixture.run(&code);
        let warning = "warning: not all of these packages are installed: covegreet; run `cove packages sync`\n";
        assert!(missing.stderr.starts_with(warning), "{missing:#?}");
        fixture.run(&["packages", "sync"]).expect_success();
        assert_eq!(fixture.run(&code).expect_success(), "hello 2\n");
        let again = fixture.run(&["packages", "sync"]).expect_success();
        assert_eq!(again, "python: covegreet installed already\n");
        let refused = fixture.run(&["packages", "remove", "covegreet"]);
        assert!(refused.stderr.contains("the configuration names it"), "{refused:#?}");
    }
}

/// A registry of npm with one package, which has a script that must not run.
const REGISTRY: &str = r#"
import base64, hashlib, http.server, io, json, tarfile
data = io.BytesIO()
with tarfile.open(fileobj=data, mode="w:gz") as out:
    manifest = {"name": "tiny", "version": "1.2.3", "main": "main.js", "scripts": {"install": "touch /tmp/cove-ran-script"}}
    for name, text in {"package.json": json.dumps(manifest), "main.js": "exports.answer = 42;\n"}.items():
        entry = tarfile.TarInfo(f"package/{name}"); entry.size = len(text)
        out.addfile(entry, io.BytesIO(text.encode()))
data = data.getvalue()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        host = f"http://127.0.0.1:{server.server_port}"
        dist = {"tarball": f"{host}/tiny.tgz", "integrity": "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()}
        about = {"name": "tiny", "dist-tags": {"latest": "1.2.3"}, "versions": {"1.2.3": {**manifest, "hasInstallScript": True, "dist": dist}}}
        body = {"/tiny": json.dumps(about).encode(), "/tiny.tgz": data}.get(self.path)
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body or b"{}")
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"#;

struct TestRegistry(Child);

impl Drop for TestRegistry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_registry() -> (TestRegistry, String) {
    let mut child = Command::new("/usr/bin/python3").args(["-c", REGISTRY]).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    (TestRegistry(child), format!("http://127.0.0.1:{}", port.trim()))
}

#[test]
fn node_packages_are_found_by_require_and_import() {
    let test = "node_packages_are_found_by_require_and_import";
    if !Path::new("/usr/bin/npm").exists() {
        return skip_without_all(test, "there is no npm");
    }
    let (_registry, address) = start_registry();
    for who in TestUser::all(test) {
        let fixture = PackageFixture { registry: Some(address.clone()), ..PackageFixture::new(who) };
        let said = fixture.run(&["packages", "add", "--node", "tiny"]).expect_success();
        assert!(said.starts_with("node: installed tiny 1.2.3 ("), "{said}");
        for code in ["console.log(require('tiny').answer)", "import { answer } from 'tiny'; console.log(answer)"] {
            assert_eq!(fixture.run(&["run", "-l", "node", "-c", code]).expect_success(), "42\n");
        }
        let failed = fixture.run(&["packages", "add", "--node", "no-such-package"]);
        assert!(failed.stderr.contains("caused by: ") && failed.stderr.contains("no-such-package"), "{failed:#?}");
        assert_eq!(fixture.run(&["packages", "list"]).expect_success(), "node  tiny  1.2.3  asked for: tiny\n");
        assert!(!Path::new("/tmp/cove-ran-script").exists(), "no script of a package runs");
    }
}

/// Code that needs what the sandbox does not have, and what its error says.
#[test]
fn errors_about_packages_say_what_is_there_and_what_to_do() {
    for fixture in PackageFixture::all("errors_about_packages_say_what_is_there_and_what_to_do") {
        fixture.run(&["packages", "add", "covegreet==1.0"]).expect_success();
        let hint = |language: &str, code: &str| {
            let finished = fixture.run(&["run", "-l", language, "-c", code]);
            assert_ne!(finished.code, Some(0), "{code}");
            let last = finished.stderr.trim_end().lines().last().unwrap_or_default().to_owned();
            assert!(last.starts_with("hint: "), "{code}: {finished:#?}");
            finished.stderr
        };
        let said = hint("python", "import no_such_module_xyz");
        let expected =
            "hint: no packages can be installed in the sandbox, because it has no network; available: covegreet 1.0";
        assert!(said.contains(expected), "{said}");
        assert!(said.ends_with("the operator can add others: `cove packages add no_such_module_xyz`\n"), "{said}");
        assert!(hint("python", "import sklearn").ends_with("`cove packages add scikit-learn`\n"));
        let said = hint("bash", "pip install no-such-package-xyz");
        assert!(
            said.starts_with("pip: no packages can be installed") && said.contains("available: covegreet 1.0"),
            "{said}"
        );
        assert!(said.ends_with("`cove packages add no-such-package-xyz`\n"), "{said}");
        hint("bash", "npm install lodash");
        hint("sh", "apt-get install -y jq");
        hint("python", "import subprocess, sys; subprocess.run(['pip', 'install', 'x'], check=True)");
        hint("python", "import subprocess, sys; subprocess.check_call([sys.executable, '-m', 'pip', 'install', 'x'])");
        let said = hint("python", "import urllib.request as r; r.urlopen('https://example.com')");
        assert!(said.contains("hint: the sandbox has no network"), "{said}");
        let said = hint("node", "await fetch('https://example.com')");
        assert!(said.contains("hint: the sandbox has no network"), "{said}");
        assert!(hint("node", "require('lodash')").contains("`cove packages add --node lodash`"));
    }
}

#[test]
fn commands_that_need_no_network_reach_the_real_program() {
    let test = "commands_that_need_no_network_reach_the_real_program";
    let who = TestUser::all(test)[0];
    let fixture = PackageFixture::new(who);
    for (code, expected) in [
        ("pip() { echo own; }; pip install x", "own"),
        (
            "PATH=/nonexistent:$PATH pip --version 2>&1 || echo none",
            if fixture.venv.is_none() { "pip " } else { "none" },
        ),
        (
            "mkdir bin; printf '#!/bin/sh\\necho \"real $@\"' > bin/npm; chmod +x bin/npm; PATH=$PATH:$PWD/bin; npm run x",
            "",
        ),
    ] {
        let finished = fixture.run(&["run", "-l", "bash", "-c", code]);
        assert!(finished.stdout.contains(expected), "{code}: {finished:#?}");
        assert!(!finished.stderr.contains("no packages can be installed"), "{code}: {finished:#?}");
    }
    // Errors that have another cause get no hint.
    for code in ["open('nothing.txt')", "open('/workspace/nothing')", "import json.nothing", "from os import nothing"] {
        let finished = fixture.run(&["run", "-c", code]);
        assert!(finished.code == Some(1) && !finished.stderr.contains("hint:"), "{code}: {finished:#?}");
    }
    let finished = fixture.run(&["run", "-c", "try:\n    import ujson_xyz\nexcept ImportError:\n    1/0"]);
    assert!(!finished.stderr.contains("hint:"), "{finished:#?}");
}
