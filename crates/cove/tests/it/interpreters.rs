//! Pythons other than the system's: a virtual environment in a home, with its packages, and another root tree.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use serde_json::json;

use crate::cove;

fn make_readable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn virtual_environment_works_with_its_packages() {
    let home = tempfile::tempdir().unwrap();
    make_readable(home.path());
    let venv = home.path().join("project/.venv");
    let made = Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status().unwrap();
    assert!(made.success());
    let packages = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
    fs::write(packages.join("only_in_venv.py"), "answer = 42\n").unwrap();
    fs::write(home.path().join("secret"), "s3cret").unwrap();
    let python = venv.join("bin/python");
    let code = format!(
        "import only_in_venv, os, sys\nprint(only_in_venv.answer, sys.prefix)\nprint(os.listdir({:?}))",
        home.path()
    );
    for who in TestUser::all("virtual_environment_works_with_its_packages") {
        let out = cove().run(who, &["run", "--python", python.to_str().unwrap(), "-c", &code]).expect_success();
        // Of the home, the sandbox shows only the path to the environment.
        assert_eq!(out, format!("42 {}\n['project']\n", venv.display()), "{who:?}");
    }
}

/// A tree with Python and nothing else: no shell, no other program.
fn tree_with_python() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    make_readable(tree.path());
    // Links to this machine's files would lead out of the tree, so it holds the minimum that Python needs: its
    // program, its library and the loader's folders.
    for folder in ["usr/bin", "usr/lib", "etc", "srv"] {
        fs::create_dir_all(tree.path().join(folder)).unwrap();
    }
    for top in ["bin", "lib", "lib64", "sbin"] {
        symlink(format!("usr/{top}"), tree.path().join(top)).unwrap();
    }
    let copy = |from: &str, to: &str| {
        let status = Command::new("cp").args(["-aL", from]).arg(tree.path().join(to)).status().unwrap();
        assert!(status.success(), "cp {from}");
    };
    copy("/usr/bin/python3", "usr/bin/python3");
    let version = fs::read_link("/usr/bin/python3").unwrap();
    copy(&format!("/usr/lib/{}", version.display()), "usr/lib/");
    let libraries = Command::new("ldd").arg("/usr/bin/python3").output().unwrap();
    for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
        let target = tree.path().join("usr").join(word.trim_start_matches("/usr").trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(word, &target).unwrap();
        make_readable(&target);
    }
    fs::write(tree.path().join("srv/mark"), "tree\n").unwrap();
    tree
}

#[test]
fn rootfs_replaces_the_host_tree() {
    let tree = tree_with_python();
    let code =
        "import os\nprint(open('/srv/mark').read().strip(), sorted(os.listdir('/')), os.path.exists('/usr/bin/ls'))";
    for who in TestUser::all("rootfs_replaces_the_host_tree") {
        let out = cove().run(who, &["run", "--rootfs", tree.path().to_str().unwrap(), "-c", code]).expect_success();
        assert_eq!(
            out,
            "tree ['.cove', 'bin', 'dev', 'etc', 'lib', 'lib64', 'proc', 'run', 'sbin', 'srv', 'tmp', 'usr', \
             'workspace'] False\n",
            "{who:?}"
        );
    }
}

#[test]
fn rootfs_needs_no_shell() {
    let tree = tree_with_python();
    for who in TestUser::all("rootfs_needs_no_shell") {
        let mut command = cove().command(who);
        command.args(["serve", "--tools", "all", "--rootfs", tree.path().to_str().unwrap()]);
        let mut client = TestStdioClient::start(command, ClientEra::Legacy);
        let started = client.call("start_session", json!({"image": "python"}));
        let id = started.structured()["session_id"].clone();
        let lines = json!(["import os", "print(open('/srv/mark').read(), os.path.exists('/bin/sh'))"]);
        let sent = client.call("send_lines", json!({"session_id": id, "lines": lines}));
        let expected = json!({"stdout": "tree\n False\n", "stderr": "", "return_code": 0});
        assert_eq!(sent.structured(), &expected, "{who:?}");
    }
}

#[test]
fn mounts_are_read_only_by_default() {
    let shared = tempfile::tempdir().unwrap();
    make_readable(shared.path());
    fs::write(shared.path().join("input"), "given\n").unwrap();
    let mount = format!("{}:/data", shared.path().display());
    let code = "print(open('/data/input').read().strip())\ntry:\n    open('/data/new', 'w')\nexcept OSError as e:\n    \
                print(e.strerror)";
    for who in TestUser::all("mounts_are_read_only_by_default") {
        let out = cove().run(who, &["run", "--mount", &mount, "-c", code]).expect_success();
        assert_eq!(out, "given\nRead-only file system\n", "{who:?}");
    }
    fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for who in TestUser::all("mounts_are_read_only_by_default") {
        let code =
            "import os\nopen('/data/new', 'w').write('made')\nprint(open('/data/new').read())\nos.remove('/data/new')";
        let out = cove().run(who, &["run", "--mount", &format!("{mount}:rw"), "-c", code]).expect_success();
        assert_eq!(out, "made\n", "{who:?}");
    }
}

/// A project whose files name programs of its own, each of which would leave a mark.
struct HostileProject {
    folder: tempfile::TempDir,
}

impl HostileProject {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let project = Self { folder };
        let mark = project.mark();
        for place in ["project/evil/bin", "project/node_modules/.bin", "project"] {
            for name in ["python3", "node", "bash", "sh", "uv", "npm"] {
                let script = format!("#!/bin/sh\necho \"$0\" >> {}\nexec /usr/bin/{name} \"$@\"\n", mark.display());
                project.write_program(&format!("{place}/{name}"), &script);
            }
        }
        let versions = "python path:./evil\nnodejs path:./evil\n";
        fs::write(project.path("project/.tool-versions"), versions).unwrap();
        fs::write(project.path("project/.python-version"), "./evil\n").unwrap();
        // As the scripts of asdf: a file of the working directory, or a variable, chooses the program.
        for (name, tool) in [("python3", "python"), ("node", "nodejs")] {
            let shim = format!(
                "#!/usr/bin/env bash\nversion=${{ASDF_VERSION_OF_TEST:-$(sed -n 's/^{tool} path://p' \
                 \"${{PYENV_DIR:-$PWD}}/.tool-versions\" 2>/dev/null)}}\nif [ -n \"$version\" ]; then \
                 cd \"${{PYENV_DIR:-$PWD}}\"; exec \"$version/bin/{name}\" \"$@\"; fi\nexec /usr/bin/{name} \"$@\"\n"
            );
            project.write_program(&format!("shims/{name}"), &shim);
        }
        project
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn mark(&self) -> std::path::PathBuf {
        self.path("mark")
    }

    fn write_program(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        make_readable(&path);
    }
}

#[test]
fn no_program_of_a_project_runs_outside_the_sandbox() {
    let project = HostileProject::new();
    let shims = project.path("shims").display().to_string();
    let folder = project.path("project").display().to_string();
    let system = "/usr/local/bin:/usr/bin:/bin";
    let evil = project.path("project/evil").display().to_string();
    let attacks = [
        ("a version file", format!("{shims}:{system}"), None),
        ("a relative search path", format!(".:evil/bin::{system}"), None),
        ("programs of packages", format!("{folder}/node_modules/.bin:{system}"), None),
        ("a variable", format!("{shims}:{system}"), Some(("ASDF_VERSION_OF_TEST", evil.as_str()))),
        ("a variable with a folder", format!("{shims}:{system}"), Some(("PYENV_DIR", folder.as_str()))),
    ];
    for who in TestUser::all("no_program_of_a_project_runs_outside_the_sandbox") {
        for (what, search_path, variable) in &attacks {
            let command = |args: &[&str]| {
                let mut command = cove().command(who);
                command.current_dir(&folder).env("PATH", search_path).env("PWD", &folder).args(args);
                command.envs(*variable);
                cove_testkit::program::FinishedProgram::from_output(command.output().unwrap())
            };
            assert_eq!(command(&["run", "-c", "print(6 * 7)"]).expect_success(), "42\n", "{what}, {who:?}");
            assert_eq!(command(&["run", "-l", "sh", "-c", "echo 1"]).expect_success(), "1\n", "{what}, {who:?}");
            command(&["doctor"]);
            command(&["explain"]);
            command(&["install", "--list"]);
            let mut server = cove().command(who);
            server.current_dir(&folder).env("PATH", search_path).env("PWD", &folder).envs(*variable);
            server.args(["serve", "--tools", "all", "--warm", "1"]);
            let mut client = TestStdioClient::start(server, ClientEra::Modern);
            for (language, code) in [("python", "print(42)"), ("node", "console.log(42)"), ("sh", "echo 42")] {
                let answer = client.call("execute_code", json!({"code": code, "language": language}));
                assert!(answer.ok().starts_with("42\n"), "{what}, {who:?}, {language}: {answer:?}");
            }
            drop(client);
            let ran = fs::read_to_string(project.mark()).unwrap_or_default();
            assert_eq!(ran, "", "{what}, {who:?}");
        }
    }
}
