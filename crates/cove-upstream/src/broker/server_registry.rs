//! Keeps definitions, pool and catalog in step. Reloads definitions while Cove runs, and fills the catalog from the
//! servers when its cache has no list or an old one.
//!
//! Each server has one `ListingSlot`. The task that holds `turn` lists the server; it alone writes `ListingState`.
//! Other tasks wait for `turn`, unless any known list is enough for them. The listing task reads the change count
//! before it asks the server, so a change during the listing makes the new list old. While it asks,
//! `ListingInProgress` keeps the start time in `begun`. A search reads that without `turn` and waits until
//! `SEARCH_WAIT` after it, so a later search does not wait the full time again. A failure goes into `failed`.
//! Searches then skip the server for `RETRY_AFTER`; a call by name tries again at once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard, Semaphore};
use tokio::time::Instant;

use super::BrokerConfig;
use crate::catalog::pins::{PinStore, ToolChangePolicy};
use crate::catalog::{Catalog, PinReload};
use crate::pool::sign_in::SignInRecords;
use crate::pool::{
    DefinitionPlaces, DefinitionStamp, FailureRecords, ServerDefinitions, UpstreamError, UpstreamPool,
    UpstreamSettings, UpstreamState,
};
use crate::secrets::SecretStore;
use cove_core::process_env::ProcessEnv;
use cove_core::sync::lock;

/// Minimum time between two looks at the definition files.
pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// How long searches wait for a server that was never listed.
const SEARCH_WAIT: Duration = Duration::from_secs(20);
/// Servers that searches start in parallel. Each start keeps a processor busy for a while.
const MAX_PARALLEL_STARTS: usize = 8;
/// How long searches skip a server that could not be listed. Calls by name do not skip it.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The configured servers: their definitions, the pool and the catalog.
pub struct ServerRegistry {
    upstreams: Arc<UpstreamPool>,
    catalog: Catalog,
    places: DefinitionPlaces,
    settings: UpstreamSettings,
    loaded: AsyncMutex<LoadedDefinitions>,
    slots: Mutex<HashMap<String, Arc<ListingSlot>>>,
    starts: Semaphore,
    tool_changes: ToolChangePolicy,
}

struct LoadedDefinitions {
    checked_at: Instant,
    stamp: DefinitionStamp,
    definitions: ServerDefinitions,
}

/// The tool list of one server. The task that holds `turn` is listing it.
#[derive(Default)]
struct ListingSlot {
    turn: AsyncMutex<ListingState>,
    begun: Mutex<Option<Instant>>,
    /// The start of the server after which it was last asked for its tools. Written by the task that holds `turn`.
    asked_after_start: Mutex<Option<u64>>,
}

#[derive(Default)]
struct ListingState {
    /// The server's change count when it was listed.
    changes: u64,
    /// The server itself sent the list in this run; it does not come from the cache.
    is_fresh: bool,
    failed: Option<(Instant, UpstreamError)>,
}

/// How recent a list must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFreshness {
    /// The cache is good enough unless the server reported a change.
    Known,
    /// The server itself must have sent the list in this run.
    Fresh,
}

/// A server that a search skipped, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsearchedServer {
    pub server: String,
    pub reason: String,
}

impl ServerRegistry {
    /// Loads the definitions and declares every server to the catalog. Starts nothing. Problems with definitions are
    /// logged.
    pub fn open(config: &BrokerConfig, env: &ProcessEnv) -> Arc<Self> {
        let places = DefinitionPlaces::new(config.config_file.clone(), config.state_dir.clone(), env);
        let settings = UpstreamSettings {
            start_timeout: config.start_timeout,
            isolate: config.isolate_upstreams,
            secrets: SecretStore::new(config.state_dir.as_deref(), config.secrets_helper.as_ref(), env),
            failures: FailureRecords::new(config.state_dir.as_deref()),
            sign_ins: SignInRecords::new(config.state_dir.as_deref()),
            ..UpstreamSettings::from_env(env)
        };
        // Taken before loading, so the next reload sees changes that happen meanwhile.
        let stamp = places.stamp();
        let definitions = ServerDefinitions::load(&places, &settings);
        let catalog = match config.state_dir.as_ref().map(|state| state.join("catalog")) {
            Some(folder) => Catalog::open(folder),
            None => Catalog::in_memory(),
        }
        .with_search(config.search)
        .with_pins(PinStore::new(config.state_dir.as_deref(), config.pins));
        let upstreams = UpstreamPool::new(definitions.clone(), settings.clone());
        for problem in &definitions.problems {
            tracing::warn!("{problem}");
        }
        let seen = AsyncMutex::new(LoadedDefinitions { checked_at: Instant::now(), stamp, definitions });
        let servers = Self {
            upstreams,
            catalog,
            places,
            settings,
            loaded: seen,
            slots: Mutex::default(),
            starts: Semaphore::new(MAX_PARALLEL_STARTS),
            tool_changes: config.pins.changes,
        };
        servers.declare_servers();
        Arc::new(servers)
    }

    pub fn upstreams(&self) -> &Arc<UpstreamPool> {
        &self.upstreams
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Reloads the definitions if the files changed. Cheap to call often: looks at the files at most every
    /// `RELOAD_INTERVAL`.
    pub async fn reload_definitions(&self) {
        // If another task holds the lock, it is already reloading.
        let Ok(seen) = self.loaded.try_lock() else { return };
        if seen.checked_at.elapsed() >= RELOAD_INTERVAL {
            self.reload(seen).await;
        }
    }

    /// Reloads the definitions at once, after Cove itself changed them.
    pub(super) async fn reload_now(&self) {
        let seen = self.loaded.lock().await;
        self.reload(seen).await;
    }

    /// Returns the folder of definitions that Cove writes to, if there is one.
    pub(super) fn own_directory(&self) -> Option<&Path> {
        self.places.own_directory()
    }

    /// Calls a function with the definitions that are in use.
    pub(super) async fn with_definitions<T>(&self, read: impl FnOnce(&ServerDefinitions) -> T) -> T {
        read(&self.loaded.lock().await.definitions)
    }

    async fn reload(&self, mut seen: MutexGuard<'_, LoadedDefinitions>) {
        let (places, settings) = (self.places.clone(), self.settings.clone());
        let before = seen.stamp.clone();
        let read = tokio::task::spawn_blocking(move || {
            let stamp = places.stamp();
            (stamp != before).then(|| (stamp, ServerDefinitions::load(&places, &settings)))
        });
        let read = read.await;
        seen.checked_at = Instant::now();
        self.reload_pins(PinReload::IfWritten).await;
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
        self.declare_servers();
    }

    /// Looks whether a person accepted changes of tools in another process.
    pub(super) async fn reload_pins(&self, depth: PinReload) {
        let catalog = self.catalog.clone();
        let _ = tokio::task::spawn_blocking(move || catalog.reload_pins(depth)).await;
    }

    /// Declares every configured server to the catalog and removes the others. Passes remembered eras on to the pool.
    fn declare_servers(&self) {
        let summaries = self.upstreams.summaries();
        for summary in &summaries {
            self.catalog.declare(summary.to_declaration());
        }
        self.catalog.retain(|name| summaries.iter().any(|summary| summary.name == name));
        for server in self.catalog.servers() {
            if let Some(era) = server.era {
                self.upstreams.remember_era(&server.name, era);
            }
        }
    }

    fn slot(&self, server: &str) -> Arc<ListingSlot> {
        let mut slots = lock(&self.slots);
        Arc::clone(slots.entry(server.to_owned()).or_default())
    }

    /// Makes sure that the catalog has the tools of a server, and starts the server if needed. Fails if the server
    /// cannot be listed and a known list is not enough.
    pub async fn ensure_listed(&self, server: &str, need: ListFreshness) -> Result<(), UpstreamError> {
        let slot = self.slot(server);
        let known = self.catalog.tools(server).is_some();
        let mut listed = match slot.turn.try_lock() {
            Ok(listed) => listed,
            // Another task is listing the server. The known list is enough here.
            Err(_) if known && need == ListFreshness::Known => return Ok(()),
            Err(_) => slot.turn.lock().await,
        };
        let changes = self.upstreams.change_count(server);
        let is_current = changes == listed.changes;
        if self.catalog.tools(server).is_some() && is_current && (need == ListFreshness::Known || listed.is_fresh) {
            return Ok(());
        }
        self.list_tools(server, need, &slot, &mut listed).await
    }

    /// Returns a warning for each server that was listed in this run, and whose changes code uses although no person
    /// accepted them.
    pub fn change_warnings(&self) -> Vec<String> {
        if self.tool_changes != ToolChangePolicy::Warn {
            return Vec::new();
        }
        let is_listed = |server: &str| lock(&self.slot(server).asked_after_start).is_some();
        let servers = self.catalog.servers().into_iter().filter(|server| is_listed(&server.name));
        servers
            .filter_map(|server| Some(format!("`{}`: {}", server.name, server.pins.warning(&server.name)?)))
            .collect()
    }

    /// Asks a server for its tools once after each start, before the first call, so that a tool that changed is noticed
    /// before it is used. A server that does not answer keeps the tools that are known.
    pub(super) async fn list_after_start(&self, server: &str) -> Result<(), UpstreamError> {
        let slot = self.slot(server);
        let is_asked = || {
            let start = self.upstreams.start_number(server);
            self.tool_changes == ToolChangePolicy::Allow || start.is_none() || *lock(&slot.asked_after_start) == start
        };
        if is_asked() {
            return Ok(());
        }
        let mut listed = slot.turn.lock().await;
        if is_asked() {
            return Ok(());
        }
        self.list_tools(server, ListFreshness::Known, &slot, &mut listed).await
    }

    /// Asks a server for its tools and gives them to the catalog. The caller holds `turn` of the slot. Fails if the server
    /// cannot be listed and a known list is not enough.
    async fn list_tools(
        &self,
        server: &str,
        need: ListFreshness,
        slot: &ListingSlot,
        listed: &mut ListingState,
    ) -> Result<(), UpstreamError> {
        let _begun = ListingInProgress::new(&slot.begun);
        let changes = self.upstreams.change_count(server);
        let known = self.catalog.tools(server).is_some();
        let tools = match self.upstreams.start(server).await {
            Ok(()) => {
                let start = self.upstreams.start_number(server);
                let tools = self.upstreams.tools(server).await;
                // Not before: a listing that its caller gave up must be made again.
                *lock(&slot.asked_after_start) = start;
                tools
            }
            Err(error) => Err(error),
        };
        match tools {
            Ok(tools) => {
                let known = self.catalog.view().find_server(server).cloned();
                let Some(known) = known else { return Ok(()) };
                // Encoding ten thousand tools takes a while, so this runs on a blocking thread.
                let (catalog, era) = (self.catalog.clone(), self.upstreams.era(server));
                let instructions = self.upstreams.instructions(server);
                let kept = tokio::task::spawn_blocking(move || {
                    if !catalog.has_list(&known.name, &tools) {
                        catalog.set_tools(&known.name, &known.alias, &known.description, tools);
                    }
                    catalog.set_greeting(&known.name, era, instructions.as_deref());
                });
                let _ = kept.await;
                *listed = ListingState { changes, is_fresh: true, failed: None };
                Ok(())
            }
            // Keeps the known list: calls may still work.
            Err(error) if known && need == ListFreshness::Known => {
                tracing::warn!(server, "could not list its tools again: {error}");
                listed.changes = changes;
                Ok(())
            }
            // After a sign-in, searches try it again at once.
            Err(error @ UpstreamError::SignInNeeded { .. }) => Err(error),
            Err(error) => {
                listed.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Returns true if a list that satisfies `need` must come from the server.
    pub(super) fn must_ask(&self, server: &str, need: ListFreshness) -> bool {
        self.catalog.tools(server).is_none() || (need == ListFreshness::Fresh && !self.is_fresh(server))
    }

    /// Records that a server could not be started, so that searches skip it for a while.
    pub(super) fn record_failure(&self, server: &str, error: &UpstreamError) {
        if matches!(error, UpstreamError::SignInNeeded { .. }) {
            return;
        }
        if let Ok(mut listed) = self.slot(server).turn.try_lock() {
            listed.failed = Some((Instant::now(), error.clone()));
        }
    }

    /// Returns true if the server itself sent the current list in this run, and no task is listing it now.
    pub fn is_fresh(&self, server: &str) -> bool {
        self.slot(server).turn.try_lock().is_ok_and(|listed| listed.is_fresh)
    }

    /// Lists every server that was never listed, and waits for each at most as long as a search may. Returns the
    /// servers that could not be listed in time; their listing continues for the next search.
    pub async fn ensure_all_listed(self: &Arc<Self>, wanted: impl Fn(&str) -> bool) -> Vec<UnsearchedServer> {
        let mut unsearched = Vec::new();
        let mut waits = tokio::task::JoinSet::new();
        for summary in self.upstreams.summaries().into_iter().filter(|summary| wanted(&summary.name)) {
            let server = summary.name;
            if matches!(
                summary.state,
                UpstreamState::Disabled | UpstreamState::Needs(_) | UpstreamState::NeedsSignIn(_)
            ) {
                unsearched.push(UnsearchedServer { server, reason: summary.state.to_string() });
                continue;
            }
            if self.catalog.tools(&server).is_some() {
                continue;
            }
            let slot = self.slot(&server);
            if let Ok(listed) = slot.turn.try_lock()
                && let Some((at, error)) = &listed.failed
                && at.elapsed() < RETRY_AFTER
                // What it needed may be there by now, such as a secret.
                && !matches!(error, UpstreamError::Needs { .. })
            {
                unsearched.push(UnsearchedServer { server, reason: error.to_string() });
                continue;
            }
            let since = *lock(&slot.begun);
            let until = since.unwrap_or_else(Instant::now) + SEARCH_WAIT;
            let servers = Arc::clone(self);
            waits.spawn(async move {
                let name = server.clone();
                // A separate task, which continues after the search stopped waiting.
                let listing = tokio::spawn(async move {
                    let _turn = servers.starts.acquire().await;
                    servers.ensure_listed(&name, ListFreshness::Known).await
                });
                let reason = match tokio::time::timeout_at(until, listing).await {
                    Ok(Ok(listed)) => listed.err()?.to_string(),
                    Ok(Err(_)) => "listing it failed".into(),
                    Err(_) => "it is still starting".into(),
                };
                Some(UnsearchedServer { server, reason })
            });
        }
        unsearched.extend(waits.join_all().await.into_iter().flatten());
        unsearched.sort_by(|a, b| a.server.cmp(&b.server));
        unsearched
    }
}

/// Records the start of a listing in `begun` and clears it on drop, even if the listing is cancelled.
struct ListingInProgress<'a>(&'a Mutex<Option<Instant>>);

impl<'a> ListingInProgress<'a> {
    fn new(place: &'a Mutex<Option<Instant>>) -> Self {
        *lock(place) = Some(Instant::now());
        Self(place)
    }
}

impl Drop for ListingInProgress<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}
