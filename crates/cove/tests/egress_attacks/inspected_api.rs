//! An HTTPS API on this machine behind inspected rules, with an authority that the program under test trusts. It keeps what
//! it is asked, and gives the credential of a request away in every way that a server might.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use miniz_oxide::deflate::compress_to_vec;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;

/// What no sandbox may see.
pub(crate) const TOKEN: &str = "ghp_T0kenThatNoSandboxMaySee0123456789ab";
/// The header of a file that `gzip` wrote, without a name and a time.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

/// An authority of these tests, whose certificate the program trusts.
pub(crate) struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: String,
}

impl TestAuthority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    pub(crate) fn server_config(&self, hosts: &[&str]) -> Arc<rustls::ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).unwrap();
        let chain = vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
    }
}

/// An API over HTTPS that keeps the heads of its requests.
pub(crate) struct TestApi {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TestApi {
    pub(crate) fn start(config: Arc<rustls::ServerConfig>) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").unwrap(), config)
    }

    pub(crate) fn serve(listener: TcpListener, config: Arc<rustls::ServerConfig>) -> Self {
        let (port, requests) = (listener.local_addr().unwrap().port(), Arc::default());
        let kept = Arc::clone(&requests);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (config, kept) = (Arc::clone(&config), Arc::clone(&kept));
                thread::spawn(move || {
                    let mut session = rustls::ServerConnection::new(config).unwrap();
                    let mut stream = rustls::Stream::new(&mut session, &mut stream);
                    while answer(&mut stream, &kept).is_some() {}
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                });
            }
        });
        Self { port, requests }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// Answers one request. Returns None at the end.
fn answer(stream: &mut (impl Read + Write), kept: &Mutex<Vec<String>>) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    kept.lock().unwrap().push(head.clone());
    let field = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let mut body = vec![0; field("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    let given = field("authorization").unwrap_or_default();
    let path = head.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
    if path == "/ws" {
        // To the key of the example in RFC 6455.
        let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(switching.as_bytes()).ok()?;
        // Answers each four bytes with two messages: these before the credential, and alone.
        let frame = |text: &[u8]| [&[0x82, u8::try_from(text.len()).unwrap()], text].concat();
        let mut piece = [0; 4];
        loop {
            stream.read_exact(&mut piece).ok()?;
            let messages = [frame(&[&piece[..], given.as_bytes()].concat()), frame(&piece)];
            stream.write_all(&messages.concat()).ok()?;
            stream.flush().ok()?;
        }
    }
    let query = head.split(' ').nth(1).and_then(|target| target.split_once('?')).map_or("", |(_, query)| query);
    let written = match path.strip_prefix("/repos/acme/") {
        // Leads the client to the address that its query has.
        Some("moved") => Some(format!("HTTP/1.1 302 Found\r\nLocation: {query}\r\nContent-Length: 0\r\n\r\n").into()),
        Some(form) => repeat(&given, form),
        // Repeats the credential in a field and in the body.
        None if path == "/user" => {
            let text = json!({"login": "acme", "saw": given}).to_string();
            Some(format!("HTTP/1.1 200 OK\r\nX-Saw: {given}\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into())
        }
        None if path == "/graphql" => Some(plain_answer(&answer_graphql(&String::from_utf8_lossy(&body)).to_string())),
        None => None,
    };
    let written = written.unwrap_or_else(|| plain_answer(&format!("{path} {}", String::from_utf8_lossy(&body))));
    stream.write_all(&written).ok()?;
    stream.flush().ok()
}

/// Answers queries for pull requests, and does whatever else it is asked.
fn answer_graphql(body: &str) -> serde_json::Value {
    if !body.contains("pullRequests") {
        return json!({"data": {"done": true}});
    }
    let one = json!({"number": 7, "title": "Open the door", "state": "OPEN", "headRefName": "door", "url": "https://forge.test/7"});
    json!({"data": {"repository": {"pullRequests": {"totalCount": 1, "nodes": [one], "pageInfo": {"hasNextPage": false}}}}})
}

fn plain_answer(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into()
}

/// Returns an answer that repeats a text in a form, or None if there is no such form.
fn repeat(given: &str, form: &str) -> Option<Vec<u8>> {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    Some(match form {
        "split" => {
            let (one, two) = given.split_at(given.len() - 7);
            format!("{CHUNKED}{}{}0\r\n\r\n", chunk(one), chunk(two)).into()
        }
        "bytes" => {
            let chunks: String = given.chars().map(|one| chunk(&one.to_string())).collect();
            format!("{CHUNKED}{chunks}0\r\n\r\n").into()
        }
        "trailer" => format!("{CHUNKED}{}0\r\nX-Saw: {given}\r\n\r\n", chunk("body")).into(),
        "base64" => {
            let alone = given.trim_start_matches("Bearer ");
            let texts = ["", "1", "12"].map(|before| STANDARD.encode(format!("{before}{alone}")));
            plain_answer(&format!("{} {}", texts.join(" "), URL_SAFE_NO_PAD.encode(alone)))
        }
        "escaped" => {
            let written = |c: char, as_written: &dyn Fn(u32) -> String| match c.is_ascii_alphanumeric() {
                true => c.to_string(),
                false => as_written(c.into()),
            };
            let escape = |as_written: &dyn Fn(u32) -> String| -> String {
                given.chars().map(|c| written(c, as_written)).collect()
            };
            let (json, html) = (escape(&|c| format!("\\u{c:04x}")), escape(&|c| format!("&#x{c:X};")));
            plain_answer(&format!("{json} {html} {}", escape(&|c| format!("%{c:02x}"))))
        }
        "hex" => plain_answer(&given.bytes().map(|byte| format!("{byte:02x}")).collect::<String>()),
        "gzip" => {
            let body = [&GZIP_HEADER[..], &compress_to_vec(given.repeat(3).as_bytes(), 6)].concat();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", body.len());
            [head.as_bytes(), &body].concat()
        }
        "redirect" => format!(
            "HTTP/1.1 302 Found\r\nLocation: https://other.test/?key={given}\r\nSet-Cookie: key={given}\r\n\
             Content-Length: 0\r\n\r\n"
        )
        .into(),
        "phrase" => format!("HTTP/1.1 200 {given}\r\nContent-Length: 0\r\n\r\n").into(),
        "hints" => {
            let hints = format!("HTTP/1.1 103 Early Hints\r\nLink: <{given}>\r\n\r\n");
            [hints.into_bytes(), plain_answer("body")].concat()
        }
        _ => return None,
    })
}
