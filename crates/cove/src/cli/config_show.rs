//! `cove config show`: every setting, its value and where that comes from.

use serde::Serialize;
use serde_json::{Value, json};

use super::tables::{render_json, render_table};
use crate::config::{Config, SETTINGS, Setting};
use cove_core::error::{Failure, escape_control};

pub fn render(config: &Config, json: bool) -> Result<String, Failure> {
    if json {
        let rows: Vec<SettingRow> = SETTINGS.iter().map(|setting| SettingRow::new(setting, config)).collect();
        return render_json("the configuration", &rows);
    }
    let rows = SETTINGS.iter().flat_map(|setting| {
        let mut values = setting.show(config);
        if values.is_empty() {
            values.push(setting.kind.default_text().to_owned());
        }
        let origin = config.origin(setting).to_string();
        // A setting that may be repeated has as many lines as it has values.
        values.into_iter().map(move |value| [setting.key.to_owned(), escape_control(&value), origin.clone()])
    });
    Ok(render_table(rows))
}

#[derive(Serialize)]
struct SettingRow {
    key: &'static str,
    /// A string, an array of them, or null when nothing is set.
    value: Value,
    origin: String,
}

impl SettingRow {
    fn new(setting: &Setting, config: &Config) -> Self {
        let values = setting.show(config);
        let value = if setting.kind.is_list() { json!(values) } else { json!(values.first()) };
        Self { key: setting.key, value, origin: config.origin(setting).to_string() }
    }
}
