//! `list_images`: the environments that a session can be started in.

use serde_json::{Value, json};

use super::super::Server;
use super::super::answer::Answer;
use super::super::render;
use super::{Definition, object};
use crate::config::OutputFormat;
use crate::image::shelf::{Listed, Served};
use crate::image::{Image, Problem};

pub(super) fn definition() -> Definition {
    Definition {
        name: "list_images",
        description: "List the environments for start_session.",
        schema: object(json!({}), &[]),
        read_only: true,
        destructive: false,
        idempotent: true,
    }
}

pub(super) async fn call(server: &Server) -> Answer {
    let Listed { images, problems } = server.shelf.list().await;
    let names =
        |image: &Image| -> Vec<&str> { image.languages().iter().map(|known| known.as_str()).collect() };
    let row = |Served { image, by, why, .. }: &Served| {
        let mut row = json!({
            "name": image.name(),
            "kind": image.lifetime.as_str(),
            "languages": names(image),
            "description": image.description,
            "backend": by.as_str(),
            "why": why,
        });
        if !image.limits.is_empty() {
            row["limits"] = json!(image.limits);
        }
        row
    };
    let mut value = json!({"images": images.iter().map(row).collect::<Vec<Value>>()});
    if !problems.is_empty() {
        value["problems"] = json!(problems);
    }
    match server.config.server.output {
        OutputFormat::Json => Answer::structured(value),
        OutputFormat::Toon => Answer::text(render::toon(&value)),
        OutputFormat::Compact => {
            let mut text = String::new();
            for Served { image, by, why, .. } in &images {
                let mut about = vec![image.lifetime.as_str().to_owned()];
                about.extend(Some(names(image).join(", ")).filter(|names| !names.is_empty()));
                about.push(format!("{}, since {why}", by.as_str()));
                about.extend(image.limits.shown());
                text += &format!("{} ({}): {}\n", image.name(), about.join("; "), image.description);
            }
            if images.is_empty() {
                text += "no image can be used\n";
            }
            if !problems.is_empty() {
                text += "problems, for the operator:\n";
            }
            for Problem { name, problem, hint } in &problems {
                text += &format!("- {name}: {problem} ({hint})\n");
            }
            Answer { structured: Some(value), ..Answer::text(text.trim_end()) }
        }
    }
}
