//! Files in and out: the folder of a script, what code writes, images that it shows, and the folder that agents share
//! with the person.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Stdio;

use cove_testkit::TestUser;
use cove_testkit::mcp::{ClientEra, TestStdioClient};
use cove_testkit::program::FinishedProgram;
use serde_json::json;

use crate::cove;

/// A project of a person: a script, a module and data beside it, and what no code is to see.
struct ScriptFixture {
    folder: tempfile::TempDir,
    who: TestUser,
}

const SCRIPT: &str = "import sys, helper, os
print(helper.answer, sys.argv[1:], open('data.csv').read(), sorted({*os.listdir('.')} - {'__pycache__'}))
open('new.txt', 'w').write('made')
os.makedirs('plots/a'); open('plots/a/b.txt', 'w').write('deep')
try:
    open('data.csv', 'w')
except OSError as error:
    print(error.strerror)
";

impl ScriptFixture {
    fn all(test: &str) -> Vec<Self> {
        TestUser::all(test).into_iter().map(Self::new).collect()
    }

    fn new(who: TestUser) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let project = folder.path().join("project");
        fs::create_dir(&project).unwrap();
        for (name, text) in [
            ("main.py", SCRIPT),
            ("helper.py", "answer = 42\n"),
            ("data.csv", "1,2"),
            (".env", "TOKEN=s3cret"),
            ("../secret", "s3cret"),
        ] {
            fs::write(project.join(name), text).unwrap();
        }
        symlink("../secret", project.join("link")).unwrap();
        for path in [folder.path(), &project] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self { folder, who }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs Cove in the folder of the project.
    fn run(&self, args: &[&str]) -> FinishedProgram {
        let mut command = cove().command(self.who);
        command.current_dir(self.path("project")).args(args);
        FinishedProgram::from_output(command.output().unwrap())
    }
}

#[test]
fn a_script_sees_what_lies_beside_it() {
    for fixture in ScriptFixture::all("a_script_sees_what_lies_beside_it") {
        let out = fixture.run(&["run", "main.py", "data.csv", "two words"]).expect_success();
        let expected = "42 ['data.csv', 'two words'] 1,2 ['data.csv', 'helper.py', 'main.py']\nRead-only file system\n";
        assert_eq!(out, expected, "neither hidden files nor links to elsewhere");
        let out = fixture.run(&["run", "main.py", "--", "--verbose"]);
        assert!(out.stdout.contains("['--verbose']"), "{out:#?}");
        assert!(!fixture.path("project/new.txt").exists());
        let out = fixture.run(&["run", "--no-folder", "main.py"]);
        assert!(out.stderr.contains("ModuleNotFoundError: No module named 'helper'"), "{out:#?}");
    }
}

#[test]
fn out_keeps_what_a_script_writes() {
    for fixture in ScriptFixture::all("out_keeps_what_a_script_writes") {
        let out = fixture.path("kept");
        let finished = fixture.run(&["run", "--out", out.to_str().unwrap(), "main.py"]);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        assert_eq!(finished.stderr, format!("kept 2 files in `{}`\n", out.display()));
        assert_eq!(fs::read_to_string(out.join("new.txt")).unwrap(), "made");
        assert_eq!(fs::read_to_string(out.join("plots/a/b.txt")).unwrap(), "deep");
        assert!(!out.join("data.csv").exists(), "only what is new");
        // A place that cannot be used is named before the code runs.
        let finished = fixture.run(&["run", "--out", "/proc/nowhere", "-c", "print('it ran')"]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:#?}");
        assert!(finished.stderr.starts_with("could not use `--out /proc/nowhere`\ncaused by: "), "{finished:#?}");
    }
}

#[test]
fn out_takes_no_links_and_nothing_that_is_too_large() {
    let fixture = ScriptFixture::new(TestUser::all("out_takes_no_links_and_nothing_that_is_too_large")[0]);
    let out = fixture.path("kept");
    let code = "import os\nos.symlink('/etc/passwd', 'link'); os.mkfifo('pipe')\n\
                open('large', 'wb').truncate(17 << 20); open('good', 'w').write('x')\n\
                open(b'\\xff', 'w').write('x'); open('a\\nb', 'w').write('y')\n\
                os.makedirs('/'.join(['deep'] * 40)); open('/'.join(['deep'] * 40) + '/x', 'w').write('x')";
    let finished = fixture.run(&["run", "--out", out.to_str().unwrap(), "-c", code]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(finished.stderr.contains("not kept: `large`, which has more than"), "{finished:#?}");
    assert!(finished.stderr.contains("which lies too deep"), "{finished:#?}");
    let mut kept: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    kept.sort();
    assert_eq!(kept, ["\\xff", "a\\x0ab", "good"], "under the names that a listing shows");
    assert_eq!(fs::read_to_string(out.join("a\\x0ab")).unwrap(), "y");
}

#[test]
fn images_that_code_shows_are_saved() {
    let code = "import base64\nbase64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII=')";
    for fixture in ScriptFixture::all("images_that_code_shows_are_saved") {
        let finished = fixture.run(&["run", "-c", code]);
        let file = fixture.path("project/cove-image-1.png");
        let expected = format!("[an image was shown: image/png, 68 bytes, saved as {}]\n", file.display());
        assert_eq!(finished.stderr, expected, "{finished:#?}");
        assert!(fs::read(&file).unwrap().starts_with(b"\x89PNG"));
        fixture.run(&["run", "--out", fixture.path("kept").to_str().unwrap(), "-c", code]);
        assert!(fixture.path("kept/cove-image-1.png").exists());
    }
}

#[test]
fn a_script_in_a_private_folder_runs_without_it() {
    let fixture = ScriptFixture::new(TestUser::all("a_script_in_a_private_folder_runs_without_it")[0]);
    let mut command = cove().command(fixture.who);
    fs::write(fixture.path("project/alone.py"), "import os; print(os.listdir('.'))").unwrap();
    command.env("HOME", fixture.path("project")).current_dir(fixture.path("project")).args(["run", "alone.py"]);
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert_eq!(finished.stdout, "[]\n", "{finished:#?}");
    assert!(finished.stderr.starts_with("warning: the script does not see its folder"), "{finished:#?}");
    assert!(finished.stderr.contains("it is a home directory"), "{finished:#?}");
}

#[test]
fn code_is_read_from_standard_input() {
    let fixture = ScriptFixture::new(TestUser::all("code_is_read_from_standard_input")[0]);
    for args in [&["run", "-", "a"][..], &["run"]] {
        let mut command = cove().command(fixture.who);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"import sys\nprint('read', sys.argv[1:], sys.stdin.read())").unwrap();
        let finished = FinishedProgram::from_output(child.wait_with_output().unwrap());
        let expected = if args.len() == 3 { "read ['a'] \n" } else { "read [] \n" };
        assert_eq!(finished.expect_success(), expected);
    }
    fs::write(fixture.path("project/x.rb"), "puts 1").unwrap();
    let refused = fixture.run(&["run", "x.rb"]);
    assert_eq!(refused.code, Some(2));
    assert_eq!(
        refused.stderr,
        "could not tell the language of `x.rb`\ncaused by: `.rb` is not the ending of a language\n\
         hint: name its language: `cove run -l LANGUAGE x.rb` with `python`, `node`, `bash` or `sh`\n"
    );
    // Without an ending, the first line may name the interpreter.
    fs::write(fixture.path("project/tool"), "#!/usr/bin/env bash\necho \"${BASH_VERSION:+bash} $1\"").unwrap();
    assert_eq!(fixture.run(&["run", "tool", "x"]).expect_success(), "bash x\n");
    fs::write(fixture.path("project/tool"), "#!/usr/bin/python3.11 -u\nprint('python')").unwrap();
    assert_eq!(fixture.run(&["run", "tool"]).expect_success(), "python\n");
}

#[test]
fn pythons_are_found_by_name_and_folder_and_others_are_refused() {
    let test = "pythons_are_found_by_name_and_folder_and_others_are_refused";
    let fixture = ScriptFixture::new(TestUser::all(test)[0]);
    let venv = fixture.path("venv");
    let made = std::process::Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success());
    let code = "import sys; print(sys.prefix)";
    let out = fixture.run(&["run", "--python", venv.to_str().unwrap(), "-c", code]).expect_success();
    assert_eq!(out, format!("{}\n", venv.display()));
    let mut command = cove().command(fixture.who);
    command.env("HOME", fixture.folder.path()).args(["run", "--python", "~/venv", "-c", code]);
    assert_eq!(FinishedProgram::from_output(command.output().unwrap()).expect_success(), out);
    fixture.run(&["run", "--python", "python3", "-c", "1"]).expect_success();
    let refused = fixture.run(&["run", "--python", "/usr/bin/ls", "-c", "1"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("is not a python") && refused.stderr.len() < 400, "{refused:#?}");
}

#[test]
fn agents_give_files_to_the_person_and_know_what_is_mounted() {
    for fixture in ScriptFixture::all("agents_give_files_to_the_person_and_know_what_is_mounted") {
        let (shared, data) = (fixture.path("shared"), fixture.path("project"));
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = cove().command(fixture.who);
        command.args([
            "serve",
            "--workspace",
            shared.to_str().unwrap(),
            "--mount",
            &format!("{}:/data", data.display()),
        ]);
        let mut client = TestStdioClient::start(command, ClientEra::Legacy);
        let tools = client.request("tools/list", json!({})).unwrap();
        let description = tools["tools"][0]["description"].as_str().unwrap();
        let sentence = "Of your files it sees /data (read-only), /workspace/shared (writable, the user sees it).";
        assert!(description.ends_with(sentence), "{description}");
        client.call("execute_code", json!({"code": "open('/workspace/shared/report.txt', 'w').write('done')"}));
        assert_eq!(fs::read_to_string(shared.join("report.txt")).unwrap(), "done");
        let manual = client.request("resources/read", json!({"uri": "cove://manual"})).unwrap();
        let manual = manual["contents"][0]["text"].as_str().unwrap().to_owned();
        for part in ["`/workspace/shared` (the user sees what is there)", "except `/data` (read-only)"] {
            assert!(manual.contains(part), "{manual}");
        }
    }
    for folder in ["/etc", "/", "/nonexistent"] {
        let refused = cove().run(TestUser::Ordinary, &["run", "--workspace", folder, "-c", "1"]);
        assert!(refused.code == Some(2) && refused.stderr.contains("hint: "), "{refused:#?}");
    }
}

#[test]
fn a_path_of_the_host_gets_a_hint() {
    let fixture = ScriptFixture::new(TestUser::all("a_path_of_the_host_gets_a_hint")[0]);
    for path in ["/home/me/notes/data.csv", "/Users/me/x", "C:\\\\Users\\\\me\\\\x", "/srv-of-mine/x"] {
        let finished = fixture.run(&["run", "-c", &format!("open('{path}')")]);
        let hint =
            "hint: the sandbox does not see the files of this machine; the operator can show it a folder: `--mount ";
        assert!(finished.stderr.contains(hint), "{finished:#?}");
    }
    let finished = fixture.run(&["run", "-l", "node", "-c", "require('fs').readFileSync('/home/me/notes/data.csv')"]);
    assert!(finished.stderr.contains("`--mount /home/me/notes:/data`"), "{finished:#?}");
    for path in ["nothing", "/workspace/nothing", "/tmp/nothing", "/usr/nothing"] {
        let finished = fixture.run(&["run", "-c", &format!("open('{path}')")]);
        assert!(!finished.stderr.contains("hint"), "{finished:#?}");
    }
}
