//! Our own program in a volume that every container mounts read-only: it runs in any image, also on another machine, and
//! is copied once for each version.

use std::path::Path;

use bollard::Docker as Client;
use bollard::body_full;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptions, RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::plan::HOME;
use super::said;
use crate::backend::StartError;

/// The label of the volume: which program is in it.
pub(crate) const RUNNER: &str = "cove.runner";

/// A program by its content.
#[derive(Debug, Clone)]
pub(super) struct Program {
    bytes: bytes::Bytes,
    digest: String,
}

impl Program {
    pub(super) fn read(path: &Path) -> Result<Self, StartError> {
        let bytes = std::fs::read(path).map_err(|error| {
            StartError::new(format!("could not read `{}`", path.display())).because(error)
        })?;
        let digest = Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { bytes: bytes.into(), digest })
    }

    /// The name of the volume that has it.
    pub(super) fn volume(&self) -> String {
        format!("cove-runner-{}", &self.digest[..16])
    }

    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// The program under a name that nobody starts, and only then under its own, as a link to the same file: a copy that
    /// was cut off is never taken for whole. Nor is one that somebody else makes at the same time: `part` is ours alone.
    fn archive(&self, part: &str) -> std::io::Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::with_capacity(self.bytes.len() + 8192));
        let header = |kind: EntryType, size: usize| {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o755);
            header.set_size(size as u64);
            header
        };
        archive.append_data(&mut header(EntryType::Regular, self.bytes.len()), part, &self.bytes[..])?;
        archive.append_data(&mut header(EntryType::Directory, 0), "bin", &[][..])?;
        archive.append_link(&mut header(EntryType::Symlink, 0), "bin/mcp", "../cove")?;
        archive.append_link(&mut header(EntryType::Link, 0), "cove", part)?;
        archive.into_inner()
    }
}

/// Sees that the volume is there. One that is there was filled, or whoever made it was killed meanwhile; then nothing
/// starts from it, and it is filled again.
pub(super) async fn ensure(client: &Client, program: &Program, filler: Filler<'_>) -> Result<(), StartError> {
    match client.inspect_volume(&program.volume()).await {
        Ok(volume) if volume.labels.get(RUNNER) == Some(&program.digest) => Ok(()),
        Ok(_) => Err(StartError::new(format!("could not use the volume `{}`", program.volume()))
            .because("somebody else made one of that name")
            .with_hint(format!("remove it: `docker volume rm {}`", program.volume()))),
        Err(ClientError::DockerResponseServerError { status_code: 404, .. }) => {
            fill(client, program, filler).await
        }
        Err(error) => Err(StartError::new("could not look for our volume").because(said(&error))),
    }
}

/// What a container that only holds the volume for us is made of.
pub(super) struct Filler<'a> {
    /// Any image will do: nothing of it is started.
    pub(super) image: &'a str,
    pub(super) labels: Vec<(String, String)>,
}

pub(super) async fn fill(client: &Client, program: &Program, filler: Filler<'_>) -> Result<(), StartError> {
    let could_not = |error: ClientError| {
        StartError::new("could not copy our own program into a volume").because(said(&error))
    };
    let volume = VolumeCreateRequest {
        name: Some(program.volume()),
        labels: Some([(RUNNER.to_owned(), program.digest.clone())].into()),
        ..VolumeCreateRequest::default()
    };
    client.create_volume(volume).await.map_err(could_not)?;
    let mount = Mount {
        target: Some(HOME.into()),
        source: Some(program.volume()),
        typ: Some(MountType::VOLUME),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(filler.image.to_owned()),
        entrypoint: Some(vec![format!("{HOME}/cove")]),
        labels: Some(filler.labels.into_iter().collect()),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            mounts: Some(vec![mount]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let holder = client.create_container(None::<CreateContainerOptions>, body).await.map_err(could_not)?;
    let archive = program
        .archive(&format!("part-{}", holder.id))
        .map_err(|error| StartError::new("could not pack our own program").because(error))?;
    let options = UploadToContainerOptionsBuilder::new().path(HOME).build();
    let put = client.upload_to_container(&holder.id, Some(options), body_full(archive.into())).await;
    let gone = RemoveContainerOptionsBuilder::new().force(true).build();
    // What is left of it the next sweep finds.
    let _ = client.remove_container(&holder.id, Some(gone)).await;
    put.map_err(could_not)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_gets_its_name_last() {
        let program = Program { bytes: bytes::Bytes::from_static(b"program"), digest: "ab".repeat(16) };
        assert_eq!(program.volume(), "cove-runner-abababababababab");
        let bytes = program.archive("part-1").unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["part-1", "bin", "bin/mcp", "cove"]);
    }
}
