//! `cove config show`: every setting, its value and where that comes from.

use serde::Serialize;
use serde_json::{Value, json};

use super::CommandContext;
use super::network_checks::{RuleReader, check_scopes};
use super::runtime;
use super::tables::{PrintStyle, Tone, render_json, render_list};
use crate::config::{Config, SETTINGS, Setting, SettingOrigin};
use cove_core::error::{Failure, display_path, escape_control};
use cove_egress::{EgressCredential, EgressRule, EgressRules};

pub fn render(context: &CommandContext, style: PrintStyle) -> Result<String, Failure> {
    let CommandContext { config, env, json } = context;
    runtime::single_threaded()?.block_on(check_scopes(config, env, RuleReader::OtherCommand))?;
    if *json {
        let settings = SETTINGS.iter().map(|setting| SettingRow::new(setting, config));
        let rows: Vec<SettingRow> = settings.chain(SettingRow::of_egress(config)).collect();
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
    // The rules that hold, wherever they were written.
    let rules = egress_rules(&config.egress)
        .into_iter()
        .map(|rule| [Tone::Name.cell(EGRESS), Tone::Plain.cell(escape_control(&rule)), Tone::Good.cell(EGRESS_ORIGIN)]);
    let rows = rows.chain(rules);
    let mut text = render_list(style, ["SETTING", "VALUE", "ORIGIN"], rows);
    if let Some(file) = config.file.as_ref().filter(|_| style.headings) {
        let absent = if file.exists() { "" } else { " (none yet; `cove config init` writes one)" };
        text += &format!("\nfile: {}{absent}\n", display_path(file));
    }
    Ok(text)
}

const EGRESS: &str = "egress";
const EGRESS_ORIGIN: &str = "`[egress]` and allow-net";

/// Returns each rule about the network as a text.
pub(super) fn egress_rules(rules: &EgressRules) -> Vec<String> {
    let allowed = rules.allow.iter().map(EgressRule::to_string);
    let denied = rules.deny.iter().map(|(host, _)| format!("deny {host}"));
    let cache = rules.has_caching_rules().then(|| rules.download_cache.to_string());
    let credentials = rules.credentials.iter().map(EgressCredential::to_string);
    allowed.chain(denied).chain(credentials).chain(cache).collect()
}

#[derive(Serialize)]
struct SettingRow {
    key: &'static str,
    /// A string, an array of them, or null when nothing is set.
    value: Value,
    origin: String,
}

impl SettingRow {
    /// Returns the rules about the network, if there are any.
    fn of_egress(config: &Config) -> Option<Self> {
        let rules = egress_rules(&config.egress);
        (!rules.is_empty()).then(|| Self { key: EGRESS, value: json!(rules), origin: EGRESS_ORIGIN.to_owned() })
    }

    fn new(setting: &Setting, config: &Config) -> Self {
        let values = setting.show(config);
        let value = if setting.kind.is_list() { json!(values) } else { json!(values.first()) };
        Self { key: setting.key, value, origin: config.origin(setting).to_string() }
    }
}
