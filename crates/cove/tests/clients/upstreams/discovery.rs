//! What there is can be found out before anything runs: the catalog was kept by an earlier run, and a server starts when
//! it is first called, not before.

use std::fs;

use serde_json::json;

use super::{House, LONG};
use crate::judges::Judges;

impl House<'_> {
    /// Nothing has been started since `forget`.
    #[track_caller]
    pub(super) fn is_idle(&self) {
        assert_eq!(self.text("started"), "");
        assert!(!self.path("fixture.log").exists(), "{}", self.text("fixture.log"));
    }

    pub(super) fn forget(&self) {
        for name in ["started", "fixture.log"] {
            fs::remove_file(self.path(name)).expect("it was there");
        }
    }
}

#[test]
fn everything_is_found_while_nothing_runs() {
    let Some(judges) = Judges::find("everything_is_found_while_nothing_runs") else { return };
    let house = House::new(&judges);
    // Any search of an earlier run is enough.
    let mut agent = house.serve(&[]);
    agent.call("find_tools", json!({ "query": "anything" })).ok();
    agent.leave();
    assert_eq!(house.started().len(), 8, "{:?}", house.started());
    house.forget();

    let mut agent = house.serve(&[]);
    let listed = agent.client.request("tools/list", json!({})).expect("a list").to_string();
    for name in ["filesystem", "sequential_thinking", "time"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert_eq!(agent.cell("discovery.py").ok().trim(), "discovered");
    assert_eq!(agent.cell("discovery.mjs").ok().trim(), "discovered");
    let shell = agent.code(
        "bash",
        "mcp find commit history --limit 1 | jq -r '.tools[0].tool'; mcp tools git | jq length",
    );
    assert_eq!(shell.ok().trim(), "git_log\n12");
    let found = agent.call("find_tools", json!({ "query": "commit history", "limit": 1 }));
    assert!(found.ok().contains("mcp.git.git_log("), "{found:?}");
    house.is_idle();

    // What cannot be right is refused from the cache too; and what can be is called, which starts that one alone.
    let called = agent.code(
        "python",
        "mcp.time.convert_time(source_timezone='UTC', time='12:00', target_timezone='UTC').time_difference",
    );
    assert!(called.ok().contains("0.0h"), "{called:?}");
    assert_eq!(house.text("started"), "time\n");
}

#[test]
fn a_first_search_starts_what_nobody_knows_yet() {
    let Some(judges) = Judges::find("a_first_search_starts_what_nobody_knows_yet") else { return };
    let house = House::new(&judges);
    let mut agent = house.serve(&[]);
    let first = agent.code("python", "print([tool.tool for tool in mcp.find('commit history', limit=1)])");
    assert_eq!(first.ok().trim(), "['git_log']");
    // Another process of Cove's begins where this one left off.
    drop(agent);
    house.forget();
    let mut agent = house.serve(&[]);
    let second = agent.code("python", "print([tool.tool for tool in mcp.find('commit history', limit=1)])");
    assert_eq!(second.ok().trim(), "['git_log']");
    house.is_idle();
}

#[test]
fn a_server_that_is_added_while_cove_runs_is_found() {
    let Some(judges) = Judges::find("a_server_that_is_added_while_cove_runs_is_found") else { return };
    let house = House::empty(&judges);
    house.configure("fixture", json!({ "fixture": house.fixture(&[]) }));
    let mut agent = house.serve(&[]);
    let before = agent.client.request("tools/list", json!({})).expect("a list");
    assert_eq!(agent.code("python", "fixture.add(a=1, b=2).sum").ok().trim(), "3.0");
    house.configure(
        "later",
        json!({ "later": house.noted("later", &[cove_testkit::fixture::program().to_string_lossy()]) }),
    );
    let start = std::time::Instant::now();
    loop {
        let called = agent.code("python", "print(mcp.later.add(a=1, b=3).sum)");
        if !called.is_error() {
            assert_eq!(called.text().trim(), "4.0");
            break;
        }
        assert!(start.elapsed() < LONG, "{called:?}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(agent.client.request("tools/list", json!({})).expect("a list"), before);
}
