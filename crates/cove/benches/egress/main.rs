//! Requests to the network as code makes them: through Cove's rules, tunnelled and inspected, through a bare proxy on the
//! loopback, and direct. The same client measures each way, against the same TLS server, in turns.
//!
//! The server and the bare proxy are processes of their own with one thread each, as they are outside a benchmark: a proxy
//! that shared the server's thread would pass on a request without waking anyone.
//!
//! `cargo xtask bench egress [ROUNDS [MEGABYTES]]`

use std::convert::Infallible;
use std::fs;
use std::io::{BufRead as _, BufReader as BlockingReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cove_testkit::measure::{PYTHON, load, percentile, ratio};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const CLIENT: &str = include_str!("client.py");
/// The name in the server's certificate, which no resolver is asked for.
const HOST: &str = "elsewhere.example";
const REQUESTS: usize = 200;
const CONNECTIONS: usize = 20;
/// How often the host's memory is read during the long download.
const MEMORY_INTERVAL: Duration = Duration::from_millis(50);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(peer) = arguments.first().and_then(|name| NetworkPeer::from_name(name)) {
        return peer.serve();
    }
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse::<usize>().ok());
    let (rounds, megabytes) = (numbers.next().unwrap_or(10), numbers.next().unwrap_or(1024));
    let bench = EgressBench::start();
    println!("load average before: {}", load());
    let mut ways = NetworkWay::ALL.map(|way| (way.name(), MeasuredWay::default()));
    for round in 0..=rounds {
        for step in 0..ways.len() {
            let number = (round + step) % ways.len();
            let times = bench.measure(NetworkWay::ALL[number], megabytes);
            // The first round warms up.
            if round > 0 {
                ways[number].1.add(&times, megabytes);
            }
        }
    }
    print_table(&ways);
    for way in NetworkWay::OF_COVE {
        let most = [16, megabytes].map(|size| bench.memory_of_download(way, size));
        println!(
            "\n{}: most memory of the host's process: {} kB with 16 MB, {} kB with {megabytes} MB",
            way.name(),
            most[0],
            most[1]
        );
    }
    println!("load average after: {}", load());
}

/// How a request travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NetworkWay {
    Direct,
    BareProxy,
    Tunnel,
    Inspected,
}

impl NetworkWay {
    const ALL: [Self; 4] = [Self::Direct, Self::BareProxy, Self::Tunnel, Self::Inspected];
    const OF_COVE: [Self; 2] = [Self::Tunnel, Self::Inspected];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::BareProxy => "bare proxy on the loopback",
            Self::Tunnel => "sandbox, rules, tunnel",
            Self::Inspected => "sandbox, rules, inspected",
        }
    }
}

/// What the client printed, in seconds.
#[derive(Deserialize)]
struct ClientTimes {
    requests: Vec<f64>,
    connections: Vec<f64>,
    download: f64,
}

/// A number for each round.
#[derive(Default)]
struct MeasuredWay {
    request_micros: Vec<f64>,
    connection_micros: Vec<f64>,
    megabytes_per_second: Vec<f64>,
}

type MeasuredColumn = fn(&MeasuredWay) -> &Vec<f64>;

impl MeasuredWay {
    fn add(&mut self, times: &ClientTimes, megabytes: usize) {
        self.request_micros.push(percentile(&times.requests, 0.5) * 1e6);
        self.connection_micros.push(percentile(&times.connections, 0.5) * 1e6);
        self.megabytes_per_second.push(megabytes as f64 / times.download);
    }
}

fn print_table(ways: &[(&str, MeasuredWay)]) {
    let columns: [(&str, MeasuredColumn); 3] = [
        ("request, µs", |way| &way.request_micros),
        ("new connection, µs", |way| &way.connection_micros),
        ("MB/s", |way| &way.megabytes_per_second),
    ];
    for (column, of) in columns {
        println!("\n{column:<30} {:>10} {:>12} {:>14}", "median", "x direct", "x bare proxy");
        for (name, way) in ways {
            let to = |other: usize| ratio(of(way), of(&ways[other].1));
            println!("{name:<30} {:>10.0} {:>12.2} {:>14.2}", percentile(of(way), 0.5), to(0), to(1));
        }
    }
    println!("\ntime added to a direct one, in multiples of what the bare proxy adds");
    for way in 2..ways.len() {
        let added = |of: MeasuredColumn| {
            let over_direct = |way: usize| -> Vec<f64> {
                of(&ways[way].1).iter().zip(of(&ways[0].1)).map(|(own, direct)| own - direct).collect()
            };
            percentile(&over_direct(way), 0.5) / percentile(&over_direct(1), 0.5)
        };
        let (request, connection) = (added(|way| &way.request_micros), added(|way| &way.connection_micros));
        println!("{:<30} request {request:.1}, new connection {connection:.1}", ways[way].0);
    }
}

/// A process that requests go to.
#[derive(Debug, Clone, Copy)]
enum NetworkPeer {
    Server,
    Proxy,
}

impl NetworkPeer {
    const ALL: [Self; 2] = [Self::Server, Self::Proxy];

    fn name(self) -> &'static str {
        match self {
            Self::Server => "serve-requests",
            Self::Proxy => "serve-tunnels",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|peer| peer.name() == name)
    }

    /// Serves until it is killed, and first prints its port.
    fn serve(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("the loopback has a free port");
            println!("{}", listener.local_addr().expect("it listens").port());
            match self {
                Self::Server => serve_tls(listener).await,
                Self::Proxy => serve_proxy(listener).await,
            }
        });
    }
}

struct RunningPeer {
    process: Child,
    port: u16,
}

impl RunningPeer {
    fn start(peer: NetworkPeer) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let process = Command::new(program).arg(peer.name()).stdout(Stdio::piped()).spawn();
        let mut process = process.expect("this program starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("it is a pipe");
        BlockingReader::new(output).read_line(&mut line).expect("it prints its port");
        Self { process, port: line.trim().parse().expect("it prints its port") }
    }
}

impl Drop for RunningPeer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct EgressBench {
    server: RunningPeer,
    proxy: RunningPeer,
    folder: tempfile::TempDir,
}

impl EgressBench {
    fn start() -> Self {
        let [server, proxy] = NetworkPeer::ALL.map(RunningPeer::start);
        let bench = Self { server, proxy, folder: tempfile::tempdir().expect("a folder can be made") };
        for way in NetworkWay::OF_COVE {
            let inspect = way == NetworkWay::Inspected;
            let rules = format!(
                "[egress]\nmax_download = \"64g\"\nallow = [{{ host = \"{HOST}\", ports = [{}], at = \"127.0.0.1\", \
                 inspect = {inspect} }}]\n",
                bench.server.port
            );
            fs::write(bench.config(way), rules).expect("the folder is there");
        }
        bench
    }

    fn config(&self, way: NetworkWay) -> PathBuf {
        self.folder.path().join(format!("{way:?}.toml"))
    }

    fn command(&self, way: NetworkWay, counts: [usize; 3]) -> Command {
        let is_cove = NetworkWay::OF_COVE.contains(&way);
        let proxy_port = match way {
            NetworkWay::Direct => 0,
            NetworkWay::BareProxy => self.proxy.port,
            NetworkWay::Tunnel | NetworkWay::Inspected => cove_protocol::limits::PROXY_PORT,
        };
        let client = self.folder.path().join("client.py");
        fs::write(&client, CLIENT).expect("the folder is there");
        let mut command = Command::new(if is_cove { env!("CARGO_BIN_EXE_cove") } else { PYTHON });
        if is_cove {
            command.args(["run", "--backend", "jail", "--python", PYTHON, "--timeout", "10m", "--max-timeout", "10m"]);
            command.env("COVE_CONFIG", self.config(way)).env("COVE_STATE_DIR", self.folder.path().join("state"));
            command.env("SSL_CERT_FILE", test_certificates().join("authority.pem"));
        }
        command.arg(&client).args([HOST, &self.server.port.to_string(), &proxy_port.to_string()]);
        command.args(counts.map(|count| count.to_string()));
        command
    }

    fn measure(&self, way: NetworkWay, megabytes: usize) -> ClientTimes {
        let output = self.command(way, [REQUESTS, CONNECTIONS, megabytes]).output().expect("the client starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{way:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|problem| panic!("{way:?}: {problem}: {error}"))
    }

    /// Returns the most memory that the host's process had resident during a download, in kilobytes.
    fn memory_of_download(&self, way: NetworkWay, megabytes: usize) -> u64 {
        let mut command = self.command(way, [1, 1, megabytes]);
        let mut child = command.stdout(Stdio::null()).spawn().expect("the client starts");
        let mut most = 0;
        loop {
            most = most.max(peak_of(child.id()));
            if let Some(status) = child.try_wait().expect("it is a child") {
                assert!(status.success(), "{status}");
                return most;
            }
            std::thread::sleep(MEMORY_INTERVAL);
        }
    }
}

/// Returns the peak of resident memory of a process, in kilobytes; 0 once it has ended.
fn peak_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

fn test_certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls")
}

/// Answers `GET /small` and `GET /megabytes/N` over TLS, as often as a client asks.
async fn serve_tls(listener: TcpListener) {
    let file = |name: &str| test_certificates().join(name);
    let chain = vec![CertificateDer::from_pem_file(file("other-name.pem")).expect("the certificate is there")];
    let key = PrivateKeyDer::from_pem_file(file("ecdsa.key")).expect("the key is there");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("the versions are known").with_no_client_auth().with_single_cert(chain, key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("the certificate fits the key")));
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer_requests(acceptor.clone(), stream));
    }
}

/// Answers until the client closes the connection.
async fn answer_requests(acceptor: TlsAcceptor, stream: TcpStream) -> std::io::Result<Infallible> {
    stream.set_nodelay(true)?;
    let mut client = BufReader::new(acceptor.accept(stream).await?);
    loop {
        let path = read_head(&mut client).await?;
        let megabytes = path.strip_prefix("/megabytes/").and_then(|count| count.parse::<usize>().ok());
        let length = megabytes.map_or(1024, |count| count << 20);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        match megabytes {
            None => client.write_all(&[head.as_bytes(), &[b'x'; 1024]].concat()).await?,
            Some(count) => {
                client.write_all(head.as_bytes()).await?;
                let piece = vec![b'x'; 1 << 20];
                for _ in 0..count {
                    client.write_all(&piece).await?;
                }
            }
        }
        client.flush().await?;
    }
}

/// Opens a tunnel for each `CONNECT`, without any rule.
async fn serve_proxy(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let mut client = BufReader::new(stream);
            let target = read_head(&mut client).await?;
            let port: u16 = target.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
            let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
            server.set_nodelay(true)?;
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

/// Reads the head of a request, and returns the second word of its first line. Fails at the end of the connection.
async fn read_head(client: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if client.read_line(&mut head).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head.split(' ').nth(1).unwrap_or_default().to_owned())
}
