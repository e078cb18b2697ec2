//! `cove servers login` and `logout`. The person signs in in a browser, here or on another machine; the answer comes to a
//! loopback address, or the person pastes it.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::{ServersContext, declare_servers, refresh, start_settings, unknown_server_error};
use crate::cli::tables::print_remark;
use crate::cli::{INTERRUPTED, runtime};
use cove_core::error::{Failure, display_value, escape_control, one_line_chain};
use cove_core::process_env::ProcessEnv;
use cove_core::search_path::{is_executable, programs};
use cove_core::text::format_count;
use cove_upstream::definition::ServerDefinitions;
use cove_upstream::pool::sign_in::{PendingSignIn, RedirectAnswer, SignInError, SignInOptions, SignedIn};
use cove_upstream::pool::{UpstreamPool, UpstreamSummary};

/// How long the removal of a server waits for the revocation of its tokens.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest line that is read as a pasted address.
const MAX_PASTED: u64 = 32 * 1024;
/// A browser program that fails within this time has opened nothing.
const BROWSER_START_TIMEOUT: Duration = Duration::from_secs(10);

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
    let answer = wait_for_answer(&pending, args, env).await?;
    pending.finish(answer).await
}

/// Asks on standard error for the address that the browser ended at. Remarks keep clear of the prompt.
#[derive(Default)]
struct PastePrompt {
    is_shown: Cell<bool>,
}

impl PastePrompt {
    fn show(&self) {
        self.is_shown.set(true);
        let _ = write!(std::io::stderr(), "> ").and_then(|()| std::io::stderr().flush());
    }

    /// Prints lines below the prompt, and the prompt again.
    fn interrupt(&self, lines: &str) {
        let is_shown = self.is_shown.get();
        self.leave();
        print_remark(lines);
        if is_shown {
            self.show();
        }
    }

    /// Ends the line of the prompt, which the person has not ended by typing.
    fn leave(&self) {
        if self.is_shown.take() {
            print_remark("");
        }
    }
}

/// Opens the browser. Returns its answer, or the one that the person pastes: on a terminal at any time, else only where
/// no browser could be opened. Ctrl-D on a terminal ends the sign-in; the end of a pipe leaves the browser.
async fn wait_for_answer(
    pending: &PendingSignIn,
    args: &LoginArgs,
    env: &ProcessEnv,
) -> Result<RedirectAnswer, SignInError> {
    let (address, is_terminal) = (pending.address(), env.stdin_is_terminal);
    let prompt = PastePrompt::default();
    let (send, mut lines) = mpsc::channel(1);
    let mut send = Some(send);
    let mut ask = |words: &str| {
        prompt.interrupt(words);
        prompt.show();
        if let Some(send) = send.take() {
            std::thread::spawn(move || read_pasted_lines(&send));
        }
    };
    let commands = if args.no_browser { Vec::new() } else { browser_commands(address, env) };
    let browser = async {
        let mut commands = commands.into_iter();
        if let Some(running) = start_browser(&mut commands) {
            print_remark(format!("opening your browser at {address}"));
            if is_terminal {
                ask("you can also open this address anywhere, and paste the address that the browser ends at:");
            }
            all_browsers_failed(running, commands).await;
            prompt.interrupt("warning: the browser could not be opened");
        }
        ask(&format!(
            "open this address anywhere, and paste the address that the browser ends at (the page need not load there):\n  \
             {address}"
        ));
        std::future::pending::<Infallible>().await
    };
    let pasted = async {
        loop {
            match lines.recv().await {
                // For example what the person types for the shell behind this command.
                Some(line) if is_terminal && !line.contains("://") => {
                    print_remark("that is not the address that the browser ended at; paste it, or press Ctrl-C:");
                    prompt.show();
                }
                Some(line) => {
                    prompt.is_shown.set(false);
                    return pending.read_pasted(&line);
                }
                None if is_terminal => {
                    return Err(SignInError {
                        cause: "the input ended".to_owned(),
                        hint: Some("start again".to_owned()),
                    });
                }
                None => std::future::pending().await,
            }
        }
    };
    let report_foreign = || {
        let paste = if prompt.is_shown.get() { ", or paste the address that the browser ends at" } else { "" };
        prompt.interrupt(&format!(
            "warning: an answer came that does not belong to this sign-in, and was ignored; Cove still waits\nhint: press \
             Ctrl-C and start again{paste}"
        ));
    };
    let answer = tokio::select! {
        answer = pending.wait_for_redirect(report_foreign) => answer,
        answer = pasted => answer,
        never = browser => match never {},
    };
    prompt.leave();
    answer
}

/// Sends the lines of standard input. Reading cannot be interrupted, so it needs a thread of its own.
fn read_pasted_lines(send: &mpsc::Sender<String>) {
    let mut input = std::io::Read::take(std::io::stdin().lock(), MAX_PASTED);
    let mut line = String::new();
    while input.read_line(&mut line).is_ok_and(|length| length > 0) {
        let line = std::mem::take(&mut line);
        if !line.trim().is_empty() && send.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Returns the commands that may open an address with the person's browser, in their order.
fn browser_commands(address: &str, env: &ProcessEnv) -> Vec<Command> {
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
    let command = |words: Vec<&str>| {
        let (program, arguments) = words.split_first()?;
        // One argument of a program, never a text for a shell.
        let has_place = arguments.contains(&"%s");
        let arguments = arguments.iter().map(|word| if *word == "%s" { address } else { word });
        let own = (!has_place).then_some(address);
        let mut command = Command::new(find_browser(program, env)?);
        command.current_dir("/").args(arguments.chain(own));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(command)
    };
    commands.into_iter().filter_map(command).collect()
}

/// Starts the next browser program that can be started. Returns `None` if there is none.
fn start_browser(commands: &mut impl Iterator<Item = Command>) -> Option<Child> {
    commands.find_map(|mut command| command.spawn().ok())
}

/// Returns when this browser program and all further ones have failed at once. Some run as long as their window, so a
/// later end says nothing.
async fn all_browsers_failed(running: Child, mut commands: impl Iterator<Item = Command>) {
    let mut next = Some(running);
    while let Some(running) = &mut next {
        match tokio::time::timeout(BROWSER_START_TIMEOUT, running.wait()).await {
            Ok(Ok(status)) if !status.success() => next = start_browser(&mut commands),
            _ => std::future::pending().await,
        }
    }
}

/// Returns the path of a program. Nothing from the working directory runs.
fn find_browser(program: &str, env: &ProcessEnv) -> Option<PathBuf> {
    match program.contains('/') {
        true => Some(PathBuf::from(program)).filter(|path| path.is_absolute() && is_executable(path)),
        false => programs(program, env.env.get("PATH")?).next(),
    }
}
