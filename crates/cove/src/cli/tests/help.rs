//! Help and completions, which come from the same definition as parsing.

use super::*;

/// At a fixed width, whatever terminal the tests run on.
fn help(path: &[&str]) -> String {
    let mut command = command().term_width(100);
    let line = ["cove"].iter().chain(path).chain(&["--help"]);
    let asked = command.try_get_matches_from_mut(line).unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::DisplayHelp);
    asked.to_string()
}

#[test]
fn definition_is_sound() {
    command().debug_assert();
}

/// Every command with settings has exactly those of the table, and their help says all that the table does.
#[test]
fn flags_agree_with_the_table() {
    let command = command();
    let find = |name| command.find_subcommand(name).unwrap();
    let show = find("config").find_subcommand("show").unwrap();
    for command in
        [&command, find("run"), find("repl"), find("explain"), find("doctor"), find("config"), show]
    {
        let flags = command.get_arguments().filter(|arg| arg.get_help_heading() == Some("Settings"));
        let flags: Vec<(String, String)> = flags
            .map(|arg| (format!("--{}", arg.get_long().unwrap()), arg.get_help().unwrap().to_string()))
            .filter(|(flag, _)| flag != "--config")
            .collect();
        let table: Vec<(String, String)> = SETTINGS
            .iter()
            .map(|setting| {
                let (env, default) = (setting.env, setting.fallback.text());
                (setting.flag.to_owned(), format!("{}\n[env: {env}] [default: {default}]", setting.help))
            })
            .collect();
        assert_eq!(flags, table, "{}", command.get_name());
    }
}

#[test]
fn help_texts() {
    assert_snapshot!(help(&[]), @"
    Run code for AI agents in an isolated sandbox

    Usage: cove [OPTIONS] [COMMAND]

    Commands:
      run          Run code in the sandbox that agents get
      repl         Talk to a session by hand, or from a pipe
      explain      Show the exact plan of the sandbox, without starting it
      doctor       Show what works here and what does not, each proven by trying it
      config       Show the configuration
      completions  Print the completions of a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Settings:
          --backend <BACKEND>           What makes the sandbox: `auto` or `jail`
                                        [env: COVE_BACKEND] [default: auto]
          --network <NETWORK>           Network of the sandbox; `none` is its own loopback alone
                                        [env: COVE_NETWORK] [default: none]
          --memory <SIZE>               Memory of the whole sandbox
                                        [env: COVE_MEMORY] [default: 512m]
          --cpus <NUMBER>               Processors that the sandbox may use; may be a fraction
                                        [env: COVE_CPUS] [default: 1]
          --pids-limit <NUMBER>         Processes and threads in the sandbox
                                        [env: COVE_PIDS_LIMIT] [default: 256]
          --user <UID:GID>              User and group that the code runs as, never root
                                        [env: COVE_USER] [default: 65534:65534]
          --timeout <DURATION>          Time that one cell may take
                                        [env: COVE_TIMEOUT] [default: 30s]
          --max-timeout <DURATION>      Most time that a cell may be given
                                        [env: COVE_MAX_TIMEOUT] [default: 120s]
          --max-output <NUMBER>         Characters of output that a result keeps
                                        [env: COVE_MAX_OUTPUT] [default: 20000]
          --workspace-size <SIZE>       Room in `/workspace`
                                        [env: COVE_WORKSPACE_SIZE] [default: 256m]
          --tmp-size <SIZE>             Room in `/tmp`
                                        [env: COVE_TMP_SIZE] [default: 64m]
          --rootfs <DIR>                Directory to use as root in place of this machine's `/usr`
                                        [env: COVE_ROOTFS] [default: none]
          --python <PATH>               Python that runs the code; with `--rootfs` inside that tree
                                        [env: COVE_PYTHON] [default: first `python3` on `PATH`]
          --mount <SOURCE:TARGET[:rw]>  What to show inside, read-only unless `:rw`; repeatable
                                        [env: COVE_MOUNT] [default: none]
          --config <FILE>               File with settings
                                        [env: COVE_CONFIG] [default: ~/.config/cove/cove.toml]
    ");
    assert_snapshot!(help(&["config"]), @"
    Show the configuration

    Usage: cove config <COMMAND>

    Commands:
      show  Show every setting with its value and where that comes from
      help  Print this message or the help of the given subcommand(s)

    Options:
      -h, --help  Print help
    ");
    assert_snapshot!(help(&["completions"]), @"
    Print the completions of a shell

    Usage: cove completions <SHELL>

    Arguments:
      <SHELL>  Shell to print them for [possible values: bash, elvish, fish, powershell, zsh]

    Options:
      -h, --help  Print help
    ");
    // The settings are the same everywhere.
    let all = help(&[]);
    let own = |path: &[&str]| {
        let text = help(path);
        let (own, settings) = text.split_once("Settings:").unwrap();
        assert_eq!(settings, all.split_once("Settings:").unwrap().1, "{path:?}");
        own.to_owned()
    };
    assert_snapshot!(own(&["run"]), @"
    Run code in the sandbox that agents get

    Usage: cove run [OPTIONS] [FILE] [-- [ARGS]...]

    Arguments:
      [FILE]     File with the code of one cell
      [ARGS]...  Arguments that the code sees

    Options:
      -c <CODE>                  Code of one cell; several share one session
      -l, --language <LANGUAGE>  Language of the code
                                 [env: COVE_LANGUAGE] [default: by FILE's extension, else python]
          --json                 Print one JSON object for each cell [env: COVE_JSON]
      -h, --help                 Print help
    ");
    assert_snapshot!(own(&["repl"]), @"
    Talk to a session by hand, or from a pipe

    Usage: cove repl [OPTIONS]

    Options:
      -l, --language <LANGUAGE>  Language of the first cells
                                 [env: COVE_LANGUAGE] [default: python]
      -h, --help                 Print help
    ");
    assert_snapshot!(own(&["explain"]), @"
    Show the exact plan of the sandbox, without starting it

    Usage: cove explain [OPTIONS]

    Options:
          --json  Print the plan as JSON [env: COVE_JSON]
      -h, --help  Print help
    ");
    assert_snapshot!(own(&["doctor"]), @"
    Show what works here and what does not, each proven by trying it

    Usage: cove doctor [OPTIONS]

    Options:
          --json  Print an array of objects [env: COVE_JSON]
      -h, --help  Print help
    ");
    assert_snapshot!(own(&["config", "show"]), @"
    Show every setting with its value and where that comes from

    Usage: cove config show [OPTIONS]

    Options:
          --json  Print an array of objects [env: COVE_JSON]
      -h, --help  Print help
    ");
}

#[test]
fn completions_know_every_flag() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
        let action = Place::new().parse(&["completions", &shell.to_string()]).unwrap();
        assert_eq!(action, Action::Completions { shell });
        let script = completions::text(shell);
        for setting in SETTINGS {
            assert!(script.contains(setting.key), "{shell}: {}", setting.key);
        }
    }
}
