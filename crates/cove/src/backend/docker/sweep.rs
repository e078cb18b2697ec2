//! Removes what a process of ours left behind that was killed before it could: containers, networks and volumes that
//! carry our labels, to the letter, and whose process is gone. What may belong to a process that we cannot look at is
//! removed only when it has ended. Nothing else is touched.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bollard::Docker as Client;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum as State};
use bollard::query_parameters::RemoveVolumeOptions;

use super::compose::{PROJECT, is_abandoned, take_down};
use super::control::remove;
use super::instance::{Instance, LIFE, Life, seconds};
use super::marked::{Marked, is_member, is_named};
use super::plan::{EXPIRES, INSTANCE, KIND, NAME, PRINCIPAL, SANDBOX, SESSION};
use super::said;

/// Containers that had ended at the last look, of processes that we cannot look at. Whoever made them may be about to read
/// why they ended, but not for long.
pub(super) type Ended = HashSet<String>;

/// Longer than anything that has just been made waits to be started.
const SLOW: Duration = Duration::from_secs(5 * 60);
/// Whoever asked for one of ours was told too late that it was made, when it was not started for so long.
const LOST: Duration = Duration::from_secs(60 * 60);

pub(super) async fn sweep(client: &Client, own: &Instance, ended: &mut Ended) {
    let marked = match Marked::find(client, &[format!("{KIND}={SANDBOX}"), INSTANCE.to_owned()]).await {
        Ok(marked) => marked,
        Err(error) => {
            tracing::warn!(error = said(&error), "could not look for what was left behind");
            return;
        }
    };
    let now = if marked.is_empty() { None } else { clock(client).await };
    let (projects, alone) = sorted(marked.containers);
    let mut still = Ended::new();
    for container in alone {
        let whose = whose(container.labels.as_ref(), own);
        let fate = fate(whose, container.state, age(&container, now));
        let Some(id) = container.id else { continue };
        if fate == Fate::Goes || fate == Fate::GoesSoon && ended.contains(&id) {
            tracing::info!(container = id, "removing a container that was left behind");
            remove(client, &id).await;
        } else if fate == Fate::GoesSoon {
            still.insert(id);
        }
    }
    *ended = still;
    for (project, members) in projects {
        if is_left_behind(client, &project, &members, own, now).await {
            tracing::info!(project, "removing a Compose project that was left behind");
            let left = take_down(client, &project).await;
            if !left.is_empty() {
                tracing::warn!(project, left = left.join("; "), "a Compose project could not be removed");
            }
        }
    }
    // Whoever still hangs on to these, such as a container that ends just now, is gone at the next sweep.
    for network in marked.networks {
        if let Some(id) = network.id.filter(|_| is_of_nobody(network.labels.as_ref(), own, now)) {
            let _ = client.remove_network(&id).await;
        }
    }
    for volume in marked.volumes {
        if is_of_nobody(Some(&volume.labels), own, now) {
            let _ = client.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await;
        }
    }
}

/// Seconds since 1970 where the containers are, by whose clock they were made.
async fn clock(client: &Client) -> Option<u64> {
    seconds(&client.info().await.ok()?.system_time?)
}

fn age(container: &ContainerSummary, now: Option<u64>) -> Option<Duration> {
    let made = container.created.and_then(|at| u64::try_from(at).ok())?;
    Some(Duration::from_secs(now?.saturating_sub(made)))
}

type Projects = BTreeMap<String, Vec<ContainerSummary>>;

/// Members of projects by these, and those that are alone. Copies are neither: what somebody makes from a sandbox, as with
/// `docker commit`, has our labels and another name.
fn sorted(containers: Vec<ContainerSummary>) -> (Projects, Vec<ContainerSummary>) {
    let (mut projects, mut alone) = (Projects::new(), Vec::new());
    for container in containers {
        let label = |name: &str| container.labels.as_ref().and_then(|labels| labels.get(name));
        let Some(name) = label(NAME).cloned() else { continue };
        // Images that Compose built have the label of a project, too, and give it to every container of theirs.
        if is_named(&container, &name) {
            alone.push(container);
        } else if label(PROJECT) == Some(&name) && is_member(&container, &name) {
            projects.entry(name).or_default().push(container);
        }
    }
    (projects, alone)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    /// If it is still so at the next look.
    GoesSoon,
    Goes,
}

/// Of a container that is alone, as old as it is by the clock that it was made by.
fn fate(whose: Found, state: Option<State>, age: Option<Duration>) -> Fate {
    let is_older = |than: Duration| age.is_some_and(|age| age > than);
    let has_ended = matches!(state, Some(State::EXITED | State::DEAD));
    match whose {
        Found::LeftBehind => Fate::Goes,
        Found::Own if state == Some(State::CREATED) && is_older(LOST) => Fate::Goes,
        Found::Elsewhere if is_older(LIFE + SLOW) => Fate::Goes,
        Found::Elsewhere if has_ended => Fate::GoesSoon,
        Found::Kept | Found::Own | Found::Elsewhere => Fate::Stays,
    }
}

/// A project goes as a whole or not at all.
async fn is_left_behind(
    client: &Client,
    project: &str,
    members: &[ContainerSummary],
    own: &Instance,
    now: Option<u64>,
) -> bool {
    let is_older = |than: Duration| members.iter().all(|one| age(one, now).is_some_and(|age| age > than));
    let of_all = |what: Found| members.iter().all(|one| whose(one.labels.as_ref(), own) == what);
    if of_all(Found::Elsewhere) {
        return is_older(LIFE + SLOW) || is_older(SLOW) && is_abandoned(client, project).await;
    }
    of_all(Found::LeftBehind)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Not ours, or in good hands.
    Kept,
    /// Of this process.
    Own,
    LeftBehind,
    /// Of a process that we cannot look at.
    Elsewhere,
}

fn whose(labels: Option<&HashMap<String, String>>, own: &Instance) -> Found {
    let Some(labels) = labels else { return Found::Kept };
    let complete = labels.get(KIND).is_some_and(|kind| kind == SANDBOX)
        && [SESSION, PRINCIPAL, NAME].iter().all(|name| labels.contains_key(*name))
        && expires(labels).is_some();
    let instance = labels.get(INSTANCE).and_then(|text| Instance::parse(text));
    let (true, Some(instance)) = (complete, instance) else { return Found::Kept };
    // Of an own one somebody takes care already, its end included.
    if instance == *own {
        return Found::Own;
    }
    match instance.life() {
        Life::Dead => Found::LeftBehind,
        Life::Alive => Found::Kept,
        Life::Elsewhere => Found::Elsewhere,
    }
}

/// Of networks and volumes, which cannot be removed while anything uses them.
fn is_of_nobody(labels: Option<&HashMap<String, String>>, own: &Instance, now: Option<u64>) -> bool {
    match whose(labels, own) {
        Found::LeftBehind => true,
        Found::Elsewhere => labels.and_then(expires).zip(now).is_some_and(|(expires, now)| {
            // A time that we would not have set is not ours.
            expires <= now && expires + 400 * LIFE.as_secs() > now
        }),
        Found::Kept | Found::Own => false,
    }
}

fn expires(labels: &HashMap<String, String>) -> Option<u64> {
    labels.get(EXPIRES)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::instance::now;
    use super::*;

    const OURS: &str = "cove-00112233445566778899aabbccddeeff";

    fn labels(instance: &str, expires: u64) -> HashMap<String, String> {
        [(KIND, SANDBOX), (INSTANCE, instance), (SESSION, "s_1"), (PRINCIPAL, "local"), (NAME, OURS)]
            .into_iter()
            .chain([(EXPIRES, expires.to_string().as_str())])
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn dead(own: &Instance) -> String {
        let text = own.to_string();
        let (place, began) = text.rsplit_once('/').unwrap();
        format!("{place}/{}", began.parse::<u64>().unwrap() + 1)
    }

    fn elsewhere(own: &Instance) -> String {
        own.to_string().replacen('/', "/9", 1)
    }

    #[test]
    fn only_ours_and_only_of_the_dead() {
        let own = Instance::own();
        let later = now() + 60;
        assert_eq!(whose(Some(&labels(&dead(&own), later)), &own), Found::LeftBehind);
        let text = own.to_string();
        assert_eq!(whose(Some(&labels(&text, 1)), &own), Found::Own, "this process sees to its own");
        assert_eq!(whose(Some(&labels(&elsewhere(&own), later)), &own), Found::Elsewhere, "nobody can tell");
    }

    /// As after a jump of the clock.
    #[test]
    fn what_belongs_to_the_living_is_kept_whatever_the_time() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let living = Instance::of(child.id());
        let found = whose(Some(&labels(&living.to_string(), 1)), &Instance::own());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Found::Kept);
    }

    #[test]
    fn what_only_looks_like_ours_stays() {
        let own = Instance::own();
        let dead = labels(&dead(&own), 1);
        for name in [KIND, INSTANCE, SESSION, PRINCIPAL, EXPIRES, NAME] {
            let mut without = dead.clone();
            without.remove(name);
            assert_eq!(whose(Some(&without), &own), Found::Kept, "{name}");
            let mut other = dead.clone();
            other.insert(name.to_owned(), "mine!".into());
            let decides = [KIND, INSTANCE, EXPIRES].contains(&name);
            assert_eq!(whose(Some(&other), &own) == Found::LeftBehind, !decides, "{name}");
        }
        assert_eq!(whose(None, &own), Found::Kept);
    }

    #[test]
    fn of_others_only_what_has_ended_goes() {
        let young = Some(Duration::from_secs(20));
        for state in [State::CREATED, State::RUNNING, State::PAUSED, State::RESTARTING, State::STOPPING] {
            assert_eq!(fate(Found::Elsewhere, Some(state), young), Fate::Stays, "{state}");
            assert_eq!(fate(Found::Elsewhere, Some(state), None), Fate::Stays, "{state}");
            assert_eq!(fate(Found::Elsewhere, Some(state), Some(LIFE * 2)), Fate::Goes, "{state}");
            assert_eq!(fate(Found::LeftBehind, Some(state), young), Fate::Goes, "{state}");
        }
        for state in [State::EXITED, State::DEAD] {
            assert_eq!(fate(Found::Elsewhere, Some(state), young), Fate::GoesSoon, "{state}");
        }
        assert_eq!(fate(Found::Own, Some(State::CREATED), young), Fate::Stays);
        assert_eq!(fate(Found::Own, Some(State::CREATED), Some(LOST * 2)), Fate::Goes);
        assert_eq!(fate(Found::Own, Some(State::EXITED), Some(LOST * 2)), Fate::Stays);
    }

    #[test]
    fn a_copy_has_our_labels_and_not_our_name() {
        let found = |name: &str, project: Option<&str>| {
            let mut labels = labels("x", 1);
            labels.extend(project.map(|project| (PROJECT.to_owned(), project.to_owned())));
            let names = Some(vec![format!("/{name}")]);
            let (projects, alone) =
                sorted(vec![ContainerSummary { names, labels: Some(labels), ..Default::default() }]);
            (projects.len(), alone.len())
        };
        assert_eq!(found(OURS, None), (0, 1));
        assert_eq!(found(OURS, Some("shop")), (0, 1), "of an image that Compose built");
        assert_eq!(found("mine", None), (0, 0));
        assert_eq!(found(&format!("{OURS}-main-1"), Some(OURS)), (1, 0));
        assert_eq!(found(&format!("{OURS}_main_1"), Some(OURS)), (1, 0));
        assert_eq!(found("mine", Some(OURS)), (0, 0), "`docker run` of what was committed");
        assert_eq!(found("mine-main-1", Some("mine")), (0, 0), "and as a part of their own project");
        assert_eq!(found(&format!("{OURS}9-main-1"), Some(OURS)), (0, 0));
    }

    #[test]
    fn networks_and_volumes_of_others_have_their_time() {
        let own = Instance::own();
        let theirs = labels(&elsewhere(&own), now());
        assert!(is_of_nobody(Some(&theirs), &own, Some(now() + 1)));
        assert!(!is_of_nobody(Some(&theirs), &own, Some(now() - 60)), "by the clock where they are");
        assert!(!is_of_nobody(Some(&theirs), &own, None));
        assert!(!is_of_nobody(Some(&labels(&elsewhere(&own), 1)), &own, Some(now())), "we set no such time");
        assert!(is_of_nobody(Some(&labels(&dead(&own), now() + 60)), &own, None));
    }
}
