//! A client on the standard input and output of a server that it started.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio as Pipe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Called, Era, PATIENCE};

pub struct Stdio {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    errors: Arc<Mutex<String>>,
    era: Era,
    next: u64,
    /// Answers that came while another was waited for.
    early: Vec<Value>,
    /// Notifications so far.
    pub notes: Vec<Value>,
}

impl Stdio {
    /// Starts it and shakes hands, where the era has that.
    pub fn start(command: Command, era: Era) -> Self {
        let mut client = Self::spawn(command, era);
        if era == Era::Legacy {
            client.request("initialize", era.initialize()).expect("the server shakes hands");
            client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        }
        client
    }

    /// Starts it and says nothing.
    pub fn spawn(mut command: Command, era: Era) -> Self {
        command.stdin(Pipe::piped()).stdout(Pipe::piped()).stderr(Pipe::piped());
        let mut child = command.spawn().expect("the server can be started");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("output is a pipe");
        let mut diagnostics = child.stderr.take().expect("standard error is a pipe");
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
        let errors = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&errors);
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = diagnostics.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..count]);
                kept.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Self { child, input, messages, errors, era, next: 0, early: Vec::new(), notes: Vec::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said on standard error so far.
    pub fn errors(&self) -> String {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    pub fn send_line(&mut self, line: &[u8]) {
        let input = self.input.as_mut().expect("input is open");
        input.write_all(line).and_then(|()| input.write_all(b"\n")).expect("the server reads");
        input.flush().expect("the server reads");
    }

    /// Sends a request and does not wait; its id.
    pub fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let request = self.era.request(self.next, method, params);
        self.send(&request);
        self.next
    }

    /// The answer to a request, whole.
    pub fn answer(&mut self, id: u64) -> Value {
        self.answer_within(id, PATIENCE).unwrap_or_else(|| panic!("no answer to {id}: {}", self.errors()))
    }

    pub fn answer_within(&mut self, id: u64, patience: Duration) -> Option<Value> {
        if let Some(at) = self.early.iter().position(|message| message["id"] == id) {
            return Some(self.early.remove(at));
        }
        let until = Instant::now() + patience;
        loop {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) if message.get("junk").is_some() => panic!("junk on standard output: {message}"),
                Ok(message) if message["id"] == id => return Some(message),
                Ok(message) if message.get("method").is_some() => self.notes.push(message),
                Ok(message) => self.early.push(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// The result, or the error.
    pub fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.begin(method, params);
        let mut answer = self.answer(id);
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].take()),
        }
    }

    pub fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Called {
        let params = json!({"name": tool, "arguments": arguments});
        Called(self.request("tools/call", params).unwrap_or_else(|error| panic!("{tool}: {error}")))
    }

    /// The answer to a call that was begun.
    pub fn called(&mut self, id: u64) -> Called {
        Called(self.answer(id)["result"].take())
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Until it has ended by itself.
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

impl Drop for Stdio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
