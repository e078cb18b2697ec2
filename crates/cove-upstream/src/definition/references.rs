//! The references in the texts of a definition: `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${file:PATH}`,
//! `${cmd:PROGRAM ARGS}`, `${secret:NAME}`. Only finds them; the pool puts the values in.

use std::collections::BTreeSet;

use super::{ServerDefinition, ServerLaunch};

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextPart<'a> {
    Literal(&'a str),
    Reference(ValueReference<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueReference<'a> {
    Variable {
        name: &'a str,
        default: Option<&'a str>,
    },
    File(&'a str),
    /// A program and its arguments.
    Command(&'a str),
    Secret(&'a str),
}

/// Splits a text at its references. `$${` stands for a literal `${`, and a text in braces that is no reference stays.
pub(crate) fn split_references(text: &str) -> Vec<TextPart<'_>> {
    let mut parts = Vec::new();
    let (mut rest, mut from) = (text, 0);
    while let Some(at) = rest[from..].find("${").map(|at| from + at) {
        if rest[..at].ends_with('$') {
            parts.push(TextPart::Literal(&rest[..at - 1]));
            rest = &rest[at..];
            from = 2;
            continue;
        }
        let inside = rest[at + 2..].find('}').map(|end| (&rest[at + 2..at + 2 + end], &rest[at + 3 + end..]));
        match inside.and_then(|(inside, behind)| Some((parse_reference(inside)?, behind))) {
            Some((reference, behind)) => {
                parts.push(TextPart::Literal(&rest[..at]));
                parts.push(TextPart::Reference(reference));
                (rest, from) = (behind, 0);
            }
            None => from = at + 2,
        }
    }
    parts.push(TextPart::Literal(rest));
    parts.retain(|part| *part != TextPart::Literal(""));
    parts
}

fn parse_reference(inside: &str) -> Option<ValueReference<'_>> {
    match inside.split_once(':') {
        Some(("file", path)) if !path.is_empty() => return Some(ValueReference::File(path)),
        Some(("cmd", command)) if !command.trim().is_empty() => return Some(ValueReference::Command(command)),
        Some(("secret", name)) if !name.is_empty() => return Some(ValueReference::Secret(name)),
        _ => {}
    }
    let (name, default) = inside.split_once(":-").map_or((inside, None), |(name, default)| (name, Some(default)));
    // Other clients write `${env:VAR}`. `${input:id}` asks a person for input; it is a variable that nothing sets.
    let name = name.strip_prefix("env:").unwrap_or(name);
    let plain = name.strip_prefix("input:").unwrap_or(name);
    let is_name = !plain.is_empty() && plain.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    is_name.then_some(ValueReference::Variable { name, default })
}

impl ServerDefinition {
    /// The texts that may have references.
    pub(crate) fn texts(&self) -> Vec<&str> {
        match &self.launch {
            ServerLaunch::Stdio { command, args, env, env_file, cwd } => {
                let texts = [command].into_iter().chain(args).chain(env.values()).chain(env_file).chain(cwd);
                texts.map(String::as_str).collect()
            }
            ServerLaunch::Http { url, headers, oauth, .. } => {
                let oauth = oauth.iter().flat_map(|oauth| oauth.texts());
                [url].into_iter().chain(headers.values()).chain(oauth.flatten()).map(String::as_str).collect()
            }
        }
    }

    /// The names of the secrets that the definition refers to.
    pub fn secret_names(&self) -> BTreeSet<&str> {
        let parts = self.texts().into_iter().flat_map(split_references);
        parts
            .filter_map(|part| match part {
                TextPart::Reference(ValueReference::Secret(name)) => Some(name),
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_texts_at_references() {
        use TextPart::{Literal, Reference};
        use ValueReference::{Command, File, Secret, Variable};
        let variable = |name, default| Reference(Variable { name, default });
        let check = |text: &str, expected: &[TextPart<'_>]| assert_eq!(split_references(text), expected, "{text}");
        check("", &[]);
        check("a${B}c", &[Literal("a"), variable("B", None), Literal("c")]);
        check("${env:B}${B:-x:-y}", &[variable("B", None), variable("B", Some("x:-y"))]);
        check("${input:b}", &[variable("input:b", None)]);
        check("${file:~/.a b}", &[Reference(File("~/.a b"))]);
        check("${cmd:op read 'op://x y/z'}", &[Reference(Command("op read 'op://x y/z'"))]);
        check("Bearer ${secret:a.B}", &[Literal("Bearer "), Reference(Secret("a.B"))]);
        check("$${B} ${B}", &[Literal("${B} "), variable("B", None)]);
        check("a$$${B}", &[Literal("a$"), Literal("${B}")]);
        check("$${file:x}${file:}", &[Literal("${file:x}${file:}")]);
        for text in ["$B", "${", "${}", "${a b}", "${a/b}", "$${", "${cmd: }", "${secret:}", "${unknown:x}"] {
            assert!(split_references(text).iter().all(|part| matches!(part, Literal(_))), "{text}");
        }
    }
}
