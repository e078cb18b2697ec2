//! Nothing is lost or changed between a server and code: every kind of content, value and failure, large and in
//! parallel. The cells do the checking themselves, because their view is what matters.

use serde_json::json;

use super::{LONG, UpstreamHome};
use crate::judges::OutsideJudges;

#[track_caller]
fn check_fidelity(test: &str, file: &str) {
    let Some(judges) = OutsideJudges::find(test) else { return };
    let house = UpstreamHome::new(&judges);
    house.write_files();
    let mut broken = house.fixture(&["--refuse"]);
    broken["env"] = json!({ "DATABASE": "elsewhere" });
    let needy = json!({ "command": "/bin/true", "env": { "KEY": "${COVE_TEST_MISSING}" } });
    house.configure("unusable", json!({ "broken": broken, "needy": needy }));
    let mut agent = house.serve(&[]);
    let said = agent.run_cell_file(file).ok();
    assert_eq!(said.trim(), "faithful");
}

#[test]
fn python_receives_server_results_unchanged() {
    check_fidelity("python_receives_server_results_unchanged", "fidelity.py");
}

#[test]
fn node_receives_server_results_unchanged() {
    check_fidelity("node_receives_server_results_unchanged", "fidelity.mjs");
}

#[test]
fn shell_receives_server_results_unchanged() {
    check_fidelity("shell_receives_server_results_unchanged", "fidelity.sh");
}

#[test]
fn images_from_servers_reach_the_agent() {
    let Some(judges) = OutsideJudges::find("images_from_servers_reach_the_agent") else { return };
    let house = UpstreamHome::new(&judges);
    let mut agent = house.serve(&[]);
    let shown = agent.run_code("python", "everything.get_tiny_image()");
    assert!(shown.ok().contains("Here's the image"), "{shown:?}");
    assert_eq!(shown.block("image").map(|block| &block["mimeType"]), Some(&json!("image/png")), "{shown:?}");
}

#[test]
fn progress_from_servers_reaches_the_agent() {
    let Some(judges) = OutsideJudges::find("progress_from_servers_reaches_the_agent") else { return };
    let house = UpstreamHome::new(&judges);
    let mut agent = house.serve(&[]);
    for (code, words, answer) in [
        ("fixture.progress(steps=4, ms=1500)", "fixture.progress: step", "4 steps"),
        (
            "everything.trigger_long_running_operation(duration=6, steps=4)",
            "everything.trigger-long-running-operation: ",
            "Long running operation completed",
        ),
    ] {
        agent.client.notifications.clear();
        let params = json!({
            "name": "execute_code", "arguments": { "code": code, "timeout": 120 }, "_meta": { "progressToken": "p" },
        });
        let id = agent.client.begin("tools/call", params);
        let result = agent.client.answer_within(id, LONG).expect("an answer");
        assert!(result.to_string().contains(answer), "{result}");
        let reported: Vec<&str> =
            agent.client.notifications.iter().filter_map(|note| note["params"]["message"].as_str()).collect();
        assert!(reported.iter().any(|message| message.contains(words)), "{code}: {reported:?}");
    }
}

#[test]
fn cell_that_ends_early_cancels_its_calls() {
    let Some(judges) = OutsideJudges::find("cell_that_ends_early_cancels_its_calls") else { return };
    let house = UpstreamHome::new(&judges);
    let mut agent = house.serve(&[]);
    // Starts the interpreter and the server first.
    agent.run_code("python", "fixture.add(a=1, b=1)").ok();
    let arguments = json!({ "code": "fixture.slow(ms=600000)", "timeout": 5 });
    let ended = agent.call("execute_code", arguments);
    assert!(ended.failed().contains("timeout"), "{ended:?}");
    let start = std::time::Instant::now();
    while !house.text("fixture.log").contains("notifications/cancelled") {
        assert!(start.elapsed() < super::PATIENCE, "{}", house.text("fixture.log"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The server still works.
    assert_eq!(agent.run_code("python", "fixture.add(a=1, b=1).sum").ok().trim(), "2.0");
    assert_eq!(house.text("started").lines().filter(|line| *line == "fixture").count(), 1);
}
