//! `cove images list`: nothing is started or built, and no daemon is asked.

use serde_json::{Value, json};

use super::of_the_whole;
use crate::cli::shelf::shelf;
use crate::config::{Config, Surroundings};
use crate::error::{Error, shown_path};
use crate::image::shelf::{By, Listed, Served};
use crate::image::{Image, Origin, Problem, Source};

pub(super) async fn text(config: &Config, around: &Surroundings, json: bool) -> Result<String, Error> {
    let listed = shelf(config, around).list().await;
    if listed.images.is_empty() {
        of_the_whole(config, &listed.problems, "could not list the images")?;
    }
    if json {
        let text = serde_json::to_string_pretty(&value(&listed))
            .map_err(|error| Error::internal("could not write the images as JSON").because(error))?;
        return Ok(text + "\n");
    }
    Ok(table(&listed))
}

fn value(listed: &Listed) -> Value {
    let row = |Served { image, by, why, .. }: &Served| {
        json!({
            "name": image.name(),
            "kind": image.lifetime.as_str(),
            "languages": image.languages(),
            "description": image.description,
            "backend": by.as_str(),
            "why": why,
            "source": source(image),
            "limits": image.limits,
        })
    };
    json!({
        "images": listed.images.iter().map(row).collect::<Vec<Value>>(),
        "problems": listed.problems,
    })
}

fn table(Listed { images, problems }: &Listed) -> String {
    let cells = |Served { image, by, why, .. }: &Served| {
        let languages: Vec<&str> = image.languages().iter().map(|language| language.as_str()).collect();
        let languages = if languages.is_empty() { "-".to_owned() } else { languages.join(", ") };
        let kind = image.lifetime.as_str().to_owned();
        [image.name().to_owned(), kind, languages, by.as_str().to_owned(), about(image, *by, why)]
    };
    let rows: Vec<[String; 5]> = images.iter().map(cells).collect();
    let widths: Vec<usize> =
        (0..5).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let row = |row: &[String; 5]| {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text: String = rows.iter().map(row).collect();
    if images.is_empty() {
        text += "no image can be used\n";
    }
    if !problems.is_empty() {
        text += "\nproblems:\n";
    }
    for Problem { name, problem, hint } in problems {
        text += &format!("{name}: {problem}\n  hint: {hint}\n");
    }
    text
}

fn about(image: &Image, by: By, why: &str) -> String {
    let mut about = format!("{} ({}", image.description, source(image));
    if by == By::Container {
        about += &format!(", {why}");
    }
    for limit in image.limits.shown() {
        about += &format!(", {limit}");
    }
    about + ")"
}

fn source(image: &Image) -> String {
    match (image.origin, &image.recipe.source) {
        (Origin::BuiltIn, _) => "built in".to_owned(),
        (_, Source::Folder(folder) | Source::Compose { folder, .. }) => shown_path(folder),
        (_, Source::Reference(reference)) => reference.clone(),
        (_, Source::BuiltIn(_)) => "built in".to_owned(),
    }
}
