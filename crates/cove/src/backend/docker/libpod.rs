//! What Podman tells only in its own interface: whether it is rootless. Docker's interface, which it speaks otherwise, has
//! no word for that.

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// More than any answer has.
const MOST: u64 = 1024 * 1024;
/// Understood by every Podman since.
const REQUEST: &[u8] = b"GET /v4.0.0/libpod/info HTTP/1.0\r\nHost: podman\r\n\r\n";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) rootless: bool,
    pub(super) cgroup: u8,
}

pub(super) async fn ask(url: &str) -> Result<Told, String> {
    let answer = match url.strip_prefix("unix://") {
        Some(path) => exchange(UnixStream::connect(path).await).await,
        None => {
            let authority = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
            exchange(TcpStream::connect(authority).await).await
        }
    };
    understand(&answer.map_err(|error| error.to_string())?)
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(stream: std::io::Result<S>) -> std::io::Result<Vec<u8>> {
    let mut stream = stream?;
    stream.write_all(REQUEST).await?;
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
    }
    #[derive(Deserialize)]
    struct Security {
        rootless: bool,
    }
    let unclear = "Podman does not tell whether it is rootless";
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(unclear)?;
    let answer: Answer =
        serde_json::from_slice(&answer[end + 4..]).map_err(|error| format!("{unclear}: {error}"))?;
    let cgroup = if answer.host.cgroup == "v2" { 2 } else { 1 };
    Ok(Told { rootless: answer.host.security.rootless, cgroup })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_podman_tells_is_understood_or_refused() {
        let answer = b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n{\"host\":{\"cgroupVersion\":\"v1\",\"security\":{\"rootless\":true}}}";
        assert_eq!(understand(answer), Ok(Told { rootless: true, cgroup: 1 }));
        for odd in [&b""[..], b"HTTP/1.0 404\r\n\r\n{}", b"HTTP/1.0 200\r\n\r\nno"] {
            assert!(understand(odd).is_err());
        }
    }
}
