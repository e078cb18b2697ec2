//! `cove images build`: builds images ahead of time, so that sessions need not wait for it.

use cove_core::backend::{Backend, ProgressCallback};
use cove_docker::ContainerBackend;
use cove_docker::build::ImageProvider;
use std::process::ExitCode;

use crate::cli::image_library::image_library;
use crate::cli::progress_line::ProgressLine;
use crate::cli::run::container_backend;
use crate::cli::tables::print_remark;
use crate::config::Config;
use cove_core::error::{Failure, display_value};
use cove_core::image::library::{ImageLibrary, ImageListing, SandboxKind};
use cove_core::image::{Image, ImageProblem, ImageSet};
use cove_core::policy::ImageSource;
use cove_core::policy::Policy;
use cove_core::process_env::ProcessEnv;
use cove_core::spelling::nearest;

/// Builds each image on its own: a failure is reported, and the other images are still built.
pub(super) async fn run(config: &Config, env: &ProcessEnv, names: &[String]) -> Result<(String, ExitCode), Failure> {
    let library = image_library(config, env);
    let ImageSet { images, problems } = match names {
        [] => images_in_containers(&library).await,
        names => images_named(&library, names).await?,
    };
    let mut code = ExitCode::SUCCESS;
    let mut fail = |error: &Failure| {
        print_remark(error.report());
        code = ExitCode::FAILURE;
    };
    for ImageProblem { problem, hint, .. } in &problems {
        fail(&Failure::usage(problem.clone()).with_hint(hint.clone()));
    }
    let mut text = String::new();
    if images.is_empty() && problems.is_empty() {
        text += "nothing to build: no image needs a container here; name one to build it all the same\n";
    }
    if images.is_empty() {
        return Ok((text, code));
    }
    let containers = container_backend(config, env)?;
    containers.client().await?;
    for image in images {
        let name = image.name();
        let progress = ProgressLine::new();
        let tell = |line: &str| progress.update(&format!("{name}: {line}"));
        let policy = library.container_policy(&image);
        let built = build_image(&containers, &image, &policy, config.images.pull, &tell).await;
        progress.clear();
        match built {
            Ok(done) => text += &format!("{name}: {done}\n"),
            Err(error) => fail(&error),
        }
    }
    Ok((text, code))
}

/// Builds one image, and returns a description of what was done.
async fn build_image(
    containers: &ContainerBackend,
    image: &Image,
    policy: &Policy,
    pull: bool,
    tell: ProgressCallback<'_>,
) -> Result<String, Failure> {
    let in_words = |done: Option<String>| done.unwrap_or_else(|| "nothing to do".to_owned());
    if let ImageSource::Compose { .. } = image.recipe.source {
        return Ok(in_words(containers.prepare(policy, tell).await?.note));
    }
    let images = ImageProvider { docker: &containers.client().await?, pull, tell };
    let ready = images.prepare_image(&image.recipe).await?;
    Ok(format!("{}, as `{}`", in_words(ready.summary), ready.reference))
}

/// All images that need a container here.
async fn images_in_containers(library: &ImageLibrary) -> ImageSet {
    let ImageSet { problems, .. } = library.read().await;
    let ImageListing { images, .. } = library.list().await;
    let needs_one = images.into_iter().filter(|served| served.kind == SandboxKind::Container);
    ImageSet { images: needs_one.map(|served| served.image).collect(), problems }
}

async fn images_named(library: &ImageLibrary, names: &[String]) -> Result<ImageSet, Failure> {
    let ImageSet { images, problems } = library.read().await;
    let mut selected = ImageSet::default();
    for name in names {
        if let Some(image) = images.iter().find(|image| image.name() == name) {
            selected.images.push(image.clone());
        } else if let Some(problem) = problems.iter().find(|problem| problem.name == *name) {
            selected.problems.push(problem.clone());
        } else {
            let hint = match nearest(name, images.iter().map(Image::name)) {
                Some(nearest) => format!("did you mean `{nearest}`? `cove images list` shows all"),
                None => "`cove images list` shows all".to_owned(),
            };
            return Err(Failure::usage(format!("could not find the image `{}`", display_value(name))).with_hint(hint));
        }
    }
    Ok(selected)
}
