//! `cove images prune`: what was built for definitions that are there no longer goes, and is named.

use std::io::Write;

use super::connect::containers;
use super::of_the_whole;
use crate::backend::StartError;
use crate::backend::docker::Docker;
use crate::backend::docker::build::prune::{Kept, Pruned, prune};
use crate::backend::docker::build::{Files, digest};
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings};
use crate::error::{Error, Kind, in_one_line};
use crate::image::folder::is_name;
use crate::image::shelf::Shelf;
use crate::image::{Found, Image, Problem, Source, built_in};

pub(super) async fn text(config: &Config, around: &Surroundings) -> Result<String, Error> {
    let of = |error: StartError| Error::of(Kind::Operator, error);
    let shelf = shelf(config, around);
    let Found { images, problems } = shelf.read().await;
    of_the_whole(config, &problems, "could not tell which images are defined")?;
    let containers = containers(config, around)?;
    let docker = containers.client().await.map_err(of)?;
    let mut kept = Vec::new();
    // Those that are built in stay too: they are there whenever `--image-dir` is left out.
    for image in images.iter().chain(&built_in::images().images) {
        match digests(&containers, &shelf, image).await {
            Ok(digests) => kept.extend(digests.into_iter().map(|digest| Kept::one(image.name(), digest))),
            Err(error) => kept.push(all_of(image.name(), &in_one_line(&error))),
        }
    }
    kept.extend(nameable(&problems).map(|problem| all_of(&problem.name, &problem.problem)));
    // Of other versions; one that is in use cannot be removed, and says so.
    let runners = [containers.runner().await.map_err(of)?];
    let Pruned { removed, left } = prune(&docker, &kept, &runners).await.map_err(of)?;
    for (what, why) in left {
        let _ = writeln!(std::io::stderr(), "left {what}: {why}");
    }
    let mut text: String = removed.iter().map(|what| format!("removed {what}\n")).collect();
    if removed.is_empty() {
        text += "nothing to remove\n";
    }
    Ok(text)
}

/// Of what is built for an image as it is now.
async fn digests(containers: &Docker, shelf: &Shelf, image: &Image) -> Result<Vec<String>, StartError> {
    let files = match &image.recipe.source {
        Source::BuiltIn(name) => built_in::find(name).map(Files::BuiltIn),
        Source::Folder(folder) => Some(Files::Folder(folder.clone())),
        Source::Reference(_) => None,
        Source::Compose { .. } => return containers.digests(&shelf.policy_in_container(image)).await,
    };
    match files {
        Some(files) => Ok(vec![digest(&files).await?]),
        None => Ok(Vec::new()),
    }
}

/// Nobody knows which of them is needed.
fn all_of(name: &str, why: &str) -> Kept {
    let _ = writeln!(std::io::stderr(), "kept all that was built for the image `{name}`: {why}");
    Kept::all(name)
}

/// Those for which something may have been built: of a folder that has no name for an image nothing ever was.
fn nameable(problems: &[Problem]) -> impl Iterator<Item = &Problem> {
    problems.iter().filter(|problem| is_name(&problem.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_is_no_name_nothing_is_kept() {
        let problems = ["-x", "good", "Capital", "a b"].map(|name| Problem::new(name, String::new(), ""));
        let names: Vec<&str> = nameable(&problems).map(|problem| problem.name.as_str()).collect();
        assert_eq!(names, ["good"]);
    }
}
