//! A client on the standard input and output of a server that it starts.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, ExitStatus, Stdio as Pipe};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server_process::TestServerProcess;
use super::{ClientEra, TIMEOUT, ToolAnswer, result_of};

/// A client and the server process that it started, which ends with it.
pub struct TestStdioClient {
    server: TestServerProcess,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    era: ClientEra,
    capabilities: Value,
    next: u64,
    /// Answers that arrived while the client waited for another one.
    early: Vec<Value>,
    /// Notifications and requests of the server so far.
    pub notifications: Vec<Value>,
    /// What the server answered to the handshake, in the era that has one.
    pub handshake: Value,
}

impl TestStdioClient {
    /// Starts a server, and makes the handshake in the era that has one.
    pub fn start(command: Command, era: ClientEra) -> Self {
        Self::start_with(command, era, json!({}))
    }

    /// The same with the client's capabilities.
    pub fn start_with(command: Command, era: ClientEra, capabilities: Value) -> Self {
        let mut client = Self::spawn(command, era);
        client.capabilities = capabilities;
        if era == ClientEra::Legacy {
            let hello = era.initialize(&client.capabilities);
            client.handshake = client.request("initialize", hello).expect("the server shakes hands");
            client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        }
        client
    }

    /// Starts a server and sends nothing.
    pub fn spawn(mut command: Command, era: ClientEra) -> Self {
        command.stdin(Pipe::piped()).stdout(Pipe::piped());
        let mut server = TestServerProcess::start(command);
        let input = server.child.stdin.take();
        let output = server.child.stdout.take().expect("output is a pipe");
        // A thread reads the pipe all the time, so that a server that writes much is never blocked by the test.
        let (sender, messages) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let message = serde_json::from_str(&line).unwrap_or_else(|_| json!({"junk": line}));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self {
            server,
            input,
            messages,
            era,
            capabilities: json!({}),
            next: 0,
            early: Vec::new(),
            notifications: Vec::new(),
            handshake: Value::Null,
        }
    }

    pub fn pid(&self) -> u32 {
        self.server.child.id()
    }

    /// Returns what the server has written to standard error so far.
    pub fn errors(&self) -> String {
        self.server.errors()
    }

    pub fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    pub fn send_line(&mut self, line: &[u8]) {
        let input = self.input.as_mut().expect("input is open");
        input.write_all(line).and_then(|()| input.write_all(b"\n")).expect("the server reads");
        input.flush().expect("the server reads");
    }

    /// Sends a request without waiting for the answer. Returns its id.
    pub fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let request = self.era.request(self.next, method, params, &self.capabilities);
        self.send(&request);
        self.next
    }

    /// Waits for the answer to a request, and returns the whole message.
    pub fn answer(&mut self, id: u64) -> Value {
        self.answer_within(id, TIMEOUT).unwrap_or_else(|| panic!("no answer to {id}: {}", self.errors()))
    }

    /// The same, or `None` if there is no answer in time.
    pub fn answer_within(&mut self, id: u64, timeout: Duration) -> Option<Value> {
        if let Some(at) = self.early.iter().position(|message| message["id"] == id) {
            return Some(self.early.remove(at));
        }
        let until = Instant::now() + timeout;
        loop {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())).ok()? {
                message if message.get("junk").is_some() => panic!("junk on standard output: {message}"),
                // The server numbers its own requests, too.
                message if message.get("method").is_some() => self.notifications.push(message),
                message if message["id"] == id => return Some(message),
                message => self.early.push(message),
            }
        }
    }

    /// Waits for a message of the server with this method, and returns it.
    pub fn wait_for_message(&mut self, method: &str) -> Value {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.notifications.iter().position(|message| message["method"] == method) {
                return self.notifications.remove(at);
            }
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) if message.get("method").is_some() => self.notifications.push(message),
                Ok(message) => self.early.push(message),
                Err(_) => panic!("no `{method}`: {:?} {}", self.early, self.errors()),
            }
        }
    }

    /// Answers a request of the server.
    pub fn reply(&mut self, request: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// Sends a request and returns its result or its error.
    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.begin(method, params);
        result_of(self.answer(id))
    }

    /// Calls a tool without waiting for the answer. Returns the request's id.
    pub fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool and returns its result. Panics at a protocol error.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> ToolAnswer {
        ToolAnswer::of_call(tool, arguments, |method, params| self.request(method, params))
    }

    /// Waits for the result of a call that `begin_call` began.
    pub fn call_answer(&mut self, id: u64) -> ToolAnswer {
        ToolAnswer(self.answer(id)["result"].take())
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until the server has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.server.wait()
    }
}
