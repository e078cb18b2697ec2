//! Tests of the whole catalog: caching, damaged files, lookup by name, and search.

use std::fs;

use serde_json::{Value, json};

use super::*;
use cove_core::policy::grants::Grants;

fn tool(name: &str, description: &str, input: Value) -> ToolDocument {
    let Value::Object(input_schema) = input else { panic!("an object") };
    ToolDocument { name: name.into(), description: description.into(), input_schema, ..Default::default() }
}

fn plain_tool(name: &str) -> ToolDocument {
    tool(name, "Does something.", json!({"type": "object", "properties": {"path": {"type": "string"}}}))
}

fn declaration(name: &str, definition: &str) -> ServerDeclaration {
    ServerDeclaration {
        filter: Grants::default(),
        name: name.into(),
        alias: names::server_aliases(&[name]).remove(0),
        description: "A server".into(),
        definition: definition.into(),
    }
}

/// Returns the only file in a folder.
fn only_cache_file(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let file = files.next().expect("a file");
    assert_eq!(files.next(), None, "nothing else is left");
    file
}

#[test]
fn cached_tools_survive_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path().join("new/tools"));
    assert_eq!(catalog.declare(declaration("git-hub", "d1")), None);
    assert!(catalog.tools("git-hub").is_none());
    let mut second = plain_tool("b\"c");
    second.output_schema = Some(Default::default());
    second.title = Some("Title".into());
    let tools = vec![plain_tool("create-issue"), second];
    assert_eq!(catalog.set_tools("git-hub", "git_hub", "A server", tools.clone()), Vec::<String>::new());
    catalog.set_greeting("git-hub", Some(ProtocolEra::Legacy), Some("Call\u{1b}[2J `list` first."));

    let next = Catalog::open(folder.path().join("new/tools"));
    assert!(next.servers().is_empty(), "a server that is not configured is not known");
    assert_eq!(next.declare(declaration("git-hub", "d1")), None);
    let server = next.servers().remove(0);
    assert_eq!((server.era, server.alias.as_str()), (Some(ProtocolEra::Legacy), "git_hub"));
    assert_eq!(server.instructions.as_deref(), Some("Call `list` first."));
    assert!(server.listed_at.is_some_and(|at| at > 1_700_000_000));
    assert_eq!(next.tools("git_hub").expect("listed").documents().collect::<Vec<_>>(), tools);
    let text = fs::read_to_string(only_cache_file(&folder.path().join("new/tools"))).expect("a file");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["tools"][0]["name"], "create-issue");

    let changed = Catalog::open(folder.path().join("new/tools"));
    assert_eq!(changed.declare(declaration("git-hub", "d2")), None);
    assert!(changed.tools("git-hub").is_none(), "another definition is another server");
    next.remove("git-hub");
    assert!(fs::read_dir(folder.path().join("new/tools")).expect("a folder").next().is_none());
}

#[test]
fn declaring_again_keeps_known_tools() {
    let catalog = Catalog::in_memory();
    catalog.declare(declaration("a", "1"));
    catalog.set_tools("a", "a", "", vec![plain_tool("x")]);
    catalog.declare(declaration("a", "1"));
    assert_eq!(catalog.tools("a").map(|tools| tools.len()), Some(1));
    catalog.declare(declaration("a", "2"));
    assert!(catalog.tools("a").is_none());
    catalog.declare(declaration("b", "1"));
    catalog.retain(|name| name == "b");
    assert_eq!(catalog.servers().len(), 1);
}

#[test]
fn reports_and_rewrites_a_damaged_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path());
    catalog.declare(declaration("s", "d"));
    catalog.set_tools("s", "s", "", vec![plain_tool("one"), plain_tool("two")]);
    let path = only_cache_file(folder.path());
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
        let word = next.declare(declaration("s", "d")).expect("told");
        assert!(word.contains("listed again"), "{word}");
        assert!(next.tools("s").is_none());
        assert_eq!(next.set_tools("s", "s", "", vec![plain_tool("one")]), Vec::<String>::new());
        let again = Catalog::open(folder.path());
        assert_eq!(again.declare(declaration("s", "d")), None);
        assert_eq!(again.tools("s").map(|tools| tools.len()), Some(1));
    }
    // A file of another version, or of another server with the same file name, is ignored.
    for (from, to) in [("\"version\":3", "\"version\":99"), ("\"server\":\"s\"", "\"server\":\"t\"")] {
        fs::write(&path, String::from_utf8_lossy(&good).replace(from, to)).expect("written");
        let next = Catalog::open(folder.path());
        assert_eq!(next.declare(declaration("s", "d")), None);
        assert!(next.tools("s").is_none());
    }
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a folder in its place");
    assert!(Catalog::open(folder.path()).declare(declaration("s", "d")).is_some());
}

#[test]
fn unwritable_cache_only_loses_the_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "").expect("written");
    let catalog = Catalog::open(folder.path().join("file/tools"));
    let words = catalog.set_tools("s", "s", "", vec![plain_tool("one")]);
    assert!(words[0].starts_with("could not keep the tools of `s` in "), "{words:?}");
    assert_eq!(catalog.tools("s").map(|tools| tools.len()), Some(1));
}

#[test]
fn keeps_hostile_lists_without_harmful_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path());
    let mut tools =
        vec![plain_tool("good"), plain_tool("good"), plain_tool(""), plain_tool("a\nb"), plain_tool("../../etc")];
    tools.extend((0..20).map(|_| plain_tool("\u{202e}")));
    let words = catalog.set_tools("../../s\n", "s", "d\u{1b}[2J\u{202e}", tools);
    assert_eq!(words.len(), 6, "{words:?}");
    assert_eq!(words[0], "left out a second tool `good`");
    assert_eq!(words[5], "left out 18 more");
    let listed: Vec<String> = catalog.tools("s").expect("listed").names().map(str::to_owned).collect();
    assert_eq!(listed, ["good", "../../etc"]);
    let name = only_cache_file(folder.path()).file_name().map(|name| name.to_string_lossy().into_owned());
    assert!(name.is_some_and(|name| name.starts_with("s-") && name.ends_with(".json")));
    assert_eq!(catalog.servers()[0].description, "d\\u{202e}");
}

#[test]
fn truncates_an_endless_tool_list() {
    let catalog = Catalog::in_memory();
    let big = json!({"description": "x".repeat(15_000), "x": "y".repeat(400_000)});
    let words = catalog.set_tools("s", "s", "", (0..100).map(|n| tool(&format!("t{n}"), "", big.clone())).collect());
    assert!(words.iter().any(|word| word.contains("a server's tools may have 31 MiB")), "{words:?}");
    assert!(catalog.tools("s").is_some_and(|tools| (50..100).contains(&tools.len())));
}

#[test]
fn finds_tools_in_any_spelling() {
    let catalog = Catalog::in_memory();
    catalog.set_tools(
        "My-Server",
        "my_server",
        "",
        vec![plain_tool("get-sum"), plain_tool("get_sum"), plain_tool("from"), plain_tool("getURL")],
    );
    let name = |server: &str, tool: &str| match catalog.find_tool(server, tool) {
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
    let Err(ToolLookupError::Tool { nearest }) = catalog.find_tool("my_server", "get_smu") else { panic!("found") };
    assert_eq!(nearest, ["get-sum", "get_sum"]);
    let Err(ToolLookupError::Server { nearest }) = catalog.find_tool("my_sever", "x") else { panic!("found") };
    assert_eq!(nearest, ["My-Server"]);
    catalog.declare(declaration("other", ""));
    assert!(matches!(catalog.find_tool("other", "x"), Err(ToolLookupError::Unlisted)));
    catalog.set_tools("other", "other", "", vec![]);
    assert!(matches!(catalog.find_tool("other", ""), Err(ToolLookupError::Tool { nearest }) if nearest.is_empty()));
}

#[test]
fn search_results_have_a_stable_order() {
    let catalog = Catalog::in_memory();
    let describe = |name: &str, words: &str| tool(name, words, json!({"properties": {"owner": {}}}));
    catalog.set_tools(
        "hub",
        "hub",
        "Code hosting",
        vec![
            describe("create_issue", "Create a new issue."),
            describe("list_issues", "List issues of a repository."),
            describe("createPullRequest", "Open a pull request."),
        ],
    );
    catalog.set_tools("mail", "mail", "", vec![describe("send", "Send an email."), describe("list", "List mail.")]);
    let first = |query: &str| {
        let found = catalog.search(query, 1);
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
    let found = catalog.search("issue", 1);
    assert_eq!((found.hits.len(), found.total), (1, 2));
    assert_eq!(catalog.search("issue", 0), SearchHits { hits: vec![], total: 2 });
    assert_eq!(catalog.search("list", 9), catalog.clone().search("list", 9));
    let narrow = catalog.view().search_allowed("issue", 5, |_, tool| tool == "list_issues");
    assert_eq!((narrow.hits.len(), narrow.total), (1, 1));
    assert_eq!(catalog.search(&"issue ".repeat(100_000), 5).total, 2);
    // A changed or removed server shows in searches at once. A view stays as it was.
    let before = catalog.view();
    catalog.set_tools("hub", "hub", "", vec![describe("close_issue", "Close.")]);
    assert_eq!(first("issue"), "hub.close_issue");
    catalog.remove("hub");
    assert_eq!(catalog.search("issue", 5).total, 0);
    assert_eq!(before.search("issue", 5).total, 2);
}

#[test]
fn unchanged_tool_list_keeps_its_index() {
    let catalog = Catalog::in_memory();
    catalog.set_tools("s", "s", "", vec![plain_tool("a")]);
    let before = catalog.tools("s").expect("listed");
    catalog.set_tools("s", "t", "other words", vec![plain_tool("a")]);
    assert!(Arc::ptr_eq(&before, &catalog.tools("s").expect("listed")));
    assert_eq!(catalog.servers()[0].alias, "t");
}

/// Two servers whose tools share no word with the queries that search for them by meaning.
fn catalog_of_synonyms(catalog: Catalog) -> Catalog {
    let describe = |name: &str, words: &str| tool(name, words, json!({"properties": {}}));
    let payments = vec![
        describe("capture_payment", "Capture an authorized payment."),
        describe("refund", "Refund a charge to the cardholder."),
    ];
    catalog.set_tools("stripe", "stripe", "", payments);
    let weather =
        vec![describe("get_forecast", "Weather forecast for a city."), describe("get_alerts", "Storm alerts.")];
    catalog.set_tools("sky", "sky", "", weather);
    catalog
}

fn hit_names(catalog: &Catalog, query: &str) -> Vec<String> {
    catalog.search(query, 50).hits.into_iter().map(|hit| hit.tool).collect()
}

#[test]
fn search_finds_tools_by_meaning() {
    let catalog = catalog_of_synonyms(Catalog::in_memory());
    assert_eq!(hit_names(&catalog, "pay my supplier"), ["capture_payment"]);
    assert_eq!(hit_names(&catalog, "hurricane warning"), ["get_alerts"]);
    let plain = catalog_of_synonyms(Catalog::in_memory().with_search(SearchMode::Bm25));
    assert_eq!(hit_names(&plain, "hurricane warning"), Vec::<String>::new());
    assert_eq!(hit_names(&plain, "refund charge"), ["refund"]);
}

#[test]
fn search_finds_nothing_for_gibberish() {
    let catalog = catalog_of_synonyms(Catalog::in_memory());
    for query in
        ["asdf qwer", "sdfsdf", "blah blah", "7 8 9", "purple elephant", "x", "the of", "\u{202e}\u{0}", "日本"]
    {
        assert_eq!(hit_names(&catalog, query), Vec::<String>::new(), "{query}");
    }
}

#[test]
fn results_are_learned_until_the_tool_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        let catalog = Catalog::open(folder.path());
        catalog.declare(declaration("a", "1"));
        catalog
    };
    let shown = |catalog: &Catalog, tool: &str| {
        let known = catalog.find_tool("a", tool).expect("a tool");
        known.server.reference(cove_protocol::Language::Python, &known.alias, &known.document).signature()
    };
    let catalog = open();
    assert!(!catalog.learn_result("a", "x", Some(&json!("text"))), "its tools are not known");
    catalog.set_tools("a", "a", "", vec![plain_tool("x"), plain_tool("y")]);
    assert!(shown(&catalog, "x").ends_with("-> Any"));
    assert!(catalog.learn_result("a", "x", Some(&json!("text"))));
    assert!(!catalog.learn_result("a", "x", Some(&json!("other text"))), "nothing new");
    assert!(!catalog.learn_result("a", "none", Some(&json!("text"))) && !catalog.learn_result("b", "x", None));
    assert!(shown(&catalog, "x").ends_with("-> str"));
    catalog.save_results("a");

    let next = open();
    assert!(shown(&next, "x").ends_with("-> str"), "{}", shown(&next, "x"));
    next.set_tools("a", "a", "", vec![plain_tool("y"), plain_tool("x")]);
    assert!(shown(&next, "x").ends_with("-> str"), "the same tool in another list");
    for _ in 0..3 {
        assert!(!next.learn_result("a", "x", Some(&json!("text"))));
    }
    assert!(!next.learn_result("a", "x", Some(&json!(5))), "five answers are enough");
    next.set_tools("a", "a", "", vec![tool("x", "Does something else.", json!({}))]);
    assert!(shown(&next, "x").ends_with("-> Any"), "{}", shown(&next, "x"));
    assert!(next.learn_result("a", "x", Some(&json!({"n": 1}))) && next.learn_result("a", "x", None));
    assert!(shown(&next, "x").ends_with("-> Any"));
}

#[test]
fn reads_caches_without_newer_fields() {
    let folder = tempfile::tempdir().expect("a folder");
    let catalog = Catalog::open(folder.path());
    catalog.declare(declaration("a", "1"));
    catalog.set_tools("a", "a", "", vec![plain_tool("x")]);
    let text = fs::read_to_string(only_cache_file(folder.path())).expect("a file");
    for newer in ["destructive", "deprecated", "instructions", "results"] {
        assert!(!text.contains(newer), "an older Cove can read it, and this one its own: {text}");
    }
}

#[test]
fn damaged_weights_leave_search_by_words() {
    let mut bytes = include_bytes!("../../weights/potion-base-2m.bin").to_vec();
    bytes[5000] ^= 1;
    let damaged: &'static LazyEmbedding = Box::leak(Box::new(LazyEmbedding::new(bytes.leak())));
    let log = WarningLog::default();
    let catalog = tracing::subscriber::with_default(log.clone(), || {
        let catalog = catalog_of_synonyms(Catalog::in_memory().with_embedding(Some(damaged)));
        assert_eq!(hit_names(&catalog, "hurricane warning"), Vec::<String>::new());
        assert_eq!(hit_names(&catalog, "refund charge"), ["refund"]);
        catalog_of_synonyms(Catalog::in_memory().with_embedding(Some(damaged)))
    });
    assert_eq!(hit_names(&catalog, "refund charge"), ["refund"]);
    let problem = "could not read the weights for search, so it compares words only: their checksum is wrong";
    assert_eq!(*log.0.lock().expect("a log"), [problem]);
}

/// Keeps the messages of events.
#[derive(Clone, Default)]
struct WarningLog(Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for WarningLog {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                self.0.lock().expect("a log").push(format!("{value:?}"));
            }
        });
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn deprecated_tools_rank_last() {
    let catalog = Catalog::in_memory();
    let describe = |name: &str, words: &str| tool(name, words, json!({"properties": {}}));
    let tools = vec![
        describe("list_issues", "[DEPRECATED] List issues; use search_issues."),
        describe("issue_list", "**Deprecated.** List issues."),
        describe("search_issues", "Search, or list, everything."),
        describe("old", "Lists issues. This is not deprecated, whatever the name says."),
        ToolDocument { deprecated: true, ..describe("all_issue_list", "List all issues.") },
    ];
    catalog.set_tools("s", "s", "", tools);
    for mode in SearchMode::ALL {
        let names = hit_names(&catalog.clone().with_search(mode), "list all issues");
        let mut last = names[2..].to_vec();
        last.sort();
        assert_eq!(last, ["all_issue_list", "issue_list", "list_issues"], "{mode:?}: {names:?}");
        assert_eq!(hit_names(&catalog, "list_issues")[0], "list_issues", "an exact name still comes first");
        assert_ne!(hit_names(&catalog, "list issues")[0], "list_issues", "words are not a name");
    }
    catalog.set_tools("s", "s", "", vec![describe("a", "é"), describe("b", "(deprecate"), describe("c", "")]);
    assert_eq!(hit_names(&catalog, "a"), ["a"]);
}

#[test]
fn instructions_are_bounded_and_sanitized() {
    let catalog = Catalog::in_memory();
    catalog.declare(declaration("a", "1"));
    catalog.set_greeting("a", None, Some(&format!("\u{1b}[31mFirst\u{202e}\n{}", "é".repeat(1 << 20))));
    let instructions = catalog.servers()[0].instructions.clone().expect("instructions");
    assert!(
        instructions.starts_with("First\\u{202e}\n") && instructions.len() < MAX_INSTRUCTIONS + 100,
        "{instructions}"
    );
    catalog.set_greeting("a", Some(ProtocolEra::Modern), Some(" \n"));
    assert_eq!(catalog.servers()[0].instructions, None);
}
