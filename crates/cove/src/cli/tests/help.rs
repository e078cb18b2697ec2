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
    let (sandbox, calls, server) = (Part::Sandbox, Part::Calls, Part::Server);
    let all = [&command, find("serve"), find("config"), show].map(|one| (one, vec![sandbox, calls, server]));
    let calling = ["run", "repl"].map(|name| (find(name), vec![sandbox, calls]));
    let describing = ["explain", "doctor"].map(|name| (find(name), vec![sandbox]));
    for (command, parts) in all.into_iter().chain(calling).chain(describing) {
        let headings = ["Settings", "Settings of calls to MCP servers", "Settings of the server"].map(Some);
        let flags = command.get_arguments().filter(|arg| headings.contains(&arg.get_help_heading()));
        let flags: Vec<(String, String)> = flags
            .map(|arg| (format!("--{}", arg.get_long().unwrap()), arg.get_help().unwrap().to_string()))
            .filter(|(flag, _)| flag != "--config")
            .collect();
        let table: Vec<(String, String)> = SETTINGS
            .iter()
            .filter(|setting| parts.contains(&setting.part))
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
      serve        Serve MCP: on standard input and output, or over HTTP
      run          Run code in the sandbox that agents get
      repl         Talk to a session by hand, or from a pipe
      explain      Show the exact plan of the sandbox, without starting it
      doctor       Show what works here and what does not, each proven by trying it
      tools        Find, show and call the tools of MCP servers
      audit        Show the calls that code made to MCP servers
      install      Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`
      uninstall    Take Cove out of a client's configuration again
      servers      Show and change the upstream servers that code can call
      images       Show, build and export the images that sessions can be started in
      config       Show the configuration
      completions  Print the completions of a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --export-images <DIR>  Write the images that are built in to a directory, and end
      -h, --help                 Print help
      -V, --version              Print version

    Settings:
          --backend <BACKEND>           What makes the sandbox: `auto`, `jail`, `docker` or `podman`
                                        [env: COVE_BACKEND] [default: auto]
          --network <NETWORK>           Network of the sandbox: `none` is its own loopback alone, else
                                        one of Docker or Podman by name
                                        [env: COVE_NETWORK] [default: none]
          --runtime <NAME>              Runtime that Docker or Podman runs containers with, such as
                                        `runsc`
                                        [env: COVE_RUNTIME] [default: that of Docker or Podman]
          --image <NAME>                Image of sessions for which nobody names one
                                        [env: COVE_IMAGE] [default: `ubuntu`, with every language]
          --image-dir <DIR>             Directory with a folder for each image, in place of those built
                                        in
                                        [env: COVE_IMAGE_DIR] [default: images built in]
          --pull <BOOLEAN>              Whether images that are not there may be fetched from their
                                        registry
                                        [env: COVE_PULL] [default: false]
          --allow-compose <RISK>        What Compose files may have: `privileged`, `host-network`,
                                        `ports`, `capabilities`, `devices`; repeatable
                                        [env: COVE_ALLOW_COMPOSE] [default: none]
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
          --allow-mount <DIR[:rw]>      Directory that agents and Compose files may mount from,
                                        read-only unless `:rw`; repeatable
                                        [env: COVE_ALLOW_MOUNT] [default: none]
          --config <FILE>               File with settings
                                        [env: COVE_CONFIG] [default: ~/.config/cove/cove.toml]

    Settings of calls to MCP servers:
          --allow-call <SERVER.TOOL>  Tools of MCP servers that code may call, `*` for any; repeatable
                                      [env: COVE_ALLOW_CALL] [default: all]
          --deny-call <SERVER.TOOL>   Tools of MCP servers that code may not call, whatever is allowed;
                                      repeatable
                                      [env: COVE_DENY_CALL] [default: none]
          --state-dir <DIR>           Directory for what lasts from one start to the next
                                      [env: COVE_STATE_DIR] [default: `~/.local/state/cove`]

    Settings of the server:
          --tools <TOOLSETS>          Tools that agents see: `code`, `python`, `sessions`, `files`,
                                      comma separated, or `all`
                                      [env: COVE_TOOLS] [default: code]
          --output <FORMAT>           How results are written for the model: `compact`, `toon` or `json`
                                      [env: COVE_OUTPUT] [default: compact]
          --idle-timeout <DURATION>   Time after which a session that nobody uses ends
                                      [env: COVE_IDLE_TIMEOUT] [default: 30m]
          --max-sessions <NUMBER>     Sessions that may be open at once
                                      [env: COVE_MAX_SESSIONS] [default: 64]
          --log-level <LEVEL>         What is logged on standard error: `error`, `warn`, `info`, `debug`
                                      or `off`
                                      [env: COVE_LOG_LEVEL] [default: info]
          --log-format <FORMAT>       How logs are written: `text` or `json`, one record a line
                                      [env: COVE_LOG_FORMAT] [default: text]
          --http <ADDR>               Address to serve HTTP on, such as `127.0.0.1:8765` or `:8765`
                                      [env: COVE_HTTP] [default: standard input and output]
          --auth <KIND>               Who may ask over HTTP: who has a `token`, or anyone here with
                                      `none`
                                      [env: COVE_AUTH] [default: token]
          --token-file <FILE>         File with tokens, one `TOKEN` or `NAME TOKEN` a line
                                      [env: COVE_TOKEN_FILE] [default: `tokens` in the state directory]
          --allow-host <HOST[:PORT]>  Further name of this server over HTTP; repeatable
                                      [env: COVE_ALLOW_HOST] [default: loopback and the address itself]
          --allow-origin <ORIGIN>     Origin of pages that may ask, as `https://a.example`; repeatable
                                      [env: COVE_ALLOW_ORIGIN] [default: pages of this machine]
          --max-connections <NUMBER>  HTTP connections that may be open at once
                                      [env: COVE_MAX_CONNECTIONS] [default: 256]
          --rate-limit <NUMBER>       HTTP requests a second for each token; twice that in a burst
                                      [env: COVE_RATE_LIMIT] [default: 100]
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
    assert_snapshot!(help(&["install"]), @"
    Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`

    Usage: cove install [OPTIONS] [CLIENT] [-- [SERVER-ARGS]...]

    Arguments:
      [CLIENT]          Client to register with; without one, the known clients are listed
      [SERVER-ARGS]...  Arguments that the client starts `cove serve` with

    Options:
          --list               List the known clients, which seem to be here, and where their files are
          --name <NAME>        Name of the entry: letters, digits, `_` and `-` [default: cove]
          --scope <SCOPE>      Whom it is for: you everywhere, everyone in this project, or (Claude
                               Code) you in this project [default: user] [possible values: user,
                               project, local]
          --dry-run            Show the change as a diff; nothing is written
          --force              Also touch an entry of that name which does not start `cove`
          --no-client-command  Edit the file even if the client has a command for it
          --print              Print the entry, ready to paste; nothing is written
          --json               Print the list of clients as an array of objects [env: COVE_JSON]
      -h, --help               Print help

    The client's own command does it where it has one (`claude mcp add-json`, `codex mcp add`, `code
    --add-mcp`, `gemini mcp add`). Otherwise the file is edited in place: comments, order and layout
    stay, and what was there is kept beside it as FILE.cove-backup. Running it twice changes nothing.
    ");
    assert_snapshot!(help(&["uninstall"]), @"
    Take Cove out of a client's configuration again

    Usage: cove uninstall [OPTIONS] <CLIENT>

    Arguments:
      <CLIENT>  Client to take it out of

    Options:
          --name <NAME>        Name of the entry: letters, digits, `_` and `-` [default: cove]
          --scope <SCOPE>      Whom it is for: you everywhere, everyone in this project, or (Claude
                               Code) you in this project [default: user] [possible values: user,
                               project, local]
          --dry-run            Show the change as a diff; nothing is written
          --force              Also touch an entry of that name which does not start `cove`
          --no-client-command  Edit the file even if the client has a command for it
      -h, --help               Print help
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
        // Those of the server come last, and not with every command.
        let (_, all) = all.split_once("Settings:").unwrap();
        assert!(all.starts_with(settings.trim_end()), "{path:?}");
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
          --json             Print the plan as JSON [env: COVE_JSON]
          --seccomp-profile  Print the system call profile for a container around Cove instead
      -h, --help             Print help
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
