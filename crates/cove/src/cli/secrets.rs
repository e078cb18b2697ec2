//! `cove secrets`: keeps values that definitions name as `${secret:NAME}`. No command prints a value.

mod hidden_input;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Arg;
use serde_json::json;

use super::audit::{format_local, format_utc};
use super::servers::configured_servers;
use super::tables::{PrintStyle, TableCell, Tone, print_remark, render_json, render_list};
use super::{CommandContext, json_flag, runtime, settings_named};
use cove_core::error::{Failure, display_value};
use cove_core::spelling::nearest;
use cove_upstream::secrets::{MAX_SECRET_VALUE, SecretStore, check_secret_name};

/// Keep the secrets of servers outside of their definitions
#[derive(Debug, Clone, PartialEq, clap::Subcommand)]
pub enum SecretsCommand {
    /// Keep a value, which a definition names as `${secret:NAME}`: asks for it on a terminal, else reads standard input
    #[command(args = store_settings())]
    Set {
        /// Name of the secret: letters, digits, `_`, `.` and `-`, such as `github.TOKEN`
        name: String,
        #[arg(hide = true, allow_hyphen_values = true, num_args = 0..)]
        value: Vec<OsString>,
    },
    /// List the names of secrets, the servers that use them, and since when they are kept
    #[command(visible_alias = "ls", arg = json_flag("Print an array of objects"), args = store_settings())]
    List,
    /// Forget a secret
    #[command(visible_alias = "rm", args = store_settings())]
    Remove {
        /// Name of the secret
        name: String,
    },
}

/// The settings that decide where secrets are kept, and which servers there are.
pub(super) fn store_settings() -> impl Iterator<Item = Arg> {
    settings_named(&["config", "state-dir", "secrets-helper"])
}

/// Returns the text to print. Remarks go to standard error at once.
pub fn run(command: SecretsCommand, context: &CommandContext) -> Result<String, Failure> {
    let store = context.config.secret_store(&context.env);
    let runtime = runtime::single_threaded()?;
    match command {
        SecretsCommand::Set { name, value } => {
            check_secret_name(&name)?;
            if !value.is_empty() {
                return Err(Failure::usage("could not take the value of a secret from the command line")
                    .because("other users see command lines, and your shell may keep them")
                    .with_hint(format!("run `cove secrets set {name}` and paste it there, or use standard input")));
            }
            let value = read_value(&name, context)?;
            runtime.block_on(store.set(&name, &value))?;
            Ok(format!("kept the secret `{name}`; {}\n", describe_users(&name, context)))
        }
        SecretsCommand::List => runtime.block_on(render(&store, context, PrintStyle::of_stdout())),
        SecretsCommand::Remove { name } => runtime.block_on(remove(&store, &name, context)),
    }
}

/// Asks for the value of a secret on a terminal, without showing it, and keeps it.
pub(super) fn ask_and_keep(store: &SecretStore, name: &str) -> Result<(), Failure> {
    let value = hidden_input::ask(&format!("value of {name} (it is not shown): "))?;
    runtime::single_threaded()?.block_on(store.set(name, &value))
}

/// Asks a person at a terminal for secrets that a server needs, and keeps them. Returns the names without a value: an empty
/// answer leaves one for later. A question that is cancelled sets `is_asking` to false, which leaves all that follow.
pub(super) async fn ask_for_needed_secrets(
    store: &SecretStore,
    server: &str,
    needed: Vec<String>,
    is_asking: &mut bool,
) -> Result<Vec<String>, Failure> {
    let mut later = Vec::new();
    for secret in needed {
        let prompt = format!("value of {secret} for `{}` (empty: later): ", display_value(server));
        let value = if *is_asking { hidden_input::ask(&prompt).ok() } else { Some(String::new()) };
        *is_asking &= value.is_some();
        match value.filter(|value| !value.is_empty()) {
            Some(value) => store.set(&secret, &value).await?,
            None => later.push(secret),
        }
    }
    Ok(later)
}

/// Reads a value that is not on the command line, without one last line end.
fn read_value(name: &str, context: &CommandContext) -> Result<String, Failure> {
    if context.env.stdin_is_terminal {
        return hidden_input::ask(&format!("value of {name} (it is not shown): "));
    }
    let fail = || Failure::usage(format!("could not read the value of `{name}` from standard input"));
    let mut bytes = Vec::new();
    // One more than fits, with its line end: the store refuses it.
    let most = MAX_SECRET_VALUE as u64 + 3;
    std::io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(|error| fail().because(error))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| fail().because("it is not UTF-8").with_hint("write text, such as the value in base64"))?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    Ok(text.to_owned())
}

/// The servers whose definitions name a secret, by that secret.
fn users_by_secret(context: &CommandContext) -> BTreeMap<String, Vec<String>> {
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for server in configured_servers(&context.config, &context.env) {
        for name in server.secret_names() {
            users.entry(name.to_owned()).or_default().push(server.name.clone());
        }
    }
    users
}

fn describe_users(name: &str, context: &CommandContext) -> String {
    match users_by_secret(context).get(name).map(|users| users.join(", ")) {
        Some(users) => format!("used by {users} from their next start on"),
        None => format!("a definition uses it as `${{secret:{name}}}`"),
    }
}

async fn remove(store: &SecretStore, name: &str, context: &CommandContext) -> Result<String, Failure> {
    let users = users_by_secret(context).remove(name);
    if !store.remove(name).await? {
        let names: Vec<String> = store.names().await?.into_iter().map(|entry| entry.name).collect();
        return Err(Failure::usage(format!("could not remove the secret `{}`", display_value(name)))
            .because("there is none of that name")
            .with_hint(match nearest(name, names.iter().map(String::as_str)) {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => "`cove secrets list` shows the names".to_owned(),
            }));
    }
    if let Some(users) = users {
        print_remark(format!("warning: still named by the definitions of {}", users.join(", ")));
    }
    Ok(format!("removed the secret `{name}`\n"))
}

/// A row of the list.
struct SecretRow {
    name: String,
    users: Vec<String>,
    /// False for a secret that definitions name and that is not kept.
    is_kept: bool,
    since: Option<SystemTime>,
}

async fn render(store: &SecretStore, context: &CommandContext, style: PrintStyle) -> Result<String, Failure> {
    let mut users = users_by_secret(context);
    let mut rows: Vec<SecretRow> = Vec::new();
    for entry in store.names().await? {
        let users = users.remove(&entry.name).unwrap_or_default();
        rows.push(SecretRow { name: entry.name, users, is_kept: true, since: entry.since });
    }
    let missing = users.into_iter().map(|(name, users)| SecretRow { name, users, is_kept: false, since: None });
    rows.extend(missing);
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    let since = |row: &SecretRow| {
        let age = row.since?.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(age.as_millis()).ok()
    };
    if context.json {
        let row = |row: &SecretRow| {
            let since = since(row).map(format_utc);
            json!({"name": row.name, "servers": row.users, "kept": row.is_kept, "since": since})
        };
        return render_json("the secrets", &rows.iter().map(row).collect::<Vec<_>>());
    }
    if rows.is_empty() {
        return Ok("no secrets are kept; keep one with `cove secrets set NAME`\n".to_owned());
    }
    let cells = |row: &SecretRow| -> [TableCell; 3] {
        let users = if row.users.is_empty() { "-".to_owned() } else { row.users.join(", ") };
        let since = match since(row) {
            _ if !row.is_kept => Tone::Warning.cell(format!("not kept: run `cove secrets set {}`", row.name)),
            Some(ms) if style.headings => Tone::Faint.cell(format_local(ms)),
            Some(ms) => Tone::Faint.cell(format_utc(ms)),
            None => Tone::Faint.cell("-"),
        };
        [Tone::Name.cell(display_value(&row.name)), Tone::Plain.cell(users), since]
    };
    Ok(render_list(style, ["NAME", "USED BY", "SINCE"], rows.iter().map(cells)))
}
