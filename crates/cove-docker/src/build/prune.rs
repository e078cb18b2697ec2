//! Removes images and runner volumes whose definition no longer exists or has changed since.

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::query_parameters::{
    ListImagesOptionsBuilder, ListVolumesOptionsBuilder, RemoveImageOptions, RemoveVolumeOptions,
};

use super::super::image_list::list_images;
pub use super::super::runner_program::LABEL_RUNNER;
use super::super::{is_missing, request_error};
use super::{LABEL_DIGEST, LABEL_IMAGE, build_error_text, compose_repository_prefix, repository};
use cove_core::error::{Failure, display_value};

/// An image whose current build is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedImage {
    name: String,
    /// The digest of the current definition. `None` if it is unknown; then all builds of the image are kept.
    digest: Option<String>,
}

impl RetainedImage {
    pub fn with_digest(name: &str, digest: String) -> Self {
        Self { name: name.to_owned(), digest: Some(digest) }
    }

    pub fn without_digest(name: &str) -> Self {
        Self { name: name.to_owned(), digest: None }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    pub removed: Vec<String>,
    /// What could not be removed, and why.
    pub failed: Vec<(String, String)>,
}

/// Removes outdated images and volumes. Volumes of programs whose digest is in `runners` are kept. Fails if the engine
/// cannot list images or volumes; single failed removals are in the report.
pub async fn prune(docker: &Docker, kept: &[RetainedImage], runners: &[String]) -> Result<PruneReport, Failure> {
    let mut pruned = PruneReport::default();
    prune_images(docker, kept, &mut pruned).await?;
    prune_volumes(docker, runners, &mut pruned).await?;
    Ok(pruned)
}

async fn prune_images(docker: &Docker, kept: &[RetainedImage], pruned: &mut PruneReport) -> Result<(), Failure> {
    let filters = [("label".to_owned(), vec![LABEL_DIGEST.to_owned()])].into();
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let images = list_images(docker, Some(options)).await;
    for image in images.map_err(|error| request_error("could not list the images that Cove made", &error))? {
        let label = |key: &str| image.labels.get(key).map_or("", String::as_str);
        let (name, digest) = (label(LABEL_IMAGE), label(LABEL_DIGEST));
        if is_retained(kept, name, digest) {
            continue;
        }
        // An image built on top of a Cove image inherits its labels but belongs to its own author, so the tag decides.
        for tag in image.repo_tags.iter().filter(|tag| is_cove_tag(tag, name)) {
            let removed = docker.remove_image(tag, None::<RemoveImageOptions>, None).await;
            pruned.record(format!("image {}", display_value(tag)), removed.map(drop));
        }
    }
    Ok(())
}

async fn prune_volumes(docker: &Docker, runners: &[String], pruned: &mut PruneReport) -> Result<(), Failure> {
    let filters = [("label".to_owned(), vec![LABEL_RUNNER.to_owned()])].into();
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let found = docker.list_volumes(Some(options)).await;
    let found = found.map_err(|error| request_error("could not list the volumes that Cove made", &error))?;
    for volume in found.volumes.unwrap_or_default() {
        if volume.labels.get(LABEL_RUNNER).is_some_and(|digest| runners.contains(digest)) {
            continue;
        }
        let removed = docker.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await;
        pruned.record(format!("volume {}", display_value(&volume.name)), removed);
    }
    Ok(())
}

impl PruneReport {
    fn record(&mut self, what: String, removed: Result<(), DockerError>) {
        match removed {
            Ok(()) => self.removed.push(what),
            // Another client has already removed it.
            Err(error) if is_missing(&error) => {}
            Err(error) => self.failed.push((what, build_error_text(&error))),
        }
    }
}

fn is_retained(kept: &[RetainedImage], name: &str, digest: &str) -> bool {
    kept.iter().any(|kept| kept.name == name && kept.digest.as_ref().is_none_or(|known| known == digest))
}

/// Recognises `cove/NAME:…` and `cove/compose-NAME-PART:…`, with or without the registry host that Podman prepends.
fn is_cove_tag(tag: &str, name: &str) -> bool {
    let hosts = ["localhost/", "docker.io/"];
    let tag = hosts.iter().find_map(|host| tag.strip_prefix(host)).unwrap_or(tag);
    tag.starts_with(&format!("{}:", repository(name))) || tag.starts_with(&compose_repository_prefix(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prune_keeps_defined_and_foreign_images() {
        let kept = |digest: Option<&str>| {
            [digest.map_or(RetainedImage::without_digest("x"), |one| RetainedImage::with_digest("x", one.into()))]
        };
        assert!(is_retained(&kept(Some("12")), "x", "12"));
        assert!(!is_retained(&kept(Some("12")), "x", "34"), "it changed");
        assert!(!is_retained(&kept(Some("12")), "y", "12"), "it has another name now");
        assert!(is_retained(&kept(None), "x", "34"), "the digest is unknown");
        assert!(!is_retained(&kept(None), "y", "34"));
        assert!(is_cove_tag("cove/x:12", "x") && is_cove_tag("localhost/cove/x:12", "x"));
        assert!(!is_cove_tag("mine/x:12", "x") && !is_cove_tag("cove/xy:12", "x"));
        assert!(is_cove_tag("cove/compose-a-b-web:12", "a.b") && is_cove_tag("localhost/cove/compose-x-db:1", "x"));
        assert!(!is_cove_tag("mine/compose-x-db:1", "x") && !is_cove_tag("cove/compose-y-db:1", "x"));
    }
}
