//! Manners of the command line, through the real program: help, completions in a real bash, colours and headings, the
//! token of the HTTP server, and what a terminal shows while a server starts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use cove_testkit::fixture;
use cove_testkit::mcp::{ClientEra, HttpServerProcess, TestHttpClient};
use cove_testkit::program::FinishedProgram;
use serde_json::{Value, json};

use crate::broker::BrokerHome;
use crate::cove;
use crate::terminal::PseudoTerminal;

fn on_terminal(command: &mut Command) -> PseudoTerminal {
    PseudoTerminal::start(command.env("TERM", "xterm"))
}

/// What bash would offer for a line whose last word is being written.
#[track_caller]
fn complete_in_bash(home: &BrokerHome, words: &[&str]) -> Vec<String> {
    // As if it were installed: the script calls the program by its name.
    let bin = home.path("bin");
    fs::create_dir_all(&bin).unwrap();
    let _ = symlink(cove().path(), bin.join("cove"));
    let script = r#"
        source <(cove completions bash) || exit 9
        complete -p cove >/dev/null || exit 8
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _clap_complete_cove cove "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script, "bash"]).args(words).env_clear().env("HOME", home.path(""));
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).current_dir(home.path(""));
    let finished = FinishedProgram::from_output(command.output().unwrap());
    assert_eq!(finished.code, Some(0), "{words:?}: {finished:#?}");
    finished.stdout.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_the_names_of_the_moment() {
    let home = BrokerHome::new(json!({}));
    let evil = json!({"command": "true"});
    home.define("servers", json!({"fixture": home.fixture(&[]), "other": evil}));
    assert_eq!(home.run(&["servers", "refresh", "fixture"]).code, Some(0));
    let check = |words: &[&str], expected: &[&str]| {
        assert_eq!(complete_in_bash(&home, words), expected, "{words:?}");
    };
    let contains = |words: &[&str], expected: &[&str]| {
        let offered = complete_in_bash(&home, words);
        for name in expected {
            assert!(offered.iter().any(|word| word == name), "{words:?}: {name} is not in {offered:?}");
        }
    };
    check(&["cove", "serv"], &["serve", "servers"]);
    check(&["cove", "run", "--mem"], &["--memory"]);
    contains(&["cove", "install", ""], &["claude-code", "cursor", "codex"]);
    check(&["cove", "uninstall", "curs"], &["cursor"]);
    contains(&["cove", "servers", "remove", ""], &["fixture", "other"]);
    check(&["cove", "servers", "refresh", "ot"], &["other"]);
    check(&["cove", "audit", "--server", "fix"], &["fixture"]);
    check(&["cove", "tools", "call", "fixture.ad"], &["fixture.add"]);
    contains(&["cove", "tools", "show", ""], &["fixture", "other", "fixture.add"]);
    check(&["cove", "run", "-l", "ty"], &["typescript"]);
    check(&["cove", "repl", "--language", "no"], &["node"]);
    check(&["cove", "run", "--backend", ""], &["auto", "docker", "jail", "podman"]);
    check(&["cove", "serve", "--tools", "s"], &["sessions"]);
    check(&["cove", "serve", "--log-level", "d"], &["debug"]);
    check(&["cove", "run", "--image", "ub"], &["ubuntu"]);
    check(&["cove", "completions", "f"], &["fish"]);
    check(&["cove", "packages", "remove", "pan"], &[]);
    // A flag of the line decides where to look.
    let elsewhere = home.path("elsewhere");
    check(&["cove", "tools", "call", "--state-dir", elsewhere.to_str().unwrap(), "fixture.ad"], &[]);
}

#[test]
fn completions_never_offer_what_a_shell_would_run() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"fixture": home.fixture(&[])}));
    home.run(&["servers", "refresh"]);
    // The list of tools that a server sent is kept in a file; here it is a hostile one.
    let catalog = home.path(".local/state/cove/catalog");
    let mut changed = 0;
    for entry in fs::read_dir(catalog).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        if text.contains("\"add\"") {
            fs::write(&path, text.replace("\"add\"", "\"add$(touch pwned)\"")).unwrap();
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    let offered = complete_in_bash(&home, &["cove", "tools", "call", "fixture."]);
    assert!(!offered.is_empty() && offered.iter().all(|name| !name.contains('$')), "{offered:?}");
    assert!(!home.path("pwned").exists());
}

#[test]
fn a_stray_variable_does_not_turn_a_command_into_a_completion() {
    let home = BrokerHome::new(json!({}));
    let mut command = home.command(&["config", "path"]);
    let finished = FinishedProgram::from_output(command.env("COVE_COMPLETE", "bash").output().unwrap());
    assert_eq!(finished.stdout, format!("{}\n", home.path(".config/cove/cove.toml").display()));
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""));
}

#[test]
fn help_is_short_on_a_terminal_and_long_on_request() {
    let home = BrokerHome::new(json!({}));
    let mut plain = on_terminal(&mut home.command(&[]));
    plain.expect("Settings: see `cove --help`");
    assert!(plain.has_colours());
    assert_eq!(plain.close().0, Some(0));
    let mut without = home.command(&["-h"]);
    let mut without = on_terminal(without.env("NO_COLOR", "1"));
    let shown = without.expect("Settings: see");
    assert!(shown.contains("Examples:\r\n  cove run -c") && shown.lines().count() <= 36, "{shown}");
    assert!(!without.has_colours() && !shown.contains("--memory"), "{shown}");
    assert_eq!(without.close().0, Some(0));
    let long = home.run(&["--help"]).expect_success();
    assert!(long.contains("--memory <SIZE>") && long.contains("Examples:\n"), "{long}");
    assert!(!long.contains('\u{1b}'), "{long}");
    let mut forced = home.command(&["run", "-h"]);
    let forced = FinishedProgram::from_output(forced.env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(forced.stdout.contains("\u{1b}[1m"), "{forced:?}");
}

#[test]
fn lists_have_headings_and_colours_on_a_terminal_and_are_plain_in_a_pipe() {
    let home = BrokerHome::new(json!({}));
    let long = "A_VARIABLE_WITH_A_NAME_THAT_IS_LONGER_THAN_ANY_COLUMN_SHOULD_BE";
    let needy = json!({"command": "true", "env": {"TOKEN": format!("${{{long}}}")}});
    home.define("servers", json!({"fixture": home.fixture(&[]), "needy": needy}));
    assert_eq!(home.run(&["tools", "call", "fixture.add", "a=1", "b=2"]).code, Some(0));
    for (args, heading) in [
        (&["servers", "list"][..], "NAME     STATE"),
        (&["tools", "list"], "TOOL "),
        (&["images", "list"], "IMAGE   KIND"),
        (&["audit"], "TIME                 CALLER"),
        (&["config", "show"], "SETTING            VALUE"),
    ] {
        let piped = home.run(args);
        assert!(!piped.stdout.contains(heading) && !piped.stdout.contains('\u{1b}'), "{piped:?}");
        let mut terminal = on_terminal(&mut home.command(args));
        terminal.expect(heading);
        assert_eq!(terminal.close().0, Some(0), "{args:?}");
        let mut json = home.command(args);
        let json = FinishedProgram::from_output(json.env("CLICOLOR_FORCE", "1").arg("--json").output().unwrap());
        assert!(serde_json::from_str::<Value>(&json.stdout).is_ok(), "{args:?}: {json:?}");
    }
    let piped = home.run(&["servers", "list"]).expect_success();
    let lines: Vec<&str> = piped.lines().collect();
    let column = |line: &str| line.find("/servers.d/").map(|at| line[..at].rfind("  ").unwrap());
    assert_eq!(column(lines[0]), column(lines[1]), "{piped}");
    assert_eq!(lines[2], format!("         needs {long}"), "{piped}");
    // The time of the clock on the wall for people, the same everywhere for programs.
    let mut local = home.command(&["audit"]);
    let mut local = on_terminal(local.env("TZ", "Asia/Kathmandu"));
    let shown = local.expect("fixture.add");
    let utc = home.run(&["audit"]).expect_success();
    let (hour, minute) = (&utc[11..13], utc[14..16].parse::<u32>().unwrap());
    let quarter = (minute + 45) % 60;
    assert!(shown.contains(&format!(":{quarter:02}:")) && utc.contains(&format!("T{hour}:")), "{shown} {utc}");
}

#[test]
fn token_is_shown_and_rotated_and_a_running_server_follows() {
    let home = BrokerHome::new(json!({}));
    let missing = home.run(&["token"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(missing.stderr.starts_with("could not find a token\ncaused by: "), "{missing:?}");
    let serve = || HttpServerProcess::start(home.command(&["serve", "--http", "127.0.0.1:0"]));
    let status = |server: &HttpServerProcess, token: &str| {
        TestHttpClient::new(server.address, Some(token), ClientEra::Modern).send("tools/list", Value::Null).status
    };
    let server = serve();
    let token = home.run(&["token"]);
    assert_eq!((token.code, token.stderr.as_str()), (Some(0), ""));
    let old = token.stdout.trim();
    assert_eq!(token.stdout, format!("{old}\n"));
    assert_eq!(status(&server, old), 200);
    let rotated = home.run(&["token", "rotate", "--json"]);
    assert!(rotated.stderr.contains("no server accepts the old token any more"), "{rotated:?}");
    let rotated: Value = serde_json::from_str(&rotated.stdout).unwrap();
    let new = rotated["token"].as_str().unwrap();
    assert_ne!(old, new);
    assert_eq!(home.run(&["token"]).expect_success().trim(), new);
    assert_eq!((status(&server, old), status(&server, new)), (401, 200));
    drop(server);
    let server = serve();
    assert_eq!((status(&server, old), status(&server, new)), (401, 200));
    // The variable wins over the file, and no program can change it for others.
    let mut command = home.command(&["token", "rotate"]);
    let refused = FinishedProgram::from_output(command.env("COVE_TOKEN", "0123456789abcdef").output().unwrap());
    assert!(refused.code == Some(2) && refused.stderr.contains("`COVE_TOKEN` sets it"), "{refused:?}");
    // A file that others can read is not read aloud.
    let file = home.path(".local/state/cove/tokens");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = home.run(&["token"]);
    assert!(refused.code == Some(2) && refused.stdout.is_empty() && !refused.stderr.contains(new), "{refused:?}");
}

#[test]
fn serve_says_on_a_terminal_that_it_waits_for_a_client() {
    let home = BrokerHome::new(json!({}));
    let mut terminal = on_terminal(&mut home.command(&["serve", "--log-level", "debug"]));
    terminal.expect("`cove install` registers it");
    terminal.expect("Ctrl-C ends");
    terminal.expect("serving on standard input and output");
    terminal.send("\u{3}");
    assert_eq!(terminal.close().0, Some(0));
    // A client that reads standard error as a log sees nothing of it.
    let served = home.run(&["serve"]);
    assert_eq!((served.code, served.stdout.as_str(), served.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn a_terminal_shows_which_server_starts_and_a_pipe_does_not() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"fixture": home.fixture(&["--slow", "2500"])}));
    let code = "print('before', end='\\n'); print(mcp.fixture.add(a=1, b=2).sum)";
    let args = ["run", "-c", code];
    let mut terminal = on_terminal(&mut home.command(&args));
    terminal.expect("before");
    terminal.expect("starting fixture: ");
    terminal.expect("3.0");
    assert_eq!(terminal.close().0, Some(0));
    let piped = home.run(&args);
    assert_eq!((piped.stdout.as_str(), piped.stderr.as_str()), ("before\n3.0\n", ""));
    let mut call = on_terminal(&mut home.command(&["tools", "call", "fixture.add", "a=1", "b=2"]));
    call.expect("starting fixture: ");
    call.expect("sum");
    assert_eq!(call.close().0, Some(0));
    // Output in the middle of a line is not covered.
    let code = "print('half', end='', flush=True); x = mcp.fixture.add(a=1, b=2).sum; print(' a line', x)";
    let mut half = on_terminal(&mut home.command(&["run", "-c", code]));
    half.expect("half a line 3.0");
    assert_eq!(half.close().0, Some(0));
}

/// A program whose output is lost has failed, whatever it did.
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let home = BrokerHome::new(json!({"fixture": fixture::definition(&[])}));
    home.run(&["servers", "refresh"]).expect_success();
    let commands: [&[&str]; 8] = [
        &["run", "-c", "print(1)"],
        &["run", "--json", "-c", "1"],
        &["tools", "call", "fixture.add", "a=1", "b=2"],
        &["tools", "find", "add"],
        &["tools", "list"],
        &["tools", "show", "fixture"],
        &["servers", "list"],
        &["config", "show"],
    ];
    for args in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let finished = FinishedProgram::from_output(home.command(args).stdout(full).output().unwrap());
        let expected = "could not write to standard output\ncaused by: No space left on device (os error 28)\n\
                        hint: free some space: the disk is full\n";
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(125), expected), "{args:?}");
    }
}

#[test]
fn hints_name_what_works_when_it_is_typed() {
    let home = BrokerHome::new(json!({"fixture": fixture::definition(&[])}));
    let shown = home.run(&["tools", "show", "fixture"]).expect_success();
    assert!(shown.ends_with("# all about one tool: cove tools show fixture.TOOL\n"), "{shown}");
    let refused = |args: &[&str]| {
        let finished = home.run(args);
        assert_eq!(finished.code, Some(2), "{finished:#?}");
        finished.stderr
    };
    let said = refused(&["tools", "call", "--call-timeout", "0", "fixture.add"]);
    assert!(said.starts_with("could not read `--call-timeout 0`\nhint: write a number of seconds, more"), "{said}");
    let said = refused(&["serve", "--workspace", "/no-such-folder"]);
    assert!(said.ends_with("hint: name a directory of its own that exists; `mkdir -p DIR` makes one\n"), "{said}");
    let mut list = on_terminal(home.command(&["install"]).env("NO_COLOR", "1"));
    list.expect("CLIENT");
    list.expect("STATE");
    assert_eq!(list.close().0, Some(0));
    // A folder of dot files that a relative link leads to.
    fs::create_dir_all(home.path(".cursor")).unwrap();
    fs::create_dir_all(home.path("dotfiles")).unwrap();
    fs::write(home.path("dotfiles/cursor.json"), "{}").unwrap();
    symlink("../dotfiles/cursor.json", home.path(".cursor/mcp.json")).unwrap();
    let added = home.run(&["install", "cursor"]).stdout;
    assert!(added.contains("/dotfiles/cursor.json.cove-backup)") && !added.contains("/../"), "{added}");
    let mut project = home.command(&["install", "zed", "--scope", "project"]);
    fs::create_dir_all(home.path("project")).unwrap();
    let added = FinishedProgram::from_output(project.current_dir(home.path("project")).output().unwrap());
    let next = "Next: check Settings, MCP servers in Zed; it starts after you approve it\n";
    assert!(added.stdout.ends_with(next), "{added:#?}");
}

#[test]
fn a_server_whose_name_has_dots_is_found() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"a.b": fixture::definition(&[])}));
    let called = home.run(&["tools", "call", "a.b.add", "a=1", "b=2"]);
    assert!(called.code == Some(0) && called.stdout.contains("3"), "{called:?}");
    for topic in ["a.b", "a.b.add", "a_b.add"] {
        let shown = home.run(&["tools", "show", topic]);
        assert!(shown.code == Some(0) && shown.stdout.contains("add("), "{topic}: {shown:?}");
    }
}

#[test]
fn typescript_runs_or_says_which_node_it_needs() {
    let home = BrokerHome::new(json!({}));
    let typed = home.run(&["run", "-l", "typescript", "-c", "const x: number = 41; console.log(x + 1)"]);
    let is_old_node = typed.stderr.contains("22.13");
    assert!(typed.stdout == "42\n" || is_old_node, "{typed:?}");
}

#[test]
fn a_variable_with_a_misspelled_name_gets_a_warning() {
    let home = BrokerHome::new(json!({}));
    let mut command = home.command(&["run", "-c", "1"]);
    let warned = FinishedProgram::from_output(command.env("COVE_MEMROY", "1g").output().unwrap());
    assert_eq!(warned.stderr, "warning: `COVE_MEMROY` is not a variable of Cove; did you mean `COVE_MEMORY`?\n");
    assert_eq!(warned.stdout, "1\n");
}

#[test]
fn config_init_writes_a_file_that_changes_nothing_and_never_replaces_one() {
    let home = BrokerHome::new(json!({}));
    let before = home.run(&["config", "show"]).expect_success();
    let path = home.run(&["config", "path"]).expect_success();
    let written = home.run(&["config", "init"]).expect_success();
    assert!(written.starts_with(&format!("wrote `{}`", path.trim())), "{written}");
    assert_eq!(home.run(&["config", "show"]).expect_success(), before);
    assert_eq!(fs::metadata(path.trim()).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(path.trim(), "memory = '1g'\n").unwrap();
    let refused = home.run(&["config", "init"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("it exists already"), "{refused:?}");
    assert_eq!(fs::read_to_string(path.trim()).unwrap(), "memory = '1g'\n");
    let other = home.path("other.toml");
    home.run(&["config", "init", "--config", other.to_str().unwrap()]).expect_success();
    assert!(other.exists());
}

#[test]
fn doctor_looks_at_configuration_servers_and_clients() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"fixture": home.fixture(&[]), "needy": {"command": "no-such-program"}}));
    fs::create_dir_all(home.path(".cursor")).unwrap();
    let mut command = home.command(&["doctor", "--json", "--memory", "400m"]);
    command.env("COVE_TIMOUT", "3s");
    let finished = FinishedProgram::from_output(command.output().unwrap());
    let checks: Vec<Value> = serde_json::from_str(&finished.stdout).unwrap();
    let detail = |section: &str, name: &str| {
        let found = checks.iter().find(|check| check["section"] == section && check["check"] == name);
        found.unwrap_or_else(|| panic!("no {section} {name} in {checks:#?}"))["detail"].as_str().unwrap().to_owned()
    };
    assert!(detail("configuration", "file").starts_with("none at /"));
    assert_eq!(detail("configuration", "settings"), "not the default: memory");
    assert!(detail("configuration", "variable").contains("did you mean `COVE_TIMEOUT`?"));
    assert_eq!(detail("servers", "defined"), "2 servers, 0 with known tools");
    assert!(detail("servers", "state").starts_with("`needy` needs "));
    assert!(detail("clients", "registered").starts_with("with none; "));
    assert!(detail("clients", "others").contains("cursor"));
    // What a person configured does not make the sandbox unsound.
    assert_eq!(finished.code, Some(0), "{finished:#?}");
}

#[test]
fn files_that_are_too_large_and_input_that_has_ended_get_a_hint() {
    let home = BrokerHome::new(json!({}));
    let large = "f = open('/workspace/x', 'wb'); [f.write(bytes(2**20)) for _ in range(9)]";
    let finished = home.run(&["run", "--workspace-size", "8m", "-c", large]);
    assert!(finished.stderr.contains("`/workspace` may hold 8m (limit `workspace-size`)"), "{finished:?}");
    let sparse = "f = open('/workspace/x', 'wb'); f.truncate(2**33)";
    let finished = home.run(&["run", "--workspace-size", "8m", "-c", sparse]);
    assert!(finished.stderr.contains("File too large") && finished.stderr.contains("may hold 8m"), "{finished:?}");
    let finished = home.run(&["run", "-c", "input()"]);
    assert!(finished.stderr.ends_with("hint: pass input through a pipe, as in `echo 42 | cove run script.py`\n"));
}
