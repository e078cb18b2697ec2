//! Reads definitions from a document. Other clients share the JSON form, so fields that only they know are ignored;
//! `cove.toml` belongs to Cove, so an unknown field there is a mistake.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use reqwest::Url;

use super::references::{ReferenceMistake, find_mistake};
use super::{
    DefinitionOrigin, DefinitionOwner, DefinitionProblem, HttpTransport, OAuthSettings, ServerDefinition, ServerLaunch,
    check_name, parse_start_timeout,
};
use cove_core::document::{
    ConfigDocument, DocumentFormat, DocumentMember, DocumentNode, DocumentValue, unknown_key_hint,
};
use cove_core::error::{Refusal, display_value};
use cove_core::policy::grants::ToolPattern;
use cove_core::units;

const FIELDS: &[&str] = &[
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "headers",
    "type",
    "description",
    "disabled",
    "allow_self",
    "allow_http",
    "start_timeout",
    "timeout",
    "allow_tools",
    "deny_tools",
    "env_file",
    "headers_cmd",
    "oauth",
    "published",
    "isolate",
];

/// Every server of a file, as its definition or as the problem with it.
pub(super) fn servers(path: &Path, text: &str) -> Vec<Result<ServerDefinition, DefinitionProblem>> {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    match server_members(path, text, is_toml) {
        Ok(members) => members.iter().map(|member| server(member, path, is_toml)).collect(),
        Err(problem) => vec![Err(problem)],
    }
}

/// The members of a document that define servers.
fn server_members(path: &Path, text: &str, is_toml: bool) -> Result<Vec<DocumentMember>, DefinitionProblem> {
    let (format, keys, hint) = if is_toml {
        let hint = "a server is a table such as `[servers.NAME]` with `command = \"…\"`";
        (DocumentFormat::Toml, &["servers"][..], hint)
    } else {
        let hint = "the file is JSON such as `{\"mcpServers\": {\"NAME\": {\"command\": \"…\"}}}`";
        (DocumentFormat::Json, &["mcpServers", "servers"][..], hint)
    };
    let problem = |line, what: String, hint| DefinitionProblem::new(path, Some(line), what, hint);
    let document = ConfigDocument::parse(format, text).map_err(|error| problem(error.line, error.message, hint))?;
    // An empty file is one that the user is about to write.
    let Some(root) = document.root() else { return Ok(Vec::new()) };
    let Some(members) = root.members() else {
        return Err(problem(root.line, format!("it holds {}, not an object", root.kind()), hint));
    };
    match keys.iter().find_map(|key| Some((key, root.get(key)?))) {
        Some((key, servers)) => servers.members().map(<[_]>::to_vec).ok_or_else(|| {
            let what = format!("`{key}` is {}", servers.kind());
            match is_toml {
                true => problem(servers.line, what, "write a table `[servers.NAME]` for each server"),
                false => problem(servers.line, what + ", not an object", hint),
            }
        }),
        None if is_toml => Ok(Vec::new()),
        // Some files have the servers at the top.
        None if members.iter().all(|member| member.node.members().is_some()) => Ok(members.to_vec()),
        None => Err(problem(root.line, "it has no `mcpServers`".to_owned(), hint)),
    }
}

/// Parses an `http` or `https` URL. Fails with the reason.
pub(crate) fn parse_url(text: &str) -> Result<Url, String> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    if !lower.starts_with("http://") && !lower.starts_with("https://") {
        return Err("it has no `http://` or `https://`".to_owned());
    }
    Url::parse(text).map_err(|error| error.to_string())
}

/// Says how to write an address that [`parse_url`] refuses: itself with a scheme if it looks like one, or an example.
fn url_hint(text: &str) -> String {
    let with_scheme = |scheme: &str| Url::parse(&format!("{scheme}://{}", text.trim())).ok();
    let is_address = |url: &Url| {
        let has_host =
            url.host_str().is_some_and(|host| host.contains('.') || host == "localhost" || url.port().is_some());
        has_host && url.username().is_empty() && !text.contains("://")
    };
    match with_scheme("http").filter(is_address) {
        Some(url) if is_loopback_url(&url) => format!("write `{}`", display_value(url.as_str())),
        Some(_) => format!("write `https://{}`", display_value(text.trim())),
        None => "write an address such as `https://example.com/mcp`".to_owned(),
    }
}

/// Returns true if an address is on this machine.
pub(crate) fn is_loopback_url(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let by_name = host == "localhost" || host.ends_with(".localhost");
    by_name || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn server(member: &DocumentMember, path: &Path, is_toml: bool) -> Result<ServerDefinition, DefinitionProblem> {
    let DocumentMember { key: name, line, node, .. } = member;
    check_name(name)
        .map_err(|what| DefinitionProblem::new(path, Some(*line), what, "use letters, digits, `_`, `.` and `-`"))?;
    let fields = ServerFields { path, name, line: *line, node };
    let Some(members) = node.members() else {
        return Err(fields.mistake(node.line, &format!("`{name}` is {}", node.kind()), "write a table"));
    };
    let unknown = members.iter().find(|field| !FIELDS.contains(&field.key.as_str()));
    if let Some(unknown) = unknown.filter(|_| is_toml) {
        let what = format!("`{}` is not a field of a server", display_value(&unknown.key));
        return Err(fields.mistake(unknown.line, &what, &unknown_key_hint(&unknown.key, FIELDS)));
    }
    let enabled = if is_toml { None } else { fields.boolean("enabled")? };
    let launch = fields.launch(is_toml)?;
    fields.check_references(&launch)?;
    Ok(ServerDefinition {
        name: name.clone(),
        alias: String::new(),
        origin: DefinitionOrigin { path: path.to_owned(), line: *line },
        owner: DefinitionOwner::default(),
        shadowed: Vec::new(),
        launch,
        description: fields.text("description")?,
        disabled: fields.boolean("disabled")?.unwrap_or(false) || enabled == Some(false),
        allow_self: fields.boolean("allow_self")?.unwrap_or(false),
        start_timeout: fields.duration("start_timeout", parse_start_timeout)?,
        call_timeout: fields.call_timeout(is_toml)?,
        allowed_tools: fields.tool_patterns("allow_tools")?,
        denied_tools: fields.tool_patterns("deny_tools")?,
        published: fields.text("published").ok().flatten(),
        isolate: fields.boolean("isolate")?,
    })
}

/// Reads the fields of one server. Messages name the server.
pub(super) struct ServerFields<'a> {
    path: &'a Path,
    name: &'a str,
    /// The line of the server's name.
    line: usize,
    pub(super) node: &'a DocumentNode,
}

impl ServerFields<'_> {
    fn launch(&self, is_toml: bool) -> Result<ServerLaunch, DefinitionProblem> {
        let mut args = self.list("args")?;
        // Some clients write the command and its arguments as one list.
        let command = if self.field("command").is_some_and(|node| node.items().is_some()) {
            let mut words = self.list("command")?.into_iter();
            let command = words.next();
            args = words.chain(args).collect();
            command
        } else {
            self.text("command")?
        };
        let url = self.first_text(&["url", "serverUrl", "httpUrl"])?;
        let kind = self.first_text(&["type", "transport"])?;
        let mistake = |what: &str, hint: &str| Err(self.mistake(self.line, what, hint));
        let transport = match kind.as_deref() {
            Some("stdio" | "local") => None,
            Some("http" | "streamable-http" | "streamableHttp" | "streamable_http") => {
                Some(HttpTransport::StreamableHttp)
            }
            Some("sse") => Some(HttpTransport::LegacySse),
            Some("auto" | "remote") => Some(HttpTransport::Detected),
            Some(other) => {
                let hint = "write `stdio`, `http`, `sse` or `auto`";
                return mistake(&format!("`type` is `{}`", display_value(other)), hint);
            }
            None => (command.is_none() && url.is_some()).then_some(HttpTransport::Detected),
        };
        match (transport, command, url) {
            (_, Some(_), Some(_)) => mistake("there are both `command` and `url`", "keep only one of them"),
            (None, Some(command), None) if command.is_empty() => {
                mistake("`command` is empty", "write the program to start")
            }
            (None, Some(command), None) => Ok(ServerLaunch::Stdio {
                command,
                args,
                env: self.texts("env")?,
                env_file: self.text("env_file")?,
                cwd: self.text("cwd")?,
            }),
            (Some(transport), None, Some(url)) => {
                self.check_url(&url)?;
                Ok(ServerLaunch::Http {
                    url,
                    transport,
                    headers: self.texts("headers")?,
                    headers_cmd: self.text("headers_cmd")?,
                    allow_http: self.boolean("allow_http")?.unwrap_or(false),
                    oauth: self.oauth(is_toml)?.map(Box::new),
                })
            }
            (None, ..) => mistake("there is no `command`", "write the program to start, or a `url`"),
            (Some(_), ..) => mistake("there is no `url`", "write the server's address, or a `command`"),
        }
    }

    /// Fails if a text has what is meant as a reference and is none: the server would get it as it is.
    fn check_references(&self, launch: &ServerLaunch) -> Result<(), DefinitionProblem> {
        let keys: &[&str] = match launch {
            ServerLaunch::Stdio { .. } => &["command", "args", "env", "env_file", "cwd"],
            ServerLaunch::Http { .. } => &["url", "serverUrl", "httpUrl", "headers", "oauth"],
        };
        for key in keys {
            let Some(node) = self.field(key) else { continue };
            self.check_reference(node, key)?;
            node.items().unwrap_or_default().iter().try_for_each(|item| self.check_reference(item, key))?;
            for member in node.members().unwrap_or_default() {
                self.check_reference(&member.node, &format!("{key}.{}", member.key))?;
            }
        }
        Ok(())
    }

    fn check_reference(&self, node: &DocumentNode, key: &str) -> Result<(), DefinitionProblem> {
        match node.text().and_then(find_mistake) {
            None => Ok(()),
            Some(ReferenceMistake { shown, reason, hint }) => {
                let what = format!("`{shown}` in `{}` {reason}", display_value(key));
                Err(self.mistake(node.line, &what, &hint))
            }
        }
    }

    fn oauth(&self, is_toml: bool) -> Result<Option<OAuthSettings>, DefinitionProblem> {
        let Some(node) = self.field("oauth").filter(|node| is_toml || node.members().is_some()) else {
            return Ok(None);
        };
        OAuthSettings::read(&ServerFields { path: self.path, name: self.name, line: node.line, node }, is_toml)
            .map(Some)
    }

    /// Other clients write a number into JSON files, in seconds or milliseconds. Only a text with a unit is clear.
    fn call_timeout(&self, is_toml: bool) -> Result<Option<Duration>, DefinitionProblem> {
        match self.field("timeout") {
            Some(node) if is_toml || node.text().is_some() => self.duration("timeout", units::duration),
            _ => Ok(None),
        }
    }

    /// A pattern that cannot be read must not be ignored: it may be the one that denies.
    fn tool_patterns(&self, key: &str) -> Result<Vec<String>, DefinitionProblem> {
        let patterns = self.list(key)?;
        for pattern in &patterns {
            ToolPattern::for_tool(pattern).map_err(|what| {
                let line = self.field(key).map_or(self.line, |node| node.line);
                self.mistake(line, &format!("in `{key}`, {what}"), "write the name of a tool, with `*` as wildcard")
            })?;
        }
        Ok(patterns)
    }

    fn duration(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<Duration, Refusal>,
    ) -> Result<Option<Duration>, DefinitionProblem> {
        let Some(node) = self.field(key) else { return Ok(None) };
        let text = node.text_or_number().ok_or_else(|| self.wrong_kind(node, key, "a duration"))?;
        let refused = |refusal: Refusal| {
            self.mistake(node.line, &format!("`{key}` cannot be used: {}", refusal.cause), &refusal.hint)
        };
        parse(text).map(Some).map_err(refused)
    }

    /// A `url` with variables is checked when the server starts.
    fn check_url(&self, url: &str) -> Result<(), DefinitionProblem> {
        match parse_url(url) {
            Err(reason) if !url.contains("${") => {
                let what = format!("the `url` of `{}` is not a valid URL: {reason}", self.name);
                Err(DefinitionProblem::new(self.path, Some(self.line), what, url_hint(url)))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn mistake(&self, line: usize, what: &str, hint: &str) -> DefinitionProblem {
        let what = format!("{what}, so `{}` is not used", self.name);
        DefinitionProblem::new(self.path, Some(line), what, hint)
    }

    pub(super) fn wrong_kind(&self, node: &DocumentNode, key: &str, wanted: &str) -> DefinitionProblem {
        self.mistake(node.line, &format!("`{key}` is {}", node.kind()), &format!("write {wanted}"))
    }

    /// A field that exists and is not null.
    pub(super) fn field(&self, key: &str) -> Option<&DocumentNode> {
        self.node.get(key).filter(|node| !node.is_null())
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>, DefinitionProblem> {
        let Some(node) = self.field(key) else { return Ok(None) };
        let text = node.text().ok_or_else(|| self.wrong_kind(node, key, "a string"))?;
        self.without_nul(node, key, text).map(Some)
    }

    /// The first of several fields that exists.
    pub(super) fn first_text(&self, keys: &[&str]) -> Result<Option<String>, DefinitionProblem> {
        keys.iter().find_map(|key| self.text(key).transpose()).transpose()
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, DefinitionProblem> {
        let Some(node) = self.field(key) else { return Ok(None) };
        node.boolean().map(Some).ok_or_else(|| self.wrong_kind(node, key, "`true` or `false`"))
    }

    pub(super) fn list(&self, key: &str) -> Result<Vec<String>, DefinitionProblem> {
        let Some(node) = self.field(key) else { return Ok(Vec::new()) };
        let items = node.items().ok_or_else(|| self.wrong_kind(node, key, "a list of strings"))?;
        items.iter().map(|item| self.scalar(item, key, "a list of strings")).collect()
    }

    fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, DefinitionProblem> {
        let Some(node) = self.field(key) else { return Ok(BTreeMap::new()) };
        let members = node.members().ok_or_else(|| self.wrong_kind(node, key, "a table of strings"))?;
        let mut texts = BTreeMap::new();
        for DocumentMember { key: name, node, .. } in members {
            if name.is_empty() || name.contains(['=', '\0']) {
                let what = format!("`{}` cannot be a name in `{key}`", display_value(name));
                return Err(self.mistake(node.line, &what, "write a name such as `TOKEN`"));
            }
            if !node.is_null() {
                texts.insert(name.clone(), self.scalar(node, &format!("{key}.{name}"), "a string")?);
            }
        }
        Ok(texts)
    }

    /// Numbers and booleans stand for their text: `PORT: 8080` is common.
    fn scalar(&self, node: &DocumentNode, key: &str, wanted: &str) -> Result<String, DefinitionProblem> {
        match &node.value {
            DocumentValue::Text(text) => self.without_nul(node, key, text),
            DocumentValue::Number(text) | DocumentValue::Other { text, .. } => Ok(text.clone()),
            DocumentValue::Bool(value) => Ok(value.to_string()),
            DocumentValue::Null | DocumentValue::List(_) | DocumentValue::Map(_) => {
                let what = format!("`{}` has {} in it", display_value(key), node.kind());
                Err(self.mistake(node.line, &what, &format!("write {wanted}")))
            }
        }
    }

    /// The kernel would cut a text at a NUL byte.
    fn without_nul(&self, node: &DocumentNode, key: &str, text: &str) -> Result<String, DefinitionProblem> {
        if text.contains('\0') {
            let what = format!("`{}` has a NUL byte", display_value(key));
            return Err(self.mistake(node.line, &what, "leave the NUL byte out"));
        }
        Ok(text.to_owned())
    }
}
