//! What a Dockerfile needs is there before a builder sees it: by its name, for the platform that is asked for, and with
//! what the triggers of the images need in turn. Builders fetch what is missing, and not all can be told not to.

use bollard::Docker;
use bollard::models::ImageInspect;

use super::super::dockerfile::{Image, Needs, Platform};
use super::super::unanswered;
use super::{fetch, inspect};
use crate::backend::{StartError, Tell};
use crate::error::shown;

pub(super) async fn are_there(
    docker: &Docker,
    result: &str,
    needs: Needs,
    pull: bool,
    tell: Tell<'_>,
) -> Result<(), StartError> {
    is_fit(result, &needs, pull)?;
    let builder = Builder::ask(docker).await?;
    for base in &needs.images {
        let image = is_there(&builder, result, base, pull, tell).await?;
        let triggers = builder.triggers(base, image).await?;
        let more = needs.triggered(base, &triggers);
        is_fit(result, &more, pull)?;
        for image in &more.images {
            is_there(&builder, result, image, pull, tell).await?;
        }
    }
    Ok(())
}

/// Whether a builder may see it at all.
fn is_fit(result: &str, needs: &Needs, pull: bool) -> Result<(), StartError> {
    if let Some(wrong) = needs.wrong.first() {
        return Err(StartError::new(format!("could not build {result}")).because(wrong.clone()).with_hint(
            "stages count from 0; `--from` takes one that comes before, by its number or its name",
        ));
    }
    match needs.unclear.first().filter(|_| !pull) {
        Some(unclear) => Err(nothing_says(result, unclear)),
        None => Ok(()),
    }
}

fn nothing_says(result: &str, unclear: &str) -> StartError {
    StartError::new(format!("could not build {result}"))
        .because(format!("nothing says which image `{}` in its Dockerfile is", shown(unclear)))
        .with_hint("write its name, or allow it to be fetched with `--pull true`")
}

async fn is_there(
    builder: &Builder<'_>,
    result: &str,
    base: &Image,
    pull: bool,
    tell: Tell<'_>,
) -> Result<ImageInspect, StartError> {
    let found = inspect(builder.docker, &base.name).await?;
    let wanted = match &base.platform {
        None => None,
        Some(Platform::Named(platform)) => Some(platform.clone()),
        Some(Platform::Native) => Some(builder.platform.clone()),
    };
    let name = shown(&base.name);
    let why = match (found, &wanted) {
        (Some(image), None) => return Ok(image),
        (Some(image), Some(wanted)) => match platform_of(&image) {
            platform if platform == *wanted => return Ok(image),
            platform => {
                format!(
                    "the base image `{name}` is there for `{}` and not for `{}`",
                    shown(&platform),
                    shown(wanted)
                )
            }
        },
        (None, _) => format!("the base image `{name}` is not there"),
    };
    if pull {
        return fetch(builder.docker, &base.name, wanted.as_deref(), tell).await;
    }
    let platform = wanted.map(|platform| format!("--platform {} ", shown(&platform))).unwrap_or_default();
    Err(StartError::new(format!("could not build {result}")).because(why).with_hint(format!(
        "run `docker pull {platform}{name}` (or `podman pull {platform}{name}`), or set `--pull true`"
    )))
}

fn platform_of(image: &ImageInspect) -> String {
    platform(&image.os, &image.architecture, &image.variant)
}

fn platform(os: &Option<String>, architecture: &Option<String>, variant: &Option<String>) -> String {
    let [os, architecture, variant] =
        [os, architecture, variant].map(|part| part.as_deref().unwrap_or_default());
    match Platform::named(os, architecture, variant) {
        Platform::Named(platform) => platform,
        Platform::Native => String::new(),
    }
}

/// Whoever builds.
struct Builder<'a> {
    docker: &'a Docker,
    /// What it takes where it is to take its own.
    platform: String,
    /// Podman does what an image triggers, and does not tell of it.
    hides_triggers: bool,
}

impl<'a> Builder<'a> {
    async fn ask(docker: &'a Docker) -> Result<Self, StartError> {
        let version = docker.version().await;
        let version = version
            .map_err(|error| unanswered("could not ask on which platform images are built", &error))?;
        let mut parts = version.components.iter().flatten();
        let hides_triggers = parts.any(|part| part.name.contains("Podman"));
        Ok(Self { docker, platform: platform(&version.os, &version.arch, &None), hides_triggers })
    }

    /// Of an image that a stage begins with.
    async fn triggers(&self, base: &Image, image: ImageInspect) -> Result<Vec<String>, StartError> {
        let mut triggers = image.config.and_then(|config| config.on_build).unwrap_or_default();
        if self.hides_triggers {
            let history = self.docker.image_history(&base.name).await.map_err(|error| {
                StartError::new(format!("could not look at the image `{}`", shown(&base.name))).because(error)
            })?;
            triggers.extend(history.iter().filter_map(|step| trigger(&step.created_by)));
        }
        Ok(triggers)
    }
}

/// As in `/bin/sh -c #(nop) ONBUILD RUN make`. Also of what an image was made from, which was done when it was made: too
/// much rather than too little.
fn trigger(step: &str) -> Option<String> {
    let step = step.split_once("#(nop)").map_or(step, |(_, step)| step).trim_start();
    let (keyword, rest) = step.split_once(char::is_whitespace)?;
    keyword.eq_ignore_ascii_case("ONBUILD").then(|| rest.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_found_in_what_an_image_was_made_by() {
        let found = Some("COPY --from=x / /".to_owned());
        assert_eq!(trigger("/bin/sh -c #(nop)  ONBUILD COPY --from=x / /"), found);
        assert_eq!(trigger("onbuild COPY --from=x / /"), found);
        assert_eq!(trigger("/bin/sh -c echo ONBUILD x"), None);
        assert_eq!(trigger(""), None);
    }
}
