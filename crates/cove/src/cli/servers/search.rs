//! `cove servers search`: approved servers first, which works offline, then those of the registry.

use serde_json::{Value, json};

use cove_core::error::{Failure, escape_control};
use cove_core::text::{cut, format_count};
use cove_upstream::definition::ServerDefinitions;
use cove_upstream::discovery::{
    InputValues, LaunchChoice, LaunchPlan, PublishedServer, RegistryAddress, RegistryClient, RegistryError,
    RegistryHits,
};

use super::published::registry_failure;
use super::{ServersContext, registry_settings};
use crate::cli::tables::{PrintStyle, Tone, print_remark, render_json, render_list};
use crate::cli::{json_flag, parse_count, runtime};

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 200;
/// Most bytes of a description in the text.
const MAX_SHOWN_DESCRIPTION: usize = 80;
/// Most documents that are named as unusable.
const MAX_SHOWN_PROBLEMS: usize = 3;

/// Find servers to add: those that you approved in `catalog.d`, then those of the registry
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(arg = json_flag("Print an array of objects"), args = registry_settings())]
pub struct SearchArgs {
    /// Words of its name or description; without any, the approved servers
    #[arg(value_name = "WORDS", num_args = 0..)]
    words: Vec<String>,
    /// How many to show [default: 20]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<String>,
}

/// A server that was found, and where.
struct FoundServer {
    server: PublishedServer,
    is_approved: bool,
    /// The name of its definition, if it has one.
    configured: Option<String>,
}

impl FoundServer {
    fn new(server: PublishedServer, is_approved: bool, definitions: &ServerDefinitions) -> Self {
        let configured = definitions.name_of_published(&server).map(str::to_owned);
        Self { server, is_approved, configured }
    }

    /// What a person has to give; the reason if Cove cannot run the server.
    fn needs(&self) -> Vec<String> {
        let plan =
            LaunchPlan::new(&self.server, self.server.short_name(), LaunchChoice::First, &InputValues::default());
        plan.map_or_else(|refusal| vec![refusal.cause], |plan| plan.needs())
    }

    fn to_json(&self) -> Value {
        let Self { server, is_approved, configured } = self;
        json!({
            "name": server.name,
            "version": server.version,
            "description": server.description,
            "status": server.status.as_str(),
            "kinds": server.kinds(),
            "needs": self.needs(),
            "source": if *is_approved { "catalog.d" } else { "registry" },
            "configured": configured,
        })
    }
}

pub(super) fn render(
    here: &ServersContext,
    args: &SearchArgs,
    as_json: bool,
    style: PrintStyle,
) -> Result<String, Failure> {
    let limit = parse_count("limit", args.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let query = args.words.join(" ");
    let definitions = here.definitions();
    let approved = here.approved();
    approved.problems.iter().for_each(|problem| print_remark(format!("warning: {problem}")));
    let found = approved.search(&query);
    let total = found.len();
    let found = found.into_iter().take(limit).cloned();
    let mut all: Vec<FoundServer> = found.map(|server| FoundServer::new(server, true, &definitions)).collect();
    let mut is_partial = total > all.len();
    if let RegistryAddress::At(base) = &here.registry
        && !query.trim().is_empty()
    {
        let client = RegistryClient::new(base).map_err(|reason| registry_failure(here, reason))?;
        let found = runtime::single_threaded()?.block_on(client.search(&query, limit));
        match found.map_err(describe_error) {
            Ok(RegistryHits { servers, problems, is_partial: more }) => {
                is_partial |= more;
                let is_new = |server: &PublishedServer| approved.find(&server.name).is_none();
                let servers = servers.into_iter().filter(is_new).take(limit - all.len());
                all.extend(servers.map(|server| FoundServer::new(server, false, &definitions)));
                for problem in problems.iter().take(MAX_SHOWN_PROBLEMS) {
                    print_remark(format!("warning: left out: {}", escape_control(problem)));
                }
                if problems.len() > MAX_SHOWN_PROBLEMS {
                    let others = format_count(problems.len() - MAX_SHOWN_PROBLEMS, "more server");
                    print_remark(format!("warning: left out: {others}"));
                }
            }
            // What the operator approved is worth showing without a network.
            Err(reason) if !all.is_empty() => {
                print_remark(format!(
                    "warning: the registry {} was not searched: {}",
                    here.registry,
                    escape_control(&reason)
                ));
            }
            Err(reason) => return Err(registry_failure(here, reason)),
        }
    }
    if as_json {
        return render_json("the servers", &all.iter().map(FoundServer::to_json).collect::<Vec<_>>());
    }
    if is_partial {
        print_remark("there are more; be more precise, or raise `--limit`");
    }
    Ok(to_text(&all, style, args.words.is_empty()))
}

fn describe_error(error: RegistryError) -> String {
    match error {
        RegistryError::Missing => "it has no list of servers".to_owned(),
        RegistryError::Failed(reason) | RegistryError::Unusable(reason) => reason,
    }
}

fn to_text(all: &[FoundServer], style: PrintStyle, without_words: bool) -> String {
    if all.is_empty() {
        return match without_words {
            true => "no servers are approved; `cove servers search WORDS` asks the registry\n".to_owned(),
            false => "nothing found; try other words\n".to_owned(),
        };
    }
    let row = |found: &FoundServer| {
        let state = match (&found.configured, found.is_approved) {
            (Some(name), _) => Tone::Good.cell(format!("configured as {name}")),
            (None, true) => Tone::Good.cell("approved"),
            (None, false) => Tone::Plain.cell(found.server.status.as_str()),
        };
        let needs = found.needs();
        let kinds = if needs.is_empty() {
            found.server.kinds()
        } else {
            format!("{}, needs {}", found.server.kinds(), needs.join(", "))
        };
        [
            Tone::Name.cell(&found.server.name),
            Tone::Plain.cell(escape_control(&found.server.version)),
            state,
            Tone::Plain.cell(escape_control(&cut(&kinds, MAX_SHOWN_DESCRIPTION))),
            Tone::Faint.cell(escape_control(&cut(&found.server.description, MAX_SHOWN_DESCRIPTION))),
        ]
    };
    render_list(style, ["NAME", "VERSION", "STATE", "KIND", "DESCRIPTION"], all.iter().map(row))
}
