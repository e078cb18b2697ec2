//! `image.toml`, and what a folder's parts together mean. Strict: a key that nobody knows may be the one that the operator
//! counts on.

use std::borrow::Cow;
use std::path::PathBuf;

use cove_protocol::Language;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Image, Origin, OwnLimits, Problem, Recipe, Source};
use crate::config::value::{self, KIB, MIB, Wrong};
use crate::config::{nearest, scalar_text};
use crate::error::shown;
use crate::session::registry::Lifetime;

/// Its name in every folder.
pub(super) const FILE: &str = "image.toml";
/// Characters of a description: agents read all of them.
const MAX_DESCRIPTION: usize = 300;

const KEYS: [&str; 6] = ["description", "languages", "image", "oneshot", "main", "limits"];
const LIMITS: [&str; 5] = ["memory", "cpus", "pids", "workspace", "tmp"];

/// What a folder has, before anybody judged it.
pub(super) struct Parts<'a> {
    pub(super) name: &'a str,
    pub(super) toml: Option<&'a str>,
    pub(super) has_dockerfile: bool,
    /// The name of its Compose file.
    pub(super) compose: Option<&'static str>,
    pub(super) place: Place,
    pub(super) origin: Origin,
}

pub(super) enum Place {
    BuiltIn(&'static str),
    Folder(PathBuf),
}

/// What `image.toml` says.
#[derive(Debug, Default, PartialEq)]
struct Settings {
    description: Option<String>,
    languages: Vec<Language>,
    image: Option<String>,
    oneshot: Option<bool>,
    main: Option<String>,
    limits: OwnLimits,
}

pub(super) fn image(parts: &Parts<'_>) -> Result<Image, Problem> {
    let name = parts.name;
    let settings = match parts.toml {
        Some(text) => read(name, text)?,
        None => Settings::default(),
    };
    let wrong = |problem: String, hint: &str| Err(Problem::new(name, problem, hint));
    let has = match (parts.compose, parts.has_dockerfile) {
        (Some(file), _) => Some(file),
        (None, true) => Some("Dockerfile"),
        (None, false) => None,
    };
    if let (Some(_), Some(file)) = (&settings.image, has) {
        return wrong(
            format!("could not choose between `image` in `{name}/{FILE}` and `{name}/{file}`"),
            "remove one of the two: `image` names an image that is there already",
        );
    }
    if parts.compose.is_none() && settings.main.is_some() {
        return wrong(
            format!("could not use `main` in `{name}/{FILE}`: there is no Compose file"),
            "leave `main` out, or add a `compose.yaml`",
        );
    }
    if parts.compose.is_some() && settings.oneshot == Some(true) {
        return wrong(
            format!("could not use `oneshot = true` in `{name}/{FILE}`: what a Compose file describes stays"),
            "leave `oneshot` out, or use a Dockerfile alone",
        );
    }
    let source = match (settings.image, parts.compose, has, &parts.place) {
        (Some(reference), ..) => Source::Reference(reference),
        (None, Some(_), _, Place::Folder(folder)) => {
            Source::Compose { folder: folder.clone(), main: settings.main }
        }
        (None, _, Some(_), Place::Folder(folder)) => Source::Folder(folder.clone()),
        (None, _, Some(_), Place::BuiltIn(name)) => Source::BuiltIn(name),
        (None, _, None, _) => {
            return wrong(
                format!(
                    "could not use the folder `{name}`: it has no Dockerfile, no Compose file, and no `{FILE}` with `image`"
                ),
                "add one of them, or remove the folder; names are as written here, capitals included",
            );
        }
    };
    let lifetime = match (parts.compose, settings.oneshot) {
        (Some(_), _) | (None, Some(false)) => Lifetime::Persistent,
        (None, _) => Lifetime::Oneshot,
    };
    let description = settings.description.unwrap_or_else(|| {
        match lifetime {
            Lifetime::Oneshot => "each call is a new program",
            Lifetime::Persistent => "state and files stay",
        }
        .to_owned()
    });
    Ok(Image {
        lifetime,
        // A shell is in nearly every image.
        speaks: settings.languages.first().copied().unwrap_or(Language::Sh),
        description,
        origin: parts.origin,
        recipe: Recipe { name: name.to_owned(), source, languages: settings.languages },
        limits: settings.limits,
    })
}

type Pair<'a> = (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

/// Reads one file; whatever is wrong in it is told with its line.
struct Reader<'a> {
    name: &'a str,
    text: &'a str,
}

fn read(name: &str, text: &str) -> Result<Settings, Problem> {
    let reader = Reader { name, text };
    let table = DeTable::parse(text).map_err(|error| {
        let line = reader.line(error.span().map_or(0, |span| span.start));
        Problem::new(
            name,
            format!("could not read `{name}/{FILE}`, line {line}: {}", shown(error.message())),
            "the file is TOML, with lines such as `oneshot = true`",
        )
    })?;
    let mut settings = Settings::default();
    for pair in in_order(table.get_ref()) {
        reader.setting(pair, &mut settings)?;
    }
    Ok(settings)
}

/// The table is in the order of its keys; the first mistake of the file is the one to tell.
fn in_order<'a>(table: &'a DeTable<'_>) -> Vec<Pair<'a>> {
    let mut pairs: Vec<Pair<'a>> = table.iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    pairs
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }

    fn setting(&self, (key, value): Pair<'_>, settings: &mut Settings) -> Result<(), Problem> {
        let refused = |wrong: Wrong| self.refused((key, value), &wrong);
        match key.get_ref().as_ref() {
            "description" => {
                settings.description = Some(description(string(value).map_err(refused)?).map_err(refused)?);
            }
            "languages" => settings.languages = languages(value).map_err(refused)?,
            "image" => settings.image = Some(reference(string(value).map_err(refused)?).map_err(refused)?),
            "oneshot" => match value.get_ref() {
                DeValue::Boolean(oneshot) => settings.oneshot = Some(*oneshot),
                _ => {
                    return Err(refused(Wrong::new(
                        "it is neither true nor false",
                        "write `true` or `false`",
                    )));
                }
            },
            "main" => settings.main = Some(main(string(value).map_err(refused)?).map_err(refused)?),
            "limits" => match value.get_ref() {
                DeValue::Table(table) => {
                    for pair in in_order(table) {
                        self.limit(pair, &mut settings.limits)?;
                    }
                }
                _ => {
                    return Err(refused(Wrong::new(
                        "it is not a table",
                        "write `[limits]` on a line of its own",
                    )));
                }
            },
            "network" => {
                let wrong = Wrong::new(
                    "an image does not choose its network",
                    "leave it out; `--network` holds for all images",
                );
                return Err(refused(wrong));
            }
            unknown => return Err(self.unknown(key, unknown, &KEYS, &format!("a key of `{FILE}`"))),
        }
        Ok(())
    }

    fn limit(&self, (key, value): Pair<'_>, limits: &mut OwnLimits) -> Result<(), Problem> {
        let refused = |wrong: Wrong| self.refused((key, value), &wrong);
        let text = || {
            scalar_text(value.get_ref()).ok_or_else(|| {
                refused(Wrong::new(
                    format!("it cannot be of type {}", value.get_ref().type_str()),
                    "write it as the flag has it, such as `memory = \"512m\"` or `cpus = 0.5`",
                ))
            })
        };
        match key.get_ref().as_ref() {
            "memory" => limits.memory = Some(value::size(&text()?, 16 * MIB).map_err(refused)?),
            "cpus" => limits.cpus = Some(value::cpus(&text()?).map_err(refused)?),
            "pids" => limits.pids = Some(value::pids(&text()?).map_err(refused)?),
            "workspace" => limits.workspace = Some(value::size(&text()?, 64 * KIB).map_err(refused)?),
            "tmp" => limits.tmp = Some(value::size(&text()?, 64 * KIB).map_err(refused)?),
            unknown => return Err(self.unknown(key, unknown, &LIMITS, "a limit")),
        }
        Ok(())
    }

    fn refused(&self, (key, value): Pair<'_>, wrong: &Wrong) -> Problem {
        let (name, line) = (self.name, self.line(value.span().start));
        let key = shown(key.get_ref());
        let written = match value.get_ref() {
            DeValue::Table(_) => format!("`{key}`"),
            _ => format!("`{key} = {}`", shown(&self.text[value.span()])),
        };
        let problem = format!("could not read {written} in `{name}/{FILE}`, line {line}: {}", wrong.cause);
        Problem::new(name, problem, &*wrong.hint)
    }

    fn unknown(&self, key: &Spanned<Cow<'_, str>>, written: &str, known: &[&str], what: &str) -> Problem {
        let (name, line) = (self.name, self.line(key.span().start));
        let written_safely = shown(written);
        let hint = match nearest(written, known.iter().copied()) {
            Some(key) => format!("did you mean `{key}`?"),
            None => format!("there are {}", known.join(", ")),
        };
        let problem =
            format!("could not read `{written_safely}` in `{name}/{FILE}`, line {line}: it is not {what}");
        Problem::new(name, problem, hint)
    }
}

fn string<'a>(value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, Wrong> {
    value.get_ref().as_str().ok_or_else(|| {
        Wrong::new(format!("it cannot be of type {}", value.get_ref().type_str()), "write a text in quotes")
    })
}

fn description(text: &str) -> Result<String, Wrong> {
    let fits = (1..=MAX_DESCRIPTION).contains(&text.chars().count());
    match fits && !text.chars().any(char::is_control) && !text.trim().is_empty() {
        true => Ok(text.trim().to_owned()),
        false => Err(Wrong::new(
            "it is no description",
            format!("write one line of at most {MAX_DESCRIPTION} characters"),
        )),
    }
}

fn languages(value: &Spanned<DeValue<'_>>) -> Result<Vec<Language>, Wrong> {
    let right = "write a list of python, node, bash and sh, such as `[\"python\", \"sh\"]`";
    let DeValue::Array(values) = value.get_ref() else {
        return Err(Wrong::new("it is not a list", right));
    };
    let mut languages = Vec::new();
    for value in values {
        let language: Language = string(value)?.parse().map_err(|_| {
            let written = shown(value.get_ref().as_str().unwrap_or_default());
            Wrong::new(format!("`{written}` is not a language that cells can have"), right)
        })?;
        if !languages.contains(&language) {
            languages.push(language);
        }
    }
    Ok(languages)
}

/// `name:tag`, `name@sha256:…` or `sha256:…`.
fn reference(text: &str) -> Result<String, Wrong> {
    let right = "write `name:tag`, or a digest as `name@sha256:…`";
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if text.len() > 256 || !begins || !text.chars().all(letters) {
        return Err(Wrong::new("it is not the name of an image", right));
    }
    // The first part may be a host, whose capitals count for nothing.
    let path = match text.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path,
        _ => text,
    };
    let name = path.split([':', '@']).next().unwrap_or_default();
    if name.contains(|c: char| c.is_ascii_uppercase()) {
        return Err(Wrong::new("the name of an image has no capitals", "write it in lower case"));
    }
    let is_digest = |digest: &str| digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit());
    let last = text.rsplit('/').next().unwrap_or(text);
    let is_exact = match text.split_once("sha256:") {
        Some((before, digest)) => is_digest(digest) && (before.is_empty() || before.ends_with('@')),
        None => {
            !text.contains('@')
                && last.split_once(':').is_some_and(|(name, tag)| !name.is_empty() && !tag.is_empty())
        }
    };
    match is_exact {
        true => Ok(text.to_owned()),
        false => Err(Wrong::new("it has no tag and no digest", right)),
    }
}

fn main(text: &str) -> Result<String, Wrong> {
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match (1..=128).contains(&text.len()) && text.chars().all(letters) {
        true => Ok(text.to_owned()),
        false => Err(Wrong::new(
            "it is not the name of one of its containers",
            "write the name that the Compose file has under `services`",
        )),
    }
}

#[cfg(test)]
mod tests;
