//! Real servers for network clients, on loopback: files over HTTPS or plain HTTP, one folder for each name before `.test`,
//! git over its smart protocol for `git.test`, and a WebSocket that echoes. A server counts its connections. It ends with the process.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine as _;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::git_backend::answer_git;
use crate::judges::test_file;

pub(crate) use super::git_backend::{PUSH_TOKEN, PUSHER};

const MAX_HEAD: usize = 64 * 1024;
/// What a WebSocket server adds to the key of its client (RFC 6455).
const WEBSOCKET_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SiteSecurity {
    Tls,
    Plain,
}

pub(crate) struct LoopbackSite {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
    /// The method and the path of each request, and whether its body was compressed.
    asked: Arc<Mutex<Vec<String>>>,
}

impl LoopbackSite {
    /// Serves the folders in `root`.
    pub(crate) fn start(root: &Path, security: SiteSecurity) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, connections) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let (counted, root) = (Arc::clone(&connections), root.to_owned());
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&asked);
        let tls = (security == SiteSecurity::Tls).then(tls_config);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                let (tls, files) = (tls.clone(), SiteFiles { root: root.clone(), port, asked: Arc::clone(&noted) });
                // A client that ends half-way is its own business.
                thread::spawn(move || match tls {
                    None => files.serve(&mut stream),
                    Some(config) => files.serve_tls(config, stream),
                });
            }
        });
        Self { port, connections, asked }
    }

    /// Returns how often a path was downloaded.
    pub(crate) fn downloads(&self, path: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|asked| asked.strip_prefix("GET ") == Some(path)).count()
    }

    pub(crate) fn has_got(&self, request: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == request)
    }

    pub(crate) fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn tls_config() -> Arc<rustls::ServerConfig> {
    let file = |name: &str| test_file("network/tls").join(name);
    let chain = vec![CertificateDer::from_pem_file(file("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

struct SiteFiles {
    root: PathBuf,
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

pub(crate) struct SiteRequest {
    text: String,
    pub(crate) body: Vec<u8>,
}

impl SiteRequest {
    /// Reads a request. Returns None at the end of the connection.
    fn read(stream: &mut impl Read) -> io::Result<Option<Self>> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD {
            if stream.read(&mut byte)? == 0 {
                return Ok(None);
            }
            head.push(byte[0]);
        }
        let mut request = Self { text: String::from_utf8_lossy(&head).into_owned(), body: Vec::new() };
        match request.field("transfer-encoding") {
            Some(_) => while read_chunk(stream, &mut request.body)? {},
            None => {
                let length = request.field("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
                stream.take(length).read_to_end(&mut request.body)?;
            }
        }
        Ok(Some(request))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.text.lines().filter_map(|line| line.split_once(':'));
        fields.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    pub(crate) fn word(&self, at: usize) -> &str {
        self.text.split_whitespace().nth(at).unwrap_or_default()
    }
}

/// Reads a chunk of a body. Returns false after the last one.
fn read_chunk(stream: &mut impl Read, body: &mut Vec<u8>) -> io::Result<bool> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let length = u64::from_str_radix(String::from_utf8_lossy(&line).trim(), 16).map_err(io::Error::other)?;
    stream.take(length).read_to_end(body)?;
    stream.read_exact(&mut [0; 2])?;
    Ok(length > 0)
}

impl SiteFiles {
    fn serve_tls(&self, config: Arc<rustls::ServerConfig>, mut stream: TcpStream) -> io::Result<()> {
        let mut session = rustls::ServerConnection::new(config).map_err(io::Error::other)?;
        let served = self.serve(&mut rustls::Stream::new(&mut session, &mut stream));
        session.send_close_notify();
        session.write_tls(&mut stream)?;
        served
    }

    fn serve(&self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        while let Some(request) = SiteRequest::read(stream)? {
            if let Some(key) = request.field("sec-websocket-key") {
                return echo(stream, key);
            }
            let form = if request.field("content-encoding").is_some() { " compressed" } else { "" };
            self.asked.lock().unwrap().push(format!("{} {}{form}", request.word(0), request.word(1)));
            if request.field("host").is_some_and(|host| host.starts_with("git.test")) {
                stream.write_all(&answer_git(&self.root.join("git"), &request)?)?;
                stream.flush()?;
                continue;
            }
            let (status, body) = match self.find(&request) {
                Some(body) => ("200 OK", body),
                None => ("404 Not Found", b"{}".to_vec()),
            };
            let kind = if request.word(1).starts_with("/simple/") { "text/html" } else { "application/json" };
            let length = body.len();
            // As the public indexes say it: an archive never changes, and what is in the index does.
            let is_archive = ["/files/", "/-/", "/crates/"].iter().any(|part| request.word(1).contains(part));
            let kept = if is_archive { "Cache-Control: public, immutable, max-age=31536000\r\n" } else { "" };
            let head = format!("HTTP/1.1 {status}\r\n{kept}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(if request.word(0) == "HEAD" { &[] } else { &body })?;
            stream.flush()?;
        }
        Ok(())
    }

    fn find(&self, request: &SiteRequest) -> Option<Vec<u8>> {
        let site = request.field("host")?.split_once(".test")?.0;
        let path = request.word(1).split('?').next()?.trim_start_matches('/');
        let path = Path::new(site).join(path);
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let path = self.root.join(path);
        let path = if path.is_dir() { path.join("index.html") } else { path };
        let body = fs::read(&path).ok()?;
        let has_port = path.extension().is_some_and(|ending| ending == "html" || ending == "json");
        Some(if has_port {
            String::from_utf8(body).ok()?.replace("@PORT@", &self.port.to_string()).into()
        } else {
            body
        })
    }
}

/// Answers a WebSocket handshake, and returns one short message to its sender.
fn echo(stream: &mut (impl Read + Write), key: &str) -> io::Result<()> {
    let digest =
        ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{WEBSOCKET_SUFFIX}").as_bytes());
    let accept = base64::engine::general_purpose::STANDARD.encode(digest);
    let upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    stream.write_all(format!("{upgrade}Sec-WebSocket-Accept: {accept}\r\n\r\n").as_bytes())?;
    stream.flush()?;
    let (mut head, mut mask) = ([0; 2], [0; 4]);
    stream.read_exact(&mut head)?;
    stream.read_exact(&mut mask)?;
    let length = head[1] & 0x7f;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message)?;
    message.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    stream.write_all(&[head[0], length])?;
    stream.write_all(&message)?;
    stream.flush()?;
    // Until the client ends the connection.
    io::copy(stream, &mut io::sink()).map(drop)
}
