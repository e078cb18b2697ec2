//! The references in the texts of a definition: `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${file:PATH}`,
//! `${cmd:PROGRAM ARGS}`, `${secret:NAME}`. Only finds them, and what was meant as one; the pool puts the values in.

use std::collections::BTreeSet;

use cove_core::error::display_value;

use super::{ServerDefinition, ServerLaunch};
use crate::secrets::check_secret_name;

/// The kinds of references, and how each is written.
const REFERENCE_KINDS: [(&str, &str); 4] = [
    ("secret", "`${secret:NAME}`"),
    ("file", "`${file:PATH}`"),
    ("cmd", "`${cmd:PROGRAM ARGUMENTS}`"),
    ("env", "`${env:VARIABLE}`"),
];

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
    scan(text, |_| {})
}

/// Splits a text. `on_unread` gets what is behind a `${` that begins no reference.
fn scan<'a>(text: &'a str, mut on_unread: impl FnMut(&'a str)) -> Vec<TextPart<'a>> {
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
            None => {
                on_unread(&rest[at + 2..]);
                from = at + 2;
            }
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

/// What is wrong with a text that was meant as a reference. Repeats no value: it may be a secret that a person put there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReferenceMistake {
    /// The reference as a message shows it.
    pub(crate) shown: String,
    pub(crate) reason: &'static str,
    pub(super) hint: String,
}

impl ReferenceMistake {
    fn new(shown: impl Into<String>, reason: &'static str, right_form: &str) -> Self {
        Self {
            shown: shown.into(),
            reason,
            hint: format!("write {right_form}, or `$${{` where a literal `${{` is meant"),
        }
    }
}

/// Returns the first mistake in a text: a kind of reference without what it refers to, an unknown kind, a brace that is
/// missing. Other texts in braces, such as `${1}` or the `${X:+y}` of a shell, may be meant as they are.
pub(crate) fn find_mistake(text: &str) -> Option<ReferenceMistake> {
    let mut unread = None;
    let parts = scan(text, |behind| unread = unread.take().or_else(|| find_unread_mistake(behind)));
    unread.or_else(|| {
        parts.iter().find_map(|part| match part {
            TextPart::Reference(ValueReference::Secret(name)) if check_secret_name(name).is_err() => {
                let form = "`${secret:NAME}` with letters, digits, `_`, `.` and `-` in the name";
                Some(ReferenceMistake::new("${secret:…}", "has a name that no secret can have", form))
            }
            // The first `}` ends the reference, so the rest of such a default would stay behind its value.
            TextPart::Reference(ValueReference::Variable { default: Some(default), .. }) if default.contains("${") => {
                Some(ReferenceMistake::new("${…:-…}", "has a reference in its default", "a default without one"))
            }
            _ => None,
        })
    })
}

/// Says what is wrong behind a `${` that begins no reference. Returns `None` if the text may be meant as it is.
fn find_unread_mistake(behind: &str) -> Option<ReferenceMistake> {
    let end = behind.find('}');
    let (word, value) = behind[..end.unwrap_or(behind.len())].split_once(':')?;
    let kind = REFERENCE_KINDS.iter().find(|(kind, _)| word.trim().eq_ignore_ascii_case(kind));
    let is_own_form = kind.is_some_and(|(kind, _)| *kind == word);
    let is_substring = !value.is_empty() && value.chars().all(|c| c.is_ascii_digit() || ": -".contains(c));
    if !is_own_form && (value.starts_with(['+', '=', '?', '-']) || is_substring) {
        // A shell expands it.
        return None;
    }
    let Some((kind, form)) = kind else {
        let is_identifier = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        let forms = REFERENCE_KINDS.map(|(_, form)| form).join(", ");
        return (is_identifier && end.is_some()).then(|| {
            let shown = format!("${{{}:…}}", display_value(word));
            ReferenceMistake::new(shown, "is no kind of reference that Cove knows", &format!("one of {forms}"))
        });
    };
    Some(match end {
        None => ReferenceMistake::new(format!("${{{kind}:…"), "has no `}`", form),
        Some(_) if !is_own_form => {
            ReferenceMistake::new(format!("${{{}:…}}", display_value(word)), "is not written as a reference is", form)
        }
        Some(_) if value.trim().is_empty() => ReferenceMistake::new(format!("${{{kind}:}}"), "names nothing", form),
        Some(_) => ReferenceMistake::new(format!("${{{kind}:…}}"), "names what cannot be a name", form),
    })
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

    #[test]
    fn tells_mistakes_from_texts_that_are_meant_so() {
        let check = |text: &str, shown: &str, reason: &str, form: &str| {
            let mistake = find_mistake(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((mistake.shown.as_str(), mistake.reason), (shown, reason), "{text}");
            assert!(mistake.hint.contains(form) && mistake.hint.contains("`$${`"), "{}", mistake.hint);
        };
        for (kind, form) in REFERENCE_KINDS {
            check(&format!("a${{{kind}:}}b"), &format!("${{{kind}:}}"), "names nothing", form);
            check(&format!("${{{kind}:a"), &format!("${{{kind}:…"), "has no `}`", form);
            let upper = kind.to_uppercase();
            check(&format!("${{{upper}:x}}"), &format!("${{{upper}:…}}"), "is not written as a reference is", form);
        }
        check("$${secret:}${Secret:x}", "${Secret:…}", "is not written as a reference is", "`${secret:NAME}`");
        check("${cmd: }", "${cmd:}", "names nothing", "`${cmd:PROGRAM ARGUMENTS}`");
        check("${secret :x}", "${secret :…}", "is not written as a reference is", "`${secret:NAME}`");
        check("${env:a b}", "${env:…}", "names what cannot be a name", "`${env:VARIABLE}`");
        check("${op:x}", "${op:…}", "is no kind of reference that Cove knows", "`${cmd:PROGRAM ARGUMENTS}`");
        check("${A}${input:}", "${input:…}", "is no kind of reference that Cove knows", "`${secret:NAME}`");
        for name in ["a b", "ghp_pasted!", "-a", "a/b"] {
            check(
                &format!("${{secret:{name}}}"),
                "${secret:…}",
                "has a name that no secret can have",
                "`${secret:NAME}`",
            );
        }
        check("${A:-${secret:x}}", "${…:-…}", "has a reference in its default", "without one");
        for text in [
            "",
            "$",
            "${",
            "${}",
            "${1}",
            "${a.b}",
            "${x%y}",
            "${a b}",
            "${a/b:c}",
            "${x:+y}",
            "${FILE:?no}",
            "${x:=y}",
        ]
        .into_iter()
        .chain(["${x:0:3}", "${x: -1}", "${ENV:-d}", "${x", "${x:y", "$${secret:}", "$${op:x}", "$$${op:x}", "{op:x}"])
        .chain([
            "${input:x}",
            "${env:X:-d}",
            "${secret:a.B-1}",
            "${file:~/a b}",
            "${cmd:a 'b: c'}",
            "${X:-a:b}",
        ]) {
            assert_eq!(find_mistake(text), None, "{text}");
        }
    }
}
