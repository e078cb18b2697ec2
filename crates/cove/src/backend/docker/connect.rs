//! Where Docker or Podman listens, and the connection to it. Nothing is looked for before a container is wanted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker as Client};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::facts::{Facts, Maker};
use super::{libpod, said};
use crate::backend::StartError;
use crate::config::Surroundings;

/// How long one that listens may take to answer at all.
const ANSWER: Duration = Duration::from_secs(10);
/// How long any request may take to be answered, in seconds; building and fetching send as they go.
const REQUEST: u64 = 120;

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

/// A place where one may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) url: String,
    /// Who says so, when somebody does; a usual place is passed over in silence when nothing is there.
    pub(super) named_by: Option<String>,
}

impl Address {
    fn usual(path: impl AsRef<Path>) -> Self {
        Self { url: format!("unix://{}", path.as_ref().display()), named_by: None }
    }

    fn named(url: &str, by: impl Into<String>) -> Self {
        Self { url: url.to_owned(), named_by: Some(by.into()) }
    }

    fn path(&self) -> Option<&Path> {
        self.url.strip_prefix("unix://").map(Path::new)
    }
}

/// A connection that works, and what it leads to.
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) facts: Facts,
}

/// In the order in which they are tried.
pub(super) fn addresses(wanted: Wanted, around: &Surroundings) -> Vec<Address> {
    let docker = || match docker_named(around) {
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
                all.extend(docker_named(around));
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

fn docker_named(around: &Surroundings) -> Option<Address> {
    if let Some(url) = text(around, "DOCKER_HOST") {
        return Some(Address::named(url, "DOCKER_HOST"));
    }
    let folder = match text(around, "DOCKER_CONFIG") {
        Some(folder) => PathBuf::from(folder),
        None => home(around)?.join(".docker"),
    };
    let chosen = text(around, "DOCKER_CONTEXT").map(str::to_owned).or_else(|| {
        #[derive(Deserialize)]
        struct Settings {
            #[serde(rename = "currentContext")]
            current: Option<String>,
        }
        let settings = std::fs::read(folder.join("config.json")).ok()?;
        serde_json::from_slice::<Settings>(&settings).ok()?.current
    })?;
    if chosen == "default" || chosen.is_empty() {
        return None;
    }
    let url = stored_address(&folder, &chosen).unwrap_or_default();
    Some(Address::named(&url, format!("Docker's context `{chosen}`")))
}

/// Where a context of Docker's command line leads.
fn stored_address(folder: &Path, name: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Meta {
        #[serde(rename = "Endpoints")]
        endpoints: Endpoints,
    }
    #[derive(Deserialize)]
    struct Endpoints {
        docker: Endpoint,
    }
    #[derive(Deserialize)]
    struct Endpoint {
        #[serde(rename = "Host")]
        host: String,
    }
    let digest: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    let meta = std::fs::read(folder.join("contexts/meta").join(digest).join("meta.json")).ok()?;
    Some(serde_json::from_slice::<Meta>(&meta).ok()?.endpoints.docker.host)
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

/// The first that answers.
pub(super) async fn connect(wanted: Wanted, around: &Surroundings) -> Result<Connected, StartError> {
    let mut refusals = Vec::new();
    for address in addresses(wanted, around) {
        if address.named_by.is_none() && address.path().is_some_and(|path| !path.exists()) {
            continue;
        }
        match try_one(&address).await {
            Ok(connected) if wanted == Wanted::Podman && connected.facts.maker != Maker::Podman => {
                refusals.push((address, "Docker answers there, not Podman".to_owned()));
            }
            Ok(connected) => return Ok(connected),
            Err(why) => refusals.push((address, why)),
        }
    }
    Err(nobody(wanted, &refusals))
}

async fn try_one(address: &Address) -> Result<Connected, String> {
    let client = client(&address.url)?;
    let negotiated = tokio::time::timeout(ANSWER, async {
        let client = client.negotiate_version().await?;
        let (version, info) = tokio::try_join!(client.version(), client.info())?;
        Ok::<_, bollard::errors::Error>((client, version, info))
    });
    match negotiated.await {
        Ok(Ok((client, version, info))) => {
            let mut facts = Facts::of(&address.url, &version, &info);
            if facts.maker == Maker::Podman {
                let asked = tokio::time::timeout(ANSWER, libpod::ask(&address.url)).await;
                let told =
                    asked.map_err(|_| format!("it did not answer within {} s", ANSWER.as_secs()))??;
                (facts.rootless, facts.cgroup) = (told.rootless, told.cgroup);
            }
            Ok(Connected { client, facts })
        }
        Ok(Err(error)) => Err(said(&error)),
        Err(_) => Err(format!("it did not answer within {} s", ANSWER.as_secs())),
    }
}

fn client(url: &str) -> Result<Client, String> {
    let made = if let Some(path) = url.strip_prefix("unix://") {
        Client::connect_with_unix(path, REQUEST, API_DEFAULT_VERSION)
    } else if url.starts_with("tcp://") || url.starts_with("http://") {
        Client::connect_with_http(url, REQUEST, API_DEFAULT_VERSION)
    } else {
        return Err(
            "only `unix://` and unencrypted `tcp://` addresses are understood; for another machine forward its \
             socket: `ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`"
                .into(),
        );
    };
    made.map_err(|error| said(&error))
}

fn nobody(wanted: Wanted, refusals: &[(Address, String)]) -> StartError {
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
        .map(|(address, why)| match &address.named_by {
            Some(by) => format!("`{}` ({by}): {why}", address.url),
            None => format!("`{}`: {why}", address.url),
        })
        .collect();
    let cause = lines.join("; ");
    let hint = if cause.contains("ermission denied") {
        "you may not use that socket: `sudo usermod -aG docker $USER` and log in again (whoever may use it is as good as root; in a container `--group-add`), or use rootless Podman"
    } else {
        "start it (`sudo systemctl start docker`, or `systemctl --user start podman.socket`), or correct the address"
    };
    error.because(cause).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(vars: &[(&str, &str)]) -> Surroundings {
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

    #[test]
    fn a_context_of_docker_s_command_line_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let named: String = Sha256::digest("colima").iter().map(|byte| format!("{byte:02x}")).collect();
        let meta = folder.path().join("contexts/meta").join(named);
        std::fs::create_dir_all(&meta).unwrap();
        std::fs::write(
            meta.join("meta.json"),
            r#"{"Name":"colima","Endpoints":{"docker":{"Host":"unix:///c.sock"}}}"#,
        )
        .unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"currentContext":"colima"}"#).unwrap();
        let config = folder.path().to_str().unwrap();
        assert_eq!(urls(Wanted::Docker, &[("DOCKER_CONFIG", config)]), ["unix:///c.sock"]);
        let default = urls(Wanted::Docker, &[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "default")]);
        assert_eq!(default, ["unix:///var/run/docker.sock"]);
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
}
