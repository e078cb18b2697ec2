//! Where Docker's variables and the context of its command line say that it listens, and whether they ask for TLS, which
//! we do not speak: what was to be encrypted is not sent in the clear.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{Address, Refusal, home, text};
use crate::config::Surroundings;

const WITHOUT_TLS: &str = "forward the other machine's socket, `ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST`, and \
                           name it with `DOCKER_HOST=unix:///tmp/docker.sock`";

/// Nothing where nobody names one.
pub(super) fn docker(around: &Surroundings) -> Option<Address> {
    let named = match text(around, "DOCKER_HOST") {
        Some(url) => Address::named(url, "DOCKER_HOST"),
        None => of_stored(around)?,
    };
    let wants_tls = ["DOCKER_TLS_VERIFY", "DOCKER_TLS"].into_iter().find(|name| is_set(around, name));
    Some(match wants_tls {
        Some(variable) if named.refused.is_none() && named.is_in_the_clear() => {
            let hint = format!("{WITHOUT_TLS}; or unset `{variable}` if the network between is your own");
            named.refused(Refusal::with(format!("`{variable}` asks for TLS, {UNSPOKEN}"), hint))
        }
        _ => named,
    })
}

const UNSPOKEN: &str = "which Cove does not speak to engines";

/// Whatever is in it, as Docker's own command line takes it.
fn is_set(around: &Surroundings, name: &str) -> bool {
    around.env.get(name).is_some_and(|value| !value.is_empty())
}

/// The context that is chosen, unless it is the one that means the usual places.
fn of_stored(around: &Surroundings) -> Option<Address> {
    let folder = match text(around, "DOCKER_CONFIG") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => home(around).map(|home| home.join(".docker")),
    };
    let by_variable = text(around, "DOCKER_CONTEXT").map(str::to_owned);
    let chosen = by_variable.or_else(|| current(folder.as_deref()?))?;
    if chosen == "default" || chosen.is_empty() {
        return None;
    }
    let by = format!("Docker's context `{}`", crate::error::shown(&chosen));
    Some(match folder {
        Some(folder) => stored(&folder, &chosen, by),
        None => Address::named("", by).refused(Refusal::with(
            "neither `DOCKER_CONFIG` nor `HOME` says where contexts are kept",
            "set `DOCKER_HOST` instead",
        )),
    })
}

fn current(folder: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Settings {
        #[serde(rename = "currentContext")]
        current: Option<String>,
    }
    let settings = std::fs::read(folder.join("config.json")).ok()?;
    serde_json::from_slice::<Settings>(&settings).ok()?.current
}

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
    /// Said of TLS alone: encrypted, to whoever answers.
    #[serde(rename = "SkipTLSVerify", default)]
    is_tls_unverified: bool,
}

/// Where a context of Docker's command line leads.
fn stored(folder: &Path, name: &str, by: String) -> Address {
    const LIST: &str = "`docker context ls` lists those that there are: choose one with `DOCKER_CONTEXT` or `docker context \
                        use`, or set `DOCKER_HOST`";
    let digest: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
    let kept = folder.join("contexts/meta");
    let meta = match std::fs::read(kept.join(&digest).join("meta.json")) {
        Ok(meta) => meta,
        Err(error) => {
            let kept = kept.display();
            let why = match error.kind() {
                std::io::ErrorKind::NotFound => format!("there is no such context in `{kept}`"),
                _ => format!("it cannot be read in `{kept}`: {error}"),
            };
            return Address::named("", by).refused(Refusal::with(why, LIST));
        }
    };
    let found = match serde_json::from_slice::<Meta>(&meta) {
        Ok(meta) => meta.endpoints.docker,
        Err(error) => {
            let why = format!("it tells no address of Docker: {error}");
            return Address::named("", by).refused(Refusal::with(why, LIST));
        }
    };
    let address = Address::named(&found.host, by);
    let has_tls = found.is_tls_unverified || has_files(&folder.join("contexts/tls").join(digest));
    if has_tls && address.is_in_the_clear() {
        let hint = format!("{WITHOUT_TLS}; or choose another context with `DOCKER_CONTEXT`");
        return address.refused(Refusal::with(format!("it asks for TLS, {UNSPOKEN}"), hint));
    }
    address
}

/// Any, however deep; a folder that cannot be looked into may have some.
fn has_files(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.any(|entry| {
            entry.map_or(true, |entry| match entry.file_type() {
                Ok(kind) if kind.is_dir() => has_files(&entry.path()),
                _ => true,
            })
        }),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::around;
    use super::*;

    /// A folder of Docker's command line with one context, and where its TLS files would be.
    fn context(name: &str, endpoint: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let digest: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
        let meta = folder.path().join("contexts/meta").join(&digest);
        std::fs::create_dir_all(&meta).unwrap();
        let text = format!(r#"{{"Name":"{name}","Endpoints":{{{endpoint}}}}}"#);
        std::fs::write(meta.join("meta.json"), text).unwrap();
        let settings = format!(r#"{{"currentContext":"{name}"}}"#);
        std::fs::write(folder.path().join("config.json"), settings).unwrap();
        let tls = folder.path().join("contexts/tls").join(digest).join("docker");
        (folder, tls)
    }

    fn found(vars: &[(&str, &str)]) -> Address {
        docker(&around(vars)).unwrap()
    }

    #[test]
    fn a_context_of_docker_s_command_line_is_followed() {
        let (folder, _) = context("colima", r#""docker":{"Host":"unix:///c.sock"}"#);
        let config = folder.path().to_str().unwrap();
        let address = found(&[("DOCKER_CONFIG", config)]);
        assert_eq!((address.url.as_str(), &address.refused), ("unix:///c.sock", &None));
        assert_eq!(docker(&around(&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "default")])), None);
    }

    #[test]
    fn a_context_that_is_not_there_is_told_as_that() {
        let (folder, _) = context("other", r#""kubernetes":{}"#);
        let config = folder.path().to_str().unwrap();
        for (vars, told) in [
            (&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "nope")][..], "there is no such context in `"),
            (&[("DOCKER_CONFIG", config)], "it tells no address of Docker: missing field `docker`"),
            (&[("DOCKER_CONTEXT", "nope")], "neither `DOCKER_CONFIG` nor `HOME`"),
        ] {
            let refusal = found(vars).refused.unwrap();
            assert!(refusal.why.starts_with(told), "{refusal:?}");
            assert!(refusal.hint.as_ref().unwrap().contains("`DOCKER_HOST`"), "{refusal:?}");
        }
        let missing = found(&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "../../x")]).refused.unwrap();
        assert!(missing.why.ends_with("contexts/meta`"), "{missing:?}");
        assert!(missing.hint.unwrap().contains("docker context ls"));
    }

    #[test]
    fn what_asks_for_tls_is_not_sent_in_the_clear() {
        for (url, variable, value, refused) in [
            ("tcp://10.0.0.1:2376", "DOCKER_TLS_VERIFY", "1", true),
            ("tcp://10.0.0.1:2376", "DOCKER_TLS_VERIFY", "0", true),
            ("http://10.0.0.1:2376", "DOCKER_TLS", "yes", true),
            ("tcp://10.0.0.1:2376", "DOCKER_TLS_VERIFY", "", false),
            ("unix:///d.sock", "DOCKER_TLS_VERIFY", "1", false),
        ] {
            let address = found(&[("DOCKER_HOST", url), (variable, value)]);
            assert_eq!(address.refused.is_some(), refused, "{url} {variable} {value}");
            if let Some(refusal) = address.refused {
                assert!(refusal.why.starts_with(&format!("`{variable}` asks for TLS")), "{refusal:?}");
                assert!(refusal.hint.unwrap().contains("ssh "));
            }
        }
    }

    #[test]
    fn a_context_with_tls_is_not_sent_in_the_clear() {
        for (host, skip, file, refused) in [
            ("tcp://10.0.0.1:2376", false, true, true),
            ("tcp://10.0.0.1:2376", true, false, true),
            ("tcp://10.0.0.1:2375", false, false, false),
            ("unix:///d.sock", true, true, false),
        ] {
            let endpoint = format!(r#""docker":{{"Host":"{host}","SkipTLSVerify":{skip}}}"#);
            let (folder, tls) = context("far", &endpoint);
            std::fs::create_dir_all(&tls).unwrap();
            if file {
                std::fs::write(tls.join("ca.pem"), "x").unwrap();
            }
            let address = found(&[("DOCKER_CONFIG", folder.path().to_str().unwrap())]);
            assert_eq!(address.refused.is_some(), refused, "{host} {skip} {file}");
        }
    }
}
