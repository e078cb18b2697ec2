//! Cove's entry in the form that each client reads. Nothing here reads or writes a file.

use cove_core::document::{DocumentMember, DocumentNode, DocumentValue};
use cove_core::error::Refusal;
use cove_server::http::TOKEN_VARIABLE;

use super::clients::{AgentClient, EntryShape, TokenVariable};
use super::edit::ClientEntry;
use super::locations::InstallScope;
use super::server_url::{ServerUrl, UrlCredential};

/// What a client does to reach the server of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryTarget {
    Command { program: String, args: Vec<String> },
    Url(ServerUrl),
}

impl AgentClient {
    /// Cove's entry in the form that this client reads. Fails if the client cannot use such a server.
    pub(super) fn entry(&self, name: &str, target: &EntryTarget, scope: InstallScope) -> Result<ClientEntry, Refusal> {
        match target {
            EntryTarget::Command { program, args } => Ok(self.command_entry(name, program, args, scope)),
            EntryTarget::Url(server) => self.url_entry(name, server),
        }
    }

    fn command_entry(&self, name: &str, program: &str, args: &[String], scope: InstallScope) -> ClientEntry {
        let empty = |key| DocumentMember::new(key, DocumentNode::map([]));
        let command = || vec![text("command", program), list("args", args)];
        let after = |first: DocumentMember| [vec![first], command()].concat();
        let (fixed, initial) = match self.shape {
            EntryShape::Plain => (command(), vec![]),
            EntryShape::Typed => (after(text("type", "stdio")), vec![]),
            EntryShape::Copilot => {
                // Claude Code reads the same file of a project, and does not know `local`.
                let kind = if scope == InstallScope::Project { "stdio" } else { "local" };
                (after(text("type", kind)), self.initial_fields())
            }
            EntryShape::Switch => (command(), self.initial_fields()),
            EntryShape::Zed => (after(text("source", "custom")), vec![empty("env")]),
            EntryShape::Opencode => {
                let line = [&[program.to_owned()], args].concat();
                (vec![text("type", "local"), list("command", &line)], self.initial_fields())
            }
            EntryShape::Goose => {
                let fixed = vec![text("name", name), text("type", "stdio"), text("cmd", program), list("args", args)];
                (fixed, [vec![empty("envs")], self.initial_fields()].concat())
            }
        };
        ClientEntry { fixed, initial }
    }

    fn url_entry(&self, name: &str, server: &ServerUrl) -> Result<ClientEntry, Refusal> {
        let Some(form) = self.http else {
            return Err(Refusal::new(
                format!("{} only starts commands", self.title),
                format!(
                    "leave out `--url`, or write an entry by hand that starts a bridge: `npx -y mcp-remote {}`",
                    server.url
                ),
            ));
        };
        let header = |value: String| {
            DocumentMember::new(form.headers, DocumentNode::map([DocumentMember::new("Authorization", value)]))
        };
        let credential = match (&server.credential, form.variable) {
            (UrlCredential::Absent, _) => None,
            (UrlCredential::Token(_), TokenVariable::OnlyKey(key)) => {
                return Err(Refusal::new(
                    format!("{} takes a token from a variable alone", self.title),
                    format!("use `--no-token`, and name the variable with the token in `{key}`"),
                ));
            }
            (UrlCredential::Token(token), _) => Some(header(format!("Bearer {}", token.0))),
            (UrlCredential::Variable, TokenVariable::Reference(text)) => Some(header(format!("Bearer {text}"))),
            (UrlCredential::Variable, TokenVariable::Key(key) | TokenVariable::OnlyKey(key)) => {
                Some(text(key, TOKEN_VARIABLE))
            }
            (UrlCredential::Variable, TokenVariable::Unsupported) => {
                return Err(Refusal::new(
                    format!(
                        "everyone who has the project would get the token: {} reads no environment variables in headers",
                        self.title
                    ),
                    "use `--scope user`; `--no-token` writes an entry without a token",
                ));
            }
        };
        let first = match self.shape {
            EntryShape::Goose => Some(text("name", name)),
            EntryShape::Zed => Some(text("source", "custom")),
            _ => None,
        };
        let kind = form.kind.map(|kind| text("type", kind));
        let fields = [first, kind, Some(text(form.url, &server.url)), credential];
        Ok(ClientEntry { fixed: fields.into_iter().flatten().collect(), initial: self.initial_fields() })
    }

    /// The fields that an entry of either kind gets once.
    fn initial_fields(&self) -> Vec<DocumentMember> {
        let enabled = || DocumentMember::new("enabled", true);
        match self.shape {
            EntryShape::Plain | EntryShape::Typed | EntryShape::Zed => vec![],
            EntryShape::Copilot => vec![list("tools", &["*".to_owned()])],
            EntryShape::Switch => vec![DocumentMember::new("disabled", false)],
            EntryShape::Opencode => vec![enabled()],
            EntryShape::Goose => {
                let timeout = DocumentNode::new(DocumentValue::Number("300".to_owned()));
                let description = text("description", "Run code in an isolated sandbox");
                vec![description, enabled(), DocumentMember::new("timeout", timeout)]
            }
        }
    }
}

fn text(key: &str, value: &str) -> DocumentMember {
    DocumentMember::new(key, value)
}

fn list(key: &str, items: &[String]) -> DocumentMember {
    DocumentMember::new(key, DocumentNode::list(items.iter().cloned()))
}
