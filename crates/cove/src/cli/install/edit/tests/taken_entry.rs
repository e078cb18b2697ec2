//! Entries that are taken out and put back: the same values in the same order, whatever the layout, and in the usual
//! layouts the same bytes.

use super::*;

const JSON: &[&str] = &["mcpServers"];
const TOML: &[&str] = &["mcp_servers"];
const YAML: &[&str] = &["extensions"];

/// Files whose bytes come back exactly.
const EXACT: &[(Format, &[&str], &str)] = &[
    (
        Format::Json,
        JSON,
        "{\n  \"mcpServers\": {\n    \"a\": {\"command\": \"a\"},\n    \"b\": {\n      \"url\": \"u\"\n    },\n    \"c\": {}\n  },\n  \"x\": 1\n}\n",
    ),
    (Format::Json, JSON, "{\"mcpServers\":{\"a\":{\"command\":\"a\"},\"b\":{},\"c\":{}}}"),
    (Format::Json, JSON, "{\"mcpServers\": {\"a\": {\"command\": \"a\"}, \"b\": {}, \"c\": {}}}"),
    (
        Format::Json,
        JSON,
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"a\": {},\r\n\t\t\"b\": {\"env\": {\"X\": \"1\"}}\r\n\t}\r\n}",
    ),
    (
        Format::Toml,
        TOML,
        "model = \"x\"\n\n[features]\nx = true\n\n[mcp_servers.a]\ncommand = \"a\" # mine\n\n[mcp_servers.a.env]\nX = \"1\"\n\n[mcp_servers.b]\nurl = 'u'\n\n[mcp_servers.c]\ncommand = \"c\"\n",
    ),
    (Format::Toml, TOML, "[mcp_servers]\na = { command = 'a' }\nb.command = 'b'\nb.args = []\nc = {command = 'c'}\n"),
    (
        Format::Yaml,
        YAML,
        "GOOSE_MODEL: x\nextensions:\n  a:\n    cmd: a # mine\n    args: [x]\n  b:\n    uri: u\n    envs: {}\n  c:\n    cmd: c\nlast: 1\n",
    ),
    (
        Format::Yaml,
        YAML,
        "extensions:\n    a:\n        cmd: a\n    b:\n        description: |\n            two\n\n            lines\n    c: {cmd: c}",
    ),
];

/// Files that only keep values and order.
const OTHERS: &[(Format, &[&str], &str)] = &[
    (Format::Yaml, YAML, "extensions: {a: {cmd: a}, b: {cmd: b}, c: {cmd: c}}\n"),
    (
        Format::Toml,
        TOML,
        "[mcp_servers.a]\ncommand = \"a\"\n# inside\nargs = [\n  \"y\",\n]\n\n[mcp_servers.b]\nurl = 'u'",
    ),
    (
        Format::Toml,
        TOML,
        "[mcp_servers.a]\ncommand = 'a'\n\n[mcp_servers.b]\nurl = 'u'\n\n# not theirs\n[features]\nx = true\n",
    ),
    (
        Format::Json,
        JSON,
        "// top\n{\n  \"mcpServers\": { // mine\n    // about a\n    \"a\": {}, // behind a\n    /* b */ \"b\": {\"x\": [1, 2,],},\n    \"c\": {} // last\n    ,\n  },\n}\n",
    ),
    (Format::Json, JSON, "{\"mcpServers\": {\"a\": {},\n\"b\": {}, \"c\": {}\n}}"),
    (Format::Json, JSON, "{\"mcpServers\": {\"a\\u0062\": {}, \"\": {}, \"a.b\": {}}}"),
    (
        Format::Toml,
        TOML,
        "[mcp_servers.a]\ncommand = 'a'\n[other]\nx = 1\n[mcp_servers.b]\ncommand = 'b'\n[mcp_servers.a.env]\nX = '1'\n",
    ),
    (Format::Toml, TOML, "mcp_servers.a.command = 'a'\nmcp_servers.b.command = 'b'\n[x]\ny = 1\n"),
    (Format::Toml, TOML, "[mcp_servers.\"a b\"]\ncommand = 'a'\n[mcp_servers.'c.d']\ncommand = 'c'\n"),
    (
        Format::Yaml,
        YAML,
        "# top\nextensions:\n  # about a\n  a: {cmd: a}\n\n  # about b\n  b:\n    cmd: b\n\nlast: 1\n",
    ),
    (
        Format::Yaml,
        YAML,
        "\"extensions\":\n  \"a b\":\n    cmd: >-\n      folded\n      text\n  'c': {cmd: c,\n    args: []}\n",
    ),
];

fn names(document: &ConfigDocument, container: &[&str]) -> Vec<String> {
    let members = find(document, &path(container)).unwrap().and_then(DocumentNode::members).unwrap_or_default();
    members.iter().map(|member| member.key.clone()).collect()
}

/// Takes the chosen entries out. None if Cove refuses one of them.
fn take(document: &ConfigDocument, container: &[&str], chosen: &[String]) -> Option<(ConfigDocument, Vec<TakenEntry>)> {
    let mut left = document.clone();
    let mut taken = Vec::new();
    for name in chosen {
        let path = path(&[container, &[name]].concat());
        taken.push(TakenEntry::find(document, &path).ok()??);
        left = remove(&left, &path).ok()??;
    }
    Some((left, taken))
}

fn put_all(document: &ConfigDocument, taken: &[TakenEntry]) -> ConfigDocument {
    taken.iter().fold(document.clone(), |document, entry| {
        entry.put_back(&document).unwrap_or_else(|refusal| panic!("{refusal:?} in {}", document.text()))
    })
}

/// True if the entries are the same in the same order, and everything else is too.
fn is_same(one: &ConfigDocument, other: &ConfigDocument, container: &[&str]) -> bool {
    let container = path(container);
    find(one, &container) == find(other, &container) && is_same_except(one.root(), other.root(), &container)
}

/// Every choice among the entries of a file.
fn choices(names: &[String]) -> Vec<Vec<String>> {
    let chosen = |set: usize| {
        let picked = names.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
        picked.map(|(_, name)| name.clone()).collect()
    };
    (1..1 << names.len()).map(chosen).collect()
}

#[test]
fn the_same_bytes_come_back() {
    for (format, container, text) in EXACT {
        let document = read(*format, text);
        for chosen in choices(&names(&document, container)) {
            let (left, taken) = take(&document, container, &chosen).unwrap_or_else(|| panic!("{chosen:?} of {text}"));
            assert_eq!(put_all(&left, &taken).file_text(), *text, "{chosen:?} by way of {}", left.text());
        }
    }
}

#[test]
fn the_same_values_come_back_in_the_same_order() {
    for (format, container, text) in OTHERS {
        let document = read(*format, text);
        let mut count = 0;
        for chosen in choices(&names(&document, container)) {
            let Some((left, taken)) = take(&document, container, &chosen) else { continue };
            count += 1;
            let back = put_all(&left, &taken);
            assert!(is_same(&back, &document, container), "{chosen:?} by way of {} to {}", left.text(), back.text());
        }
        assert!(count > 0, "{text}");
    }
}

/// The client has written the file in another layout, with an entry of Cove and a new one of the user.
#[test]
fn entries_come_back_into_a_file_of_another_layout() {
    let before = read(
        Format::Json,
        "{\n    \"mcpServers\": {\n        \"a\": {\"command\":   \"a\"},\n        \"b\": {}, \"c\": {}\n    }\n}",
    );
    let (_, taken) = take(&before, JSON, &["a".into(), "c".into()]).unwrap();
    let check = |now: &str, expected: &str| assert_eq!(put_all(&read(Format::Json, now), &taken).text(), expected);
    check(
        "{\n  \"mcpServers\": {\n    \"b\": {},\n    \"cove\": {}\n  }\n}",
        "{\n  \"mcpServers\": {\n    \"a\": {\"command\":   \"a\"},\n    \"b\": {},\n    \"c\": {},\n    \"cove\": {}\n  }\n}",
    );
    check(
        "{\n  \"mcpServers\": {\n    \"cove\": {}\n  }\n}",
        "{\n  \"mcpServers\": {\n    \"a\": {\"command\":   \"a\"},\n    \"c\": {},\n    \"cove\": {}\n  }\n}",
    );
    check("{}", "{\n  \"mcpServers\": {\n    \"a\": {\"command\":   \"a\"},\n    \"c\": {}\n  }\n}");
    check("", "{\n  \"mcpServers\": {\n    \"a\": {\"command\":   \"a\"},\n    \"c\": {}\n  }\n}\n");
    let yaml =
        read(Format::Yaml, "extensions:\n    a:\n        cmd: a\n        x: |\n            t\n    b: {cmd: b}\n");
    let (_, taken) = take(&yaml, YAML, &["a".into(), "b".into()]).unwrap();
    let back = put_all(&read(Format::Yaml, "x: 1\nextensions:\n  cove:\n    cmd: cove\n"), &taken);
    assert_eq!(
        back.text(),
        "x: 1\nextensions:\n  a:\n      cmd: a\n      x: |\n          t\n  b: {cmd: b}\n  cove:\n    cmd: cove\n"
    );
    let back = put_all(&read(Format::Yaml, "x: 1"), &taken);
    assert_eq!(names(&back, YAML), ["a", "b"], "{}", back.text());
    let toml = read(Format::Toml, "[mcp_servers]\na = { command = 'a' }\n[mcp_servers.b]\ncommand = 'b'\n");
    let (_, taken) = take(&toml, TOML, &["a".into(), "b".into()]).unwrap();
    let back = put_all(&read(Format::Toml, "x = 1\n\n[mcp_servers.cove]\ncommand = 'cove'\n"), &taken);
    assert_eq!(find(&back, &path(&["mcp_servers", "a"])), find(&toml, &path(&["mcp_servers", "a"])), "{}", back.text());
    assert_eq!(find(&back, &path(&["mcp_servers", "b"])), find(&toml, &path(&["mcp_servers", "b"])), "{}", back.text());
}

#[test]
fn refuses_entries_that_could_not_come_back() {
    let alias = "x: &x {A: b}\nextensions:\n  a: {cmd: a, envs: *x}\n  b: &b {cmd: b}\n  c: *b\n";
    let document = read(Format::Yaml, alias);
    let entry = |name: &str| TakenEntry::find(&document, &path(&["extensions", name]));
    assert!(entry("a").is_err() && entry("c").is_err());
    // Another entry refers to it.
    assert!(entry("b").is_err() || remove(&document, &path(&["extensions", "b"])).is_err());
    let inline = read(Format::Toml, "mcp_servers = { a = { command = 'a' } }\n");
    assert!(TakenEntry::find(&inline, &path(&["mcp_servers", "a"])).is_err());
    let taken = TakenEntry::find(&read(Format::Json, "{\"m\": {\"a\": 1}}"), &path(&["m", "a"])).unwrap().unwrap();
    assert!(taken.put_back(&read(Format::Json, "{\"m\": {\"a\": 2}}")).is_err());
    assert!(taken.put_back(&read(Format::Json, "{\"m\": []}")).is_err());
}

/// Files with random faults: Cove refuses them, or gives every value back in its place.
#[test]
fn mutated_files_are_refused_or_come_back() {
    let mut numbers = cove_testkit::numbers::SeededNumbers::new(7);
    let mut random = |below: usize| numbers.index(below);
    let pieces =
        ["{", "}", "\"", ",", ":", "\n", " ", "  ", "#", "//", "[", "]", "a", "=", "'", "- ", "&x ", "*x", "\r"];
    let mut edited = 0;
    for _ in 0..4_000 {
        let samples = EXACT.len() + OTHERS.len();
        let (format, container, sample) = EXACT.iter().chain(OTHERS).nth(random(samples)).unwrap();
        let mut text: Vec<char> = sample.chars().collect();
        for _ in 0..=random(2) {
            let at = random(text.len());
            match random(3) {
                0 => drop(text.remove(at)),
                1 => text.splice(at..at, pieces[random(pieces.len())].chars()).for_each(drop),
                _ => text.splice(at..=at, pieces[random(pieces.len())].chars()).for_each(drop),
            }
        }
        let text: String = text.into_iter().collect();
        let Ok(document) = ConfigDocument::parse(*format, &text) else { continue };
        let Ok(Some(servers)) = find(&document, &path(container)) else { continue };
        let names: Vec<String> = {
            let is_entry = |member: &&DocumentMember| member.node.members().is_some();
            let entries = servers.members().unwrap_or_default().iter().filter(is_entry);
            entries.map(|member| member.key.clone()).collect()
        };
        let chosen: Vec<String> = names.into_iter().filter(|_| random(2) == 0).collect();
        let Some((left, taken)) = take(&document, container, &chosen) else { continue };
        let back = put_all(&left, &taken);
        assert!(
            is_same(&back, &document, container),
            "{chosen:?} of {text:?} by way of {:?} to {:?}",
            left.text(),
            back.text()
        );
        edited += 1;
    }
    assert!(edited > 500, "{edited}");
}
