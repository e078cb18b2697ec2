//! What the benchmark `report` measured, read from its JSON, and the statistics of its rows. It must not know how the page
//! looks.

use std::fmt::Display;

use cove_testkit::statistics::{percentile, ratio};
use serde_json::Value;

use crate::cargo::elements;

#[derive(Debug)]
pub(super) struct MeasuredReport {
    /// Everything, for facts about the machine and the run.
    pub(super) json: Value,
    pub(super) rows: Vec<MeasuredRow>,
    /// What is held in memory, the most first.
    pub(super) memory_rows: Vec<IdleMemory>,
}

#[derive(Debug)]
pub(super) struct MeasuredRow {
    pub(super) table: String,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) is_cove: bool,
    /// The time of each round in milliseconds, for each repeat.
    repeats: Vec<Vec<f64>>,
}

/// What an idle session or server holds, in megabytes.
#[derive(Debug)]
pub(super) struct IdleMemory {
    pub(super) name: String,
    pub(super) is_cove: bool,
    /// Pages that several processes share count in parts.
    pub(super) proportional: f64,
    /// The median of the repeats.
    pub(super) private: f64,
    pub(super) most_private: f64,
}

/// The median of the ratios within each round: over all rounds, and the lowest and the highest of any repeat.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowRatio {
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

impl MeasuredReport {
    /// Fails unless each row has as many rounds as the others, and at least one.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let rows = elements(&json["rows"]).map(MeasuredRow::parse).collect::<Option<Vec<_>>>();
        let rows = rows.filter(|rows| !rows.is_empty()).ok_or("a row lacks something")?;
        let shape = |row: &MeasuredRow| row.repeats.iter().map(Vec::len).collect::<Vec<_>>();
        let first = shape(&rows[0]);
        if first.is_empty() || first.contains(&0) || rows.iter().any(|row| shape(row) != first) {
            return Err("the rows differ in their rounds".to_owned());
        }
        let mut memory_rows: Vec<_> = elements(&json["memory"]).filter_map(IdleMemory::parse).collect();
        memory_rows.sort_by(|one, other| other.proportional.total_cmp(&one.proportional));
        Ok(Self { json, rows, memory_rows })
    }

    pub(super) fn row(&self, id: &str) -> Option<&MeasuredRow> {
        self.rows.iter().find(|row| row.id == id)
    }

    pub(super) fn rows_of<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a MeasuredRow> {
        self.rows.iter().filter(move |row| row.table == table)
    }

    /// Returns how many round trips of a line through a pipe a row takes, without the time of another row, or `None` if
    /// one of them was not measured.
    pub(super) fn in_round_trips(&self, row: &str, without: Option<&str>) -> Option<RowRatio> {
        let (row, pipe) = (self.row(row)?, self.row("pipe")?);
        let without = match without {
            Some(id) => Some(self.row(id)?),
            None => None,
        };
        let repeats = row.repeats.iter().zip(&pipe.repeats).enumerate().map(|(repeat, (own, pipe))| {
            let part = |round: usize| without.map_or(0.0, |row| row.repeats[repeat][round]);
            own.iter().zip(pipe).enumerate().map(|(round, (own, pipe))| (own - part(round)) / pipe).collect()
        });
        let repeats: Vec<Vec<f64>> = repeats.collect();
        let medians: Vec<f64> = repeats.iter().map(|repeat| percentile(repeat, 0.5)).collect();
        Some(RowRatio {
            median: percentile(&repeats.concat(), 0.5),
            lowest: percentile(&medians, 0.0),
            highest: percentile(&medians, 1.0),
        })
    }

    pub(super) fn repeats(&self) -> usize {
        self.rows[0].repeats.len()
    }
}

impl MeasuredRow {
    fn parse(json: &Value) -> Option<Self> {
        let text = |key: &str| json[key].as_str().map(str::to_owned);
        let times = |repeat: &Value| repeat.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>();
        Some(Self {
            table: text("table")?,
            id: text("id")?,
            name: text("name")?,
            is_cove: json["is_cove"].as_bool()?,
            repeats: json["repeats"].as_array()?.iter().map(times).collect::<Option<_>>()?,
        })
    }

    /// The time in milliseconds below which this part of all rounds are.
    pub(super) fn percentile(&self, part: f64) -> f64 {
        percentile(&self.repeats.concat(), part)
    }

    /// How many times as long as `base` this row takes.
    pub(super) fn ratio(&self, base: &Self) -> RowRatio {
        let each = self.repeats.iter().zip(&base.repeats).map(|(own, base)| ratio(own, base)).collect::<Vec<_>>();
        RowRatio {
            median: ratio(&self.repeats.concat(), &base.repeats.concat()),
            lowest: percentile(&each, 0.0),
            highest: percentile(&each, 1.0),
        }
    }
}

impl IdleMemory {
    fn parse(json: &Value) -> Option<Self> {
        let megabytes = |key: &str, part| {
            let kilobytes: Vec<f64> = elements(&json[key]).filter_map(Value::as_f64).collect();
            (!kilobytes.is_empty()).then(|| percentile(&kilobytes, part) / 1000.0)
        };
        Some(Self {
            name: json["name"].as_str()?.to_owned(),
            is_cove: json["is_cove"] == true,
            proportional: megabytes("proportional_kb", 0.5)?,
            private: megabytes("private_kb", 0.5)?,
            most_private: megabytes("private_kb", 1.0)?,
        })
    }
}

/// A number with three digits that count: `0.123`, `1.23`, `12.3`, `123`.
pub(super) fn three_digits(number: f64) -> impl Display {
    let decimals = match number {
        number if number >= 100.0 => 0,
        number if number >= 10.0 => 1,
        number if number >= 1.0 => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(id: &str, repeats: &[&[f64]]) -> Value {
        json!({"table": "start", "id": id, "name": id, "is_cove": false, "repeats": repeats})
    }

    #[test]
    fn ratios_are_those_within_rounds() {
        let rows = [row("a", &[&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0]]), row("b", &[&[2.0, 8.0, 6.0], &[12.0, 8.0, 16.0]])];
        let report = MeasuredReport::parse(&json!({ "rows": rows }).to_string()).unwrap();
        let [a, b] = ["a", "b"].map(|id| report.row(id).unwrap());
        // In-round ratios: 2, 4, 2 and 3, 2, 4.
        let ratio = b.ratio(a);
        assert_eq!((ratio.lowest, ratio.highest), (2.0, 3.0));
        assert!((ratio.median - 6_f64.sqrt()).abs() < 1e-9 && (a.ratio(b).median * ratio.median - 1.0).abs() < 1e-9);
        assert_eq!((a.percentile(0.0), b.percentile(1.0), report.repeats()), (1.0, 16.0, 2));
    }

    #[test]
    fn overheads_are_counted_in_round_trips() {
        let rows = [
            row("pipe", &[&[1.0, 2.0, 1.0], &[4.0, 4.0, 4.0]]),
            row("client", &[&[2.0, 2.0, 2.0], &[2.0, 2.0, 2.0]]),
            row("calls", &[&[5.0, 6.0, 4.0], &[10.0, 2.0, 1.0]]),
        ];
        let report = MeasuredReport::parse(&json!({ "rows": rows }).to_string()).unwrap();
        let over = report.in_round_trips("calls", Some("client")).unwrap();
        assert_eq!((over.lowest, over.median, over.highest), (0.0, 2.0, 2.0));
        assert_eq!(report.in_round_trips("calls", None).unwrap().highest, 4.0);
        assert!(report.in_round_trips("calls", Some("other")).is_none());
        assert!(report.in_round_trips("other", None).is_none());
    }

    #[test]
    fn incomplete_measurements_are_refused() {
        let refused = |rows: Value| MeasuredReport::parse(&json!({ "rows": rows }).to_string()).unwrap_err();
        assert_eq!(refused(json!([])), "a row lacks something");
        assert_eq!(refused(json!([{"table": "start"}])), "a row lacks something");
        assert_eq!(refused(json!([row("a", &[&[1.0], &[]])])), "the rows differ in their rounds");
        assert_eq!(refused(json!([row("a", &[&[1.0]]), row("b", &[&[1.0, 2.0]])])), "the rows differ in their rounds");
    }

    #[test]
    fn three_digits_count() {
        let shown = [0.0612, 1.2345, 12.345, 123.45, 1234.5].map(|number| three_digits(number).to_string());
        assert_eq!(shown, ["0.061", "1.23", "12.3", "123", "1234"]);
    }
}
