//! Reads `image.toml` and combines it with the other files of an image's folder. Unknown keys are refused, because the
//! operator may rely on one of them.

use std::path::PathBuf;

use cove_protocol::Language;

use super::{Image, ImageLimits, ImageOrigin, ImageReadiness};
use crate::document::{ConfigDocument, DocumentFormat, DocumentMember, DocumentNode, unknown_key_hint};
use crate::error::{Refusal, display_value};
use crate::policy::readiness::{MAX_PRELOADED, MAX_WARM, WarmTarget, check_module};
use crate::policy::{ImageRecipe, ImageSource, SessionLifetime};
use crate::units::{self, KIB, MIB};

/// The name of the file in every folder.
pub(super) const FILE: &str = "image.toml";
/// In characters: agents read the descriptions of all images.
const MAX_DESCRIPTION: usize = 300;

const KEYS: [&str; 8] = ["description", "languages", "image", "oneshot", "main", "warm", "preload", "limits"];
const LIMITS: [&str; 5] = ["memory", "cpus", "pids", "workspace", "tmp"];

/// The contents of a folder, before they are checked.
pub(super) struct ImageFolderParts<'a> {
    pub(super) name: &'a str,
    pub(super) toml: Option<&'a str>,
    pub(super) has_dockerfile: bool,
    /// The name of its Compose file.
    pub(super) compose: Option<&'static str>,
    pub(super) place: ImagePlace,
    pub(super) origin: ImageOrigin,
}

pub(super) enum ImagePlace {
    BuiltIn(&'static str),
    Folder(PathBuf),
}

/// The values of an `image.toml`.
#[derive(Debug, Default, PartialEq)]
struct ImageSettings {
    description: Option<String>,
    languages: Vec<Language>,
    image: Option<String>,
    oneshot: Option<bool>,
    main: Option<String>,
    limits: ImageLimits,
    readiness: ImageReadiness,
}

/// Returns the image that a folder defines. Fails if its files contradict each other or do not define an image.
pub(super) fn image(parts: &ImageFolderParts<'_>) -> Result<Image, Refusal> {
    let name = parts.name;
    let settings = match parts.toml {
        Some(text) => read(name, text)?,
        None => ImageSettings::default(),
    };
    let wrong = |problem: String, hint: &str| Err(Refusal::new(problem, hint));
    let has = match (parts.compose, parts.has_dockerfile) {
        (Some(file), _) => Some(file),
        (None, true) => Some("Dockerfile"),
        (None, false) => None,
    };
    if let (Some(_), Some(file)) = (&settings.image, has) {
        return wrong(
            format!("could not choose between `image` in `{name}/{FILE}` and `{name}/{file}`"),
            "remove one of the two: `image` names an image that exists already",
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
            format!("could not use `oneshot = true` in `{name}/{FILE}`: the containers of a Compose file stay"),
            "leave `oneshot` out, or use only a Dockerfile",
        );
    }
    let source = match (settings.image, parts.compose, has, &parts.place) {
        (Some(reference), ..) => ImageSource::Reference(reference),
        (None, Some(_), _, ImagePlace::Folder(folder)) => {
            ImageSource::Compose { folder: folder.clone(), main: settings.main }
        }
        (None, _, Some(_), ImagePlace::Folder(folder)) => ImageSource::Folder(folder.clone()),
        (None, _, Some(_), ImagePlace::BuiltIn(name)) => ImageSource::BuiltIn(name),
        (None, _, None, _) => {
            return wrong(
                format!(
                    "could not use the folder `{name}`: it has no Dockerfile, no Compose file, and no `{FILE}` with `image`"
                ),
                "add one of them, or remove the folder; the names are case-sensitive",
            );
        }
    };
    let lifetime = match (parts.compose, settings.oneshot) {
        (Some(_), _) | (None, Some(false)) => SessionLifetime::Persistent,
        (None, _) => SessionLifetime::Oneshot,
    };
    let description = settings.description.unwrap_or_else(|| {
        match lifetime {
            SessionLifetime::Oneshot => "each call is a new program",
            SessionLifetime::Persistent => "state and files stay",
        }
        .to_owned()
    });
    Ok(Image {
        lifetime,
        // Nearly every image has a shell.
        line_language: settings.languages.first().copied().unwrap_or(Language::Sh),
        description,
        origin: parts.origin,
        recipe: ImageRecipe { name: name.to_owned(), source, languages: settings.languages },
        limits: settings.limits,
        readiness: settings.readiness,
    })
}

/// Reads one `image.toml`. The cause of a refusal names the line.
fn read(name: &str, text: &str) -> Result<ImageSettings, Refusal> {
    let document = ConfigDocument::parse(DocumentFormat::Toml, text).map_err(|error| {
        Refusal::new(
            format!("could not read `{name}/{FILE}`, line {}: {}", error.line, display_value(&error.message)),
            "the file is TOML, with lines such as `oneshot = true`",
        )
    })?;
    let check = |member: &DocumentMember, was_set: Result<bool, Refusal>, known: &[&str], kind: &str| {
        let (written, line, wrong) = match was_set {
            Ok(true) => return Ok(()),
            Ok(false) => {
                let unknown = Refusal::new(format!("it is not {kind}"), unknown_key_hint(&member.key, known));
                (format!("`{}`", display_value(&member.key)), member.line, unknown)
            }
            Err(wrong) => (document.quote(&member.key, &member.node), member.node.line, wrong),
        };
        let cause = format!("could not read {written} in `{name}/{FILE}`, line {line}: {}", wrong.cause);
        Err(Refusal::new(cause, wrong.hint))
    };
    let mut settings = ImageSettings::default();
    for member in document.members() {
        match (member.key.as_str(), member.node.members()) {
            ("limits", Some(limits)) => {
                for limit in limits {
                    check(limit, set_limit(&mut settings.limits, limit), &LIMITS, "a limit")?;
                }
            }
            _ => check(member, settings.set(member), &KEYS, &format!("a key of `{FILE}`"))?,
        }
    }
    Ok(settings)
}

impl ImageSettings {
    /// Sets the value of a key, except those of `[limits]`. Returns false if there is no such key.
    fn set(&mut self, member: &DocumentMember) -> Result<bool, Refusal> {
        let node = &member.node;
        let wrong = |cause: &str, hint: &str| Err(Refusal::new(cause, hint));
        match member.key.as_str() {
            "description" => self.description = Some(description(string(node)?)?),
            "languages" => self.languages = languages(node)?,
            "image" => self.image = Some(reference(string(node)?)?),
            "oneshot" => match node.boolean() {
                Some(oneshot) => self.oneshot = Some(oneshot),
                None => return wrong("it is neither true nor false", "write `true` or `false`"),
            },
            "main" => self.main = Some(main(string(node)?)?),
            "warm" => self.readiness.warm = Some(warm(node)?),
            "preload" => self.readiness.preload = Some(preload(node)?),
            "limits" => return wrong("it is not a table", "write `[limits]` on a line of its own"),
            "network" => {
                return wrong("an image does not choose its network", "leave it out; `--network` holds for all images");
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Sets a limit. Returns false if there is no such limit.
fn set_limit(limits: &mut ImageLimits, member: &DocumentMember) -> Result<bool, Refusal> {
    let node = &member.node;
    let text = || {
        let right = "write it like the flag, such as `memory = \"512m\"` or `cpus = 0.5`";
        node.text_or_number().ok_or_else(|| Refusal::new(format!("it cannot be {}", node.kind()), right))
    };
    match member.key.as_str() {
        "memory" => limits.memory = Some(units::size(text()?, 16 * MIB)?),
        "cpus" => limits.cpus = Some(units::cpus(text()?)?),
        "pids" => limits.pids = Some(units::pids(text()?)?),
        "workspace" => limits.workspace = Some(units::size(text()?, 64 * KIB)?),
        "tmp" => limits.tmp = Some(units::size(text()?, 64 * KIB)?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn string(node: &DocumentNode) -> Result<&str, Refusal> {
    node.text().ok_or_else(|| Refusal::new(format!("it cannot be {}", node.kind()), "write a string in quotes"))
}

fn description(text: &str) -> Result<String, Refusal> {
    let fits = (1..=MAX_DESCRIPTION).contains(&text.chars().count());
    match fits && !text.chars().any(char::is_control) && !text.trim().is_empty() {
        true => Ok(text.trim().to_owned()),
        false => Err(Refusal::new(
            "it is not a valid description",
            format!("write one line of at most {MAX_DESCRIPTION} characters"),
        )),
    }
}

fn languages(node: &DocumentNode) -> Result<Vec<Language>, Refusal> {
    let right = "write a list of python, node, bash and sh, such as `[\"python\", \"sh\"]`";
    let items = node.items().ok_or_else(|| Refusal::new("it is not a list", right))?;
    let mut languages = Vec::new();
    for item in items {
        let text = string(item)?;
        let language = text.parse().map_err(|_| Refusal::of_value(text, "is not supported", right))?;
        if !languages.contains(&language) {
            languages.push(language);
        }
    }
    Ok(languages)
}

/// Checks a reference: `name:tag`, `name@sha256:…` or `sha256:…`.
fn reference(text: &str) -> Result<String, Refusal> {
    let right = "write `name:tag`, or a digest as `name@sha256:…`";
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if text.len() > 256 || !starts_well || !text.chars().all(is_allowed) {
        return Err(Refusal::new("it is not the name of an image", right));
    }
    // The first part may be a host, whose case does not matter.
    let path = match text.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => path,
        _ => text,
    };
    let name = path.split([':', '@']).next().unwrap_or_default();
    if name.contains(|c: char| c.is_ascii_uppercase()) {
        return Err(Refusal::new("the name of an image cannot have capital letters", "write it in lower case"));
    }
    let is_digest = |digest: &str| digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit());
    let last = text.rsplit('/').next().unwrap_or(text);
    let is_exact = match text.split_once("sha256:") {
        Some((before, digest)) => is_digest(digest) && (before.is_empty() || before.ends_with('@')),
        None => {
            !text.contains('@') && last.split_once(':').is_some_and(|(name, tag)| !name.is_empty() && !tag.is_empty())
        }
    };
    match is_exact {
        true => Ok(text.to_owned()),
        false => Err(Refusal::new("it has no tag and no digest", right)),
    }
}

fn main(text: &str) -> Result<String, Refusal> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match (1..=128).contains(&text.len()) && text.chars().all(is_allowed) {
        true => Ok(text.to_owned()),
        false => Err(Refusal::new(
            "it is not the name of one of its containers",
            "write the name that the Compose file has under `services`",
        )),
    }
}

/// Stricter than the setting of the same name: an image with a mistake is listed with its problem, and the server
/// works without it.
fn warm(node: &DocumentNode) -> Result<WarmTarget, Refusal> {
    let right = format!("write a number from 0 to {MAX_WARM}, or `\"auto\"`");
    let text =
        node.text_or_number().ok_or_else(|| Refusal::new(format!("it cannot be {}", node.kind()), right.as_str()))?;
    match WarmTarget::parse(text) {
        Ok(WarmTarget::Fixed(count)) if count > MAX_WARM => {
            Err(Refusal::of_value(text, "is more sessions than Cove keeps ready", right))
        }
        Ok(target) => Ok(target),
        Err(refusal) => Err(Refusal { hint: right, ..refusal }),
    }
}

fn preload(node: &DocumentNode) -> Result<Vec<String>, Refusal> {
    let right = "write a list of names, such as `[\"numpy\", \"os.path\"]`";
    let items = node.items().ok_or_else(|| Refusal::new("it is not a list", right))?;
    let mut modules = Vec::new();
    for item in items {
        let module = string(item)?;
        check_module(module)?;
        if !modules.iter().any(|known| known == module) {
            modules.push(module.to_owned());
        }
    }
    match modules.len() > MAX_PRELOADED {
        true => Err(Refusal::new(
            format!("it has {} modules", modules.len()),
            format!("name at most {MAX_PRELOADED}; a module may import others"),
        )),
        false => Ok(modules),
    }
}

#[cfg(test)]
mod tests;
