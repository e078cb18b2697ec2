//! `cove images prune`: removes builds whose definitions have changed or no longer exist, and names each of them.

use super::check_image_dir;
use crate::cli::image_library::image_library;
use crate::cli::run::container_backend;
use crate::cli::tables::print_remark;
use crate::config::Config;
use cove_core::error::{Failure, one_line_chain};
use cove_core::image::folder::is_valid_name;
use cove_core::image::library::ImageLibrary;
use cove_core::image::{Image, ImageProblem, ImageSet, built_in};
use cove_core::policy::ImageSource;
use cove_core::process_env::ProcessEnv;
use cove_docker::ContainerBackend;
use cove_docker::build::prune::{PruneReport, RetainedImage, prune};
use cove_docker::build::{BuildSource, source_digest};

pub(super) async fn run(config: &Config, env: &ProcessEnv) -> Result<String, Failure> {
    let library = image_library(config, env);
    let ImageSet { images, problems } = library.read().await;
    check_image_dir(config, &problems, "could not tell which images are defined")?;
    let containers = container_backend(config, env)?;
    let docker = containers.client().await?;
    let mut kept = Vec::new();
    // Keeps the built-in images too: they are in use whenever `--image-dir` is not set.
    for image in images.iter().chain(&built_in::built_in_images().images) {
        match current_digests(&containers, &library, image).await {
            Ok(digests) => {
                kept.extend(digests.into_iter().map(|digest| RetainedImage::with_digest(image.name(), digest)))
            }
            Err(error) => kept.push(retain_all(image.name(), &one_line_chain(&error))),
        }
    }
    kept.extend(with_valid_names(&problems).map(|problem| retain_all(&problem.name, &problem.problem)));
    // Runner volumes of other versions are removed. The engine refuses to remove one that is in use, and the report
    // names it.
    let runners = [containers.runner_digest().await?];
    let PruneReport { removed, failed: left } = prune(&docker, &kept, &runners).await?;
    for (what, why) in left {
        print_remark(format!("left {what}: {why}"));
    }
    let mut text: String = removed.iter().map(|what| format!("removed {what}\n")).collect();
    if removed.is_empty() {
        text += "nothing to remove\n";
    }
    Ok(text)
}

/// The digests of everything that is built for an image as it is defined now.
async fn current_digests(
    containers: &ContainerBackend,
    library: &ImageLibrary,
    image: &Image,
) -> Result<Vec<String>, Failure> {
    let files = match &image.recipe.source {
        ImageSource::BuiltIn(name) => built_in::find(name).map(BuildSource::BuiltIn),
        ImageSource::Folder(folder) => Some(BuildSource::Folder(folder.clone())),
        ImageSource::Reference(_) => None,
        ImageSource::Compose { .. } => {
            return containers.compose_digests(&library.container_policy(image)).await;
        }
    };
    match files {
        Some(files) => Ok(vec![source_digest(&files).await?]),
        None => Ok(Vec::new()),
    }
}

/// Keeps every build of an image, because it is unknown which of them is needed.
fn retain_all(name: &str, why: &str) -> RetainedImage {
    print_remark(format!("kept all that was built for the image `{name}`: {why}"));
    RetainedImage::without_digest(name)
}

/// The problems of images that may have builds. A folder whose name is not valid for an image never had one.
fn with_valid_names(problems: &[ImageProblem]) -> impl Iterator<Item = &ImageProblem> {
    problems.iter().filter(|problem| is_valid_name(&problem.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prune_ignores_folders_with_invalid_names() {
        let problems = ["-x", "good", "Capital", "a b"].map(|name| ImageProblem::new(name, String::new(), ""));
        let names: Vec<&str> = with_valid_names(&problems).map(|problem| problem.name.as_str()).collect();
        assert_eq!(names, ["good"]);
    }
}
