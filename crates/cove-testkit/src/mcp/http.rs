//! A client over HTTP. It opens a connection for each request, so that a test can close one to cancel the request.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitStatus, Stdio as Pipe};

use serde_json::{Value, json};

use super::server_process::TestServerProcess;
use super::{ClientEra, TIMEOUT, ToolAnswer, result_of};

/// A server that was started for a test and ends with it.
pub struct HttpServerProcess {
    server: TestServerProcess,
    pub address: SocketAddr,
}

impl HttpServerProcess {
    /// Starts a server and waits until it prints its address.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Pipe::null()).stdout(Pipe::null());
        let mut server = TestServerProcess::start(command);
        let address = server.poll("listen", |server| {
            let printed = server.errors();
            let address = printed.split("http://").skip(1).find_map(|rest| {
                let address = rest.split_once("/mcp")?.0;
                address.parse().ok().filter(|address: &SocketAddr| address.port() != 0)
            });
            assert!(address.is_some() || server.ended().is_none(), "the server does not listen: {printed}");
            address
        });
        Self { server, address }
    }

    pub fn pid(&self) -> u32 {
        self.server.child.id()
    }

    /// Returns what the server has written to standard error so far.
    pub fn errors(&self) -> String {
        self.server.errors()
    }

    /// Waits until the server has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.server.wait()
    }
}

/// A whole HTTP response.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    pub status: u16,
    /// With names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl HttpAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns every message in the body, which is one message or a stream of events.
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

/// A client: its token, and the `Mcp-Session-Id` that the server gave it, if any.
#[derive(Debug, Clone)]
pub struct TestHttpClient {
    pub address: SocketAddr,
    pub token: Option<String>,
    era: ClientEra,
    capabilities: Value,
    /// The name that the client gives itself in every request, if it is not the usual one.
    name: Option<String>,
    connection: Option<String>,
    next: u64,
}

impl TestHttpClient {
    /// Returns a client, after the handshake in the era that has one.
    pub fn new(address: SocketAddr, token: Option<&str>, era: ClientEra) -> Self {
        Self::with_capabilities(address, token, era, json!({}))
    }

    /// The same with the client's capabilities.
    pub fn with_capabilities(address: SocketAddr, token: Option<&str>, era: ClientEra, capabilities: Value) -> Self {
        let token = token.map(str::to_owned);
        let mut client = Self { address, token, era, capabilities, name: None, connection: None, next: 0 };
        if era == ClientEra::Legacy {
            let answer = client.send("initialize", era.initialize(&client.capabilities));
            assert_eq!(answer.status, 200, "{answer:?}");
            client.connection = answer.header("mcp-session-id").map(str::to_owned);
            let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            let answer = send_raw(client.address, &client.post(&note));
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        client
    }

    /// Returns the `Mcp-Session-Id` of this client, so that tests can misuse it.
    pub fn connection(&self) -> Option<&str> {
        self.connection.as_deref()
    }

    /// Returns this client with another `Mcp-Session-Id`.
    pub fn with_connection(mut self, connection: Option<&str>) -> Self {
        self.connection = connection.map(str::to_owned);
        self
    }

    /// Returns this client under another name, which requests of the modern era carry.
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Returns a request as bytes, with all headers.
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
        if self.era == ClientEra::Modern
            && let Some(method) = message["method"].as_str()
        {
            head += &format!("Mcp-Method: {method}\r\n");
            if let Some(name) = message["params"]["name"].as_str().or(message["params"]["uri"].as_str()) {
                head += &format!("Mcp-Name: {name}\r\n");
            }
        }
        [head.as_bytes(), b"\r\n", body.as_bytes()].concat()
    }

    /// Returns a JSON-RPC request with the next id.
    pub fn message(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = self.era.request(self.next, method, params, &self.capabilities);
        if let (ClientEra::Modern, Some(name)) = (self.era, &self.name) {
            message["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] = json!(name);
        }
        message
    }

    /// Sends a request and returns the whole response.
    pub fn send(&mut self, method: &str, params: Value) -> HttpAnswer {
        let message = self.message(method, params);
        send_raw(self.address, &self.post(&message))
    }

    /// Sends a request and returns its result or its error.
    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let answer = self.send(method, params);
        let Some(last) = answer.messages().pop().filter(|message| message["id"] == self.next) else {
            panic!("{method}: no answer in {answer:?}");
        };
        result_of(last)
    }

    /// Calls a tool and returns its result. Panics at a protocol error.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> ToolAnswer {
        ToolAnswer::of_call(tool, arguments, |method, params| self.request(method, params))
    }

    /// Sends a request and returns its connection, which the caller may close.
    pub fn begin(&mut self, method: &str, params: Value) -> TcpStream {
        let message = self.message(method, params);
        let mut stream = connect(self.address);
        stream.write_all(&self.post(&message)).expect("the server reads");
        stream
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a socket has timeouts");
    stream.set_write_timeout(Some(TIMEOUT)).expect("a socket has timeouts");
    stream
}

/// Reads the messages of a response while it is being sent.
pub struct EventStreamReader(BufReader<TcpStream>);

impl EventStreamReader {
    pub fn new(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// Waits for the next message, or returns `None` at the end of the response.
    pub fn read_message(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("the server goes on") == 0 {
                return None;
            }
            let text = line.strip_prefix("data:").unwrap_or(&line);
            if let Ok(message @ Value::Object(_)) = serde_json::from_str(text.trim()) {
                return Some(message);
            }
        }
    }
}

/// Sends bytes and returns one response.
pub fn send_raw(address: SocketAddr, request: &[u8]) -> HttpAnswer {
    let mut stream = connect(address);
    // A server that refuses a request does not read its body.
    match stream.write_all(request) {
        Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            panic!("could not send: {error}")
        }
        _ => {}
    }
    read(&mut BufReader::new(stream))
}

/// Reads one response.
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
