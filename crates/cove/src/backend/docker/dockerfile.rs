//! Which images a Dockerfile needs before it can be built: what it begins with and what it copies from. A builder would
//! fetch those that are missing without being asked to, so they are looked for first.

use std::collections::BTreeMap;

/// Values by name, as `ARG` has them.
pub(super) type Arguments = BTreeMap<String, String>;

/// What a Dockerfile asks for, as far as its text tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub images: Vec<String>,
    /// Names of images with something in them that has no value.
    pub unclear: Vec<String>,
}

impl Needs {
    /// `given` are values that the builder is told, and that come before those in the text.
    pub(super) fn of(dockerfile: &str, given: &Arguments) -> Self {
        let mut needs = Self::default();
        let mut arguments = Arguments::new();
        let mut stages: Vec<String> = Vec::new();
        let mut has_begun = false;
        for line in instructions(dockerfile, escape(dockerfile)) {
            let mut words = line.split_whitespace();
            let keyword = words.next().unwrap_or_default().to_ascii_uppercase();
            match keyword.as_str() {
                "ARG" if !has_begun => {
                    for word in words {
                        let (name, default) = word.split_once('=').unwrap_or((word, ""));
                        let value = match given.get(name) {
                            Some(value) => value.clone(),
                            None => filled_in(unquoted(default), &arguments).unwrap_or_default(),
                        };
                        arguments.insert(name.to_owned(), value);
                    }
                }
                "FROM" => {
                    has_begun = true;
                    let mut words = words.filter(|word| !word.starts_with("--"));
                    needs.image(words.next().unwrap_or_default(), &stages, &arguments);
                    let is_named = words.next().is_some_and(|word| word.eq_ignore_ascii_case("as"));
                    stages.extend(words.next().filter(|_| is_named).map(str::to_ascii_lowercase));
                }
                "COPY" | "ADD" | "RUN" => {
                    let options = words.take_while(|word| word.starts_with("--"));
                    for from in options.filter_map(source).filter(|from| from.parse::<usize>().is_err()) {
                        needs.image(from, &stages, &arguments);
                    }
                }
                _ => {}
            }
        }
        needs
    }

    fn image(&mut self, written: &str, stages: &[String], arguments: &Arguments) {
        // The builder says best what is wrong with a line that ends too soon.
        if written.is_empty() {
            return;
        }
        let Some(name) = filled_in(unquoted(written), arguments).filter(|name| !name.is_empty()) else {
            self.unclear.push(written.to_owned());
            return;
        };
        if name != "scratch" && !stages.contains(&name.to_ascii_lowercase()) && !self.images.contains(&name) {
            self.images.push(name);
        }
    }
}

/// `--from=X`, and `--mount=from=X,...`.
fn source(option: &str) -> Option<&str> {
    option.strip_prefix("--from=").or_else(|| {
        option.strip_prefix("--mount=")?.split(',').find_map(|part| part.strip_prefix("from=")).map(unquoted)
    })
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

/// What continues a line, which comments before everything else may say.
fn escape(text: &str) -> char {
    for line in text.lines() {
        let Some((key, value)) = line.trim().strip_prefix('#').and_then(|line| line.split_once('=')) else {
            break;
        };
        if key.trim().eq_ignore_ascii_case("escape") && value.trim() == "`" {
            return '`';
        }
    }
    '\\'
}

/// Lines as Dockerfiles have them: continued ones joined, without comments.
fn instructions(text: &str, escape: char) -> Vec<String> {
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
fn filled_in(text: &str, arguments: &Arguments) -> Option<String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        let value = |name: &str| arguments.get(name).filter(|value| !value.is_empty()).cloned();
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

    #[track_caller]
    fn check(text: &str, images: &[&str], unclear: &[&str]) {
        let given = Arguments::from([("GIVEN".to_owned(), "9".to_owned())]);
        let needs = Needs::of(text, &given);
        assert_eq!((needs.images, needs.unclear), (owned(images), owned(unclear)), "{text}");
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn images_are_told_from_stages() {
        check("FROM ubuntu:24.04\nRUN true\n", &["ubuntu:24.04"], &[]);
        check(
            "# FROM no\nfrom --platform=linux/amd64 a:1 as Build\nFROM build\nCOPY --from=Build /x /x\n",
            &["a:1"],
            &[],
        );
        check(
            "FROM scratch\nCOPY --from=busybox:1 /bin /bin\nCOPY --chown=1 --from=0 /a /a\nCOPY x --from=y /\n",
            &["busybox:1"],
            &[],
        );
        check("FROM a AS B\nFROM c\nCOPY --from=b /x /x\nADD --from=d /x /x\n", &["a", "c", "d"], &[]);
        check("FROM a\nRUN --mount=type=bind,from=\"other\",target=/x true\n", &["a", "other"], &[]);
        check("RUN echo FROM nothing\n", &[], &[]);
        check("", &[], &[]);
    }

    #[test]
    fn names_are_filled_in() {
        check(
            "ARG TAG=3.13 FLAVOUR\nARG BASE=\"python:$TAG\"\nFROM ${BASE}${FLAVOUR:+-x}-slim\n",
            &["python:3.13-slim"],
            &[],
        );
        check("ARG GIVEN=1\nFROM a:$GIVEN\n", &["a:9"], &[]);
        check("ARG GIVEN\nFROM a:${GIVEN}\n", &["a:9"], &[]);
        // Nobody is told of a value that the text does not ask for.
        check("FROM a:$GIVEN\n", &[], &["a:$GIVEN"]);
        check("ARG X\nFROM ${X:-debian}:12\nFROM $X\n", &["debian:12"], &["$X"]);
        check("FROM a\nCOPY --from=$X /x /x\nFROM ${X\nFROM\n", &["a"], &["$X", "${X"]);
    }

    #[test]
    fn lines_are_joined_as_the_text_says() {
        check("FROM \\\n# between\n  a:1 \\\r\n  AS x\r\nFROM a:1\n", &["a:1"], &[]);
        check("# syntax=docker/dockerfile:1\n# escape=`\nFROM `\n  a:1\n", &["a:1"], &[]);
    }
}
