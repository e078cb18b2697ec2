//! Entries as clients write them, and the definitions that they become.

use std::collections::BTreeMap;

use super::super::clients;
use super::super::locations::locate;
use super::*;

fn process_env() -> ProcessEnv {
    ProcessEnv { env: BTreeMap::from([("HOME".into(), "/h".into())]), cwd: "/p".into(), stdin_is_terminal: false }
}

/// The definition, the reason or the failure, with everything beside it, one line each.
fn read(id: &str, scope: InstallScope, text: &str) -> String {
    let client = clients::find(id).unwrap();
    let env = process_env();
    let location = locate(client, scope, &env).unwrap();
    match read_client_servers(client, scope, &location, text, &env) {
        Ok(servers) => servers.iter().map(show).collect(),
        Err(failure) => failure.report().to_string(),
    }
}

fn show(server: &ClientServer) -> String {
    let mut lines = vec![match &server.conversion {
        ServerConversion::Carried(definition) => format!("{} {}", server.cove_name, json!(definition)),
        ServerConversion::Left(reason) => format!("{} line {}: left: {reason}", server.cove_name, server.line),
    }];
    lines.extend(server.secrets.iter().map(|(name, SecretToken(value))| format!("secret {name} = {value}")));
    lines.extend(server.needed_secrets.iter().map(|name| format!("needs {name}")));
    lines.extend(server.commands.iter().map(|command| format!("runs {command}")));
    lines.extend(server.remarks.iter().map(|remark| format!("remark: {remark}")));
    lines.into_iter().map(|line| line + "\n").collect()
}

#[test]
fn reads_entries_of_claude_code() {
    let text = r#"{"mcpServers": {
        "Sequential Thinking": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "env": {}},
        "github": {"command": "docker", "args": ["run", "-e", "GITHUB_TOKEN"], "env": {"GITHUB_TOKEN": "ghp_0123456789abcdef0123", "LEVEL": "${LEVEL:-info}"}},
        "linear": {"type": "sse", "url": "https://mcp.example.com/sse", "headers": {"Authorization": "Bearer abc123def456"}, "timeout": 90000},
        "corp": {"type": "http", "url": "https://corp.example.com/mcp", "headersHelper": "corp-auth header", "oauth": {"clientId": "me", "callbackPort": 8080, "scopes": "a b"}},
        "socket": {"type": "ws", "url": "wss://x.example.com"},
        "cove": {"command": "/usr/bin/cove", "args": ["serve"]},
        "both": {"command": "x", "url": "https://x.example.com"}
    }, "projects": {"/p": {"mcpServers": {"here": {"command": "./run"}}, "disabledMcpServers": ["linear", "here"]}}}"#;
    insta::assert_snapshot!(read("claude-code", InstallScope::User, text), @r#"
    sequential-thinking {"command":"npx","args":["-y","x"]}
    github {"command":"docker","args":["run","-e","GITHUB_TOKEN"],"env":{"GITHUB_TOKEN":"${secret:github.GITHUB_TOKEN}","LEVEL":"${LEVEL:-info}"}}
    secret github.GITHUB_TOKEN = ghp_0123456789abcdef0123
    linear {"url":"https://mcp.example.com/sse","type":"sse","headers":{"Authorization":"Bearer ${secret:linear.Authorization}"},"timeout":"90s"}
    secret linear.Authorization = abc123def456
    remark: Claude Code has it switched off in this project; Cove uses it here too
    corp {"url":"https://corp.example.com/mcp","type":"http","headers_cmd":"corp-auth header","oauth":{"client_id":"me","scopes":["a","b"],"callback_port":8080}}
    runs corp-auth header
    socket line 6: left: Cove has no transport `ws`
    both line 8: left: it has both a command and an address
    "#);
    insta::assert_snapshot!(read("claude-code", InstallScope::Local, text), @r#"here {"command":"./run","cwd":"/p","disabled":true}"#);
}

#[test]
fn reads_entries_of_editors() {
    let text = r#"{
        // The person types these.
        "inputs": [{"id": "token", "type": "promptString", "password": true}, {"id": "team", "type": "pickString", "default": "core"}],
        "servers": {
            "a": {"type": "stdio", "command": "${userHome}/bin/a", "args": ["${env:A}", "$A"], "env": {"T": "${input:token}", "X": null, "N": 8080, "TEAM": "${input:team}"}, "envFile": "${userHome}/.env"},
            "b": {"command": "b", "args": ["${workspaceFolder}/x"]},
            "c": {"url": "unix:///tmp/x.sock"},
            "d": {"command": "d", "args": ["${config:x.y}"], "sandboxEnabled": true},
            "e": {"url": "https://e.example.com/mcp", "oauth": {"clientId": "id"}},
        },
    }"#;
    insta::assert_snapshot!(read("vscode", InstallScope::User, text), @r#"
    a {"command":"${HOME}/bin/a","args":["${A}","$A"],"env":{"T":"${secret:a.token}","N":"8080","TEAM":"core"},"env_file":"/h/.env"}
    needs a.token
    remark: `team` has its default value
    b line 6: left: `${workspaceFolder}` is another folder in each project
    c line 7: left: Cove does not connect to addresses with `unix://`
    d line 8: left: `${config:x.y}` has a meaning to VS Code alone
    e {"url":"https://e.example.com/mcp","type":"auto","oauth":{"client_id":"id"}}
    "#);
    insta::assert_snapshot!(read("vscode", InstallScope::Project, text), @r#"
    a {"command":"${HOME}/bin/a","args":["${A}","$A"],"cwd":"/p","env":{"T":"${secret:a.token}","N":"8080","TEAM":"core"},"env_file":"/h/.env"}
    needs a.token
    remark: `team` has its default value
    b {"command":"b","args":["/p/x"],"cwd":"/p"}
    c line 7: left: Cove does not connect to addresses with `unix://`
    d line 8: left: `${config:x.y}` has a meaning to VS Code alone
    e {"url":"https://e.example.com/mcp","type":"auto","oauth":{"client_id":"id"}}
    "#);
}

#[test]
fn reads_entries_of_codex() {
    let text = r#"
[mcp_servers.a]
command = "a"
args = ["${NOT_EXPANDED}"]
env = { API_KEY = "abcdef" }
env_vars = ["PLAIN", { name = "TABLE", source = "local" }]
startup_timeout_sec = 20.5
tool_timeout_sec = 60
enabled_tools = ["read"]
disabled_tools = ["write"]
[mcp_servers.a.tools.read]
approval_mode = "approve"
[mcp_servers.b]
url = "https://b.example.com/mcp"
bearer_token_env_var = "B_TOKEN"
http_headers = { "X-Region" = "eu" }
env_http_headers = { "X-Team" = "TEAM" }
http_headers_helper = "a | b"
enabled = false
[mcp_servers.c]
url = "https://c.example.com/mcp"
scopes = ["s"]
oauth_resource = "https://c.example.com"
oauth = { client_id = "id", callback_port = 7 }
enabled = false
"#;
    insta::assert_snapshot!(read("codex", InstallScope::User, text), @r#"
    a {"command":"a","args":["$${NOT_EXPANDED}"],"env":{"API_KEY":"${secret:a.API_KEY}","PLAIN":"${PLAIN}","TABLE":"${TABLE}"},"timeout":"60s","start_timeout":"20500ms","deny_tools":["write"],"allow_tools":["read"]}
    secret a.API_KEY = abcdef
    remark: approvals are not carried over: `tools`
    b line 13: left: the command for its headers needs a shell, which Cove does not start
    c {"url":"https://c.example.com/mcp","type":"auto","oauth":{"client_id":"id","resource":"https://c.example.com","scopes":["s"],"callback_port":7},"disabled":true}
    "#);
}

#[test]
fn reads_entries_of_goose() {
    let text = "extensions:
  developer:
    type: builtin
    enabled: true
  memory:
    type: stdio
    bundled: true
    cmd: x
  a:
    name: a
    description: what it does
    type: stdio
    cmd: npx
    args: [-y, a]
    envs: {LEVEL: debug}
    env_keys: [A_KEY]
    enabled: false
    timeout: 300
    available_tools: []
  b:
    type: streamable_http
    uri: https://b.example.com/mcp
    headers: {X-Key: '${B_KEY}'}
    env_keys: [B_KEY]
    enabled: true
";
    insta::assert_snapshot!(read("goose", InstallScope::User, text), @r#"
    developer line 2: left: it is a part of Goose
    memory line 5: left: it is a part of Goose
    a {"command":"npx","args":["-y","a"],"env":{"LEVEL":"debug","A_KEY":"${secret:a.A_KEY}"},"timeout":"300s","description":"what it does","disabled":true}
    needs a.A_KEY
    b {"url":"https://b.example.com/mcp","type":"http","headers":{"X-Key":"${secret:b.B_KEY}"}}
    needs b.B_KEY
    "#);
}

#[test]
fn reads_the_spellings_of_other_clients() {
    let mut shown = String::new();
    let mut check = |id: &str, text: &str| shown += &format!("[{id}]\n{}", read(id, InstallScope::User, text));
    check(
        "gemini",
        r#"{"mcp": {"excluded": ["b"]}, "mcpServers": {
        "a": {"command": "$TOOL", "args": ["${HOME}/x", "5$"], "trust": true, "includeTools": ["read(x)"], "excludeTools": ["write"], "timeout": 1500},
        "b": {"url": "https://b.example.com/sse"}, "c": {"httpUrl": "https://c.example.com/mcp"},
        "d": {"httpUrl": "https://d.example.com/mcp", "authProviderType": "google_credentials"}}}"#,
    );
    check(
        "zed",
        r#"{"context_servers": {"a": {"source": "custom", "command": "a", "args": [], "env": {}},
        "b": {"command": {"path": "b", "args": ["x"], "env": {"K": "v"}}}, "c": {"settings": {}}, "d": {"source": "extension", "enabled": true}}}"#,
    );
    check(
        "opencode",
        r#"{"mcp": {"a": {"type": "local", "command": ["a", "x"], "environment": {"K": "{env:V}", "F": "{file:~/f}", "L": "${L}"}, "enabled": false},
        "b": {"type": "remote", "url": "https://b.example.com/mcp", "oauth": false}}}"#,
    );
    check("opencode", r#"{"mcp": {"timeout": 5, "servers": {"a": {"type": "local", "command": ["a"]}}}}"#);
    check(
        "crush",
        r#"{"mcp": {"a": {"type": "http", "url": "https://a.example.com/mcp", "headers": {"Authorization": "Bearer $(pass show a)"}, "oauth_client_id": "i", "oauth_client_secret": "s3cr3t", "timeout": 60},
        "b": {"type": "stdio", "command": "b", "env": {"K": "$(cat x | head)"}}}}"#,
    );
    check(
        "windsurf",
        r#"{"mcpServers": {"a": {"serverUrl": "https://a.example.com/mcp", "headers": {"K": "${file:/run/secrets/k}"}, "disabled": true, "disabledTools": ["x"]}}}"#,
    );
    check(
        "cline",
        r#"{"mcpServers": {"a": {"url": "https://a.example.com/sse", "autoApprove": ["x"], "timeout": 60}, "b": {"transportType": "stdio", "command": "b", "autoApprove": []}}}"#,
    );
    check(
        "copilot",
        r#"{"mcpServers": {"a": {"type": "local", "command": "a", "tools": ["*"]}, "b": {"type": "local", "command": "b", "tools": ["x"]}, "c": {"command": "c", "tools": []}}}"#,
    );
    check(
        "continue",
        r#"{"mcpServers": [{"name": "My DB", "command": "db", "env": {"K": "${{ secrets.DB_KEY }}"}}, {"command": "x"},
        {"name": "r", "type": "streamable-http", "url": "https://r.example.com/mcp", "requestOptions": {"headers": {"X": "y"}}}]}"#,
    );
    check("amp", r#"{"amp.mcpServers": {"a": {"command": "a", "env": {"K": "${K}"}}}}"#);
    check(
        "kimi",
        r#"{"mcpServers": {"a": {"transport": "http", "url": "https://a.example.com/mcp", "bearerTokenEnvVar": "T", "toolTimeoutMs": 1500, "enabledTools": ["x"]}}}"#,
    );
    check(
        "fx",
        r#"{"mcp": {"a": {"type": "local", "command": ["a"], "environment": {"K": "v"}}, "b": {"type": "http", "url": "https://b.example.com", "bearer_token_env": "T", "header_env": {"X": "V"}}}}"#,
    );
    check(
        "mcporter",
        r#"{"mcpServers": {"a": {"baseUrl": "https://a.example.com/mcp", "headers": {"Authorization": "$env:A"}, "blockedTools": ["x"]}, "b": {"command": ["b", "x"], "lifecycle": "keep-alive"}}, "imports": []}"#,
    );
    insta::assert_snapshot!(shown, @r#"
    [gemini]
    a {"command":"${TOOL}","args":["${HOME}/x","5$"],"timeout":"1500ms","deny_tools":["write"],"allow_tools":["read"]}
    remark: approvals are not carried over: `trust`
    b {"url":"https://b.example.com/sse","type":"auto","disabled":true}
    c {"url":"https://c.example.com/mcp","type":"http"}
    d line 4: left: Gemini CLI signs in with `google_credentials`
    [zed]
    a {"command":"a"}
    b {"command":"b","args":["x"],"env":{"K":"v"}}
    c line 2: left: an extension of Zed brings it along
    d line 2: left: an extension of Zed brings it along
    [opencode]
    a {"command":"a","args":["x"],"env":{"K":"${V}","F":"${file:/h/f}","L":"$${L}"},"disabled":true}
    b {"url":"https://b.example.com/mcp","type":"auto"}
    [opencode]
    a {"command":"a"}
    [crush]
    a {"url":"https://a.example.com/mcp","type":"http","headers":{"Authorization":"Bearer ${cmd:pass show a}"},"oauth":{"client_id":"i","client_secret":"${secret:a.CLIENT_SECRET}"},"timeout":"60s"}
    secret a.CLIENT_SECRET = s3cr3t
    runs pass show a
    b line 2: left: `$(cat x | head)` needs a shell, which Cove does not start
    [windsurf]
    a {"url":"https://a.example.com/mcp","type":"auto","headers":{"K":"${file:/run/secrets/k}"},"deny_tools":["x"],"disabled":true}
    [cline]
    a {"url":"https://a.example.com/sse","type":"auto","timeout":"60s"}
    remark: approvals are not carried over: `autoApprove`
    b {"command":"b"}
    [copilot]
    a {"command":"a"}
    b {"command":"b","allow_tools":["x"]}
    c line 1: left: GitHub Copilot CLI allows none of its tools
    [continue]
    my-db {"command":"db","env":{"K":"${secret:my-db.DB_KEY}"}}
    needs my-db.DB_KEY
    server line 1: left: it has no name
    r {"url":"https://r.example.com/mcp","type":"http","headers":{"X":"y"}}
    [amp]
    a {"command":"a","env":{"K":"${K}"}}
    [kimi]
    a {"url":"https://a.example.com/mcp","type":"http","headers":{"Authorization":"Bearer ${T}"},"timeout":"1500ms","allow_tools":["x"]}
    [fx]
    a {"command":"a","env":{"K":"v"}}
    b {"url":"https://b.example.com","type":"http","headers":{"X":"${V}","Authorization":"Bearer ${T}"}}
    [mcporter]
    a {"url":"https://a.example.com/mcp","type":"auto","headers":{"Authorization":"${A}"},"deny_tools":["x"]}
    b {"command":"b","args":["x"]}
    "#);
}

#[test]
fn keeps_values_that_look_secret_apart() {
    let text = r#"{"mcpServers": {
        "a": {"command": "a", "args": ["--api-key", "s3cr3t-1", "--token=s3cr3t-2", "--header", "X-Auth: Bearer s3cr3t-3", "postgres://me:pw@db/x", "ghp_0123456789abcdef0123", "sk-learn-tools-server"],
            "env": {"SSH_AUTH_SOCK": "/run/x", "AUTH": "true", "KEY": "same", "OTHER_KEY": "same", "DATABASE_URL": "postgres://me:pw2@db/x", "PLAIN": "xoxb-0123456789-abc", "PASSWORD": ""}},
        "b": {"url": "https://user:pw3@b.example.com/mcp?api_key=k1&page=2"}
    }}"#;
    insta::assert_snapshot!(read("cursor", InstallScope::User, text), @r#"
    a {"command":"a","args":["--api-key","${secret:a.api-key}","--token=${secret:a.token}","--header","X-Auth: Bearer ${secret:a.X-Auth}","postgres://me:${secret:a.URL_PASSWORD}@db/x","${secret:a.TOKEN}","sk-learn-tools-server"],"env":{"SSH_AUTH_SOCK":"/run/x","AUTH":"true","KEY":"${secret:a.KEY}","OTHER_KEY":"${secret:a.KEY}","DATABASE_URL":"postgres://me:${secret:a.DATABASE_URL_PASSWORD}@db/x","PLAIN":"${secret:a.PLAIN}","PASSWORD":""}}
    secret a.api-key = s3cr3t-1
    secret a.token = s3cr3t-2
    secret a.X-Auth = s3cr3t-3
    secret a.URL_PASSWORD = pw
    secret a.TOKEN = ghp_0123456789abcdef0123
    secret a.KEY = same
    secret a.DATABASE_URL_PASSWORD = pw2
    secret a.PLAIN = xoxb-0123456789-abc
    b {"url":"https://user:${secret:b.URL_PASSWORD}@b.example.com/mcp?api_key=${secret:b.api_key}&page=2","type":"auto"}
    secret b.URL_PASSWORD = pw3
    secret b.api_key = k1
    "#);
}

#[test]
fn leaves_out_entries_that_lead_to_cove() {
    let text = r#"{"mcpServers": {
        "a": {"command": "uvx", "args": ["cove-mcp@1.2", "serve"]},
        "b": {"command": "wsl.exe", "args": ["--", "/home/me/.local/bin/cove", "serve"]},
        "c": {"command": "npx", "args": ["-y", "supergateway", "--stdio", "cove serve"]},
        "cove": {"url": "http://127.0.0.1:8765/mcp"},
        "d": {"url": "https://x.example.com/mcp", "headers": {"Authorization": "Bearer cove_00"}},
        "figma": {"url": "http://127.0.0.1:3845/mcp"},
        "e": {"command": "git", "args": ["clone", "/src/cove"]}
    }}"#;
    insta::assert_snapshot!(read("cursor", InstallScope::User, text), @r#"
    figma {"url":"http://127.0.0.1:3845/mcp","type":"auto"}
    e {"command":"git","args":["clone","/src/cove"]}
    "#);
}

#[test]
fn an_entry_that_is_wrong_does_not_affect_the_others() {
    let text = "{\"mcpServers\": {\n\"a\": {\"command\": \"a\", \"args\": \"x\"},\n\"b\": 1,\n\"c\": {\"command\": \"c\\u0000\"},\n\"d\": {},
        \"e\": {\"command\": \"e\", \"env\": {\"A\": [1]}},\n\"f\": {\"url\": \"nonsense\"},\n\"g\": {\"command\": \"g\", \"env\": []},\n\"a b\": {\"command\": \"h\"}, \"a-b\": {\"command\": \"i\"}, \"\": {\"command\": \"j\"}}}";
    insta::assert_snapshot!(read("cursor", InstallScope::User, text), @r#"
    a line 2: left: its `args` are a string, not a list of texts
    b line 3: left: it is a number, not a table
    c line 4: left: `command` has a NUL byte
    d line 5: left: it has neither a command nor an address
    e line 6: left: `env.A` has a list in it
    f line 7: left: the `url` of `f` is not a valid URL: it has no `http://` or `https://`
    g line 8: left: its `env` is a list, not a table
    a-b {"command":"h"}
    a-b-2 {"command":"i"}
    server line 9: left: it has no name
    "#);
}

#[test]
fn a_file_that_is_wrong_is_named_with_line_and_column() {
    let mut shown = String::new();
    let mut check = |id: &str, text: &str| shown += &format!("{}\n\n", read(id, InstallScope::User, text));
    check("cursor", "{\n  \"mcpServers\": {");
    check("cursor", "{\"mcpServers\": []}");
    check("cursor", "{\"mcpServers\": {\"a\": {\"command\": \"x\"},\n \"a\": {\"command\": \"y\"}}}");
    check("cursor", "{\"mcpServers\": {}, \"mcpServers\": {}}");
    check("codex", "[mcp_servers.a]\ncommand = ");
    check("goose", "extensions:\n  a: [\n");
    check("cursor", "{\"mcpServers\": 1}");
    insta::assert_snapshot!(shown, @r#"
    could not read the servers of `/h/.cursor/mcp.json`
    caused by: line 2 column 17: it is not valid JSON: unterminated object
    hint: nothing was changed; correct the file, and run this again



    could not read the servers of `/h/.cursor/mcp.json`
    caused by: line 2 column 2: `mcpServers.a` is there a second time
    hint: nothing was changed; correct the file, and run this again

    could not read the servers of `/h/.cursor/mcp.json`
    caused by: line 1 column 20: `mcpServers` is there a second time
    hint: nothing was changed; correct the file, and run this again

    could not read the servers of `/h/.codex/config.toml`
    caused by: line 2 column 11: it is not valid TOML: string values must be quoted, expected literal string
    hint: nothing was changed; correct the file, and run this again

    could not read the servers of `/h/.config/goose/config.yaml`
    caused by: line 2 column 6: it is not valid YAML: unclosed bracket '['
    hint: nothing was changed; correct the file, and run this again

    could not read the servers of `/h/.cursor/mcp.json`
    caused by: line 1 column 16: `mcpServers` is a number, not an object
    hint: nothing was changed; correct the file, and run this again
    "#);
    for empty in ["", "{}", "{\"mcpServers\": null}"] {
        assert_eq!(read("cursor", InstallScope::User, empty), "", "{empty}");
    }
    let many: Vec<String> = (0..=MAX_SERVERS).map(|number| format!("\"s{number}\": {{}}")).collect();
    let many = read("cursor", InstallScope::User, &format!("{{\"mcpServers\": {{{}}}}}", many.join(",")));
    assert!(many.contains("it has 1001 servers"), "{many}");
}

#[test]
fn a_file_is_read_by_its_content() {
    let mut shown = String::new();
    let mut check = |file: &str, text: &str| {
        shown += &match read_servers_file(Path::new(file), text, &process_env()) {
            Ok(servers) => servers.iter().map(show).collect(),
            Err(failure) => failure.report().to_string() + "\n",
        };
    };
    check("/x/servers.json", r#"{"servers": {"a": {"command": "a"}}}"#);
    check("/x/bare.json", r#"{"a": {"command": "a", "timeout": 5}, "b": {"url": "https://b.example.com"}}"#);
    check("/x/some.toml", "[mcp_servers.a]\ncommand = 'a'\nargs = ['${V}']");
    check("/x/some.yaml", "extensions:\n  a: {type: stdio, cmd: a}");
    check("/x/list.yml", "mcpServers:\n- name: a\n  command: a");
    check("/x/.gemini/settings.json", r#"{"mcpServers": {"a": {"command": "$V"}}}"#);
    check("/x/mcp.json", r#"{"mcp": {"servers": {"a": {"command": "$V"}}}}"#);
    check("/x/catalog.yaml", "version: 3
registry:
  fetch: {type: server, image: 'mcp/fetch@sha256:00', description: Fetches, allowHosts: ['x:443']}
  tavily: {type: server, image: mcp/tavily, secrets: [{name: tavily.key, env: TAVILY_KEY}], env: [{name: LEVEL, value: info}], command: [serve], disableNetwork: true}
  notion: {type: remote, remote: {transport_type: streamable-http, url: 'https://n.example.com/mcp', headers: {Authorization: 'Bearer ${N_TOKEN}'}}, secrets: [{name: n, env: N_TOKEN}]}
  files: {type: server, image: mcp/files, volumes: ['{{files.path}}:/x']}
  tool: {type: poci, image: x}
");
    check("/x/package.json", r#"{"name": "x", "scripts": {}}"#);
    insta::assert_snapshot!(shown, @r#"
    a {"command":"a"}
    a {"command":"a"}
    remark: not carried over: `timeout`, whose unit is not known
    b {"url":"https://b.example.com","type":"auto"}
    a {"command":"a","args":["$${V}"]}
    a {"command":"a"}
    a {"command":"a"}
    a {"command":"${V}"}
    a {"command":"$V"}
    fetch {"command":"docker","args":["run","-i","--rm","mcp/fetch@sha256:00"],"description":"Fetches"}
    remark: not carried over: `allowHosts`
    tavily {"command":"docker","args":["run","-i","--rm","-e","LEVEL","-e","TAVILY_KEY","--network","none","mcp/tavily","serve"],"env":{"LEVEL":"info","TAVILY_KEY":"${secret:tavily.TAVILY_KEY}"}}
    needs tavily.TAVILY_KEY
    notion {"url":"https://n.example.com/mcp","type":"http","headers":{"Authorization":"Bearer ${secret:notion.N_TOKEN}"}}
    needs notion.N_TOKEN
    files line 6: left: it has a parameter, `{{files.path}}:/x`
    tool line 7: left: its `type` is `poci`, which only Docker starts
    could not read `/x/package.json`
    caused by: it has no servers in a form that Cove knows
    hint: name a file with `mcpServers`, `servers`, `context_servers`, `mcp_servers`, `mcp` or `extensions`
    "#);
}

/// A file must not run a command that no person sees, or read a secret of another server.
#[test]
fn texts_of_a_file_make_no_references_of_their_own() {
    let text = r#"{
        "inputs": [{"id": "d", "default": "$"}, {"id": "b", "default": "{cmd:touch x}"}, {"id": "w", "default": "${cmd:touch x}"}],
        "servers": {
            "a": {"url": "https://a.example.com", "headers": {"A": "${input:d}{cmd:touch x}", "B": "${input:d}${input:b}", "C": "$${input:b}", "D": "${input:w}", "E": "${input:d}{secret:other.TOKEN}", "F": "$$${cmd:touch x}"}},
            "b": {"url": "https://b.example.com", "bearer_token_env_var": "cmd:touch x"},
            "c": {"url": "https://c.example.com", "env_http_headers": {"X": "secret:other.TOKEN"}},
            "d": {"command": "d", "env_vars": ["file:/etc/passwd"]},
        },
    }"#;
    insta::assert_snapshot!(read("vscode", InstallScope::User, text), @r#"
    a {"url":"https://a.example.com","type":"auto","headers":{"A":"$${cmd:touch x}","B":"$${cmd:touch x}","C":"$${cmd:touch x}","D":"$${cmd:touch x}","E":"$${secret:other.TOKEN}","F":"$$$${cmd:touch x}"}}
    remark: `d` has its default value
    remark: `d` has its default value
    remark: `b` has its default value
    remark: `b` has its default value
    remark: `w` has its default value
    remark: `d` has its default value
    b line 5: left: `cmd:touch x` is no name of a variable
    c line 6: left: `secret:other.TOKEN` is no name of a variable
    d line 7: left: `file:/etc/passwd` is no name of a variable
    "#);
    let tagged = "extensions:\n  a: {type: sse, uri: 'https://a.example.com', headers: {X: !t '${cmd:touch x}'}}";
    insta::assert_snapshot!(
        read("goose", InstallScope::User, tagged),
        @r#"a {"url":"https://a.example.com","type":"sse","headers":{"X":"'$${cmd:touch x}'"}}"#
    );
}

#[test]
fn a_server_gets_another_name_with_its_secrets() {
    let client = clients::find("cursor").unwrap();
    let env = process_env();
    let location = locate(client, InstallScope::User, &env).unwrap();
    let text = r#"{"mcpServers": {"a": {"command": "a", "env": {"TOKEN": "s3cr3t", "X": "${input:x}"}}}}"#;
    let mut servers = read_client_servers(client, InstallScope::User, &location, text, &env).unwrap();
    servers[0].rename("a-cursor");
    insta::assert_snapshot!(show(&servers[0]), @r#"
    a-cursor {"command":"a","env":{"TOKEN":"${secret:a-cursor.TOKEN}","X":"${secret:a-cursor.x}"}}
    secret a-cursor.TOKEN = s3cr3t
    needs a-cursor.x
    "#);
    let whole = json!(servers[0].definition_with_values()).to_string();
    assert!(whole.contains("\"TOKEN\":\"s3cr3t\""), "{whole}");
    assert!(!format!("{servers:?}").contains("s3cr3t"));
}

/// Texts that a crash, an editor or a merge left behind: read, or refused with line and column, and never anything else.
#[test]
fn mutated_files_are_read_or_refused_with_their_place() {
    let json = r#"{"mcpServers": {"a": {"command": "npx", "args": ["-y", "${V}"], "env": {"TOKEN": "s3cr3t", "X": "${input:x}"}},
        "b": {"url": "https://user:pw@b.example.com/mcp?key=v", "headers": {"A": "Bearer ${env:B}"}, "timeout": 5}}, "inputs": [{"id": "x"}]}"#;
    let toml = "[mcp_servers.a]\ncommand = \"npx\"\nargs = [\"-y\"]\nenv_vars = [\"V\"]\n[mcp_servers.a.env]\nTOKEN = \"s3cr3t\"\n";
    let yaml = "extensions:\n  a:\n    type: stdio\n    cmd: npx\n    args: [-y, a]\n    envs: {TOKEN: s3cr3t}\n    env_keys: [K]\n";
    let pieces = [
        "", "\"", "{", "}", "[", "]", ":", ",", "\n", "  ", "${", "}}", "null", "1e9", "\u{0}", "\u{feff}", "é", "#",
        "- ", "$(",
    ];
    let (mut read_count, mut refused_count) = (0, 0);
    let mut numbers = cove_testkit::numbers::SeededNumbers::new(1);
    for _ in 0..1500 {
        for (id, text) in [("cursor", json), ("codex", toml), ("goose", yaml), ("crush", json)] {
            let mut next = |most: usize| numbers.index(most);
            let mut mutated = text.to_owned();
            for _ in 0..=next(2) {
                let start = (0..=next(mutated.len())).rev().find(|at| mutated.is_char_boundary(*at)).unwrap_or(0);
                let end = (start..=mutated.len())
                    .find(|at| mutated.is_char_boundary(*at) && *at >= start + next(8))
                    .unwrap_or(start);
                mutated.replace_range(start..end, pieces[next(pieces.len())]);
            }
            let client = clients::find(id).unwrap();
            let env = process_env();
            let location = locate(client, InstallScope::User, &env).unwrap();
            match read_client_servers(client, InstallScope::User, &location, &mutated, &env) {
                Ok(servers) => {
                    read_count += 1;
                    for server in servers {
                        check_name(&server.cove_name).unwrap();
                        let Some(definition) = server.definition_with_values() else { continue };
                        check_definition(&location.file, &server.cove_name, &definition).unwrap();
                    }
                }
                Err(failure) => {
                    refused_count += 1;
                    let report = failure.report().to_string();
                    assert!(report.contains("caused by: line ") && report.contains(" column "), "{mutated}\n{report}");
                    assert!(!report.contains("s3cr3t"), "{mutated}\n{report}");
                }
            }
        }
    }
    assert!(read_count > 500 && refused_count > 500, "{read_count} {refused_count}");
}
