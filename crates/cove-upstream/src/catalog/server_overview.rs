//! The overview of upstream servers in a tool's description: all signatures if there are few, with comments if these
//! fit too, otherwise the names of the servers, separated by spaces because commas cost tokens. It stays within a token
//! budget, and the same catalog gives the same text.

use cove_protocol::Language;

use super::signature::{CommentDetail, ToolReference};
use super::{CatalogServer, CatalogView, ToolListing};
use cove_core::text::estimate_tokens;

/// All signatures are shown only if they cost at most this many tokens.
const MAX_SIGNATURES: usize = 150;
/// Signatures are shown only for this many servers. For more, the names cost the same whatever the servers offer.
const MAX_SIGNATURE_SERVERS: usize = 3;
/// Token budget for names: about ten of usual length. Further names are only counted. The estimate is high, so the
/// text never exceeds the budget.
const MAX_NAMES: usize = 30;

/// Returns one line per tool that `usable` accepts, or one sentence that names the servers that `seen` accepts. Empty if
/// there are none.
pub fn describe_servers(
    view: &CatalogView,
    seen: impl Fn(&CatalogServer) -> bool,
    usable: impl Fn(&CatalogServer, &str) -> bool,
) -> String {
    let servers: Vec<&CatalogServer> = view.servers().map(|server| &**server).filter(|server| seen(server)).collect();
    if servers.is_empty() {
        return String::new();
    }
    if let Some(tools) = all_signatures(&servers, usable) {
        return format!("MCP tools to call in code:\n{tools}");
    }
    let names: Vec<&str> = servers.iter().map(|server| server.alias.as_str()).collect();
    format!("mcp.SERVER.TOOL(...) calls MCP servers: {}", fit_names(&names))
}

fn all_signatures(servers: &[&CatalogServer], usable: impl Fn(&CatalogServer, &str) -> bool) -> Option<String> {
    let listings: Option<Vec<(&CatalogServer, &ToolListing)>> =
        servers.iter().map(|server| Some((*server, &**server.listing.as_ref()?))).collect();
    let listings = listings?;
    let count: usize = listings.iter().map(|(_, listing)| listing.len()).sum();
    // A signature has at least ten tokens, so there is no need to render thousands.
    if servers.len() > MAX_SIGNATURE_SERVERS || count == 0 || count > MAX_SIGNATURES / 10 {
        return None;
    }
    let mut documents = Vec::new();
    for (server, listing) in listings {
        for at in (0..listing.len()).filter(|at| usable(server, listing.name(*at))) {
            documents.push((server, listing.alias(at), listing.document(at)?));
        }
    }
    if documents.is_empty() {
        return None;
    }
    let references: Vec<ToolReference> =
        documents.iter().map(|(server, alias, document)| server.reference(Language::Python, alias, document)).collect();
    let render = |write: &dyn Fn(&ToolReference) -> String| references.iter().map(write).collect::<Vec<_>>().join("\n");
    let fits = |text: &String| estimate_tokens(text) <= MAX_SIGNATURES;
    let described = Some(render(&|tool| tool.stub(CommentDetail::Brief))).filter(fits);
    described.or_else(|| Some(render(&|tool| tool.signature())).filter(fits))
}

/// Returns as many names as fit into the budget, and the number of the rest.
fn fit_names(all: &[&str]) -> String {
    let with = |count: usize| {
        let mut line = all[..count].join(" ");
        if count < all.len() {
            line += &format!("{}{} more", if count > 0 { " and " } else { "" }, all.len() - count);
        }
        line
    };
    let fitting = (1..=all.len()).take_while(|count| estimate_tokens(&with(*count)) <= MAX_NAMES);
    with(fitting.last().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use cove_core::policy::grants::Grants;

    use super::super::{Catalog, ServerDeclaration, ToolDocument};
    use super::*;

    fn tool(name: &str) -> ToolDocument {
        let Value::Object(input_schema) = json!({"type": "object", "properties": {"path": {"type": "string"}}}) else {
            unreachable!()
        };
        ToolDocument { name: name.into(), description: "Does it".into(), input_schema, ..Default::default() }
    }

    #[test]
    fn overview_shows_few_tools_and_names_many_servers() {
        let catalog = Catalog::in_memory();
        let all = |catalog: &Catalog| describe_servers(&catalog.view(), |_| true, |_, _| true);
        assert_eq!(all(&catalog), "");
        catalog.set_tools("files", "files", "", vec![tool("read"), tool("write-all")]);
        let expected = "MCP tools to call in code:\nmcp.files.read(*, path: str = ...) -> Any\n# Does it\n\
                        mcp.files.write_all(*, path: str = ...) -> Any\n# Does it";
        assert_eq!(all(&catalog), expected);
        assert_eq!(describe_servers(&catalog.view(), |_| false, |_, _| true), "");
        let declared = ServerDeclaration {
            filter: Grants::default(),
            name: "git hub".into(),
            alias: "git_hub".into(),
            description: String::new(),
            definition: String::new(),
        };
        catalog.declare(declared);
        let names = "mcp.SERVER.TOOL(...) calls MCP servers: files git_hub";
        assert_eq!(all(&catalog), names);
        catalog.set_tools("git hub", "git_hub", "", (0..10_000).map(|n| tool(&format!("t{n}"))).collect());
        assert_eq!(all(&catalog), names, "however many tools there are");
    }

    #[test]
    fn server_overview_stays_within_its_token_budget() {
        let catalog = Catalog::in_memory();
        for n in 0..500 {
            let name = format!("server_with_a_long_name_{n}");
            catalog.set_tools(&name, &name, "", vec![tool("t")]);
        }
        let text = describe_servers(&catalog.view(), |_| true, |_, _| true);
        assert!(estimate_tokens(&text) <= MAX_NAMES + 30 && text.ends_with("more"), "{text}");
    }
}
