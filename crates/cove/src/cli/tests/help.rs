//! Help and completions, which come from the same definition as parsing.

use super::*;

/// At a fixed width, whatever terminal the tests run on.
fn help_text(path: &[&str]) -> String {
    let mut command = command().term_width(100);
    let line = ["cove"].iter().chain(path).chain(&["--help"]);
    let asked = command.try_get_matches_from_mut(line).unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::DisplayHelp);
    asked.to_string()
}

#[test]
fn clap_definition_is_valid() {
    command().debug_assert();
}

/// Every command with settings has exactly those of the table, and their help says all that the table does.
#[test]
fn flags_match_the_settings_table() {
    let command = command();
    let find = |name| command.find_subcommand(name).unwrap();
    let show = find("config").find_subcommand("show").unwrap();
    let (sandbox, calls, server) = (SettingGroup::Sandbox, SettingGroup::Calls, SettingGroup::Server);
    let all = [&command, find("serve"), find("config"), show].map(|one| (one, vec![sandbox, calls, server]));
    let calling = ["run", "repl"].map(|name| (find(name), vec![sandbox, calls]));
    let describing = ["explain", "doctor"].map(|name| (find(name), vec![sandbox]));
    for (command, parts) in all.into_iter().chain(calling).chain(describing) {
        let headings = ["Settings", "Settings for calls to MCP servers", "Server settings"].map(Some);
        let flags = command.get_arguments().filter(|arg| headings.contains(&arg.get_help_heading()));
        let flags: Vec<(String, String)> = flags
            .map(|arg| (format!("--{}", arg.get_long().unwrap()), arg.get_help().unwrap().to_string()))
            .filter(|(flag, _)| flag != "--config")
            .collect();
        let table: Vec<(String, String)> = SETTINGS
            .iter()
            .filter(|setting| parts.contains(&setting.group))
            .map(|setting| {
                let (env, default) = (setting.env, setting.kind.default_text());
                (setting.flag.to_owned(), format!("{}\n[env: {env}] [default: {default}]", setting.help))
            })
            .collect();
        assert_eq!(flags, table, "{}", command.get_name());
    }
}

#[test]
fn help_texts() {
    assert_snapshot!(help_text(&[]), @"
    Run code for AI agents in an isolated sandbox

    Usage: cove [OPTIONS] [COMMAND]

    Commands:
      serve        Serve MCP on standard input and output, or over HTTP
      run          Run code in the sandbox that agents get
      repl         Start an interactive session, or read cells from a pipe
      explain      Show the exact plan of the sandbox, without starting it
      doctor       Test what works on this machine and what does not
      tools        Find, show and call the tools of MCP servers
      audit        Show the calls that code made to MCP servers
      install      Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`
      uninstall    Remove Cove from a client's configuration
      servers      Show and change the upstream servers that code can call
      packages     Install python and node packages for every session
      images       Show, build and export the images that sessions can be started in
      config       Show the configuration
      completions  Print shell completions
      help         Print this message or the help of the given subcommand(s)

    Options:
          --export-images <DIR>  Export the built-in images to a directory and exit
      -h, --help                 Print help
      -V, --version              Print version

    Settings:
          --backend <BACKEND>           Backend that creates sandboxes: `auto`, `jail`, `docker` or
                                        `podman`
                                        [env: COVE_BACKEND] [default: auto]
          --network <NETWORK>           Network of the sandbox: `none` (loopback only), or the name of a
                                        Docker or Podman network
                                        [env: COVE_NETWORK] [default: none]
          --runtime <NAME>              Container runtime for Docker or Podman, such as `runsc`
                                        [env: COVE_RUNTIME] [default: chosen by Docker or Podman]
          --image <NAME>                Default image
                                        [env: COVE_IMAGE] [default: `ubuntu`, with every language]
          --image-dir <DIR>             Directory with one folder for each image, used instead of the
                                        built-in images
                                        [env: COVE_IMAGE_DIR] [default: built-in images]
          --pull <BOOLEAN>              Whether Cove may fetch missing images from their registry
                                        [env: COVE_PULL] [default: false]
          --allow-compose <RISK>        What Compose files may use: `privileged`, `host-network`,
                                        `ports`, `capabilities`, `devices`; repeatable
                                        [env: COVE_ALLOW_COMPOSE] [default: none]
          --memory <SIZE>               Memory limit of the whole sandbox
                                        [env: COVE_MEMORY] [default: 512m]
          --cpus <NUMBER>               Number of CPUs that the sandbox may use; may be a fraction
                                        [env: COVE_CPUS] [default: 1]
          --pids-limit <NUMBER>         Maximum number of processes and threads in the sandbox
                                        [env: COVE_PIDS_LIMIT] [default: 256]
          --user <UID:GID>              User and group that the code runs as; never root
                                        [env: COVE_USER] [default: 65534:65534]
          --timeout <DURATION>          Time limit of a cell
                                        [env: COVE_TIMEOUT] [default: 30s]
          --max-timeout <DURATION>      Longest time limit that a cell may ask for
                                        [env: COVE_MAX_TIMEOUT] [default: 120s]
          --max-output <NUMBER>         Most output in a result, in characters or `tokens`
                                        [env: COVE_MAX_OUTPUT] [default: 6000 tokens]
          --workspace-size <SIZE>       Size of `/workspace`
                                        [env: COVE_WORKSPACE_SIZE] [default: 256m]
          --tmp-size <SIZE>             Size of `/tmp`
                                        [env: COVE_TMP_SIZE] [default: 64m]
          --rootfs <DIR>                Directory to use as the root file system instead of this
                                        machine's `/usr`
                                        [env: COVE_ROOTFS] [default: none]
          --python <PATH>               Python that runs the code; with `--rootfs`, its path inside that
                                        directory
                                        [env: COVE_PYTHON] [default: first `python3` on `PATH`]
          --packages <NAME>             Python package that sessions have once `cove packages sync` has
                                        installed it; repeatable
                                        [env: COVE_PACKAGES] [default: none]
          --node-packages <NAME>        The same for a package of npm; repeatable
                                        [env: COVE_NODE_PACKAGES] [default: none]
          --mount <SOURCE:TARGET[:rw]>  File or directory to mount in the sandbox, read-only unless
                                        `:rw`; repeatable
                                        [env: COVE_MOUNT] [default: none]
          --workspace <DIR>             Directory that code may write to, as `/workspace/shared`, to
                                        give files to you
                                        [env: COVE_WORKSPACE] [default: none]
          --allow-mount <DIR[:rw]>      Directory that agents and Compose files may mount from,
                                        read-only unless `:rw`; repeatable
                                        [env: COVE_ALLOW_MOUNT] [default: none]
          --config <FILE>               File with settings
                                        [env: COVE_CONFIG] [default: ~/.config/cove/cove.toml]

    Settings for calls to MCP servers:
          --allow-call <SERVER.TOOL>  Tools of MCP servers that code may call, with `*` as wildcard;
                                      repeatable
                                      [env: COVE_ALLOW_CALL] [default: all]
          --deny-call <SERVER.TOOL>   Tools of MCP servers that code may not call, even if
                                      `--allow-call` matches; repeatable
                                      [env: COVE_DENY_CALL] [default: none]
          --start-timeout <DURATION>  Time that an MCP server may take to start, at most `10m`; it does
                                      not count against the cell
                                      [env: COVE_START_TIMEOUT] [default: 120s]
          --search <MODE>             How searches rank tools of MCP servers: `hybrid` (by words and
                                      meaning) or `bm25` (by words alone)
                                      [env: COVE_SEARCH] [default: hybrid]
          --state-dir <DIR>           Directory for data that Cove keeps between runs
                                      [env: COVE_STATE_DIR] [default: `~/.local/state/cove`]

    Server settings:
          --tools <TOOLSETS>          Tools that agents see: `code`, `python`, `sessions`, `files`,
                                      separated by commas, or `all`
                                      [env: COVE_TOOLS] [default: code]
          --output <FORMAT>           Format of results for the model: `compact`, `toon` or `json`
                                      [env: COVE_OUTPUT] [default: compact]
          --idle-timeout <DURATION>   Time after which an unused session ends
                                      [env: COVE_IDLE_TIMEOUT] [default: 30m]
          --max-sessions <NUMBER>     Maximum number of open sessions
                                      [env: COVE_MAX_SESSIONS] [default: 64]
          --log-level <LEVEL>         Level of the log on standard error: `error`, `warn`, `info`,
                                      `debug` or `off`
                                      [env: COVE_LOG_LEVEL] [default: info]
          --log-format <FORMAT>       Format of the log: `text`, or `json` with one record per line
                                      [env: COVE_LOG_FORMAT] [default: text]
          --http <ADDR>               Address to serve HTTP on, such as `127.0.0.1:8765` or `:8765`
                                      [env: COVE_HTTP] [default: standard input and output]
          --auth <KIND>               HTTP authentication: `token`, or `none` (anyone on this machine)
                                      [env: COVE_AUTH] [default: token]
          --token-file <FILE>         File with tokens: one `TOKEN` or `NAME TOKEN` per line
                                      [env: COVE_TOKEN_FILE] [default: `tokens` in the state directory]
          --allow-host <HOST[:PORT]>  Further host name that HTTP clients may use for this server;
                                      repeatable
                                      [env: COVE_ALLOW_HOST] [default: loopback and the address itself]
          --allow-origin <ORIGIN>     Origin of web pages that may send requests, such as
                                      `https://a.example`; repeatable
                                      [env: COVE_ALLOW_ORIGIN] [default: pages served by this machine]
          --max-connections <NUMBER>  Maximum number of open HTTP connections
                                      [env: COVE_MAX_CONNECTIONS] [default: 256]
          --rate-limit <NUMBER>       HTTP requests per second for each token; a burst may have twice as
                                      many
                                      [env: COVE_RATE_LIMIT] [default: 100]
    ");
    assert_snapshot!(help_text(&["config"]), @"
    Show the configuration

    Usage: cove config <COMMAND>

    Commands:
      show  Show every setting with its value and where that comes from
      help  Print this message or the help of the given subcommand(s)

    Options:
      -h, --help  Print help
    ");
    assert_snapshot!(help_text(&["install"]), @"
    Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`

    Usage: cove install [OPTIONS] [CLIENT] [-- [SERVER-ARGS]...]

    Arguments:
      [CLIENT]          Client to register with; without one, lists the known clients
      [SERVER-ARGS]...  Arguments that the client starts `cove serve` with

    Options:
          --list               List the known clients, which of them seem to be installed, and where
                               their files are
          --name <NAME>        Name of the entry: letters, digits, `_` and `-` [default: cove]
          --scope <SCOPE>      Who gets it: you everywhere, everyone in this project, or (Claude Code)
                               you in this project [default: user] [possible values: user, project,
                               local]
          --dry-run            Show the change as a diff and write nothing
          --force              Replace or remove an entry of that name even if it does not start `cove`
          --no-client-command  Edit the file even if the client has a command for this
          --print              Print the entry, ready to paste, and write nothing
          --json               Print the list of clients as an array of objects [env: COVE_JSON]
      -h, --help               Print help

    Uses the client's own command if there is one (`claude mcp add-json`, `codex mcp add`, `code
    --add-mcp`, `gemini mcp add`). Otherwise edits the client's file in place: comments, order and
    layout stay, and the old content is kept as FILE.cove-backup. Running it twice changes nothing.
    ");
    assert_snapshot!(help_text(&["uninstall"]), @"
    Remove Cove from a client's configuration

    Usage: cove uninstall [OPTIONS] <CLIENT>

    Arguments:
      <CLIENT>  Client to remove it from

    Options:
          --name <NAME>        Name of the entry: letters, digits, `_` and `-` [default: cove]
          --scope <SCOPE>      Who gets it: you everywhere, everyone in this project, or (Claude Code)
                               you in this project [default: user] [possible values: user, project,
                               local]
          --dry-run            Show the change as a diff and write nothing
          --force              Replace or remove an entry of that name even if it does not start `cove`
          --no-client-command  Edit the file even if the client has a command for this
      -h, --help               Print help
    ");
    assert_snapshot!(help_text(&["completions"]), @"
    Print shell completions

    Usage: cove completions <SHELL>

    Arguments:
      <SHELL>  Shell to print completions for [possible values: bash, elvish, fish, powershell, zsh]

    Options:
      -h, --help  Print help
    ");
    // The settings are the same everywhere.
    let all = help_text(&[]);
    let own = |path: &[&str]| {
        let text = help_text(path);
        let (own, settings) = text.split_once("Settings:").unwrap();
        // Those of the server come last, and not with every command.
        let (_, all) = all.split_once("Settings:").unwrap();
        assert!(all.starts_with(settings.trim_end()), "{path:?}");
        own.to_owned()
    };
    assert_snapshot!(own(&["run"]), @"
    Run code in the sandbox that agents get

    Usage: cove run [OPTIONS] [FILE] [ARG]...

    Arguments:
      [FILE]    File with the code of one cell; `-` or nothing reads standard input
      [ARG]...  Arguments that the code sees; put `--` before those that begin with a dash

    Options:
      -c <CODE>                  Code of one cell; several share one session
      -l, --language <LANGUAGE>  Language of the code
                                 [env: COVE_LANGUAGE] [default: by FILE's extension, else python]
          --no-folder            Do not show the code the folder of FILE
          --out <DIR>            Keep files that the code writes to its working directory in this
                                 directory
          --json                 Print one JSON object for each cell [env: COVE_JSON]
      -h, --help                 Print help
    ");
    assert_snapshot!(own(&["repl"]), @"
    Start an interactive session, or read cells from a pipe

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
    Test what works on this machine and what does not

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
fn completions_contain_every_flag() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
        let action = CliFixture::new().parse(&["completions", &shell.to_string()]).unwrap();
        assert_eq!(action, CliAction::Completions(shell));
        let script = completions::render(shell);
        for setting in SETTINGS {
            assert!(script.contains(setting.key), "{shell}: {}", setting.key);
        }
    }
}
