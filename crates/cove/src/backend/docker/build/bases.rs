//! Which images a Dockerfile needs before it can be built: what it begins with and what it copies from. A builder would
//! fetch those that are missing without being asked to, so they are looked for first.

use std::collections::HashMap;

/// As far as they can be told from the text; a name with a variable that has no value is left to the builder.
pub(super) fn bases(dockerfile: &str) -> Vec<String> {
    let mut stages: Vec<String> = Vec::new();
    let mut variables: HashMap<String, String> = HashMap::new();
    let mut found: Vec<String> = Vec::new();
    let mut has_begun = false;
    for line in instructions(dockerfile) {
        let mut words = line.split_whitespace();
        let Some(keyword) = words.next().map(str::to_ascii_uppercase) else { continue };
        let named = match keyword.as_str() {
            "ARG" if !has_begun => {
                for word in words {
                    let (name, value) = word.split_once('=').unwrap_or((word, ""));
                    let value = value.trim_matches(['"', '\'']);
                    variables.insert(name.to_owned(), filled_in(value, &variables).unwrap_or_default());
                }
                None
            }
            "FROM" => {
                has_begun = true;
                let words: Vec<&str> = words.filter(|word| !word.starts_with("--")).collect();
                let named = words.first().and_then(|name| filled_in(name, &variables));
                let is_base = named.as_ref().is_some_and(|name| {
                    name != "scratch" && !stages.iter().any(|stage| stage.eq_ignore_ascii_case(name))
                });
                let stage =
                    words.get(2).filter(|_| words.get(1).is_some_and(|word| word.eq_ignore_ascii_case("as")));
                stages.push(stage.map_or_else(String::new, |name| (*name).to_owned()));
                named.filter(|_| is_base)
            }
            "COPY" => words
                .take_while(|word| word.starts_with("--"))
                .find_map(|word| word.strip_prefix("--from="))
                .filter(|name| name.parse::<usize>().is_err())
                .filter(|name| !stages.iter().any(|stage| stage.eq_ignore_ascii_case(name)))
                .filter(|name| !name.contains('$'))
                .map(str::to_owned),
            _ => None,
        };
        if let Some(name) = named.filter(|name| !name.is_empty() && !found.contains(name)) {
            found.push(name);
        }
    }
    found
}

/// Lines as Dockerfiles have them: continued ones joined, without comments.
fn instructions(text: &str) -> Vec<String> {
    let mut escape = '\\';
    for line in text.lines() {
        // Directives come before everything else.
        let Some((key, value)) = line.trim().strip_prefix('#').and_then(|line| line.split_once('=')) else {
            break;
        };
        if key.trim().eq_ignore_ascii_case("escape") && value.trim() == "`" {
            escape = '`';
        }
    }
    let mut all = Vec::new();
    let mut joined = String::new();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.strip_suffix(escape) {
            Some(begun) => {
                joined.push_str(begun);
                joined.push(' ');
            }
            None => {
                joined.push_str(line);
                all.push(std::mem::take(&mut joined));
            }
        }
    }
    all.push(joined);
    all
}

/// `$X`, `${X}`, `${X:-else}` and `${X:+then}`. Nothing if there is no value for one of them.
fn filled_in(text: &str, variables: &HashMap<String, String>) -> Option<String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let value = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
        if let Some(braced) = after.strip_prefix('{') {
            let (inner, tail) = braced.split_once('}')?;
            let filled = match (inner.split_once(":-"), inner.split_once(":+")) {
                (Some((name, other)), _) => value(name).unwrap_or_else(|| other.to_owned()),
                (None, Some((name, other))) => value(name).map_or_else(String::new, |_| other.to_owned()),
                (None, None) => value(inner)?,
            };
            result.push_str(&filled);
            rest = tail;
        } else {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
            result.push_str(&value(&after[..end])?);
            rest = &after[end..];
        }
    }
    result.push_str(rest);
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_told_from_stages() {
        let cases: &[(&str, &[&str])] = &[
            ("FROM ubuntu:24.04\nRUN true\n", &["ubuntu:24.04"]),
            (
                "# FROM no\nfrom --platform=linux/amd64 a:1 as Build\nFROM build\nCOPY --from=Build /x /x\n",
                &["a:1"],
            ),
            (
                "FROM scratch\nCOPY --from=busybox:1 /bin /bin\nCOPY --chown=1 --from=0 /a /a\nCOPY x --from=y /\n",
                &["busybox:1"],
            ),
            (
                "ARG TAG=3.13 FLAVOUR\nARG BASE=\"python:$TAG\"\nFROM ${BASE}${FLAVOUR:+-x}-slim\n",
                &["python:3.13-slim"],
            ),
            ("ARG X\nFROM ${X:-debian}:12\nFROM $X\n", &["debian:12"]),
            ("FROM \\\n# between\n  a:1 \\\n  AS x\nFROM a:1\n", &["a:1"]),
            ("# syntax=docker/dockerfile:1\n# escape=`\nFROM `\n  a:1\n", &["a:1"]),
            ("RUN echo FROM nothing\n", &[]),
            ("", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(bases(text), *expected, "{text}");
        }
    }
}
