//! A server that is killed at any moment leaves nothing that the next one does not remove, and the next one removes
//! nothing else.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptionsBuilder};
use cove_testkit::Who;
use cove_testkit::containers::Maker;
use cove_testkit::mcp::{Era, Stdio};
use serde_json::json;

use crate::{cove, each, listed};

/// All that has any label of ours, with its instance.
async fn labelled(docker: &Docker) -> Vec<(String, String)> {
    let found = listed(docker, "cove.instance").await;
    let row = |container: bollard::models::ContainerSummary| {
        Some((container.id?, container.labels?.remove("cove.instance")?))
    };
    found.into_iter().filter_map(row).collect()
}

fn serve(maker: Maker, address: &str) -> Stdio {
    let mut command = cove().command(Who::Root);
    command.args(["serve", "--tools", "all", "--backend", maker.name()]).env(maker.variable(), address);
    Stdio::start(command, Era::Modern)
}

/// Those of a process, by its number in the label.
fn of_process(all: &[(String, String)], process: u32) -> usize {
    all.iter().filter(|(_, instance)| instance.split('/').nth(2) == Some(&process.to_string())).count()
}

#[test]
fn a_killed_server_leaves_nothing_after_the_next_start() {
    let rounds = if std::env::var_os("COVE_TEST_FULL").is_some() { 50 } else { 6 };
    each("a_killed_server_leaves_nothing_after_the_next_start", async |maker, address, docker| {
        let foreign = foreign(&docker).await;
        // What is done once is done before.
        let mut first = serve(maker, address);
        for image in ["ubuntu", "python"] {
            first.call("start_session", json!({"image": image}));
        }
        first.close_input();
        first.wait();
        let mut dead = BTreeSet::new();
        let mut seen = 0;
        for round in 0..rounds {
            let mut server = serve(maker, address);
            for image in ["ubuntu", "python"] {
                server.begin_call("start_session", json!({"image": image}));
            }
            server.begin_call("execute_code", json!({"code": "import time; time.sleep(30)"}));
            // From before anything is made to after all is.
            let pause = (round * 7919) % 5000;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let process = server.pid();
            let pid = rustix::process::Pid::from_raw(process as i32).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
            server.wait();
            seen += of_process(&labelled(&docker).await, process);
            dead.insert(process);
        }
        assert!(seen > 0, "{maker:?}: no server was killed while it had containers");
        let mut next = serve(maker, address);
        assert_eq!(next.call("execute_code", json!({"code": "6*7"})).ok(), "42\n");
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let all = labelled(&docker).await;
            let left: usize = dead.iter().map(|process| of_process(&all, *process)).sum();
            if left == 0 {
                break;
            }
            assert!(Instant::now() < until, "{maker:?}: {left} containers are left");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for id in foreign {
            docker.inspect_container(&id, None).await.expect("a foreign container survives");
            let options = RemoveContainerOptionsBuilder::new().force(true).build();
            docker.remove_container(&id, Some(options)).await.expect("it can be removed");
        }
        drop(next);
    });
}

/// Containers of others, whose labels look much like ours.
async fn foreign(docker: &Docker) -> Vec<String> {
    let instance = "00000000-0000-0000-0000-000000000000/1/1/1";
    let ours = [
        ("cove.kind", "sandbox"),
        ("cove.instance", instance),
        ("cove.session", "s_1"),
        ("cove.principal", "local"),
        ("cove.expires", "1"),
    ];
    let mut ids = Vec::new();
    for leave_out in ["cove.kind", "cove.session", "cove.expires", "cove.instance"] {
        let labels = ours.iter().filter(|(name, _)| *name != leave_out);
        let body = ContainerCreateBody {
            image: Some("ubuntu:24.04".into()),
            cmd: Some(vec!["true".into()]),
            labels: Some(labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()),
            ..ContainerCreateBody::default()
        };
        let made = docker.create_container(None::<CreateContainerOptions>, body).await;
        ids.push(made.expect("a container can be made").id);
    }
    ids
}
