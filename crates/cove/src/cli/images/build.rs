//! `cove images build`: what sessions would wait for, done ahead of time.

use std::io::Write;
use std::process::ExitCode;

use super::connect::containers;
use crate::backend::docker::build::ready;
use crate::cli::progress::Progress;
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings, nearest};
use crate::error::{Error, Kind, shown};
use crate::image::shelf::{By, Listed};
use crate::image::{Found, Image, Problem, Source};

/// Each on its own: one that fails is told, and the others are built.
pub(super) async fn run(
    config: &Config,
    around: &Surroundings,
    names: &[String],
) -> Result<(String, ExitCode), Error> {
    let images = wanted(config, around, names).await?;
    if images.is_empty() {
        let text = "nothing to build: no image needs a container here; name one to build it all the same\n";
        return Ok((text.to_owned(), ExitCode::SUCCESS));
    }
    let docker =
        containers(config, around)?.client().await.map_err(|error| Error::of(Kind::Operator, error))?;
    let mut text = String::new();
    let mut code = ExitCode::SUCCESS;
    for image in images {
        let name = image.name();
        if let Source::Compose { .. } = image.recipe.source {
            text += &format!("{name}: its Compose file says what it needs; that is built when it starts\n");
            continue;
        }
        let progress = Progress::new();
        let tell = |line: &str| progress.tell(&format!("{name}: {line}"));
        let built = ready(&docker, &image.recipe, config.images.pull, &tell).await;
        progress.clear();
        match built {
            Ok(ready) => {
                let done = ready.done.unwrap_or_else(|| "nothing to do".to_owned());
                text += &format!("{name}: {done}, as `{}`\n", ready.reference);
            }
            Err(error) => {
                let error = Error::of(Kind::Operator, error);
                // Standard error may be closed; the exit code tells it too.
                let _ = writeln!(std::io::stderr(), "{}", error.report());
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok((text, code))
}

async fn wanted(config: &Config, around: &Surroundings, names: &[String]) -> Result<Vec<Image>, Error> {
    let shelf = shelf(config, around);
    if names.is_empty() {
        let Listed { images, .. } = shelf.list().await;
        let needs_one = images.into_iter().filter(|served| served.by == By::Container);
        return Ok(needs_one.map(|served| served.image).collect());
    }
    let Found { images, problems } = shelf.read().await;
    let known: Vec<&str> = images.iter().map(Image::name).collect();
    let find = |name: &String| {
        if let Some(image) = images.iter().find(|image| image.name() == name) {
            return Ok(image.clone());
        }
        let could_not = |what: &str| Error::usage(format!("could not {what} the image `{}`", shown(name)));
        Err(match problems.iter().find(|problem| problem.name == *name) {
            Some(Problem { problem, hint, .. }) => {
                could_not("build").because(problem.clone()).with_hint(hint.clone())
            }
            None => could_not("find").with_hint(match nearest(name, known.iter().copied()) {
                Some(nearest) => format!("did you mean `{nearest}`? `cove images list` shows all"),
                None => "`cove images list` shows all".to_owned(),
            }),
        })
    };
    names.iter().map(find).collect()
}
