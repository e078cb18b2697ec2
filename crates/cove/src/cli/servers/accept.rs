//! `cove servers accept`: what a server lists now becomes what code may use. Starts no server; it accepts what the last
//! listing saw, which is what `cove servers diff` shows.

use serde_json::json;

use cove_core::error::{Failure, escape_control};
use cove_upstream::catalog::pins::{AcceptError, AcceptedChanges, PinStore};

use super::ServersContext;
use crate::cli::tables::render_json;

pub(super) fn accept(here: &ServersContext, name: &str, tools: &[String], as_json: bool) -> Result<String, Failure> {
    let server = here.find_server(name)?;
    let name = &server.name;
    let pins = PinStore::new(Some(here.state_dir()?), here.pins);
    let accepted = pins.accept(name, &server.digest, tools).map_err(|error| to_failure(name, error))?;
    if as_json {
        let AcceptedChanges { changes, ends_quarantine, replaces_damaged } = &accepted;
        let (ends, replaces) = (ends_quarantine, replaces_damaged);
        return render_json(
            "the result",
            &json!({"server": name, "accepted": changes, "ends_quarantine": ends, "replaces_damaged": replaces}),
        );
    }
    Ok(to_text(name, &accepted))
}

fn to_text(name: &str, accepted: &AcceptedChanges) -> String {
    if accepted.replaces_damaged {
        return format!(
            "removed the damaged record of `{name}`; its tools are accepted as the next listing has them\n"
        );
    }
    let what = accepted.changes.summary();
    match (accepted.ends_quarantine, what.is_empty()) {
        (true, true) => format!("accepted `{name}`\n"),
        (true, false) => format!("accepted `{name}`: {what}\n"),
        (false, true) => format!("`{name}` has nothing to accept; nothing was changed\n"),
        (false, false) => format!("accepted changes of `{name}`: {}\n", escape_control(&what)),
    }
}

fn to_failure(name: &str, error: AcceptError) -> Failure {
    let hint = match &error {
        AcceptError::NeverListed => format!("run `cove servers refresh {name}` first"),
        AcceptError::UnknownTool(_) | AcceptError::ChangedAgain(_) | AcceptError::NotShown(_) => {
            format!("see `cove servers diff {name}`, then accept what it shows")
        }
        AcceptError::OnlyWhole => format!("run `cove servers accept {name}`, or choose tools with `allow_tools`"),
        AcceptError::Storage(_) => "then run this again".to_owned(),
    };
    let failure = match error {
        AcceptError::Storage(_) => Failure::operator(format!("could not accept the tools of `{name}`")),
        _ => Failure::usage(format!("could not accept the tools of `{name}`")),
    };
    failure.because(error).with_hint(hint)
}
