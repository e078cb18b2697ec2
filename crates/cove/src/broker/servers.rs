//! The servers there are, kept in step: definitions are read again while Cove runs, and the catalog is filled from the
//! servers themselves where its cache knows nothing, or is found to be old.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;

use crate::catalog::Catalog;
use crate::config::{Config, Surroundings};
use crate::upstream::{Definitions, Places, Settings, Stamp, State, UpstreamError, Upstreams};

/// Files are looked at no more often than this.
const LOOK: Duration = Duration::from_secs(2);
/// How long a search waits for servers whose tools nobody knows yet.
const WAIT: Duration = Duration::from_secs(20);
/// Servers that a search starts at the same time: each takes a processor for a while.
const STARTS: usize = 8;
/// A server that could not be listed is not asked again for so long, unless it is called by name.
const RETRY: Duration = Duration::from_secs(60);

pub struct Servers {
    upstreams: Arc<Upstreams>,
    catalog: Catalog,
    places: Places,
    settings: Settings,
    seen: AsyncMutex<Seen>,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    starts: Semaphore,
}

struct Seen {
    at: Instant,
    stamp: Stamp,
    definitions: Definitions,
}

/// One server's list of tools. Whoever holds the turn is asking for it.
#[derive(Default)]
struct Slot {
    turn: AsyncMutex<Listed>,
    begun: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Listed {
    /// As many changes had the server told of when it was listed.
    changes: u64,
    /// Not only read from the cache.
    in_this_run: bool,
    failed: Option<(Instant, UpstreamError)>,
}

/// How good a list must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Also from the cache, unless the server said that it changed.
    Known,
    /// From the server itself, in this run.
    Fresh,
}

/// A server that a search could not look into, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsearched {
    pub server: String,
    pub why: String,
}

impl Servers {
    pub fn open(config: &Config, around: &Surroundings) -> Arc<Self> {
        let places = Places::of(config.file.clone(), config.server.state_dir.clone(), around);
        let settings = Settings::of(around);
        // Taken before: what changes meanwhile is noticed the next time.
        let stamp = places.stamp();
        let definitions = Definitions::load(&places, &settings);
        let catalog = match config.server.state_dir.as_ref().map(|state| folder(state)) {
            Some(folder) => Catalog::open(folder),
            None => Catalog::in_memory(),
        };
        let upstreams = Upstreams::new(definitions.clone(), settings.clone());
        for problem in &definitions.problems {
            tracing::warn!("{problem}");
        }
        let seen = AsyncMutex::new(Seen { at: Instant::now(), stamp, definitions });
        let servers = Self {
            upstreams,
            catalog,
            places,
            settings,
            seen,
            slots: Mutex::default(),
            starts: Semaphore::new(STARTS),
        };
        servers.declare();
        Arc::new(servers)
    }

    pub fn upstreams(&self) -> &Arc<Upstreams> {
        &self.upstreams
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Takes over what changed in the files since somebody last looked. Cheap when called often.
    pub async fn look_again(&self) {
        // Whoever finds it locked comes while another looks.
        let Ok(mut seen) = self.seen.try_lock() else { return };
        if seen.at.elapsed() < LOOK {
            return;
        }
        let (places, settings) = (self.places.clone(), self.settings.clone());
        let before = seen.stamp.clone();
        let read = tokio::task::spawn_blocking(move || {
            let stamp = places.stamp();
            (stamp != before).then(|| (stamp, Definitions::load(&places, &settings)))
        });
        let read = read.await;
        seen.at = Instant::now();
        let Ok(Some((stamp, found))) = read else { return };
        seen.stamp = stamp;
        if found == seen.definitions {
            return;
        }
        for problem in found.problems.iter().filter(|one| !seen.definitions.problems.contains(one)) {
            tracing::warn!("{problem}");
        }
        tracing::info!(servers = found.servers.len(), "definitions of servers changed");
        seen.definitions = found.clone();
        self.upstreams.replace(found);
        self.declare();
    }

    /// Makes every configured server known to the catalog, and others unknown.
    fn declare(&self) {
        let summaries = self.upstreams.summaries();
        for summary in &summaries {
            self.catalog.declare(summary.declared());
        }
        self.catalog.retain(|name| summaries.iter().any(|summary| summary.name == name));
        for server in self.catalog.servers() {
            if let Some(era) = server.era {
                self.upstreams.remember_era(&server.name, era);
            }
        }
    }

    fn slot(&self, server: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(server.to_owned()).or_default())
    }

    /// Sees to it that the tools of a server are known, by its name.
    pub async fn list(&self, server: &str, need: Need) -> Result<(), UpstreamError> {
        let slot = self.slot(server);
        let known = self.catalog.tools(server).is_some();
        let mut listed = match slot.turn.try_lock() {
            Ok(listed) => listed,
            // Somebody lists it anew; what is known will do.
            Err(_) if known && need == Need::Known => return Ok(()),
            Err(_) => slot.turn.lock().await,
        };
        let changes = self.upstreams.changes_of(server);
        let known = self.catalog.tools(server).is_some();
        let is_current = changes == listed.changes;
        if known && is_current && (need == Need::Known || listed.in_this_run) {
            return Ok(());
        }
        let _begun = Begun::new(&slot.begun);
        match self.upstreams.tools(server).await {
            Ok(tools) => {
                let known = self.catalog.view().server(server).cloned();
                let Some(known) = known else { return Ok(()) };
                // Ten thousand of them take a while to be written down.
                let (catalog, era) = (self.catalog.clone(), self.upstreams.era(server));
                let kept = tokio::task::spawn_blocking(move || {
                    catalog.set(&known.name, &known.alias, &known.description, tools);
                    if let Some(era) = era {
                        catalog.set_era(&known.name, era);
                    }
                });
                let _ = kept.await;
                *listed = Listed { changes, in_this_run: true, failed: None };
                Ok(())
            }
            // It is called as it is known: perhaps it works.
            Err(error) if known && need == Need::Known => {
                tracing::warn!(server, "could not list its tools anew: {error}");
                listed.changes = changes;
                Ok(())
            }
            Err(error) => {
                listed.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Whether the list that is known of a server is its own, of this run.
    pub fn is_fresh(&self, server: &str) -> bool {
        self.slot(server).turn.try_lock().is_ok_and(|listed| listed.in_this_run)
    }

    /// Lists every server that was never listed, as far as that takes no longer than a search may. What takes longer goes
    /// on, for the next search.
    pub async fn list_all(self: &Arc<Self>, wanted: impl Fn(&str) -> bool) -> Vec<Unsearched> {
        let mut unsearched = Vec::new();
        let mut waits = tokio::task::JoinSet::new();
        for summary in self.upstreams.summaries().into_iter().filter(|summary| wanted(&summary.name)) {
            let server = summary.name;
            if matches!(summary.state, State::Disabled | State::Needs(_)) {
                unsearched.push(Unsearched { server, why: summary.state.to_string() });
                continue;
            }
            if self.catalog.tools(&server).is_some() {
                continue;
            }
            let slot = self.slot(&server);
            if let Ok(listed) = slot.turn.try_lock()
                && let Some((at, error)) = &listed.failed
                && at.elapsed() < RETRY
            {
                unsearched.push(Unsearched { server, why: error.to_string() });
                continue;
            }
            let since = *slot.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let until = since.unwrap_or_else(Instant::now) + WAIT;
            let servers = Arc::clone(self);
            waits.spawn(async move {
                let name = server.clone();
                // A task of its own, so that it goes on when nobody waits any more.
                let listing = tokio::spawn(async move {
                    let _turn = servers.starts.acquire().await;
                    servers.list(&name, Need::Known).await
                });
                match tokio::time::timeout_at(until, listing).await {
                    Ok(Ok(Ok(()))) => None,
                    Ok(Ok(Err(error))) => Some(Unsearched { server, why: error.to_string() }),
                    Ok(Err(_)) => Some(Unsearched { server, why: "listing it failed".into() }),
                    Err(_) => Some(Unsearched { server, why: "it is still starting".into() }),
                }
            });
        }
        unsearched.extend(waits.join_all().await.into_iter().flatten());
        unsearched.sort_by(|a, b| a.server.cmp(&b.server));
        unsearched
    }
}

/// Where catalogs are kept.
fn folder(state_dir: &std::path::Path) -> PathBuf {
    state_dir.join("catalog")
}

/// Since when a server is being listed, until it is.
struct Begun<'a>(&'a Mutex<Option<Instant>>);

impl<'a> Begun<'a> {
    fn new(place: &'a Mutex<Option<Instant>>) -> Self {
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Self(place)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
