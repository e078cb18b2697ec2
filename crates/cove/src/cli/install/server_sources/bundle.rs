//! Bundles (`.mcpb`, formerly `.dxt`): a zip archive with a server and a `manifest.json` that says how to start it. Cove
//! unpacks one into the state directory, because its files have to stay.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use cove_core::error::{Failure, display_path, display_value, write_hint};
use cove_core::private_file::{UNFINISHED, check_path, create_private_folder};
use cove_core::process_env::ProcessEnv;

use super::super::client_servers::{ClientServer, read_servers_file};
use super::zip_archive::{MAX_BYTES, ZipArchive};

const MANIFEST: &str = "manifest.json";
const MAX_MANIFEST: usize = 1 << 20;
/// How manifests call this system.
const PLATFORM: &str = "linux";

/// The files of a bundle, and where they belong.
pub(in crate::cli) struct ServerBundle {
    archive: ZipArchive,
    /// The program that the bundle brings along, if it does.
    program: Option<String>,
    folder: PathBuf,
}

/// True for a name that a bundle has.
pub(super) fn is_bundle(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "mcpb" || ending == "dxt")
}

/// Reads a bundle that belongs below `bundles`: its server, and its files. Nothing is unpacked yet.
pub(super) fn read_bundle(
    file: &Path,
    bundles: &Path,
    env: &ProcessEnv,
) -> Result<(Vec<ClientServer>, ServerBundle), Failure> {
    let fail =
        |cause: String| Failure::usage(format!("could not read the bundle `{}`", display_path(file))).because(cause);
    let metadata =
        fs::metadata(file).map_err(|error| fail(error.to_string()).with_hint("name a file that you can read"))?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(fail(format!("it is not a file of at most {} MiB", MAX_BYTES >> 20)));
    }
    let bytes = fs::read(file).map_err(|error| fail(error.to_string()))?;
    let digest = hex::encode(&Sha256::digest(&bytes)[..6]);
    let damaged = |cause: String| fail(cause).with_hint("get the bundle again from where it comes");
    let archive = ZipArchive::parse(bytes).map_err(damaged)?;
    let manifest = archive.find(MANIFEST).ok_or_else(|| damaged(format!("it has no `{MANIFEST}`")))?;
    let text = archive.read(manifest).map_err(damaged)?;
    if text.len() > MAX_MANIFEST {
        return Err(damaged(format!("its `{MANIFEST}` has more than 1 MiB")));
    }
    let manifest: Value = serde_json::from_slice(&text).map_err(|error| {
        damaged(format!("`{MANIFEST}`, line {} column {}: it is not valid JSON", error.line(), error.column()))
    })?;
    let name = manifest["name"].as_str().unwrap_or("bundle").to_owned();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let plain: String = name.chars().filter(|c| is_plain(*c)).take(64).collect();
    let folder = bundles.join(format!("{plain}-{digest}"));
    let entry = to_entry(&manifest, &folder).map_err(damaged)?;
    let servers = json!({"mcpServers": {(&name): entry}}).to_string();
    let mut servers = read_servers_file(Path::new(MANIFEST), &servers, env)?;
    let options = manifest["user_config"].as_object().into_iter().flatten();
    let left_out = options.filter(|(_, option)| is_optional(option)).map(|(id, _)| format!("`{}`", display_value(id)));
    let left_out: Vec<String> = left_out.collect();
    for server in servers.iter_mut().filter(|_| !left_out.is_empty()) {
        server.remarks.push(format!("options without a value: {}", left_out.join(", ")));
    }
    let is_binary = manifest["server"]["type"] == "binary";
    let program = manifest["server"]["entry_point"].as_str().filter(|_| is_binary).map(str::to_owned);
    Ok((servers, ServerBundle { archive, program, folder }))
}

/// The server of a manifest as an entry that editors could have. Fails with the reason.
fn to_entry(manifest: &Value, folder: &Path) -> Result<Value, String> {
    let systems = manifest["compatibility"]["platforms"].as_array();
    if let Some(systems) = systems.filter(|systems| !systems.iter().any(|system| system == PLATFORM)) {
        let systems: Vec<&str> = systems.iter().filter_map(Value::as_str).collect();
        return Err(format!("it is for {} only", display_value(&systems.join(", "))));
    }
    let config = &manifest["server"]["mcp_config"];
    let own = &config["platform_overrides"][PLATFORM];
    let field = |key: &str| if own[key].is_null() { &config[key] } else { &own[key] };
    let mut env: Map<String, Value> = config["env"].as_object().cloned().unwrap_or_default();
    env.extend(own["env"].as_object().cloned().unwrap_or_default());
    let folder = folder.to_str().ok_or("the state directory is not valid UTF-8")?;
    let text = |text: &str| {
        let home =
            |name: &str| (format!("${{{name}}}"), format!("${{HOME}}/{}{}", &name[..1], name[1..].to_lowercase()));
        let folders = ["DESKTOP", "DOCUMENTS", "DOWNLOADS"].map(home);
        let options = manifest["user_config"].as_object().into_iter().flatten();
        let defaults =
            options.filter_map(|(id, option)| Some((format!("${{user_config.{id}}}"), default_text(option)?)));
        let text = defaults.fold(text.to_owned(), |text, (reference, value)| text.replace(&reference, &value));
        // What is left is asked for, as the inputs of an editor are.
        let text = text.replace("${__dirname}", folder).replace("${user_config.", "${input:");
        folders.iter().fold(text, |text, (name, path)| text.replace(name, path))
    };
    let is_left_out = |text: &str| option_id(text).is_some_and(|id| is_optional(&manifest["user_config"][id]));
    let mut args: Vec<String> = Vec::new();
    for arg in field("args").as_array().into_iter().flatten().filter_map(Value::as_str) {
        match option_id(arg).and_then(|id| manifest["user_config"][id]["default"].as_array()) {
            // An option with several values stands for several arguments.
            Some(values) => args.extend(values.iter().filter_map(Value::as_str).map(text)),
            None if is_left_out(arg) => {}
            None => args.push(text(arg)),
        }
    }
    let env: Map<String, Value> = env
        .into_iter()
        .filter(|(_, value)| value.as_str().is_none_or(|value| !is_left_out(value)))
        .map(|(name, value)| (name, value.as_str().map_or(value.clone(), |value| json!(text(value)))))
        .collect();
    let command = field("command").as_str().ok_or("its manifest has no command")?;
    Ok(json!({"command": text(command), "args": args, "env": env, "description": manifest["description"].as_str()}))
}

/// The option that a text stands for, if it is nothing else.
fn option_id(text: &str) -> Option<&str> {
    text.strip_prefix("${user_config.")?.strip_suffix('}')
}

/// True for an option that may be missing, and has no default.
fn is_optional(option: &Value) -> bool {
    option["required"] != true && option["default"].is_null()
}

/// The default of an option as text. None if a person has to give the value.
fn default_text(option: &Value) -> Option<String> {
    match &option["default"] {
        _ if option["sensitive"] == true => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

impl ServerBundle {
    /// Unpacks the bundle, as a whole or not at all. Does nothing if the same bundle is there already.
    pub(in crate::cli) fn unpack(&self) -> Result<(), Failure> {
        if self.folder.is_dir() {
            return Ok(());
        }
        let shown = display_path(&self.folder);
        let fail = |error: io::Error| {
            let hint = write_hint(&error, "make the folder writable for you");
            Failure::operator(format!("could not unpack the bundle into `{shown}`")).because(error).with_hint(hint)
        };
        let bundles = self.folder.parent().unwrap_or(Path::new("/"));
        check_path(bundles).map_err(|error| fail(error.into_io(bundles)))?;
        create_private_folder(bundles).map_err(fail)?;
        let fresh = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(bundles).map_err(fail)?;
        for file in &self.archive.files {
            let content = self.archive.read(file).map_err(|cause| {
                Failure::usage("could not unpack the bundle")
                    .because(cause)
                    .with_hint("get the bundle again from where it comes")
            })?;
            let path = fresh.path().join(&file.path);
            let is_program = file.is_executable || self.program.as_deref() == Some(file.path.as_str());
            let mode = if is_program { 0o700 } else { 0o600 };
            let folder = path.parent().unwrap_or(fresh.path());
            create_private_folder(folder).map_err(fail)?;
            let mut target = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(fail)?;
            target.write_all(&content).map_err(fail)?;
        }
        match fs::rename(fresh.path(), &self.folder) {
            // Another Cove was faster.
            Err(_) if self.folder.is_dir() => Ok(()),
            renamed => renamed.map_err(fail),
        }
    }
}
