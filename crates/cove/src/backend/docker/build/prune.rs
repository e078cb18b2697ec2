//! Removing what was built from definitions that are there no longer, or have changed since.

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::query_parameters::{
    ListImagesOptionsBuilder, ListVolumesOptionsBuilder, RemoveImageOptions, RemoveVolumeOptions,
};

use super::super::unanswered;
pub use super::super::volume::RUNNER as LABEL_RUNNER;
use super::{LABEL_DIGEST, LABEL_IMAGE, repository, repository_of_parts, words_of};
use crate::backend::StartError;
use crate::error::shown;

/// What is to stay of what was built for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    name: String,
    /// Nothing where it could not be found out: then all of it stays.
    digest: Option<String>,
}

impl Kept {
    pub fn one(name: &str, digest: String) -> Self {
        Self { name: name.to_owned(), digest: Some(digest) }
    }

    pub fn all(name: &str) -> Self {
        Self { name: name.to_owned(), digest: None }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub removed: Vec<String>,
    /// What should have gone, and why it did not.
    pub left: Vec<(String, String)>,
}

/// `runners` are the digests of those whose volumes stay.
pub async fn prune(docker: &Docker, kept: &[Kept], runners: &[String]) -> Result<Pruned, StartError> {
    let mut pruned = Pruned::default();
    images(docker, kept, &mut pruned).await?;
    volumes(docker, runners, &mut pruned).await?;
    Ok(pruned)
}

async fn images(docker: &Docker, kept: &[Kept], pruned: &mut Pruned) -> Result<(), StartError> {
    let filters = [("label".to_owned(), vec![LABEL_DIGEST.to_owned()])].into();
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let found = docker.list_images(Some(options)).await.map_err(|error| could_not_list("images", error))?;
    for image in found {
        let label = |key: &str| image.labels.get(key).map_or("", String::as_str);
        let (name, digest) = (label(LABEL_IMAGE), label(LABEL_DIGEST));
        if stays(kept, name, digest) {
            continue;
        }
        // An image made from one of ours has its labels too, and is somebody else's.
        let ours: Vec<&String> = image.repo_tags.iter().filter(|tag| is_ours(tag, name)).collect();
        for tag in ours {
            match docker.remove_image(tag, None::<RemoveImageOptions>, None).await {
                Ok(_) => pruned.removed.push(format!("image {}", shown(tag))),
                Err(error) => pruned.note(format!("image {}", shown(tag)), &error),
            }
        }
    }
    Ok(())
}

async fn volumes(docker: &Docker, runners: &[String], pruned: &mut Pruned) -> Result<(), StartError> {
    let filters = [("label".to_owned(), vec![LABEL_RUNNER.to_owned()])].into();
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let found = docker.list_volumes(Some(options)).await.map_err(|error| could_not_list("volumes", error))?;
    for volume in found.volumes.unwrap_or_default() {
        if volume.labels.get(LABEL_RUNNER).is_some_and(|digest| runners.contains(digest)) {
            continue;
        }
        match docker.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await {
            Ok(()) => pruned.removed.push(format!("volume {}", shown(&volume.name))),
            Err(error) => pruned.note(format!("volume {}", shown(&volume.name)), &error),
        }
    }
    Ok(())
}

impl Pruned {
    fn note(&mut self, what: String, error: &DockerError) {
        match error {
            // Somebody else was faster.
            DockerError::DockerResponseServerError { status_code: 404, .. } => {}
            error => self.left.push((what, words_of(error))),
        }
    }
}

fn stays(kept: &[Kept], name: &str, digest: &str) -> bool {
    kept.iter().any(|kept| match &kept.digest {
        Some(known) => known == digest && kept.name == name,
        None => kept.name == name,
    })
}

/// `cove/NAME:…` or `cove/compose-NAME-PART:…`, with whatever host Podman puts before it.
fn is_ours(tag: &str, name: &str) -> bool {
    let hosts = ["localhost/", "docker.io/"];
    let tag = hosts.iter().find_map(|host| tag.strip_prefix(host)).unwrap_or(tag);
    tag.starts_with(&format!("{}:", repository(name))) || tag.starts_with(&repository_of_parts(name))
}

fn could_not_list(what: &str, error: DockerError) -> StartError {
    unanswered(format!("could not list the {what} that Cove made"), &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_defined_stays_and_so_does_what_is_somebody_else_s() {
        let kept = |digest: Option<&str>| [digest.map_or(Kept::all("x"), |one| Kept::one("x", one.into()))];
        assert!(stays(&kept(Some("12")), "x", "12"));
        assert!(!stays(&kept(Some("12")), "x", "34"), "it changed");
        assert!(!stays(&kept(Some("12")), "y", "12"), "it has another name now");
        assert!(stays(&kept(None), "x", "34"), "nobody knows");
        assert!(!stays(&kept(None), "y", "34"));
        assert!(is_ours("cove/x:12", "x") && is_ours("localhost/cove/x:12", "x"));
        assert!(!is_ours("mine/x:12", "x") && !is_ours("cove/xy:12", "x"));
        assert!(is_ours("cove/compose-a-b-web:12", "a.b") && is_ours("localhost/cove/compose-x-db:1", "x"));
        assert!(!is_ours("mine/compose-x-db:1", "x") && !is_ours("cove/compose-y-db:1", "x"));
    }
}
