//! `cove config show`: every setting, its value and where that comes from.

use serde::Serialize;

use crate::config::{Config, Count, SETTINGS, Setting};
use crate::error::{Error, escaped};

pub fn text(config: &Config, json: bool) -> Result<String, Error> {
    if json { rows(config) } else { Ok(table(config)) }
}

/// Aligned, a line for each value: a setting that may be repeated has as many as it has values.
fn table(config: &Config) -> String {
    let mut rows: Vec<[String; 3]> = Vec::new();
    for setting in SETTINGS {
        let mut values = setting.show(config);
        if values.is_empty() {
            values.push(setting.fallback.text().to_owned());
        }
        let origin = config.origin(setting).to_string();
        rows.extend(values.iter().map(|value| [setting.key.to_owned(), escaped(value), origin.clone()]));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (keys, values) = (width(0), width(1));
    rows.iter().map(|[key, value, origin]| format!("{key:keys$}  {value:values$}  {origin}\n")).collect()
}

#[derive(Serialize)]
struct Row {
    key: &'static str,
    value: Value,
    origin: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Value {
    One(Option<String>),
    Many(Vec<String>),
}

/// An array of `{key, value, origin}`; the value is a string, an array of them, or null when nothing is set.
fn rows(config: &Config) -> Result<String, Error> {
    let row = |setting: &Setting| {
        let values = setting.show(config);
        let value = match setting.count {
            Count::One => Value::One(values.into_iter().next()),
            Count::Many => Value::Many(values),
        };
        Row { key: setting.key, value, origin: config.origin(setting).to_string() }
    };
    let rows: Vec<Row> = SETTINGS.iter().map(row).collect();
    let mut text = serde_json::to_string_pretty(&rows)
        .map_err(|error| Error::internal("could not write the configuration as JSON").because(error))?;
    text.push('\n');
    Ok(text)
}
