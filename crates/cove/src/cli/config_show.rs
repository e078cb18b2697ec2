//! `cove config show`: every setting, its value and where that comes from.

use serde::Serialize;
use serde_json::{Value, json};

use super::CommandContext;
use super::tables::{PrintStyle, Tone, render_json, render_list};
use crate::config::{Config, SETTINGS, Setting, SettingOrigin};
use cove_core::error::{Failure, display_path, escape_control};

pub fn render(context: &CommandContext, style: PrintStyle) -> Result<String, Failure> {
    let CommandContext { config, json, .. } = context;
    if *json {
        let rows: Vec<SettingRow> = SETTINGS.iter().map(|setting| SettingRow::new(setting, config)).collect();
        return render_json("the configuration", &rows);
    }
    let rows = SETTINGS.iter().flat_map(|setting| {
        let mut values = setting.show(config);
        if values.is_empty() {
            values.push(setting.kind.default_text().to_owned());
        }
        let origin = config.origin(setting);
        let tone = if *origin == SettingOrigin::Default { Tone::Faint } else { Tone::Good };
        // A setting that may be repeated has as many lines as it has values.
        values.into_iter().map(move |value| {
            [Tone::Name.cell(setting.key), Tone::Plain.cell(escape_control(&value)), tone.cell(origin.to_string())]
        })
    });
    let mut text = render_list(style, ["SETTING", "VALUE", "ORIGIN"], rows);
    if let Some(file) = config.file.as_ref().filter(|_| style.headings) {
        let absent = if file.exists() { "" } else { " (none yet; `cove config init` writes one)" };
        text += &format!("\nfile: {}{absent}\n", display_path(file));
    }
    Ok(text)
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
