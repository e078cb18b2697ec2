//! Bad input is refused in Cove's message format; the message names what is allowed, the exit code is 2, and nothing
//! starts.

use cove_testkit::TestUser;

use crate::cove;

fn check(args: &[&str], message: &str, allowed: &str) {
    let finished = cove().run(TestUser::Ordinary, args);
    assert_eq!(finished.code, Some(2), "{args:?}: {finished:#?}");
    assert_eq!(finished.stdout, "", "{args:?}: nothing ran");
    assert!(finished.stderr.starts_with(message), "{args:?}: {finished:#?}");
    assert!(finished.stderr.contains("\nhint: "), "{args:?}: {finished:#?}");
    assert!(finished.stderr.contains(allowed), "{args:?}: {finished:#?}");
}

#[test]
fn wrong_values_name_the_allowed_ones() {
    let code = ["-c", "print('ran')"];
    let run = |args: &[&str], message: &str, allowed: &str| {
        check(&[&["run"], args, code.as_slice()].concat(), message, allowed);
    };
    run(&["-l", "ruby"], "could not ", "python");
    run(&["--memory", "lots"], "could not read `--memory lots`\ncaused by: `lots` is not a size", "`512m`");
    run(&["--memory", "99999999999g"], "could not read `--memory 99999999999g`", "hint: ");
    run(&["--timeout", "soon"], "could not read `--timeout soon`", "30s");
    run(&["--timeout", "10m"], "could not use a `timeout` of `600s`", "`120s`");
    run(&["--mount", "/does/not/exist:/data"], "could not read `--mount /does/not/exist:/data`", "hint: ");
    run(&["--mount", "/etc:/data"], "could not read `--mount /etc:/data`", "hint: ");
    run(&["--mount", "/usr:/../etc"], "could not read `--mount /usr:/../etc`", "hint: ");
    run(&["--user", "0:0"], "could not read `--user 0:0`", "65534:65534");
    run(&["--cpus", "-1"], "could not read `--cpus -1`", "hint: ");
    run(&["--network", "host"], "could not read `--network host`", "`none`");
    run(&["--python", "/does/not/exist"], "could not read `--python /does/not/exist`", "hint: ");
    run(&["--rootfs", "/etc/hostname"], "could not read `--rootfs /etc/hostname`", "hint: ");
}

#[test]
fn rejects_missing_binary_and_oversized_code() {
    check(&["run"], "could not find code to run", "cove run hello.py");
    check(&["run", "/does/not/exist.py"], "could not read", "hint: ");
    let folder = tempfile::tempdir().unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let large = file("large.py", &vec![b'#'; 1024 * 1024 + 1]);
    check(&["run", &large], "could not ", "1 MiB");
    check(&["run", &file("nul.py", b"print(1)\0")], "could not ", "NUL");
    check(&["run", &file("binary.py", b"\xff\xfe")], "could not ", "UTF-8");
    check(&["run", folder.path().to_str().unwrap()], "could not ", "hint: ");
}

#[test]
fn wrong_environment_variable_is_named() {
    let output =
        cove().command(TestUser::Ordinary).env("COVE_MEMORY", "x").args(["run", "-c", "print(1)"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.starts_with("could not read `COVE_MEMORY=x`"), "{stderr}");
}
