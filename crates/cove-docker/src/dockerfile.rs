//! Finds the images that a Dockerfile needs: its base images, images that it copies from, and images that the `ONBUILD`
//! triggers of its base images need. A builder would pull missing ones without permission, so Cove checks them first.

#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/dockerfile.rs"]
pub(crate) mod exercise;
mod lines;

use std::collections::BTreeMap;

use cove_core::error::display_value;

use self::lines::{AMBIGUOUS, DockerfileLine, expand_variables, parse_lines, split_options, unquote};

/// Values of `ARG`, by name.
pub(super) type BuildArguments = BTreeMap<String, String>;

/// Arguments that builders set themselves, whatever the Dockerfile says.
const BUILDER_ARGUMENTS: [&str; 8] = [
    "BUILDPLATFORM",
    "BUILDOS",
    "BUILDARCH",
    "BUILDVARIANT",
    "TARGETPLATFORM",
    "TARGETOS",
    "TARGETARCH",
    "TARGETVARIANT",
];

/// Most stages, and most lines that stages inherit from earlier ones as triggers. Each stage runs the triggers of the one
/// that it starts from, so a short text could stand for a very long one.
const MAX_STAGES: usize = 500;
const MAX_INHERITED_LINES: usize = 5_000;
/// Most names and problems that are kept of each kind. The first alone decides.
const MAX_NOTES: usize = 100;

/// What a Dockerfile needs, as far as its text shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DockerfileNeeds {
    pub images: Vec<RequiredImage>,
    /// Image names that contain a variable without a known value.
    pub unresolved: Vec<String>,
    /// Problems for which a Dockerfile must not reach a builder: Podman's crashes on them, and its whole service with
    /// it.
    pub problems: Vec<String>,
    stages: Vec<BuildStage>,
    inherited_lines: usize,
}

/// An image that must be present before the build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequiredImage {
    pub name: String,
    pub platform: Option<ImagePlatform>,
    /// The stage that starts from this image, and in which its triggers run. `None` if it is only copied from.
    stage: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImagePlatform {
    /// The builder's own platform.
    Native,
    /// A platform such as `linux/arm64`, in normalised spelling.
    Named(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct BuildStage {
    /// The stage's name in lower case.
    name: Option<String>,
    /// Instructions that run when another stage starts from this one.
    triggers: Vec<String>,
}

impl DockerfileNeeds {
    /// Reads a Dockerfile. `given` are the build arguments; they override defaults in the text.
    pub(super) fn parse(dockerfile: &str, given: &BuildArguments) -> Self {
        let mut needs = Self::default();
        let mut arguments: BuildArguments =
            BUILDER_ARGUMENTS.iter().filter_map(|name| Some(((*name).to_owned(), given.get(*name)?.clone()))).collect();
        for line in parse_lines(dockerfile) {
            match line.keyword.as_str() {
                "ARG" if needs.stages.is_empty() => {
                    for word in line.rest.split_whitespace() {
                        let (name, default) = word.split_once('=').unwrap_or((word, ""));
                        let value = match given.get(name) {
                            Some(value) => value.clone(),
                            None => expand_variables(unquote(default), &arguments).unwrap_or_default(),
                        };
                        // Ignore an empty builder argument: the builder's own value applies. For other values, builders
                        // disagree which counts.
                        if !value.is_empty() || !BUILDER_ARGUMENTS.contains(&name) {
                            arguments.insert(name.to_owned(), value);
                        }
                    }
                }
                "FROM" if needs.stages.len() == MAX_STAGES => {
                    needs.problems.insert(0, format!("its Dockerfile has more than {MAX_STAGES} stages"));
                    return needs;
                }
                "FROM" => needs.add_stage(&line, &arguments),
                AMBIGUOUS => note(&mut needs.unresolved, line.rest),
                "ONBUILD" => {
                    if let Some(stage) = needs.stages.last_mut() {
                        stage.triggers.push(line.rest.trim().to_owned());
                    }
                }
                _ => {
                    let current = needs.stages.len().saturating_sub(1);
                    needs.add_copied_images(&line, current, &format!("line {} of its Dockerfile", line.number));
                }
            }
        }
        needs
    }

    /// Returns what the triggers of the image `by` need in addition.
    pub(super) fn needs_of_triggers(&self, by: &RequiredImage, triggers: &[String]) -> Self {
        let names = |stage: &BuildStage| BuildStage { name: stage.name.clone(), triggers: Vec::new() };
        let mut more = Self { stages: self.stages.iter().map(names).collect(), ..Self::default() };
        if let Some(stage) = by.stage {
            more.add_triggers(stage, triggers, &format!("`ONBUILD` of `{}`", display_value(&by.name)));
        }
        more
    }

    fn add_triggers(&mut self, stage: usize, triggers: &[String], place: &str) {
        for line in triggers.iter().flat_map(|trigger| parse_lines(trigger)) {
            self.inherited_lines += 1;
            if self.inherited_lines == MAX_INHERITED_LINES + 1 {
                let what = format!("{place} brings the lines of `ONBUILD` to more than {MAX_INHERITED_LINES}");
                self.problems.insert(0, what);
            }
            if self.inherited_lines > MAX_INHERITED_LINES {
                return;
            }
            // A trigger may not contain these. A builder that accepts them nevertheless would pull an image.
            match line.keyword.as_str() {
                "FROM" | "ONBUILD" | AMBIGUOUS => {
                    note(&mut self.unresolved, format!("{} {}", line.keyword, line.rest.trim()))
                }
                _ => self.add_copied_images(&line, stage, place),
            }
        }
    }

    fn add_stage(&mut self, line: &DockerfileLine, arguments: &BuildArguments) {
        let (options, rest) = split_options(&line.rest);
        let mut words = rest.split_whitespace();
        let written = words.next().unwrap_or_default();
        let is_named = words.next().is_some_and(|word| word.eq_ignore_ascii_case("as"));
        let name = words.next().filter(|_| is_named).map(str::to_ascii_lowercase);
        let stage = self.stages.len();
        let begun = self.find_stage(written, stage).map(|earlier| self.stages[earlier].triggers.clone());
        let named = options.iter().find_map(|option| option.strip_prefix("--platform="));
        let platform = named.and_then(|platform| ImagePlatform::parse(platform, arguments));
        match (&begun, named) {
            (None, Some(named)) if platform.is_none() => note(&mut self.unresolved, format!("--platform={named}")),
            (None, _) => self.add_image(written, platform, Some(stage), arguments),
            (Some(_), _) => {}
        }
        self.stages.push(BuildStage { name, triggers: Vec::new() });
        self.add_triggers(stage, &begun.unwrap_or_default(), &format!("line {} of its Dockerfile", line.number));
    }

    /// Adds the images and stages that a `COPY`, `ADD` or `RUN` line reads from.
    fn add_copied_images(&mut self, line: &DockerfileLine, stage: usize, place: &str) {
        if !["COPY", "ADD", "RUN"].contains(&line.keyword.as_str()) {
            return;
        }
        for from in split_options(&line.rest).0.iter().filter_map(|option| option_source(option)) {
            match from.parse::<usize>() {
                Ok(number) if number >= stage => {
                    let before = match stage {
                        0 => "there is none before it".to_owned(),
                        1 => "the only one before it is 0".to_owned(),
                        _ => format!("the last one before it is {}", stage - 1),
                    };
                    note(&mut self.problems, format!("{place} copies from stage {number}, and {before}"));
                }
                Ok(_) => {}
                // Builders disagree about which variables they expand here.
                Err(_) if from.contains('$') => note(&mut self.unresolved, from.to_owned()),
                Err(_) if self.find_stage(from, stage).is_some() => {}
                Err(_) => self.add_image(from, None, None, &BuildArguments::new()),
            }
        }
    }

    /// Returns the last stage of that name before the stage `before`.
    fn find_stage(&self, name: &str, before: usize) -> Option<usize> {
        let name = Some(unquote(name).to_ascii_lowercase());
        self.stages.iter().take(before).rposition(|stage| stage.name == name)
    }

    fn add_image(
        &mut self,
        written: &str,
        platform: Option<ImagePlatform>,
        stage: Option<usize>,
        arguments: &BuildArguments,
    ) {
        // The builder itself reports an incomplete line best.
        if written.is_empty() {
            return;
        }
        // Builders treat quotes and backslashes in more ways than this parser, so such names stay unresolved.
        let is_plain = |name: &String| !name.is_empty() && !name.contains(['"', '\'', '\\', '$']);
        let Some(name) = expand_variables(unquote(written), arguments).filter(is_plain) else {
            note(&mut self.unresolved, written.to_owned());
            return;
        };
        if name == "scratch" {
            return;
        }
        // A variable can also expand to the name of an earlier stage.
        if let Some(earlier) = self.find_stage(&name, self.stages.len()) {
            let triggers = self.stages[earlier].triggers.clone();
            if let Some(stage) = stage {
                self.add_triggers(stage, &triggers, &format!("`ONBUILD` of `{}`", display_value(&name)));
            }
            return;
        }
        let image = RequiredImage { name, platform, stage };
        if !self.images.contains(&image) {
            self.images.push(image);
        }
    }
}

impl ImagePlatform {
    /// Parses a `--platform` value. Returns `None` if builders could read it differently.
    fn parse(written: &str, arguments: &BuildArguments) -> Option<Self> {
        let native = ["$BUILDPLATFORM", "${BUILDPLATFORM}", "$TARGETPLATFORM", "${TARGETPLATFORM}"];
        if native.contains(&unquote(written)) {
            let name = unquote(written).trim_matches(['$', '{', '}']);
            return (!arguments.contains_key(name)).then_some(Self::Native);
        }
        let filled = expand_variables(unquote(written), arguments)?;
        let parts: Vec<&str> = filled.split('/').collect();
        match parts[..] {
            [os, architecture] => Some(Self::from_parts(os, architecture, "")),
            [os, architecture, variant] => Some(Self::from_parts(os, architecture, variant)),
            _ => None,
        }
    }

    /// Normalises a platform as images and builders report it.
    pub(super) fn from_parts(os: &str, architecture: &str, variant: &str) -> Self {
        let [os, architecture, variant] = [os, architecture, variant].map(str::to_ascii_lowercase);
        let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
            ("amd64" | "x86_64" | "x86-64", "" | "v1") => ("amd64", ""),
            ("arm64" | "aarch64", "" | "8" | "v8") => ("arm64", ""),
            ("arm", "" | "7" | "v7") | ("armhf", _) => ("arm", "v7"),
            ("i386" | "386", _) => ("386", ""),
            other => other,
        };
        let parts = [&os, architecture, variant];
        Self::Named(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"))
    }
}

/// Adds a text to a list that does not grow beyond its bound.
fn note(list: &mut Vec<String>, text: String) {
    if list.len() < MAX_NOTES && !list.contains(&text) {
        list.push(text);
    }
}

/// Returns the source of `--from=X` or `--mount=from=X,...`.
fn option_source(option: &str) -> Option<&str> {
    let (name, value) = option.split_once('=')?;
    match name.to_ascii_lowercase().as_str() {
        "--from" => Some(unquote(value)),
        "--mount" => value.split(',').find_map(|part| {
            let (key, value) = part.split_once('=')?;
            key.trim().eq_ignore_ascii_case("from").then_some(value)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
