//! `cove servers add` for a published server: finds its document, shows exactly what Cove would run, asks for what is
//! missing, and writes the definition after the person's yes.

use std::path::PathBuf;

use serde_json::Value;

use cove_core::error::{Failure, Refusal, display_path, display_value, write_hint};
use cove_core::private_file::{ExistingFile, write_private_file};
use cove_core::spelling::nearest;
use cove_upstream::discovery::{
    ApprovedServers, InputValues, LaunchChoice, LaunchPlan, PublishedInput, PublishedServer, PublishedStatus,
    RegistryAddress, RegistryClient, RegistryError, check_published_name,
};

use super::add::{DefinitionStoring, store_definition};
use super::{ServersContext, check_server_name};
use crate::cli::tables::{print_remark, render_json};
use crate::cli::terminal_questions::{ask_line, ask_yes_or_no, can_ask};
use crate::cli::{runtime, secrets};

/// Flags for published servers.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(super) struct PublishedFlags {
    /// Name that a published server gets here [default: the part behind the `/`]
    #[arg(long = "as", value_name = "NAME")]
    own_name: Option<String>,
    /// Version of a published server [default: the approved one, else the latest]
    #[arg(long, value_name = "VERSION", hide_short_help = true)]
    version: Option<String>,
    /// What to use of a published server: `remote`, `npm`, `pypi` or `oci` [default: its address, else a package]
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    from: Option<String>,
    /// Value that a published server needs; `--set NAME` alone adds an optional secret
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    set: Vec<String>,
    /// Approve a published server for later, in `catalog.d`, instead of adding it
    #[arg(long)]
    save: bool,
    /// Do not ask before a published server is added; needed without a terminal
    #[arg(long)]
    yes: bool,
}

impl PublishedFlags {
    /// Flags for a server whose document is at hand.
    pub(super) fn new(own_name: Option<String>, set: Vec<String>, yes: bool) -> Self {
        Self { own_name, set, yes, ..Self::default() }
    }

    /// Fails if a flag is given, for a server with a command or an address.
    pub(super) fn check_unused(&self) -> Result<(), Failure> {
        let used = [
            ("as", self.own_name.is_some()),
            ("version", self.version.is_some()),
            ("from", self.from.is_some()),
            ("set", !self.set.is_empty()),
            ("save", self.save),
        ];
        match used.iter().find(|(_, is_used)| *is_used) {
            Some((flag, _)) => Err(Failure::usage(format!("could not use `--{flag}` with a command or an address"))
                .because("it is for published servers, such as `com.example/tracker`")
                .with_hint(format!("leave `--{flag}` out"))),
            None => Ok(()),
        }
    }

    fn choice(&self) -> Result<LaunchChoice, Failure> {
        let Some(word) = &self.from else { return Ok(LaunchChoice::First) };
        LaunchChoice::parse(word).ok_or_else(|| {
            Failure::usage(format!("could not read `--from {}`", display_value(word)))
                .with_hint(format!("write one of {}", LaunchChoice::WORDS.join(", ")))
        })
    }

    fn values(&self) -> InputValues {
        let mut values = InputValues::default();
        for pair in &self.set {
            match pair.split_once('=') {
                Some((name, value)) => values.insert(name, value),
                None => values.insert_secret(pair),
            }
        }
        values
    }
}

/// Adds a server of `catalog.d` or of the registry.
pub(super) fn add(
    here: &ServersContext,
    name: &str,
    flags: &PublishedFlags,
    storing: DefinitionStoring,
) -> Result<String, Failure> {
    let approved = here.approved();
    for problem in &approved.problems {
        print_remark(format!("warning: {problem}"));
    }
    let server = find_published(here, &approved, name, flags.version.as_deref())?;
    add_published(here, &server, flags, storing)
}

/// Shows a server, asks the person, and writes its definition, or keeps its document in `catalog.d`.
pub(super) fn add_published(
    here: &ServersContext,
    server: &PublishedServer,
    flags: &PublishedFlags,
    storing: DefinitionStoring,
) -> Result<String, Failure> {
    let fail = || Failure::usage(format!("could not add the server `{}`", server.name));
    if server.status == PublishedStatus::Deleted {
        return Err(fail()
            .because("its publisher deleted this version")
            .with_hint("choose another one with `cove servers search`"));
    }
    let own_name = flags.own_name.as_deref().unwrap_or_else(|| server.short_name());
    check_server_name(own_name)?;
    let (choice, mut values) = (flags.choice()?, flags.values());
    let plan = |values: &InputValues| {
        LaunchPlan::new(server, own_name, choice, values)
            .map_err(|Refusal { cause, hint }| fail().because(cause).with_hint(hint))
    };
    let mut planned = plan(&values)?;
    if !flags.save {
        for input in std::mem::take(&mut planned.missing) {
            let value = ask_for_input(&input, here).ok_or_else(|| {
                let (name, about) = (display_value(&input.name), &input.description);
                let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
                fail().because(format!("it needs `{name}`{about}")).with_hint(format!("add `--set {name}=VALUE`"))
            })?;
            values.insert(&input.name, &value);
        }
        planned = plan(&values)?;
    }
    show_plan(here, server, own_name, &planned);
    let verb = if flags.save { "Approve" } else { "Add" };
    let can_ask = can_ask(&here.env);
    let agrees = flags.yes || can_ask && ask_yes_or_no(&format!("{verb} it? [y/N] "));
    if !agrees {
        return Err(match can_ask {
            true => Failure::usage("nothing was changed").because("the answer was no"),
            false => fail()
                .because("without a terminal Cove cannot ask you")
                .with_hint("read what it will do, then repeat the command with `--yes`"),
        });
    }
    if flags.save {
        return save_document(here, server);
    }
    // Before the definition, so that the server can be tried with them.
    let left = planned.secrets.iter().map(|needed| ask_for_secret(here, &needed.name));
    let left: Vec<String> = left.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let text = store_definition(here, own_name, &Value::Object(planned.entry), storing)?;
    let next = left.iter().map(|name| format!("next: `cove secrets set {name}` gives it the secret\n"));
    Ok(text + &next.collect::<String>())
}

/// Returns a document: that of `catalog.d`, unless another version is wanted, else that of the registry.
fn find_published(
    here: &ServersContext,
    approved: &ApprovedServers,
    name: &str,
    version: Option<&str>,
) -> Result<PublishedServer, Failure> {
    let shown = display_value(name);
    let fail = || Failure::usage(format!("could not add the server `{shown}`"));
    let found = approved.find_any(name).filter(|server| version.is_none_or(|version| server.version == version));
    if let Some(found) = found {
        return Ok(found.clone());
    }
    if !name.contains('/') {
        let names = approved.servers.iter().flat_map(|server| [server.name.as_str(), server.short_name()]);
        return Err(fail().because("there is no command, no address, and no approved server of that name").with_hint(
            match nearest(name, names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!(
                    "write `cove servers add {shown} -- COMMAND`, or `--url ADDRESS`; `cove servers search` finds published servers"
                ),
            },
        ));
    }
    check_published_name(name).map_err(|reason| {
        fail().because(reason).with_hint("`cove servers search` shows the names of published servers")
    })?;
    let RegistryAddress::At(base) = &here.registry else {
        return Err(fail()
            .because("it is not approved, and `registry` is `none`")
            .with_hint("put its `server.json` into `catalog.d`, or set `registry`"));
    };
    let client = RegistryClient::new(base).map_err(|reason| registry_failure(here, reason))?;
    runtime::single_threaded()?.block_on(client.find(name, version)).map_err(|error| match error {
        RegistryError::Failed(reason) => registry_failure(here, reason),
        RegistryError::Unusable(reason) => fail()
            .because(format!("the answer of the registry {} cannot be used: {reason}", here.registry))
            .with_hint("tell its publisher, or choose another server"),
        RegistryError::Missing => {
            let which = version.map_or_else(String::new, |version| format!("version {} of ", display_value(version)));
            fail()
                .because(format!("the registry {} has no {which}`{shown}`", here.registry))
                .with_hint("`cove servers search` shows the names of published servers")
        }
    })
}

pub(super) fn registry_failure(here: &ServersContext, reason: String) -> Failure {
    Failure::operator(format!("could not ask the registry {}", display_value(&here.registry.to_string())))
        .because(reason)
        .with_hint("try again later; servers in `catalog.d` work without it")
}

/// Prints what Cove will do, and what a person should know before.
fn show_plan(here: &ServersContext, server: &PublishedServer, own_name: &str, plan: &LaunchPlan) {
    print_remark(format!("{} {}{}", server.name, display_value(&server.version), described(&server.description)));
    print_remark(format!("will {}, as `{own_name}`", plan.action));
    plan.details.iter().for_each(|detail| print_remark(format!("  {detail}")));
    for secret in &plan.secrets {
        print_remark(format!("  needs secret `{}`{}", secret.name, described(&secret.description)));
    }
    for input in &plan.missing {
        print_remark(format!("  needs `{}`{}", display_value(&input.name), described(&input.description)));
    }
    if server.status == PublishedStatus::Deprecated {
        print_remark("warning: this version is deprecated");
    }
    let definitions = here.definitions();
    let approved = here.approved();
    let known = definitions.servers.iter().flat_map(|known| {
        let published = known.published.as_deref().and_then(|text| text.rsplit_once('@')).map(|(name, _)| name);
        [Some(known.name.as_str()), published].into_iter().flatten()
    });
    if let Some(other) = server.lookalike(known.chain(approved.servers.iter().map(|known| known.name.as_str()))) {
        print_remark(format!(
            "warning: its name is one letter away from `{}`; is it the one that you mean?",
            display_value(other)
        ));
    }
}

fn described(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// Writes a document to `catalog.d`.
fn save_document(here: &ServersContext, server: &PublishedServer) -> Result<String, Failure> {
    let file = document_file(here, server)?;
    let shown = display_path(&file);
    let text = render_json("the document", &server.document)?;
    write_private_file(&file, &text, ExistingFile::Replace).map_err(|error| {
        let hint = write_hint(&error, "make the folder writable for you");
        Failure::operator(format!("could not write `{shown}`")).because(error).with_hint(hint)
    })?;
    Ok(format!(
        "approved `{}` in {shown}\nnext: `cove servers add {}` adds it; code can find and request it\n",
        server.name, server.name
    ))
}

fn document_file(here: &ServersContext, server: &PublishedServer) -> Result<PathBuf, Failure> {
    let folder = here.places.own_directory().map(ApprovedServers::folder_beside).ok_or_else(|| {
        Failure::operator("could not find a place for approved servers")
            .because("there is no home directory")
            .with_hint("set `HOME` or `XDG_CONFIG_HOME`")
    })?;
    // The part before the `/` has no `_`, so no two names share a file.
    Ok(folder.join(format!("{}.json", server.name.replace('/', "_"))))
}

/// Asks for the value of an input on a terminal. Returns `None` without one, or without an answer.
fn ask_for_input(input: &PublishedInput, here: &ServersContext) -> Option<String> {
    let choices = match input.choices.is_empty() {
        true => String::new(),
        false => format!(" (one of {})", display_value(&input.choices.join(", "))),
    };
    let prompt = format!("{}{}{choices}: ", display_value(&input.name), described(&input.description));
    can_ask(&here.env).then(|| ask_line(&prompt)).flatten().filter(|line| !line.is_empty())
}

/// Asks for a secret on a terminal, unless it is there already. Returns its name if it is still needed.
fn ask_for_secret(here: &ServersContext, name: &str) -> Result<Option<String>, Failure> {
    if runtime::single_threaded()?.block_on(here.secrets.get(name))?.is_some() {
        return Ok(None);
    }
    if !can_ask(&here.env) {
        return Ok(Some(name.to_owned()));
    }
    secrets::ask_and_keep(&here.secrets, name).map(|()| None)
}
