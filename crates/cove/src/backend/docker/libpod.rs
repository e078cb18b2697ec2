//! What Podman tells only in its own interface: whether it is rootless, and which runtime runs a container. Docker's
//! interface, which it speaks otherwise, has no word for the one and does not say the other.

use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::error::shown;

/// More than any answer has.
const MOST: u64 = 1024 * 1024;
/// For an answer about one container.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) rootless: bool,
    pub(super) cgroup: u8,
    /// The runtime that it was started with.
    pub(super) runtime: String,
}

pub(super) async fn ask(url: &str) -> Result<Told, String> {
    understand(&get(url, "info").await?)
}

/// What differs from the runtime that was asked for, in words; also that it is not told.
pub(super) async fn other_runtime(url: &str, container: &str, asked: &str) -> Option<String> {
    let told = tokio::time::timeout(PATIENCE, runtime_of(url, container)).await;
    match told.unwrap_or_else(|_| Err("Podman does not answer".into())) {
        Ok(found) if found == asked => None,
        Ok(found) => Some(format!("the runtime is `{}`, not `{}`", shown(&found), shown(asked))),
        Err(why) => Some(why),
    }
}

/// The name of the runtime that a container is made for.
async fn runtime_of(url: &str, container: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "OCIRuntime")]
        runtime: String,
    }
    let answer = get(url, &format!("containers/{container}/json")).await?;
    Ok(parsed::<Answer>(&answer, "Podman does not tell its runtime")?.runtime)
}

async fn get(url: &str, what: &str) -> Result<Vec<u8>, String> {
    // Understood by every Podman since.
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
    stream.take(MOST).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn understand(answer: &[u8]) -> Result<Told, String> {
    #[derive(Deserialize)]
    struct Answer {
        host: Host,
    }
    #[derive(Deserialize)]
    struct Host {
        #[serde(rename = "cgroupVersion")]
        cgroup: String,
        security: Security,
        #[serde(rename = "ociRuntime")]
        runtime: Runtime,
    }
    #[derive(Deserialize)]
    struct Security {
        rootless: bool,
    }
    #[derive(Deserialize)]
    struct Runtime {
        name: String,
    }
    let Answer { host } = parsed(answer, "Podman does not tell whether it is rootless")?;
    let cgroup = if host.cgroup == "v2" { 2 } else { 1 };
    Ok(Told { rootless: host.security.rootless, cgroup, runtime: host.runtime.name })
}

fn parsed<T: DeserializeOwned>(answer: &[u8], unclear: &str) -> Result<T, String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(unclear)?;
    serde_json::from_slice(&answer[end + 4..]).map_err(|error| format!("{unclear}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_podman_tells_is_understood_or_refused() {
        let answer = b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n{\"host\":{\"cgroupVersion\":\"v1\",\"security\":{\"rootless\":true},\"ociRuntime\":{\"name\":\"crun\"}}}";
        assert_eq!(understand(answer), Ok(Told { rootless: true, cgroup: 1, runtime: "crun".into() }));
        for odd in [&b""[..], b"HTTP/1.0 404\r\n\r\n{}", b"HTTP/1.0 200\r\n\r\nno"] {
            assert!(understand(odd).is_err());
        }
    }
}
