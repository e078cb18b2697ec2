//! `cove token`: prints the token that HTTP clients of this server send, and makes a new one.
//!
//! The token goes to standard output alone, also into a pipe, so that `$(cove token)` works: a person who runs this
//! asks for it, and may read the file anyway.

use std::io::IsTerminal;
use std::path::Path;

use serde_json::json;

use super::tables::{print_remark, render_json};
use super::{CommandContext, json_flag, settings_named};
use cove_core::error::{Failure, display_path};
use cove_server::http::{TOKEN_VARIABLE, TokenPlace, client_token, read_token, rotate_token, token_place};
use cove_server::http_config::HttpAuth;

/// Show or replace the token that clients send over HTTP
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(
    arg = json_flag("Print an object").global(true),
    args = settings_named(TOKEN_SETTINGS),
)]
pub struct TokenArgs {
    /// Name of the token, if the file has several
    #[arg(long, value_name = "NAME", global = true)]
    name: Option<String>,
    #[command(subcommand)]
    command: Option<TokenCommand>,
}

#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
enum TokenCommand {
    /// Make a new token in place of the old one, and print it
    #[command(args = settings_named(TOKEN_SETTINGS))]
    Rotate,
}

/// The settings that decide where the token is.
const TOKEN_SETTINGS: &[&str] = &["token-file", "state-dir", "config"];

/// Returns the text to print. Remarks go to standard error at once.
pub fn run(args: &TokenArgs, context: &CommandContext) -> Result<String, Failure> {
    let CommandContext { config, env, .. } = context;
    let name = args.name.as_deref();
    let (http, state_dir) = (&config.server.http, config.server.state_dir.as_deref());
    let (token, source) = match (token_place(http, state_dir, env)?, &args.command) {
        (TokenPlace::File(file), None) => (read_token(&file, name)?, display_path(&file)),
        (TokenPlace::File(file), Some(TokenCommand::Rotate)) => (rotate(&file, name)?, display_path(&file)),
        (TokenPlace::Environment(_), None) => (client_token(http, state_dir, env)?, TOKEN_VARIABLE.to_owned()),
        (TokenPlace::Environment(_), Some(TokenCommand::Rotate)) => {
            return Err(Failure::usage("could not replace the token")
                .because("`COVE_TOKEN` sets it, and a program cannot change that for others")
                .with_hint("set the variable to another token, such as one of `openssl rand -hex 32`"));
        }
    };
    if http.auth == HttpAuth::None {
        print_remark("warning: `auth` is `none`, so the server asks for no token");
    }
    if context.json {
        return render_json("the token", &json!({"token": token, "source": source}));
    }
    if std::io::stderr().is_terminal() {
        print_remark(format!("from `{source}`; clients send it as `Authorization: Bearer TOKEN`"));
    }
    Ok(token + "\n")
}

fn rotate(file: &Path, name: Option<&str>) -> Result<String, Failure> {
    let token = rotate_token(file, name)?;
    print_remark("no server accepts the old token any more; clients need the new one");
    Ok(token)
}
