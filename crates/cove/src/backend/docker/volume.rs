//! Our own program in a volume that every container mounts read-only: it runs in any image, also on another machine, and
//! is copied once for each version.

use std::path::Path;
use std::time::{Duration, Instant};

use bollard::Docker as Client;
use bollard::body_full;
use bollard::errors::Error as ClientError;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, Volume, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, RemoveVolumeOptions, UploadToContainerOptionsBuilder,
};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::control::Guard;
use super::{named, said};
use crate::backend::StartError;
use crate::session::registry::random;

/// The label of the volume: which program is in it.
pub const RUNNER: &str = "cove.runner";

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

/// How long whoever uses a volume in place of ours may take to be gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sees that the volume is there. One that is there was filled, or whoever made it was killed meanwhile; then nothing
/// starts from it, and it is filled again.
pub(super) async fn ensure(client: &Client, program: &Program, filler: Filler<'_>) -> Result<(), StartError> {
    if look(client, program).await? == Found::Ours { Ok(()) } else { fill(client, program, filler).await }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Ours,
    /// Of its name, and not marked as ours.
    Foreign,
}

async fn look(client: &Client, program: &Program) -> Result<Found, StartError> {
    match client.inspect_volume(&program.volume()).await {
        Ok(volume) => Ok(found(&volume, program)),
        Err(ClientError::DockerResponseServerError { status_code: 404, .. }) => Ok(Found::Nothing),
        Err(error) => Err(StartError::new("could not look for our volume").because(said(&error))),
    }
}

fn found(volume: &Volume, program: &Program) -> Found {
    if volume.labels.get(RUNNER) == Some(&program.digest) { Found::Ours } else { Found::Foreign }
}

/// Makes the volume unless it is there. A foreign one is removed first: whoever asks for a container with a volume that is
/// missing gets one made, with nothing in it. Nothing starts from that, so whoever uses it is gone soon.
async fn make(client: &Client, program: &Program) -> Result<(), StartError> {
    const PAUSE: Duration = Duration::from_millis(200);
    let until = Instant::now() + PATIENCE;
    let name = program.volume();
    let again = || "it is made again and again".to_owned();
    loop {
        let why = match look(client, program).await? {
            Found::Ours => return Ok(()),
            Found::Nothing => match create(client, program).await? {
                Found::Ours => return Ok(()),
                _ => again(),
            },
            Found::Foreign => match client.remove_volume(&name, None::<RemoveVolumeOptions>).await {
                Ok(()) if Instant::now() < until => continue,
                Ok(()) => again(),
                Err(error) => said(&error),
            },
        };
        if Instant::now() >= until {
            return Err(StartError::new(format!("could not use the volume `{name}`"))
                .because(format!("somebody else made it, and it could not be removed: {why}"))
                .with_hint(format!("remove what uses it, and then it: `docker volume rm {name}`")));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What is there then: somebody may have been faster.
async fn create(client: &Client, program: &Program) -> Result<Found, StartError> {
    let volume = VolumeCreateRequest {
        name: Some(program.volume()),
        labels: Some([(RUNNER.to_owned(), program.digest.clone())].into()),
        ..VolumeCreateRequest::default()
    };
    match client.create_volume(volume).await {
        Ok(volume) => Ok(found(&volume, program)),
        Err(ClientError::DockerResponseServerError { status_code: 409, .. }) => Ok(Found::Foreign),
        Err(error) => Err(could_not(&error)),
    }
}

/// What a container that only holds the volume for us is made of.
pub(super) struct Filler<'a> {
    /// Any image will do: nothing of it is started.
    pub(super) image: &'a str,
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
}

/// Makes the volume if it must be, and puts our program into it unless it is there.
pub(super) async fn fill(client: &Client, program: &Program, filler: Filler<'_>) -> Result<(), StartError> {
    make(client, program).await?;
    // In a place that no image can have files at: Docker would copy them into a volume that is empty, for all to use.
    let place = format!("/cove-{:032x}", random());
    let mount = Mount {
        target: Some(place.clone()),
        source: Some(program.volume()),
        typ: Some(MountType::VOLUME),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(filler.image.to_owned()),
        entrypoint: Some(vec![format!("{place}/cove")]),
        labels: Some(filler.labels.into_iter().collect()),
        host_config: Some(HostConfig {
            network_mode: Some("none".into()),
            mounts: Some(vec![mount]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let holder =
        client.create_container(Some(named(&filler.name)), body).await.map_err(|error| could_not(&error))?;
    let guard = Guard::new(client.clone(), holder.id.clone());
    let put = put(client, program, &holder.id, &place).await;
    guard.remove().await;
    put
}

async fn put(client: &Client, program: &Program, holder: &str, place: &str) -> Result<(), StartError> {
    // It has its name only when it is whole.
    let there = ContainerArchiveInfoOptionsBuilder::new().path(&format!("{place}/cove")).build();
    if client.get_container_archive_info(holder, Some(there)).await.is_ok() {
        return Ok(());
    }
    let archive = program
        .archive(&format!("part-{holder}"))
        .map_err(|error| StartError::new("could not pack our own program").because(error))?;
    let options = UploadToContainerOptionsBuilder::new().path(place).build();
    client
        .upload_to_container(holder, Some(options), body_full(archive.into()))
        .await
        .map_err(|error| could_not(&error))
}

fn could_not(error: &ClientError) -> StartError {
    StartError::new("could not copy our own program into a volume").because(said(error))
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
