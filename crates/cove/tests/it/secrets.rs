//! `cove secrets` and the references of definitions, through the real program: where values come from, what is refused,
//! and that no value leaks in any form.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cove_testkit::fixture::front;
use cove_testkit::program::FinishedProgram;
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

use crate::broker::{BrokerHome, python};
use crate::terminal::PseudoTerminal;

const ECHO_SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/secrets/echo_server.py");

/// Sets a secret by standard input.
fn set(home: &BrokerHome, name: &str, value: &[u8]) -> FinishedProgram {
    with_input(home.command(&["secrets", "set", name]), value)
}

fn with_input(mut command: Command, input: &[u8]) -> FinishedProgram {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(input);
    FinishedProgram::from_output(child.wait_with_output().unwrap())
}

#[track_caller]
fn stdout_of(home: &BrokerHome, args: &[&str]) -> String {
    let finished = home.run(args);
    assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
    finished.stdout
}

fn server_state(home: &BrokerHome, name: &str) -> Value {
    let list: Value = serde_json::from_str(&stdout_of(home, &["servers", "list", "--json"])).unwrap();
    list["servers"].as_array().unwrap().iter().find(|server| server["name"] == name).unwrap().clone()
}

/// A server that repeats the variables of `env`.
fn echo_server(env: Value) -> Value {
    let names: Vec<&str> = env.as_object().unwrap().keys().map(String::as_str).collect();
    let mut env = env.clone();
    env["ECHOED"] = names.join(",").into();
    json!({"command": "/usr/bin/python3", "args": [ECHO_SERVER], "env": env})
}

/// The forms that no output may have.
fn forms(secret: &str) -> Vec<String> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let json = json!(secret).to_string();
    vec![
        secret.to_owned(),
        hex.to_uppercase(),
        hex,
        secret.chars().rev().collect(),
        json.trim_matches('"').to_owned(),
        // The middle of the value in base64, at each of the three places in a group.
        base64_middle(secret, 0),
        base64_middle(secret, 1),
        base64_middle(secret, 2),
    ]
}

/// Eight characters that encode the middle of a value if `offset` bytes precede it.
fn base64_middle(secret: &str, offset: usize) -> String {
    let script = "import base64,sys; t=base64.b64encode((int(sys.argv[1])*'x').encode()+sys.stdin.buffer.read()).decode(); \
                  print(t[4:len(t)-5], end='')";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script, &offset.to_string()]);
    with_input(command, secret.as_bytes()).stdout
}

#[track_caller]
fn assert_clean(place: &str, text: &str, secrets: &[&str]) {
    for secret in secrets {
        for form in forms(secret) {
            assert!(!text.contains(&form), "{place} has `{form}` of `{secret}`: {text}");
        }
    }
}

/// Everything in a folder except the file of secrets, as text.
fn all_files(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            text += &all_files(&path);
        } else if path.file_name().unwrap() != "secrets.json" {
            text += &format!("{}: {}\n", path.display(), String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()));
        }
    }
    text
}

fn all_command_lines() -> String {
    let lines = fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ") + "\n").collect()
}

#[test]
fn secrets_are_set_listed_used_and_removed() {
    let home = BrokerHome::new(json!({}));
    assert!(stdout_of(&home, &["secrets", "list"]).starts_with("no secrets are kept"));
    home.define("servers", json!({"echo": echo_server(json!({"A": "${secret:echo.A}"}))}));
    let state = server_state(&home, "echo");
    assert_eq!(state["needs"], json!(["secret echo.A: run `cove secrets set echo.A`"]));
    assert!(stdout_of(&home, &["secrets", "list"]).contains("not kept: run `cove secrets set echo.A`"));
    let called = home.run(&["tools", "call", "echo.result"]);
    assert!(called.stderr.contains("server `echo` needs secret echo.A: run `cove secrets set echo.A`"), "{called:?}");

    let kept = set(&home, "echo.A", b"value-of-the-secret\n");
    assert_eq!(kept.stdout, "kept the secret `echo.A`; used by echo from their next start on\n", "{kept:?}");
    let file = home.path(".local/state/cove/secrets.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let list: Value = serde_json::from_str(&stdout_of(&home, &["secrets", "list", "--json"])).unwrap();
    assert_eq!(
        list,
        json!([{"name": "echo.A", "servers": ["echo"], "kept": true, "since": list[0]["since"]}]),
        "values are never listed"
    );
    assert!(list[0]["since"].as_str().unwrap().ends_with('Z'), "{list}");
    assert_eq!(server_state(&home, "echo")["state"], "idle");
    assert_eq!(home.run(&["tools", "call", "echo.result"]).code, Some(0));

    let misspelled = home.run(&["secrets", "remove", "echo.B"]);
    assert_eq!(misspelled.code, Some(2));
    assert!(misspelled.stderr.contains("did you mean `echo.A`?"), "{misspelled:?}");
    let removed = home.run(&["secrets", "rm", "echo.A"]);
    assert_eq!(removed.stdout, "removed the secret `echo.A`\n");
    assert!(removed.stderr.contains("still named by the definitions of echo"), "{removed:?}");
    assert!(server_state(&home, "echo")["state"].as_str().unwrap().starts_with("needs secret echo.A"));
}

#[test]
fn a_running_server_finds_a_new_secret() {
    let home = BrokerHome::new(json!({"echo": echo_server(json!({"A": "${secret:echo.A}"}))}));
    let mut client = home.serve(&[]);
    let missing = python(&mut client, "try:\n  mcp.echo.result()\nexcept Exception as e:\n  print(e)");
    assert!(missing.contains("cove secrets set echo.A"), "{missing}");
    set(&home, "echo.A", b"value-of-the-secret");
    let found = python(&mut client, "print(mcp.echo.result()['A'][0]); print(len(mcp.find('repeats')))");
    assert!(found.starts_with("[redacted]\n"), "{found}");
}

#[test]
fn values_that_cannot_be_kept_are_refused() {
    let home = BrokerHome::new(json!({}));
    for (value, reason) in [
        (&b""[..], "its value is empty"),
        (b"\n", "its value is empty"),
        (b"canary\0x", "has a NUL byte"),
        (b"\xffcanary", "is not UTF-8"),
        (&[b'c'; 64 * 1024 + 1], "more than 64 KiB"),
    ] {
        let refused = set(&home, "a", value);
        assert_eq!(refused.code, Some(2), "{reason}: {refused:?}");
        assert!(refused.stderr.contains(reason) && !refused.stderr.contains("canary"), "{refused:?}");
    }
    // The value does not belong on the command line, and a message must not repeat it.
    for args in [["set", "a", "canary-canary"], ["set", "canary=canary", ""], ["set", "a", "--canary"]] {
        let refused = home.run(&[&["secrets"], &args[..]].concat());
        assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
        assert!(!refused.stderr.contains("canary"), "{refused:?}");
    }
    assert!(!home.path(".local/state/cove/secrets.json").exists());
    assert_eq!(set(&home, "a", &[b'c'; 64 * 1024]).code, Some(0));
    assert_eq!(set(&home, "lines", b"one\ntwo\r\n").code, Some(0));
    let kept = fs::read_to_string(home.path(".local/state/cove/secrets.json")).unwrap();
    assert!(kept.contains("\"one\\ntwo\""), "one last line end is dropped");
}

#[test]
fn a_terminal_does_not_show_the_value() {
    let home = BrokerHome::new(json!({}));
    let mut terminal = PseudoTerminal::start(&home.command(&["secrets", "set", "a"]));
    terminal.expect("value of a (it is not shown): ");
    terminal.send("wrong-canary\u{15}canary-vaule\u{7f}\u{7f}\u{7f}lue\recho pasted-canary\r");
    let (code, shown) = terminal.close();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("kept the secret `a`") && !shown.contains("canary"), "{shown}");
    let kept = fs::read_to_string(home.path(".local/state/cove/secrets.json")).unwrap();
    assert!(kept.contains("\"canary-value\""), "{kept}");
    for key in ["\u{3}", "\u{4}"] {
        let mut terminal = PseudoTerminal::start(&home.command(&["secrets", "set", "b"]));
        terminal.expect("it is not shown): ");
        terminal.send("canary").send(key);
        // `close` checks that the terminal has its modes back.
        let (code, shown) = terminal.close();
        assert_eq!(code, Some(2), "{shown}");
        assert!(shown.contains("nothing was kept") && !shown.contains("canary"), "{shown}");
    }
}

#[test]
fn damaged_and_exposed_stores_are_refused() {
    let home = BrokerHome::new(json!({"echo": echo_server(json!({"A": "${secret:a}"}))}));
    set(&home, "a", b"canary-value");
    let file = home.path(".local/state/cove/secrets.json");
    let check = |reason: &str| {
        for args in [&["secrets", "list"][..], &["secrets", "remove", "a"], &["tools", "call", "echo.result"]] {
            let refused = home.run(args);
            assert!(refused.code != Some(0) && refused.stderr.contains(reason), "{reason}: {refused:?}");
            assert!(!refused.stderr.contains("canary") && !refused.stdout.contains("canary"), "{refused:?}");
        }
        let state = server_state(&home, "echo")["state"].as_str().unwrap().to_owned();
        assert!(state.starts_with("needs secret a, but: could not read the secrets in"), "{state}");
        assert_eq!(set(&home, "b", b"x").code, Some(125), "{reason}");
    };
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    check("others may use it: its mode is 640");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&file, "{\"secrets\": {\"a\": \"canary-value\"}}").unwrap();
    check("it is damaged at line 1");
    fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, 0o600.into(), 0).unwrap();
    check("it is not a regular file");
}

#[test]
fn writers_at_the_same_time_keep_all_secrets() {
    let home = BrokerHome::new(json!({}));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let home = &home;
            scope.spawn(move || {
                for number in 0..3 {
                    let kept = set(home, &format!("w{writer}.{number}"), b"value");
                    assert_eq!(kept.code, Some(0), "{kept:?}");
                }
            });
        }
    });
    assert_eq!(stdout_of(&home, &["secrets", "list"]).lines().count(), 12);
}

/// Values from every source, repeated by a server in every form, on every way back.
#[test]
fn no_form_of_a_secret_leaks() {
    let (stored, filed, printed, url_password, variable, plain) = (
        "stored-canary+/?é",
        "filed canary value",
        "printed-canary-value",
        "p@ss/canary-9",
        "ghp_variableCanary0123456789",
        "plain-canary-&=%",
    );
    let secrets = [stored, filed, printed, url_password, variable, plain];
    let home = BrokerHome::new(json!({}));
    set(&home, "echo.A", stored.as_bytes());
    fs::write(home.path("token"), format!("{filed}\n")).unwrap();
    fs::set_permissions(home.path("token"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(home.path(".env"), format!("# more\nexport ENV_FILE_TOKEN='{plain}'\n")).unwrap();
    fs::set_permissions(home.path(".env"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(home.path("printer"), format!("printf '%s\\n' '{printed}'")).unwrap();
    let mut server = echo_server(json!({
        "A": "${secret:echo.A}",
        "B": "${file:~/token}",
        "C": format!("${{cmd:/bin/sh {}}}", home.path("printer").display()),
        "DATABASE_URL": "postgres://me:p%40ss%2Fcanary-9@db.example/x",
        "PAT": "${CANARY_PAT}",
    }));
    let echoed = server["env"]["ECHOED"].as_str().unwrap().to_owned() + ",ENV_FILE_TOKEN";
    server["env"]["ECHOED"] = echoed.into();
    server["env_file"] = json!("~/.env");
    home.define("servers", json!({"echo": server}));

    let command = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("CANARY_PAT", variable);
        command
    };
    for args in [
        &["servers", "list"][..],
        &["servers", "refresh"],
        &["servers", "list", "--json"],
        &["tools", "show", "echo"],
        &["tools", "show", "echo.result"],
        &["tools", "find", "repeats"],
        &["tools", "call", "echo.result"],
        &["tools", "call", "echo.fail"],
        &["tools", "call", "echo.error"],
        &["tools", "call", "echo.die"],
        &["secrets", "list", "--json"],
        &["audit", "--json"],
    ] {
        let finished = FinishedProgram::from_output(command(args).output().unwrap());
        assert_clean(&format!("{args:?}"), &format!("{}{}", finished.stdout, finished.stderr), &secrets);
    }
    let result = FinishedProgram::from_output(command(&["tools", "call", "echo.result"]).output().unwrap());
    assert!(result.code == Some(0) && result.stdout.contains("[redacted]"), "{result:?}");

    let mut serve = command(&["serve", "--log-level", "debug"]);
    serve.stderr(Stdio::piped());
    let mut client = cove_testkit::mcp::TestStdioClient::start(serve, cove_testkit::mcp::ClientEra::Modern);
    let code = "import os\nprint(mcp.echo.result(), mcp.logs('echo') if hasattr(mcp, 'logs') else '')\n\
                for tool in (mcp.echo.fail, mcp.echo.error, mcp.echo.die):\n  try:\n    print(tool())\n  except Exception as e:\n    \
                print(repr(e), getattr(e, 'data', None), vars(e))\n\
                print(dict(os.environ), mcp.find('repeats'), help(mcp.echo))\nmcp.echo.result();";
    let output = client.call("execute_code", json!({"code": code}));
    let output = serde_json::to_string(&output.0).unwrap();
    assert!(output.contains("[redacted]"), "{output}");
    assert_clean("the sandbox", &output, &secrets);
    assert_clean("messages to the client", &serde_json::to_string(&client.notifications).unwrap(), &secrets);
    // The server runs now.
    let lines = all_command_lines();
    assert!(lines.contains("echo_server.py"));
    assert_clean("a command line", &lines, &secrets);
    client.close_input();
    client.wait();
    assert_clean("the log", &client.errors(), &secrets);
    let state = all_files(&home.path(".local/state/cove"));
    assert!(state.contains("audit.jsonl"));
    assert_clean("the state directory", &state, &secrets);
}

#[test]
fn values_in_arguments_get_a_remark() {
    let home = BrokerHome::new(json!({}));
    set(&home, "a", b"canary-value");
    fs::write(home.path("open"), "canary-file").unwrap();
    fs::set_permissions(home.path("open"), PermissionsExt::from_mode(0o644)).unwrap();
    home.define(
        "servers",
        json!({"x": {"command": "/bin/true", "args": ["--key", "${secret:a}"], "env": {"F": "${file:~/open}", "L": "$${secret:a}"}}}),
    );
    let listed = home.run(&["servers", "list"]);
    assert!(listed.stderr.contains("`x`: a secret in `args` is visible in the list of processes"), "{listed:?}");
    assert!(listed.stderr.contains("`x`: other users can read `~/open`"), "{listed:?}");
    let remarks = server_state(&home, "x")["remarks"].clone();
    assert_eq!(remarks.as_array().unwrap().len(), 2, "{remarks}");
}

#[test]
fn a_project_cannot_run_commands_for_values() {
    let home = BrokerHome::new(json!({}));
    let touch = format!("/usr/bin/touch {}", home.path("touched").display());
    let project = json!({"mcpServers": {
        "one": {"command": "/bin/true", "env": {"A": format!("${{cmd:{touch}}}")}},
        "two": {"url": "http://127.0.0.1:9/mcp", "headers_cmd": touch},
    }});
    fs::create_dir(home.path("project")).unwrap();
    fs::write(home.path("project/.mcp.json"), project.to_string()).unwrap();
    let run = |args: &[&str]| {
        let mut command = home.command(args);
        FinishedProgram::from_output(command.current_dir(home.path("project")).output().unwrap())
    };
    assert_eq!(run(&["servers", "trust"]).code, Some(0));
    for name in ["one", "two"] {
        let refused = run(&["servers", "refresh", name]);
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert!(refused.code != Some(0) && said.contains("Cove runs no `${cmd:…}`"), "{name}: {refused:?}");
    }
    let listed = run(&["servers", "list"]);
    assert!(listed.stdout.contains("a project's file, even of a trusted one"), "{listed:?}");
    assert!(!home.path("touched").exists());
    // The same definition in the person's own files runs it.
    home.define("servers", project["mcpServers"].clone());
    run(&["servers", "refresh", "one"]);
    assert!(home.path("touched").exists());
}

#[test]
fn files_that_are_none_and_commands_that_fail_are_needs() {
    let home = BrokerHome::new(json!({}));
    mknodat(CWD, home.path("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::create_dir(home.path("directory")).unwrap();
    symlink("loop", home.path("loop")).unwrap();
    fs::write(home.path("huge"), vec![b'x'; 64 * 1024 + 1]).unwrap();
    fs::write(home.path("empty"), "\n").unwrap();
    fs::write(home.path("nul"), "a\0b").unwrap();
    fs::write(home.path("binary"), b"\xff\xfe").unwrap();
    fs::write(home.path("bad.env"), "A=1\nnot a line\n").unwrap();
    let file = |path: &str| json!({"command": "/bin/true", "env": {"A": format!("${{file:~/{path}}}")}});
    let scripts = AtomicUsize::new(0);
    let command = |script: &str| {
        let path = home.path(&format!("script{}", scripts.fetch_add(1, Ordering::Relaxed)));
        fs::write(&path, script).unwrap();
        json!({"command": "/bin/true", "env": {"A": format!("${{cmd:/bin/sh {}}}", path.display())}})
    };
    for (definition, reason) in [
        (file("missing"), "file ~/missing, but it could not be read (No such file"),
        (file("fifo"), "it is not a regular file"),
        (file("directory"), "it is not a regular file"),
        (file("loop"), "Too many levels of symbolic links"),
        (file("huge"), "it has more than 65536 bytes"),
        (file("empty"), "it is empty"),
        (file("nul"), "it has a NUL byte"),
        (file("binary"), "it is not UTF-8 text"),
        (json!({"command": "/bin/true", "env_file": "~/bad.env"}), "file ~/bad.env, but line 2 is not `KEY=VALUE`"),
        (json!({"command": "/bin/true", "env_file": "~/fifo"}), "it is not a regular file"),
        (json!({"command": "/bin/true", "env": {"A": "${cmd:no-such-program x}"}}), "command no-such-program"),
        (command("echo canary; echo canary >&2; exit 1"), "it ended with exit code 1"),
        (command("yes canary"), "it printed more than 64 KiB"),
        (command("printf 'a\\000b'"), "it printed a NUL byte"),
        (command(":"), "it printed nothing"),
        (
            json!({"url": "http://127.0.0.1:9/", "headers_cmd": "/bin/echo canary"}),
            "no JSON object of at most 100 texts",
        ),
        (json!({"url": "http://127.0.0.1:9/", "headers_cmd": "no-such-program"}), "command no-such-program"),
    ] {
        home.define("servers", json!({"x": definition}));
        let refused = home.run(&["servers", "refresh", "x"]);
        let said = format!("{}{}", refused.stdout, refused.stderr);
        assert!(refused.code != Some(0) && said.contains("needs") && said.contains(reason), "{reason}: {refused:?}");
        assert!(!said.contains("canary"), "{said}");
    }
}

#[test]
fn a_helper_program_keeps_the_secrets() {
    let home = BrokerHome::new(json!({"echo": echo_server(json!({"A": "${secret:a}"}))}));
    let helper = |script: &str| {
        fs::write(home.path("helper"), script).unwrap();
        let setting = format!("secrets-helper = \"/bin/sh {}\"\n", home.path("helper").display());
        fs::write(home.path(".config/cove/cove.toml"), setting).unwrap();
    };
    helper(
        "cd \"$(dirname \"$0\")\"; case $1 in set) cat > kept;; get) cat kept;; remove) rm kept;; \
         list) [ -f kept ] && echo '{\"names\": [\"a\"]}';; esac; exit 0",
    );
    let missing = home.run(&["tools", "call", "echo.result"]);
    assert!(missing.stderr.contains("needs secret a: run `cove secrets set a`"), "{missing:?}");
    assert_eq!(set(&home, "a", b"canary-of-the-helper").code, Some(0));
    assert!(!home.path(".local/state/cove/secrets.json").exists());
    assert!(stdout_of(&home, &["secrets", "list"]).starts_with("a  echo  -"));
    let called = home.run(&["tools", "call", "echo.result"]);
    assert!(called.code == Some(0) && called.stdout.contains("[redacted]"), "{called:?}");
    assert_clean("a result", &called.stdout, &["canary-of-the-helper"]);
    assert_eq!(stdout_of(&home, &["secrets", "remove", "a"]), "removed the secret `a`\n");

    for (script, reason) in [
        ("echo '{\"value\": \"canary\"}'; echo canary >&2; exit 1", "it ended with exit code 1"),
        ("yes canary", "it printed more than 64 KiB"),
        ("echo canary", "its answer is not the JSON object"),
        ("kill -9 $$", "it was ended by signal 9"),
    ] {
        helper(script);
        let called = home.run(&["tools", "call", "echo.result"]);
        assert!(called.code != Some(0) && called.stderr.contains(reason), "{reason}: {called:?}");
        assert!(called.stderr.contains("with the helper `/bin/sh`"), "{called:?}");
        let listed = home.run(&["secrets", "list"]);
        assert!(listed.code == Some(125) && listed.stderr.contains(reason), "{reason}: {listed:?}");
        for said in [called, listed] {
            assert!(!format!("{}{}", said.stdout, said.stderr).contains("canary"), "{said:?}");
        }
    }
}

/// A helper that hangs is ended after ten seconds, so this test takes that long.
#[test]
fn a_helper_that_hangs_does_not_block_others() {
    let home = BrokerHome::new(json!({}));
    home.define("servers", json!({"echo": echo_server(json!({"A": "${secret:a}"})), "fixture": home.fixture(&[])}));
    fs::write(home.path("helper"), "sleep 1000 & echo $! > \"$(dirname \"$0\")/child\"; wait").unwrap();
    let helper = format!("/bin/sh {}", home.path("helper").display());
    let mut client = home.serve(&["--secrets-helper", &helper]);
    // Starts the interpreter and the other server first.
    client.call("execute_code", json!({"code": "mcp.fixture.add(a=1, b=2)"})).ok();
    let code = "import concurrent.futures as f\nwith f.ThreadPoolExecutor() as p:\n  slow = p.submit(lambda: mcp.echo.result())\n  \
                print(mcp.fixture.add(a=1, b=2), slow.done())\n  print(slow.exception())";
    let output = client.call("execute_code", json!({"code": code, "timeout": 100})).ok();
    assert!(output.starts_with("{'sum': 3.0} False"), "{output}");
    assert!(output.contains("it did not end within 10 s"), "{output}");
    let child = fs::read_to_string(home.path("child")).unwrap();
    let is_gone = || !Path::new(&format!("/proc/{}/exe", child.trim())).exists();
    crate::wait_until("the helper's child ends", is_gone);
}

#[test]
fn headers_of_a_command_are_made_again_after_they_were_refused() {
    let home = BrokerHome::new(json!({}));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (log, refusals) = (Arc::clone(&seen), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&refusals);
    // Accepts the second header that the command prints, and no other.
    let address = front::listen(move |request, stream| {
        let header = request.headers.get("authorization").cloned().unwrap_or_default();
        log.lock().unwrap().push(header.clone());
        if header != "Bearer canary-number-2" {
            counted.fetch_add(1, Ordering::SeqCst);
            return front::write(stream, "401 Unauthorized", "", format!("no {header}").as_bytes());
        }
        let result = match request.body["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                "serverInfo": {"name": "web", "version": "1"},
            }),
            Some("tools/list") => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
            Some("tools/call") => json!({"content": [{"type": "text", "text": header}]}),
            _ => return front::write(stream, "202 Accepted", "", b""),
        };
        let answer = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}).to_string();
        front::write(stream, "200 OK", "Content-Type: application/json\r\n", answer.as_bytes());
    });
    let script = home.path("headers");
    fs::write(
        &script,
        "f=\"$(dirname \"$0\")/count\"; n=$(cat \"$f\" 2>/dev/null || echo 0); n=$((n + 1)); echo $n > \"$f\"; \
         printf '{\"Authorization\": \"Bearer canary-number-%s\"}' $n",
    )
    .unwrap();
    let command = format!("/bin/sh {}", script.display());
    let url = format!("http://{address}/mcp");
    let added = home.run(&["servers", "add", "web", "--url", &url, "--headers-cmd", &command]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let called = home.run(&["tools", "call", "web.echo"]);
    assert_eq!((called.code, called.stdout.trim()), (Some(0), "[redacted]"), "{called:?} {seen:?}");
    assert_eq!(refusals.load(Ordering::SeqCst), 1, "{seen:?}");
    assert_eq!(fs::read_to_string(home.path("count")).unwrap().trim(), "2");
    // A server that refuses every header gets one more attempt, not an endless row of them.
    let refused = home.run(&["servers", "refresh", "web"]);
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(refused.code != Some(0) && said.contains("401") && !said.contains("canary"), "{said}");
    let count: usize = fs::read_to_string(home.path("count")).unwrap().trim().parse().unwrap();
    assert!(count <= 6, "{count}: {seen:?}");
}

#[test]
fn add_writes_env_files_and_headers_of_commands() {
    let home = BrokerHome::new(json!({}));
    fs::write(home.path("local.env"), "A=1\n").unwrap();
    let mut command = home.command(&["servers", "add", "x", "--env-file", "local.env", "--", "/bin/true"]);
    let added = FinishedProgram::from_output(command.current_dir(home.path("")).output().unwrap());
    assert_eq!(added.code, Some(0), "{added:?}");
    stdout_of(&home, &["servers", "add", "y", "--env-file", "~/x.env", "--", "/bin/true"]);
    let entry = |name: &str| -> Value {
        let text = fs::read_to_string(home.path(&format!(".config/cove/servers.d/{name}.json"))).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["mcpServers"][name].clone()
    };
    assert_eq!(Path::new(entry("x")["env_file"].as_str().unwrap()), home.path("local.env").canonicalize().unwrap());
    assert_eq!(entry("y")["env_file"], "~/x.env");
}
