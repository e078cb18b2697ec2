//! Compose files, run by the Compose of this machine. The runner is a shell, so that tests can ask it things.

mod bench;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bollard::models::NetworkCreateRequest;
use bollard::query_parameters::{RemoveContainerOptionsBuilder, RemoveImageOptions};
use cove::backend::docker::Maker;
use cove::backend::docker::compose::{Up, is_abandoned, take_down};
use cove::backend::{Ending, MemoryKiller};
use cove::config::ComposeRisk;
use cove::policy::Network;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use self::bench::{Bench, MIB, ask, each, until_compose_has_ended, until_ended_as, whole};
use crate::remove_volume;

/// Of a test that was started by another, to be killed.
const CHILD: &str = "COVE_TEST_COMPOSE_CHILD";

const CAPABILITIES: &str = "cap_add: [CHOWN, DAC_OVERRIDE, SETUID, SETGID, NET_BIND_SERVICE]";

fn nginx(mut bench: Bench) -> Bench {
    if bench.kind == Maker::Podman {
        bench.allowed.push(ComposeRisk::HostNetwork);
    }
    bench
        .file("Dockerfile", "FROM nginx:1.28\nRUN echo built-here > /made\n")
        .file("greeting.txt", "from the folder")
        .file(
            "compose.yaml",
            &format!(
                "services:
  web:
    build: .
    {CAPABILITIES}
    depends_on: [other]
    environment: {{COST: '$$5'}}
    volumes: ['./greeting.txt:/srv/greeting.txt', 'data:/data']
  other:
    image: nginx:1.28
    {CAPABILITIES}
volumes: {{data: {{}}}}
"
            ),
        )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_built_and_runs_and_leaves_nothing() {
    each("a_folder_is_built_and_runs_and_leaves_nothing", async |bench| {
        let bench = nginx(bench);
        let mut up = bench.up().await.map_err(whole).unwrap();
        let inside = [
            ("cat /made", "built-here"),
            ("id -u; id -g", "65534\n65534"),
            ("pwd; touch here && echo yes", "/workspace\nyes"),
            ("touch /tmp/here && echo yes", "yes"),
            ("echo \"$COST\"", "$5"),
            ("cat /srv/greeting.txt", "from the folder"),
            ("touch /.cove/x 2>/dev/null || echo no", "no"),
            ("echo '#!/bin/sh\necho ran' > /tmp/p; chmod +x /tmp/p; /tmp/p", "ran"),
            ("grep -c '^Seccomp:.*2$' /proc/self/status", "1"),
            ("grep -c '^NoNewPrivs:.*1$' /proc/self/status", "1"),
            ("grep '^CapEff' /proc/self/status | tr -d 'CapEf: \\t0'", ""),
            ("for i in $(seq 100); do bash -c 'exec 3<>/dev/tcp/other/80; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; head -n 1 <&3' && break; sleep 0.3; done 2>/dev/null | cut -c 10-12", "200"),
        ];
        for (command, expected) in inside {
            assert_eq!(ask(&mut up, command).await, expected, "{command}");
        }
        closed(&bench, &mut up).await;
        let workspace = ask(&mut up, "dd if=/dev/zero of=/workspace/big bs=1M count=20 2>&1 | tail -n 1").await;
        assert!(workspace.contains("8.4 MB") || workspace.contains("8388608"), "{workspace}");
        assert_eq!(up.project.ending().await, None);
        let left = bench.left().await;
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(left.iter().all(|(_, labels)| labels.get("cove.instance") == Some(&bench.project)), "{left:?}");
        up.project.down().await;
        assert_eq!(bench.left().await, []);

        // The image is there now, so nothing is built, and nothing is told.
        let again = bench.compose.prepare(&bench.api, &bench.asked(), &|line| panic!("told: {line}")).await;
        assert_eq!(again.map_err(whole), Ok(None));
        let plan = bench.compose.explain(&bench.asked()).await.map_err(whole).unwrap();
        let image = plan["services"]["web"]["image"].as_str().unwrap();
        assert!(image.starts_with("cove/compose-test-web:"), "{image}");
        bench.api.remove_image(image, None::<RemoveImageOptions>, None).await.unwrap();
        bench.end().await;
    })
    .await;
}

/// Nobody is at the gateway's address, where Docker would have put the machine itself, and there is no other way out.
async fn closed(bench: &Bench, up: &mut Up) {
    let name = format!("{}_default", bench.project);
    let network = bench.api.inspect_network(&name, None).await.unwrap();
    assert_eq!(network.internal, Some(true));
    if bench.kind == Maker::Podman {
        return;
    }
    let gateway = network.ipam.unwrap().config.unwrap()[0].gateway.clone().unwrap();
    let knock = |address: &str| {
        format!(
            "timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/9' 2>&1 | grep -o 'route to host\\|unreachable\\|refused' | sort -u"
        )
    };
    // A machine that is there refuses; one that is not cannot be found.
    assert_eq!(ask(up, &knock("127.0.0.1")).await, "refused");
    assert_eq!(ask(up, &knock(&gateway)).await, "route to host");
}

/// What another process left, of which nothing but this can be seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_project_that_nobody_is_in_is_known() {
    each("a_project_that_nobody_is_in_is_known", async |bench| {
        let bench =
            bench.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}}");
        let mut up = bench.up().await.map_err(whole).unwrap();
        assert_eq!(ask(&mut up, "echo hello").await, "hello");
        assert!(!is_abandoned(&bench.api, &bench.project).await);
        up.input.shutdown().await.unwrap();
        while up.output.next().await.is_some() {}
        until_ended_as(&up, Ending::Exited(0)).await;
        assert!(is_abandoned(&bench.api, &bench.project).await);
        up.project.down().await;
        bench.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_it_ended_is_known() {
    each("how_it_ended_is_known", async |bench| {
        let bench =
            bench.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}}");
        let mut up = bench.up().await.map_err(whole).unwrap();
        assert_eq!(ask(&mut up, "echo hello").await, "hello");
        assert_eq!(up.project.out_of_memory().await, None);
        up.input.write_all(b"exit 7\n").await.unwrap();
        while up.output.next().await.is_some() {}
        until_ended_as(&up, Ending::Exited(7)).await;
        bench.api.kill_container(up.project.main(), None).await.unwrap();
        let told = match bench.kind {
            Maker::Docker => "its main container was killed",
            Maker::Podman => {
                "its main container was killed, by somebody or for want of memory, which Podman does not tell apart"
            }
        };
        let killed = Ending::Lost(told.into());
        until_ended_as(&up, killed.clone()).await;
        drop(up);
        bench.until_nothing_is_left().await;
        // What was dropped may still be looking for what is left of it.
        let mut bench = bench;
        bench.project += "-2";

        let hungry = "while [ ! -e /tmp/go ]; do sleep 0.1; done; exec grep -a x /dev/zero";
        let bench = bench.file(
            "compose.yaml",
            &format!("services: {{main: {{image: 'nginx:1.28', command: [sh, -c, '{hungry}']}}}}"),
        );
        let mut up = bench.up().await.map_err(whole).unwrap();
        up.input.write_all(b"touch /tmp/go\n").await.unwrap();
        while up.output.next().await.is_some() {}
        // Podman 4 does not tell it from any other kill.
        let (ending, killer) = match bench.kind {
            Maker::Docker => (Ending::OutOfMemory(MemoryKiller::Kernel), Some(MemoryKiller::Kernel)),
            Maker::Podman => (killed, None),
        };
        until_ended_as(&up, ending).await;
        assert_eq!(up.project.out_of_memory().await, killer);
        up.project.down().await;
        assert!(matches!(up.project.ending().await, Some(Ending::Lost(_))));
        bench.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_say_why_and_leave_nothing() {
    each("failures_say_why_and_leave_nothing", async |bench| {
        let mut bench = bench;
        let folder = bench.folder.path().to_owned();
        for (file, dockerfile, expected) in [
            ("services: {a: {image: 'nginx:1.28', privileged: true}}", "", "--allow-compose privileged"),
            ("services: {a: {image: 'no/such:1'}}", "", "pull no/such:1"),
            ("services: {a: {build: .}}", "FROM no/such:2", "pull no/such:2"),
            ("services: {a: {build: .}}", "FROM nginx:1.28\nRUN echo said-before; exit 9", "said-before"),
            ("services: {a: {image: 'nginx:1.28', command: {x: y}}}", "", "could not read the Compose file"),
            ("services: {a: {image: 'nginx:1.28', command: [/no/such/program]}}", "", "/no/such/program"),
            ("services: {a: {image: 'nginx:1.28', depends_on: [b]}}", "", "could not read the Compose file"),
        ] {
            std::fs::write(folder.join("compose.yaml"), file).unwrap();
            std::fs::write(folder.join("Dockerfile"), dockerfile).unwrap();
            let error = match bench.up().await {
                Ok(_) => panic!("{file} is up"),
                Err(error) => whole(error),
            };
            assert!(error.contains(expected), "{file}: {error}");
            assert_eq!(bench.left().await, [], "{file}");
        }
        // Variables come from the folder and from nowhere else.
        std::os::unix::fs::symlink("/etc/hostname", folder.join(".env")).unwrap();
        let error = bench.up().await.map(|_| ()).map_err(whole).unwrap_err();
        assert!(error.contains("`.env` leads to `/etc/hostname`, out of the image's folder"), "{error}");
        std::fs::remove_file(folder.join(".env")).unwrap();
        std::fs::write(folder.join(".env"), "IMAGE=from/folder:3\n").unwrap();
        let file = "services: {a: {image: '${IMAGE}', command: ['${CARGO:-none}']}}";
        std::fs::write(folder.join("compose.yaml"), file).unwrap();
        let plan = bench.compose.explain(&bench.asked()).await.map_err(whole).unwrap();
        let a = &plan["services"]["a"];
        assert!(a["image"] == "from/folder:3" && a["command"].to_string().contains("\"none\""), "{plan}");
        // What is not held must not run: no such runtime is there.
        bench.policy.runtime = Some("no-such-runtime".into());
        std::fs::write(
            folder.join("compose.yaml"),
            "services: {a: {image: 'nginx:1.28', command: [sleep, '9']}}",
        )
        .unwrap();
        let error = bench.up().await.map(|_| ()).map_err(whole).unwrap_err();
        assert!(error.contains("runtime"), "{error}");
        assert_eq!(bench.left().await, []);
        bench.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_network_is_joined_and_the_files_stays_closed() {
    each("the_operators_network_is_joined_and_the_files_stays_closed", async |bench| {
        let mut bench =
            bench.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}}");
        let network = format!("{}-open", bench.project);
        let request = NetworkCreateRequest { name: network.clone(), ..Default::default() };
        bench.api.create_network(request).await.unwrap();
        bench.policy.network = Network::Named(network.clone());
        let mut up = bench.up().await.map_err(whole).unwrap();
        assert_eq!(ask(&mut up, "grep -c eth /proc/net/dev").await, "2");
        let found = bench.api.inspect_container(up.project.main(), None).await.unwrap();
        let mut joined: Vec<String> = found.network_settings.unwrap().networks.unwrap().into_keys().collect();
        joined.sort();
        assert_eq!(joined, [network.clone(), format!("{}_default", bench.project)]);
        up.project.down().await;
        bench.api.remove_network(&network).await.unwrap();
        bench.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_stops_waiting_leaves_nothing() {
    each("whoever_stops_waiting_leaves_nothing", async |bench| {
        let bench = bench.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}, b: {image: 'nginx:1.28', command: [sleep, '100']}}");
        for patience in [200, 700, 1000, 1400, 2000] {
            let waited = tokio::time::timeout(Duration::from_millis(patience), bench.up()).await;
            drop(waited);
            // As long as a request that was under way may take to be carried out.
            tokio::time::sleep(Duration::from_secs(1)).await;
            bench.until_nothing_is_left().await;
        }
        bench.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_leaves_what_is_marked() {
    const TEST: &str = "a_killed_process_leaves_what_is_marked";
    each(TEST, async |bench| {
        let mut bench = bench.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100'], volumes: ['disk:/d']}}\nvolumes: {disk: }");
        if let Ok(child) = std::env::var(CHILD) {
            bench.project = child.clone();
            bench.labels = BTreeMap::from([("cove.instance".to_owned(), child)]);
            let _up = bench.up().await.map_err(whole).unwrap();
            println!("up");
            tokio::time::sleep(Duration::from_secs(600)).await;
            return;
        }
        let name = if bench.kind == Maker::Docker { "COVE_TEST_DOCKER" } else { "COVE_TEST_PODMAN" };
        for wanted in [1, 2] {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("compose::{TEST}")])
                .env_remove("COVE_TEST_DOCKER")
                .env_remove("COVE_TEST_PODMAN")
                // It has the one of the two that it needs, and skips nothing.
                .env_remove("COVE_SKIP_LOG")
                .env(name, &bench.host)
                .env(CHILD, &bench.project)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            for _ in 0..1200 {
                if bench.left().await.len() >= wanted {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            until_compose_has_ended(&bench.project).await;
            // As long as a request that was under way may take to be carried out.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let left = bench.left().await;
            assert!(left.len() >= wanted, "{left:?}");
            assert!(left.iter().all(|(_, labels)| labels.get("cove.instance") == Some(&bench.project)), "{left:?}");
            assert_eq!(take_down(&bench.api, &bench.project).await, Vec::<String>::new());
            assert_eq!(bench.left().await, []);
            let own = format!("cove-compose-akilledproce-{}-runner", child.id());
            let _ = bench.api.remove_container(&own, Some(RemoveContainerOptionsBuilder::default().force(true).build())).await;
            remove_volume(&bench.api, &own).await;
        }
        bench.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_what_would_be_run() {
    each("a_plan_is_what_would_be_run", async |bench| {
        let bench = nginx(bench);
        let plan = bench.compose.explain(&bench.asked()).await.map_err(whole).unwrap();
        assert_eq!(plan["networks"]["default"]["internal"], true, "{plan}");
        assert_eq!(plan["services"]["web"]["mem_limit"], 256 * MIB, "{plan}");
        let greeting = Path::new(plan["services"]["web"]["volumes"][0]["source"].as_str().unwrap());
        assert!(greeting.ends_with("greeting.txt") && greeting.is_absolute(), "{plan}");
        assert_eq!(bench.left().await, []);
        bench.end().await;
    })
    .await;
}
