//! What a tool's description says of upstream servers: every signature where they are few enough, else the names of the
//! servers, without commas, which would cost as much as the names. Within a budget of tokens, and the same for the same catalog.

use super::signature::{Language, signature};
use super::{Listing, Server, View};

/// All signatures are given only if they cost no more than this.
const MAX_SIGNATURES: usize = 150;
/// And only of so few servers: of more, the list costs the same whatever they have.
const MAX_SIGNED: usize = 3;
/// Beyond this names are counted, by an estimate that is high: room for ten of usual length, within the budget in any case.
const MAX_NAMES: usize = 40;

/// One sentence with all servers that `seen` says yes to, or a line a tool; empty if there is none.
pub fn roster(view: &View, seen: impl Fn(&Server) -> bool) -> String {
    let servers: Vec<&Server> =
        view.servers().map(|server| &**server).filter(|server| seen(server)).collect();
    if servers.is_empty() {
        return String::new();
    }
    if let Some(tools) = signatures(&servers) {
        return format!("MCP tools to call in code:\n{tools}");
    }
    let names: Vec<&str> = servers.iter().map(|server| server.alias.as_str()).collect();
    format!("mcp.SERVER.TOOL(...) calls MCP servers: {}", fitting(&names))
}

fn signatures(servers: &[&Server]) -> Option<String> {
    let listings: Option<Vec<(&Server, &Listing)>> =
        servers.iter().map(|server| Some((*server, &**server.listing.as_ref()?))).collect();
    let listings = listings?;
    let count: usize = listings.iter().map(|(_, listing)| listing.len()).sum();
    // A signature has ten tokens at the least: no need to write those of thousands.
    if servers.len() > MAX_SIGNED || count == 0 || count > MAX_SIGNATURES / 10 {
        return None;
    }
    let mut lines = Vec::new();
    for (server, listing) in listings {
        for at in 0..listing.len() {
            lines.push(signature(Language::Python, &server.alias, listing.alias(at), &listing.document(at)?));
        }
    }
    let text = lines.join("\n");
    (tokens(&text) <= MAX_SIGNATURES).then_some(text)
}

/// As many names as fit.
fn fitting(all: &[&str]) -> String {
    let with = |count: usize| {
        let mut line = all[..count].join(" ");
        if count < all.len() {
            line += &format!("{}{} more", if count > 0 { " and " } else { "" }, all.len() - count);
        }
        line
    };
    let (mut low, mut high) = (0, all.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if tokens(&with(middle)) <= MAX_NAMES {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    with(low)
}

/// No fewer tokens than models count, for text as it is here: one for every four letters of a word or three digits that
/// were begun, one for every other sign, and two for each letter that is not ASCII. Spaces go with the word that follows.
fn tokens(text: &str) -> usize {
    let mut count = 0;
    let (mut letters, mut digits) = (0, 0);
    for c in text.chars() {
        let (letter, digit) = (c.is_ascii_alphabetic(), c.is_ascii_digit());
        count += usize::from(letter && letters % 4 == 0) + usize::from(digit && digits % 3 == 0);
        letters = if letter { letters + 1 } else { 0 };
        digits = if digit { digits + 1 } else { 0 };
        if !letter && !digit && c != ' ' {
            count += if c.is_ascii() { 1 } else { 2 };
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Catalog, Declared, ToolDocument};
    use super::*;

    fn tool(name: &str) -> ToolDocument {
        let Value::Object(input_schema) =
            json!({"type": "object", "properties": {"path": {"type": "string"}}})
        else {
            unreachable!()
        };
        ToolDocument {
            name: name.into(),
            title: None,
            description: "Does it".into(),
            input_schema,
            output_schema: None,
            read_only: false,
        }
    }

    #[test]
    fn few_tools_are_shown_and_many_are_not() {
        let catalog = Catalog::in_memory();
        let all = |catalog: &Catalog| roster(&catalog.view(), |_| true);
        assert_eq!(all(&catalog), "");
        catalog.set("files", "files", "", vec![tool("read"), tool("write-all")]);
        let expected = "MCP tools to call in code:\nmcp.files.read(*, path: str = ...) -> Any\n\
                        mcp.files.write_all(*, path: str = ...) -> Any";
        assert_eq!(all(&catalog), expected);
        assert_eq!(roster(&catalog.view(), |_| false), "");
        let declared = Declared {
            name: "git hub".into(),
            alias: "git_hub".into(),
            description: String::new(),
            definition: String::new(),
        };
        catalog.declare(declared);
        let names = "mcp.SERVER.TOOL(...) calls MCP servers: files git_hub";
        assert_eq!(all(&catalog), names);
        catalog.set("git hub", "git_hub", "", (0..10_000).map(|n| tool(&format!("t{n}"))).collect());
        assert_eq!(all(&catalog), names, "however many tools there are");
    }

    #[test]
    fn a_roster_keeps_its_budget() {
        let catalog = Catalog::in_memory();
        for n in 0..500 {
            let name = format!("server_with_a_long_name_{n}");
            catalog.set(&name, &name, "", vec![tool("t")]);
        }
        let text = roster(&catalog.view(), |_| true);
        assert!(tokens(&text) <= MAX_NAMES + 30 && text.ends_with("more"), "{text}");
    }

    #[test]
    fn tokens_are_counted_high() {
        // Counts of o200k.
        let cases = [("hello world", 2), ("mcp.files.read(*, path: str = ...) -> Any", 15), ("日本語", 2)];
        for (text, real) in cases {
            assert!(tokens(text) >= real, "{text}: {}", tokens(text));
        }
    }
}
