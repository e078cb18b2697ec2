//! Which images a Dockerfile needs before it can be built: what it begins with, what it copies from, and what the images
//! that it begins with have it do. A builder would fetch those that are missing without being asked to, so they are looked
//! for first.

mod lines;

use std::collections::BTreeMap;

use self::lines::{AMBIGUOUS, Line, filled_in, instructions, options, unquoted};

/// Values by name, as `ARG` has them.
pub(super) type Arguments = BTreeMap<String, String>;

/// Of which builders have values of their own, whatever the text says.
const OF_THE_BUILDER: [&str; 8] = [
    "BUILDPLATFORM",
    "BUILDOS",
    "BUILDARCH",
    "BUILDVARIANT",
    "TARGETPLATFORM",
    "TARGETOS",
    "TARGETARCH",
    "TARGETVARIANT",
];

/// What a Dockerfile asks for, as far as its text tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub images: Vec<Image>,
    /// Names of images with something in them that has no value.
    pub unclear: Vec<String>,
    /// What no builder may see, in words: one of Podman's ends, with all that it serves.
    pub wrong: Vec<String>,
    stages: Vec<Stage>,
}

/// One that has to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    pub name: String,
    pub platform: Option<Platform>,
    /// The stage that begins with it, where its own triggers count.
    stage: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Platform {
    /// Whatever the builder is on.
    Native,
    /// As in `linux/arm64`, in the form that all ways to write it share.
    Named(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Stage {
    /// In lower case.
    name: Option<String>,
    /// What is done when another begins with it.
    triggers: Vec<String>,
}

impl Needs {
    /// `given` are values that the builder is told, and that come before those in the text.
    pub(super) fn of(dockerfile: &str, given: &Arguments) -> Self {
        let mut needs = Self::default();
        let mut arguments: Arguments = OF_THE_BUILDER
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), given.get(*name)?.clone())))
            .collect();
        for line in instructions(dockerfile) {
            match line.keyword.as_str() {
                "ARG" if needs.stages.is_empty() => {
                    for word in line.rest.split_whitespace() {
                        let (name, default) = word.split_once('=').unwrap_or((word, ""));
                        let value = match given.get(name) {
                            Some(value) => value.clone(),
                            None => filled_in(unquoted(default), &arguments).unwrap_or_default(),
                        };
                        // With another value, builders differ in whose counts.
                        if !value.is_empty() || !OF_THE_BUILDER.contains(&name) {
                            arguments.insert(name.to_owned(), value);
                        }
                    }
                }
                "FROM" => needs.begins(&line, &arguments),
                AMBIGUOUS => needs.unclear.push(line.rest),
                "ONBUILD" => {
                    if let Some(stage) = needs.stages.last_mut() {
                        stage.triggers.push(line.rest.trim().to_owned());
                    }
                }
                _ => {
                    let current = needs.stages.len().saturating_sub(1);
                    needs.copies(&line, current, &format!("line {} of its Dockerfile", line.number));
                }
            }
        }
        needs
    }

    /// What an image adds by the triggers that it has, once it is known.
    pub(super) fn triggered(&self, by: &Image, triggers: &[String]) -> Self {
        let names = |stage: &Stage| Stage { name: stage.name.clone(), triggers: Vec::new() };
        let mut more = Self { stages: self.stages.iter().map(names).collect(), ..Self::default() };
        if let Some(stage) = by.stage {
            more.triggers(stage, triggers, &format!("`ONBUILD` of `{}`", crate::error::shown(&by.name)));
        }
        more
    }

    fn triggers(&mut self, stage: usize, triggers: &[String], place: &str) {
        for line in triggers.iter().flat_map(|trigger| instructions(trigger)) {
            // Nothing else may be one that leads to another image; whoever takes it nevertheless would fetch it.
            match line.keyword.as_str() {
                "FROM" | "ONBUILD" | AMBIGUOUS => {
                    self.unclear.push(format!("{} {}", line.keyword, line.rest.trim()))
                }
                _ => self.copies(&line, stage, place),
            }
        }
    }

    fn begins(&mut self, line: &Line, arguments: &Arguments) {
        let (options, rest) = options(&line.rest);
        let mut words = rest.split_whitespace();
        let written = words.next().unwrap_or_default();
        let is_named = words.next().is_some_and(|word| word.eq_ignore_ascii_case("as"));
        let name = words.next().filter(|_| is_named).map(str::to_ascii_lowercase);
        let stage = self.stages.len();
        let begun = self.named(written, stage).map(|earlier| self.stages[earlier].triggers.clone());
        let platform = options.iter().find_map(|option| option.strip_prefix("--platform="));
        match (&begun, platform.map(|platform| (platform, Platform::of(platform, arguments)))) {
            (None, Some((written, None))) => self.unclear.push(format!("--platform={written}")),
            (None, Some((_, platform))) => self.image(written, platform, Some(stage), arguments),
            (None, None) => self.image(written, None, Some(stage), arguments),
            (Some(_), _) => {}
        }
        self.stages.push(Stage { name, triggers: Vec::new() });
        self.triggers(stage, &begun.unwrap_or_default(), &format!("line {} of its Dockerfile", line.number));
    }

    /// What a line takes from elsewhere.
    fn copies(&mut self, line: &Line, stage: usize, place: &str) {
        if !["COPY", "ADD", "RUN"].contains(&line.keyword.as_str()) {
            return;
        }
        for from in options(&line.rest).0.iter().filter_map(|option| source(option)) {
            match from.parse::<usize>() {
                Ok(number) if number >= stage => self.wrong.push(format!(
                    "{place} copies from stage {number}, and {}",
                    match stage {
                        0 => "there is none before it".to_owned(),
                        1 => "the only one before it is 0".to_owned(),
                        _ => format!("the last one before it is {}", stage - 1),
                    }
                )),
                Ok(_) => {}
                // Builders differ in which values they put there.
                Err(_) if from.contains('$') => self.unclear.push(from.to_owned()),
                Err(_) if self.named(from, stage).is_some() => {}
                Err(_) => self.image(from, None, None, &Arguments::new()),
            }
        }
    }

    /// The stage of that name, before another.
    fn named(&self, name: &str, before: usize) -> Option<usize> {
        let name = Some(unquoted(name).to_ascii_lowercase());
        self.stages.iter().take(before).rposition(|stage| stage.name == name)
    }

    fn image(
        &mut self,
        written: &str,
        platform: Option<Platform>,
        stage: Option<usize>,
        arguments: &Arguments,
    ) {
        // The builder says best what is wrong with a line that ends too soon.
        if written.is_empty() {
            return;
        }
        // Builders know more about quotes and backslashes than we do.
        let is_plain = |name: &String| !name.is_empty() && !name.contains(['"', '\'', '\\', '$']);
        let Some(name) = filled_in(unquoted(written), arguments).filter(is_plain) else {
            self.unclear.push(written.to_owned());
            return;
        };
        if name == "scratch" {
            return;
        }
        // By a value: the stage is the same.
        if let Some(earlier) = self.named(&name, self.stages.len()) {
            let triggers = self.stages[earlier].triggers.clone();
            if let Some(stage) = stage {
                self.triggers(stage, &triggers, &format!("`ONBUILD` of `{}`", crate::error::shown(&name)));
            }
            return;
        }
        let image = Image { name, platform, stage };
        if !self.images.contains(&image) {
            self.images.push(image);
        }
    }
}

impl Platform {
    /// Nothing where builders could read it differently.
    fn of(written: &str, arguments: &Arguments) -> Option<Self> {
        let native = ["$BUILDPLATFORM", "${BUILDPLATFORM}", "$TARGETPLATFORM", "${TARGETPLATFORM}"];
        if native.contains(&unquoted(written)) {
            let name = unquoted(written).trim_matches(['$', '{', '}']);
            return (!arguments.contains_key(name)).then_some(Self::Native);
        }
        let filled = filled_in(unquoted(written), arguments)?;
        let parts: Vec<&str> = filled.split('/').collect();
        match parts[..] {
            [os, architecture] => Some(Self::named(os, architecture, "")),
            [os, architecture, variant] => Some(Self::named(os, architecture, variant)),
            _ => None,
        }
    }

    /// As images and builders tell it of themselves.
    pub(super) fn named(os: &str, architecture: &str, variant: &str) -> Self {
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

/// `--from=X`, and `--mount=from=X,...`.
fn source(option: &str) -> Option<&str> {
    let (name, value) = option.split_once('=')?;
    match name.to_ascii_lowercase().as_str() {
        "--from" => Some(unquoted(value)),
        "--mount" => value.split(',').find_map(|part| {
            let (key, value) = part.split_once('=')?;
            key.trim().eq_ignore_ascii_case("from").then_some(value)
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
