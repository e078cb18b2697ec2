//! `list_images`: the environments that a session can be started in.

use serde_json::{Value, json};

use super::super::Server;
use super::super::answer::Answer;
use super::super::render;
use super::{Definition, object};
use crate::config::OutputFormat;
use crate::image::{BUILT_IN, Image};

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

pub(super) fn call(server: &Server) -> Answer {
    let names = |image: &Image| -> Vec<&str> { image.languages.iter().map(|known| known.as_str()).collect() };
    let row = |image: &Image| {
        json!({
            "name": image.name,
            "kind": image.lifetime.as_str(),
            "languages": names(image),
            "description": image.description,
        })
    };
    let images: Vec<Value> = BUILT_IN.iter().map(row).collect();
    let value = json!({"images": images});
    match server.config.server.output {
        OutputFormat::Json => Answer::structured(value),
        OutputFormat::Toon => Answer::text(render::toon(&value)),
        OutputFormat::Compact => {
            let line = |image: &Image| {
                let (kind, languages) = (image.lifetime.as_str(), names(image).join(", "));
                format!("{} ({kind}; {languages}): {}", image.name, image.description)
            };
            let lines: Vec<String> = BUILT_IN.iter().map(line).collect();
            Answer { structured: Some(value), ..Answer::text(lines.join("\n")) }
        }
    }
}
