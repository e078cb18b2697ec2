//! What the list of tools costs a model, counted with the tokens that models use, and quoted in the specification.

use serde_json::{Value, json};

use crate::child::Running;
use crate::cove;
use crate::drive::{Client, Era, Sdk};
use crate::judges::Judges;
use crate::upstreams::House;

/// The toolset as the specification names it, what is asked for, whether the instructions count, and the limit.
const BUDGETS: [(&str, &str, bool, u64); 3] = [
    ("`code` with `instructions`", "code", true, 180),
    ("`python`", "python", false, 200),
    ("`all`", "all", false, 750),
];
/// The same with servers behind it.
const WITH_SERVERS: (&str, u64) = ("`code` with `instructions`, before 10 servers", 220);

/// Names as they are in people's configurations.
const SERVERS: [&str; 10] = [
    "github",
    "slack",
    "filesystem",
    "postgres",
    "sequential-thinking",
    "notion",
    "linear",
    "playwright",
    "memory",
    "time",
];

/// What a client is told at first: its tools as they came, and the instructions.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    tools: String,
    instructions: String,
}

impl Told {
    fn by(judges: &Judges, command: &[&str]) -> Self {
        // This SDK passes schemas on as they came, key by key; reading them here would put the keys in order.
        let mut client = Client::over_stdio(judges, Sdk::Python, Era::Legacy, command);
        let list = client.ask_for_text(&json!({ "do": "list", "what": "tools" }));
        let tools =
            list.strip_prefix("{\"result\": ").and_then(|rest| rest.rsplit_once(", \"ms\"")).expect("a list");
        let instructions = client.hello["instructions"].as_str().unwrap_or_default().to_owned();
        Self { tools: tools.0.to_owned(), instructions }
    }

    /// Tokens of both.
    fn cost(&self, judges: &Judges) -> [u64; 2] {
        let mut counter = Running::start(judges.node("count.mjs"));
        let instructions = json!(self.instructions);
        counter.send(&format!("{{\"told\":{{\"tools\":{},\"instructions\":{instructions}}}}}", self.tools));
        counter.end_of_input();
        let counted: Value = serde_json::from_str(&counter.line("the count")).expect("counts");
        ["tools", "instructions"].map(|part| counted["told"][part].as_u64().expect("a count"))
    }
}

/// What is wrong with a cost: above its limit, or not as the specification has it.
fn problems(name: &str, cost: u64, limit: u64) -> Vec<String> {
    println!("{name}: {cost} tokens of at most {limit}");
    let mut problems = Vec::new();
    if cost > limit {
        problems.push(format!("{name} costs {cost} tokens, more than {limit}"));
    }
    let quoted = format!("| {name} | {cost} | {limit} |");
    if !specification("tokens").contains(&quoted) {
        problems.push(format!("`docs/specification.md` should say `{quoted}`"));
    }
    problems
}

#[test]
fn the_tools_cost_what_the_specification_says() {
    let Some(judges) = Judges::find("the_tools_cost_what_the_specification_says") else { return };
    let program = cove().path().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for (name, toolset, with_instructions, limit) in BUDGETS {
        let told =
            Told::by(&judges, &[&program, "serve", "--tools", toolset, "--state-dir", &judges.state_dir()]);
        let [tools, instructions] = told.cost(&judges);
        found.extend(problems(name, if with_instructions { tools + instructions } else { tools }, limit));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn ten_servers_cost_the_same_with_ten_tools_and_with_ten_thousand() {
    let test = "ten_servers_cost_the_same_with_ten_tools_and_with_ten_thousand";
    let Some(judges) = Judges::find(test) else { return };
    let told = [1, 10_000].map(|tools| {
        let house = House::empty(&judges);
        let server = |(at, name): (usize, &&str)| {
            let count = if at == 0 { tools } else { 1 };
            (name.to_string(), house.fixture(&["--only", "--tools", &count.to_string()]))
        };
        house.configure("ten", Value::Object(SERVERS.iter().enumerate().map(server).collect()));
        let unknown = house.told(&judges);
        // Until a search nothing is known of them; from then on everything, also to the next process.
        let mut agent = house.serve(&[]);
        let count =
            "print(sum(len(mcp.runtime.list_tools_sync(name)) for name in mcp.runtime.list_servers_sync()))";
        let counted = agent.code("python", count).ok();
        assert_eq!(counted.trim(), (tools + 9).to_string());
        agent.leave();
        let known = house.told(&judges);
        assert_eq!(known, unknown, "with {tools} tools");
        known
    });
    assert_eq!(told[0], told[1]);
    for name in SERVERS {
        assert!(told[0].tools.contains(&name.replace('-', "_")), "{name}: {}", told[0].tools);
    }
    assert!(told[0].tools.contains("find_tools"), "{}", told[0].tools);
    let [tools, instructions] = told[0].cost(&judges);
    let found = problems(WITH_SERVERS.0, tools + instructions, WITH_SERVERS.1);
    assert!(found.is_empty(), "{}", found.join("\n"));

    // Names that are too long for that are counted instead.
    let house = House::empty(&judges);
    let server =
        |number: usize| (format!("Xq7_Zk-company_wide_search_{number}"), json!({ "command": "/bin/true" }));
    house.configure("long", Value::Object((0..10).map(server).collect()));
    let [tools, instructions] = house.told(&judges).cost(&judges);
    assert!(tools + instructions <= WITH_SERVERS.1, "{tools} and {instructions} tokens");
}

impl House<'_> {
    fn told(&self, judges: &Judges) -> Told {
        let home = format!("HOME={}", self.folder.display());
        let configs = format!("XDG_CONFIG_HOME={}", self.path(".config").display());
        let program = cove().path().to_string_lossy().into_owned();
        Told::by(judges, &["env", &home, &configs, &program, "serve", "--state-dir", &self.state_dir])
    }
}

/// The part of the specification under the line `<!-- NAME -->`, to the next empty line.
pub(crate) fn specification(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/specification.md");
    let text = std::fs::read_to_string(path).expect("the specification is there");
    let after = text.split_once(&format!("<!-- {name} -->\n")).map(|(_, after)| after);
    let after = after.unwrap_or_else(|| panic!("`docs/specification.md` has no `<!-- {name} -->`"));
    after.split("\n\n").next().unwrap_or_default().to_owned()
}
