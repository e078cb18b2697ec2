//! Refused files, each with its reason, and the checked form of an accepted one.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::super::file;
use super::super::tests::test_request;
use super::*;
use cove_core::policy::{AllowedMount, MountAccess, SandboxMount};

struct CheckFixture {
    _dir: tempfile::TempDir,
    folder: PathBuf,
    /// A directory beside the folder.
    shared: PathBuf,
}

fn check_fixture() -> CheckFixture {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let (folder, shared) = (top.join("image"), top.join("shared"));
    for path in [&folder.join("html"), &folder.join("sockets"), &shared.join("sub")] {
        std::fs::create_dir_all(path).unwrap();
    }
    for path in [folder.join("a.env"), folder.join("Dockerfile"), top.join("outside.env")] {
        std::fs::write(path, "").unwrap();
    }
    symlink("/etc", folder.join("etc")).unwrap();
    symlink(&shared, folder.join("out")).unwrap();
    drop(UnixListener::bind(folder.join("sockets/some.sock")).unwrap());
    CheckFixture { _dir: dir, folder, shared }
}

fn check_original_text(text: &str, place: &CheckFixture) -> Result<Value, Refusal> {
    check_original(&file::parse(text).unwrap(), &place.folder)
}

/// Checks a file that Compose would not change.
fn check_resolved_text(
    text: &str,
    place: &CheckFixture,
    allowed: &[ComposeRisk],
    mounts: &[AllowedMount],
) -> Result<CheckedCompose, Refusal> {
    let text = text.replace("FOLDER", place.folder.to_str().unwrap());
    let text = text.replace("SHARED", place.shared.to_str().unwrap());
    let original = file::parse(&text).unwrap();
    let socket = place.shared.join("sub/my.sock");
    let mut request = test_request();
    request.permissions.compose = allowed.to_vec();
    request.permissions.mounts = mounts.to_vec();
    let rules =
        ComposeRules { request: &request, folder: &place.folder, engine: Engine::Docker, socket: Some(&socket) };
    check_resolved(&original.document, &original.order, &rules)
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(found: Result<T, Refusal>, expected: &str, text: &str) {
    let wrong = found.expect_err(text);
    let whole = format!("{}; {}", wrong.cause, wrong.hint);
    assert!(whole.contains(expected), "{text}: {whole}");
}

#[test]
fn checks_files_before_compose_reads_them() {
    let place = check_fixture();
    let member = |rest: &str| format!("services: {{web: {{image: x, {rest}}}}}");
    for (text, expected) in [
        (member("foo: 1"), "the key `services.web.foo` is not one that Cove can hold to its limits; remove it"),
        (member("env_file: ../outside.env"), "out of the image's folder"),
        (member("env_file: [a.env, etc/passwd]"), "`services.web.env_file` leads to `/etc/passwd`"),
        (member("env_file: [{path: /etc/passwd}]"), "out of the image's folder"),
        (member("env_file: '${HOME}/x'"), "has a variable"),
        (member("env_file: '~/a.env'"), "has a variable or `~`"),
        (member("env_file: nothing"), "could not be followed"),
        (member("extends: {file: other.yaml, service: x}"), "has not looked at"),
        (member("label_file: x"), "`services.web.label_file`"),
        (member("secrets: [x]"), "shows files of this machine"),
        (member("configs: [x]"), "shows files of this machine"),
        (member("build: {context: ., dockerfile_inline: FROM x}"), "`services.web.build.dockerfile_inline`"),
        (member("build: {context: ., additional_contexts: {a: b}}"), "additional_contexts"),
        (member("build: {context: ., network: host}"), "`services.web.build.network`"),
        ("include: [x]\nservices: {}".into(), "the key `include` is refused"),
        ("secrets: {}\nservices: {}".into(), "the key `secrets` is refused"),
        ("services: {}".into(), "it has 0 services"),
        ("volumes: {}".into(), "no `services`"),
        ("services: {web: [x]}".into(), "not what Compose takes"),
        ("services: {'../x': {image: x}}".into(), "is not a name"),
        ("services: {a: {image: x}}\nvolumes: {'../../x': {}}".into(), "is not a name"),
        ("services: {a: {image: x}}\nnetworks: {'-x': {}}".into(), "is not a name"),
        (
            format!("services: {{{}}}", (0..9).map(|i| format!("s{i}: {{image: x}}")).collect::<Vec<_>>().join(",")),
            "it has 9 services",
        ),
    ] {
        assert_refused(check_original_text(&text, &place), expected, &text);
    }
    let text = "version: '3'\nname: n\nx-a: {b: 1}\nservices: {web: {image: x, x-y: 1, labels: {cove.session: s}, env_file: a.env, extends: {service: db}}}";
    assert_eq!(
        check_original_text(text, &place).unwrap(),
        json!({"services": {"web": {"image": "x", "env_file": "a.env", "extends": {"service": "db"}}}}),
    );
}

#[test]
fn refuses_risks_before_compose_resolves_them() {
    let place = check_fixture();
    let look = |text: &str, allowed: &[ComposeRisk], main: Option<&str>| {
        check_unresolved(&file::parse(text).unwrap(), &place.folder, main, allowed)
    };
    for (rest, expected) in [
        ("privileged: true", "--allow-compose privileged"),
        ("network_mode: host", "--allow-compose host-network"),
        ("network_mode: 'container:x'", "networks that are not the session's own"),
        ("ports: ['${PORT}:80']", "--allow-compose ports"),
        ("cap_add: ['$OTHER', SYS_ADMIN]", "--allow-compose capabilities"),
        ("devices: [/dev/fuse]", "--allow-compose devices"),
        ("security_opt: ['seccomp:unconfined']", "nothing allows it"),
        ("sysctls: {kernel.shmmax: '${MAX}', kernel.msgmax: 1}", "`services.web.sysctls: kernel.msgmax`"),
        ("pid: host", "the key `services.web.pid` is refused"),
        ("env_file: ../outside.env", "out of the image's folder"),
        ("volumes: ['/var/run/docker.sock:/x']", "shows `/var/run/docker.sock`, which is by its name the socket of"),
        ("volumes: ['${Z}:/z', '/etc:/x:ro']", "`services.web.volumes` shows `/etc`, which is, or holds, `/etc`"),
        ("volumes: [{type: bind, source: /, target: /x}]", "is the whole machine; remove it; nothing allows it"),
        ("volumes: ['./../../../../../../../../../etc/ssh:/x']", "belongs to this machine's system"),
    ] {
        let text = format!("services: {{web: {{image: x, {rest}}}}}");
        assert_refused(look(&text, &[], None), expected, &text);
    }
    for (text, expected) in [
        ("services: {web: {image: x}}\nvolumes: {d: {external: true}}", "`volumes.d.external` is refused"),
        ("services: {web: {image: x}}\nnetworks: {n: {name: bridge}}", "sessions would share it"),
    ] {
        assert_refused(look(text, &[], None), expected, text);
    }
    let text = "services: {web: {image: x, privileged: true, ports: ['80:80']}}";
    assert_refused(look(text, &[ComposeRisk::Privileged], None), "--allow-compose ports", text);
    assert!(look(text, &[ComposeRisk::Privileged, ComposeRisk::Ports], Some("web")).is_ok());
    assert_refused(look(text, &ComposeRisk::ALL, Some("db")), "`db`, which is not a service; name one of `web`", text);
    // Values that Compose substitutes or converts are checked after it has done so.
    for rest in [
        "privileged: '${P}'",
        "privileged: 'true'",
        "privileged: false",
        "network_mode: '${MODE}'",
        "cap_add: ['${CAP}', CHOWN]",
        "cap_add: ",
        "ports: []",
        "security_opt: ['${X}']",
        "sysctls: ['${X}=1']",
        "volumes: ['./html:/x', '~/y:/y', '${Z}:/z', '/etc/${NAME}:/v', 'etc:/w', '/srv/data:/u', /etc]",
        "volumes: [{type: bind, source: '/etc/${X}', target: /x}, {type: volume, source: d, target: /etc}]",
        "build: '${DIR}'",
    ] {
        let text = format!(
            "services: {{web: {{image: x, {rest}}}}}\nvolumes: {{d: {{external: '${{E}}', driver: '${{D}}'}}}}"
        );
        assert!(look(&text, &[], None).is_ok(), "{text}");
    }
    symlink("/etc/hostname", place.folder.join(".env")).unwrap();
    let text = "services: {web: {image: x}}";
    assert_refused(look(text, &[], None), "`.env` leads to `/etc/hostname`, out of the image's folder", text);
}

#[test]
fn compose_risks_are_refused_unless_allowed() {
    let place = check_fixture();
    for (rest, risk, expected) in [
        ("privileged: true", ComposeRisk::Privileged, "`services.web.privileged` is refused"),
        ("network_mode: host", ComposeRisk::HostNetwork, "`services.web.network_mode: host` is refused"),
        ("ports: ['80:80']", ComposeRisk::Ports, "`services.web.ports` is refused"),
        ("cap_add: [SYS_ADMIN]", ComposeRisk::Capabilities, "`services.web.cap_add: SYS_ADMIN` is refused"),
        ("cap_add: [cap_sys_ptrace]", ComposeRisk::Capabilities, "cap_sys_ptrace"),
        ("cap_add: [ALL]", ComposeRisk::Capabilities, "ALL"),
        ("devices: ['/dev/fuse']", ComposeRisk::Devices, "`services.web.devices` is refused"),
    ] {
        let text = format!("services: {{web: {{image: x, {rest}}}}}");
        assert_refused(check_resolved_text(&text, &place, &[], &[]), expected, &text);
        let others: Vec<ComposeRisk> = ComposeRisk::ALL.into_iter().filter(|other| *other != risk).collect();
        let flag = format!("--allow-compose {}", risk.as_str());
        assert_refused(check_resolved_text(&text, &place, &others, &[]), &flag, &text);
        assert!(check_resolved_text(&text, &place, &[risk], &[]).is_ok(), "{text}");
    }
}

#[test]
fn refuses_compose_settings_that_nothing_allows() {
    let place = check_fixture();
    let mounts = [AllowedMount { directory: place.shared.clone(), access: MountAccess::ReadOnly }];
    for (rest, expected) in [
        ("privileged: 'yes'", "not what Compose takes"),
        ("network_mode: bridge", "networks that are not the session's own"),
        ("network_mode: 'container:abc'", "networks that are not the session's own"),
        ("network_mode: 'service:other'", "not another service"),
        ("network_mode: 'service:web'", "not another service"),
        ("pid: host", "the key `services.web.pid` is refused"),
        ("ipc: host", "services.web.ipc"),
        ("uts: host", "services.web.uts"),
        ("userns_mode: host", "services.web.userns_mode"),
        ("cgroup: host", "services.web.cgroup"),
        ("cgroup_parent: x", "services.web.cgroup_parent"),
        ("runtime: x", "services.web.runtime"),
        ("device_cgroup_rules: [x]", "device_cgroup_rules"),
        ("gpus: all", "services.web.gpus"),
        ("deploy: {}", "services.web.deploy"),
        ("env_file: a.env", "services.web.env_file"),
        ("volumes_from: [x]", "volumes_from"),
        ("security_opt: ['seccomp:unconfined']", "`services.web.security_opt: seccomp:unconfined` is refused"),
        ("security_opt: ['systempaths=unconfined']", "systempaths"),
        ("security_opt: ['no-new-privileges:false']", "no-new-privileges:false"),
        ("sysctls: {kernel.shmmax: 1}", "`services.web.sysctls: kernel.shmmax` is refused"),
        ("sysctls: ['net.core.somaxconn=1']", "net.core.somaxconn"),
        ("networks: {default: {ipv4_address: 10.0.0.1}}", "ipv4_address"),
        ("networks: [other]", "which is not there"),
        ("volumes: ['/var/run/docker.sock:/x']", "the socket of a container engine"),
        ("volumes: ['SHARED/docker.sock:/x']", "the socket of a container engine"),
        ("volumes: ['SHARED:/x']", "the socket that makes containers"),
        ("volumes: ['FOLDER/sockets:/x']", "a socket or a device"),
        ("volumes: ['FOLDER/sockets/some.sock:/x']", "a socket or a device"),
        ("volumes: ['FOLDER/etc:/x']", "belongs to this machine's system"),
        ("volumes: ['FOLDER/../../../../../../../../etc:/x']", "belongs to this machine's system"),
        ("volumes: ['/:/x']", "is the whole machine"),
        ("volumes: ['/proc:/x']", "belongs to this machine's system"),
        ("volumes: ['/sys/kernel:/x']", "belongs to this machine's system"),
        ("volumes: ['/dev:/x']", "belongs to this machine's system"),
        ("volumes: ['/var:/x']", "belongs to this machine's system"),
        ("volumes: ['/root:/x']", "--allow-mount /root"),
        ("volumes: ['FOLDER/nothing:/x']", "could not be followed"),
        ("volumes: ['FOLDER/html:/x:rshared']", "whose mode is refused"),
        ("volumes: ['FOLDER/html:/x:rw:y']", "too many colons"),
        ("volumes: ['nothing:/x']", "names the volume `nothing`"),
        ("volumes: [{type: bind, source: FOLDER/html, target: /x, bind: {propagation: rshared}}]", "propagation"),
        ("volumes: [{type: npipe, source: x, target: /x}]", "the type `npipe`"),
        ("volumes: [{type: volume, source: data, target: /x, volume: {subpath: ../..}}]", "subpath"),
        ("volumes: ['FOLDER/html:/.cove']", "the target `/.cove`"),
        ("volumes: ['FOLDER/html:/.cove/x']", "the target `/.cove/x`"),
        ("volumes: ['FOLDER/html:/workspace/']", "the target `/workspace`"),
        ("volumes: ['FOLDER/html:/x/../.cove']", "the target `/x/../.cove`"),
        ("volumes: ['FOLDER/html:/proc/sys']", "the target `/proc/sys`"),
        ("volumes: ['FOLDER/html:relative']", "the target `relative`"),
        ("volumes: ['FOLDER/html:/']", "the target `/`"),
        ("volumes: ['FOLDER/html:/x', 'FOLDER/html:/x/']", "two for `/x`"),
        ("tmpfs: ['/dev/shm']", "the target `/dev/shm`"),
        ("tmpfs: ['/tmp']", "the target `/tmp`"),
        ("tmpfs: ['/x:uid=0']", "the option `uid=0`"),
        ("build: {context: /etc}", "out of the image's folder"),
        ("build: {context: 'https://example.test/x.git'}", "could not be followed"),
        ("build: {context: FOLDER, dockerfile: ../shared/x}", "could not be followed"),
        ("build: {context: FOLDER, dockerfile: etc/passwd}", "out of the image's folder"),
        ("build: {context: FOLDER/out}", "out of the image's folder"),
        ("cpus: many", "not what Compose takes"),
        ("mem_limit: lots", "is not a size"),
    ] {
        let text = format!("services: {{web: {{image: x, {rest}}}}}\nvolumes: {{data: }}");
        let found = check_resolved_text(&text, &place, &ComposeRisk::ALL, &mounts);
        assert_refused(found, expected, &text);
    }
    for (rest, expected) in [
        ("volumes: {d: {driver_opts: {type: none, device: /, o: bind}}}", "`volumes.d.driver_opts` is refused"),
        ("volumes: {d: {driver: nfs}}", "`volumes.d.driver` is refused"),
        ("volumes: {d: {external: true}}", "`volumes.d.external` is refused"),
        ("volumes: {d: {external: {name: x}}}", "`volumes.d.external` is refused"),
        ("volumes: {d: {name: other}}", "sessions would share it"),
        ("networks: {n: {external: true}}", "`networks.n.external` is refused"),
        ("networks: {n: {name: bridge}}", "sessions would share it"),
        ("networks: {n: {driver: macvlan}}", "`networks.n.driver` is refused"),
        ("networks: {n: {driver_opts: {parent: eth0}}}", "`networks.n.driver_opts` is refused"),
        ("networks: {n: {ipam: {config: [{subnet: 10.0.0.0/8}]}}}", "`networks.n.ipam` is refused"),
        ("networks: {n: {attachable: true}}", "`networks.n.attachable`"),
        ("models: {}", "the key `models`"),
    ] {
        let text = format!("services: {{web: {{image: x}}}}\n{rest}");
        assert_refused(check_resolved_text(&text, &place, &ComposeRisk::ALL, &[]), expected, &text);
    }
}

#[test]
fn keeps_the_allowed_keys_of_a_compose_file() {
    let place = check_fixture();
    let text = "
services:
  web:
    build: {context: FOLDER, dockerfile: Dockerfile, args: {A: '1'}}
    command: [a, $b]
    cap_add: [cap_chown, SETUID]
    cap_drop: [KILL]
    mem_limit: 64m
    cpus: '0.5'
    restart: always
    networks: {back: {aliases: [w]}, default: }
    volumes:
      - FOLDER/html:/usr/share/nginx/html:rw
      - {type: bind, source: SHARED/sub, target: /sub, bind: {create_host_path: true}}
      - data:/data
      - /anon
      - {type: tmpfs, target: /cache, tmpfs: {size: 1024}}
    tmpfs: '/run:size=1m,mode=755'
  db: {image: d, network_mode: 'service:web', sysctls: {net.ipv4.ip_unprivileged_port_start: '0'}}
networks: {back: {name: p_back, driver: bridge, ipam: {}}}
volumes: {data: {name: p_data}}
name: p
version: '3.9'
";
    std::fs::remove_dir_all(place.folder.join("sockets")).unwrap();
    let mounts = [AllowedMount { directory: place.shared.join("sub"), access: MountAccess::ReadOnly }];
    // The engine's socket of this test is in that directory.
    assert_refused(check_resolved_text(text, &place, &[], &mounts), "the socket that makes containers", text);
    let other = AllowedMount { directory: place.shared.join("sub/deeper"), access: MountAccess::ReadWrite };
    std::fs::create_dir(&other.directory).unwrap();
    let text = text.replace("SHARED/sub,", "SHARED/sub/deeper,");
    let checked = check_resolved_text(&text, &place, &[], &[other]).unwrap();
    assert_eq!(checked.main, "web");
    assert_eq!(checked.networks, BTreeSet::from(["back".to_owned(), "default".to_owned()]));
    assert_eq!(checked.volumes, BTreeSet::from(["data".to_owned()]));
    assert_eq!(checked.services["db"].network, ServiceNetwork::OfService("web".into()));
    let web = &checked.services["web"];
    assert_eq!(Value::Object(web.kept.clone()), json!({"command": ["a", "$b"]}));
    assert_eq!((web.memory, web.cpus, web.pids), (Some(64 << 20), Some(0.5), None));
    assert_eq!(web.risks.capabilities, BTreeSet::from(["CHOWN".to_owned(), "SETUID".to_owned()]));
    let bind = |source: PathBuf, target: &str, access| {
        ServiceMount::Bind(SandboxMount { source, target: target.into(), access })
    };
    assert_eq!(
        web.mounts,
        [
            bind(place.folder.join("html"), "/usr/share/nginx/html", MountAccess::ReadOnly),
            bind(place.shared.join("sub/deeper"), "/sub", MountAccess::ReadWrite),
            ServiceMount::Volume { name: Some("data".into()), target: "/data".into(), access: MountAccess::ReadWrite },
            ServiceMount::Volume { name: None, target: "/anon".into(), access: MountAccess::ReadWrite },
            ServiceMount::Tmpfs { target: "/cache".into(), size: Some(1024), mode: None },
            ServiceMount::Tmpfs { target: "/run".into(), size: Some(1 << 20), mode: Some("755".into()) },
        ]
    );
}

#[test]
fn refuses_mounts_below_a_writable_directory() {
    let place = check_fixture();
    let writable = AllowedMount { directory: place.shared.join("w"), access: MountAccess::ReadWrite };
    std::fs::create_dir_all(writable.directory.join("in")).unwrap();
    let text = "services: {web: {image: x, volumes: ['SHARED/w/in:/x:ro']}}";
    assert_refused(check_resolved_text(text, &place, &[], &[writable]), "mounted only as a whole", text);
}

#[test]
fn chooses_the_main_service() {
    let place = check_fixture();
    let text = "services: {z: {image: x}, a: {image: x}}";
    assert_eq!(check_resolved_text(text, &place, &[], &[]).unwrap().main, "z");
    let original = file::parse(text).unwrap();
    let with_main = |main: &str| {
        let request = ComposeRequest { main: Some(main.to_owned()), ..test_request() };
        let rules = ComposeRules { request: &request, folder: &place.folder, engine: Engine::Docker, socket: None };
        check_resolved(&original.document, &original.order, &rules)
    };
    assert_eq!(with_main("a").unwrap().main, "a");
    assert_refused(with_main("b"), "`b`, which is not a service; name one of `", text);
}

#[test]
fn removes_networks_that_are_not_needed() {
    let place = check_fixture();
    let networks = |text: &str, kind: Engine, network: &SandboxNetwork, allowed: &[ComposeRisk]| {
        let original = file::parse(text).unwrap();
        let mut request = test_request();
        request.permissions.compose = allowed.to_vec();
        request.policy.network = network.clone();
        let rules = ComposeRules { request: &request, folder: &place.folder, engine: kind, socket: None };
        check_resolved(&original.document, &original.order, &rules)
    };
    let (closed, named) = (&SandboxNetwork::None, &SandboxNetwork::Named("out".into()));
    let (one, two) = ("services: {a: {image: x}}", "services: {a: {image: x}, b: {image: x}}");
    for kind in [Engine::Docker, Engine::Podman] {
        let alone = networks(one, kind, closed, &[]).unwrap();
        assert_eq!((alone.services["a"].network.clone(), alone.networks.len()), (ServiceNetwork::None, 0));
        let open = networks(one, kind, named, &[]).unwrap();
        assert_eq!(open.networks, BTreeSet::from(["default".to_owned()]));
        assert!(networks(two, kind, named, &[]).is_ok());
    }
    assert!(networks(two, Engine::Docker, closed, &[]).is_ok());
    assert_refused(networks(two, Engine::Podman, closed, &[]), "--allow-compose host-network", two);
    assert!(networks(two, Engine::Podman, closed, &[ComposeRisk::HostNetwork]).is_ok());
    let none = "services: {a: {image: x, network_mode: none}, b: {image: x, network_mode: none}}";
    assert!(networks(none, Engine::Podman, closed, &[]).is_ok());
}
