//! Images for containers: built from a folder or a definition that is built in, or found under a name. What is built is
//! named after a digest of what it was built from, so that an unchanged definition is built once, and a changed one again.

mod archive;
mod bases;
mod ignore;
mod output;
pub mod prune;
mod under_way;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::models::ImageInspect;
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use bytes::Bytes;
use futures_util::StreamExt;

use super::dockerfile::Needs;
use super::unanswered;
use crate::backend::{StartError, Tell};
use crate::error::{shown, shown_path};
use crate::image::folder::COMPOSE_FILES;
use crate::image::{Recipe, Source, built_in};
use crate::output::harmless;

pub use archive::{Files, Part};
use output::Output;

/// For a build, or for fetching one image.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The image's name, as agents know it.
pub const LABEL_IMAGE: &str = "cove.image";
/// Of what it was built from.
pub const LABEL_DIGEST: &str = "cove.digest";

/// An image that containers can be made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    /// What to ask for: a tag, a name or a digest.
    pub reference: String,
    pub image: ImageInspect,
    /// What had to be done for it, in words.
    pub done: Option<String>,
}

/// Sees to it that containers of the recipe can be made. A Compose file has several, which are seen to one by one.
pub async fn ready(
    docker: &Docker,
    recipe: &Recipe,
    pull: bool,
    tell: Tell<'_>,
) -> Result<Ready, StartError> {
    match &recipe.source {
        Source::Reference(reference) => present(docker, reference, pull, tell).await,
        Source::BuiltIn(name) => match built_in::find(name) {
            Some(built_in) => built(docker, &recipe.name, Files::BuiltIn(built_in), pull, tell).await,
            None => Err(StartError::new(format!("could not find the image `{name}`: it is not built in"))),
        },
        Source::Folder(folder) => {
            built(docker, &recipe.name, Files::Folder(folder.clone()), pull, tell).await
        }
        Source::Compose { folder, .. } => Err(StartError::new(format!(
            "could not build the image `{}`: the Compose file in `{}` describes several",
            recipe.name,
            shown_path(folder)
        ))),
    }
}

/// The name under which an image is, or would be, found; nothing is made for it.
pub async fn expected(recipe: &Recipe) -> Result<String, StartError> {
    let files = match &recipe.source {
        Source::Reference(reference) => return Ok(reference.clone()),
        Source::BuiltIn(name) => built_in::find(name).map(Files::BuiltIn),
        Source::Folder(folder) => Some(Files::Folder(folder.clone())),
        Source::Compose { .. } => None,
    };
    match files {
        Some(files) => named(&recipe.name, &files).await,
        None => Err(StartError::new(format!("could not name the image `{}`", recipe.name))),
    }
}

/// What an image is called that is built from these files as they are now.
pub async fn named(name: &str, files: &Files) -> Result<String, StartError> {
    Ok(tag(name, files, &digest(files).await?))
}

/// Of the files as they are now.
pub async fn digest(files: &Files) -> Result<String, StartError> {
    blocking(files.clone(), |files| files.digest()).await
}

/// An image that is there, or may be fetched.
pub async fn present(
    docker: &Docker,
    reference: &str,
    pull: bool,
    tell: Tell<'_>,
) -> Result<Ready, StartError> {
    let ready = |image, done| Ready { reference: reference.to_owned(), image, done };
    if let Some(image) = inspect(docker, reference).await? {
        return Ok(ready(image, None));
    }
    if !pull {
        return Err(StartError::new(format!("could not find the image `{}`", shown(reference)))
            .because("it is not on this machine")
            .with_hint(format!(
                "run `docker pull {0}` (or `podman pull {0}`), or set `--pull true`",
                shown(reference)
            )));
    }
    let start = Instant::now();
    let image = fetch(docker, reference, None, tell).await?;
    Ok(ready(image, Some(format!("fetched the image `{}` in {}", shown(reference), seconds(start)))))
}

/// An image built from files, unless it was built from the same before.
pub async fn built(
    docker: &Docker,
    name: &str,
    files: Files,
    pull: bool,
    tell: Tell<'_>,
) -> Result<Ready, StartError> {
    let expected = digest(&files).await?;
    if let Some(ready) = already(docker, name, &files, &expected).await? {
        return Ok(ready);
    }
    let (owned, image) = ((docker.clone(), name.to_owned()), tag(name, &files, &expected));
    let build = |lines: under_way::Lines| async move {
        let tell = move |line: &str| drop(lines.send(line.to_owned()));
        built_alone(&owned.0, &owned.1, files, pull, &tell).await
    };
    under_way::in_turn(docker, image, tell, build).await
}

async fn built_alone(
    docker: &Docker,
    name: &str,
    files: Files,
    pull: bool,
    tell: Tell<'_>,
) -> Result<Ready, StartError> {
    let start = Instant::now();
    // Written first and named after what was written: the folder may change at any time.
    let (archive, digest) = blocking(files.clone(), |files| files.archive()).await?;
    if let Some(ready) = already(docker, name, &files, &digest).await? {
        return Ok(ready);
    }
    let dockerfile = blocking(files.clone(), |files| files.dockerfile()).await?;
    let needs = Needs::of(&dockerfile, &files.arguments());
    let result = files.result(name);
    bases::are_there(docker, &result, needs, pull, tell).await?;
    tell(&format!("building {result}"));
    let building = build(docker, name, &files, &digest, archive, tell);
    match tokio::time::timeout(TIMEOUT, building).await {
        Ok(outcome) => outcome.map_err(|words| failed(name, &files, words))?,
        Err(_) => {
            let minutes = TIMEOUT.as_secs() / 60;
            return Err(failed(name, &files, format!("it took longer than {minutes} minutes")));
        }
    }
    // Whatever it said: only what is there can be started.
    let Some(ready) = already(docker, name, &files, &digest).await? else {
        return Err(failed(name, &files, "it said that it was built, and it is not there".into()));
    };
    Ok(Ready { done: Some(format!("built {result} in {}", seconds(start))), ..ready })
}

/// What an image is called that was built from files with this digest.
fn tag(name: &str, files: &Files, digest: &str) -> String {
    let digest = digest.get(..12).unwrap_or(digest);
    match files {
        Files::BuiltIn(_) | Files::Folder(_) => format!("{}:{digest}", repository(name)),
        Files::Part(part) => format!("{}{}:{digest}", repository_of_parts(name), plain(&part.name)),
    }
}

fn repository(name: &str) -> String {
    format!("cove/{name}")
}

/// How it begins for every container of a Compose file.
fn repository_of_parts(name: &str) -> String {
    format!("cove/compose-{}-", plain(name))
}

/// As Docker and Podman take it in the name of an image.
fn plain(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(keep).collect::<String>().trim_matches('-').to_owned()
}

async fn already(
    docker: &Docker,
    name: &str,
    files: &Files,
    digest: &str,
) -> Result<Option<Ready>, StartError> {
    let reference = tag(name, files, digest);
    let Some(image) = inspect(docker, &reference).await? else { return Ok(None) };
    // Anybody can give a tag to anything.
    let label = image.config.as_ref().and_then(|config| config.labels.as_ref()?.get(LABEL_DIGEST));
    let is_ours = label.is_some_and(|label| label == digest);
    Ok(is_ours.then_some(Ready { reference, image, done: None }))
}

/// An image, if it is there.
async fn inspect(docker: &Docker, reference: &str) -> Result<Option<ImageInspect>, StartError> {
    match docker.inspect_image(reference).await {
        Ok(image) => Ok(Some(image)),
        Err(DockerError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
        Err(error) => Err(unanswered(format!("could not look for the image `{}`", shown(reference)), &error)),
    }
}

/// The words of whoever failed, in their context, if it does.
async fn build(
    docker: &Docker,
    name: &str,
    files: &Files,
    digest: &str,
    archive: fs::File,
    tell: Tell<'_>,
) -> Result<(), String> {
    let labels = [(LABEL_IMAGE, name), (LABEL_DIGEST, digest)];
    let mut options = BuildImageOptionsBuilder::default()
        .dockerfile(&files.dockerfile_name().to_string_lossy())
        .t(&tag(name, files, digest))
        .labels(&labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
        .buildargs(&files.arguments().into_iter().collect())
        .nocache(false)
        .rm(true)
        .forcerm(true);
    if let Some(target) = files.target() {
        options = options.target(target);
    }
    let options = options.build();
    // Its own timeout is for the first byte of the answer, which comes when all is sent.
    let docker = docker.clone().with_timeout(TIMEOUT);
    let body = bollard::body_try_stream(chunks(archive));
    let mut messages = Box::pin(docker.build_image(options, None, Some(body)));
    let mut output = Output::default();
    let mut failure = None;
    while let Some(message) = messages.next().await {
        match message {
            Ok(message) => {
                if let Some(text) = message.stream {
                    output.push(&text, tell);
                } else if let Some(status) = message.status {
                    tell(&harmless(status));
                }
            }
            Err(DockerError::DockerStreamError { error }) => failure = Some(error),
            Err(error) => failure = Some(words_of(&error)),
        }
        if failure.is_some() {
            break;
        }
    }
    output.finish(tell);
    match failure {
        Some(words) => Err(output.failure(&words)),
        None => Ok(()),
    }
}

/// A file in pieces, read off the threads that others wait on.
fn chunks(file: fs::File) -> impl futures_core::Stream<Item = std::io::Result<Bytes>> + Send {
    const CHUNK: usize = 256 * 1024;
    futures_util::stream::unfold(Some(file), |file| async {
        let mut file = file?;
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; CHUNK];
            let read = file.read(&mut chunk);
            (file, chunk, read)
        });
        match read.await {
            Ok((_, _, Ok(0))) => None,
            Ok((file, mut chunk, Ok(length))) => {
                chunk.truncate(length);
                Some((Ok(Bytes::from(chunk)), Some(file)))
            }
            Ok((_, _, Err(error))) => Some((Err(error), None)),
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    })
}

async fn fetch(
    docker: &Docker,
    reference: &str,
    platform: Option<&str>,
    tell: Tell<'_>,
) -> Result<ImageInspect, StartError> {
    let could_not = |words: String| {
        StartError::new(format!("could not fetch the image `{}`", shown(reference)))
            .because(words)
            .with_hint("look at its name and at the network; for a registry that wants a sign-in, run `docker pull` yourself")
    };
    tell(&format!("fetching the image `{}`", shown(reference)));
    let mut options = CreateImageOptionsBuilder::default().from_image(&exact(reference));
    if let Some(platform) = platform {
        options = options.platform(platform);
    }
    let options = options.build();
    let docker = docker.clone().with_timeout(TIMEOUT);
    let fetching = async {
        let mut messages = Box::pin(docker.create_image(Some(options), None, None));
        while let Some(message) = messages.next().await {
            match message {
                Ok(message) => {
                    let detail = message.error_detail.and_then(|detail| detail.message);
                    if let Some(words) = detail {
                        return Err(could_not(harmless(words)));
                    }
                    let words =
                        [message.id, message.status].into_iter().flatten().collect::<Vec<_>>().join(" ");
                    if !words.is_empty() {
                        tell(&harmless(words));
                    }
                }
                Err(error) => return Err(could_not(words_of(&error))),
            }
        }
        Ok(())
    };
    match tokio::time::timeout(TIMEOUT, fetching).await {
        Ok(outcome) => outcome?,
        Err(_) => return Err(could_not(format!("it took longer than {} minutes", TIMEOUT.as_secs() / 60))),
    }
    inspect(&docker, reference)
        .await?
        .ok_or_else(|| could_not("it is not there, though nothing was said to be wrong".into()))
}

/// With a tag: whoever names none means `latest`, and Docker would fetch all there are.
fn exact(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    match last.contains(':') || last.contains('@') {
        true => reference.to_owned(),
        false => format!("{reference}:latest"),
    }
}

fn words_of(error: &DockerError) -> String {
    harmless(match error {
        DockerError::DockerResponseServerError { message, .. } => message.clone(),
        DockerError::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    })
}

fn failed(name: &str, files: &Files, words: String) -> StartError {
    let hint = match files {
        Files::BuiltIn(_) => format!(
            "`cove images export DIR` gives you its Dockerfile to change; use it with `--image-dir DIR`, then `cove images build {name}`"
        ),
        Files::Folder(folder) | Files::Part(Part { folder, .. }) => format!(
            "correct `{}`; `cove images build --image-dir {} {name}` tries it again",
            shown_path(&folder.join(files.dockerfile_name())),
            directory_of(name, folder).map_or_else(|| "DIR".to_owned(), shown_path)
        ),
    };
    StartError::new(format!("could not build {}", files.result(name))).because(words).with_hint(hint)
}

/// The directory that has the image's folder, in which `within` is.
fn directory_of<'a>(name: &str, within: &'a Path) -> Option<&'a Path> {
    let has = |folder: &Path, file: &&str| folder.join(file).is_file();
    let is_whole = |folder: &&Path| {
        folder.file_name().is_some_and(|last| last == name)
            && COMPOSE_FILES.iter().chain(&["Dockerfile"]).any(|file| has(folder, file))
    };
    within.ancestors().filter(is_whole).last()?.parent()
}

fn seconds(since: Instant) -> String {
    match since.elapsed().as_secs_f64() {
        short if short < 10.0 => format!("{short:.1} s"),
        long => format!("{long:.0} s"),
    }
}

/// What reads files, off the threads that others wait on.
async fn blocking<T: Send + 'static>(
    files: Files,
    work: impl FnOnce(&Files) -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let shown = files.shown();
    match tokio::task::spawn_blocking(move || work(&files)).await {
        Ok(outcome) => outcome,
        Err(error) => Err(StartError::new(format!("could not read {shown}")).because(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Kind};

    #[test]
    fn one_tag_is_fetched_and_not_all() {
        for (written, expected) in [
            ("nginx", "nginx:latest"),
            ("nginx:1.28", "nginx:1.28"),
            ("host:5000/a/b", "host:5000/a/b:latest"),
            ("host:5000/a/b:1", "host:5000/a/b:1"),
            ("a@sha256:12", "a@sha256:12"),
        ] {
            assert_eq!(exact(written), expected);
        }
    }

    #[test]
    fn the_hint_to_build_again_can_be_typed_as_it_is() {
        let images = tempfile::tempdir().unwrap();
        let inner = images.path().join("x/parts/x");
        fs::create_dir_all(&inner).unwrap();
        fs::write(images.path().join("x/compose.yaml"), "").unwrap();
        fs::write(inner.join("Dockerfile"), "").unwrap();
        assert_eq!(directory_of("x", &inner), Some(images.path()), "the outermost");
        assert_eq!(directory_of("y", &inner), None);
        let folder = Files::Folder(images.path().join("x"));
        let hint = Error::of(Kind::Operator, failed("x", &folder, "no".into())).report().to_string();
        let typed = format!("`cove images build --image-dir {} x` tries it again", images.path().display());
        assert!(hint.contains(&typed), "{hint}");
    }

    #[test]
    fn names_of_what_is_built_are_those_that_docker_takes() {
        let folder = Files::Folder("/x".into());
        assert_eq!(tag("a.b_c", &folder, "0123456789abcdef"), "cove/a.b_c:0123456789ab");
        let part = |name: &str| {
            Files::Part(Part {
                name: name.into(),
                folder: "/x".into(),
                dockerfile: "Dockerfile".into(),
                arguments: Default::default(),
                target: None,
            })
        };
        assert_eq!(
            tag("a.b_c", &part("Web_1-"), "0123456789abcdef"),
            "cove/compose-a-b-c-web-1:0123456789ab"
        );
        assert_eq!(part("web").result("x"), "`web` of the image `x`");
    }
}
