//! `cove images prune`: what was built for definitions that are there no longer goes, and is named.

use std::io::Write;

use super::connect::containers;
use crate::backend::StartError;
use crate::backend::docker::build::Files;
use crate::backend::docker::build::prune::{Kept, Pruned, prune};
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings};
use crate::error::{Error, Kind};
use crate::image::{Found, Image, Source, built_in};

pub(super) async fn text(config: &Config, around: &Surroundings) -> Result<String, Error> {
    let of = |error: StartError| Error::of(Kind::Operator, error);
    let containers = containers(config, around)?;
    let docker = containers.client().await.map_err(of)?;
    let Found { images, problems } = shelf(config, around).read().await;
    // Those that are built in stay too: they are there whenever `--image-dir` is left out.
    let built_in = built_in::images().images;
    let mut kept: Vec<Kept> = images.iter().chain(&built_in).map(kept).collect();
    kept.extend(problems.into_iter().map(|problem| Kept { name: problem.name, digest: None }));
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

fn kept(image: &Image) -> Kept {
    let files = match &image.recipe.source {
        Source::BuiltIn(name) => built_in::find(name).map(Files::BuiltIn),
        Source::Folder(folder) => Some(Files::Folder(folder.clone())),
        Source::Compose { .. } | Source::Reference(_) => None,
    };
    Kept { name: image.name().to_owned(), digest: files.and_then(|files| files.digest().ok()) }
}
