//! The tools of real servers, recorded: what search results say about them, and how long that is. The snapshot is for
//! people to read.

use std::fs;

use cove_protocol::Language;
use cove_upstream::catalog::signature::CommentDetail;
use cove_upstream::catalog::{Catalog, ToolDocument};
use serde_json::Value;

/// What agents ask for, about every recorded server.
const QUESTIONS: &str = include_str!("real_servers/questions.txt");
/// Most characters of five hits on average: about 450 tokens.
const MAX_AVERAGE: usize = 1_600;

/// The recorded servers, as the catalog knows them.
pub(super) fn catalog() -> Catalog {
    let catalog = Catalog::in_memory();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/search/real_servers");
    let mut files: Vec<_> = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    files.sort();
    for path in files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let recorded: Value = serde_json::from_str(&fs::read_to_string(&path).expect("text")).expect("JSON");
        let tools = recorded["tools"].as_array().expect("a list").iter().map(to_document).collect();
        assert_eq!(catalog.set_tools(&name, &name, "", tools), Vec::<String>::new());
    }
    catalog
}

fn to_document(tool: &Value) -> ToolDocument {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    ToolDocument {
        name: text(&tool["name"]).expect("a name"),
        title: text(&tool["title"]).or_else(|| text(&tool["annotations"]["title"])),
        description: text(&tool["description"]).unwrap_or_default(),
        input_schema: tool["inputSchema"].as_object().cloned().unwrap_or_default(),
        output_schema: tool["outputSchema"].as_object().cloned(),
        destructive: tool["annotations"]["destructiveHint"] == true && tool["annotations"]["readOnlyHint"] != true,
        ..Default::default()
    }
}

#[test]
fn five_hits_among_real_tools_are_short() {
    let catalog = catalog();
    assert!(catalog.servers().len() >= 20 && catalog.view().tool_count() >= 200);
    let mut sizes = Vec::new();
    for question in QUESTIONS.lines() {
        let hits = catalog.search(question, 5).hits;
        let stubs = hits.iter().enumerate().map(|(rank, hit)| {
            let known = catalog.find_tool(&hit.server, &hit.tool).expect("a tool");
            let detail = if rank == 0 { CommentDetail::Whole } else { CommentDetail::Brief };
            known.server.reference(Language::Python, &known.alias, &known.document).stub(detail)
        });
        let text: Vec<String> = stubs.collect();
        assert!(text.len() >= 3, "{question}: {text:?}");
        sizes.push(text.join("\n").len());
    }
    let average = sizes.iter().sum::<usize>() / sizes.len();
    println!("{} questions, {average} characters on average", sizes.len());
    assert!(average <= MAX_AVERAGE, "{average} characters on average");
}

#[test]
fn stubs_of_real_tools_match_their_snapshot() {
    let mut text = String::new();
    for server in catalog().servers() {
        let listing = server.listing.clone().expect("listed");
        for (at, document) in listing.documents().enumerate() {
            text += &server.reference(Language::Python, listing.alias(at), &document).stub(CommentDetail::Brief);
            text += "\n\n";
        }
    }
    insta::assert_snapshot!("stubs_of_real_tools", text);
}
