//! Removing what was built from definitions that are there no longer, or have changed since.

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::query_parameters::{
    ListImagesOptionsBuilder, ListVolumesOptionsBuilder, RemoveImageOptions, RemoveVolumeOptions,
};

use super::{LABEL_DIGEST, LABEL_IMAGE, words_of};
use crate::backend::StartError;
use crate::error::shown;

/// The label of volumes that hold the runner of one version.
pub const LABEL_RUNNER: &str = "cove.runner";

/// A definition whose image is to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub name: String,
    /// If it could not be read now, whatever was built under its name stays.
    pub digest: Option<String>,
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
        Some(known) => known == digest,
        None => kept.name == name,
    })
}

/// `cove/NAME:…`, with whatever host Podman puts before it.
fn is_ours(tag: &str, name: &str) -> bool {
    let ours = format!("cove/{name}:");
    tag.starts_with(&ours)
        || ["localhost/", "docker.io/"]
            .iter()
            .any(|host| tag.strip_prefix(host).is_some_and(|tag| tag.starts_with(&ours)))
}

fn could_not_list(what: &str, error: DockerError) -> StartError {
    StartError::new(format!("could not list the {what} that Cove made"))
        .because(error)
        .with_hint("is Docker or Podman running, and may you use it?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_defined_stays_and_so_does_what_is_somebody_else_s() {
        let kept = |digest: Option<&str>| [Kept { name: "x".into(), digest: digest.map(str::to_owned) }];
        assert!(stays(&kept(Some("12")), "x", "12"));
        assert!(!stays(&kept(Some("12")), "x", "34"), "it changed");
        assert!(stays(&kept(None), "x", "34"), "nobody knows");
        assert!(!stays(&kept(None), "y", "34"));
        assert!(is_ours("cove/x:12", "x") && is_ours("localhost/cove/x:12", "x"));
        assert!(!is_ours("mine/x:12", "x") && !is_ours("cove/xy:12", "x"));
    }
}
