//! Containers that are started ahead of their users: whose they are, what happens when one ends while it waits, and
//! what is left of them when their server ends or is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerSummaryStateEnum as State;
use bollard::query_parameters::KillContainerOptionsBuilder;
use cove_core::backend::Backend as _;
use cove_core::policy::Policy;
use cove_core::policy::readiness::{SessionReadiness, WarmTarget};
use cove_core::session::registry::{Principal, RegistryLimits, SessionBlueprint, SessionRef, SessionRegistry};
use cove_protocol::Language;
use cove_testkit::containers::TestEngine;
use cove_testkit::figures::{print_figures, sample_size};
use cove_testkit::numbers::SeededNumbers;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::container_ends::{LONG, backend, policy, run, unique};
use crate::killed_servers::{KilledServerHome, count_of_process, labelled};
use crate::{for_each_engine, list_containers};

/// A registry over a real engine, and the blueprint of its sessions.
async fn registry(engine: TestEngine, address: &str) -> (Arc<SessionRegistry>, SessionBlueprint) {
    let backend = backend(engine, address);
    let readiness = SessionReadiness { warm: WarmTarget::Fixed(1), preload: Vec::new() };
    let policy = Policy { readiness, ..policy() };
    let prepared = backend.prepare(&policy, &|_| {}).await.expect("the image is there");
    assert!(prepared.image_id.is_some(), "{engine:?}: nothing would be kept ready");
    let limits = RegistryLimits { max_sessions: 4, idle_timeout: Duration::from_secs(1800), headroom: || None };
    let sessions = SessionRegistry::new(Arc::new(backend), policy.clone(), limits);
    (sessions, SessionBlueprint::default_for(Arc::new(policy), prepared.image_id))
}

/// Waits until `look` returns something.
async fn wait_for<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn wait_for_ready(sessions: &SessionRegistry, count: usize) {
    wait_for(&format!("{count} sessions are ready"), async || {
        let ready: usize = sessions.figures().pool.ready.iter().map(|(_, count)| count).sum();
        (ready == count).then_some(())
    })
    .await;
}

/// The running containers of a principal: the session in the label of each, and its id.
async fn running_containers(docker: &Docker, owner: &Principal) -> BTreeMap<String, String> {
    let found = list_containers(docker, &format!("cove.principal={}", owner.0)).await;
    let running = found.into_iter().filter(|one| one.state == Some(State::RUNNING));
    running
        .map(|one| (one.labels.unwrap_or_default().remove("cove.session").unwrap_or_default(), one.id.expect("an id")))
        .collect()
}

/// Closes a registry. What it was still starting ends a moment later.
async fn close(docker: &Docker, sessions: &SessionRegistry, owners: &[&Principal]) {
    sessions.close().await;
    for owner in owners {
        wait_for(&format!("no container of `{}` is left", owner.0), async || {
            list_containers(docker, &format!("cove.principal={}", owner.0)).await.is_empty().then_some(())
        })
        .await;
    }
}

#[test]
fn a_ready_container_goes_to_its_principal_alone() {
    for_each_engine("a_ready_container_goes_to_its_principal_alone", async |engine, address, docker| {
        let (sessions, blueprint) = registry(engine, address).await;
        let [alice, bob] = ["alice", "bob"].map(|name| Principal(unique(name)));
        let lease = async |owner: &Principal| {
            let leased = sessions.lease(owner, SessionRef::New, blueprint.clone(), None).await;
            leased.unwrap_or_else(|error| panic!("{engine:?}: {error:?}"))
        };
        let first = lease(&alice).await;
        assert_eq!((sessions.figures().pool.hits, sessions.figures().pool.misses), (0, 1), "{engine:?}");
        wait_for_ready(&sessions, 1).await;
        let of_alice = running_containers(&docker, &alice).await;
        let mut others = of_alice.clone();
        assert!(others.remove(&first.id().to_string()).is_some(), "{engine:?}: {of_alice:?}");
        assert_eq!(others.len(), 1, "{engine:?}: one is in use and one is ready");
        let (ready, container) = others.pop_first().expect("it is there");

        let of_another = lease(&bob).await;
        assert_ne!(of_another.id().to_string(), ready, "{engine:?}");
        let of_bob = running_containers(&docker, &bob).await;
        assert!(of_bob.contains_key(&of_another.id().to_string()) && !of_bob.contains_key(&ready), "{of_bob:?}");
        assert_eq!(running_containers(&docker, &alice).await, of_alice, "{engine:?}: it still waits for its owner");

        let second = lease(&alice).await;
        assert_eq!(second.id().to_string(), ready, "{engine:?}: its label was its handle from the start");
        assert_eq!(running_containers(&docker, &alice).await.get(&ready), Some(&container), "{engine:?}");
        assert_eq!((sessions.figures().pool.hits, sessions.figures().pool.misses), (1, 2), "{engine:?}");
        assert_eq!(run(&second, Language::Python, "print(6*7)", LONG).await.1, "42\n", "{engine:?}");
        close(&docker, &sessions, &[&alice, &bob]).await;
    });
}

#[test]
fn a_ready_container_that_was_killed_is_replaced() {
    for_each_engine("a_ready_container_that_was_killed_is_replaced", async |engine, address, docker| {
        let (sessions, blueprint) = registry(engine, address).await;
        let owner = Principal(unique("killed"));
        let lease = async || {
            let leased = sessions.lease(&owner, SessionRef::New, blueprint.clone(), None).await;
            leased.unwrap_or_else(|error| panic!("{engine:?}: {error:?}"))
        };
        let mut used = BTreeSet::from([lease().await.id().to_string()]);
        let kill_ready = async |used: &BTreeSet<String>| -> (String, String) {
            wait_for_ready(&sessions, 1).await;
            let running = running_containers(&docker, &owner).await;
            let mut waiting = running.into_iter().filter(|(session, _)| !used.contains(session));
            let (session, id) = waiting.next().expect("one is ready");
            assert_eq!(waiting.next(), None, "{engine:?}");
            let options = KillContainerOptionsBuilder::new().signal("SIGKILL").build();
            docker.kill_container(&id, Some(options)).await.expect("it can be killed");
            let sought = &id;
            wait_for("it ends", async || {
                let running = running_containers(&docker, &owner).await;
                (!running.values().any(|id| id == sought)).then_some(())
            })
            .await;
            (session, id)
        };
        // A caller comes before anyone has looked.
        let (_, killed) = kill_ready(&used).await;
        let second = lease().await;
        let (end, printed) = run(&second, Language::Python, "print(6*7)", LONG).await;
        assert_eq!(printed, "42\n", "{engine:?}: {end:?}");
        let now = running_containers(&docker, &owner).await;
        assert!(now[&second.id().to_string()] != killed, "{engine:?}: {now:?}");
        used.insert(second.id().to_string());

        // No caller comes.
        let (dead, _) = kill_ready(&used).await;
        wait_for("another is ready", async || {
            let running = running_containers(&docker, &owner).await;
            running.keys().any(|session| !used.contains(session) && *session != dead).then_some(())
        })
        .await;
        wait_for_ready(&sessions, 1).await;
        let hits = sessions.figures().pool.hits;
        let third = lease().await;
        assert!(third.id().to_string() != dead && sessions.figures().pool.hits == hits + 1, "{engine:?}");
        assert_eq!(run(&third, Language::Python, "print(6*7)", LONG).await.1, "42\n", "{engine:?}");
        close(&docker, &sessions, &[&owner]).await;
    });
}

/// The kernel closes the connections of a killed server. The standard input of its containers closes with that, which
/// ends their runners within seconds. The ended containers stay until the next server sweeps.
#[test]
fn killed_server_leaves_no_ready_container() {
    const WARM: usize = 3;
    let rounds = sample_size(10, 100);
    for_each_engine("killed_server_leaves_no_ready_container", async |engine, address, docker| {
        let mut numbers = SeededNumbers::from_environment();
        let context = format!("{engine:?}, seed {}", numbers.seed());
        let home = KilledServerHome::new(engine, address);
        home.add_image("small", "image = \"ubuntu:24.04\"\nlanguages = [\"python\"]\noneshot = false\n");
        let serve = || home.serve_with(&["--image", "small", "--warm", &WARM.to_string()]);
        let (mut dead, mut seen, mut filled) = (BTreeSet::new(), 0, 0);
        for round in 0..rounds {
            let mut server = serve();
            let process = server.pid();
            server.begin_call("execute_code", json!({"code": "print(6*7)", "session": "one"}));
            // From before anything is created to after the pool is filled, and some while it is filled again.
            tokio::time::sleep(Duration::from_millis(numbers.below(5000))).await;
            let is_filled_first = round % 3 == 0;
            if is_filled_first {
                wait_for(&format!("{context}: the pool is filled"), async || {
                    (running_of_process(&docker, process).await > WARM).then_some(())
                })
                .await;
                filled += 1;
            }
            if round % 2 == 0 {
                server.begin_call("execute_code", json!({"code": "print(6*7)", "session": "two"}));
                tokio::time::sleep(Duration::from_millis(numbers.below(300))).await;
            }
            kill_process(Pid::from_raw(process as i32).expect("a process"), Signal::KILL).expect("it can be killed");
            server.wait();
            seen += count_of_process(&labelled(&docker).await, process);
            if is_filled_first && round % 2 == 1 {
                // No start was under way, so every container has the connection that ends it.
                wait_for(&format!("{context}: its containers end by themselves"), async || {
                    (running_of_process(&docker, process).await == 0).then_some(())
                })
                .await;
            }
            dead.insert(process);
        }
        assert!(seen >= filled * (WARM + 1), "{context}: {seen} containers of {filled} filled pools");
        print_figures(&format!("{context}: {seen} ready or used containers were there after {rounds} kills"));
        let mut next = serve();
        assert!(next.call("execute_code", json!({"code": "print(6*7)"})).ok().starts_with("42\n"), "{context}");
        wait_for(&format!("{context}: nothing of the dead is left"), async || {
            let all = labelled(&docker).await;
            let left: usize = dead.iter().map(|process| count_of_process(&all, *process)).sum();
            (left == 0 && home.files().is_empty()).then_some(())
        })
        .await;
        // A server that ends as it should leaves nothing for a sweep.
        wait_for(&format!("{context}: the pool is filled"), async || {
            (running_of_process(&docker, next.pid()).await > WARM).then_some(())
        })
        .await;
        next.close_input();
        assert!(next.wait().success(), "{context}: {}", next.errors());
        assert_eq!(count_of_process(&labelled(&docker).await, next.pid()), 0, "{context}");
    });
}

/// How many containers of a server run.
async fn running_of_process(docker: &Docker, process: u32) -> usize {
    let running = list_containers(docker, "cove.instance").await.into_iter();
    let running = running.filter(|one| one.state == Some(State::RUNNING));
    let rows: Vec<(String, String)> =
        running.filter_map(|one| Some((one.id?, one.labels?.remove("cove.instance")?))).collect();
    count_of_process(&rows, process)
}
