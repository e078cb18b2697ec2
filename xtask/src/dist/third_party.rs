//! The packages that are linked into the program, and the notice with their licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{NAME, text_of};
use crate::attempts::{self, ErrorContext};
use crate::cargo::{self, MetadataPlatforms, elements};

/// What no package of cargo's says: the standard library and the C library.
const TOOLCHAIN: &str = "packaging/licences/toolchain.txt";
const C_LIBRARY_LICENCE: &str = "packaging/licences/LGPL-2.1.txt";
/// The model that search compares words with.
const WEIGHTS: &str = "crates/cove-upstream/weights/LICENSE";
/// The beginnings of the names of files with a licence.
const LICENCE_FILES: [&str; 6] = ["license", "licence", "copying", "notice", "unlicense", "copyright"];

pub(super) struct LinkedPackages {
    metadata: Value,
    /// Their ids, this project's own included.
    pub(super) ids: BTreeSet<String>,
}

impl LinkedPackages {
    pub(super) fn read() -> Result<Self, String> {
        Self::from_metadata(cargo::metadata(MetadataPlatforms::Host)?)
    }

    fn from_metadata(metadata: Value) -> Result<Self, String> {
        let root = elements(&metadata["packages"]).find(|package| package["name"] == NAME);
        let root = root.ok_or_else(|| format!("could not find `{NAME}` in `cargo metadata`"))?;
        let mut ids = BTreeSet::new();
        let mut waiting = vec![text_of(&root["id"]).to_owned()];
        while let Some(id) = waiting.pop() {
            if is_procedural_macro(&metadata, &id) || !ids.insert(id.clone()) {
                continue;
            }
            let linked = linked_by(&metadata, &id);
            waiting.extend(linked.into_iter().map(str::to_owned));
        }
        Ok(Self { metadata, ids })
    }

    pub(super) fn version(&self) -> Result<String, String> {
        let own = self.packages().find(|package| package["name"] == NAME);
        let version = own.and_then(|package| package["version"].as_str());
        version.map(str::to_owned).ok_or_else(|| format!("could not learn the version of `{NAME}`"))
    }

    pub(super) fn packages(&self) -> impl Iterator<Item = &Value> {
        elements(&self.metadata["packages"]).filter(|package| self.ids.contains(text_of(&package["id"])))
    }

    /// The ids that a package links directly, in order.
    pub(super) fn direct(&self, id: &str) -> Vec<&str> {
        let mut direct = linked_by(&self.metadata, id);
        direct.retain(|id| self.ids.contains(*id));
        direct.sort_unstable();
        direct
    }

    /// The licences of everything that is not this project's own. The same text is there once, with all the packages
    /// that have it.
    pub(super) fn notice(&self) -> Result<String, String> {
        let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut without_text = Vec::new();
        let mut list = String::new();
        for package in self.packages().filter(|package| !package["source"].is_null()) {
            let name = format!("{} {}", text_of(&package["name"]), text_of(&package["version"]));
            let licence = text_of(&package["license"]);
            list += &format!("{name}: {licence}\n");
            let texts = licence_texts(Path::new(text_of(&package["manifest_path"])))?;
            if texts.is_empty() {
                without_text.push((name.clone(), licence));
            }
            for text in texts {
                users.entry(text).or_default().push(name.clone());
            }
        }
        for (name, licence) in without_text {
            let is_known = |text: &str| licence == "Apache-2.0" && text.contains("Version 2.0, January 2004");
            let text = users.keys().find(|text| is_known(text)).cloned();
            let text = text.ok_or_else(|| format!("could not find a text of the licence `{licence}` of {name}"))?;
            users.entry(text).or_default().push(name);
        }
        let root = cargo::root();
        let weights = attempts::read(&root.join(WEIGHTS))?;
        users.entry(weights).or_default().push("the word vectors of potion-base-2M".to_owned());
        // In the order of the first package that has it.
        let mut texts: Vec<_> = users.into_iter().collect();
        texts.sort_by(|(_, one), (_, other)| one.cmp(other));
        let toolchain = attempts::read(&root.join(TOOLCHAIN))?;
        let mut notice = format!(
            "Cove is under the MIT licence; see LICENSE. The program `cove` contains the following works of others.\n\n\
             {toolchain}\n{list}\n"
        );
        let line = "-".repeat(100);
        for (text, users) in texts {
            notice += &format!("{line}\n{}\n{line}\n\n{}\n\n", users.join(", "), text.trim_end());
        }
        let lgpl = attempts::read(&root.join(C_LIBRARY_LICENCE))?;
        notice += &format!("{line}\nthe GNU C Library\n{line}\n\n{lgpl}");
        Ok(notice)
    }
}

fn linked_by<'a>(metadata: &'a Value, id: &str) -> Vec<&'a str> {
    let node = elements(&metadata["resolve"]["nodes"]).find(|node| node["id"] == id);
    let deps = node.into_iter().flat_map(|node| elements(&node["deps"]));
    let is_linked = |dep: &&Value| elements(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null());
    deps.filter(is_linked).filter_map(|dep| dep["pkg"].as_str()).collect()
}

/// True for a package that only the compiler runs.
fn is_procedural_macro(metadata: &Value, id: &str) -> bool {
    let package = elements(&metadata["packages"]).find(|package| package["id"] == id);
    let targets = package.into_iter().flat_map(|package| elements(&package["targets"]));
    targets.flat_map(|target| elements(&target["kind"])).any(|kind| kind == "proc-macro")
}

/// The texts beside a manifest, in the order of their names, without differences in white space at the ends of lines.
fn licence_texts(manifest: &Path) -> Result<Vec<String>, String> {
    let folder = manifest.parent().unwrap_or(Path::new("/"));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).could_not(format_args!("read `{}`", folder.display()))?.flatten() {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if LICENCE_FILES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let bytes = fs::read(path).could_not(format_args!("read `{}`", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim().to_owned() + "\n")
    };
    files.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(id: &str, kind: &str) -> Value {
        json!({"id": id, "name": id, "version": "1.0.0", "targets": [{"kind": [kind]}]})
    }

    fn node(id: &str, deps: &[(&str, Option<&str>)]) -> Value {
        let deps: Vec<Value> =
            deps.iter().map(|(id, kind)| json!({"pkg": id, "dep_kinds": [{"kind": kind}]})).collect();
        json!({"id": id, "deps": deps})
    }

    #[test]
    fn only_what_is_linked_counts() {
        let metadata = json!({
            "packages": [package(NAME, "bin"), package("a", "lib"), package("derive", "proc-macro"),
                package("syn", "lib"), package("tests", "lib"), package("cc", "lib")],
            "resolve": {"nodes": [
                node(NAME, &[("a", None), ("derive", None), ("tests", Some("dev"))]),
                node("a", &[("cc", Some("build"))]),
                node("derive", &[("syn", None)]),
            ]},
        });
        let linked = LinkedPackages::from_metadata(metadata).unwrap();
        assert_eq!(linked.ids.iter().collect::<Vec<_>>(), ["a", NAME]);
        assert_eq!(linked.direct(NAME), ["a"]);
    }

    /// Every dependency has its licence in the notice, so a new one without a text is found here.
    #[test]
    fn the_notice_has_a_text_for_every_package() {
        let notice = LinkedPackages::read().unwrap().notice().unwrap();
        for part in ["tokio 1.", "ring 0.", "Apache License", "Thomas van Dongen", "LESSER GENERAL PUBLIC"] {
            assert!(notice.contains(part), "{part}");
        }
        assert!(!notice.contains("cove-core"), "our own parts are under our own licence");
    }
}
