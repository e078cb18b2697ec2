//! `cove images build`: what sessions would wait for, done ahead of time.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use super::connect::containers;
use crate::backend::docker::Docker;
use crate::backend::docker::build::ready;
use crate::backend::{Backend, StartError, Tell};
use crate::cli::progress::Progress;
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings, nearest};
use crate::error::{Error, Kind, shown};
use crate::image::shelf::{By, Listed, Shelf};
use crate::image::{Found, Image, Problem, Source};
use crate::policy::Policy;

/// Each on its own: one that fails is told, and the others are built.
pub(super) async fn run(
    config: &Config,
    around: &Surroundings,
    names: &[String],
) -> Result<(String, ExitCode), Error> {
    let shelf = shelf(config, around);
    let Found { images, problems } = match names {
        [] => all(&shelf).await,
        names => named(&shelf, names).await?,
    };
    let mut code = ExitCode::SUCCESS;
    let mut fail = |error: &Error| {
        tell_people(error.report());
        code = ExitCode::FAILURE;
    };
    for Problem { problem, hint, .. } in &problems {
        fail(&Error::usage(problem.clone()).with_hint(hint.clone()));
    }
    let mut text = String::new();
    if images.is_empty() && problems.is_empty() {
        text += "nothing to build: no image needs a container here; name one to build it all the same\n";
    }
    if images.is_empty() {
        return Ok((text, code));
    }
    let containers = containers(config, around)?;
    containers.client().await.map_err(|error| Error::of(Kind::Operator, error))?;
    for image in images {
        let name = image.name();
        let progress = Progress::new();
        let tell = |line: &str| progress.tell(&format!("{name}: {line}"));
        let policy = shelf.policy_in_container(&image);
        let built = build(&containers, &image, &policy, config.images.pull, &tell).await;
        progress.clear();
        match built {
            Ok(done) => text += &format!("{name}: {done}\n"),
            Err(error) => fail(&Error::of(Kind::Operator, error)),
        }
    }
    Ok((text, code))
}

/// What was done, in words.
async fn build(
    containers: &Docker,
    image: &Image,
    policy: &Policy,
    pull: bool,
    tell: Tell<'_>,
) -> Result<String, StartError> {
    let in_words = |done: Option<String>| done.unwrap_or_else(|| "nothing to do".to_owned());
    if let Source::Compose { .. } = image.recipe.source {
        return Ok(in_words(containers.prepare(policy, tell).await?));
    }
    let ready = ready(&containers.client().await?, &image.recipe, pull, tell).await?;
    Ok(format!("{}, as `{}`", in_words(ready.done), ready.reference))
}

/// Standard error may be closed; the exit code tells it too.
fn tell_people(report: impl Display) {
    let _ = writeln!(std::io::stderr(), "{report}");
}

/// All that need a container here.
async fn all(shelf: &Shelf) -> Found {
    let Found { problems, .. } = shelf.read().await;
    let Listed { images, .. } = shelf.list().await;
    let needs_one = images.into_iter().filter(|served| served.by == By::Container);
    Found { images: needs_one.map(|served| served.image).collect(), problems }
}

async fn named(shelf: &Shelf, names: &[String]) -> Result<Found, Error> {
    let Found { images, problems } = shelf.read().await;
    let mut found = Found::default();
    for name in names {
        if let Some(image) = images.iter().find(|image| image.name() == name) {
            found.images.push(image.clone());
        } else if let Some(problem) = problems.iter().find(|problem| problem.name == *name) {
            found.problems.push(problem.clone());
        } else {
            let hint = match nearest(name, images.iter().map(Image::name)) {
                Some(nearest) => format!("did you mean `{nearest}`? `cove images list` shows all"),
                None => "`cove images list` shows all".to_owned(),
            };
            return Err(Error::usage(format!("could not find the image `{}`", shown(name))).with_hint(hint));
        }
    }
    Ok(found)
}
