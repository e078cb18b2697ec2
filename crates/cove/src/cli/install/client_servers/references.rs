//! Translates what a client's texts refer to into what a definition refers to: variables, files, secrets and commands.

use std::path::Path;

use cove_core::document::DocumentNode;
use cove_core::error::display_value;

use cove_upstream::secrets::ProgramWords;

use super::{EntrySource, secret_reference};
use crate::cli::install::clients::ReferenceForm;

/// Most letters of a secret's name behind that of its server.
const MAX_SECRET_NAME: usize = 60;

/// Translates the texts of one entry, and collects what they need.
pub(super) struct TextTranslator<'a> {
    source: &'a EntrySource<'a>,
    server: &'a str,
    /// Variables that the client keeps as secrets of this entry.
    pub(super) own_keys: Vec<String>,
    pub(super) needed_secrets: Vec<String>,
    pub(super) commands: Vec<String>,
    pub(super) remarks: Vec<String>,
    /// The first reference that has no counterpart.
    pub(super) refusal: Option<String>,
}

impl<'a> TextTranslator<'a> {
    pub(super) fn new(source: &'a EntrySource<'a>, server: &'a str) -> Self {
        let (own_keys, needed_secrets, commands, remarks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { source, server, own_keys, needed_secrets, commands, remarks, refusal: None }
    }

    pub(super) fn translate(&mut self, text: &str) -> String {
        let mut translated = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['$', '{']) {
            translated.push_str(&rest[..at]);
            rest = &rest[at..];
            let (value, length) = self.reference(rest).unwrap_or_else(|| match rest.starts_with("${") {
                // Cove would take it for a reference of its own.
                true => ("$${".to_owned(), 2),
                false => (rest[..1].to_owned(), 1),
            });
            if translated.ends_with('$') && value.starts_with('{') {
                // Two texts, each harmless, would make a reference of Cove's own, such as `${cmd:…}`.
                translated.push('$');
            }
            translated.push_str(&value);
            rest = &rest[length..];
        }
        translated + rest
    }

    /// The reference that a text begins with: its translation and its length. None if the text stands for itself.
    fn reference(&mut self, text: &str) -> Option<(String, usize)> {
        let form = self.source.references();
        let has_braces = !matches!(form, ReferenceForm::Literal | ReferenceForm::PlainBraces);
        let inside = |start: &str, end: &str| {
            let inside = text.strip_prefix(start)?;
            let inside = &inside[..inside.find(end)?];
            Some((inside, start.len() + inside.len() + end.len()))
        };
        if let Some((inside, length)) = inside("${{", "}}").filter(|_| has_braces) {
            let (_, name) = inside.trim().split_once('.')?;
            return Some((self.secret(name), length));
        }
        if let Some((inside, length)) = inside("${", "}").filter(|_| has_braces) {
            return Some((self.braces(inside)?, length));
        }
        if form == ReferenceForm::PlainBraces {
            return match (inside("{env:", "}"), inside("{file:", "}")) {
                (Some((name, length)), _) => Some((self.variable(name.trim())?, length)),
                (_, Some((path, length))) => Some((self.file(path.trim()), length)),
                _ => None,
            };
        }
        if let Some((command, length)) = inside("$(", ")").filter(|_| form == ReferenceForm::Shell) {
            return Some((self.command(command), length));
        }
        let name = match form {
            ReferenceForm::DollarEnv => text.strip_prefix("$env:")?,
            ReferenceForm::Dollar | ReferenceForm::Shell => text.strip_prefix('$')?,
            _ => return None,
        };
        let length = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let before = text.len() - name.len();
        Some((self.variable(&name[..length])?, before + length))
    }

    /// The meaning of `${inside}`. None if it has none.
    fn braces(&mut self, inside: &str) -> Option<String> {
        if inside.contains(":-") {
            let (name, default) = inside.split_once(":-")?;
            let name = name.strip_prefix("env:").unwrap_or(name);
            return is_variable(name).then(|| format!("${{{name}:-{default}}}"));
        }
        match (inside.split_once(':'), inside) {
            (Some(("env", name)), _) => self.variable(name),
            (Some(("input", id)), _) => Some(self.input(id)),
            (Some(("file", path)), _) => Some(self.file(path)),
            (Some(("workspaceFolder", _)), _) | (None, "workspaceFolder" | "workspaceRoot" | "CLAUDE_PROJECT_DIR") => {
                Some(self.project(inside, |folder| folder.to_str()))
            }
            (None, "workspaceFolderBasename") => Some(self.project(inside, |folder| folder.file_name()?.to_str())),
            (None, "CLAUDE_PLUGIN_ROOT") if self.source.plugin.is_some() => {
                let folder = self.source.plugin.as_ref().and_then(|folder| folder.to_str());
                Some(folder.unwrap_or_default().replace("${", "$${"))
            }
            (None, "userHome") => Some("${HOME}".to_owned()),
            (None, "pathSeparator" | "/") => Some("/".to_owned()),
            (None, "CLAUDE_PLUGIN_ROOT" | "extensionPath") | (Some(("command" | "config" | "prompt", _)), _) => Some(
                self.refuse(format!("`${{{}}}` has a meaning to {} alone", display_value(inside), self.source.title())),
            ),
            (None, name) => self.variable(name),
            _ => None,
        }
    }

    /// A reference to a variable that a field names. Any other text there could be a command.
    pub(super) fn named_variable(&mut self, name: &str) -> String {
        let name = name.trim();
        self.variable(name)
            .unwrap_or_else(|| self.refuse(format!("`{}` is no name of a variable", display_value(name))))
    }

    fn variable(&mut self, name: &str) -> Option<String> {
        if self.own_keys.iter().any(|key| key == name) {
            return Some(self.secret(name));
        }
        is_variable(name).then(|| format!("${{{name}}}"))
    }

    /// A reference to a secret of this server whose value the client has elsewhere.
    pub(super) fn secret(&mut self, name: &str) -> String {
        let name = format!("{}.{}", self.server, secret_name(name));
        let reference = secret_reference(&name);
        if !self.needed_secrets.contains(&name) {
            self.needed_secrets.push(name);
        }
        reference
    }

    /// What a person typed for an `${input:…}` is in the client's own store.
    fn input(&mut self, id: &str) -> String {
        let input = self.source.inputs.iter().find(|input| input.get("id").and_then(DocumentNode::text) == Some(id));
        let is_secret = input.and_then(|input| input.get("password")).and_then(DocumentNode::boolean) == Some(true);
        match input.and_then(|input| input.get("default")?.text()).filter(|text| !is_secret && !text.is_empty()) {
            Some(default) => {
                self.remarks.push(format!("`{}` has its default value", display_value(id)));
                default.replace("${", "$${")
            }
            None => self.secret(id),
        }
    }

    fn file(&mut self, path: &str) -> String {
        match self.absolute(path) {
            Some(path) => format!("${{file:{path}}}"),
            None => self.refuse(format!("the path `{}` is not one that a definition can have", display_value(path))),
        }
    }

    /// A path as it holds in any folder. Relative ones begin at the project, or else beside the client's file.
    pub(super) fn absolute(&self, path: &str) -> Option<String> {
        let home = |below: &str| Some(self.source.env.home()?.join(below).to_str()?.to_owned());
        let path = path.trim();
        let below = path.strip_prefix("~/").or_else(|| path.strip_prefix("${userHome}/"));
        let path = match (below, path.strip_prefix("${workspaceFolder}/")) {
            (Some(below), _) => home(below)?,
            (_, Some(below)) => self.source.project.as_ref()?.join(below).to_str()?.to_owned(),
            _ if path.contains("${") || path.is_empty() => return None,
            _ => {
                let folder = self.source.project.as_deref().or_else(|| self.source.file.parent())?;
                folder.join(path).to_str()?.to_owned()
            }
        };
        (!path.contains(['}', '\n', '\0'])).then_some(path)
    }

    fn project(&mut self, inside: &str, part: impl Fn(&Path) -> Option<&str>) -> String {
        match self.source.project.as_deref().map(part) {
            Some(Some(text)) => text.replace("${", "$${"),
            Some(None) => self.refuse("the project's path is not valid UTF-8".to_owned()),
            None => self.refuse(format!("`${{{}}}` is another folder in each project", display_value(inside))),
        }
    }

    /// A command that the client runs for a value. Cove runs it without a shell.
    fn command(&mut self, command: &str) -> String {
        match plain_words(command) {
            Some(command) => {
                self.commands.push(command.clone());
                format!("${{cmd:{command}}}")
            }
            None => self.refuse(format!("`$({})` needs a shell, which Cove does not start", display_value(command))),
        }
    }

    fn refuse(&mut self, reason: String) -> String {
        self.refusal.get_or_insert(reason);
        String::new()
    }
}

/// A command that means the same without a shell. None if it has characters that a shell would interpret.
pub(super) fn plain_words(command: &str) -> Option<String> {
    let is_plain = |c: char| c.is_alphanumeric() || " @%+=:,./_-'\"".contains(c);
    let command = command.trim();
    (command.chars().all(is_plain) && ProgramWords::parse(command).is_ok()).then(|| command.to_owned())
}

/// The name of a variable or header as a part of a secret's name.
pub(super) fn secret_name(name: &str) -> String {
    let replace = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = name.trim().chars().map(replace).take(MAX_SECRET_NAME).collect();
    if name.is_empty() { "VALUE".to_owned() } else { name }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
