//! Reads the tables `[credentials.NAME]` of `cove.toml`, and checks them against the rules that name them: a credential that
//! could get lost, or go where nobody expects it, is an error.

use std::collections::BTreeMap;

use cove_core::document::{DocumentMember, DocumentNode, unknown_key_hint};
use cove_core::error::{Failure, Refusal, display_value};
use cove_core::spelling::nearest;
use http::HeaderName;

use crate::credential::{CredentialSlot, EgressCredential};
use crate::rules::{EgressRule, EgressRules};

const KEYS: &[&str] = &["value", "header", "format", "query", "basic", "env", "prefix"];
const MAX_CREDENTIALS: usize = 100;
const MAX_VARIABLES: usize = 20;
/// Headers that are about the connection or that Cove writes itself.
const RESERVED_HEADERS: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Variables on which programs in the sandbox depend.
const RESERVED_VARIABLES: &[&str] = &["HOME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"];

/// Adds the credentials of a table to the rules of the same file. `table` is None if the file has none. Fails at the first
/// mistake, with the file, the key and what is allowed.
pub fn parse_credentials(rules: &mut EgressRules, table: Option<&DocumentNode>, file: &str) -> Result<(), Failure> {
    let reader = CredentialReader { file };
    for DocumentMember { key, node, .. } in table.and_then(DocumentNode::members).unwrap_or_default() {
        rules.credentials.push(reader.credential(key, node)?);
    }
    if let Some(table) = table.filter(|table| table.members().is_none() || rules.credentials.len() > MAX_CREDENTIALS) {
        let cause = format!("`[credentials]` has tables of their own, at most {MAX_CREDENTIALS}");
        return Err(reader.failure("", "credentials", table, Refusal::new(cause, "write `[credentials.NAME]`")));
    }
    let unreadable = |refusal: Refusal| {
        Failure::usage(format!("could not use the credentials in `{file}`"))
            .because(refusal.cause)
            .with_hint(refusal.hint)
    };
    check_uses(rules).and_then(|()| check_variables(rules)).map_err(unreadable)
}

struct CredentialReader<'a> {
    file: &'a str,
}

impl CredentialReader<'_> {
    fn failure(&self, name: &str, key: &str, node: &DocumentNode, refusal: Refusal) -> Failure {
        // Without the value, which may be the secret itself.
        let table = if name.is_empty() { "[credentials]".to_owned() } else { format!("[credentials.{name}]") };
        Failure::usage(format!("could not read `{key}` of `{table}` in `{}`, line {}", self.file, node.line))
            .because(refusal.cause)
            .with_hint(refusal.hint)
    }

    fn credential(&self, name: &str, node: &DocumentNode) -> Result<EgressCredential, Failure> {
        let shown = display_value(name);
        let fail = |key: &str, at: &DocumentNode, refusal| self.failure(&shown, key, at, refusal);
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        if !is_name(name) || name.is_empty() || name.len() > 64 {
            let hint = "use letters, digits, `-` and `_`";
            return Err(fail("credentials", node, Refusal::of_value(name, "is not a name for a credential", hint)));
        }
        let Some(members) = node.members() else {
            let refusal = Refusal::new("it is not a table", "write `[credentials.NAME]` and keys below it");
            return Err(fail("credentials", node, refusal));
        };
        if let Some(wrong) = members.iter().find(|member| !KEYS.contains(&member.key.as_str())) {
            let cause = format!("`{}` is not a key of `[credentials.{shown}]`", display_value(&wrong.key));
            return Err(fail(&wrong.key, &wrong.node, Refusal::new(cause, unknown_key_hint(&wrong.key, KEYS))));
        }
        let text = |key: &str| match node.get(key).map(|found| (found, found.text())) {
            None => Ok(None),
            Some((_, Some(text))) => Ok(Some(text)),
            Some((found, None)) => {
                let cause = format!("`{key}` cannot be {}", found.kind());
                Err(fail(key, found, Refusal::new(cause, format!("write `{key} = \"…\"`"))))
            }
        };
        let Some(reference) = text("value")? else {
            let hint = "write `value = \"${VARIABLE}\"`, `${file:PATH}`, `${cmd:PROGRAM}` or `${secret:NAME}`";
            return Err(fail("value", node, Refusal::new("it has no `value`", hint)));
        };
        let at_value = node.get("value").unwrap_or(node);
        if !reference.contains("${") {
            let hint = "write a reference: `${VARIABLE}`, `${file:PATH}`, `${cmd:PROGRAM}` or `${secret:NAME}`";
            return Err(fail("value", at_value, Refusal::new("it is the secret itself, or nothing", hint)));
        }
        // Answers may repeat what a reference leads to without the text around it.
        if !reference.starts_with("${") || reference.find('}') != Some(reference.len() - 1) {
            let hint = "write one reference, and text around the value in `format`, as in `format = \"Bearer {}\"`";
            return Err(fail("value", at_value, Refusal::new("it has other text beside a reference", hint)));
        }
        let slot = self.slot(&shown, node, (text("header")?, text("format")?), text("query")?)?;
        let prefix = text("prefix")?.unwrap_or_default();
        if prefix.len() > 32 || !is_name(prefix) {
            let hint = "write up to 32 letters, digits, `-` and `_`";
            let at = node.get("prefix").unwrap_or(node);
            return Err(fail("prefix", at, Refusal::new("it is no prefix of a token", hint)));
        }
        let variables = self.variables(&shown, node)?;
        Ok(EgressCredential {
            name: name.to_owned(),
            reference: reference.to_owned(),
            place: format!("`{}`, line {}", self.file, at_value.line),
            slot,
            prefix: prefix.to_owned(),
            variables,
        })
    }

    fn slot(
        &self,
        name: &str,
        node: &DocumentNode,
        (header, format): (Option<&str>, Option<&str>),
        query: Option<&str>,
    ) -> Result<CredentialSlot, Failure> {
        let fail = |key: &str, refusal| Err(self.failure(name, key, node.get(key).unwrap_or(node), refusal));
        let one = "write `header = \"Authorization\"` and `format = \"Bearer {}\"`, or `query = \"key\"`, or \
                   `basic = { user = \"me\" }`";
        let basic = node.get("basic");
        if [header.is_some(), query.is_some(), basic.is_some()].iter().filter(|has| **has).count() != 1 {
            return fail("header", Refusal::new("a credential has exactly one place in a request", one));
        }
        if format.is_some() && header.is_none() {
            return fail("format", Refusal::new("`format` belongs to `header`", one));
        }
        if let Some(query) = query {
            let is_plain = !query.is_empty() && query.len() <= 100;
            let refusal = Refusal::new("it is no name of a parameter", one);
            return if is_plain { Ok(CredentialSlot::Query(query.to_owned())) } else { fail("query", refusal) };
        }
        if let Some(basic) = basic {
            let members = basic.members().unwrap_or_default();
            let user = basic.get("user").and_then(DocumentNode::text).filter(|_| members.len() == 1);
            return match user.filter(|user| !user.contains(':') && !user.chars().any(char::is_control)) {
                Some(user) => Ok(CredentialSlot::Basic { user: user.to_owned() }),
                None => fail("basic", Refusal::new("it has no `user` alone, without `:`", one)),
            };
        }
        let header = header.unwrap_or_default();
        let Ok(header) = HeaderName::from_bytes(header.as_bytes()) else {
            return fail("header", Refusal::of_value(header, "is no name of a field", one));
        };
        if RESERVED_HEADERS.contains(&header.as_str()) || header.as_str().starts_with("proxy-") {
            return fail("header", Refusal::of_value(header.as_str(), "is a field that Cove writes itself", one));
        }
        let format = format.unwrap_or("{}");
        if format.matches("{}").count() != 1 || format.len() > 200 || format.chars().any(char::is_control) {
            let refusal = Refusal::new("it does not have `{}` exactly once", "write `format = \"Bearer {}\"`");
            return fail("format", refusal);
        }
        Ok(CredentialSlot::Header { name: header, format: format.to_owned() })
    }

    fn variables(&self, name: &str, node: &DocumentNode) -> Result<Vec<String>, Failure> {
        let Some(list) = node.get("env") else { return Ok(Vec::new()) };
        let right = "write names of variables, as in `env = [\"GH_TOKEN\"]`";
        let fail = |at: &DocumentNode, cause: &str| Err(self.failure(name, "env", at, Refusal::new(cause, right)));
        let one = std::slice::from_ref(list);
        let items = if list.text().is_some() { Some(one) } else { list.items() };
        let Some(items) = items.filter(|items| items.len() <= MAX_VARIABLES) else {
            return fail(list, "it is no list of names");
        };
        let mut variables = Vec::new();
        for item in items {
            let text = item.text().unwrap_or_default();
            let is_name = !text.is_empty()
                && !text.starts_with(|c: char| c.is_ascii_digit())
                && text.len() <= 100
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let upper = text.to_ascii_uppercase();
            let is_reserved = RESERVED_VARIABLES.contains(&upper.as_str())
                || ["COVE_", "LD_", "PYTHON", "NODE_"].iter().any(|start| upper.starts_with(start))
                || upper.ends_with("_PROXY");
            match (is_name, is_reserved) {
                (true, false) => variables.push(text.to_owned()),
                (true, true) => return fail(item, "programs in the sandbox need this variable"),
                (false, _) => return fail(item, "it is no name of a variable"),
            }
        }
        Ok(variables)
    }
}

/// Fails if a rule names a credential that does not exist, if two stand in one place, if a credential has no rule, or if an
/// earlier rule decides every request that would get it.
fn check_uses(rules: &EgressRules) -> Result<(), Refusal> {
    let names: Vec<&str> = rules.credentials.iter().map(|credential| credential.name.as_str()).collect();
    for rule in &rules.allow {
        let used = rule.inspection.iter().flat_map(|limits| &limits.credentials);
        let mut slots: Vec<&EgressCredential> = Vec::new();
        for name in used {
            let Some(credential) = rules.credential(name) else {
                let hint = match (nearest(name, names.iter().copied()), names.is_empty()) {
                    (Some(near), _) => format!("did you mean `{near}`?"),
                    (None, true) => format!("add a table `[credentials.{}]`", display_value(name)),
                    (None, false) => format!("credentials are `{}`", names.join("`, `")),
                };
                let cause = format!("`credential` of the rule `{rule}` names none: `{}`", display_value(name));
                return Err(Refusal::new(cause, hint));
            };
            refuse_same_place(rule, slots.iter().copied(), credential)?;
            slots.push(credential);
        }
    }
    for (at, rule) in rules.allow.iter().enumerate() {
        let others = rules.allow[..at].iter().filter(|other| has_same_requests(rule, other));
        let others = others.flat_map(|other| credentials_of(rules, other));
        for credential in credentials_of(rules, rule) {
            let others = others.clone().filter(|other| other.name != credential.name);
            refuse_same_place(rule, others, credential)?;
            let is_lost = |other: &&EgressRule| {
                other.shadows(rule) && !credentials_of(rules, other).any(|own| own.name == credential.name)
            };
            if let Some(other) = rules.allow[..at].iter().find(is_lost) {
                let cause =
                    format!("no request gets the credential `{}`: `{other}` decides before `{rule}`", credential.name);
                return Err(Refusal::new(cause, "write the rule with the credential first, or limit the other one"));
            }
        }
    }
    let is_used = |name: &String| credential_names(rules).any(|used| used == name);
    match rules.credentials.iter().find(|credential| !is_used(&credential.name)) {
        Some(EgressCredential { name, .. }) => Err(Refusal::new(
            format!("no rule uses `[credentials.{name}]`"),
            format!("add `credential = \"{name}\"` to a rule of `allow`, or remove the table"),
        )),
        None => Ok(()),
    }
}

fn credential_names(rules: &EgressRules) -> impl Iterator<Item = &String> {
    rules.allow.iter().filter_map(|rule| rule.inspection.as_ref()).flat_map(|limits| &limits.credentials)
}

fn credentials_of<'a>(
    rules: &'a EgressRules,
    rule: &'a EgressRule,
) -> impl Iterator<Item = &'a EgressCredential> + Clone {
    let names = rule.inspection.iter().flat_map(|limits| &limits.credentials);
    names.filter_map(|name| rules.credential(name))
}

/// True if two rules are about the same requests, so that only the first would be used.
fn has_same_requests(one: &EgressRule, other: &EgressRule) -> bool {
    let limits = |rule: &EgressRule| rule.inspection.as_ref().map(|it| (it.methods.clone(), it.paths.clone()));
    one.host == other.host
        && one.scope == other.scope
        && one.ports.iter().any(|port| other.ports.contains(port))
        && limits(one) == limits(other)
}

fn refuse_same_place<'a>(
    rule: &EgressRule,
    mut others: impl Iterator<Item = &'a EgressCredential>,
    credential: &EgressCredential,
) -> Result<(), Refusal> {
    match others.find(|other| other.slot.is_same_place(&credential.slot)) {
        Some(other) => Err(Refusal::new(
            format!("`{}` and `{}` have the same place in requests to `{}`", other.name, credential.name, rule.host),
            "give each request one of them, by `methods` and `paths`, or another `header`",
        )),
        None => Ok(()),
    }
}

/// Fails if two credentials give one variable a placeholder.
fn check_variables(rules: &EgressRules) -> Result<(), Refusal> {
    let mut owners = BTreeMap::new();
    for credential in &rules.credentials {
        for variable in &credential.variables {
            if let Some(other) = owners.insert(variable, &credential.name) {
                let cause = format!("`env` of `{other}` and of `{}` both have `{variable}`", credential.name);
                return Err(Refusal::new(cause, "name each variable once"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
