//! The files from which servers can be read: those of clients that a person names or has, and any other file.

mod bundle;
mod claude_plugins;
#[cfg(any(test, fuzzing))]
#[path = "../../../tests/exercise/bundle.rs"]
pub(super) mod exercise;
mod zip_archive;

use std::path::{Path, PathBuf};

use cove_core::error::{Failure, display_path};
use cove_core::process_env::ProcessEnv;

use super::client_file;
use super::client_servers::{ClientServer, read_client_servers, read_servers_file};
use super::clients::{self, AgentClient, CLIENTS};
use super::locations::{InstallScope, scopes, server_files};
use super::{arguments, locations};

pub(in crate::cli) use bundle::ServerBundle;

/// Where to look for servers.
pub(in crate::cli) enum ServerSources<'a> {
    /// Names of clients, and paths.
    Named(&'a [String]),
    /// Every client that has a file.
    Present,
}

/// The servers of one file, or why they could not be read.
pub(in crate::cli) struct ClientServersFile {
    /// The client whose file it is, if a client was asked for.
    pub(in crate::cli) client: Option<&'static str>,
    pub(in crate::cli) file: PathBuf,
    pub(in crate::cli) servers: Result<Vec<ClientServer>, Failure>,
    /// The files that the server needs, if it comes with some.
    pub(in crate::cli) bundle: Option<ServerBundle>,
}

/// Reads every file of the sources. Fails if a source has none. Bundles would be unpacked into `state_dir`.
pub(in crate::cli) fn read_server_sources(
    sources: ServerSources<'_>,
    wanted: &[InstallScope],
    state_dir: Option<&Path>,
    env: &ProcessEnv,
) -> Result<Vec<ClientServersFile>, Failure> {
    let mut files = Vec::new();
    match sources {
        ServerSources::Named(words) => {
            for word in words {
                match clients::find(word) {
                    Ok(client) => files.extend(read_client(client, wanted, env)?),
                    Err(near) => {
                        let file = env.cwd.join(word);
                        if !word.contains('/') && file.symlink_metadata().is_err() {
                            return Err(arguments::unknown_client(word, near));
                        }
                        files.push(read_file(file, state_dir, env));
                    }
                }
            }
        }
        ServerSources::Present => {
            for client in CLIENTS {
                let has = |scope: &InstallScope| scopes(client).contains(scope);
                let scopes: Vec<InstallScope> = wanted.iter().copied().filter(has).collect();
                // A client without the scope or without a file has no servers, which is no failure here.
                if wanted.is_empty() || !scopes.is_empty() {
                    files.extend(read_client(client, &scopes, env).unwrap_or_default());
                }
            }
            if files.is_empty() {
                return Err(Failure::usage("could not find a client with servers")
                    .because("no known client has a file where Cove looks")
                    .with_hint("see `cove install --list`, or name a file"));
            }
        }
    }
    Ok(files)
}

/// The files of one client. Without a scope these are the user's own, in every project and in this one.
pub(super) fn read_client(
    client: &'static AgentClient,
    wanted: &[InstallScope],
    env: &ProcessEnv,
) -> Result<Vec<ClientServersFile>, Failure> {
    let is_own = |scope: &InstallScope| *scope != InstallScope::Project;
    let own: Vec<InstallScope> = scopes(client).into_iter().filter(is_own).collect();
    let wanted = if wanted.is_empty() { &own } else { wanted };
    let mut files = Vec::new();
    for scope in wanted {
        for location in server_files(client, *scope, env)? {
            let text = client_file::read(&location.file).map(|file| file.text.unwrap_or_default());
            let servers = text.and_then(|text| read_client_servers(client, *scope, &location, &text, env));
            // The servers of one project are in the same file, which is worth a line only if it has some, and whose fault
            // is told once.
            let is_told = |known: &ClientServersFile| known.file == location.file && known.servers.is_err();
            let is_empty = matches!(&servers, Ok(servers) if servers.is_empty());
            if *scope != InstallScope::Local || !(is_empty || files.iter().any(is_told)) {
                files.push(ClientServersFile { client: Some(client.id()), file: location.file, servers, bundle: None });
            }
        }
    }
    if client.id() == "claude-code" && wanted.contains(&InstallScope::User) {
        files.extend(claude_plugins::read_plugins(client, env));
    }
    if files.is_empty() {
        let file = locations::locate(client, wanted[0], env)?.file;
        return Err(Failure::usage(format!("could not find servers of {}", client.title))
            .because(format!("there is no file `{}`", display_path(&file)))
            .with_hint("name another client from `cove install --list`, or a file"));
    }
    Ok(files)
}

fn read_file(file: PathBuf, state_dir: Option<&Path>, env: &ProcessEnv) -> ClientServersFile {
    if let Some(state_dir) = state_dir.filter(|_| bundle::is_bundle(&file)) {
        let (servers, bundle) = match bundle::read_bundle(&file, &state_dir.join("bundles"), env) {
            Ok((servers, bundle)) => (Ok(servers), Some(bundle)),
            Err(failure) => (Err(failure), None),
        };
        return ClientServersFile { client: None, file, servers, bundle };
    }
    let text = client_file::read(&file).and_then(|read| {
        read.text.ok_or_else(|| {
            Failure::usage(format!("could not read `{}`", display_path(&file)))
                .because("there is no such file")
                .with_hint("name a file, or a client from `cove install --list`")
        })
    });
    let servers = text.and_then(|text| read_servers_file(&file, &text, env));
    ClientServersFile { client: None, file, servers, bundle: None }
}
