//! The runner program, in a volume that every container mounts read-only. So it runs in any image, also with an engine
//! on another machine, and is copied only once for each version.

use cove_core::error::Failure;
use std::collections::BTreeMap;
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

use super::control::ContainerGuard;
use super::{create_options, error_message, is_missing, request_error};
use cove_core::random::random_bits;

/// The label of the volume. Its value is the digest of the program in it.
pub const LABEL_RUNNER: &str = "cove.runner";

/// The program's bytes and their digest.
#[derive(Debug, Clone)]
pub(super) struct RunnerProgram {
    bytes: bytes::Bytes,
    pub(super) digest: String,
}

impl RunnerProgram {
    /// Reads the program. Fails if its file cannot be read.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = std::fs::read(path)
            .map_err(|error| Failure::operator(format!("could not read `{}`", path.display())).because(error))?;
        let digest = hex::encode(&Sha256::digest(&bytes)[..16]);
        Ok(Self { bytes: bytes.into(), digest })
    }

    /// Returns the name of the volume for this program.
    pub(super) fn volume_name(&self) -> String {
        format!("cove-runner-{}", &self.digest[..16])
    }

    /// Packs the program under the name `part`, which is unique and never started, followed by a hard link with its
    /// final name. An interrupted copy therefore never has the final name, and two processes that copy at the same time
    /// do not mix.
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

/// How long Cove waits for containers to release a foreign volume that has the runner volume's name.
const FOREIGN_USE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VolumeOwnership {
    Missing,
    Ours,
    /// It has the name but not the label.
    Foreign,
}

fn volume_ownership(volume: &Volume, program: &RunnerProgram) -> VolumeOwnership {
    if volume.labels.get(LABEL_RUNNER) == Some(&program.digest) {
        VolumeOwnership::Ours
    } else {
        VolumeOwnership::Foreign
    }
}

/// Fills the volume through a container that only mounts it during the copy and is never started.
pub(super) struct VolumeFiller<'a> {
    pub(super) client: &'a Client,
    pub(super) program: &'a RunnerProgram,
    /// Any image works, because nothing in it is started.
    pub(super) image: &'a str,
    /// The name of the container.
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
}

impl VolumeFiller<'_> {
    /// Creates and fills the volume if it is missing. An existing volume was normally filled by its creator. If its
    /// creator was killed before that, containers do not start, and the caller refills it. Fails if the engine cannot
    /// create or fill it.
    pub(super) async fn ensure_volume(self) -> Result<(), Failure> {
        if self.inspect_volume().await? == VolumeOwnership::Ours { Ok(()) } else { self.fill_volume().await }
    }

    async fn inspect_volume(&self) -> Result<VolumeOwnership, Failure> {
        match self.client.inspect_volume(&self.program.volume_name()).await {
            Ok(volume) => Ok(volume_ownership(&volume, self.program)),
            Err(error) if is_missing(&error) => Ok(VolumeOwnership::Missing),
            Err(error) => Err(request_error("could not look for our volume", &error)),
        }
    }

    /// Creates the volume if it is missing, and replaces a foreign one. If a container requests a missing volume, the
    /// engine creates an empty one without labels. No container can start from that, so its users are gone soon. Fails
    /// if the foreign volume is still in use after `FOREIGN_USE_TIMEOUT`.
    async fn create_or_replace(&self) -> Result<(), Failure> {
        const PAUSE: Duration = Duration::from_millis(200);
        let until = Instant::now() + FOREIGN_USE_TIMEOUT;
        let name = self.program.volume_name();
        let again = || "it is made again and again".to_owned();
        loop {
            let why = match self.inspect_volume().await? {
                VolumeOwnership::Ours => return Ok(()),
                VolumeOwnership::Missing => match self.create_volume().await? {
                    VolumeOwnership::Ours => return Ok(()),
                    _ => again(),
                },
                VolumeOwnership::Foreign => match self.client.remove_volume(&name, None::<RemoveVolumeOptions>).await {
                    Ok(()) if Instant::now() < until => continue,
                    Ok(()) => again(),
                    Err(error) => error_message(&error),
                },
            };
            if Instant::now() >= until {
                return Err(Failure::operator(format!("could not use the volume `{name}`"))
                    .because(format!("Cove did not make it, and could not remove it: {why}"))
                    .with_hint(format!("remove what uses it, and then it: `docker volume rm {name}`")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Creates the volume. Returns whose it is afterwards: the engine returns an existing volume unchanged.
    async fn create_volume(&self) -> Result<VolumeOwnership, Failure> {
        let volume = VolumeCreateRequest {
            name: Some(self.program.volume_name()),
            labels: Some([(LABEL_RUNNER.to_owned(), self.program.digest.clone())].into()),
            ..VolumeCreateRequest::default()
        };
        match self.client.create_volume(volume).await {
            Ok(volume) => Ok(volume_ownership(&volume, self.program)),
            Err(ClientError::DockerResponseServerError { status_code: 409, .. }) => Ok(VolumeOwnership::Foreign),
            Err(error) => Err(fill_error(error)),
        }
    }

    /// Creates the volume if needed and copies the program into it unless it is there. Fails if the engine refuses a
    /// step.
    pub(super) async fn fill_volume(self) -> Result<(), Failure> {
        self.create_or_replace().await?;
        // A random path, at which no image has files: Docker would copy such files into an empty volume.
        let place = format!("/cove-{:032x}", random_bits());
        let mount = Mount {
            target: Some(place.clone()),
            source: Some(self.program.volume_name()),
            typ: Some(MountType::VOLUME),
            ..Mount::default()
        };
        let body = ContainerCreateBody {
            image: Some(self.image.to_owned()),
            entrypoint: Some(vec![format!("{place}/cove")]),
            labels: Some(self.labels.clone().into_iter().collect()),
            host_config: Some(HostConfig {
                network_mode: Some("none".into()),
                mounts: Some(vec![mount]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let holder = self.client.create_container(Some(create_options(&self.name)), body).await.map_err(fill_error)?;
        let guard = ContainerGuard::new(self.client.clone(), holder.id.clone());
        let copied = self.copy_program(&holder.id, &place).await;
        guard.remove().await;
        copied
    }

    async fn copy_program(&self, holder: &str, place: &str) -> Result<(), Failure> {
        // The final name exists only after a complete copy.
        let there = ContainerArchiveInfoOptionsBuilder::new().path(&format!("{place}/cove")).build();
        if self.client.get_container_archive_info(holder, Some(there)).await.is_ok() {
            return Ok(());
        }
        let archive = self.program.archive(&format!("part-{holder}"));
        let archive = archive.map_err(|error| Failure::operator("could not pack our own program").because(error))?;
        let options = UploadToContainerOptionsBuilder::new().path(place).build();
        let upload = self.client.upload_to_container(holder, Some(options), body_full(archive.into()));
        upload.await.map_err(fill_error)
    }
}

fn fill_error(error: ClientError) -> Failure {
    request_error("could not copy our own program into a volume", &error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runner_gets_its_final_name_last() {
        let program = RunnerProgram { bytes: bytes::Bytes::from_static(b"program"), digest: "ab".repeat(16) };
        assert_eq!(program.volume_name(), "cove-runner-abababababababab");
        let bytes = program.archive("part-1").unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let names: Vec<String> =
            archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(names, ["part-1", "bin", "bin/mcp", "cove"]);
    }
}
