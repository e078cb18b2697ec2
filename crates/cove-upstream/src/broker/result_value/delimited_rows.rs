//! Tables as text: values separated by a comma or a tab, with quotes as RFC 4180 defines them. Values stay text, so that
//! `007` is kept.

use serde_json::{Map, Value};

/// Fewer rows are no table.
const MIN_ROWS: usize = 2;
/// Rows repeat the names of the columns. A table that would become larger than this stays text.
const MAX_EXPANDED: usize = 16 << 20;

/// Returns a list of objects, one per row. `None` if the text is not a table: its first row must name the columns, all
/// differently, and the others must have as many values.
pub(super) fn parse_rows(text: &str, separator: char) -> Option<Value> {
    let mut records = RecordReader { rest: text.trim_start_matches('\u{feff}'), separator };
    let columns = records.next()??;
    let mut distinct: Vec<&String> = columns.iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < columns.len() || columns.iter().any(|column| column.trim().is_empty()) {
        return None;
    }
    let row_size: usize = columns.iter().map(|column| column.len() + 64).sum();
    let mut left = MAX_EXPANDED;
    let mut rows = Vec::new();
    for record in records {
        let record = record.filter(|record| record.len() == columns.len())?;
        left = left.checked_sub(row_size)?;
        let fields = columns.iter().cloned().zip(record.into_iter().map(Value::String));
        rows.push(Value::Object(fields.collect::<Map<_, _>>()));
    }
    (rows.len() >= MIN_ROWS).then_some(Value::Array(rows))
}

/// Yields records; `None` in place of one that has a quote in the wrong place.
struct RecordReader<'a> {
    rest: &'a str,
    separator: char,
}

impl RecordReader<'_> {
    /// Returns the next value and true if it ends its record.
    fn next_value(&mut self) -> Option<(String, bool)> {
        let mut value = String::new();
        if let Some(mut quoted) = self.rest.strip_prefix('"') {
            loop {
                let (part, after) = quoted.split_once('"')?;
                value += part;
                let Some(more) = after.strip_prefix('"') else {
                    self.rest = after;
                    break;
                };
                value.push('"');
                quoted = more;
            }
        } else {
            let end = self.rest.find([self.separator, '\n', '"']).unwrap_or(self.rest.len());
            value += self.rest[..end].trim_end_matches('\r');
            self.rest = &self.rest[end..];
        }
        if let Some(rest) = self.rest.strip_prefix(self.separator) {
            self.rest = rest;
            return Some((value, false));
        }
        self.rest = self.rest.strip_prefix('\r').unwrap_or(self.rest);
        if !self.rest.is_empty() {
            self.rest = self.rest.strip_prefix('\n')?;
        }
        Some((value, true))
    }
}

impl Iterator for RecordReader<'_> {
    type Item = Option<Vec<String>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut record = Vec::new();
        loop {
            let Some((value, ends)) = self.next_value() else { return Some(None) };
            record.push(value);
            if ends {
                return Some(Some(record));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_become_rows() {
        let rows = |text| parse_rows(text, ',');
        let two = json!([{"a": "1", "b": "x"}, {"a": "2", "b": ""}]);
        for text in ["a,b\n1,x\n2,", "a,b\r\n1,x\r\n2,\r\n", "\u{feff}\"a\",\"b\"\n\"1\",x\n2,\"\"\n"] {
            assert_eq!(rows(text), Some(two.clone()), "{text:?}");
        }
        let quoted = json!([{"a": "line\nbreak"}, {"a": "say \"hi\", é"}]);
        assert_eq!(rows("a\n\"line\nbreak\"\n\"say \"\"hi\"\", é\""), Some(quoted));
        assert_eq!(parse_rows("a\tb\n1\t,\n2\t3", '\t'), Some(json!([{"a": "1", "b": ","}, {"a": "2", "b": "3"}])));
    }

    #[test]
    fn what_is_no_table_stays_text() {
        for text in [
            "",
            "a,b",
            "a,b\n1,2",
            "a,b\n1,2\n3",
            "a,a\n1,2\n3,4",
            "a,\n1,2\n3,4",
            "a,b\n1,2\n\"3,4",
            "a,b\n1,2\n3,4\"x\"",
            "a,b\n1,2\n\"3\"x,4",
            "a,b\n1,2\n\n3,4",
            "Dear all,\nthe sum is 3, not 4\nBye",
        ] {
            assert_eq!(parse_rows(text, ','), None, "{text:?}");
        }
    }

    #[test]
    fn a_hostile_table_does_not_grow() {
        let names: Vec<String> = (0..1_000).map(|n| format!("{n}{}", "x".repeat(1_000))).collect();
        let table = format!("{}\n{}", names.join(","), format!("{}\n", ",".repeat(999)).repeat(8_000));
        assert_eq!(parse_rows(&table, ','), None);
        assert_eq!(parse_rows(&format!("a\n{}", "\"".repeat(1 << 20)), ','), None);
    }
}
