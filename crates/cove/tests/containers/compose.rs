//! Compose files, run by the Compose of this machine. The runner is a shell, so that tests can ask it things.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, NetworkCreateRequest, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptions,
    RemoveVolumeOptionsBuilder, UploadToContainerOptionsBuilder,
};
use cove::backend::docker::Maker;
use cove::backend::docker::compose::{Asked, Compose, Environment, PROJECT, Up, is_abandoned, take_down};
use cove::backend::{Ending, MemoryKiller, StartError};
use cove::config::ComposeRisk;
use cove::policy::{Limits, Network, Policy, Root, User};
use cove_testkit::skip::skip;
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::{daemons, marked};

const MIB: u64 = 1024 * 1024;
/// Of a test that was started by another, to be killed.
const CHILD: &str = "COVE_TEST_COMPOSE_CHILD";

struct Bench {
    kind: Maker,
    host: String,
    api: Docker,
    compose: Compose,
    folder: tempfile::TempDir,
    project: String,
    labels: BTreeMap<String, String>,
    volume: String,
    policy: Policy,
    allowed: Vec<ComposeRisk>,
}

/// Every engine that there is here.
async fn each(test: &str, check: impl AsyncFn(Bench)) {
    for (maker, host) in daemons(&format!("compose::{test}")) {
        let kind = maker.kind();
        let compose = match Compose::find(kind, &host, Environment::of_this_process()).await {
            Ok(compose) => compose,
            Err(error) => {
                skip(&format!("compose::{test}"), &format!("{error}: {:?}", error.cause));
                continue;
            }
        };
        eprintln!("{kind:?} with Compose {}", compose.version());
        check(Bench::new(kind, host, compose, test).await).await;
    }
}

impl Bench {
    async fn new(kind: Maker, host: String, compose: Compose, test: &str) -> Self {
        let api = Docker::connect_with_host(&host).unwrap().negotiate_version().await.unwrap();
        let name: String = test.chars().filter(char::is_ascii_lowercase).take(12).collect();
        let project = format!("cove-compose-{name}-{}", std::process::id());
        let volume = format!("{project}-runner");
        let bench = Self {
            kind,
            host,
            api,
            compose,
            folder: tempfile::tempdir().unwrap(),
            labels: BTreeMap::from([("cove.instance".to_owned(), project.clone())]),
            project,
            volume,
            policy: Policy {
                root: Root::Host,
                python: None,
                mounts: Vec::new(),
                network: Network::None,
                runtime: None,
                user: User { uid: 65534, gid: 65534 },
                limits: Limits { memory: 256 * MIB, cpus: 1.0, pids: 64, workspace: 8 * MIB, tmp: 4 * MIB },
            },
            allowed: Vec::new(),
        };
        bench.fill_volume().await;
        bench
    }

    fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    fn asked(&self) -> Asked<'_> {
        Asked {
            name: "test",
            folder: self.folder.path(),
            main: None,
            policy: &self.policy,
            project: &self.project,
            labels: &self.labels,
            runner_volume: &self.volume,
            env: &[],
            allowed: &self.allowed,
            mounts: &[],
            pull: false,
        }
    }

    async fn up(&self) -> Result<Up, StartError> {
        let told = |line: &str| eprintln!("told: {line}");
        self.compose.up(&self.api, &self.asked(), &told).await
    }

    /// A volume whose `cove` is a shell that says `ready`.
    async fn fill_volume(&self) {
        let request = VolumeCreateRequest { name: Some(self.volume.clone()), ..Default::default() };
        self.api.create_volume(request).await.unwrap();
        let body = ContainerCreateBody {
            image: Some("nginx:1.28".into()),
            host_config: Some(HostConfig {
                binds: Some(vec![format!("{}:/v", self.volume)]),
                ..Default::default()
            }),
            ..Default::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(&self.volume).build();
        let made = self.api.create_container(Some(options), body).await.unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        let script = b"#!/bin/sh\necho ready $1\nexec /bin/sh\n";
        let mut header = tar::Header::new_gnu();
        header.set_size(script.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        tar.append_data(&mut header, "cove", script.as_slice()).unwrap();
        let body = bollard::body_full(tar.into_inner().unwrap().into());
        let options = UploadToContainerOptionsBuilder::default().path("/v").build();
        self.api.upload_to_container(&made.id, Some(options), body).await.unwrap();
        let options = RemoveContainerOptionsBuilder::default().force(true).build();
        self.api.remove_container(&made.id, Some(options)).await.unwrap();
    }

    /// Containers, networks and volumes with the project's name, each with its labels.
    async fn left(&self) -> Vec<(String, HashMap<String, String>)> {
        marked(&self.api, &format!("{PROJECT}={}", self.project)).await
    }

    async fn until_nothing_is_left(&self) {
        for _ in 0..100 {
            if self.left().await.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("left: {:?}", self.left().await);
    }

    async fn end(self) {
        let options = RemoveVolumeOptionsBuilder::default().force(true).build();
        self.api.remove_volume(&self.volume, Some(options)).await.unwrap();
    }
}

/// What the shell that is the runner answers, without the line that ends it.
async fn ask(up: &mut Up, command: &str) -> String {
    up.input.write_all(format!("{{ {command}\n}} 2>&1; echo \"[done]\"\n").as_bytes()).await.unwrap();
    up.input.flush().await.unwrap();
    let mut text = String::new();
    let listening = async {
        while !text.ends_with("[done]\n") {
            match up.output.next().await {
                Some(Ok(piece)) => text.push_str(&String::from_utf8_lossy(&piece.into_bytes())),
                other => panic!("{other:?} after {text}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), listening).await.expect(command);
    text.trim_end_matches("[done]\n").trim_start_matches("ready runner\n").trim().to_owned()
}

fn whole(error: StartError) -> String {
    let cause = error.cause.as_ref().map_or(String::new(), ToString::to_string);
    format!("{error}: {cause}; {}", error.hint.as_deref().unwrap_or_default())
}

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
            ("for i in 1 2 3 4 5 6 7 8 9 10; do bash -c 'exec 3<>/dev/tcp/other/80; printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3; head -n 1 <&3' && break; sleep 0.3; done 2>/dev/null | cut -c 10-12", "200"),
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
            "timeout 4 bash -c 'exec 3<>/dev/tcp/{address}/9' 2>&1 | grep -o 'route to host\\|unreachable\\|refused' | sort -u"
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
        until_ended(&up).await;
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
        assert_eq!(until_ended(&up).await, Ending::Exited(7));
        bench.api.kill_container(up.project.main(), None).await.unwrap();
        let killed = until_ended(&up).await;
        let Ending::Lost(cause) = &killed else { panic!("{killed:?}") };
        assert!(cause.starts_with("its main container was killed"), "{cause}");
        assert_eq!(cause.contains("for want of memory"), bench.kind == Maker::Podman, "{cause}");
        drop(up);
        bench.until_nothing_is_left().await;
        // What was dropped may still be looking for what is left of it.
        let mut bench = bench;
        bench.project += "-2";

        let hungry = "sleep 5; exec grep -a x /dev/zero";
        let bench = bench.file(
            "compose.yaml",
            &format!("services: {{main: {{image: 'nginx:1.28', command: [sh, -c, '{hungry}']}}}}"),
        );
        let mut up = bench.up().await.map_err(whole).unwrap();
        while up.output.next().await.is_some() {}
        // Podman 4 does not tell it from any other kill.
        let (ending, killer) = match bench.kind {
            Maker::Docker => (Ending::OutOfMemory(MemoryKiller::Kernel), Some(MemoryKiller::Kernel)),
            Maker::Podman => (killed, None),
        };
        assert_eq!(until_ended(&up).await, ending);
        assert_eq!(up.project.out_of_memory().await, killer);
        up.project.down().await;
        assert!(matches!(up.project.ending().await, Some(Ending::Lost(_))));
        bench.end().await;
    })
    .await;
}

async fn until_ended(up: &Up) -> Ending {
    for _ in 0..50 {
        match up.project.ending().await {
            Some(ending) => return ending,
            None => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("it goes on");
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
            for _ in 0..600 {
                if bench.left().await.len() >= wanted {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            // Compose is not ours to kill any more; it ends by itself.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let left = bench.left().await;
            assert!(left.len() >= wanted, "{left:?}");
            assert!(left.iter().all(|(_, labels)| labels.get("cove.instance") == Some(&bench.project)), "{left:?}");
            assert_eq!(take_down(&bench.api, &bench.project).await, Vec::<String>::new());
            assert_eq!(bench.left().await, []);
            let own = format!("cove-compose-akilledproce-{}-runner", child.id());
            let options = RemoveVolumeOptionsBuilder::default().force(true).build();
            let _ = bench.api.remove_container(&own, Some(RemoveContainerOptionsBuilder::default().force(true).build())).await;
            bench.api.remove_volume(&own, Some(options)).await.unwrap();
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
