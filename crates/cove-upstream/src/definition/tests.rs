//! Definitions: every form, every mistake, and names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::pool::UpstreamSettings;
use cove_core::process_env::ProcessEnv;

fn toml(text: &str) -> ServerDefinitions {
    ServerDefinitions::from_text(Path::new("/c/cove.toml"), text)
}

fn json(text: &str) -> ServerDefinitions {
    ServerDefinitions::from_text(Path::new("/c/servers.json"), text)
}

fn problems(definitions: &ServerDefinitions) -> Vec<String> {
    definitions.problems.iter().map(DefinitionProblem::to_string).collect()
}

fn names(definitions: &ServerDefinitions) -> Vec<&str> {
    definitions.servers.iter().map(|server| server.name.as_str()).collect()
}

#[test]
fn reads_the_tables_of_cove_toml() {
    let all = toml(
        "memory = \"1g\"\n\n[servers.github]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\nenv = { TOKEN = \"${TOKEN}\" }\ncwd = \"/srv\"\ndescription = \"Issues\"\n\n[servers.remote]\nurl = \"https://example.com/mcp\"\nheaders = { Authorization = \"Bearer ${T}\" }\ndisabled = true\n",
    );
    assert_eq!(problems(&all), [""; 0]);
    let github = &all.servers[0];
    let ServerLaunch::Stdio { command, args, env, cwd, .. } = &github.launch else { panic!("{github:?}") };
    assert_eq!((command.as_str(), args.join(" ").as_str(), cwd.as_deref()), ("npx", "-y x", Some("/srv")));
    assert_eq!(env["TOKEN"], "${TOKEN}");
    assert_eq!((github.origin.line, github.description.as_deref()), (3, Some("Issues")));
    let ServerLaunch::Http { url, headers, .. } = &all.servers[1].launch else { panic!() };
    assert_eq!((url.as_str(), headers["Authorization"].as_str()), ("https://example.com/mcp", "Bearer ${T}"));
    assert!(all.servers[1].disabled && !github.disabled);
    assert_eq!(all.servers[1].origin.to_string(), "/c/cove.toml line 10");
}

#[test]
fn reads_json_in_every_common_form() {
    let all = json(
        "\u{feff}{\n  // mine\n  \"mcpServers\": {\n    \"a\": {\"command\": \"a\", \"args\": [1, true, \"x\"], \"autoApprove\": [], \"timeout\": 60, \"env\": {\"PORT\": 80, \"N\": null}},\n    \"b\": {\"type\": \"streamable-http\", \"url\": \"http://x\"},\n    \"c\": {\"command\": [\"npx\", \"-y\"], \"enabled\": false},\n  },\n}",
    );
    assert_eq!(problems(&all), [""; 0]);
    assert_eq!(names(&all), ["a", "b", "c"]);
    let ServerLaunch::Stdio { args, env, .. } = &all.servers[0].launch else { panic!() };
    assert_eq!((args.join(" ").as_str(), env), ("1 true x", &BTreeMap::from([("PORT".into(), "80".into())])));
    let ServerLaunch::Stdio { command, args, .. } = &all.servers[2].launch else { panic!() };
    assert!(command == "npx" && args == &["-y"] && all.servers[2].disabled);
    assert_eq!(all.servers[1].origin.line, 5);
    assert_eq!(names(&json("{\"a\": {\"command\": \"x\"}, \"b\": {\"serverUrl\": \"http://x\"}}")), ["a", "b"]);
    assert_eq!(names(&json("{\"servers\": {\"a\": {\"command\": \"x\"}}, \"inputs\": []}")), ["a"]);
    assert_eq!(json(""), ServerDefinitions::default());
    assert_eq!(json("{}"), ServerDefinitions::default());
}

#[test]
fn reads_the_fields_that_other_clients_have_too() {
    let all = toml(
        "[servers.a]\nurl = \"https://a/mcp\"\ntype = \"auto\"\ntimeout = \"2m\"\ndeny_tools = [\"delete_*\"]\nheaders_cmd = \"corp header\"\noauth = { client_id = \"id\", client_secret = \"${S}\", scopes = [\"r\", \"w\"], callback_port = 8080, grant = \"client_credentials\" }\n[servers.b]\ncommand = \"b\"\nenv_file = \"~/.env\"\nallow_tools = [\"get\"]\n[servers.c]\nurl = \"https://c\"\ntype = \"sse\"\n",
    );
    assert_eq!(problems(&all), [""; 0]);
    let [a, b, c] = all.servers.as_slice() else { panic!("{all:?}") };
    let ServerLaunch::Http { transport, headers_cmd, oauth: Some(oauth), .. } = &a.launch else { panic!() };
    assert_eq!((*transport, headers_cmd.as_deref()), (HttpTransport::Detected, Some("corp header")));
    assert_eq!((a.call_timeout, &a.denied_tools[..]), (Some(Duration::from_secs(120)), &["delete_*".to_owned()][..]));
    assert_eq!((oauth.client_id.as_deref(), oauth.callback_port), (Some("id"), Some(8080)));
    assert_eq!((oauth.grant, oauth.scopes.join(" ").as_str()), (OAuthGrant::ClientCredentials, "r w"));
    assert!(!format!("{a:?} {oauth:?}").contains("${S}"), "{a:?}");
    let ServerLaunch::Stdio { env_file, .. } = &b.launch else { panic!() };
    assert_eq!((env_file.as_deref(), b.allowed_tools.join(" ").as_str()), (Some("~/.env"), "get"));
    assert!(matches!(c.launch, ServerLaunch::Http { transport: HttpTransport::LegacySse, oauth: None, .. }));

    // In files that Cove shares with other clients, their own forms are no mistakes.
    let all = json(
        "{\"mcpServers\": {\"a\": {\"url\": \"https://a\", \"timeout\": 60000, \"oauth\": {\"clientId\": \"id\", \"scopes\": \"r w\", \"xaa\": {}}}, \"b\": {\"url\": \"https://b\", \"oauth\": false}}}",
    );
    assert_eq!(problems(&all), [""; 0]);
    let ServerLaunch::Http { oauth: Some(oauth), .. } = &all.servers[0].launch else { panic!() };
    assert_eq!((oauth.client_id.as_deref(), oauth.scopes.len()), (Some("id"), 2));
    assert_eq!(all.servers[0].call_timeout, None);

    let wrong = |field: &str, reason: &str| {
        let all = toml(&format!("[servers.a]\nurl = \"https://a\"\n{field}\n"));
        assert!(problems(&all).join("").contains(reason), "{field}: {:?}", problems(&all));
    };
    wrong("timeout = \"soon\"", "`timeout` cannot be used");
    wrong("oauth = { client = \"x\" }", "`client` is not a field of `oauth`");
    wrong("oauth = { grant = \"password\" }", "`oauth.grant` is not a grant");
    wrong("oauth = { callback_port = 0 }", "`oauth.callback_port` is not a port");
    wrong("oauth = true", "`oauth` is");
    wrong("deny_tools = \"x\"", "`deny_tools` is a string");
}

#[test]
fn names_file_line_and_key_of_a_mistake_and_keeps_the_others() {
    let all = toml(
        "[servers.good]\ncommand = \"x\"\n[servers.one]\ncommand = 1\n[servers.two]\ncommand = \"x\"\nargs = \"y\"\n[servers.three]\ncommnd = \"x\"\n[servers.four]\n[servers.five]\ncommand = \"x\"\nurl = \"y\"\n[servers.six]\ntype = \"ws\"\nurl = \"x\"\n[servers.\"a b\"]\ncommand = \"x\"\n[servers.seven]\ncommand = \"x\"\nenv = { A = [] }\n",
    );
    assert_eq!(names(&all), ["good"]);
    let expected = [
        "in `/c/cove.toml`, line 4: `command` is a number, so `one` is not used; write a string",
        "in `/c/cove.toml`, line 7: `args` is a string, so `two` is not used; write a list of strings",
        "in `/c/cove.toml`, line 9: `commnd` is not a field of a server, so `three` is not used; did you mean `command`?",
        "in `/c/cove.toml`, line 10: there is no `command`, so `four` is not used; write the program to start, or a `url`",
        "in `/c/cove.toml`, line 11: there are both `command` and `url`, so `five` is not used; keep only one of them",
        "in `/c/cove.toml`, line 14: `type` is `ws`, so `six` is not used; write `stdio`, `http`, `sse` or `auto`",
        "in `/c/cove.toml`, line 17: `a b` cannot be a server's name: it has ` `; use letters",
        "in `/c/cove.toml`, line 21: `env.A` has a list in it, so `seven` is not used; write a string",
    ];
    let found = problems(&all);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let broken = json("{\n\"mcpServers\": {\n\"a\": {\"command\": }\n}}");
    assert!(problems(&broken)[0].starts_with("in `/c/servers.json`, line 3: "), "{:?}", problems(&broken));
    for text in ["[1]", "7", "{\"mcpServers\": []}", "{\"mcpServer\": 1}"] {
        assert_eq!(json(text).problems.len(), 1, "{text}");
    }
    assert_eq!(toml("servers = 1").problems.len(), 1);
    assert_eq!(problems(&toml("[servers"))[0].split(':').next(), Some("in `/c/cove.toml`, line 1"));
}

#[test]
fn refuses_what_is_not_a_url() {
    for (url, reason) in [
        ("nonsense", "it has no `http://` or `https://`"),
        ("127.0.0.1:9801/mcp", "it has no `http://` or `https://`"),
        ("localhost:9801/mcp", "it has no `http://` or `https://`"),
        ("ftp://example.com", "it has no `http://` or `https://`"),
        ("", "it has no `http://` or `https://`"),
        ("http://", "empty host"),
    ] {
        let all = json(&format!("{{\n\"x\": {{\"url\": \"{url}\"}}}}"));
        let expected = format!("in `/c/servers.json`, line 2: the `url` of `x` is not a valid URL: {reason}; write ");
        assert!(problems(&all)[0].starts_with(&expected), "{all:?}");
    }
    for (url, hint) in [
        ("127.0.0.1:9801/mcp", "write `http://127.0.0.1:9801/mcp`"),
        ("localhost:9801/mcp", "write `http://localhost:9801/mcp`"),
        ("mcp.example.com/mcp", "write `https://mcp.example.com/mcp`"),
        ("example:8080", "write `https://example:8080`"),
        ("nonsense", "write an address such as `https://example.com/mcp`"),
        ("me:secret@example.com", "write an address such as `https://example.com/mcp`"),
        ("ftp://example.com", "write an address such as `https://example.com/mcp`"),
    ] {
        assert_eq!(json(&format!("{{\"x\": {{\"url\": \"{url}\"}}}}")).problems[0].hint, hint, "{url}");
    }
    // Variables are expanded when the server starts.
    assert_eq!(names(&json("{\"x\": {\"url\": \"${BASE}/mcp\"}, \"y\": {\"url\": \" HTTPS://x \"}}")), ["x", "y"]);
}

#[test]
fn reads_start_timeouts_within_bounds() {
    let all = toml(
        "[servers.a]\ncommand = \"x\"\nstart_timeout = 90\n[servers.b]\ncommand = \"x\"\nstart_timeout = \"2m\"\n",
    );
    let timeouts: Vec<_> = all.servers.iter().map(|server| server.start_timeout).collect();
    assert_eq!(timeouts, [Some(Duration::from_secs(90)), Some(Duration::from_secs(120))]);
    for (value, reason) in [
        ("\"11m\"", "`start_timeout` cannot be used: `11m` is too long, so `x` is not used; write at most `10m`"),
        ("0", "`start_timeout` cannot be used: `0` is no time at all, so `x` is not used"),
        ("-1", "`start_timeout` cannot be used: `-1` is not a duration, so `x` is not used"),
        ("true", "`start_timeout` is a boolean, so `x` is not used; write a duration"),
        ("[]", "`start_timeout` is a list, so `x` is not used; write a duration"),
    ] {
        let all = json(&format!("{{\n\"x\": {{\"command\": \"c\", \"start_timeout\": {value}}}}}"));
        let expected = format!("in `/c/servers.json`, line 2: {reason}");
        assert!(problems(&all)[0].starts_with(&expected), "{value}: {:?}", problems(&all));
    }
}

#[test]
fn shows_no_secrets_in_debug_output() {
    let all = json(
        "{\"a\": {\"command\": \"x\", \"args\": [\"hunter2\"], \"env\": {\"K\": \"hunter2\"}}, \"b\": {\"url\": \"http://hunter2\", \"headers\": {\"K\": \"hunter2\"}}}",
    );
    assert_eq!(all.servers.len(), 2);
    assert!(!format!("{all:?}").contains("hunter2"));
}

#[test]
fn checks_names_and_makes_aliases() {
    for good in ["a", "7zip", "A.b-c_d", &"x".repeat(64)] {
        assert_eq!(check_name(good), Ok(()), "{good}");
    }
    for (bad, why) in [
        ("", "it is empty"),
        ("-a", "it must begin"),
        (".a", "it must begin"),
        ("a b", "it has ` `"),
        ("a/b", "it has `/`"),
        ("ä", "it must begin"),
        ("aä", "it has `\\u{e4}`"),
        ("a\n", "it has `\\n`"),
        (&"x".repeat(65), "it has more than 64"),
    ] {
        assert!(check_name(bad).unwrap_err().contains(why), "{bad}: {:?}", check_name(bad));
    }
    let cases: [(&[&str], &[&str]); 5] = [
        (&["GitHub"], &["github"]),
        (&["7zip"], &["_7zip"]),
        (&["a-b", "a.b", "a_b"], &["a_b_2", "a_b_3", "a_b"]),
        (&["a-b", "A-B"], &["a_b_2", "a_b"]),
        (&["x-2", "x", "X"], &["x_2", "x", "x_3"]),
    ];
    for (names, expected) in cases {
        let aliases = server_aliases(names);
        if names == ["x-2", "x", "X"] {
            // The aliases differ and do not depend on the order.
            let turned: Vec<&str> = names.iter().rev().copied().collect();
            assert!(server_aliases(&turned).iter().rev().eq(&aliases));
            let different: std::collections::BTreeSet<_> = aliases.iter().collect();
            assert_eq!(different.len(), 3, "{aliases:?}");
        } else {
            assert_eq!(aliases, expected);
        }
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn server(command: &str) -> String {
    format!(
        "{{\"mcpServers\": {{\"same\": {{\"command\": \"{command}\"}}, \"{command}\": {{\"command\": \"{command}\"}}}}}}"
    )
}

#[test]
fn the_first_definition_of_a_name_wins_and_a_project_must_be_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let (home, project, state) =
        (folder.path().join("home"), folder.path().join("project"), folder.path().join("state"));
    let config = home.join(".config/cove/cove.toml");
    write(&config, "[servers.same]\ncommand = \"config\"\n[servers.config]\ncommand = \"config\"\n");
    write(&home.join(".config/cove/servers.d/b.json"), &server("b"));
    write(&home.join(".config/cove/servers.d/a.json"), &server("a"));
    write(&home.join(".config/cove/servers.d/.hidden.json"), &server("hidden"));
    write(&home.join(".config/cove/servers.d/broken.json"), "{");
    write(&home.join("MCPs/m.json"), &server("m"));
    write(&home.join(".config/mcp/servers/s.json"), &server("s"));
    write(&project.join("cove.toml"), "memory = \"64g\"\n[servers.p]\ncommand = \"p\"\n");
    write(&project.join("mcp-servers/q.json"), &server("q"));
    write(&project.join(".mcp.json"), &server("r"));
    let env = BTreeMap::from([("HOME".to_owned(), home.clone().into())]);
    let process_env = ProcessEnv { env, cwd: project.clone(), stdin_is_terminal: false };
    let settings = UpstreamSettings::from_env(&process_env);
    let places = DefinitionPlaces::new(Some(config.clone()), Some(state.clone()), &process_env);

    let all = ServerDefinitions::load(&places, &settings);
    assert_eq!(names(&all), ["same", "config", "a", "b", "m", "s"]);
    assert_eq!(all.servers[0].origin, DefinitionOrigin { path: config, line: 1 });
    assert_eq!(all.servers[0].shadowed.len(), 4);
    assert_eq!(all.problems.len(), 1, "{:?}", all.problems);
    assert_eq!(all.untrusted.len(), 3, "{:?}", all.untrusted);

    trust::trust(&state, &project).unwrap();
    let all = ServerDefinitions::load(&places, &settings);
    assert_eq!(names(&all), ["same", "config", "a", "b", "m", "s", "p", "q", "r"]);
    assert_eq!(all.untrusted, Vec::<PathBuf>::new());
    assert_eq!(all.servers[0].shadowed.last().unwrap().path, project.join(".mcp.json"));
}

#[test]
fn a_stamp_changes_with_every_file_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (home, project, state) =
        (folder.path().join("home"), folder.path().join("project"), folder.path().join("state"));
    let config = home.join(".config/cove/cove.toml");
    let env = BTreeMap::from([("HOME".to_owned(), home.clone().into())]);
    let process_env = ProcessEnv { env, cwd: project.clone(), stdin_is_terminal: false };
    let places = DefinitionPlaces::new(Some(config.clone()), Some(state.clone()), &process_env);
    let before = std::cell::RefCell::new(places.stamp());
    let differs = |what: &str| {
        let now = places.stamp();
        assert_ne!(before.replace(now.clone()), now, "{what}");
        assert_eq!(places.stamp(), now, "{what}, and stays");
    };
    for file in [
        config,
        home.join(".config/cove/servers.d/a.json"),
        home.join("MCPs/b.json"),
        home.join(".config/mcp/servers/c.json"),
        project.join("cove.toml"),
        project.join("mcp-servers/d.json"),
        project.join(".mcp.json"),
    ] {
        let name = file.display().to_string();
        write(&file, "one");
        differs(&format!("{name} is there"));
        // As large as before, and within the same moment.
        write(&file, "two");
        std::fs::rename(&file, file.with_extension("old")).unwrap();
        std::fs::copy(file.with_extension("old"), &file).unwrap();
        differs(&format!("{name} is another"));
        std::fs::remove_file(&file).unwrap();
        differs(&format!("{name} is gone"));
    }
    trust::trust(&state, &project).unwrap();
    differs("the project is trusted");
    write(&home.join("elsewhere.json"), "{}");
    assert_eq!(places.stamp(), *before.borrow(), "a file that Cove does not read does not count");
}

#[test]
fn skips_entries_that_would_start_cove_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.json");
    let own = std::env::current_exe().unwrap();
    let link = folder.path().join("other-name");
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let (own, link) = (own.display(), link.display());
    write(
        &file,
        &format!(
            "{{\"a\": {{\"command\": \"{own}\"}}, \"b\": {{\"command\": \"{link}\", \"args\": [\"x\"]}},\n\"c\": {{\"command\": \"cove\", \"args\": [\"serve\"]}}, \"d\": {{\"command\": \"/opt/cove\"}},\n\"e\": {{\"command\": \"{own}\", \"allow_self\": true}}, \"f\": {{\"command\": \"cove\", \"args\": [\"doctor\"]}},\n\"g\": {{\"command\": \"uvx\", \"args\": [\"cove-mcp@1.0.0\", \"serve\"]}}}}"
        ),
    );
    let process_env = ProcessEnv { env: BTreeMap::new(), cwd: "/".into(), stdin_is_terminal: false };
    let places = DefinitionPlaces { directories: vec![folder.path().to_owned()], ..DefinitionPlaces::default() };
    let all = ServerDefinitions::load(&places, &UpstreamSettings::from_env(&process_env));
    assert_eq!(names(&all), ["e", "f"]);
    assert_eq!(all.problems.len(), 5);
    assert!(problems(&all)[0].contains("`a` would start Cove itself, so it is skipped; set `allow_self`"));
}

#[test]
fn a_digest_depends_on_names_but_not_on_secrets() {
    let digest = |text: &str| json(&format!("{{\"a\": {text}}}")).servers[0].digest();
    let base = digest("{\"command\": \"x\", \"args\": [\"a\", \"b\"], \"env\": {\"T\": \"1\"}}");
    assert_eq!(base, digest("{\"command\": \"x\", \"args\": [\"a\", \"b\"], \"env\": {\"T\": \"2\"}}"));
    for other in [
        "{\"command\": \"x\", \"args\": [\"ab\"], \"env\": {\"T\": \"1\"}}",
        "{\"command\": \"x\", \"args\": [\"a\", \"b\"], \"env\": {\"U\": \"1\"}}",
        "{\"command\": \"x\", \"args\": [\"a\", \"b\", \"T\"]}",
        "{\"url\": \"http://x\"}",
    ] {
        assert_ne!(base, digest(other), "{other}");
    }
}
