//! Layers, origins and refusals of the whole configuration; single values are tested beside their parsers.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::rc::Rc;

use insta::assert_snapshot;
use tempfile::TempDir;

use super::*;
use cove_core::policy::readiness::{SessionReadiness, WarmTarget};
use cove_core::policy::{SandboxLimits, SandboxNetwork, SandboxRoot, SandboxUser};

/// A directory with what paths in settings can name, and an environment of its own.
struct ConfigFixture {
    dir: Rc<TempDir>,
    process_env: ProcessEnv,
    flags: SettingFlags,
}

impl ConfigFixture {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let cwd = dir.path().canonicalize().unwrap();
        for path in ["home/.config/cove", "home/bin", "tree1/usr", "tree2/bin", "tree3/usr", "empty", "a", "b", "c"] {
            fs::create_dir_all(cwd.join(path)).unwrap();
        }
        for name in ["python1", "python2", "python3"] {
            fs::write(cwd.join(name), "").unwrap();
            fs::set_permissions(cwd.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(cwd.join("plain"), "").unwrap();
        symlink("python1", cwd.join("venv-python")).unwrap();
        let env = BTreeMap::from([("HOME".to_owned(), cwd.join("home").into())]);
        Self {
            dir: Rc::new(dir),
            process_env: ProcessEnv { env, cwd, stdin_is_terminal: false },
            flags: SettingFlags::default(),
        }
    }

    /// The same directory, without what was set before. To make a new one costs more than the rest of a case.
    fn fresh(&self) -> Self {
        let mut process_env = self.process_env.clone();
        process_env.env.retain(|name, _| name == "HOME");
        Self { dir: Rc::clone(&self.dir), process_env, flags: SettingFlags::default() }.file("")
    }

    fn flag(mut self, key: &'static str, value: &str) -> Self {
        self.flags.values.entry(key).or_default().push(value.to_owned());
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.process_env.env.insert(name.to_owned(), value.into());
        self
    }

    /// The person's own file.
    fn file(self, text: &str) -> Self {
        fs::write(self.process_env.cwd.join("home/.config/cove/cove.toml"), text).unwrap();
        self
    }

    fn load(&self) -> Result<Config, Failure> {
        Config::load(&self.flags, &self.process_env)
    }

    fn shown(&self, text: &str) -> String {
        text.replace(&*self.process_env.cwd.to_string_lossy(), "[DIR]")
    }

    #[track_caller]
    fn refused(&self) -> String {
        let error = self.load().unwrap_err();
        assert_eq!(error.kind(), cove_core::error::FailureKind::Usage);
        self.shown(&error.report().to_string())
    }
}

/// For each setting a value by flag, by environment and by file, and how each is shown.
fn samples(key: &str) -> [[&'static str; 2]; 3] {
    let same = |values: [&'static str; 3]| values.map(|value| [value, value]);
    match key {
        "backend" => same(["jail", "auto", "jail"]),
        "network" => same(["none", "none", "none"]),
        "memory" => [["1GiB", "1g"], ["2g", "2g"], ["3000m", "3000m"]],
        "cpus" => same(["0.5", "2", "3.25"]),
        "pids-limit" => same(["1", "2", "3"]),
        "user" => [["1", "1:1"], ["2:3", "2:3"], ["4:5", "4:5"]],
        "timeout" => [["1m30s", "90s"], ["20", "20s"], ["500ms", "500ms"]],
        "max-timeout" => [["1h", "3600s"], ["31s", "31s"], ["2m", "120s"]],
        "max-output" => same(["1", "2", "3"]),
        "workspace-size" => same(["1m", "2m", "3m"]),
        "tmp-size" => same(["1m", "2m", "3m"]),
        "rootfs" => [["tree1", "[DIR]/tree1"], ["tree2", "[DIR]/tree2"], ["./tree3", "[DIR]/tree3"]],
        "python" => [["python1", "[DIR]/python1"], ["./python2", "[DIR]/python2"], ["python3", "[DIR]/python3"]],
        "allow-net" => same(["pypi", "a.example:8443", "*.b.example"]),
        "no-net" => [["1", "true"], ["false", "false"], ["true", "true"]],
        "runtime" => same(["runsc", "runc", "kata"]),
        "image" => same(["python", "node", "mine"]),
        "image-dir" => [["a", "[DIR]/a"], ["b", "[DIR]/b"], ["/c", "/c"]],
        "pull" => [["1", "true"], ["false", "false"], ["true", "true"]],
        "allow-compose" => same(["ports", "privileged", "devices"]),
        "packages" => [["Foo_Bar", "foo-bar"], ["a >= 2", "a>=2"], ["b[c]", "b[c]"]],
        "node-packages" => same(["lodash", "@a/b@1", "c@^2"]),
        "workspace" => [["a", "[DIR]/a"], ["b", "[DIR]/b"], ["./c", "[DIR]/c"]],
        "mount" => [["a:/a", "[DIR]/a:/a"], ["b:/b:rw", "[DIR]/b:/b:rw"], ["c:/c:ro", "[DIR]/c:/c"]],
        "allow-call" => [["a.b", "a.b"], ["c", "c.*"], ["D.e*", "d.e*"]],
        "deny-call" => [["a.b", "a.b"], ["c", "c.*"], ["D.e*", "d.e*"]],
        "search" => same(["bm25", "hybrid", "bm25"]),
        "tool-changes" => same(["warn", "allow", "block"]),
        "quarantine" => [["1", "true"], ["false", "false"], ["true", "true"]],
        "tools" => [["python", "python"], ["files,code", "code,files"], ["all", "all"]],
        "output" => same(["toon", "json", "compact"]),
        "idle-timeout" => [["1h", "3600s"], ["90s", "90s"], ["2m", "120s"]],
        "max-sessions" => same(["1", "2", "3"]),
        "warm" => same(["0", "auto", "100000"]),
        "preload" => same(["numpy", "os.path", "no module"]),
        "allow-mount" => [["a", "[DIR]/a"], ["b:rw", "[DIR]/b:rw"], ["c", "[DIR]/c"]],
        "start-timeout" => [["1m30s", "90s"], ["20", "20s"], ["10m", "600s"]],
        "state-dir" => [["a", "[DIR]/a"], ["b", "[DIR]/b"], ["/c", "/c"]],
        "log-level" => same(["off", "debug", "warn"]),
        "log-format" => same(["json", "text", "json"]),
        "http" => [[":8765", "127.0.0.1:8765"], ["[::1]:0", "[::1]:0"], ["10.0.0.1:80", "10.0.0.1:80"]],
        "auth" => same(["none", "token", "none"]),
        "token-file" => [["a", "[DIR]/a"], ["b/c", "[DIR]/b/c"], ["/c", "/c"]],
        "allow-host" => [["A.example", "a.example"], ["b:81", "b:81"], ["[::1]", "[::1]"]],
        "allow-origin" => [["https://a:443", "https://a"], ["http://b:81", "http://b:81"], ["http://c", "http://c"]],
        "max-connections" => same(["1", "2", "3"]),
        "rate-limit" => same(["1", "2", "3"]),
        "input-timeout" => [["1m30s", "90s"], ["20", "20s"], ["10m", "600s"]],
        "secrets-helper" => [["a b", "a b"], [" /c 'd e'", "/c 'd e'"], ["f", "f"]],
        "registry" => {
            [["https://a.example", "https://a.example"], ["none", "none"], ["http://[::1]:1/b/", "http://[::1]:1/b"]]
        }
        "isolate-upstreams" => [["1", "true"], ["false", "false"], ["true", "true"]],
        "allow-requests" => [["1", "true"], ["false", "false"], ["true", "true"]],
        _ => panic!("`{key}` has no samples"),
    }
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let base = ConfigFixture::new();
    for setting in SETTINGS {
        let [flag, env, file] = samples(setting.key);
        let line = match setting.kind.is_list() {
            false => format!("\n{} = \"{}\"\n", setting.key, file[0]),
            true => format!("\n{} = [\"{}\"]\n", setting.key, file[0]),
        };
        let check = |place: ConfigFixture, value: Option<&str>, origin: &str| {
            let config = place.load().unwrap();
            let values: Vec<String> = setting.show(&config).iter().map(|text| place.shown(text)).collect();
            assert_eq!(values, value.into_iter().collect::<Vec<_>>(), "{}", setting.key);
            assert_eq!(place.shown(&config.origin(setting).to_string()), origin, "{}", setting.key);
            for other in SETTINGS.iter().filter(|other| other.key != setting.key) {
                assert_eq!(*config.origin(other), SettingOrigin::Default, "{}", other.key);
            }
        };
        let from_file = "file [DIR]/home/.config/cove/cove.toml line 2";
        let default = match setting.kind {
            // Shown in seconds, as every duration is.
            SettingKind::WithDefault("30m") => Some("1800s"),
            SettingKind::WithDefault(text) => Some(text),
            // Depends on the machine.
            SettingKind::Optional(_) if setting.key == "state-dir" => Some("[DIR]/home/.local/state/cove"),
            SettingKind::Optional(_) | SettingKind::List(_) => None,
        };
        check(base.fresh(), default, "default");
        check(base.fresh().env(setting.env, ""), default, "default");
        check(base.fresh().file(&line), Some(file[1]), from_file);
        check(base.fresh().file(&line).env(setting.env, ""), Some(file[1]), from_file);
        let from_env = format!("environment {}", setting.env);
        check(base.fresh().file(&line).env(setting.env, env[0]), Some(env[1]), &from_env);
        let all = base.fresh().file(&line).env(setting.env, env[0]).flag(setting.key, flag[0]);
        check(all, Some(flag[1]), &format!("flag {}", setting.flag));
    }
}

#[test]
fn defaults_are_what_the_design_says() {
    let config = ConfigFixture::new().load().unwrap();
    let mib = 1024 * 1024;
    let limits = SandboxLimits { memory: 512 * mib, cpus: 1.0, pids: 256, workspace: 256 * mib, tmp: 64 * mib };
    let user = SandboxUser { uid: 65534, gid: 65534 };
    let (root, network) = (SandboxRoot::Host, SandboxNetwork::None);
    assert_eq!(
        config.policy,
        Policy {
            image: None,
            root,
            python: None,
            mounts: Vec::new(),
            packages: Default::default(),
            network,
            proxy_door: false,
            door_names: Vec::new(),
            runtime: None,
            user,
            limits,
            readiness: SessionReadiness { warm: WarmTarget::Adapted, preload: Vec::new() },
        }
    );
    let seconds = Duration::from_secs;
    let [timeout, max_timeout, grace] = [seconds(30), seconds(120), seconds(1)];
    assert_eq!(config.cell, CellLimits { timeout, max_timeout, grace, max_output: OutputLimit::Tokens(6000) });
    assert_eq!(config.backend, BackendChoice::Auto);
}

#[test]
fn lists_are_replaced_not_joined() {
    let place = ConfigFixture::new().file("mount = [\"a:/a\"]\n").env("COVE_MOUNT", "b:/b;c:/c;");
    let targets: Vec<_> = place.load().unwrap().policy.mounts.into_iter().map(|mount| mount.target).collect();
    assert_eq!(targets, [Path::new("/b"), Path::new("/c")]);
}

#[test]
fn which_file() {
    let memory = |place: &ConfigFixture| place.load().unwrap().policy.limits.memory >> 20;
    let place = ConfigFixture::new().file("memory = '100m'\n");
    let write = |path: &str, text: &str| fs::write(place.process_env.cwd.join(path), text).unwrap();
    write("named.toml", "memory = '200m'\n");
    fs::create_dir_all(place.process_env.cwd.join("xdg/cove")).unwrap();
    write("xdg/cove/cove.toml", "memory = '300m'\n");
    let xdg = place.process_env.cwd.join("xdg").to_str().unwrap().to_owned();
    assert_eq!(memory(&place), 100);
    let place = place.env("XDG_CONFIG_HOME", "relative");
    assert_eq!(memory(&place), 100);
    let place = place.env("XDG_CONFIG_HOME", &xdg);
    assert_eq!(memory(&place), 300);
    let place = place.env("COVE_CONFIG", "named.toml");
    assert_eq!(memory(&place), 200);
    let mut place = place;
    place.flags.config = Some("/dev/null".to_owned());
    assert_eq!(memory(&place), 512);
    assert_eq!(memory(&ConfigFixture::new().env("HOME", "/dev/null")), 512);
    assert_eq!(memory(&ConfigFixture::new().env("HOME", "")), 512);
}

#[test]
fn paths_of_python() {
    let python = |place: ConfigFixture| {
        let config = place.load().unwrap();
        place.shown(&config.policy.python.unwrap().to_string_lossy())
    };
    // The link itself, not where it leads.
    assert_eq!(python(ConfigFixture::new().flag("python", "./venv-python")), "[DIR]/venv-python");
    assert_eq!(
        python(ConfigFixture::new().flag("python", "/usr/bin/nothing").flag("rootfs", "tree1")),
        "/usr/bin/nothing"
    );
}

#[test]
fn refused_paths() {
    let base = ConfigFixture::new();
    let cases = [
        ("rootfs", "/", "`/` is this machine's own root"),
        ("rootfs", "missing", "`missing` does not exist"),
        ("rootfs", "plain", "`plain` is not a directory"),
        ("rootfs", "", "it is empty"),
        ("rootfs", "empty", "`empty` has neither `usr` nor `bin`"),
        ("rootfs", "home", "`home` is a home directory"),
        ("python", "missing", "`missing` does not exist"),
        ("python", "plain", "`plain` is not executable"),
        ("python", "tree1", "`tree1` is a directory without `bin/python`"),
        ("python", "", "it is empty"),
    ];
    for (key, value, cause) in cases {
        let report = base.fresh().flag(key, value).refused();
        assert!(report.contains(&format!("caused by: {cause}\nhint: ")), "{report}");
    }
    for python in ["python3", "/usr/../python3"] {
        let report = base.fresh().flag("rootfs", "tree1").flag("python", python).refused();
        assert!(report.contains("hint: write its path inside `[DIR]/tree1`"), "{report}");
    }
}

#[test]
fn messages() {
    let base = ConfigFixture::new();
    let refused = |place: ConfigFixture| place.refused();
    assert_snapshot!(refused(base.fresh().flag("memory", "lots")), @"
    could not read `--memory lots`
    caused by: `lots` is not a size
    hint: write a number with a unit, such as `512m` or `2g` (at least `16m`)
    ");
    assert_snapshot!(refused(base.fresh().env("COVE_MEMORY", "8m")), @"
    could not read `COVE_MEMORY=8m`
    caused by: `8m` is too small
    hint: write a number with a unit, such as `512m` or `2g` (at least `16m`)
    ");
    assert_snapshot!(refused(base.fresh().file("# mine\n\nmemory = \"99999999999g\"\n")), @r#"
    could not read `memory = "99999999999g"` in `[DIR]/home/.config/cove/cove.toml`, line 3
    caused by: `99999999999g` is too large
    hint: write a number with a unit, such as `512m` or `2g` (at most `1024t`)
    "#);
    assert_snapshot!(refused(base.fresh().file("memory = true\n")), @r#"
    could not read `memory = true` in `[DIR]/home/.config/cove/cove.toml`, line 1
    caused by: `memory` cannot be a boolean
    hint: write `memory = "512m"`
    "#);
    assert_snapshot!(refused(base.fresh().file("pull = true\nmemroy = true\n")), @"
    could not read `memroy` in `[DIR]/home/.config/cove/cove.toml`, line 2
    caused by: `memroy` is not a setting
    hint: did you mean `memory`?
    ");
    assert_snapshot!(refused(base.fresh().file("cpus = 0.0\n")), @"
    could not read `cpus = 0.0` in `[DIR]/home/.config/cove/cove.toml`, line 1
    caused by: `0.0` is out of range
    hint: write a number from `0.01` to `1024`, such as `0.5` or `2`
    ");
    assert_snapshot!(refused(base.fresh().file("timeout = 1\nmemroy = \"1g\"\n")), @"
    could not read `memroy` in `[DIR]/home/.config/cove/cove.toml`, line 2
    caused by: `memroy` is not a setting
    hint: did you mean `memory`?
    ");
    assert_snapshot!(refused(base.fresh().file("[limits]\nmemory = \"1g\"\n")), @"
    could not read `limits` in `[DIR]/home/.config/cove/cove.toml`, line 1
    caused by: `limits` is not a setting
    hint: known keys are `backend`, `network`, `allow-net`, `no-net`, `runtime`, `image`, `image-dir`, `pull`, `allow-compose`, `memory`, `cpus`, `pids-limit`, `user`, `timeout`, `max-timeout`, `max-output`, `workspace-size`, `tmp-size`, `rootfs`, `python`, `packages`, `node-packages`, `mount`, `workspace`, `allow-mount`, `allow-call`, `deny-call`, `start-timeout`, `search`, `tool-changes`, `quarantine`, `state-dir`, `tools`, `output`, `idle-timeout`, `max-sessions`, `warm`, `preload`, `log-level`, `log-format`, `http`, `auth`, `token-file`, `allow-host`, `allow-origin`, `max-connections`, `rate-limit`, `input-timeout`, `secrets-helper`, `registry`, `allow-requests`, `isolate-upstreams`
    ");
    assert_snapshot!(refused(base.fresh().file("memory = 1g\n")), @r#"
    could not read the configuration file `[DIR]/home/.config/cove/cove.toml`
    caused by: line 1: string values must be quoted, expected literal string
    hint: the file is TOML, with lines such as `memory = "512m"`
    "#);
    assert_snapshot!(refused(base.fresh().file("memory = \"1g\"\nmemory = \"2g\"\n")), @r#"
    could not read the configuration file `[DIR]/home/.config/cove/cove.toml`
    caused by: line 2: duplicate key
    hint: the file is TOML, with lines such as `memory = "512m"`
    "#);
    assert_snapshot!(refused(base.fresh().file("python = \"/usr\\u0000/x\"\n")), @r#"
    could not read `python = "/usr\u0000/x"` in `[DIR]/home/.config/cove/cove.toml`, line 1
    caused by: it has a NUL byte
    hint: leave the NUL byte out
    "#);
    assert_snapshot!(refused(base.fresh().file("mount = \"a:/a\"\n")), @r#"
    could not read `mount = "a:/a"` in `[DIR]/home/.config/cove/cove.toml`, line 1
    caused by: `mount` cannot be a string
    hint: write `mount = ["SOURCE:TARGET[:rw]"]`
    "#);
    assert_snapshot!(refused(base.fresh().file("mount = [\n  \"a:/a\",\n  \"/etc/ssl:/ssl\",\n]\n")), @r#"
    could not read `mount = "/etc/ssl:/ssl"` in `[DIR]/home/.config/cove/cove.toml`, line 3
    caused by: `/etc/ssl` is in `/etc`, which belongs to this machine's system
    hint: copy what the code needs to a directory of its own and mount that
    "#);
    assert_snapshot!(refused(base.fresh().flag("mount", "home/.config/cove:/x")), @"
    could not read `--mount home/.config/cove:/x`
    caused by: `home/.config/cove` is in `[DIR]/home/.config`, which may hold credentials
    hint: copy what the code needs to a directory of its own and mount that
    ");
    assert_snapshot!(refused(base.fresh().env("COVE_MOUNT", "a:/a;b:/workspace")), @"
    could not read `COVE_MOUNT=b:/workspace`
    caused by: `/workspace` is the sandbox's own workspace
    hint: choose a place of its own, such as `/data`, `/mnt/data` or `/workspace/data`
    ");
    assert_snapshot!(refused(base.fresh().env("COVE_CONFIG", "nowhere.toml")), @"
    could not read the configuration file `[DIR]/nowhere.toml`
    caused by: it does not exist
    hint: name a file that exists with `--config` or `COVE_CONFIG`, or leave both out
    ");
    assert_snapshot!(refused(base.fresh().env("COVE_USER", "0:0")), @"
    could not read `COVE_USER=0:0`
    caused by: code never runs as root
    hint: write `UID:GID` with numbers from `1` to `4294967294`, such as `65534:65534`
    ");
    assert_snapshot!(refused(base.fresh().flag("backend", "lxc")), @"
    could not read `--backend lxc`
    caused by: `lxc` is not a backend
    hint: write `auto`, `jail`, `docker` or `podman`
    ");
    assert_snapshot!(refused(base.fresh().flag("warm", "many")), @"
    could not read `--warm many`
    caused by: `many` is not a number of sessions
    hint: write `auto`, or how many sessions to keep ready (0 to 64)
    ");
    assert_snapshot!(refused(base.fresh().flag("http", "localhost:8765")), @"
    could not read `--http localhost:8765`
    caused by: `localhost:8765` names a host
    hint: write its address: `127.0.0.1:8765` or `[::1]:8765`
    ");
    assert_snapshot!(refused(base.fresh().env("COVE_AUTH", "password")), @"
    could not read `COVE_AUTH=password`
    caused by: `password` is not a kind of authentication
    hint: write `token` or `none`
    ");
    assert_snapshot!(refused(base.fresh().file("allow-host = [\"*\"]\n")), @r#"
    could not read `allow-host = "*"` in `[DIR]/home/.config/cove/cove.toml`, line 1
    caused by: `*` is not a host
    hint: write it as clients send it in `Host`: `mcp.example.com`, or `mcp.example.com:8443` for one port
    "#);
    assert_snapshot!(refused(base.fresh().flag("allow-origin", "null")), @"
    could not read `--allow-origin null`
    caused by: `null` is not an origin
    hint: write scheme, host and an optional port, such as `https://app.example.com` or `http://10.0.0.5:3000`
    ");
    assert_snapshot!(refused(base.fresh().flag("token-file", "")), @"
    could not read `--token-file ''`
    caused by: it is empty
    hint: name a file
    ");
    assert_snapshot!(refused(base.fresh().flag("timeout", "5m")), @"
    could not use a `timeout` of `300s` with a `max-timeout` of `120s`
    caused by: `timeout` (flag --timeout) is longer than `max-timeout` (default)
    hint: set `timeout` to at most `120s`, or `max-timeout` to at least `300s`
    ");
    assert_snapshot!(refused(base.fresh().file("timeout = \"20s\"\nmax-timeout = 10\n")), @"
    could not use a `timeout` of `20s` with a `max-timeout` of `10s`
    caused by: `timeout` (file [DIR]/home/.config/cove/cove.toml line 1) is longer than `max-timeout` (file [DIR]/home/.config/cove/cove.toml line 2)
    hint: set `timeout` to at most `10s`, or `max-timeout` to at least `20s`
    ");
    assert_snapshot!(refused(base.fresh().flag("rootfs", "plain")), @"
    could not read `--rootfs plain`
    caused by: `plain` is not a directory
    hint: name a directory with the files of a Linux system, such as `/srv/debian`
    ");
}

#[test]
fn a_variable_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let mut place = ConfigFixture::new();
    place.process_env.env.insert("COVE_MEMORY".to_owned(), OsString::from_vec(vec![0xff]));
    assert_snapshot!(place.refused(), @"
    could not read `COVE_MEMORY=�`
    caused by: it is not valid UTF-8
    hint: write it as UTF-8 text
    ");
}

#[test]
fn warns_of_misspelled_variables_alone() {
    let place = ConfigFixture::new().env("COVE_MEMROY", "1g").env("COVE_MEMORY", "1g").env("COVE_JSON", "0");
    let place = place.env("COVE_DATABASE_PASSWORD", "x").env("COVE_TEST_JUDGES", "/x").env("MEMROY", "1g");
    assert_eq!(
        misspelled_variables(&place.process_env),
        ["`COVE_MEMROY` is not a variable of Cove; did you mean `COVE_MEMORY`?"]
    );
}
