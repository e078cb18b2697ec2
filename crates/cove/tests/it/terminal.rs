//! The real program on a real terminal: a pseudo-terminal whose other end is the test, which types and reads.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Only a program that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct PseudoTerminal {
    child: Child,
    master: File,
    slave: File,
    output: Receiver<Vec<u8>>,
    /// What was shown since the last `expect`, without cursor movements.
    shown: String,
    /// An escape sequence that is still incomplete.
    pending: Vec<u8>,
    has_colours: bool,
}

impl PseudoTerminal {
    /// Starts a command with this terminal as its controlling terminal.
    pub(crate) fn start(command: &Command) -> Self {
        // Closed in every other program that a test starts meanwhile.
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = std::ffi::OsStr::from_bytes(name.as_bytes());
        let slave = OpenOptions::new().read(true).write(true).open(slave).unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // Makes this the terminal that Ctrl-C comes from.
        let mut own = Command::new("setsid");
        own.arg("--ctty").arg("--wait").arg(command.get_program()).args(command.get_args()).env_clear();
        own.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir("/");
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = own.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let master = File::from(master);
        let mut reader = master.try_clone().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok(count) = reader.read(&mut bytes) {
                if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, master, slave, output, shown: String::new(), pending: Vec::new(), has_colours: false }
    }

    /// The process that owns the terminal; the program is its descendant.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, text: &str) -> &mut Self {
        self.master.write_all(text.as_bytes()).unwrap();
        self
    }

    /// Waits until this is shown. Returns what was shown before it since the last call.
    #[track_caller]
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                let before = self.shown[..at].to_owned();
                self.shown.drain(..at + text.len());
                return before;
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            let Ok(bytes) = self.output.recv_timeout(left) else {
                panic!("`{text}` was not shown, but {:?}", self.shown)
            };
            self.feed(&bytes);
        }
    }

    /// True if what was shown so far had a colour or another style.
    pub(crate) fn has_colours(&self) -> bool {
        self.has_colours
    }

    /// True if the terminal itself edits lines, as before the program started.
    pub(crate) fn has_original_mode(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits until the program has ended. Returns its exit code, and what was shown last.
    #[track_caller]
    pub(crate) fn close(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it did not end: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(self.has_original_mode());
        // The program wrote all of it before it ended, so all of it comes before this.
        const END: &str = "[this is the end]";
        self.slave.write_all(END.as_bytes()).unwrap();
        let shown = self.expect(END);
        (status.code(), shown)
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut plain = Vec::new();
        for byte in bytes {
            match self.pending.as_slice() {
                [] if *byte == 0x1b => self.pending.push(*byte),
                [] => plain.push(*byte),
                [_, _, ..] if byte.is_ascii_alphabetic() || *byte == b'~' => {
                    self.has_colours |= *byte == b'm';
                    self.pending.clear();
                }
                _ => self.pending.push(*byte),
            }
        }
        self.shown.push_str(&String::from_utf8_lossy(&plain));
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
