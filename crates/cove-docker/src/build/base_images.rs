//! Makes sure that every image a Dockerfile needs is present before the build: by name, for the requested platform,
//! including what the `ONBUILD` triggers of those images need. Builders pull missing images by themselves, and some of
//! them cannot be stopped from doing so.

use bollard::models::ImageInspect;

use super::super::dockerfile::{DockerfileNeeds, ImagePlatform, RequiredImage};
use super::super::engine::Engine;
use super::super::request_error;
use super::{ImageProvider, inspect_image};
use cove_core::error::{Failure, display_value};

/// Checks that all needed images are present, and pulls missing ones if that is permitted. Fails otherwise, and for a
/// Dockerfile that must not reach a builder.
pub(super) async fn ensure_base_images(
    images: &ImageProvider<'_>,
    result: &str,
    needs: DockerfileNeeds,
) -> Result<(), Failure> {
    check_buildable(result, &needs, images.pull)?;
    let builder = ImageBuilder::query(images).await?;
    for base in &needs.images {
        let image = builder.ensure_image(result, base).await?;
        let triggers = builder.triggers(base, image).await?;
        let more = needs.needs_of_triggers(base, &triggers);
        check_buildable(result, &more, images.pull)?;
        for image in &more.images {
            builder.ensure_image(result, image).await?;
        }
    }
    Ok(())
}

/// Fails if the Dockerfile has a problem, or if an image name is unresolved and pulling is not permitted.
fn check_buildable(result: &str, needs: &DockerfileNeeds, pull: bool) -> Result<(), Failure> {
    if let Some(wrong) = needs.problems.first() {
        return Err(Failure::operator(format!("could not build {result}")).because(wrong.clone()).with_hint(
            "correct the file; stages count from 0, and `--from` takes one that comes before, by number or name",
        ));
    }
    match needs.unresolved.first().filter(|_| !pull) {
        Some(unclear) => Err(Failure::operator(format!("could not build {result}"))
            .because(format!("nothing says which image `{}` in its Dockerfile is", display_value(unclear)))
            .with_hint("write its name, or allow it to be fetched with `--pull true`")),
        None => Ok(()),
    }
}

fn platform_name(os: &Option<String>, architecture: &Option<String>, variant: &Option<String>) -> String {
    let [os, architecture, variant] = [os, architecture, variant].map(|part| part.as_deref().unwrap_or_default());
    match ImagePlatform::from_parts(os, architecture, variant) {
        ImagePlatform::Named(platform) => platform,
        ImagePlatform::Native => String::new(),
    }
}

/// The engine, as a builder of images.
struct ImageBuilder<'a> {
    images: &'a ImageProvider<'a>,
    /// The builder's own platform.
    platform: String,
    /// True if the engine runs `ONBUILD` triggers but does not report them.
    hides_triggers: bool,
}

impl<'a> ImageBuilder<'a> {
    async fn query(images: &'a ImageProvider<'a>) -> Result<Self, Failure> {
        let version = images.docker.version().await;
        let version =
            version.map_err(|error| request_error("could not ask on which platform images are built", &error))?;
        let hides_triggers = Engine::from_version(&version).traits().hides_build_triggers;
        Ok(Self { images, platform: platform_name(&version.os, &version.arch, &None), hides_triggers })
    }

    /// Returns the image for the requested platform, and pulls it if that is permitted. Fails if it is missing.
    async fn ensure_image(&self, result: &str, base: &RequiredImage) -> Result<ImageInspect, Failure> {
        let wanted = match &base.platform {
            None => None,
            Some(ImagePlatform::Named(platform)) => Some(platform.as_str()),
            Some(ImagePlatform::Native) => Some(self.platform.as_str()),
        };
        let name = display_value(&base.name);
        let why = match (inspect_image(self.images.docker, &base.name).await?, wanted) {
            (Some(image), None) => return Ok(image),
            (Some(image), Some(wanted)) => {
                let platform = platform_name(&image.os, &image.architecture, &image.variant);
                if platform == wanted {
                    return Ok(image);
                }
                let (platform, wanted) = (display_value(&platform), display_value(wanted));
                format!("the base image `{name}` is there for `{platform}` and not for `{wanted}`")
            }
            (None, _) => format!("the base image `{name}` is not there"),
        };
        if self.images.pull {
            return self.images.pull_image(&base.name, wanted).await;
        }
        let platform = wanted.map(|platform| format!("--platform {} ", display_value(platform))).unwrap_or_default();
        Err(Failure::operator(format!("could not build {result}")).because(why).with_hint(format!(
            "run `docker pull {platform}{name}` (or `podman pull {platform}{name}`), or set `--pull true`"
        )))
    }

    /// Returns the `ONBUILD` triggers of a base image. Fails if its history cannot be read.
    async fn triggers(&self, base: &RequiredImage, image: ImageInspect) -> Result<Vec<String>, Failure> {
        let mut triggers = image.config.and_then(|config| config.on_build).unwrap_or_default();
        if self.hides_triggers {
            let history = self.images.docker.image_history(&base.name).await.map_err(|error| {
                Failure::operator(format!("could not look at the image `{}`", display_value(&base.name))).because(error)
            })?;
            triggers.extend(history.iter().filter_map(|step| onbuild_trigger(&step.created_by)));
        }
        Ok(triggers)
    }
}

/// Reads a trigger from a step of an image's history, such as `/bin/sh -c #(nop) ONBUILD RUN make`. The history also
/// has triggers of the image's own base, which have already run: too many are safer than too few.
fn onbuild_trigger(step: &str) -> Option<String> {
    let step = step.split_once("#(nop)").map_or(step, |(_, step)| step).trim_start();
    let (keyword, rest) = step.split_once(char::is_whitespace)?;
    keyword.eq_ignore_ascii_case("ONBUILD").then(|| rest.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_onbuild_triggers_in_image_history() {
        let found = Some("COPY --from=x / /".to_owned());
        assert_eq!(onbuild_trigger("/bin/sh -c #(nop)  ONBUILD COPY --from=x / /"), found);
        assert_eq!(onbuild_trigger("onbuild COPY --from=x / /"), found);
        assert_eq!(onbuild_trigger("/bin/sh -c echo ONBUILD x"), None);
        assert_eq!(onbuild_trigger(""), None);
    }
}
