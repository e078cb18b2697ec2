//! Whole command lines against an environment of their own.

use std::collections::BTreeMap;
use std::fs;

use cove_protocol::Language;
use cove_protocol::limits::{MAX_CODE, MAX_META};
use insta::assert_snapshot;
use tempfile::TempDir;

use super::tables::PrintStyle;
use super::*;
use cove_core::error::FailureKind;

mod help;

struct CliFixture {
    dir: TempDir,
    process_env: ProcessEnv,
}

impl CliFixture {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let cwd = dir.path().canonicalize().unwrap();
        fs::write(cwd.join("hello.py"), "print('hello')\n").unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(cwd.join(name)).unwrap();
        }
        Self { dir, process_env: ProcessEnv { env: BTreeMap::new(), cwd, stdin_is_terminal: false } }
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.process_env.env.insert(name.to_owned(), value.into());
        self
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        fs::write(self.dir.path().join(name), content).unwrap();
        self
    }

    fn parse(&self, args: &[&str]) -> Result<CliAction, Failure> {
        parse_command_line(["cove"].iter().chain(args).map(OsString::from), &self.process_env)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> (RunArgs, CommandContext) {
        match self.parse(args) {
            Ok(CliAction::Run(run, context)) => (run, *context),
            other => panic!("{args:?}: {other:?}"),
        }
    }

    #[track_caller]
    fn config(&self, args: &[&str]) -> Config {
        match self.parse(args) {
            Ok(
                CliAction::Run(_, context)
                | CliAction::Repl(_, context)
                | CliAction::Explain(context)
                | CliAction::Doctor(context)
                | CliAction::ConfigShow(context),
            ) => context.config,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    #[track_caller]
    fn refusal(&self, args: &[&str]) -> String {
        let error = self.parse(args).unwrap_err();
        assert_eq!(error.kind(), FailureKind::Usage, "{args:?}");
        error.report().to_string().replace(&*self.process_env.cwd.to_string_lossy(), "[DIR]")
    }
}

fn refusal_of(args: &[&str]) -> String {
    CliFixture::new().refusal(args)
}

#[test]
fn accepts_settings_before_or_after_the_command() {
    let place = CliFixture::new();
    let lines: [&[&str]; 7] = [
        &["repl", "--cpus", "3"],
        &["--cpus", "3", "explain"],
        &["explain", "--cpus", "3"],
        &["explain", "--cpus=3"],
        &["--cpus", "2", "config", "--cpus", "5", "show", "--cpus", "3"],
        &["config", "--cpus", "3", "show"],
        &["run", "hello.py", "--cpus", "2", "--cpus", "3"],
    ];
    for line in lines {
        assert_eq!(place.config(line).policy.limits.cpus, 3.0, "{line:?}");
    }
    let config = place.config(&["--mount", "a:/a", "run", "--mount", "b:/b", "hello.py", "--mount=c:/c"]);
    let targets: Vec<_> = config.policy.mounts.iter().map(|mount| mount.target.to_str().unwrap()).collect();
    assert_eq!(targets, ["/a", "/b", "/c"]);
    // Every command that starts or describes a sandbox takes the setting for mounts in Compose files.
    for line in [&["run", "hello.py"][..], &["repl"], &["explain"], &["doctor"]] {
        let config = place.config(&[line, &["--allow-mount", "/usr"]].concat());
        assert_eq!(config.server.allowed_mounts.len(), 1, "{line:?}");
    }
}

#[test]
fn repl_detects_pipe_and_terminal_input() {
    let check = |terminal: bool, term: &str, input: InputKind| {
        let mut place = CliFixture::new().env("TERM", term).env("HOME", "/h").env("COVE_LANGUAGE", "py");
        place.process_env.stdin_is_terminal = terminal;
        let history = Some(PathBuf::from("/h/.local/state/cove/history"));
        let expected = ReplArgs { language: Language::Python, input, history };
        match place.parse(&["repl"]) {
            Ok(CliAction::Repl(repl, _)) => assert_eq!(repl, expected, "{terminal} {term}"),
            other => panic!("{other:?}"),
        }
    };
    check(true, "xterm", InputKind::Terminal);
    check(true, "dumb", InputKind::PlainTerminal);
    check(true, "", InputKind::PlainTerminal);
    check(false, "xterm", InputKind::Pipe);
    assert!(refusal_of(&["repl", "-l", "cobol"]).starts_with("could not read `--language cobol`"));
    assert!(refusal_of(&["repl", "hello.py"]).contains("unexpected argument 'hello.py'"));
}

#[test]
fn parses_code_to_run() {
    let place = CliFixture::new().file("mark.py", "\u{feff}1").file("full.py", "#".repeat(MAX_CODE));
    let cell = |name: &str, code: &str, args: &[&str]| CellSource {
        name: name.to_owned(),
        code: code.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
    };
    let hello = "print('hello')\n";
    let cases: [(&[&str], Vec<CellSource>); 8] = [
        (&["run", "hello.py"], vec![cell("hello.py", hello, &[])]),
        (&["run", "./a/../hello.py"], vec![cell("./a/../hello.py", hello, &[])]),
        (&["run", "hello.py", "--", "-x", "--json", "--"], vec![cell("hello.py", hello, &["-x", "--json", "--"])]),
        (&["run", "hello.py", "--"], vec![cell("hello.py", hello, &[])]),
        (&["run", "-c", "x = 1", "-cx"], vec![cell("<cell 1>", "x = 1", &[]), cell("<cell 2>", "x", &[])]),
        (&["run", "-c", "-1", "--", "a"], vec![cell("<cell 1>", "-1", &["a"])]),
        (&["run", "-c", ""], vec![cell("<cell 1>", "", &[])]),
        (&["run", "mark.py"], vec![cell("mark.py", "1", &[])]),
    ];
    for (line, cells) in cases {
        let (run, context) = place.run(line);
        assert_eq!((run.cells, run.language, context.json), (cells, Language::Python, false), "{line:?}");
    }
    assert_eq!(place.run(&["run", "full.py"]).0.cells[0].code.len(), MAX_CODE);
}

#[test]
fn reads_json_and_language_from_flag_or_environment() {
    for (env, args, expected) in [
        (None, &["explain"][..], false),
        (None, &["explain", "--json"], true),
        (Some("true"), &["explain"], true),
        (Some("1"), &["explain"], true),
        (Some("0"), &["explain"], false),
        (Some("false"), &["explain", "--json"], true),
        (Some(""), &["explain"], false),
    ] {
        let place = CliFixture::new().env("COVE_JSON", env.unwrap_or(""));
        match place.parse(args) {
            Ok(CliAction::Explain(context)) => assert_eq!(context.json, expected, "{env:?} {args:?}"),
            other => panic!("{other:?}"),
        }
    }
    let place = CliFixture::new().env("COVE_LANGUAGE", "ruby");
    assert_eq!(place.run(&["run", "-l", "Python", "hello.py"]).0.language, Language::Python);
    // Node runs TypeScript, and knows it by the name of the cell.
    let place = CliFixture::new().env("COVE_LANGUAGE", "TypeScript").file("x.ts", "1").file("y", "1");
    for (args, name) in [
        (&["run", "-c", "1"][..], "<cell 1.ts>"),
        (&["run", "x.ts"], "x.ts"),
        (&["run", "-l", "ts", "y"], "y.ts"),
        (&["run", "-l", "node", "-c", "1"], "<cell 1>"),
    ] {
        let (run, _) = place.run(args);
        assert_eq!((run.language, run.cells[0].name.as_str()), (Language::Node, name), "{args:?}");
    }
    assert_eq!(place.run(&["run"]).0.stdin, Some(("<stdin.ts>".to_owned(), Vec::new())));
}

#[test]
fn no_command_serves_or_prints_help() {
    let mut place = CliFixture::new();
    assert!(matches!(place.parse(&[]), Ok(CliAction::Serve(_))));
    place.process_env.stdin_is_terminal = true;
    match place.parse(&[]) {
        Ok(CliAction::Print(text)) => assert!(text.to_string().contains("Usage: cove [COMMAND]"), "{text}"),
        other => panic!("{other:?}"),
    }
    let version = CliAction::Print(format!("cove {}\n", crate::cli::help::version()).into());
    assert_eq!(place.parse(&["--version"]).unwrap(), version);
    assert!(crate::cli::help::version().starts_with(env!("CARGO_PKG_VERSION")));
}

#[test]
fn usage_messages() {
    let mut terminal = CliFixture::new();
    terminal.process_env.stdin_is_terminal = true;
    assert_snapshot!(terminal.refusal(&["run"]), @"
    could not find code to run
    hint: name a file as in `cove run hello.py`, or pass code as in `cove run -c 'print(1)'`
    ");
    assert_snapshot!(refusal_of(&["run", "hello.py", "-c", "1"]), @"
    could not choose between `hello.py` and `-c`
    hint: name a file, or pass code with `-c`, not both; put `--` before arguments of the code
    ");
    assert_snapshot!(refusal_of(&["run", "-", "-c", "1"]), @"
    could not choose between `-` and `-c`
    hint: name a file, or pass code with `-c`, not both; put `--` before arguments of the code
    ");
    assert_snapshot!(refusal_of(&["run", "missing.py"]), @"
    could not read code from `missing.py`
    caused by: No such file or directory (os error 2)
    hint: name a file that can be read, or pass code with `-c`
    ");
    assert_snapshot!(refusal_of(&["run", "a"]), @"
    could not read code from `a`
    caused by: Is a directory (os error 21)
    hint: name a file that can be read, or pass code with `-c`
    ");
    assert_snapshot!(refusal_of(&["run", "hello.py", "--language", "ruby"]), @"
    could not read `--language ruby`
    caused by: `ruby` is not supported here
    hint: write `python`, `node`, `bash` or `sh`
    ");
    assert_snapshot!(refusal_of(&["run", "-c", "1", "--memory", "-5"]), @"
    could not read `--memory -5`
    caused by: `-5` is not a size
    hint: write a number with a unit, such as `512m` or `2g` (at least `16m`)
    ");
    assert_snapshot!(refusal_of(&["explain", "--memory="]), @"
    could not read `--memory ''`
    caused by: it is empty
    hint: write a number with a unit, such as `512m` or `2g` (at least `16m`)
    ");
    assert_snapshot!(refusal_of(&["explain", "--config", "none.toml"]), @"
    could not read the configuration file `[DIR]/none.toml`
    caused by: it does not exist
    hint: name a file that exists with `--config` or `COVE_CONFIG`, or leave both out
    ");
    assert_snapshot!(refusal_of(&["run", "--memry", "1g"]), @"
    error: unexpected argument '--memry' found

      tip: a similar argument exists: '--memory'
      tip: to pass '--memry' as a value, use '-- --memry'

    Usage: cove run --memory <SIZE> [FILE] [ARG]...

    For more information, try '--help'.
    ");
    assert_eq!(CliFixture::new().run(&["run", "hello.py", "a", "b"]).0.cells[0].args, ["a", "b"]);
    assert_snapshot!(refusal_of(&["config"]), @"
    error: 'cove config' requires a subcommand but one was not provided
      [subcommands: show, path, init, help]

    Usage: cove config <COMMAND>

    For more information, try '--help'.
    ");
    let place = CliFixture::new()
        .env("COVE_JSON", "yes")
        .file("large.py", "#".repeat(MAX_CODE + 1))
        .file("latin.py", b"x = '\xe9'")
        .file("nul.py", "x\0");
    assert_snapshot!(place.refusal(&["run", "hello.py"]), @"
    could not read `COVE_JSON=yes`
    caused by: `yes` is neither true nor false
    hint: write `true` or `false`
    ");
    let place = place.env("COVE_JSON", "").env("COVE_LANGUAGE", "cobol");
    assert_snapshot!(place.refusal(&["run", "hello.py"]), @"
    could not read `COVE_LANGUAGE=cobol`
    caused by: `cobol` is not supported here
    hint: write `python`, `node`, `bash` or `sh`
    ");
    let place = place.env("COVE_LANGUAGE", "");
    assert_snapshot!(place.refusal(&["run", "large.py"]), @"
    could not read code from `large.py`
    caused by: it has more than 1048576 bytes
    hint: code may have at most 1 MiB; keep data in a file of its own and show it with `--mount`
    ");
    assert_snapshot!(place.refusal(&["run", "latin.py"]), @"
    could not read code from `latin.py`
    caused by: the byte at offset 5 is not UTF-8
    hint: code is UTF-8 text without NUL bytes
    ");
    assert_snapshot!(place.refusal(&["run", "nul.py"]), @"
    could not read code from `nul.py`
    caused by: there is a NUL byte at offset 1
    hint: code is UTF-8 text without NUL bytes
    ");
    let long = "x".repeat(MAX_META);
    assert_snapshot!(place.refusal(&["run", "hello.py", "--", &long]), @"
    could not pass the arguments to the code
    caused by: they have 262148 bytes as JSON
    hint: at most 131072 are allowed; pass data on standard input, or show a file with `--mount`
    ");
}

#[test]
fn rejects_arguments_that_are_not_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let line = ["cove", "explain", "--memory"].map(OsString::from).into_iter();
    let error = parse_command_line(line.chain([OsString::from_vec(b"1\xff".to_vec())]), &CliFixture::new().process_env)
        .unwrap_err();
    assert_snapshot!(error.report(), @"
    could not read `1�`
    caused by: it is not valid UTF-8
    hint: write it as UTF-8 text
    ");
}

#[test]
fn config_show_prints_every_setting() {
    let place = CliFixture::new()
        .file("mine.toml", "\npids-limit = 64\n")
        .env("COVE_MEMORY", "1GiB")
        .env("COVE_CONFIG", "mine.toml");
    let config = place.config(&["config", "show", "--cpus=0.5", "--mount=/usr:/data", "--mount=/usr:/more:rw"]);
    let shown = |text: String| text.replace(&*place.process_env.cwd.to_string_lossy(), "[DIR]");
    let mut context = CommandContext { config, env: place.process_env.clone(), json: false };
    let render = |context: &CommandContext| config_show::render(context, PrintStyle::default()).unwrap();
    assert_snapshot!(shown(render(&context)), @"
    backend            auto                                      default
    network            none                                      default
    allow-net          none                                      default
    no-net             false                                     default
    runtime            chosen by Docker or Podman                default
    image              `ubuntu`, with every language             default
    image-dir          built-in images                           default
    pull               false                                     default
    allow-compose      none                                      default
    memory             1g                                        environment COVE_MEMORY
    cpus               0.5                                       flag --cpus
    pids-limit         64                                        file [DIR]/mine.toml line 2
    user               65534:65534                               default
    timeout            30s                                       default
    max-timeout        120s                                      default
    max-output         6000 tokens                               default
    workspace-size     256m                                      default
    tmp-size           64m                                       default
    rootfs             none                                      default
    python             first `python3` on `PATH`                 default
    packages           none                                      default
    node-packages      none                                      default
    mount              /usr:/data                                flag --mount
    mount              /usr:/more:rw                             flag --mount
    workspace          none                                      default
    allow-mount        none                                      default
    allow-call         all                                       default
    deny-call          none                                      default
    start-timeout      120s                                      default
    search             hybrid                                    default
    tool-changes       block                                     default
    quarantine         false                                     default
    state-dir          `~/.local/state/cove`                     default
    tools              code                                      default
    output             compact                                   default
    idle-timeout       1800s                                     default
    max-sessions       64                                        default
    warm               auto                                      default
    preload            none                                      default
    log-level          info                                      default
    log-format         text                                      default
    http               standard input and output                 default
    auth               token                                     default
    token-file         `tokens` in the state directory           default
    allow-host         loopback and the address itself           default
    allow-origin       pages served by this machine              default
    max-connections    256                                       default
    rate-limit         100                                       default
    input-timeout      600s                                      default
    secrets-helper     the file `secrets.json`                   default
    registry           https://registry.modelcontextprotocol.io  default
    allow-requests     false                                     default
    isolate-upstreams  false                                     default
    ");
    let json: serde_json::Value = {
        context.json = true;
        serde_json::from_str(&render(&context)).unwrap()
    };
    let row = |key: &str| {
        let row = json.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap();
        shown(format!("{} {} {}", row["key"], row["value"], row["origin"]))
    };
    let keys = ["memory", "cpus", "pids-limit", "timeout", "python", "mount"];
    assert_snapshot!(keys.map(row).join("\n"), @r#"
    "memory" "1g" "environment COVE_MEMORY"
    "cpus" "0.5" "flag --cpus"
    "pids-limit" "64" "file [DIR]/mine.toml line 2"
    "timeout" "30s" "default"
    "python" null "default"
    "mount" ["/usr:/data","/usr:/more:rw"] "flag --mount"
    "#);
}
