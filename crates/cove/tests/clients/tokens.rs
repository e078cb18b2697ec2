//! What the list of tools costs a model, counted in tokens of real models, and quoted in the specification.

use serde_json::{Value, json};

use crate::client_process::ClientProcess;
use crate::cove;
use crate::judges::OutsideJudges;
use crate::sdk_client::{ClientSdk, SdkClient, SdkEra};
use crate::upstreams::UpstreamHome;

/// The toolset as the specification names it, the flag's value, whether the instructions count, and the limit.
const BUDGETS: [(&str, &str, bool, u64); 3] = [
    ("`code` with `instructions`", "code", true, 190),
    ("`python`", "python", false, 200),
    ("`all`", "all", false, 850),
];
/// The same with upstream servers.
const WITH_SERVERS: (&str, u64) = ("`code` with `instructions`, before 10 servers", 250);

/// Names as they appear in people's configurations.
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

/// What a client receives first: the tools as they came, and the instructions.
#[derive(Debug, PartialEq, Eq)]
struct ClientIntroduction {
    tools: String,
    instructions: String,
}

impl ClientIntroduction {
    fn connect(judges: &OutsideJudges, command: &[&str]) -> Self {
        // This SDK passes schemas on with their keys in order; parsing them here would sort the keys.
        let mut client = SdkClient::over_stdio(judges, ClientSdk::Python, SdkEra::Legacy, command);
        let list = client.ask_for_text(&json!({ "do": "list", "what": "tools" }));
        let tools = list.strip_prefix("{\"result\": ").and_then(|rest| rest.rsplit_once(", \"ms\"")).expect("a list");
        let instructions = client.hello["instructions"].as_str().unwrap_or_default().to_owned();
        Self { tools: tools.0.to_owned(), instructions }
    }

    /// The tokens of both.
    fn cost(&self, judges: &OutsideJudges) -> [u64; 2] {
        let mut counter = ClientProcess::start(judges.node("count.mjs"));
        let instructions = json!(self.instructions);
        counter.send(&format!("{{\"told\":{{\"tools\":{},\"instructions\":{instructions}}}}}", self.tools));
        counter.close_input();
        let counted: Value = serde_json::from_str(&counter.next_line("the count")).expect("counts");
        ["tools", "instructions"].map(|part| counted["told"][part].as_u64().expect("a count"))
    }
}

/// The problems with a cost: it exceeds its limit, or differs from the specification.
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
fn tool_list_costs_match_the_specification() {
    let Some(judges) = OutsideJudges::find("tool_list_costs_match_the_specification") else { return };
    let program = cove().path().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for (name, toolset, with_instructions, limit) in BUDGETS {
        let reported = ClientIntroduction::connect(
            &judges,
            &[&program, "serve", "--tools", toolset, "--state-dir", &judges.state_dir()],
        );
        let [tools, instructions] = reported.cost(&judges);
        found.extend(problems(name, if with_instructions { tools + instructions } else { tools }, limit));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The sentences that a model reads, each with its place: descriptions of tools and parameters, and the instructions.
fn read_sentences(introduction: &ClientIntroduction) -> Vec<(String, String)> {
    let tools: Value = serde_json::from_str(&introduction.tools).expect("tools");
    let mut texts = Vec::new();
    for tool in tools.as_array().expect("a list") {
        let name = tool["name"].as_str().expect("a name");
        texts.push((format!("`{name}`"), tool["description"].as_str().expect("a text").to_owned()));
        for (parameter, schema) in tool["inputSchema"]["properties"].as_object().expect("parameters") {
            let text = schema["description"].as_str().expect("every parameter is described").to_owned();
            texts.push((format!("`{name}`, `{parameter}`"), text));
        }
    }
    texts.push(("instructions".into(), introduction.instructions.clone()));
    let split = |(place, text): (String, String)| {
        let sentences: Vec<String> = text.split_inclusive(". ").map(str::to_owned).collect();
        sentences.into_iter().map(move |sentence| (place.clone(), sentence))
    };
    texts.into_iter().flat_map(split).collect()
}

#[test]
fn sentence_prices_match_the_specification() {
    let Some(judges) = OutsideJudges::find("sentence_prices_match_the_specification") else { return };
    let house = UpstreamHome::empty(&judges);
    let servers = SERVERS.map(|name| (name.to_owned(), json!({ "command": "/bin/true" })));
    house.configure("ten", Value::Object(servers.into_iter().collect()));
    let whole = house.introduction(&judges);
    let total: u64 = whole.cost(&judges).iter().sum();
    let mut table = String::from("| where | sentence | tokens |\n|---|---|---|");
    for (place, sentence) in read_sentences(&whole) {
        // A sentence costs what its absence saves.
        let without = ClientIntroduction {
            tools: whole.tools.replacen(&sentence, "", 1),
            instructions: whole.instructions.replacen(&sentence, "", 1),
        };
        let price = total - without.cost(&judges).iter().sum::<u64>();
        table += &format!("\n| {place} | {} | {price} |", sentence.trim_end());
    }
    assert_eq!(specification("sentences"), table, "`docs/specification.md` should say:\n{table}");
}

#[test]
fn the_network_line_costs_at_most_40_tokens() {
    let Some(judges) = OutsideJudges::find("the_network_line_costs_at_most_40_tokens") else { return };
    let rules: [&[&str]; 3] = [
        &["api.github.com", "pypi", "npm"],
        &["a.eu", "b1.io", "c7.example.org", "db-7.internal", "x.test", "y.test", "z.test", "q.test", "r.test"],
        &["k8s-prod-eu1.artifacts.example-company.com", "xq7zk.data.example.com", "pypi", "crates"],
    ];
    for rules in rules {
        let house = UpstreamHome::empty(&judges);
        let whole = house.introduction_under(&judges, &rules.join(";"));
        let (_, line) = whole.instructions.split_once("Network: ").expect("the line");
        let (line, _) = line.split_once("Manual: ").expect("another line");
        let line = ClientIntroduction { tools: "[]".into(), instructions: format!("Network: {line}") };
        let [_, tokens] = line.cost(&judges);
        assert!(tokens <= 40, "{tokens} tokens: {line:?}");
    }
}

#[test]
fn overview_cost_does_not_depend_on_tool_count() {
    let test = "overview_cost_does_not_depend_on_tool_count";
    let Some(judges) = OutsideJudges::find(test) else { return };
    let reported = [1, 10_000].map(|tools| {
        let house = UpstreamHome::empty(&judges);
        let server = |(at, name): (usize, &&str)| {
            let count = if at == 0 { tools } else { 1 };
            (name.to_string(), house.fixture(&["--only", "--tools", &count.to_string()]))
        };
        house.configure("ten", Value::Object(SERVERS.iter().enumerate().map(server).collect()));
        let unknown = house.introduction(&judges);
        // Before a search nothing is known about the tools; afterwards everything is, in the next process too.
        let mut agent = house.serve(&[]);
        let count = "print(sum(len(mcp.runtime.list_tools_sync(name)) for name in mcp.runtime.list_servers_sync()))";
        let counted = agent.run_code("python", count).ok();
        assert_eq!(counted.trim(), (tools + 9).to_string());
        agent.close();
        let known = house.introduction(&judges);
        assert_eq!(known, unknown, "with {tools} tools");
        known
    });
    assert_eq!(reported[0], reported[1]);
    for name in SERVERS {
        assert!(reported[0].tools.contains(&name.replace('-', "_")), "{name}: {}", reported[0].tools);
    }
    assert!(reported[0].tools.contains("find_tools"), "{}", reported[0].tools);
    let [tools, instructions] = reported[0].cost(&judges);
    let found = problems(WITH_SERVERS.0, tools + instructions, WITH_SERVERS.1);
    assert!(found.is_empty(), "{}", found.join("\n"));

    // If the names are too long for that, their number is given instead.
    let house = UpstreamHome::empty(&judges);
    let server = |number: usize| (format!("Xq7_Zk-company_wide_search_{number}"), json!({ "command": "/bin/true" }));
    house.configure("long", Value::Object((0..10).map(server).collect()));
    let [tools, instructions] = house.introduction(&judges).cost(&judges);
    assert!(tools + instructions <= WITH_SERVERS.1, "{tools} and {instructions} tokens");
}

#[test]
fn five_hits_cost_at_most_450_tokens() {
    let Some(judges) = OutsideJudges::find("five_hits_cost_at_most_450_tokens") else { return };
    let house = UpstreamHome::empty(&judges);
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/search/real_servers");
    let files = std::fs::read_dir(recorded).expect("a folder").map(|file| file.expect("a file").path());
    let servers = files.filter(|path| path.extension().is_some_and(|end| end == "json")).map(|path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, house.fixture(&["--replay", &path.to_string_lossy()]))
    });
    house.configure("recorded", Value::Object(servers.collect()));
    let mut agent = house.serve(&[]);
    let questions = std::fs::read_to_string(format!("{recorded}/questions.txt")).expect("questions");
    let mut sum = 0;
    for question in questions.lines() {
        let found = agent.call("find_tools", json!({ "query": question })).ok();
        let [_, tokens] = ClientIntroduction { tools: "[]".into(), instructions: found }.cost(&judges);
        println!("{question}: {tokens} tokens");
        sum += tokens;
    }
    agent.close();
    let average = sum / questions.lines().count() as u64;
    println!("{average} tokens on average");
    assert!(average <= 450, "{average} tokens on average");
}

impl UpstreamHome<'_> {
    fn introduction(&self, judges: &OutsideJudges) -> ClientIntroduction {
        self.introduction_under(judges, "")
    }

    /// The same with rules about the network, separated by `;`.
    fn introduction_under(&self, judges: &OutsideJudges, rules: &str) -> ClientIntroduction {
        let rules = format!("COVE_ALLOW_NET={rules}");
        let home = format!("HOME={}", self.folder.display());
        let configs = format!("XDG_CONFIG_HOME={}", self.path(".config").display());
        let program = cove().path().to_string_lossy().into_owned();
        ClientIntroduction::connect(
            judges,
            &["env", &home, &configs, &rules, &program, "serve", "--state-dir", &self.state_dir],
        )
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
