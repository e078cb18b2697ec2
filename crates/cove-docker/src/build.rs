//! Finds, pulls and builds images for containers. A built image is tagged with a digest of its sources, so an unchanged
//! definition is built once and a changed one is built again.

mod archive;
mod base_images;
mod dockerignore;
mod output;
pub mod prune;
mod running_builds;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::models::{BuildInfo, ImageInspect};
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use bytes::Bytes;
use futures_util::StreamExt;

use super::dockerfile::DockerfileNeeds;
use super::{is_missing, request_error};
use cove_core::backend::ProgressCallback;
use cove_core::error::{Failure, display_path, display_value};
use cove_core::image::built_in;
use cove_core::image::folder::COMPOSE_FILES;
use cove_core::output::neutralise;
use cove_core::policy::{ImageRecipe, ImageSource};

pub use archive::{BuildSource, ServiceBuild};
use output::BuildOutput;

/// The time limit for a build or for pulling one image.
const BUILD_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The label with the image's name, as agents know it.
pub const LABEL_IMAGE: &str = "cove.image";
/// The label with the digest of the image's sources.
pub const LABEL_DIGEST: &str = "cove.digest";

/// An image that is ready for containers.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerImage {
    /// The tag, name or digest that finds the image.
    pub reference: String,
    pub image: ImageInspect,
    /// What Cove did to get the image, if anything.
    pub summary: Option<String>,
}

/// Gets images from an engine.
#[derive(Clone, Copy)]
pub struct ImageProvider<'a> {
    pub docker: &'a Docker,
    /// True if missing images may be pulled.
    pub pull: bool,
    /// Receives the progress of builds and pulls.
    pub tell: ProgressCallback<'a>,
}

/// Returns the reference under which the image is, or would be, found. Builds nothing. Fails if the sources are
/// unreadable.
pub async fn expected_reference(recipe: &ImageRecipe) -> Result<String, Failure> {
    match &recipe.source {
        ImageSource::Reference(reference) => Ok(reference.clone()),
        _ => reference_for(&recipe.name, &build_source(recipe)?).await,
    }
}

/// Returns what the image is built from. Fails for an unknown built-in image, for a reference, and for a Compose file,
/// whose images are prepared one by one.
fn build_source(recipe: &ImageRecipe) -> Result<BuildSource, Failure> {
    let name = &recipe.name;
    let message = match &recipe.source {
        ImageSource::BuiltIn(name) => match built_in::find(name) {
            Some(built_in) => return Ok(BuildSource::BuiltIn(built_in)),
            None => format!("could not find the image `{name}`: it is not built in"),
        },
        ImageSource::Folder(folder) => return Ok(BuildSource::Folder(folder.clone())),
        ImageSource::Reference(_) => format!("could not build the image `{name}`: it is only fetched"),
        ImageSource::Compose { folder, .. } => {
            let folder = display_path(folder);
            format!("could not build the image `{name}`: the Compose file in `{folder}` describes several")
        }
    };
    Err(Failure::operator(message))
}

/// Returns the tag of an image built from these files in their present state. Fails if they cannot be read.
pub async fn reference_for(name: &str, files: &BuildSource) -> Result<String, Failure> {
    Ok(tag(name, files, &source_digest(files).await?))
}

/// Returns the digest of the files in their present state. Fails if they cannot be read.
pub async fn source_digest(files: &BuildSource) -> Result<String, Failure> {
    read_blocking(files.clone(), |files| files.digest()).await
}

impl ImageProvider<'_> {
    /// Returns the image of the recipe, and builds or pulls it if it is missing. Fails if that is not possible or not
    /// permitted, and for a Compose file, whose images are prepared one by one.
    pub async fn prepare_image(&self, recipe: &ImageRecipe) -> Result<ContainerImage, Failure> {
        match &recipe.source {
            ImageSource::Reference(reference) => self.find_or_fetch(reference).await,
            _ => self.find_or_build(&recipe.name, build_source(recipe)?).await,
        }
    }

    /// Returns an image by reference, and pulls it if it is missing and `pull` permits it. Fails otherwise.
    pub async fn find_or_fetch(&self, reference: &str) -> Result<ContainerImage, Failure> {
        let ready = |image, summary| ContainerImage { reference: reference.to_owned(), image, summary };
        let name = display_value(reference);
        if let Some(image) = inspect_image(self.docker, reference).await? {
            return Ok(ready(image, None));
        }
        if !self.pull {
            return Err(Failure::operator(format!("could not find the image `{name}`"))
                .because("it is not on this machine")
                .with_hint(format!("run `docker pull {name}` (or `podman pull {name}`), or set `--pull true`")));
        }
        let start = Instant::now();
        let image = self.pull_image(reference, None).await?;
        Ok(ready(image, Some(format!("fetched the image `{name}` in {}", elapsed_seconds(start)))))
    }

    /// Returns the image built from these files, and builds it unless it was built from the same files before. Fails if
    /// the files cannot be read or the build fails.
    pub async fn find_or_build(&self, name: &str, files: BuildSource) -> Result<ContainerImage, Failure> {
        let expected = source_digest(&files).await?;
        if let Some(ready) = find_built(self.docker, name, &files, &expected).await? {
            return Ok(ready);
        }
        let image = tag(name, &files, &expected);
        let (docker, name, pull) = (self.docker.clone(), name.to_owned(), self.pull);
        let build = |lines: running_builds::LineSender| async move {
            let tell = move |line: &str| drop(lines.send(line.to_owned()));
            ImageProvider { docker: &docker, pull, tell: &tell }.build_exclusively(&name, files).await
        };
        running_builds::build_in_turn(self.docker, image, self.tell, build).await
    }

    /// Builds the image. `build_in_turn` calls it for one image at a time. Fails if the build fails or exceeds its time
    /// limit.
    async fn build_exclusively(&self, name: &str, files: BuildSource) -> Result<ContainerImage, Failure> {
        let start = Instant::now();
        // Write the archive first and name the image after its digest: the folder may change at any time.
        let (archive, digest) = read_blocking(files.clone(), |files| files.write_archive()).await?;
        if let Some(ready) = find_built(self.docker, name, &files, &digest).await? {
            return Ok(ready);
        }
        let dockerfile = read_blocking(files.clone(), |files| files.dockerfile()).await?;
        let needs = DockerfileNeeds::parse(&dockerfile, &files.arguments());
        let result = files.describe_result(name);
        base_images::ensure_base_images(self, &result, needs).await?;
        (self.tell)(&format!("building {result}"));
        let failed = |words: String| build_error(name, &files, words);
        within_time_limit(self.run_build(name, &files, &digest, archive)).await.map_err(failed)?;
        // Do not trust the builder's answer alone: only an existing image can be started.
        let Some(ready) = find_built(self.docker, name, &files, &digest).await? else {
            return Err(failed("it said that it was built, and it is not there".into()));
        };
        Ok(ContainerImage { summary: Some(format!("built {result} in {}", elapsed_seconds(start))), ..ready })
    }

    /// Sends the archive to the builder and reports its output. Fails with the failed step, its last output lines and
    /// the builder's message.
    async fn run_build(&self, name: &str, files: &BuildSource, digest: &str, archive: fs::File) -> Result<(), String> {
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
        // The client's timeout covers the first byte of the answer, which comes only after the whole archive is sent.
        let docker = self.docker.clone().with_timeout(BUILD_TIMEOUT);
        let body = bollard::body_try_stream(file_chunks(archive));
        let mut messages = Box::pin(docker.build_image(options.build(), None, Some(body)));
        let mut output = BuildOutput::default();
        let mut failure = None;
        while let Some(message) = messages.next().await {
            match message {
                Ok(BuildInfo { stream: Some(text), .. }) => output.push(&text, self.tell),
                Ok(BuildInfo { status: Some(status), .. }) => (self.tell)(&neutralise(status)),
                Ok(_) => {}
                Err(error) => {
                    failure = Some(build_error_text(&error));
                    break;
                }
            }
        }
        output.finish(self.tell);
        failure.map_or(Ok(()), |words| Err(output.failure_text(&words)))
    }

    /// Pulls an image and returns it. Fails with the engine's message, or if the time limit passes.
    async fn pull_image(&self, reference: &str, platform: Option<&str>) -> Result<ImageInspect, Failure> {
        let name = display_value(reference);
        let could_not = |words: String| {
            Failure::operator(format!("could not fetch the image `{name}`")).because(words).with_hint(
                "look at its name and at the network; for a registry that wants a sign-in, run `docker pull` yourself",
            )
        };
        (self.tell)(&format!("fetching the image `{name}`"));
        let mut options = CreateImageOptionsBuilder::default().from_image(&with_tag(reference));
        if let Some(platform) = platform {
            options = options.platform(platform);
        }
        let docker = self.docker.clone().with_timeout(BUILD_TIMEOUT);
        let fetching = async {
            let mut messages = Box::pin(docker.create_image(Some(options.build()), None, None));
            while let Some(message) = messages.next().await {
                let message = message.map_err(|error| build_error_text(&error))?;
                if let Some(words) = message.error_detail.and_then(|detail| detail.message) {
                    return Err(neutralise(words));
                }
                let words = [message.id, message.status].into_iter().flatten().collect::<Vec<_>>().join(" ");
                if !words.is_empty() {
                    (self.tell)(&neutralise(words));
                }
            }
            Ok(())
        };
        within_time_limit(fetching).await.map_err(could_not)?;
        inspect_image(&docker, reference)
            .await?
            .ok_or_else(|| could_not("it is not there, though nothing was said to be wrong".into()))
    }
}

/// Runs a build or a pull. Fails if it takes longer than `BUILD_TIMEOUT`.
async fn within_time_limit(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let minutes = BUILD_TIMEOUT.as_secs() / 60;
    let late = |_| Err(format!("it took longer than {minutes} minutes"));
    tokio::time::timeout(BUILD_TIMEOUT, work).await.unwrap_or_else(late)
}

/// Returns the tag for an image built from files with this digest.
fn tag(name: &str, files: &BuildSource, digest: &str) -> String {
    let digest = digest.get(..12).unwrap_or(digest);
    match files.service() {
        None => format!("{}:{digest}", repository(name)),
        Some(service) => format!("{}{}:{digest}", compose_repository_prefix(name), sanitise_name(&service.name)),
    }
}

fn repository(name: &str) -> String {
    format!("cove/{name}")
}

/// Returns the common prefix of the tags for all services of a Compose file.
fn compose_repository_prefix(name: &str) -> String {
    format!("cove/compose-{}-", sanitise_name(name))
}

/// Replaces the characters that engines do not accept in an image name.
fn sanitise_name(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(keep).collect::<String>().trim_matches('-').to_owned()
}

/// Returns the image that was built from sources with this digest, or `None`. Fails if the engine does not answer.
async fn find_built(
    docker: &Docker,
    name: &str,
    files: &BuildSource,
    digest: &str,
) -> Result<Option<ContainerImage>, Failure> {
    let reference = tag(name, files, digest);
    let Some(image) = inspect_image(docker, &reference).await? else { return Ok(None) };
    // Any user can give this tag to another image, so the label decides.
    let label = image.config.as_ref().and_then(|config| config.labels.as_ref()?.get(LABEL_DIGEST));
    let is_ours = label.is_some_and(|label| label == digest);
    Ok(is_ours.then_some(ContainerImage { reference, image, summary: None }))
}

/// Returns the image, or `None` if the engine does not have it. Fails if the engine does not answer.
async fn inspect_image(docker: &Docker, reference: &str) -> Result<Option<ImageInspect>, Failure> {
    match docker.inspect_image(reference).await {
        Ok(image) => Ok(Some(image)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => {
            Err(request_error(format!("could not look for the image `{}`", display_value(reference)), &error))
        }
    }
}

/// Streams a file in chunks. A blocking thread reads it, so that async tasks are not held up.
fn file_chunks(file: fs::File) -> impl futures_core::Stream<Item = std::io::Result<Bytes>> + Send {
    const CHUNK: usize = 256 * 1024;
    futures_util::stream::try_unfold(file, |mut file| async {
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; CHUNK];
            let length = file.read(&mut chunk)?;
            chunk.truncate(length);
            Ok((length > 0).then(|| (Bytes::from(chunk), file)))
        });
        read.await?
    })
}

/// Adds the tag `latest` to a reference without a tag. Docker would pull all tags otherwise.
fn with_tag(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    match last.contains(':') || last.contains('@') {
        true => reference.to_owned(),
        false => format!("{reference}:latest"),
    }
}

fn build_error_text(error: &DockerError) -> String {
    neutralise(match error {
        DockerError::DockerResponseServerError { message, .. } => message.clone(),
        DockerError::DockerStreamError { error } => error.clone(),
        DockerError::HyperLegacyError { .. } | DockerError::HyperResponseError { .. } | DockerError::IOError { .. } => {
            format!("the connection to Docker or Podman broke: {}", super::error_message(error))
        }
        other => other.to_string(),
    })
}

fn build_error(name: &str, files: &BuildSource, words: String) -> Failure {
    let hint = match files {
        BuildSource::BuiltIn(_) => format!(
            "`cove images export DIR` gives you its Dockerfile to change; use it with `--image-dir DIR`, then `cove images build {name}`"
        ),
        BuildSource::Folder(folder) | BuildSource::Service(ServiceBuild { folder, .. }) => format!(
            "correct `{}`; `cove images build --image-dir {} {name}` tries it again",
            display_path(&folder.join(files.dockerfile_name())),
            image_directory(name, folder).map_or_else(|| "DIR".to_owned(), display_path)
        ),
    };
    Failure::operator(format!("could not build {}", files.describe_result(name))).because(words).with_hint(hint)
}

/// Returns the directory that contains the image's folder, where `within` is that folder or a folder below it.
fn image_directory<'a>(name: &str, within: &'a Path) -> Option<&'a Path> {
    let has = |folder: &Path, file: &&str| folder.join(file).is_file();
    let is_whole = |folder: &&Path| {
        folder.file_name().is_some_and(|last| last == name)
            && COMPOSE_FILES.iter().chain(&["Dockerfile"]).any(|file| has(folder, file))
    };
    within.ancestors().filter(is_whole).last()?.parent()
}

fn elapsed_seconds(since: Instant) -> String {
    match since.elapsed().as_secs_f64() {
        short if short < 10.0 => format!("{short:.1} s"),
        long => format!("{long:.0} s"),
    }
}

/// Runs work that reads files on a blocking thread, so that async tasks are not held up.
async fn read_blocking<T: Send + 'static>(
    files: BuildSource,
    work: impl FnOnce(&BuildSource) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let shown = files.describe();
    match tokio::task::spawn_blocking(move || work(&files)).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Failure::operator(format!("could not read {shown}")).because(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_latest_only_to_untagged_references() {
        for (written, expected) in [
            ("nginx", "nginx:latest"),
            ("nginx:1.28", "nginx:1.28"),
            ("host:5000/a/b", "host:5000/a/b:latest"),
            ("host:5000/a/b:1", "host:5000/a/b:1"),
            ("a@sha256:12", "a@sha256:12"),
        ] {
            assert_eq!(with_tag(written), expected);
        }
    }

    #[test]
    fn rebuild_hint_is_a_valid_command() {
        let images = tempfile::tempdir().unwrap();
        let inner = images.path().join("x/parts/x");
        fs::create_dir_all(&inner).unwrap();
        fs::write(images.path().join("x/compose.yaml"), "").unwrap();
        fs::write(inner.join("Dockerfile"), "").unwrap();
        assert_eq!(image_directory("x", &inner), Some(images.path()), "the outermost");
        assert_eq!(image_directory("y", &inner), None);
        let folder = BuildSource::Folder(images.path().join("x"));
        let hint = build_error("x", &folder, "no".into()).report().to_string();
        let typed = format!("`cove images build --image-dir {} x` tries it again", images.path().display());
        assert!(hint.contains(&typed), "{hint}");
    }

    #[test]
    fn built_image_names_are_valid_for_docker() {
        let folder = BuildSource::Folder("/x".into());
        assert_eq!(tag("a.b_c", &folder, "0123456789abcdef"), "cove/a.b_c:0123456789ab");
        let part = |name: &str| {
            BuildSource::Service(ServiceBuild {
                name: name.into(),
                folder: "/x".into(),
                dockerfile: "Dockerfile".into(),
                arguments: Default::default(),
                target: None,
            })
        };
        assert_eq!(tag("a.b_c", &part("Web_1-"), "0123456789abcdef"), "cove/compose-a-b-c-web-1:0123456789ab");
        assert_eq!(part("web").describe_result("x"), "`web` of the image `x`");
    }
}
