//! What `cove install` remarks about an entry: what the user has to do for it, and what may keep it from working.

use super::client_entries::EntryTarget;
use super::locations::{self, InstallScope};
use super::program_path::{self, PackageRunner};
use super::server_url::UrlCredential;
use super::{InstallJob, RequestedServer};
use cove_core::error::display_value;
use cove_core::own_package::args_of_package;
use cove_server::http::TOKEN_VARIABLE;

impl InstallJob<'_> {
    /// A note about an entry that starts Cove through a package manager.
    pub(super) fn runner_note(&self, target: &EntryTarget) -> Option<String> {
        let starts_package =
            matches!(target, EntryTarget::Command { program, args } if args_of_package(program, args).is_some());
        self.runner.filter(|_| starts_package).map(PackageRunner::note)
    }

    /// A note about what the user has to do for the token.
    pub(super) fn url_note(&self, target: &EntryTarget) -> Option<String> {
        let EntryTarget::Url(server) = target else { return None };
        match server.credential {
            UrlCredential::Variable => Some(format!(
                "the entry holds no token: set `{TOKEN_VARIABLE}` in the environment of {}",
                self.client.title
            )),
            UrlCredential::Absent => {
                Some("the entry holds no token; name a file with one by `--token-file`".to_owned())
            }
            UrlCredential::Token(_) => None,
        }
    }

    /// A note about other servers in the file: Cove saves no tokens while the agent still sees their tools.
    pub(super) fn others_note(&self, text: &str) -> Option<String> {
        let count = self.movable_servers(text).len();
        let (noun, pronoun) = if count == 1 { ("server is", "it") } else { ("servers are", "them") };
        let (id, scope) = (self.client.id(), self.request.flags.scope);
        let scope = if scope == InstallScope::User { String::new() } else { format!(" --scope {}", scope.as_str()) };
        let adopt = match self.request.server {
            RequestedServer::Url(_) => String::new(),
            _ => format!("; `cove install {id}{scope} --adopt` puts {pronoun} behind Cove"),
        };
        (count > 0)
            .then(|| format!("{count} other {noun} in the file, and the agent still sees {pronoun} directly{adopt}"))
    }

    /// Warnings about what may keep the client from starting the server.
    pub(super) fn warnings(&self, target: &EntryTarget) -> Vec<String> {
        let EntryTarget::Command { program, args } = target else { return Vec::new() };
        let shown = display_value(program);
        if self.request.flags.scope != InstallScope::Project {
            let place = program_path::describe_temporary_folder(program, &self.request.env);
            let warning = |place| {
                format!(
                    "warning: `{shown}` is in {place}, and clients cannot start it once it is gone: copy it to a folder \
                     such as `~/.local/bin`, and run this again from there"
                )
            };
            return place.map(warning).into_iter().collect();
        }
        let is_missing = locations::on_path(program, &self.request.env).is_none();
        let missing =
            is_missing.then(|| format!("warning: there is no `{shown}` on your `PATH`, where clients look for it"));
        let is_path = |arg: &&String| arg.split('=').next_back().is_some_and(|value| value.starts_with('/'));
        let local = args.iter().find(is_path).map(|path| {
            let path = display_value(path);
            format!("warning: `{path}` is a path of this machine, and everyone who has the project gets it")
        });
        missing.into_iter().chain(local).collect()
    }
}
