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
