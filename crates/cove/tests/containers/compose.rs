//! Compose files, run by this machine's Compose. The runner is a shell, so that tests can run commands in it.

mod fixture;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bollard::models::NetworkCreateRequest;
use bollard::query_parameters::{RemoveContainerOptionsBuilder, RemoveImageOptions};
use cove_core::backend::{MemoryKiller, SandboxEnd};
use cove_core::policy::ComposeRisk;
use cove_core::policy::SandboxNetwork;
use cove_docker::Engine;
use cove_docker::compose::{RunningProject, is_abandoned, take_down};
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use self::fixture::{
    ComposeFixture, MIB, each, full_message, run_in_runner, wait_for_compose_to_exit, wait_for_ending,
};
use crate::remove_volume;

/// Set for a test that another test starts, to kill it.
const CHILD: &str = "COVE_TEST_COMPOSE_CHILD";

const CAPABILITIES: &str = "cap_add: [CHOWN, DAC_OVERRIDE, SETUID, SETGID, NET_BIND_SERVICE]";

fn nginx(mut fixture: ComposeFixture) -> ComposeFixture {
    if fixture.kind == Engine::Podman {
        fixture.allowed.push(ComposeRisk::HostNetwork);
    }
    fixture
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
async fn compose_folder_builds_runs_and_leaves_nothing() {
    each("compose_folder_builds_runs_and_leaves_nothing", async |fixture| {
        let fixture = nginx(fixture);
        let mut up = fixture.up().await.map_err(full_message).unwrap();
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
            assert_eq!(run_in_runner(&mut up, command).await, expected, "{command}");
        }
        assert_network_is_internal(&fixture, &mut up).await;
        let workspace = run_in_runner(&mut up, "dd if=/dev/zero of=/workspace/big bs=1M count=20 2>&1 | tail -n 1").await;
        assert!(workspace.contains("8.4 MB") || workspace.contains("8388608"), "{workspace}");
        assert_eq!(up.project.runner_end().await, None);
        let left = fixture.leftovers().await;
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(left.iter().all(|(_, labels)| labels.get("cove.instance") == Some(&fixture.project)), "{left:?}");
        up.project.shut_down().await;
        assert_eq!(fixture.leftovers().await, []);

        // The image exists now, so nothing is built and no progress is reported.
        let again = fixture.compose.prepare(&fixture.api, &fixture.request(), &|line| panic!("told: {line}")).await;
        assert_eq!(again.map_err(full_message), Ok(None));
        let plan = fixture.compose.explain(&fixture.request()).await.map_err(full_message).unwrap();
        let image = plan["services"]["web"]["image"].as_str().unwrap();
        assert!(image.starts_with("cove/compose-test-web:"), "{image}");
        fixture.api.remove_image(image, None::<RemoveImageOptions>, None).await.unwrap();
        fixture.end().await;
    })
    .await;
}

/// No host answers at the gateway's address, which Docker would otherwise give to the machine itself, and there is no
/// other route out.
async fn assert_network_is_internal(fixture: &ComposeFixture, up: &mut RunningProject) {
    let name = format!("{}_default", fixture.project);
    let network = fixture.api.inspect_network(&name, None).await.unwrap();
    assert_eq!(network.internal, Some(true));
    if fixture.kind == Engine::Podman {
        return;
    }
    let gateway = network.ipam.unwrap().config.unwrap()[0].gateway.clone().unwrap();
    let knock = |address: &str| {
        format!(
            "timeout 60 bash -c 'exec 3<>/dev/tcp/{address}/9' 2>&1 | grep -o 'route to host\\|unreachable\\|refused' | sort -u"
        )
    };
    // A host that exists refuses the connection; one that does not exist has no route.
    assert_eq!(run_in_runner(up, &knock("127.0.0.1")).await, "refused");
    assert_eq!(run_in_runner(up, &knock(&gateway)).await, "route to host");
}

/// A project is abandoned once its runner has ended: the runner ends with the process that started it, the containers
/// do not.
#[tokio::test(flavor = "multi_thread")]
async fn recognizes_an_abandoned_compose_project() {
    each("recognizes_an_abandoned_compose_project", async |fixture| {
        let fixture = fixture.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}}");
        let mut up = fixture.up().await.map_err(full_message).unwrap();
        assert_eq!(run_in_runner(&mut up, "echo hello").await, "hello");
        assert!(!is_abandoned(&fixture.api, &fixture.project).await);
        up.input.shutdown().await.unwrap();
        while up.output.next().await.is_some() {}
        wait_for_ending(&up, SandboxEnd::Exited(0)).await;
        assert!(is_abandoned(&fixture.api, &fixture.project).await);
        up.project.shut_down().await;
        fixture.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_how_a_compose_project_ended() {
    each("reports_how_a_compose_project_ended", async |fixture| {
        let fixture = fixture.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}}");
        let mut up = fixture.up().await.map_err(full_message).unwrap();
        assert_eq!(run_in_runner(&mut up, "echo hello").await, "hello");
        assert_eq!(up.project.memory_killer().await, None);
        up.input.write_all(b"exit 7\n").await.unwrap();
        while up.output.next().await.is_some() {}
        wait_for_ending(&up, SandboxEnd::Exited(7)).await;
        fixture.api.kill_container(up.project.main(), None).await.unwrap();
        let reported = match fixture.kind {
            Engine::Docker => "its main container was killed from outside",
            Engine::Podman => {
                "its main container was killed, from outside or for lack of memory; Podman does not say which"
            }
        };
        let killed = SandboxEnd::Lost(reported.into());
        wait_for_ending(&up, killed.clone()).await;
        drop(up);
        fixture.wait_until_clean().await;
        // The cleanup of the dropped project may still be looking for its leftovers.
        let mut fixture = fixture;
        fixture.project += "-2";

        let hungry = "while [ ! -e /tmp/go ]; do sleep 0.1; done; exec grep -a x /dev/zero";
        let fixture = fixture.file(
            "compose.yaml",
            &format!("services: {{main: {{image: 'nginx:1.28', command: [sh, -c, '{hungry}']}}}}"),
        );
        let mut up = fixture.up().await.map_err(full_message).unwrap();
        up.input.write_all(b"touch /tmp/go\n").await.unwrap();
        while up.output.next().await.is_some() {}
        // Podman 4 does not tell it apart from any other kill.
        let (ending, killer) = match fixture.kind {
            Engine::Docker => (SandboxEnd::OutOfMemory(MemoryKiller::Kernel), Some(MemoryKiller::Kernel)),
            Engine::Podman => (killed, None),
        };
        wait_for_ending(&up, ending).await;
        assert_eq!(up.project.memory_killer().await, killer);
        up.project.shut_down().await;
        assert!(matches!(up.project.runner_end().await, Some(SandboxEnd::Lost(_))));
        fixture.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_failures_name_their_cause_and_leave_nothing() {
    each("compose_failures_name_their_cause_and_leave_nothing", async |fixture| {
        let mut fixture = fixture;
        let folder = fixture.folder.path().to_owned();
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
            let error = match fixture.up().await {
                Ok(_) => panic!("{file} is up"),
                Err(error) => full_message(error),
            };
            assert!(error.contains(expected), "{file}: {error}");
            assert_eq!(fixture.leftovers().await, [], "{file}");
        }
        // Variables come only from the folder.
        std::os::unix::fs::symlink("/etc/hostname", folder.join(".env")).unwrap();
        let error = fixture.up().await.map(|_| ()).map_err(full_message).unwrap_err();
        assert!(error.contains("`.env` leads to `/etc/hostname`, out of the image's folder"), "{error}");
        std::fs::remove_file(folder.join(".env")).unwrap();
        std::fs::write(folder.join(".env"), "IMAGE=from/folder:3\n").unwrap();
        let file = "services: {a: {image: '${IMAGE}', command: ['${CARGO:-none}']}}";
        std::fs::write(folder.join("compose.yaml"), file).unwrap();
        let plan = fixture.compose.explain(&fixture.request()).await.map_err(full_message).unwrap();
        let a = &plan["services"]["a"];
        assert!(a["image"] == "from/folder:3" && a["command"].to_string().contains("\"none\""), "{plan}");
        // Cove must not run a project that it cannot confine as the policy says: this runtime does not exist.
        fixture.policy.runtime = Some("no-such-runtime".into());
        std::fs::write(folder.join("compose.yaml"), "services: {a: {image: 'nginx:1.28', command: [sleep, '9']}}")
            .unwrap();
        let error = fixture.up().await.map(|_| ()).map_err(full_message).unwrap_err();
        assert!(error.contains("runtime"), "{error}");
        assert_eq!(fixture.leftovers().await, []);
        fixture.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_the_operators_network_and_keeps_the_files_internal() {
    each("joins_the_operators_network_and_keeps_the_files_internal", async |fixture| {
        let mut fixture =
            fixture.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}}");
        let network = format!("{}-open", fixture.project);
        let request = NetworkCreateRequest { name: network.clone(), ..Default::default() };
        fixture.api.create_network(request).await.unwrap();
        fixture.policy.network = SandboxNetwork::Named(network.clone());
        let mut up = fixture.up().await.map_err(full_message).unwrap();
        assert_eq!(run_in_runner(&mut up, "grep -c eth /proc/net/dev").await, "2");
        let found = fixture.api.inspect_container(up.project.main(), None).await.unwrap();
        let mut joined: Vec<String> = found.network_settings.unwrap().networks.unwrap().into_keys().collect();
        joined.sort();
        assert_eq!(joined, [network.clone(), format!("{}_default", fixture.project)]);
        up.project.shut_down().await;
        fixture.api.remove_network(&network).await.unwrap();
        fixture.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_compose_start_leaves_nothing() {
    each("cancelled_compose_start_leaves_nothing", async |fixture| {
        let fixture = fixture.file("compose.yaml", "services: {main: {image: 'nginx:1.28', command: [sleep, '100']}, b: {image: 'nginx:1.28', command: [sleep, '100']}}");
        for patience in [200, 700, 1000, 1400, 2000] {
            let waited = tokio::time::timeout(Duration::from_millis(patience), fixture.up()).await;
            drop(waited);
            // The time that the engine may need to finish a request that was under way.
            tokio::time::sleep(Duration::from_secs(1)).await;
            fixture.wait_until_clean().await;
        }
        fixture.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_process_leaves_only_labelled_resources() {
    const TEST: &str = "killed_process_leaves_only_labelled_resources";
    each(TEST, async |fixture| {
        let mut fixture = fixture.file(
            "compose.yaml",
            "services: {main: {image: 'nginx:1.28', command: [sleep, '100'], volumes: ['disk:/d']}}\nvolumes: {disk: }",
        );
        if let Ok(child) = std::env::var(CHILD) {
            fixture.project = child.clone();
            fixture.labels = BTreeMap::from([("cove.instance".to_owned(), child)]);
            let _up = fixture.up().await.map_err(full_message).unwrap();
            println!("up");
            tokio::time::sleep(Duration::from_secs(600)).await;
            return;
        }
        let name = if fixture.kind == Engine::Docker { "COVE_TEST_DOCKER" } else { "COVE_TEST_PODMAN" };
        for wanted in [1, 2] {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("compose::{TEST}")])
                .env_remove("COVE_TEST_DOCKER")
                .env_remove("COVE_TEST_PODMAN")
                // The child has the one engine that it needs, and must log no skip.
                .env_remove("COVE_SKIP_LOG")
                .env(name, &fixture.host)
                .env(CHILD, &fixture.project)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            for _ in 0..1200 {
                if fixture.leftovers().await.len() >= wanted {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            wait_for_compose_to_exit(&fixture.project).await;
            // The time that the engine may need to finish a request that was under way.
            tokio::time::sleep(Duration::from_secs(5)).await;
            let left = fixture.leftovers().await;
            assert!(left.len() >= wanted, "{left:?}");
            assert!(left.iter().all(|(_, labels)| labels.get("cove.instance") == Some(&fixture.project)), "{left:?}");
            assert_eq!(take_down(&fixture.api, &fixture.project).await, Vec::<String>::new());
            assert_eq!(fixture.leftovers().await, []);
            let own = format!("cove-compose-akilledproce-{}-runner", child.id());
            let _ = fixture
                .api
                .remove_container(&own, Some(RemoveContainerOptionsBuilder::default().force(true).build()))
                .await;
            remove_volume(&fixture.api, &own).await;
        }
        fixture.end().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_plan_matches_what_would_run() {
    each("compose_plan_matches_what_would_run", async |fixture| {
        let fixture = nginx(fixture);
        let plan = fixture.compose.explain(&fixture.request()).await.map_err(full_message).unwrap();
        assert_eq!(plan["networks"]["default"]["internal"], true, "{plan}");
        assert_eq!(plan["services"]["web"]["mem_limit"], 256 * MIB, "{plan}");
        let greeting = Path::new(plan["services"]["web"]["volumes"][0]["source"].as_str().unwrap());
        assert!(greeting.ends_with("greeting.txt") && greeting.is_absolute(), "{plan}");
        assert_eq!(fixture.leftovers().await, []);
        fixture.end().await;
    })
    .await;
}
