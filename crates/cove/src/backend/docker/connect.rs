//! Where Docker or Podman listens, and the connection to it. Nothing is looked for before a container is wanted.

mod named;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker as Client};
use rustix::fs::Access;
use rustix::io::Errno;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::facts::{Facts, Maker};
use super::{libpod, said};
use crate::backend::StartError;
use crate::config::Surroundings;

/// How long one that listens may take to answer at all.
const ANSWER: Duration = Duration::from_secs(10);
/// How long any request may take to be answered, in seconds; building and fetching send as they go.
const REQUEST: u64 = 120;

const NOT_PODMAN: &str = "use the Docker that answers there with `--backend docker`, or set `CONTAINER_HOST` to Podman's \
                          socket (`systemctl --user enable --now podman.socket` starts one)";

/// Which of the two the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Whichever is there, Docker first.
    Any,
    Docker,
    Podman,
}

impl Wanted {
    fn name(self) -> &'static str {
        match self {
            Self::Any => "Docker or Podman",
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// For who is sure that there is one.
pub(super) const START_IT: &str = "start it (`sudo systemctl start docker`, or `systemctl --user start podman.socket`), or correct the address";

/// A place where one may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) url: String,
    /// Who says so, when somebody does; a usual place is passed over in silence when nothing is there.
    pub(super) named_by: Option<String>,
    /// Why it is not even tried.
    refused: Option<Refusal>,
}

/// Why nobody was reached at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    why: String,
    /// What to do about it, where it is not what is always done.
    hint: Option<String>,
}

impl Refusal {
    fn with(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: Some(hint.into()) }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, hint: None }
    }
}

impl Address {
    fn usual(path: impl AsRef<Path>) -> Self {
        Self { url: format!("unix://{}", path.as_ref().display()), named_by: None, refused: None }
    }

    fn named(url: &str, by: impl Into<String>) -> Self {
        Self { url: url.to_owned(), named_by: Some(by.into()), refused: None }
    }

    fn refused(self, refusal: Refusal) -> Self {
        Self { refused: Some(refusal), ..self }
    }

    /// Over a network, where anybody between could read and change what is said.
    fn is_in_the_clear(&self) -> bool {
        self.url.starts_with("tcp://") || self.url.starts_with("http://")
    }

    fn path(&self) -> Option<&Path> {
        self.url.strip_prefix("unix://").map(Path::new)
    }

    fn is_closed_to_us(&self) -> bool {
        let wanted = Access::READ_OK | Access::WRITE_OK;
        self.path().is_some_and(|path| rustix::fs::access(path, wanted) == Err(Errno::ACCESS))
    }

    /// For who may not use it; whoever wanted either has only its name to go by.
    fn way_in(&self, wanted: Wanted) -> &'static str {
        if wanted == Wanted::Podman || wanted == Wanted::Any && self.url.contains("podman") {
            "you may not use that socket: use a Podman of your own (`systemctl --user enable --now podman.socket`, \
             without `CONTAINER_HOST`), or start Cove as the user whose it is"
        } else {
            "you may not use that socket: `sudo usermod -aG docker $USER` and log in again (whoever may use it is as \
             good as root; in a container `--group-add`), or use rootless Podman"
        }
    }
}

/// A connection that works, and what it leads to.
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) facts: Facts,
}

/// In the order in which they are tried.
pub(super) fn addresses(wanted: Wanted, around: &Surroundings) -> Vec<Address> {
    let docker = || match named::docker(around) {
        Some(named) => vec![named],
        None => docker_usual(around),
    };
    let podman = || match text(around, "CONTAINER_HOST") {
        Some(url) => vec![Address::named(url, "CONTAINER_HOST")],
        None => podman_usual(around),
    };
    match wanted {
        Wanted::Docker => docker(),
        Wanted::Podman => {
            let mut all = podman();
            // Many who have only Podman point Docker's variable at it.
            if all.iter().all(|address| address.named_by.is_none()) {
                all.extend(named::docker(around));
            }
            all
        }
        Wanted::Any => {
            let docker = docker();
            // What is named is meant.
            let meant = docker.iter().any(|address| address.named_by.is_some());
            if meant { docker } else { docker.into_iter().chain(podman()).collect() }
        }
    }
}

/// Whether any is worth trying: asked before looking for leftovers that nobody may have made.
pub(crate) fn may_be_there(wanted: Wanted, around: &Surroundings) -> bool {
    addresses(wanted, around).iter().any(|address| address.path().is_none_or(Path::exists))
}

fn docker_usual(around: &Surroundings) -> Vec<Address> {
    let mut all = vec![Address::usual("/var/run/docker.sock")];
    all.extend(text(around, "XDG_RUNTIME_DIR").map(|run| Address::usual(Path::new(run).join("docker.sock"))));
    let below_home = [
        ".docker/run/docker.sock",
        ".docker/desktop/docker.sock",
        ".colima/default/docker.sock",
        ".rd/docker.sock",
    ];
    all.extend(
        home(around).into_iter().flat_map(|home| below_home.map(|path| Address::usual(home.join(path)))),
    );
    all
}

fn podman_usual(around: &Surroundings) -> Vec<Address> {
    let own = text(around, "XDG_RUNTIME_DIR").map(PathBuf::from);
    let uid = rustix::process::getuid().as_raw();
    let own = own.unwrap_or_else(|| PathBuf::from(format!("/run/user/{uid}")));
    vec![Address::usual(own.join("podman/podman.sock")), Address::usual("/run/podman/podman.sock")]
}

fn text<'a>(around: &'a Surroundings, name: &str) -> Option<&'a str> {
    around.env.get(name)?.to_str().filter(|text| !text.is_empty())
}

fn home(around: &Surroundings) -> Option<PathBuf> {
    text(around, "HOME").map(PathBuf::from)
}

/// Connects, and remembers for a moment whom it could not reach: who asks next, or has waited meanwhile, need not wait
/// for the same silence again.
#[derive(Default)]
pub(super) struct Connecting {
    unreached: Mutex<Option<(Instant, StartError)>>,
}

impl Connecting {
    pub(super) async fn connect(
        &self,
        wanted: Wanted,
        around: &Surroundings,
    ) -> Result<Connected, StartError> {
        const MOMENT: Duration = Duration::from_secs(1);
        let mut unreached = self.unreached.lock().await;
        if let Some((at, error)) = unreached.as_ref()
            && at.elapsed() < MOMENT
        {
            return Err(again(error));
        }
        let connected = connect(wanted, around).await;
        *unreached = connected.as_ref().err().map(|error| (Instant::now(), again(error)));
        connected
    }
}

fn again(error: &StartError) -> StartError {
    let StartError { message, cause, hint } = error;
    StartError {
        message: message.clone(),
        cause: cause.as_ref().map(|cause| cause.to_string().into()),
        hint: hint.clone(),
    }
}

/// The first that answers.
async fn connect(wanted: Wanted, around: &Surroundings) -> Result<Connected, StartError> {
    let mut refusals = Vec::new();
    for address in addresses(wanted, around) {
        if address.named_by.is_none() && address.path().is_some_and(|path| !path.exists()) {
            continue;
        }
        match try_one(&address).await {
            Ok(connected) if wanted == Wanted::Podman && connected.facts.maker != Maker::Podman => {
                let why = "Docker answers there, not Podman";
                refusals.push((address, Refusal::with(why, NOT_PODMAN)));
            }
            Ok(connected) => return Ok(connected),
            Err(refusal) => refusals.push((address, refusal)),
        }
    }
    Err(nobody(wanted, &refusals))
}

async fn try_one(address: &Address) -> Result<Connected, Refusal> {
    if let Some(refusal) = &address.refused {
        return Err(refusal.clone());
    }
    let client = client(address)?;
    let answered = tokio::time::timeout(ANSWER, ask(client, &address.url)).await;
    let silent = |_| format!("it did not answer within {} s", ANSWER.as_secs());
    Ok(answered.map_err(silent)??)
}

/// Who it is and what it can do.
async fn ask(client: Client, url: &str) -> Result<Connected, String> {
    let asked = async {
        let client = client.negotiate_version().await?;
        let (version, info) = tokio::try_join!(client.version(), client.info())?;
        Ok::<_, bollard::errors::Error>((client, version, info))
    };
    let (client, version, info) = asked.await.map_err(|error| said(&error))?;
    let mut facts = Facts::of(url, &version, &info);
    if facts.maker == Maker::Podman {
        facts.add(libpod::ask(url).await?);
    }
    Ok(Connected { client, facts })
}

fn client(address: &Address) -> Result<Client, String> {
    let made = if let Some(path) = address.url.strip_prefix("unix://") {
        Client::connect_with_unix(path, REQUEST, API_DEFAULT_VERSION)
    } else if address.is_in_the_clear() {
        Client::connect_with_http(&address.url, REQUEST, API_DEFAULT_VERSION)
    } else {
        return Err(
            "only `unix://` and unencrypted `tcp://` addresses are understood; for another machine forward its \
             socket: `ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`"
                .into(),
        );
    };
    made.map_err(|error| said(&error))
}

fn nobody(wanted: Wanted, refusals: &[(Address, Refusal)]) -> StartError {
    let error = StartError::new(format!("could not reach {}", wanted.name()));
    if refusals.is_empty() {
        let hint = match wanted {
            Wanted::Podman => {
                "install Podman and start its socket: `systemctl --user enable --now podman.socket`, or set `CONTAINER_HOST`"
            }
            Wanted::Docker => {
                "install Docker (`sudo apt install docker.io`) or set `DOCKER_HOST`; where there is Podman, `--backend podman`"
            }
            Wanted::Any => {
                "install Docker (`sudo apt install docker.io`) or start Podman's socket (`systemctl --user enable --now podman.socket`), or set `DOCKER_HOST`"
            }
        };
        return error.because("nothing listens at any of the usual places").with_hint(hint);
    }
    let lines: Vec<String> = refusals
        .iter()
        .map(|(address, Refusal { why, .. })| match &address.named_by {
            Some(by) if address.url.is_empty() => format!("{by}: {why}"),
            Some(by) => format!("`{}` ({by}): {why}", address.url),
            None => format!("`{}`: {why}", address.url),
        })
        .collect();
    let cause = lines.join("; ");
    // What is named is meant: what is wrong with that comes first.
    let named = refusals.iter().filter(|(address, _)| address.named_by.is_some());
    let of_its_own = named.chain(refusals).find_map(|(_, refusal)| refusal.hint.clone());
    let closed = refusals.iter().find(|(address, _)| address.is_closed_to_us()).map(|(address, _)| address);
    let hint =
        of_its_own.unwrap_or_else(|| closed.map_or(START_IT, |address| address.way_in(wanted)).to_owned());
    error.because(cause).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn around(vars: &[(&str, &str)]) -> Surroundings {
        let env = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        Surroundings { env, cwd: "/".into(), stdin_is_terminal: false }
    }

    fn urls(wanted: Wanted, vars: &[(&str, &str)]) -> Vec<String> {
        addresses(wanted, &around(vars)).into_iter().map(|address| address.url).collect()
    }

    #[test]
    fn what_is_named_is_meant() {
        let named = [("DOCKER_HOST", "tcp://10.0.0.1:2375"), ("HOME", "/h")];
        assert_eq!(urls(Wanted::Docker, &named), ["tcp://10.0.0.1:2375"]);
        assert_eq!(urls(Wanted::Any, &named), ["tcp://10.0.0.1:2375"]);
        let podman = urls(Wanted::Podman, &[("DOCKER_HOST", "unix:///d"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(podman, ["unix:///r/podman/podman.sock", "unix:///run/podman/podman.sock", "unix:///d"]);
        assert_eq!(
            urls(Wanted::Podman, &[("CONTAINER_HOST", "unix:///p"), ("DOCKER_HOST", "unix:///d")]),
            ["unix:///p"]
        );
    }

    #[test]
    fn usual_places_in_their_order() {
        let all = urls(Wanted::Any, &[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/r")]);
        assert_eq!(
            all[..3],
            ["unix:///var/run/docker.sock", "unix:///r/docker.sock", "unix:///h/.docker/run/docker.sock"]
        );
        assert_eq!(all.last().unwrap(), "unix:///run/podman/podman.sock");
    }

    #[tokio::test]
    async fn whoever_does_not_answer_is_named_with_what_to_do() {
        let around = around(&[("DOCKER_HOST", "unix:///nowhere/docker.sock")]);
        let error = connect(Wanted::Any, &around).await.err().unwrap();
        assert_eq!(error.message, "could not reach Docker or Podman");
        let cause = error.cause.unwrap().to_string();
        assert!(cause.starts_with("`unix:///nowhere/docker.sock` (DOCKER_HOST): "), "{cause}");
        assert!(error.hint.unwrap().contains("systemctl"));
    }

    #[tokio::test]
    async fn what_is_refused_by_itself_is_not_tried_and_has_its_own_hint() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        for wanted in [Wanted::Any, Wanted::Docker, Wanted::Podman] {
            let around =
                around(&[("DOCKER_HOST", &url), ("DOCKER_TLS_VERIFY", "1"), ("XDG_RUNTIME_DIR", "/none")]);
            let error = connect(wanted, &around).await.err().unwrap();
            let cause = error.cause.unwrap().to_string();
            assert!(
                cause.contains(&format!("`{url}` (DOCKER_HOST): `DOCKER_TLS_VERIFY` asks for TLS")),
                "{cause}"
            );
            assert!(error.hint.unwrap().contains("unset `DOCKER_TLS_VERIFY`"));
        }
        assert!(listener.accept().is_err(), "nobody came");
        let missing = around(&[("DOCKER_CONFIG", "/nowhere"), ("DOCKER_CONTEXT", "nope")]);
        let error = connect(Wanted::Docker, &missing).await.err().unwrap();
        assert_eq!(
            error.cause.unwrap().to_string(),
            "Docker's context `nope`: there is no such context in `/nowhere/contexts/meta`"
        );
        assert!(error.hint.unwrap().contains("docker context ls"));
    }

    /// A socket where nobody ever answers is waited for once, by whoever asks.
    #[tokio::test(start_paused = true)]
    async fn silence_is_waited_for_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("silent.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let around = around(&[("DOCKER_HOST", &format!("unix://{}", path.display()))]);
        let (connecting, begun) = (Connecting::default(), Instant::now());
        for _ in 0..3 {
            let error = connecting.connect(Wanted::Docker, &around).await.err().unwrap();
            assert!(error.cause.unwrap().to_string().ends_with("it did not answer within 10 s"));
            assert!(error.hint.unwrap().contains("systemctl"));
        }
        assert!(begun.elapsed() < ANSWER + Duration::from_secs(1), "{:?}", begun.elapsed());
        // Later it is tried again.
        tokio::time::sleep(Duration::from_secs(2)).await;
        connecting.connect(Wanted::Docker, &around).await.err().unwrap();
        assert!(begun.elapsed() >= ANSWER * 2, "{:?}", begun.elapsed());
    }
}
