//! Removes containers, networks and volumes that a killed Cove process left behind.
//!
//! Every resource carries labels that its creator sets: the kind, the session, the principal, the name, the creator's
//! `ProcessIdentity` and an expiry time. Any Cove process may read them and sweep. A sweep removes a resource only if
//! all labels are present and well-formed and the creator is dead. The creator may also be in a place where this
//! process cannot see it, such as another container. A container of such a creator is removed once two sweeps in a row
//! have found it ended, or once it is older than any container may be; a Compose project once no runner runs in it; a
//! network or a volume once its expiry time has passed. A sweep touches nothing else.
//!
//! The sweep task in `BackendState::connection` is the only caller. It keeps `EndedContainers` from one sweep to the
//! next.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bollard::Docker as Client;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum as State};
use bollard::query_parameters::RemoveVolumeOptions;

use super::compose::{LABEL_PROJECT, is_abandoned, take_down_or_warn};
use super::control::remove_container;
use super::error_message;
use super::labels::{LabelledResources, belongs_to_project, has_name};
use super::plan::{
    KIND_SANDBOX, LABEL_EXPIRES, LABEL_INSTANCE, LABEL_KIND, LABEL_NAME, LABEL_PRINCIPAL, LABEL_SESSION,
};
use super::process_identity::{MAX_CONTAINER_AGE, ProcessIdentity, ProcessLiveness, parse_timestamp};

/// Ids of ended containers whose process this one cannot see, as found by the previous sweep. Their creator may still
/// want to read the cause of their end, so they are kept until the next sweep.
pub(super) type EndedContainers = HashSet<String>;

/// Longer than the time between the creation of a container and its start.
const START_ALLOWANCE: Duration = Duration::from_secs(5 * 60);
/// The age at which this process removes a container of its own that was never started. The request that created it
/// failed before the container's id arrived, so no `ContainerGuard` exists for it.
const UNSTARTED_MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// Runs one sweep. Replaces `ended` with the containers to remove at the next sweep. Failures are only logged.
pub(super) async fn sweep(client: &Client, own: &ProcessIdentity, ended: &mut EndedContainers) {
    let labels = [format!("{LABEL_KIND}={KIND_SANDBOX}"), LABEL_INSTANCE.to_owned()];
    let marked = match LabelledResources::find(client, &labels).await {
        Ok(marked) => marked,
        Err(error) => {
            tracing::warn!(error = error_message(&error), "could not look for what was left behind");
            return;
        }
    };
    let now = if marked.is_empty() { None } else { engine_time(client).await };
    let (projects, alone) = group_by_project(marked.containers);
    let mut still = EndedContainers::new();
    for container in alone {
        let whose = ownership(container.labels.as_ref(), own);
        let fate = sweep_decision(whose, container.state, age(&container, now));
        let Some(id) = container.id else { continue };
        if fate == SweepDecision::Remove || fate == SweepDecision::RemoveNextTime && ended.contains(&id) {
            tracing::info!(container = id, "removing a container that was left behind");
            remove_container(client, &id).await;
        } else if fate == SweepDecision::RemoveNextTime {
            still.insert(id);
        }
    }
    *ended = still;
    for (project, members) in projects {
        if is_project_abandoned(client, &project, &members, own, now).await {
            tracing::info!(project, "removing a Compose project that was left behind");
            take_down_or_warn(client, &project).await;
        }
    }
    // The engine refuses to remove a network or volume that a container still uses. The next sweep tries again.
    for network in marked.networks {
        if let Some(id) = network.id.filter(|_| is_unowned(network.labels.as_ref(), own, now)) {
            let _ = client.remove_network(&id).await;
        }
    }
    for volume in marked.volumes {
        if is_unowned(Some(&volume.labels), own, now) {
            let _ = client.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await;
        }
    }
}

/// Returns the engine's clock in seconds since 1970. The creation times of containers come from that clock.
async fn engine_time(client: &Client) -> Option<u64> {
    parse_timestamp(&client.info().await.ok()?.system_time?)
}

fn age(container: &ContainerSummary, now: Option<u64>) -> Option<Duration> {
    let made = container.created.and_then(|at| u64::try_from(at).ok())?;
    Some(Duration::from_secs(now?.saturating_sub(made)))
}

type ProjectContainers = BTreeMap<String, Vec<ContainerSummary>>;

/// Separates members of Compose projects, grouped by project, from single containers. Omits copies: a container made
/// from a committed sandbox image inherits Cove's labels but has another name.
fn group_by_project(containers: Vec<ContainerSummary>) -> (ProjectContainers, Vec<ContainerSummary>) {
    let (mut projects, mut alone) = (ProjectContainers::new(), Vec::new());
    for container in containers {
        let label = |name: &str| container.labels.as_ref().and_then(|labels| labels.get(name));
        let Some(name) = label(LABEL_NAME).cloned() else { continue };
        // Images built by Compose carry a project label too, and pass it on to all their containers.
        if has_name(&container, &name) {
            alone.push(container);
        } else if label(LABEL_PROJECT) == Some(&name) && belongs_to_project(&container, &name) {
            projects.entry(name).or_default().push(container);
        }
    }
    (projects, alone)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SweepDecision {
    Keep,
    /// Remove it if the next sweep still finds it ended.
    RemoveNextTime,
    Remove,
}

/// Decides about a container outside any project. `age` is measured by the engine's clock.
fn sweep_decision(whose: ResourceOwnership, state: Option<State>, age: Option<Duration>) -> SweepDecision {
    let is_older = |than: Duration| age.is_some_and(|age| age > than);
    let has_ended = matches!(state, Some(State::EXITED | State::DEAD));
    match whose {
        ResourceOwnership::Abandoned => SweepDecision::Remove,
        ResourceOwnership::ThisProcess if state == Some(State::CREATED) && is_older(UNSTARTED_MAX_AGE) => {
            SweepDecision::Remove
        }
        ResourceOwnership::UnknownProcess if is_older(MAX_CONTAINER_AGE + START_ALLOWANCE) => SweepDecision::Remove,
        ResourceOwnership::UnknownProcess if has_ended => SweepDecision::RemoveNextTime,
        ResourceOwnership::NotOurs | ResourceOwnership::ThisProcess | ResourceOwnership::UnknownProcess => {
            SweepDecision::Keep
        }
    }
}

/// Returns true if the whole project can be removed. A project is never removed in part.
async fn is_project_abandoned(
    client: &Client,
    project: &str,
    members: &[ContainerSummary],
    own: &ProcessIdentity,
    now: Option<u64>,
) -> bool {
    let is_older = |than: Duration| members.iter().all(|one| age(one, now).is_some_and(|age| age > than));
    let of_all = |what: ResourceOwnership| members.iter().all(|one| ownership(one.labels.as_ref(), own) == what);
    if of_all(ResourceOwnership::UnknownProcess) {
        return is_older(MAX_CONTAINER_AGE + START_ALLOWANCE)
            || is_older(START_ALLOWANCE) && is_abandoned(client, project).await;
    }
    of_all(ResourceOwnership::Abandoned)
}

/// Whose resource it is, judged by its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResourceOwnership {
    /// Not created by Cove, or its process is alive.
    NotOurs,
    /// Created by this process.
    ThisProcess,
    /// Created by a Cove process that is dead.
    Abandoned,
    /// Created by a Cove process that this one cannot see.
    UnknownProcess,
}

fn ownership(labels: Option<&HashMap<String, String>>, own: &ProcessIdentity) -> ResourceOwnership {
    let Some(labels) = labels else { return ResourceOwnership::NotOurs };
    let complete = labels.get(LABEL_KIND).is_some_and(|kind| kind == KIND_SANDBOX)
        && [LABEL_SESSION, LABEL_PRINCIPAL, LABEL_NAME].iter().all(|name| labels.contains_key(*name))
        && expiry(labels).is_some();
    let instance = labels.get(LABEL_INSTANCE).and_then(|text| ProcessIdentity::parse(text));
    let (true, Some(instance)) = (complete, instance) else { return ResourceOwnership::NotOurs };
    // This process looks after its own containers itself, including their end.
    if instance == *own {
        return ResourceOwnership::ThisProcess;
    }
    match instance.liveness() {
        ProcessLiveness::Dead => ResourceOwnership::Abandoned,
        ProcessLiveness::Alive => ResourceOwnership::NotOurs,
        ProcessLiveness::Unknown => ResourceOwnership::UnknownProcess,
    }
}

/// Returns true if a network or volume can be removed. The engine refuses while a container still uses it.
fn is_unowned(labels: Option<&HashMap<String, String>>, own: &ProcessIdentity, now: Option<u64>) -> bool {
    match ownership(labels, own) {
        ResourceOwnership::Abandoned => true,
        ResourceOwnership::UnknownProcess => {
            labels.and_then(expiry).zip(now).is_some_and(|(expires, now)| {
                // Cove would not have set a time this far in the past, so the label is not Cove's.
                expires <= now && expires + 400 * MAX_CONTAINER_AGE.as_secs() > now
            })
        }
        ResourceOwnership::NotOurs | ResourceOwnership::ThisProcess => false,
    }
}

fn expiry(labels: &HashMap<String, String>) -> Option<u64> {
    labels.get(LABEL_EXPIRES)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::process_identity::unix_now;
    use super::*;

    const OURS: &str = "cove-00112233445566778899aabbccddeeff";

    fn labels(instance: &str, expires: u64) -> HashMap<String, String> {
        [
            (LABEL_KIND, KIND_SANDBOX),
            (LABEL_INSTANCE, instance),
            (LABEL_SESSION, "s_1"),
            (LABEL_PRINCIPAL, "local"),
            (LABEL_NAME, OURS),
        ]
        .into_iter()
        .chain([(LABEL_EXPIRES, expires.to_string().as_str())])
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }

    fn dead_instance(own: &ProcessIdentity) -> String {
        let text = own.to_string();
        let (place, began) = text.rsplit_once('/').unwrap();
        format!("{place}/{}", began.parse::<u64>().unwrap() + 1)
    }

    fn unknown_instance(own: &ProcessIdentity) -> String {
        own.to_string().replacen('/', "/9", 1)
    }

    #[test]
    fn sweeps_only_containers_of_dead_processes() {
        let own = ProcessIdentity::current();
        let later = unix_now() + 60;
        assert_eq!(ownership(Some(&labels(&dead_instance(&own), later)), &own), ResourceOwnership::Abandoned);
        let text = own.to_string();
        assert_eq!(
            ownership(Some(&labels(&text, 1)), &own),
            ResourceOwnership::ThisProcess,
            "this process sees to its own"
        );
        assert_eq!(
            ownership(Some(&labels(&unknown_instance(&own), later)), &own),
            ResourceOwnership::UnknownProcess,
            "this process cannot tell"
        );
    }

    /// The expiry label has passed, as after a jump of the clock, but the process is alive.
    #[test]
    fn sweep_keeps_containers_of_live_processes() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let living = ProcessIdentity::for_process(child.id());
        let found = ownership(Some(&labels(&living.to_string(), 1)), &ProcessIdentity::current());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, ResourceOwnership::NotOurs);
    }

    #[test]
    fn sweep_keeps_containers_with_foreign_labels() {
        let own = ProcessIdentity::current();
        let dead = labels(&dead_instance(&own), 1);
        for name in [LABEL_KIND, LABEL_INSTANCE, LABEL_SESSION, LABEL_PRINCIPAL, LABEL_EXPIRES, LABEL_NAME] {
            let mut without = dead.clone();
            without.remove(name);
            assert_eq!(ownership(Some(&without), &own), ResourceOwnership::NotOurs, "{name}");
            let mut other = dead.clone();
            other.insert(name.to_owned(), "mine!".into());
            let decides = [LABEL_KIND, LABEL_INSTANCE, LABEL_EXPIRES].contains(&name);
            assert_eq!(ownership(Some(&other), &own) == ResourceOwnership::Abandoned, !decides, "{name}");
        }
        assert_eq!(ownership(None, &own), ResourceOwnership::NotOurs);
    }

    #[test]
    fn sweep_removes_only_ended_containers_of_others() {
        let young = Some(Duration::from_secs(20));
        for state in [State::CREATED, State::RUNNING, State::PAUSED, State::RESTARTING, State::STOPPING] {
            assert_eq!(
                sweep_decision(ResourceOwnership::UnknownProcess, Some(state), young),
                SweepDecision::Keep,
                "{state}"
            );
            assert_eq!(
                sweep_decision(ResourceOwnership::UnknownProcess, Some(state), None),
                SweepDecision::Keep,
                "{state}"
            );
            assert_eq!(
                sweep_decision(ResourceOwnership::UnknownProcess, Some(state), Some(MAX_CONTAINER_AGE * 2)),
                SweepDecision::Remove,
                "{state}"
            );
            assert_eq!(
                sweep_decision(ResourceOwnership::Abandoned, Some(state), young),
                SweepDecision::Remove,
                "{state}"
            );
        }
        for state in [State::EXITED, State::DEAD] {
            assert_eq!(
                sweep_decision(ResourceOwnership::UnknownProcess, Some(state), young),
                SweepDecision::RemoveNextTime,
                "{state}"
            );
        }
        assert_eq!(sweep_decision(ResourceOwnership::ThisProcess, Some(State::CREATED), young), SweepDecision::Keep);
        assert_eq!(
            sweep_decision(ResourceOwnership::ThisProcess, Some(State::CREATED), Some(UNSTARTED_MAX_AGE * 2)),
            SweepDecision::Remove
        );
        assert_eq!(
            sweep_decision(ResourceOwnership::ThisProcess, Some(State::EXITED), Some(UNSTARTED_MAX_AGE * 2)),
            SweepDecision::Keep
        );
    }

    #[test]
    fn sweep_ignores_committed_copies() {
        let found = |name: &str, project: Option<&str>| {
            let mut labels = labels("x", 1);
            labels.extend(project.map(|project| (LABEL_PROJECT.to_owned(), project.to_owned())));
            let names = Some(vec![format!("/{name}")]);
            let (projects, alone) =
                group_by_project(vec![ContainerSummary { names, labels: Some(labels), ..Default::default() }]);
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
    fn sweep_waits_for_expiry_of_others_networks() {
        let own = ProcessIdentity::current();
        let theirs = labels(&unknown_instance(&own), unix_now());
        assert!(is_unowned(Some(&theirs), &own, Some(unix_now() + 1)));
        assert!(!is_unowned(Some(&theirs), &own, Some(unix_now() - 60)), "by the clock where they are");
        assert!(!is_unowned(Some(&theirs), &own, None));
        assert!(!is_unowned(Some(&labels(&unknown_instance(&own), 1)), &own, Some(unix_now())), "we set no such time");
        assert!(is_unowned(Some(&labels(&dead_instance(&own), unix_now() + 60)), &own, None));
    }
}
