//! `cove packages`: installs python and node packages on the host, for every session to see. It starts no sandbox.

use std::path::Path;
use std::process::ExitCode;

use clap::Arg;
use serde::Serialize;

use super::tables::{PrintStyle, Tone, render_json, render_list};
use super::{CommandContext, json_flag, settings_named};
use crate::cli::progress_line::ProgressLine;
use crate::config::Config;
use crate::packages::{
    NodeInstaller, PackageInstaller, PackageKind, PackageRecord, PackageRequest, PackageStore, PythonInstaller,
    StoreUpdate,
};
use cove_core::error::{Failure, display_value};
use cove_core::units::show_size;

/// Install python and node packages for every session
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum PackagesCommand {
    /// Install packages, such as `pandas` or `pandas>=2`, beside those that are installed
    #[command(args = package_settings())]
    Add(PackageNames),
    /// List every package with its version
    #[command(visible_alias = "ls", arg = json_flag("Print an array of objects"), args = package_settings())]
    List,
    /// Take packages away that `add` installed
    #[command(visible_alias = "rm", args = package_settings())]
    Remove(PackageNames),
    /// Install what the configuration names and what `add` added, if something is missing
    #[command(args = package_settings())]
    Sync {
        /// Look for newer versions of everything
        #[arg(long)]
        upgrade: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct PackageNames {
    /// Names of packages, with versions if you want
    #[arg(value_name = "NAME", required = true, allow_hyphen_values = true)]
    names: Vec<String>,
    /// Packages of npm, for node
    #[arg(long)]
    node: bool,
}

impl PackageNames {
    fn kind(&self) -> PackageKind {
        if self.node { PackageKind::Node } else { PackageKind::Python }
    }

    fn parse(&self) -> Result<Vec<PackageRequest>, Failure> {
        let parse = |name: &String| {
            PackageRequest::parse(self.kind(), name).map_err(|refusal| {
                Failure::usage(format!("could not read the package `{}`", display_value(name)))
                    .because(refusal.cause)
                    .with_hint(refusal.hint)
            })
        };
        self.names.iter().map(parse).collect()
    }
}

/// The settings that decide which packages there are, for which Python, and where they are kept.
pub(super) fn package_settings() -> impl Iterator<Item = Arg> {
    settings_named(&["config", "state-dir", "python", "rootfs", "packages", "node-packages"])
}

/// Returns the text to print and the exit code. Progress goes to standard error.
pub fn run(command: PackagesCommand, context: &CommandContext) -> Result<(String, ExitCode), Failure> {
    let store = PackageStore::new(state_dir(&context.config)?);
    let text = match command {
        PackagesCommand::List => list(&store.read()?, context)?,
        PackagesCommand::Add(names) => {
            let requests = names.parse()?;
            let mut update = store.update()?;
            let added = update.record.added.entry(names.kind()).or_default();
            for request in &requests {
                added.retain(|text| package_name(names.kind(), text) != request.name);
                added.push(request.to_string());
            }
            let text = sync(&mut update, names.kind(), context, false)?;
            update.save()?;
            text
        }
        PackagesCommand::Remove(names) => {
            let requests = names.parse()?;
            let mut update = store.update()?;
            for request in &requests {
                remove(&mut update, names.kind(), request, &context.config)?;
            }
            let text = sync(&mut update, names.kind(), context, false)?;
            update.save()?;
            text
        }
        PackagesCommand::Sync { upgrade } => {
            let mut update = store.update()?;
            let synced = PackageKind::ALL.map(|kind| sync(&mut update, kind, context, upgrade));
            let [python, node] = synced;
            let text = python? + &node?;
            update.save()?;
            if text.is_empty() { "no packages are asked for; `cove packages add NAME` adds one\n".into() } else { text }
        }
    };
    Ok((text, ExitCode::SUCCESS))
}

fn state_dir(config: &Config) -> Result<&Path, Failure> {
    config.server.state_dir.as_deref().ok_or_else(|| {
        Failure::operator("could not find a place for packages")
            .because("there is no home directory, so there is no state directory")
            .with_hint("name one with `--state-dir`")
    })
}

fn remove(
    update: &mut StoreUpdate,
    kind: PackageKind,
    request: &PackageRequest,
    config: &Config,
) -> Result<(), Failure> {
    let added = update.record.added.entry(kind).or_default();
    let before = added.len();
    added.retain(|text| package_name(kind, text) != request.name);
    if added.len() < before {
        return Ok(());
    }
    let could_not = Failure::usage(format!("could not remove the package `{}`", request.name));
    let is_configured = config.packages.of_kind(kind).iter().any(|configured| configured.name == request.name);
    Err(match is_configured {
        true => could_not
            .because("the configuration names it")
            .with_hint("take it out of `cove.toml`, and run `cove packages sync`"),
        false if kind == PackageKind::Python && is_added(update, PackageKind::Node, &request.name) => could_not
            .because("it is a package of node")
            .with_hint(format!("`cove packages remove --node {}` removes it", request.name)),
        false => could_not
            .because("it was not added")
            .with_hint("`cove packages list` shows the packages; those that others need go with them"),
    })
}

fn is_added(update: &StoreUpdate, kind: PackageKind, name: &str) -> bool {
    update.record.added.get(&kind).is_some_and(|added| added.iter().any(|text| package_name(kind, text) == name))
}

pub(super) fn package_name(kind: PackageKind, text: &str) -> String {
    PackageRequest::parse(kind, text).map(|request| request.name).unwrap_or_default()
}

/// Returns what the configuration names and what was added, each package once.
fn wanted_packages(kind: PackageKind, config: &Config, record: &PackageRecord) -> Vec<PackageRequest> {
    let mut wanted = config.packages.of_kind(kind).to_vec();
    let added = record.added.get(&kind).into_iter().flatten();
    for request in added.filter_map(|text| PackageRequest::parse(kind, text).ok()) {
        if wanted.iter().all(|other| other.name != request.name) {
            wanted.push(request);
        }
    }
    wanted.sort();
    wanted.dedup();
    wanted
}

fn texts(requests: &[PackageRequest]) -> Vec<String> {
    requests.iter().map(ToString::to_string).collect()
}

/// Builds the layer of one language, unless it is there. Returns what to print.
fn sync(
    update: &mut StoreUpdate,
    kind: PackageKind,
    CommandContext { config, env, .. }: &CommandContext,
    upgrade: bool,
) -> Result<String, Failure> {
    let wanted = wanted_packages(kind, config, &update.record);
    if wanted.is_empty() {
        let had = update.record.layers.len();
        update.record.layers.retain(|layer| layer.kind != kind);
        let gone = update.record.layers.len() < had;
        return Ok(if gone { format!("{}: no packages are left\n", kind.as_str()) } else { String::new() });
    }
    let installer: Box<dyn PackageInstaller> = match kind {
        PackageKind::Python => Box::new(PythonInstaller::find(&config.policy, env)?),
        PackageKind::Node => Box::new(NodeInstaller::find(env)?),
    };
    let is_there = |layer: &&crate::packages::BuiltLayer| {
        layer.kind == kind && layer.program == installer.program() && layer.requested == texts(&wanted)
    };
    if !upgrade && update.is_built(is_there) {
        return Ok(format!("{}: {} installed already\n", kind.as_str(), texts(&wanted).join(", ")));
    }
    let progress = ProgressLine::new();
    let names = texts(&wanted).join(", ");
    let built = update.build(&wanted, &*installer, &|step| progress.update(&format!("{step}: {names}")));
    progress.clear();
    let layer = built?;
    let version = |request: &PackageRequest| {
        let found = layer.packages.iter().find(|package| package_name(kind, &package.name) == request.name);
        found.map_or(request.to_string(), |package| format!("{} {}", package.name, package.version))
    };
    let asked: Vec<String> = wanted.iter().map(version).collect();
    let others = match layer.packages.len().saturating_sub(asked.len()) {
        0 => String::new(),
        count => format!(" and {count} that they need"),
    };
    Ok(format!(
        "{}: installed {}{others} ({}) for {}; servers that are running need a restart to see them\n",
        kind.as_str(),
        asked.join(", "),
        show_size_roughly(layer.bytes),
        layer.program,
    ))
}

fn show_size_roughly(bytes: u64) -> String {
    show_size(bytes.next_multiple_of(1 << 20))
}

#[derive(Serialize)]
struct PackageRow {
    language: &'static str,
    name: String,
    /// What was asked for; empty for a package that others need.
    asked: String,
    /// None if it is not installed yet.
    version: Option<String>,
}

fn list(record: &PackageRecord, CommandContext { config, json, .. }: &CommandContext) -> Result<String, Failure> {
    let mut rows = Vec::new();
    for kind in PackageKind::ALL {
        let wanted = wanted_packages(kind, config, record);
        let layer = record.layers.iter().rev().find(|layer| layer.kind == kind);
        let mut installed = layer.map(|layer| layer.packages.clone()).unwrap_or_default();
        for request in wanted {
            let found = installed.iter().position(|package| package_name(kind, &package.name) == request.name);
            let version = found.map(|at| installed.remove(at).version);
            rows.push(PackageRow { language: kind.as_str(), asked: request.to_string(), name: request.name, version });
        }
        rows.extend(installed.into_iter().map(|package| PackageRow {
            language: kind.as_str(),
            name: package.name,
            asked: String::new(),
            version: Some(package.version),
        }));
    }
    if *json {
        return render_json("the packages", &rows);
    }
    if rows.is_empty() {
        return Ok("no packages are installed; `cove packages add NAME` adds one\n".to_owned());
    }
    let cells = rows.into_iter().map(|row| {
        let asked = match row.asked.is_empty() {
            true => Tone::Faint.cell("needed by others"),
            false => Tone::Plain.cell(format!("asked for: {}", row.asked)),
        };
        let missing = || Tone::Warning.cell("not installed: run `cove packages sync`");
        let version = row.version.map_or_else(missing, |version| Tone::Plain.cell(version));
        [Tone::Plain.cell(row.language), Tone::Name.cell(row.name), version, asked]
    });
    Ok(render_list(PrintStyle::of_stdout(), ["LANGUAGE", "PACKAGE", "VERSION", "WHY"], cells))
}

/// Gives the policy what all sessions share: the packages that are installed, and the directory to write to. Returns a
/// warning if other packages are asked for. Fails if the record of packages cannot be read.
pub(super) fn add_shared_folders(config: &mut Config) -> Result<Option<String>, Failure> {
    config.policy.mounts.extend(config.workspace.take());
    let Some(state_dir) = &config.server.state_dir else { return Ok(None) };
    let store = PackageStore::new(state_dir);
    let record = store.read()?;
    config.policy.packages = store.layers(&record)?;
    let is_missing = |kind: &PackageKind| {
        let wanted = texts(&wanted_packages(*kind, config, &record));
        !wanted.is_empty() && !record.layers.iter().any(|layer| layer.kind == *kind && layer.requested == wanted)
    };
    let missing: Vec<String> = PackageKind::ALL
        .into_iter()
        .filter(is_missing)
        .flat_map(|kind| texts(&wanted_packages(kind, config, &record)))
        .collect();
    Ok((!missing.is_empty())
        .then(|| format!("not all of these packages are installed: {}; run `cove packages sync`", missing.join(", "))))
}
