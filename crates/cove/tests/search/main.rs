//! The catalog over a labelled set that was written for this project: 387 tools of 32 imaginary servers, and questions as
//! agents put them, each with the tools that answer it. How well search finds them, and that every signature is code.

mod recall;
mod signatures;

use cove::catalog::{Catalog, ToolDocument};
use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct Server {
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
    for Server { name, description, tools } in read::<Vec<Server>>("tools.json") {
        let alias = cove::catalog::names::server_aliases(&[&name]).remove(0);
        assert_eq!(catalog.set(&name, &alias, &description, tools), Vec::<String>::new());
    }
    catalog
}
