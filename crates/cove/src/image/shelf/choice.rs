//! What serves one image, and why nothing does.

use cove_protocol::Language;

use crate::config::BackendChoice;
use crate::image::{Image, built_in};

/// What the operator asked for.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) backend: BackendChoice,
    /// What only containers have, in words.
    pub(super) needs_containers: Option<String>,
}

/// What the embedded sandbox has on this machine.
#[derive(Debug, Clone)]
pub(super) struct Here {
    pub(super) works: Result<(), String>,
    pub(super) languages: Vec<Language>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    Sandbox { why: String },
    Container { why: String },
    Nothing { why: String, hint: String },
}

/// The embedded sandbox serves what is built in and unchanged, if it starts here and has what the image takes plain lines
/// for; of other languages it offers those that are installed.
pub(super) fn choose(image: &Image, terms: &Terms, here: &Here) -> Choice {
    let nothing = |why: String, hint: &str| Choice::Nothing { why, hint: hint.to_owned() };
    let why_not = if !image.is_as_built_in() {
        Some((
            format!("it {}", why_no_sandbox(image)),
            "set `--backend auto`, `docker` or `podman`, or leave `--image-dir` out",
        ))
    } else if let Some(needed) = &terms.needs_containers {
        Some((
            format!("{needed} needs a container"),
            "leave it out, or set `--backend auto`, `docker` or `podman`",
        ))
    } else if let Err(why) = &here.works {
        Some((
            format!("the embedded sandbox does not start here: {why}"),
            "`cove doctor` tells what is missing",
        ))
    } else if !here.languages.contains(&image.speaks) {
        Some((
            format!("{} is not installed on this machine", image.speaks),
            "install it, or set `--backend auto`, `docker` or `podman`",
        ))
    } else {
        None
    };
    match (terms.backend, why_not) {
        (BackendChoice::Docker, _) => Choice::Container { why: "`--backend docker`".into() },
        (BackendChoice::Podman, _) => Choice::Container { why: "`--backend podman`".into() },
        (BackendChoice::Auto, Some((why, _))) => Choice::Container { why },
        (BackendChoice::Jail, None) => Choice::Sandbox { why: "`--backend jail`".into() },
        (BackendChoice::Auto, None) => Choice::Sandbox { why: "it is built in and unchanged".into() },
        (BackendChoice::Jail, Some((why, hint))) => {
            nothing(format!("could not serve it by `--backend jail`: {why}"), hint)
        }
    }
}

/// What is said of an image that is not as built in.
pub(super) fn why_no_sandbox(image: &Image) -> &'static str {
    match built_in::find(image.name()) {
        Some(_) => "differs from the one that is built in",
        None => "is not built in",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Origin;

    #[test]
    fn every_combination_has_one_answer() {
        let python = built_in::images().images.remove(0);
        let own = Image { origin: Origin::Folder, ..python.clone() };
        let exported = Image { origin: Origin::Exported, ..python.clone() };
        let fine = Here { works: Ok(()), languages: vec![Language::Python, Language::Sh] };
        let broken = Here { works: Err("no user namespaces".into()), ..fine.clone() };
        let bare = Here { languages: vec![Language::Sh], ..fine.clone() };
        use BackendChoice::{Auto, Docker, Jail, Podman};
        // Image, a need of containers, what is here; then by auto and by jail.
        let cases = [
            (&python, None, &fine, "sandbox", "sandbox"),
            (&exported, None, &fine, "sandbox", "sandbox"),
            (&own, None, &fine, "container", "it differs from the one that is built in"),
            (
                &python,
                Some("the runtime `runsc`"),
                &fine,
                "container",
                "the runtime `runsc` needs a container",
            ),
            (&python, None, &broken, "container", "does not start here: no user namespaces"),
            (&python, None, &bare, "container", "python is not installed"),
        ];
        for (image, needs, here, by_auto, by_jail) in cases {
            for (backend, expected) in
                [(Auto, by_auto), (Jail, by_jail), (Docker, "container"), (Podman, "container")]
            {
                let terms = Terms { backend, needs_containers: needs.map(str::to_owned) };
                let shown = match choose(image, &terms, here) {
                    Choice::Sandbox { .. } => "sandbox".to_owned(),
                    Choice::Container { .. } => "container".to_owned(),
                    Choice::Nothing { why, hint } => {
                        assert!(!hint.is_empty());
                        why
                    }
                };
                assert!(shown.contains(expected), "{backend:?} {needs:?} {here:?}: {shown}");
            }
        }
    }
}
