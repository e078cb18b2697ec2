//! A client over HTTP, one connection for each request, so that closing it means what it says.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio as Pipe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Called, Era, PATIENCE};

/// A server that was started for a test, and ends with it.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    errors: Arc<Mutex<String>>,
}

impl Server {
    /// Waits until it says where it listens.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Pipe::null()).stdout(Pipe::null()).stderr(Pipe::piped());
        let mut child = command.spawn().expect("the server can be started");
        let mut diagnostics = child.stderr.take().expect("standard error is a pipe");
        let errors = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&errors);
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = diagnostics.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..count]);
                kept.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)), errors };
        let until = Instant::now() + PATIENCE;
        loop {
            let said = server.errors();
            let found = said.split("http://").skip(1).find_map(|rest| {
                let address = rest.split_once("/mcp")?.0;
                address.parse().ok().filter(|address: &SocketAddr| address.port() != 0)
            });
            if let Some(address) = found {
                server.address = address;
                return server;
            }
            let ended = server.child.try_wait().expect("the server can be waited for");
            assert!(ended.is_none() && Instant::now() < until, "the server does not listen: {said}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn errors(&self) -> String {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the server can be waited for") {
                return status;
            }
            assert!(Instant::now() < until, "the server does not end: {}", self.errors());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Clone)]
pub struct HttpAnswer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl HttpAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Every message in the body, be it one or a stream of events.
    pub fn messages(&self) -> Vec<Value> {
        match serde_json::from_str(&self.body) {
            Ok(message) => vec![message],
            Err(_) => {
                let lines = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
                lines.filter_map(|line| serde_json::from_str(line.trim()).ok()).collect()
            }
        }
    }
}

/// One client: who it is, and the connection that the protocol gave it, if any.
#[derive(Debug, Clone)]
pub struct Http {
    pub address: SocketAddr,
    pub token: Option<String>,
    era: Era,
    connection: Option<String>,
    next: u64,
}

impl Http {
    pub fn new(address: SocketAddr, token: Option<&str>, era: Era) -> Self {
        let mut client = Self { address, token: token.map(str::to_owned), era, connection: None, next: 0 };
        if era == Era::Legacy {
            let answer = client.send("initialize", era.initialize());
            assert_eq!(answer.status, 200, "{answer:?}");
            client.connection = answer.header("mcp-session-id").map(str::to_owned);
            let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            let answer = raw(client.address, &client.post(&note));
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        client
    }

    /// The connection that the protocol gave, to be used where it should not be.
    pub fn connection(&self) -> Option<&str> {
        self.connection.as_deref()
    }

    pub fn with_connection(mut self, connection: Option<&str>) -> Self {
        self.connection = connection.map(str::to_owned);
        self
    }

    /// A request as bytes, with all that belongs to it.
    pub fn post(&self, message: &Value) -> Vec<u8> {
        let body = message.to_string();
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\
             MCP-Protocol-Version: {}\r\n",
            self.address,
            body.len(),
            self.era.version()
        );
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        if let Some(connection) = &self.connection {
            head += &format!("Mcp-Session-Id: {connection}\r\n");
        }
        if self.era == Era::Modern
            && let Some(method) = message["method"].as_str()
        {
            head += &format!("Mcp-Method: {method}\r\n");
            if let Some(name) = message["params"]["name"].as_str().or(message["params"]["uri"].as_str()) {
                head += &format!("Mcp-Name: {name}\r\n");
            }
        }
        [head.as_bytes(), b"\r\n", body.as_bytes()].concat()
    }

    pub fn message(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        self.era.request(self.next, method, params)
    }

    pub fn send(&mut self, method: &str, params: Value) -> HttpAnswer {
        let message = self.message(method, params);
        raw(self.address, &self.post(&message))
    }

    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let answer = self.send(method, params);
        let mut messages = answer.messages();
        let Some(mut last) = messages.pop().filter(|message| message["id"] == self.next) else {
            panic!("{method}: no answer in {answer:?}");
        };
        match last.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(last["result"].take()),
        }
    }

    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Called {
        let params = json!({"name": tool, "arguments": arguments});
        Called(self.request("tools/call", params).unwrap_or_else(|error| panic!("{tool}: {error}")))
    }

    /// Begins a request and leaves its connection to the caller, who may close it.
    pub fn begin(&mut self, method: &str, params: Value) -> TcpStream {
        let message = self.message(method, params);
        let mut stream = connect(self.address);
        stream.write_all(&self.post(&message)).expect("the server reads");
        stream
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    stream.set_write_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    stream
}

/// Sends bytes and reads one answer.
pub fn raw(address: SocketAddr, request: &[u8]) -> HttpAnswer {
    let mut stream = connect(address);
    // A server that refuses a body does not read it.
    match stream.write_all(request) {
        Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            panic!("could not send: {error}")
        }
        _ => {}
    }
    read(&mut BufReader::new(stream))
}

fn read(stream: &mut impl BufRead) -> HttpAnswer {
    let mut line = String::new();
    stream.read_line(&mut line).expect("the server answers");
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.unwrap_or_else(|| panic!("not an answer: {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("the head goes on");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut answer = HttpAnswer { status, headers, body: String::new() };
    let mut body = Vec::new();
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            let mut size = String::new();
            stream.read_line(&mut size).expect("the body goes on");
            let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
            let mut piece = vec![0; size + 2];
            if size == 0 || stream.read_exact(&mut piece).is_err() {
                break;
            }
            body.extend_from_slice(&piece[..size]);
        }
    } else if let Some(length) = answer.header("content-length").and_then(|text| text.parse().ok()) {
        body = vec![0; length];
        stream.read_exact(&mut body).expect("the body is there");
    } else {
        let _ = stream.read_to_end(&mut body);
    }
    answer.body = String::from_utf8_lossy(&body).into_owned();
    answer
}
