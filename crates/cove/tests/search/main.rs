//! The catalog over a labelled set that was written for this project: 387 tools of 32 imaginary servers, and
//! questions as agents ask them, each with the tools that answer it. The tests measure how well search finds them,
//! and check that every signature is valid code.

mod real_servers;
mod recall;
mod signatures;

use cove_upstream::catalog::{Catalog, ToolDocument};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct LabelledServer {
    name: String,
    description: String,
    tools: Vec<ToolDocument>,
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let path = format!("{}/tests/search/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the labelled set is there");
    serde_json::from_str(&text).expect("it is as it should be")
}

fn catalog() -> Catalog {
    let catalog = Catalog::in_memory();
    for LabelledServer { name, description, tools } in read::<Vec<LabelledServer>>("tools.json") {
        let alias = cove_upstream::catalog::names::server_aliases(&[&name]).remove(0);
        assert_eq!(catalog.set_tools(&name, &alias, &description, tools), Vec::<String>::new());
    }
    catalog
}
