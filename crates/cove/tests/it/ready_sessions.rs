//! Ready sessions of the real program: what a caller gets is what it would get from a session made on the spot.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient, send_raw};
use serde_json::json;

use crate::{cove, wait_until};

/// A server for anyone on this machine, and its state directory.
struct ReadyServer {
    server: HttpServerProcess,
    _state: tempfile::TempDir,
}

impl ReadyServer {
    fn start(user: TestUser, args: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut command = cove().command(user);
        if user == TestUser::Root {
            command.arg("serve").arg("--state-dir").arg(state.path());
        } else {
            command.arg("serve");
        }
        command.args(["--http", "127.0.0.1:0", "--auth", "none", "--tools", "all"]).args(args);
        Self { server: HttpServerProcess::start(command), _state: state }
    }

    fn client(&self) -> TestHttpClient {
        TestHttpClient::new(self.server.address, None, ClientEra::Modern)
    }

    /// Returns the value of a metric with its labels, or zero if it is not there.
    fn metric(&self, name: &str) -> u64 {
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let page = send_raw(self.server.address, request).body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    fn wait_until_ready(&self, language: &str) {
        let name = format!("cove_ready_sessions{{language=\"{language}\"}}");
        wait_until(&name, || self.metric(&name) > 0);
    }

    fn hits(&self) -> u64 {
        self.metric("cove_pool_requests_total{outcome=\"hit\"}")
    }

    /// Runs a cell in a new session and returns its output.
    fn run_new(&self, session: &str, language: &str, code: &str) -> String {
        let arguments = json!({"code": code, "language": language, "session": session});
        self.client().call("execute_code", arguments).ok()
    }
}

/// Code that describes the state that its interpreter begins with, so that two sessions can be compared.
fn state_probe(language: &str) -> &'static str {
    match language {
        "python" => {
            "import os, sys, builtins\n\
             print(sorted(globals()), hasattr(builtins, '_'), sys.argv, os.getcwd(), sorted(os.environ))\n\
             print(sorted(os.listdir('/workspace')), sorted(os.listdir('/tmp')), len(os.listdir('/proc/self/fd')))\n\
             print([__name__, __builtins__ is builtins, sys.flags, sys.path])"
        }
        "node" => {
            "const fs = require('fs');\n\
             const own = Object.getOwnPropertyNames(globalThis).sort().join();\n\
             console.log(own, process.argv, process.cwd(), Object.keys(process.env).sort().join());\n\
             console.log(fs.readdirSync('/workspace'), fs.readdirSync('/tmp'))"
        }
        _ => {
            "echo $? $# \"$0\" $PWD; ls -a /workspace /tmp; jobs\n\
             (set -o posix 2>/dev/null; set) | grep -oE '^[A-Za-z][A-Za-z0-9_]*=' | sort"
        }
    }
}

#[test]
fn ready_sessions_begin_like_others() {
    for user in TestUser::all("ready_sessions_begin_like_others") {
        let ready = ReadyServer::start(user, &["--warm", "1", "--max-sessions", "40"]);
        let fresh = ReadyServer::start(user, &["--warm", "0"]);
        for (number, language) in ["python", "node", "bash", "sh"].into_iter().enumerate() {
            // The first session of a language tells the server that callers want it.
            ready.run_new(&format!("first-{language}"), language, "");
            ready.wait_until_ready(language);
            let hits = ready.hits();
            let probe = state_probe(language);
            let found = ready.run_new(&format!("second-{language}"), language, probe);
            assert_eq!(ready.hits(), hits + 1, "{user:?} {language} {number}");
            assert_eq!(found, fresh.run_new(language, language, probe), "{user:?} {language}");
            // Each has its own state.
            ready.wait_until_ready(language);
            let mark = match language {
                "python" => "open('/workspace/mark', 'w').close()",
                "node" => "require('fs').writeFileSync('/workspace/mark', '')",
                _ => "touch /workspace/mark",
            };
            ready.run_new(&format!("third-{language}"), language, mark);
            ready.wait_until_ready(language);
            let found = ready.run_new(&format!("fourth-{language}"), "sh", "ls /workspace");
            assert_eq!(found, "(no output)", "{user:?} {language}");
        }
        assert_eq!(fresh.hits(), 0);
    }
}

/// Makes a Python environment with these modules and returns its interpreter.
fn environment_with(folder: &Path, modules: &[(&str, &str)]) -> String {
    let venv = folder.join("venv");
    let made = Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status().unwrap();
    assert!(made.success());
    let packages = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    for (name, code) in modules {
        fs::write(packages.join(format!("{name}.py")), code).unwrap();
    }
    venv.join("bin/python").to_str().unwrap().to_owned()
}

#[test]
fn preloaded_modules_are_imported_and_leave_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let python = environment_with(folder.path(), &[("preload_marker", "import json\nloaded = True\n")]);
    let args = ["--python", &python, "--warm", "1", "--preload", "preload_marker", "--preload", "xml.dom.minidom"];
    let served = ReadyServer::start(TestUser::Root, &args);
    served.client().send("tools/list", json!({}));
    served.wait_until_ready("python");
    let code = "import sys\nprint([m in sys.modules for m in ('preload_marker', 'xml.dom.minidom', 'asyncio')])\n\
                print([name for name in globals() if not name.startswith('__')])";
    assert_eq!(served.run_new("a", "python", code), "[True, True, False]\n['sys']\n");
    assert_eq!(served.hits(), 1);
    assert_eq!(served.server.errors().matches("preload").count(), 0, "{}", served.server.errors());
}

/// A module that cannot be imported ahead costs only itself: it is named once, with its reason, and the others are
/// there.
#[test]
fn modules_that_cannot_be_preloaded_are_named_once() {
    let bad = [
        ("bad_crash", "import os\nos._exit(3)\n", "ends the interpreter"),
        ("bad_error", "raise ValueError('not\\x1b[2J today')\n", "cannot be imported: ValueError: not\\u{1b}[2J today"),
        ("bad_fork", "import subprocess\nsubprocess.Popen(['/bin/sleep', '1000'])\n", "starts a process"),
        ("bad_hang", "import time\ntime.sleep(1000)\n", "takes longer than 30 s"),
        ("bad_kill", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "ends the interpreter"),
        ("bad_exit", "import sys\nsys.exit(4)\n", "ends the interpreter"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let mut modules: Vec<(&str, &str)> = bad.iter().map(|(name, code, _)| (*name, *code)).collect();
    modules.push(("good_module", "loaded = True\n"));
    let python = environment_with(folder.path(), &modules);
    let mut args = vec!["--python", &python, "--warm", "2"];
    for name in bad.iter().map(|(name, ..)| *name).chain(["no_such_module", "good_module", "../../etc"]) {
        args.extend(["--preload", name]);
    }
    let served = ReadyServer::start(TestUser::Root, &args);
    // The server serves while the imports hang.
    served.client().send("tools/list", json!({}));
    assert_eq!(served.run_new("early", "python", "6 * 7"), "42\n");
    let start = std::time::Instant::now();
    while served.metric("cove_ready_sessions{language=\"python\"}") < 2 {
        assert!(start.elapsed().as_secs() < 300, "{}", served.server.errors());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let loaded = "import sys\n[name for name in sorted(sys.modules) if name.startswith(('good_', 'bad_', 'no_such'))]";
    assert_eq!(served.run_new("late", "python", loaded), "['good_module']\n");
    assert_eq!(served.hits(), 1);
    let log = served.server.errors();
    for (name, _, problem) in bad {
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains(&format!("the module `{name}`"))).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(problem), "{name}: {log}");
        assert!(warnings[0].contains("`preload`") && warnings[0].contains("at most 30 s"), "{log}");
    }
    assert_eq!(log.matches("No module named 'no_such_module'").count(), 1, "{log}");
    assert_eq!(log.matches("`../../etc` is not the name of a Python module").count(), 1, "{log}");
}

/// A client that goes away does not wait for what was being made ready.
#[test]
fn a_server_that_ends_does_not_wait_for_imports() {
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().join("shared");
    let begun = shared.join("begun");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let code = "open('/workspace/shared/begun', 'w').close()\nimport time\ntime.sleep(1000)\n";
    let python = environment_with(folder.path(), &[("slow_module", code)]);
    let args = ["--python", &python, "--preload", "slow_module", "--workspace", shared.to_str().unwrap()];
    let mut served = ReadyServer::start(TestUser::Root, &args);
    served.client().send("tools/list", json!({}));
    wait_until("the import has begun", || begun.exists());
    let sandboxes = crate::process::children(served.server.pid());
    crate::process::terminate(served.server.pid());
    assert!(served.server.wait().success(), "{}", served.server.errors());
    let log = served.server.errors();
    assert!(!log.contains("took too long to end") && !log.contains("slow_module"), "{log}");
    wait_until("its sandbox is gone", || sandboxes.iter().all(|pid| !crate::process::is_alive(*pid)));
}

/// Editors save by renaming. A session that waited has the old file mounted.
#[test]
fn a_ready_session_with_an_older_mounted_file_is_not_handed_out() {
    let folder = tempfile::tempdir().unwrap();
    let (file, next) = (folder.path().join("file"), folder.path().join("next"));
    fs::write(&file, "old").unwrap();
    let mount = format!("{}:/data", file.display());
    let served = ReadyServer::start(TestUser::Root, &["--warm", "1", "--mount", &mount]);
    served.client().send("tools/list", json!({}));
    served.wait_until_ready("python");
    fs::write(&next, "new").unwrap();
    fs::rename(&next, &file).unwrap();
    assert_eq!(served.run_new("a", "python", "open('/data').read()"), "'new'\n");
    served.wait_until_ready("python");
    assert_eq!(served.run_new("b", "python", "open('/data').read()"), "'new'\n");
}

#[test]
fn nothing_is_kept_ready_before_a_client_comes() {
    let served = ReadyServer::start(TestUser::Root, &["--warm", "4"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(crate::process::children(served.server.pid()).len(), 0);
    served.client().send("tools/list", json!({}));
    wait_until("four are ready", || served.metric("cove_ready_sessions{language=\"python\"}") == 4);
    assert_eq!(crate::process::children(served.server.pid()).len(), 4);
}

#[test]
fn runs_in_a_burst_keep_no_session_ready() {
    for user in TestUser::all("runs_in_a_burst_keep_no_session_ready") {
        let start = |_| {
            let mut command = cove().command(user);
            command.args(["run", "-c", "import sys; print('here', flush=True); sys.stdin.read()"]);
            command.env("COVE_WARM", "4").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut runs: Vec<Child> = (0..6).map(start).collect();
        for run in &mut runs {
            let mut line = String::new();
            BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "here\n", "{user:?}");
        }
        // A server starts the next session long before this is over.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let sandboxes: Vec<usize> = runs.iter().map(|run| crate::process::children(run.id()).len()).collect();
        assert_eq!(sandboxes, [1; 6], "{user:?}");
        for mut run in runs {
            drop(run.stdin.take());
            assert!(run.wait().unwrap().success(), "{user:?}");
        }
    }
}

#[test]
fn sessions_share_neither_address_layout_nor_hash_seed() {
    // Where the C library and the stack begin, and the hash of a text.
    let probe = "lines = [line for line in open('/proc/self/maps') if '/libc' in line or '[stack]' in line]\n\
                 print(lines[0].split('-')[0], lines[-1].split('-')[0], hash('cove'))";
    for user in TestUser::all("sessions_share_neither_address_layout_nor_hash_seed") {
        for warm in [0, 2] {
            let served = ReadyServer::start(user, &["--warm", &warm.to_string()]);
            served.run_new("first", "python", "");
            wait_until("they are ready", || served.metric("cove_ready_sessions{language=\"python\"}") == warm);
            let [one, other] = ["one", "other"].map(|session| served.run_new(session, "python", probe));
            let pairs: Vec<_> = one.split_whitespace().zip(other.split_whitespace()).collect();
            assert!(pairs.len() == 3 && pairs.iter().all(|(one, other)| one != other), "{user:?} {warm} {pairs:?}");
            assert_eq!(served.hits(), warm, "{user:?}");
        }
    }
}
