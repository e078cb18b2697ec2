//! Files of state that another local user planted or could have changed: none is believed, none is written through, and
//! the message says why and what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_testkit::program::{FinishedProgram, wrap};
use cove_testkit::{TestUser, fixture};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::cove;

/// No user has this id.
const STRANGER: u32 = 54321;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg("-m600").arg(path).status().unwrap().success());
}

/// Runs a command that must end by itself: a pipe that blocks would keep it for ever.
pub(crate) fn run_bounded(command: &mut Command) -> FinishedProgram {
    FinishedProgram::from_output(wrap(&["timeout", "--kill-after=1", "60"], command).output().unwrap())
}

/// What a file is replaced with, how, and what Cove then says.
type FileReplacement = (&'static str, fn(&Path), &'static str);

/// Everything that can have the name of the audit file and is not a private file: what, how it is made, and the cause.
fn audit_file_replacements() -> Vec<FileReplacement> {
    let mut all: Vec<FileReplacement> = vec![
        ("link", |file| symlink(file.with_extension("target"), file).unwrap(), "it is a symbolic link"),
        ("link to a device", |file| symlink("/dev/null", file).unwrap(), "it is a symbolic link"),
        ("pipe", make_pipe, "it is not a regular file"),
        ("socket", |file| drop(UnixListener::bind(file).unwrap()), "it is not a regular file"),
        ("folder", |file| fs::create_dir(file).unwrap(), "it is not a regular file"),
        (
            "readable file",
            |file| {
                fs::write(file, "").unwrap();
                set_mode(file, 0o644);
            },
            "its mode is 644",
        ),
        ("open folder", |file| set_mode(file.parent().unwrap(), 0o777), "is not yours alone: its mode is 777"),
        (
            "open folder above",
            |file| set_mode(file.parent().unwrap().parent().unwrap(), 0o757),
            "is not yours alone: its mode is 757",
        ),
    ];
    if geteuid().is_root() {
        all.push((
            "device",
            |file| assert!(Command::new("mknod").arg(file).args(["c", "1", "3"]).status().unwrap().success()),
            "it is not a regular file",
        ));
        all.push((
            "file of another user",
            |file| {
                fs::write(file, "").unwrap();
                set_mode(file, 0o600);
                chown(file, Some(STRANGER), None).unwrap();
            },
            "it belongs to user 54321",
        ));
        all.push((
            "folder of another user",
            |file| chown(file.parent().unwrap(), Some(STRANGER), None).unwrap(),
            "belongs to user 54321",
        ));
    }
    all
}

#[test]
fn refuses_an_audit_file_that_is_not_its_own() {
    for (what, make, cause) in audit_file_replacements() {
        let home = BrokerHome::new(json!({}));
        let log = home.path("log").to_string_lossy().into_owned();
        home.define("servers", json!({"fixture": home.fixture(&["--log", &log])}));
        let file = home.path("outer/state/audit.jsonl");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        set_mode(file.parent().unwrap(), 0o700);
        make(&file);
        let state = home.path("outer/state").to_string_lossy().into_owned();
        let served = run_bounded(&mut home.command(&["serve", "--state-dir", &state]));
        assert_eq!(served.code, Some(2), "{what}: {served:#?}");
        assert!(served.stderr.contains("could not use the audit file"), "{what}: {served:#?}");
        assert!(served.stderr.contains(cause) && served.stderr.contains("\nhint: "), "{what}: {served:#?}");
        // A program that starts before the file is replaced makes no call either.
        let called = run_bounded(&mut home.command(&["tools", "call", "--state-dir", &state, "fixture.echo", "x:=1"]));
        assert_eq!(called.code, Some(4), "{what}: {called:#?}");
        assert!(called.stderr.contains("no calls are made") && called.stderr.contains(cause), "{what}: {called:#?}");
        let calls = home.received_methods("log").into_iter().filter(|line| line.starts_with("tools/call")).count();
        assert_eq!(calls, 0, "{what}");
        assert!(!file.with_extension("target").exists(), "{what}");
        set_mode(file.parent().unwrap(), 0o700);
    }
}

#[test]
fn an_audit_file_in_a_sticky_folder_is_used() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"fixture": home.fixture(&[])}));
    let shared = home.path("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o1777);
    let state = shared.join("state").to_string_lossy().into_owned();
    home.run(&["tools", "call", "--state-dir", &state, "fixture.echo", "x:=1"]).expect_success();
    assert!(shared.join("state/audit.jsonl").is_file());
}

/// The limit of file sizes ends a process that writes beyond it, unless it stops before.
#[test]
fn a_limit_of_file_sizes_rotates_the_audit_file() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"fixture": home.fixture(&[])}));
    let code = "for n in range(300): mcp.fixture.echo(x=n)";
    let mut limited = wrap(&["prlimit", "--fsize=49152"], &home.command(&["run", "-c", code]));
    let finished = FinishedProgram::from_output(limited.output().unwrap());
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    let lines = home.run(&["audit", "--json", "-n", "1000"]).expect_success();
    let lines: Vec<Value> = serde_json::from_str(&lines).unwrap();
    assert!(home.path(".local/state/cove/audit.1.jsonl").is_file());
    assert!(lines.len() == 300 && lines.iter().all(|line| line["outcome"] == "ok"), "{lines:#?}");
}

/// A state directory with one file that another user wrote, and a command that would use it.
struct PlantedFile {
    name: &'static str,
    content: fn(&Path) -> String,
    args: &'static [&'static str],
}

const PLANTED: [PlantedFile; 6] = [
    PlantedFile { name: "trusted", content: |project| format!("{}\n", project.display()), args: &["servers", "list"] },
    PlantedFile {
        name: "secrets.json",
        content: |_| json!({"secrets": {"planted.TOKEN": {"value": "stolen-value", "since": 1}}}).to_string(),
        args: &["secrets", "list"],
    },
    PlantedFile { name: "tokens", content: |_| "0123456789abcdef0123\n".into(), args: &["token"] },
    PlantedFile {
        name: "server-requests.json",
        content: |_| {
            json!({"open": [{"name": "a/planted", "principal": "me", "session": "s", "why": "", "time": 9e15 as u64}]})
                .to_string()
        },
        args: &["servers", "requests"],
    },
    PlantedFile { name: "packages/record.json", content: |_| json!({}).to_string(), args: &["packages", "list"] },
    PlantedFile { name: "audit.jsonl", content: |_| String::new(), args: &["audit"] },
];

/// What another user did, and how.
pub(crate) type Planting = (&'static str, fn(&Path));

/// A file that no program should read whole.
pub(crate) const HUGE_FILE: Planting =
    ("huge file", |file| fs::File::options().write(true).open(file).unwrap().set_len(1 << 36).unwrap());

/// The ways in which a file of state can be another user's.
pub(crate) fn plantings() -> Vec<Planting> {
    let mut all: Vec<Planting> = vec![
        ("open file", |file| set_mode(file, 0o666)),
        ("open folder", |file| set_mode(file.parent().unwrap(), 0o777)),
        ("open folder above", |file| set_mode(file.parent().unwrap().parent().unwrap(), 0o777)),
        ("link", |file| {
            let real = file.with_extension("real");
            fs::rename(file, &real).unwrap();
            symlink(real, file).unwrap();
        }),
        ("pipe", |file| {
            fs::remove_file(file).unwrap();
            make_pipe(file);
        }),
    ];
    if geteuid().is_root() {
        all.push(("file of another user", |file| chown(file, Some(STRANGER), None).unwrap()));
        all.push(("folder of another user", |file| chown(file.parent().unwrap(), Some(STRANGER), None).unwrap()));
    }
    all
}

#[test]
fn planted_files_of_state_are_refused() {
    for planted in &PLANTED {
        let place = tempfile::tempdir().unwrap();
        let project = place.path().join("project");
        fs::create_dir_all(project.join("mcp-servers")).unwrap();
        let definition = json!({"mcpServers": {"planted": fixture::definition(&[])}});
        fs::write(project.join("mcp-servers/planted.json"), definition.to_string()).unwrap();
        let run = |outer: &Path| {
            let mut command = cove().command(TestUser::Root);
            command.args(planted.args).env("HOME", place.path()).env("COVE_STATE_DIR", outer.join("state"));
            run_bounded(command.current_dir(&project))
        };
        let make = |name: &str| -> (PathBuf, PathBuf) {
            let outer = place.path().join(name);
            let file = outer.join("state").join(planted.name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, (planted.content)(&project)).unwrap();
            set_mode(&file, 0o600);
            (outer, file)
        };
        let (outer, _) = make("as it should be");
        let right = run(&outer);
        assert!(right.code == Some(0) && right.stderr.is_empty(), "{}: {right:#?}", planted.name);
        for (what, plant) in plantings() {
            let (outer, file) = make(what);
            plant(&file);
            let refused = run(&outer);
            let context = format!("{} as {what}: {refused:#?}", planted.name);
            let report = format!("{}{}", refused.stdout, refused.stderr);
            let causes = ["others may", "symbolic link", "not a regular file", "belongs to user"];
            assert!(causes.iter().any(|cause| report.contains(cause)), "{context}");
            if planted.name == "trusted" {
                assert!(refused.code == Some(0) && report.contains("no servers are configured"), "{context}");
            } else {
                assert!(report.contains("hint: "), "{context}");
                assert!(refused.code != Some(0) && refused.code != Some(124), "{context}");
                assert!(refused.stdout.is_empty(), "{context}");
            }
        }
    }
}

#[test]
fn definitions_that_others_can_write_are_not_used() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"mine": home.fixture(&[])}));
    assert!(home.run(&["servers", "list"]).stdout.contains("mine"));
    let folder = home.path(".config/cove/servers.d");
    for (path, mode) in [(folder.clone(), 0o777), (folder.join("servers.json"), 0o666), (home.path(".config"), 0o777)] {
        let before = fs::metadata(&path).unwrap().permissions().mode();
        set_mode(&path, mode);
        let listed = home.run(&["servers", "list"]);
        let report = format!("{}{}", listed.stdout, listed.stderr);
        assert!(report.contains("others may") && !listed.stdout.contains("mine "), "{}: {listed:#?}", path.display());
        set_mode(&path, before);
    }
    fs::remove_file(folder.join("servers.json")).unwrap();
    let config = home.path(".config/cove/cove.toml");
    fs::write(&config, "[servers.mine]\ncommand = \"true\"\n").unwrap();
    for (mode, is_used) in [(0o644, true), (0o666, false)] {
        set_mode(&config, mode);
        let listed = home.run(&["servers", "list"]);
        assert_eq!(listed.stdout.contains("mine "), is_used, "{mode:o}: {listed:#?}");
    }
}

/// A program that another user chose must not run as this one. The rest of the file is used: root may use the file of
/// the person who called `sudo`.
#[test]
fn programs_of_a_configuration_that_others_can_write_are_not_run() {
    let home = BrokerHome::new(json!({}));
    let (config, ran) = (home.path(".config/cove/cove.toml"), home.path("ran"));
    let script = |name: &str| {
        let path = home.path(name);
        fs::write(&path, format!("#!/bin/sh\ntouch {}\nexit 1\n", ran.display())).unwrap();
        set_mode(&path, 0o755);
        path.display().to_string()
    };
    let (helper, python) = (script("helper"), script("python3"));
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, format!("timeout = \"7s\"\nsecrets-helper = \"{helper}\"\npython = \"{python}\"\n")).unwrap();
    let mut faults: Vec<Planting> = vec![("mode 666", |file| set_mode(file, 0o666))];
    if geteuid().is_root() {
        faults.push(("another user's", |file| chown(file, Some(STRANGER), None).unwrap()));
    }
    for args in [&["secrets", "list"][..], &["run", "-c", "print(6 * 7)"]] {
        set_mode(&config, 0o644);
        chown(&config, Some(geteuid().as_raw()), None).unwrap();
        let used = run_bounded(&mut home.command(args));
        assert!(ran.exists() && used.code != Some(0), "{args:?}: {used:#?}");
        fs::remove_file(&ran).unwrap();
        for (what, make) in &faults {
            make(&config);
            let ignored = run_bounded(&mut home.command(args));
            assert!(!ran.exists(), "{what}: {ignored:#?}");
            let lines = ["`secrets-helper` in", "line 2, is not used: ", "`python` in", "line 3, is not used: "];
            assert!(lines.iter().all(|line| ignored.stderr.contains(line)), "{what}: {ignored:#?}");
            assert!(args[0] != "run" || ignored.stdout == "42\n" && ignored.code == Some(0), "{what}: {ignored:#?}");
            let shown = home.run(&["config", "show"]).stdout;
            let timeout = shown.lines().find(|line| line.starts_with("timeout")).unwrap();
            assert!(timeout.contains("7s") && timeout.contains("line 1"), "{what}: {shown}");
        }
    }
}

/// A repository whose folder for images leads into the user's home.
#[test]
fn export_refuses_links_out_of_the_project() {
    let place = tempfile::tempdir().unwrap();
    let [project, home] = ["project", "home"].map(|name| place.path().join(name));
    fs::create_dir_all(project.join("inside")).unwrap();
    fs::create_dir(&home).unwrap();
    let export = |directory: &str| {
        let mut command = cove().command(TestUser::Root);
        command.args(["images", "export", directory]).env("HOME", &home).current_dir(&project);
        FinishedProgram::from_output(command.output().unwrap())
    };
    symlink(&home, project.join("images")).unwrap();
    for directory in ["images", "images/new", project.join("images").to_str().unwrap()] {
        let refused = export(directory);
        assert!(refused.code == Some(2) && refused.stderr.contains("a link leads to"), "{directory}: {refused:#?}");
    }
    fs::create_dir(project.join("other")).unwrap();
    symlink(&home, project.join("other/python")).unwrap();
    assert_eq!(export("other").code, Some(2));
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
    symlink("inside", project.join("link")).unwrap();
    export("link").expect_success();
    assert!(project.join("inside/python").is_dir());
    // What the user names outside of the project is the user's choice.
    export("../elsewhere").expect_success();
    assert!(place.path().join("elsewhere/python").is_dir());
}

/// Code chooses the names of files, and a project may have links under those names.
#[test]
fn kept_files_do_not_leave_the_folder_through_links() {
    let place = tempfile::tempdir().unwrap();
    let [out, home] = ["out", "home"].map(|name| place.path().join(name));
    fs::create_dir(&out).unwrap();
    fs::create_dir(&home).unwrap();
    symlink(&home, out.join("sub")).unwrap();
    symlink(home.join("file"), out.join("file")).unwrap();
    let code = "import os\nos.mkdir('sub')\nfor name in ('sub/x', 'file', 'fine'): open(name, 'w').write('mine')";
    let out_dir = out.to_str().unwrap();
    let finished = cove().run(TestUser::Root, &["run", "--out", out_dir, "-c", code]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(finished.stderr.contains("a link leads to"), "{finished:#?}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(out.join("fine")).unwrap(), "mine");
}
