//! The text of `docs/benchmarks.md`. Every measured number in it comes from the report.

use serde_json::Value;

use super::goals::{self, GoalOutcome};
use super::plot::{BarPlot, PlotBar};
use super::report::{MeasuredReport, MeasuredRow, three_digits};
use crate::attempts::ErrorContext;
use crate::cargo::elements;

/// One table of the page, and one plot.
struct PageTable {
    /// As rows name it.
    id: &'static str,
    title: &'static str,
    /// What is measured, before the table.
    about: &'static str,
    /// The rows that every row is compared with, each with its heading.
    bases: &'static [(&'static str, &'static str)],
    /// How much each round writes; the table then has its speed.
    megabytes: Option<f64>,
}

const TABLES: [PageTable; 6] = [
    PageTable {
        id: "start",
        title: "A new session",
        about: "From the request for a session to the first byte that its code prints. Programs start python for this code \
                alone; a session of Cove then waits for more. *Ready* sessions come from the pool that a server keeps \
                filled; *made on the spot* means that the pool was off. Over MCP the time ends when the client has the \
                answer; the client over HTTP opens a connection for each request. The code modes of FastMCP and UTCP keep nothing from one call to the next, so that each of their \
                calls is a new session; they start an interpreter, but no sandbox of the operating system.",
        bases: &[("docker_run", "`docker run`"), ("bwrap", "`bwrap`"), ("bare", "bare python")],
        megabytes: None,
    },
    PageTable {
        id: "cell",
        title: "A cell in a live session",
        about: "A running session, or a running container, gets code and answers. `docker exec`, `podman exec` and Docker's \
                API start a new python each time, which forgets its variables; in Cove they stay. *Python kept running* \
                is a short loop without limits, interrupts and a report of errors: the floor.",
        bases: &[
            ("docker_exec", "`docker exec`"),
            ("docker_exec_api", "Docker's API"),
            ("docker_kept_python", "python kept in `docker run`"),
            ("cell_fastmcp", "FastMCP"),
            ("cell_utcp_npm", "UTCP (npm)"),
        ],
        megabytes: None,
    },
    PageTable {
        id: "import",
        title: "A new session that imports modules",
        about: "As the first table, but the code imports modules first. *Preloaded* sessions have imported them while they \
                waited in the pool (the setting `preload`).",
        bases: &[("import_docker", "`docker run`"), ("import_bwrap", "`bwrap`"), ("import_bare", "bare python")],
        megabytes: None,
    },
    PageTable {
        id: "call",
        title: "A call to an upstream server",
        about: "Code in a live session calls a tool of an MCP server on stdio, which gives back its argument, and then the \
                next one. The time is that of a whole cell over MCP, divided by its calls. *A client alone* makes the same \
                calls to the same server without any code: the floor.",
        bases: &[
            ("call_client", "a client alone"),
            ("call_fastmcp", "FastMCP"),
            ("call_utcp_npm", "UTCP (npm)"),
            ("call_utcp_pypi", "UTCP (PyPI)"),
        ],
        megabytes: None,
    },
    PageTable {
        id: "gathered",
        title: "Ten calls at once",
        about: "A cell makes ten calls at once, of a tool that takes 10 ms. A code mode that makes them one after another \
                takes at least 100 ms.",
        bases: &[
            ("gathered_client", "a client alone"),
            ("gathered_fastmcp", "FastMCP"),
            ("gathered_utcp_npm", "UTCP (npm)"),
        ],
        megabytes: None,
    },
    PageTable {
        id: "output",
        title: "Much output",
        about: "Code prints 10 MB in 10,000 lines, and the time ends when all of it was read. `docker exec` and the programs \
                start a python for it. A cell of Cove keeps the beginning, the end and the number of characters between \
                them, and the whole text in a file; over MCP the client gets that. The code modes of FastMCP and UTCP \
                send everything to the client, and FastMCP's returns the text, because what it prints is lost.",
        bases: &[("output_docker_exec", "`docker exec`"), ("output_python", "a bare pipe")],
        megabytes: Some(10.0),
    },
];

const OPENING: &str = "\
# Benchmarks

How long Cove takes beside other ways to run the same code. All rows were measured in one run on one machine, where they took turns
in every round. Compare rows of this page with each other, and not with numbers of another machine.
";

/// Fails if the report lacks a fact.
pub(super) fn page(report: &MeasuredReport) -> Result<String, String> {
    let mut page = OPENING.to_owned();
    for table in &TABLES {
        page += &section(report, table);
    }
    page += &memory(report);
    page += &tool_lists(report);
    page += &round_trips(report);
    page += &goals::section(report);
    page += &shortfalls(report);
    page += &isolation(report);
    page += &left_out(report);
    page += &method(report).could_not("find a fact in the measured JSON")?;
    Ok(page)
}

fn section(report: &MeasuredReport, PageTable { id, title, about, bases, megabytes }: &PageTable) -> String {
    let bases: Vec<_> = bases.iter().filter_map(|(id, heading)| Some((report.row(id)?, heading))).collect();
    let mut text = format!("\n## {title}\n\n{about}\n\n{}", picture(id, title));
    let headings: String = bases.iter().map(|(_, heading)| format!(" times as fast as {heading} |")).collect();
    let (speed_heading, line) = if megabytes.is_some() { (" MB/s at p50 |", "---|") } else { ("", "") };
    text += &format!("| | min ms | p50 ms | p99 ms |{speed_heading}{headings}\n");
    text += &format!("|---|---|---|---|{line}{}\n", "---|".repeat(bases.len()));
    for row in slowest_first(report, id) {
        let name = bold_if(row.is_cove, &row.name);
        let [least, half, most] = [0.0, 0.5, 0.99].map(|part| three_digits(row.percentile(part)));
        text += &format!("| {name} | {least} | {half} | {most} |");
        if let Some(megabytes) = megabytes {
            text += &format!(" {} |", three_digits(megabytes * 1000.0 / row.percentile(0.5)));
        }
        for (base, _) in &bases {
            text += &format!(" {} |", if base.id == row.id { "1".to_owned() } else { speed(row, base) });
        }
        text.push('\n');
    }
    text
}

fn picture(id: &str, title: &str) -> String {
    format!(
        "<picture>\n  <source media=\"(prefers-color-scheme: dark)\" srcset=\"benchmarks/{id}-dark.svg\">\n  \
         <img alt=\"{title}: the table below as bars\" src=\"benchmarks/{id}-light.svg\">\n</picture>\n\n"
    )
}

/// Returns a plot for each table, for memory and for what tools cost.
pub(super) fn plots(report: &MeasuredReport) -> Vec<BarPlot<'_>> {
    let mut plots: Vec<_> = TABLES.iter().map(|table| time_plot(report, table)).collect();
    let memory = report.memory_rows.iter();
    plots.push(BarPlot {
        id: "memory",
        title: MEMORY,
        measure: "megabytes",
        unit: " MB",
        note: "PSS in MB, the median of the repeats; shorter is better",
        bars: memory
            .map(|row| PlotBar { name: &row.name, is_cove: row.is_cove, value: row.proportional, range: None })
            .collect(),
    });
    plots.push(BarPlot {
        id: "tools",
        title: TOOL_LISTS,
        measure: "estimated tokens",
        unit: "",
        note: "estimated tokens of the answer to tools/list; shorter is better",
        bars: elements(&report.json["tool_lists"]).filter_map(tool_list_bar).collect(),
    });
    plots
}

fn time_plot<'a>(report: &'a MeasuredReport, table: &PageTable) -> BarPlot<'a> {
    let bar = |row: &'a MeasuredRow| PlotBar {
        name: &row.name,
        is_cove: row.is_cove,
        value: row.percentile(0.5),
        range: Some([0.0, 0.99].map(|part| row.percentile(part))),
    };
    BarPlot {
        id: table.id,
        title: table.title,
        measure: "median time in milliseconds",
        unit: " ms",
        note: "median in ms, logarithmic; the line is from the fastest round to p99; shorter is better",
        bars: slowest_first(report, table.id).into_iter().map(bar).collect(),
    }
}

fn tool_list_bar(list: &Value) -> Option<PlotBar<'_>> {
    let name = list["name"].as_str()?;
    Some(PlotBar { name, is_cove: name.starts_with("Cove"), value: list["tokens"].as_f64()?, range: None })
}

fn slowest_first<'a>(report: &'a MeasuredReport, table: &'a str) -> Vec<&'a MeasuredRow> {
    let mut rows: Vec<_> = report.rows_of(table).collect();
    rows.sort_by(|one, other| other.percentile(0.5).total_cmp(&one.percentile(0.5)));
    rows
}

/// How many times as fast as `base` a row is, with the range of the repeats.
fn speed(row: &MeasuredRow, base: &MeasuredRow) -> String {
    let ratio = base.ratio(row);
    let [median, lowest, highest] = [ratio.median, ratio.lowest, ratio.highest].map(three_digits);
    format!("{median} ({lowest} to {highest})")
}

fn bold_if(is_cove: bool, name: &str) -> String {
    if is_cove { format!("**{name}**") } else { name.to_owned() }
}

const MEMORY: &str = "Memory of an idle session";
const TOOL_LISTS: &str = "What the tools cost";

fn memory(report: &MeasuredReport) -> String {
    let mut text = format!(
        "\n## {MEMORY}\n\nWhat the processes hold after one `print(6*7)`. In the first number pages that several processes share count \
         in parts (PSS); the second has only those of these processes. A row of Docker includes the process that Docker keeps beside \
         each container, and not its daemon; one of a session of Cove not the server, which serves all sessions. The peers' servers \
         have no session of their own: one process serves all. Of each repeat's number the median.\n\n{}| | PSS, MB | private, MB \
         |\n|---|---|---|\n",
        picture("memory", MEMORY)
    );
    for row in &report.memory_rows {
        let [proportional, private] = [row.proportional, row.private].map(three_digits);
        text += &format!("| {} | {proportional} | {private} |\n", bold_if(row.is_cove, &row.name));
    }
    text
}

/// What separates the code of each peer from the machine: without it the times cannot be compared.
fn isolation(report: &MeasuredReport) -> String {
    let mut text = "\n## What isolates the code\n\nCove's sessions have namespaces, a system call filter and limits \
                    ([security](security.md)); its containers those of the engine. The peers from PyPI and npm have no isolation \
                    by the operating system:\n\n"
        .to_owned();
    for peer in elements(&report.json["peers"]) {
        text += &format!("- {} {}: {}\n", text_at(peer, 0), text_at(peer, 1), text_at(peer, 2));
    }
    text
}

fn tool_lists(report: &MeasuredReport) -> String {
    let mut text = format!(
        "\n## {TOOL_LISTS}\n\nThe answer to `tools/list` is in the agent's context all the time. The bytes are those of the whole list; \
         the tokens are Cove's own estimate, never fewer than models count, of what a model reads: names, descriptions and input \
         schemas. The [specification](specification.md#what-tools-cost) has the exact numbers of one tokenizer. UTCP's list is not \
         here: the server that the benchmark puts before its library is not its own.\n\n{}| list | tools | bytes | tokens, \
         estimated |\n|---|---|---|---|\n",
        picture("tools", TOOL_LISTS)
    );
    for list in elements(&report.json["tool_lists"]) {
        let name = list["name"].as_str().unwrap_or_default();
        text += &format!("| {name} | {} | {} | {} |\n", list["tools"], list["bytes"], list["tokens"]);
    }
    text
}

/// The rows of `round_trips`, and the row whose time is not theirs.
const IN_ROUND_TRIPS: [(&str, Option<&str>); 9] = [
    ("kept_python", None),
    ("cove_cell", None),
    ("cove_cell_pause", None),
    ("cove_mcp_cell", None),
    ("cove_http_cell", None),
    ("calls_alone", None),
    ("calls_python", Some("calls_alone")),
    ("calls_awaited", Some("calls_alone")),
    ("calls_node", Some("calls_alone")),
];

/// Returns cells and calls in a unit that depends less on the machine, or nothing if it was not measured.
fn round_trips(report: &MeasuredReport) -> String {
    let Some(pipe) = report.row("pipe") else { return String::new() };
    let [trips, calls] = ["round_trips_per_turn", "long_calls_per_turn"].map(|key| report.json[key].to_string());
    let mut text = format!(
        "\n## In round trips through a pipe\n\nA line to a process that sends it back (`cat`) and its return take {} ms at p50: what two \
         wake-ups cost at least on this machine (the mean of {trips} in a row). Times in this unit depend less on the machine. A call \
         is one of {calls} in a cell over MCP on stdio; *over* means without the time of the same call by a client alone, which \
         writes to the server's pipe by hand. The median within each round, with the lowest and the highest median of a repeat.\n\n\
         | | round trips |\n|---|---|\n",
        three_digits(pipe.percentile(0.5))
    );
    for (id, without) in IN_ROUND_TRIPS {
        let (Some(row), Some(ratio)) = (report.row(id), report.in_round_trips(id, without)) else { continue };
        let over = if without.is_some() { ", over a client alone" } else { "" };
        let name = bold_if(row.is_cove, &format!("{}{over}", row.name));
        let [median, lowest, highest] = [ratio.median, ratio.lowest, ratio.highest].map(three_digits);
        text += &format!("| {name} | {median} ({lowest} to {highest}) |\n");
    }
    text
}

/// The cases that Cove loses: a reader should not have to look for them in the tables.
fn shortfalls(report: &MeasuredReport) -> String {
    let mut text = "\n## Where Cove falls short\n\n".to_owned();
    let missed: Vec<_> = goals::results(report).into_iter().filter(|one| one.outcome != GoalOutcome::Reached).collect();
    if !missed.is_empty() {
        text += "Goals that this run did not reach:\n\n";
        for goal in missed {
            let [median, worst] = [goal.median, goal.worst].map(three_digits);
            text += &format!("- {}: {median}, in the worst repeat {worst}; the goal is {}\n", goal.what, goal.aim);
        }
        text += "\nTwo more were not reached, and this run does not measure them: a refill of the pool for a third of its processor \
                 time (record [34](decisions/0034-each-session-executes-its-own-python.md)), and a thousand sessions in 5 s (record \
                 [33](decisions/0033-ready-sessions-in-front-of-every-backend.md)).\n\n";
    }
    text += "Slower, by the median of the ratios within each round:\n\n";
    for table in &TABLES {
        for row in slowest_first(report, table.id).into_iter().filter(|row| row.is_cove) {
            let others = slowest_first(report, table.id).into_iter().filter(|other| !other.is_cove);
            let ratios = others.map(|other| (other, row.ratio(other).median)).filter(|(_, ratio)| *ratio > 1.0);
            let parts: Vec<String> = ratios
                .map(|(other, ratio)| format!("{} times as long as {}", three_digits(ratio), other.name))
                .collect();
            if !parts.is_empty() {
                text += &format!("- {}, *{}*: {}\n", table.title, row.name, parts.join("; "));
            }
        }
    }
    text + &more_memory(report)
}

/// Each row of Cove that holds more than one of another.
fn more_memory(report: &MeasuredReport) -> String {
    let mut text = "\nMore memory when idle (PSS):\n\n".to_owned();
    for row in report.memory_rows.iter().filter(|row| row.is_cove) {
        let smaller = report.memory_rows.iter().filter(|other| !other.is_cove && other.proportional < row.proportional);
        let parts: Vec<String> = smaller
            .map(|other| {
                format!("{} times as much as {}", three_digits(row.proportional / other.proportional), other.name)
            })
            .collect();
        if !parts.is_empty() {
            text += &format!("- *{}*: {}\n", row.name, parts.join("; "));
        }
    }
    text
}

fn left_out(report: &MeasuredReport) -> String {
    let mut text = "\n## What is not here\n\n".to_owned();
    for one in elements(&report.json["left_out"]) {
        let [peer, why] = [0, 1].map(|at| one[at].as_str().unwrap_or_default());
        text += &format!("- {peer}: {why}\n");
    }
    text + "- Hosted sandboxes: they are on other machines, behind a network\n"
}

/// Returns the values as text. Fails if one is missing.
fn facts_of<const N: usize>(json: &Value, keys: [&str; N]) -> Result<[String; N], String> {
    let mut facts = [const { String::new() }; N];
    for (fact, key) in facts.iter_mut().zip(keys) {
        *fact = match &json[key] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err(format!("`{key}` is missing")),
        };
    }
    Ok(facts)
}

fn method(report: &MeasuredReport) -> Result<String, String> {
    let [cores, processor, memory, kernel, distribution] =
        facts_of(&report.json["machine"], ["cores", "processor", "memory_gb", "kernel", "distribution"])?;
    let [date, cove, commit, profile, rounds, warm_up] =
        facts_of(&report.json, ["date", "cove", "commit", "profile", "rounds", "warm_up"])?;
    let [cells, calls, before, after] =
        facts_of(&report.json, ["cells_per_turn", "calls_per_turn", "load_before", "load_after"])?;
    let pairs = elements(&report.json["versions"]).map(|pair| format!("{} {}", text_at(pair, 0), text_at(pair, 1)));
    let versions = pairs.collect::<Vec<_>>().join("; ");
    let modules: Vec<_> =
        elements(&report.json["modules"]).filter_map(Value::as_str).map(|one| format!("`{one}`")).collect();
    let about_modules = if modules.iter().any(|module| module == "`pandas`") {
        "sums a column of a `DataFrame`"
    } else {
        "prints a number; these stand for larger modules, as pandas was not installed on this machine"
    };
    let in_image =
        if report.row("import_docker").is_none() { ". The image of the engines does not have it" } else { "" };
    let (rows, repeats, modules) = (report.rows.len(), report.repeats(), modules.join(", "));
    Ok(format!(
        "
## How it was measured

- Machine: {cores} processors ({processor}), {memory} GB, {distribution}, Linux {kernel}.
- Measured on {date}: Cove {cove} at commit {commit}, compiled with the profile `{profile}`; {versions}.
- Load average before: {before}; after: {after}. What others used of the processors makes every row slower and less even; p99 mostly
  measures the neighbours.
- {rows} rows took turns in each round, and the order rotated. Of each of {repeats} repeats {rounds} rounds count, after {warm_up} that
  do not. `min`, `p50` and `p99` are of all rounds. *Times as fast* is the median of the ratios within each round, in which noise that
  affects both rows cancels out; in parentheses the lowest and the highest median of a repeat. Below 1 a row is slower.
- The output of every run was checked. The code of the first two tables is `print(6*7)`, and python has the flags of Cove's runner, `-I -X utf8`. A time of
  *Cove cell*, *python kept running* or a peer's cell is the mean of {cells} in a row, that of a call the mean of {calls}. *First after
  other work* is one cell, after all other rows had their turns and caches were cold.
- Peers get the same work in the language that they understand; `code_dialects.rs` of the benchmark has all of it. Their versions are
  pinned beside it. UTCP's packages are libraries: the benchmark serves them over MCP with a few lines. FastMCP
  runs as its documentation shows, with a proxy that opens a session with the server for each call.
- The code of the table of imports imports {modules} and {about_modules}{in_image}.
- Containers have no network. Podman's command line reaches it through its socket. bwrap has the same namespaces as Cove, but no
  system call filter and no limits. The engines and their image are those of Cove's tests, with storage on this machine's disk.

`cargo xtask bench --report [ROUNDS [REPEATS]]` as root measures again. The times of every round are in
[measured.json](benchmarks/measured.json); `cargo xtask bench --report --from-measured` makes this page and its plots from them, and a
test compares the two [test: the_kept_page_and_plots_are_those_of_the_kept_measurement].
"
    ))
}

fn text_at(list: &Value, at: usize) -> &str {
    list[at].as_str().unwrap_or_default()
}
