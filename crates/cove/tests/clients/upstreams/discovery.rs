//! Tools can be found before any server runs: the catalog of an earlier run is kept, and a server starts only at its
//! first call.

use std::fs;

use serde_json::json;

use super::{LONG, UpstreamHome};
use crate::judges::OutsideJudges;

impl UpstreamHome<'_> {
    /// Asserts that no server has started since `clear_starts`.
    #[track_caller]
    pub(super) fn assert_nothing_started(&self) {
        assert_eq!(self.text("started"), "");
        assert!(!self.path("fixture.log").exists(), "{}", self.text("fixture.log"));
    }

    pub(super) fn clear_starts(&self) {
        for name in ["started", "fixture.log"] {
            fs::remove_file(self.path(name)).expect("it was there");
        }
    }
}

#[test]
fn discovery_works_without_starting_servers() {
    let Some(judges) = OutsideJudges::find("discovery_works_without_starting_servers") else { return };
    let house = UpstreamHome::new(&judges);
    // Any search in an earlier run is enough.
    let mut agent = house.serve(&[]);
    agent.call("find_tools", json!({ "query": "anything" })).ok();
    agent.close();
    assert_eq!(house.recorded_starts().len(), 8, "{:?}", house.recorded_starts());
    house.clear_starts();

    let mut agent = house.serve(&[]);
    let listed = agent.client.request("tools/list", json!({})).expect("a list").to_string();
    for name in ["filesystem", "sequential_thinking", "time"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert_eq!(agent.run_cell_file("discovery.py").ok().trim(), "discovered");
    assert_eq!(agent.run_cell_file("discovery.mjs").ok().trim(), "discovered");
    let shell =
        agent.run_code("bash", "mcp find commit history --limit 1 | jq -r '.tools[0].tool'; mcp tools git | jq length");
    assert_eq!(shell.ok().trim(), "git_log\n12");
    let found = agent.call("find_tools", json!({ "query": "commit history", "limit": 1 }));
    assert!(found.ok().contains("mcp.git.git_log("), "{found:?}");
    house.assert_nothing_started();

    // Invalid arguments are refused from the cache too; a valid call starts only the server that it names.
    let called = agent.run_code(
        "python",
        "mcp.time.convert_time(source_timezone='UTC', time='12:00', target_timezone='UTC').time_difference",
    );
    assert!(called.ok().contains("0.0h"), "{called:?}");
    assert_eq!(house.text("started"), "time\n");
}

#[test]
fn first_search_starts_unlisted_servers() {
    let Some(judges) = OutsideJudges::find("first_search_starts_unlisted_servers") else { return };
    let house = UpstreamHome::new(&judges);
    let mut agent = house.serve(&[]);
    let first = agent.run_code("python", "print([tool.tool for tool in mcp.find('commit history', limit=1)])");
    assert_eq!(first.ok().trim(), "['git_log']");
    // Another Cove process starts with the catalog that this one left.
    drop(agent);
    house.clear_starts();
    let mut agent = house.serve(&[]);
    let second = agent.run_code("python", "print([tool.tool for tool in mcp.find('commit history', limit=1)])");
    assert_eq!(second.ok().trim(), "['git_log']");
    house.assert_nothing_started();
}

#[test]
fn finds_servers_added_while_running() {
    let Some(judges) = OutsideJudges::find("finds_servers_added_while_running") else { return };
    let house = UpstreamHome::empty(&judges);
    house.configure("fixture", json!({ "fixture": house.fixture(&[]) }));
    let mut agent = house.serve(&[]);
    let before = agent.client.request("tools/list", json!({})).expect("a list");
    assert_eq!(agent.run_code("python", "fixture.add(a=1, b=2).sum").ok().trim(), "3.0");
    house.configure(
        "later",
        json!({ "later": house.recorded_command("later", &[cove_testkit::fixture::program().to_string_lossy()]) }),
    );
    let start = std::time::Instant::now();
    loop {
        let called = agent.run_code("python", "print(mcp.later.add(a=1, b=3).sum)");
        if !called.is_error() {
            assert_eq!(called.text().trim(), "4.0");
            break;
        }
        assert!(start.elapsed() < LONG, "{called:?}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(agent.client.request("tools/list", json!({})).expect("a list"), before);
}
