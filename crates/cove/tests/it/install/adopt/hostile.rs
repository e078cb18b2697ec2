//! Hostile files and machines: a server is never lost, nothing is half done, and no secret is shown.

use std::os::unix::fs::MetadataExt;

use cove_testkit::skip::skip;

use super::*;
use crate::state_files::{HUGE_FILE, plantings, run_bounded};

const FILE: &str = ".cursor/mcp.json";

#[test]
fn files_that_cannot_be_read_stay_as_they_are() {
    let cases: &[(&str, &str, &[u8], &str)] = &[
        ("cursor", FILE, b"{\n  \"mcpServers\": {\"a\": {\"command\": \"x\"},,}\n}", "line 2 column "),
        ("cursor", FILE, b"{\"mcpServers\": {\"a\": {}, \"a\": {}}}", "`mcpServers.a` is there a second time"),
        ("cursor", FILE, b"{\"mcpServers\": []}", "`mcpServers` is a list"),
        ("codex", ".codex/config.toml", b"[mcp_servers.a\ncommand = 'x'\n", "line 1 column "),
        ("goose", ".config/goose/config.yaml", b"extensions:\n a: 1\n  b: 2\n", "line "),
    ];
    for (client, file, content, cause) in cases {
        let home = InstallHome::new().with(file, content);
        let inode = fs::metadata(home.at(file)).unwrap().ino();
        let said = home.refusal_of(2, &["install", client, "--adopt"]);
        assert!(said.contains(cause) && said.contains("nothing was changed"), "{client}: {said}");
        assert_eq!(fs::read(home.at(file)).unwrap(), *content);
        assert_eq!(fs::metadata(home.at(file)).unwrap().ino(), inode);
        home.assert_no_trace(file);
    }
}

#[test]
fn entries_with_hostile_names_and_values_do_no_harm() {
    let home = home_with(
        "\"../../etc/x\": {\"command\": SERVER},\n    \
         \"\\u001b[2J\\n\": {\"command\": SERVER, \"args\": [\"--tools\", \"1\"]},\n    \
         \"\": {\"command\": SERVER, \"args\": [\"--tools\", \"2\"]},\n    \"none\": {},\n    \
         \"both\": {\"command\": \"x\", \"url\": \"https://example.com/mcp\"},\n    \"nul\": {\"command\": \"a\\u0000b\"},\n    \
         \"list\": [1],\n    \"loop\": {\"command\": \"COVE\", \"args\": [\"serve\"]}",
    );
    let text = home.text(FILE).replace("COVE", cove().path().to_str().unwrap());
    let home = home.with(FILE, &text);
    let finished = home.run(&["install", "cursor", "--adopt"]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(!finished.stdout.contains('\u{1b}') && finished.stdout.contains("adopted 2 servers"), "{finished:#?}");
    for name in ["none", "both", "nul", "list"] {
        let is_left = |line: &str| line.contains(name) && line.contains("left: ");
        assert!(finished.stdout.lines().any(is_left), "{name}: {finished:#?}");
    }
    let names = home.definitions();
    assert!(names.len() == 2 && names.contains(&"etc-x.json".to_owned()), "{names:?}");
    assert!(!home.at("etc").exists() && !home.at(".config/etc").exists());
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(home.text(FILE), text);
}

/// Values that look secret are in no output, neither of an adoption nor of its undo.
#[test]
fn secrets_are_never_shown() {
    let home = home_with(
        "\"a\": {\"command\": SERVER, \"env\": {\"API_KEY\": \"SECRET\"}},\n    \
         \"b\": {\"command\": \"missing\", \"args\": [\"--token\", \"SECRET\"]},\n    \
         \"c\": {\"url\": \"http://127.0.0.1:9/mcp\", \"headers\": {\"Authorization\": \"Bearer SECRET\"}}",
    );
    let text = home.text(FILE).replace("SECRET", SECRET);
    let home = home.with(FILE, &text);
    for args in [
        &["install", "cursor", "--adopt", "--dry-run"][..],
        &["install", "cursor", "--adopt"],
        &["install", "cursor", "--adopt", "--json"],
        &["uninstall", "cursor", "--dry-run"],
        &["uninstall", "cursor"],
    ] {
        let finished = home.run(args);
        assert!(!finished.stdout.contains(SECRET) && !finished.stderr.contains(SECRET), "{args:?}: {finished:#?}");
    }
    assert_eq!(home.text(FILE), text);
}

/// A record says what is put into a client's file. One that another user planted puts nothing there.
#[test]
fn planted_records_are_not_used() {
    for (what, plant) in plantings().into_iter().chain([HUGE_FILE]) {
        let home = home_with("\"a\": {\"command\": SERVER}");
        home.stdout_of(&["install", "cursor", "--adopt"]);
        // The client's file was written since, so that entries come from the record.
        let text = home.text(FILE).replacen('{', "{\n  \"x\": 1,", 1);
        let home = home.with(FILE, text);
        plant(&home.at(".local/state/cove/adopted").join(home.records().remove(0)));
        let mut command = home.command(&["uninstall", "cursor"]);
        let undone = run_bounded(command.env("PATH", "/usr/bin:/bin"));
        let said = format!("{}{}", undone.stdout, undone.stderr);
        assert_ne!(undone.code, Some(124), "{what}: {undone:#?}");
        let causes = ["others may", "symbolic link", "not a regular file", "belongs to user", "more than 16 MiB"];
        assert!(causes.iter().any(|cause| said.contains(cause)), "{what}: {undone:#?}");
        assert!(said.contains("earlier contents of the file: ") || said.contains("hint: "), "{what}: {undone:#?}");
        assert!(home.json(FILE)["mcpServers"].get("a").is_none(), "{what}: {}", home.text(FILE));
    }
}

/// A file's content leaves the machine only if a person agrees.
#[test]
fn files_that_would_be_sent_need_consent() {
    let home = home_with("\"a\": {\"url\": \"http://127.0.0.1:9/mcp\", \"headers\": {\"X\": \"${file:~/.ssh/key}\"}}");
    let text = home.text(FILE);
    let said = home.run(&["install", "cursor", "--adopt", "--even-failing"]);
    assert!(said.stdout.contains("left: it sends the content of `[HOME]/.ssh/key`; agree to that"), "{said:#?}");
    assert!(home.definitions().is_empty() && home.json(FILE)["mcpServers"].get("a").is_some());
    let home = home.with(FILE, text);
    home.stdout_of(&["install", "cursor", "--adopt", "--even-failing", "--yes"]);
    assert_eq!(home.definitions(), ["a.json"]);
}

/// A secret that the user has keeps its value, also if the server is left.
#[test]
fn a_secret_of_that_name_stays() {
    let home = home_with(
        "\"a\": {\"command\": SERVER, \"env\": {\"TOKEN\": \"SECRET\"}},\n    \"b\": {\"command\": \"missing\", \"env\": {\"TOKEN\": \"SECRET\"}}",
    );
    let home = {
        let text = home.text(FILE).replace("SECRET", SECRET);
        home.with(FILE, text)
    };
    let secrets = || home.stdout_of(&["secrets", "list"]);
    home.set_secret("a.TOKEN", "another-value-of-mine");
    home.set_secret("b.TOKEN", SECRET);
    let finished = home.run(&["install", "cursor", "--adopt"]);
    let reason = "left: secret a.TOKEN has another value in Cove; run `cove secrets remove a.TOKEN`, then this again";
    assert!(finished.code == Some(1) && finished.stdout.contains(reason), "{finished:#?}");
    // The one of the server that did not start was there before.
    assert!(secrets().contains("a.TOKEN") && secrets().contains("b.TOKEN"), "{}", secrets());
    home.stdout_of(&["secrets", "remove", "a.TOKEN"]);
    home.stdout_of(&["install", "cursor", "--adopt"]);
    home.stdout_of(&["uninstall", "cursor"]);
    assert!(secrets().contains("a.TOKEN"), "{}", secrets());
}

#[test]
fn a_definition_of_that_name_stays() {
    let home = home_with("\"a\": {\"command\": SERVER}");
    let own = "{\"mcpServers\": {\"a\": {\"command\": \"mine\"}}}";
    let home = home.with(".config/cove/servers.d/a.json", own).with(".config/cove/servers.d/a-cursor.json", "{}");
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(said.contains("as `a-cursor-2`"), "{said}");
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(home.text(".config/cove/servers.d/a.json"), own);
    assert_eq!(home.definitions(), ["a-cursor.json", "a.json"]);
}

/// The client writes its file while Cove starts the servers: the server itself does it here.
#[test]
fn a_file_that_changes_meanwhile_keeps_its_changes() {
    let writer = |change: &str| {
        let server = fixture::program().display().to_string();
        format!("/bin/sed -i '{change}' \"$HOME/.cursor/mcp.json\"\nexec {server}")
    };
    let text = "{\"x\": 1, \"mcpServers\": {\"a\": {\"command\": \"writer\"}, \"later\": {}}}";
    let change = "s/\"x\": 1/\"x\": 2/; s/\"later\": {}/\"later\": {\"command\": \"new\"}/";
    let home = InstallHome::new().program("writer", &writer(change)).with(FILE, text);
    let said = home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(said.contains("adopted 1 server"), "{said}");
    let now = home.json(FILE);
    assert_eq!((&now["x"], &now["mcpServers"]["later"]["command"]), (&2.into(), &"new".into()), "{now}");
    home.stdout_of(&["uninstall", "cursor"]);
    assert_eq!(home.json(FILE)["mcpServers"]["a"]["command"], "writer");
    // An entry that changes meanwhile is not the one that was started.
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"writer\", \"y\": 1}}}";
    let home = home.program("writer", &writer("s/\"y\": 1/\"y\": 2/")).with(FILE, text);
    let finished = home.run(&["install", "cursor", "--adopt"]);
    let reason = "left: it changed in the file while Cove started it; run this again";
    assert!(finished.stdout.contains(reason), "{finished:#?}");
    assert_eq!(home.json(FILE)["mcpServers"]["a"]["y"], 2);
    assert_eq!(home.definitions(), Vec::<String>::new());
}

#[test]
fn a_link_is_followed() {
    let home = home_with("\"a\": {\"command\": SERVER}");
    let text = home.text(FILE);
    fs::create_dir(home.at("dotfiles")).unwrap();
    fs::rename(home.at(FILE), home.at("dotfiles/mcp.json")).unwrap();
    symlink(home.at("dotfiles/mcp.json"), home.at(FILE)).unwrap();
    home.stdout_of(&["install", "cursor", "--adopt"]);
    assert!(home.at(FILE).is_symlink() && home.at("dotfiles/mcp.json.cove-adopted").exists());
    home.stdout_of(&["uninstall", "cursor"]);
    assert!(home.at(FILE).is_symlink());
    assert_eq!(home.text("dotfiles/mcp.json"), text);
}

#[test]
fn a_large_file_is_adopted_from() {
    let line = "    {\"display\": \"a prompt that a user typed\", \"pasted\": {}},\n";
    let count = 50_000_000 / line.len();
    let large = format!(
        "{{\n  \"history\": [\n{}    null\n  ],\n  \"mcpServers\": {{\n    \"a\": {{\"command\": {}}}\n  }}\n}}\n",
        line.repeat(count),
        server()
    );
    let home = InstallHome::new().with(".claude.json", &large);
    home.stdout_of(&["install", "claude", "--adopt"]);
    home.stdout_of(&["uninstall", "claude"]);
    assert!(home.text(".claude.json") == large);
    fs::File::create(home.at(".claude.json")).unwrap().set_len(65 << 20).unwrap();
    assert!(home.refusal_of(2, &["install", "claude", "--adopt"]).contains("it has more than 64 MiB"));
}

#[test]
fn a_folder_that_may_not_be_written_is_found_first() {
    if !TestUser::all("a_folder_that_may_not_be_written_is_found_first").contains(&TestUser::Ordinary) {
        return;
    }
    let home = home_with("\"a\": {\"command\": SERVER}");
    let text = home.text(FILE);
    fs::set_permissions(home.at("."), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(home.at(".cursor"), fs::Permissions::from_mode(0o555)).unwrap();
    let output = home.command_as(TestUser::Ordinary, &["install", "cursor", "--adopt"]).output().unwrap();
    let finished = home.normalized(FinishedProgram::from_output(output));
    assert_eq!(finished.code, Some(125), "{finished:#?}");
    assert!(finished.stderr.contains("could not write `[HOME]/.cursor/mcp.json`"), "{finished:#?}");
    assert_eq!(home.text(FILE), text);
    home.assert_no_trace(FILE);
}

#[test]
fn a_full_disk_changes_nothing() {
    let home = home_with("\"a\": {\"command\": SERVER}");
    let filler = format!("\"x\": \"{}\", \"mcpServers\"", "x".repeat(80_000));
    let text = home.text(FILE).replace("\"mcpServers\"", &filler);
    let home = home.with("content", &text);
    // Room for the file and half of another.
    let script = "mount -t tmpfs -o size=128k none \"$1\" || exit 99\nmkdir -p \"$1/.cursor\" && cp \"$2\" \"$1/.cursor/mcp.json\"\n\
                  HOME=\"$1\" \"$3\" install cursor --adopt; echo \"code $?\"\ncmp \"$2\" \"$1/.cursor/mcp.json\" && ls -A \"$1/.cursor\" \
                  \"$1/.config/cove/servers.d\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([home.at("project"), home.at("content"), cove().path().to_path_buf()])
        .output();
    match output {
        Ok(output) if output.status.code() != Some(99) && !output.stdout.is_empty() => {
            let done = home.normalized(FinishedProgram::from_output(output));
            assert!(done.stdout.starts_with("code 125\n"), "{done:#?}");
            assert!(done.stdout.contains(".cursor:\nmcp.json\n") && !done.stdout.contains("a.json"), "{done:#?}");
            assert!(done.stderr.contains("free some space"), "{done:#?}");
        }
        _ => skip("a_full_disk_changes_nothing", "not on this machine: a user namespace cannot mount here"),
    }
}

#[test]
fn a_managed_claude_code_is_refused() {
    let home = InstallHome::new().with(".claude.json", "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}");
    let script = "mount -t tmpfs none /etc || exit 99\nmkdir /etc/claude-code && echo '{}' > /etc/claude-code/managed-mcp.json\n\
                  HOME=\"$1\" \"$2\" install claude --adopt; echo \"code $?\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([home.at(""), cove().path().to_path_buf()])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let done = home.normalized(FinishedProgram::from_output(output));
            assert_eq!(done.stdout, "code 2\n", "{done:#?}");
            assert!(done.stderr.contains("`/etc/claude-code/managed-mcp.json` has exclusive control"), "{done:#?}");
        }
        _ => skip("a_managed_claude_code_is_refused", "not on this machine: a user namespace cannot mount here"),
    }
}
