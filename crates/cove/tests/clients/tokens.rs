//! What the list of tools costs a model, counted with the tokens that models use, and quoted in the specification.

use serde_json::{Value, json};

use crate::child::Running;
use crate::cove;
use crate::drive::{Client, Era, Sdk};
use crate::judges::Judges;

/// The toolset as the specification names it, what is asked for, whether the instructions count, and the limit.
const BUDGETS: [(&str, &str, bool, u64); 3] = [
    ("`code` with `instructions`", "code", true, 180),
    ("`python`", "python", false, 200),
    ("`all`", "all", false, 750),
];

#[test]
fn the_tools_cost_what_the_specification_says() {
    let Some(judges) = Judges::find("the_tools_cost_what_the_specification_says") else { return };
    let program = cove().path().to_string_lossy().into_owned();
    let mut sets = Vec::new();
    for (_, toolset, _, _) in BUDGETS {
        let command = [&program, "serve", "--tools", toolset, "--state-dir", &judges.state_dir()];
        // This SDK passes schemas on as they came, key by key; reading them here would put the keys in order.
        let mut client = Client::over_stdio(&judges, Sdk::Python, Era::Legacy, &command);
        let list = client.ask_for_text(&json!({ "do": "list", "what": "tools" }));
        let tools =
            list.strip_prefix("{\"result\": ").and_then(|rest| rest.rsplit_once(", \"ms\"")).expect("a list");
        let instructions = client.hello["instructions"].as_str().unwrap_or_default();
        sets.push(format!(
            "\"{toolset}\":{{\"tools\":{},\"instructions\":{}}}",
            tools.0,
            json!(instructions)
        ));
    }
    let mut counter = Running::start(judges.node("count.mjs"));
    counter.send(&format!("{{{}}}", sets.join(",")));
    counter.end_of_input();
    let counted: Value = serde_json::from_str(&counter.line("the count")).expect("counts");

    let mut problems = Vec::new();
    for (name, toolset, with_instructions, limit) in BUDGETS {
        let [tools, instructions] = ["tools", "instructions"]
            .map(|part| counted[toolset][part].as_u64().unwrap_or_else(|| panic!("{counted}")));
        let sum = if with_instructions { tools + instructions } else { tools };
        println!("{name}: {sum} tokens of at most {limit} (tools {tools}, instructions {instructions})");
        if sum > limit {
            problems.push(format!("{name} costs {sum} tokens, more than {limit}"));
        }
        let quoted = format!("| {name} | {sum} | {limit} |");
        if !specification("tokens").contains(&quoted) {
            problems.push(format!("`docs/specification.md` should say `{quoted}`"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The part of the specification under the line `<!-- NAME -->`, to the next empty line.
pub(crate) fn specification(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/specification.md");
    let text = std::fs::read_to_string(path).expect("the specification is there");
    let after = text.split_once(&format!("<!-- {name} -->\n")).map(|(_, after)| after);
    let after = after.unwrap_or_else(|| panic!("`docs/specification.md` has no `<!-- {name} -->`"));
    after.split("\n\n").next().unwrap_or_default().to_owned()
}
