//! Finds the engine's address and connects to it. Does nothing before a container is needed.

mod docker_context;
mod ssh_forward;
mod tls_files;
mod tunnel;

use cove_core::error::Failure;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker as Client};
use rustix::fs::Access;
use rustix::io::Errno;
use tokio::sync::Mutex;
use tokio::time::Instant;

use self::ssh_forward::{SshDestination, SshForward};
use self::tls_files::TlsFiles;
use self::tunnel::{EngineTunnel, OPEN_TIMEOUT, TunnelRoute};
use super::engine::{Engine, EngineFacts};
use super::{error_message, libpod};
use cove_core::process_env::ProcessEnv;
use cove_core::search_path::programs;

/// How long an engine may take to answer while Cove connects. A Podman with many containers that start and end took
/// more than 10 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request may wait for an answer, in seconds. Builds and pulls send progress, so they may take longer.
const REQUEST_TIMEOUT_SECONDS: u64 = 120;

const NOT_PODMAN_HINT: &str = "use the Docker that answers there with `--backend docker`, or set `CONTAINER_HOST` to Podman's \
                          socket (`systemctl --user enable --now podman.socket` starts one)";

/// The hint for an engine that is expected to run but does not answer.
pub(super) const START_ENGINE_HINT: &str =
    "start it (`sudo systemctl start docker`, or `systemctl --user start podman.socket`), or correct the address";

/// An address where an engine may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineAddress {
    pub(super) url: String,
    /// The setting that names this address. `None` for a default socket, which is skipped silently if it does not
    /// exist.
    pub(super) configured_by: Option<String>,
    /// The certificates for a connection with TLS. Without them a `tcp://` address is unencrypted.
    tls: Option<TlsFiles>,
    /// Why Cove refuses to connect to it.
    refusal: Option<ConnectRefusal>,
}

/// Why Cove did not reach an engine at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConnectRefusal {
    reason: String,
    /// A hint for this case, in place of the general one.
    hint: Option<String>,
}

impl ConnectRefusal {
    fn with_hint(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { reason: why.into(), hint: Some(hint.into()) }
    }
}

impl From<String> for ConnectRefusal {
    fn from(why: String) -> Self {
        Self { reason: why, hint: None }
    }
}

impl EngineAddress {
    fn default_socket(path: PathBuf) -> Self {
        Self { url: format!("unix://{}", path.display()), configured_by: None, tls: None, refusal: None }
    }

    fn configured(url: &str, by: impl Into<String>) -> Self {
        Self { url: url.to_owned(), configured_by: Some(by.into()), tls: None, refusal: None }
    }

    fn with_refusal(self, refusal: ConnectRefusal) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    fn with_tls(self, tls: TlsFiles) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Returns true for a network address, where traffic can be read and changed on the way unless TLS protects it.
    fn is_tcp(&self) -> bool {
        self.url.starts_with("tcp://") || self.url.starts_with("http://")
    }

    /// Returns true if a tunnel carries the connections to this address.
    fn needs_tunnel(&self) -> bool {
        self.tls.is_some() || self.url.starts_with("ssh://")
    }

    /// Returns the route of that tunnel, which may use a private folder.
    fn route(&self, folder: &Path, env: &ProcessEnv) -> Result<TunnelRoute, String> {
        if let Some(tls) = &self.tls {
            return tls.route(&self.url).map(TunnelRoute::Tls);
        }
        let destination = SshDestination::parse(&self.url)?;
        let program = programs("ssh", &env.env.get("PATH").cloned().unwrap_or_default()).next();
        let program = program.ok_or("the program `ssh` is missing: install `openssh-client`")?;
        // Podman's own variable for a key that ssh does not find itself.
        let identity = env_text(env, "CONTAINER_SSHKEY").map(|key| env.absolute_path(key));
        Ok(TunnelRoute::Ssh(Box::new(SshForward::new(destination, program, identity, folder))))
    }

    fn path(&self) -> Option<&Path> {
        self.url.strip_prefix("unix://").map(Path::new)
    }

    fn is_permission_denied(&self) -> bool {
        let wanted = Access::READ_OK | Access::WRITE_OK;
        self.path().is_some_and(|path| rustix::fs::access(path, wanted) == Err(Errno::ACCESS))
    }

    /// Returns the hint for a socket that this user may not open. If the operator chose no engine, its path decides
    /// which.
    fn permission_hint(&self, wanted: Option<Engine>) -> &'static str {
        if wanted == Some(Engine::Podman) || wanted.is_none() && self.url.contains("podman") {
            "you may not use that socket: use a Podman of your own (`systemctl --user enable --now podman.socket`, \
             without `CONTAINER_HOST`), or start Cove as the user whose it is"
        } else {
            "you may not use that socket: `sudo usermod -aG docker $USER` and log in again (a user who may use it is as \
             good as root; in a container `--group-add`), or use rootless Podman"
        }
    }
}

/// A working connection and the facts of its engine.
pub(super) struct EngineConnection {
    pub(super) client: Client,
    pub(super) facts: EngineFacts,
    /// Carries the client's connections, if the engine is on another machine.
    _tunnel: Option<EngineTunnel>,
}

/// Returns the addresses to try, in order; Docker's first if the operator chose no engine. A configured address replaces
/// the default ones.
pub(super) fn addresses(wanted: Option<Engine>, env: &ProcessEnv) -> Vec<EngineAddress> {
    let docker = || match docker_context::docker_address(env) {
        Some(named) => vec![named],
        None => docker_default_addresses(env),
    };
    let podman = || match env_text(env, "CONTAINER_HOST") {
        Some(url) => vec![EngineAddress::configured(url, "CONTAINER_HOST")],
        None => podman_default_addresses(env),
    };
    match wanted {
        Some(Engine::Docker) => docker(),
        Some(Engine::Podman) => {
            let mut all = podman();
            // Users who have only Podman often set `DOCKER_HOST` to its socket.
            if all.iter().all(|address| address.configured_by.is_none()) {
                all.extend(docker_context::docker_address(env));
            }
            all
        }
        None => {
            let docker = docker();
            // If the operator configured an address, no other engine is tried.
            let meant = docker.iter().any(|address| address.configured_by.is_some());
            if meant { docker } else { docker.into_iter().chain(podman()).collect() }
        }
    }
}

/// Returns true if an engine may be there. A sweep asks this first: without an engine there are no leftovers.
pub fn may_have_engine(wanted: Option<Engine>, env: &ProcessEnv) -> bool {
    addresses(wanted, env).iter().any(|address| address.path().is_none_or(Path::exists))
}

fn docker_default_addresses(env: &ProcessEnv) -> Vec<EngineAddress> {
    let below_home =
        [".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock", ".rd/docker.sock"];
    let of_home = home_dir(env).into_iter().flat_map(|home| below_home.map(|path| home.join(path)));
    let of_user = env_text(env, "XDG_RUNTIME_DIR").map(|run| Path::new(run).join("docker.sock"));
    let all = [PathBuf::from("/var/run/docker.sock")].into_iter().chain(of_user).chain(of_home);
    all.map(EngineAddress::default_socket).collect()
}

fn podman_default_addresses(env: &ProcessEnv) -> Vec<EngineAddress> {
    let run = env_text(env, "XDG_RUNTIME_DIR").map(PathBuf::from);
    let run = run.unwrap_or_else(|| format!("/run/user/{}", rustix::process::getuid().as_raw()).into());
    [run.join("podman/podman.sock"), "/run/podman/podman.sock".into()].map(EngineAddress::default_socket).into()
}

fn env_text<'a>(env: &'a ProcessEnv, name: &str) -> Option<&'a str> {
    env.env.get(name)?.to_str().filter(|text| !text.is_empty())
}

fn home_dir(env: &ProcessEnv) -> Option<PathBuf> {
    env_text(env, "HOME").map(PathBuf::from)
}

/// Connects to the engine. Remembers a failure for a moment: callers that waited for the lock meanwhile get the same
/// failure and do not wait for another timeout.
#[derive(Default)]
pub(super) struct EngineConnector {
    last_failure: Mutex<Option<(Instant, Failure)>>,
}

impl EngineConnector {
    /// Returns a connection to the first engine that answers. Fails if none does.
    pub(super) async fn connect(&self, wanted: Option<Engine>, env: &ProcessEnv) -> Result<EngineConnection, Failure> {
        const REMEMBER_FAILURE_FOR: Duration = Duration::from_secs(1);
        let mut unreached = self.last_failure.lock().await;
        if let Some((at, error)) = unreached.as_ref()
            && at.elapsed() < REMEMBER_FAILURE_FOR
        {
            return Err(error.duplicate());
        }
        let connected = connect(wanted, env).await;
        *unreached = connected.as_ref().err().map(|error| (Instant::now(), error.duplicate()));
        connected
    }
}

/// Returns a connection to the first engine that answers. The error names every address that was tried, and why it
/// failed.
async fn connect(wanted: Option<Engine>, env: &ProcessEnv) -> Result<EngineConnection, Failure> {
    let mut refusals = Vec::new();
    for address in addresses(wanted, env) {
        if address.configured_by.is_none() && address.path().is_some_and(|path| !path.exists()) {
            continue;
        }
        match try_address(&address, env).await {
            Ok(connected) if wanted == Some(Engine::Podman) && connected.facts.engine != Engine::Podman => {
                let why = "Docker answers there, not Podman";
                refusals.push((address, ConnectRefusal::with_hint(why, NOT_PODMAN_HINT)));
            }
            Ok(connected) => return Ok(connected),
            Err(refusal) => refusals.push((address, refusal)),
        }
    }
    Err(no_engine_error(wanted, &refusals, env))
}

async fn try_address(address: &EngineAddress, env: &ProcessEnv) -> Result<EngineConnection, ConnectRefusal> {
    if let Some(refusal) = &address.refusal {
        return Err(refusal.clone());
    }
    let tunnel = open_tunnel(address, env).await?;
    let endpoint = tunnel.as_ref().map_or_else(|| address.url.clone(), EngineTunnel::url);
    let client = open_client(&endpoint)?;
    let identified = identify_engine(client, &address.url, endpoint);
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, identified).await;
    let (client, facts) = answered.map_err(|_| silence_reason(ANSWER_TIMEOUT))??;
    Ok(EngineConnection { client, facts, _tunnel: tunnel })
}

fn silence_reason(waited: Duration) -> String {
    format!("it did not answer within {} s", waited.as_secs())
}

/// Opens the tunnel to an address that needs one.
async fn open_tunnel(address: &EngineAddress, env: &ProcessEnv) -> Result<Option<EngineTunnel>, ConnectRefusal> {
    if !address.needs_tunnel() {
        return Ok(None);
    }
    let opened = EngineTunnel::open(|folder| address.route(folder, env));
    let opened = tokio::time::timeout(OPEN_TIMEOUT, opened).await.unwrap_or_else(|_| Err(silence_reason(OPEN_TIMEOUT)));
    let hint = match address.tls {
        Some(_) => "check the address and its certificates: `docker version` with the same settings says more",
        None => {
            "try the same command in a terminal: it must end without a question, so the key must be in the agent and \
             the host in `known_hosts`"
        }
    };
    opened.map(Some).map_err(|why| ConnectRefusal::with_hint(why, hint))
}

/// Asks the engine for its name, its version and its facts. Fails with the engine's error message.
async fn identify_engine(client: Client, url: &str, endpoint: String) -> Result<(Client, EngineFacts), String> {
    let answers = async {
        let client = client.negotiate_version().await?;
        let (version, info) = tokio::try_join!(client.version(), client.info())?;
        Ok::<_, bollard::errors::Error>((client, version, info))
    };
    let (client, version, info) = answers.await.map_err(|error| error_message(&error))?;
    let mut facts = EngineFacts::from_info(url, &version, &info);
    facts.endpoint = endpoint;
    if facts.engine == Engine::Podman {
        facts.add_podman_facts(libpod::fetch_facts(&facts.endpoint).await?);
    }
    Ok((client, facts))
}

fn open_client(endpoint: &str) -> Result<Client, String> {
    let made = if let Some(path) = endpoint.strip_prefix("unix://") {
        Client::connect_with_unix(path, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else if endpoint.starts_with("tcp://") || endpoint.starts_with("http://") {
        Client::connect_with_http(endpoint, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else {
        return Err("only `unix://`, `tcp://` and `ssh://` addresses are understood".to_owned());
    };
    made.map_err(|error| error_message(&error))
}

/// What to do if no engine listens: start what is installed, or install one.
fn absent_engine_hint(wanted: Option<Engine>, env: &ProcessEnv) -> String {
    let search_path = env.env.get("PATH").cloned().unwrap_or_default();
    let is_installed = |name: &str| programs(name, &search_path).next().is_some();
    let (sudo, user) = if rustix::process::geteuid().is_root() { ("", "") } else { ("sudo ", " --user") };
    let docker = match is_installed("dockerd") || is_installed("docker") {
        true => format!("start Docker (`{sudo}systemctl start docker`)"),
        false => format!("install Docker (`{sudo}apt install docker.io`)"),
    };
    let podman = match is_installed("podman") {
        true => format!("start Podman's socket (`systemctl{user} enable --now podman.socket`)"),
        false => format!("install Podman and start its socket (`systemctl{user} enable --now podman.socket`)"),
    };
    match wanted {
        Some(Engine::Docker) => format!("{docker}, or set `DOCKER_HOST`; where there is Podman, `--backend podman`"),
        Some(Engine::Podman) => format!("{podman}, or set `CONTAINER_HOST`"),
        None => format!("{docker} or {podman}, or set `DOCKER_HOST`"),
    }
}

fn no_engine_error(wanted: Option<Engine>, refusals: &[(EngineAddress, ConnectRefusal)], env: &ProcessEnv) -> Failure {
    let error = Failure::operator(format!(
        "could not reach {}",
        wanted.map_or("Docker or Podman", |engine| engine.traits().name)
    ));
    if refusals.is_empty() {
        let hint = absent_engine_hint(wanted, env);
        return error.because("nothing listens at any of the usual places").with_hint(hint);
    }
    let line = |(address, refusal): &(EngineAddress, ConnectRefusal)| match &address.configured_by {
        Some(by) if address.url.is_empty() => format!("{by}: {}", refusal.reason),
        Some(by) => format!("`{}` ({by}): {}", address.url, refusal.reason),
        None => format!("`{}`: {}", address.url, refusal.reason),
    };
    let cause = refusals.iter().map(line).collect::<Vec<_>>().join("; ");
    // The hint of a configured address comes first.
    let named = refusals.iter().filter(|(address, _)| address.configured_by.is_some());
    let of_its_own = named.chain(refusals).find_map(|(_, refusal)| refusal.hint.clone());
    let closed = refusals.iter().map(|(address, _)| address).find(|address| address.is_permission_denied());
    let general = closed.map_or(START_ENGINE_HINT, |address| address.permission_hint(wanted));
    error.because(cause).with_hint(of_its_own.unwrap_or_else(|| general.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn env(vars: &[(&str, &str)]) -> ProcessEnv {
        let env = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        ProcessEnv { env, cwd: "/".into(), stdin_is_terminal: false }
    }

    fn urls(wanted: Option<Engine>, vars: &[(&str, &str)]) -> Vec<String> {
        addresses(wanted, &env(vars)).into_iter().map(|address| address.url).collect()
    }

    #[test]
    fn honours_configured_engine_addresses() {
        let named = [("DOCKER_HOST", "tcp://10.0.0.1:2375"), ("HOME", "/h")];
        assert_eq!(urls(Some(Engine::Docker), &named), ["tcp://10.0.0.1:2375"]);
        assert_eq!(urls(None, &named), ["tcp://10.0.0.1:2375"]);
        let podman = urls(Some(Engine::Podman), &[("DOCKER_HOST", "unix:///d"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(podman, ["unix:///r/podman/podman.sock", "unix:///run/podman/podman.sock", "unix:///d"]);
        assert_eq!(
            urls(Some(Engine::Podman), &[("CONTAINER_HOST", "unix:///p"), ("DOCKER_HOST", "unix:///d")]),
            ["unix:///p"]
        );
    }

    #[test]
    fn hint_starts_an_engine_that_is_installed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let docker = folder.path().join("docker");
        let hint = || absent_engine_hint(None, &env(&[("PATH", folder.path().to_str().unwrap())]));
        assert!(hint().starts_with("install Docker ("), "{}", hint());
        std::fs::write(&docker, "").unwrap();
        std::fs::set_permissions(&docker, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(hint().starts_with("start Docker (") && hint().contains("install Podman and start"), "{}", hint());
        assert_eq!(hint().contains("--user"), !rustix::process::geteuid().is_root());
    }

    #[test]
    fn tries_default_sockets_in_order() {
        let all = urls(None, &[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(
            all[..3],
            ["unix:///var/run/docker.sock", "unix:///r/docker.sock", "unix:///h/.docker/run/docker.sock"]
        );
        assert_eq!(all.last().unwrap(), "unix:///run/podman/podman.sock");
    }

    #[tokio::test]
    async fn names_unreachable_engines_with_a_hint() {
        let vars = env(&[("DOCKER_HOST", "unix:///nowhere/docker.sock")]);
        let error = connect(None, &vars).await.err().unwrap();
        assert_eq!(error.message, "could not reach Docker or Podman");
        let cause = error.cause.unwrap().to_string();
        assert!(cause.starts_with("`unix:///nowhere/docker.sock` (DOCKER_HOST): "), "{cause}");
        assert!(error.hint.unwrap().contains("systemctl"));
    }

    #[tokio::test]
    async fn refused_addresses_are_not_tried_and_give_their_hint() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        for wanted in [None, Some(Engine::Docker), Some(Engine::Podman)] {
            let vars = env(&[("DOCKER_HOST", &url), ("DOCKER_TLS", "1"), ("XDG_RUNTIME_DIR", "/none")]);
            let error = connect(wanted, &vars).await.err().unwrap();
            let cause = error.cause.unwrap().to_string();
            assert!(cause.contains(&format!("`{url}` (DOCKER_HOST): `DOCKER_TLS` asks for TLS")), "{cause}");
            assert!(error.hint.unwrap().contains("`DOCKER_TLS_VERIFY=1`"));
        }
        assert!(listener.accept().is_err(), "no client connected");
        let missing = env(&[("DOCKER_CONFIG", "/nowhere"), ("DOCKER_CONTEXT", "nope")]);
        let error = connect(Some(Engine::Docker), &missing).await.err().unwrap();
        assert_eq!(
            error.cause.unwrap().to_string(),
            "Docker's context `nope`: there is no such context in `/nowhere/contexts/meta`"
        );
        assert!(error.hint.unwrap().contains("docker context ls"));
    }

    /// Several callers wait only once for a socket that never answers.
    #[tokio::test(start_paused = true)]
    async fn waits_once_for_an_engine_that_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("silent.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let vars = env(&[("DOCKER_HOST", &format!("unix://{}", path.display()))]);
        let (connecting, begun) = (EngineConnector::default(), Instant::now());
        for _ in 0..3 {
            let error = connecting.connect(Some(Engine::Docker), &vars).await.err().unwrap();
            assert!(error.cause.unwrap().to_string().ends_with("it did not answer within 30 s"));
            assert!(error.hint.unwrap().contains("systemctl"));
        }
        assert!(begun.elapsed() < ANSWER_TIMEOUT + Duration::from_secs(1), "{:?}", begun.elapsed());
        // After a while the connector tries again.
        tokio::time::sleep(Duration::from_secs(2)).await;
        connecting.connect(Some(Engine::Docker), &vars).await.err().unwrap();
        assert!(begun.elapsed() >= ANSWER_TIMEOUT * 2, "{:?}", begun.elapsed());
    }
}
