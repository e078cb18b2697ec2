//! Hostile files and machines: in every case the file is unchanged or correct.

use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use cove_testkit::skip::skip;

use super::*;

#[test]
fn leaves_uneditable_client_files_unchanged() {
    let deep = format!("{{\"a\": {}", "[".repeat(1_000_000));
    let cases: &[(&str, &str, &[u8], &str)] = &[
        ("cursor", ".cursor/mcp.json", b"{\n  \"mcpServers\": {,}\n}", "line 2 column 18: it is not valid JSON: "),
        ("cursor", ".cursor/mcp.json", b"[]", "line 1 column 1: it holds a list where an object should be"),
        (
            "cursor",
            ".cursor/mcp.json",
            b"{\"mcpServers\": \"x\"}",
            "line 1 column 16: `mcpServers` is a string, not an object",
        ),
        ("cursor", ".cursor/mcp.json", b"{\"mcpServers\": null}", "`mcpServers` is null, not an object"),
        (
            "cursor",
            ".cursor/mcp.json",
            b"{\"mcpServers\": {},\n\"mcpServers\": {}}",
            "line 2 column 1: `mcpServers` is there a second time",
        ),
        ("cursor", ".cursor/mcp.json", b"{\"a\": \"\xff\"}", "line 1 column 8 is not valid UTF-8"),
        ("cursor", ".cursor/mcp.json", b"\x00\x01\x02", "it is not valid JSON"),
        ("cursor", ".cursor/mcp.json", b"\xff\xfe{\0}\0", "is not valid UTF-8"),
        ("cursor", ".cursor/mcp.json", deep.as_bytes(), "it is not valid JSON: maximum nesting depth exceeded"),
        ("codex", ".codex/config.toml", b"a = 1\n[mcp_servers\n", "line 2 column "),
        ("codex", ".codex/config.toml", b"mcp_servers = {}\n", "line 1 column 1: the servers are written on one line"),
        ("goose", ".config/goose/config.yaml", b"a: 1\n b: 2\n", "it is not valid YAML: "),
        ("goose", ".config/goose/config.yaml", b"- 1\n", "it holds a list where an object should be"),
    ];
    for (client, file, content, cause) in cases {
        let home = InstallHome::new().with(file, content);
        let folder = Path::new(file).parent().unwrap().to_str().unwrap();
        let inode = fs::metadata(home.at(file)).unwrap().ino();
        for line in [&["install", *client] as &[_], &["install", client, "--dry-run"], &["uninstall", client]] {
            // There is nothing to remove, so a file on one line does not matter.
            if line[0] == "uninstall" && cause.contains("on one line") {
                continue;
            }
            let said = home.refusal_of(2, line);
            assert!(said.contains(cause) && said.contains(&format!("[HOME]/{file}")), "{line:?}: {said}");
            assert!(said.len() < 1000, "{said}");
        }
        assert_eq!(fs::read(home.at(file)).unwrap(), *content);
        assert_eq!(fs::metadata(home.at(file)).unwrap().ino(), inode);
        assert_eq!(home.names(folder).len(), 1);
    }
}

#[test]
fn refuses_client_paths_that_are_not_files() {
    let home = InstallHome::new().with(".cursor/mcp.json/x", "").with(".codeium/windsurf/x", "").with(".kiro", "");
    assert!(home.refusal_of(2, &["install", "cursor"]).contains("it is not a regular file"));
    symlink("mcp_config.json", home.at(".codeium/windsurf/mcp_config.json")).unwrap();
    assert!(home.refusal_of(2, &["install", "windsurf"]).contains("its symbolic links form a circle"));
    assert!(home.refusal_of(125, &["install", "kiro"]).contains(".kiro"));
    let finished = home.command(&["install", "cursor"]).env_remove("HOME").output().unwrap();
    assert_snapshot!(home.normalized(FinishedProgram::from_output(finished)).stderr, @"
    could not find the file of Cursor
    caused by: `HOME` is not set to an absolute path
    hint: set `HOME`, or use `--scope project` if the client has it
    ");
    let finished = home.command(&["install", "cursor"]).env("HOME", "../relative").output().unwrap();
    assert_eq!(finished.status.code(), Some(2));
}

#[test]
fn edits_large_client_files_up_to_a_limit() {
    let line = "    {\"display\": \"a prompt that a user typed\", \"pasted\": {}},\n";
    let count = 50_000_000 / line.len();
    let large = format!("{{\n  \"history\": [\n{}    null\n  ],\n  \"mcpServers\": {{}}\n}}\n", line.repeat(count));
    let home = InstallHome::new().with(".claude.json", &large);
    home.stdout_of(&["install", "claude"]);
    assert!(home.text(".claude.json").ends_with("\"args\": [\"serve\"]\n    }\n  }\n}\n"));
    home.stdout_of(&["uninstall", "claude"]);
    assert!(home.text(".claude.json") == large);
    for size in [65 << 20, 100 << 20] {
        fs::File::create(home.at(".claude.json")).unwrap().set_len(size).unwrap();
        assert!(home.refusal_of(2, &["install", "claude"]).contains("it has more than 64 MiB"));
        assert_eq!(fs::metadata(home.at(".claude.json")).unwrap().len(), size);
    }
}

/// Many installs at once, while a reader watches: every entry exists afterwards, and no read sees half a file.
#[test]
fn concurrent_installs_keep_each_others_changes() {
    let home = InstallHome::new().with(".cursor/mcp.json", "{\n  \"mcpServers\": {}\n}\n");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                home.json(".cursor/mcp.json");
            }
        });
        let names: Vec<String> = (0..16).map(|number| format!("cove-{number}")).collect();
        let children: Vec<_> = names
            .iter()
            .map(|name| {
                let mut command = home.command(&["install", "cursor", "--name", name]);
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        let codes: Vec<_> = children.into_iter().map(|mut child| child.wait().unwrap().code()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(codes.iter().all(|code| *code == Some(0)), "{codes:?}");
    });
    assert_eq!(home.json(".cursor/mcp.json")["mcpServers"].as_object().unwrap().len(), 16);
    let names = home.names(".cursor");
    assert!(names.iter().all(|name| name.starts_with("mcp.json")) && names.len() <= 4, "{names:?}");
}

/// The client writes its file between Cove's read and Cove's write.
#[test]
fn a_change_by_the_client_in_between_is_kept() {
    let script = "printf 'model = \"theirs\"\\n' > \"$HOME/.codex/config.toml\"; exit 1";
    let home = InstallHome::new().program("codex", script).with(".codex/config.toml", "model = \"old\"\n");
    assert_eq!(home.run(&["install", "codex"]).code, Some(0));
    let text = home.text(".codex/config.toml");
    assert!(text.starts_with("model = \"theirs\"\n\n[mcp_servers.cove]\n"), "{text}");
}

#[test]
fn reports_an_unwritable_client_folder() {
    let test = "reports_an_unwritable_client_folder";
    if !TestUser::all(test).contains(&TestUser::Ordinary) {
        return;
    }
    let content = "{\"mcpServers\": {}}";
    let home = InstallHome::new().with(".cursor/mcp.json", content);
    for path in [".cursor/mcp.json", ".cursor", "."] {
        let mode = if path.ends_with("json") { 0o444 } else { 0o555 };
        fs::set_permissions(home.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = |args: &[&str]| {
        home.normalized(FinishedProgram::from_output(home.command_as(TestUser::Ordinary, args).output().unwrap()))
    };
    let said = run(&["install", "cursor"]);
    assert_snapshot!(said.stderr, @"
    could not copy `[HOME]/.cursor/mcp.json.cove-backup`
    caused by: permission denied
    hint: nothing was changed; give yourself permission to write to the folder, or see `--print`
    ");
    assert_eq!(said.code, Some(125));
    let said = run(&["install", "windsurf"]);
    assert!(said.code == Some(125) && said.stderr.starts_with("could not create `[HOME]/.codeium"), "{said:#?}");
    assert_eq!((home.text(".cursor/mcp.json").as_str(), home.names(".cursor").len()), (content, 1));
    fs::set_permissions(home.at("."), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn full_disk_leaves_client_files_unchanged() {
    let home = InstallHome::new();
    let content = format!("{{\"a\": \"{}\", \"mcpServers\": {{}}}}", "x".repeat(80_000));
    let home = home.with("content", &content);
    // Room for the file and half of another.
    let script = "mount -t tmpfs -o size=128k none \"$1\" || exit 99\nmkdir -p \"$1/.cursor\" && cp \"$2\" \"$1/.cursor/mcp.json\"\n\
                  HOME=\"$1\" \"$3\" install cursor; echo \"code $?\"\ncmp \"$2\" \"$1/.cursor/mcp.json\" && ls -A \"$1/.cursor\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([home.at("project"), home.at("content"), cove().path().to_path_buf()])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let done = home.normalized(FinishedProgram::from_output(output));
            assert_eq!(done.stdout, "code 125\nmcp.json\n", "{done:#?}");
            assert!(done.stderr.contains("hint: nothing was changed; free some space and run this again"), "{done:#?}");
        }
        Ok(output) if output.status.code() != Some(99) && !output.stdout.is_empty() => {
            panic!("{:#?}", FinishedProgram::from_output(output))
        }
        _ => skip("full_disk_leaves_client_files_unchanged", "not on this machine: a user namespace cannot mount here"),
    }
}

#[test]
fn hostile_names_are_written_as_plain_text() {
    let home = InstallHome::new();
    for name in ["a\"b", "a.b", "a\nb", "../../x", "", "\u{1b}[2J"] {
        let said = home.refusal_of(2, &["install", "cursor", &format!("--name={name}")]);
        assert!(said.starts_with("could not use `--name ") && !said.contains('\u{1b}'), "{said}");
    }
    assert_snapshot!(home.refusal_of(2, &["install", "curser"]).split("; known").next().unwrap(), @r#"
    could not find the client `curser`
    caused by: no client has that name
    hint: did you mean `cursor`? known clients are claude-code, claude-desktop, cursor, vscode, vscode-insiders, windsurf, codex, gemini, zed, cline, cline-cli, goose, opencode, copilot-cli, roo, kilo, lm-studio, kiro, junie, antigravity, amp, continue, qwen, crush, kimi, mastra, pi, grok, fx, mcporter, augment, sema4ai, witsy
    "#);
    assert!(!home.at(".cursor").exists());
}
