//! `cove net`: what the rules about the network say, without a sandbox and without a connection.

use std::process::ExitCode;

use super::CommandContext;
use super::config_show::egress_rules;
use super::network_checks::{RuleReader, check_scopes};
use super::runtime;
use cove_core::error::{Failure, display_value};
use cove_core::image::built_in::DEFAULT_IMAGE;
use cove_egress::{EgressRule, HostTarget, NetworkCaller, NetworkPreset, RequestKind};
use serde_json::json;

/// Show what code may reach over the network
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum NetCommand {
    /// Say whether the rules allow a host, and which rule does
    #[command(arg = super::json_flag("Print an object"), args = super::sandbox_settings())]
    Check {
        /// `HOST`, `HOST:PORT`, or an `https://` or `http://` address
        host: String,
        /// Decide as for this principal
        #[arg(long, value_name = "NAME", default_value = "local")]
        principal: String,
        /// Method of the request, for hosts whose requests are inspected [default: GET]
        #[arg(short = 'X', long, value_name = "METHOD")]
        method: Option<String>,
    },
    /// List the rules that hold, or those of a preset
    #[command(args = super::sandbox_settings())]
    Show {
        /// Name of a preset, such as `pypi`
        preset: Option<String>,
    },
}

/// Returns the text to print; the exit code is 1 if the host is refused.
pub fn run(command: NetCommand, context: &CommandContext) -> Result<(String, ExitCode), Failure> {
    runtime::single_threaded()?.block_on(check_scopes(&context.config, &context.env, RuleReader::OtherCommand))?;
    match command {
        NetCommand::Check { host, principal, method } => {
            check(&host, method.as_deref().unwrap_or("GET"), principal, context)
        }
        NetCommand::Show { preset } => show(preset.as_deref(), context).map(|text| (text, ExitCode::SUCCESS)),
    }
}

fn check(
    written: &str,
    method: &str,
    principal: String,
    context: &CommandContext,
) -> Result<(String, ExitCode), Failure> {
    let (authority, port, kind) = match (written.strip_prefix("https://"), written.strip_prefix("http://")) {
        (Some(rest), _) => (rest, 443, RequestKind::Tunnel),
        (None, Some(rest)) => (rest, 80, RequestKind::PlainHttp),
        (None, None) => (written, 443, RequestKind::Tunnel),
    };
    let (authority, path) = authority.split_at(authority.find(['/', '?', '#']).unwrap_or(authority.len()));
    let path = path.split(['?', '#']).next().filter(|path| !path.is_empty()).unwrap_or("/");
    let target = HostTarget::parse(authority, Some(port)).map_err(|problem| {
        Failure::usage(format!("could not read the host `{}`", display_value(written)))
            .because(problem)
            .with_hint("write `HOST`, `HOST:PORT`, or an `https://` or `http://` address")
    })?;
    let rules = &context.config.egress;
    // Without a scheme, port 80 means what a client would do with it.
    let kind = if !written.contains("://") && target.port == 80 { RequestKind::PlainHttp } else { kind };
    let image = context.config.images.standard.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
    let caller = NetworkCaller { principal, image: Some(image), ..NetworkCaller::default() };
    let decided = rules.decide(&target, kind, &caller).and_then(|rule| match (&rule.inspection, kind) {
        (Some(_), RequestKind::Tunnel) => rules.decide_request(&target, method, path, &caller).map(|(rule, _)| rule),
        _ => Ok(rule),
    });
    let code = if decided.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let text = match (decided, context.json) {
        (Ok(rule), false) => format!("allowed: {target} by the rule `{rule}`\n"),
        (Err(no), false) => format!("refused: {target}\ncaused by: {}\nhint: {}\n", no.cause, no.hint),
        (Ok(rule), true) => {
            format!("{}\n", json!({"target": target.to_string(), "allowed": true, "rule": rule.to_string()}))
        }
        (Err(no), true) => {
            let reason = no.reason.as_str();
            let target = target.to_string();
            format!(
                "{}\n",
                json!({"target": target, "allowed": false, "reason": reason, "cause": no.cause, "hint": no.hint})
            )
        }
    };
    Ok((text, code))
}

fn show(preset: Option<&str>, context: &CommandContext) -> Result<String, Failure> {
    let rules: Vec<String> = match preset {
        Some(name) => {
            let unknown = || {
                let names: Vec<&str> = cove_egress::PRESETS.iter().map(|preset| preset.name).collect();
                Failure::usage(format!("could not find the preset `{}`", display_value(name)))
                    .with_hint(format!("presets are `{}`", names.join("`, `")))
            };
            EgressRule::of_preset(NetworkPreset::find(name).ok_or_else(unknown)?).map(|rule| rule.to_string()).collect()
        }
        None => egress_rules(&context.config.egress),
    };
    match rules.is_empty() {
        true => Ok("code reaches nothing; `--allow-net HOST` or `[egress]` in the configuration file allows a host\n"
            .to_owned()),
        false => Ok(rules.join("\n") + "\n"),
    }
}
