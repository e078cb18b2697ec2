//! The servers that a client has elsewhere than in the file that an install changes: in its other files, in files of the
//! project, and in the lists that Claude Code keeps for other projects. An install names them, and leaves them alone.

use std::path::{Path, PathBuf};

use cove_core::document::{ConfigDocument, DocumentMember, DocumentNode};
use cove_core::error::{Failure, display_path, display_value, one_line_chain};
use cove_core::text::format_count;

use super::client_servers::{ClientServer, ServerConversion};
use super::locations::{InstallScope, locate, scopes};
use super::server_sources::{ClientServersFile, read_client};
use super::{InstallJob, RequestedServer, own_entry};

/// Folders of other projects that a note names.
const MAX_NAMED_PROJECTS: usize = 3;

impl InstallJob<'_> {
    /// A note for each place with servers that this install leaves alone, with the command that takes them over.
    pub(super) fn other_places_notes(&self, document: &ConfigDocument) -> Vec<String> {
        let flags = &self.request.flags;
        let mut seen = vec![real_path(&self.location.file)];
        let mut notes = Vec::new();
        // An install for a project is about that project alone.
        let wanted = match flags.scope {
            InstallScope::Project => vec![InstallScope::Project],
            InstallScope::User | InstallScope::Local => vec![InstallScope::User, InstallScope::Project],
        };
        for scope in wanted.into_iter().filter(|scope| scopes(self.client).contains(scope)) {
            // A client without another file has no servers there.
            for ClientServersFile { file, servers, .. } in
                read_client(self.client, &[scope], &self.request.env).unwrap_or_default()
            {
                let path = real_path(&file);
                if !seen.contains(&path) {
                    notes.extend(self.other_file_note(scope, &file, servers));
                    seen.push(path);
                }
            }
        }
        if flags.scope != InstallScope::Project {
            notes.extend(self.other_projects_note(document));
        }
        notes
    }

    fn other_file_note(
        &self,
        scope: InstallScope,
        file: &Path,
        servers: Result<Vec<ClientServer>, Failure>,
    ) -> Option<String> {
        let count = match servers {
            Ok(servers) => count_movable(&servers),
            Err(failure) => return Some(one_line_chain(&failure)),
        };
        if count == 0 {
            return None;
        }
        let (id, title, file) = (self.client.id(), self.client.title, display_path(file));
        let scope = if scope == InstallScope::Project { " --scope project" } else { "" };
        let pronoun = if count == 1 { "it" } else { "them" };
        let import = match self.is_elsewhere() {
            true => String::new(),
            false => format!("; `cove servers import {id}{scope}` defines {pronoun} for Cove too"),
        };
        Some(format!("{title} has {} in {file} too, which is not changed{import}", format_count(count, "server")))
    }

    /// A note about servers that the user has in other projects, which have other working directories.
    fn other_projects_note(&self, document: &ConfigDocument) -> Option<String> {
        let local = locate(self.client, InstallScope::Local, &self.request.env).ok()?;
        let [projects, here, servers] = local.container.as_slice() else { return None };
        let is_movable = |server: &&DocumentMember| {
            let has_launch = own_entry::program(&server.node).is_some() || own_entry::url(&server.node).is_some();
            has_launch && !own_entry::leads_to_cove(&server.key, &server.node, Some(&self.program))
        };
        let (mut total, mut folders) = (0, Vec::new());
        for project in document.root()?.get(projects)?.members()?.iter().filter(|project| project.key != *here) {
            let servers = project.node.get(servers).and_then(DocumentNode::members).unwrap_or_default();
            let count = servers.iter().filter(is_movable).count();
            if count > 0 {
                total += count;
                folders.push(format!("`{}`", display_value(&project.key)));
            }
        }
        if total == 0 {
            return None;
        }
        let more = folders.len().saturating_sub(MAX_NAMED_PROJECTS);
        folders.truncate(MAX_NAMED_PROJECTS);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let scope = if self.request.flags.scope == InstallScope::Local { " --scope local" } else { "" };
        let adopt = match self.is_elsewhere() {
            true => String::new(),
            false => {
                format!("; run `cove install {}{scope} --adopt` in {}{more}", self.client.id(), folders.join(", "))
            }
        };
        let (servers, verb) = (format_count(total, "server"), if total == 1 { "is" } else { "are" });
        Some(format!("{servers} of other projects {verb} in {} too{adopt}", self.file_name()))
    }

    /// True if the entry leads to a Cove that has servers of its own.
    fn is_elsewhere(&self) -> bool {
        matches!(self.request.server, RequestedServer::Url(_) | RequestedServer::Container(_))
    }
}

/// The servers that Cove could run.
fn count_movable(servers: &[ClientServer]) -> usize {
    servers.iter().filter(|server| matches!(server.conversion, ServerConversion::Carried(_))).count()
}

/// In the home folder, a project's file may be the user's own.
fn real_path(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}
