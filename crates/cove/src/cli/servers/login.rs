//! `cove servers login` and `logout`. The person signs in in a browser, here or on another machine; the answer comes to a
//! loopback address, or the person pastes it.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{ServersContext, declare_servers, refresh, start_settings, unknown_server_error};
use crate::cli::tables::print_remark;
use crate::cli::{INTERRUPTED, runtime};
use cove_core::error::{Failure, display_value, escape_control, one_line_chain};
use cove_core::process_env::ProcessEnv;
use cove_core::search_path::{is_executable, programs};
use cove_core::text::format_count;
use cove_upstream::definition::ServerDefinitions;
use cove_upstream::pool::sign_in::{
    PendingSignIn, RedirectAnswer, SIGN_IN_TIMEOUT, SignInError, SignInOptions, SignedIn,
};
use cove_upstream::pool::{UpstreamPool, UpstreamSummary};

/// How long the removal of a server waits for the revocation of its tokens.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest line that is read as a pasted address.
const MAX_PASTED: u64 = 32 * 1024;

/// Sign in to a server with an address, in the browser
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(args = start_settings())]
pub struct LoginArgs {
    /// Name of the server
    name: String,
    /// Print the address to open, and take the one that the browser ends at; so over SSH and without a display
    #[arg(long)]
    no_browser: bool,
    /// Scope to ask for beside those of the last sign-in; several with spaces between them
    #[arg(long, value_name = "SCOPE", allow_hyphen_values = true)]
    scope: Vec<String>,
    /// Client that the authorization server knows already
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Port of the redirect that such a client is registered with [default: any]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    callback_port: Option<u16>,
}

pub(super) fn login(here: &ServersContext, args: &LoginArgs) -> Result<(String, ExitCode), Failure> {
    let catalog = here.catalog_in(here.state_dir()?);
    let runtime = runtime::multi_threaded(2)?;
    let finished = runtime.block_on(async {
        let pool = UpstreamPool::new(here.definitions(), here.settings.clone());
        let summary = find_server(&pool, &args.name)?;
        // Without its definition a list of tools counts as that of another server.
        declare_servers(&catalog, &pool.summaries());
        let name = summary.name.clone();
        let failed = |error: SignInError| to_failure(format!("could not sign in to `{name}`"), error);
        let signed_in = tokio::select! {
            signed_in = sign_in(&pool, &name, args, &here.env) => signed_in.map_err(failed)?,
            _ = tokio::signal::ctrl_c() => return Ok((String::new(), ExitCode::from(INTERRUPTED))),
        };
        let what = describe_sign_in(&name, &signed_in);
        let listed = refresh::list_server(Arc::clone(&pool), catalog, summary).await;
        pool.close().await;
        for warning in &listed.warnings {
            print_remark(format!("warning: {}", escape_control(warning)));
        }
        Ok(match listed.result {
            Ok(tools) => (format!("{what}; {}\n", format_count(tools.count, "tool")), ExitCode::SUCCESS),
            Err(error) => {
                print_remark(format!("warning: its tools could not be listed: {}", display_value(&error.to_string())));
                (format!("{what}\n"), ExitCode::FAILURE)
            }
        })
    });
    // A thread may still wait for a line of standard input.
    runtime.shutdown_background();
    finished
}

pub(super) fn logout(here: &ServersContext, name: &str) -> Result<String, Failure> {
    runtime::multi_threaded(1)?.block_on(async {
        let pool = UpstreamPool::new(here.definitions(), here.settings.clone());
        let name = find_server(&pool, name)?.name;
        let failed = |error| to_failure(format!("could not sign out of `{name}`"), error);
        let out = pool.sign_out(&name).await.map_err(failed)?;
        Ok(match (out.was_signed_in, out.not_revoked) {
            (false, _) => format!("`{name}` was not signed in\n"),
            (true, not_revoked) => describe_sign_out(&name, not_revoked.as_deref()) + "\n",
        })
    })
}

fn describe_sign_out(name: &str, not_revoked: Option<&str>) -> String {
    match not_revoked {
        None => format!("signed out of `{name}`: its tokens are revoked and deleted"),
        Some(reason) => {
            format!("signed out of `{name}`: its tokens are deleted, but not revoked: {}", display_value(reason))
        }
    }
}

/// Signs out of a server that has been removed, and says so. The caller deletes what is left of the sign-in.
pub(super) fn sign_out_of_removed(here: &ServersContext, name: &str, before: &ServerDefinitions) -> String {
    let revoked = runtime::multi_threaded(1).map_err(|failure| one_line_chain(&failure)).and_then(|runtime| {
        runtime.block_on(async {
            let pool = UpstreamPool::new(before.clone(), here.settings.clone());
            match tokio::time::timeout(REMOVAL_TIMEOUT, pool.sign_out(name)).await {
                Ok(Ok(out)) => out.not_revoked.map_or(Ok(()), Err),
                Ok(Err(error)) => Err(error.cause),
                Err(_) => Err(format!("there was no answer within {} s", REMOVAL_TIMEOUT.as_secs())),
            }
        })
    });
    describe_sign_out(name, revoked.err().as_deref())
}

fn find_server(pool: &UpstreamPool, name: &str) -> Result<UpstreamSummary, Failure> {
    let known = pool.summaries();
    let found = known.iter().find(|summary| summary.name == name || summary.alias == name).cloned();
    found.ok_or_else(|| unknown_server_error(name, known.iter().map(|summary| summary.name.as_str())))
}

fn to_failure(message: String, error: SignInError) -> Failure {
    let hint = error.hint.clone();
    let failure = Failure::operator(message).because(error);
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

fn describe_sign_in(name: &str, signed_in: &SignedIn) -> String {
    let SignedIn { host, scopes, is_renewed } = signed_in;
    let scopes = if scopes.is_empty() { String::new() } else { format!(" for `{}`", scopes.join(" ")) };
    let renewed = if *is_renewed { ", renewed by itself" } else { "" };
    format!("signed in to `{name}` at {host}{scopes}{renewed}")
}

async fn sign_in(pool: &UpstreamPool, name: &str, args: &LoginArgs, env: &ProcessEnv) -> Result<SignedIn, SignInError> {
    if let Some(signed_in) = pool.sign_in_by_credentials(name).await? {
        return Ok(signed_in);
    }
    let options = SignInOptions {
        scopes: args.scope.clone(),
        client_id: args.client_id.clone(),
        callback_port: args.callback_port,
    };
    let pending = pool.begin_sign_in(name, &options).await?;
    let address = pending.address();
    let is_opened = !args.no_browser && open_browser(address, env);
    if is_opened {
        print_remark(format!("opening your browser at {address}"));
    } else {
        print_remark(
            "open this address anywhere, and paste the address that the browser ends at (the page need not load there):",
        );
        print_remark(format!("  {address}"));
        let _ = write!(std::io::stderr(), "> ").and_then(|()| std::io::stderr().flush());
    }
    let pasting = match (is_opened, env.stdin_is_terminal) {
        (true, _) => PastedAnswer::None,
        (false, true) => PastedAnswer::Terminal,
        (false, false) => PastedAnswer::Pipe,
    };
    let answer = wait_for_answer(&pending, pasting).await?;
    pending.finish(answer).await
}

/// Where the person may paste the address that the browser ended at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PastedAnswer {
    None,
    /// Ctrl-D ends the sign-in.
    Terminal,
    /// The end of the input leaves the browser.
    Pipe,
}

/// Waits for the browser, and for a line of standard input if the person may paste one.
async fn wait_for_answer(pending: &PendingSignIn, pasting: PastedAnswer) -> Result<RedirectAnswer, SignInError> {
    let (send, mut lines) = mpsc::channel(1);
    if pasting != PastedAnswer::None {
        // Reading cannot be interrupted, so it has a thread of its own.
        std::thread::spawn(move || {
            let mut input = std::io::Read::take(std::io::stdin().lock(), MAX_PASTED);
            let mut line = String::new();
            while input.read_line(&mut line).is_ok_and(|length| length > 0) {
                let line = std::mem::take(&mut line);
                if !line.trim().is_empty() && send.blocking_send(line).is_err() {
                    return;
                }
            }
        });
    }
    let pasted = async {
        match lines.recv().await {
            Some(line) => pending.read_pasted(&line),
            None if pasting == PastedAnswer::Terminal => {
                Err(SignInError { cause: "the input ended".to_owned(), hint: Some("start again".to_owned()) })
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        answer = pending.wait_for_redirect() => Ok(answer),
        answer = pasted => answer,
        () = tokio::time::sleep(SIGN_IN_TIMEOUT) => Err(SignInError {
            cause: format!("there was no answer within {} minutes", SIGN_IN_TIMEOUT.as_secs() / 60),
            hint: Some("start again".to_owned()),
        }),
    }
}

/// Opens an address with the person's browser. Returns false if there is none here.
fn open_browser(address: &str, env: &ProcessEnv) -> bool {
    let is_set = |name: &str| env.env.get(name).is_some_and(|value| !value.is_empty());
    let chosen = env.env.get("BROWSER").and_then(|value| value.to_str()).unwrap_or_default();
    let mut commands: Vec<Vec<&str>> = chosen.split(':').map(|one| one.split_whitespace().collect()).collect();
    let is_here = !is_set("SSH_CONNECTION") && !is_set("SSH_TTY");
    if is_here && is_set("WSL_DISTRO_NAME") {
        commands.push(vec!["wslview"]);
    }
    if is_here && (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")) {
        commands.push(vec!["xdg-open"]);
    }
    commands.iter().any(|words| {
        let Some((program, arguments)) = words.split_first() else { return false };
        let Some(program) = find_browser(program, env) else { return false };
        // One argument of a program, never a text for a shell.
        let has_place = arguments.contains(&"%s");
        let arguments = arguments.iter().map(|word| if *word == "%s" { address } else { word });
        let own = (!has_place).then_some(address);
        let mut command = Command::new(program);
        command
            .current_dir("/")
            .args(arguments.chain(own))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().is_ok()
    })
}

/// Returns the path of a program. Nothing from the working directory runs.
fn find_browser(program: &str, env: &ProcessEnv) -> Option<PathBuf> {
    match program.contains('/') {
        true => Some(PathBuf::from(program)).filter(|path| path.is_absolute() && is_executable(path)),
        false => programs(program, env.env.get("PATH")?).next(),
    }
}
