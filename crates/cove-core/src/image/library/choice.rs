//! Chooses what serves an image, or says why nothing can.

use cove_protocol::Language;

use super::SandboxKind;
use crate::error::Refusal;
use crate::image::{BackendChoice, Image, built_in};

/// What the embedded sandbox supports on this machine.
#[derive(Debug, Clone)]
pub(super) struct EmbeddedSupport {
    pub(super) start_check: Result<(), String>,
    pub(super) languages: Vec<Language>,
}

/// Returns what serves an image, and why. The embedded sandbox serves unchanged built-in images if it starts here and
/// has the image's `line_language`; of the image's other languages it offers those that are installed.
/// `needs_containers` is the configured feature that only containers support.
pub(super) fn choose(
    image: &Image,
    backend: BackendChoice,
    needs_containers: Option<&str>,
    here: &EmbeddedSupport,
) -> Result<(SandboxKind, String), Refusal> {
    let why_not = if !image.matches_built_in() {
        Some((
            format!("it {}", reason_against_embedded(image)),
            "set `--backend auto`, `docker` or `podman`, or leave `--image-dir` out",
        ))
    } else if let Some(needed) = needs_containers {
        Some((format!("{needed} needs a container"), "leave it out, or set `--backend auto`, `docker` or `podman`"))
    } else if let Err(why) = &here.start_check {
        Some((format!("the embedded sandbox does not start here: {why}"), "`cove doctor` tells what is missing"))
    } else if !here.languages.contains(&image.line_language) {
        Some((
            format!("{} is not installed on this machine", image.line_language),
            "install it, or set `--backend auto`, `docker` or `podman`",
        ))
    } else {
        None
    };
    match (backend, why_not) {
        (BackendChoice::Docker | BackendChoice::Podman, _) => Ok((SandboxKind::Container, backend_flag(backend))),
        (BackendChoice::Auto, Some((why, _))) => Ok((SandboxKind::Container, why)),
        (BackendChoice::Jail, None) => Ok((SandboxKind::Embedded, backend_flag(backend))),
        (BackendChoice::Auto, None) => Ok((SandboxKind::Embedded, "it is built in and unchanged".into())),
        (BackendChoice::Jail, Some((why, hint))) => {
            Err(Refusal::new(format!("could not serve it by `--backend jail`: {why}"), hint))
        }
    }
}

/// Returns the flag that chose a backend, as the reason for that choice.
pub(super) fn backend_flag(backend: BackendChoice) -> String {
    format!("`--backend {}`", backend.as_str())
}

/// Returns why an image that differs from the built-in ones cannot be embedded. Completes "it …".
pub(super) fn reason_against_embedded(image: &Image) -> &'static str {
    match built_in::find(image.name()) {
        Some(_) => "differs from the one that is built in",
        None => "is not built in",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ImageOrigin;

    #[test]
    fn sandbox_choice_covers_every_combination() {
        let python = built_in::built_in_images().images.remove(0);
        let own = Image { origin: ImageOrigin::Folder, ..python.clone() };
        let exported = Image { origin: ImageOrigin::Exported, ..python.clone() };
        let fine = EmbeddedSupport { start_check: Ok(()), languages: vec![Language::Python, Language::Sh] };
        let broken = EmbeddedSupport { start_check: Err("no user namespaces".into()), ..fine.clone() };
        let bare = EmbeddedSupport { languages: vec![Language::Sh], ..fine.clone() };
        use BackendChoice::{Auto, Docker, Jail, Podman};
        // The image, what needs containers, what is supported here, and the results of `auto` and `jail`.
        let cases = [
            (&python, None, &fine, "sandbox", "sandbox"),
            (&exported, None, &fine, "sandbox", "sandbox"),
            (&own, None, &fine, "container", "it differs from the one that is built in"),
            (&python, Some("the runtime `runsc`"), &fine, "container", "the runtime `runsc` needs a container"),
            (&python, None, &broken, "container", "does not start here: no user namespaces"),
            (&python, None, &bare, "container", "python is not installed"),
        ];
        for (image, needs, here, by_auto, by_jail) in cases {
            for (backend, expected) in [(Auto, by_auto), (Jail, by_jail), (Docker, "container"), (Podman, "container")]
            {
                let shown = match choose(image, backend, needs, here) {
                    Ok((SandboxKind::Embedded, _)) => "sandbox".to_owned(),
                    Ok((SandboxKind::Container, _)) => "container".to_owned(),
                    Err(Refusal { cause, hint }) => {
                        assert!(!hint.is_empty());
                        cause
                    }
                };
                assert!(shown.contains(expected), "{backend:?} {needs:?} {here:?}: {shown}");
            }
        }
    }
}
