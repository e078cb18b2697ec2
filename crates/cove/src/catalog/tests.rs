//! The catalog as a whole: what is kept, what comes back, what damaged files do, and how names and searches find tools.

use std::fs;

use serde_json::{Value, json};

use super::*;

fn tool(name: &str, description: &str, input: Value) -> ToolDocument {
    let Value::Object(input_schema) = input else { panic!("an object") };
    ToolDocument {
        name: name.into(),
        title: None,
        description: description.into(),
        input_schema,
        output_schema: None,
        read_only: false,
    }
}

fn plain(name: &str) -> ToolDocument {
    tool(name, "Does something.", json!({"type": "object", "properties": {"path": {"type": "string"}}}))
}

fn declared(name: &str, definition: &str) -> Declared {
    Declared {
        name: name.into(),
        alias: names::server_aliases(&[name]).remove(0),
        description: "A server".into(),
        definition: definition.into(),
    }
}

/// The one file in a folder.
fn file(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let file = files.next().expect("a file");
    assert_eq!(files.next(), None, "nothing else is left");
    file
}

#[test]
fn tools_are_there_in_the_next_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path().join("new/tools"));
    assert_eq!(catalog.declare(declared("git-hub", "d1")), None);
    assert!(catalog.tools("git-hub").is_none());
    let mut second = plain("b\"c");
    second.output_schema = Some(Default::default());
    second.title = Some("Title".into());
    let tools = vec![plain("create-issue"), second];
    assert_eq!(catalog.set("git-hub", "git_hub", "A server", tools.clone()), Vec::<String>::new());
    catalog.set_era("git-hub", Era::Legacy);

    let next = Catalog::open(folder.path().join("new/tools"));
    assert!(next.servers().is_empty(), "a server that is not configured is not known");
    assert_eq!(next.declare(declared("git-hub", "d1")), None);
    let server = next.servers().remove(0);
    assert_eq!((server.era, server.alias.as_str()), (Some(Era::Legacy), "git_hub"));
    assert!(server.listed_at.is_some_and(|at| at > 1_700_000_000));
    assert_eq!(next.tools("git_hub").expect("listed").documents().collect::<Vec<_>>(), tools);
    let text = fs::read_to_string(file(&folder.path().join("new/tools"))).expect("a file");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["tools"][0]["name"], "create-issue");

    let changed = Catalog::open(folder.path().join("new/tools"));
    assert_eq!(changed.declare(declared("git-hub", "d2")), None);
    assert!(changed.tools("git-hub").is_none(), "another definition is another server");
    next.remove("git-hub");
    assert!(fs::read_dir(folder.path().join("new/tools")).expect("a folder").next().is_none());
}

#[test]
fn declaring_again_keeps_what_is_known() {
    let catalog = Catalog::in_memory();
    catalog.declare(declared("a", "1"));
    catalog.set("a", "a", "", vec![plain("x")]);
    catalog.declare(declared("a", "1"));
    assert_eq!(catalog.tools("a").map(|tools| tools.len()), Some(1));
    catalog.declare(declared("a", "2"));
    assert!(catalog.tools("a").is_none());
    catalog.declare(declared("b", "1"));
    catalog.retain(|name| name == "b");
    assert_eq!(catalog.servers().len(), 1);
}

#[test]
fn a_damaged_file_is_told_and_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path());
    catalog.declare(declared("s", "d"));
    catalog.set("s", "s", "", vec![plain("one"), plain("two")]);
    let path = file(folder.path());
    let good = fs::read(&path).expect("a file");
    let damaged: Vec<Vec<u8>> = vec![
        vec![],
        b"{".to_vec(),
        b"\xff\xfe".to_vec(),
        good[..good.len() / 2].to_vec(),
        good[..good.len() - 5].to_vec(),
        String::from_utf8_lossy(&good).replace("\"name\":\"two\"", "\"name\":2").into_bytes(),
        String::from_utf8_lossy(&good).replace("\"input_schema\":{", "\"input_schema\":[{").into_bytes(),
        vec![b' '; cache::MAX_FILE as usize + 1],
    ];
    for bytes in damaged {
        fs::write(&path, &bytes).expect("written");
        let next = Catalog::open(folder.path());
        let word = next.declare(declared("s", "d")).expect("told");
        assert!(word.contains("listed anew"), "{word}");
        assert!(next.tools("s").is_none());
        assert_eq!(next.set("s", "s", "", vec![plain("one")]), Vec::<String>::new());
        let again = Catalog::open(folder.path());
        assert_eq!(again.declare(declared("s", "d")), None);
        assert_eq!(again.tools("s").map(|tools| tools.len()), Some(1));
    }
    // One of another version, or of a server whose name only looks the same to the file system, is none.
    for (from, to) in [("\"version\":1", "\"version\":99"), ("\"server\":\"s\"", "\"server\":\"t\"")] {
        fs::write(&path, String::from_utf8_lossy(&good).replace(from, to)).expect("written");
        let next = Catalog::open(folder.path());
        assert_eq!(next.declare(declared("s", "d")), None);
        assert!(next.tools("s").is_none());
    }
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a folder in its place");
    assert!(Catalog::open(folder.path()).declare(declared("s", "d")).is_some());
}

#[test]
fn a_cache_that_cannot_be_written_costs_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "").expect("written");
    let catalog = Catalog::open(folder.path().join("file/tools"));
    let words = catalog.set("s", "s", "", vec![plain("one")]);
    assert!(words[0].starts_with("could not keep the tools of `s` in "), "{words:?}");
    assert_eq!(catalog.tools("s").map(|tools| tools.len()), Some(1));
}

#[test]
fn hostile_lists_are_kept_without_what_harms() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path());
    let mut tools = vec![plain("good"), plain("good"), plain(""), plain("a\nb"), plain("../../etc")];
    tools.extend((0..20).map(|_| plain("\u{202e}")));
    let words = catalog.set("../../s\n", "s", "d\u{1b}[2J\u{202e}", tools);
    assert_eq!(words.len(), 6, "{words:?}");
    assert_eq!(words[0], "left out a second tool `good`");
    assert_eq!(words[5], "left out 18 more");
    let listed: Vec<String> = catalog.tools("s").expect("listed").names().map(str::to_owned).collect();
    assert_eq!(listed, ["good", "../../etc"]);
    let name = file(folder.path()).file_name().map(|name| name.to_string_lossy().into_owned());
    assert!(name.is_some_and(|name| name.starts_with("s-") && name.ends_with(".json")));
    assert_eq!(catalog.servers()[0].description, "d\\u{202e}");
}

#[test]
fn a_list_without_end_is_cut() {
    let catalog = Catalog::in_memory();
    let big = json!({"description": "x".repeat(15_000), "x": "y".repeat(400_000)});
    let words =
        catalog.set("s", "s", "", (0..100).map(|n| tool(&format!("t{n}"), "", big.clone())).collect());
    assert!(words.iter().any(|word| word.contains("a server's tools may have 31 MiB")), "{words:?}");
    assert!(catalog.tools("s").is_some_and(|tools| (50..100).contains(&tools.len())));
}

#[test]
fn names_are_found_however_they_are_spelled() {
    let catalog = Catalog::in_memory();
    catalog.set(
        "My-Server",
        "my_server",
        "",
        vec![plain("get-sum"), plain("get_sum"), plain("from"), plain("getURL")],
    );
    let name = |server: &str, tool: &str| match catalog.get(server, tool) {
        Ok(known) => format!("{} as {}", known.document.name, known.alias),
        Err(unknown) => format!("{unknown:?}"),
    };
    for server in ["My-Server", "my_server", "myServer", "MY SERVER"] {
        assert_eq!(name(server, "get_sum"), "get_sum as get_sum");
    }
    assert_eq!(name("my_server", "get-sum"), "get-sum as get_sum_2");
    assert_eq!(name("my_server", "get_sum_2"), "get-sum as get_sum_2");
    assert_eq!(name("my_server", "from_"), "from as from_");
    assert_eq!(name("my_server", "get_url"), "getURL as getURL");
    let Err(Unknown::Tool { nearest, .. }) = catalog.get("my_server", "get_smu") else { panic!("found") };
    assert_eq!(nearest, ["get-sum", "get_sum"]);
    let Err(Unknown::Server { nearest }) = catalog.get("my_sever", "x") else { panic!("found") };
    assert_eq!(nearest, ["My-Server"]);
    catalog.declare(declared("other", ""));
    assert!(matches!(catalog.get("other", "x"), Err(Unknown::Unlisted { .. })));
    catalog.set("other", "other", "", vec![]);
    assert!(matches!(catalog.get("other", ""), Err(Unknown::Tool { nearest, .. }) if nearest.is_empty()));
}

#[test]
fn searches_find_and_keep_their_order() {
    let catalog = Catalog::in_memory();
    let describe = |name: &str, words: &str| tool(name, words, json!({"properties": {"owner": {}}}));
    catalog.set(
        "hub",
        "hub",
        "Code hosting",
        vec![
            describe("create_issue", "Create a new issue."),
            describe("list_issues", "List issues of a repository."),
            describe("createPullRequest", "Open a pull request."),
        ],
    );
    catalog.set("mail", "mail", "", vec![describe("send", "Send an email."), describe("list", "List mail.")]);
    let first = |query: &str| {
        let found = catalog.find(query, 1);
        found.hits.first().map(|hit| format!("{}.{}", hit.server, hit.tool)).unwrap_or_default()
    };
    for (query, expected) in [
        ("create_issue", "hub.create_issue"),
        ("hub.create_issue", "hub.create_issue"),
        ("createissue", "hub.create_issue"),
        ("create pull request", "hub.createPullRequest"),
        ("send", "mail.send"),
        ("MAIL.LIST", "mail.list"),
        ("creating an issue", "hub.create_issue"),
        ("craete isue", "hub.create_issue"),
        ("reposit", "hub.list_issues"),
        ("hub repository", "hub.list_issues"),
        ("zzzzzz", ""),
        ("", ""),
        ("the of", ""),
        ("💥 \u{0}", ""),
    ] {
        assert_eq!(first(query), expected, "`{query}`");
    }
    let found = catalog.find("issue", 1);
    assert_eq!((found.hits.len(), found.total), (1, 2));
    assert_eq!(catalog.find("issue", 0), Found { hits: vec![], total: 2 });
    assert_eq!(catalog.find("list", 9), catalog.clone().find("list", 9));
    let narrow = catalog.view().find_among("issue", 5, |_, tool| tool == "list_issues");
    assert_eq!((narrow.hits.len(), narrow.total), (1, 1));
    assert_eq!(catalog.find(&"issue ".repeat(100_000), 5).total, 2);
    // A server that changes or goes is found as it is now; a view stays as it was.
    let before = catalog.view();
    catalog.set("hub", "hub", "", vec![describe("close_issue", "Close.")]);
    assert_eq!(first("issue"), "hub.close_issue");
    catalog.remove("hub");
    assert_eq!(catalog.find("issue", 5).total, 0);
    assert_eq!(before.find("issue", 5).total, 2);
}

#[test]
fn a_list_that_is_the_same_keeps_its_index() {
    let catalog = Catalog::in_memory();
    catalog.set("s", "s", "", vec![plain("a")]);
    let before = catalog.tools("s").expect("listed");
    catalog.set("s", "t", "other words", vec![plain("a")]);
    assert!(Arc::ptr_eq(&before, &catalog.tools("s").expect("listed")));
    assert_eq!(catalog.servers()[0].alias, "t");
}
