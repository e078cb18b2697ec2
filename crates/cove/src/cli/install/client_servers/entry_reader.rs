//! Reads one entry of a client's file as a definition. Clients differ in the names of fields and hardly in their
//! meaning, so one reader knows every name; what has two meanings is decided by the client.

use serde_json::{Map, Value, json};

use cove_core::document::{DocumentNode, DocumentValue};
use cove_core::error::display_value;

use super::references::{TextTranslator, plain_words};
use super::secret_values::SecretCollector;
use super::{EntrySource, SecretToken};
use crate::cli::install::clients::EntryShape;
use crate::cli::install::own_entry::URL_KEYS;

/// The longest start that a definition can allow.
const MAX_START: u64 = 600_000;
/// The longest call that a definition can allow.
const MAX_CALL: u64 = 24 * 60 * 60 * 1000;

const COMMAND_KEYS: &[&str] = &["command", "cmd", "executable"];
const ENV_KEYS: &[&str] = &["env", "environment", "envs"];
const TYPE_KEYS: &[&str] = &["type", "transport", "transportType"];
const DENY_KEYS: &[&str] =
    &["disabledTools", "excludeTools", "disabled_tools", "blockedTools", "blocked_tools", "deny_tools"];
const ALLOW_KEYS: &[&str] = &[
    "includeTools",
    "enabledTools",
    "enabled_tools",
    "allowedTools",
    "allowed_tools",
    "available_tools",
    "allow_tools",
];
const TOKEN_VARIABLE_KEYS: &[&str] =
    &["bearer_token_env_var", "bearerTokenEnvVar", "bearer_token_env", "bearerTokenEnv"];
const TOKEN_KEYS: &[&str] = &["bearerToken", "bearer_token"];
const HELPER_KEYS: &[&str] = &["headersHelper", "headers_helper", "http_headers_helper", "headers_cmd"];
const ENV_FILE_KEYS: &[&str] = &["envFile", "env_file"];
/// Answers to the question whether a tool may run without a person's consent. Cove asks no such question.
const APPROVAL_KEYS: &[&str] =
    &["alwaysAllow", "autoApprove", "trust", "approval_mode", "default_tools_approval_mode", "autoApproveTools"];
/// Fields that a definition has, or that say nothing that Cove could lose.
const KNOWN_KEYS: &[&str] = &[
    "$schema",
    "allow_http",
    "allow_self",
    "alwaysLoad",
    "args",
    "auth",
    "bundled",
    "callback_port",
    "cwd",
    "description",
    "disabled",
    "display_name",
    "enabled",
    "env_http_headers",
    "env_keys",
    "env_vars",
    "gallery",
    "header_env",
    "headers",
    "http_headers",
    "id",
    "isActive",
    "lifecycle",
    "logging",
    "name",
    "oauth",
    "oauthScope",
    "oauth_callback_port",
    "oauth_client_id",
    "oauth_client_secret",
    "oauth_resource",
    "oauth_scope",
    "requestOptions",
    "requestTimeoutMs",
    "required",
    "scopes",
    "source",
    "startup_timeout_ms",
    "startup_timeout_sec",
    "startupTimeoutMs",
    "start_timeout",
    "supports_parallel_tool_calls",
    "timeout",
    "title",
    "toolTimeoutMs",
    "tool_timeout_sec",
    "tools",
    "version",
    "workingDirectory",
    "working_directory",
];

/// Reads one entry, and collects what a person should know about it.
pub(super) struct EntryReader<'a> {
    source: &'a EntrySource<'a>,
    name: &'a str,
    server: &'a str,
    node: &'a DocumentNode,
    texts: TextTranslator<'a>,
    pub(super) remarks: Vec<String>,
    pub(super) secrets: Vec<(String, SecretToken)>,
    pub(super) needed_secrets: Vec<String>,
    pub(super) commands: Vec<String>,
}

impl<'a> EntryReader<'a> {
    pub(super) fn new(source: &'a EntrySource<'a>, name: &'a str, server: &'a str, node: &'a DocumentNode) -> Self {
        let texts = TextTranslator::new(source, server);
        let (remarks, secrets, needed_secrets, commands) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { source, name, server, node, texts, remarks, secrets, needed_secrets, commands }
    }

    /// The definition. Fails with the reason why there is none.
    pub(super) fn definition(&mut self) -> Result<Map<String, Value>, String> {
        self.check_kind()?;
        let mut definition = Map::new();
        self.texts.own_keys = self.names("env_keys");
        self.add_launch(&mut definition)?;
        self.add_env(&mut definition)?;
        if definition.contains_key("url") {
            self.add_headers(&mut definition)?;
            self.add_sign_in(&mut definition)?;
        }
        self.add_limits(&mut definition);
        self.add_filters(&mut definition)?;
        if let Some(description) = self.text("description").filter(|text| !text.trim().is_empty()) {
            // It is shown to agents, and never expanded.
            definition.insert("description".to_owned(), json!(description));
        }
        if self.is_disabled() {
            definition.insert("disabled".to_owned(), json!(true));
        }
        self.note_dropped();
        if let Some(reason) = self.texts.refusal.take() {
            return Err(reason);
        }
        let mut collector = SecretCollector::new(self.server);
        collector.hide(&mut definition);
        self.secrets = collector.secrets;
        self.needed_secrets = std::mem::take(&mut self.texts.needed_secrets);
        self.commands.append(&mut self.texts.commands);
        self.remarks.append(&mut self.texts.remarks);
        Ok(definition)
    }

    /// Fails for an entry that is not a server of its own.
    fn check_kind(&self) -> Result<(), String> {
        if self.node.members().is_none() {
            return Err(format!("it is {}, not a table", self.node.kind()));
        }
        if self.name.is_empty() {
            return Err("it has no name".to_owned());
        }
        let shape = self.source.client.map(|client| client.shape);
        let has_launch = COMMAND_KEYS.iter().chain(&URL_KEYS).any(|key| self.field(key).is_some());
        if shape == Some(EntryShape::Zed) && (self.text("source") == Some("extension") || !has_launch) {
            return Err("an extension of Zed brings it along".to_owned());
        }
        if shape == Some(EntryShape::Goose) {
            let is_bundled = self.field("bundled").and_then(DocumentNode::boolean) == Some(true);
            match self.text("type") {
                Some("stdio" | "streamable_http" | "sse") if !is_bundled => {}
                _ => return Err("it is a part of Goose".to_owned()),
            }
        }
        let kind = self.kind();
        if matches!(kind, Some("ws" | "websocket" | "sdk" | "inline_python")) {
            return Err(format!("Cove has no transport `{}`", kind.unwrap_or_default()));
        }
        if let Some(provider) = self.text("authProviderType").filter(|provider| *provider != "dynamic_discovery") {
            return Err(format!("{} signs in with `{}`", self.source.title(), display_value(provider)));
        }
        Ok(())
    }

    fn kind(&self) -> Option<&'a str> {
        TYPE_KEYS.iter().find_map(|key| self.text(key))
    }

    fn add_launch(&mut self, definition: &mut Map<String, Value>) -> Result<(), String> {
        let url = URL_KEYS.iter().find_map(|key| Some((*key, self.field(key)?)));
        if let Some((key, node)) = url {
            let url = self.carry(node);
            let scheme = url.as_str().and_then(|url| url.split_once("://")).map(|(scheme, _)| scheme.to_lowercase());
            if let Some(scheme @ ("unix" | "pipe" | "ws" | "wss")) = scheme.as_deref() {
                return Err(format!("Cove does not connect to addresses with `{scheme}://`"));
            }
            definition.insert("url".to_owned(), url);
            // Three clients mean the older transport by an address alone.
            let transport = match self.kind().map(str::to_lowercase).as_deref() {
                Some("sse") => "sse",
                Some("http" | "streamable-http" | "streamablehttp" | "streamable_http") => "http",
                None if key == "httpUrl" => "http",
                None | Some("auto" | "remote") => "auto",
                Some(other) => return Err(format!("its `type` is `{}`, and it has an address", display_value(other))),
            };
            definition.insert("type".to_owned(), json!(transport));
        }
        let Some(command) = COMMAND_KEYS.iter().find_map(|key| self.field(key)) else {
            return if url.is_some() { Ok(()) } else { Err("it has neither a command nor an address".to_owned()) };
        };
        if url.is_some() {
            return Err("it has both a command and an address".to_owned());
        }
        let (program, args) = match &command.value {
            DocumentValue::List(items) => (items.first(), items.get(1..).unwrap_or_default().iter().collect()),
            // An older form of Zed.
            DocumentValue::Map(_) => {
                (value_of(command, "path"), value_of(command, "args").into_iter().collect::<Vec<_>>())
            }
            _ => (Some(command), Vec::new()),
        };
        let program = program.ok_or("its command is empty")?;
        let program = self.carry(program);
        definition.insert("command".to_owned(), program);
        let mut words: Vec<Value> = Vec::new();
        for node in args.into_iter().chain(self.field("args")) {
            match self.carry(node) {
                Value::Array(items) => words.extend(items),
                one if node.text().is_some() && command.items().is_some() => words.push(one),
                _ => return Err(format!("its `args` are {}, not a list of texts", node.kind())),
            }
        }
        if !words.is_empty() {
            definition.insert("args".to_owned(), Value::Array(words));
        }
        let cwd = ["cwd", "workingDirectory", "working_directory"].into_iter().find_map(|key| self.field(key));
        match (cwd.map(|node| self.carry(node)), self.source.project.as_deref().and_then(|folder| folder.to_str())) {
            (Some(cwd), _) => drop(definition.insert("cwd".to_owned(), cwd)),
            // The client starts a project's servers there.
            (None, Some(project)) => drop(definition.insert("cwd".to_owned(), json!(project.replace("${", "$${")))),
            (None, None) => {}
        }
        Ok(())
    }

    fn add_env(&mut self, definition: &mut Map<String, Value>) -> Result<(), String> {
        if !definition.contains_key("command") {
            return Ok(());
        }
        let mut env = Map::new();
        let older = self.field("command").and_then(|command| value_of(command, "env"));
        for node in older.into_iter().chain(ENV_KEYS.iter().find_map(|key| self.field(key))) {
            env.extend(self.carry_map(node, "env")?);
        }
        for name in self.names("env_vars") {
            let reference = self.texts.named_variable(&name);
            env.entry(name).or_insert(json!(reference));
        }
        for name in self.names("env_keys") {
            let reference = self.texts.secret(&name);
            env.entry(name).or_insert(json!(reference));
        }
        if !env.is_empty() {
            definition.insert("env".to_owned(), Value::Object(env));
        }
        if let Some(file) = ENV_FILE_KEYS.iter().find_map(|key| self.text(key)) {
            let path = self.texts.absolute(file);
            let path = path.ok_or_else(|| format!("its `envFile` is `{}`", display_value(file)))?;
            definition.insert("env_file".to_owned(), json!(path));
        }
        Ok(())
    }

    fn add_headers(&mut self, definition: &mut Map<String, Value>) -> Result<(), String> {
        let nested = self.field("requestOptions").and_then(|options| value_of(options, "headers"));
        let plain = ["headers", "http_headers"].into_iter().filter_map(|key| self.field(key));
        let mut headers = Map::new();
        for node in plain.chain(nested).collect::<Vec<_>>() {
            headers.extend(self.carry_map(node, "headers")?);
        }
        for node in ["env_http_headers", "header_env"].map(|key| self.field(key)).into_iter().flatten() {
            for member in node.members().unwrap_or_default() {
                let name = member.node.text().ok_or("a header's variable is not a text")?;
                headers.insert(member.key.clone(), json!(self.texts.named_variable(name)));
            }
        }
        let variable = TOKEN_VARIABLE_KEYS.iter().find_map(|key| self.text(key));
        let variable = variable.map(|name| self.texts.named_variable(name));
        let token = variable.or_else(|| {
            let token = TOKEN_KEYS.iter().find_map(|key| self.text(key))?;
            Some(self.texts.translate(token))
        });
        if let Some(token) = token {
            headers.insert("Authorization".to_owned(), json!(format!("Bearer {token}")));
        }
        if !headers.is_empty() {
            definition.insert("headers".to_owned(), Value::Object(headers));
        }
        if let Some(command) = HELPER_KEYS.iter().find_map(|key| self.field(key)) {
            let words = match (&command.value, command.get("command")) {
                (DocumentValue::Map(_), Some(program)) => {
                    let args = command.get("args").and_then(DocumentNode::items).unwrap_or_default();
                    let words: Option<Vec<&str>> = [program].into_iter().chain(args).map(DocumentNode::text).collect();
                    words.map(|words| words.join(" "))
                }
                _ => command.text().map(str::to_owned),
            };
            let words = words.as_deref().and_then(plain_words);
            let command = words.ok_or("the command for its headers needs a shell, which Cove does not start")?;
            self.commands.push(command.clone());
            definition.insert("headers_cmd".to_owned(), json!(command));
        }
        Ok(())
    }

    fn add_sign_in(&mut self, definition: &mut Map<String, Value>) -> Result<(), String> {
        let table =
            ["oauth", "auth"].into_iter().filter_map(|key| self.field(key)).find(|node| node.members().is_some());
        let field = |keys: &[&str], flat: &[&str]| {
            let inside = table.and_then(|table| keys.iter().find_map(|key| table.get(key)));
            inside.or_else(|| flat.iter().find_map(|key| self.node.get(key))).filter(|node| !node.is_null())
        };
        let client_id = field(&["client_id", "clientId", "CLIENT_ID"], &["oauth_client_id"]);
        let secret = field(&["client_secret", "clientSecret", "CLIENT_SECRET"], &["oauth_client_secret"]);
        let scopes = field(&["scopes", "scope"], &["scopes", "oauth_scope", "oauthScope"]);
        let port = field(&["callback_port", "callbackPort"], &["oauth_callback_port", "callback_port"]);
        let (issuer, resource) = (field(&["issuer"], &[]), field(&["resource"], &["oauth_resource"]));
        let foreign = ["authServerMetadataUrl", "xaa", "authorizationUrl", "tokenUrl", "audiences", "redirectUri"];
        let foreign = foreign.into_iter().filter(|key| table.is_some_and(|table| table.get(key).is_some()));
        let foreign: Vec<String> = foreign.map(|key| format!("`oauth.{key}`")).collect();
        let mut oauth = Map::new();
        let texts = [("client_id", client_id), ("client_secret", secret), ("issuer", issuer), ("resource", resource)];
        for (key, node) in texts {
            if let Some(node) = node {
                oauth.insert(key.to_owned(), self.carry(node));
            }
        }
        if let Some(scopes) = scopes {
            let words = |text: &str| text.split_whitespace().map(|word| json!(word)).collect();
            let scopes = scopes.text().map_or_else(|| self.carry(scopes), words);
            if scopes.as_array().is_none_or(|scopes| !scopes.is_empty()) {
                oauth.insert("scopes".to_owned(), scopes);
            }
        }
        if let Some(port) = port.and_then(DocumentNode::text_or_number).and_then(|port| port.parse::<u16>().ok()) {
            oauth.insert("callback_port".to_owned(), json!(port));
        }
        if !foreign.is_empty() {
            self.remarks.push(format!("not carried over: {}; the server's own metadata decides", foreign.join(", ")));
        }
        if !oauth.is_empty() {
            definition.insert("oauth".to_owned(), Value::Object(oauth));
        }
        Ok(())
    }

    fn add_limits(&mut self, definition: &mut Map<String, Value>) {
        let unit = self.source.client.and_then(|client| client.timeout_unit);
        let calls = [
            ("toolTimeoutMs", Some(1)),
            ("requestTimeoutMs", Some(1)),
            ("tool_timeout_sec", Some(1000)),
            ("timeout", unit),
        ];
        let starts =
            [("startup_timeout_sec", Some(1000)), ("startup_timeout_ms", Some(1)), ("startupTimeoutMs", Some(1))];
        for (field, keys, most) in [("timeout", &calls[..], MAX_CALL), ("start_timeout", &starts[..], MAX_START)] {
            let Some((key, unit, node)) = keys.iter().find_map(|(key, unit)| Some((*key, *unit, self.field(key)?)))
            else {
                continue;
            };
            let number = node.text_or_number().and_then(|text| text.parse::<f64>().ok());
            // The cast cannot overflow: the value is between 1 and `most`.
            let millis =
                number.zip(unit).map(|(number, unit)| (number * unit as f64).min(most as f64)).filter(|ms| *ms >= 1.0);
            match millis {
                Some(millis) => drop(definition.insert(field.to_owned(), json!(duration(millis as u64)))),
                None if unit.is_none() && node.text().is_some_and(|text| cove_core::units::duration(text).is_ok()) => {
                    drop(definition.insert(field.to_owned(), json!(node.text())));
                }
                None => self.remarks.push(format!("not carried over: `{key}`, whose unit is not known")),
            }
        }
    }

    /// Losing a filter would give code more tools than the client had.
    fn add_filters(&mut self, definition: &mut Map<String, Value>) -> Result<(), String> {
        let mut denied: Vec<String> = DENY_KEYS.iter().flat_map(|key| self.names(key)).collect();
        denied.extend(self.source.switches.denied_tools(self.name));
        let mut allowed: Option<Vec<String>> = None;
        for key in ALLOW_KEYS {
            let list = self.field(key).and_then(DocumentNode::items);
            // These two write an empty list for "all".
            let means_all = matches!(self.source.client.map(|client| client.id()), Some("goose" | "crush"));
            if list.is_some_and(|list| !list.is_empty() || !means_all) {
                allowed.get_or_insert_default().extend(self.names(key));
            }
        }
        if self.field("tools").is_some_and(|tools| tools.items().is_some()) {
            let tools = self.names("tools");
            if !tools.iter().any(|tool| tool == "*") {
                allowed.get_or_insert_default().extend(tools);
            }
        }
        if allowed.as_ref().is_some_and(Vec::is_empty) {
            return Err(format!("{} allows none of its tools", self.source.title()));
        }
        let tool = |tool: String| tool.split('(').next().unwrap_or_default().to_owned();
        for (key, tools) in [("deny_tools", denied), ("allow_tools", allowed.unwrap_or_default())] {
            let mut tools: Vec<String> = tools.into_iter().map(tool).filter(|tool| !tool.is_empty()).collect();
            tools.sort();
            tools.dedup();
            if !tools.is_empty() {
                definition.insert(key.to_owned(), json!(tools));
            }
        }
        Ok(())
    }

    fn is_disabled(&self) -> bool {
        let says = |key: &str, value: bool| self.field(key).and_then(DocumentNode::boolean) == Some(value);
        says("disabled", true)
            || says("enabled", false)
            || says("isActive", false)
            || self.source.switches.disables(self.name)
    }

    /// Names every field that has no counterpart.
    fn note_dropped(&mut self) {
        let is_set = |node: &DocumentNode| match &node.value {
            DocumentValue::Null | DocumentValue::Bool(false) => false,
            DocumentValue::List(items) => !items.is_empty(),
            DocumentValue::Map(members) => !members.is_empty(),
            DocumentValue::Text(text) => !text.is_empty(),
            _ => true,
        };
        let members = self.node.members().unwrap_or_default().iter().filter(|member| is_set(&member.node));
        let (mut approvals, mut others): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        for member in members {
            let key = member.key.as_str();
            let is_approval = APPROVAL_KEYS.contains(&key) || (key == "tools" && member.node.members().is_some());
            let known = [
                KNOWN_KEYS,
                COMMAND_KEYS,
                ENV_KEYS,
                TYPE_KEYS,
                DENY_KEYS,
                ALLOW_KEYS,
                TOKEN_VARIABLE_KEYS,
                TOKEN_KEYS,
                HELPER_KEYS,
                ENV_FILE_KEYS,
                &URL_KEYS,
            ];
            if is_approval {
                approvals.push(format!("`{key}`"));
            } else if !known.iter().any(|keys| keys.contains(&key)) {
                others.push(format!("`{}`", display_value(key)));
            }
        }
        approvals.extend(self.source.switches.approvals(self.name));
        if !approvals.is_empty() {
            self.remarks.push(format!("approvals are not carried over: {}", approvals.join(", ")));
        }
        if !others.is_empty() {
            self.remarks.push(format!("not carried over: {}", others.join(", ")));
        }
        self.remarks.extend(self.source.switches.remarks(self.name));
    }

    /// A field that exists and is not null.
    fn field(&self, key: &str) -> Option<&'a DocumentNode> {
        value_of(self.node, key)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.field(key)?.text()
    }

    /// The texts of a list. An item may be a table with a `name`.
    fn names(&self, key: &str) -> Vec<String> {
        let items = self.field(key).and_then(DocumentNode::items).unwrap_or_default();
        let name = |item: &DocumentNode| item.text().or_else(|| item.get("name")?.text()).map(str::to_owned);
        items.iter().filter_map(name).collect()
    }

    /// A table with its texts translated. Values without a text are left for the check of the whole definition.
    fn carry_map(&mut self, node: &DocumentNode, what: &str) -> Result<Map<String, Value>, String> {
        match self.carry(node) {
            Value::Object(fields) => Ok(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()),
            _ => Err(format!("its `{what}` is {}, not a table", node.kind())),
        }
    }

    /// A value with its texts translated. Numbers and switches stand for their text, as variables have no other kind.
    fn carry(&mut self, node: &DocumentNode) -> Value {
        match &node.value {
            DocumentValue::Null => Value::Null,
            DocumentValue::Bool(value) => json!(value.to_string()),
            DocumentValue::Number(text) => json!(text),
            // The source of a tagged value in YAML is any text.
            DocumentValue::Text(text) | DocumentValue::Other { text, .. } => json!(self.texts.translate(text)),
            DocumentValue::List(items) => items.iter().map(|item| self.carry(item)).collect(),
            DocumentValue::Map(members) => {
                members.iter().map(|member| (member.key.clone(), self.carry(&member.node))).collect()
            }
        }
    }
}

/// A value in a table that exists and is not null.
fn value_of<'a>(node: &'a DocumentNode, key: &str) -> Option<&'a DocumentNode> {
    node.get(key).filter(|node| !node.is_null())
}

fn duration(millis: u64) -> String {
    if millis.is_multiple_of(1000) { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
}
