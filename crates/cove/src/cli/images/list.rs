//! `cove images list`: starts nothing, builds nothing and connects to no engine.

use serde_json::{Value, json};

use super::check_image_dir;
use crate::cli::CommandContext;
use crate::cli::image_library::image_library;
use crate::cli::tables::{PrintStyle, Tone, render_json, render_list};
use cove_core::error::{Failure, display_path};
use cove_core::image::library::{ImageListing, SandboxKind, ServedImage};
use cove_core::image::{Image, ImageOrigin, ImageProblem};
use cove_core::policy::ImageSource;

pub(super) async fn render(context: &CommandContext) -> Result<String, Failure> {
    let listed = image_library(&context.config, &context.env).list().await;
    if listed.images.is_empty() {
        check_image_dir(&context.config, &listed.problems, "could not list the images")?;
    }
    if context.json {
        render_json("the images", &to_json(&listed))
    } else {
        Ok(to_text(&listed, PrintStyle::of_stdout()))
    }
}

fn to_json(listed: &ImageListing) -> Value {
    let row = |ServedImage { image, kind: by, reason: why, .. }: &ServedImage| {
        json!({
            "name": image.name(),
            "kind": image.lifetime.as_str(),
            "languages": image.languages(),
            "description": image.description,
            "backend": by.as_str(),
            "why": why,
            "source": describe_source(image),
            "limits": image.limits,
            "readiness": image.readiness,
        })
    };
    json!({
        "images": listed.images.iter().map(row).collect::<Vec<Value>>(),
        "problems": listed.problems,
    })
}

fn to_text(ImageListing { images, problems }: &ImageListing, style: PrintStyle) -> String {
    let cells = |ServedImage { image, kind: by, reason: why, .. }: &ServedImage| {
        let languages: Vec<&str> = image.languages().iter().map(|language| language.as_str()).collect();
        let languages = if languages.is_empty() { "-".to_owned() } else { languages.join(", ") };
        let plain = |text: &str| Tone::Plain.cell(text);
        let about = Tone::Faint.cell(describe_image(image, *by, why));
        [Tone::Name.cell(image.name()), plain(image.lifetime.as_str()), plain(&languages), plain(by.as_str()), about]
    };
    let headings = ["IMAGE", "KIND", "LANGUAGES", "RUNS IN", "ABOUT"];
    let mut text = render_list(style, headings, images.iter().map(cells));
    if images.is_empty() {
        text += "no image can be used\n";
    }
    if !problems.is_empty() {
        text += "\nproblems:\n";
    }
    for ImageProblem { name, problem, hint } in problems {
        text += &format!("{name}: {problem}\n  hint: {hint}\n");
    }
    text
}

fn describe_image(image: &Image, by: SandboxKind, why: &str) -> String {
    let mut about = format!("{} ({}", image.description, describe_source(image));
    if by == SandboxKind::Container {
        about += &format!(", {why}");
    }
    for value in image.limits.describe().into_iter().chain(image.readiness.describe()) {
        about += &format!(", {value}");
    }
    about + ")"
}

fn describe_source(image: &Image) -> String {
    match (image.origin, &image.recipe.source) {
        (ImageOrigin::BuiltIn, _) => "built in".to_owned(),
        (_, ImageSource::Folder(folder) | ImageSource::Compose { folder, .. }) => display_path(folder),
        (_, ImageSource::Reference(reference)) => reference.clone(),
        (_, ImageSource::BuiltIn(_)) => "built in".to_owned(),
    }
}
