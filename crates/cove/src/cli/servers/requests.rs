//! `cove servers requests`, `approve` and `refuse`: a person's answers to what code asked for.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, json};

use cove_core::error::{Failure, display_value, escape_control, write_hint};
use cove_core::private_file::ExistingFile;
use cove_upstream::broker::audit::{AuditFile, AuditLine, digest_arguments};
use cove_upstream::discovery::{OpenRequest, RequestAnswer, ServerRequests};

use super::add::DefinitionStoring;
use super::published::{PublishedFlags, add_published};
use super::{ServersContext, start_settings};
use crate::cli::tables::{PrintStyle, Tone, print_remark, render_json, render_list};

/// The person at this machine, as the audit file names them.
const PERSON: &str = "local";

/// Add a server that code asks for
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(args = start_settings())]
pub struct ApproveArgs {
    /// Name of the server in `cove servers requests`
    name: String,
    /// Name that it gets here [default: the part behind the `/`]
    #[arg(long = "as", value_name = "NAME")]
    own_name: Option<String>,
    /// Value of an input; `--set NAME` alone adds an optional secret
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    set: Vec<String>,
    /// Do not ask before adding it; needed without a terminal
    #[arg(long)]
    yes: bool,
    /// Do not start the server to list its tools; without a terminal it is never started
    #[arg(long)]
    no_try: bool,
}

pub(super) fn render(here: &ServersContext, as_json: bool, style: PrintStyle) -> Result<String, Failure> {
    let open = list_open(&ServerRequests::new(here.state_dir()?))?;
    if as_json {
        return render_json("the requests", &open);
    }
    if open.is_empty() {
        return Ok("no requests are open\n".to_owned());
    }
    let row = |request: &OpenRequest| {
        let why = if request.why.is_empty() { "no reason given".to_owned() } else { format!("\"{}\"", request.why) };
        [
            Tone::Name.cell(escape_control(&request.name)),
            Tone::Plain.cell(escape_control(&request.principal)),
            Tone::Faint.cell(escape_control(&request.session)),
            Tone::Plain.cell(escape_control(&why)),
        ]
    };
    Ok(render_list(style, ["NAME", "CALLER", "SESSION", "THE AGENT'S WORDS"], open.iter().map(row)))
}

pub(super) fn approve(here: &ServersContext, args: &ApproveArgs) -> Result<String, Failure> {
    let requests = ServerRequests::new(here.state_dir()?);
    let request = find_open(&requests, &args.name)?;
    let approved = here.approved();
    let server = approved.find(&request.name).ok_or_else(|| {
        Failure::usage(format!("could not approve `{}`", request.name))
            .because("it is no longer in `catalog.d`")
            .with_hint(format!("refuse it with `cove servers refuse {}`", request.name))
    })?;
    if !request.why.is_empty() {
        print_remark(format!("the agent's words: \"{}\"", escape_control(&request.why)));
    }
    let flags = PublishedFlags::new(args.own_name.clone(), args.set.clone(), args.yes);
    let storing = DefinitionStoring { existing: ExistingFile::Keep, is_tried: !args.no_try };
    let text = add_published(here, server, &flags, storing)?;
    record_answer(here, &requests, &request, RequestAnswer::Added)?;
    Ok(text)
}

pub(super) fn refuse(here: &ServersContext, name: &str) -> Result<String, Failure> {
    let requests = ServerRequests::new(here.state_dir()?);
    let request = find_open(&requests, name)?;
    record_answer(here, &requests, &request, RequestAnswer::Refused)?;
    Ok(format!("refused `{}`; code cannot ask for it again until Cove is started again\n", request.name))
}

fn list_open(requests: &ServerRequests) -> Result<Vec<OpenRequest>, Failure> {
    requests.list().map_err(|error| {
        let hint = write_hint(&error, "make the state directory readable for you");
        Failure::operator("could not read the requests").because(error).with_hint(hint)
    })
}

/// Finds an open request by the server's name, or by the part behind the `/`.
fn find_open(requests: &ServerRequests, name: &str) -> Result<OpenRequest, Failure> {
    let open = list_open(requests)?;
    let is_short = |request: &&OpenRequest| request.name.rsplit('/').next() == Some(name);
    let found = open.iter().find(|request| request.name == name).or_else(|| open.iter().find(is_short));
    found.cloned().ok_or_else(|| {
        Failure::usage(format!("could not find a request for `{}`", display_value(name)))
            .with_hint("`cove servers requests` lists them; `cove servers add` adds a server without one")
    })
}

/// Ends a request, and writes the answer to the audit file first.
fn record_answer(
    here: &ServersContext,
    requests: &ServerRequests,
    request: &OpenRequest,
    answer: RequestAnswer,
) -> Result<(), Failure> {
    let (tool, outcome) = match answer {
        RequestAnswer::Added => ("servers/approve", "added"),
        RequestAnswer::Refused => ("servers/refuse", "refused"),
    };
    let arguments = json!({"principal": request.principal, "session": request.session});
    let line = AuditLine {
        time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        principal: PERSON.to_owned(),
        session: request.session.clone(),
        server: request.name.clone(),
        tool: tool.to_owned(),
        arguments: digest_arguments(arguments.as_object().unwrap_or(&Map::new())),
        outcome: outcome.to_owned(),
        ..AuditLine::default()
    };
    let written = AuditFile::open(here.state_dir()?).and_then(|mut audit| audit.append(&line));
    written.and_then(|()| requests.answer(&request.name, answer).map(drop)).map_err(|error| {
        let hint = write_hint(&error, "make the state directory writable for you");
        Failure::operator(format!("could not record the answer to `{}`", request.name)).because(error).with_hint(hint)
    })
}
