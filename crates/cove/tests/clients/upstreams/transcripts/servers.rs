//! The tasks that other servers do.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use super::{TaskTranscript, UpstreamHome};
use crate::judges::OutsideJudges;

/// What the shop sells: 200 items, each with a price of its own.
pub(super) fn items() -> Vec<Value> {
    (0..200).map(|n| json!({ "name": format!("item {n}"), "price": f64::from(n * 37 % 200) + 0.5 })).collect()
}

#[test]
fn task_2_counts_flaky_tests_in_a_git_log() {
    let Some(judges) = OutsideJudges::find("task_2_counts_flaky_tests_in_a_git_log") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let mut messages = Vec::new();
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for n in 0..40 {
        let (message, test) = match n % 8 {
            1 | 4 => (format!("Retry flaky test_login ({n})"), Some("test_login")),
            6 if n > 20 => (format!("Wait longer in test_upload, which is flaky ({n})"), Some("test_upload")),
            2 => (format!("Add test_export ({n})"), None),
            _ => (format!("Change {n}"), None),
        };
        messages.push(message);
        *expected.entry(test.unwrap_or("none")).or_default() += 1;
    }
    expected.remove("none");
    house.create_repository(&messages);
    let repository = house.path("repo").display().to_string();
    let task = format!("Which tests do the commits in {repository} call flaky, and how many commits is that for each?");
    let mut agent = TaskTranscript::begin(&house, &[], &task);
    agent.find_tools("read the git commit log");
    let code = format!(
        "\
import json, re
from collections import Counter

log = mcp.git.git_log(repo_path=\"{repository}\", max_count=10_000)
lines = [line for line in str(log).splitlines() if \"flaky\" in line]
print(json.dumps(Counter(name for line in lines for name in re.findall(r\"test_\\w+\", line))))
"
    );
    let answer = agent.run_python(&code).ok();
    let found: BTreeMap<&str, u64> = serde_json::from_str(&answer).expect("an object");
    assert_eq!(found, expected);
    agent.end("2_flaky_tests", 2);
}

#[test]
fn task_3_finds_the_dearest_of_200_items_on_pages() {
    let Some(judges) = OutsideJudges::find("task_3_finds_the_dearest_of_200_items_on_pages") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let mut agent = TaskTranscript::begin(&house, &[], "What is the dearest item in the shop?");
    agent.find_tools("list all items of the shop");
    let code = "\
items, cursor = [], None
while True:
    page = mcp.shop.list_items(cursor=cursor)
    items += page.items
    cursor = page.next_cursor
    if cursor is None:
        break
dearest = max(items, key=lambda item: item.price)
print(len(items), dearest.name, sep=\", \")
";
    let price = |item: &Value| item["price"].as_f64().expect("a price");
    let dearest = items().into_iter().max_by(|a, b| price(a).total_cmp(&price(b))).expect("items");
    assert_eq!(agent.run_python(code).ok().trim(), format!("200, {}", dearest["name"].as_str().expect("a name")));
    agent.end("3_dearest_item", 2);
}

#[test]
fn task_4_converts_a_time_to_three_zones_at_once() {
    let Some(judges) = OutsideJudges::find("task_4_converts_a_time_to_three_zones_at_once") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    // Places without daylight saving time, so that the answer is the same on every day.
    let task = "When it is nine in the morning in Tokyo, what time is it in Kolkata, Nairobi and Bogota? Ask at once.";
    let mut agent = TaskTranscript::begin(&house, &[], task);
    agent.find_tools("convert a time to other time zones");
    let code = "\
import asyncio

zones = [\"Asia/Kolkata\", \"Africa/Nairobi\", \"America/Bogota\"]
answers = await asyncio.gather(*[
    mcp_time.convert_time(source_timezone=\"Asia/Tokyo\", time=\"09:00\", target_timezone=zone) for zone in zones
])
for answer in answers:
    print(answer.target.timezone, answer.target.datetime[11:16])
";
    // Nine in Tokyo is midnight in UTC.
    let minutes_east = [("Asia/Kolkata", 330), ("Africa/Nairobi", 180), ("America/Bogota", -300)];
    let expected = minutes_east.map(|(zone, east)| {
        let minutes = (east + 24 * 60) % (24 * 60);
        format!("{zone} {:02}:{:02}\n", minutes / 60, minutes % 60)
    });
    assert_eq!(agent.run_python(code).ok(), expected.concat());
    agent.end("4_three_time_zones", 2);
}

#[test]
fn task_5_finds_all_csv_files() {
    let Some(judges) = OutsideJudges::find("task_5_finds_all_csv_files") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let tables = ["files/2025/sales.csv", "files/2025/spring/sales.csv", "files/totals.csv"];
    for name in tables.into_iter().chain(["files/2025/notes.txt", "files/csv/readme.md"]) {
        fs::create_dir_all(house.path(name).parent().expect("a folder")).expect("it can be made");
        fs::write(house.path(name), "a,b\n").expect("it can be written");
    }
    let folder = house.path("files").display().to_string();
    let mut agent = TaskTranscript::begin(&house, &[], &format!("List all CSV files under {folder}"));
    agent.find_tools("find all CSV files in a folder");
    let code = format!(
        "\
found = mcp.filesystem.search_files(path=\"{folder}\", pattern=\"**/*.csv\")
print(*sorted(found.splitlines()), sep=\"\\n\")
"
    );
    let answer = agent.run_python(&code).ok();
    assert_eq!(answer.lines().collect::<Vec<_>>(), tables.map(|name| house.path(name).display().to_string()));
    agent.end("5_csv_files", 2);
}

#[test]
fn task_9_shows_an_image_and_follows_a_long_call() {
    let Some(judges) = OutsideJudges::find("task_9_shows_an_image_and_follows_a_long_call") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let task = "Run a long operation of 4 seconds with 4 steps, and then show me the tiny image.";
    let mut agent = TaskTranscript::begin(&house, &[], task);
    agent.find_tools("run a long operation, get a tiny image");
    let code = "\
print(mcp.everything.trigger_long_running_operation(duration=4, steps=4))
mcp.everything.get_tiny_image()
";
    let answer = agent.run_python(code);
    assert!(answer.ok().contains("Long running operation completed. Duration: 4 seconds, Steps: 4."), "{answer:?}");
    let image = answer.block("image").expect("an image");
    assert_eq!(image["mimeType"], "image/png");
    assert!(image["data"].as_str().is_some_and(|data| data.starts_with("iVBORw0KGgo")), "{image}");
    // The server's own progress arrives; not every step, because Cove sends at most one notification in two seconds.
    let steps: Vec<u64> = agent.agent.client.notifications.iter().filter_map(step_of).collect();
    assert!(!steps.is_empty() && steps.is_sorted(), "{:?}", agent.agent.client.notifications);
    agent.end("9_image_and_long_call", 2);
}

/// Returns the number of a step that the long operation has reported.
fn step_of(notification: &Value) -> Option<u64> {
    let message = notification["params"]["message"].as_str()?;
    message.strip_prefix("everything.trigger-long-running-operation: ")?.strip_suffix("/4")?.parse().ok()
}

#[test]
fn task_10_stores_and_reads_the_knowledge_graph() {
    let Some(judges) = OutsideJudges::find("task_10_stores_and_reads_the_knowledge_graph") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let task = "Remember in the knowledge graph that Ada, a person, works at Acme, a company, and likes tea. \
                Then show me what the graph has.";
    let mut agent = TaskTranscript::begin(&house, &[], task);
    agent.find_tools("create entities and relations in the knowledge graph, then read the graph");
    let code = "\
mcp.memory.create_entities(entities=[
    {\"name\": \"Ada\", \"entityType\": \"person\", \"observations\": [\"likes tea\"]},
    {\"name\": \"Acme\", \"entityType\": \"company\", \"observations\": []},
])
mcp.memory.create_relations(relations=[{\"from\": \"Ada\", \"to\": \"Acme\", \"relationType\": \"works at\"}])
graph = mcp.memory.read_graph()
for entity in graph.entities:
    print(entity.name, entity.entityType, entity.observations)
for relation in graph.relations:
    print(relation[\"from\"], relation.relationType, relation.to)
";
    let answer = agent.run_python(code).ok();
    assert_eq!(answer, "Ada person ['likes tea']\nAcme company []\nAda works at Acme\n");
    // The server's own file has it too.
    let stored: Vec<Value> =
        house.text("memory.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let relation = json!({ "type": "relation", "from": "Ada", "to": "Acme", "relationType": "works at" });
    assert!(stored.len() == 3 && stored.contains(&relation), "{stored:?}");
    agent.end("10_knowledge_graph", 2);
}
