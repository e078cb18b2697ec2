//! Removes what a process of ours left behind that was killed before it could: containers, networks and volumes that
//! carry our labels, to the letter, and whose process is gone or whose time is over. Nothing else is touched.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bollard::Docker as Client;
use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::RemoveVolumeOptions;

use super::compose::{PROJECT, is_abandoned};
use super::control::remove;
use super::instance::{Instance, LIFE, Life, now};
use super::marked::Marked;
use super::plan::{EXPIRES, INSTANCE, KIND, PRINCIPAL, SANDBOX, SESSION};
use super::said;

/// Containers that had ended at the last look, of processes that we cannot look at. Whoever made them may be about to read
/// why they ended, but not for long.
pub(super) type Ended = HashSet<String>;

pub(super) async fn sweep(client: &Client, own: &Instance, ended: &mut Ended) {
    let marked = match Marked::find(client, &[format!("{KIND}={SANDBOX}"), INSTANCE.to_owned()]).await {
        Ok(marked) => marked,
        Err(error) => {
            tracing::warn!(error = said(&error), "could not look for what was left behind");
            return;
        }
    };
    let mut still = Ended::new();
    let mut abandoned = HashMap::new();
    for container in marked.containers {
        let mut whose = whose(container.labels.as_ref(), own);
        let age = now().saturating_sub(container.created.and_then(|at| at.try_into().ok()).unwrap_or(0));
        let project = container.labels.as_ref().and_then(|labels| labels.get(PROJECT));
        if let (Found::Elsewhere, Some(project), true) = (whose, project, age > SLOW.as_secs()) {
            if !abandoned.contains_key(project) {
                abandoned.insert(project.clone(), is_abandoned(client, project).await);
            }
            whose = if abandoned[project] { Found::LeftBehind } else { Found::Kept };
        }
        let Some(id) = container.id else { continue };
        let runs = container.state == Some(ContainerSummaryStateEnum::RUNNING);
        // Whoever asked for it was told too late that it was made.
        let is_lost =
            whose == Found::Own && container.state == Some(ContainerSummaryStateEnum::CREATED) && age > 3600;
        if whose == Found::Elsewhere && !runs && !ended.contains(&id) {
            still.insert(id);
        } else if whose == Found::LeftBehind || whose == Found::Elsewhere && !runs || is_lost {
            tracing::info!(container = id, "removing a container that was left behind");
            remove(client, &id).await;
        }
    }
    *ended = still;
    for network in marked.networks {
        if let Some(id) = network.id.filter(|_| whose(network.labels.as_ref(), own) == Found::LeftBehind) {
            // Whoever still hangs on to it, such as a container that ends just now, is gone at the next sweep.
            let _ = client.remove_network(&id).await;
        }
    }
    for volume in marked.volumes {
        if whose(Some(&volume.labels), own) == Found::LeftBehind {
            let _ = client.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await;
        }
    }
}

/// Longer than anything that has just been made waits to be started.
const SLOW: Duration = Duration::from_secs(5 * 60);

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
        && labels.contains_key(SESSION)
        && labels.contains_key(PRINCIPAL);
    let instance = labels.get(INSTANCE).and_then(|text| Instance::parse(text));
    let expires = labels.get(EXPIRES).and_then(|text| text.parse::<u64>().ok());
    let (true, Some(instance), Some(expires)) = (complete, instance, expires) else { return Found::Kept };
    // Of an own one somebody takes care already, its end included.
    if instance == *own {
        return Found::Own;
    }
    // A time that we would not have set is not ours.
    let is_over = expires <= now() && expires + 400 * LIFE.as_secs() > now();
    match instance.life() {
        Life::Dead => Found::LeftBehind,
        Life::Alive | Life::Elsewhere if is_over => Found::LeftBehind,
        Life::Alive => Found::Kept,
        Life::Elsewhere => Found::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(instance: &str, expires: u64) -> HashMap<String, String> {
        [(KIND, SANDBOX), (INSTANCE, instance), (SESSION, "s_1"), (PRINCIPAL, "local")]
            .into_iter()
            .chain([(EXPIRES, expires.to_string().as_str())])
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn only_ours_and_only_of_the_dead() {
        let own = Instance::own();
        let text = own.to_string();
        let (place, began) = text.rsplit_once('/').unwrap();
        let dead = format!("{place}/{}", began.parse::<u64>().unwrap() + 1);
        let later = now() + 60;
        assert_eq!(whose(Some(&labels(&dead, later)), &own), Found::LeftBehind);
        assert_eq!(whose(Some(&labels(&text, 1)), &own), Found::Own, "this process sees to its own");
        let elsewhere = text.replacen('/', "/9", 1);
        assert_eq!(whose(Some(&labels(&elsewhere, later)), &own), Found::Elsewhere, "nobody here can tell");
        assert_eq!(whose(Some(&labels(&elsewhere, now() - 1)), &own), Found::LeftBehind, "its time is over");
    }

    #[test]
    fn what_only_looks_like_ours_stays() {
        let own = Instance::own();
        let text = own.to_string();
        let (place, began) = text.rsplit_once('/').unwrap();
        let dead = labels(&format!("{place}/{}", began.parse::<u64>().unwrap() + 1), 1);
        for name in [KIND, INSTANCE, SESSION, PRINCIPAL, EXPIRES] {
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
}
