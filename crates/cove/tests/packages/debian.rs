//! The Debian package, in a root that has the smallest Debian, a python and a node: the tree of the tests' images.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cove_testkit::program::FinishedProgram;
use cove_testkit::skip::{skip, skip_without_all};

use crate::PATIENCE;
use crate::install_home::{InstallHome, succeed};

/// Makes a folder the root of its own mount namespace, as a machine has it. `chroot` would not do: in one, no user may make
/// a user namespace.
const ENTER: &str = "\
mount --bind . . && cd \"$PWD\" && mkdir -p old && mount -t proc proc proc && mount --rbind /dev dev || exit 98
pivot_root . old && cd / && umount -l old && rmdir old || exit 99
exec \"$@\"";

fn enter(root: &Path, line: &[&str]) -> FinishedProgram {
    let mut command = Command::new("timeout");
    command.args([
        "--kill-after=5",
        PATIENCE,
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        ENTER,
    ]);
    command
        .arg("sh")
        .args(line)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("HOME", "/home/tester").env("DEBIAN_FRONTEND", "noninteractive");
    FinishedProgram::from_output(command.current_dir(root).stdin(Stdio::null()).output().unwrap())
}

#[track_caller]
fn expect(root: &Path, line: &[&str]) -> String {
    let finished = enter(root, line);
    assert_eq!(finished.code, Some(0), "{line:?}: {finished:#?}");
    finished.stdout
}

/// A command line of an ordinary user.
fn as_user<'a>(line: &[&'a str]) -> Vec<&'a str> {
    [&["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"], line].concat()
}

#[test]
fn debian_package_installs_in_a_minimal_root() {
    let test = "debian_package_installs_in_a_minimal_root";
    let Some(home) = InstallHome::new(test) else { return };
    let Some(image) = std::env::var_os("COVE_TEST_SYSTEM_IMAGE").filter(|path| !path.is_empty()) else {
        if rustix::process::geteuid().is_root() {
            skip_without_all(test, "it makes the tree of a small Debian");
        } else {
            skip(test, "not on this machine: only root can enter another root");
        }
        return;
    };
    let root = home.at("root");
    fs::create_dir(&root).unwrap();
    let unpack = "tar -xOf \"$0\" system.tar | tar -x --numeric-owner -C \"$1\"";
    succeed(Command::new("sh").args(["-c", unpack]).arg(&image).arg(&root));
    let package = home.take_package("_amd64.deb");
    fs::copy(&package, root.join("cove.deb")).unwrap();

    expect(&root, &["dpkg", "--install", "/cove.deb"]);
    expect(&root, &["install", "--directory", "--owner=1234", "/home/tester"]);
    assert_eq!(expect(&root, &as_user(&["cove", "run", "-c", "print(1)"])), "1\n");
    assert_eq!(expect(&root, &as_user(&["cove", "run", "-l", "node", "-c", "console.log(2)"])), "2\n");
    let report = expect(&root, &as_user(&["cove", "doctor"]));
    assert!(report.contains("every protection was proven"), "{report}");

    let files = expect(&root, &["dpkg", "--listfiles", "cove-mcp"]);
    for path in
        ["/usr/bin/cove", "/usr/share/bash-completion/completions/cove", "/usr/share/zsh/vendor-completions/_cove"]
    {
        assert!(files.lines().any(|line| line == path), "{files}");
    }
    assert_eq!(expect(&root, &["dpkg", "--verify", "cove-mcp"]), "");
    expect(&root, &["dpkg", "--purge", "cove-mcp"]);
    let left: Vec<&str> =
        files.lines().filter(|path| path.contains("cove") && root.join(&path[1..]).exists()).collect();
    assert_eq!(left, Vec::<&str>::new());
    assert_ne!(enter(&root, &["dpkg", "--status", "cove-mcp"]).code, Some(0));
    fs::remove_dir_all(&root).unwrap();
}
