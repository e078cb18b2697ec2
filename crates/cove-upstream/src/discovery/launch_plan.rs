//! Turns a published server into the definition that Cove would write, and into what a person has to see before. Pure:
//! nothing is downloaded, asked or started. No shell reads the arguments.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::server_json::{
    PublishedArgument, PublishedInput, PublishedPackage, PublishedRemote, PublishedServer, is_version,
};
use crate::definition::{is_loopback_url, parse_url};
use cove_core::error::{Refusal, display_value, escape_control};
use cove_core::spelling::nearest;
use cove_core::text::{cut, remove_hidden};

/// Most bytes of a command or an address. A person must see the whole of it.
const MAX_SHOWN: usize = 4_000;
const MAX_DESCRIPTION: usize = 200;
/// Most characters of an input's name in the name of a secret.
const MAX_SECRET_PART: usize = 60;

/// Which part of a published server to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchChoice {
    /// An address if there is one, since nothing is downloaded for it; else the first package that Cove can run.
    #[default]
    First,
    Remote,
    /// A package of this kind.
    Npm,
    Pypi,
    Oci,
}

impl LaunchChoice {
    pub const WORDS: [&'static str; 4] = ["remote", "npm", "pypi", "oci"];

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "remote" => Some(Self::Remote),
            "npm" => Some(Self::Npm),
            "pypi" => Some(Self::Pypi),
            "oci" => Some(Self::Oci),
            _ => None,
        }
    }
}

/// The values that a person gave for inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputValues {
    values: BTreeMap<String, Vec<String>>,
    /// Optional secrets that the server shall have.
    secrets: BTreeSet<String>,
}

impl InputValues {
    pub fn insert(&mut self, name: &str, value: &str) {
        self.values.entry(name.to_owned()).or_default().push(value.to_owned());
    }

    pub fn insert_secret(&mut self, name: &str) {
        self.secrets.insert(name.to_owned());
    }
}

/// A secret that a definition refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededSecret {
    /// The name in Cove's store, such as `tracker.API_KEY`.
    pub name: String,
    pub description: String,
}

/// A definition, and what it means.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchPlan {
    /// The members of the definition.
    pub entry: Map<String, Value>,
    pub secrets: Vec<NeededSecret>,
    /// Required inputs that have no value. The definition must not be written as long as there is one.
    pub missing: Vec<PublishedInput>,
    /// What Cove will do, such as `run npx -y example@1.0.0`.
    pub action: String,
    /// Further facts, one line each: variables and headers.
    pub details: Vec<String>,
}

impl LaunchPlan {
    /// Plans the definition called `name`. Fails if Cove cannot run any part of the server, or if a value does not fit.
    pub fn new(
        server: &PublishedServer,
        name: &str,
        choice: LaunchChoice,
        values: &InputValues,
    ) -> Result<Self, Refusal> {
        let mut inputs =
            InputReader { server: name, values, used: BTreeSet::new(), secrets: Vec::new(), missing: Vec::new() };
        let part = choose_part(server, choice)?;
        let launch = match part {
            LaunchPart::Remote(remote) => plan_remote(remote, &mut inputs)?,
            LaunchPart::Package(package) => plan_package(package, &mut inputs)?,
        };
        inputs.check_names(&part)?;
        let InputReader { secrets, missing, .. } = inputs;
        let mut entry = Map::new();
        if !server.description.is_empty() {
            entry.insert("description".to_owned(), cut(&server.description, MAX_DESCRIPTION).into());
        }
        entry.extend(launch.entry);
        entry.insert("published".to_owned(), format!("{}@{}", server.name, server.version).into());
        Ok(Self { entry, secrets, missing, action: launch.action, details: launch.details })
    }

    /// Returns what a person has to give before the server can run, such as `secret API_KEY`.
    pub fn needs(&self) -> Vec<String> {
        let secrets = self.secrets.iter().map(|secret| format!("secret {}", secret.name));
        secrets.chain(self.missing.iter().map(|input| input.name.clone())).collect()
    }
}

enum LaunchPart<'a> {
    Remote(&'a PublishedRemote),
    Package(&'a PublishedPackage),
}

struct PlannedLaunch {
    entry: Map<String, Value>,
    action: String,
    details: Vec<String>,
}

fn choose_part(server: &PublishedServer, choice: LaunchChoice) -> Result<LaunchPart<'_>, Refusal> {
    let is_streamable =
        |remote: &&PublishedRemote| matches!(remote.transport.as_str(), "streamable-http" | "streamable" | "http");
    let is_sse = |remote: &&PublishedRemote| remote.transport == "sse";
    let remote = server.remotes.iter().find(is_streamable).or_else(|| server.remotes.iter().find(is_sse));
    let wanted = match choice {
        LaunchChoice::First | LaunchChoice::Remote => None,
        LaunchChoice::Npm => Some("npm"),
        LaunchChoice::Pypi => Some("pypi"),
        LaunchChoice::Oci => Some("oci"),
    };
    let mut reasons = Vec::new();
    if wanted.is_none() {
        match remote {
            Some(remote) => return Ok(LaunchPart::Remote(remote)),
            None if choice == LaunchChoice::Remote => reasons.push("it has no address that Cove can use".to_owned()),
            None => {}
        }
    }
    let is_wanted = |package: &&PublishedPackage| {
        choice != LaunchChoice::Remote && wanted.is_none_or(|wanted| normalize_kind(&package.kind) == wanted)
    };
    for package in server.packages.iter().filter(is_wanted) {
        match check_package(package) {
            Ok(()) => return Ok(LaunchPart::Package(package)),
            Err(reason) => reasons.push(reason),
        }
    }
    if reasons.is_empty() {
        reasons.push(match wanted {
            Some(wanted) => format!("it has no `{wanted}` package"),
            None => "it has no package and no address".to_owned(),
        });
    }
    Err(Refusal::new(reasons.join("; "), format!("it has {}; see its own documentation", server.kinds())))
}

fn normalize_kind(kind: &str) -> &str {
    if kind == "docker" { "oci" } else { kind }
}

/// Fails with the reason if Cove cannot run a package.
fn check_package(package: &PublishedPackage) -> Result<(), String> {
    let PublishedPackage { kind, identifier, .. } = package;
    let shown = display_value(identifier);
    if package.transport != "stdio" {
        let transport = display_value(&package.transport);
        return Err(format!(
            "its {} package serves `{transport}`, and Cove runs packages over `stdio` only",
            display_value(kind)
        ));
    }
    let has_version = || match &package.version {
        Some(version) if is_version(version) => Ok(()),
        _ => Err(format!("its package `{shown}` has no exact version")),
    };
    let (runtime, host) = match normalize_kind(kind) {
        "npm" => {
            has_version()?;
            (&["npx"][..], "npmjs")
        }
        "pypi" => {
            has_version()?;
            (&["uvx"][..], "pypi")
        }
        "oci" => return to_image(package).map(drop).and_then(|()| check_runtime(package, &["docker", "podman"])),
        "mcpb" => return Err("its package is a bundle (`mcpb`), which Cove does not download: `cove servers import FILE.mcpb` opens a file".to_owned()),
        other => return Err(format!("its package is of the kind `{}`, which Cove does not run", display_value(other))),
    };
    check_runtime(package, runtime)?;
    if !is_package_name(identifier) {
        return Err(format!("`{shown}` is no name of a package"));
    }
    // `npx` and `uvx` would take a package of the same name from their own registry.
    let url = package.registry_url.as_deref().map(parse_url).transpose();
    match url {
        Ok(None) => Ok(()),
        Ok(Some(url)) if url.host_str().and_then(|name| name.rsplit('.').nth(1)) == Some(host) => Ok(()),
        _ => Err(format!("its package `{shown}` is in another registry than the usual one")),
    }
}

/// Runtime arguments are meant for one program.
fn check_runtime(package: &PublishedPackage, known: &[&str]) -> Result<(), String> {
    match &package.runtime {
        Some(runtime) if !known.contains(&runtime.as_str()) && !package.runtime_arguments.is_empty() => {
            Err(format!("its package wants to be started by `{}`", display_value(runtime)))
        }
        _ => Ok(()),
    }
}

/// True for `name` and `@scope/name`. It cannot be an option, a path or an address.
fn is_package_name(text: &str) -> bool {
    let part = |part: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-~".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && part.chars().all(is_allowed)
    };
    match text.strip_prefix('@') {
        Some(scoped) => scoped.split_once('/').is_some_and(|(scope, name)| part(scope) && part(name)),
        None => part(text),
    }
}

/// Returns the reference of an image with its exact tag or digest.
fn to_image(package: &PublishedPackage) -> Result<String, String> {
    let identifier = &package.identifier;
    let wrong = || format!("`{}` is no image with an exact version", display_value(identifier));
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if !identifier.starts_with(|c: char| c.is_ascii_alphanumeric()) || !identifier.chars().all(is_allowed) {
        return Err(wrong());
    }
    let last = identifier.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once([':', '@']).map(|(_, tag)| tag);
    if let Some(tag) = tag {
        return if is_version(&tag.replace(':', "-")) { Ok(identifier.clone()) } else { Err(wrong()) };
    }
    let version = package.version.as_ref().filter(|version| is_version(version)).ok_or_else(wrong)?;
    let host = match package.registry_url.as_deref().map(parse_url) {
        None => None,
        Some(Ok(url)) => url.host_str().map(|host| match url.port() {
            Some(port) => format!("{host}:{port}/"),
            None => format!("{host}/"),
        }),
        Some(Err(_)) => return Err(wrong()),
    };
    Ok(format!("{}{identifier}:{version}", host.unwrap_or_default()))
}

fn plan_package(package: &PublishedPackage, inputs: &mut InputReader<'_>) -> Result<PlannedLaunch, Refusal> {
    let runtime = read_arguments(&package.runtime_arguments, inputs)?;
    let mut env = Map::new();
    for variable in &package.variables {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if variable.name.is_empty() || !variable.name.chars().all(is_name) {
            return Err(Refusal::of_value(&variable.name, "is no name of a variable", "the document is wrong"));
        }
        if let Some(value) = inputs.read(variable)?.pop() {
            env.insert(variable.name.clone(), value.into());
        }
    }
    let own = read_arguments(&package.package_arguments, inputs)?;
    let versioned = || format!("{}@{}", package.identifier, package.version.as_deref().unwrap_or_default());
    let without =
        |words: &[&str]| runtime.iter().filter(|word| !words.contains(&word.as_str())).cloned().collect::<Vec<_>>();
    let word = |text: &str| vec![text.to_owned()];
    let (command, args) = match normalize_kind(&package.kind) {
        "npm" => ("npx", [word("-y"), without(&["-y", "--yes"]), vec![versioned()]].concat()),
        "pypi" => ("uvx", [runtime.clone(), vec![versioned()]].concat()),
        _ => {
            let command = if package.runtime.as_deref() == Some("podman") { "podman" } else { "docker" };
            let fixed = ["run", "-i", "--rm"].map(str::to_owned).to_vec();
            let runtime = without(&["run", "-i", "--interactive", "--rm"]);
            // The engine's client has the values in its environment, so that no command line shows them.
            let names = env.keys().flat_map(|name| ["-e".to_owned(), name.clone()]).collect();
            let image = to_image(package).map_err(|reason| Refusal::new(reason, "the document is wrong"))?;
            (command, [fixed, runtime, names, vec![image]].concat())
        }
    };
    let args = [args, own].concat();
    let shown: Vec<String> = [command].into_iter().chain(args.iter().map(String::as_str)).map(describe_word).collect();
    let details =
        env.iter().map(|(name, value)| format!("with {name}={}", describe_word(value.as_str().unwrap_or_default())));
    let (action, details) = (format!("run {}", check_shown(shown.join(" "))?), details.collect());
    let mut entry = Map::from_iter([("command".to_owned(), json!(command)), ("args".to_owned(), json!(args))]);
    if !env.is_empty() {
        entry.insert("env".to_owned(), env.into());
    }
    Ok(PlannedLaunch { entry, action, details })
}

fn read_arguments(arguments: &[PublishedArgument], inputs: &mut InputReader<'_>) -> Result<Vec<String>, Refusal> {
    let mut words = Vec::new();
    for PublishedArgument { flag, input } in arguments {
        for value in inputs.read(input)? {
            match flag {
                None => words.push(value),
                Some(flag) if input.format == "boolean" => words.extend((value == "true").then(|| flag.clone())),
                Some(flag) if value.is_empty() => words.push(flag.clone()),
                Some(flag) => words.extend([flag.clone(), value]),
            }
        }
    }
    Ok(words)
}

fn plan_remote(remote: &PublishedRemote, inputs: &mut InputReader<'_>) -> Result<PlannedLaunch, Refusal> {
    let url = inputs.read(&remote.url)?.pop().unwrap_or_default();
    let wrong = |problem: &str| Refusal::of_value(&url, problem, "ask its publisher for another address");
    // A secret in the address is put in when the server is started.
    if !url.contains("${") && inputs.missing.is_empty() {
        let parsed = parse_url(&url).map_err(|reason| wrong(&format!("is no address: {reason}")))?;
        if parsed.scheme() != "https" && !is_loopback_url(&parsed) {
            return Err(wrong("is not encrypted (`http`)"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("has a user name or a password in it"));
        }
    }
    let mut headers = Map::new();
    for header in &remote.headers {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if header.name.is_empty() || !header.name.chars().all(is_name) {
            return Err(Refusal::of_value(&header.name, "is no name of a header", "the document is wrong"));
        }
        if let Some(value) = inputs.read(header)?.pop() {
            headers.insert(header.name.clone(), value.into());
        }
    }
    let (kind, words) = match remote.transport.as_str() {
        "sse" => ("sse", "the older HTTP with SSE"),
        _ => ("http", "Streamable HTTP"),
    };
    let details = headers
        .iter()
        .map(|(name, value)| format!("with header {name}: {}", describe_word(value.as_str().unwrap_or_default())));
    let (action, details) = (format!("connect to {} ({words})", check_shown(describe_word(&url))?), details.collect());
    let mut entry = Map::from_iter([("type".to_owned(), json!(kind)), ("url".to_owned(), json!(url))]);
    if !headers.is_empty() {
        entry.insert("headers".to_owned(), headers.into());
    }
    Ok(PlannedLaunch { entry, action, details })
}

/// Fails if a command or an address is too long to be shown.
fn check_shown(text: String) -> Result<String, Refusal> {
    match text.len() > MAX_SHOWN {
        true => Err(Refusal::new(
            format!("what Cove would run has {} bytes, too many to be shown", text.len()),
            "look at its own documentation, and write the definition by hand",
        )),
        false => Ok(text),
    }
}

/// Finds the values of inputs, and notes what is missing.
struct InputReader<'a> {
    /// The name of the definition.
    server: &'a str,
    values: &'a InputValues,
    used: BTreeSet<String>,
    secrets: Vec<NeededSecret>,
    missing: Vec<PublishedInput>,
}

impl InputReader<'_> {
    /// Returns the values of an input: none if it is optional and not given, several only if it may be repeated. Fails
    /// if a value does not fit.
    fn read(&mut self, input: &PublishedInput) -> Result<Vec<String>, Refusal> {
        if let Some(template) = &input.value {
            return Ok(vec![self.fill_in(template, input)?]);
        }
        self.used.insert(input.name.clone());
        if input.is_secret {
            if self.values.values.contains_key(&input.name) {
                let hint = format!("write `--set {}` without a value, and give it with `cove secrets set`", input.name);
                return Err(Refusal::new(
                    format!("`{}` is a secret, and a command line is no place for one", input.name),
                    hint,
                ));
            }
            let is_wanted = input.is_required || self.values.secrets.contains(&input.name);
            return Ok(if is_wanted { vec![self.need_secret(&input.name, &input.description)] } else { Vec::new() });
        }
        if self.values.secrets.contains(&input.name) {
            return Err(Refusal::new(
                format!("`--set {}` has no value", input.name),
                format!("write `--set {}=VALUE`", input.name),
            ));
        }
        let given = self.values.values.get(&input.name);
        let values = match (given, &input.default) {
            (Some(values), _) => values.clone(),
            (None, Some(default)) => vec![default.clone()],
            (None, None) => Vec::new(),
        };
        if values.len() > 1 && !input.is_repeated {
            return Err(Refusal::new(format!("`{}` has several values", input.name), "give it one value"));
        }
        if values.is_empty() && input.is_required {
            self.missing.push(input.clone());
        }
        values.iter().try_for_each(|value| check_value(input, value))?;
        Ok(values)
    }

    /// Puts variables into a text. A name that the document does not declare stays as it is, unless the text is an
    /// address or a secret, which make no sense with it.
    fn fill_in(&mut self, template: &str, input: &PublishedInput) -> Result<String, Refusal> {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            push_part(&mut text, before)?;
            let name = after.split_once('}').filter(|(name, _)| is_variable_name(name));
            let Some((name, behind)) = name else {
                push_part(&mut text, "{")?;
                rest = after;
                continue;
            };
            let undeclared = PublishedInput {
                name: name.to_owned(),
                is_required: true,
                is_secret: input.is_secret,
                description: input.description.clone(),
                ..PublishedInput::default()
            };
            let value = match input.variables.get(name) {
                Some(variable) => self.read(variable)?.pop().unwrap_or_default(),
                None if input.is_secret || input.name == "url" => self.read(&undeclared)?.pop().unwrap_or_default(),
                None => format!("{{{name}}}"),
            };
            push_part(&mut text, &value)?;
            rest = behind;
        }
        push_part(&mut text, rest)?;
        Ok(text)
    }

    /// Returns the reference to a secret in Cove's store.
    fn need_secret(&mut self, input: &str, description: &str) -> String {
        let is_plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
        let name = format!("{}.{}", self.server, input.chars().map(is_plain).take(MAX_SECRET_PART).collect::<String>());
        if !self.secrets.iter().any(|secret| secret.name == name) {
            self.secrets.push(NeededSecret { name: name.clone(), description: description.to_owned() });
        }
        format!("${{secret:{name}}}")
    }

    /// Fails if a value was given for an input that this part of the server does not have.
    fn check_names(&self, part: &LaunchPart<'_>) -> Result<(), Refusal> {
        let given = self.values.values.keys().chain(&self.values.secrets);
        let Some(unknown) = given.into_iter().find(|name| !self.used.contains(*name)) else { return Ok(()) };
        let known = self.used.iter().map(String::as_str);
        let noun = match part {
            LaunchPart::Remote(_) => "address",
            LaunchPart::Package(_) => "package",
        };
        let hint = match (nearest(unknown, known.clone()), self.used.is_empty()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, true) => "leave `--set` out".to_owned(),
            (None, false) => format!("there are {}", known.collect::<Vec<_>>().join(", ")),
        };
        Err(Refusal::of_value(unknown, format!("is no input of its {noun}"), hint))
    }
}

/// Appends a part of a text. Fails if both together would begin a reference such as `${cmd:…}`, which neither has.
fn push_part(text: &mut String, part: &str) -> Result<(), Refusal> {
    if text.ends_with('$') && part.starts_with('{') {
        return Err(Refusal::new(
            "its parts make a `${`, which would put in variables of your own",
            "the document is wrong",
        ));
    }
    text.push_str(part);
    Ok(())
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 100 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// Fails if a value is none of the choices, or not of the format.
fn check_value(input: &PublishedInput, value: &str) -> Result<(), Refusal> {
    let wrong = |problem: &str, hint: String| {
        Err(Refusal::of_value(value, format!("cannot be `{}`: {problem}", input.name), hint))
    };
    if !input.choices.is_empty() && !input.choices.iter().any(|choice| choice == value) {
        return wrong("it is none of the choices", format!("choose one of {}", cut(&input.choices.join(", "), 500)));
    }
    // `${VAR}` is put in when the server is started.
    match input.format.as_str() {
        _ if value.contains("${") => Ok(()),
        "number" if value.parse::<f64>().is_err() => {
            wrong("it is no number", "write a number such as `8080`".to_owned())
        }
        "boolean" if !matches!(value, "true" | "false") => {
            wrong("it is neither `true` nor `false`", "write one of them".to_owned())
        }
        _ if value.chars().any(char::is_control) => wrong("it has control characters", "leave them out".to_owned()),
        _ => Ok(()),
    }
}

/// Returns a word of a command line for people: in quotes unless it is plain, and harmless to a terminal.
pub fn describe_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-${}".contains(c);
    let shown = escape_control(&remove_hidden(word));
    if !word.is_empty() && word.chars().all(is_plain) { shown } else { format!("'{shown}'") }
}

#[cfg(test)]
mod tests;
