//! The first message of TLS, which names the server that the client wants. `rustls` reads it; nothing of it is answered.

use std::io;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt};

/// More than `rustls` accepts of a first message.
const MAX_HELLO: usize = 70 * 1024;

/// What the first bytes of a client are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstMessage {
    /// A ClientHello with this server name.
    Hello {
        server_name: Option<String>,
    },
    NotTls,
    /// The client has gone.
    End,
}

/// Reads until the first message is whole. Adds everything that it reads to `bytes`, for the server.
pub(crate) async fn read_client_hello(
    client: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> io::Result<FirstMessage> {
    let mut acceptor = Acceptor::default();
    let mut read = 0;
    loop {
        while read < bytes.len() {
            let Ok(count) = acceptor.read_tls(&mut &bytes[read..]) else { return Ok(FirstMessage::NotTls) };
            if count == 0 {
                return Ok(FirstMessage::NotTls);
            }
            read += count;
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let server_name = accepted.client_hello().server_name().map(str::to_owned);
                    return Ok(FirstMessage::Hello { server_name });
                }
                Ok(None) => {}
                Err(_) => return Ok(FirstMessage::NotTls),
            }
        }
        if bytes.len() > MAX_HELLO {
            return Ok(FirstMessage::NotTls);
        }
        if client.read_buf(bytes).await? == 0 {
            return Ok(FirstMessage::End);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;

    use super::*;

    /// Returns what a real client sends first.
    pub(crate) fn client_hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    async fn read(sent: &[u8], first: usize) -> (FirstMessage, Vec<u8>) {
        let (before, mut after) = sent.split_at(first);
        let mut bytes = before.to_vec();
        (read_client_hello(&mut after, &mut bytes).await.unwrap(), bytes)
    }

    #[tokio::test]
    async fn finds_the_server_name_however_the_message_is_cut() {
        let hello = client_hello("api.example.com");
        let found = FirstMessage::Hello { server_name: Some("api.example.com".to_owned()) };
        for first in [0, 1, 5, 6, hello.len() - 1, hello.len()] {
            let (message, bytes) = read(&hello, first).await;
            assert_eq!(
                (message, bytes == hello),
                (FirstMessage::Hello { server_name: Some("api.example.com".into()) }, true)
            );
        }
        // One record for each byte of the message.
        let records: Vec<u8> = hello[5..].iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
        assert_eq!(read(&records, 0).await.0, found);
        assert_eq!(read(&client_hello("192.0.2.1"), 0).await.0, FirstMessage::Hello { server_name: None });
    }

    #[tokio::test]
    async fn anything_else_is_not_tls() {
        for bytes in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[22, 3, 1, 0xff, 0xff, 1], &[0; 40]]
        {
            assert_eq!(read(bytes, 0).await.0, FirstMessage::NotTls, "{bytes:?}");
        }
        let hello = client_hello("a.example");
        assert_eq!(read(&hello[..40], 0).await.0, FirstMessage::End);
        assert_eq!(read(b"", 0).await.0, FirstMessage::End);
        let mut other = hello.clone();
        other[5] = 2;
        assert_eq!(read(&other, 0).await.0, FirstMessage::NotTls, "another message of the handshake");
    }
}
