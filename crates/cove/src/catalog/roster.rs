//! What a tool's description says of upstream servers: every signature where they are few enough, else the names of the
//! servers with the number of their tools. Within a budget of tokens, and the same for the same catalog.

use super::View;
use super::signature::{Language, signature};

/// All signatures are given only if they cost no more than this, however much room there is.
const MAX_SIGNATURES: usize = 150;

/// One line, or a line a tool; empty if no server is known. Costs at most `budget` tokens by [`tokens`].
pub fn roster(view: &View, budget: usize) -> String {
    signatures(view, budget.min(MAX_SIGNATURES)).unwrap_or_else(|| servers(view, budget))
}

fn signatures(view: &View, budget: usize) -> Option<String> {
    // A signature has ten tokens at the least: no need to write those of thousands.
    let mut lines = Vec::new();
    if view.tool_count() == 0
        || view.tool_count() > budget / 10
        || view.servers().any(|server| server.listing.is_none())
    {
        return None;
    }
    for (server, listing) in view.listings() {
        for at in 0..listing.len() {
            lines.push(signature(Language::Python, &server.alias, listing.alias(at), &listing.document(at)?));
        }
    }
    let text = lines.join("\n");
    (tokens(&text) <= budget).then_some(text)
}

fn servers(view: &View, budget: usize) -> String {
    let all: Vec<String> = view
        .servers()
        .map(|server| match &server.listing {
            Some(listing) => format!("{} ({})", server.alias, listing.len()),
            None => server.alias.clone(),
        })
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let with = |count: usize| {
        let mut line = all[..count].join(", ");
        if count < all.len() {
            line += &format!("{}{} more", if count > 0 { ", and " } else { "" }, all.len() - count);
        }
        line
    };
    // As many names as fit.
    let (mut low, mut high) = (0, all.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if tokens(&with(middle)) <= budget {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    with(low)
}

/// No fewer tokens than models count, for text as it is here: one for every four letters of a word or three digits that
/// were begun, one for every other sign, and two for each letter that is not ASCII. Spaces go with the word that follows.
pub fn tokens(text: &str) -> usize {
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
    fn few_tools_are_shown_and_many_are_counted() {
        let catalog = Catalog::in_memory();
        assert_eq!(roster(&catalog.view(), 150), "");
        catalog.set("files", "files", "", vec![tool("read"), tool("write-all")]);
        let expected =
            "mcp.files.read(*, path: str = ...) -> Any\nmcp.files.write_all(*, path: str = ...) -> Any";
        assert_eq!(roster(&catalog.view(), 150), expected);
        assert_eq!(roster(&catalog.view(), 20), "files (2)");
        let declared = Declared {
            name: "git hub".into(),
            alias: "git_hub".into(),
            description: String::new(),
            definition: String::new(),
        };
        catalog.declare(declared);
        assert_eq!(roster(&catalog.view(), 150), "files (2), git_hub");
        catalog.set("big", "big", "", (0..10_000).map(|n| tool(&format!("t{n}"))).collect());
        assert_eq!(roster(&catalog.view(), 150), "big (10000), files (2), git_hub");
    }

    #[test]
    fn a_roster_keeps_its_budget() {
        let catalog = Catalog::in_memory();
        for n in 0..500 {
            let name = format!("server_with_a_long_name_{n}");
            catalog.set(&name, &name, "", vec![tool("t")]);
        }
        for budget in [0, 5, 20, 80, 150] {
            let text = roster(&catalog.view(), budget);
            assert!(tokens(&text) <= budget.max(4), "{budget}: {text}");
            assert!(text.ends_with("more"), "{text}");
        }
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
