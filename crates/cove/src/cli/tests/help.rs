//! Help and completions, which come from the same definition as parsing.

use super::*;

/// At a fixed width, whatever terminal the tests run on.
fn help_text(path: &[&str]) -> String {
    let mut command = crate::cli::help::command(HelpLength::Full).term_width(100);
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
      entry        Print the entry with which a client starts Cove in a container, for macOS and Windows
      servers      Show and change the upstream servers that code can call
      secrets      Keep the secrets of servers outside of their definitions
      packages     Install python and node packages for every session
      images       Show, build and export the images that sessions can be started in
      net          Show what code may reach over the network
      config       Show the settings, or write a file for them
      token        Show or replace the token that clients send over HTTP
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
          --allow-net <HOST[:PORT]>     Host that code may reach, with TLS on port 443 unless a port is
                                        named, or a preset such as `pypi`; repeatable
                                        [env: COVE_ALLOW_NET] [default: none]
          --no-net [<BOOLEAN>]          Whether code reaches no host, whatever other settings allow
                                        [env: COVE_NO_NET] [default: false]
          --runtime <NAME>              Container runtime for Docker or Podman, such as `runsc`
                                        [env: COVE_RUNTIME] [default: chosen by Docker or Podman]
          --image <NAME>                Default image
                                        [env: COVE_IMAGE] [default: `ubuntu`, with every language]
          --image-dir <DIR>             Directory with one folder for each image, used instead of the
                                        built-in images
                                        [env: COVE_IMAGE_DIR] [default: built-in images]
          --pull [<BOOLEAN>]            Whether Cove may fetch missing images from their registry
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
          --allow-call <SERVER.TOOL>       Tools of MCP servers that code may call, with `*` as
                                           wildcard; repeatable
                                           [env: COVE_ALLOW_CALL] [default: all]
          --deny-call <SERVER.TOOL>        Tools of MCP servers that code may not call, even if
                                           `--allow-call` matches; repeatable
                                           [env: COVE_DENY_CALL] [default: none]
          --start-timeout <DURATION>       Time that an MCP server may take to start, at most `10m`; it
                                           does not count against the cell
                                           [env: COVE_START_TIMEOUT] [default: 120s]
          --search <MODE>                  How searches rank tools of MCP servers: `hybrid` (by words
                                           and meaning) or `bm25` (by words alone)
                                           [env: COVE_SEARCH] [default: hybrid]
          --tool-changes <POLICY>          What happens to a tool that its MCP server changes or adds:
                                           `block` or `warn` until you accept it, or `allow`
                                           [env: COVE_TOOL_CHANGES] [default: block]
          --quarantine [<BOOLEAN>]         Whether code may use a new MCP server only after `cove
                                           servers accept`
                                           [env: COVE_QUARANTINE] [default: false]
          --state-dir <DIR>                Directory for data that Cove keeps between runs
                                           [env: COVE_STATE_DIR] [default: `~/.local/state/cove`]
          --secrets-helper <COMMAND>       Program with arguments that keeps the secrets of `cove
                                           secrets`, such as one for a keyring
                                           [env: COVE_SECRETS_HELPER] [default: the file `secrets.json`]
          --registry <URL>                 Registry that `cove servers search` and `add` ask for
                                           servers; `none` asks none
                                           [env: COVE_REGISTRY] [default:
                                           https://registry.modelcontextprotocol.io]
          --allow-requests [<BOOLEAN>]     Whether code may ask you to add servers that you approved in
                                           `catalog.d`
                                           [env: COVE_ALLOW_REQUESTS] [default: false]
          --isolate-upstreams [<BOOLEAN>]  Whether each token of the HTTP server has processes of MCP
                                           servers of its own, so that their answers cannot cross
                                           [env: COVE_ISOLATE_UPSTREAMS] [default: false]

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
          --warm <NUMBER>             Sessions kept ready for each language: `auto` as many as were
                                      needed lately, or a number, at most 64
                                      [env: COVE_WARM] [default: auto]
          --preload <MODULE>          Python module that sessions kept ready have imported, such as
                                      `numpy`; repeatable
                                      [env: COVE_PRELOAD] [default: none]
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
          --input-timeout <DURATION>  Time that a person may take to answer a question of an MCP server,
                                      at most `10m`; it does not count against the cell
                                      [env: COVE_INPUT_TIMEOUT] [default: 600s]

    Examples:
      cove run -c 'print(6 * 7)'                    # run code in a sandbox
      cove install claude-code                      # register Cove with a client
      cove servers add time -- uvx mcp-server-time  # let code call a server
    ");
    assert_snapshot!(help_text(&["config"]), @"
    Show the settings, or write a file for them

    Usage: cove config <COMMAND>

    Commands:
      show  Show every setting with its value and where that comes from
      path  Print the path of the configuration file, whether or not it exists
      init  Write a configuration file that describes every setting and changes none
      help  Print this message or the help of the given subcommand(s)

    Options:
      -h, --help  Print help

    Examples:
      cove config show  # every value and its origin
      cove config init  # write a file to edit
      cove config path  # where that file is
    ");
    assert_snapshot!(help_text(&["install"]), @"
    Register Cove with an agent's client, such as `claude-code`, `cursor` or `codex`

    Usage: cove install [OPTIONS] [CLIENT]... [-- [SERVER-ARGS]...]

    Arguments:
      [CLIENT]...       Clients to register with; without one, lists the known clients
      [SERVER-ARGS]...  Arguments that the client starts `cove serve` with

    Options:
          --all                Register with every client that is found on this machine
          --list               List the known clients, which of them seem to be installed, and where
                               their files are
          --name <NAME>        Name of the entry: letters, digits, `_` and `-` [default: cove]
          --scope <SCOPE>      Who gets it: you everywhere, everyone in this project, or (Claude Code)
                               you in this project [default: user] [possible values: user, project,
                               local]
          --dry-run            Show the change as a diff and write nothing
          --force              Replace or remove an entry of that name even if it does not start `cove`
          --no-client-command  Edit the file even if the client has a command for this
          --url <URL>          Register a server that runs already, such as `http://127.0.0.1:8765/mcp`,
                               instead of a command
          --token-file <FILE>  File with the token of that server [default: Cove's own, if the server is
                               on this machine]
          --no-token           Write no token, for a server that wants none
          --reset              Drop the arguments or the URL of an earlier install, which otherwise stay
          --adopt              Put the client's other servers behind Cove: each that starts under Cove
                               leaves the client's file, until `cove uninstall` puts it back
          --even-failing       Adopt also the servers that do not start
          --yes                Adopt servers that take a value from a command, such as `headersHelper`,
                               without asking
          --print              Print the entry, ready to paste, and write nothing
          --json               Print the list of clients, or with `--adopt` what was done, as an array
                               of objects [env: COVE_JSON]
      -h, --help               Print help

    Uses the client's own command if there is one (`claude mcp add-json`, `codex mcp add`, `code
    --add-mcp`, `gemini mcp add`). Otherwise edits the client's file in place: comments, order and
    layout stay, and the old content is kept as FILE.cove-backup. Running it twice changes nothing.

    Examples:
      cove install --list                # the known clients
      cove install cursor                # register with one
      cove install cursor --adopt        # and put its servers behind it
      cove install codex -- --memory 1g  # with settings
    ");
    assert_snapshot!(help_text(&["uninstall"]), @"
    Remove Cove from a client's configuration

    Usage: cove uninstall [OPTIONS] [CLIENT]...

    Arguments:
      [CLIENT]...  Clients to remove it from

    Options:
          --all                Remove it from every client whose file exists
          --name <NAME>        Name of the entry: letters, digits, `_` and `-` [default: cove]
          --scope <SCOPE>      Who gets it: you everywhere, everyone in this project, or (Claude Code)
                               you in this project [default: user] [possible values: user, project,
                               local]
          --dry-run            Show the change as a diff and write nothing
          --force              Replace or remove an entry of that name even if it does not start `cove`
          --no-client-command  Edit the file even if the client has a command for this
      -h, --help               Print help

    Examples:
      cove uninstall cursor --dry-run  # see what would change
      cove uninstall cursor            # change it
    ");
    assert_snapshot!(help_text(&["completions"]), @"
    Print shell completions

    Usage: cove completions <SHELL>

    Arguments:
      <SHELL>  Shell to print completions for [possible values: bash, elvish, fish, powershell, zsh]

    Options:
      -h, --help  Print help

    Add one line to the file that your shell reads when it starts:
      bash        source <(cove completions bash)                      in ~/.bashrc
      zsh         source <(cove completions zsh)                       in ~/.zshrc, after compinit
      fish        cove completions fish | source                       in ~/.config/fish/config.fish
      elvish      eval (cove completions elvish | slurp)               in ~/.config/elvish/rc.elv
      powershell  cove completions powershell | Out-String | iex       in $PROFILE
    The script asks `cove` at each Tab, so it knows your servers, tools, images and packages.

    Examples:
      cove completions bash                                # print the script
      echo 'source <(cove completions bash)' >> ~/.bashrc  # install it
    ");
    // The settings are the same everywhere.
    let all = help_text(&[]);
    let own = |path: &[&str]| {
        let text = help_text(path);
        let (text, examples) = text.split_once("\nExamples:\n").unwrap();
        let (own, settings) = text.split_once("Settings:").unwrap();
        // Those of the server come last, and not with every command.
        let (_, all) = all.split_once("Settings:").unwrap();
        assert!(all.starts_with(settings.trim_end()), "{path:?}");
        format!("{own}Examples:\n{examples}")
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

    Examples:
      cove run script.py data.csv            # a script and its argument
      cove run -l node -c 'console.log(42)'  # code of another language
      cove run --out results plot.py         # keep the files that it writes
    ");
    assert_snapshot!(own(&["repl"]), @"
    Start an interactive session, or read cells from a pipe

    Usage: cove repl [OPTIONS]

    Options:
      -l, --language <LANGUAGE>  Language of the first cells
                                 [env: COVE_LANGUAGE] [default: python]
      -h, --help                 Print help

    Examples:
      cove repl                     # at a prompt
      cove repl -l bash < commands  # one cell after another
    ");
    assert_snapshot!(own(&["explain"]), @"
    Show the exact plan of the sandbox, without starting it

    Usage: cove explain [OPTIONS]

    Options:
          --json             Print the plan as JSON [env: COVE_JSON]
          --seccomp-profile  Print the system call profile for a container around Cove instead
      -h, --help             Print help

    Examples:
      cove explain --memory 1g                    # the sandbox with that setting
      cove explain --seccomp-profile > cove.json  # to run Cove in a container
    ");
    assert_snapshot!(own(&["doctor"]), @"
    Test what works on this machine and what does not

    Usage: cove doctor [OPTIONS]

    Options:
          --json  Print an array of objects [env: COVE_JSON]
      -h, --help  Print help

    Examples:
      cove doctor                   # try everything
      cove doctor --backend docker  # the same in containers
    ");
    assert_snapshot!(own(&["config", "show"]), @"
    Show every setting with its value and where that comes from

    Usage: cove config show [OPTIONS]

    Options:
          --json  Print an array of objects [env: COVE_JSON]
      -h, --help  Print help

    Examples:
      cove config show              # every value and its origin
      cove config show --memory 1g  # with a flag
      cove config show --json       # for programs
    ");
}

/// Short help is for people who look something up, so it must fit on a screen.
#[test]
fn short_help_fits_on_a_screen() {
    fn check(command: &mut Command, most: usize) {
        let text = command.clone().term_width(100).render_help().to_string();
        assert!(text.lines().count() <= most, "{text}");
        assert!(!text.contains("[env: COVE_MEMORY]") && text.contains("\nExamples:\n"), "{text}");
        for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
            check(below, 40);
        }
    }
    let mut command = crate::cli::help::command(HelpLength::Short);
    command.build();
    check(&mut command, 35);
}

#[test]
fn short_help_texts() {
    let short = |path: &[&str]| {
        let command = crate::cli::help::command(HelpLength::Short).term_width(100);
        let line = ["cove"].iter().chain(path).chain(&["-h"]);
        command.clone().try_get_matches_from(line).unwrap_err().to_string()
    };
    assert_snapshot!(short(&[]), @"
    Run code for AI agents in an isolated sandbox

    Usage: cove [COMMAND]

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
      entry        Print the entry with which a client starts Cove in a container, for macOS and Windows
      servers      Show and change the upstream servers that code can call
      secrets      Keep the secrets of servers outside of their definitions
      packages     Install python and node packages for every session
      images       Show, build and export the images that sessions can be started in
      net          Show what code may reach over the network
      config       Show the settings, or write a file for them
      token        Show or replace the token that clients send over HTTP
      completions  Print shell completions
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Examples:
      cove run -c 'print(6 * 7)'                    # run code in a sandbox
      cove install claude-code                      # register Cove with a client
      cove servers add time -- uvx mcp-server-time  # let code call a server

    Settings: see `cove --help`
    ");
    assert_snapshot!(short(&["servers", "add"]), @"
    Define a server, in a file of its own in `~/.config/cove/servers.d`

    Usage: cove servers add [OPTIONS] <NAME> [-- <COMMAND>...]

    Arguments:
      <NAME>        Name of the server, or of a published one such as `com.example/tracker`
      [COMMAND]...  Command that starts the server, with its arguments

    Options:
          --as <NAME>            Name that a published server gets here [default: the part behind the
                                 `/`]
          --set <NAME=VALUE>     Value that a published server needs; `--set NAME` alone adds an
                                 optional secret
          --save                 Approve a published server for later, in `catalog.d`, instead of adding
                                 it
          --yes                  Do not ask before a published server is added; needed without a
                                 terminal
          --env <KEY=VALUE>      Variable that the server is started with
          --env-file <FILE>      File with more variables, one `KEY=VALUE` a line, read at each start
          --description <TEXT>   What it is for, shown to agents
          --cwd <DIR>            Directory that it is started in
          --url <URL>            Address of a server over HTTP, instead of a command
          --header <KEY: VALUE>  Header that the server is sent with every request, also as `KEY=VALUE`
          --allow-http           Let the address be plain `http` on another machine
          --force                Replace the server of that name that was added before
          --no-try               Do not start the server to list its tools; without a terminal it is
                                 never started
      -h, --help                 Print help (see more with '--help')

    Examples:
      cove servers add time -- uvx mcp-server-time                       # a command
      cove servers add docs --url https://example.com/mcp                # an address
      cove servers add git --env TOKEN='${secret:git.TOKEN}' -- git-mcp  # with a secret
      cove servers add com.example/tracker --as tracker                  # a published one

    Settings: see `cove servers add --help`
    ");
    assert_snapshot!(short(&["token"]), @r#"
    Show or replace the token that clients send over HTTP

    Usage: cove token [OPTIONS] [COMMAND]

    Commands:
      rotate  Make a new token in place of the old one, and print it
      help    Print this message or the help of the given subcommand(s)

    Options:
          --name <NAME>  Name of the token, if the file has several
          --json         Print an object [env: COVE_JSON]
      -h, --help         Print help

    Examples:
      cove token                                       # to paste it
      curl -H "Authorization: Bearer $(cove token)" …  # in a command
      cove token rotate                                # make a new one

    Settings: see `cove token --help`
    "#);
}
