//! Facts that only Podman's own API reports: whether Podman is rootless, and which runtime runs a container. The Docker
//! API, which Cove uses otherwise, has no field for the first and always gives the same value for the second.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use cove_core::error::display_value;

/// The longest answer that is read; real answers are shorter.
const MAX_REPLY_BYTES: u64 = 1024 * 1024;
/// How long Podman may take to answer about one container.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodmanFacts {
    pub(super) rootless: bool,
    pub(super) cgroup: u8,
    /// The cgroup controllers that limit its containers. `None` if it does not report them.
    pub(super) controllers: Option<Vec<String>>,
    /// The runtime that the Podman service was started with.
    pub(super) runtime: String,
}

/// Asks Podman for its facts. Fails if it cannot be reached or its answer has another form.
pub(super) async fn fetch_facts(url: &str) -> Result<PodmanFacts, String> {
    parse_info(&get(url, "info").await?)
}

/// Compares a container's runtime with the requested one. Returns the difference, or why Podman did not report it.
pub(super) async fn runtime_difference(url: &str, container: &str, wanted: &str) -> Option<String> {
    let answer = tokio::time::timeout(REPLY_TIMEOUT, container_runtime(url, container)).await;
    match answer.unwrap_or_else(|_| Err("Podman does not answer".into())) {
        Ok(found) if found == wanted => None,
        Ok(found) => Some(format!("the runtime is `{}`, not `{}`", display_value(&found), display_value(wanted))),
        Err(why) => Some(why),
    }
}

/// Returns the name of a container's runtime. Fails if Podman does not report it.
async fn container_runtime(url: &str, container: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct LibpodContainer {
        #[serde(rename = "OCIRuntime")]
        runtime: String,
    }
    let answer = get(url, &format!("containers/{container}/json")).await?;
    Ok(parse_reply::<LibpodContainer>(&answer, "Podman does not tell its runtime")?.runtime)
}

async fn get(url: &str, what: &str) -> Result<Vec<u8>, String> {
    // Podman 4 and later accept this API version.
    let request = format!("GET /v4.0.0/libpod/{what} HTTP/1.0\r\nHost: podman\r\n\r\n");
    let answer = match url.strip_prefix("unix://") {
        Some(path) => exchange(UnixStream::connect(path).await, &request).await,
        None => {
            let authority = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
            exchange(TcpStream::connect(authority).await, &request).await
        }
    };
    answer.map_err(|error| error.to_string())
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: std::io::Result<S>,
    request: &str,
) -> std::io::Result<Vec<u8>> {
    let mut stream = stream?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_REPLY_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn parse_info(answer: &[u8]) -> Result<PodmanFacts, String> {
    const UNCLEAR: &str = "Podman does not tell whether it is rootless";
    let info: Value = parse_reply(answer, UNCLEAR)?;
    let field = |path: &str| info.pointer(path).ok_or_else(|| format!("{UNCLEAR}: missing field `{path}`"));
    let listed =
        |found: &Value| Some(found.as_array()?.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect());
    Ok(PodmanFacts {
        controllers: info.pointer("/host/cgroupControllers").and_then(listed),
        rootless: field("/host/security/rootless")?.as_bool().ok_or(UNCLEAR)?,
        cgroup: if field("/host/cgroupVersion")? == "v2" { 2 } else { 1 },
        runtime: field("/host/ociRuntime/name")?.as_str().ok_or(UNCLEAR)?.to_owned(),
    })
}

fn parse_reply<T: DeserializeOwned>(answer: &[u8], unclear: &str) -> Result<T, String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(unclear)?;
    serde_json::from_slice(&answer[end + 4..]).map_err(|error| format!("{unclear}: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_or_refuses_podman_info() {
        let reply = |host: Value| format!("HTTP/1.0 200 OK\r\nX: y\r\n\r\n{}", json!({"host": host})).into_bytes();
        let mut host = json!({"cgroupVersion": "v1", "security": {"rootless": true}, "ociRuntime": {"name": "crun"}});
        let facts = |cgroup, controllers| PodmanFacts { rootless: true, cgroup, controllers, runtime: "crun".into() };
        assert_eq!(parse_info(&reply(host.clone())), Ok(facts(1, None)));
        host["cgroupVersion"] = json!("v2");
        host["cgroupControllers"] = json!(["memory", "pids"]);
        let controllers = ["memory", "pids"].map(str::to_owned).to_vec();
        assert_eq!(parse_info(&reply(host)), Ok(facts(2, Some(controllers))));
        for odd in [&b""[..], b"HTTP/1.0 404\r\n\r\n{}", b"HTTP/1.0 200\r\n\r\nno"] {
            assert!(parse_info(odd).is_err());
        }
    }
}
