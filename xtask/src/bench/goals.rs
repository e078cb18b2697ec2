//! What was aimed at, beside what was measured. A goal whose rows were not measured is left out.

use super::report::{MeasuredReport, RowRatio, three_digits};

struct PerformanceGoal {
    what: &'static str,
    measure: GoalMeasure,
}

enum GoalMeasure {
    /// At least so many times as fast as another row.
    TimesAsFast { row: &'static str, base: &'static str, at_least: f64 },
    /// At most so many round trips of a line through a pipe, without the time of another row.
    RoundTrips { row: &'static str, without: Option<&'static str>, at_most: f64 },
    /// At most so many megabytes that only this has.
    PrivateMemory { name: &'static str, at_most: f64 },
}

const fn faster(what: &'static str, row: &'static str, base: &'static str, at_least: f64) -> PerformanceGoal {
    PerformanceGoal { what, measure: GoalMeasure::TimesAsFast { row, base, at_least } }
}

const fn round_trips(
    what: &'static str,
    row: &'static str,
    without: Option<&'static str>,
    at_most: f64,
) -> PerformanceGoal {
    PerformanceGoal { what, measure: GoalMeasure::RoundTrips { row, without, at_most } }
}

const CALLS_ALONE: Option<&str> = Some("calls_alone");

const GOALS: [PerformanceGoal; 14] = [
    faster("a ready session, over `docker run`", "cove_ready", "docker_run", 400.0),
    faster("a ready session over MCP on stdio, over `docker run`", "cove_mcp_ready", "docker_run", 400.0),
    faster("a preloaded session, over python without a sandbox that imports", "import_preloaded", "import_bare", 50.0),
    faster("a preloaded session over MCP on stdio, over the same python", "import_mcp_preloaded", "import_bare", 50.0),
    faster("a ready container on Docker, over `docker run`", "cove_docker_ready", "docker_run", 40.0),
    faster("a ready container on Podman, over `podman run`", "cove_podman_ready", "podman_run", 40.0),
    faster("a session made on the spot, over `bwrap`", "cove_new", "bwrap", 1.0),
    faster("a cell in a live session, over `docker exec` by Docker's API", "cove_cell", "docker_exec_api", 1500.0),
    faster("a cell over MCP on stdio, over `docker exec` by Docker's API", "cove_mcp_cell", "docker_exec_api", 400.0),
    round_trips("a cell in a live session", "cove_cell", None, 6.0),
    round_trips("a call from python, over a client alone", "calls_python", CALLS_ALONE, 5.0),
    round_trips("an awaited call from python, over a client alone", "calls_awaited", CALLS_ALONE, 5.0),
    round_trips("a call from node, over a client alone", "calls_node", CALLS_ALONE, 5.0),
    PerformanceGoal {
        what: "private memory of an idle session with common modules imported",
        measure: GoalMeasure::PrivateMemory { name: "Cove session, common modules imported", at_most: 2.5 },
    },
];

/// A goal with what was measured.
pub(super) struct GoalResult {
    pub(super) what: &'static str,
    /// The goal with its unit.
    pub(super) aim: String,
    pub(super) median: f64,
    /// The median of the worst repeat.
    pub(super) worst: f64,
    pub(super) outcome: GoalOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoalOutcome {
    Reached,
    /// Not in every repeat.
    InTheMedian,
    Missed,
}

impl GoalOutcome {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Reached => "yes",
            Self::InTheMedian => "in the median, not in the worst repeat",
            Self::Missed => "**no**",
        }
    }

    fn of(median_reaches: bool, worst_reaches: bool) -> Self {
        match (median_reaches, worst_reaches) {
            (true, true) => Self::Reached,
            (true, false) => Self::InTheMedian,
            (false, _) => Self::Missed,
        }
    }
}

pub(super) fn results(report: &MeasuredReport) -> Vec<GoalResult> {
    GOALS.iter().filter_map(|goal| goal.result(report)).collect()
}

impl PerformanceGoal {
    fn result(&self, report: &MeasuredReport) -> Option<GoalResult> {
        let what = self.what;
        let at_most = |aim, limit: f64, median: f64, worst: f64| {
            let outcome = GoalOutcome::of(median <= limit, worst <= limit);
            GoalResult { what, aim, median, worst, outcome }
        };
        Some(match self.measure {
            GoalMeasure::TimesAsFast { row, base, at_least } => {
                let RowRatio { median, lowest: worst, .. } = report.row(base)?.ratio(report.row(row)?);
                let outcome = GoalOutcome::of(median >= at_least, worst >= at_least);
                let aim = match at_least {
                    1.0 => "not slower".to_owned(),
                    times => format!("at least {times} times as fast"),
                };
                GoalResult { what, aim, median, worst, outcome }
            }
            GoalMeasure::RoundTrips { row, without, at_most: limit } => {
                let RowRatio { median, highest: worst, .. } = report.in_round_trips(row, without)?;
                at_most(format!("at most {limit} round trips"), limit, median, worst)
            }
            GoalMeasure::PrivateMemory { name, at_most: limit } => {
                let row = report.memory_rows.iter().find(|row| row.name == name)?;
                at_most(format!("at most {limit} MB"), limit, row.private, row.most_private)
            }
        })
    }
}

/// Returns a table of all goals whose rows were measured, or nothing if there are none.
pub(super) fn section(report: &MeasuredReport) -> String {
    let results = results(report);
    if results.is_empty() {
        return String::new();
    }
    let mut text = "\n## Goals\n\nWhat ready sessions and shorter ways were built for, beside what this run measured: the median of the \
                    ratios within each round, and the worst median of a repeat. Goals are not promises; what Cove promises is in the \
                    [specification](specification.md). *Round trips* are those of a line through a pipe.\n\n\
                    | | goal | measured | worst repeat | reached |\n|---|---|---|---|---|\n"
        .to_owned();
    for GoalResult { what, aim, median, worst, outcome } in results {
        let [median, worst] = [median, worst].map(three_digits);
        text += &format!("| {what} | {aim} | {median} | {worst} | {} |\n", outcome.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(id: &str, repeats: &[&[f64]]) -> Value {
        json!({"table": "t", "id": id, "name": id, "is_cove": false, "repeats": repeats})
    }

    #[test]
    fn goals_are_reached_only_if_every_repeat_reaches_them() {
        let rows = [
            row("pipe", &[&[1.0], &[2.0]]),
            row("cove_cell", &[&[6.0], &[14.0]]),
            row("calls_alone", &[&[5.0], &[5.0]]),
            row("calls_python", &[&[7.0], &[9.0]]),
            row("docker_exec_api", &[&[9000.0], &[20_000.0]]),
            row("bwrap", &[&[5.0], &[5.0]]),
            row("cove_new", &[&[6.0], &[7.0]]),
        ];
        let memory = [
            json!({"name": "Cove session, common modules imported", "is_cove": true, "proportional_kb": [5000, 6000, 7000],
                             "private_kb": [2000, 2600, 2400]}),
        ];
        let report = MeasuredReport::parse(&json!({"rows": rows, "memory": memory}).to_string()).unwrap();
        let found: Vec<_> = results(&report).into_iter().map(|one| (one.what, one.worst, one.outcome)).collect();
        assert_eq!(
            found,
            [
                ("a session made on the spot, over `bwrap`", 5.0 / 7.0, GoalOutcome::Missed),
                ("a cell in a live session, over `docker exec` by Docker's API", 20_000.0 / 14.0, GoalOutcome::Missed),
                ("a cell in a live session", 7.0, GoalOutcome::Missed),
                ("a call from python, over a client alone", 2.0, GoalOutcome::Reached),
                ("private memory of an idle session with common modules imported", 2.6, GoalOutcome::InTheMedian),
            ]
        );
        assert!(
            section(&report)
                .contains("| a call from python, over a client alone | at most 5 round trips | 2.00 | 2.00 | yes |")
        );
    }
}
