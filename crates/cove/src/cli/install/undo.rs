//! `cove uninstall` after an adoption: gives the client back what it had, and removes what Cove wrote for it.
//!
//! If the file is as Cove left it, all its old bytes return. If the client has written it since, every entry is put back
//! behind the entry that was before it. The file comes first, then the definitions, last the record: a killed Cove leaves
//! a server in both places, and the next run goes on.

use std::fs;

use cove_core::document::ConfigDocument;
use cove_core::error::{Failure, display_path, display_value};
use cove_core::text::format_count;

use super::adopt::AdoptionStore;
use super::adoption_record::{AdoptionRecord, WrittenDefinition, digest};
use super::client_file::{ClientFile, ReplaceOutcome};
use super::edit;
use super::reports::{ChangeReport, ReportNotes};
use super::restore::{self, RestoredFile};
use super::{ATTEMPTS, EntryChangeKind, InstallJob, own_entry};

/// A client's file as it is to be after an undo.
struct UndoneFile {
    /// None if there is to be no file.
    text: Option<String>,
    /// The file has Cove's entry now.
    has_own: bool,
    /// The names of the entries that come back.
    returned: Vec<String>,
    /// Entries that cannot come back, each with the reason.
    lost: Vec<String>,
}

impl InstallJob<'_> {
    /// Undoes the adoption of an earlier install. None if there is none to undo; notes about a record that is missing or
    /// damaged go to `notes`.
    pub(super) fn undo_adoption(&self, notes: &mut Vec<String>) -> Result<Option<ChangeReport>, Failure> {
        let copy = super::client_file::read(&self.location.file)?;
        let has_copy = copy.pinned_path().is_file();
        let store = match self.adoption_store() {
            Ok(store) => store,
            // Without an adoption, an uninstall needs no configuration.
            Err(_) if !has_copy => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let lost = |reason: String| {
            let copies: Vec<String> = copy.kept_copies().iter().map(|path| display_path(path)).collect();
            let copies = if copies.is_empty() { "there is no backup".to_owned() } else { copies.join(", ") };
            format!("adopted servers cannot be put back: {reason}; earlier contents of the file: {copies}")
        };
        let path = display_path(&store.records.path(&store.id));
        match store.records.load(&store.id) {
            Ok(Some(record)) => self.undo(&store, &record).map(Some),
            Ok(None) => {
                let is_lost = has_copy && !store.records.is_adopted_elsewhere(&store.id, &self.location.file);
                notes.extend(is_lost.then(|| lost(format!("there is no record `{path}`"))));
                Ok(None)
            }
            Err(reason) => {
                notes.push(lost(format!("the record `{path}` is damaged ({reason})")));
                Ok(None)
            }
        }
    }

    fn undo(&self, store: &AdoptionStore, record: &AdoptionRecord) -> Result<ChangeReport, Failure> {
        let is_dry = self.request.flags.dry_run;
        let _lock = if is_dry { None } else { Some(store.records.lock()?) };
        for _ in 0..ATTEMPTS {
            let _folder = self.lock()?;
            let (file, document) = self.read()?;
            let undone = self.undone_file(&document, &file, record)?;
            if is_dry {
                return Ok(ChangeReport::Text(self.describe_plan(store, &undone, record)));
            }
            if undone.text != file.text {
                file.back_up()?;
                if file.replace(undone.text.as_deref(), self.protection())? == ReplaceOutcome::Outdated {
                    continue;
                }
            }
            let mut notes = vec![match undone.returned.as_slice() {
                // The adoption was cut short, or every server stayed in the client.
                [] if record.entries.is_empty() => "no server had been taken out of the file".to_owned(),
                [] if undone.lost.is_empty() => "every adopted server is there already".to_owned(),
                [] => "put no server back".to_owned(),
                names => format!("put {} back: {}", format_count(names.len(), "server"), list(names)),
            }];
            notes.extend(store.remove_written(record));
            if undone.lost.is_empty() {
                file.remove_pinned();
            } else {
                notes.extend(undone.lost);
                notes.push(format!("the old file is in {}", display_path(&file.pinned_path())));
            }
            if self.protection() == super::FileProtection::Shared {
                file.remove_backups_in(&self.request.env.cwd);
            }
            store.records.remove(&store.id).map_err(|error| {
                Failure::operator(format!("could not remove `{}`", display_path(&store.records.path(&store.id))))
                    .because(error)
                    .with_hint("the client's file is done; remove the record by hand")
            })?;
            let notes = ReportNotes { notes, warnings: Vec::new() };
            return Ok(match undone.has_own {
                true => self.changed(EntryChangeKind::Remove, None, None, notes),
                false => self.without_own_entry(undone.text != file.text, notes),
            });
        }
        Err(Failure::operator(format!("could not write `{}`", self.file_name()))
            .because("another program kept writing it")
            .with_hint(format!("end {}, and run this again", self.client.title)))
    }

    fn undone_file(
        &self,
        document: &ConfigDocument,
        file: &ClientFile,
        record: &AdoptionRecord,
    ) -> Result<UndoneFile, Failure> {
        let refused = |refusal| self.refused(refusal);
        let path = own_entry::path(document, self.client, &self.location, &self.request.flags.name);
        let own = edit::find(document, &path).map_err(refused)?;
        own.map_or(Ok(()), |node| self.check_ownership(node))?;
        let has_own = own.is_some();
        let names = || record.entries.iter().map(|entry| entry.key().to_owned()).collect();
        let is_as_left = file.text.as_ref().is_some_and(|text| record.left == Some(digest(text)));
        let copy = file.pinned().filter(|copy| record.pinned == Some(digest(copy)));
        if let (true, Some(copy)) = (is_as_left, copy) {
            return Ok(UndoneFile { text: Some(copy), has_own, returned: names(), lost: Vec::new() });
        }
        let (mut returned, mut lost) = (Vec::new(), Vec::new());
        let mut whole = document.clone();
        for entry in &record.entries {
            let name = display_value(entry.key());
            let found = edit::find(&whole, &entry.path).map(|node| node.cloned());
            match found.map(|found| found.map(|node| Some(node) == entry.node(whole.format()))) {
                // An earlier undo was cut short, or the user wrote the same again.
                Ok(Some(true)) => {}
                Ok(Some(false)) => lost.push(format!("`{name}` was not put back: another server has its name now")),
                Ok(None) => match entry.put_back(&whole) {
                    Ok(with) => {
                        whole = with;
                        returned.push(entry.key().to_owned());
                    }
                    Err(refusal) => lost.push(format!("`{name}` was not put back: {}", refusal.cause)),
                },
                Err(refusal) => lost.push(format!("`{name}` was not put back: {}", refusal.cause)),
            }
        }
        let text = match restore::without_entry(&whole, &path, file).map_err(refused)? {
            None => file
                .text
                .as_ref()
                .map(|_| whole.file_text())
                .or_else(|| (!returned.is_empty()).then(|| whole.file_text())),
            Some(RestoredFile::Text(text)) => Some(text.file_text()),
            Some(RestoredFile::Absent) => None,
        };
        Ok(UndoneFile { text, has_own, returned, lost })
    }

    /// Describes the change in sentences: a diff would show the secrets in the entries.
    fn describe_plan(&self, store: &AdoptionStore, undone: &UndoneFile, record: &AdoptionRecord) -> String {
        let (name, file) = (&self.request.flags.name, self.file_name());
        let mut text = match undone.has_own {
            true => format!("would remove `{name}` from {file}"),
            false => format!("`{name}` is not in {file}"),
        };
        if !undone.returned.is_empty() {
            let verb = if undone.has_own { ", and" } else { "; would" };
            let count = format_count(undone.returned.len(), "server");
            text += &format!("{verb} put {count} back: {}", list(&undone.returned));
        }
        text += "\n";
        text.extend(undone.lost.iter().map(|lost| format!("{lost}\n")));
        let definitions: Vec<String> =
            store.removable(record).into_iter().map(|definition| definition.name.clone()).collect();
        if !definitions.is_empty() {
            text += &format!("would remove the definitions of {}\n", list(&definitions));
        }
        for name in definitions.iter().filter(|name| store.here.is_signed_in(name)) {
            let name = display_value(name);
            text += &format!("would sign out of `{name}`: revoke its tokens where the server can, and delete them\n");
        }
        text
    }
}

impl AdoptionStore {
    /// The definitions of a record that an undo removes: those that are as Cove wrote them and that no other adoption uses.
    fn removable<'a>(&self, record: &'a AdoptionRecord) -> Vec<&'a WrittenDefinition> {
        let others = self.records.definitions_of_others(&self.id);
        let own_folder = self.here.own_directory();
        let is_removable = |written: &&WrittenDefinition| {
            let is_shared = others.iter().any(|other| other.file == written.file);
            !is_shared && written.file.parent() == own_folder && written.is_unchanged()
        };
        record.definitions.iter().filter(is_removable).collect()
    }

    /// Removes those definitions. Returns notes about the rest.
    fn remove_written(&self, record: &AdoptionRecord) -> Vec<String> {
        let others = self.records.definitions_of_others(&self.id);
        let (before, removable) = (self.here.definitions(), self.removable(record));
        let (mut notes, mut removed) = (Vec::new(), Vec::new());
        for definition in &record.definitions {
            let (name, shown) = (display_value(&definition.name), display_path(&definition.file));
            let is_shared = others.iter().any(|other| other.file == definition.file);
            if is_shared || definition.file.symlink_metadata().is_err() {
                continue;
            }
            if !removable.contains(&definition) {
                notes.push(format!("kept {shown}, which was changed since; `cove servers remove {name}` removes it"));
            } else if let Err(error) = fs::remove_file(&definition.file) {
                notes.push(format!("could not remove {shown}: {error}"));
            } else {
                self.here.forget(&definition.name, &before);
                removed.push(definition.name.clone());
            }
        }
        if record.entries.is_empty() && !removed.is_empty() {
            notes.push(format!("removed from Cove: {}", list(&removed)));
        }
        if !record.secrets.is_empty() {
            notes.push(format!(
                "{} in Cove: {}; `cove secrets remove NAME` removes one",
                if record.secrets.len() == 1 {
                    "1 secret stays".to_owned()
                } else {
                    format!("{} secrets stay", record.secrets.len())
                },
                list(&record.secrets)
            ));
        }
        notes
    }
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| display_value(name)).collect::<Vec<_>>().join(", ")
}
