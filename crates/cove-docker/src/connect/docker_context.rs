//! Reads the engine's address from Docker's environment variables and from the context of its command line. Both can
//! ask for TLS; then Cove never sends in plain text, and never to an engine that it has not verified.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::tls_files::TlsFiles;
use super::{ConnectRefusal, EngineAddress, env_text, home_dir};
use cove_core::process_env::ProcessEnv;

/// Returns the configured address, or `None` if neither a variable nor a context names one.
pub(super) fn docker_address(env: &ProcessEnv) -> Option<EngineAddress> {
    let named = match env_text(env, "DOCKER_HOST") {
        Some(url) => EngineAddress::configured(url, "DOCKER_HOST"),
        None => address_from_context(env)?,
    };
    if named.refusal.is_some() || named.tls.is_some() || !named.is_tcp() {
        return Some(named);
    }
    let folder = env_text(env, "DOCKER_CERT_PATH").map(PathBuf::from).or_else(|| config_folder(env));
    Some(match folder {
        Some(folder) if is_set(env, "DOCKER_TLS_VERIFY") => named.with_tls(TlsFiles { folder }),
        None if is_set(env, "DOCKER_TLS_VERIFY") => named.with_refusal(ConnectRefusal::with_hint(
            "`DOCKER_TLS_VERIFY` asks for TLS, but nothing says where the certificates are",
            "set `DOCKER_CERT_PATH`",
        )),
        _ if is_set(env, "DOCKER_TLS") => named.with_refusal(ConnectRefusal::with_hint(
            "`DOCKER_TLS` asks for TLS that does not verify the engine, and Cove always does",
            "set `DOCKER_TLS_VERIFY=1`, and `DOCKER_CERT_PATH` to the folder with `ca.pem`",
        )),
        _ => named,
    })
}

/// Returns the folder of Docker's command line.
fn config_folder(env: &ProcessEnv) -> Option<PathBuf> {
    let named = env_text(env, "DOCKER_CONFIG").map(PathBuf::from);
    named.or_else(|| home_dir(env).map(|home| home.join(".docker")))
}

/// Returns true for any non-empty value, as Docker's command line does.
fn is_set(env: &ProcessEnv, name: &str) -> bool {
    env.env.get(name).is_some_and(|value| !value.is_empty())
}

/// Returns the address of the current context, or `None` for the context `default`, which means the default sockets.
fn address_from_context(env: &ProcessEnv) -> Option<EngineAddress> {
    let folder = config_folder(env);
    let by_variable = env_text(env, "DOCKER_CONTEXT").map(str::to_owned);
    let chosen = by_variable.or_else(|| current_context(folder.as_deref()?))?;
    if chosen == "default" || chosen.is_empty() {
        return None;
    }
    let by = format!("Docker's context `{}`", cove_core::error::display_value(&chosen));
    Some(match folder {
        Some(folder) => stored_context_address(&folder, &chosen, by),
        None => EngineAddress::configured("", by).with_refusal(ConnectRefusal::with_hint(
            "neither `DOCKER_CONFIG` nor `HOME` says where contexts are kept",
            "set `DOCKER_HOST` instead",
        )),
    })
}

fn current_context(folder: &Path) -> Option<String> {
    let settings = std::fs::read(folder.join("config.json")).ok()?;
    let settings: serde_json::Value = serde_json::from_slice(&settings).ok()?;
    Some(settings.get("currentContext")?.as_str()?.to_owned())
}

#[derive(Deserialize)]
struct DockerContext {
    #[serde(rename = "Endpoints")]
    endpoints: ContextEndpoints,
}

#[derive(Deserialize)]
struct ContextEndpoints {
    docker: ContextEndpoint,
}

#[derive(Deserialize)]
struct ContextEndpoint {
    #[serde(rename = "Host")]
    host: String,
    /// Only set for TLS connections: encrypt, but do not verify the server.
    #[serde(rename = "SkipTLSVerify", default)]
    is_tls_unverified: bool,
}

/// Reads the address from a stored context. If the context is missing or unreadable, the address carries the refusal.
fn stored_context_address(folder: &Path, name: &str, by: String) -> EngineAddress {
    const LIST_CONTEXTS_HINT: &str = "`docker context ls` lists those that there are: choose one with `DOCKER_CONTEXT` or `docker context \
                        use`, or set `DOCKER_HOST`";
    let digest = hex::encode(Sha256::digest(name));
    let kept = folder.join("contexts/meta");
    let meta = std::fs::read(kept.join(&digest).join("meta.json")).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no such context in `{}`", kept.display()),
        _ => format!("it cannot be read in `{}`: {error}", kept.display()),
    });
    let parse = |meta: Vec<u8>| serde_json::from_slice::<DockerContext>(&meta);
    let context = meta.and_then(|meta| parse(meta).map_err(|error| format!("it tells no address of Docker: {error}")));
    let endpoint = match context {
        Ok(context) => context.endpoints.docker,
        Err(why) => {
            return EngineAddress::configured("", by).with_refusal(ConnectRefusal::with_hint(why, LIST_CONTEXTS_HINT));
        }
    };
    let address = EngineAddress::configured(&endpoint.host, by);
    let files = folder.join("contexts/tls").join(digest);
    match address.is_tcp() {
        true if endpoint.is_tls_unverified => address.with_refusal(ConnectRefusal::with_hint(
            "it asks for TLS that does not verify the engine, and Cove always does",
            "make the context without `skip-tls-verify`, or choose another with `DOCKER_CONTEXT`",
        )),
        true if contains_files(&files) => address.with_tls(TlsFiles { folder: files.join("docker") }),
        _ => address,
    }
}

/// Returns true if the folder contains a file at any depth. An unreadable folder counts as containing one.
fn contains_files(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.any(|entry| {
            entry.map_or(true, |entry| match entry.file_type() {
                Ok(kind) if kind.is_dir() => contains_files(&entry.path()),
                _ => true,
            })
        }),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::env;
    use super::*;

    /// Returns a configuration folder with one context, and the path of its TLS files.
    fn write_context(name: &str, endpoint: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let digest = hex::encode(Sha256::digest(name));
        let meta = folder.path().join("contexts/meta").join(&digest);
        std::fs::create_dir_all(&meta).unwrap();
        let text = format!(r#"{{"Name":"{name}","Endpoints":{{{endpoint}}}}}"#);
        std::fs::write(meta.join("meta.json"), text).unwrap();
        let settings = format!(r#"{{"currentContext":"{name}"}}"#);
        std::fs::write(folder.path().join("config.json"), settings).unwrap();
        let tls = folder.path().join("contexts/tls").join(digest).join("docker");
        (folder, tls)
    }

    fn address_for(vars: &[(&str, &str)]) -> EngineAddress {
        docker_address(&env(vars)).unwrap()
    }

    #[test]
    fn follows_the_docker_cli_context() {
        let (folder, _) = write_context("colima", r#""docker":{"Host":"unix:///c.sock"}"#);
        let config = folder.path().to_str().unwrap();
        let address = address_for(&[("DOCKER_CONFIG", config)]);
        assert_eq!((address.url.as_str(), &address.refusal), ("unix:///c.sock", &None));
        assert_eq!(docker_address(&env(&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "default")])), None);
    }

    #[test]
    fn reports_a_missing_docker_context() {
        let (folder, _) = write_context("other", r#""kubernetes":{}"#);
        let config = folder.path().to_str().unwrap();
        for (vars, reported) in [
            (&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "nope")][..], "there is no such context in `"),
            (&[("DOCKER_CONFIG", config)], "it tells no address of Docker: missing field `docker`"),
            (&[("DOCKER_CONTEXT", "nope")], "neither `DOCKER_CONFIG` nor `HOME`"),
        ] {
            let refusal = address_for(vars).refusal.unwrap();
            assert!(refusal.reason.starts_with(reported), "{refusal:?}");
            assert!(refusal.hint.as_ref().unwrap().contains("`DOCKER_HOST`"), "{refusal:?}");
        }
        let missing = address_for(&[("DOCKER_CONFIG", config), ("DOCKER_CONTEXT", "../../x")]).refusal.unwrap();
        assert!(missing.reason.ends_with("contexts/meta`"), "{missing:?}");
        assert!(missing.hint.unwrap().contains("docker context ls"));
    }

    #[test]
    fn tls_variables_prevent_plain_connections() {
        for (url, vars, encrypted, refused) in [
            ("tcp://10.0.0.1:2376", &[("DOCKER_TLS_VERIFY", "1"), ("HOME", "/h")][..], true, false),
            ("tcp://10.0.0.1:2376", &[("DOCKER_TLS_VERIFY", "0"), ("DOCKER_CERT_PATH", "/c")], true, false),
            ("tcp://10.0.0.1:2376", &[("DOCKER_TLS_VERIFY", "1")], false, true),
            ("http://10.0.0.1:2376", &[("DOCKER_TLS", "yes"), ("HOME", "/h")], false, true),
            ("tcp://10.0.0.1:2376", &[("DOCKER_TLS_VERIFY", ""), ("HOME", "/h")], false, false),
            ("unix:///d.sock", &[("DOCKER_TLS_VERIFY", "1"), ("HOME", "/h")], false, false),
            ("ssh://far", &[("DOCKER_TLS_VERIFY", "1"), ("HOME", "/h")], false, false),
        ] {
            let address = address_for(&[&[("DOCKER_HOST", url)], vars].concat());
            assert_eq!((address.tls.is_some(), address.refusal.is_some()), (encrypted, refused), "{url} {vars:?}");
        }
        let address = address_for(&[("DOCKER_HOST", "tcp://h:1"), ("DOCKER_TLS_VERIFY", "1"), ("HOME", "/h")]);
        assert_eq!(address.tls, Some(TlsFiles { folder: "/h/.docker".into() }));
    }

    #[test]
    fn tls_contexts_prevent_plain_connections() {
        for (host, skip, file, encrypted, refused) in [
            ("tcp://10.0.0.1:2376", false, true, true, false),
            ("tcp://10.0.0.1:2376", true, false, false, true),
            ("tcp://10.0.0.1:2375", false, false, false, false),
            ("unix:///d.sock", true, true, false, false),
        ] {
            let endpoint = format!(r#""docker":{{"Host":"{host}","SkipTLSVerify":{skip}}}"#);
            let (folder, tls) = write_context("far", &endpoint);
            std::fs::create_dir_all(&tls).unwrap();
            if file {
                std::fs::write(tls.join("ca.pem"), "x").unwrap();
            }
            let address = address_for(&[("DOCKER_CONFIG", folder.path().to_str().unwrap())]);
            assert_eq!(
                (address.tls.is_some(), address.refusal.is_some()),
                (encrypted, refused),
                "{host} {skip} {file}"
            );
            assert!(address.tls.is_none_or(|files| files.folder == tls));
        }
    }
}
