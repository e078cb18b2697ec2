//! The floors of cells and calls: a line through a pipe and back, and a client that drives the fixture server by hand over
//! its pipes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture;

/// A process that answers lines on its pipes. It ends with this.
struct LineProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl LineProcess {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdin, stdout }
    }

    /// Sends a line with its end, and returns the line that comes back.
    fn exchange(&mut self, line: &str) -> String {
        self.stdin.write_all(line.as_bytes()).expect("it reads");
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("it answers");
        answer
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A bare `cat`.
pub struct EchoPipe(LineProcess);

impl EchoPipe {
    pub fn start() -> Self {
        Self(LineProcess::start(&mut Command::new("cat")))
    }

    /// Returns how long a line takes to it and back.
    pub fn round_trip(&mut self) -> Duration {
        const LINE: &str = "x += 1\n";
        let start = Instant::now();
        let answer = self.0.exchange(LINE);
        let taken = start.elapsed();
        assert_eq!(answer, LINE);
        taken
    }
}

/// The fixture server, driven in the simplest way.
pub struct PipeClient(LineProcess);

impl PipeClient {
    /// Starts the server and makes the handshake.
    pub fn start() -> Self {
        let mut client = Self(LineProcess::start(Command::new(fixture::program()).args(["--era", "legacy"])));
        let version =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}});
        client.request("initialize", version);
        client
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string() + "\n";
        serde_json::from_str(&self.0.exchange(&line)).expect("it speaks JSON")
    }

    /// Calls `echo` with a number, checks the answer, and returns how long the call took.
    pub fn time_call(&mut self, number: usize) -> Duration {
        let start = Instant::now();
        let answer = self.request("tools/call", json!({"name": "echo", "arguments": {"a": number}}));
        let taken = start.elapsed();
        assert_eq!(answer["result"]["structuredContent"]["a"], number);
        taken
    }
}
