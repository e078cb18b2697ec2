//! `cargo xtask containers`, and part of `cargo xtask test`: a Docker and two Podmans for the tests alone, with images
//! that need no registry. They have nothing in common with those of the machine, and end when we end. Only root can
//! start them; for anyone else the tests that need them are skipped.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo;

mod api;
mod daemon;
mod images;
mod place;
#[cfg(test)]
mod proofs;
mod recipes;
mod tree;

use daemon::Daemon;
use images::{Archive, Archives};
use place::{Kind, Place};

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// They end with this.
#[derive(Debug)]
pub(crate) struct Running {
    daemons: Vec<Daemon>,
    place: Place,
    /// Why one is not among them.
    pub(crate) troubles: Vec<String>,
    _lock: File,
}

impl Running {
    /// What tests find them by.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        self.daemons.iter().map(|one| (one.kind.variable(), self.place.address(one.kind))).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.daemons.clear();
        remove_groups(&self.place);
        let _ = fs::remove_dir(&self.place.run);
    }
}

/// Whoever started some for themselves keeps them.
pub(crate) fn are_given() -> bool {
    Kind::ALL.iter().any(|kind| std::env::var_os(kind.variable()).is_some())
}

/// Starts them and stays until interrupted: the kernel ends them with us.
pub(crate) fn run() -> Result<(), String> {
    let mut running = start(crate::test::prepare_as_root()?)?;
    for trouble in &running.troubles {
        eprintln!("{trouble}");
    }
    for (variable, address) in running.environment() {
        println!("export {variable}={address}");
    }
    if running.daemons.is_empty() {
        return Err(crate::ALREADY_SAID.to_owned());
    }
    while !running.daemons.iter_mut().any(Daemon::has_ended) {
        thread::sleep(Duration::from_secs(1));
    }
    Err("one of them ended by itself\nhint: `target/containers` has what they said".to_owned())
}

/// `user` is the one for whom the rootless Podman runs.
pub(crate) fn start(user: &str) -> Result<Running, String> {
    let clone = cargo::root();
    // However it is reached, it is the same clone.
    let place = Place::of(&clone.canonicalize().unwrap_or(clone));
    for folder in [&place.kept, &place.run] {
        fs::create_dir_all(folder)
            .map_err(|error| format!("could not create `{}`\ncaused by: {error}", folder.display()))?;
    }
    let lock = lock(&place)?;
    let since = Instant::now();
    let archives = images::prepare(&place.kept)?;
    remove_groups(&place);
    let mut running = Running { daemons: Vec::new(), place, troubles: Vec::new(), _lock: lock };
    // From this thread, which lives as long as they shall.
    let started = Kind::ALL.map(|kind| (kind, Daemon::start(&running.place, kind, user)));
    let ready = thread::scope(|scope| {
        let place = &running.place;
        let archives = &archives;
        let each = started.map(|(kind, daemon)| {
            (kind, scope.spawn(move || daemon.and_then(|daemon| fill(daemon, place, archives))))
        });
        each.map(|(kind, thread)| (kind, thread.join().unwrap_or_else(|_| Err("it panicked".to_owned()))))
    });
    for (kind, daemon) in ready {
        match daemon {
            Ok(daemon) => running.daemons.push(daemon),
            Err(cause) => {
                running
                    .troubles
                    .push(format!("could not start {} for the tests\ncaused by: {cause}", kind.name()));
            }
        }
    }
    let names: Vec<_> = running.daemons.iter().map(|one| one.kind.name()).collect();
    println!("containers: {} ready after {:.1} s", names.join(", "), since.elapsed().as_secs_f64());
    Ok(running)
}

/// Held as long as they run: a second run in this clone would take their files from under them.
fn lock(place: &Place) -> Result<File, String> {
    let path = place.kept.join("lock");
    let could_not = |error| format!("could not lock `{}`\ncaused by: {error}", path.display());
    let file = File::create(&path).map_err(could_not)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(could_not(error)),
    }
    println!(
        "waiting: another run in this clone has its containers started\n\
         hint: if that is `cargo xtask containers`, repeat here what it printed"
    );
    file.lock().map_err(could_not)?;
    Ok(file)
}

/// Makes it the same as at every other start: the images of the tests, and nothing else.
fn fill(mut daemon: Daemon, place: &Place, archives: &Archives) -> Result<Daemon, String> {
    daemon.answers()?;
    let socket = place.socket(daemon.kind);
    let archive = match daemon.kind {
        Kind::Docker | Kind::Podman => &archives.all,
        // It is there to be refused.
        Kind::Rootless => &archives.small,
    };
    clean(&socket, archive)?;
    archive.load(&socket)?;
    Ok(daemon)
}

/// Removes what tests left. What refuses to go is none of ours, or gone already.
fn clean(socket: &Path, archive: &Archive) -> Result<(), String> {
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
    for image in images.as_array().into_iter().flatten() {
        let identifier = image["Id"].as_str().unwrap_or_default();
        if !archive.has(identifier) {
            api::ask(socket, "DELETE", &format!("/images/{identifier}?force=true"))?;
            continue;
        }
        let tags = image["RepoTags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for tag in tags.filter(|tag| !archive.gives(tag)) {
            api::ask(socket, "DELETE", &format!("/images/{tag}"))?;
        }
    }
    Ok(())
}

fn listed<'a>(list: &'a Value, field: &'static str) -> impl Iterator<Item = &'a str> {
    list.as_array().into_iter().flatten().filter_map(move |one| one[field].as_str())
}

/// Groups of processes that were killed with their daemon.
fn remove_groups(place: &Place) {
    remove_group(place.control_group().trim_start_matches('/'));
}

/// In every hierarchy, from the leaves up. The kernel keeps a group that has a process.
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
        // As Docker answers without a volume.
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
