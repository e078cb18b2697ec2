//! The text of `docs/benchmarks.md`. Every measured number in it comes from the report.

use cove_testkit::statistics::percentile;
use serde_json::Value;

use super::report::{MeasuredReport, MeasuredRow, three_digits};
use crate::attempts::ErrorContext;
use crate::cargo::elements;

/// One table of the page, and one plot.
pub(super) struct PageTable {
    /// As rows name it.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What is measured, before the table.
    about: &'static str,
    /// The rows that every row is compared with, each with its heading.
    bases: &'static [(&'static str, &'static str)],
    /// How much each round writes; the table then has its speed.
    megabytes: Option<f64>,
}

pub(super) const TABLES: [PageTable; 6] = [
    PageTable {
        id: "start",
        title: "A new session",
        about: "From the request for a session to the first byte that its code prints. Programs start python for this code \
                alone; a session of Cove then waits for more. *Ready* sessions come from the pool that a server keeps \
                filled; *made on the spot* means that the pool was off. Over MCP the time ends when the client has the \
                answer. The code modes of FastMCP and UTCP keep nothing from one call to the next, so that each of their \
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
    page += &isolation(report);
    page += &slower(report);
    page += &left_out(report);
    page += &method(report).could_not("find a fact in the measured JSON")?;
    Ok(page)
}

fn section(report: &MeasuredReport, PageTable { id, title, about, bases, megabytes }: &PageTable) -> String {
    let bases: Vec<_> = bases.iter().filter_map(|(id, heading)| Some((report.row(id)?, heading))).collect();
    let mut text = format!("\n## {title}\n\n{about}\n\n<picture>\n");
    text += &format!("  <source media=\"(prefers-color-scheme: dark)\" srcset=\"benchmarks/{id}-dark.svg\">\n");
    text +=
        &format!("  <img alt=\"{title}: the table below as bars\" src=\"benchmarks/{id}-light.svg\">\n</picture>\n\n");
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

pub(super) fn slowest_first<'a>(report: &'a MeasuredReport, table: &'a str) -> Vec<&'a MeasuredRow> {
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

fn memory(report: &MeasuredReport) -> String {
    let mut text = "\n## Memory of an idle session\n\nWhat the processes hold after one `print(6*7)`. In the first number pages that \
                    several processes share count in parts (PSS); the second has only those of these processes. A row of Docker \
                    includes the process that Docker keeps beside each container, and not its daemon; one of a session of Cove \
                    not the server, which serves all sessions. The peers' servers have no session of their own: one process \
                    serves all. Of each repeat's number the median.\n\n| | PSS, MB | private, MB |\n|---|---|---|\n"
        .to_owned();
    let median = |row: &Value, key: &str| {
        let kilobytes: Vec<f64> = elements(&row[key]).filter_map(Value::as_f64).collect();
        if kilobytes.is_empty() { 0.0 } else { percentile(&kilobytes, 0.5) / 1000.0 }
    };
    let mut rows: Vec<_> = elements(&report.json["memory"])
        .map(|row| (row, median(row, "proportional_kb"), median(row, "private_kb")))
        .collect();
    rows.sort_by(|one, other| other.1.total_cmp(&one.1));
    for (row, proportional, private) in rows {
        let name = bold_if(row["is_cove"] == true, row["name"].as_str().unwrap_or_default());
        text += &format!("| {name} | {} | {} |\n", three_digits(proportional), three_digits(private));
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
    let mut text = "\n## What the tools cost\n\nThe answer to `tools/list` is in the agent's context all the time. The bytes are those \
                    of the whole list; the tokens are Cove's own estimate, never fewer than models count, of what a model reads: \
                    names, descriptions and input schemas. The [specification](specification.md#what-tools-cost) has the exact \
                    numbers of one tokenizer. UTCP's list is not here: the server that the benchmark puts before its library is not its \
                    own.\n\n| list | tools | bytes | tokens, estimated |\n|---|---|---|---|\n"
        .to_owned();
    for list in elements(&report.json["tool_lists"]) {
        let name = list["name"].as_str().unwrap_or_default();
        text += &format!("| {name} | {} | {} | {} |\n", list["tools"], list["bytes"], list["tokens"]);
    }
    text
}

/// The cases that Cove loses: a reader should not have to look for them in the tables.
fn slower(report: &MeasuredReport) -> String {
    let mut text = "\n## Where Cove is slower\n\nBy the median of the ratios within each round:\n\n".to_owned();
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
