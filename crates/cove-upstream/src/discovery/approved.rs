//! The servers that the operator approved: the documents in `catalog.d`, beside the folder of definitions. No network is
//! used, and nothing is started.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::server_json::{PublishedServer, PublishedStatus};
use crate::definition::ServerDefinitions;
use crate::definition::ServerLaunch;
use cove_core::document::{is_missing, read_limited};
use cove_core::error::display_path;

const MAX_FILES: usize = 256;
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Most bytes of all files together.
const MAX_TOTAL: u64 = 16 * 1024 * 1024;
const MAX_SERVERS: usize = 2_000;

/// What `catalog.d` has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApprovedServers {
    pub servers: Vec<PublishedServer>,
    /// What could not be read, for the operator.
    pub problems: Vec<String>,
}

impl ApprovedServers {
    /// Returns the folder that belongs to a folder of definitions.
    pub fn folder_beside(definitions: &Path) -> PathBuf {
        definitions.with_file_name("catalog.d")
    }

    /// Reads every `*.json` file of a folder, in the order of their names. The first document of a name counts. Never
    /// fails: what cannot be read becomes a problem.
    pub fn load(folder: &Path) -> Self {
        let mut all = Self::default();
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if is_missing(&error) => return all,
            Err(error) => {
                all.problems.push(format!("`{}` could not be listed: {error}", display_path(folder)));
                return all;
            }
        };
        let is_document = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".json") && !name.starts_with('.')
        };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_document).collect();
        files.sort();
        let mut room = MAX_TOTAL;
        for (number, file) in files.iter().enumerate() {
            if number >= MAX_FILES {
                all.problems.push(format!(
                    "`{}` has more than {MAX_FILES} files; the others are not read",
                    display_path(folder)
                ));
                break;
            }
            if let Err(reason) = all.read_file(file, &mut room) {
                all.problems.push(format!("`{}` could not be read: {reason}", display_path(file)));
            }
        }
        all
    }

    fn read_file(&mut self, path: &Path, room: &mut u64) -> Result<(), String> {
        let text = open_document(path).and_then(|file| read_limited(file, MAX_FILE.min(*room)));
        let text = text.map_err(|error| error.to_string())?;
        *room -= text.len() as u64;
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        for document in PublishedServer::documents_in(&value) {
            if self.servers.len() >= MAX_SERVERS {
                return Err(format!("there are more than {MAX_SERVERS} servers"));
            }
            match PublishedServer::read(document) {
                Ok(server) if self.find(&server.name).is_none() => self.servers.push(server),
                Ok(_) => {}
                Err(reason) => self.problems.push(format!("in `{}`: {reason}", display_path(path))),
            }
        }
        Ok(())
    }

    /// Returns the server of a name.
    pub fn find(&self, name: &str) -> Option<&PublishedServer> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// Returns the server of a name, or of a short name that only one has.
    pub fn find_any(&self, name: &str) -> Option<&PublishedServer> {
        let mut short = self.servers.iter().filter(|server| server.short_name() == name);
        self.find(name).or_else(|| short.next().filter(|_| short.next().is_none()))
    }

    /// Returns the servers that have any of these words, those with most of them first. Without words, all of them.
    pub fn search(&self, query: &str) -> Vec<&PublishedServer> {
        rank(self.servers.iter(), query)
    }
}

/// Sorts servers by how many words of a query they have, and leaves out those without any.
pub(super) fn rank<'a>(servers: impl Iterator<Item = &'a PublishedServer>, query: &str) -> Vec<&'a PublishedServer> {
    let words: Vec<String> = query.split_whitespace().take(16).map(str::to_lowercase).collect();
    let found = servers.filter(|server| server.status != PublishedStatus::Deleted);
    let mut found: Vec<(usize, &PublishedServer)> = found.map(|server| (server.count_words(&words), server)).collect();
    found.retain(|(count, _)| *count > 0 || words.is_empty());
    found.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.name.cmp(&other.name)));
    found.into_iter().map(|(_, server)| server).collect()
}

/// Opens a document that is a regular file, so that a pipe does not make Cove wait.
fn open_document(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() { File::open(path) } else { Err(io::Error::other("it is no regular file")) }
}

impl ServerDefinitions {
    /// Returns the name of the definition that a published server has, if it is configured: by the name that `add` wrote
    /// into it, or by its address.
    pub fn name_of_published(&self, server: &PublishedServer) -> Option<&str> {
        let is_it = |published: &str| published.rsplit_once('@').map_or(published, |(name, _)| name) == server.name;
        let has_address = |url: &str| server.remotes.iter().any(|remote| remote.url.value.as_deref() == Some(url));
        let found = self.servers.iter().find(|definition| {
            definition.published.as_deref().is_some_and(is_it)
                || matches!(&definition.launch, ServerLaunch::Http { url, .. } if has_address(url))
        });
        found.map(|definition| definition.name.as_str())
    }
}
