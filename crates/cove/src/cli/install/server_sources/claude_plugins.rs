//! The servers that plugins of Claude Code bring along. A plugin owns its files, so they can be read and not changed.

use std::path::{Path, PathBuf};

use cove_core::document::{ConfigDocument, DocumentFormat, DocumentNode, read_text};
use cove_core::process_env::ProcessEnv;

use super::ClientServersFile;
use crate::cli::install::client_file;
use crate::cli::install::client_servers::read_plugin_servers;
use crate::cli::install::clients::AgentClient;

/// More plugins than this are not read.
const MAX_PLUGINS: usize = 200;
/// The files of a plugin that may have servers.
const PLUGIN_FILES: [&str; 2] = [".mcp.json", ".claude-plugin/plugin.json"];

/// The servers of every plugin that is switched on for this user.
pub(super) fn read_plugins(client: &'static AgentClient, env: &ProcessEnv) -> Vec<ClientServersFile> {
    let folder = env.env.get("CLAUDE_CONFIG_DIR").filter(|value| !value.is_empty()).map(|value| env.cwd.join(value));
    let Some(folder) = folder.or_else(|| Some(env.home()?.join(".claude"))) else { return Vec::new() };
    let Some(installed) = read_json(&folder.join("plugins/installed_plugins.json")) else { return Vec::new() };
    let settings = read_json(&folder.join("settings.json"));
    let switches = settings.as_ref().and_then(|settings| settings.root()?.get("enabledPlugins"));
    let is_on = |name: &str| switches.and_then(|switches| switches.get(name)?.boolean()) == Some(true);
    let plugins = installed.root().and_then(|root| root.get("plugins")?.members()).unwrap_or_default();
    let mut files = Vec::new();
    for plugin in plugins.iter().filter(|plugin| is_on(&plugin.key)).take(MAX_PLUGINS) {
        // The first version of the file has one installation for each plugin, the second a list.
        let installations = plugin.node.items().unwrap_or(std::slice::from_ref(&plugin.node));
        let is_own = |one: &&DocumentNode| one.get("scope").is_none_or(|scope| scope.text() == Some("user"));
        let path = installations.iter().filter(is_own).find_map(|one| one.get("installPath")?.text());
        for file in path.map(PathBuf::from).into_iter().flat_map(|root| PLUGIN_FILES.map(|file| (root.clone(), file))) {
            files.extend(read_plugin_file(client, &file.0, file.1, env));
        }
    }
    files
}

/// None if the plugin has no such file, or no servers in it.
fn read_plugin_file(
    client: &'static AgentClient,
    root: &Path,
    file: &str,
    env: &ProcessEnv,
) -> Option<ClientServersFile> {
    let path = root.join(file);
    let servers = match client_file::read(&path) {
        Ok(read) => read_plugin_servers(client, root, &path, &read.text?, env),
        Err(failure) => Err(failure),
    };
    let is_empty = matches!(&servers, Ok(servers) if servers.is_empty());
    (!is_empty).then(|| ClientServersFile { client: Some(client.id()), file: path, servers, bundle: None })
}

fn read_json(file: &Path) -> Option<ConfigDocument> {
    ConfigDocument::parse(DocumentFormat::Json, &read_text(file).ok()??).ok()
}
