//! From a tree to definitions. JSON is the form that other clients share, so fields that only they know are left alone;
//! `cove.toml` is ours, and what we do not know there is a mistake.

use std::collections::BTreeMap;
use std::path::Path;

use super::node::{self, Member, Node, Value};
use super::{Definition, Launch, Origin, Problem, check_name};
use crate::error::shown;

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
];

#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) servers: Vec<Definition>,
    pub(super) problems: Vec<Problem>,
}

/// What is wrong, at its line.
struct Wrong {
    line: usize,
    what: String,
    hint: String,
}

pub(super) fn file(path: &Path, text: &str) -> Read {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    let found = if is_toml { in_toml(text) } else { in_json(text) };
    let mut read = Read::default();
    let problem = |wrong: Wrong| Problem {
        path: path.to_owned(),
        line: Some(wrong.line),
        what: wrong.what,
        hint: wrong.hint,
    };
    match found {
        Ok(members) => {
            for member in members {
                match server(&member, path, is_toml) {
                    Ok(definition) => read.servers.push(definition),
                    Err(wrong) => read.problems.push(problem(wrong)),
                }
            }
        }
        Err(wrong) => read.problems.push(problem(wrong)),
    }
    read
}

fn in_toml(text: &str) -> Result<Vec<Member>, Wrong> {
    let root = node::toml(text).map_err(|unreadable| Wrong {
        line: unreadable.line,
        what: unreadable.what,
        hint: "a server is a table such as `[servers.NAME]` with `command = \"…\"`".to_owned(),
    })?;
    match root.get("servers") {
        None => Ok(Vec::new()),
        Some(servers) => servers.members().map(<[Member]>::to_vec).ok_or_else(|| Wrong {
            line: servers.line,
            what: format!("`servers` is {}", servers.kind()),
            hint: "write a table `[servers.NAME]` for each server".to_owned(),
        }),
    }
}

fn in_json(text: &str) -> Result<Vec<Member>, Wrong> {
    const HINT: &str = "the file is JSON such as `{\"mcpServers\": {\"NAME\": {\"command\": \"…\"}}}`";
    let wrong = |line, what| Wrong { line, what, hint: HINT.to_owned() };
    let root = node::json(text).map_err(|unreadable| wrong(unreadable.line, unreadable.what))?;
    // An empty file is one that somebody is about to write.
    let Some(root) = root else { return Ok(Vec::new()) };
    let Some(members) = root.members() else {
        return Err(wrong(root.line, format!("it holds {}, not an object", root.kind())));
    };
    let named = ["mcpServers", "servers"].iter().find_map(|key| Some((key, root.get(key)?)));
    match named {
        Some((key, servers)) => servers
            .members()
            .map(<[Member]>::to_vec)
            .ok_or_else(|| wrong(servers.line, format!("`{key}` is {}, not an object", servers.kind()))),
        // A bare map of servers is common too.
        None if members.iter().all(|member| member.node.members().is_some()) => Ok(members.to_vec()),
        None => Err(wrong(root.line, "it has no `mcpServers`".to_owned())),
    }
}

fn server(member: &Member, path: &Path, strict: bool) -> Result<Definition, Wrong> {
    let name = member.key.clone();
    check_name(&name).map_err(|what| Wrong {
        line: member.line,
        what,
        hint: "use letters, digits, `_`, `.` and `-`".to_owned(),
    })?;
    let fields = Fields { name: &name, node: &member.node };
    let Some(members) = member.node.members() else {
        return Err(fields.wrong(&member.node, &format!("`{name}` is {}", member.node.kind()), "a table"));
    };
    if let Some(unknown) = members.iter().find(|field| strict && !FIELDS.contains(&field.key.as_str())) {
        return Err(Wrong {
            line: unknown.line,
            what: format!("`{}` is not a field of a server, so `{name}` is not used", shown(&unknown.key)),
            hint: format!("fields are `{}`", FIELDS.join("`, `")),
        });
    }
    let launch = fields.launch(member.line)?;
    let enabled = if strict { None } else { fields.boolean("enabled")? };
    Ok(Definition {
        alias: String::new(),
        origin: Origin { path: path.to_owned(), line: member.line },
        shadowed: Vec::new(),
        launch,
        description: fields.text("description")?,
        disabled: fields.boolean("disabled")?.unwrap_or(false) || enabled == Some(false),
        allow_self: fields.boolean("allow_self")?.unwrap_or(false),
        name,
    })
}

/// The fields of one server, read with messages that name it.
struct Fields<'a> {
    name: &'a str,
    node: &'a Node,
}

impl Fields<'_> {
    fn launch(&self, line: usize) -> Result<Launch, Wrong> {
        let (mut command, mut args) = (None, self.list("args")?);
        // Some clients write the command and its arguments as one list.
        match self.node.get("command").map(|node| &node.value) {
            Some(Value::List(_)) => {
                let mut words = self.list("command")?.into_iter();
                command = words.next();
                args = words.chain(args).collect();
            }
            _ => command = self.text("command")?.or(command),
        }
        let url =
            ["url", "serverUrl", "httpUrl"].iter().find_map(|key| self.text(key).transpose()).transpose()?;
        let kind = match self.text("type")? {
            Some(kind) => Some(kind),
            None => self.text("transport")?,
        };
        let wrong = |what: &str, hint: &str| Wrong {
            line,
            what: format!("{what}, so `{}` is not used", self.name),
            hint: hint.to_owned(),
        };
        let is_http = match kind.as_deref() {
            Some("stdio" | "local") => false,
            Some("http" | "streamable-http" | "streamableHttp" | "streamable_http" | "remote") => true,
            Some("sse") => {
                return Err(wrong(
                    "`type` is `sse`, the transport of 2024 that Cove does not speak",
                    "use the server's Streamable HTTP address with `type` `http`",
                ));
            }
            Some(other) => {
                let what = format!("`type` is `{}`", shown(other));
                return Err(wrong(&what, "write `stdio` or `http`"));
            }
            None => command.is_none() && url.is_some(),
        };
        match (is_http, command, url) {
            (_, Some(_), Some(_)) => {
                Err(wrong("there are both `command` and `url`", "keep the one that is meant"))
            }
            (false, Some(command), None) if command.is_empty() => {
                Err(wrong("`command` is empty", "write the program to start"))
            }
            (false, Some(command), None) => {
                Ok(Launch::Stdio { command, args, env: self.texts("env")?, cwd: self.text("cwd")? })
            }
            (true, None, Some(url)) => Ok(Launch::Http {
                url,
                headers: self.texts("headers")?,
                allow_http: self.boolean("allow_http")?.unwrap_or(false),
            }),
            (false, ..) => Err(wrong("there is no `command`", "write the program to start, or a `url`")),
            (true, ..) => Err(wrong("there is no `url`", "write the server's address, or a `command`")),
        }
    }

    fn wrong(&self, node: &Node, what: &str, wanted: &str) -> Wrong {
        Wrong {
            line: node.line,
            what: format!("{what}, so `{}` is not used", self.name),
            hint: format!("write {wanted}"),
        }
    }

    /// A field that is there and not null.
    fn field(&self, key: &str) -> Option<&Node> {
        self.node.get(key).filter(|node| node.value != Value::Null)
    }

    fn text(&self, key: &str) -> Result<Option<String>, Wrong> {
        let Some(node) = self.field(key) else { return Ok(None) };
        match &node.value {
            Value::Text(text) => self.plain(node, key, text).map(Some),
            _ => Err(self.wrong(node, &format!("`{key}` is {}", node.kind()), "a string")),
        }
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, Wrong> {
        let Some(node) = self.field(key) else { return Ok(None) };
        match node.value {
            Value::Bool(value) => Ok(Some(value)),
            _ => Err(self.wrong(node, &format!("`{key}` is {}", node.kind()), "`true` or `false`")),
        }
    }

    fn list(&self, key: &str) -> Result<Vec<String>, Wrong> {
        let Some(node) = self.field(key) else { return Ok(Vec::new()) };
        let Value::List(nodes) = &node.value else {
            return Err(self.wrong(node, &format!("`{key}` is {}", node.kind()), "a list of strings"));
        };
        nodes.iter().map(|node| self.scalar(node, key, "a list of strings")).collect()
    }

    fn texts(&self, key: &str) -> Result<BTreeMap<String, String>, Wrong> {
        let Some(node) = self.field(key) else { return Ok(BTreeMap::new()) };
        let Some(members) = node.members() else {
            return Err(self.wrong(node, &format!("`{key}` is {}", node.kind()), "a table of strings"));
        };
        let mut texts = BTreeMap::new();
        for Member { key: name, node, .. } in members {
            if name.is_empty() || name.contains(['=', '\0']) {
                let what = format!("`{}` cannot be a name in `{key}`", shown(name));
                return Err(self.wrong(node, &what, "a name such as `TOKEN`"));
            }
            if node.value != Value::Null {
                texts.insert(name.clone(), self.scalar(node, &format!("{key}.{name}"), "a string")?);
            }
        }
        Ok(texts)
    }

    /// Numbers and booleans are meant as their text: `PORT: 8080` is common.
    fn scalar(&self, node: &Node, key: &str, wanted: &str) -> Result<String, Wrong> {
        match &node.value {
            Value::Text(text) => self.plain(node, key, text),
            Value::Number(text) => Ok(text.clone()),
            Value::Bool(value) => Ok(value.to_string()),
            _ => Err(self.wrong(node, &format!("`{}` has {} in it", shown(key), node.kind()), wanted)),
        }
    }

    /// What is given to the kernel would end at a NUL byte.
    fn plain(&self, node: &Node, key: &str, text: &str) -> Result<String, Wrong> {
        if text.contains('\0') {
            return Err(self.wrong(node, &format!("`{}` has a NUL byte", shown(key)), "it without that"));
        }
        Ok(text.to_owned())
    }
}
