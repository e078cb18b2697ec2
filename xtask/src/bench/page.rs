//! The text of `docs/benchmarks.md`. Every measured number in it comes from the report.

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
}

pub(super) const TABLES: [PageTable; 3] = [
    PageTable {
        id: "start",
        title: "A new session",
        about: "From the request for a session to the first byte that its code prints. Programs start python for this code \
                alone; a session of Cove then waits for more. *Ready* sessions come from the pool that a server keeps \
                filled; *made on the spot* means that the pool was off. Over MCP the time ends when the client has the \
                answer.",
        bases: &[("docker_run", "`docker run`"), ("bwrap", "`bwrap`"), ("bare", "bare python")],
    },
    PageTable {
        id: "cell",
        title: "A cell in a live session",
        about: "A running session, or a running container, gets code and answers. `docker exec`, `podman exec` and Docker's \
                API start a new python each time, which forgets its variables; in Cove they stay. *Python kept running* \
                is a short loop without limits, interrupts and a report of errors: the floor.",
        bases: &[("docker_exec", "`docker exec`"), ("docker_kept_python", "python kept in `docker run`")],
    },
    PageTable {
        id: "import",
        title: "A new session that imports modules",
        about: "As the first table, but the code imports modules first. *Preloaded* sessions have imported them while they \
                waited in the pool (the setting `preload`).",
        bases: &[("import_docker", "`docker run`"), ("import_bwrap", "`bwrap`"), ("import_bare", "bare python")],
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
    page += &tool_lists(report);
    page += &slower(report);
    page += &left_out(report);
    page += &method(report).could_not("find a fact in the measured JSON")?;
    Ok(page)
}

fn section(report: &MeasuredReport, PageTable { id, title, about, bases }: &PageTable) -> String {
    let bases: Vec<_> = bases.iter().filter_map(|(id, heading)| Some((report.row(id)?, heading))).collect();
    let mut text = format!("\n## {title}\n\n{about}\n\n<picture>\n");
    text += &format!("  <source media=\"(prefers-color-scheme: dark)\" srcset=\"benchmarks/{id}-dark.svg\">\n");
    text +=
        &format!("  <img alt=\"{title}: the table below as bars\" src=\"benchmarks/{id}-light.svg\">\n</picture>\n\n");
    let headings: String = bases.iter().map(|(_, heading)| format!(" times as fast as {heading} |")).collect();
    text += &format!("| | min ms | p50 ms | p99 ms |{headings}\n|---|---|---|---|{}\n", "---|".repeat(bases.len()));
    for row in slowest_first(report, id) {
        let name = if row.is_cove { format!("**{}**", row.name) } else { row.name.clone() };
        let [least, half, most] = [0.0, 0.5, 0.99].map(|part| three_digits(row.percentile(part)));
        text += &format!("| {name} | {least} | {half} | {most} |");
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

fn tool_lists(report: &MeasuredReport) -> String {
    let mut text = "\n## What the tools cost\n\nThe answer to `tools/list` is in the agent's context all the time. The bytes are those \
                    of the whole list; the tokens are Cove's own estimate, never fewer than models count, of what a model reads: \
                    names, descriptions and input schemas. The [specification](specification.md#what-tools-cost) has the exact \
                    numbers of one tokenizer.\n\n| toolset | tools | bytes | tokens, estimated |\n|---|---|---|---|\n"
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
    let [date, cove, commit, profile, rounds, warm_up, cells, before, after] = facts_of(
        &report.json,
        ["date", "cove", "commit", "profile", "rounds", "warm_up", "cells_per_turn", "load_before", "load_after"],
    )?;
    let pairs = elements(&report.json["versions"]).map(|pair| format!("{} {}", text_at(pair, 0), text_at(pair, 1)));
    let versions = pairs.collect::<Vec<_>>().join("; ");
    let modules: Vec<_> =
        elements(&report.json["modules"]).filter_map(Value::as_str).map(|one| format!("`{one}`")).collect();
    let substitute = if modules.iter().any(|module| module == "`numpy`") {
        ""
    } else {
        " They stand for larger ones: numpy was not installed on this machine."
    };
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
- The output of every run was checked. All code is `print(6*7)`, and python has the flags of Cove's runner, `-I -X utf8`. A time of
  *Cove cell* or *python kept running* is the mean of {cells} in a row. *First after other work* is one cell, after all other rows had
  their turns and caches were cold.
- The modules of the third table are {modules}.{substitute}
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
