//! Nothing is lost or changed between a server and code: every kind of content, of value and of failure, large and at
//! once. The cells check it themselves, for what they see is the point.

use serde_json::json;

use super::{House, LONG};
use crate::judges::Judges;

#[track_caller]
fn faithful(test: &str, file: &str) {
    let Some(judges) = Judges::find(test) else { return };
    let house = House::new(&judges);
    house.fill();
    let mut broken = house.fixture(&["--refuse"]);
    broken["env"] = json!({ "DATABASE": "elsewhere" });
    let needy = json!({ "command": "/bin/true", "env": { "KEY": "${COVE_TEST_MISSING}" } });
    house.configure("unusable", json!({ "broken": broken, "needy": needy }));
    let mut agent = house.serve(&[]);
    let said = agent.cell(file).ok();
    assert_eq!(said.trim(), "faithful");
}

#[test]
fn python_gets_what_servers_say() {
    faithful("python_gets_what_servers_say", "fidelity.py");
}

#[test]
fn node_gets_what_servers_say() {
    faithful("node_gets_what_servers_say", "fidelity.mjs");
}

#[test]
fn shell_gets_what_servers_say() {
    faithful("shell_gets_what_servers_say", "fidelity.sh");
}

#[test]
fn an_image_of_a_server_reaches_the_agent() {
    let Some(judges) = Judges::find("an_image_of_a_server_reaches_the_agent") else { return };
    let house = House::new(&judges);
    let mut agent = house.serve(&[]);
    let shown = agent.code("python", "everything.get_tiny_image()");
    assert!(shown.ok().contains("Here's the image"), "{shown:?}");
    assert_eq!(shown.block("image").map(|block| &block["mimeType"]), Some(&json!("image/png")), "{shown:?}");
}

#[test]
fn the_progress_of_a_server_reaches_the_agent() {
    let Some(judges) = Judges::find("the_progress_of_a_server_reaches_the_agent") else { return };
    let house = House::new(&judges);
    let mut agent = house.serve(&[]);
    for (code, words, answer) in [
        ("fixture.progress(steps=4, ms=1500)", "fixture.progress: step", "4 steps"),
        (
            "everything.trigger_long_running_operation(duration=6, steps=4)",
            "everything.trigger-long-running-operation: ",
            "Long running operation completed",
        ),
    ] {
        agent.client.notes.clear();
        let params = json!({
            "name": "execute_code", "arguments": { "code": code, "timeout": 120 }, "_meta": { "progressToken": "p" },
        });
        let id = agent.client.begin("tools/call", params);
        let result = agent.client.answer_within(id, LONG).expect("an answer");
        assert!(result.to_string().contains(answer), "{result}");
        let told: Vec<&str> =
            agent.client.notes.iter().filter_map(|note| note["params"]["message"].as_str()).collect();
        assert!(told.iter().any(|message| message.contains(words)), "{code}: {told:?}");
    }
}

#[test]
fn a_cell_that_ends_early_cancels_its_calls() {
    let Some(judges) = Judges::find("a_cell_that_ends_early_cancels_its_calls") else { return };
    let house = House::new(&judges);
    let mut agent = house.serve(&[]);
    let arguments = json!({ "code": "fixture.slow(ms=600000)", "timeout": 2 });
    let ended = agent.call("execute_code", arguments);
    assert!(ended.failed().contains("timeout"), "{ended:?}");
    let start = std::time::Instant::now();
    while !house.text("fixture.log").contains("notifications/cancelled") {
        assert!(start.elapsed() < super::PATIENCE, "{}", house.text("fixture.log"));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The server is as good as before.
    assert_eq!(agent.code("python", "fixture.add(a=1, b=1).sum").ok().trim(), "2.0");
    assert_eq!(house.text("started").lines().filter(|line| *line == "fixture").count(), 1);
}
