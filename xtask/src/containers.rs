//! `cargo xtask containers`, and part of `cargo xtask test --all`: starts a Docker and two Podmans only for the
//! tests, with images that need no registry. They share nothing with the machine's own engines, and end when this
//! program ends. Only root can start them; for any other user the tests that need them are skipped.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cove_testkit::engines::{EngineDirs, PrivateEngine};
use serde_json::Value;

use crate::attempts::{self, ErrorContext};
use crate::cargo::{self, elements};

mod api;
mod daemon;
mod images;
#[cfg(test)]
mod proofs;
mod tree;

use daemon::EngineDaemon;
use images::{ImageArchive, ImageArchives};
pub(crate) use tree::{SystemTree, make_system_tree};

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// The engines that were started. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct RunningEngines {
    daemons: Vec<EngineDaemon>,
    place: EngineDirs,
    /// The reason for each engine that did not start.
    pub(crate) troubles: Vec<String>,
    _lock: File,
}

impl RunningEngines {
    /// The environment variables with which tests find the engines.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        self.daemons.iter().map(|one| (one.kind.variable(), self.place.address(one.kind))).collect()
    }

    /// The archive with the Debian tree of the images.
    pub(crate) fn system_image(&self) -> PathBuf {
        images::system_image(&self.place.kept)
    }
}

impl Drop for RunningEngines {
    fn drop(&mut self) {
        self.daemons.clear();
        remove_groups(&self.place);
        let _ = fs::remove_dir(&self.place.run);
    }
}

/// The names of those variables.
pub(crate) fn variables() -> [&'static str; 3] {
    PrivateEngine::ALL.map(PrivateEngine::variable)
}

/// True if the environment names engines already. Then xtask starts none.
pub(crate) fn are_given() -> bool {
    variables().into_iter().any(|variable| std::env::var_os(variable).is_some())
}

/// Starts the engines, the rootless one for this user, and waits until interrupted: the kernel ends them with this
/// process.
pub(crate) fn run(user: &str) -> Result<(), String> {
    let mut running = start(user)?;
    for trouble in &running.troubles {
        eprintln!("{trouble}");
    }
    for (variable, address) in running.environment() {
        println!("export {variable}={address}");
    }
    if running.daemons.is_empty() {
        return Err(crate::ALREADY_SAID.to_owned());
    }
    while !running.daemons.iter_mut().any(EngineDaemon::has_ended) {
        thread::sleep(Duration::from_secs(1));
    }
    Err("one of them ended by itself\nhint: `target/containers` has what they said".to_owned())
}

/// `user` is the one for whom the rootless Podman runs.
pub(crate) fn start(user: &str) -> Result<RunningEngines, String> {
    let clone = cargo::root();
    // The canonical path identifies the clone, however it is reached.
    let place = EngineDirs::of(&clone.canonicalize().unwrap_or(clone));
    for folder in [&place.kept, &place.run] {
        attempts::create_folder(folder)?;
    }
    let lock = lock(&place)?;
    let since = Instant::now();
    let archives = images::prepare(&place.kept)?;
    remove_groups(&place);
    let mut running = RunningEngines { daemons: Vec::new(), place, troubles: Vec::new(), _lock: lock };
    // Started from this thread, which lives as long as the engines must.
    let started = PrivateEngine::ALL.map(|kind| (kind, EngineDaemon::start(&running.place, kind, user)));
    let ready = thread::scope(|scope| {
        let place = &running.place;
        let archives = &archives;
        let each = started
            .map(|(kind, daemon)| (kind, scope.spawn(move || daemon.and_then(|daemon| fill(daemon, place, archives)))));
        each.map(|(kind, thread)| (kind, thread.join().unwrap_or_else(|_| Err("it panicked".to_owned()))))
    });
    for (kind, daemon) in ready {
        match daemon {
            Ok(daemon) => running.daemons.push(daemon),
            Err(cause) => {
                running.troubles.push(format!("could not start {} for the tests\ncaused by: {cause}", kind.name()));
            }
        }
    }
    let names: Vec<_> = running.daemons.iter().map(|one| one.kind.name()).collect();
    println!("containers: {} ready after {:.1} s", names.join(", "), since.elapsed().as_secs_f64());
    Ok(running)
}

/// Held while the engines run: a second run in this clone would use the same files.
fn lock(place: &EngineDirs) -> Result<File, String> {
    let path = place.kept.join("lock");
    let what = format!("lock `{}`", path.display());
    let file = File::create(&path).could_not(&what)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            println!(
                "waiting: another run in this clone has its containers started\n\
                 hint: if that is `cargo xtask containers`, repeat here what it printed"
            );
            file.lock().could_not(&what)?;
        }
        tried => tried.could_not(&what)?,
    }
    Ok(file)
}

/// Brings the engine into the same state as at every start: the images of the tests, and nothing else.
fn fill(mut daemon: EngineDaemon, place: &EngineDirs, archives: &ImageArchives) -> Result<EngineDaemon, String> {
    daemon.answers()?;
    let socket = place.socket(daemon.kind);
    let archive = match daemon.kind {
        PrivateEngine::Docker | PrivateEngine::Podman => &archives.all,
        // Cove refuses this engine for its sandboxes here, so the small images are enough.
        PrivateEngine::Rootless | PrivateEngine::Unlimited => &archives.small,
    };
    clean(&socket, archive)?;
    archive.load(&socket)?;
    Ok(daemon)
}

/// Removes what tests left. An object that the engine refuses to remove does not belong to the tests, or is gone
/// already.
fn clean(socket: &Path, archive: &ImageArchive) -> Result<(), String> {
    for container in listed(&api::get(socket, "/containers/json?all=true")?, "Id") {
        api::ask(socket, "DELETE", &format!("/containers/{container}?force=true&v=true"))?;
        remove_group(&format!("libpod_parent/libpod-{container}"));
    }
    let volumes = api::get(socket, "/volumes")?;
    for volume in listed(&volumes["Volumes"], "Name") {
        api::ask(socket, "DELETE", &format!("/volumes/{volume}?force=true"))?;
    }
    api::ask(socket, "POST", "/networks/prune")?;
    let images = api::get(socket, "/images/json")?;
    for image in elements(&images) {
        let identifier = image["Id"].as_str().unwrap_or_default();
        if !archive.has(identifier) {
            api::ask(socket, "DELETE", &format!("/images/{identifier}?force=true"))?;
            continue;
        }
        let tags = elements(&image["RepoTags"]).filter_map(Value::as_str);
        for tag in tags.filter(|tag| !archive.gives(tag)) {
            api::ask(socket, "DELETE", &format!("/images/{tag}"))?;
        }
    }
    Ok(())
}

fn listed<'a>(list: &'a Value, field: &'static str) -> impl Iterator<Item = &'a str> {
    elements(list).filter_map(move |one| one[field].as_str())
}

/// Removes control groups of processes that were killed with their daemon.
fn remove_groups(place: &EngineDirs) {
    remove_group(place.control_group().trim_start_matches('/'));
}

/// Removes a group in every hierarchy, from the leaves up. The kernel keeps a group that has a process.
fn remove_group(name: &str) {
    let hierarchies = fs::read_dir(CONTROL_GROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    for hierarchy in hierarchies.chain([CONTROL_GROUPS.into()]) {
        remove_empty(&hierarchy.join(name));
    }
}

fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_listed_is_named() {
        let list = json!([{"Id": "a"}, {"Name": "b"}, {"Id": "c"}]);
        assert_eq!(listed(&list, "Id").collect::<Vec<_>>(), ["a", "c"]);
        // Docker's answer without any volume.
        assert_eq!(listed(&Value::Null, "Name").count(), 0);
    }

    #[test]
    fn empty_folders_go_from_the_leaves_up_and_others_stay() {
        let top = std::env::temp_dir().join(format!("cove-groups-{}", std::process::id()));
        fs::create_dir_all(top.join("gone/a/b")).unwrap();
        fs::create_dir_all(top.join("kept/a")).unwrap();
        fs::write(top.join("kept/file"), "").unwrap();
        remove_empty(&top.join("gone"));
        remove_empty(&top.join("kept"));
        let left = (top.join("gone").exists(), top.join("kept/a").exists(), top.join("kept/file").exists());
        fs::remove_dir_all(&top).unwrap();
        assert_eq!(left, (false, false, true));
    }
}
